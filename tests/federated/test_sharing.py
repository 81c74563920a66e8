"""Secret sharing: sums are those of integers, and too few shares are uniform whatever the value."""

import itertools

import numpy as np
import pytest
from scipy import stats

from dpjax.federated import sharing as sharing_module
from dpjax.federated import simulated_entropy
from dpjax.federated.noise import SYSTEM
from dpjax.federated.sharing import PRIME, AdditiveSharing, ShamirSharing

FALSE_ALARM = 1e-6
MANY = 40_000


def random_settings(count):
    rng = np.random.default_rng(3)
    for _ in range(count):
        num_nodes = int(rng.integers(2, 9))
        shamir = ShamirSharing(num_nodes, threshold=int(rng.integers(2, num_nodes + 1)))
        sharing = shamir if rng.random() < 0.5 else AdditiveSharing(num_nodes)
        yield sharing, int(rng.integers(1, 12)), int(rng.integers(1, 20)), rng


@pytest.mark.slow
def test_reconstruct_gives_the_sum_of_the_integers():
    for sharing, num_holders, size, rng in random_settings(400):
        largest = (sharing.half_range - 1) // num_holders
        values = rng.integers(-largest, largest, (num_holders, size), endpoint=True)
        sums = sharing.share(SYSTEM, values[0])
        for value in values[1:]:
            sums = [
                sharing.add(one, two)
                for one, two in zip(sums, sharing.share(SYSTEM, value), strict=True)
            ]
        opening = rng.permutation(sharing.num_nodes)[: sharing.threshold]
        opened = sharing.reconstruct({int(node): sums[node] for node in opening})
        np.testing.assert_array_equal(opened, values.sum(axis=0))


@pytest.mark.parametrize("sharing", [AdditiveSharing(3), ShamirSharing(4, threshold=3)])
def test_reconstruct_gives_the_ends_of_the_range(sharing):
    most = sharing.half_range - 1
    values = np.array([0, 1, -1, most, -most])
    shares = dict(enumerate(sharing.share(SYSTEM, values)))
    np.testing.assert_array_equal(sharing.reconstruct(shares), values)


def uniform_p(words, modulus):
    """Pearson's test of 256 equal cells of the whole range, and of the lowest byte."""
    high = np.floor(words.astype(np.float64) * (256 / modulus)).astype(int).clip(0, 255)
    low = (words & np.uint64(255)).astype(int)
    return min(stats.chisquare(np.bincount(cells, minlength=256)).pvalue for cells in (high, low))


def joint_p(first, second, modulus):
    """Pearson's test of 16 times 16 equal cells of two words."""
    cells = [
        np.floor(words.astype(np.float64) * (16 / modulus)).astype(int).clip(0, 15)
        for words in (first, second)
    ]
    return stats.chisquare(np.bincount(16 * cells[0] + cells[1], minlength=256)).pvalue


@pytest.mark.parametrize("value", [0, -12345, 2**40])
@pytest.mark.parametrize(
    ("sharing", "modulus"), [(AdditiveSharing(3), 2**64), (ShamirSharing(4, threshold=3), PRIME)]
)
def test_share_is_uniform_below_the_threshold(sharing, modulus, value):
    shares = sharing.share(simulated_entropy(5), np.full(MANY, value))
    for share in shares:
        assert uniform_p(share, modulus) > FALSE_ALARM
    for first, second in itertools.combinations(shares, 2):
        assert joint_p(first, second, modulus) > FALSE_ALARM


def test_power_masks_of_a_small_range_are_seen(monkeypatch):
    values = np.full(MANY, 2**40)
    entropy = simulated_entropy(5)
    original = sharing_module.uniform_words
    monkeypatch.setattr(
        sharing_module, "uniform_words", lambda *args: original(*args) >> np.uint64(1)
    )
    for share in AdditiveSharing(3).share(entropy, values):
        assert uniform_p(share, 2**64) < FALSE_ALARM
    monkeypatch.setattr(
        sharing_module, "_uniform_residues", lambda *args: original(*args) >> np.uint64(24)
    )
    for share in ShamirSharing(4, threshold=3).share(entropy, values):
        assert uniform_p(share, PRIME) < FALSE_ALARM


