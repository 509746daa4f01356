"""Newton's method for likelihoods, and proximal Newton with a regulariser (Lee, Sun and Saunders, SIAM J. Optim. 2014).

    minimise  F(x) + h(x),   F the mean of the losses of all rows, with the smooth penalty

    client i:   l_i, g_i, H_i, the sums of the losses of its rows, their gradients and their Hessians at the point z
    server:     with l, g and H their sums over all clients, divided by the number N of rows, it takes z as the new x if
                l + h(z) is low enough, and then
                v <- argmin_v  <g, v - x> + (v - x)^T H (v - x) / 2 + h(v)
                s <- v - x,  t <- 1. Otherwise t is made smaller. Then z <- x + t s.

client keeps     nothing
       receives  z (..., d)
       sends     its number of rows, l_i, whether the maximum of the likelihood exists, how many rows have a weight
                 above 0, g_i (..., d), the entries of H_i (..., d (d + 1) / 2) on and above the diagonal, and with
                 `robust` those of the sum of g_j g_j^T, with g_j the gradient of a row or group, and how many groups
server keeps     x, z, s, the objective at x and its predicted decrease, and the sums over all rows at x
Every client is needed in every round: losses of two rounds can be compared only if they are those of the same rows.

A step is shortened until the objective falls by at least 1e-4 of what its slope predicts: to at most half of the last
t, and to the minimum of the exponential curve with its slope, curvature and last value, because rates, odds and hazards
are exponential in x. A shorter step costs a round. Where events are rare, Newton's step from 0 lowers the log rate by
only 1. So a step also moves along the last one, to the minimum of the exponential curve with the slope and curvature
there and the curvature before it (`_beyond`). Where the loss is quadratic the first step ends the run: the sums at its
end follow from those at its start, except for `robust`, which takes another round.

The end. With D = -(<g, s> + h(v) - h(x)) >= 0, N D / 2 is the Newton decrement of the sum over all N rows: without h
the log likelihood can still rise by that much if it is quadratic, and estimates are within sqrt(N D) standard errors of
the maximum. Below `tolerance`, or the rounding of the sum, x takes the last step and the run ends. The sums over all
rows at the last z are those from which standard errors follow (`information`), to about sqrt(2 tolerance).

No maximum. If columns separate the classes, or a category has no events, the likelihood rises for ever along a
direction. There each step is about 1 in log odds (or rates) and lowers what is left by the factor e; near a maximum the
decrement is squared. A run ends without one if the decrement, below 0.01 (a single event weighs 1), falls by less than
a factor of 5 in two rounds in a row with whole steps, or if a curvature rounds to 0 and the slope does not.

Redundant columns, such as the categories of a column beside the column of ones, or all scores of softmax, leave H
without an inverse. Of all minima v, that without a component in the directions without curvature is taken
(`problems.central`); coefficients which the rows do not determine are then named where standard errors are computed.
With privacy steps are those of `private_newton`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import ReplyError, SettingError, require
from ..models.information import MOST_PARAMETERS, Information, compact_size
from ..models.released import Released, released_size
from ..privacy.release import Release, Rounding
from ..problems.batches import Workload
from ..problems.central import lowest_composite
from ..problems.interfaces import Batch, Bounds
from ..problems.losses import ClassWeighted, Likelihood
from ..problems.objectives import LinearModel
from ..problems.regularisers import ZERO, Regulariser, Support, Zero
from ..settings import SHARE, Setting, above, between
from ..work import LocalWork, Report
from .algorithm import NO_INFO, Algorithm, RunInfo, Stop, to_nodes
from .layout import Arrays, Layout, Nothing, Point
from .messages import VECTOR, Vector
from .private_newton import KnownNoise, Noisy, PrivateSteps, without_padding

GOING_ON, CONVERGED, UNBOUNDED, FLAT = 0, 1, 2, 3
"""Values of `Server.status`."""
_DESCENT = 1e-4  # part of the predicted decrease by which a step must lower the objective
_KEPT, _SMALLEST_RATE = 0.1, 0.01  # what a step beyond Newton's keeps of its decrease, and of rates, at least
_LONGEST, _STEEPEST, _HALVINGS, _LEAST = 0.5, 700.0, 50, 1e-300  # of a shorter step and the search for it
_ROUNDING = 8.0  # units in the last place of an objective that is a mean of rounded losses
_NEAR, _SLOW, _ROUNDS = 0.01, 0.2, 2  # no maximum: decrement, its ratio to the one before, and for how many rounds
_FLAT = 1e-8  # a mean slope that is no rounding, where there is no curvature
_MOVING = 0.2  # part of the largest entry of a step from which an entry is named as one without a maximum
_NO_MAXIMUM = (
    "the likelihood has no maximum, because columns separate the classes or a category has no events: every step still "
    "moves {entries}"
)
_NO_CURVATURE = "the likelihood has no curvature in {entries} so far from its maximum: start nearer to 0"


class Upload(NamedTuple):
    """The sums over a client's rows, (..., `compact_size`)."""

    sums: Array


