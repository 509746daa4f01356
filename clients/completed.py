"""A client's completed rounds: what is stored of a round, and what is read back from it."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import ReplyError
from twinflower.wire import checked

from .request import RoundRequest
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
