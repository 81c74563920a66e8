r"""Repetition and selection: the best of K independent runs, of a random number K.

K runs of one release are made, all independent, and one of them is released: the largest in a total
order of what a run gives (ties are broken at random). F is the distribution function of a run in
that order, phi the generating function of K, so that the selected output has phi'(F) times the
density of a run. Write P and Q for a run on two neighbours, and delta(eps) for the divergence of P
from Q.

**Upper bound.** By the Neyman-Pearson lemma the distribution functions F of P and G of Q satisfy
1 - G <= max power of a test at level 1 - F, whatever the order. With c the largest
log(phi'(F) / phi'(G)) that this allows, phi'(F) p - e^(eps + c) phi'(G) q <= phi'(F) (p - e^eps q),
and phi' <= phi'(1) = E[K]: after selection delta(eps + c) is at most E[K] delta(eps) (Koskela,
Redberg & Wang 2024). As F is uniform under P and phi' increases, it is at most what the order by
the loss itself gives, too (Hardy & Littlewood's inequality), which is less where delta is large.
The largest c has a closed form in the divergence of Q from P, delta':

- truncated negative binomial: phi' is in proportion to (1 - (1 - gamma) x)^-(1 + eta), and
  e^(c / (1 + eta)) is the least r with (1 - gamma) delta'(log r) <= gamma (r - 1): both sides are
  what the lines r alpha + delta'(log r) above the power at each level alpha allow.
- Poisson: phi' is mean e^(mean (x - 1)), and c is the mean times delta'(0).

Both hold for any upper bound on delta', so nothing is rounded to the unsafe side. Beside it stands
the Rényi bound (Papernot & Steinke 2022, Theorems 2 and 6), as computed by dp-accounting. At each
epsilon the smaller delta counts, and so does what convexity in e^epsilon gives in between.

**Lower bound**, exact for the score orders that are tried: outputs whose loss is below a threshold
are best, all others are ordered by their loss. Where few but likely outputs under Q are best, the
outputs that reveal P are next to them, and a lower threshold trades how often these are selected
for how much selection adds to their loss. Each order is one of a run whose output is a
post-processing of the worst pair's, so no bound that holds for every score can be below it.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from dp_accounting import dp_event

from dpjax.accounting.accountants import check_supported, pld_profile, rdp_profile
from dpjax.accounting.event_tradeoff import profile_epsilons
from dpjax.accounting.events import (
    AtomicEvents,
    Compound,
    GridBuilder,
    TooLittleNoiseError,
    UnsupportedEventError,
    decompose,
    loss_deviation,
)
from dpjax.accounting.loss_distribution import (
    DIRECTIONS,
    Array,
    Direction,
    LossDistribution,
    grid_from_profiles,
    hockey_stick,
)
from dpjax.accounting.lower_bounds import LowerProfile, lower_profiles
from dpjax.accounting.tradeoff.base import hull_slopes, tangent_masses
from dpjax.sampling.repetitions import Repetitions, repetitions_of

# Epsilons >= 0 and deltas at them.
Points = tuple[Array, Array]

# The probability under P, without selection, of the outputs that are best in the orders tried.
_BEST_SHARES = (0.0, *np.geomspace(1e-4, 0.9, 31).tolist())
# The probabilities at which outputs are cut, from the best down.
_LEVELS = np.geomspace(1e-12, 1.0, 97)
# What rounding may change, a delta that counts as an infinite loss, and the largest epsilon.
_ROUNDING, _RAREST, _LARGEST_EPSILON = 2.0**-44, 1e-18, 690.0
# A delta at that epsilon from which on no grid of losses is of use.
_LARGEST_REST = 0.1
# Over the deviation of a loss: by how much a run's is rounded in lower bounds, and how close
# outputs are merged after selection.
_SLACK, _CELL = 1e-3, 1 / 256
# What a lower bound of a run leaves out at least: what the transforms round.
_LEAST_TAIL = 1e-14


class RepeatedSelection(Compound):
    """Private selection: the best of a random number of independent runs of another event."""

    event_types = (dp_event.RepeatAndSelectDpEvent,)
    is_asymmetric = True

    def __hash__(self) -> int:
        # Compositions hold lists, which have no hash.
        return hash((repr(self.event), self.adjacency))

    def grid_builder(self) -> GridBuilder:
        self._repetitions  # noqa: B018 - raises for numbers out of range
        check_supported(self._run)
        removal, addition = self._upper["remove"], self._upper["add"]
        if removal[1][-1] > _LARGEST_REST:
            raise TooLittleNoiseError(f"its losses are mostly above {_LARGEST_EPSILON:g}")
        return functools.partial(
            grid_from_profiles,
            functools.partial(_join_points, *removal),
            functools.partial(_join_points, *addition),
            self._range,
        )

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Loss for scores that order outputs by their loss; below the exact one, made of atoms."""
        return self._select(self._run_pairs(direction, tail)[0], 0.0)

    def neighbor_losses(self, direction: Direction, tail: float) -> tuple[LossDistribution, ...]:
        """Losses for every order of outputs that is tried."""
        pairs = self._run_pairs(direction, tail)
        return tuple(self._select(pair, share) for pair in pairs for share in _BEST_SHARES)

    def rdp(self, orders: Sequence[float]) -> Array:
        self._repetitions  # noqa: B018 - raises where dp-accounting would another error
        return super().rdp(orders)

    def loss_range(self) -> float:
        return self._range[1] - self._range[0]

    @functools.cached_property
    def _run(self) -> AtomicEvents:
        """The atomic events of one run."""
        return decompose(self.event.event, self.adjacency)

    @functools.cached_property
    def _repetitions(self) -> Repetitions:
        try:
            return repetitions_of(self.event.mean, self.event.shape)
        except ValueError as reason:
            raise UnsupportedEventError(f"no such number of repetitions: {reason}") from None

    @functools.cached_property
    def _range(self) -> tuple[float, float]:
        """The least and the largest loss of removal that an upper bound counts as finite."""
        ends = []
        for epsilons, deltas in self._upper.values():
            rare = deltas <= max(_RAREST, 1.01 * float(deltas[-1]))
            ends.append(float(epsilons[np.argmax(rare)]))
        return -ends[0], ends[1]

    @functools.cached_property
    def _upper(self) -> dict[Direction, Points]:
        """Upper bounds on delta after selection, in both directions."""
        # One run, in both directions, and the Rényi bound, where there is one.
        epsilons = profile_epsilons(self._run)
        add, remove = (
            (epsilons, pld_profile(self._run, epsilons, direction)) for direction in DIRECTIONS
        )
        try:
            renyi = epsilons, rdp_profile(((self, 1),), epsilons)
        except UnsupportedEventError:
            renyi = np.zeros(0), np.zeros(0)

        def bound(own: Points, opposite: Points) -> Points:
            shift = self._repetitions.largest_log_ratio(functools.partial(_join_points, *opposite))
            shifted = own[0] + shift, self._largest_share(*own)
            knots, deltas = map(np.concatenate, zip(shifted, renyi, strict=True))
            return _convex_minorant(knots, deltas)

        # At epsilon zero delta is the same in both directions, and on or below every line that
        # joins a point of one profile with one of the other.
        both = [bound(add, remove), bound(remove, add)]
        knots = np.union1d(*(points for points, _ in both))
        deltas = np.max([_join_points(*points, knots) for points in both], axis=0)
        distance = float(np.min((np.expm1(knots) + 2 * deltas) / (np.exp(knots) + 1)))
        both = [
            _convex_minorant(knots, np.append(min(distance, deltas[0]), deltas[1:]))
            for knots, deltas in both
        ]
        distance = max(float(deltas[0]) for _, deltas in both)  # equal but for rounding
        both = [(knots, np.append(distance, deltas[1:])) for knots, deltas in both]
        return dict(zip(DIRECTIONS, both, strict=True))

    def _largest_share(self, epsilons: Array, deltas: Array) -> Array:
        """Returns upper bounds on the integral of phi'(F) (p - e^epsilon q)_+ of one run.

        Args:
          epsilons: increasing from 0.
          deltas: upper bounds on the run's delta there, whose chords are bounds between them.
        """
        _, masses = tangent_masses(epsilons, deltas)
        rest = max(0.0, 1 - float(np.sum(masses)))
        selected = self._repetitions.select(np.append(rest, masses))[1:]
        shares = selected[-1] + hockey_stick(epsilons[1:], selected[:-1], epsilons)
        return np.minimum(shares, self._repetitions.expected * deltas) * (1 + _ROUNDING)

    def _run_pairs(self, direction: Direction, tail: float) -> list[tuple[Array, Array]]:
        """Returns the masses under P and Q of outputs of one run, in order of their loss.

        They are post-processings of runs on neighbours, as many as are known.
        """
        count = sum(count for _, count in self._run)
        slack = _SLACK * loss_deviation(self._run) * math.sqrt(count)
        profiles = lower_profiles(self._run, direction, slack, max(tail, _LEAST_TAIL))
        return [_pair_of(profile) for profile in profiles]

    def _select(self, pair: tuple[Array, Array], best_share: float) -> LossDistribution:
        """Returns the loss after selection where outputs of low loss are best.

        Args:
          pair: the masses of one run's outputs, in order of their loss.
          best_share: of the mass under P, those of lowest loss, which are best; the others are
            ordered by their loss.
        """
        # The outputs, worst first, one of them cut in two by a random number beside it.
        place = float(np.interp(best_share, np.append(0.0, np.cumsum(pair[0])), _counts(pair[0])))
        cut, share = divmod(place, 1.0)
        cut = min(int(cut), pair[0].size - 1)
        ordered = [
            np.concatenate(
                [[(1 - share) * each[cut]], each[cut + 1 :], each[:cut], [share * each[cut]]]
            )
            for each in pair
        ]

        # Cut all outputs near the best, and near those just below the ones of low loss.
        above = np.append(0.0, np.cumsum(ordered[0][::-1]))
        levels = np.append(_LEVELS, best_share + _LEVELS)
        cuts = ordered[0].size - np.interp(levels[levels < 1], above, _counts(ordered[0]))
        cuts = np.unique(np.append(_counts(ordered[0]), cuts))
        widths = np.diff(cuts)
        outputs = np.minimum(cuts[:-1] + widths / 2, ordered[0].size - 0.5).astype(np.int64)
        selected, reference = (self._repetitions.select(each[outputs] * widths) for each in ordered)
        possible = (selected > 0) & (reference > 0)
        selected, reference = selected[possible], reference[possible]
        losses = np.log(selected) - np.log(reference)

        # Outputs of nearly equal losses become one, which is post-processing; no run is another.
        cells = np.floor(losses / (_CELL * float(np.std(losses)) or 1.0))
        _, places = np.unique(cells, return_inverse=True)
        p, q = np.bincount(places, selected), np.bincount(places, reference)
        atoms = list(zip((np.log(p) - np.log(q)).tolist(), p.tolist(), strict=True))
        if self._repetitions.probability_of_zero:
            atoms.append((0.0, self._repetitions.probability_of_zero))
        return LossDistribution(atoms=tuple(atoms), margin=_ROUNDING)


