"""The client side shared by all algorithms: a Flower NumPyClient around an algorithm's `client_update`.

The client state, in particular the dual variables, is stored only at the client: in Flower's `context.state`, or on the
site's disk (`store`). A round computes first and writes last, so the state is unchanged if anything fails. The last
reply is stored, so that a repeated request gets the same numbers and no dual is updated twice. (In Flower's context the
reply of a client without state and noise is not stored: computed again, it is the same.) A request for a round that is
no longer stored is refused.

Other modules read its request (`request`), store what it computed (`store`), and hold the order of all steps that
protects the data (`steps`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from logging import WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.common import log
from numpy.typing import NDArray

from twinflower.algorithms.algorithm import Algorithm
from twinflower.arrays import DOUBLE, all_finite
from twinflower.errors import ReplyError, SettingError, require
from twinflower.flower_messages import BEGINS, ENDS
from twinflower.privacy.charges import BudgetSpent
from twinflower.privacy.correlated import largest_factor
from twinflower.privacy.exact_rounds import ExactRounds
from twinflower.privacy.guard import Guard
from twinflower.privacy.participation import most_batches
from twinflower.privacy.release import Rounding
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Batch, ChecksRows, Objective, check_weights
from twinflower.problems.penalised import check_clipping
from twinflower.queries import question_in
from twinflower.queries.first import COUNTS_ROUND, FirstCounts
from twinflower.queries.held_out_question import HeldOutQuestion
from twinflower.queries.model_question import SiteAnswer
from twinflower.wire import checked
from twinflower.work import LocalWork, Noise, Report

from .records import StrictClient
from .request import RequestReader, RoundRequest, as_asked
from .steps import (
    Arrays,
    CompletedRounds,
    Cost,
    CountStep,
    Metrics,
    RoundStep,
    answered,
    carried_out,
    reply_of,
)
from .store import CompletedRound, ContextStore, StateStore, noise_seeds

_NOT_SCALED: object = object()  # differs from the ranges in any request


class AlgorithmClient(NumPyClient):
    """Base of all clients; a subclass sets its `algorithm_class` and documents its client side.

    context: Flower's context, whose state holds the duals. algorithm: the algorithm with its settings, the same as on
    the server. objective, rows: this client's f_i and its data; given as shards of a data set that was checked before,
    the data are not copied. start: the public starting point (d,), of the same type as rows, state and messages:
    float64, or float32 without a guard. client, num_clients: partition number and count.
    schedule: the batches and number of local steps. seed: of the batches.
    guard: protects the client's releases; needed if the algorithm's `privacy` is not "none". store: where the state is
    stored, if not in the context. held_out: rows of this client that are not among `rows`, for `evaluate`.
    first_counts: what the client counts and releases in round 0, if there is anything; with private ranges among it, it
    scales its rows by those that every further request carries. answers: how it answers questions about models; by
    default a client without a guard says without noise how good they are on its held-out rows. exact_rounds: counts the
    rounds of a client without a guard whose messages are exact sums (`Algorithm.sends_sums`) and that has a limit for
    them.
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
        first_counts: FirstCounts | None = None,
        answers: Iterable[SiteAnswer] | None = None,
        exact_rounds: ExactRounds | None = None,
    ) -> None:
        if not isinstance(algorithm, self.algorithm_class):
            raise SettingError(
                f"{type(self).__name__} needs a {self.algorithm_class.__name__} algorithm; got "
                f"{type(algorithm).__name__}"
            )
        self.context = context
        self.algorithm = algorithm
        self.objective = objective
        check_precision(start, rows, guard)
        self.shards = admitted(rows, start, client, guard).prepared(objective)
        self.held_out = held_out and admitted(held_out, start, client, guard).rows(client)
        self.start = start
        self.client = client
        self.num_clients = num_clients
        self.schedule = schedule or LocalSchedule()
        self.seed = seed
        self.guard = guard
        if answers is None:
            answers = () if guard else (SiteAnswer(HeldOutQuestion()),)
        self.answers = {answer.question.name: answer for answer in answers}
        self.exact_rounds = exact_rounds
        self.store = store or ContextStore(context.state)
        self.first_counts = first_counts
        self._ranges = _NOT_SCALED
        run = guard.run if guard and guard.run else str(context.run_id)
        self.requests = RequestReader(algorithm, context.state, run, COUNTS_ROUND if first_counts else 1)
        self.rounds = CompletedRounds(self.store, algorithm, start, private=guard is not None)
        self._check(new_rows=not isinstance(rows, Shards))

    def _check(self, new_rows: bool) -> None:
        """Raise SettingError unless the parts fit together. new_rows: whether the rows were not checked before."""
        algorithm, objective, guard = self.algorithm, self.objective, self.guard
        algorithm.check(objective)
        check_clipping(objective, algorithm.privacy)
        check_weights(objective, self.shards.row_weights)
        if new_rows:
            check_rows(objective, self.shards.rows(self.client), guard)
        if self.held_out is not None:
            check_rows(objective, self.held_out, guard)
        if (guard is None) != (algorithm.privacy == "none"):
            raise SettingError(
                f"privacy '{algorithm.privacy}' {'needs a guard' if guard is None else 'takes no guard'}"
            )
        require(
            guard is None or not algorithm.sends_sums or guard.row_norm <= algorithm.info.row_norm,
            f"{algorithm.name} needs a guard whose row_norm is at most that of its RunInfo, which its noise follows",
        )
        require(
            guard is None or all(answer.guard is not None for answer in self.answers.values()),
            "a private client answers questions with noise only: give every SiteAnswer a guard",
        )
        require(
            guard is None
            or self.held_out is None
            or not len(self.held_out.labels)
            or HeldOutQuestion.name in self.answers,
            "a private client with held-out rows needs a SiteAnswer to HeldOutQuestion: without one no ledger is "
            "charged for what it reports about them",
        )

    def to_client(self) -> Client:
        """Flower's client around this one."""
        return StrictClient(self)

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the partition of this node and the number of partitions.

        "begins" in config: the session that the server begins or resumes. A private client whose ledger does not cover
        its plan adds "refused". "ends": a session of which nothing more will be asked; what the ledger has reserved for
        it is released. Raises LedgerError if the ledger cannot be used.
        """
        places: dict[str, Any] = {"partition-id": self.client, "num-partitions": self.num_clients}
        if self.guard and ENDS in config:
            self.guard.ledger.release(self.requests.session({"session": config[ENDS]}))
        if self.guard and BEGINS in config and not self._covers(self.guard, config[BEGINS]):
            places["refused"] = True
        return places

    def _covers(self, guard: Guard, session: object) -> bool:
        """Whether the ledger covers the plan of the session that begins; if not, the site's own log says why."""
        try:
            guard.check_plan(self.requests.session({"session": session}))
        except BudgetSpent as spent:
            log(WARNING, "the run is refused: %s", spent)
            return False
        return True

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, Metrics]:
        """Run one round, whose number is config["round"]; return the upload arrays, the number of rows, and the
        metrics.

        With "closing" in config, parameters are the message after the last round: the client completes its state and
        uploads nothing. A private client whose budget is spent returns no arrays, and "refused" in the metrics. Raises
        ReplyError, and leaves the state unchanged, if the request is malformed or out of date, or if the result is not
        finite. With "model-only" in config, the upload is the client's model alone, for a server that averages models
        weighted by rows; ReplyError for an algorithm whose own server does more. The arrays are read-only where they
        are also the stored reply.
        """
        request = self.requests.read(config)
        last = self.rounds.last(request.session)
        guard = None if request.closing else self.guard
        step: RoundStep = _Round(guard, request.session, self.rounds, request, last, self, parameters)
        if request.round == COUNTS_ROUND and self.first_counts:
            step = CountStep(self.guard, request.session, self.rounds, request, last, self.first_counts)
        try:
            done = carried_out(step, self.requests)
        except BudgetSpent as spent:
            log(WARNING, "round %s is refused: %s", request.round, spent)
            if request.model_only:
                raise ReplyError(f"round {request.round} is refused: the privacy budget is spent") from None
            return [], 0, {"round": request.round, "refused": True}
        reply = reply_of(done)
        return reply[:1] if request.model_only else reply, self._num_rows, dict(done.metrics)

    def _scale(self, ranges: object) -> None:
        """Scale the rows by the ranges of a request, unless they are already."""
        first = self.first_counts
        if first and first.scales and ranges != self._ranges:
            features = np.asarray(first.features(ranges)).astype(self.start.dtype, copy=False)
            self.shards = replace(self.shards, features=features, lengths=None).prepared(self.objective)
            self._ranges = ranges

    def _measured(self, report: Report, parameters: Arrays) -> Metrics:
        """The metrics of a reply; empty for a private client, because they could depend on private data."""
        if self.guard is not None:  # step counts may depend on private data
            return {}
        return {"local-steps": int(report.steps), "stopped": bool(report.fired)}

    def _sealed(self, reply: Arrays, parameters: Arrays, request: RoundRequest) -> Arrays:
        """The reply as it is stored and sent; a subclass may mask it here."""
        return reply

    @property
    def _num_rows(self) -> int:
        return self.shards.span(self.client)[1]

    def evaluate(self, parameters: Arrays, config: dict[str, Any]) -> tuple[float, int, Metrics]:
        """Answer the question that a request asks about the model, one array (d,): return a loss, the number of rows,
        and the metrics with the request's round (`steps.answered`).

        Unless config names another question (`twinflower.queries`), it is how good the model is on the held-out rows.
        Changes no state of the training. Raises ReplyError if this client does not answer, or if the request is
        malformed.
        """
        kind = question_in(config)
        answer = self.answers.get(kind.name)
        held_out = self.held_out if kind.of_held_out else None
        exact = self.guard is not None and answer is not None and answer.guard is None
        if answer is None or exact or (kind.of_held_out and held_out is None):
            raise ReplyError(kind.absent)
        x = self._model(parameters)
        if held_out is None:
            self._scale(config.get("ranges"))
        rows = self.shards.rows(self.client) if held_out is None else held_out
        return answered(answer, self.objective, x, rows, config, self.requests, self.store)

    def _model(self, parameters: Arrays) -> NDArray[Any]:
        """The model in a request to evaluate it."""
        if len(parameters) != 1:
            raise ReplyError(f"a model to evaluate is one array; got {len(parameters)}")
        return checked("the model", parameters[0], (self.objective.d,), self.start.dtype)


