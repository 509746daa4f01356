"""Seeded noise for private runs in a simulation."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..algorithms.algorithm import Algorithm
from ..arrays import Array, Index, of_clients
from ..problems.batches import LocalSchedule, Shards
from ..problems.interfaces import Bounds
from .mechanism import CohortDraws, GaussianNoise


@dataclass(frozen=True)
class SimulatedNoise:
    """The noise of a private run in a simulation: sigma is each client's multiplier times the `spread` of its release.

    multipliers (..., N): sigma / sensitivity of a release of weight 1. bounds: of the objective on allowed rows. The
    draws are addressed by (seed, client, round), so a run is reproducible and its noise is not secret.
    """

    algorithm: Algorithm
    shards: Shards
    schedule: LocalSchedule
    bounds: Bounds
    multipliers: Array
    seed: int | Index = 0

    def __call__(self, round_: int, clients: Index) -> GaussianNoise:
        """The noise in a round of the clients (..., K), given by number."""
        sigma = self._spreads(round_, clients) * of_clients(self.multipliers, clients)
        return GaussianNoise(sigma[..., None], CohortDraws(self._seeds, clients, round_))

    def _spreads(self, round_: int, clients: Index) -> Array:
        """sigma / multiplier of clients (..., K), computed once for each number of rows."""
        sizes, place = np.unique(self.shards.extent(clients)[1], return_inverse=True)
        workloads = [self.schedule.workload(int(m)) for m in sizes]
        spreads = [self.algorithm.release(self.bounds, workload, round_).spread for workload in workloads]
        return np.array(spreads)[place]

    @cached_property
    def _seeds(self) -> list[int]:
        return np.atleast_1d(self.seed).tolist()  # type: ignore[no-any-return]
