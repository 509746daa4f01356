"""The client side shared by all algorithms: a Flower NumPyClient around an algorithm's `client_update`.

The client state, in particular the dual variables, is stored only at the client: in Flower's `context.state`, or on the
site's disk (`store`). A round computes first and writes last, so the state is unchanged if anything fails. The last
reply is stored, so that a repeated request gets the same numbers and no dual is updated twice. (In Flower's context the
reply of a client without state and noise is not stored: computed again, it is the same.) A request for a round that is
no longer stored is refused.

Other modules read its request (`request`), prepare the client's rows (`rows`), and store what it computed (`completed`,
`store`).
"""

from dataclasses import replace
from logging import WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.common import log
from numpy.typing import NDArray

from twinflower.algorithms.algorithm import Algorithm
from twinflower.arrays import all_finite
from twinflower.errors import ReplyError, SettingError, require
from twinflower.first_counts import COUNTS_ROUND, FirstCounts
from twinflower.privacy.charges import BudgetSpent
from twinflower.privacy.exact_rounds import ExactRounds
from twinflower.privacy.guard import Guard
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Batch, Objective, check_weights
from twinflower.problems.penalised import check_clipping
from twinflower.wire import checked
from twinflower.work import LocalWork, Noise, Report, no_noise

from .completed import Arrays, CompletedRounds, Metrics, reply_of
from .counts import PrivateEvaluation
from .exact_answers import NOTHING, ExactAnswers
from .intervals import PrivateIntervals
from .request import INFORMATION, RequestReader, RoundRequest, bins_in
from .rows import admitted, check_precision, check_rows
from .safe_decoding import StrictClient
from .store import CompletedRound, ContextStore, StateStore

_NOT_SCALED: object = object()  # differs from the ranges in any request


