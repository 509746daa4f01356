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

Everything else that a caller may ask of an algorithm has a default in the class `Algorithm`. The defaults suit a method
that averages the clients that replied, accepts any objective, and ends after its last round.

States, inboxes and uploads are NamedTuples of arrays, declared by `inbox`, `upload` and `state` (`layout`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index, Mask, Seeds, of_clients
from ..privacy.release import Release, Rounding
from ..problems.batches import Workload
from ..problems.interfaces import Batch, Bounds
from ..problems.regularisers import Regulariser
from ..settings import check_choice, check_settings
from ..work import LocalWork, Report
from .layout import NOTHING, Layout, Nothing

T = TypeVar("T", bound=np.generic)
A = TypeVar("A", bound="Algorithm")


class RunInfo(NamedTuple):
    """Public information about a run, beyond an algorithm's own settings. Every algorithm receives it.

    sizes: the number of rows of each client if F is the mean over all rows (weighting = "rows"); empty if all clients
    have the same number, or if F is the mean over the clients. neighbours: the neighbours of each client in the graph
    of a networked method, ascending; empty without a graph. row_norm: an upper bound on the norm of a row, or 0 if none
    is known. key: the seed of the public random numbers of a method that `draws_steps`. quadratic: whether the loss is
    quadratic in x. l2: the weight of the penalty ||x||^2 / 2 in F.
    """

    num_clients: int = 1
    rounds: int = 1
    sizes: tuple[int, ...] = ()
    neighbours: tuple[tuple[int, ...], ...] = ()
    row_norm: float = 0.0
    key: int = 0
    quadratic: bool = False
    l2: float = 0.0

    def shares(self, clients: Index) -> Array | None:
        """N_i / N, the weights in F of clients (..., K), or None if every client has weight 1 / num_clients."""
        if not self.sizes:
            return None
        sizes = np.array(self.sizes, dtype=np.float64)
        return of_clients(sizes / sizes.sum(-1, keepdims=True), clients)


NO_INFO = RunInfo()


class Stop(NamedTuple):
    """Why a run ends before its last planned round: "converged", or a sentence, in which {entries} stands for the names
    of these entries of the model. warns: whether the model is not what the run was for."""

    reason: str
    entries: tuple[int, ...] = ()
    warns: bool = False


class Algorithm(ABC):
    """An algorithm with its settings; the module's docstring describes the seven functions.

    Every class declares these:

    name, title: as in the list of algorithms. weightings: the values of the run's `weighting` that the algorithm
    supports, with the default first. "clients": F is the mean over the clients of their mean losses. "rows": F is the
    mean over all rows, so a client with more rows has a larger weight. takes_local_steps: whether a client may take
    several steps in a round; the dataclass then has a field `sensitivity`, the bound to use
    (`privacy.release.SENSITIVITIES`). modes: the values of `privacy` that the algorithm supports, with "none" first.

    A class that differs from the defaults sets these:

    needs_every_client: every round needs a reply from every client; a strategy repeats the request to clients that did
    not reply, and stops the run if that fails. most_absent: how many may be missing nevertheless. needs_client_state:
    the server's state depends on the clients' stored state, so a client that has lost its state must not continue with
    a new one. closes: after the last round, the server sends the clients one more inbox, which they `finish`.
    draws_steps: the number of local steps in a round is
    random, public and the same for all clients (`steps_of`); runs with different seeds are then not stacked, because
    their releases differ. averages_models: the first array of an upload is the client's model, and the server's new
    model is the mean of these, unless `check_average` raises an error; any server that averages models can then run the
    method. works_on_sums: the method can run when the server sees only sums over the sites (docs/sums.md), unless
    `check_sum` raises an error. This requires that the server needs only the mean of the uploads of a round, and that
    each client computes its upload from a noisy value that, apart from public terms, is a function of the client's rows
    and the inbox. row_reach: the largest norm of a row's part of that value, in units of how far its replacement moves
    the sum over rows. networked: a method on the graph `info.neighbours`, whose server relays messages between
    neighbours. personal: the result is a model for each client (`client_models`), which that client uses and evaluates;
    `model` is one model for everybody else. constrained: the problem has bounds, and a run ends with whether they are
    `satisfied`.
    needs_whole_batches: a client must use all its rows in a step. sends_sums: messages hold sums over a client's rows,
    noisy ones with privacy, and else exact ones, which the policy of a site must allow. ends_early: a run may end
    before its last planned round (`stops`); runs with different seeds are then not stacked. doubles_regulariser: h is
    both in the local steps and at the server, so that a run ends near the optimum of F + 2h (an indicator h is no
    different from 2h). server_columns, model_columns: the columns that the method adds to metrics.csv, from
    `server_metrics` and `model_metrics`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    weightings: ClassVar[tuple[str, ...]]
    takes_local_steps: ClassVar[bool]
    modes: ClassVar[tuple[str, ...]]

    needs_every_client: ClassVar[bool] = False
    most_absent: ClassVar[int] = 0
    needs_client_state: ClassVar[bool] = False
    closes: ClassVar[bool] = False
    draws_steps: ClassVar[bool] = False
    averages_models: ClassVar[bool] = False
    works_on_sums: ClassVar[bool] = False
    row_reach: ClassVar[float] = 0.5
    networked: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    constrained: ClassVar[bool] = False
    needs_whole_batches: ClassVar[bool] = False
    ends_early: ClassVar[bool] = False
    sends_sums: ClassVar[bool] = False
    doubles_regulariser: ClassVar[bool] = False
    server_columns: ClassVar[tuple[str, ...]] = ()
    model_columns: ClassVar[tuple[str, ...]] = ()

    regulariser: Regulariser  # h of the problem
    info: RunInfo  # public information about the run
    privacy: str  # "none", or the way in which the client's releases are protected

    def __post_init__(self) -> None:
        """Raise SettingError for settings out of their range, and unless the method has its privacy mode."""
        check_settings(self)
        check_choice(f"privacy.mode of {self.name}", self.privacy, self.modes)

    # ------------------------------------------------------------------------------- every class defines these

    @property
    @abstractmethod
    def inbox(self) -> Layout:
        """The layout of the message from the server to one node."""

    @property
    @abstractmethod
    def upload(self) -> Layout:
        """The layout of a client's reply."""

    @abstractmethod
    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Any:
        """The server's state before the first round. key (...,) seeds the public random numbers of the run."""

    @abstractmethod
    def broadcast(self, server: Any, round_: int, node: Index) -> Any:
        """The inbox of one node (shape ()), or of nodes (..., K), whose leading axes broadcast to them."""

    @abstractmethod
    def client_update(
        self, state: Any, inbox: Any, work: LocalWork
    ) -> tuple[Any, Any, Report]:
        """Compute one client's round, or the round of a whole cohort."""

    @abstractmethod
    def server_update(self, server: Any, uploads: Any, clients: Index, round_: int) -> Any:
        """The server's state after the uploads (..., K, ...) of clients (..., K), in ascending order."""

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """What one client releases in one round; used to draw the noise and to fill the ledger. Only called if privacy
        is not "none"."""
        raise NotImplementedError

    @abstractmethod
    def model(self, server: Any) -> Array:
        """The model to evaluate and to deploy, (..., d)."""

    # ------------------------------------------------------------------------------- requirements

    @property
    def num_folds(self) -> int:
        """Into how many folds each client divides its rows; 0 for none."""
        return 0

    def check(self, objective: Any) -> None:  # noqa: B027
        """Raise SettingError for an objective that the method does not support; by default it accepts all."""

    def check_average(self) -> None:  # noqa: B027
        """Raise SettingError for settings under which the server does more than average models."""

    def check_sum(self, steps: int) -> None:  # noqa: B027
        """Raise SettingError for settings that violate the requirements of `works_on_sums`. steps: the largest number
        of local steps in a round."""

    def check_server(self) -> None:  # noqa: B027
        """Raise SettingError if a server cannot run the method yet; it is asked before any client is."""

    # ------------------------------------------------------------------------------- rounds

    @property
    def state(self) -> Layout:
        """The layout of a client's stored state; by default clients keep nothing."""
        return NOTHING

    def init_client(self, start: Array) -> Any:
        """The client's state before the first round. start (..., d) is public."""
        return Nothing()

    def steps_of(self, round_: int) -> int:
        """The number of local steps drawn for a round from `RunInfo.key`, at least 1, of a method that `draws_steps`.
        """
        raise NotImplementedError

    def stops(self, server: Any) -> Stop | None:
        """Why a run ends after the round that led to this server state, of a method that `ends_early`; None if it goes
        on."""
        return None

    def finish(self, state: Any, inbox: Any) -> Any:
        """The client's state after it has processed the inbox that follows the last round, if the method `closes`."""
        return state

    def alive(self, server: Any) -> Mask:
        """A mask (..., N) of the clients that are still in the graph of a `networked` method."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------- privacy

    def answers(self, inbox: Any) -> list[bytes]:
        """For each sum over rows in the reply to an inbox of a method that `sends_sums`, all in the inbox that the sum
        depends on."""
        return [b"".join(part.tobytes() for part in inbox)]

    def release_size(self, d: int) -> int:
        """The number of numbers in a release of a client about a model of d entries."""
        return d

    def with_noise(self: A, objective: Any, sigmas: Array) -> A:
        """The method for a server that knows how much noise there is: sigmas (N,) are the standard deviations of the
        clients' noise in a release of weight 1. By default it needs not know."""
        return self

    def noise_multiplier(self, epsilon: float, delta: float, releases: int) -> float | None:
        """sigma / sensitivity of a release of weight 1, where (epsilon, delta) is the total budget of all of a client's
        `releases`, by the method's own rule; None, by default, for exact accounting."""
        return None

    def sensitivity_ratio(self, client: int, round_: int) -> float:
        """The actual sensitivity of a client's release in a round, as a fraction of the sensitivity that `release`
        states, where public information makes the release less sensitive. The noise is scaled by the same factor."""
        return 1.0

    def rounding(
        self, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """A bound on the floating-point rounding errors between a client's gradients and its release, in a round whose
        noise has the standard deviation sigma before any `sensitivity_ratio`. A site with secret noise refuses a round
        in which the bound is too large.

        The default is the worst case: all public arrays are added both to the release and to the gradients.
        """
        public = math.fsum(map(length, (*state, *inbox)))
        alone = self.release(bounds, workload.for_one_row, round_)
        effect = alone.sensitivity * workload.rows / (2 * bounds.gradient)
        size = public + effect * (bounds.gradient + (1 + bounds.steepest) * public)
        return Rounding(size, size)

    def beyond_theory(self) -> list[str]:
        """For each setting beyond what the method's theory allows, a sentence with the limit and its source."""
        return []

    def forecast(
        self, bounds: Bounds, noise_multiplier: float, workload: Workload, start: Array, away: float | None = None
    ) -> list[tuple[str, str]]:
        """A forecast of the accuracy of a private run as (label, text) rows of a table; by default there is none.
        start (d,): the initial model. away: ||x* - start||^2, or None if it is unknown."""
        return []

    # ------------------------------------------------------------------------------- results

    def path(self, server: Any, round_: int) -> list[Any]:
        """The models of all weights of a penalty after so many rounds, of a method that computes them
        (`newton_path.PathPoint`); by default none."""
        return []

    def client_models(self, server: Any) -> Array | None:
        """The clients' own models (..., N, d), or None if the server does not know them."""
        return None

    def information(self, server: Any) -> Any:
        """The sums from which standard errors follow (`models.information`), of a method whose messages hold them; by
        default None, and the sites are asked for them after the last round."""
        return None

    def server_metrics(self, server: Any) -> dict[str, Array]:
        """The values (...,) of each of `server_columns`, by column name."""
        return {}

    def model_metrics(self, x: Array, objective: Any, rows: Batch) -> dict[str, float]:
        """The values of `model_columns` for a model x (d,) on all training rows, by column name; a column that the
        objective does not support is omitted."""
        return {}

    def satisfied(self, metrics: Mapping[str, float]) -> bool | None:
        """Whether the last row of metrics.csv satisfies the bounds of a `constrained` method; None for any other."""
        return None


_DECLARED = ("name", "title", "weightings", "takes_local_steps", "modes")


def personal_models(algorithm: Algorithm, server: Any) -> Array | None:
    """The clients' own models (..., N, d) if they are the result of a run of the method, else None."""
    return algorithm.client_models(server) if algorithm.personal else None


def length(array: NDArray[Any]) -> float:
    """The Euclidean norm of an array of floats. Integer arrays count as 0, because they are never added to private
    values."""
    return float(np.linalg.norm(array)) if array.dtype.kind == "f" else 0.0


def check_class(algorithm: type) -> type[Algorithm]:
    """The class itself, if it is a dataclass with the fields and class attributes from which a run builds an algorithm.

    Raises TypeError, which names what is missing.
    """
    lacking = [name for name in _DECLARED if name not in dir(algorithm)]
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
