"""What sites reply about a model that they evaluated, checked."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord

from twinflower.errors import ReplyError
from twinflower.models.evaluation import Evaluation, Released

from .replies import sort_replies

_MOST_ROWS = 2**27  # of more, an interval takes minutes


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
    metrics = reply.content.config_records.get("evaluateres.metrics", ConfigRecord())
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
    """The number in the record evaluateres.NAME, None if it is missing."""
    return reply.content.metric_records.get(f"evaluateres.{name}", MetricRecord()).get(name)
