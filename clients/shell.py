"""The client side that all methods share: a Flower NumPyClient around a page's `client_update`.

State, dual variables first of all, lives in Flower's `context.state` and nowhere else. A round computes
first and writes last: if anything fails on the way, the state is what it was. The last reply is kept, so
a repeated request gets the same numbers again and moves no dual twice; an older round is refused.
"""

import math
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from flwr.app import Array as WireArray
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.client import NumPyClient
from numpy.typing import NDArray

from twinflower.algorithms.page import Page
from twinflower.batches import Shards, Walk
from twinflower.errors import ReplyError, require
from twinflower.objectives import Batch, Objective
from twinflower.privacy.guard import Guard
from twinflower.privacy.ledger import BudgetSpent
from twinflower.privacy.release import Noise, no_noise
from twinflower.wire import checked, dtype_name, from_npy, to_npy

Arrays = list[NDArray[Any]]

_ARRAYS, _DONE = "twinflower.arrays", "twinflower.done"  # records of context.state
_STATE, _REPLY = "state.", "reply."  # prefixes of the names in the first


class Answer(NamedTuple):
    """A round's reply as it crosses the wire: upload arrays, row count, and metrics with the round."""

    arrays: list[WireArray]
    rows: int
    metrics: ConfigRecord


class _Done(NamedTuple):
    """A round's result, and what context.state has of the last one: the new state and the reply."""

    state: Any
    answer: Answer


class PageClient(NumPyClient):
    """Base of all clients; a subclass names its `page_class` and documents its client side.

    context: Flower's, whose state holds the duals. page: the algorithm with its settings, the same as the
    server's. objective, rows: this client's f_i and its data. start: the public starting point (d,).
    client, num_clients: partition number and count. seed: of the batches. walk: how local steps take rows.
    guard: the client's privacy, for pages whose `privacy` is not "none".
    """

    page_class: ClassVar[type[Page]]

    def __init__(
        self,
        context: Context,
        page: Page,
        objective: Objective,
        rows: Batch,
        start: NDArray[np.float64],
        client: int,
        num_clients: int,
        walk: Walk | None = None,
        seed: int = 0,
        guard: Guard | None = None,
    ) -> None:
        require(
            type(page) is self.page_class,
            f"{type(self).__name__} needs a {self.page_class.__name__} page; got {type(page).__name__}",
        )
        self.context = context
        self.page = page
        self.objective = objective
        self.shards = Shards.site(rows, client)
        self.start = start
        self.client = client
        self.num_clients = num_clients
        self.walk = walk or Walk()
        self.seed = seed
        self.guard = guard
        if guard is not None:
            guard.check_rows(rows.features)
        require(
            (guard is None) == (page.privacy == "none"),
            f"privacy '{page.privacy}' {'needs a guard' if guard is None else 'takes no guard'}",
        )

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Which partition this node holds, and of how many."""
        return {"partition-id": self.client, "num-partitions": self.num_clients}

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """One round; config holds its number, "round". Returns upload arrays, row count, metrics.

        With "closing" in config the inbox is the one after the last round: the state is finished, and nothing is
        uploaded. A private client whose budget is spent refuses: no arrays, and "refused" in the metrics. Raises
        ReplyError, and leaves the state alone, for a request that is malformed or out of date, or when the
        result is not finite.
        """
        arrays, rows, metrics = self.answer(parameters, config)
        return [from_npy(array.data) for array in arrays], rows, dict(metrics)

    def answer(self, parameters: Arrays, config: dict[str, Any]) -> Answer:
        """`fit` for callers that want the bytes: each array is encoded once, for the state and for the wire."""
        round_ = _round_of(config)
        kept = self._load()
        last = cast(int, kept.answer.metrics["round"]) if kept else 0
        if kept and round_ == last:
            return kept.answer
        if round_ < last:
            raise ReplyError(f"round {round_} is asked after round {last}")
        state = kept.state if kept else self.page.init_client(self.start)
        try:
            work = self._finish if config.get("closing") is True else self._work
            done = work(state, parameters, round_)
        except BudgetSpent:
            return Answer([], 0, ConfigRecord({"round": round_, "refused": True}))
        self._save(done)
        return done.answer

    @property
    def _num_rows(self) -> int:
        return int(self.shards.sizes[0])

    def _work(self, state: Any, parameters: Arrays, round_: int) -> _Done:
        """Everything that may fail, with no side effect but the charge in the ledger."""
        d = self.objective.d
        inbox = self.page.unpack_inbox(parameters, d)
        noise = self._open(round_)
        batches = self.walk.batches(self.shards, self.client, self.seed, round_)
        with np.errstate(all="ignore"):  # a diverging model is caught below, by its result
            state, upload, report = self.page.client_update(
                state, inbox, self.objective, batches, noise, round_
            )
        reply = self.page.pack_upload(upload, d)
        for array in reply:
            if not np.isfinite(array).all():
                raise ReplyError(f"client {self.client}: the local update of round {round_} is not finite")
        metrics: dict[str, Any] = {"round": round_}
        if self.guard is None:  # step counts may depend on private data
            metrics |= {"local-steps": int(report.steps), "stopped": bool(report.fired)}
        return _Done(
            state, Answer([_encoded(array) for array in reply], self._num_rows, ConfigRecord(metrics))
        )

    def _finish(self, state: Any, parameters: Arrays, round_: int) -> _Done:
        """The state after the last inbox; a function of what was released before and of what is public."""
        state = self.page.finish(state, self.page.unpack_inbox(parameters, self.objective.d))
        return _Done(state, Answer([], self._num_rows, ConfigRecord({"round": round_})))

    def _open(self, round_: int) -> Noise:
        """Pay for the round before anything private is computed."""
        if self.guard is None:
            return no_noise
        pace = self.walk.pace(self._num_rows)
        return self.guard.open(self.page.release(self.guard.bounds, pace, round_), round_)

    def _load(self) -> _Done | None:
        if _DONE not in self.context.state:
            return None
        arrays = cast(ArrayRecord, self.context.state[_ARRAYS])
        metrics = cast(ConfigRecord, self.context.state[_DONE])
        shapes = self.page.state_shapes(self.objective.d)
        fields = (
            _state_array(arrays, name, shape) for name, shape in zip(shapes._fields, shapes, strict=True)
        )
        reply = [arrays[key] for key in arrays if key.startswith(_REPLY)]
        return _Done(type(shapes)(*fields), Answer(reply, self._num_rows, metrics))

    def _save(self, done: _Done) -> None:
        """Encode first, so that the two assignments cannot fail half-way."""
        arrays = ArrayRecord()
        for name, array in zip(done.state._fields, done.state, strict=True):
            if array.size:
                arrays[_STATE + name] = _encoded(array)
        for place, encoded in enumerate(done.answer.arrays):
            arrays[f"{_REPLY}{place}"] = encoded
        self.context.state[_ARRAYS] = arrays
        self.context.state[_DONE] = done.answer.metrics


def _state_array(arrays: ArrayRecord, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """One array of the state; an empty one is not stored."""
    return checked(name, from_npy(arrays[_STATE + name].data), shape) if math.prod(shape) else np.empty(shape)


def _encoded(array: NDArray[Any]) -> WireArray:
    return WireArray(dtype_name(array.dtype), array.shape, "numpy.ndarray", to_npy(array))


def _round_of(config: dict[str, Any]) -> int:
    round_ = config.get("round")
    if type(round_) is not int or round_ < 1:
        raise ReplyError(f"the request must carry its round, a whole number from 1; got {round_!r}")
    return round_
