"""The client side shared by all algorithms: a Flower NumPyClient around an algorithm's `client_update`.

The client state, in particular the dual variables, is stored only at the client: in Flower's `context.state`, or on the
site's disk (`store`). A round computes first and writes last, so the state is unchanged if anything fails. The last
reply is stored, so that a repeated request gets the same numbers and no dual is updated twice. (In Flower's context the
reply of a client without state and noise is not stored: computed again, it is the same.) A request for a round that is
no longer stored is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from logging import WARNING
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from flwr.app import ConfigRecord, Context
from flwr.client import Client, NumPyClient
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Parameters,
    Status,
    log,
)
from numpy.typing import NDArray

from twinflower.algorithms.abilities import AveragesModels, Closes, RestrictsObjective, rounding
from twinflower.algorithms.algorithm import Algorithm
from twinflower.arrays import DOUBLE, all_finite
from twinflower.errors import ReplyError, SettingError, require
from twinflower.models.evaluation import evaluate
from twinflower.privacy.charges import BudgetSpent
from twinflower.privacy.guard import Guard
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Batch, ChecksRows, Objective
from twinflower.problems.objectives import check_clipping
from twinflower.wire import checked, from_npy, to_npy
from twinflower.work import LocalWork, Noise, Report, no_noise

from .counts import PrivateEvaluation
from .ranges import COUNTS_ROUND, PrivateColumns
from .store import ContextStore, Kept, StateStore

Arrays = list[NDArray[Any]]

MODEL_ONLY = "model-only"  # key of a request for the client's model without the other parts of its message
_SESSION = "twinflower.session"  # record of context.state
_NOT_SCALED: object = object()  # differs from the ranges in any request
_STATE, _REPLY = "state.", "reply."  # prefixes of the names of kept arrays
_DONE, _NPY = Status(Code.OK, "Success"), "numpy.ndarray"


class Answer(NamedTuple):
    """The reply of a round: the upload arrays, the number of rows, and the metrics, which include the round."""

    arrays: Arrays
    rows: int
    metrics: Mapping[str, Any]


class _Asked(NamedTuple):
    """The config of a request. session: the training that it belongs to. settled: rounds up to this one will not be
    requested again. closing: whether this is the message after the last round. model_only: whether the server averages
    models and needs nothing else. ranges: of the columns with private ranges, as bytes."""

    round: int
    session: str
    settled: int
    closing: bool
    model_only: bool
    ranges: object


class AlgorithmClient(NumPyClient):
    """Base of all clients; a subclass sets its `algorithm_class` and documents its client side.

    context: Flower's context, whose state holds the duals. algorithm: the algorithm with its settings, the same as on
    the server. objective, rows: this client's f_i and its data; given as shards of a data set that was checked before,
    the data are not copied. start: the public starting point (d,), of the same type as rows, state and messages:
    float64, or float32 without a guard. client, num_clients: partition number and count.
    schedule: the batches and number of local steps. seed: of the batches.
    guard: protects the client's releases; needed if the algorithm's `privacy` is not "none". store: where the state is
    stored, if not in the context. held_out: rows of this client that are not among `rows`, for `evaluate`. evaluation:
    what a client with a guard needs to evaluate on them. columns: the columns with private ranges, if there are any;
    the client then releases counts in round 0, and scales its rows by the ranges that every further request carries.
    """

    algorithm_class: ClassVar[type[Algorithm]]

    def __init__(
        self,
        context: Context,
        algorithm: Algorithm,
        objective: Objective,
        rows: Batch | Shards,
        start: NDArray[np.float64],
        client: int,
        num_clients: int,
        schedule: LocalSchedule | None = None,
        seed: int = 0,
        guard: Guard | None = None,
        store: StateStore | None = None,
        held_out: Batch | None = None,
        columns: PrivateColumns | None = None,
        evaluation: PrivateEvaluation | None = None,
    ) -> None:
        require(
            type(algorithm) is self.algorithm_class,
            f"{type(self).__name__} needs a {self.algorithm_class.__name__} algorithm; got {type(algorithm).__name__}",
        )
        self.context = context
        self.algorithm = algorithm
        self.objective = objective
        _check_precision(start, rows, guard)
        shards = rows if isinstance(rows, Shards) else _shards(rows, start, client)
        self.shards = _admitted(shards, guard, client).prepared(objective)
        held_out = held_out and _admitted(_shards(held_out, start, client), guard, client).rows(client)
        self.start = start
        self.client = client
        self.num_clients = num_clients
        self.schedule = schedule or LocalSchedule()
        self.seed = seed
        self.guard = guard
        self.held_out = held_out
        self.evaluation = evaluation
        self.store = store or ContextStore(context.state)
        self.columns = columns
        self._ranges = _NOT_SCALED
        if isinstance(algorithm, RestrictsObjective):
            algorithm.check(objective)
        check_clipping(objective, algorithm.privacy)
        if isinstance(objective, ChecksRows):
            if not isinstance(rows, Shards):  # those were checked before
                objective.check_rows(_to_check(self.shards.rows(client), guard))
            if held_out is not None:
                objective.check_rows(_to_check(held_out, guard))
        require(
            (guard is None) == (algorithm.privacy == "none"),
            f"privacy '{algorithm.privacy}' {'needs a guard' if guard is None else 'takes no guard'}",
        )
        require(
            guard is None or held_out is None or not len(held_out.labels) or evaluation is not None,
            "a private client with held-out rows needs a PrivateEvaluation: without one no ledger is charged for what "
            "it reports about them",
        )

    def to_client(self) -> Client:
        """Flower's client around this one."""
        return _Wrapped(self)

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the partition of this node and the number of partitions."""
        return {"partition-id": self.client, "num-partitions": self.num_clients}

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """Run one round, whose number is config["round"]; return the upload arrays, the number of rows, and the
        metrics.

        With "closing" in config, parameters are the message after the last round: the client completes its state and
        uploads nothing. A private client whose budget is spent returns no arrays, and "refused" in the metrics. Raises
        ReplyError, and leaves the state unchanged, if the request is malformed or out of date, or if the result is not
        finite. With "model-only" in config, the upload is the client's model alone, for a server that averages models
        weighted by rows; ReplyError for an algorithm whose own server does more.
        """
        arrays, rows, metrics = self.answer(parameters, config)
        return arrays, rows, dict(metrics)

    def evaluate(self, parameters: Arrays, config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the model, one array (d,), on the held-out rows; return the mean loss, the number of these rows, and
        the metrics `correct` and `accuracy` with the request's round; a private client as in `PrivateEvaluation`.

        Changes no state of the training. Raises ReplyError if this client holds no rows out, or if the request is
        malformed.
        """
        if self.held_out is None or (self.guard and not self.evaluation):
            raise ReplyError("this client holds out no rows to evaluate on")
        if len(parameters) != 1:
            raise ReplyError(f"a model to evaluate is one array; got {len(parameters)}")
        x = checked("the model", parameters[0], (self.objective.d,), self.start.dtype)
        if self.evaluation:
            round_, session = _round_of(config, 1), self._session_of(config)
            self._bind(session)
            known = self.store.evaluations
            return self.evaluation.reply(self.objective, x, self.held_out, round_, session, known)
        rows, loss, correct = evaluate(self.objective, x, self.held_out)
        metrics = {"round": config.get("round", 0), "correct": correct, "accuracy": correct / max(rows, 1)}
        return loss, rows, metrics

    def answer(self, parameters: Arrays, config: dict[str, Any]) -> Answer:
        """Like `fit`; the arrays are read-only where they are also the stored reply."""
        asked = self._read(config)
        last = self.store.last(asked.session)
        if last and asked.round <= last.round:
            kept = self._still_kept(asked)
            if not self._repeatable:
                return self._answer(kept, asked)
        try:
            return self._saved(self._round(last, parameters, asked), asked)
        except BudgetSpent as spent:
            log(WARNING, "round %s is refused: %s", asked.round, spent)
            if asked.model_only:
                raise ReplyError(f"round {asked.round} is refused: the privacy budget is spent") from None
            return Answer([], 0, {"round": asked.round, "refused": True})

    def _round(self, last: Kept | None, parameters: Arrays, asked: _Asked) -> Kept:
        """Check the request, charge the round, compute it, and return what is to be stored. ReplyError, and nothing is
        stored, if the result is not finite."""
        if asked.round == COUNTS_ROUND:
            return self._count(last, asked)
        self._scale(asked)
        if asked.closing:
            return self._finish(last, parameters, asked)
        inbox, state = self._unpacked(parameters), self._state(last)
        noise = self._open(asked, inbox, state)
        batches = self.schedule.batches(self.shards, self.client, self.seed, asked.round)
        work = LocalWork(self.objective, batches, noise, asked.round)
        with np.errstate(all="ignore"):  # a diverging model is recognised by its result
            state, upload, report = self.algorithm.client_update(state, inbox, work)
        reply = self.algorithm.upload.pack(upload, self.objective.d)
        if not all(map(all_finite, reply)):
            raise ReplyError(f"client {self.client}: the local update of round {asked.round} is not finite")
        return self._kept(
            state, self._sealed(reply, parameters, asked), last, asked, self._measured(report, parameters)
        )

    def _scale(self, asked: _Asked) -> None:
        """Scale the rows by the ranges of the request, unless they are already."""
        if self.columns and asked.ranges != self._ranges:
            features = self.columns.features(asked.ranges).astype(self.start.dtype, copy=False)
            self.shards = replace(self.shards, features=features, lengths=None).prepared(self.objective)
            self._ranges = asked.ranges

    def _saved(self, kept: Kept, asked: _Asked) -> Answer:
        """Store the round, and return its reply."""
        stored = kept._replace(arrays={}) if self._repeatable else kept
        self.store.save(asked.session, stored, asked.settled)
        return self._answer(kept, asked)

    def _still_kept(self, asked: _Asked) -> Kept:
        """What is stored of a completed round; ReplyError if it is no longer stored."""
        kept = self.store.at(asked.session, asked.round)
        if kept is None:
            raise ReplyError(f"round {asked.round} is asked after it was settled")
        return kept

    def _answer(self, kept: Kept, asked: _Asked) -> Answer:
        reply = [array for name, array in kept.arrays.items() if name.startswith(_REPLY)]
        return Answer(reply[:1] if asked.model_only else reply, self._num_rows, kept.metrics)

    def _read(self, config: dict[str, Any]) -> _Asked:
        """Parse the config of a request; the default session is Flower's run."""
        round_ = _round_of(config, COUNTS_ROUND if self.columns else 1)
        session, settled = self._session_of(config), config.get("settled", round_ - 1)
        if type(settled) is not int:
            raise ReplyError("the request's 'settled' must be a round number")
        model_only = config.get(MODEL_ONLY) is True
        if model_only:
            _check_averaging(self.algorithm)
        closing = config.get("closing") is True
        return _Asked(round_, session, settled, closing, model_only, config.get("ranges"))

    def _session_of(self, config: dict[str, Any]) -> str:
        """The session that a request names, by default this run; ReplyError if it is invalid."""
        run = self.guard.run if self.guard and self.guard.run else str(self.context.run_id)
        session = config.get("session", run)
        if type(session) is not str or not 0 < len(session) <= 64:
            raise ReplyError("the request's session must be a text of 1 to 64 characters")
        self._check_session(session)
        return session

    @property
    def _repeatable(self) -> bool:
        """Whether a repeated request is computed again, with the same result, so that no array has to be stored."""
        if self.guard is not None or self.algorithm.state.fields:
            return False
        return isinstance(self.store, ContextStore)  # a site's disk has it all

    @property
    def _num_rows(self) -> int:
        return self.shards.span(self.client)[1]

    def _check_session(self, session: str) -> None:
        """Raise ReplyError for a second session in one Flower run, because it would get a budget of its own."""
        state = self.context.state
        if _SESSION in state and cast(ConfigRecord, state[_SESSION])["session"] != session:
            raise ReplyError("the request belongs to another session than this run's")

    def _bind(self, session: str) -> None:
        """Bind this run to the session; called only after the request was validated."""
        if _SESSION not in self.context.state:
            self.context.state[_SESSION] = ConfigRecord({"session": session})

    def _measured(self, report: Report, parameters: Arrays) -> dict[str, Any]:
        """The metrics of a reply; empty for a private client, because they could depend on private data."""
        if self.guard is not None:  # step counts may depend on private data
            return {}
        return {"local-steps": int(report.steps), "stopped": bool(report.fired)}

    def _sealed(self, reply: Arrays, parameters: Arrays, asked: _Asked) -> Arrays:
        """The reply as it is stored and sent; a subclass may mask it here."""
        return reply

    def _count(self, last: Kept | None, asked: _Asked) -> Kept:
        """Release the counts of the columns with private ranges; the state is the initial one."""
        assert self.columns
        self._bind(asked.session)
        with self.store.reserved(asked.session, asked.round, self._state_bytes + self.columns.counts_bytes):
            noise = self.columns.open(self.guard, asked.session)
        return self._kept(self._state(None), [self.columns.counts(noise)], last, asked, {})

    def _finish(self, last: Kept | None, parameters: Arrays, asked: _Asked) -> Kept:
        """The state after the closing message; it depends only on earlier releases and public values."""
        inbox, before = self._unpacked(parameters), self._state(last)
        self._bind(asked.session)
        state = self.algorithm.finish(before, inbox) if isinstance(self.algorithm, Closes) else before
        return self._kept(state, [], last, asked, {})

    def _open(self, asked: _Asked, inbox: Any, state: Any) -> Noise:
        """Validate the request, then charge the round and return its noise, before anything private is computed."""
        if self.guard is None:
            self._bind(asked.session)
            return no_noise
        workload = self.schedule.workload(self._num_rows)
        release = self.algorithm.release(self.guard.bounds, workload, asked.round)
        if self.guard.secret:
            info = self.guard.bounds, workload, asked.round, self.guard.noise_multiplier * release.spread
            with np.errstate(all="ignore"):  # check_size refuses overflows
                rounded = rounding(self.algorithm, state, inbox, *info)
            self.guard.check_size(release, workload.rows, rounded, [*inbox, *state])
        self._bind(asked.session)
        size = self._state_bytes + self.algorithm.upload.bits(self.objective.d) // 8
        with self.store.reserved(asked.session, asked.round, size):
            return self.guard.open(release, asked.round, asked.session)

    @property
    def _state_bytes(self) -> int:
        """The size of a stored state."""
        return (
            sum(map(math.prod, self.algorithm.state.shapes(self.objective.d).values())) * self.start.itemsize
        )

    def _unpacked(self, parameters: Arrays) -> Any:
        """The inbox in a request; ReplyError for anything that a strategy would not send."""
        return self.algorithm.inbox.unpack(parameters, self.objective.d, dtype=self.start.dtype)

    def _state(self, last: Kept | None) -> Any:
        """The state after the last round, or the initial state."""
        if last is None:
            return self.algorithm.init_client(self.start)
        shapes = self.algorithm.state.shapes(self.objective.d)
        return self.algorithm.state.kind(
            **{n: _state_array(last.arrays, n, shape, self.start.dtype) for n, shape in shapes.items()}
        )

    def _kept(
        self, state: Any, reply: Arrays, last: Kept | None, asked: _Asked, measured: dict[str, Any]
    ) -> Kept:
        """The round to store. The server detects lost client state by `born`, the round in which the state began."""
        born = last.metrics["born"] if last else asked.round
        arrays = {_STATE + n: np.asarray(a) for n, a in zip(state._fields, state, strict=True) if a.size}
        arrays |= {f"{_REPLY}{place}": np.asarray(array) for place, array in enumerate(reply)}
        return Kept(arrays, {"round": asked.round, "session": asked.session, "born": born, **measured})