class Server(NamedTuple):
    """x (..., d), the point with the lowest objective so far; trial (..., d), the point of the next request; step
    (..., d) from x, of which the trial is the part length (...,); value (...,) of the objective at x, infinite before
    round 1, and slope (...,), its predicted decrease by the whole step; decrement (...,), for how many rounds it was
    slow (...,), and status (...,); and the sums over all rows at x (..., `compact_size`)."""

    x: Array
    trial: Array
    step: Array
    length: Array
    value: Array
    slope: Array
    decrement: Array
    slow: Index
    status: Index
    sums: Array


class Sums(Point):
    """The sums of a client for `count` problems, `size(d)` numbers each, of which the first is that of the rows."""

    def __init__(self, name: str, size: Callable[[int], int], count: int = 1) -> None:
        super().__init__(name)
        self.size, self.count = size, count

    def entries(self, d: int) -> int:
        """The length of the vector."""
        return self.count * self.size(d)

    def unpack(self, arrays: Arrays, d: int, request: Any, dtype: Any) -> Any:
        """Finite sums, each over at least one row."""
        (sums,) = super().unpack(arrays, d, request, dtype)
        fewest = float(sums[:: self.size(d)].min())
        if not fewest >= 1:
            raise ReplyError(f"sums must be those of at least one row; got {fewest:g}")
        return [sums]


