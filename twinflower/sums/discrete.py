"""Exact, vectorised samples of discrete Gaussian noise, in integer arithmetic only.

    P(n) = exp(-n^2 / (2 s^2)) / sum_j exp(-j^2 / (2 s^2))     on the integers, s = 2^bits

No floating-point rounding is involved, so the last bits of a sample reveal no more than the others. Source: Canonne,
Kamath and Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020 (arXiv:2004.00010), Algorithms 1 to 3
with t = s: a discrete Laplace number y of scale s is accepted with probability exp(-(|y| - s)^2 / (2 s^2)). Because s
is a power of two, all probabilities are exp(-a / 2^b) with an integer a <= 2^b, or products of these.
"""

from collections.abc import Callable
from os import urandom

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from ..arrays import Index, Mask
from ..randomness import stream

Bits64 = NDArray[np.uint64]
Words = Callable[[int], Bits64]
"""So many fresh, independent, uniform 64-bit words."""

_MOST_BITS = 31  # (2^bits)^2 is then below 2^64
_THROWS = 4


def secret_words() -> Words:
    """Random 64-bit words that cannot be reproduced: ChaCha20 under a new key from the operating system."""
    encryptor = Cipher(ChaCha20(urandom(32), urandom(16)), mode=None).encryptor()
    return lambda count: np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)


def seeded_words(seed: int, client: int, round_: int) -> Words:
    """Random 64-bit words for a simulation, reproducible from (seed, client, round) and not secret."""
    generator = stream(seed, "noise", client, round_)
    return lambda count: generator.integers(0, 2**64, count, dtype=np.uint64)


def discrete_gaussian(count: int, bits: int, words: Words) -> Index:
    """Draw `count` independent samples with s = 2^bits; ValueError unless 0 <= bits <= 31."""
    if not 0 <= bits <= _MOST_BITS:
        raise ValueError(f"bits must be from 0 to {_MOST_BITS}; got {bits}")
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        tried = _laplace(2 * (count - len(found)) + 8, bits, words)
        found = np.concatenate([found, tried[_accepted(tried, bits, words)]])
    return found[:count]


def _laplace(tries: int, bits: int, words: Words) -> Index:
    """Discrete Laplace samples of scale 2^bits (Algorithm 2); returns the accepted ones among `tries` proposals."""
    low = words(tries) >> np.uint64(63 - bits) >> np.uint64(1)
    low = low[_exponential(low, bits, words)]
    size = (_ones(len(low), words) << bits) + low.astype(np.int64)
    negative = words(len(low)) >> np.uint64(63) == 1
    signed: Index = np.where(negative, -size, size)
    return signed[~(negative & (size == 0))]  # reject -0, so that 0 is not counted twice


def _accepted(y: Index, bits: int, words: Words) -> Mask:
    """Accept each number with probability exp(-w^2 / (2 s^2)), where w = | |y| - s | = q s + r. This probability is
    exp(-1/2)^(q^2) exp(-r / s)^q exp(-r^2 / (2 s^2))."""
    far = abs(abs(y) - (1 << bits))
    times, rest = far >> bits, (far & ((1 << bits) - 1)).astype(np.uint64)
    kept = np.ones(len(y), dtype=bool)
    for power, a, b in (
        (times * times, np.ones_like(rest), 1),
        (times, rest, bits),
        (np.ones_like(times), rest * rest, 2 * bits + 1),
    ):
        kept[kept] = _all_of(power[kept], a[kept], b, words)
    return kept


def _all_of(power: Index, a: Bits64, b: int, words: Words) -> Mask:
    """True with probability exp(-a / 2^b)^power, for each entry: `power` coins are tossed, and all must succeed."""
    owner = np.repeat(np.arange(len(power)), power)
    failed = owner[~_exponential(a[owner], b, words)]
    survived = np.ones(len(power), dtype=bool)
    survived[failed] = False
    return survived


def _ones(count: int, words: Words) -> Index:
    """The number of successes before the first failure, for `count` coins with success probability 1/e.

    Every coin is tossed _THROWS times at once, and again if all of these succeed.
    """
    ones = np.zeros(count, dtype=np.int64)
    active = np.arange(count)
    while active.size:
        coins = _exponential(np.full(_THROWS * active.size, 2, dtype=np.uint64), 1, words).reshape(
            -1, _THROWS
        )
        ones[active] += np.where(coins.all(1), _THROWS, coins.argmin(1))
        active = active[coins.all(1)]
    return ones


def _exponential(a: Bits64, b: int, words: Words) -> Mask:
    """True with probability exp(-g), g = a / 2^b <= 1 (Algorithm 1).

    Toss coins of success probability g / k for k = 1, 2, ...; the first k that fails is odd with probability exp(-g).
    """
    odd = np.zeros(len(a), dtype=bool)
    active, k = np.arange(len(a)), 1
    while active.size:
        on = (words(active.size) >> np.uint64(63 - b) >> np.uint64(1)) < a[active]
        on[on] = _one_in(k, int(on.sum()), words)
        odd[active[~on]] = k % 2 == 1
        active, k = active[on], k + 1
    return odd


def _one_in(k: int, count: int, words: Words) -> Mask:
    """`count` coins that are True with probability 1 / k; words above the largest multiple of k are drawn again."""
    drawn, highest = words(count), np.uint64(2**64 // k * k - 1)
    while (again := drawn > highest).any():
        drawn[again] = words(int(again.sum()))
    divided: Mask = drawn % np.uint64(k) == 0
    return divided