class _Wrapped(Client):
    """A NumPyClient as Flower's client, with our conversion from and to bytes: NumPy's allocates any size that a header
    states. Flower's own wrapper is a new class for every client, which takes longer than some rounds. Of the methods it
    leaves out `get_parameters`, which strategies no longer call."""

    def __init__(self, numpy_client: NumPyClient) -> None:
        self.numpy_client = numpy_client

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        return GetPropertiesRes(_DONE, self.numpy_client.get_properties(ins.config))

    def fit(self, ins: FitIns) -> FitRes:
        arrays, rows, metrics = self.numpy_client.fit(*_received(ins))
        return FitRes(_DONE, Parameters([to_npy(array) for array in arrays], _NPY), rows, metrics)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        return EvaluateRes(_DONE, *self.numpy_client.evaluate(*_received(ins)))


def _check_precision(start: NDArray[Any], rows: Batch | Shards, guard: Guard | None) -> None:
    """Raise SettingError unless a client with this start computes in one precision: double, if it is private."""
    if start.dtype == DOUBLE:
        return
    require(
        guard is None,
        f"a private client computes in double precision: start must be float64; got {start.dtype}",
    )
    real = [part.dtype for part in (rows.features, rows.labels) if part.dtype.kind == "f"]
    require(
        all(dtype == start.dtype for dtype in real),
        f"start is {start.dtype}, so features and real labels must be, too; got {', '.join(map(str, real))}",
    )


