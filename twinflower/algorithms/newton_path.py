"""The path of a sparse model over the weights of its penalty, cross-validated, by proximal Newton for all at once.

    minimise  F(x) + w h(x)  for weights w_1 > ... > w_W,  on all rows and without each of K folds of them

A message holds the points z of all W (K + 1) problems, so a path takes as many rounds as its slowest problem. Each of
them takes the steps of `newton`.

client keeps     nothing
       receives  z (W (K + 1), d), in the order of the weights, and for each of them all rows, without fold 1, 2, ...
       sends     for each z the sums of `newton` over the rows of its problem, and the loss of the rows of its fold
server keeps     for each problem what the server of `newton` keeps, its loss on the fold, and the weights
Every client is needed in every round. It divides its rows into folds by a public rule (`Shards.folds`).

First all points are that of the largest weight: the penalised entries are 0, and Newton's method finds the others, if
there are any. The largest weight is the largest slope of F there (Friedman, Hastie and Tibshirani 2010, section 2.5);
the others fall geometrically to `ratio` times it. All problems start at that point, whose sums are known by then, so
the path of a least-squares loss is complete after one round. A problem that is solved keeps its point: its sums are the
same again, and say nothing new.

The loss of a fold at the end of the last step follows from that at its start z and the derivatives there. Those are the
differences between the sums over all rows and without the fold, the first ones moved to z along the information matrix.
That is exact for quadratic losses; for others the last step is so short that the error is not seen.

What is released. Every sum is over a union of folds, and so are the differences of sums at the same point: the sums
over all rows less those without a fold are those over its rows. A site therefore holds each fold, not only the whole,
to its policy, and divides its rows in one way only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import SettingError, require
from ..models.information import Information, compact_size
from ..problems.interfaces import Batch
from ..problems.regularisers import L1, ZERO, ElasticNet, OnPart, Regulariser, Support
from ..problems.stratified_cox import StratifiedCox
from ..settings import SHARE, Setting, above, at_least, one_of
from ..work import LocalWork, Report
from . import newton
from .algorithm import NO_INFO, Algorithm, RunInfo, Stop, stack, to_nodes
from .layout import Layout, Nothing, Point
from .messages import Vector
from .newton import CONVERGED, GOING_ON, Newton, Sums, Upload, by_client
from .private_newton import without_padding

LOWEST, SIMPLEST = "min", "1se"
ROUNDING = 1 + 1e-9  # at the largest slope itself, rounding can leave a weight of 1e-17
_MOST_NUMBERS = 30_000_000  # in a message, 240 MB


class PathPoint(NamedTuple):
    """A weight of the path.

    error: the mean loss on the folds, in a private run the share of wrong predictions. std_error: its standard error
    over the folds, in a private run the standard deviation of the noise in it. rounds: those that it was trained for.
    x (d,): the model on all rows, and start (d,): where its training began; both empty in a private run.
    """

    weight: float
    error: float
    std_error: float
    rounds: int
    x: Array
    start: Array = np.empty(0)


def choices(points: Sequence[PathPoint]) -> tuple[int, int]:
    """The places of the weight with the lowest error, among those that were trained longest, and of the largest such
    weight whose error is at most one standard error higher."""
    longest = max(point.rounds for point in points)
    trained = [i for i, point in enumerate(points) if point.rounds == longest]
    best = min(trained, key=lambda i: points[i].error)
    limit = points[best].error + points[best].std_error
    return best, next(i for i in trained if points[i].error <= limit)


class Server(NamedTuple):
    """problems: the state of `newton` for each of the W (K + 1) problems, in the leading axis; fold_loss (W (K + 1),),
    the loss of each problem's fold, NaN before it is known; and the weights (W,), 0 before they are known."""

    problems: newton.Server
    fold_loss: Array
    weights: Array


def _size(d: int) -> int:
    """How many numbers a client sends for a problem: its sums, and the loss of its fold."""
    return compact_size(d, False) + 1