def _counts(masses: Array) -> Array:
    """Returns the numbers from zero to that of the masses."""
    return np.arange(masses.size + 1, dtype=np.float64)


def _join_points(epsilons: Array, deltas: Array, at: Array) -> Array:
    """Returns the chords of a profile in e^epsilon between points, which are above it.

    Args:
      epsilons: of the points, increasing from 0.
      deltas: of the points.
      at: epsilons >= 0.
    """
    place = np.clip(np.searchsorted(epsilons, at, side="right") - 1, 0, epsilons.size - 2)
    left, right = epsilons[place], epsilons[place + 1]
    share = np.clip(np.expm1(np.minimum(at - left, right - left)) / np.expm1(right - left), 0, 1)
    joined = deltas[place] + share * (deltas[place + 1] - deltas[place])
    # Near the right end the difference may round below it.
    return np.maximum(joined, deltas[place + 1])


def _convex_minorant(epsilons: Array, deltas: Array) -> Points:
    """Returns the largest profile below points that is convex in e^epsilon, from epsilon 0 on.

    Args:
      epsilons: of the points, >= 0, in any order.
      deltas: upper bounds on a profile.
    """
    order = np.lexsort((deltas, epsilons))
    order = order[epsilons[order] <= _LARGEST_EPSILON]
    knots, first = np.unique(epsilons[order], return_index=True)
    values = np.minimum.accumulate(np.minimum(deltas[order][first], 1.0))

    # A profile is one at e^epsilon = 0, and so at epsilon 0 below the chords from there.
    chords = 1 - (1 - values) * np.exp(-knots)
    if knots[0] > 0:
        knots, values = np.append(0.0, knots), np.append(1.0, values)
    values[0] = min(values[0], float(np.min(chords)))

    # Summed from the far end, where values are small.
    widths = np.exp(knots[:-1]) * np.expm1(np.diff(knots))
    falls = -hull_slopes(widths, np.diff(values)) * widths
    hull = values[-1] + np.append(np.cumsum(falls[::-1])[::-1], 0.0)
    return knots, np.minimum(hull * (1 + _ROUNDING), 1.0)


