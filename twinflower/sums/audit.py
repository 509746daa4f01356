"""Replay on sums: how far does one record move the next sum, if all sums so far are equal?

The sites run the unmodified method, each with its own client state. In a second run site 0 has a neighbouring data set.
The noise of the second run differs, and is chosen such that all sums so far are equal to those of the first. So the
server has seen the same values in both runs, but the states of the sites differ. The guarantee over many rounds
requires that the next sum moves by no more than the sensitivity of one release, whatever the states of the sites are.
For several local steps with private duals this is false.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..algorithms.algorithm import Algorithm, stack, unstack
from ..arrays import Array
from ..problems.batches import LocalSchedule, Shards
from ..problems.interfaces import Batch, Bounds, Objective
from ..work import LocalWork, Tape, no_noise


class SumMove(NamedTuple):
    """The Euclidean distance of a round's noiseless sums in the two runs, and the claimed bound on it."""

    round: int
    moved: float
    sensitivity: float


def replay_sums(
    algorithm: Any,
    objective: Objective,
    sites: Sequence[Batch],
    neighbour: Batch,
    schedule: LocalSchedule,
    bounds: Bounds,
    rounds: int,
    noise_multiplier: float = 1.0,
    seed: int = 0,
    start: Array | float = 0.0,
) -> list[SumMove]:
    """Run all sites twice in parallel, in the second run with the data of site 0 replaced by `neighbour`.

    noise_multiplier: sigma / sensitivity of each site's noise. start (d,): the server's starting point, or a number for
    all entries. Returns one SumMove per round.
    """
    rng, count = np.random.default_rng(seed), len(sites)
    server = algorithm.init_server(np.zeros(objective.d) + start, count, np.array(seed, np.uint64))
    worlds = [_World(algorithm, objective, rows, schedule, seed) for rows in (sites, [neighbour, *sites[1:]])]
    moves = []
    for round_ in range(1, rounds + 1):
        inboxes = unstack(algorithm.broadcast(server, round_, np.arange(count)), count)
        sensitivity = algorithm.release(bounds, schedule.workload(len(neighbour.labels)), round_).sensitivity
        values = [world.values(inboxes, round_) for world in worlds]
        noisy = [v + noise_multiplier * sensitivity * rng.normal(size=v.shape) for v in values]
        noisy[1][0] += noisy[0].sum(0) - noisy[1].sum(0)  # the same sum, with a different value of site 0
        uploads, _ = (
            world.go_on(inboxes, round_, released) for world, released in zip(worlds, noisy, strict=True)
        )
        moves.append(SumMove(round_, float(np.linalg.norm((values[1] - values[0]).sum(0))), sensitivity))
        server = algorithm.server_update(server, uploads, np.arange(count), round_)
    return moves


class _World:
    """All sites of one run, with their client states."""

    def __init__(
        self,
        algorithm: Algorithm,
        objective: Objective,
        sites: Sequence[Batch],
        schedule: LocalSchedule,
        seed: int,
    ) -> None:
        self.algorithm, self.objective, self.schedule, self.seed = algorithm, objective, schedule, seed
        self.shards = [Shards.site(rows, number) for number, rows in enumerate(sites)]
        self.states = [algorithm.init_client(np.zeros(objective.d)) for _ in sites]

    def values(self, inboxes: Sequence[Any], round_: int) -> Array:
        """The values (N, d) of the sites before noise."""
        return np.stack([self._update(i, inbox, round_, None)[1] for i, inbox in enumerate(inboxes)])

    def go_on(self, inboxes: Sequence[Any], round_: int, released: Array) -> Any:
        """Update the states with these releases (N, d) and return the stacked uploads."""
        done = [self._update(i, inbox, round_, released[i])[0] for i, inbox in enumerate(inboxes)]
        self.states = [state for state, *_ in done]
        return stack([upload for _, upload, _ in done])

    def _update(self, site: int, inbox: Any, round_: int, released: Array | None) -> tuple[Any, Array]:
        tape = Tape(no_noise) if released is None else Tape(results=[released])
        batches = self.schedule.batches(self.shards[site], site, self.seed, round_)
        work = LocalWork(self.objective, batches, tape, round_)
        return self.algorithm.client_update(self.states[site], inbox, work), tape.values[0]
