"""Import times of dpjax and of the libraries it depends on, in new processes."""

import subprocess
import sys

from experiments.benchmarks.results import Group, Groups, values_over
from experiments.benchmarks.timing import Case, Effort

BASELINE = "import numpyro, optax"
# Public names are imported lazily; the second statement imports all of them.
STATEMENTS = ("import dpjax", "from dpjax import *")


def import_groups() -> Groups:
    """Yields the group of import times."""
    yield "import times", import_group


def import_group() -> Group:
    """Returns the import statements, each timed in a new process."""

    def case(statement: str) -> Case:
        program = (
            f"import time; start = time.perf_counter(); {statement};"
            " print(time.perf_counter() - start)"
        )
        command = [sys.executable, "-c", program]

        def seconds() -> float:
            return float(subprocess.run(command, check=True, capture_output=True).stdout)

        return Case(statement, seconds)

    cases = [case(statement) for statement in (BASELINE, *STATEMENTS)]
    effort = Effort(seconds=60.0, repetitions=15, slow=120.0)
    return Group("statement", "import times", cases, values_over(BASELINE), effort)
