"""Evaluation of the model at the sites, on rows that they hold out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log

from twinflower.errors import ReplyError
from twinflower.flower_messages import EVALUATE, reply_record
from twinflower.models.evaluation import Evaluation, Released, estimated, pooled

from .replies import sort_replies
from .requests import evaluate_request

_MOST_ROWS = 2**27  # of more, an interval takes minutes


@dataclass
class SiteEvaluation:
    """When all clients evaluate the model on their held-out rows, and what they found.

    evaluates: whether they do after a round; rounds count from 0, which is before the first one. loss_bound: of private
    clients that release clipped losses (`twinflower.models.evaluation.estimated`), 0 for those that release counts.
    held_out: how many rows each client holds out, if this is known; a client that reports another number is left out.
    metrics: the result of the last such round.
    """

    evaluates: Callable[[int], bool] = lambda round_: False
    loss_bound: float = 0.0
    held_out: Sequence[int] = ()
    metrics: dict[str, float] = field(default_factory=dict, init=False)

    def requests(self, nodes: Iterable[int], model: ArrayRecord, round_: int, session: str) -> list[Message]:
        """One message to each of these nodes in a round that is evaluated at the sites, else none."""
        return [evaluate_request(n, model, round_, session) for n in nodes] if self.evaluates(round_) else []

    def read(
        self, replies: Iterable[Message], nodes: Mapping[int, int], round_: int, private: bool
    ) -> MetricRecord | None:
        """The weighted means of the sites' metrics (`twinflower.models.evaluation.pooled`, `estimated` in a private
        run); None for a round that is not evaluated at the sites. nodes: client -> node."""
        if not self.evaluates(round_):
            return None
        sites, rejected = evaluations(replies, nodes, round_, private, self.held_out)
        for client, reason in sorted(rejected.items()):
            log(WARNING, "round %s: client %s is not in the evaluation: %s", round_, client, reason)
        self.metrics = estimated(sites, self.loss_bound) if private else pooled(sites)
        return MetricRecord(dict(self.metrics))


def evaluations(
    replies: Iterable[Message],
    nodes: Mapping[int, int],
    round_: int,
    private: bool,
    held_out: Sequence[int] = (),
) -> tuple[list[Any], dict[int, str]]:
    """The valid evaluations in the order of the clients, and the reason for every other client.

    nodes: client -> node. private: whether the evaluations are `Released` sums with noise, otherwise `Evaluation`s.
    held_out: the clients' numbers of held-out rows, empty if they are not known.
    """
    read = _noisy if private else _exact

    def evaluation(client: int, reply: Message) -> Evaluation | Released:
        rows, metrics = _checked(reply, round_)
        if len(held_out) and rows != held_out[client]:
            raise ReplyError(f"the client must hold out {held_out[client]} rows; it reports {rows}")
        return read(reply, rows, metrics)

    clients = {node: client for client, node in nodes.items()}
    good, rejected = sort_replies(replies, clients, evaluation, round_)
    return [good[client] for client in sorted(good)], rejected


def _checked(reply: Message, round_: int) -> tuple[int, ConfigRecord]:
    """The number of rows and the metrics in a reply; ReplyError for what an `AlgorithmClient` would not send."""
    metrics = reply.content.config_records.get(reply_record(EVALUATE, "metrics"), ConfigRecord())
    rows = _metric(reply, "num_examples")
    if metrics.get("round") != round_:
        raise ReplyError(f"the reply belongs to round {metrics.get('round')!r}, not {round_}")
    if type(rows) is not int or not 0 <= rows < _MOST_ROWS:
        raise ReplyError(f"the number of rows must be a whole number from 0 to 2^27; got {rows!r}")
    return rows, metrics


def _noisy(reply: Message, rows: int, metrics: ConfigRecord) -> Released:
    value, sigma = metrics.get("value"), metrics.get("sigma")
    if type(value) is not float or not math.isfinite(value):
        raise ReplyError(f"the noisy sum must be a finite number; got {value!r}")
    if type(sigma) is not float or not 0 < sigma < math.inf or not rows:
        raise ReplyError(f"a noisy sum needs rows and a finite deviation above 0; got {rows} and {sigma!r}")
    return Released(rows, value, sigma)


def _exact(reply: Message, rows: int, metrics: ConfigRecord) -> Evaluation:
    loss, correct = _metric(reply, "loss"), metrics.get("correct")
    if "sigma" in metrics:
        raise ReplyError("the reply has noise, and this run has no privacy")
    if type(loss) is not float or not math.isfinite(loss):
        raise ReplyError(f"the loss must be a finite number; got {loss!r}")
    if type(correct) is not float or correct > rows or correct == -math.inf:
        raise ReplyError(f"the number of correct rows must be at most {rows}; got {correct!r}")
    return Evaluation(rows, loss, correct)


def _metric(reply: Message, name: str) -> object:
    """The number in the record of this name, None if it is missing."""
    return reply.content.metric_records.get(reply_record(EVALUATE, name), MetricRecord()).get(name)
