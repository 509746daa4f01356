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
from threadpoolctl import threadpool_limits

from twinflower.algorithms.abilities import DrawsSteps, client_models
from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.summed import Summed
from twinflower.arrays import Array, Index, reuse_freed_memory
from twinflower.client_states import ClientStates
from twinflower.errors import RunError, require
from twinflower.privacy.plan import Plan
from twinflower.privacy.simulated import SimulatedNoise
from twinflower.problems.batches import Batches, LocalSchedule, Shards
from twinflower.rounds import NoiseOf, Outcome, Problem, Schedule, Uneven, rounds, start
from twinflower.strategies import Round
from twinflower.sums.noise import SimulatedSums

from ..results.checkpoint import Checkpoint, flatten, leaves_of, named, to_round, unflatten
from ..results.folder import Checkpoints, curve_folder, write_config
from ..results.record import Progress, Recorder, Result, own_columns
from ..results.resume import newest
from ..runs import held_out
from ..runs.agreement import simulated
from ..runs.setup import Setup, prepare_seeds, with_sizes
from ..settings.experiment import Curve, Experiment
from .local import BLOCK, Train, run_curves
from .observer import Observer

_KEPT = 2**26  # most feature values in batches that are kept between rounds


@dataclass(frozen=True)
class Cohort:
    """One run, or several runs that differ only in the seed.

    Arrays have shape (clients, ...) for one run and (seeds, clients, ...) for several.
    """

    setups: Sequence[Setup]

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
            seed=self._seed, block=self._block, begin=begin,
        )  # fmt: skip

    def start(self) -> Outcome:
        """The state before the first round."""
        return start(self.algorithm, self.problem, self._seed)

    @property
    def _seed(self) -> int | Index:
        return self.seeds[0] if self.alone else np.array(self.seeds, dtype=np.uint64)

    @property
    def _block(self) -> int:
        """The number of clients per block whose arrays fit into the processor's cache."""
        return max(1, BLOCK // self.problem.start.nbytes)

    def _asked(self, round_: int) -> Index:
        """The clients (..., K) sampled in a round."""
        config = self.setups[0].config
        if config.sampled == config.clients.count:
            return self._everyone
        asked = [setup.config.asked(round_) for setup in self.setups]
        return asked[0] if self.alone else np.stack(asked)

    @cached_property
    def _everyone(self) -> Index:
        everyone = np.arange(self.setups[0].config.clients.count)
        return everyone if self.alone else np.tile(everyone, (len(self.setups), 1))

    def _schedule(self) -> Schedule:
        """The local schedule. A few rows that every round uses are looked up once."""
        config, schedule, shards = self.setups[0].config, self.setups[0].schedule, self.problem.shards
        everybody = config.sampled == config.clients.count and schedule.batch_size == 0
        few = shards.sizes.sum() * shards.features.shape[1] <= _KEPT
        return _Kept(schedule) if everybody and few else schedule

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

    def checkpoint(self, at: Outcome, recorders: Sequence[Recorder]) -> Checkpoint:
        """The checkpoint after this round: everything that determines the following rounds, and the metrics so far."""
        visited, states = at.states.visited()
        arrays = named("server-", flatten(at.server)) | {"visited": visited}
        if states is not None:
            arrays |= named("state-", flatten(states))
        records = [{"rows": r.rows, "rounds": [done._asdict() for done in r.rounds]} for r in recorders]
        return Checkpoint(arrays, {"round": at.round, "seeds": self.seeds, "recorders": records})

    def take_up(self, saved: Checkpoint, recorders: Sequence[Recorder]) -> Outcome:
        """The outcome stored in a checkpoint; the recorders continue after its rows.

        Raises SettingError if the checkpoint is of another runtime or has other seeds.
        """
        require(
            "seeds" in saved.info, "the checkpoint is of another runtime than cohort: resume the run on that"
        )
        require(saved.info["seeds"] == self.seeds, f"the checkpoint has the seeds {saved.info['seeds']}")
        at = self.start()
        _restore(at.states, self.algorithm.init_client(self.setups[0].start), saved)
        for recorder, record in zip(recorders, saved.info["recorders"], strict=True):
            recorder.take_up(record["rows"])
            recorder.rounds.extend(map(to_round, record["rounds"]))
        server = unflatten(at.server, leaves_of("server-", saved.arrays))
        return at._replace(round=int(saved.info["round"]), server=server)

    def place(self, seed: int) -> int | None:
        """The index of the seed-th run in the server's arrays; None if it is the only run."""
        return None if self.alone else seed

    def models(self, server: Any) -> Array:
        """The models of all seeds, (seeds, d)."""
        return np.atleast_2d(self.algorithm.model(server))

    def points(self, server: Any) -> list[Array | None]:
        """The clients' own models (N, d) for each seed; None if the server does not know them."""
        points = client_models(self.setups[0].method, self.setups[0].own(server))
        if points is None or self.alone:
            return [points] * len(self.setups)
        return list(points)

    def accounts(self, at: Outcome) -> list[Round]:
        """The record of the round (participants, bits, local steps) for each seed."""
        parts = (at.clients, at.counted, *self._means(at))
        by_seed = [parts] if self.alone else zip(*parts, strict=True)
        return [self._account(at.round, *part) for part in by_seed]

    def _means(self, at: Outcome) -> tuple[Array, Array]:
        """The mean number of local steps, and the share of clients that stopped early, (...,); NaN in private runs."""
        if at.report is None or self.setups[0].plan is not None:
            unknown = np.full(at.clients.shape[:-1], np.nan)
            return unknown, unknown
        return at.report.steps.mean(-1), at.report.fired.mean(-1)

    def _account(self, round_: int, clients: Index, counted: Index, steps: Array, fired: Array) -> Round:
        asked, accepted = tuple(clients.tolist()), len(counted)
        missing = {*asked}.difference(counted.tolist()) if accepted < len(asked) else ()
        lost = dict.fromkeys(sorted(missing), "its update is not finite")
        up, down = self._bits
        return Round(
            round_, asked, accepted, lost, up * accepted, down * len(asked), float(steps), float(fired)
        )

    @cached_property
    def _bits(self) -> tuple[int, int]:
        """The number of bits of one upload and of one inbox."""
        d, dtype = self.problem.objective.d, self.problem.start.dtype
        return self.algorithm.upload.bits(d, dtype), self.algorithm.inbox.bits(d, dtype)


@dataclass(frozen=True)
class _Kept:
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


def _restore(states: ClientStates, template: Any, saved: Checkpoint) -> None:
    """Restore the states of the clients visited before the checkpoint; template is one client's state."""
    fields = leaves_of("state-", saved.arrays)
    if fields:
        states.restore(saved.arrays["visited"], unflatten(template, fields))


def train(
    setups: Sequence[Setup], progress: Progress | None = None, checkpoints: Checkpoints | None = None
) -> list[Result]:
    """Run all seeds together and return their results in order.

    With checkpoints, which hold all seeds, the run resumes from the newest one. The seeds run one by one instead if one
    of them fails or loses a client whose update is not finite, if each draws its own numbers of local steps, if the
    schema has private ranges, or if the server sees only sums.
    """
    reuse_freed_memory()
    try:
        alike = not isinstance(setups[0].algorithm, DrawsSteps | Summed) and not setups[0].dataset.unscaled
        if len(setups) > 1 and not alike:
            raise Uneven
        setups = [simulated(setup) for setup in setups]
        with threadpool_limits(1), np.errstate(all="ignore"):
            return _together(setups, progress, checkpoints)
    except (Uneven, RunError):
        return [result for setup in setups for result in train([setup], progress)]


def _together(
    setups: Sequence[Setup], progress: Progress | None, checkpoints: Checkpoints | None
) -> list[Result]:
    recorders = [Recorder(s, progress if s is setups[0] else None) for s in setups]
    began, failure = time.perf_counter(), ""
    cohort = Cohort(setups)
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
        Result(s, "cohort", r.rows, seconds, x, failure, r.rounds, own)
        for s, r, x, own in zip(setups, recorders, models, points, strict=True)
    ]


