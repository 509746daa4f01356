"""Noise that is correlated over the steps of a run, so that it partly cancels in sums of gradients.

Step t releases g_t + sigma (B z)_t, with z standard normal, independent over steps and entries, and B = C^-1 the
lower-triangular Toeplitz matrix of the first p coefficients of (1 - x)^(1/2), p the bandwidth (Kalinin, McKenna,
Upadhyay and Lampert 2025, the banded inverse square root). p = 1 is independent noise. The sensitivity of a run:

1. B is invertible, so the released steps 1, ..., T say as much as C g + sigma z, C the inverse of B: a Gaussian
   release, also if g_t depends on what was released before (Denisov et al. 2022).
2. The coefficients of B after the first are negative, so those of C, of 1 / (1 - a_1 x - ... - a_{p-1} x^{p-1}) with
   a_k > 0, are not, and neither is any product of two columns.
3. Let step t of the replaced records move g_t by up to pi_t times the sensitivity of a step, in any direction. With
   products of columns that are not negative, ||C dg|| is largest if all moves have one direction: it is ||C pi||.
4. C is lower-triangular: what was released up to step T involves its first T rows only. Steps that were left out move
   by 0.
5. For several batches S that the records fill, ||C sum_S pi_s||^2 = sum over s, s' in S of <C pi_s, C pi_s'>.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import numpy as np

from ..arrays import Array, Index, read_only

NOISES = ("independent", "banded")
WIDEST = 64
"""The largest bandwidth that is chosen: so many vectors of noise are in memory."""
MOST_STEPS = 2 * 10**7
"""Steps times batches of an epoch, for which sensitivities can be computed in little memory and time."""
_HELD = 2**27  # bytes of drawn vectors that are remembered, so that each is drawn once

Innovation = Callable[[int, tuple[int, ...]], Array]
"""Maps a step, from 0, and a shape to standard normal numbers, always the same."""


@lru_cache
def inverse_root(bandwidth: int) -> Array:
    """The first coefficients (p,) of (1 - x)^(1/2): 1, -1/2, -1/8, -1/16, ..."""
    k = np.arange(1, bandwidth)
    return read_only(np.concatenate([[1.0], np.cumprod((k - 1.5) / k)]))


def through_root(patterns: Array, bandwidth: int) -> Array:
    """C pi for patterns pi (..., T): the v with v_t = pi_t + a_1 v_{t-1} + ... + a_{p-1} v_{t-p+1}."""
    from scipy.signal import (
        lfilter,  # slow to import, and simulations without correlated noise do not need it
    )

    return lfilter([1.0], inverse_root(bandwidth), patterns)  # type: ignore[no-any-return]


def squared_sensitivity(patterns: Array, bandwidth: int, most: int = 1) -> float:
    """The largest ||C sum_S pi_s||^2 over `most` of these patterns (S, T), a bound if `most` is neither 1 nor S."""
    images = through_root(patterns, bandwidth)
    products = images @ images.T
    alone = np.diag(products).copy()
    np.fill_diagonal(products, 0.0)
    others = np.sort(products, axis=1)[:, ::-1][:, : most - 1].sum(1)
    return float(np.sort(alone + others)[::-1][:most].sum())


def best_bandwidth(per_epoch: int, steps: int) -> int:
    """The power of two, at most per_epoch and WIDEST, whose noisy running sums of all steps have the least error.

    The error is the root mean square of the rows of A C^-1, A the sums, times the sensitivity of a record that takes
    part in steps 0, per_epoch, 2 per_epoch, ...
    """
    record = (np.arange(steps) % per_epoch == 0).astype(float)
    widths = [2**k for k in range(int(math.log2(min(per_epoch, WIDEST))) + 1)]
    return min(widths, key=lambda p: squared_sensitivity(record[None], p) * _squared_error(p, steps))


def _squared_error(bandwidth: int, steps: int) -> float:
    """The mean squared norm of the rows of A C^-1."""
    sums = np.cumsum(inverse_root(min(bandwidth, steps)))
    rows = np.concatenate([sums, np.full(max(0, steps - len(sums)), sums[-1])])
    return float(np.cumsum(rows**2).mean())


def largest_factor(bandwidth: int) -> float:
    """How many times the largest of several draws one number of the correlated noise can be."""
    return float(np.abs(inverse_root(bandwidth)).sum())


@dataclass(frozen=True)
class CorrelatedDraws:
    """The draws (B z)_t of the steps first, first + 1, ... (`mechanism.Draws`); innovation: draws z."""

    bandwidth: int
    first: int
    innovation: Innovation

    def __call__(self, draw: int, shape: tuple[int, ...]) -> Array:
        """The noise of step first + draw, for sigma 1."""
        step = self.first + draw
        total = self.innovation(step, shape).copy()
        for k, coefficient in enumerate(inverse_root(self.bandwidth)[1 : step + 1], 1):
            total += coefficient * self.innovation(step - k, shape)
        return total


class _Recent:
    """Vectors that were drawn last, by their addresses."""

    def __init__(self) -> None:
        self.lock, self.vectors, self.bytes = Lock(), OrderedDict[object, Array](), 0

    def get(self, address: object, draw: Callable[[], Array]) -> Array:
        """The vector of this address, drawn again if it is not remembered; read only."""
        with self.lock:
            known = self.vectors.get(address)
        if known is None:
            known = read_only(draw())
            with self.lock:
                self._put(address, known)
        return known

    def _put(self, address: object, vector: Array) -> None:
        if address not in self.vectors:
            self.vectors[address] = vector
            self.bytes += vector.nbytes
        while self.bytes > _HELD and len(self.vectors) > 1:
            self.bytes -= self.vectors.popitem(last=False)[1].nbytes


_recent = _Recent()


def remembered(address: tuple[object, ...], innovation: Innovation) -> Innovation:
    """The same innovation, without drawing again what was drawn a few steps before. address: of its stream."""
    return lambda step, shape: _recent.get((*address, step, shape), lambda: innovation(step, shape))


def stacked(draws: Sequence[Innovation], clients: Index) -> Innovation:
    """The draws of clients (...,), each (d,), together: (..., d)."""

    def together(draw: int, shape: tuple[int, ...]) -> Array:
        return np.stack([own(draw, shape[-1:]) for own in draws]).reshape(*clients.shape, shape[-1])

    return together
