"""Evaluation of the model at the sites, on rows that they hold out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log

from twinflower.arrays import Array
from twinflower.clients.records import record_of
from twinflower.errors import ReplyError
from twinflower.flower_messages import EVALUATE, reply_record
from twinflower.models.evaluation import NO_BINS, Errors, Evaluation, Released, by_site, estimated, pooled
from twinflower.models.score_bins import Counted, ScoreBins
from twinflower.wire import from_npy

from .replies import doubles, sort_replies
from .requests import evaluate_request

_MOST_ROWS = 2**27  # of more, an interval takes minutes


@dataclass
class SiteEvaluation:
    """When all clients evaluate the model on their held-out rows, and what they found.

    evaluates: whether they do after a round; rounds count from 0, which is before the first one. loss_bound: of private
    clients that release clipped losses (`twinflower.models.evaluation.estimated`), 0 for those that release counts.
    held_out: how many rows each client holds out, if this is known; a client that reports another number is left out.
    bins: those of a model (d,) in which the clients count the scores of their rows; by default none. metrics, scores,
    by_site: the result of the last such round, with bins the counts of every client, and without privacy the score of
    the model on the rows of every client.
    """

    evaluates: Callable[[int], bool] = lambda round_: False
    loss_bound: float = 0.0
    held_out: Sequence[int] = ()
    bins: Callable[[Array], ScoreBins] = lambda x: NO_BINS
    metrics: dict[str, float] = field(default_factory=dict, init=False)
    scores: dict[int, Counted] = field(default_factory=dict, init=False)
    by_site: dict[int, float] = field(default_factory=dict, init=False)
    _asked: ScoreBins = field(default=NO_BINS, init=False)  # the bins of the last request

    def requests(
        self,
        nodes: Mapping[int, int],
        model: ArrayRecord,
        round_: int,
        session: str,
        own: Array | None = None,
    ) -> list[Message]:
        """One message to each of these nodes in a round that is evaluated at the sites, else none.

        nodes: client -> node. own (N, d): the models of the clients, if each evaluates its own; the bins are those of
        `model`.
        """
        if not self.evaluates(round_):
            return []
        (x,) = (from_npy(array.data) for array in model.values())
        self._asked = self.bins(x)
        models = {client: model if own is None else record_of([own[client]]) for client in nodes}
        return [
            evaluate_request(node, models[client], round_, session, self._asked)
            for client, node in nodes.items()
        ]

    def read(
        self, replies: Iterable[Message], nodes: Mapping[int, int], round_: int, private: bool
    ) -> MetricRecord | None:
        """The weighted means of the sites' metrics (`twinflower.models.evaluation.pooled`, `estimated` in a private
        run); None for a round that is not evaluated at the sites. nodes: client -> node."""
        if not self.evaluates(round_):
            return None
        found, rejected = evaluations(replies, nodes, round_, private, self.held_out, self._asked)
        for client, reason in sorted(rejected.items()):
            log(WARNING, "round %s: client %s is not in the evaluation: %s", round_, client, reason)
        sites = list(found.values())
        self.scores = {client: own.scores for client, own in found.items() if own.scores is not None}
        self.by_site = {} if private else by_site(found)
        self.metrics = estimated(sites, self.loss_bound) if private else pooled(sites)
        return MetricRecord(dict(self.metrics))


def evaluations(
    replies: Iterable[Message],
    nodes: Mapping[int, int],
    round_: int,
    private: bool,
    held_out: Sequence[int] = (),
    bins: ScoreBins = NO_BINS,
) -> tuple[dict[int, Any], dict[int, str]]:
    """The valid evaluations by client, in ascending order, and the reason for every other client.

    nodes: client -> node. private: whether the evaluations are `Released` sums with noise, otherwise `Evaluation`s.
    held_out: the clients' numbers of held-out rows, empty if they are not known. bins: in which they were asked to
    count.
    """
    read = _noisy if private else _exact

    def evaluation(client: int, reply: Message) -> Evaluation | Released:
        rows, metrics = _checked(reply, round_)
        if len(held_out) and rows != held_out[client]:
            raise ReplyError(f"the client must hold out {held_out[client]} rows; it reports {rows}")
        return read(reply, rows, metrics, bins)

    clients = {node: client for client, node in nodes.items()}
    good, rejected = sort_replies(replies, clients, evaluation, round_)
    return dict(sorted(good.items())), rejected


def _checked(reply: Message, round_: int) -> tuple[int, ConfigRecord]:
    """The number of rows and the metrics in a reply; ReplyError for what an `AlgorithmClient` would not send."""
    metrics = reply.content.config_records.get(reply_record(EVALUATE, "metrics"), ConfigRecord())
    rows = _metric(reply, "num_examples")
    if metrics.get("round") != round_:
        raise ReplyError(f"the reply belongs to round {metrics.get('round')!r}, not {round_}")
    if type(rows) is not int or not 0 <= rows < _MOST_ROWS:
        raise ReplyError(f"the number of rows must be a whole number from 0 to 2^27; got {rows!r}")
    return rows, metrics


def _noisy(reply: Message, rows: int, metrics: ConfigRecord, bins: ScoreBins) -> Released:
    value, sigma = metrics.get("value"), metrics.get("sigma")
    if type(value) is not float or not math.isfinite(value):
        raise ReplyError(f"the noisy sum must be a finite number; got {value!r}")
    if type(sigma) is not float or not 0 < sigma < math.inf or not rows:
        raise ReplyError(f"a noisy sum needs rows and a finite deviation above 0; got {rows} and {sigma!r}")
    if not bins.number:
        return Released(rows, value, sigma)
    return Released.with_scores(rows, value, sigma, _scores(metrics, bins.shape), bins)


def _exact(reply: Message, rows: int, metrics: ConfigRecord, bins: ScoreBins) -> Evaluation:
    loss, correct = _metric(reply, "loss"), metrics.get("correct")
    if "sigma" in metrics:
        raise ReplyError("the reply has noise, and this run has no privacy")
    if type(loss) is not float or not math.isfinite(loss):
        raise ReplyError(f"the loss must be a finite number; got {loss!r}")
    if type(correct) is not float or correct > rows or correct == -math.inf:
        raise ReplyError(f"the number of correct rows must be at most {rows}; got {correct!r}")
    table = _table(metrics, rows, bins) if bins.number else None
    return Evaluation(rows, loss, correct, table, _errors(metrics) if "errors" in metrics else None)


def _errors(metrics: ConfigRecord) -> Errors:
    """The sums of a regression's errors in a reply."""
    found = Errors(*doubles(metrics["errors"], (len(Errors._fields),), "its list of errors"))
    if min(found.absolute, found.squared, found.squares) < 0:
        raise ReplyError("sums of errors must not be negative")
    return found


def _table(metrics: ConfigRecord, rows: int, bins: ScoreBins) -> Counted:
    """The table without noise in a reply; ReplyError unless it is one of so many rows."""
    table = bins.exact(_scores(metrics, bins.exact_shape), rows)
    if table is None:
        raise ReplyError(f"the counts by bin are not those of {rows} rows")
    return table


def _scores(metrics: ConfigRecord, shape: tuple[int, ...]) -> Array:
    """The counts by bin in a reply, in this shape; ReplyError if there are others."""
    return doubles(metrics.get("scores"), shape, "its table of scores for this number of bins")


def _metric(reply: Message, name: str) -> object:
    """The number in the record of this name, None if it is missing."""
    return reply.content.metric_records.get(reply_record(EVALUATE, name), MetricRecord()).get(name)
