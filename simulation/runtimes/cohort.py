"""The `cohort` runtime: the training loop on arrays, with clients stacked along one axis and seeds along another.

It uses neither messages nor Flower and is meant for sweeps and benchmarks. To `twinflower.rounds` it adds blocks of
clients that fit into the processor's cache, seeds that run together, metrics, and checkpoints.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from twinflower.algorithms.algorithm import Algorithm, personal_models
from twinflower.arrays import Array, Index
from twinflower.errors import RunError
from twinflower.privacy.plan import Plan
from twinflower.privacy.simulated import SimulatedNoise
from twinflower.problems.batches import Batches, LocalSchedule, Shards
from twinflower.rounds import NoiseOf, Outcome, Problem, Schedule, SeedsNotStackable, rounds, start
from twinflower.sums.noise import SimulatedSums
from twinflower.sums.summed import Summed

from ..results.checkpoint import Checkpoints
from ..results.folder import curve_folder, run_folder
from ..results.record import Progress, Recorder, Result, own_columns
from ..results.resume import newest
from ..results.writing import write_config
from ..runs import held_out, information
from ..runs.agreement import simulated
from ..runs.information import Sums
from ..runs.method import with_sizes
from ..runs.setup import PreparedRun, prepare_seeds
from ..settings.experiment import Curve, Experiment
from .cohort_records import Bits, accounts, checkpoint, take_up
from .computing import computing
from .local import BLOCK, Train, run_curves
from .observer import Observer
from .progress import say

_KEPT = 2**26  # most feature values in batches that are kept between rounds


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

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs, in order."""
        return [setup.config.seed for setup in self.setups]

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
        return Problem(first.objective, shards, np.stack([setup.start for setup in self.setups]))

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
        return self.seeds[0] if self.alone else np.array(self.seeds, dtype=np.uint64)

    def _asked(self, round_: int) -> Index:
        """The clients (..., K) sampled in a round."""
        asked = [setup.config.asked(round_) for setup in self.setups]
        return asked[0] if self.alone else np.stack(asked)

    def _schedule(self) -> Schedule:
        """The local schedule. A few rows that every round uses are looked up once."""
        config, schedule, shards = self.setups[0].config, self.setups[0].schedule, self.problem.shards
        everybody = config.sampled == config.clients.count and schedule.batch_size == 0
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
        multipliers = plans[0].multipliers if self.alone else np.stack([plan.multipliers for plan in plans])
        schedule, shards = self.setups[0].schedule, self.problem.shards
        return SimulatedNoise(self.algorithm, shards, schedule, plans[0].bounds, multipliers, self._seed)

    def place(self, seed: int) -> int | None:
        """The index of the seed-th run in the server's arrays; None if it is the only run."""
        return None if self.alone else seed

    def models(self, server: Any) -> Array:
        """The models of all seeds, (seeds, d)."""
        return np.atleast_2d(self.algorithm.model(server))

    def points(self, server: Any) -> list[Array | None]:
        """The clients' own models (N, d) for each seed; None if the server does not know them."""
        points = self.setups[0].method.client_models(self.setups[0].own(server))
        if points is None or self.alone:
            return [points] * len(self.setups)
        return list(points)

    def personal(self, server: Any, seed: int) -> Array | None:
        """The clients' own models (N, d) for the seed-th run, if they evaluate them."""
        models = personal_models(self.setups[0].method, server)
        return models if models is None or self.alone else models[seed]

    @cached_property
    def bits(self) -> Bits:
        """The number of bits of one upload and of one inbox."""
        d, dtype = self.problem.objective.d, self.problem.start.dtype
        return Bits(self.algorithm.upload.bits(d, dtype), self.algorithm.inbox.bits(d, dtype))


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
) -> list[Result]:
    """Run all seeds together and return their results in order.

    With checkpoints, which hold all seeds, the run resumes from the newest one. Seeds that cannot be stacked
    (`_stackable`) run one by one instead, and so do all if one of them fails or loses a client whose update is not
    finite; they then write no checkpoints.
    """
    try:
        if len(setups) > 1 and not _stackable(setups[0]):
            raise SeedsNotStackable
        setups = [simulated(setup) for setup in setups]
        with computing(), np.errstate(all="ignore"):
            return _together(setups, progress, checkpoints)
    except (SeedsNotStackable, RunError):
        return [result for setup in setups for result in train([setup], progress)]