@dataclass(frozen=True)
class Newton(Algorithm):
    """Newton's method with the settings tolerance, the decrement at which a run ends, and robust, whether clients send
    the outer products of gradients, too, which robust standard errors need.

    With privacy, a run ends after its last round, and the settings are gradient_share, the share s of `private_newton`,
    0 for the derived one, and budget_ratio, the privacy budget of a round as a share of the next one's.
    """

    name: ClassVar[str] = "newton"
    title: ClassVar[str] = "Newton's method: score and information in every round, few rounds"
    weightings: ClassVar[tuple[str, ...]] = ("rows",)
    takes_local_steps: ClassVar[bool] = False
    needs_every_client: ClassVar[bool] = True
    needs_whole_batches: ClassVar[bool] = True
    ends_early: ClassVar[bool] = True
    sends_sums: ClassVar[bool] = True
    works_on_sums: ClassVar[bool] = True
    row_reach: ClassVar[float] = 1.0
    modes: ClassVar[tuple[str, ...]] = ("none", "gradient")
    server_columns: ClassVar[tuple[str, ...]] = ("decrement",)

    regulariser: Regulariser = ZERO
    tolerance: Annotated[
        float, Setting("the run ends at this Newton decrement of the sum over all rows", above(0))
    ] = 1e-12
    robust: Annotated[bool, Setting("clients also send the sums for robust standard errors")] = False
    gradient_share: Annotated[
        float, Setting("with privacy, weight of the score against the information; 0: derived", between(0, 1))
    ] = 0.0
    budget_ratio: Annotated[float, Setting("privacy budget of a round as a share of the next one's", SHARE)] = 0.25
    privacy: str = "none"
    info: RunInfo = field(default=NO_INFO, kw_only=True)
    noise: KnownNoise | None = field(default=None, kw_only=True, repr=False)  # its last bits depend on the machine

    inbox = VECTOR

    @cached_property
    def private(self) -> PrivateSteps | None:
        """The rounds of a private run; None without privacy."""
        settings = self.regulariser, self.info, self.gradient_share, self.budget_ratio, self.noise
        return PrivateSteps(*settings) if self.privacy != "none" else None

    @property
    def upload(self) -> Layout:
        """The layout of the sums."""
        return Layout(Upload, Noisy("sums") if self.private else Sums("sums", partial(compact_size, outer=self.robust)))

    def check(self, objective: Any) -> None:
        """SettingError for an objective that is no smooth convex likelihood, or has too many parameters."""
        clipped = has_information(objective) and objective.clip_norm and not self.private
        if not has_information(objective) or objective.nonconvex or clipped:
            raise SettingError(
                "newton needs the second derivatives of a convex loss: set objective.name to logistic, softmax, "
                "least-squares, poisson, discrete-cox or stratified-cox, and objective.nonconvex and "
                "objective.clip-norm to 0, or choose another algorithm"
            )
        if not objective.d <= MOST_PARAMETERS:
            raise SettingError(
                f"newton sends d (d + 1) / 2 numbers for d parameters, of which there may be {MOST_PARAMETERS}; got "
                f"{objective.d}: choose another algorithm, such as fedavg"
            )
        if self.private:
            self.private.check(objective, self.robust)

    def check_server(self) -> None:
        """SettingError for a private server that was not given the noise."""
        require(
            not self.private or self.noise is not None,
            "newton with privacy needs to know its noise: see Newton.with_noise",
        )

    def release_size(self, d: int) -> int:
        """See `Algorithm.release_size`."""
        return released_size(d)

    def with_noise(self, objective: Any, sigmas: Array) -> "Newton":
        """See `Algorithm.with_noise`: the server limits its steps by the noise."""
        return replace(self, noise=self.private.known(objective, sigmas)) if self.private else self

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Any:
        """Start at x = start, or at the nearest point at which h is finite."""
        if self.private:
            return self.private.init_server(start)
        start = self.regulariser.prox(start, 0.0)
        lead, zeros = start.shape[:-1], np.zeros_like(start)
        number, count = np.zeros(lead, start.dtype), np.zeros(lead, np.int64)
        sums = np.zeros((*lead, compact_size(start.shape[-1], self.robust)), start.dtype)
        return Server(start, start, zeros, number + 1, number + np.inf, number, number + np.inf, count, count, sums)

    def broadcast(self, server: Any, round_: int, node: Index) -> Vector:
        """Send the trial point to every client."""
        return Vector(to_nodes(server.x if self.private else server.trial, node))

    def client_update(self, state: Nothing, inbox: Vector, work: LocalWork) -> tuple[Nothing, Upload, Report]:
        """The sums over the client's rows at the point received."""
        if self.private:
            sums = self.private.message(work, inbox.x).astype(inbox.x.dtype)
            return state, Upload(sums), work.one_step()
        sums = by_client(partial(sums_of, work.objective, outer=self.robust), inbox.x, work.rows)
        return state, Upload(sums), work.one_step()

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """See `PrivateSteps.release`."""
        assert self.private
        return self.private.release(workload, round_)

    def rounding(
        self, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """See `PrivateSteps.rounding`."""
        assert self.private
        return self.private.rounding()

    def server_update(self, server: Any, uploads: Upload, clients: Index, round_: int) -> Any:
        """Take the trial point and the next step, or a shorter one."""
        if self.private:
            return self.private.server_update(server, uploads.sums, clients, round_)
        total = Information.expanded(uploads.sums.sum(0, dtype=np.float64), server.x.size)
        value = total.loss / total.rows + self._h(server.trial)
        low = _lower(server, value)
        new = self._advanced(server, total, value) if low else _shortened(server, value)
        return Server._make(np.asarray(part, old.dtype) for part, old in zip(new, server, strict=True))

    def _h(self, x: Array) -> float:
        return float(self.regulariser.value(x))

    def _advanced(self, server: Server, total: Information, value: float) -> Server:
        """The state after the trial point was taken, where the sums over all rows are `total`."""
        x, gradient = server.trial.astype(np.float64), total.gradient / total.rows
        v = lowest_composite(total.matrix / total.rows, gradient, x, self.regulariser)
        decrement = -0.5 * total.rows * self._slope(gradient, x, v)
        slow = _slow(server, decrement)
        status = UNBOUNDED if slow >= _ROUNDS else GOING_ON
        if self.info.quadratic and not self.robust:
            status, total = CONVERGED, total.moved(v - x)
        elif _flat(total).size and isinstance(self.regulariser, Zero):
            status = FLAT
        elif decrement <= self.tolerance + total.rows * _slack(server, value):
            status = CONVERGED
        end = self._end(server, total, x, v) if decrement > _NEAR else v
        return Server(
            v if status == CONVERGED else x, end, end - x, np.ones(()),
            np.asarray(value), np.asarray(self._slope(gradient, x, end)), np.asarray(decrement), np.asarray(slow),
            np.asarray(status), total.compact(self.robust),
        )  # fmt: skip

    def _end(self, server: Server, total: Information, x: Array, v: Array) -> Array:
        """v with what is beyond it, unless that undoes Newton's decrease: v can lack directions of little curvature."""
        further, gradient = v + _beyond(server, total), total.gradient / total.rows
        kept = self._slope(gradient, x, further) <= _KEPT * self._slope(gradient, x, v)
        return further if kept and isinstance(self.regulariser, Zero | Support) else v

    def _slope(self, gradient: Array, x: Array, v: Array) -> float:
        """The predicted decrease of the objective by the step from x to v, where F has this gradient at x."""
        return min(float(gradient @ (v - x)) + self._h(v) - self._h(x), 0.0)

    def model(self, server: Any) -> Array:
        """The point with the lowest objective so far, (..., d)."""
        return server.x

    def server_metrics(self, server: Any) -> dict[str, Array]:
        """The Newton decrement at x, half the squared distance in standard errors to the optimum; NaN with privacy."""
        return {"decrement": np.full(server.x.shape[:-1], np.nan) if self.private else server.decrement}

    def stops(self, server: Any) -> Stop | None:
        """Why the run ends now, if it does. Private runs do not."""
        if self.private or server.status == GOING_ON:
            return None
        if server.status == CONVERGED:
            return Stop("converged")
        if server.status == FLAT:
            sums = Information.expanded(server.sums.astype(np.float64), server.x.size)
            return Stop(_NO_CURVATURE, tuple(_flat(sums).tolist()), warns=True)
        sizes = np.abs(server.step)
        return Stop(_NO_MAXIMUM, tuple(np.flatnonzero(sizes > _MOVING * sizes.max()).tolist()), warns=True)

    def information(self, server: Any) -> Information | Released | None:
        """The sums over all rows at the last point of one run; with privacy noisy means, before the last step."""
        if self.private:
            return self.private.last(server.released.astype(np.float64), server.x.size, float(server.sigma))
        return Information.expanded(server.sums.astype(np.float64), server.x.size)


def _slack(server: Server, value: float) -> float:
    """The rounding of an objective of this size."""
    return _ROUNDING * float(np.finfo(server.x.dtype).eps) * abs(value)


def _lower(server: Server, value: float) -> bool:
    """Whether the objective at the trial point is low enough."""
    return bool(value <= server.value + _DESCENT * server.length * server.slope + _slack(server, value))


def _slow(server: Server, decrement: float) -> int:
    """For how many rounds with whole steps the decrement has fallen too slowly for a maximum nearby."""
    near = decrement < _NEAR and server.length == 1
    return int(server.slow) + 1 if near and decrement > _SLOW * server.decrement else 0


def _shortened(server: Server, value: float) -> Server:
    """The state with a shorter step: to the minimum of the exponential curve through the values and slope at x."""
    length, slope = float(server.length), -float(server.slope)
    growth = _growth((value - float(server.value)) / max(slope, _LEAST), length)
    length = min(math.log1p(growth) / growth, _LONGEST * length)
    x = server.x.astype(np.float64)
    return server._replace(trial=x + length * server.step, length=np.asarray(length), slow=np.zeros((), int))


def _beyond(server: Server, total: Information) -> Array:
    """What Newton's step misses along the last one (d,), where the sums at its end are `total`: the way to the minimum
    of the curve a exp(-c t) + b t with the curvatures at both ends and the slope at the last, less Newton's."""
    last = float(server.length) * server.step.astype(np.float64)
    before = Information.expanded(server.sums.astype(np.float64), last.size).matrix
    old, new = float(last @ before @ last), float(last @ total.matrix @ last)
    if not 0 < new < old * (1 - _FLAT):
        return np.zeros_like(last)
    c, step = math.log(old / new), -float(last @ total.gradient) / new
    return last * (-math.log(max(1 - c * step, _SMALLEST_RATE)) / c - step)  # type: ignore[no-any-return]


def _flat(total: Information) -> Index:
    """The entries in which the sums have a slope and no curvature."""
    slopes = np.abs(total.gradient) / total.rows
    return np.flatnonzero((np.diag(total.matrix) == 0) & (slopes > _FLAT))


def _growth(rise: float, length: float) -> float:
    """The c of the curve (exp(c t) - 1 - c t) / c^2 - t that has the value `rise` at t = length.

    At 0 its slope is -1 and its curvature 1, as those of the objective along Newton's step in units of its slope, and
    its minimum is at log(1 + c) / c.
    """
    low, high = -12.0, math.log(_STEEPEST / length)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        c = math.exp(middle)
        below = (math.expm1(c * length) - c * length) / c**2 - length < rise
        low, high = (middle, high) if below else (low, middle)
    return math.exp(low)


def has_information(objective: Any) -> bool:
    """Whether the objective is a linear model with second derivatives."""
    if not isinstance(objective, LinearModel):
        return False
    loss: Any = objective.loss
    inner = loss.loss if isinstance(loss, ClassWeighted) else loss
    return type(objective).information is not LinearModel.information or isinstance(inner, Likelihood)


def by_client(of: Callable[[Array, Batch], Array], x: Array, rows: Batch) -> Array:
    """What `of` gives for the point and the rows of each client (..., numbers); x (..., entries) broadcasts to them."""
    lead = rows.labels.shape[:-1]
    points = np.broadcast_to(x, (*lead, x.shape[-1]))
    found = [
        of(points[client], Batch._make(None if part is None else part[client] for part in rows))
        for client in np.ndindex(lead)
    ]
    return np.reshape(found, (*lead, -1)).astype(x.dtype)


def sums_of(objective: Any, x: Array, rows: Batch, outer: bool = False) -> Array:
    """The sums (`compact_size`,) of one client's rows at a point x (d,), with the penalty times their number."""
    sums, x = Information.of(objective, x, without_padding(rows), outer), x.astype(np.float64)
    penalty, l2 = sums.rows * float(objective.penalty(x)), sums.rows * objective.l2
    return sums._replace(
        loss=sums.loss + penalty, gradient=sums.gradient + l2 * x, matrix=sums.matrix + l2 * np.eye(x.size)
    ).compact(outer)


