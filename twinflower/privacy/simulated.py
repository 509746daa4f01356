"""Seeded noise for private runs in a simulation."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays import Array, Index, of_clients
from ..problems.batches import LocalSchedule, Shards, Workload
from ..problems.interfaces import Bounds
from .load import Planned
from .mechanism import CohortDraws, DrawsOfAll, GaussianNoise


@dataclass(frozen=True)
class SimulatedNoise:
    """The noise of a private run in a simulation: sigma is each client's multiplier times the `spread` of its release.

    multipliers (..., N): sigma / sensitivity of a release of weight 1. bounds: of the objective on allowed rows. The
    draws are addressed by (seed, client, round), so a run is reproducible and its noise is not secret.
    """

    algorithm: Planned
    shards: Shards
    schedule: LocalSchedule
    bounds: Bounds
    multipliers: Array
    seed: int | Index = 0

    def __call__(self, round_: int, clients: Index) -> GaussianNoise:
        """The noise in a round of the clients (..., K), given by number."""
        everyone = clients.shape[-1] == self.multipliers.shape[-1]
        planned = self.multipliers if everyone else of_clients(self.multipliers, clients)
        draws = self._of_all.of(round_) if everyone else CohortDraws(self._seeds, clients, round_)
        sigma = self._spreads(round_, clients) * planned
        return GaussianNoise(sigma[..., None], draws)

    def _spreads(self, round_: int, clients: Index) -> Array | float:
        """sigma / multiplier of clients (..., K), computed once for each number of rows."""
        if self._rows_of_all:
            return self.algorithm.release(self.bounds, self._workload_of_all, round_).spread
        sizes = self.shards.extent(clients)[1]
        by_size = {m: self._spread(int(m), round_) for m in set(sizes.flat)}
        return np.reshape([by_size[m] for m in sizes.flat], sizes.shape)

    def _spread(self, rows: int, round_: int) -> float:
        return self.algorithm.release(self.bounds, self.schedule.workload(rows), round_).spread

    @cached_property
    def _of_all(self) -> DrawsOfAll:
        return DrawsOfAll(self.seed, self.multipliers.shape[-1])

    @cached_property
    def _seeds(self) -> list[int]:
        return np.atleast_1d(self.seed).tolist()  # type: ignore[no-any-return]

    @cached_property
    def _workload_of_all(self) -> Workload:
        return self.schedule.workload(self._rows_of_all)

    @cached_property
    def _rows_of_all(self) -> int:
        """The number of rows of every client, or 0 if they differ."""
        sizes = self.shards.sizes
        return int(sizes.flat[0]) if sizes.min() == sizes.max() else 0
