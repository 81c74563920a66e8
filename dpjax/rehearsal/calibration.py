"""Simulation-based calibration: ranks of the truth among posterior draws, and what they say.

Where a posterior is calibrated and the truth is drawn from the prior, the rank of the truth among L
independent draws is uniform on 0..L. With z the normal quantile of (rank + 1/2) / (L + 1), E z = 0
and E z^2 = v, a number known exactly: a posterior too narrow has z^2 larger, one too wide smaller.
Entries of one world depend on each other, worlds do not, so tests are of means over worlds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
import numpy.typing as npt
from scipy import stats

from dpjax._checks import check

Array = npt.NDArray[np.float64]

# Draws that a truth is ranked among: 99 make intervals of 90 % from ranks 5 to 94.
NUM_DRAWS = 99
# Of an honest posterior, over all its tests together.
_FALSE_ALARM_RATE = 0.02
_LEAST_WORLDS = 20
# Ranks may be equal in all worlds, where all draws are on one side of the truth.
_LEAST_SPREAD = 1e-9


def rank_truth(draws: Mapping[str, jax.Array], truth: Mapping[str, jax.Array]) -> dict[str, Array]:
    """Returns how many draws are below the truth, by name, for the names that both have.

    Args:
      draws: arrays ``(num_draws, ...)``.
      truth: arrays ``(...)``.

    Raises:
      ValueError: no name is in both, or the shapes of one differ.
    """
    shared = sorted(set(draws) & set(truth))
    names = f"among those of world(key).truth, {sorted(truth)}"
    check(bool(shared) or not draws, "names of draws", sorted(draws), names)
    ranks = {}
    for name in shared:
        values, true_value = np.asarray(draws[name]), np.asarray(truth[name])
        check(
            values.shape[1:] == true_value.shape,
            f"draws of {name}",
            values.shape[1:],
            f"of shape {true_value.shape}",
        )
        ranks[name] = np.sum(values < true_value, axis=0).astype(float)
    return ranks


@dataclass(frozen=True)
class Calibration:
    """Ranks of the truth among posterior draws, over worlds.

    Attributes:
      ranks: by latent variable, ``(worlds, ...)``, each from 0 to ``num_draws``.
      num_draws: among which the truth is ranked.
      warned: the first warning of each world whose posterior came with one.
    """

    ranks: Mapping[str, Array]
    num_draws: int
    warned: tuple[str, ...] = ()

    @staticmethod
    def of(
        ranks: Sequence[Mapping[str, Array]], num_draws: int, warned: Sequence[str] = ()
    ) -> "Calibration":
        """Returns the calibration from the ranks of each world.

        Args:
          ranks: of each world by latent variable.
          num_draws: among which the truth is ranked.
          warned: the first warning of each world whose posterior came with one.
        """
        by_name = {name: np.stack([each[name] for each in ranks]) for name in ranks[0]}
        return Calibration(by_name, num_draws, tuple(warned))

    @property
    def num_worlds(self) -> int:
        """Number of worlds."""
        return len(next(iter(self.ranks.values())))

    @property
    def is_tested(self) -> bool:
        """Whether the worlds are enough to find ``problems``."""
        return self.num_worlds >= _LEAST_WORLDS

    def coverage(self, level: float = 0.9) -> dict[str, float]:
        """Returns the share of truths within central intervals, by latent variable.

        Args:
          level: nominal coverage.
        """
        tail = (1 - level) / 2 * (self.num_draws + 1)
        return {
            name: float(np.mean((ranks >= tail) & (ranks < self.num_draws + 1 - tail)))
            for name, ranks in self.ranks.items()
        }

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong, by latent variable; of an honest posterior seldom anything.

        Nothing unless ``is_tested``.
        """
        if not self.is_tested:
            return {}
        level = _FALSE_ALARM_RATE / (2 * len(self.ranks))
        uniform = stats.norm.ppf((np.arange(self.num_draws + 1) + 0.5) / (self.num_draws + 1))
        variance = float(np.mean(uniform**2))
        found = {}
        for name, ranks in self.ranks.items():
            # The means over a world's entries: of z, and of z^2 over what it is for uniform ranks.
            z = stats.norm.ppf((ranks.reshape(len(ranks), -1) + 0.5) / (self.num_draws + 1))
            spread = np.mean(z**2, 1) / variance
            texts = []
            if _location_p_value(np.mean(z, 1)) < level:
                side = "below" if np.mean(z) > 0 else "above"
                texts.append(f"draws are {side} the truth")
            if _spread_p_value(spread, ranks[0].size) < level:
                size = np.sqrt(np.mean(spread))
                texts.append(
                    f"intervals are too {'narrow' if size > 1 else 'wide'}, standard deviations"
                    f" should be {size:.2g} times as large"
                )
            if texts:
                found[name] = "; ".join(texts)
        return found


def _location_p_value(means: Array) -> float:
    """P-value of a t-test of means of worlds against zero; zero where they are all the same."""
    error = max(float(np.std(means, ddof=1)), _LEAST_SPREAD) / np.sqrt(len(means))
    return float(2 * stats.t.sf(abs(np.mean(means)) / error, len(means) - 1))


def _spread_p_value(spread: Array, num_entries: int) -> float:
    """P-value of a mean over worlds other than one, of means of squares of normal entries.

    The mean of k independent squares has the coefficient of variation sqrt(2 / k), whatever their
    scale; of dependent entries this gives the number of independent ones that vary as much.
    """
    variation = max(float(np.var(spread, ddof=1)), _LEAST_SPREAD) / np.mean(spread) ** 2
    degrees = len(spread) * np.clip(2 / variation, 1, num_entries)
    share = stats.chi2.cdf(degrees * np.mean(spread), degrees)
    return float(2 * min(share, 1 - share))
