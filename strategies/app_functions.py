"""Our strategies with apps whose clients are functions, `@app.train()` and `@app.evaluate()`.

    nodes = AppFunctions(grid, algorithm, ArrayRecord(net.state_dict()))
    result = strategies.FedPDM(algorithm).start(nodes, nodes.flat, num_rounds=10)
    net.load_state_dict(nodes.named(result.arrays).to_torch_state_dict())

A strategy speaks the format of Flower's NumPyClient. `AppFunctions` is a grid that translates what it sends and what
comes back. docs/plug-in.md says what a function receives and what it must send.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from twinflower.algorithms.algorithm import Algorithm
from twinflower.clients.functions import ARRAYS, CONFIG, FunctionFormat, NamedParts
from twinflower.clients.records import record_of
from twinflower.errors import ReplyError, require
from twinflower.flower_messages import EVALUATE, FIT, KINDS, PROPERTIES, RAISED, reply_record, request_record
from twinflower.wire import from_npy

T = TypeVar("T")

_NO_FUNCTION = "No query function"  # in the error of an app without `@app.query()`
_LOSS, _ACCURACY = ("loss",), ("accuracy", "acc")


class AppFunctions(Grid):
    """A grid around Flower's, for a strategy whose clients are functions.

    algorithm: the strategy's. model: the starting point, in parts of any names and shapes, all float32 or all float64;
    `flat` is the same as the strategy takes it. num_clients: how many nodes take part, by default those present at the
    start. query: False if the app has no `@app.query()` function; a node without one logs an error when it is asked.
    Clients are numbered in the order of their nodes' ids, unless such a function replies with "partition-id" and
    "num-partitions" in a ConfigRecord. Raises SettingError for a model that has no such parts, and for an algorithm
    that compresses its messages or sends several models in one.
    """

    def __init__(
        self, grid: Grid, algorithm: Algorithm, model: ArrayRecord, num_clients: int = 0, query: bool = True
    ) -> None:
        require(
            not algorithm.num_folds,
            f"clients that are functions receive one model in a request, and {algorithm.name} sends many: use its "
            "NumPyClient",
        )
        self._grid, self._count, self._query = grid, num_clients, query
        self.parts = NamedParts.of(model)
        self._inbox = FunctionFormat(algorithm.inbox, self.parts)
        self._upload = FunctionFormat(algorithm.upload, self.parts)
        self._numbers: dict[int, int] = {}
        self.flat = record_of([self.parts.joined(model)])

    def named(self, flat: ArrayRecord) -> ArrayRecord:
        """A model as strategies have it, one array (d,), in the parts of the starting point."""
        return self.parts.split(_vector(flat))

    def get_node_ids(self) -> Iterable[int]:
        """The ids of the nodes that are present."""
        return self._grid.get_node_ids()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send a strategy's messages to functions, and return their replies as the strategy reads them."""
        sent = {message.metadata.dst_node_id: self._request(message) for message in messages}
        if not self._query and all(request.metadata.message_type == "query" for request in sent.values()):
            return list(map(self._numbered, sent.values()))
        replies = sorted(
            self._grid.send_and_receive(list(sent.values()), timeout=timeout),
            key=lambda r: r.metadata.src_node_id,
        )
        return [self._reply(reply, sent.get(reply.metadata.src_node_id)) for reply in replies]

    def _request(self, message: Message) -> Message:
        """The message for a function in place of one for a NumPyClient."""
        kind, node = KINDS[message.metadata.message_type], message.metadata.dst_node_id
        config = message.content.config_records[request_record(kind, "config")]
        if kind == PROPERTIES:
            return Message(RecordDict({CONFIG: config}), node, "query")
        sent = message.content.array_records[request_record(kind, "parameters")]
        record, numbers = (
            self._inbox.write(_arrays(sent)) if kind == FIT else (self.parts.split(_vector(sent)), {})
        )
        content = RecordDict({ARRAYS: record, CONFIG: ConfigRecord({**config, **numbers})})
        return Message(content, node, message.metadata.message_type, group_id=message.metadata.group_id)

    def _reply(self, reply: Message, request: Message | None) -> Message:
        """The reply of a NumPyClient in place of a function's; one that cannot be read is an error."""
        if request is None:
            return reply  # from Flower itself, about a node that has gone
        kind = request.metadata.message_type
        try:
            if reply.has_error():
                return self._numbered(request) if _NO_FUNCTION in str(reply.error.reason) else reply
            content = {"query": _properties, "train": self._fitted, "evaluate": _evaluated}[kind](
                reply.content, request.content
            )
        except ReplyError as error:
            return Message(Error(RAISED, str(error)), reply_to=request)
        return Message(content, reply_to=request)

    def _numbered(self, request: Message) -> Message:
        """The reply to a query, of an app without such a function: the next number that is free."""
        node = request.metadata.dst_node_id
        self._count = self._count or len(list(self.get_node_ids()))
        number = self._numbers.setdefault(node, len(self._numbers))
        places = ConfigRecord({"partition-id": number, "num-partitions": self._count})
        return Message(RecordDict({reply_record(PROPERTIES, "properties"): places}), reply_to=request)

    def _fitted(self, content: RecordDict, request: RecordDict) -> RecordDict:
        """The reply to "train": the algorithm's upload, and metrics with the round."""
        metrics = _numbers(content)
        arrays = self._upload.read(_only(content.array_records, "ArrayRecord"), metrics)
        stamp = {"round": cast(int, request.config_records[CONFIG]["round"])}
        return RecordDict(
            {
                reply_record(FIT, "parameters"): record_of(arrays),
                reply_record(FIT, "metrics"): ConfigRecord(stamp | metrics),
            }
        )

    def _unused(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a strategy only sends messages and receives their replies")

    run = property(_unused)
    set_run = create_message = push_messages = pull_messages = _unused


def _vector(record: ArrayRecord) -> NDArray[Any]:
    (vector,) = _arrays(record)
    return vector


def _arrays(record: ArrayRecord) -> list[NDArray[Any]]:
    return [from_npy(array.data) for array in record.values()]


def _only(records: Mapping[str, T], kind: str) -> T:
    """The only record of this kind in a reply, whatever its name."""
    if len(records) != 1:
        raise ReplyError(f"a reply must hold one {kind}; got {len(records)}")
    return next(iter(records.values()))


def _numbers(content: RecordDict) -> dict[str, Any]:
    """The metrics in a reply; "steps" and others that an upload needs are among them."""
    return dict(_only(content.metric_records, "MetricRecord"))


def _properties(content: RecordDict, request: RecordDict) -> RecordDict:
    """The reply to a query for the client's number."""
    return RecordDict({reply_record(PROPERTIES, "properties"): _only(content.config_records, "ConfigRecord")})


def _evaluated(content: RecordDict, request: RecordDict) -> RecordDict:
    """The reply to "evaluate": the mean loss, the number of rows, and how many of them are right."""
    metrics, round_ = _numbers(content), cast(int, request.config_records[CONFIG]["round"])
    rows, loss, accuracy = (_metric(metrics, endings) for endings in (("num-examples",), _LOSS, _ACCURACY))
    part = partial(reply_record, EVALUATE)
    return RecordDict(
        {
            part("loss"): MetricRecord({"loss": float(loss)}),
            part("num_examples"): MetricRecord({"num_examples": int(rows)}),
            part("metrics"): ConfigRecord({"round": round_, "correct": float(accuracy * rows)}),
        }
    )


def _metric(metrics: Mapping[str, Any], endings: tuple[str, ...]) -> float:
    """The metric whose name ends so; templates of Flower call the loss "eval_loss" or "loss"."""
    values = [value for name, value in metrics.items() if name.endswith(endings)]
    if len(values) != 1 or type(values[0]) not in (int, float):
        raise ReplyError(
            f"the metrics of an evaluation must hold one number whose name ends in {' or '.join(endings)}; got "
            f"{', '.join(metrics) or 'none'}"
        )
    return values[0]  # type: ignore[no-any-return]
