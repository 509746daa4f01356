"""What a report is on: stored runs, alone or as the curves of an experiment or of a comparison; or a planned run."""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twinflower.data.sets import OWN
from twinflower.errors import DataError, SettingError
from twinflower.models.model import TrainedModel
from twinflower.models.trained import load
from twinflower.privacy.plan import EVALUATION

from ..results.folder import curve_of, has_ended, run_folder, runs_below
from ..results.reading import read_clients, read_config, read_rows, read_summary, read_title
from ..runs.privacy import accounts, spent
from ..runs.setup import PreparedRun
from ..settings import Config
from ..settings.config import FILES
from ..settings.experiment import Curve, Experiment
from .document import Section

Site = Mapping[str, float | None]  # a row of clients.csv


@dataclass(frozen=True)
class StoredRun:
    """An ended run, whose files are read when a section needs them; SettingError then for a damaged one.

    planned: its settings but for the seed, if they are known without its file.
    """

    folder: Path
    planned: Config | None = None

    @cached_property
    def config(self) -> Config:
        """The settings."""
        return self.planned or read_config(self.folder).config

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        return read_summary(self.folder)

    @cached_property
    def rows(self) -> list[dict[str, float]]:
        """The rows of metrics.csv."""
        return read_rows(self.folder)

    @cached_property
    def clients(self) -> list[dict[str, float | None]]:
        """The rows of clients.csv."""
        return read_clients(self.folder)

    @cached_property
    def model(self) -> TrainedModel | None:
        """The model; None if none was written, or only a point, with which nothing can be predicted."""
        try:
            return load(self.folder)
        except DataError:
            return None


@dataclass(frozen=True)
class CurveRuns:
    """A curve with its ended runs; name: empty for a run alone; planned: the number of its runs, 0 if not known."""

    name: str
    config: Config
    runs: Sequence[StoredRun]
    planned: int = 0

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """The summaries of the runs."""
        return [run.summary for run in self.runs]

    @classmethod
    def of_curve(cls, plan: Experiment, folder: Path, curve: Curve) -> "CurveRuns":
        """A curve of an experiment in this folder."""
        folders = [run_folder(plan, folder, curve, seed) for seed in plan.seeds]
        runs = [StoredRun(own, curve.config) for own in folders if has_ended(own)]
        return cls(curve.name, curve.config, runs, len(folders))


@dataclass(frozen=True)
class Study:
    """What a report is on. plan, folder: the experiment and its folder, for an experiment with several runs.

    alone: whether it is on one run. left_out: a message for each folder that a comparison leaves out. command: that
    makes the report again.
    """

    kind: str
    title: str
    curves: Sequence[CurveRuns]
    alone: bool = False
    plan: Experiment | None = None
    folder: Path = Path()
    left_out: Sequence[str] = ()
    command: str = "report"

    @property
    def runs(self) -> list[StoredRun]:
        """All ended runs."""
        return [run for curve in self.curves for run in curve.runs]

    @property
    def run(self) -> StoredRun | None:
        """The run that the report is on; None if it is on several, or if the run has not ended."""
        return self.runs[0] if self.alone and self.runs else None

    @classmethod
    def of_run(cls, folder: Path) -> "Study":
        """The run that was begun in this folder."""
        runs = [StoredRun(folder)] if has_ended(folder) else []
        return cls.of_config(read_config(folder).config, read_title(folder), runs)

    @classmethod
    def of_config(cls, config: Config, title: str = "", runs: Sequence[StoredRun] = ()) -> "Study":
        """A run by its settings; title: that of its experiment, if it has one."""
        title = title or f"{config.algorithm} on {rows_of(config)}"
        return cls("Federated learning run", title, [CurveRuns("", config, runs, 1)], alone=True)

    @classmethod
    def of_experiment(cls, plan: Experiment, folder: Path) -> "Study":
        """An experiment with several runs, of which any number have ended."""
        curves = [CurveRuns.of_curve(plan, folder, curve) for curve in plan.curves]
        return cls("Federated learning experiment", plan.title, curves, plan=plan, folder=folder)

    @classmethod
    def of_folders(cls, folders: Sequence[Path], pool: bool = False) -> "Study":
        """The ended runs in these folders and below, grouped by curve; no run counts twice.

        pool: runs whose settings differ in the seed alone are one curve, as those of the jobs of an array; of two runs
        with the same seed the second is left out.
        A folder without ended runs is left out; SettingError if it does not exist or nothing remains.
        """
        found: dict[Path, StoredRun] = {}
        left_out: dict[str, None] = {}
        for folder in map(Path.resolve, folders):
            if not folder.is_dir():
                raise SettingError(f"{folder} is not a folder: give the folder of a run or an experiment")
            runs = {run: StoredRun(run) for run in runs_below(folder)}
            found |= runs
            if not runs:
                left_out[f"{folder} is left out: no run has ended there"] = None
        groups: dict[Path, list[StoredRun]] = defaultdict(list)
        for run in found.values():
            groups[curve_of(run.folder)].append(run)
        if not groups:
            raise SettingError("; ".join(left_out))
        if pool:
            groups = _pooled(groups, left_out)
        common = Path(os.path.commonpath([folder.parent for folder in groups]))
        curves = [
            CurveRuns(str(folder.relative_to(common)), own[0].config, own) for folder, own in groups.items()
        ]
        title = ", ".join(curve.name for curve in curves)
        kind = "Comparison of federated learning runs"
        return cls(kind, title, curves, left_out=[*left_out], command="compare")