@dataclass(frozen=True)
class _Round(RoundStep):
    """A round of a client, or the message after the last round, which costs nothing."""

    client: AlgorithmClient
    parameters: Arrays

    @cached_property
    def inbox(self) -> Any:
        """What the server sent; ReplyError for another message."""
        client = self.client
        return client.algorithm.inbox.unpack(self.parameters, client.objective.d, dtype=client.start.dtype)

    @cached_property
    def state(self) -> Any:
        """The client's state before the round."""
        return self.rounds.state(self.last)

    def begin(self) -> Cost | None:
        """See `Step`."""
        client, guard, round_ = self.client, self.guard, self.request.round
        client._scale(self.request.ranges)
        known = [*self.inbox, *self.state]
        if guard is None:
            return None
        workload = client.schedule.workload(client._num_rows)
        release = client.algorithm.release(guard.bounds, workload, round_)

        def rounding() -> Rounding:
            """The rounding of the round, which a repeated round does not need."""
            sigma = guard.noise_multiplier * release.spread * largest_factor(guard.bandwidth)
            with np.errstate(all="ignore"):  # check_size refuses overflows
                return client.algorithm.rounding(
                    self.state, self.inbox, guard.bounds, workload, round_, sigma
                )

        size = client.algorithm.upload.bits(client.objective.d) // 8
        most = most_batches(client.algorithm, guard.bounds, workload, [round_])
        turn = client.schedule.turn(client.seed, client.client, round_)
        span = workload.span(turn)._replace(most=most, bandwidth=guard.bandwidth) if most else None
        seeds = partial(noise_seeds, client.store, self.session, guard.config)
        return Cost(release, round_, size, rounding, known, workload.rows, span, seeds)

    def compute(self, noise: Noise) -> CompletedRound:
        """See `Step`; WithheldError if the site gives no more exact answers."""
        client, request = self.client, self.request
        if request.closing:
            return self.rounds.completed(request, self.last, self._finished(), [], {})
        if client.exact_rounds and self.guard is None:
            ranges = as_asked(request.ranges)
            asked = [own + ranges for own in client.algorithm.answers(self.inbox)]
            client.exact_rounds.count(request.session, asked)
        state, reply, report = self._trained(noise)
        metrics = client._measured(report, self.parameters)
        sealed = client._sealed(reply, self.parameters, request)
        return self.rounds.completed(request, self.last, state, sealed, metrics)

    def _finished(self) -> Any:
        """The state after the closing message; it depends only on earlier releases and public values."""
        algorithm = self.client.algorithm
        return algorithm.finish(self.state, self.inbox) if algorithm.closes else self.state

    def _trained(self, noise: Noise) -> tuple[Any, Arrays, Report]:
        """The state, the upload's arrays and the report of the local update; ReplyError if the upload is not finite."""
        client, round_ = self.client, self.request.round
        batches = client.schedule.batches(client.shards, client.client, client.seed, round_)
        work = LocalWork(client.objective, batches, noise, round_)
        with np.errstate(all="ignore"):  # a diverging model is recognised by its result
            state, upload, report = client.algorithm.client_update(self.state, self.inbox, work)
        reply = client.algorithm.upload.pack(upload, client.objective.d)
        if not all(map(all_finite, reply)):
            raise ReplyError(f"client {client.client}: the local update of round {round_} is not finite")
        return state, reply, report


