"""Read the files in the folder of a run or an experiment."""

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twinflower.errors import SettingError, require
from twinflower.queries.query import SiteQuery

from ..settings import Value
from ..settings.columns import CLIENT_COLUMNS, COLUMNS, PATH_COLUMNS, SITE_COLUMNS
from ..settings.experiment import Curve, Experiment, read_experiment
from . import names
from .folder import is_experiment

SUMMARY_KEYS = (
    "algorithm", "dataset", "seed", "finished", "rounds", "test_accuracy", "objective", "nonzeros", "uplink_bits",
    "privacy", "seconds", "parameters", "majority_baseline", "bounds_met", "rejected_replies", "optimality",
    "runtime", "failure", "warnings", "partition", "downlink_bits", "standardised", "regression",
    "test_accuracy_from", "site_names", "site_scores",
)  # fmt: skip
_LATER_KEYS = (
    "ended",
    "survival",
    "outcome",
    "held_out_by_site",
    "facts",
    "step_size",
)  # which an earlier summary does not have
_NUMBERS = ("test_accuracy", "objective", "nonzeros", "uplink_bits", "seconds", "optimality")


def read_config(folder: Path) -> Curve:
    """The configuration of the run that was begun in this folder, as a curve; SettingError if none was."""
    require(folder.is_dir(), f"no run folder at '{folder}'")
    (curve,) = read_experiment(folder / names.CONFIG, stored=True).curves
    return curve


def read_title(folder: Path) -> str:
    """The title that a run's experiment file has; empty if it has none, or if the run is one of several."""
    path = folder / names.TITLE
    return _text(path) if path.exists() else ""


def read_plan(folder: Path, overrides: Mapping[str, Value] | None = None) -> Experiment:
    """Read the experiment or the run that was begun in this folder; overrides take precedence over the file."""
    path = folder / (names.EXPERIMENT if is_experiment(folder) else names.CONFIG)
    return read_experiment(path, overrides, stored=True)


@contextmanager
def _expecting(path: Path, what: str) -> Iterator[None]:
    """SettingError that the file is not what was expected, for any error that a damaged file causes in the block."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SettingError):
        raise SettingError(f"{path} is {what}") from None


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json of a run folder; SettingError if it is missing or not the summary of a run."""
    path = folder / names.SUMMARY
    with _expecting(path, "missing or not the summary of a run"):
        summary = json.loads(path.read_text(encoding="utf-8"))
        require(all(isinstance(summary[key], int | float | None) for key in _NUMBERS), "")
        evaluated = {key: summary.get(key) for key in (*SITE_COLUMNS, *_LATER_KEYS)}
        return {key: summary[key] for key in SUMMARY_KEYS} | evaluated


def read_rows(folder: Path) -> list[dict[str, float]]:
    """Read metrics.csv of a run folder; SettingError if it is missing or not the metrics of a run."""
    path = folder / names.METRICS
    with (
        _expecting(path, "missing or not the metrics of a run"),
        path.open(newline="", encoding="utf-8") as file,
    ):
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        require(all(set(COLUMNS) <= row.keys() for row in rows), "")
        return rows


def read_clients(folder: Path) -> list[dict[str, float | None]]:
    """Read clients.csv of a run folder, empty fields as None; empty if it is missing.

    Raises SettingError if it is damaged.
    """
    path = folder / names.CLIENTS
    with _expecting(path, "not the list of clients of a run"):
        table = csv.DictReader(_text(path).splitlines())
        return [{key: float(row[key]) if row[key] else None for key in CLIENT_COLUMNS} for row in table]


def read_answers(folder: Path, query: type[SiteQuery]) -> Any:
    """What a report shows of the answers to a question that writes a table (`Answers.read`), empty if there is none.

    Raises SettingError if it is damaged.
    """
    path = folder / query.reported.known_files[0]
    with _expecting(path, f"not the {query.follows} of a run"):
        return query.reported.read(list(csv.DictReader(_text(path).splitlines())))


def read_path(folder: Path) -> list[dict[str, str]]:
    """The rows of path.csv, with the weight, the error and the entries of the model of each; empty if it is missing."""
    path = folder / names.PATH
    with _expecting(path, "not the path of a penalty"):
        found = list(csv.DictReader(_text(path).splitlines()))
        require(all(set(PATH_COLUMNS) <= row.keys() for row in found), "")
        return found


def read_rejections(folder: Path) -> list[tuple[int, int, str]]:
    """The replies that a run left out, as (round, client, reason), from rounds.jsonl; SettingError if it is damaged."""
    path = folder / names.ROUNDS
    with _expecting(path, "not the list of rounds of a run"):
        return [
            (int(done["round"]), int(client), str(reason))
            for done in map(json.loads, _text(path).splitlines())
            for client, reason in done["rejected"].items()
        ]


def read_environment(folder: Path) -> list[tuple[str, str]]:
    """The content of environment.json as (name, value) pairs; empty if it is missing."""
    path = folder / names.ENVIRONMENT
    with _expecting(path, "not the environment of a run"):
        return flat(json.loads(_text(path) or "{}"))


def _text(path: Path) -> str:
    """The content of a file that may be missing."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def flat(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An environment as (name, value) pairs, with the libraries among them."""
    libraries = {name: number or "not installed" for name, number in found.get("libraries", {}).items()}
    named = {name: value for name, value in found.items() if name != "libraries"}
    return [(name, str(value)) for name, value in (named | libraries).items()]


def digests(folder: Path) -> list[tuple[str, str]]:
    """The files of a run or an experiment with their SHA-256 digests, as (name, hexadecimal digits)."""
    found = [folder / name for name in names.DIGESTED]
    return [(path.name, digest(path)) for path in found if path.is_file()]


def digest(path: Path) -> str:
    """The SHA-256 digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
