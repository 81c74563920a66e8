"""``python -m dpjax.audit``: applies the checks to planted bugs and prints a table."""

import argparse
import functools
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from dpjax.audit import corpus


def main() -> int:
    """Runs the corpus; returns zero if every bug is caught and no right program is refused."""
    parser = argparse.ArgumentParser(prog="python -m dpjax.audit", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="of the checks")
    options = parser.parse_args()

    # In processes of their own: compiling takes most of the time, on one core each.
    results = []
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        check = functools.partial(corpus.check_one, seed=options.seed)
        for result in pool.map(check, corpus.all_numbers()):
            results.append(result)
            _print(result)
    bugs = [result for result in results if result.number]
    right = [result for result in results if not result.number]
    caught = sum(result.is_right for result in bugs)
    passed = sum(result.is_right for result in right)
    print(f"\n{caught} of {len(bugs)} planted bugs caught")
    print(f"{passed} of {len(right)} right programs pass")
    return int(not all(result.is_right for result in results))


def _print(result: corpus.Result) -> None:
    found = "; ".join(f"{check}: {text}" for check, text in result.caught.items()) or "no objection"
    number = f"{result.number:3d}" if result.number else "  -"
    mark = "ok  " if result.is_right else "FAIL"
    sources = {bug.number: bug.source for bug in corpus.BUGS if bug.source}
    name = f"{result.name} ({sources[result.number]})" if result.number in sources else result.name
    print(f"{mark} {number}  {name:<60} {result.expected:<9} {found:.180}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
