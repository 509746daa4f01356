"""The interface of every algorithm page.

A page is a frozen value that holds an algorithm's settings and a few pure functions of arrays. The
leading axes of every array are clients (and seeds before them), so one NumPyClient's call is a slice
of a whole cohort's. Time, files, randomness and Flower belong to the callers.

    init_client(start)                          -> state      what a client keeps
    init_server(start, num_clients, key)        -> server     what the server keeps
    broadcast(server, round_, node)             -> inbox      server to one node, or to nodes (..., K)
    client_update(state, inbox, work)           -> state, upload, report
    release(bounds, pace, round_)               -> release    what that round lets out (private runs)
    server_update(server, uploads, clients, round_)                -> server
    model(server)                               -> x          what is evaluated and deployed

and, for methods that need them (`Defaults` has the others' answers):

    finish(state, inbox)                        -> state      after the last round, where `closes`
    points(server)                              -> x_i        what the server knows of the clients' own points
    watch(server)                               -> numbers    columns of the method's own in metrics.csv, and
    assess(x, objective, rows)                  -> numbers    those that need the data
    outlook(bounds, noise_multiplier, pace, start) -> rows   what a private run will reach, before it starts
    multiplier(epsilon, delta, releases)        -> z          noise by an accounting of the method's own

States, inboxes and uploads are NamedTuples of arrays, declared by `inbox`, `upload` and `state` (`layout`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index, Seeds
from ..objectives import Batch, Objective
from ..privacy.release import Bounds, Pace, Release
from ..regularisers import Regulariser
from .layout import Layout
from .work import LocalWork, Report

T = TypeVar("T", bound=np.generic)


class Facts(NamedTuple):
    """What is public about a run beyond an algorithm's own settings. A page with a field `facts` is given them.

    sizes: rows of each client where F is the mean over all rows (weighting = "rows"); empty if they are alike, or if F
    is the mean over the clients. neighbours: of each client in the graph of a networked method, ascending; empty
    without a graph. row_norm: no row is longer; 0 where that is not known.
    """

    num_clients: int = 1
    rounds: int = 1
    sizes: tuple[int, ...] = ()
    neighbours: tuple[tuple[int, ...], ...] = ()
    row_norm: float = 0.0

    def shares(self, clients: Index) -> Array | None:
        """N_i / N, the weights in F of clients (..., K); None where all weigh 1 / num_clients."""
        if not self.sizes:
            return None
        sizes = np.array(self.sizes, dtype=np.float64)
        return np.take_along_axis(sizes / sizes.sum(-1, keepdims=True), clients, -1)


NO_FACTS = Facts()


class Page(Protocol):
    """An algorithm with its settings; see the module's docstring for the six functions.

    forgetful: whether a client that has lost its state may go on from a fresh one; else its replies are refused.
    needs_all: whether every round needs every client; a strategy then asks again those that did not answer, and
    stops if they stay away. closes: whether the clients are sent one more inbox after the last round, for `finish`.
    columns: names of what `watch` and `assess` tell. weightings: what F may be, by the run's `weighting`, the default
    first: "clients", the mean over the clients of their own means, or "rows", the mean over all rows, in which a client
    with more rows weighs more.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    forgetful: ClassVar[bool]
    needs_all: ClassVar[bool]
    closes: ClassVar[bool]
    columns: ClassVar[tuple[str, ...]]
    weightings: ClassVar[tuple[str, ...]]

    @property
    def regulariser(self) -> Regulariser:
        """h of the problem."""

    @property
    def inbox(self) -> Layout:
        """What goes from the server to one node."""

    @property
    def upload(self) -> Layout:
        """What comes back."""

    @property
    def state(self) -> Layout:
        """What a client keeps."""

    def init_client(self, start: Array) -> Any:
        """Client state before the first round; start (..., d) is public."""

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Any:
        """Server state before the first round; key (...,) seeds the public coins of the run."""

    def broadcast(self, server: Any, round_: int, node: Index) -> Any:
        """Inbox of one node (node ()), or of nodes (..., K) with leading axes that broadcast to them."""

    def client_update(
        self, state: Any, inbox: Any, work: LocalWork
    ) -> tuple[Any, Any, Report]:
        """One client's round, or a whole cohort's."""

    def server_update(self, server: Any, uploads: Any, clients: Index, round_: int) -> Any:
        """Server state after the uploads (..., K, ...) of clients (..., K), ascending."""

    @property
    def privacy(self) -> str:
        """"none", or how the client's releases are protected."""

    def release(self, bounds: Bounds, pace: Pace, round_: int) -> Release:
        """What one round of one client releases, for `noise` and for the ledger; privacy not "none"."""

    def at_stake(self, client: int, round_: int) -> float:
        """The part of `release`'s sensitivity, and of its noise, that a client's release of a round really has."""

    def model(self, server: Any) -> Array:
        """The point to evaluate and to deploy, (..., d)."""

    def finish(self, state: Any, inbox: Any) -> Any:
        """Client state after the inbox that follows the last round."""

    def points(self, server: Any) -> Array | None:
        """The clients' own points (..., N, d) as far as the server can tell, None if it cannot."""

    def watch(self, server: Any) -> dict[str, Array]:
        """A number (...,) for each of `columns`."""

    def check(self, objective: Objective) -> None:
        """SettingError for an objective that the method cannot take."""

    def assess(self, x: Array, objective: Objective, rows: Batch) -> dict[str, float]:
        """Numbers on a model (d,), measured on all rows: `columns` that `watch` cannot tell."""

    def met(self, told: Mapping[str, float]) -> bool | None:
        """Whether the last row of metrics keeps the bounds of a constrained problem; None without any."""

    def outlook(
        self, bounds: Bounds, noise_multiplier: float, pace: Pace, start: Array, away: float | None = None
    ) -> list[tuple[str, str]]:
        """What a private run from start (d,) is expected to reach, as rows; away: ||x* - start||^2 if it is known."""

    def multiplier(self, epsilon: float, delta: float, releases: int) -> float | None:
        """sigma / sensitivity of a plain release by a rule of the method's own, for a total (epsilon, delta) of a
        client's releases; None for exact accounting."""


