"""The order of a site's steps whenever it releases something about its rows: in a round, before the first one, and when
it answers a question.

A stored reply is given again. Otherwise the request is read and checked, the Flower run is bound to its session, space
for the reply is reserved, and the ledger is charged; only then is anything private computed. Noise is added, and the
result is stored before it is sent (`CompletedRounds`). What differs from step to step is what is read, charged,
computed and stored.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any, NamedTuple

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from twinflower.algorithms.algorithm import Algorithm
from twinflower.arrays import Array
from twinflower.errors import ReplyError
from twinflower.privacy.charges import BudgetSpent, total_cost
from twinflower.privacy.guard import Guard, Seeds
from twinflower.privacy.release import Release, Rounding
from twinflower.problems.interfaces import Batch
from twinflower.problems.turns import Span
from twinflower.queries.first import COUNTS_ROUND, FirstCounts
from twinflower.queries.model_question import ModelQuestion, SiteAnswer
from twinflower.wire import checked
from twinflower.work import Noise, no_noise

from .request import RequestReader, RoundRequest, as_asked
from .store import CompletedRound, ContextStore, StateStore

Arrays = list[NDArray[Any]]
Metrics = dict[str, Any]

_STATE, _REPLY = "state.", "reply."  # prefixes of the names of stored arrays


@dataclass(frozen=True)
class CompletedRounds:
    """The completed rounds of one client in its store.

    algorithm: the client's, whose state is stored. start: the public starting point (d,), which has the type of all
    arrays. private: whether the client's replies have noise.
    """

    store: StateStore
    algorithm: Algorithm
    start: NDArray[Any]
    private: bool

    def last(self, session: str) -> CompletedRound | None:
        """The newest round of the session, if there is one."""
        return self.store.last(session)

    def repeated(self, request: RoundRequest, last: CompletedRound | None) -> CompletedRound | None:
        """The stored round if this request repeats one; None if the round has to be computed.

        Raises ReplyError for a round that is not stored any more. last: the newest round of the session.
        """
        if last is None or request.round > last.round:
            return None
        stored = self.store.at(request.session, request.round)
        if stored is None:
            raise ReplyError(f"round {request.round} is asked after it was settled")
        return None if self._computed_again else stored

    def state(self, last: CompletedRound | None) -> Any:
        """The algorithm's client state after the last round, or the initial one."""
        if last is None:
            return self.algorithm.init_client(self.start)
        return self.algorithm.state.kind(
            **{name: self._array(last, name, shape) for name, shape in self._shapes.items()}
        )

    def completed(
        self, request: RoundRequest, last: CompletedRound | None, state: Any, reply: Arrays, metrics: Metrics
    ) -> CompletedRound:
        """The round of the request, to be saved, with these metrics besides those of every round.

        The server detects lost client state by `born`, the round in which the state began.
        """
        born = last.metrics["born"] if last else request.round
        arrays = {_STATE + n: np.asarray(a) for n, a in zip(state._fields, state, strict=True) if a.size}
        arrays |= {f"{_REPLY}{place}": np.asarray(array) for place, array in enumerate(reply)}
        own = {"round": request.round, "session": request.session, "born": born}
        return CompletedRound(arrays, own | metrics)

    def reserved(self, request: RoundRequest, reply_bytes: int) -> AbstractContextManager[None]:
        """Make sure that the round with a reply of this size can be saved; see `StateStore.reserved`."""
        state_bytes = sum(map(math.prod, self._shapes.values())) * self.start.itemsize
        return self.store.reserved(request.session, request.round, state_bytes + reply_bytes)

    def save(self, request: RoundRequest, done: CompletedRound) -> None:
        """Store the round of the request; earlier ones may be deleted, because they are settled."""
        stored = done._replace(arrays={}) if self._computed_again else done
        self.store.save(request.session, stored, request.settled)

    @property
    def _computed_again(self) -> bool:
        """Whether a repeated request is computed again, with the same result, so that no array has to be stored."""
        if self.private or self.algorithm.state.fields:
            return False
        return isinstance(self.store, ContextStore)  # a site's disk has it all

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return self.algorithm.state.shapes(len(self.start))

    def _array(self, last: CompletedRound, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """One array of the stored state; empty arrays are not stored."""
        if not math.prod(shape):
            return np.empty(shape, self.start.dtype)
        return checked(name, last.arrays[_STATE + name], shape, self.start.dtype)


def reply_of(done: CompletedRound) -> Arrays:
    """The arrays of the reply in a completed round, read-only where they come from a store."""
    return [array for name, array in done.arrays.items() if name.startswith(_REPLY)]


class Cost(NamedTuple):
    """What a release costs, which follows from public numbers.

    round: under which the ledger charges it. size: the bytes of the reply. rows, rounding, known: see
    `Guard.check_size`. span, seeds: see `Guard.open`.
    """

    release: Release
    round: int
    size: int
    rounding: Callable[[], Rounding]
    known: Iterable[Array] = ()
    rows: int = 1
    span: Span | None = None
    seeds: Seeds | None = None


@dataclass(frozen=True)
class Step(ABC):
    """One release. guard: charges it, None for one without privacy. session: the training that it belongs to."""

    guard: Guard | None
    session: str

    @abstractmethod
    def stored(self) -> CompletedRound | None:
        """What was released before in reply to the same request."""

    @abstractmethod
    def begin(self) -> Cost | None:
        """Read and check the request; return what the release costs, None for nothing. ReplyError if it is invalid."""

    @abstractmethod
    def reserved(self, size: int) -> AbstractContextManager[None]:
        """Make sure that a reply of this size can be stored; see `StateStore.reserved`."""

    @abstractmethod
    def compute(self, noise: Noise) -> CompletedRound:
        """What is stored and sent."""

    @abstractmethod
    def save(self, done: CompletedRound) -> None:
        """Store it."""


def carried_out(step: Step, requests: RequestReader) -> CompletedRound:
    """What a step releases, by the order above; BudgetSpent or LedgerError if the ledger refuses the charge."""
    done = step.stored()
    if done is None:
        done = step.compute(_noise(step, step.begin(), requests))
        step.save(done)
    return done


def _noise(step: Step, cost: Cost | None, requests: RequestReader) -> Noise:
    """Bind the session, then charge the release and return its noise, before anything private is computed."""
    guard = step.guard
    if guard is None or cost is None:
        requests.bind(step.session)
        return no_noise
    if guard.secret:
        guard.check_size(cost.release, cost.rows, cost.rounding(), cost.known)
    requests.bind(step.session)
    with step.reserved(cost.size):
        noise = guard.open(cost.release, cost.round, step.session, cost.span, cost.seeds)
    if guard.secret:
        _log_charge(guard, step.session)
    return noise


def _log_charge(guard: Guard, session: str) -> None:
    """Write to the site's log what was charged last; it follows from public settings."""
    charges = [charge for charge in guard.ledger.charges() if charge.run == session]
    spent = total_cost(charges)
    log(
        INFO, "%s of run %s is charged: mu^2 %.4g, and with it %.4g of the run's %.4g",
        charges[-1].release, session, spent - total_cost(charges[:-1]), spent, guard.budget.mu_max_squared,
    )  # fmt: skip


@dataclass(frozen=True)
class RoundStep(Step):
    """A release that is the reply of a round, stored with the client's state. last: the newest round of the session."""

    rounds: CompletedRounds
    request: RoundRequest
    last: CompletedRound | None

    def stored(self) -> CompletedRound | None:
        """See `Step`."""
        return self.rounds.repeated(self.request, self.last)

    def reserved(self, size: int) -> AbstractContextManager[None]:
        """See `Step`."""
        return self.rounds.reserved(self.request, size)

    def save(self, done: CompletedRound) -> None:
        """See `Step`."""
        self.rounds.save(self.request, done)


@dataclass(frozen=True)
class CountStep(RoundStep):
    """The counts before round 1, stored with the initial state as the reply of round 0."""

    counts: FirstCounts

    def begin(self) -> Cost:
        """See `Step`."""
        return Cost(self.counts.release, COUNTS_ROUND, self.counts.bytes, lambda: self.counts.rounding)

    def compute(self, noise: Noise) -> CompletedRound:
        """See `Step`."""
        reply = [noise(self.counts.counts())]
        return self.rounds.completed(self.request, self.last, self.rounds.state(None), reply, {})


@dataclass(frozen=True)
class AnswerStep(Step):
    """The answer with noise to a question about the model x (d,) after a round, which is released once."""

    release: Release
    question: ModelQuestion
    objective: Any
    x: Array
    rows: Batch
    round: int
    store: StateStore

    @property
    def digest(self) -> str:
        """Of what is asked."""
        return hashlib.sha256(self.question.asked_about(self.x)).hexdigest()

    @property
    def _place(self) -> int:
        return self.question.stored_as(self.round)

    def stored(self) -> CompletedRound | None:
        """See `Step`; ReplyError if it is the answer about another model."""
        done = self.store.at(self.session, self._place)
        if done is not None and done.metrics["model"] != self.digest:
            raise ReplyError(
                f"the {self.question.what} of another model was released after round {self.round}, and only one is"
            )
        return done

    def begin(self) -> Cost:
        """See `Step`; ReplyError for a round after which nothing is released."""
        question = self.question
        if self.round not in question.rounds:
            raise ReplyError(f"no {question.what} is planned after round {self.round}")
        rounding = Rounding(question.largest(len(self.rows.labels)), 0.0)
        size = 8 * question.size(self.objective.d)
        place = question.charged_as(self.round)
        return Cost(self.release, place, size, lambda: rounding, question.known(self.x))

    def reserved(self, size: int) -> AbstractContextManager[None]:
        """See `Step`."""
        return self.store.reserved(self.session, self._place, size)

    def compute(self, noise: Noise) -> CompletedRound:
        """See `Step`."""
        values = noise(self.question.released(self.objective, self.x, self.rows))
        metrics = {"round": self._place, "session": self.session, "model": self.digest}
        return CompletedRound({"values": values}, metrics)

    def save(self, done: CompletedRound) -> None:
        """See `Step`."""
        self.store.save(self.session, done, 0)


Reply = tuple[float, int, dict[str, Any]]


def answered(
    answer: SiteAnswer,
    objective: Any,
    x: Array,
    rows: Batch,
    config: Mapping[str, Any],
    requests: RequestReader,
    store: StateStore,
) -> Reply:
    """The loss, the number of rows and the metrics with which a site answers a question about the model x (d,).

    With noise, the answer is charged, computed and stored once for each round. Without, exact answers about many models
    of a server's choice add up to the rows themselves, even if each is only a mean loss. So a client answers about one
    model after each round (`RequestReader.once`), and the same request gets the same answer again. This bounds the
    number of answers by that of the rounds, and not what a single one says. The server chooses the number of rounds and
    of runs, and can ask without training; enough rounds still determine the rows. Raises ReplyError for a second model
    in a round, for a round that is not planned, and if the budget is spent.
    """
    question = answer.question.as_asked(config)
    if answer.guard is None:
        question.check(objective)
        asked = question.asked_about(x) + as_asked(config.get("ranges"))  # rows are clipped by the ranges
        round_ = requests.once(question.name, config, asked, question.rounds)
        loss, metrics = question.packed(question.exact(objective, x, rows))
    else:
        assert answer.release is not None
        round_, session = requests.evaluation(config)
        step = AnswerStep(
            answer.guard,
            session,
            answer.release,
            question,
            objective,
            x,
            rows,
            round_,
            store.of(question.store),
        )
        try:
            done = carried_out(step, requests)
        except BudgetSpent as spent:
            log(WARNING, "the %s after round %s is refused: %s", question.what, round_, spent)
            raise ReplyError(f"the {question.what} after round {round_} is refused: {spent}") from None
        loss, metrics = question.packed_noisy(done.arrays["values"], len(rows.labels), answer.sigma)
    return loss, len(rows.labels), {"round": round_, **metrics}
