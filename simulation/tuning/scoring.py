"""The scores of configurations in a tuning that is not charged: how one is judged, several at a time, and each once."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from glob import glob
from pathlib import Path

import numpy as np

from twinflower.arrays import Array
from twinflower.errors import SettingError, require
from twinflower.problems.interfaces import Batch

from ..runs.run import Run
from ..runs.setup import PreparedRun, prepare_seeds
from ..runtimes import cohort
from ..runtimes.curves import workers
from ..settings import Config
from ..settings.config import FILES
from .validation import held_out

COLUMNS = ("node_error", "distance", "optimality", "suboptimality")

Outcome = tuple[list[float], str]  # the score of every seed, and why there is none


@dataclass
class Scorer:
    """Scores configurations in up to `jobs` processes. journal: a file that keeps the scores, so that a tuning that was
    interrupted takes those that are known from it; None: they are not kept."""

    seeds: list[int]
    share: float
    by: str
    jobs: int = 1
    journal: Path | None = None
    known: dict[str, Outcome] = field(default_factory=dict)

    def read(self) -> None:
        """Take the scores in the journal; a line that was not written completely is left out."""
        for line in self.journal.read_text(encoding="utf-8").splitlines() if self.journal else []:
            try:
                key, values, why = json.loads(line)
            except (ValueError, TypeError):
                continue
            self.known[key] = values, why

    def scores(self, configs: Sequence[Config]) -> Iterator[Outcome]:
        """The outcome of each configuration, in this order; each is kept as soon as it is known.

        Raises RunError if a worker process is killed.
        """
        keys = [self._key(config) for config in configs]
        new = {key: config for key, config in zip(keys, configs, strict=True) if key not in self.known}
        jobs = min(self.jobs, len(new))
        several = workers(jobs, None, "with --resume") if jobs > 1 else nullcontext()
        with several as pool:
            steps = self._steps(pool, new)
            for key in keys:
                while key not in self.known:
                    next(steps)
                yield self.known[key]

    def start(self, config: Config) -> float:
        """The mean score of the model before training; -inf for a column of metrics.csv."""
        if self.by in COLUMNS:
            return -np.inf
        held = [held_out(setup, self.share) for setup in prepare_seeds(config, self.seeds)]
        return float(np.mean([_judge(setup, setup.start, None, rows, self.by) for setup, rows in held]))

    def _steps(self, pool: ProcessPoolExecutor | None, new: Mapping[str, Config]) -> Iterator[None]:
        """Keep the outcomes of new configurations as they end, one or several with each step."""
        attempt = partial(attempted, seeds=self.seeds, share=self.share, by=self.by)
        if pool is None:
            for key, config in new.items():
                self._keep(key, attempt(config))
                yield
            return
        running = {pool.submit(attempt, config): key for key, config in new.items()}
        while running:
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(
                ended, key=lambda end: end.exception() is not None
            ):  # an error is raised last
                self._keep(running.pop(future), future.result())
            yield

    def _key(self, config: Config) -> str:
        """A digest of what the score depends on: the settings, the files that they name, and the rule."""
        text = json.dumps([config.digest, _read_files(config), self.seeds, self.share, self.by])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _keep(self, key: str, outcome: Outcome) -> None:
        self.known[key] = outcome
        if self.journal:
            with self.journal.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps([key, *outcome]))


def _read_files(config: Config) -> list[str]:
    """The size and the time of the last change of every file that the settings name."""
    named = [str(value) for key, value in config.items().items() if key in FILES and value]
    named += [name.partition(":")[2] for name in [config.objective.name] if name.startswith("torch:")]
    found = [Path(file) for pattern in named for file in sorted(glob(str(Path(pattern).expanduser())))]
    return [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in found]


def journal_of(path: Path, resume: bool, charged: bool) -> Path | None:
    """Where scores are kept until the tuned file at `path` is written: PATH.scores. None for a charged tuning, which
    cannot be resumed. SettingError if there are scores of an interrupted tuning that is not to be resumed."""
    journal = path.with_name(f"{path.name}.scores")
    require(not (resume and charged), "a tuning that is charged cannot be resumed: leave out --resume")
    require(not resume or journal.is_file(), f"there is no tuning to resume: {journal} does not exist")
    require(
        resume or charged or not journal.exists(),
        f"{journal} has scores of an interrupted tuning: go on with --resume, or remove the file",
    )
    return None if charged else journal


def attempted(config: Config, seeds: list[int], share: float, by: str) -> Outcome:
    """`score`, or -inf and the reason if the settings are incompatible."""
    try:
        return score(config, seeds, share, by), ""
    except SettingError as error:  # for example, a step-size that is too large for this mu
        return [-np.inf], f" ({error})"


def score(config: Config, seeds: list[int], share: float, by: str) -> list[float]:
    """The score of a configuration for every seed; higher is better. share: the share of rows that is held out."""
    setups = prepare_seeds(config, seeds)
    if by in COLUMNS:
        return [_finite(-_column(result, by)) for result in cohort.train(setups)]
    training, held = zip(*(held_out(s, share) for s in setups), strict=True)
    judged = zip(cohort.train(training), held, strict=True)
    return [
        -np.inf if r.model is None else _finite(_judge(r.setup, r.model, r.points, rows, by))
        for r, rows in judged
    ]


def _finite(value: float) -> float:
    """The score, or -inf, with which a point is never chosen, if it is not finite."""
    return value if np.isfinite(value) else -np.inf


def _column(result: Run, name: str) -> float:
    """The final value of a column; without own models of the clients, the distance takes the place of node_error."""
    last = result.rows[-1]
    return float(last.get(name, last["distance"])) if result.model is not None else np.inf


def _judge(setup: PreparedRun, x: Array, points: Array | None, held: Batch, by: str) -> float:
    """The score of a model x (d,), or with "node-objective" of the clients' own models (N, d), if there are any."""
    if by == "accuracy":
        return float(setup.objective.score(x, held))
    own = points if by == "node-objective" else None
    return -float(np.mean([_objective(setup, model, held) for model in (x[None] if own is None else own)]))


def _objective(setup: PreparedRun, x: Array, rows: Batch) -> float:
    return float(setup.objective.value(x, rows) + setup.regulariser.value(x))
