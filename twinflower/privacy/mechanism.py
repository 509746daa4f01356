"""Gaussian noise and where it comes from.

In a simulation noise has an address (seed, client, round, draw) like every other draw: reproducible, and no
secret. At a deployed site it comes from ChaCha20 under a key that never leaves the process, and the noisy
value is rounded to a grid, so that its last bits say nothing (Mironov 2012). A value so large that floats do not
resolve the grid is refused.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from scipy.special import ndtri

from ..arrays import Array, Index
from ..errors import ReplyError
from ..randomness import normals

_MOST_CELLS = 2.0**48  # of a value; floats resolve 2^53
GRID_BITS = 20  # the grid is this much finer than the noise: its rounding adds 1e-13 to the variance

Draws = Callable[[int, tuple[int, ...]], Array]


@dataclass(frozen=True)
class GaussianNoise:
    """The noise of one round: value + sigma z, z standard normal (`work.Noise`).

    sigma: a number, or (..., 1) for stacked clients. draws(draw, shape) gives z. grid: round the result to
    multiples of a power of two about sigma / 2^GRID_BITS.
    """

    sigma: Array | float
    draws: Draws
    grid: bool = False

    def __call__(self, value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        """The noisy value."""
        shrink = np.asarray(shrink)[..., None]
        noisy = value + self.sigma * shrink * self.draws(draw, value.shape)
        if not self.grid:
            return noisy
        cell = np.exp2(np.floor(np.log2(self.sigma * shrink)) - GRID_BITS)
        cells = np.round(noisy / cell)
        if not (np.abs(cells) <= _MOST_CELLS).all():
            raise ReplyError("the noisy value is too large for its noise: lower step-size")
        return cells * cell


def seeded(seed: int, client: int, round_: int) -> Draws:
    """Draws of one client for a simulation."""
    return lambda draw, shape: normals(seed, "noise", client, _address(round_, draw), shape[-1])


def seeded_cohort(seeds: list[int], clients: Index, round_: int) -> Draws:
    """Draws of stacked clients (K,) or (seeds, K); each row as `seeded` gives it."""

    def draws(draw: int, shape: tuple[int, ...]) -> Array:
        if clients.ndim == 1:
            return normals(seeds[0], "noise", clients, _address(round_, draw), shape[-1])
        rows = zip(seeds, clients, strict=True)
        blocks = [normals(seed, "noise", row, _address(round_, draw), shape[-1]) for seed, row in rows]
        return np.stack(blocks)

    return draws


def secret(draw: int, shape: tuple[int, ...]) -> Array:
    """Draws nobody can repeat: a fresh ChaCha20 key from the operating system for every call.

    A draw z comes from its tail probability, a multiple of 2^-64, so that near z possible draws are 2^-64 / phi(z)
    apart. That is less than the grid of `GaussianNoise`, at least 2^-21, while phi(z) > 2^-43, |z| < 7.6. Further out
    the tails have holes that the grid does not cover; a number falls there with probability 2 Phi(-7.6) = 3e-14,
    which a careful reader adds to delta for every number released. Beyond 9.1 there is nothing.
    """
    count = int(np.prod(shape))
    stream = Cipher(ChaCha20(os.urandom(32), os.urandom(16)), mode=None).encryptor().update(bytes(8 * count))
    bits = np.frombuffer(stream, dtype="<u8")
    # a sign, and 63 bits of the lower half, where floats are dense
    tail = ((bits >> 1).astype(float) + 0.5) * 2.0**-64
    return (ndtri(tail) * np.where(bits & 1, 1.0, -1.0)).reshape(shape)


def _address(round_: int, draw: int) -> int:
    return round_ | draw << 32
