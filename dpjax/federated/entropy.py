"""Random words seeded by the operating system's entropy, or by a number in a simulation."""

import os
import ssl
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpjax._checks import as_seed, check_count
from dpjax.mechanisms._exact_noise import Lanes, RandomWords

# From a number of bytes to that many independent, uniform ones.
Entropy = Callable[[int], bytes]
UInt64 = npt.NDArray[np.uint64]


def system_entropy(size: int) -> bytes:
    """Returns bytes of OpenSSL's generator, reseeded with the operating system's entropy.

    It is AES-256 in counter mode (NIST SP 800-90A), several times as fast as ``os.urandom``. Fresh
    entropy is mixed in at every call, so copies of a process or of a virtual machine differ.

    Args:
      size: number of bytes.
    """
    ssl.RAND_add(os.urandom(_SEED_BYTES), float(_SEED_BYTES))
    return ssl.RAND_bytes(size)


SYSTEM: Entropy = system_entropy
_SEED_BYTES = 32


def simulated_entropy(seed: int) -> Entropy:
    """Returns a reproducible source of bytes, for tests and simulations in one process.

    Privacy:
      None: anyone who has the seed can remove the masks and the noise.

    Args:
      seed: a whole number of at least zero.

    >>> simulated_entropy(3)(4) == simulated_entropy(3)(4)
    True
    """
    check_count("seed", as_seed(seed), minimum=0)
    return np.random.Generator(np.random.Philox(as_seed(seed))).bytes


def uniform_words(entropy: Entropy, size: int) -> UInt64:
    """Returns ``size`` independent uniform 64-bit words."""
    return np.frombuffer(entropy(8 * size), "<u8").astype(np.uint64, copy=False)


class EntropyWords(RandomWords):
    """Streams of random words for the exact samplers, all from one source of bytes.

    Args:
      entropy: the source.
      size: the number of lanes.
    """

    def __init__(self, entropy: Entropy, size: int) -> None:
        self.size = size
        self.entropy = entropy

    def draw(self, lanes: Lanes) -> UInt64:
        """Returns a new word for each of ``lanes``, in an array that may be written to."""
        return uniform_words(self.entropy, len(lanes)).copy()
