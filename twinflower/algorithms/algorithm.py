"""The interface of every algorithm.

An algorithm is a frozen dataclass: its fields are settings, its methods pure functions of arrays. The
leading axes of every array are clients (and seeds before them), so one NumPyClient's call is a slice
of a whole cohort's. Time, files, randomness and Flower belong to the callers.

    init_client(start)                          -> state      what a client keeps
    init_server(start, num_clients, key)        -> server     what the server keeps
    broadcast(server, round_, node)             -> inbox      server to one node, or to nodes (..., K)
    client_update(state, inbox, work)           -> state, upload, report
    release(bounds, pace, round_)               -> release    what that round lets out (private runs)
    server_update(server, uploads, clients, round_)                -> server
    model(server)                               -> x          what is evaluated and deployed

What some methods can do or need beyond that is in `abilities`.

States, inboxes and uploads are NamedTuples of arrays, declared by `inbox`, `upload` and `state` (`layout`).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index, Seeds
from ..batches import Workload
from ..objectives import Bounds
from ..privacy.release import Release
from ..regularisers import Regulariser
from ..work import LocalWork, Report
from .layout import Layout

T = TypeVar("T", bound=np.generic)


class RunInfo(NamedTuple):
    """What is public about a run beyond an algorithm's own settings. Every algorithm is given them.

    sizes: rows of each client where F is the mean over all rows (weighting = "rows"); empty if they are alike, or if F
    is the mean over the clients. neighbours: of each client in the graph of a networked method, ascending; empty
    without a graph. row_norm: no row is longer; 0 where that is not known. key: seeds the public
    coins of a method that `DrawsSteps`.
    """

    num_clients: int = 1
    rounds: int = 1
    sizes: tuple[int, ...] = ()
    neighbours: tuple[tuple[int, ...], ...] = ()
    row_norm: float = 0.0
    key: int = 0

    def shares(self, clients: Index) -> Array | None:
        """N_i / N, the weights in F of clients (..., K); None where all weigh 1 / num_clients."""
        if not self.sizes:
            return None
        sizes = np.array(self.sizes, dtype=np.float64)
        return np.take_along_axis(sizes / sizes.sum(-1, keepdims=True), clients, -1)


NO_INFO = RunInfo()


class Algorithm(Protocol):
    """An algorithm with its settings; see the module's docstring for the six functions.

    weightings: what F may be, by the run's `weighting`, the default
    first: "clients", the mean over the clients of their own means, or "rows", the mean over all rows, in which a client
    with more rows weighs more. takes_local_steps: whether clients take several steps in a round.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    weightings: ClassVar[tuple[str, ...]]
    takes_local_steps: ClassVar[bool]

    @property
    def regulariser(self) -> Regulariser:
        """h of the problem."""

    @property
    def info(self) -> RunInfo:
        """What is public about the run."""

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

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """What one round of one client releases, for `noise` and for the ledger; privacy not "none"."""

    def model(self, server: Any) -> Array:
        """The point to evaluate and to deploy, (..., d)."""


def to_nodes(x: NDArray[T], node: Index) -> NDArray[T]:
    """A server array (..., d) as seen by nodes (..., K): with an axis to broadcast over them."""
    return x if np.ndim(node) == 0 else x[..., None, :]


def stack(parts: Sequence[Any]) -> Any:
    """States or uploads of several clients as one with a leading client axis."""
    return type(parts[0])(*(np.stack(arrays) for arrays in zip(*parts, strict=True)))


def unstack(whole: Any, count: int) -> list[Any]:
    """Inverse of `stack`; an axis of length 1 that broadcasts over the clients is shared, not copied."""
    columns = [[array[0]] * count if len(array) == 1 else list(array) for array in whole]
    return [type(whole)(*parts) for parts in zip(*columns, strict=True)]
