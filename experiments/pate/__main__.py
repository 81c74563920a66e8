"""The command ``python -m experiments.pate FILE``: every ε of a release of labels from votes.

FILE is an array of counts ``(num_queries, num_classes)`` in numpy's format, one row for each query,
that sum to the number of teachers: the format of the votes released with Papernot et al. (2018).
Where teachers may abstain, give their number.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from dpjax import pate
from experiments.pate.accounts import load_votes, make_mechanism
from experiments.published.pate import published_epsilon

_RELEASE = ("order", "beta", "noise_scale", "failure_probability")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the certificate of a release of the first votes of a file, by every analysis.

    Privacy:
      What is printed beside the guarantee is a function of the votes, and marked as not
      publishable; the sanitized certificate may be published.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    votes = load_votes(arguments.file)[: arguments.num_queries]
    settings = {name: value for name, value in vars(arguments).items() if value is not None}
    teachers = arguments.num_teachers
    mechanism = make_mechanism(
        settings | {"num_queries": len(votes), "abstentions": teachers is not None},
        num_teachers=int(votes[0].sum()) if teachers is None else teachers,
        num_classes=votes.shape[1],
    )
    answered = None
    if isinstance(mechanism, pate.ConfidentGNMax):
        answered = np.asarray(mechanism.release(jax.random.key(0), votes).answered)
    print(pate.certificate(mechanism, arguments.delta, votes=votes, answered=answered))
    formula = published_epsilon(mechanism, votes, arguments.delta)
    print(f"\nBy the source's formula, no guarantee and NOT PUBLISHABLE: epsilon {formula:.4g}")
    if arguments.sanitize:
        if isinstance(mechanism, pate.LNMax):
            parser.error("--sanitize is for GNMax and ConfidentGNMax")
        release = pate.SmoothRDPRelease(
            mechanism=mechanism, **dict(zip(_RELEASE, arguments.sanitize, strict=True))
        )
        released = release.release(jax.random.key(1), votes)
        print(f"\n{pate.sanitized_certificate(release, released, delta=arguments.delta)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.pate", description=__doc__)
    parser.add_argument("file", type=Path, help="votes, a .npy file")
    aggregators = ("LNMax", "GNMax", "ConfidentGNMax")
    parser.add_argument("--aggregator", choices=aggregators, required=True)
    parser.add_argument("--scale", type=float, required=True, help="of the noise on the counts")
    parser.add_argument("--delta", type=float, required=True)
    help_teachers = "of whom some may abstain (the sum of the first row, and none abstains)"
    parser.add_argument("--num-teachers", type=int, help=help_teachers)
    parser.add_argument("--num-queries", type=int, help="of the first rows (all)")
    parser.add_argument("--threshold", type=float, help="T of ConfidentGNMax")
    parser.add_argument("--check-scale", type=float, help="noise of the check of ConfidentGNMax")
    parser.add_argument("--max-answers", type=int, help="of ConfidentGNMax")
    parser.add_argument(
        "--sanitize",
        type=float,
        nargs=len(_RELEASE),
        metavar=tuple(name.upper() for name in _RELEASE),
        help="also release the Rényi cost of Gaussian noise with smooth sensitivity",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
