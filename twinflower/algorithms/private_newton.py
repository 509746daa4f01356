"""Newton's method with privacy: noisy score and information in every round, in the place of exact ones.

    minimise  F(x) + h(x),   F the mean of the losses of all rows, with the smooth penalty

    client i:   v_i, the means over its rows of gradients and Hessians at x, in one vector (`models.released`)
                sends v_i + noise of the standard deviation sigma_i in every entry
    server:     g, H <- sum_i (N_i / N) v_i, with noise of the deviation gamma in the entries of g, and nu on the
                diagonal of H and nu / sqrt 2 beside it
                with the derivatives of the penalty, which is public, added to both
                M <- H, with eigenvalues below f = nu sqrt d raised to f
                x <- argmin_v  <g, v - x> + (v - x)^T M (v - x) / 2 + h(v)

client keeps     nothing
       receives  x (..., d)
       sends     v_i (..., d + d (d + 1) / 2), with noise
server keeps     x, and the last g and H with their noise
Every client is needed in every round.

Ganesh, Haghifam, Steinke and Thakurta (2023) give private Newton steps for data in one place, where noise is added to g
and to H^-1 g. The paper's second noise depends on H, which is nobody's here, so both sums are released.

Sensitivity. A record moves v_i by 1 / N_i in the units of `models.released`, whatever x is. Of a least-squares loss the
gradients are taken at 0, where that of a row is its label times its features and is clipped to the objective's
clip_norm: one round releases A^T A and A^T y, and another one would release the same.

Shares. A smaller share s of the gradient makes H more precise. Let e be the way to the optimum. A step with H exact
but for its noise ends at H^-1 (N e - n), with E |n|^2 = d gamma^2 and E |N e|^2 = (d + 1) nu^2 |e|^2 / 2, so s should
minimise gamma^2 + nu^2 |e|^2 / 2. With |e| = C / L, where the gradient of a row goes from 0 to its bound C at the
curvature L, and with r = B / L and q = 1 - kappa^2, that is 4 / s + r^2 / (1 - q s) up to a factor, which is least at

    s = 2 / (2 q + r sqrt q),   or at 1 if that is larger.

The logistic loss has s = 1, softmax .85, and least squares 2/3 (without its own factor, which changes 2%). Rounds get
shares of the budget that grow by 1 / budget_ratio, because Newton's method squares what an early round leaves over,
noise included. Of the ratios 1/2 to 1/6, 1/4 was the best or within 10% of it on seven tables with 12 to 82 parameters,
at epsilon 1, 4 and 8.

Floor. A step along a direction in which the noise hides the curvature would be arbitrarily long. For a unit vector u,
|N u| is nu sqrt((d + 1) / 2) for most u, and nu sqrt(2 d) at most (Wigner's law for large d). The floor is the
geometric mean of both: with a lower one steps follow noise, and with a higher one directions that H shows take more
rounds than there are. It also limits steps: one is at most |g| / f long. What the server does with a release costs no
privacy, and with nu = 0 the step is Newton's.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError, require
from ..models.released import Released, Units, released_size
from ..privacy.release import Release, Rounding, allocation
from ..problems.batches import Workload
from ..problems.central import lowest_composite
from ..problems.interfaces import Batch
from ..problems.objectives import LinearModel
from ..problems.regularisers import Regulariser
from ..work import LocalWork
from .algorithm import RunInfo
from .layout import Point

MOST_ROUNDS = 10
_BOUNDED = (
    "newton with privacy needs gradients and second derivatives with public bounds: set objective.name to logistic or "
    "softmax, to discrete-cox with objective.link = logit, or to least-squares with objective.clip-norm, and "
    "data.row-norm above 0, or choose another algorithm, such as fedavg"
)


class Server(NamedTuple):
    """x (..., d); the point (..., d) of the last release, the release (..., `released_size`) itself, and the deviation
    (...,) of the noise in its entries."""

    x: Array
    base: Array
    released: Array
    sigma: Array


class KnownNoise(NamedTuple):
    """What a server knows about the releases: their units, the deviations (N,) of the clients' noise in a release of
    weight 1, and the weight of the penalty."""

    units: Units
    sigmas: tuple[float, ...]
    l2: float


class Noisy(Point):
    """The release of a client, as long as `released_size` says."""

    def entries(self, d: int) -> int:
        """The length of the vector."""
        return released_size(d)


@dataclass(frozen=True)
class PrivateSteps:
    """The rounds of `newton.Newton` with privacy, and its settings for them."""

    regulariser: Regulariser
    info: RunInfo
    gradient_share: float
    budget_ratio: float
    noise: KnownNoise | None = None

    def check(self, objective: LinearModel, robust: bool) -> None:
        """SettingError for an objective without public bounds, for more rounds than are of use, and for sums for robust
        errors, which have no bounds here."""
        require(not robust, "newton.robust = true is not for private runs: set it to false")
        squared = self.info.quadratic
        try:
            best_share(objective, self.info.row_norm)
        except SettingError:
            raise SettingError(_BOUNDED) from None
        self.units(objective)
        require(
            squared or not objective.clip_norm,
            "newton with privacy clips gradients of least squares only, because others have bounds and clipping would "
            "move their optimum: set objective.clip-norm to 0",
        )
        most = 1 if squared else MOST_ROUNDS
        if not self.info.rounds <= most:
            raise SettingError(
                "newton with privacy needs few rounds, because they share the budget: set rounds to "
                f"{'1, in which least squares are solved' if squared else '3'}; got {self.info.rounds}, and at most "
                f"{most} are allowed"
            )

    def units(self, objective: LinearModel) -> Units:
        """The units of the release."""
        row_norm = self.info.row_norm
        return Units.sharing(objective, row_norm, self.gradient_share or best_share(objective, row_norm))

    def known(self, objective: LinearModel, sigmas: Array) -> KnownNoise:
        """What follows from the deviations (N,) of the clients' noise in a release of weight 1."""
        return KnownNoise(self.units(objective), tuple(np.asarray(sigmas).tolist()), objective.l2)

    def release(self, workload: Workload, round_: int) -> Release:
        """The mean of a client's rows, in units of what a record can move in their sum."""
        return Release(workload.replaced / workload.rows, weight=self._weight(round_))

    def _weight(self, round_: int) -> float:
        rounds = self.info.rounds
        return float(allocation("dynamic", rounds, math.log(self.budget_ratio))[min(round_, rounds) - 1])

    def rounding(self) -> Rounding:
        """The terms of a sum over rows are at most 1 long in its units, and bounded whatever the point is."""
        return Rounding(1.0, 0.0)

    def message(self, work: LocalWork, x: Array) -> Array:
        """The releases (..., `released_size`) of clients at points x (..., d), with noise; 0 before it without rows."""
        x = np.broadcast_to(x, (*work.rows.labels.shape[:-1], x.shape[-1])).astype(np.float64)
        means = np.zeros((*x.shape[:-1], released_size(x.shape[-1])))
        if not work.rows.labels.shape[-1]:  # of the server of a run of sums
            return work.noise(means)
        objective: Any = work.objective
        units, data = self.units(objective), replace(objective, l2=0.0)
        for client in np.ndindex(x.shape[:-1]):
            rows = Batch._make(None if part is None else part[client] for part in work.rows)
            means[client] = _mean(data, units, self._base(x[client]), without_padding(rows))
        return work.noise(means)

    def _base(self, x: Array) -> Array:
        """Where derivatives are taken, of least squares at 0."""
        return np.zeros_like(x) if self.info.quadratic else x

    def init_server(self, start: Array) -> Server:
        """Start at x = start, or at the nearest point at which h is finite."""
        start = self.regulariser.prox(start, 0.0)
        sums = np.zeros((*start.shape[:-1], released_size(start.shape[-1])), start.dtype)
        return Server(start, start, sums, np.zeros(start.shape[:-1], start.dtype))

    def server_update(self, server: Server, released: Array, clients: Index, round_: int) -> Server:
        """Take a step, given the releases (K, `released_size`) of clients (K,)."""
        assert self.noise
        shares = np.full(len(clients), 1 / len(clients))
        if self.info.sizes:
            shares = np.array(self.info.sizes, float)[clients]
            shares = shares / shares.sum()
        sigmas = np.array(self.noise.sigmas)[clients] / math.sqrt(self._weight(round_))
        sigma, mean = float(np.linalg.norm(shares * sigmas)), shares @ released.astype(np.float64)
        new = self._step(server.x.astype(np.float64), self.last(mean, server.x.size, sigma))
        parts = new, self._base(server.x), mean, np.asarray(sigma)
        return Server._make(np.asarray(part, old.dtype) for part, old in zip(parts, server, strict=True))

    def _step(self, x: Array, said: Released) -> Array:
        """The point after a step from x (d,)."""
        assert self.noise
        base, l2 = self._base(x), self.noise.l2
        matrix = raised(said.matrix + l2 * np.eye(x.size), floor_of(said))
        return lowest_composite(matrix, said.gradient + l2 * base, base, self.regulariser)

    def last(self, mean: Array, d: int, sigma: float) -> Released:
        """What a mean of releases says, without the penalty."""
        assert self.noise
        return self.noise.units.unpacked(mean, d, sigma)