def read(*folders: str | Path) -> Any:
    """The ended runs in these folders and below as a pandas.DataFrame: a row for each evaluated round, with the columns
    `curve`, `algorithm` and `seed`, and those of metrics.csv.

    Raises SettingError for a folder that does not exist, if no run has ended, for a damaged file, and without pandas.
    """
    try:
        import pandas
    except ImportError:
        raise SettingError("twinflower.read needs pandas: pip install pandas") from None
    study = Study.of_folders([*map(Path, folders)])
    rows: list[dict[str, Any]] = []
    for curve in study.curves:
        for run in curve.runs:
            origin = {"curve": curve.name, **{key: run.summary[key] for key in ("algorithm", "seed")}}
            rows += [origin | row for row in run.rows]
    return pandas.DataFrame(rows)


def rows_of(config: Config) -> str:
    """What a run trains on, in words: the name of its data set, or that the rows are the sites' own."""
    return "the sites' own rows" if config.data.name == OWN else config.data.name


def _pooled(
    groups: Mapping[Path, Sequence[StoredRun]], left_out: dict[str, None]
) -> dict[Path, list[StoredRun]]:
    """The groups with the same settings but for the seed, and files of the same names, as one, under the first one's
    folder."""
    pooled: dict[Path, list[StoredRun]] = defaultdict(list)
    places: dict[str, Path] = {}
    seeds: set[tuple[Path, int]] = set()
    for folder, runs in groups.items():
        for run in runs:
            files = {key: Path(str(value)).name for key, value in run.config.items().items() if key in FILES}
            settings = json.dumps([{**run.config.unusual, "seed": 0}, files], sort_keys=True)
            place = places.setdefault(settings, folder)
            if (place, run.config.seed) in seeds:
                left_out[f"{run.folder} is left out: another run has its settings and its seed"] = None
            else:
                seeds.add((place, run.config.seed))
                pooled[place].append(run)
    return pooled


def of_one_run(section: Callable[[StoredRun], list[Section]]) -> Callable[[Study], list[Section]]:
    """A section that only a report on one ended run has."""

    @wraps(section)
    def of_study(study: Study) -> list[Section]:
        return section(study.run) if study.run else []

    return of_study


class Case(NamedTuple):
    """The run that a privacy statement is about, before it starts or after it has ended.

    privacy: the entry of summary.json, None without privacy. sites: rows of clients.csv. planned: whether the run is
    still to come. deployed: whether the noise is secret and the ledgers are at the sites. standardised: whether columns
    were scaled by statistics of the data. complete: whether the run finished.
    """

    config: Config
    privacy: Mapping[str, Any] | None
    sites: Sequence[Site]
    planned: bool = False
    deployed: bool = False
    standardised: bool = False
    complete: bool = True

    @classmethod
    def of_folder(cls, folder: Path) -> "Case":
        """The case of an ended run; SettingError if none has ended in this folder."""
        if not has_ended(folder):
            raise SettingError(f"no run has ended in {folder}: give its config.toml for what it plans")
        return cls.of_run(StoredRun(folder))

    @classmethod
    def of_run(cls, run: StoredRun) -> "Case":
        """The case of an ended run."""
        summary = run.summary
        return cls(
            run.config, summary["privacy"], run.clients, deployed=summary["runtime"] == "deployment",
            standardised=bool(summary["standardised"]), complete=bool(summary["finished"]),
        )  # fmt: skip

    @classmethod
    def of_setup(cls, setup: PreparedRun) -> "Case":
        """The case of a run before it starts, if every client that the plan samples takes part."""
        plan = setup.plan
        if plan is None:
            return cls(setup.config, None, [], planned=True)
        columns = {"rows": setup.partition.sizes, "asked": plan.releases.rounds_in, **accounts(plan)}
        asked = np.flatnonzero(plan.releases.rounds_in + plan.releases.weights(EVALUATION)).tolist()
        sites = [{"client": c} | {name: float(column[c]) for name, column in columns.items()} for c in asked]
        return cls(
            setup.config, spent(plan, seeded=False), sites, planned=True,
            standardised=setup.dataset.standardised,
        )  # fmt: skip