def _shards(rows: Batch, start: NDArray[Any], client: int) -> Shards:
    """A client's rows with features, and labels that are not whole numbers, of the type of the start."""
    labels = rows.labels if rows.labels.dtype.kind in "iu" else rows.labels.astype(start.dtype, copy=False)
    return Shards.site(
        rows._replace(features=rows.features.astype(start.dtype, copy=False), labels=labels), client
    )


def _admitted(shards: Shards, guard: Guard | None, client: int) -> Shards:
    """A client's rows as the bounds of a private one assume them (`Guard.admitted`); the site's own log says if rows
    were changed."""
    if guard is None:
        return shards
    rows = shards.rows(client)
    admitted = guard.admitted(rows)
    if admitted is rows:
        return shards
    log(WARNING, "client %s: rows outside their public bounds were scaled or clipped to them", client)
    return Shards.site(admitted, client)


def _to_check(rows: Batch, guard: Guard | None) -> Batch:
    """The rows for `ChecksRows`; those of a private client without labels that are real numbers: whether a loss accepts
    one would reveal something about it. Such a row's gradient counts as 0, or its loss as the bound."""
    if guard is None or rows.labels.dtype.kind in "iu":
        return rows
    return rows._replace(labels=np.zeros_like(rows.labels))


def _check_averaging(algorithm: Algorithm) -> None:
    """Raise ReplyError unless the algorithm's server only averages the clients' models."""
    if not isinstance(algorithm, AveragesModels):
        raise ReplyError(
            f"the server of {algorithm.name} does more than average models, so a strategy that only averages cannot "
            f"take its place: use twinflower.strategies.STRATEGIES['{algorithm.name}'], or a FedAvg client"
        )
    try:
        algorithm.check_average()
    except SettingError as error:
        raise ReplyError(str(error)) from None


def _received(ins: FitIns | EvaluateIns) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the config of a request."""
    return [from_npy(data) for data in ins.parameters.tensors], ins.config


def _state_array(
    arrays: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """One array of the stored state; empty arrays are not stored."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return checked(name, arrays[_STATE + name], shape, dtype)


def _round_of(config: dict[str, Any], first: int) -> int:
    round_ = config.get("round")
    if type(round_) is not int or round_ < first:
        raise ReplyError(f"the request must carry its round, a whole number from {first}; got {round_!r}")
    return round_
