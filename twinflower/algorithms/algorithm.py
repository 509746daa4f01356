"""The interface of every algorithm.

An algorithm is a frozen dataclass. Its fields are settings, and its methods are pure functions of arrays.
The leading axes of every array are clients (and seeds before them), so one NumPyClient's call is a slice
of a whole cohort's. Time, files, randomness and Flower belong to the callers.

    init_client(start)                          -> state      what a client keeps
    init_server(start, num_clients, key)        -> server     what the server keeps
    broadcast(server, round_, node)             -> inbox      server to one node, or to nodes (..., K)
    client_update(state, inbox, work)           -> state, upload, report
    release(bounds, workload, round_)           -> release    what a client releases in that round (private runs)
    server_update(server, uploads, clients, round_)                -> server
    model(server)                               -> x          what is evaluated and deployed

Optional abilities and requirements beyond these functions are in `abilities`.

States, inboxes and uploads are NamedTuples of arrays, declared by `inbox`, `upload` and `state` (`layout`).
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index, Seeds, of_clients
from ..privacy.release import Release
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..problems.regularisers import Regulariser
from ..work import LocalWork, Report
from .layout import Layout

T = TypeVar("T", bound=np.generic)


class RunInfo(NamedTuple):
    """Public information about a run, beyond an algorithm's own settings. Every algorithm receives it.

    sizes: the number of rows of each client if F is the mean over all rows (weighting = "rows"); empty if all clients
    have the same number, or if F is the mean over the clients. neighbours: the neighbours of each client in the graph
    of a networked method, ascending; empty without a graph. row_norm: an upper bound on the norm of a row, or 0 if none
    is known. key: the seed of the public random numbers of a method that `DrawsSteps`.
    """

    num_clients: int = 1
    rounds: int = 1
    sizes: tuple[int, ...] = ()
    neighbours: tuple[tuple[int, ...], ...] = ()
    row_norm: float = 0.0
    key: int = 0

    def shares(self, clients: Index) -> Array | None:
        """N_i / N, the weights in F of clients (..., K), or None if every client has weight 1 / num_clients."""
        if not self.sizes:
            return None
        sizes = np.array(self.sizes, dtype=np.float64)
        return of_clients(sizes / sizes.sum(-1, keepdims=True), clients)


NO_INFO = RunInfo()


class Algorithm(Protocol):
    """An algorithm with its settings; the module's docstring describes the seven functions.

    weightings: the values of the run's `weighting` that the algorithm supports, with the default first. "clients": F is
    the mean over the clients of their mean losses. "rows": F is the mean over all rows, so a client with more rows has
    a larger weight. takes_local_steps: whether a client may take several steps in a round; the dataclass then has a
    field `sensitivity`, the bound to use (`privacy.release.SENSITIVITIES`). modes: the values of `privacy` that the
    algorithm supports, with "none" first.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    weightings: ClassVar[tuple[str, ...]]
    takes_local_steps: ClassVar[bool]
    modes: ClassVar[tuple[str, ...]]

    @property
    def regulariser(self) -> Regulariser:
        """The regulariser h of the problem."""

    @property
    def info(self) -> RunInfo:
        """Public information about the run."""

    @property
    def inbox(self) -> Layout:
        """The layout of the message from the server to one node."""

    @property
    def upload(self) -> Layout:
        """The layout of a client's reply."""

    @property
    def state(self) -> Layout:
        """The layout of a client's stored state."""

    def init_client(self, start: Array) -> Any:
        """The client's state before the first round. start (..., d) is public."""

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Any:
        """The server's state before the first round. key (...,) seeds the public random numbers of the run."""

    def broadcast(self, server: Any, round_: int, node: Index) -> Any:
        """The inbox of one node (shape ()), or of nodes (..., K), whose leading axes broadcast to them."""

    def client_update(
        self, state: Any, inbox: Any, work: LocalWork
    ) -> tuple[Any, Any, Report]:
        """Compute one client's round, or the round of a whole cohort."""

    def server_update(self, server: Any, uploads: Any, clients: Index, round_: int) -> Any:
        """The server's state after the uploads (..., K, ...) of clients (..., K), in ascending order."""

    @property
    def privacy(self) -> str:
        """"none", or the way in which the client's releases are protected."""

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """What one client releases in one round; used to draw the noise and to fill the ledger. Only called if privacy
        is not "none"."""

    def model(self, server: Any) -> Array:
        """The model to evaluate and to deploy, (..., d)."""


def check_class(algorithm: type) -> type[Algorithm]:
    """The class itself, if it is a dataclass with the fields and class attributes from which a run builds an algorithm.

    Raises TypeError, which names what is missing.
    """
    lacking = [name for name in Algorithm.__annotations__ if name not in dir(algorithm)]
    wanted = ["regulariser", "info", "privacy"]
    if "takes_local_steps" not in lacking and algorithm.takes_local_steps:  # type: ignore[attr-defined]
        wanted.append("sensitivity")
    there = {field.name for field in fields(algorithm)}
    lacking += [name for name in wanted if name not in there]
    if lacking:
        raise TypeError(f"{algorithm.__name__} needs {', '.join(lacking)}: see docs/add-an-algorithm.md")
    return algorithm


def to_nodes(x: NDArray[T], node: Index) -> NDArray[T]:
    """A server array (..., d) with an extra axis (..., 1, d) if it is broadcast to nodes (..., K); unchanged for one
    node."""
    return x if np.ndim(node) == 0 else x[..., None, :]


def stack(parts: Sequence[Any]) -> Any:
    """Stack the states or uploads of several clients along a new leading client axis."""
    return type(parts[0])(*(np.stack(arrays) for arrays in zip(*parts, strict=True)))


def unstack(whole: Any, count: int) -> list[Any]:
    """Invert `stack`. An axis of length 1 that broadcasts over the clients is shared and not copied."""
    columns = [[array[0]] * count if len(array) == 1 else array for array in whole]
    return [type(whole)(*(column[i] for column in columns)) for i in range(count)]
