"""Sums of encrypted statistics, by Paillier's additively homomorphic encryption.

Holders encrypt their noisy sums for one decryptor, anyone multiplies the ciphertexts, and the
decryptor decrypts the product: the sum. Several entries are packed into one plaintext.

What it cannot do, unlike secret sharing among nodes: the key has no threshold. Who holds it can
decrypt any single ciphertext, which has one holder's noise alone, so decryptor and the party that
multiplies must not collude, and the decryptor must not see the holders' messages. It is also
slower, by orders of magnitude. What is sent is as large as the key for each ciphertext.

Needs the library phe; with gmpy2 installed it is ten times as fast.

Source: Paillier (1999), "Public-key cryptosystems based on composite degree residuosity classes".
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpjax._checks import check
from dpjax._extras import requires_extra
from dpjax.federated import Entropy, FederatedSum, ProtocolError, Result, perturb
from dpjax.federated.noise import SYSTEM

# Added to each signed number, so that a slot holds none below zero.
_OFFSET = 2**63


class PaillierKeys(NamedTuple):
    """Keys of the decryptor.

    Attributes:
      public: phe's ``PaillierPublicKey``, for the holders and who multiplies.
      private: phe's ``PaillierPrivateKey``, a secret of the decryptor.
    """

    public: Any
    private: Any


def generate_paillier_keys(num_bits: int = 3072) -> PaillierKeys:
    """Returns new keys, from the operating system's entropy.

    Args:
      num_bits: of the modulus; 3072 is the strength of 128-bit symmetric keys. Small ones are for
        tests.
    """
    with requires_extra("experiments"):
        from phe import paillier
    return PaillierKeys(*paillier.generate_paillier_keypair(n_length=num_bits))


def encrypt_statistic(
    plan: FederatedSum, public_key: Any, statistic: npt.ArrayLike, *, entropy: Entropy = SYSTEM
) -> tuple[int, ...]:
    """Returns a holder's noisy sums as packed ciphertexts.

    Privacy:
      Whoever has the private key sees the holder's values under one share of noise.

    Args:
      plan: of the release; its nodes have no part in it.
      public_key: of the decryptor.
      statistic: ``(size,)``, from ``plan.mechanism.sum_records`` on the holder's records.
      entropy: source of random bytes for the noise; phe takes the operating system's.

    Raises:
      ValueError: a statistic of another shape, or a key too small for one entry.
    """
    slot, per_plaintext = _slot_bits(plan), _entries_per_plaintext(plan, public_key)

    # Noise, and non-negative numbers.
    numbers = [int(one) + _OFFSET for one in perturb(plan, statistic, entropy=entropy)]

    # Several entries in one plaintext, each with room for the sum over all holders.
    packed = (
        sum(one << (slot * place) for place, one in enumerate(numbers[i : i + per_plaintext]))
        for i in range(0, len(numbers), per_plaintext)
    )
    return tuple(public_key.raw_encrypt(one) for one in packed)


def multiply_ciphertexts(public_key: Any, ciphertexts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the ciphertexts of the sums, without the private key."""
    products = list(ciphertexts[0])
    for one in ciphertexts[1:]:
        pairs = zip(products, one, strict=True)
        products = [first * second % public_key.n**2 for first, second in pairs]
    return tuple(products)


def decrypt_sum(
    plan: FederatedSum, keys: PaillierKeys, products: Sequence[int], holders: frozenset[int]
) -> Result:
    """Returns the released sum.

    Returns:
      The release, its holders, and the mechanism with the noise of that many holders.

    Raises:
      ProtocolError: too few holders.
    """
    if len(holders) < plan.parties.least_holders:
        raise ProtocolError("too few holders")
    slot, per_plaintext = _slot_bits(plan), _entries_per_plaintext(plan, keys.public)

    # Decrypt and unpack.
    numbers = []
    for one in products:
        plaintext = keys.private.raw_decrypt(one)
        numbers += [(plaintext >> slot * i) % 2**slot for i in range(per_plaintext)]

    # Subtract the holders' offsets; signed numbers are residues modulo 2^64.
    residues = [(one - len(holders) * _OFFSET) % 2**64 for one in numbers[: plan.size]]
    total = np.array(residues, np.uint64).astype(np.int64)

    released = plan.mechanism.from_sum(plan.from_units(total))
    return Result(released, holders, plan.mechanism_for(len(holders)))


def _slot_bits(plan: FederatedSum) -> int:
    """Bits of one entry's sum over all holders."""
    return 64 + plan.parties.num_holders.bit_length()


def _entries_per_plaintext(plan: FederatedSum, public_key: Any) -> int:
    bits = public_key.n.bit_length()
    count = (bits - 1) // _slot_bits(plan)
    check(count >= 1, "public_key", f"{bits} bits", f"of more than {_slot_bits(plan)} bits")
    return count
