"""The plan of a federated release: parties, grid, noise of each holder, and the guarantee.

Each of N holders rounds the sum over its records to a public grid and adds discrete Gaussian noise
of an integer scale s; the noisy integers are summed by secret sharing. Up to D holders drop out,
and up to T collude with the observer, who can subtract their noise and, if it is a holder, its own.
What remains of the noise are the shares of at least H = N - D - T - 1 holders (without the - 1 if
the observer is none), the victim's own among them. So s^2 is the variance of a trusted
aggregator's noise over H, and the guarantee is the trusted aggregator's.

In units of the grid, for one entry with noise of standard deviation t at the trusted aggregator:

1. Rounding a holder's sums moves two neighbours apart by at most one more unit in each entry, so by
   sqrt(d) units in L2; t is enlarged by that share of the sensitivity and by `SUM_ROUNDING`. Where
   the event covers the sums of T rounds as one release (correlated noise), by sqrt(T d) units, as a
   share of the sensitivity of one round, which is no more than that of all. A holder's sums are cut
   off at a public size, which moves no two values farther apart.
2. The sum of k discrete Gaussian numbers of scale s >= 16 has the probabilities of one of variance
   k s^2, up to factors within 1 +- 1e-1000 (Poisson summation:
   sum over j of exp(-j^2 / (2 a) - (n - j)^2 / (2 b)) is exp(-n^2 / (2 (a + b))) times a constant
   times 1 +- 2.1 exp(-2 pi^2 a b / (a + b)), and a b / (a + b) >= 128).
3. That is a post-processing of Gaussian noise of variance k s^2 - 4
   (`dpjax.accounting.kinds.discrete_gaussian`).

With s at least sqrt((t^2 + 4) / H) + 1 any k >= H shares carry Gaussian noise of variance t^2 k / H
or more, and so do fewer, as 2 s > 4. Sums are linear in the records, so this holds where the
records are sampled, too.

Source: Heikkilä et al. (2017), "Differentially private Bayesian learning on distributed data".
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dpjax._checks import as_float64, check, check_count, check_type
from dpjax._hashing import hash_dataclass
from dpjax._html import HTMLTable, render_html
from dpjax._html_tables import field_table
from dpjax.accounting.accountants import certified_epsilon
from dpjax.accounting.events import decompose
from dpjax.certificates.certificate import Certificate, certify
from dpjax.certificates.render import round_up
from dpjax.federated.messages import MessageFormat
from dpjax.federated.noise import Int64
from dpjax.federated.sharing import LARGEST_NODE, AdditiveSharing, SecretSharing, ShamirSharing
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.record_sum import RecordSum
from dpjax.sensitivity import SUM_ROUNDING

# Standard deviations that the total noise may reach: beyond it has probability 2 exp(-z^2 / 2).
_LEAST_DEVIATIONS = 16.0
# The largest scale that float64 and the sampler's int64 compute exactly.
_LARGEST_SCALE = 2.0**50
# As many records of the largest contribution all holders' sums must hold, and each one's.
_LEAST_RECORDS, _LEAST_RECORDS_OF_ONE = 2**30, 2**10


@dataclass(frozen=True, kw_only=True)
class Parties:
    """Numbers of parties of a federated release, and of those that may drop out or collude.

    Attributes:
      num_holders: N, of records.
      num_nodes: M >= 2, which add up shares.
      num_dropouts: D, holders that may drop out before their shares arrive.
      num_colluders: T, holders that may give their values and noise to the observer, or add none.
      observer_is_holder: whether who sees the result may be a holder itself.
      node_threshold: t, how many nodes open a sum (Shamir): M - t may die, and fewer than t learn
        nothing from their shares. More than M / 2, so that no two sets of holders are opened by
        different nodes, and more than 2 M / 3 where many holders may drop out (D > 1 and D M at
        least the number of those who do not collude). ``None`` for all nodes (additive shares).

    Raises:
      ValueError: a number out of range, no holder left whose noise counts, or a threshold at which
        an analyst could have other sums opened than that of one set.

    >>> Parties(num_holders=10, num_nodes=3, num_dropouts=1, num_colluders=2).num_noise_shares
    6
    """

    num_holders: int
    num_nodes: int
    num_dropouts: int = 0
    num_colluders: int = 0
    observer_is_holder: bool = True
    node_threshold: int | None = None

    def __post_init__(self) -> None:
        # Numbers of parties, one of which has noise that counts.
        check_count("num_holders", self.num_holders)
        check_count("num_nodes", self.num_nodes, minimum=2)
        check(self.num_nodes <= LARGEST_NODE, "num_nodes", self.num_nodes, "at most 65,535")
        check_count("num_dropouts", self.num_dropouts, minimum=0)
        check_count("num_colluders", self.num_colluders, minimum=0)
        check_type("observer_is_holder", self.observer_is_holder, bool, "True or False")
        least = self.num_holders - self.num_noise_shares + 1
        allowed = f"at least {least}, for one share of noise that the observer cannot subtract"
        check(self.num_noise_shares >= 1, "num_holders", self.num_holders, allowed)

        # A threshold at which one set of holders is opened.
        if self.node_threshold is not None:
            check_count("node_threshold", self.node_threshold, minimum=2)
            allowed = f"more than half of num_nodes = {self.num_nodes}, and no more than that"
            fits = self.num_nodes < 2 * self.node_threshold <= 2 * self.num_nodes
            check(fits, "node_threshold", self.node_threshold, allowed)
            allowed = (
                f"more than two thirds of num_nodes = {self.num_nodes}, or num_dropouts at most one"
                f" or below {self._num_honest / self.num_nodes:.3g}"
            )
            check(self.num_colluding_nodes >= 0, "node_threshold", self.node_threshold, allowed)

    def _repr_html_(self) -> str:
        derived = [
            ("shares of noise that count", str(self.num_noise_shares)),
            ("least holders in a sum", str(self.least_holders)),
            ("nodes that may collude", str(self.num_colluding_nodes)),
        ]
        tables = [field_table(self, folded=False), HTMLTable("Computed from them", derived)]
        return render_html(type(self).__name__, tables)

    @property
    def num_noise_shares(self) -> int:
        """H: shares of noise that remain against the observer with T colluding holders."""
        known = self.num_dropouts + self.num_colluders + int(self.observer_is_holder)
        return self.num_holders - known

    @property
    def _num_honest(self) -> int:
        """Holders that neither observe nor collude, of which D may drop out."""
        return self.num_noise_shares + self.num_dropouts

    @property
    def least_holders(self) -> int:
        """N - D: a sum of fewer holders is not opened."""
        return self.num_holders - self.num_dropouts

    @property
    def num_colluding_nodes(self) -> int:
        """C, nodes that may give their shares to an analyst who asks each node for any set.

        With C colluding nodes the analyst asks m = M - C others. Given the shares of the C nodes, a
        holder's polynomial has n = t - C unknown coefficients. A linear combination of the opened
        sums, with weights w of the nodes, does not depend on the random ones if for each honest
        holder h the weights of the nodes whose sets contain h, with -a_h at the point zero, are a
        codeword of the dual of a Reed-Solomon code of dimension n; then it is the sum of a_h times
        the value of h. A codeword that is not zero has at least n + 1 entries that are not zero. In
        what follows, nodes are those whose weights are not zero.

        - D = 0: there is one set, and t - 1 nodes learn nothing.
        - D M is below the number of honest holders, so one of them is in all sets. Its codeword
          less that of another holder h has the weights of the nodes whose sets lack h: these are
          none, or at least n. If they are n, the nodes whose sets contain h are none or n more.
          So for m < 2 n all nodes open one set, and its sum is all that is learnt.
        - D = 1 and no honest holder is in all sets: of three of them, divide the nodes by which one
          their sets lack, if any. Any two of these four groups have n nodes together, so m >= 2 n.
        - Otherwise, where two holders are in different sets, n nodes have the first, n the second,
          and n one of the two without the other, so m >= 3 n / 2.
        """
        threshold, most = self.sharing.threshold, self.num_nodes
        if self.num_dropouts == 0:
            return threshold - 1
        if self.num_dropouts == 1 or self.num_dropouts * most < self._num_honest:
            return 2 * threshold - most - 1
        return 3 * threshold - 2 * most - 1

    @property
    def sharing(self) -> SecretSharing:
        """The secret sharing among the nodes."""
        if self.node_threshold is None:
            return AdditiveSharing(self.num_nodes)
        return ShamirSharing(self.num_nodes, threshold=self.node_threshold)


class Adversary(NamedTuple):
    """A kind of adversary of a federated release, and the epsilon against it.

    Attributes:
      name: who it is.
      view: what it sees.
      num_noise_shares: shares of noise that it cannot subtract.
      epsilon: at the delta asked for.
    """

    name: str
    view: str
    num_noise_shares: int
    epsilon: float


class Grid(NamedTuple):
    """Public grid to which sums are rounded, and the scale of each holder's integer noise.

    Attributes:
      exponents: the spacing of each entry is two to the power of this, int64 ``(size,)``.
      scales: of each holder's discrete Gaussian noise in units of the grid, int64 ``(size,)``.
    """

    exponents: Int64
    scales: Int64


@dataclass(frozen=True)
class FederatedSum(Mechanism):
    """A sum over records that several holders keep, with the noise of one trusted aggregator.

    Attributes:
      mechanism: the release as a trusted aggregator would make it, with Gaussian noise: its event,
        adjacency and unit are those of the federated release.
      parties: holders, nodes, drop-outs and colluders.
      grid_bits: how fine the grid is: 2^grid_bits units or more in a holder's noise, and in the
        sensitivity over sqrt(d). Rounding adds 2^-grid_bits to the sensitivity, relatively.
      program: digest of the code that computes the sums, so that parties whose code differs refuse
        each other; empty where the mechanism computes them.

    Privacy:
      The sum is released, under the adjacency of ``mechanism``: one record of one holder changes.
      A person with records at several holders is not one unit. The noise comes from the operating
      system's entropy. The number of holders is public; that of the records of each is not, under
      add/remove. `adversaries` has the epsilon against everyone who sees more than the result.

    Raises:
      TypeError: ``mechanism`` does not release a sum over records.
      ValueError: its noise is not Gaussian, or the sums do not fit into the range of the shares.

    >>> from dpjax.bayes.conjugate import BetaBinomial, SufficientStatisticsMechanism
    >>> from dpjax.mechanisms import Gaussian
    >>> family = BetaBinomial(alpha=1.0, beta=1.0)
    >>> moves = family.sensitivity(norm="l2", adjacency="add_remove")
    >>> trusted = SufficientStatisticsMechanism(family, Gaussian(moves, scale=4.0))
    >>> plan = FederatedSum(trusted, Parties(num_holders=10, num_nodes=3))
    >>> round(plan.certificate(1e-5).epsilon, 3) == round(trusted.certificate(1e-5).epsilon, 3)
    True
    """

    mechanism: RecordSum
    parties: Parties
    grid_bits: int = 16
    program: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, RecordSum):
            raise TypeError(
                f"mechanism must release a sum over records (a RecordSum), got {self.mechanism!r}"
            )
        check_type("parties", self.parties, Parties, "the Parties of the release")
        check_type("program", self.program, str, "the digest of a program, or empty")
        check_count("grid_bits", self.grid_bits, minimum=4)

        # The noise of a holder is computed exactly.
        largest = float(self.grid.scales.max())
        few = "so few that the noise of a holder is below 2^50 units of the grid"
        check(largest < _LARGEST_SCALE, "grid_bits", self.grid_bits, few)

        # The noise of all fits into the range of the shares.
        deviations = self._noise_range / (largest * math.sqrt(self.parties.num_holders))
        few = f"so few that {_LEAST_DEVIATIONS:g} standard deviations of the noise do not wrap"
        check(deviations >= _LEAST_DEVIATIONS, "grid_bits", self.grid_bits, few)

        # So do the sums of many records.
        records = min(
            self.largest_holder_sum * 2.0 ** int(exponent) / part.mechanism.sensitivity.value
            for part, exponent in zip(self.mechanism.sum_parts, self._part_exponents, strict=True)
        )
        least = max(_LEAST_RECORDS // self.parties.num_holders, _LEAST_RECORDS_OF_ONE)
        few = f"so few that the sums of {least} records of a holder are not cut off"
        check(records >= least, "grid_bits", self.grid_bits, few)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FederatedSum):
            return NotImplemented
        return self.message_format.fingerprint == other.message_format.fingerprint

    def __hash__(self) -> int:
        return hash(self.message_format.fingerprint)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        parties = self.parties
        sharing = (
            "additive shares modulo 2^64"
            if parties.node_threshold is None
            else "Shamir's shares modulo 2^61 - 1"
        )
        # Against the observer with T colluding holders: that of the mechanism.
        trusted = self.mechanism.guarantee
        description = {
            **trusted.description,
            "holders": f"{parties.num_holders}, of which {parties.num_dropouts} may drop out and"
            f" {parties.num_colluders} collude; each adds 1 / {parties.num_noise_shares} of the"
            " noise's variance",
            "nodes": f"{parties.num_nodes}, with {sharing}: {parties.sharing.threshold} open the"
            " sum, fewer see uniform numbers",
            "grid": f"each holder's noise is discrete Gaussian of at least {self.grid.scales.min()}"
            f" units; a sum wraps around with probability at most {self.wrap_probability:.1g}",
        }
        return replace(trusted, description=description, exact_noise=True)

    def with_privacy_factor(self, factor: float) -> Self:
        return replace(self, mechanism=self.mechanism.with_privacy_factor(factor))

    def mechanism_for(self, num_contributing: int) -> RecordSum:
        """Returns the mechanism with the noise that a sum of ``num_contributing`` holders has.

        Noise-aware posteriors take it in place of the plan's, whose noise is that of H shares.

        Args:
          num_contributing: holders whose values are in the sum, in N - D .. N.

        Raises:
          ValueError: the number is out of range.
        """
        least, most = self.parties.least_holders, self.parties.num_holders
        fits = isinstance(num_contributing, int) and least <= num_contributing <= most
        check(fits, "num_contributing", num_contributing, f"a whole number, {least} to {most}")
        return self._with_shares(num_contributing)

    def _with_shares(self, num_shares: int) -> RecordSum:
        return self.mechanism.with_privacy_factor(
            math.sqrt(num_shares / self.parties.num_noise_shares)
        )

    def adversaries(self, delta: float) -> tuple[Adversary, ...]:
        """Returns the epsilon at ``delta`` against each kind of adversary.

        D holders have dropped out, and T add no noise or give it away. Nodes that are not of the
        adversary follow the protocol; the analyst may ask each of them for another set of holders,
        unless the name says that it is not of the adversary.

        Args:
          delta: in (0, 1).
        """
        parties = self.parties
        threshold, few = parties.sharing.threshold, parties.num_colluding_nodes
        count, adding = parties.num_colluders, parties.least_holders - parties.num_colluders
        holder = "an observing holder" if parties.observer_is_holder else "an observer"
        colluders = f"{count} other holder{'' if count == 1 else 's'}"
        uniform = "uniform shares, and the released sum"

        # Who sees the sum or shares alone: the noise of all holders is in their way.
        rows = [("an analyst or outsider", "the released sum", adding)]
        if few:
            rows.append((f"any {few} of the nodes", uniform, adding))
        if few < threshold - 1:
            name = f"any {threshold - 1} of the nodes without the analyst"
            rows.append((name, uniform, adding))

        # Who knows values and noise of holders, or opens single sums.
        rows += [
            (
                f"{holder} with {colluders} and {few} of the nodes",
                "the released sum, and the values and noise of these holders",
                parties.num_noise_shares,
            ),
            (
                f"{few + 1} or more of the nodes together"
                + (" with the analyst" if few < threshold - 1 else ""),
                "every holder's own noisy sum",
                1,
            ),
        ]
        adjacency = self.guarantee.adjacency
        return tuple(
            Adversary(*row, certified_epsilon(decompose(event, adjacency), delta)[1])
            for row in rows
            for event in (self._with_shares(row[2]).event,)
        )

    def certificate(self, delta: float) -> Certificate:
        """Returns the certificate at ``delta``, with the epsilon against each adversary.

        Its own epsilon is that against the observer with T colluding holders.
        """
        trusted = self.guarantee
        rows = {
            f"adversary {number}": f"epsilon {round_up(one.epsilon)} against {one.name},"
            f" seeing {one.view}"
            for number, one in enumerate(self.adversaries(delta), start=1)
        }
        return certify(replace(trusted, description={**trusted.description, **rows}), delta)

    @functools.cached_property
    def grid(self) -> Grid:
        """The grid of every entry, and a holder's noise on it."""
        exponents, scales = [], []
        shares = self.parties.num_noise_shares
        joint = 1 if self.mechanism.round_weights is None else self.mechanism.num_rounds
        for part, exponent in zip(self.mechanism.sum_parts, self._part_exponents, strict=True):
            # The trusted noise t in units of the grid, enlarged for rounding: step 1 above.
            noise, unit = part.mechanism, 2.0**exponent
            rounded = math.sqrt(joint * part.weights.size) * part.weights.max() * unit
            rounding = SUM_ROUNDING + rounded / noise.sensitivity.value
            needed = float(noise.scale) * (1 + rounding) / (part.weights * unit)

            # Of each of H shares, integers: steps 2 and 3.
            scales.append(np.ceil(np.sqrt((needed**2 + 4) / shares)) + 1)
            exponents.append(np.full(part.weights.size, exponent, np.int64))

        within = np.minimum(np.concatenate(scales), 2.0**62)  # far above what is refused
        return Grid(np.concatenate(exponents), within.astype(np.int64))

    @property
    def _part_exponents(self) -> list[int]:
        exponents = []
        for part in self.mechanism.sum_parts:
            largest = float(part.weights.max())
            finest = min(
                part.mechanism.sensitivity.value / (math.sqrt(part.weights.size) * largest),
                float(part.mechanism.scale) / (math.sqrt(self.parties.num_holders) * largest),
            )
            exponents.append(math.frexp(finest)[1] - 1 - self.grid_bits)
        return exponents

    @property
    def size(self) -> int:
        """Number of entries of the sum."""
        return self.grid.scales.size

    @property
    def largest_holder_sum(self) -> int:
        """Units of the grid at which each entry of a holder's sum is cut off."""
        return self.parties.sharing.half_range // (2 * self.parties.num_holders)

    @property
    def _noise_range(self) -> float:
        """Units of the grid that are left for the noise."""
        return self.parties.sharing.half_range / 2

    @property
    def wrap_probability(self) -> float:
        """Upper bound on the probability that an entry of the sum overflows the range of shares.

        The noise is subgaussian with its variance (Canonne, Kamath & Steinke 2020, Corollary 17).
        """
        deviation = float(self.grid.scales.max()) * math.sqrt(self.parties.num_holders)
        tail = math.exp(-((self._noise_range / deviation) ** 2) / 2)
        return min(1.0, 2 * self.size * max(tail, 1e-300))

    @functools.cached_property
    def message_format(self) -> MessageFormat:
        """The format of the plan's messages, with a fingerprint of all that is public in it."""
        weights = [part.weights for part in self.mechanism.sum_parts]
        public = (self, self.grid, weights, self.mechanism.round_weights)
        digest = bytes.fromhex(hash_dataclass(public))
        return MessageFormat(
            fingerprint=digest[:16],
            num_holders=self.parties.num_holders,
            size=self.size,
        )

    def to_units(self, statistic: npt.ArrayLike) -> Int64:
        """Returns a holder's sums in units of the grid, rounded and cut off: private.

        Args:
          statistic: ``(size,)``, from ``mechanism.sum_records``; what is not finite counts as zero.

        Raises:
          ValueError: of another shape.
        """
        values = as_float64(statistic, "statistic")
        check(values.shape == (self.size,), "statistic", values.shape, f"of shape ({self.size},)")
        with np.errstate(over="ignore"):
            units = np.ldexp(np.where(np.isfinite(values), values, 0.0), -self.grid.exponents)
        # The largest float64 that is no larger.
        bound = math.nextafter(float(self.largest_holder_sum), 0.0)
        return np.rint(np.clip(units, -bound, bound)).astype(np.int64)

    def from_units(self, total: Int64) -> npt.NDArray[np.float64]:
        """Returns ``total``, a sum in integer grid units, ``(size,)``, in the statistic's units."""
        return np.ldexp(as_float64(total, "total"), self.grid.exponents)


def check_plan(plan: object) -> None:
    """Raises TypeError unless ``plan`` is a `FederatedSum`."""
    check_type("plan", plan, FederatedSum, "a FederatedSum")