def test_power_one_mask_for_two_nodes_is_seen():
    shares = AdditiveSharing(3).share(simulated_entropy(5), np.zeros(MANY, np.int64))
    assert joint_p(shares[0], shares[0], 2**64) < FALSE_ALARM
    first, second = ShamirSharing(3, threshold=2).share(
        simulated_entropy(5), np.zeros(MANY, np.int64)
    )[:2]
    assert joint_p(first, second, PRIME) < FALSE_ALARM  # the second is a function of the first


class Tape:
    """A source that returns given words, eight bytes each."""

    def __init__(self, words):
        self.words = [int(word) for word in words]

    def __call__(self, num_bytes):
        taken, self.words = self.words[: num_bytes // 8], self.words[num_bytes // 8 :]
        return np.array(taken, np.uint64).tobytes()


def test_additive_view_depends_on_the_total_alone():
    """For holders' values of equal sum there are masks that give these nodes the same view.

    The masks are uniform, and the map between them is one to one, so both views have the same
    distribution: what a simulator draws that has the opened total alone.
    """
    sharing, rng = AdditiveSharing(3), np.random.default_rng(1)
    values = np.array([5, -900, 77_000, 3])
    others = np.array([-41, 10**12, -(10**12), 76_149])
    assert values.sum() == others.sum()

    def view(values, masks, hidden):
        shares = [
            sharing.share(Tape(mask), np.array([value]))
            for value, mask in zip(values, masks, strict=True)
        ]
        opened = np.add.reduce([one[hidden] for one in shares])
        return [one[node].tolist() for one in shares for node in range(3) if node != hidden], opened

    masks = rng.integers(0, 2**64, (4, 2), np.uint64)
    moved = (others - values).astype(np.uint64)
    for hidden in (0, 1):  # the last node has the difference of the others
        shifted = masks.copy()
        shifted[:, hidden] += moved
        assert view(values, masks, hidden) == view(others, shifted, hidden)
    assert view(values, masks, 2) == view(others, masks, 2)
    # Power: another total, or masks that do not change, give another view.
    others[0] += 1
    assert view(values, masks, 2) != view(others, masks, 2)
    assert view(values, masks, 0) != view(others, masks, 0)


def test_shamir_view_depends_on_the_total_alone():
    sharing, rng = ShamirSharing(3, threshold=2), np.random.default_rng(1)
    values, others = np.array([5, 900, 77]), np.array([80, 1, 901])

    def view(values, slopes):
        shares = [
            sharing.share(Tape([slope]), np.array([value]))
            for value, slope in zip(values, slopes, strict=True)
        ]
        sums = [
            sharing.add(sharing.add(shares[0][node], shares[1][node]), shares[2][node])
            for node in range(3)
        ]
        return [one[0].tolist() for one in shares], [one.tolist() for one in sums]

    slopes = [int(slope) for slope in rng.integers(0, PRIME, 3)]
    moved = [
        (slope + int(value) - int(other)) % PRIME
        for slope, value, other in zip(slopes, values, others, strict=True)
    ]
    assert view(values, slopes) == view(others, moved)
    assert view(values, slopes) != view(others, slopes)


def test_times_is_the_product_modulo_the_prime():
    rng = np.random.default_rng(2)
    residues = np.append(rng.integers(0, PRIME, 200), [0, 1, PRIME - 1]).astype(np.uint64)
    for factor in [0, 1, 3, 65_535]:
        expected = [int(residue) * factor % PRIME for residue in residues]
        assert sharing_module._times_small(residues, factor).tolist() == expected
    for factor in [0, 1, PRIME - 1, *map(int, rng.integers(0, PRIME, 20))]:
        expected = [int(residue) * factor % PRIME for residue in residues]
        assert sharing_module._times(residues, factor).tolist() == expected


def test_uniform_residues_draws_the_prime_again():
    tape = Tape([PRIME, 7, PRIME + 2**61, 2**63 + 9])
    assert sharing_module._uniform_residues(tape, 2).tolist() == [9, 7]
    assert tape.words == []
