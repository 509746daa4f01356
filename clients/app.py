"""Our clients as functions: an app of `@app.train()`, `@app.evaluate()` and `@app.query()` in one call.

    app = client_app(algorithm, objective, lambda context: my_rows(context), start)

Such an app works with `twinflower.strategies.AppFunctions` around the grid, and if the algorithm's server only averages
models, with Flower's own `FedAvg`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import ReplyError
from twinflower.flower_messages import PLACES
from twinflower.privacy.guard import Guard
from twinflower.problems.interfaces import Batch, Objective

from .functions import ARRAYS, CONFIG, METRICS, FunctionFormat, NamedParts
from .methods import CLIENTS
from .mods import numbered
from .request import model_and_config, model_only
from .shell import AlgorithmClient


def client_app(
    algorithm: Algorithm,
    objective: Objective,
    rows: Callable[[Context], Batch],
    start: NDArray[Any],
    guard: Callable[[Context], Guard] | None = None,
    mods: Sequence[Any] = (),
    **keys: Any,
) -> ClientApp:
    """A ClientApp of functions around our client of this algorithm, with the same numbers as its NumPyClient.

    algorithm, objective, start: as in `AlgorithmClient`. rows, guard: functions of Flower's context that return the
    rows and the guard of the node, whose config has "partition-id" and "num-partitions"; the server numbers a node
    without them (`numbered`). mods: Flower's mods. keys: further arguments of `AlgorithmClient`, such as `schedule` and
    `seed`.

    The functions raise ReplyError for a request that no strategy would send, for a round that the privacy budget does
    not cover, and for the evaluation of a private client, which a NumPyClient answers.
    """
    app = ClientApp(mods=[numbered, *mods])

    def client(context: Context) -> AlgorithmClient:
        """The client of a node."""
        number, count = (int(context.node_config[place]) for place in PLACES)
        return CLIENTS[algorithm.name](
            context, algorithm, objective, rows(context), start, number, count,
            guard=guard(context) if guard else None, **keys,
        )  # fmt: skip

    @app.query()
    def query(message: Message, context: Context) -> Message:
        (config,) = message.content.config_records.values()
        places = ConfigRecord(client(context).get_properties(dict(config)))
        return Message(RecordDict({CONFIG: places}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(_trained(client(context), *model_and_config(message.content)), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(_evaluated(client(context), *model_and_config(message.content)), reply_to=message)

    return app


def _trained(client: AlgorithmClient, record: ArrayRecord, config: Mapping[str, Any]) -> RecordDict:
    """The reply to "train": the upload under the names of the model's parts, and its numbers.

    A server that names no round is one of Flower's own, which averages models.
    """
    parts, averages = NamedParts.leading(record, len(client.start)), "round" not in config
    received = FunctionFormat(client.algorithm.inbox, parts).read(record, config)
    arrays, rows, metrics = client.fit(received, model_only(config) if averages else dict(config))
    if metrics.get("refused"):
        raise ReplyError("the round is refused: the privacy budget is spent")
    sent = FunctionFormat(client.algorithm.upload, parts)
    named, numbers = (parts.split(arrays[0]), {}) if averages else sent.write(arrays)
    numbers |= {name: value if type(value) is float else int(value) for name, value in _numeric(metrics)}
    return RecordDict({ARRAYS: named, METRICS: MetricRecord({**numbers, "num-examples": rows})})


def _numeric(metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The numbers among the metrics; a MetricRecord takes no others."""
    return [(name, value) for name, value in metrics.items() if isinstance(value, int | float)]


def _evaluated(client: AlgorithmClient, record: ArrayRecord, config: Mapping[str, Any]) -> RecordDict:
    """The reply to "evaluate": mean loss and accuracy on the held-out rows, and their number."""
    if client.guard is not None:
        raise ReplyError(
            "a private client is evaluated as a NumPyClient, whose reply says how large its noise is"
        )
    x = NamedParts.leading(record, len(client.start)).joined(record)
    loss, rows, metrics = client.evaluate([x], dict(config) if "round" in config else model_only(config))
    return RecordDict(
        {METRICS: MetricRecord({"loss": loss, "accuracy": metrics["accuracy"], "num-examples": rows})}
    )
