"""What the privacy costs of a run depend on: how often each client takes part, and what a round releases."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError, require
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..settings import SMALLEST
from .release import Release

Participation = Sequence[Sequence[int] | Index]  # the clients of each round, from the public sampling


class Planned(Protocol):
    """The part of an algorithm's interface that a privacy plan needs."""

    @property
    def privacy(self) -> str:
        """Where the noise is added: "public-state" or "gradient"; "none" for an algorithm without privacy."""

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The release of a client with this workload in a round."""

    def noise_multiplier(self, epsilon: float, delta: float, releases: int) -> float | None:
        """sigma / sensitivity of a release of weight 1, where (epsilon, delta) is the total budget of all of a client's
        `releases`, by the method's own rule; None for exact accounting."""


class Shares(NamedTuple):
    """The shares, below 1 in all, of every client's budget for what it releases besides the rounds:
    `PrivacyLoad.first` and `PrivacyLoad.last`."""

    first: float = 0.0
    last: float = 0.0

    @property
    def total(self) -> float:
        """Both together."""
        return self.first + self.last


NOTHING_ELSE = Shares()


class PrivacyLoad(NamedTuple):
    """The participation of the clients in a run, as far as it determines their privacy cost.

    weights (T + 1,): budget weights of the rounds; rounds count from 1, and entry 0 is 0. rounds_in (N,): the number of
    rounds that each client takes part in. shares (N,): the sum of the weights of these rounds. affected_releases (N,):
    how many releases of one round a single record can affect. first (N,): the part of `shares` that is for what a
    client releases before round 1. last (N,): the part that is for what it releases after the last round.
    """

    weights: Array
    rounds_in: Array
    shares: Array
    affected_releases: Index
    first: Array
    last: Array

    @classmethod
    def of(
        cls,
        algorithm: Planned,
        bounds: Bounds,
        workloads: Sequence[Workload],
        asked: Participation,
        others: "Shares" = NOTHING_ELSE,
    ) -> "PrivacyLoad":
        """The load of clients with these workloads; others: what else they release than the rounds. Raises SettingError
        if a release has no finite sensitivity."""
        releases = {workload: algorithm.release(bounds, workload, 1) for workload in set(workloads)}
        check_sensitivities(np.array([release.sensitivity for release in releases.values()]))
        affected_releases = np.array([releases[workload].affected_releases for workload in workloads])
        rounds = range(1, len(asked) + 1)
        weights = np.array([0.0, *(algorithm.release(bounds, workloads[0], t).weight for t in rounds)])
        rounds_in, shares = (
            shares_of(w, enumerate(asked, 1), len(workloads)) for w in (np.ones_like(weights), weights)
        )
        trained = np.where(rounds_in > 0, shares, weights.max()) / (1 - others.total)
        first, last = trained * others.first, trained * others.last
        return cls(weights, rounds_in, shares + first + last, affected_releases, first, last)

    def mu(self, multipliers: Array) -> float:
        """The largest mu over all clients, which have these noise multipliers (N,)."""
        return float((np.sqrt(self.shares * self.affected_releases) / multipliers).max())


def check_sensitivities(sensitivities: Array) -> None:
    """SettingError unless these sensitivities of a run's releases are finite and above SMALLEST."""
    require(
        bool(np.isfinite(sensitivities).all()),
        "the releases of this run have no finite sensitivity, because its local steps stretch every difference: "
        "lower step-size, or local.max-steps",
    )
    smallest = sensitivities.min()
    if not smallest > SMALLEST:
        raise SettingError(
            f"the sensitivity of a release must be above {SMALLEST:g}; got {smallest:g}: raise row-norm, clip-norm or "
            "step-size"
        )


def shares_of(weights: Array, asked: Iterable[tuple[int, Sequence[int] | Index]], num_clients: int) -> Array:
    """The sum of the weights (N,) of the rounds in which each client was sampled; weights as in `PrivacyLoad`."""
    shares = np.zeros(num_clients)
    for round_, clients in asked:
        shares[np.asarray(clients)] += weights[round_]
    return shares
