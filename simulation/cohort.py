"""The `cohort` runtime: a page in a bare loop, clients stacked on an axis, seeds on one more.

No messages, no Flower: for sweeps and benchmarks. States are kept of clients that were visited only, so
a million registered clients cost what the sampled ones do.
"""

import math
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from threadpoolctl import threadpool_limits

from twinflower.algorithms.abilities import NeedsEveryClient, client_models
from twinflower.algorithms.page import Page, stack, unstack
from twinflower.algorithms.work import LocalWork, Report
from twinflower.arrays import Array, Index, Mask
from twinflower.batches import Batches, Shards
from twinflower.errors import RunError, require
from twinflower.privacy.mechanism import GaussianNoise, seeded_cohort
from twinflower.privacy.release import Noise, no_noise
from twinflower.strategies import Round

from .checkpoint import Checkpoint, Checkpoints, flatten, leaves_of, named, to_round, unflatten
from .privacy import Plan
from .record import Progress, Recorder, Result, own_columns
from .setup import Setup, with_sizes

_KEPT = 2**26  # numbers
_BLOCK = 2**15  # numbers per array, so that a block's arrays fit one core's cache together


class Cohort:
    """One run, or several runs that differ in the seed only, advanced a round at a time.

    With one setup arrays have axes (clients, ...); with several, (seeds, clients, ...).
    """

    def __init__(self, setups: Sequence[Setup]) -> None:
        first = setups[0]
        self.page: Page = _page_of(setups)
        self.objective, self.walk = first.objective, first.walk
        self.plans = [s.plan for s in setups]
        self.n, self.k = first.config.num_clients, first.config.sampled
        self.configs = [s.config for s in setups]
        self.seeds = [config.seed for config in self.configs]
        self.alone = len(setups) == 1
        self.shards = first.shards if self.alone else Shards.stacked([s.shards for s in setups])
        self.starts = [s.start for s in setups]
        start = first.start if self.alone else np.stack(self.starts)
        keys = np.array(self.seeds, dtype=np.uint64)
        self.server = self.page.init_server(start, self.n, keys[0] if self.alone else keys)
        self._states: dict[tuple[int, int], Any] = {}  # of visited clients, by (seed, client)
        self._whole: Any = None  # in their place, stacked, where everybody takes part in every round
        self._room: Any = None  # the last round's uploads
        self._keeps = self._same_batches()
        self._kept: dict[int, Batches] = {}  # by the first client of a block
        sizes = self.shards.sizes
        self._rows_of_all = int(sizes.flat[0]) if sizes.min() == sizes.max() else 0  # 0: they differ
        self._multipliers = np.stack([plan.multipliers if plan else np.zeros(self.n) for plan in self.plans])

    def round(self, round_: int) -> list[Round]:
        """Run one round; returns what it did, per seed."""
        chosen = [config.asked(round_) for config in self.configs]
        clients = chosen[0] if self.alone else np.stack(chosen)
        if clients.shape[-1] < self.n:
            self._spread_out()
        parts = self._parts(clients)
        blocks = [self._clients(round_, part) for part in parts]
        states, sent, reports = zip(*blocks, strict=True)
        axis = clients.ndim - 1
        uploads, report = self._uploads(sent, axis), _joined(reports, axis)
        good = self._good(uploads, round_)
        self._keep(parts, states, good)
        self.server = self.page.server_update(
            self.server, _some(uploads, good, self.alone), clients[..., good], round_
        )
        if not _all_finite(self.page.model(self.server)):
            raise RunError(f"the model diverged in round {round_}: lower step-size")
        told = (clients, *(array[..., good] for array in report))
        by_seed = [told] if self.alone else zip(*told, strict=True)
        return [self._account(round_, *parts) for parts in by_seed]

    def _good(self, uploads: Any, round_: int) -> Index | slice:
        """Places of the clients whose update is finite; the others are left out, as a strategy does."""
        if all(map(_all_finite, uploads)):
            return slice(None)  # the usual case: nothing is copied
        if not self.alone:
            raise Uneven
        finite = np.all([np.isfinite(a).reshape(len(a), -1).all(-1) for a in uploads], axis=0)
        if not finite.any() or isinstance(self.page, NeedsEveryClient):
            count = f"{len(finite) - finite.sum()} of {len(finite)}"
            raise RunError(
                f"round {round_}: {count} updates are not finite, the run diverged: lower step-size"
            )
        return np.flatnonzero(finite)

    def _same_batches(self) -> bool:
        """Whether all rounds take the same rows of everybody, few enough to be kept as they are."""
        numbers = self.shards.sizes.sum() * self.shards.features.shape[1]
        return self.walk.batch_size == 0 and self.k == self.n and bool(numbers <= _KEPT)

    def checkpoint(self, round_: int, recorders: Sequence[Recorder]) -> Checkpoint:
        """Everything that decides what follows this round, and the metrics so far."""
        self._spread_out()
        visited = sorted(self._states)
        arrays = named("server-", flatten(self.server)) | {"visited": np.array(visited).reshape(-1, 2)}
        if visited:
            arrays |= named("state-", flatten(stack([self._states[key] for key in visited])))
        told = [{"rows": r.rows, "rounds": [done._asdict() for done in r.rounds]} for r in recorders]
        return Checkpoint(arrays, {"round": round_, "seeds": self.seeds, "recorders": told})

    def take_up(self, saved: Checkpoint, recorders: Sequence[Recorder]) -> int:
        """Go on from a checkpoint; returns its round."""
        require(
            "seeds" in saved.facts, "the checkpoint is of another runtime than cohort: resume the run on that"
        )
        require(saved.facts["seeds"] == self.seeds, f"the checkpoint has the seeds {saved.facts['seeds']}")
        self.server = unflatten(self.server, leaves_of("server-", saved.arrays))
        template = self.page.init_client(self.starts[0])
        fields = leaves_of("state-", saved.arrays)
        for place, (seed, client) in enumerate(saved.arrays["visited"].tolist()):
            self._states[seed, client] = unflatten(template, [field[place] for field in fields])
        for recorder, told in zip(recorders, saved.facts["recorders"], strict=True):
            recorder.take_up(told["rows"])
            recorder.rounds.extend(map(to_round, told["rounds"]))
        return int(saved.facts["round"])

    def place(self, seed: int) -> int | None:
        """Where the arrays of the seed-th run stand in the server's, None if it is the only one."""
        return None if self.alone else seed

    def models(self) -> Array:
        """The model of each seed, (seeds, d)."""
        return np.atleast_2d(self.page.model(self.server))

    def points(self) -> list[Array | None]:
        """The clients' own models (N, d) of each seed, None where the server does not know them."""
        points = client_models(self.page, self.server)
        if points is None or self.alone:
            return [points] * len(self.seeds)
        return list(points)

    def _parts(self, clients: Index) -> list[Index]:
        """The round's clients in blocks whose arrays stay in the processor's cache."""
        size = max(1, _BLOCK // (self.objective.d * len(self.seeds)))
        count = clients.shape[-1]
        return np.array_split(clients, -(-count // size), axis=-1) if size < count else [clients]

    def _clients(self, round_: int, clients: Index) -> tuple[Any, Any, Report]:
        """The client side of some of the round's clients, (K,) or (seeds, K)."""
        inbox = self.page.broadcast(self.server, round_, clients)
        batches = self._kept.get(int(clients.flat[0])) or self._batches(round_, clients)
        noise = self._noise(round_, clients) if self.plans[0] else no_noise
        return self.page.client_update(
            self._gather(clients), inbox, LocalWork(self.objective, batches, noise, round_)
        )

    def _batches(self, round_: int, clients: Index) -> Batches:
        seed = self.seeds[0] if self.alone else np.array(self.seeds)[:, None]
        batches = self.walk.batches(self.shards, clients, seed, round_)
        if self._keeps:
            batches = self._kept[int(clients.flat[0])] = batches.keeping_norms()
        return batches

    def _noise(self, round_: int, clients: Index) -> Noise:
        """The noise of stacked clients, each with its own multiplier of its seed's plan and its number of rows."""
        bounds = cast(Plan, self.plans[0]).bounds

        def spread(size: int) -> float:
            return self.page.release(bounds, self.walk.pace(size), round_).spread

        planned = np.take_along_axis(self._multipliers, np.atleast_2d(clients), -1).reshape(clients.shape)
        if self._rows_of_all:
            sigma = spread(self._rows_of_all) * planned
        else:
            sizes = self.shards.extent(clients)[1]
            spreads = {m: spread(int(m)) for m in set(sizes.flat)}
            sigma = np.reshape([spreads[m] for m in sizes.flat], sizes.shape) * planned
        return GaussianNoise(sigma[..., None], seeded_cohort(self.seeds, clients, round_))

    def _gather(self, clients: Index) -> Any:
        if self._whole is not None:
            part = slice(int(clients.flat[0]), int(clients.flat[-1]) + 1)
            return _some(self._whole, part, self.alone)
        rows = [
            stack([self._states.get((s, i)) or self.page.init_client(self.starts[s]) for i in row])
            for s, row in enumerate(np.atleast_2d(clients).tolist())
        ]
        return rows[0] if self.alone else stack(rows)

    def _uploads(self, sent: Sequence[Any], axis: int) -> Any:
        """Uploads of blocks of clients as one, in the last round's arrays: fresh memory costs more than the copy."""
        if len(sent) == 1:
            return sent[0]
        self._room = _joined(sent, axis, self._room if self._has_room(sent, axis) else None)
        return self._room

    def _has_room(self, sent: Sequence[Any], axis: int) -> bool:
        """Whether the last round's arrays have the size of this one's, and the server has kept none of them."""
        if not self._room or self._room[0].shape[axis] != sum(part[0].shape[axis] for part in sent):
            return False
        kept = flatten(self.server)
        return not any(np.may_share_memory(room, own) for room in self._room for own in kept)

    def _keep(self, parts: Sequence[Index], states: Sequence[Any], good: Index | slice) -> None:
        """Store the new states of the good clients; where nobody is left out they need not be joined first."""
        if isinstance(good, slice) and sum(part.shape[-1] for part in parts) < self.n:
            for part, own in zip(parts, states, strict=True):
                self._scatter(part, own)
        else:
            axis = parts[0].ndim - 1
            clients, whole = np.concatenate(parts, axis), _joined(states, axis)
            self._scatter(clients[..., good], _some(whole, good, self.alone))

    def _scatter(self, clients: Index, states: Any) -> None:
        if clients.shape[-1] == self.n:
            self._whole = states
            return
        self._spread_out()
        for s, row in enumerate(np.atleast_2d(clients).tolist()):
            mine = states if self.alone else type(states)(*(array[s] for array in states))
            for place, i in enumerate(row):
                # a copy: a view would keep the whole round's block alive
                self._states[s, i] = type(states)(*(array[place].copy() for array in mine))

    def _spread_out(self) -> None:
        """Give every client its own state again."""
        whole, self._whole = self._whole, None
        if whole is None:
            return
        by_seed = [whole] if self.alone else unstack(whole, len(self.seeds))
        for s, mine in enumerate(by_seed):
            self._states.update(((s, i), state) for i, state in enumerate(unstack(mine, self.n)))

    def _account(self, round_: int, clients: Index, steps: Index, fired: Mask) -> Round:
        up, down = (layout.bits(self.objective.d) for layout in (self.page.upload, self.page.inbox))
        told = (np.nan, np.nan) if self.plans[0] else (float(steps.mean()), float(fired.mean()))
        asked, accepted = len(clients), len(steps)
        lost = dict.fromkeys(range(asked - accepted), "its update is not finite")
        return Round(round_, tuple(clients.tolist()), accepted, lost, up * accepted, down * asked, *told)


def _page_of(setups: Sequence[Setup]) -> Page:
    """The page of all seeds, which may divide the rows among the clients in different ways."""
    if len(setups) == 1 or not setups[0].by_rows:
        return setups[0].page
    return with_sizes(setups[0].page, np.stack([setup.partition.sizes for setup in setups]))


def _all_finite(array: Array) -> bool:
    """Whether there is neither NaN nor infinity; a sum tells most cheaply, unless it overflows."""
    return math.isfinite(array.sum()) or bool(np.isfinite(array).all())


class Uneven(Exception):
    """Some seeds lose a client in a round and others do not: they must be run one by one."""


def _some(parts: Any, good: Index | slice, alone: bool) -> Any:
    """States or uploads of the clients at these places."""
    if isinstance(good, slice) and good == slice(None):
        return parts
    return type(parts)(*(array[good] if alone else array[:, good] for array in parts))


def _joined(blocks: Sequence[Any], axis: int, room: Any = None) -> Any:
    """NamedTuples of blocks of clients as one, in the arrays of room if there is one."""
    if len(blocks) == 1:
        return blocks[0]
    parts = zip(zip(*blocks, strict=True), room or [None] * len(blocks[0]), strict=True)
    return type(blocks[0])(*(np.concatenate(arrays, axis, out=out) for arrays, out in parts))


def run(
    setups: Sequence[Setup], progress: Progress | None = None, checkpoints: Checkpoints | None = None
) -> list[Result]:
    """Run all seeds together; results in their order.

    With checkpoints (of all of them together) it goes on from the newest one, if there is one. If a seed fails,
    or loses a client with an update that is not finite, each is run alone.
    """
    try:
        with threadpool_limits(1), np.errstate(all="ignore"):
            return _together(setups, progress, checkpoints)
    except (Uneven, RunError):
        return [result for setup in setups for result in run([setup], progress)]


def _together(
    setups: Sequence[Setup], progress: Progress | None, checkpoints: Checkpoints | None
) -> list[Result]:
    recorders = [Recorder(s, progress if s is setups[0] else None) for s in setups]
    began, failure = time.perf_counter(), ""
    cohort = Cohort(setups)
    try:
        _loop(cohort, recorders, setups[0].config.rounds, checkpoints)
    except RunError as error:
        if len(setups) > 1:
            raise
        failure = str(error)
    seconds = time.perf_counter() - began
    models, points = ([None], [None]) if failure else (list(cohort.models()), cohort.points())
    return [
        Result(s, "cohort", r.rows, seconds, x, failure, r.rounds, own)
        for s, r, x, own in zip(setups, recorders, models, points, strict=True)
    ]


def _loop(cohort: Cohort, recorders: list[Recorder], rounds: int, checkpoints: Checkpoints | None) -> None:
    first = _take_up(cohort, recorders, checkpoints) if checkpoints else 0
    for round_ in range(first, rounds + 1):
        if round_:
            for recorder, done in zip(recorders, cohort.round(round_), strict=True):
                recorder.note(done)
        if recorders[0].wants(round_):
            for place, (recorder, x) in enumerate(zip(recorders, cohort.models(), strict=True)):
                recorder.evaluate(round_, x, own_columns(recorder.setup, cohort.server, cohort.place(place)))
        if checkpoints and checkpoints.due(round_):
            checkpoints.save(round_, cohort.checkpoint(round_, recorders))


def _take_up(cohort: Cohort, recorders: list[Recorder], checkpoints: Checkpoints) -> int:
    """Go on from the newest checkpoint; returns the first round to do."""
    found, warnings = checkpoints.newest()
    for warning in warnings:
        print(warning, flush=True)
    return cohort.take_up(found, recorders) + 1 if found else 0