def _loop(cohort: Cohort, recorders: list[Recorder], number: int, checkpoints: Checkpoints | None) -> Outcome:
    """Run all remaining rounds and return the outcome of the last one."""
    saved = newest(checkpoints)
    begin = cohort.take_up(saved, recorders) if saved else cohort.start()
    if not saved:
        _note(cohort, begin, recorders, checkpoints)
    at = begin
    for at in cohort.rounds(number, begin):
        for recorder, done in zip(recorders, cohort.accounts(at), strict=True):
            recorder.note(done)
        _note(cohort, at, recorders, checkpoints)
    return at


def _note(cohort: Cohort, at: Outcome, recorders: list[Recorder], checkpoints: Checkpoints | None) -> None:
    """Evaluate the round and write a checkpoint, if they are due."""
    if recorders[0].wants(at.round):
        for place, (recorder, x) in enumerate(zip(recorders, cohort.models(at.server), strict=True)):
            own = own_columns(recorder.setup, at.server, cohort.place(place))
            recorder.evaluate(at.round, x, own | held_out.simulated(recorder.setup, x, at.round))
    if checkpoints and checkpoints.due(at.round):
        checkpoints.save(at.round, cohort.checkpoint(at, recorders))


def run(plan: Experiment, folder: Path, observer: Observer) -> list[str]:
    """Run the remaining runs of an experiment, all seeds of a curve together; return a message for each failure."""
    return run_curves(plan, folder, observer, trainer(plan, folder, observer))


def trainer(plan: Experiment, folder: Path, observer: Observer) -> Train:
    """A function that runs a curve of the experiment with given seeds, all together."""

    def together(curve: Curve, seeds: list[int]) -> Iterator[Result]:
        own = curve_folder(plan, folder, curve)
        if curve.config.output.checkpoint_every and plan.single:
            write_config(curve.config, own)
        checkpoints = Checkpoints(own, curve.config.output.checkpoint_every, curve.config)
        yield from train(prepare_seeds(curve.config, seeds), observer.row, checkpoints)

    return together
