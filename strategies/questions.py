"""Questions to clients, which are repeated until the replies are valid: the counts before round 1
(`twinflower.queries.first`), and what the sites find about a model, in rounds that they evaluate and at the end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from twinflower.arrays import Array
from twinflower.clients.records import record_of
from twinflower.errors import ReplyError, RunError
from twinflower.flower_messages import EVALUATE, reply_record
from twinflower.queries.held_out_question import HeldOutQuestion
from twinflower.queries.model_question import ModelQuestion, Sent
from twinflower.rounds import who
from twinflower.wire import checked, expect_arrays, from_npy

from .messages import NO_REPLY, Read, fit_request, fit_results, question_request, sort_replies
from .nodes import Roster

T = TypeVar("T")
Ask = Callable[[int, int], Message]
"""The request to a client at a node."""


@dataclass(frozen=True)
class Exchange:
    """Sends requests to the clients of a roster, and repeats them.

    timeout: seconds to wait for replies. patience: seconds to wait for a missing node before a request is repeated.
    retries: how often a request is repeated to a client without a valid reply; the client repeats its stored reply.
    """

    roster: Roster
    grid: Grid
    timeout: float
    patience: float
    retries: int

    def ask(
        self, clients: Iterable[int], ask: Ask, read: Read[T], round_: int
    ) -> tuple[dict[int, T], dict[int, str]]:
        """Ask these clients once; return what `sort_replies` makes of their replies."""
        nodes = self.roster.clients(sorted(clients))
        requests = [ask(client, node) for node, client in nodes.items()]
        replies = self.grid.send_and_receive(requests, timeout=self.timeout)
        return sort_replies(replies, nodes, read, round_)

    def ask_all(self, ask: Ask, read: Read[T], round_: int) -> tuple[dict[int, T], dict[int, str]]:
        """Ask all clients, and those without a valid reply again."""
        good, rejected = self.ask(self.roster.nodes, ask, read, round_)
        return self.ask_again(good, rejected, ask, read, round_)

    def ask_again(
        self, good: dict[int, T], rejected: dict[int, str], ask: Ask, read: Read[T], round_: int
    ) -> tuple[dict[int, T], dict[int, str]]:
        """Ask rejected clients again; return good and rejected as they are afterwards."""
        for _ in range(self.retries):
            if not rejected:
                break
            silent = {client for client, reason in rejected.items() if reason == NO_REPLY}
            self.roster.find(self.grid, silent, self.patience)
            named = ", ".join(who(client, self.roster.sites) for client in sorted(rejected))
            log(WARNING, "round %s: asking %s again", round_, named)
            more, rejected = self.ask(rejected, ask, read, round_)
            good = good | more
        return good, rejected


Counts = NDArray[np.float64]


def expect_session(metrics: Mapping[str, Any], session: str) -> None:
    """ReplyError for counts that do not name their session: unlike a round's reply, only our clients send them."""
    if metrics.get("session") != session:
        raise ReplyError("the reply belongs to another run")


@dataclass(frozen=True)
class Agreement:
    """What a server does with the counts. entries: how many counts a client sends. content(counts (K, entries), clients
    (K,)): what is part of all further requests, such as private ranges, or empty; clients in ascending order."""

    entries: int
    content: Callable[[Counts, NDArray[np.int64]], bytes]

    def reach(self, exchange: Exchange, session: str, least: int) -> bytes:
        """Ask the clients, those without a valid reply again, and return what further requests carry.

        A client that stays away is left out; RunError if fewer than `least` reply.
        """

        def ask(client: int, node: int) -> Message:
            return fit_request(node, ArrayRecord(), {"round": 0, "session": session, "settled": 0})

        def counts(client: int, reply: Message) -> Counts:
            arrays, metrics = fit_results(reply, 0, session)
            expect_session(metrics, session)
            expect_arrays(arrays, 1)
            return checked("counts", arrays[0], (self.entries,))

        found, missing = exchange.ask_all(ask, counts, 0)
        sites = exchange.roster.sites
        for client, reason in sorted(missing.items()):
            log(WARNING, "%s sent no counts before round 1: %s", who(client, sites), reason)
        if len(found) < least:
            client, reason = min(missing.items())
            raise RunError(
                f"{len(found)} clients sent counts before round 1, and {least} are needed, the run stops "
                f"({who(client, sites)}: {reason})"
            )
        order = sorted(found)
        return self.content(np.stack([found[client] for client in order]), np.array(order))