class AlgorithmClient(NumPyClient):
    """Base of all clients; a subclass sets its `algorithm_class` and documents its client side.

    context: Flower's context, whose state holds the duals. algorithm: the algorithm with its settings, the same as on
    the server. objective, rows: this client's f_i and its data; given as shards of a data set that was checked before,
    the data are not copied. start: the public starting point (d,), of the same type as rows, state and messages:
    float64, or float32 without a guard. client, num_clients: partition number and count.
    schedule: the batches and number of local steps. seed: of the batches.
    guard: protects the client's releases; needed if the algorithm's `privacy` is not "none". store: where the state is
    stored, if not in the context. held_out: rows of this client that are not among `rows`, for `evaluate`. evaluation:
    what a client with a guard needs to evaluate on them. first_counts: what the client counts and releases in round 0,
    if there is anything; with private ranges among it, it scales its rows by those that every further request carries.
    exact: what a client without a guard sends about its rows without noise. intervals: what one with a guard releases
    after the last round, if anything. answers: counts the rounds of a client without a guard whose messages are exact
    sums (`Algorithm.sends_sums`) and that has a limit for them.
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
        evaluation: PrivateEvaluation | None = None,
        exact: ExactAnswers = NOTHING,
        intervals: PrivateIntervals | None = None,
        answers: ExactRounds | None = None,
    ) -> None:
        if type(algorithm) is not self.algorithm_class:
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
        self.evaluation = evaluation
        self.exact = exact
        self.intervals = intervals
        self.answers = answers
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
            guard is None
            or self.held_out is None
            or not len(self.held_out.labels)
            or self.evaluation is not None,
            "a private client with held-out rows needs a PrivateEvaluation: without one no ledger is charged for what "
            "it reports about them",
        )

    def to_client(self) -> Client:
        """Flower's client around this one."""
        return StrictClient(self)

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the partition of this node and the number of partitions."""
        return {"partition-id": self.client, "num-partitions": self.num_clients}

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
        done = self.rounds.repeated(request, last)
        try:
            if done is None:
                done = self._round(request, last, parameters)
                self.rounds.save(request, done)
        except BudgetSpent as spent:
            log(WARNING, "round %s is refused: %s", request.round, spent)
            if request.model_only:
                raise ReplyError(f"round {request.round} is refused: the privacy budget is spent") from None
            return [], 0, {"round": request.round, "refused": True}
        reply = reply_of(done)
        return reply[:1] if request.model_only else reply, self._num_rows, dict(done.metrics)

    def _round(
        self, request: RoundRequest, last: CompletedRound | None, parameters: Arrays
    ) -> CompletedRound:
        """Check the request, charge the round, compute it, and return what is to be stored."""
        if request.round == COUNTS_ROUND:
            return self._count(request, last)
        self._scale(request.ranges)
        inbox = self.algorithm.inbox.unpack(parameters, self.objective.d, dtype=self.start.dtype)
        state = self.rounds.state(last)
        if request.closing:
            return self.rounds.completed(request, last, self._finish(request, state, inbox), [], {})
        noise = self._open(request, state, inbox)
        state, reply, report = self._trained(request, state, inbox, noise)
        metrics = self._measured(report, parameters)
        return self.rounds.completed(request, last, state, self._sealed(reply, parameters, request), metrics)

    def _count(self, request: RoundRequest, last: CompletedRound | None) -> CompletedRound:
        """Release the counts before round 1; the state is the initial one."""
        assert self.first_counts
        self.requests.bind(request.session)
        with self.rounds.reserved(request, self.first_counts.bytes):
            noise = self.first_counts.open(self.guard, request.session)
        counts = self.first_counts.counts(noise)
        return self.rounds.completed(request, last, self.rounds.state(None), [counts], {})

    def _scale(self, ranges: object) -> None:
        """Scale the rows by the ranges of a request, unless they are already."""
        columns = self.first_counts.columns if self.first_counts else None
        if columns and ranges != self._ranges:
            features = columns.features(ranges).astype(self.start.dtype, copy=False)
            self.shards = replace(self.shards, features=features, lengths=None).prepared(self.objective)
            self._ranges = ranges

    def _finish(self, request: RoundRequest, state: Any, inbox: Any) -> Any:
        """The state after the closing message; it depends only on earlier releases and public values."""
        self.requests.bind(request.session)
        return self.algorithm.finish(state, inbox) if self.algorithm.closes else state

    def _open(self, request: RoundRequest, state: Any, inbox: Any) -> Noise:
        """Validate the request, then charge the round and return its noise, before anything private is computed."""
        if self.guard is None:
            self.requests.bind(request.session)
            if self.answers:
                self.answers.count(request.session, request.round, b"".join(own.tobytes() for own in inbox))
            return no_noise
        workload = self.schedule.workload(self._num_rows)
        release = self.algorithm.release(self.guard.bounds, workload, request.round)
        if self.guard.secret:
            info = self.guard.bounds, workload, request.round, self.guard.noise_multiplier * release.spread
            with np.errstate(all="ignore"):  # check_size refuses overflows
                rounded = self.algorithm.rounding(state, inbox, *info)
            self.guard.check_size(release, workload.rows, rounded, [*inbox, *state])
        self.requests.bind(request.session)
        with self.rounds.reserved(request, self.algorithm.upload.bits(self.objective.d) // 8):
            return self.guard.open(release, request.round, request.session)

    def _trained(
        self, request: RoundRequest, state: Any, inbox: Any, noise: Noise
    ) -> tuple[Any, Arrays, Report]:
        """The state, the upload's arrays and the report of the local update; ReplyError if the upload is not finite."""
        batches = self.schedule.batches(self.shards, self.client, self.seed, request.round)
        work = LocalWork(self.objective, batches, noise, request.round)
        with np.errstate(all="ignore"):  # a diverging model is recognised by its result
            state, upload, report = self.algorithm.client_update(state, inbox, work)
        reply = self.algorithm.upload.pack(upload, self.objective.d)
        if not all(map(all_finite, reply)):
            raise ReplyError(f"client {self.client}: the local update of round {request.round} is not finite")
        return state, reply, report

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
        """Evaluate the model, one array (d,), on the held-out rows; return the mean loss, the number of these rows, and
        the metrics `correct` and `accuracy` with the request's round; a private client as in `PrivateEvaluation`.

        With "information" in config, the metrics are the sums over the training rows from which standard errors follow.
        Changes no state of the training. Raises ReplyError if this client holds no rows out, does not send these sums
        (`ExactAnswers`, `PrivateIntervals`), or if the request is malformed.
        """
        if config.get(INFORMATION) is True:
            if self.guard and not self.intervals:
                raise ReplyError("this client sends no information matrix")
            x = self._model(parameters)
            self._scale(config.get("ranges"))
            answers, rows = self.intervals or self.exact, self.shards.rows(self.client)
            return answers.information(self.requests, self.objective, x, rows, config)
        if self.held_out is None or (self.guard and not self.evaluation):
            raise ReplyError("this client holds out no rows to evaluate on")
        x = self._model(parameters)
        bins = bins_in(config, self.evaluation.bins if self.evaluation else self.exact.bins)
        if self.evaluation:
            round_, session = self.requests.evaluation(config)
            self.requests.bind(session)
            known = self.store.evaluations
            return self.evaluation.reply(self.objective, x, self.held_out, round_, session, known, bins)
        return self.exact.evaluation(self.requests, self.objective, x, self.held_out, config, bins)

    def _model(self, parameters: Arrays) -> NDArray[Any]:
        """The model in a request to evaluate it."""
        if len(parameters) != 1:
            raise ReplyError(f"a model to evaluate is one array; got {len(parameters)}")
        return checked("the model", parameters[0], (self.objective.d,), self.start.dtype)
