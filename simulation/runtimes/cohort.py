"""The `cohort` runtime: the training loop on arrays, with clients stacked along one axis and seeds along another.

It uses neither messages nor Flower and is meant for sweeps and benchmarks. To `twinflower.rounds` it adds blocks of
clients that fit into the processor's cache, seeds that run together, metrics, and checkpoints.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from twinflower.algorithms.algorithm import Algorithm
from twinflower.arrays import Array, Index
from twinflower.client_states import ClientStates
from twinflower.errors import RunError
from twinflower.privacy.mechanism import SimulatedNoise
from twinflower.privacy.plan import Plan
from twinflower.problems.batches import Batches, LocalSchedule, Shards
from twinflower.rounds import NoiseOf, Outcome, Problem, Round, Schedule, SeedsNotStackable, rounds, start
from twinflower.sums.noise import SimulatedSums
from twinflower.sums.summed import Summed

from ..results.checkpoint import Checkpoints
from ..results.folder import curve_folder, run_folder
from ..results.writing import write_config
from ..runs.method import with_sizes
from ..runs.run import Progress, Run
from ..runs.setup import PreparedRun, prepare_seeds
from ..settings.experiment import Curve, Experiment
from .computing import computing
from .course import drive

BLOCK = 2**21
"""Bytes of an array for a block of clients, so that all arrays of the block fit into the last level of the cache."""
_KEPT = 2**26  # most feature values in batches that are kept between rounds


class Bits(NamedTuple):
    """The number of bits of one upload and of one inbox."""

    up: int
    down: int


@dataclass(frozen=True)
class Cohort:
    """One run, or several runs that differ only in the seed.

    Arrays have shape (clients, ...) for one run and (seeds, clients, ...) for several.
    """

    setups: Sequence[PreparedRun]

    @property
    def alone(self) -> bool:
        """Whether there is only one run, and therefore no axis of seeds."""
        return len(self.setups) == 1

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm for all seeds; with weighting by rows it holds the clients' sizes (seeds, N)."""
        first = self.setups[0]
        if self.alone or not first.by_rows:
            return first.algorithm
        return with_sizes(first.algorithm, np.stack([setup.partition.sizes for setup in self.setups]))

    @cached_property
    def problem(self) -> Problem:
        """The objective, the rows and the starting points of all seeds."""
        first = self.setups[0]
        if self.alone:
            return Problem(first.objective, first.shards, first.start)
        shards = Shards.stacked([setup.shards for setup in self.setups])
        return Problem(first.objective, shards, _stacked(setup.start for setup in self.setups))

    def rounds(self, number: int, begin: Outcome | None = None) -> Iterator[Outcome]:
        """Run the rounds up to `number`, from the start or from the outcome `begin`."""
        return rounds(
            self.algorithm, self.problem, self._schedule(), number, self._asked, self._noise(),
            seed=self._seed, block=max(1, BLOCK // self.problem.start.nbytes), begin=begin,
        )  # fmt: skip

    def start(self) -> Outcome:
        """The state before the first round."""
        return start(self.algorithm, self.problem, self._seed)

    @property
    def _seed(self) -> int | Index:
        seeds = [setup.config.seed for setup in self.setups]
        return seeds[0] if self.alone else np.array(seeds, dtype=np.uint64)

    def _asked(self, round_: int) -> Index:
        """The clients (..., K) sampled in a round."""
        return _stacked(setup.config.asked(round_) for setup in self.setups)

    def _schedule(self) -> Schedule:
        """The local schedule. A few rows that every round uses are looked up once."""
        config, schedule, shards = self.setups[0].config, self.setups[0].schedule, self.problem.shards
        everybody = config.clients.sampled == config.clients.count and schedule.batch_size == 0
        few = shards.sizes.sum() * shards.features.shape[1] <= _KEPT
        return _SameBatches(schedule) if everybody and few else schedule

    def _noise(self) -> NoiseOf | None:
        """The noise that the clients' guards would add; None without privacy."""
        first = self.setups[0]
        if first.plan is None:
            return None
        if first.sums:
            return cast(NoiseOf, SimulatedSums(cast(Summed, first.algorithm), first.sums, first.config.seed))
        plans = [cast(Plan, setup.plan) for setup in self.setups]
        multipliers = _stacked(plan.multipliers for plan in plans)
        widths = [own for plan in plans if (own := plan.participation.bandwidths) is not None]
        return SimulatedNoise(
            self.algorithm, self.problem.shards, first.schedule, plans[0].bounds, multipliers, self._seed,
            _stacked(widths) if widths else None,
        )  # fmt: skip

    def models(self, server: Any) -> Array:
        """The models of all seeds, (seeds, d)."""
        return np.atleast_2d(self.algorithm.model(server))

    @cached_property
    def bits(self) -> Bits:
        """The number of bits of one upload and of one inbox."""
        d, dtype = self.problem.objective.d, self.problem.start.dtype
        return Bits(self.algorithm.upload.bits(d, dtype), self.algorithm.inbox.bits(d, dtype))


def _stacked(arrays: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """The arrays of all runs with an axis of seeds in front; that of a run alone as it is."""
    first, *others = arrays
    return np.stack([first, *others]) if others else first


@dataclass(frozen=True)
class _SameBatches:
    """A schedule in which every round uses the same rows of all clients.

    The batches of each block are drawn once and cached under the block's first client.
    """

    schedule: LocalSchedule

    def batches(self, shards: Shards, clients: Index, seed: int | Index, round_: int) -> Batches:
        """The batches of these clients, with the norms of their rows."""
        first = int(clients.flat[0])
        if first not in self._drawn:
            self._drawn[first] = self.schedule.batches(shards, clients, seed, round_).keeping_norms()
        return self._drawn[first]

    @cached_property
    def _drawn(self) -> dict[int, Batches]:
        return {}


def train(
    setups: Sequence[PreparedRun], progress: Progress | None = None, checkpoints: Checkpoints | None = None
) -> list[Run]:
    """Run all seeds together and return their runs in order.

    With checkpoints, which hold all seeds, they go on from the newest one. Seeds that cannot be stacked (`_stackable`)
    run one by one instead, and so do all if one of them fails or loses a client whose update is not finite; they then
    write no checkpoints.
    """
    try:
        if len(setups) > 1 and not _stackable(setups[0]):
            raise SeedsNotStackable
        with computing():
            driver = _Arrays(
                Cohort([setup.first.simulated() if setup.first else setup for setup in setups]), progress
            )
            drive(driver, checkpoints)
            return driver.runs
    except (SeedsNotStackable, RunError):
        return [run for setup in setups for run in train([setup], progress)]


def _stackable(setup: PreparedRun) -> bool:
    """Whether several seeds of the run have arrays of the same shapes in every round.

    Not if each draws its own numbers of local steps or may end early, if the schema has private ranges, or if the
    server sees only sums.
    """
    return (
        not (setup.algorithm.draws_steps or setup.algorithm.ends_early or isinstance(setup.algorithm, Summed))
        and not setup.dataset.unscaled
    )


class _Arrays:
    """Computes the rounds of runs whose seeds are stacked, or of one, on arrays."""

    def __init__(self, cohort: Cohort, progress: Progress | None) -> None:
        self.cohort, begin = cohort, cohort.start()
        self.runs = [
            Run(
                setup=setup,
                runtime="cohort",
                progress=None if index else progress,
                seed_index=None if cohort.alone else index,
                server=begin.server,
                states=begin.states,
            )
            for index, setup in enumerate(cohort.setups)
        ]

    def initial_client(self) -> Any:
        """See `Driver`."""
        return self.cohort.algorithm.init_client(self.cohort.setups[0].start)

    def compute(self, after: Callable[[int], None]) -> None:
        """See `Driver`."""
        first = self.runs[0]
        begin = Outcome(first.round, first.server, cast(ClientStates, first.states))
        after(begin.round)
        for at in self.cohort.rounds(first.setup.config.rounds, begin):
            done = records(at, self.cohort.bits, private=first.setup.plan is not None)
            for run, record in zip(self.runs, done, strict=True):
                run.server = at.server
                run.rounds.append(record)
            after(at.round)

    def found(self, run: Run, round_: int) -> dict[str, Any]:
        """See `Driver`."""
        personal = run.client_points if run.setup.method.personal else None
        queries = [query for query in run.setup.model_queries if query.kind.default]
        return {query.name: query.simulated(run.x, round_, personal) for query in queries}

    def last_answers(self, run: Run) -> tuple[dict[str, Any], list[str]]:
        """See `Driver`."""
        queries = [query for query in run.setup.model_queries if not query.kind.default]
        last = run.setup.config.rounds
        return {own.name: own.of_rounds(run.server) or own.simulated(run.x, last) for own in queries}, []

    def close(self) -> None:
        """See `Driver`; the clients' ledgers are not used."""


def records(at: Outcome, bits: Bits, private: bool) -> list[Round]:
    """The record of the round (participants, bits, local steps) for each seed; the steps of a private run are NaN."""
    parts = (at.clients, at.counted, *_means(at, private))
    by_seed = [parts] if at.clients.ndim == 1 else zip(*parts, strict=True)
    return [_record(at.round, bits, *part) for part in by_seed]


def _means(at: Outcome, private: bool) -> tuple[Array, Array]:
    """The mean number of local steps, and the share of clients that stopped early, (...,); NaN if unknown."""
    if at.report is None or private:
        unknown = np.full(at.clients.shape[:-1], np.nan)
        return unknown, unknown
    return at.report.steps.mean(-1), at.report.fired.mean(-1)


def _record(round_: int, bits: Bits, clients: Index, counted: Index, steps: Array, fired: Array) -> Round:
    asked, accepted = tuple(clients.tolist()), len(counted)
    missing = {*asked}.difference(counted.tolist()) if accepted < len(asked) else ()
    lost = dict.fromkeys(sorted(missing), "its update is not finite")
    uplink, downlink = bits.up * accepted, bits.down * len(asked)
    return Round(round_, asked, accepted, lost, uplink, downlink, float(steps), float(fired))


def train_seeds(
    plan: Experiment, folder: Path, curve: Curve, seeds: list[int], progress: Progress
) -> Iterator[Run]:
    """Run a curve of the experiment in this folder with these seeds, together if they can be stacked."""
    every = curve.config.output.checkpoint_every
    if every and plan.single:
        write_config(curve.config, folder)
    setups = prepare_seeds(curve.config, seeds)
    if _stackable(setups[0]):
        yield from train(
            setups, progress, Checkpoints(curve_folder(plan, folder, curve), every, curve.config)
        )
        return
    for setup in setups:
        own = run_folder(plan, folder, curve, setup.config.seed)
        yield from train([setup], progress, Checkpoints(own, every, setup.config))