@dataclass
class SiteEvaluation:
    """When all clients evaluate the model on their held-out rows, and what they found.

    evaluates: whether they do after a round; rounds count from 0, which is before the first one. question: what they
    are asked. found: the result of the last such round, and metrics: its metrics.
    """

    evaluates: Callable[[int], bool] = lambda round_: False
    question: ModelQuestion = field(default_factory=HeldOutQuestion)
    found: Any = field(default=None, init=False)
    _asked: ModelQuestion = field(init=False)  # the question of the last request

    def __post_init__(self) -> None:
        self._asked = self.question

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics in what was found; empty before."""
        return {} if self.found is None else self.question.metrics(self.found)

    def requests(
        self,
        nodes: Mapping[int, int],
        model: ArrayRecord,
        round_: int,
        session: str,
        own: Array | None = None,
    ) -> list[Message]:
        """One message to each of these nodes in a round that is evaluated at the sites, else none.

        nodes: client -> node. own (N, d): the models of the clients, if each evaluates its own; the question is that
        about `model`.
        """
        if not self.evaluates(round_):
            return []
        (x,) = (from_npy(array.data) for array in model.values())
        self._asked = self.question.at(x)
        models = {client: model if own is None else record_of([own[client]]) for client in nodes}
        config = {"round": round_, "session": session, **self._asked.fields}
        return [question_request(node, models[client], config) for client, node in nodes.items()]

    def read(
        self,
        replies: Iterable[Message],
        nodes: Mapping[int, int],
        round_: int,
        private: bool,
        sites: Sequence[str] = (),
    ) -> MetricRecord | None:
        """The metrics of what the sites found, such as weighted means; None for a round that is not evaluated at the
        sites. nodes: client -> node. sites: the clients' names, if they have some."""
        if not self.evaluates(round_):
            return None
        clients = {node: client for client, node in nodes.items()}
        good, rejected = sort_replies(replies, clients, reading(self._asked, round_, private), round_)
        for client, reason in sorted(rejected.items()):
            log(WARNING, "round %s: %s is not in the evaluation: %s", round_, who(client, sites), reason)
        self.found = self.question.found(dict(sorted(good.items())), private)
        return MetricRecord(dict(self.metrics))


def collect(
    exchange: Exchange, question: ModelQuestion, x: Array, stamp: Mapping[str, Any], private: bool
) -> tuple[Any, str]:
    """What all clients answer to a question about the model x (d,); None, and a sentence why, if one does not answer.

    stamp: the fields of a request for this round.
    """
    asked, model = question.at(x), record_of([x])

    def ask(client: int, node: int) -> Message:
        return question_request(node, model, {**stamp, **asked.fields})

    good, missing = exchange.ask_all(ask, reading(asked, stamp["round"], private), stamp["round"])
    if not missing:
        return asked.found(dict(sorted(good.items())), private), ""
    client, reason = min(missing.items())
    named = who(client, exchange.roster.sites)
    return None, f"{len(missing)} clients sent no {question.what} ({named}: {reason})"


def reading(question: ModelQuestion, round_: int, private: bool) -> Read[Any]:
    """How a reply to a question about the model of a round is read; ReplyError for what an `AlgorithmClient` would not
    send."""

    def read(client: int, reply: Message) -> Any:
        metrics: Any = reply.content.config_records.get(reply_record(EVALUATE, "metrics"), ConfigRecord())
        if metrics.get("round") != round_:
            raise ReplyError(f"the reply belongs to round {metrics.get('round')!r}, not {round_}")
        sent = Sent(_metric(reply, "loss"), _metric(reply, "num_examples"), metrics)
        return question.read(client, sent, private)

    return read


def _metric(reply: Message, name: str) -> object:
    """The number in the record of this name, None if it is missing."""
    return reply.content.metric_records.get(reply_record(EVALUATE, name), MetricRecord()).get(name)