def _pair_of(profile: LowerProfile) -> tuple[Array, Array]:
    """Returns the masses under P and Q, in order of the loss, of a pair with a lower profile.

    It is the larger of the given profile and of that of two equal distributions, a polygon in
    x = e^epsilon: its slopes change by the mass under Q of the outputs of that ratio.
    """
    # The points of the polygon, with 0 and 1, and by how much they are above the other one.
    x = np.unique(np.append(np.exp(profile.losses - profile.slack), [0.0, 1.0]))
    with np.errstate(divide="ignore"):
        above = profile.delta(np.log(x)) - np.maximum(1 - x, 0.0)

    # Between the points where it meets the other one, on lines.
    inside = np.flatnonzero(above > 0)
    if inside.size == 0:
        return np.ones(1), np.ones(1)
    first, last = int(inside[0]), int(inside[-1])
    ends = []
    for near, far in ((first, first - 1), (last, last + 1)):
        share = above[near] / (above[near] - above[far])
        ends.append(x[near] + share * (x[far] - x[near]))
    x = np.concatenate([ends[:1], x[first : last + 1], ends[1:]])
    values = np.maximum(1 - x, 0.0) + np.concatenate([[0.0], above[first : last + 1], [0.0]])

    slopes = np.concatenate([[-1.0], np.diff(values) / np.diff(x), [0.0]])
    without = np.maximum(np.diff(slopes), 0.0)
    present = x * without
    return present / present.sum(), without / without.sum()
