"""Gaussian noise, seeded for simulations or secret for deployed sites.

In a simulation noise is addressed by (seed, client, round, draw) like every other draw, so it is reproducible and not
secret. At a deployed site it comes from ChaCha20 under a key that never leaves the process. There the noisy value is
rounded to a grid, so that its last bits reveal nothing about the data (Mironov 2012). Values are clipped there to a
public range in which floats resolve the grid. Whether a value is finite, or fits, is therefore never an error, which
would reveal something about the data.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice

import numpy as np

from .. import special
from ..arrays import Array, Index, of_clients, read_only, within
from ..problems.batches import LocalSchedule, Shards, Workload
from ..problems.interfaces import Bounds
from ..randomness import LONG, normals, normals_by_round
from .correlated import Draws, Innovations, Window, stacked
from .release import Planned

GRID_BITS = 20  # the grid is 2^20 times finer than the noise: rounding adds a relative 1e-13 to the variance
MOST_SIGMAS = 2.0**29
"""Values are clipped to so many standard deviations of their noise: 2^50 cells, where floats still resolve an eighth of
a cell."""
_SHORT = 2**13  # numbers of several rounds that are drawn at once, if each round has at most half as many

_MOST_HELD = 2**25  # numbers that the windows of a simulation's clients hold, at most


@dataclass(frozen=True)
class GaussianNoise:
    """The noise of one round: value + sigma z, z standard normal (`work.Noise`).

    sigma: the standard deviation, a number or (..., 1) for stacked clients. draws(draw, shape) returns z. grid: whether
    to clip the value to MOST_SIGMAS, and to round the result to multiples of a power of two near sigma / 2^GRID_BITS.
    Clipping moves no two numbers apart, so it does not change their sensitivity. NaN becomes the largest number: an
    algorithm must not let a single record make a value NaN.
    """

    sigma: Array | float
    draws: Draws
    grid: bool = False

    def __call__(self, value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        """Return value + sigma shrink z, of the shape of value."""
        spread = self.sigma * np.asarray(shrink)[..., None] if np.ndim(shrink) or shrink != 1 else self.sigma
        noisy = spread * self.draws(draw, value.shape)
        if not self.grid:
            noisy += value
            return noisy
        noisy += within(value, -MOST_SIGMAS * spread, MOST_SIGMAS * spread)
        cell = np.exp2(np.floor(np.log2(spread)) - GRID_BITS)
        return np.round(noisy / cell) * cell


def seeded(seed: int, client: int, round_: int) -> Draws:
    """The draws of one client in a round of a simulation, each of shape (d,)."""
    return lambda draw, shape: normals(seed, "noise", client, _address(round_, draw), shape[-1])


def by_step(draws: Callable[[int], Draws], steps: int) -> Innovations:
    """The draws of a client's rounds of so many steps, by their step from the client's first one on."""
    return Innovations(lambda step: step, lambda step, shape: draws(1 + step // steps)(step % steps, shape))


def evaluation_draws(seed: int, client: int) -> Callable[[int], Draws]:
    """The draws of one client for its evaluations in a simulation, by round, which is negative (`charges.Charge`)."""
    return lambda round_: lambda draw, shape: normals(seed, "evaluation", client, -round_, shape[-1])


@dataclass
class CohortDraws:
    """The draws of stacked clients (K,) or (seeds, K) in a round; each client's row equals the draw of `seeded`."""

    seeds: list[int]
    clients: Index
    round: int

    def __call__(self, draw: int, shape: tuple[int, ...]) -> Array:
        """All clients' draws, (K, d) or (seeds, K, d)."""
        if self.clients.ndim == 1:
            return self._drawn(self.seeds[0], self.clients, draw, shape[-1])
        rows = zip(self.seeds, self.clients, strict=True)
        return np.stack([self._drawn(seed, row, draw, shape[-1]) for seed, row in rows])

    def _drawn(self, seed: int, clients: Index, draw: int, size: int) -> Array:
        return normals(seed, "noise", clients, _address(self.round, draw), size)