def _stackable(setup: PreparedRun) -> bool:
    """Whether several seeds of the run have arrays of the same shapes in every round.

    Not if each draws its own numbers of local steps or may end early, if the schema has private ranges, or if the
    server sees only sums.
    """
    return (
        not (setup.algorithm.draws_steps or setup.algorithm.ends_early or isinstance(setup.algorithm, Summed))
        and not setup.dataset.unscaled
    )


def _together(
    setups: Sequence[PreparedRun], progress: Progress | None, checkpoints: Checkpoints | None
) -> list[Result]:
    recorders = [Recorder(s, progress if s is setups[0] else None) for s in setups]
    began, failure = time.perf_counter(), ""
    cohort = Cohort(setups)
    at = None
    models: Sequence[Array | None] = [None]
    points: Sequence[Array | None] = [None]
    try:
        at = _loop(cohort, recorders, setups[0].config.rounds, checkpoints)
        models, points = list(cohort.models(at.server)), cohort.points(at.server)
    except RunError as error:
        if len(setups) > 1:
            raise
        failure = str(error)
    seconds = time.perf_counter() - began
    return [
        Result(
            s,
            "cohort",
            r.rows,
            seconds,
            x,
            failure,
            r.rounds,
            own,
            r.scores,
            _information(s, x, at),
            by_site=r.by_site,
            stop=at and cohort.algorithm.stops(at.server),
        )
        for s, r, x, own in zip(setups, recorders, models, points, strict=True)
    ]


def _information(setup: PreparedRun, x: Array | None, at: Outcome | None) -> Sums | None:
    return None if x is None or at is None else information.simulated(setup, x, at.server)


def _loop(cohort: Cohort, recorders: list[Recorder], number: int, checkpoints: Checkpoints | None) -> Outcome:
    """Run all remaining rounds and return the outcome of the last one."""
    saved, begin = newest(checkpoints, say), cohort.start()
    if saved:
        template = cohort.algorithm.init_client(cohort.setups[0].start)
        begin = take_up(saved, begin, template, cohort.seeds, recorders)
    else:
        _note(cohort, begin, recorders, checkpoints)
    at, private = begin, cohort.setups[0].plan is not None
    for at in cohort.rounds(number, begin):
        for recorder, done in zip(recorders, accounts(at, cohort.bits, private), strict=True):
            recorder.note(done)
        _note(cohort, at, recorders, checkpoints)
    return at


def _note(cohort: Cohort, at: Outcome, recorders: list[Recorder], checkpoints: Checkpoints | None) -> None:
    """Evaluate the round and write a checkpoint, if they are due."""
    if recorders[0].wants(at.round) or (at.round and cohort.algorithm.stops(at.server)):
        for place, (recorder, x) in enumerate(zip(recorders, cohort.models(at.server), strict=True)):
            own = own_columns(recorder.setup, at.server, cohort.place(place))
            found = held_out.simulated(recorder.setup, x, at.round, cohort.personal(at.server, place))
            recorder.found_at_sites(found.scores, found.by_site)
            recorder.evaluate(at.round, x, {**own, **found.columns})
    if checkpoints and checkpoints.due(at.round):
        checkpoints.save(at.round, checkpoint(at, cohort.seeds, recorders))


def run(plan: Experiment, folder: Path, observer: Observer) -> list[str]:
    """Run the remaining runs of an experiment, all seeds of a curve together; return a message for each failure."""
    return run_curves(plan, folder, observer, trainer(plan, folder, observer.row))


def trainer(plan: Experiment, folder: Path, progress: Progress) -> Train:
    """A function that runs a curve of the experiment with given seeds, together if they can be stacked."""

    def together(curve: Curve, seeds: list[int]) -> Iterator[Result]:
        every = curve.config.output.checkpoint_every
        if every and plan.single:
            write_config(curve.config, folder)
        setups = prepare_seeds(curve.config, seeds)
        if _stackable(setups[0]):
            own = Checkpoints(curve_folder(plan, folder, curve), every, curve.config)
            yield from train(setups, progress, own)
            return
        for setup in setups:
            own = Checkpoints(run_folder(plan, folder, curve, setup.config.seed), every, setup.config)
            yield from train([setup], progress, own)

    return together