@dataclass(frozen=True)
class NewtonPath(Algorithm):
    """A path of `weights` weights, from `largest` (0: the smallest one at which the penalised entries are 0) to `ratio`
    times it, cross-validated on `folds` folds of every client's rows. tolerance: see `Newton`. choose: the weight of
    the model, that with the lowest mean loss ("min"), or the largest within one standard error of it ("1se").
    """

    name: ClassVar[str] = "newton-path"
    title: ClassVar[str] = "Newton's method for all weights of an l1 or elastic-net penalty, cross-validated, at once"
    weightings: ClassVar[tuple[str, ...]] = ("rows",)
    takes_local_steps: ClassVar[bool] = False
    needs_every_client: ClassVar[bool] = True
    needs_whole_batches: ClassVar[bool] = True
    ends_early: ClassVar[bool] = True
    sends_sums: ClassVar[bool] = True
    modes: ClassVar[tuple[str, ...]] = ("none",)
    server_columns: ClassVar[tuple[str, ...]] = ("decrement",)

    regulariser: Regulariser = ZERO
    weights: Annotated[int, Setting("number of weights in the path", at_least(2))] = 20
    ratio: Annotated[float, Setting("the smallest weight of the path divided by the largest", SHARE)] = 0.01
    largest: Annotated[
        float,
        Setting("largest weight of the path; 0: the smallest at which every penalised coefficient is 0", at_least(0)),
    ] = 0.0
    folds: Annotated[int, Setting("folds of every client's rows", at_least(2))] = 5
    choose: Annotated[
        str,
        Setting(
            "weight of the model: of the lowest error, or the largest within one standard error of it",
            one_of((LOWEST, SIMPLEST)),
        ),
    ] = LOWEST
    tolerance: Annotated[
        float, Setting("the run ends at this Newton decrement of the sum over all rows", above(0))
    ] = 1e-12
    privacy: str = "none"
    info: RunInfo = field(default=NO_INFO, kw_only=True)

    @property
    def num_folds(self) -> int:
        """See `Algorithm.num_folds`."""
        return self.folds

    @property
    def count(self) -> int:
        """The number of problems, W (K + 1)."""
        return self.weights * (self.folds + 1)

    @cached_property
    def inbox(self) -> Layout:
        """The layout of the points of all problems."""
        return Layout(Vector, Point("x", per_entry=self.count))

    @cached_property
    def upload(self) -> Layout:
        """The layout of the sums of all problems."""
        return Layout(Upload, Sums("sums", _size, self.count))

    def check(self, objective: Any) -> None:
        """SettingError for an objective without exact sums over single rows, for a penalty without a path, and for more
        numbers than fit into a message."""
        self._newton(self.regulariser).check(objective)
        require(
            not isinstance(objective, StratifiedCox),
            "a path adds up the losses of single rows, which objective 'stratified-cox' does not offer",
        )
        inner = self.regulariser.inner if isinstance(self.regulariser, OnPart) else self.regulariser
        if not (isinstance(inner, L1) or (isinstance(inner, ElasticNet) and inner.l1 > 0)):
            raise SettingError(
                "a path needs regulariser.name l1, or elastic-net with regulariser.l1 above 0, whose ratio to "
                f"regulariser.l2 is kept; got {type(inner).__name__}"
            )
        size = self.upload.fields[0].entries(objective.d)
        if not size <= _MOST_NUMBERS:
            raise SettingError(
                f"newton-path sends at most {_MOST_NUMBERS} numbers in a round; got {size} for {self.weights} weights, "
                f"{self.folds} folds and {objective.d} parameters: take fewer of one of them"
            )

    def _free(self, d: int) -> Support:
        """The points of d entries in which all penalised ones are 0."""
        if not isinstance(self.regulariser, OnPart):
            return Support(())
        penalised = self.regulariser.filled(np.zeros(d), self.regulariser.part(np.ones(d)))
        return Support(tuple(np.flatnonzero(penalised == 0).tolist()))

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """All points are `start` with 0 in the penalised entries."""
        return self._begun(start, np.zeros(self.weights, start.dtype), self._free(start.shape[-1]))

    def _begun(self, x: Array, weights: Array, h: Regulariser) -> Server:
        """The state in which all problems start at x (d,)."""
        points = np.tile(x, (self.count, 1))
        problems = self._newton(h).init_server(points, 1, np.zeros((), np.uint64))
        return Server(problems, np.full(self.count, np.nan, x.dtype), weights)

    def broadcast(self, server: Server, round_: int, node: Index) -> Vector:
        """Send the points of all problems to every client."""
        return Vector(to_nodes(server.problems.trial.reshape(-1), node))

    def client_update(
        self, state: Nothing, inbox: Vector, work: LocalWork
    ) -> tuple[Nothing, Upload, Report]:
        """The sums of all problems over the client's rows at the points received."""
        sums = by_client(partial(self._answered, work.objective), inbox.x, work.rows)
        return state, Upload(sums), work.one_step()

    def _answered(self, objective: Any, points: Array, rows: Batch) -> Array:
        """The message of a client with these rows; problems with the same rows and point share their sums."""
        require(rows.folds is not None, "newton-path needs rows that are divided into folds: see Shards.folds")
        rows = without_padding(rows)
        known: dict[bytes, Array] = {}
        asked = self._questions(points)
        for fold, z, question in asked:
            if question not in known:
                known[question] = _sums(objective, z, rows, fold)
        return np.concatenate([known[question] for *_, question in asked])

    def _questions(self, points: Array) -> list[tuple[int, Array, bytes]]:
        """For each problem its fold, -1 for none, its point (d,), and bytes on which alone the answer depends."""
        each = enumerate(points.reshape(self.count, -1))
        return [(fold := i % (self.folds + 1) - 1, z, b"%d " % fold + z.tobytes()) for i, z in each]

    def answers(self, inbox: Vector) -> list[bytes]:
        """See `Algorithm.answers`."""
        return [question for *_, question in self._questions(inbox.x)]

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """Take the step of every problem, or that towards the point of the largest weight."""
        numbers = uploads.sums.reshape(len(clients), self.count, -1).sum(0, dtype=np.float64)
        if not server.weights.any():
            server = self._at_largest(server, numbers, clients)
        if not server.weights.any():
            return server
        old = server.problems
        sums = [Information.expanded(sent[:-1], old.x.shape[-1]) for sent in numbers]
        new = stack([self._part(server, i, numbers, clients) for i in range(self.count)])
        fold_loss = server.fold_loss.copy()
        for i in np.flatnonzero((new.status == CONVERGED) & (old.status == GOING_ON)):
            z = old.trial[i].astype(np.float64)
            all_rows = i - i % (self.folds + 1)
            moved = sums[all_rows].moved(z - old.trial[all_rows])
            fold_loss[i] = numbers[i, -1] + self._change(moved, sums[i], z, new.x[i] - z)
            new.trial[i] = old.trial[i]  # asked again, the answer says nothing new
        return Server(new, fold_loss, server.weights)

    def _at_largest(self, server: Server, numbers: Array, clients: Index) -> Server:
        """The state after a step towards the point of the largest weight; once there, the weights and the start of all
        problems at the point whose sums over all rows (count, sums) these are."""
        one = _one(server, 0)
        total, free = Information.expanded(numbers[0, :-1], one.x.size), self._free(one.x.size)
        start, x, status = one.trial, one.x.astype(np.float64), CONVERGED
        if free.entries:
            one = self._newton(free).server_update(one, Upload(numbers[:1, :-1]), clients[:1], 0)
            x, status = one.x.astype(np.float64), int(one.status)
        if status != CONVERGED:
            return server._replace(problems=stack([one] * self.count))
        slopes = np.abs(total.moved(x - start).gradient)
        slopes[list(free.entries)] = 0.0
        largest = self.largest or ROUNDING * float(slopes.max()) / total.rows
        weights = np.geomspace(largest, self.ratio * largest, self.weights).astype(start.dtype)
        return self._begun(start, weights, self.regulariser)

    def _part(self, server: Server, i: int, numbers: Array, clients: Index) -> newton.Server:
        """The state of one problem after its step; unchanged once it is solved."""
        part = _one(server, i)
        if part.status != GOING_ON:
            return part
        h = at_weight(self.regulariser, float(server.weights[i // (self.folds + 1)]))
        sums = Upload(numbers[i : i + 1, :-1])
        return self._newton(h).server_update(part, sums, clients[:1], 0)  # type: ignore[no-any-return]

    def _newton(self, h: Regulariser) -> Newton:
        """The method of one problem."""
        return Newton(h, tolerance=self.tolerance, info=self.info)

    def _change(self, total: Information, others: Information, z: Array, step: Array) -> float:
        """By how much the loss of a fold changes with a step from z (d,), given the sums there over all rows and over
        those outside of the fold."""
        l2 = (total.rows - others.rows) * self.info.l2
        slope = total.gradient - others.gradient - l2 * z
        return float(slope @ step + 0.5 * (step @ (total.matrix - others.matrix) @ step - l2 * step @ step))

    def _errors(self, server: Server) -> Array:
        """The mean loss of each fold at each weight, (W, K)."""
        rows = server.problems.sums[:, 0].astype(np.float64).reshape(self.weights, -1)
        losses = server.fold_loss.astype(np.float64).reshape(self.weights, -1)[:, 1:]
        return losses / (rows[:, :1] - rows[:, 1:])  # type: ignore[no-any-return]

    def path(self, server: Server, round_: int) -> list[PathPoint]:
        """See `Algorithm.path`."""
        if not (server.problems.status == CONVERGED).all():
            return []
        errors = self._errors(server)
        means, spreads = errors.mean(1), errors.std(1, ddof=1) / math.sqrt(self.folds)
        parts = server.weights.tolist(), means.tolist(), spreads.tolist(), server.problems.x[:: self.folds + 1]
        return [
            PathPoint(weight, mean, spread, round_, x, x)
            for weight, mean, spread, x in zip(*parts, strict=True)
        ]

    def model(self, server: Server) -> Array:
        """The model (d,) of the chosen weight; before the path is complete, that of the smallest one."""
        points = self.path(server, 0)
        return points[choices(points)[self.choose == SIMPLEST]].x if points else server.problems.x[-self.folds - 1]  # type: ignore[no-any-return]

    def server_metrics(self, server: Server) -> dict[str, Array]:
        """The largest Newton decrement of a problem."""
        return {"decrement": server.problems.decrement.max()}

    def stops(self, server: Server) -> Stop | None:
        """Why the run ends now, if it does: when all problems are solved, or have no solution."""
        status = server.problems.status
        worst = _one(server, int(np.argmax(status)))
        return self._newton(self.regulariser).stops(worst) if status.all() else None


def _one(server: Server, i: int) -> newton.Server:
    """The state of one problem."""
    return newton.Server._make(part[i] for part in server.problems)


def at_weight(h: Regulariser, weight: float) -> Regulariser:
    """The penalty with this weight of its l1 norm; an elastic net keeps the ratio of its weights."""
    if isinstance(h, OnPart):
        return replace(h, inner=at_weight(h.inner, weight))
    assert isinstance(h, L1 | ElasticNet)
    return L1(weight) if isinstance(h, L1) else ElasticNet(weight, weight * h.l2 / h.l1)


def _sums(objective: Any, x: Array, rows: Batch, fold: int) -> Array:
    """The sums over the rows outside of a fold, and the loss of those in it."""
    inside = np.equal(rows.folds, fold)  # type: ignore[arg-type]
    tested = rows.kept(inside)
    tested = tested._replace(features=tested.features.astype(np.float64))
    loss = objective.losses(x.astype(np.float64), tested).sum()
    return np.append(newton.sums_of(objective, x, rows.kept(~inside)), loss)