class DrawsOfAll:
    """All clients' draws, those of `CohortDraws`. If the first draw of a round is short, it is made for several rounds
    at once, which takes fewer calls.

    seed: one for clients (N,), or seeds (S,) for (S, N).
    """

    def __init__(self, seed: int | Index, num_clients: int) -> None:
        self._seeds = np.atleast_1d(seed).tolist()
        self._clients = np.broadcast_to(np.arange(num_clients), (*np.shape(seed), num_clients))
        self._first, self._held = 0, np.empty(0)  # a round, and the draws (rounds, ...) from that round on

    def of(self, round_: int) -> Draws:
        """The draws of a round."""
        plain = CohortDraws(self._seeds, self._clients, round_)

        def draws(draw: int, shape: tuple[int, ...]) -> Array:
            *_, count, size = shape
            short = draw == 0 and size < LONG and 2 * count * size <= _SHORT
            return self._first_draw(round_, shape) if short else plain(draw, shape)

        return draws

    def _first_draw(self, round_: int, shape: tuple[int, ...]) -> Array:
        """The first draw of a round, perhaps made before; read only."""
        ahead = round_ - self._first
        if not (0 <= ahead < len(self._held) and self._held.shape[1:] == shape):
            self._first, self._held, ahead = round_, read_only(self._drawn(round_, shape)), 0
        return self._held[ahead]

    def _drawn(self, round_: int, shape: tuple[int, ...]) -> Array:
        *_, count, size = shape
        addresses = [_address(later, 0) for later in range(round_, round_ + _SHORT // (count * size))]
        drawn = [normals_by_round(seed, "noise", count, addresses, size) for seed in self._seeds]
        return drawn[0] if len(shape) == 2 else np.stack(drawn, axis=1)


@dataclass(frozen=True)
class SimulatedNoise:
    """The noise of a private run in a simulation: sigma is each client's multiplier times the `spread` of its release.

    multipliers (..., N): sigma / sensitivity of a release of weight 1. bounds: of the objective on allowed rows. The
    draws are addressed by (seed, client, round), so a run is reproducible and its noise is not secret. bandwidths
    (..., N): of noise that is correlated over the steps; None for independent noise.
    """

    algorithm: Planned
    shards: Shards
    schedule: LocalSchedule
    bounds: Bounds
    multipliers: Array
    seed: int | Index = 0
    bandwidths: Index | None = None

    def __call__(self, round_: int, clients: Index) -> GaussianNoise:
        """The noise in a round of the clients (..., K), given by number."""
        everyone = clients.shape[-1] == self.multipliers.shape[-1]
        planned = self.multipliers if everyone else of_clients(self.multipliers, clients)
        sigma = self._spreads(round_, clients) * planned
        if self.bandwidths is not None:
            return GaussianNoise(sigma[..., None], self._correlated(self.bandwidths, round_, clients))
        draws = self._of_all.of(round_) if everyone else CohortDraws(self._seeds, clients, round_)
        return GaussianNoise(sigma[..., None], draws)

    def _correlated(self, bandwidths: Index, round_: int, clients: Index) -> Draws:
        """The draws of clients (..., K), each as its guard makes them."""
        widths, sizes = of_clients(bandwidths, clients), self.shards.extent(clients)[1]
        known = np.array(self._seeds, dtype=object).reshape(
            -1, *[1] * (clients.ndim - 1)
        )  # some exceed an int64
        seeds = np.broadcast_to(known, clients.shape)
        each = zip(*(a.ravel().tolist() for a in (seeds, clients, sizes, widths)), strict=True)
        return stacked([self._of_client(round_, *own) for own in each], clients)

    def _of_client(self, round_: int, seed: int, client: int, rows: int, bandwidth: int) -> Draws:
        if bandwidth == 1:
            return seeded(seed, client, round_)
        load = self.schedule.workload(rows)
        first = load.span(self.schedule.turn(seed, client, round_)).first
        steps = by_step(partial(seeded, seed, client), load.steps)
        return self._window(seed, client, bandwidth).draws(first, steps)

    def _window(self, seed: int, client: int, bandwidth: int) -> Window:
        """The client's, or a new one if those of the others fill the memory for them."""
        windows = self._windows
        window = windows.get((seed, client)) or Window(bandwidth)
        size = max((known.vectors.size for known in islice(windows.values(), 1)), default=0)
        if size * len(windows) < _MOST_HELD:
            windows[seed, client] = window
        return window

    def _spreads(self, round_: int, clients: Index) -> Array | float:
        """sigma / multiplier of clients (..., K), computed once for each number of rows."""
        if self._rows_of_all:
            return self.algorithm.release(self.bounds, self._workload_of_all, round_).spread
        sizes = self.shards.extent(clients)[1]
        by_size = {m: self._spread(int(m), round_) for m in set(sizes.flat)}
        return np.reshape([by_size[m] for m in sizes.flat], sizes.shape)

    def _spread(self, rows: int, round_: int) -> float:
        return self.algorithm.release(self.bounds, self.schedule.workload(rows), round_).spread

    @cached_property
    def _windows(self) -> dict[tuple[int, int], Window]:
        return {}

    @cached_property
    def _of_all(self) -> DrawsOfAll:
        return DrawsOfAll(self.seed, self.multipliers.shape[-1])

    @cached_property
    def _seeds(self) -> list[int]:
        return np.atleast_1d(self.seed).tolist()  # type: ignore[no-any-return]

    @cached_property
    def _workload_of_all(self) -> Workload:
        return self.schedule.workload(self._rows_of_all)

    @cached_property
    def _rows_of_all(self) -> int:
        """The number of rows of every client, or 0 if they differ."""
        sizes = self.shards.sizes
        return int(sizes.flat[0]) if sizes.min() == sizes.max() else 0


def secret(draw: int, shape: tuple[int, ...]) -> Array:
    """Standard normal draws that cannot be reproduced: every call takes a new ChaCha20 key from the operating system.

    A draw z is computed from its tail probability, a multiple of 2^-64, so possible draws near z are 2^-64 / phi(z)
    apart. This is finer than the grid of `GaussianNoise`, whose cells are at least 2^-21 sigma, as long as
    phi(z) > 2^-43, that is |z| < 7.6. Further out some grid points cannot occur. A draw falls there with probability
    2 Phi(-7.6) = 3e-14, which strictly should be added to delta for every number released. No draw exceeds 9.1.
    """
    return _by_chacha(os.urandom(32), os.urandom(16), shape)


def secretly(round_: int) -> Draws:
    """The draws of any round of a deployed site."""
    return secret


def keyed(seeds: Mapping[int, bytes], steps: int) -> Innovations:
    """Draws like those of `secret` that whoever has the seeds of the rounds can repeat.

    seeds: by a round's first step; a round of so many steps without a seed is left out.
    """

    def address(step: int) -> tuple[bytes, int] | None:
        seed = seeds.get(step - step % steps)
        return None if seed is None else (seed, step % steps)

    def drawn(address: tuple[bytes, int], shape: tuple[int, ...]) -> Array:
        return _by_chacha(address[0], bytes(8) + address[1].to_bytes(8, "little"), shape)

    return Innovations(address, drawn)


def _by_chacha(key: bytes, nonce: bytes, shape: tuple[int, ...]) -> Array:
    from cryptography.hazmat.primitives.ciphers import Cipher  # simulations do not need it
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(key, nonce), mode=None).encryptor().update(bytes(8 * int(np.prod(shape))))
    bits = np.frombuffer(stream, dtype="<u8")
    # one bit for the sign, and 63 bits for a probability in the lower half, where floats are dense
    tail = ((bits >> 1).astype(float) + 0.5) * 2.0**-64
    return (special.ndtri(tail) * np.where(bits & 1, 1.0, -1.0)).reshape(shape)


def _address(round_: int, draw: int) -> int:
    return round_ | draw << 32