def check_precision(start: NDArray[Any], rows: Batch | Shards, guard: Guard | None) -> None:
    """Raise SettingError unless a client with this start computes in one precision: double, if it is private."""
    parts = (rows.features, rows.labels, rows.row_weights)
    real = [part.dtype for part in parts if part is not None and part.dtype.kind == "f"]
    kept = real if isinstance(rows, Shards) else []  # a `Batch` is cast to the precision of the start
    single = [str(dtype) for dtype in (start.dtype, *kept) if dtype != DOUBLE]
    require(
        guard is None or not single,
        "a private client computes in double precision: start must be float64, and rows in Shards, too; got "
        f"{', '.join(single)}",
    )
    if start.dtype == DOUBLE:
        return
    if not all(dtype == start.dtype for dtype in real):
        raise SettingError(
            f"start is {start.dtype}, so features, real labels and weights must be, too; got "
            f"{', '.join(map(str, real))}"
        )


def admitted(rows: Batch | Shards, start: NDArray[Any], client: int, guard: Guard | None) -> Shards:
    """A client's rows as the bounds of a private one assume them (`Guard.admitted`); the site's own log says if rows
    were changed. Shards are copied only then."""
    shards = rows if isinstance(rows, Shards) else _shards(rows, start, client)
    if guard is None:
        return shards
    own = shards.rows(client)
    bounded = guard.admitted(own)
    if bounded is own:
        return shards
    log(WARNING, "client %s: rows outside their public bounds were scaled or clipped to them", client)
    return Shards.site(bounded, client)


def check_rows(objective: Objective, rows: Batch, guard: Guard | None) -> None:
    """Raise the error of an objective that does not accept these rows (`ChecksRows`).

    Of a private client it sees no labels that are real numbers: whether a loss accepts one would reveal something about
    it. Such a row's gradient counts as 0, or its loss as the bound.
    """
    if not isinstance(objective, ChecksRows):
        return
    if guard is not None and rows.labels.dtype.kind not in "iu":
        rows = rows._replace(labels=np.zeros_like(rows.labels))
    objective.check_rows(rows)


def _shards(rows: Batch, start: NDArray[Any], client: int) -> Shards:
    """A client's rows with features, weights, and labels that are not whole numbers, of the type of the start."""
    labels = rows.labels if rows.labels.dtype.kind in "iu" else rows.labels.astype(start.dtype, copy=False)
    weights = None if rows.row_weights is None else rows.row_weights.astype(start.dtype, copy=False)
    features = rows.features.astype(start.dtype, copy=False)
    return Shards.site(rows._replace(features=features, labels=labels, row_weights=weights), client)
