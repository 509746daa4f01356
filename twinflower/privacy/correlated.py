"""Noise that is correlated over the steps of a run, so that it partly cancels in sums of gradients.

Step t releases g_t + sigma (B z)_t, with z standard normal, independent over steps and entries, and B = C^-1 the
lower-triangular Toeplitz matrix of the first p coefficients of (1 - x)^(1/2), p the bandwidth (Kalinin, McKenna,
Upadhyay and Lampert 2025, the banded inverse square root). p = 1 is independent noise. The sensitivity of a run:

1. B is invertible, so the released steps 1, ..., T say as much as C g + sigma z, C the inverse of B: a Gaussian
   release, even if g_t depends on what was released before (Denisov et al. 2022).
2. The coefficients of B after the first are negative, so those of C, of 1 / (1 - a_1 x - ... - a_{p-1} x^{p-1}) with
   a_k > 0, are not, and neither is any product of two columns.
3. Let step t of the replaced records move g_t by up to pi_t times the sensitivity of a step, in any direction. With
   products of columns that are not negative, ||C dg|| is largest if all moves have one direction: it is ||C pi||.
4. C is lower-triangular: what was released up to step T involves its first T rows only. A step that was not released
   is counted as one that moves by 0, which costs no less.
5. For several batches S that the records fill, ||C sum_S pi_s||^2 = sum over s, s' in S of <C pi_s, C pi_s'>.
6. C = I + N + N^2 + ... for N = I - B, which has no negative entry. So if the noise of earlier steps is left out of a
   step, no entry of C grows, and the cost above still covers the run.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, Index, read_only

NOISES = ("independent", "banded")
WIDEST = 64
"""The largest bandwidth that is chosen: so many vectors of noise are in memory."""
MOST_STEPS = 2 * 10**7
"""Steps times batches of an epoch, for which sensitivities can be computed in little memory and time."""
Draws = Callable[[int, tuple[int, ...]], Array]


@lru_cache
def inverse_root(bandwidth: int) -> Array:
    """The first coefficients (p,) of (1 - x)^(1/2): 1, -1/2, -1/8, -1/16, ..."""
    k = np.arange(1, bandwidth)
    return read_only(np.concatenate([[1.0], np.cumprod((k - 1.5) / k)]))


def through_root(patterns: Array, bandwidth: int) -> Array:
    """C pi for patterns pi (..., T): the v with v_t = pi_t + a_1 v_{t-1} + ... + a_{p-1} v_{t-p+1}."""
    from scipy.signal import lfilter  # slow to import, and runs without correlated noise do not need it

    return lfilter([1.0], inverse_root(bandwidth), patterns)  # type: ignore[no-any-return]


def squared_sensitivity(patterns: Array, bandwidth: int, most: int = 1) -> float:
    """The largest ||C sum_S pi_s||^2 over `most` of these patterns (S, T), a bound if `most` is neither 1 nor S."""
    images = through_root(patterns, bandwidth)
    products = images @ images.T
    alone = np.diag(products).copy()
    np.fill_diagonal(products, 0.0)
    others = np.sort(products, axis=1)[:, ::-1][:, : most - 1].sum(1)
    return float(np.sort(alone + others)[::-1][:most].sum())


def noise_in_sums(bandwidth: int, per_epoch: int, steps: int) -> float:
    """The root mean square, over all steps, of the noise in the sum of all gradients so far, for mu = 1 and a record
    that moves the gradients of steps 0, per_epoch, 2 per_epoch, ... by 1."""
    record = (np.arange(steps) % per_epoch == 0).astype(float)
    errors = np.cumsum(_column_sums(bandwidth, steps) ** 2)
    return math.sqrt(squared_sensitivity(record[None], bandwidth) * errors.mean())


@lru_cache
def left_in_sum(bandwidth: int, steps: int) -> float:
    """The noise in the sum of so many steps, beside that of independent noise with the same sigma."""
    return math.sqrt(np.mean(_column_sums(bandwidth, steps) ** 2))


def _column_sums(bandwidth: int, steps: int) -> Array:
    """How much (steps,) of each vector z is in the sum of the steps, the last vector first."""
    weights = np.cumsum(inverse_root(min(bandwidth, steps)))
    return np.concatenate([weights, np.full(max(0, steps - len(weights)), weights[-1])])


@lru_cache
def best_bandwidth(per_epoch: int, steps: int) -> int:
    """The power of two, at most per_epoch and WIDEST, that leaves the least noise in sums."""
    widths = [2**k for k in range(int(math.log2(min(per_epoch, WIDEST))) + 1)]
    return min(widths, key=lambda p: noise_in_sums(p, per_epoch, steps))


def largest_factor(bandwidth: int) -> float:
    """How many times the largest of several draws one number of the correlated noise can be."""
    return float(np.abs(inverse_root(bandwidth)).sum())


class Innovations(NamedTuple):
    """The standard normal vectors z of a client's steps, from 0.

    address(step): identifies the vector of a step; None if it is left out of the steps after it. draw(address, shape):
    returns the vector, always the same.
    """

    address: Callable[[int], Any]
    draw: Callable[[Any, tuple[int, ...]], Array]


class Window:
    """The vectors z of a client's last p steps, step t in row t mod p, so that each is drawn once.

    A step may need fewer numbers than another, such as a gradient without the values beside it; it takes the first
    ones. The longest must come first in a round, so that a client that is restarted draws the same.
    """

    def __init__(self, bandwidth: int) -> None:
        self.bandwidth = bandwidth
        self.addresses: list[Any] = [None] * bandwidth
        self.vectors = np.zeros((bandwidth, 0))

    def draws(self, first: int, innovations: Innovations) -> Draws:
        """The draws (B z)_t of the steps first, first + 1, ..."""
        return lambda draw, shape: self._filtered(first + draw, shape, innovations)

    def _filtered(self, step: int, shape: tuple[int, ...], innovations: Innovations) -> Array:
        size, p = math.prod(shape), self.bandwidth
        if self.vectors.shape[1] < size:
            self.addresses, self.vectors = [None] * p, np.zeros((p, size))
        lags = (step - np.arange(p)) % p
        for row, lag in enumerate(lags.tolist()):
            self._fill(row, innovations.address(step - lag) if lag <= step else None, innovations)
        return (inverse_root(p)[lags] @ self.vectors[:, :size]).reshape(shape)  # type: ignore[no-any-return]

    def _fill(self, row: int, address: Any, innovations: Innovations) -> None:
        if address != self.addresses[row]:
            own = self.vectors[row]
            own[:] = 0.0 if address is None else innovations.draw(address, own.shape)
            self.addresses[row] = address


def stacked(draws: Sequence[Draws], clients: Index) -> Draws:
    """The draws of clients (...,), each (d,), together: (..., d)."""

    def together(draw: int, shape: tuple[int, ...]) -> Array:
        return np.stack([drawn(draw, shape[-1:]) for drawn in draws]).reshape(*clients.shape, shape[-1])

    return together
