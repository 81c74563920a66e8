"""Sums of ciphertexts: equal to the sum of the integers, packed, and refused where they must be."""

import numpy as np
import pytest
from helpers.federated_cases import RECORDS, count_release, plan_of, regression_release

from dpjax.federated import ProtocolError, perturb, simulated_entropy
from experiments.bayes import paillier
from experiments.bayes.paillier import (
    decrypt_sum,
    encrypt_statistic,
    generate_paillier_keys,
    multiply_ciphertexts,
)


@pytest.fixture(scope="module")
def keys():
    return generate_paillier_keys(256)


def test_decrypt_sum_is_the_sum_of_the_perturbed_integers(keys):
    rng = np.random.default_rng(2)
    for number in range(60):
        make, records = RECORDS[str(rng.choice(list(RECORDS)))]
        num_holders = int(rng.integers(2, 6))
        plan = plan_of(make(), num_holders=num_holders)
        sums = [plan.mechanism.sum_records(*records(rng, 4)) for _ in range(num_holders)]
        seeds = [100 * number + holder for holder in range(num_holders)]
        sent = [
            encrypt_statistic(plan, keys.public, one, entropy=simulated_entropy(seed))
            for one, seed in zip(sums, seeds, strict=True)
        ]
        products = multiply_ciphertexts(keys.public, sent)
        result = decrypt_sum(plan, keys, products, frozenset(range(num_holders)))
        noisy = [
            perturb(plan, one, entropy=simulated_entropy(seed))
            for one, seed in zip(sums, seeds, strict=True)
        ]
        expected = plan.mechanism.from_sum(plan.from_units(np.sum(noisy, axis=0)))
        for found, wanted in zip(result.released, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_encrypt_statistic_keeps_entries_at_the_ends_of_the_range_apart(keys, monkeypatch):
    plan = plan_of(regression_release(), num_holders=7)
    largest = 2**63 // 7 - 1
    values = np.resize([largest, -largest, 0, 1], plan.size)
    monkeypatch.setattr(paillier, "perturb", lambda *args, **options: values)
    sent = [encrypt_statistic(plan, keys.public, np.zeros(plan.size)) for _ in range(7)]
    result = decrypt_sum(plan, keys, multiply_ciphertexts(keys.public, sent), frozenset(range(7)))
    expected = plan.mechanism.from_sum(plan.from_units(7 * values))
    np.testing.assert_array_equal(result.released.xtx, expected.xtx)


def test_encrypt_statistic_is_randomized(keys):
    plan = plan_of(count_release())
    first, second = (
        encrypt_statistic(plan, keys.public, np.zeros(2), entropy=simulated_entropy(1))
        for _ in range(2)
    )
    assert len(first) == 1  # both entries in one plaintext
    assert first != second


def test_decrypt_sum_of_one_ciphertext_needs_the_key_only(keys):
    """What the documentation warns of: with the key a single holder's sums are seen."""
    plan = plan_of(count_release(), num_dropouts=3)
    (one,) = encrypt_statistic(plan, keys.public, np.array([40.0, 2.0]))
    packed = keys.private.raw_decrypt(one) % 2**64 - 2**63
    value = plan.from_units(np.array([packed, 0]))[0]
    assert abs(value - 40.0) < 40.0
    with pytest.raises(ProtocolError, match="too few holders"):
        decrypt_sum(plan, keys, (one,), frozenset([1]))


def test_encrypt_statistic_refuses_a_small_key():
    keys = generate_paillier_keys(128)
    encrypt_statistic(plan_of(count_release()), keys.public, np.zeros(2))
    keys.public.n = 2**70
    with pytest.raises(ValueError, match="of more than 74 bits"):
        encrypt_statistic(plan_of(count_release(), num_holders=1000), keys.public, np.zeros(2))
