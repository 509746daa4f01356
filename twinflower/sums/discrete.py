"""Exact, vectorised samples of discrete Gaussian noise.

    P(n) = exp(-n^2 / (2 s^2)) / sum_j exp(-j^2 / (2 s^2))     on the integers, s = 2^bits

A candidate has size y = k s + r: the block k is geometric, P(k) proportional to exp(-k), and r is uniform on
0, ..., s - 1. It is accepted with probability exp(-g), where

    g = ((k - 1)^2 + 2 k r/s + (r/s)^2) / 2 >= 0,

because exp(-k - g) = exp(-1/2) exp(-y^2 / (2 s^2)). This is the rejection of Canonne, Kamath and Steinke, "The discrete
Gaussian for differential privacy", NeurIPS 2020 (arXiv:2004.00010), Algorithm 3 with t = s, with the two rejections
of a candidate drawn as one.

No probability is rounded, so the last bits of a sample reveal no more than the others. A uniform real number is
compared with exp(-g) by its first 64 bits and a floating-point value. If the two are closer than `_MARGIN`, which is
far above all rounding errors, more bits are drawn and the comparison is repeated with as many digits as it takes. So a
sample is a function of the random words alone, whatever the last bits of a processor's exp are.
"""

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from os import urandom
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index, Mask
from ..randomness import stream

Bits64 = NDArray[np.uint64]
Words = Callable[[int], Bits64]
"""So many fresh, independent, uniform 64-bit words."""

_Number = TypeVar("_Number", Array, Fraction)

_MOST_BITS = 31  # a word then has room for a size and a sign, and floats resolve r / s
_MARGIN = 2.0**-40  # the errors of g, exp and the conversion of a word add up to less than 2^-48


def secret_words() -> Words:
    """Random 64-bit words that cannot be reproduced: ChaCha20 under a new key from the operating system."""
    from cryptography.hazmat.primitives.ciphers import Cipher  # simulations do not need it
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    encryptor = Cipher(ChaCha20(urandom(32), urandom(16)), mode=None).encryptor()
    return lambda count: np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)


def seeded_words(seed: int, client: int, round_: int) -> Words:
    """Random 64-bit words for a simulation, reproducible from (seed, client, round) and not secret."""
    source = stream(seed, "noise", client, round_).bit_generator
    return lambda count: source.random_raw(count)


def discrete_gaussian(count: int, bits: int, words: Words) -> Index:
    """Draw `count` independent samples with s = 2^bits; ValueError unless 0 <= bits <= 31."""
    if not 0 <= bits <= _MOST_BITS:
        raise ValueError(f"bits must be from 0 to {_MOST_BITS}; got {bits}")
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        missing = count - len(found)
        found = np.concatenate([found, _accepted(2 * missing + missing // 8 + 32, bits, words)])
    return found[:count]


def _accepted(tries: int, bits: int, words: Words) -> Index:
    """The accepted ones of `tries` candidates, about 0.48 of them, with random signs."""
    block, drawn = _blocks(tries, words), words(tries).view(np.int64)
    rest, negative = drawn & ((1 << bits) - 1), drawn < 0

    def exactly(i: int) -> Fraction:
        return _exponent(Fraction(int(block[i])), Fraction(int(rest[i]), 1 << bits))

    part: Array = rest * np.float64(2.0**-bits)
    kept = _happens(_exponent(block.astype(np.float64), part), exactly, words)
    size = (block << bits) + rest
    kept &= ~(negative & (size == 0))  # reject -0, so that 0 is not counted twice
    signed: Index = np.where(negative, -size, size)[kept]
    return signed


def _exponent(block: _Number, part: _Number) -> _Number:
    """g of a candidate in this block; part: r / s."""
    return ((block - 1) * (block - 1) + 2 * block * part + part * part) / 2


def _blocks(count: int, words: Words) -> Index:
    """Geometric numbers, P(k or more) = exp(-k): how many of exp(-1), exp(-2), ... a uniform number is below.

    What exceeds the last power of the table is geometric again.
    """
    drawn = words(count)
    place = np.searchsorted(_POWERS, drawn, side="right")
    blocks = len(_POWERS) - place
    for i in np.flatnonzero(_POWERS[place - 1] == drawn):  # the first 64 bits are those of a power
        blocks[i] += _below(int(drawn[i]), Fraction(int(blocks[i]) + 1), words)
    if (beyond := np.flatnonzero(blocks == len(_POWERS))).size:
        blocks[beyond] += _blocks(beyond.size, words)
    return blocks


def _happens(g: Array, exactly: Callable[[int], Fraction], words: Words) -> Mask:
    """True with probability exp(-g), for each entry; exactly(i): g of entry i without rounding."""
    drawn = words(len(g))
    gap = drawn * 2.0**-64 - np.exp(-g)
    happens: Mask = gap < 0
    for i in np.flatnonzero(abs(gap) < _MARGIN):
        happens[i] = _below(int(drawn[i]), exactly(int(i)), words)
    return happens


def _below(word: int, g: Fraction, words: Words) -> bool:
    """Whether a uniform real number with first 64 bits `word` is below exp(-g); draws bits until that is certain."""
    bits = 64
    while abs(word - (power := _power(g, bits))) <= 2:
        word, bits = word << 64 | int(words(1)[0]), bits + 64
    return word < power


def _power(g: Fraction, bits: int) -> int:
    """exp(-g) 2^bits, with an error below 2."""
    with localcontext(Context(prec=bits)):  # decimal digits, three times as many as needed
        return int((Decimal(-g.numerator) / g.denominator).exp() * 2**bits)


_POWERS = np.array([_power(Fraction(j), 64) for j in range(40, 0, -1)], dtype=np.uint64)
"""exp(-40), ..., exp(-1) in units of 2^-64, rounded down."""
