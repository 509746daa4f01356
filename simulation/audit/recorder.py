"""Run an app's client or server in this process, and record everything that an observer sees.

A `Mechanism` is what an audit runs: a function of data and a seed. `client` makes one of a ClientApp: the observer is
the server, which sees every reply. `server` makes one of a Strategy with central differential privacy: the observer
sees the model after every round, and the data are the clients' updates.
"""

import logging
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from twinflower.errors import SettingError, cause, require
from twinflower.flower_messages import FIT, request_record
from twinflower.privacy.accountant import check_count
from twinflower.strategies.sites import WrappedGrid

from ..runtimes import flower_internals
from .transcript import Outcome, Transcript, of_exception, of_message, of_records

Arrays = Sequence[NDArray[Any]] | Mapping[str, NDArray[Any]]
Mechanism = Callable[[Any, int], Transcript]
"""A run on data with a seed for everything that is random in it."""

_NODE, _RUN = 1, 1
_NUMBERS = count(1)


class Request(NamedTuple):
    """What the server sends in a round. kind: a message type, such as "train", "evaluate" or "query.mine"."""

    content: RecordDict
    kind: str = "train"


def request(arrays: Arrays, config: Mapping[str, Any] | None = None, kind: str = "train") -> Request:
    """A request in the format of Flower's own strategies, for an app with functions of `@app.train()`: records
    "arrays" and "config"."""
    content = RecordDict({"arrays": _array_record(arrays)})
    content["config"] = ConfigRecord(dict(config or {}))
    return Request(content, kind)


def numpy_request(arrays: Arrays, config: Mapping[str, Any] | None = None, kind: str = FIT) -> Request:
    """A request for a NumPyClient. kind: fit or evaluate."""
    content = RecordDict({request_record(kind, "parameters"): _array_record(arrays)})
    content[request_record(kind, "config")] = ConfigRecord(dict(config or {}))
    return Request(content, "train" if kind == FIT else kind)


def _array_record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord(dict(arrays) if isinstance(arrays, Mapping) else list(arrays))


def client(
    app: Callable[[Any, int], ClientApp],
    requests: Sequence[Request],
    node_config: Mapping[str, Any] | None = None,
    run_config: Mapping[str, Any] | None = None,
) -> Mechanism:
    """The replies of one client to these requests, one for every round; its context is carried over the rounds.

    app(data, seed) makes the ClientApp of a client that holds these data. The global generators of Python, NumPy and
    PyTorch are seeded before; an app with a generator of its own seeds it with `seed`. An exception is an outcome.
    """
    require(bool(requests), "an audit needs at least one request, that is, a round")
    node = {"partition-id": 0, "num-partitions": 1} | dict(node_config or {})

    def run(data: Any, seed: int) -> Transcript:
        _begin(seed)
        made, context = (
            _made(app, data, seed),
            Context(_RUN, _NODE, node, RecordDict(), dict(run_config or {})),
        )
        return [_answer(made, context, one, round_) for round_, one in enumerate(requests, 1)]

    return run


def _made(app: Callable[[Any, int], ClientApp], data: Any, seed: int) -> ClientApp:
    try:
        made = app(data, seed)
    except Exception as error:
        raise SettingError(f"app(rows, seed) failed: {type(error).__name__}: {cause(error)}") from error
    if not isinstance(made, ClientApp):
        raise SettingError(f"app(rows, seed) must return a ClientApp; got {type(made).__name__}")
    return made


def _answer(app: ClientApp, context: Context, asked: Request, round_: int) -> Outcome:
    message = Message(RecordDict(dict(asked.content)), _NODE, asked.kind, group_id=str(round_))
    flower_internals.number(message, next(_NUMBERS))
    try:
        reply = app(message, context)
    except Exception as error:  # noqa: BLE001  an app may raise anything
        return of_exception(error)
    return of_message(reply)


class Update(NamedTuple):
    """What a client sends in every round of a central mechanism: the received model plus `change`, for so many rows."""

    change: Sequence[NDArray[Any]]
    num_examples: int = 1


def server(
    strategy: Callable[[], Strategy],
    model: Sequence[NDArray[Any]],
    rounds: int = 1,
    weight: str = "num-examples",
) -> Mechanism:
    """The models after each of `rounds` rounds of a strategy; the data are a sequence of `Update`, one per client.

    strategy() makes the strategy with all its wrappers. weight: the metric with a client's number of rows. Raises
    SettingError for fewer clients than a strategy of the kind of FedAvg waits for.
    """
    check_count("rounds", rounds)

    def run(data: Sequence[Update], seed: int) -> Transcript:
        _begin(seed)
        made, current, outcomes = strategy(), ArrayRecord(list(model)), []
        _check_clients(made, len(data))
        for round_ in range(1, rounds + 1):
            try:
                current, outcome = _aggregated(made, current, data, round_, weight)
            except Exception as error:  # noqa: BLE001  a strategy may raise anything
                outcome = of_exception(error)
            outcomes.append(outcome)
        return outcomes

    return run


def _check_clients(strategy: Strategy, clients: int) -> None:
    """Raise SettingError if the strategy, or the one that it wraps, would wait for more clients for ever."""
    inner = getattr(strategy, "strategy", strategy)
    least = getattr(inner, "min_available_nodes", 1)
    if not clients >= least:
        raise SettingError(
            f"{type(inner).__name__} waits for {least} clients, and the data have {clients}: add updates, or lower "
            "min_available_nodes"
        )


def _aggregated(
    made: Strategy, current: ArrayRecord, data: Sequence[Update], round_: int, weight: str
) -> tuple[ArrayRecord, Outcome]:
    """The model after a round in which every client that is asked replies with its update, and what is seen of it."""
    asked = list(made.configure_train(round_, current, ConfigRecord(), _Nodes(len(data))))
    replies = [
        _updated(message, current, data[message.metadata.dst_node_id - 1], weight)
        for message in sorted(asked, key=lambda message: message.metadata.dst_node_id)
    ]
    arrays, metrics = made.aggregate_train(round_, replies)
    seen = {"arrays": arrays, "metrics": metrics}
    return arrays or current, of_records(
        RecordDict({name: it for name, it in seen.items() if it is not None})
    )


def _updated(message: Message, current: ArrayRecord, update: Update, weight: str) -> Message:
    flower_internals.number(message, next(_NUMBERS))
    arrays = [a + c for a, c in zip(current.to_numpy_ndarrays(), update.change, strict=True)]
    metrics = MetricRecord({weight: update.num_examples})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


class _Nodes(WrappedGrid):
    """A grid that has nodes 1..N and no other grid to pass messages on to, so that sending one is an error."""

    def __init__(self, number: int) -> None:
        self.number = number

    def get_node_ids(self) -> Iterable[int]:
        """The node numbers."""
        return range(1, self.number + 1)


def _begin(seed: int) -> None:
    """Seed the generators that many apps share."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the apps use it
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@contextmanager
def recording() -> Iterator[None]:
    """What this process needs to make Flower's messages; Flower's log is silent within the block."""
    flower_internals.begin_run(_RUN)
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
