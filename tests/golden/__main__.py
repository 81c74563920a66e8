"""Records the golden numbers: ``python tests/golden [--check] [GROUP [CASE ...]]``."""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The library of this working tree, whatever is installed, and the zoo of losses.
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

import jax  # noqa: E402

from golden import record  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)  # as the tests have it
jax.config.update("jax_disable_most_optimizations", True)  # compiling is what takes the time


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/golden", description=record.__doc__)
    parser.add_argument("group", nargs="?", choices=record.GROUPS, help="default: all")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="texts that names contain")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a change")
    given = parser.parse_args()
    groups = [given.group] if given.group else list(record.GROUPS)
    changed = sum(record.record(group, given.cases, write=not given.check) for group in groups)
    print(f"{changed} cases changed by more than the tolerance")
    return int(given.check and changed > 0)


if __name__ == "__main__":
    sys.exit(main())
