"""Questions to the sites about a model: in rounds that are evaluated there, and after the last round."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log

from twinflower.arrays import Array
from twinflower.clients.records import record_of
from twinflower.errors import ReplyError
from twinflower.flower_messages import EVALUATE, reply_record
from twinflower.queries.held_out_question import HeldOutQuestion
from twinflower.queries.query import ModelQuestion, Sent
from twinflower.wire import from_npy

from .exchange import Exchange
from .replies import Read, sort_replies
from .requests import question_request


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
        self, replies: Iterable[Message], nodes: Mapping[int, int], round_: int, private: bool
    ) -> MetricRecord | None:
        """The metrics of what the sites found, such as weighted means; None for a round that is not evaluated at the
        sites. nodes: client -> node."""
        if not self.evaluates(round_):
            return None
        clients = {node: client for client, node in nodes.items()}
        good, rejected = sort_replies(replies, clients, reading(self._asked, round_, private), round_)
        for client, reason in sorted(rejected.items()):
            log(WARNING, "round %s: client %s is not in the evaluation: %s", round_, client, reason)
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
    return None, f"{len(missing)} clients sent no {question.what} (client {client}: {reason})"


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
