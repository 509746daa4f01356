"""Optional abilities and requirements of an algorithm, beyond the seven functions of `algorithm`.

A class declares an ability by deriving from it, and callers check with `isinstance`. A method without any of them
averages the clients that replied, accepts any objective, and ends after its last round. `privacy.load.PlansNoise` is an
ability, too.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Mask
from ..privacy.release import Rounding
from ..problems.batches import Workload
from ..problems.interfaces import Batch, Bounds, Objective


class NeedsEveryClient(ABC):  # noqa: B024
    """Every round needs a reply from every client. A strategy repeats the request to clients that did not reply, and
    stops the run if that fails."""


class NeedsClientState(ABC):  # noqa: B024
    """The server's state depends on the clients' stored state: a client that has lost its state must not continue with
    a new one."""


class SumsUp(ABC):
    """The method can run when the server sees only sums over the sites, unless `check_sum` raises an error
    (docs/sums.md).

    This requires two things. The server needs only the mean of the uploads of a round. Each client computes its upload
    from a noisy value that, apart from public terms, is a function of the client's rows and the inbox.
    """

    @abstractmethod
    def check_sum(self, steps: int) -> None:
        """Raise SettingError for settings that violate these requirements. steps: the largest number of local steps in
        a round."""


class AveragesModels(ABC):
    """The first array of an upload is the client's model, and the server's new model is the mean of these, unless
    `check_average` raises an error. Any server that averages models can then run the method."""

    @abstractmethod
    def check_average(self) -> None:
        """Raise SettingError for settings under which the server does more."""


class DoublesRegulariser(ABC):  # noqa: B024
    """h is both in the local steps and at the server, so that a run ends near the optimum of F + 2h. An indicator h
    is no different from 2h."""


class DrawsSteps(ABC):
    """The number of local steps in a round is random, public, and the same for all clients. It is drawn from
    `RunInfo.key`.

    Runs with different seeds are not stacked, because their releases differ.
    """

    @abstractmethod
    def steps_of(self, round_: int) -> int:
        """The number of local steps drawn for a round, at least 1."""


class Closes(ABC):
    """After the last round, the server sends the clients one more inbox."""

    @abstractmethod
    def finish(self, state: Any, inbox: Any) -> Any:
        """Return the client's state after it has processed that inbox."""


class KnowsClientModels(ABC):
    """The server knows the clients' own models."""

    @abstractmethod
    def client_models(self, server: Any) -> Array:
        """The clients' models (..., N, d)."""


def client_models(algorithm: object, server: Any) -> Array | None:
    """The clients' own models (..., N, d), or None for a method whose server does not know them."""
    return algorithm.client_models(server) if isinstance(algorithm, KnowsClientModels) else None


class PersonalModels(KnowsClientModels):
    """The result of a run is a model for each client, which that client uses and evaluates. `model` is one model for
    everybody else."""


def personal_models(algorithm: object, server: Any) -> Array | None:
    """The clients' own models (..., N, d) if the method `PersonalModels`, else None."""
    return algorithm.client_models(server) if isinstance(algorithm, PersonalModels) else None


class OnGraph(KnowsClientModels):
    """A method on a graph of clients, given by `info.neighbours`. The server relays the messages between neighbours."""

    @abstractmethod
    def alive(self, server: Any) -> Mask:
        """A mask (..., N) of the clients that are still in the graph."""


class ServerMetrics(ABC):
    """Adds columns to metrics.csv that are computed from the server's state."""

    server_columns: ClassVar[tuple[str, ...]]

    @abstractmethod
    def server_metrics(self, server: Any) -> dict[str, Array]:
        """The values (...,) of each of `server_columns`, by column name."""


class ModelMetrics(ABC):
    """Adds columns to metrics.csv that are computed by evaluating the model on all training rows."""

    model_columns: ClassVar[tuple[str, ...]]

    @abstractmethod
    def model_metrics(self, x: Array, objective: Objective, rows: Batch) -> dict[str, float]:
        """The values of `model_columns` for a model x (d,), by column name; a column that the objective does not
        support is omitted."""


def columns_of(algorithm: type) -> tuple[str, ...]:
    """The columns that a class of algorithms adds to metrics.csv."""
    server = algorithm.server_columns if issubclass(algorithm, ServerMetrics) else ()
    return server + (algorithm.model_columns if issubclass(algorithm, ModelMetrics) else ())


class Constrained(ModelMetrics):
    """Solves a constrained problem. At the end of a run it reports whether the constraints are satisfied."""

    @abstractmethod
    def satisfied(self, metrics: Mapping[str, float]) -> bool:
        """Whether the last row of metrics.csv satisfies the constraints."""


class Forecasts(ABC):
    """Predicts the accuracy of a private run before it starts."""

    @abstractmethod
    def forecast(
        self, bounds: Bounds, noise_multiplier: float, workload: Workload, start: Array, away: float | None = None
    ) -> list[tuple[str, str]]:
        """The forecast as (label, text) rows of a table. start (d,): the initial model. away: ||x* - start||^2, or None
        if it is unknown."""


class ShrinksNoise(ABC):
    """Reduces the noise of a release for clients whose public information makes the release less sensitive than
    planned."""

    @abstractmethod
    def at_stake(self, client: int, round_: int) -> float:
        """The actual sensitivity of a client's release in a round, as a fraction of the sensitivity that `release`
        states. The noise is scaled by the same factor."""


def at_stake(algorithm: object, client: int, round_: int) -> float:
    """`ShrinksNoise.at_stake` of the algorithm, or 1 for a method that does not derive from `ShrinksNoise`."""
    return algorithm.at_stake(client, round_) if isinstance(algorithm, ShrinksNoise) else 1.0


class BoundsRounding(ABC):
    """Bounds the floating-point rounding errors between a client's gradients and its release.

    A site with secret noise refuses a round in which the bound is too large. For methods without this ability it
    assumes the worst case.
    """

    @abstractmethod
    def rounding(
        self, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for one client's round, whose noise has the standard deviation sigma before any `shrink`."""


def rounding(
    algorithm: Any, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int, sigma: float
) -> Rounding:
    """`BoundsRounding.rounding` of the algorithm, or a worst-case bound for a method that does not derive from
    `BoundsRounding`.

    The worst case assumes that all public arrays are added both to the release and to the gradients.
    """
    if isinstance(algorithm, BoundsRounding):
        return algorithm.rounding(state, inbox, bounds, workload, round_, sigma)
    public = math.fsum(map(length, (*state, *inbox)))
    alone = algorithm.release(bounds, workload.for_one_row, round_)
    effect = alone.sensitivity * workload.rows / (2 * bounds.gradient)
    size = public + effect * (bounds.gradient + (1 + bounds.steepest) * public)
    return Rounding(size, size)


def length(array: NDArray[Any]) -> float:
    """The Euclidean norm of an array of floats. Integer arrays count as 0, because they are never added to private
    values."""
    return float(np.linalg.norm(array)) if array.dtype.kind == "f" else 0.0


class RestrictsObjective(ABC):
    """Accepts only some objectives."""

    @abstractmethod
    def check(self, objective: Objective) -> None:
        """Raise SettingError for an objective that the method does not support."""
