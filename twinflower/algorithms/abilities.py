"""What some methods can do, or need, beyond the seven functions: a class says so by deriving from these.

Callers ask with `isinstance`, and a method that does not say so is a plain one: it averages whoever is there, takes
any objective, and ends with its last round.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Mask
from ..batches import Workload
from ..objectives import Batch, Bounds, Objective
from ..privacy.release import Rounding


class NeedsEveryClient(ABC):  # noqa: B024
    """Every round needs every client's reply: a strategy asks again those that did not answer, then stops the run."""


class NeedsClientState(ABC):  # noqa: B024
    """The server counts on what the clients keep: a client that has lost its state may not go on from a fresh one."""


class SumsUp(ABC):
    """The server needs no more of a round than the mean of the uploads, and the noisy values that clients compute
    theirs from are, but for what is public, functions of their rows and the inbox (docs/sums.md). So it can run with
    the sites' sums alone, unless `check_sum` objects."""

    @abstractmethod
    def check_sum(self, steps: int) -> None:
        """SettingError for settings under which that is not so; steps: the most local steps of a round."""


class DrawsSteps(ABC):
    """The number of local steps of a round is a public coin, the same for all clients, drawn from `RunInfo.key`.

    Runs with different seeds are not stacked, because their releases differ."""

    @abstractmethod
    def steps_of(self, round_: int) -> int:
        """How many steps the coin of a round allows, at least 1."""


class Closes(ABC):
    """The clients are sent one more inbox after the last round."""

    @abstractmethod
    def finish(self, state: Any, inbox: Any) -> Any:
        """Client state after that inbox."""


class KnowsClientModels(ABC):
    """The server knows the clients' own models."""

    @abstractmethod
    def client_models(self, server: Any) -> Array:
        """They, (..., N, d)."""


def client_models(algorithm: object, server: Any) -> Array | None:
    """The clients' own models (..., N, d), None for a method whose server does not know them."""
    return algorithm.client_models(server) if isinstance(algorithm, KnowsClientModels) else None


class OnGraph(KnowsClientModels):
    """Runs on a graph of clients, which `info.neighbours` holds, with the server as a relay."""

    @abstractmethod
    def alive(self, server: Any) -> Mask:
        """Which clients (..., N) are in the graph."""


class ServerMetrics(ABC):
    """Adds columns to metrics.csv that follow from the server's state."""

    server_columns: ClassVar[tuple[str, ...]]

    @abstractmethod
    def server_metrics(self, server: Any) -> dict[str, Array]:
        """A number (...,) for each of `server_columns`."""


class ModelMetrics(ABC):
    """Adds columns to metrics.csv that are measured with the model on all training rows."""

    model_columns: ClassVar[tuple[str, ...]]

    @abstractmethod
    def model_metrics(self, x: Array, objective: Objective, rows: Batch) -> dict[str, float]:
        """Numbers on a model (d,): `model_columns`, as far as the objective allows."""


def columns_of(algorithm: type) -> tuple[str, ...]:
    """The columns that a class of algorithms adds to metrics.csv."""
    server = algorithm.server_columns if issubclass(algorithm, ServerMetrics) else ()
    return server + (algorithm.model_columns if issubclass(algorithm, ModelMetrics) else ())


class Constrained(ModelMetrics):
    """Minimises under constraints, which a run can violate."""

    @abstractmethod
    def satisfied(self, metrics: Mapping[str, float]) -> bool:
        """Whether the last row of metrics satisfies the constraints."""


class Forecasts(ABC):
    """Knows before a private run what it can be expected to reach."""

    @abstractmethod
    def forecast(
        self, bounds: Bounds, noise_multiplier: float, workload: Workload, start: Array, away: float | None = None
    ) -> list[tuple[str, str]]:
        """Rows of a table, for a start (d,); away: ||x* - start||^2 if it is known."""


class ShrinksNoise(ABC):
    """Scales a release's noise down where public information of a client makes it less sensitive than planned."""

    @abstractmethod
    def at_stake(self, client: int, round_: int) -> float:
        """The part of `release`'s sensitivity, and of its noise, that a client's release of a round really has."""


def at_stake(algorithm: object, client: int, round_: int) -> float:
    """See `ShrinksNoise`; 1 for all other methods."""
    return algorithm.at_stake(client, round_) if isinstance(algorithm, ShrinksNoise) else 1.0


class BoundsRounding(ABC):
    """Knows what floats round on the way from a client's gradients to its release. A site with secret noise refuses a
    round in which that is too much; of other methods it assumes the worst."""

    @abstractmethod
    def rounding(self, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int) -> Rounding:
        """Of one client's round."""


def rounding(algorithm: Any, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int) -> Rounding:
    """See `BoundsRounding`; for all other methods everything public is added to the release, and to gradients, too."""
    if isinstance(algorithm, BoundsRounding):
        return algorithm.rounding(state, inbox, bounds, workload, round_)
    public = math.fsum(map(length, (*state, *inbox)))
    effect = algorithm.release(bounds, workload, round_).sensitivity * workload.rows / (2 * bounds.gradient)
    return Rounding(public + effect * (bounds.gradient + (1 + bounds.steepest) * public))


def length(array: NDArray[Any]) -> float:
    """The norm of an array of floats; whole numbers meet nothing private."""
    return float(np.linalg.norm(array)) if array.dtype.kind == "f" else 0.0


class PlansNoise(ABC):
    """Has a rule of its own for how much noise a total budget needs, instead of the exact accounting."""

    @abstractmethod
    def noise_multiplier(self, epsilon: float, delta: float, releases: int) -> float:
        """sigma / sensitivity of a release of weight 1, given the (epsilon, delta) of all releases of a client
        together."""


class RestrictsObjective(ABC):
    """Cannot take every objective."""

    @abstractmethod
    def check(self, objective: Objective) -> None:
        """SettingError for an objective that the method cannot take."""
