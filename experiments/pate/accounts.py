"""Aggregations of votes from the settings of a row, and their ε by every analysis.

Columns that start with `PRIVATE` are functions of the private votes: they are not publishable.

``$DPJAX_DATA_DIR/pate_votes/NAME_250_teachers.npy`` holds the votes of 250 teachers; those of MNIST
and SVHN were released with Papernot et al. (2018).
"""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from dpjax import pate
from experiments.data import DATA_DIR, check_file
from experiments.published.pate import published_epsilon

_FOLDER = "pate_votes"


def votes_path(name: str, num_teachers: int) -> Path | None:
    """Returns the path of the votes on data set ``name``, or None if there is no such file."""
    root = os.environ.get(DATA_DIR)
    if not root:
        return None
    path = Path(root).expanduser() / _FOLDER / f"{name}_{num_teachers}_teachers.npy"
    return path if path.exists() else None


@functools.cache
def load_votes(path: Path) -> npt.NDArray[np.float64]:
    """Returns the votes in a file; the two released files are checked by their sha256.

    Raises:
      CorruptedFileError: the file has the name of a released one and other bytes.
    """
    check_file(path, _FOLDER)
    return np.asarray(np.load(path, allow_pickle=False), np.float64)


EPSILON = "ε"
SOURCE_BOUND, COMPOSED = "ε, source's bound for any votes", "ε, exact composition"
SANITIZED = "ε, sanitized"
PRIVATE = "not publishable: ε"
FORMULA, BOTH, REALIZED = (
    f"{PRIVATE} by the source's formula",
    f"{PRIVATE} in both directions",
    f"{PRIVATE} of the answers given",
)
Aggregation = pate.LNMax | pate.GNMax | pate.ConfidentGNMax
_BY_KIND = {"bound": BOTH, "realized": REALIZED}
# Arguments of the mechanisms that have another name in the recorded settings.
_ARGUMENTS = {"check_scale": "threshold_scale"}
_SETTINGS = ("num_queries", "scale", "threshold", "check_scale", "max_answers", "abstentions")


class Account(NamedTuple):
    """Epsilons of one release.

    Attributes:
      certified: of any votes.
      private: of the given votes, not publishable; empty without votes.
      certificate: the text of the guarantee, without epsilons of the votes.
    """

    certified: dict[str, float]
    private: dict[str, float]
    certificate: str


def make_mechanism(
    settings: Mapping[str, Any], *, num_teachers: int, num_classes: int
) -> Aggregation:
    """Returns the aggregation ``settings["aggregator"]`` of `dpjax.pate` with a row's settings.

    >>> settings = {"aggregator": "LNMax", "num_queries": 100, "scale": 20.0, "delta": 1e-5}
    >>> make_mechanism(settings, num_teachers=250, num_classes=10).pure_epsilon_per_query
    0.1
    """
    aggregation: type[Aggregation] = getattr(pate, settings["aggregator"])
    return aggregation(
        **{_ARGUMENTS.get(name, name): settings[name] for name in _SETTINGS if name in settings},
        num_teachers=num_teachers,
        num_classes=num_classes,
        adjacency="replace_one",
    )


def compute_epsilons(
    mechanism: pate.VoteAggregation,
    delta: float,
    votes: npt.ArrayLike | None = None,
    answered: npt.ArrayLike | None = None,
) -> Account:
    """Returns the epsilons of ``mechanism`` for any votes, and of ``votes``.

    ``answered`` is for aggregations with a threshold only.
    """
    certificate = pate.certificate(mechanism, delta)
    first, second, *_ = certificate.data_independent
    certified = {
        EPSILON: certificate.epsilon,
        COMPOSED: second.value,
        SOURCE_BOUND: first.value,
    }
    private = {}
    if votes is not None:
        given = answered if isinstance(mechanism, pate.ConfidentGNMax) else None
        found = pate.data_dependent_analyses(mechanism, votes, delta, answered=given)
        private = {FORMULA: published_epsilon(mechanism, votes, delta)}
        private |= {_BY_KIND[each.kind]: each.value for each in found}
    return Account(certified, private, str(certificate))


def sanitize(
    mechanism: pate.GNMax | pate.ConfidentGNMax,
    delta: float,
    votes: npt.ArrayLike,
    settings: Mapping[str, float],
    seed: int = 0,
) -> float:
    """Returns one data-dependent ε that may be published, released with noise of a seeded key.

    ``settings`` are the order, beta, noise scale and failure probability of `SmoothRDPRelease`.
    """
    release = pate.SmoothRDPRelease(mechanism=mechanism, **settings)
    released = release.release(jax.random.key(seed), np.asarray(votes))
    return release.epsilon(released, delta=delta)
