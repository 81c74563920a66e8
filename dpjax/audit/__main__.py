"""``python -m dpjax.audit``: applies the checks to the corpus of planted bugs and prints a table."""

import sys

from dpjax.audit import corpus


def _print(result: corpus.Result) -> None:
    found = (
        "; ".join(f"{check}: {text}" for check, text in result.caught.items()) or "nothing found"
    )
    mark = "ok  " if result.is_right else "FAIL"
    number = f"{result.number:3d}" if result.number else "  -"
    print(f"{mark} {number}  {result.name:<48} {result.expected:<9} {found:.220}", flush=True)


def main() -> int:
    """Runs the corpus; returns zero if every bug is caught and no right program is refused."""
    results = corpus.run(on_result=_print)
    bugs = [result for result in results if result.number]
    sound = [result for result in results if not result.number]
    caught = sum(result.is_right for result in bugs)
    passed = sum(result.is_right for result in sound)
    print(
        f"{caught} of {len(bugs)} planted bugs caught; {passed} of {len(sound)} right programs pass"
    )
    return int(not all(result.is_right for result in results))


if __name__ == "__main__":
    sys.exit(main())