def best_share(objective: LinearModel, row_norm: float) -> float:
    """The share s of the gradient (see the module); SettingError for an objective without public bounds."""
    require(row_norm > 0, _BOUNDED)
    bound, kappa = objective.information_bounds(row_norm)
    missing, ratio = 1 - kappa**2, bound / objective.bounds(row_norm).curvature
    return min(1.0, 2 / (2 * missing + ratio * math.sqrt(missing)))


def floor_of(released: Released) -> float:
    """f, the geometric mean of nu sqrt(d / 2) and nu sqrt(2 d)."""
    return released.matrix_noise * math.sqrt(len(released.gradient))


def raised(matrix: Array, floor: float) -> Array:
    """The symmetric matrix (d, d) with its eigenvalues below the floor raised to it."""
    values, vectors = np.linalg.eigh(matrix)
    if values[0] >= floor:
        return matrix
    return (vectors * np.maximum(values, floor)) @ vectors.T  # type: ignore[no-any-return]


def without_padding(rows: Batch) -> Batch:
    """The rows without those that pad a client to the size of others."""
    if rows.weights is None:
        return rows._replace(lengths=None)
    return rows.kept(np.flatnonzero(rows.weights))


def _mean(objective: LinearModel, units: Units, x: Array, rows: Batch) -> Array:
    """The means of gradients and Hessians over a client's rows, in one vector."""
    rows = rows._replace(features=rows.features.astype(np.float64))
    matrix = objective.information(objective.scores(x, rows.features), rows) / len(rows.labels)
    return units.packed(objective.grad(x, rows), matrix)

