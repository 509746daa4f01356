"""Gaussian noise, seeded for simulations or secret for deployed sites.

In a simulation noise is addressed by (seed, client, round, draw) like every other draw, so it is reproducible and not
secret. At a deployed site it comes from ChaCha20 under a key that never leaves the process. There the noisy value is
rounded to a grid, so that its last bits reveal nothing about the data (Mironov 2012). A value so large that floats do
not resolve the grid is refused.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from .. import special
from ..arrays import Array, Index
from ..errors import ReplyError
from ..randomness import normals, normals_by_round

_MOST_CELLS = 2.0**48  # the largest value in grid cells; floats resolve integers up to 2^53
GRID_BITS = 20  # the grid is 2^20 times finer than the noise: rounding adds a relative 1e-13 to the variance

Draws = Callable[[int, tuple[int, ...]], Array]

_SHORT = 2**13  # numbers that are drawn ahead with those of a round, if they are so few
_NO_DRAWS = (0, np.empty(0))


@dataclass(frozen=True)
class GaussianNoise:
    """The noise of one round: value + sigma z, z standard normal (`work.Noise`).

    sigma: the standard deviation, a number or (..., 1) for stacked clients. draws(draw, shape) returns z. grid: whether
    to round the result to multiples of a power of two near sigma / 2^GRID_BITS.
    """

    sigma: Array | float
    draws: Draws
    grid: bool = False

    def __call__(self, value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        """Return value + sigma shrink z, of the shape of value; ReplyError if it is too large for the grid."""
        spread = self.sigma * np.asarray(shrink)[..., None] if np.ndim(shrink) or shrink != 1 else self.sigma
        noisy = spread * self.draws(draw, value.shape)
        noisy += value
        if not self.grid:
            return noisy
        cell = np.exp2(np.floor(np.log2(spread)) - GRID_BITS)
        cells = np.round(noisy / cell)
        if not (np.abs(cells) <= _MOST_CELLS).all():
            raise ReplyError("the noisy value is too large for its noise: lower step-size")
        return cells * cell


def seeded(seed: int, client: int, round_: int) -> Draws:
    """The draws of one client in a round of a simulation, each of shape (d,)."""
    return lambda draw, shape: normals(seed, "noise", client, _address(round_, draw), shape[-1])


def evaluation_draws(seed: int, client: int) -> Callable[[int], Draws]:
    """The draws of one client for its evaluations in a simulation, by round, which is negative (`ledger.Charge`)."""
    return lambda round_: lambda draw, shape: normals(seed, "evaluation", client, -round_, shape[-1])


def seeded_cohort(seeds: list[int], clients: Index, round_: int) -> Draws:
    """The draws of stacked clients (K,) or (seeds, K); each client's row equals the draw of `seeded`."""

    def draws(draw: int, shape: tuple[int, ...]) -> Array:
        if clients.ndim == 1:
            return normals(seeds[0], "noise", clients, _address(round_, draw), shape[-1])
        rows = zip(seeds, clients, strict=True)
        blocks = [normals(seed, "noise", row, _address(round_, draw), shape[-1]) for seed, row in rows]
        return np.stack(blocks)

    return draws


class Everyone:
    """The draws of all clients, which equal those of `seeded_cohort`. Short ones are made for several rounds at once.

    seeds: one for clients (N,), or several for (seeds, N).
    """

    def __init__(self, seeds: list[int], num_clients: int) -> None:
        self._seeds, self._num_clients = seeds, num_clients
        self._held: dict[
            int, tuple[int, Array]
        ] = {}  # by number of the draw: first round, draws (rounds, *shape)

    def of(self, round_: int) -> Draws:
        """The draws of a round."""

        def draws(draw: int, shape: tuple[int, ...]) -> Array:
            first, held = self._held.get(draw, _NO_DRAWS)
            if 0 <= round_ - first < len(held) and held.shape[1:] == shape:
                return held[round_ - first]  # type: ignore[no-any-return]
            drawn = self._drawn(draw, round_, shape)
            if len(drawn) > 1:
                self._held[draw] = round_, drawn
            return drawn[0]  # type: ignore[no-any-return]

        return draws

    def _drawn(self, draw: int, round_: int, shape: tuple[int, ...]) -> Array:
        """The draws (rounds, *shape) of this round, and of later ones as long as they are few numbers together."""
        addresses = [
            _address(later, draw) for later in range(round_, round_ + 1 + _SHORT // math.prod(shape))
        ]
        drawn = [normals_by_round(s, "noise", self._num_clients, addresses, shape[-1]) for s in self._seeds]
        return drawn[0] if len(shape) == 2 else np.stack(drawn, axis=1)


def secret(draw: int, shape: tuple[int, ...]) -> Array:
    """Standard normal draws that cannot be reproduced: every call takes a new ChaCha20 key from the operating system.

    A draw z is computed from its tail probability, a multiple of 2^-64, so possible draws near z are 2^-64 / phi(z)
    apart. This is finer than the grid of `GaussianNoise`, whose cells are at least 2^-21 sigma, as long as
    phi(z) > 2^-43, that is |z| < 7.6. Further out some grid points cannot occur. A draw falls there with probability
    2 Phi(-7.6) = 3e-14, which strictly should be added to delta for every number released. No draw exceeds 9.1.
    """
    count = int(np.prod(shape))
    stream = Cipher(ChaCha20(os.urandom(32), os.urandom(16)), mode=None).encryptor().update(bytes(8 * count))
    bits = np.frombuffer(stream, dtype="<u8")
    # one bit for the sign, and 63 bits for a probability in the lower half, where floats are dense
    tail = ((bits >> 1).astype(float) + 0.5) * 2.0**-64
    return (special.ndtri(tail) * np.where(bits & 1, 1.0, -1.0)).reshape(shape)


def _address(round_: int, draw: int) -> int:
    return round_ | draw << 32