class Defaults:
    """The answers of a method that averages whoever is there and ends with its last round."""

    forgetful: ClassVar[bool] = True
    needs_all: ClassVar[bool] = False
    closes: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = ()
    weightings: ClassVar[tuple[str, ...]] = ("clients",)

    def check(self, objective: Objective) -> None:
        """Any objective will do."""

    def at_stake(self, client: int, round_: int) -> float:
        """All of it."""
        return 1.0

    def finish(self, state: Any, inbox: Any) -> Any:
        """Nothing left to do."""
        return state

    def points(self, server: Any) -> Array | None:
        """Unknown."""
        return None

    def watch(self, server: Any) -> dict[str, Array]:
        """Nothing."""
        return {}

    def assess(self, x: Array, objective: Objective, rows: Batch) -> dict[str, float]:
        """Nothing."""
        return {}

    def met(self, told: Mapping[str, float]) -> bool | None:
        """There are no bounds."""
        return None

    def outlook(
        self, bounds: Bounds, noise_multiplier: float, pace: Pace, start: Array, away: float | None = None
    ) -> list[tuple[str, str]]:
        """Nothing is known in advance."""
        return []

    def multiplier(self, epsilon: float, delta: float, releases: int) -> float | None:
        """Exact accounting."""
        return None


def to_nodes(x: NDArray[T], node: Index) -> NDArray[T]:
    """A server array (..., d) as seen by nodes (..., K): with an axis to broadcast over them."""
    return x if np.ndim(node) == 0 else x[..., None, :]


def settings_of(page: type) -> dict[str, type]:
    """Names and types of a page's settings that a user may type (numbers, switches and words)."""
    return {f.name: f.type for f in fields(page) if f.type in (int, float, bool, str)}  # type: ignore[misc]


def stack(parts: Sequence[Any]) -> Any:
    """States or uploads of several clients as one with a leading client axis."""
    return type(parts[0])(*(np.stack(arrays) for arrays in zip(*parts, strict=True)))


def unstack(whole: Any, count: int) -> list[Any]:
    """Inverse of `stack`; an axis of length 1 that broadcasts over the clients is shared, not copied."""
    columns = [[array[0]] * count if len(array) == 1 else list(array) for array in whole]
    return [type(whole)(*parts) for parts in zip(*columns, strict=True)]
