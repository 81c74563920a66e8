"""Secret sharing of integer vectors: additive on Z / 2^64, and Shamir's over the prime 2^61 - 1.

Additive: all shares but one are uniform on Z / 2^64, the last one is the value less their sum. Any
set of shares that lacks one is uniform and independent of the value, so all nodes are needed to
open a sum, and a dead node loses it.

Shamir's (1979): the shares are the values at 1 .. M of a polynomial of degree t - 1 with uniform
coefficients, whose value at zero is the secret. Any t - 1 shares are uniform and independent of the
secret, any t determine it, so M - t nodes may die.

Both are linear: sums of shares are shares of the sum. Negative integers are represented by their
residues.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

import numpy as np

from dpjax.federated.noise import Entropy, Int64, UInt64, uniform_words

PRIME = 2**61 - 1
_PRIME = np.uint64(PRIME)
_LOW_29 = np.uint64(2**29 - 1)
# A chunk of 16 bits times a residue, and the index of a node times one, stay below 2^64.
LARGEST_NODE = 2**16 - 1


@dataclass(frozen=True)
class AdditiveSharing:
    """Additive shares on Z / 2^64: secure while one node does not collude.

    Attributes:
      num_nodes: at least two, with indices from zero.

    >>> from dpjax.federated.noise import SYSTEM
    >>> sharing = AdditiveSharing(3)
    >>> shares = sharing.share(SYSTEM, np.array([5, -7]))
    >>> sharing.reconstruct(dict(enumerate(shares))).tolist()
    [5, -7]
    """

    num_nodes: int

    @property
    def threshold(self) -> int:
        """The number of nodes: a sum is opened by all of them."""
        return self.num_nodes

    @property
    def half_range(self) -> int:
        """Sums of this size or larger are not represented: they wrap around."""
        return 2**63

    def share(self, entropy: Entropy, values: Int64) -> list[UInt64]:
        """Returns each node's share: uniform words, but for the last the difference."""
        masks = [uniform_words(entropy, values.size) for _ in range(self.num_nodes - 1)]
        last = values.astype(np.uint64)
        for mask in masks:
            last = last - mask
        return [*masks, last]

    def add(self, first: UInt64, second: UInt64) -> UInt64:
        """Returns a node's share of the sum of two vectors, from its shares of each."""
        return first + second

    def is_share(self, share: UInt64) -> bool:
        """Whether the words are residues."""
        return True  # any word is one modulo 2^64

    def reconstruct(self, shares: Mapping[int, UInt64]) -> Int64:
        """Returns the values, the sum of all nodes' shares, as signed integers."""
        return np.add.reduce(list(shares.values())).astype(np.int64)


@dataclass(frozen=True)
class ShamirSharing:
    """Shamir's secret sharing over the integers modulo 2^61 - 1.

    Attributes:
      num_nodes: M, at most 65,535.
      threshold: t in 2 .. M.

    >>> from dpjax.federated.noise import SYSTEM
    >>> sharing = ShamirSharing(5, threshold=3)
    >>> shares = sharing.share(SYSTEM, np.array([5, -7]))
    >>> sharing.reconstruct({node: shares[node] for node in (4, 0, 2)}).tolist()
    [5, -7]
    """

    num_nodes: int
    _: KW_ONLY
    threshold: int

    @property
    def half_range(self) -> int:
        """As of `AdditiveSharing`."""
        return 2**60

    def share(self, entropy: Entropy, values: Int64) -> list[UInt64]:
        """Returns each node's share: at 1 .. M, polynomials that are ``values`` at zero."""
        secret = np.where(values < 0, values + PRIME, values).astype(np.uint64)
        coefficients = [_uniform_residues(entropy, values.size) for _ in range(self.threshold - 1)]
        shares = []
        for node in range(1, self.num_nodes + 1):
            value = np.zeros_like(secret)
            for coefficient in [*coefficients[::-1], secret]:
                value = self.add(_times_small(value, node), coefficient)
            shares.append(value)
        return shares

    def add(self, first: UInt64, second: UInt64) -> UInt64:
        """Returns the sum modulo the prime."""
        return _reduce(first + second)

    def is_share(self, share: UInt64) -> bool:
        """Whether the words are residues."""
        return bool(np.all(share < _PRIME))

    def reconstruct(self, shares: Mapping[int, UInt64]) -> Int64:
        """Returns the values: polynomials at zero, from the first ``threshold`` of ``shares``."""
        # The factor of each node's share, by Lagrange.
        used = sorted(shares)[: self.threshold]
        total = np.zeros_like(shares[used[0]])
        for node in used:
            numerator = denominator = 1
            for other in used:
                if other != node:
                    numerator = numerator * (other + 1) % PRIME
                    denominator = denominator * (other - node) % PRIME
            factor = numerator * pow(denominator, -1, PRIME) % PRIME
            total = self.add(total, _times(shares[node], factor))

        # The upper half of the residues are the negative integers.
        signed = total.astype(np.int64)
        return np.where(signed > PRIME // 2, signed - PRIME, signed)


# Linear secret sharing of vectors of integers: sums of shares are shares of the sum.
SecretSharing: TypeAlias = AdditiveSharing | ShamirSharing


def _uniform_residues(entropy: Entropy, size: int) -> UInt64:
    """Uniform below the prime: 61 bits, drawn again where they are the prime itself."""
    residues = uniform_words(entropy, size) & _PRIME
    while (again := np.flatnonzero(residues == _PRIME)).size:
        residues[again] = uniform_words(entropy, again.size) & _PRIME
    return residues


def _reduce(words: UInt64) -> UInt64:
    """Returns words below 2^64 modulo 2^61 - 1."""
    folded = (words & _PRIME) + (words >> np.uint64(61))
    return np.where(folded >= _PRIME, folded - _PRIME, folded)


def _times_small(residues: UInt64, factor: int) -> UInt64:
    """Returns residues times a factor below 2^16, by halves: 2^61 is one."""
    small = np.uint64(factor)
    high = (residues >> np.uint64(32)) * small
    low = (residues & np.uint64(2**32 - 1)) * small
    return _reduce((high >> np.uint64(29)) + ((high & _LOW_29) << np.uint64(32)) + low)


def _times(residues: UInt64, factor: int) -> UInt64:
    """Returns residues times any factor below the prime, by chunks of 16 bits (Horner)."""
    total = np.zeros_like(residues)
    for chunk in range(3, -1, -1):
        shifted = ((total << np.uint64(16)) & _PRIME) + (total >> np.uint64(45))
        product = _times_small(residues, factor >> (16 * chunk) & 0xFFFF)
        total = _reduce(_reduce(shifted) + product)
    return total
