"""Any other private release, to be rehearsed: a function of a key, records and epsilon."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from dpjax._checks import check, check_function, check_type
from dpjax._typing import PRNGKey, PyTree
from dpjax.rehearsal.calibration import NUM_DRAWS, rank_truth
from dpjax.rehearsal.worlds import Simulator, World


@dataclass(frozen=True)
class Release:
    """Any private release: a statistic, a conjugate or regression posterior, SG-MCMC, PATE.

    Attributes:
      release: ``release(key, records, *, epsilon, **setting) -> result``, called as it is, one run
        after another; at other epsilons too.
      score: ``score(result, world) -> number``, the error, lower is better.
      settings: candidates by name of the argument, all combinations of which are tried.
      constant_score: ``constant_score(world) -> number``, the error of a result that does not
        depend on the records.
      draws: ``draws(result, key, num_draws)`` -> posterior draws by name, ``(num_draws, ...)``, of
        values that a world's truth has; for ranks and coverage.

    >>> import jax.numpy as jnp
    >>> def release(key, records, *, epsilon, bound):
    ...     clipped = jnp.clip(records, -bound, bound)
    ...     return jnp.mean(clipped) + 2 * bound / len(records) / epsilon * jax.random.laplace(key)
    >>> method = Release(
    ...     release, lambda mean, world: abs(mean - world.truth["mean"]), {"bound": [1.0, 4.0]})
    >>> [setting["bound"] for setting in method.combinations]
    [1.0, 4.0]
    """

    release: Callable[..., Any]
    score: Callable[[Any, World], Any]
    settings: Mapping[str, Sequence[Any]]
    constant_score: Callable[[World], Any] | None = None
    draws: Callable[[Any, PRNGKey, int], Mapping[str, jax.Array]] | None = None
    combinations: tuple[dict[str, Any], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_function("release", self.release)
        check_function("score", self.score, "result", "world")
        check_type("settings", self.settings, Mapping, "a mapping from arguments to candidates")
        products = itertools.product(*self.settings.values())
        combinations = tuple(dict(zip(self.settings, values, strict=True)) for values in products)
        check(bool(combinations), "settings", self.settings, "at least one candidate of each")
        object.__setattr__(self, "combinations", combinations)


class ReleaseRuns:
    """Releases of simulated data sets, one after another."""

    def __init__(self, method: Release, simulate: Simulator) -> None:
        self._method, self._simulate = method, jax.jit(simulate)

    def noise(self, setting: dict[str, Any], epsilon: float) -> None:
        del setting, epsilon

    def run(
        self, settings: Sequence[dict[str, Any]], epsilons: Sequence[float], key: PRNGKey
    ) -> tuple[np.ndarray, float, None]:
        method = self._method
        world_key, run_key = jax.random.split(key)
        world = self._simulate(world_key)
        results = [
            method.release(run_key, world.records, epsilon=epsilon, **setting)
            for setting, epsilon in zip(settings, epsilons, strict=True)
        ]
        errors = np.array([float(method.score(result, world)) for result in results])
        constant = np.nan if method.constant_score is None else float(method.constant_score(world))
        return errors, constant, None

    def ranks(self, setting: dict[str, Any], epsilon: float, key: PRNGKey) -> dict[str, np.ndarray]:
        if self._method.draws is None:
            return {}
        world_key, run_key, draws_key = jax.random.split(key, 3)
        world = self._simulate(world_key)
        result: PyTree = self._method.release(run_key, world.records, epsilon=epsilon, **setting)
        return rank_truth(self._method.draws(result, draws_key, NUM_DRAWS), world.truth)
