"""The file that a tuning writes: the experiment with the chosen values and all scores. What other tunings found of the
same experiment is read from their files, so that curves can be tuned in separate jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twinflower.errors import SettingError, require

from ..experiment_files import load_toml
from ..settings.experiment import CURVE_WORDS, settings_in
from ..settings.reader import flatten, to_tables, to_toml, toml_lines, toml_value
from .grid import HELD_OUT, Point, Tuning, charged, read_tuning
from .scoring import COLUMNS

_HEAD = ("title", "source", "claim", "verdict", "seeds", "x", "y", "log-axes", "centre", "ends")

Row = tuple[str, float]  # a point as a user would type it, and its mean score


@dataclass(frozen=True)
class Score:
    """A point of a grid and its score for every tuning seed; higher is better, -inf if it diverged.

    reached: in a charged tuning, the round up to which the candidate was trained; a candidate that was trained longer
    is better.
    """

    point: Point
    values: list[float]
    reached: int = 0

    @property
    def mean(self) -> float:
        """The mean score over the seeds."""
        return float(np.mean(self.values))

    @property
    def rank(self) -> tuple[int, float]:
        """What the best point has most of."""
        return self.reached, self.mean

    @property
    def text(self) -> str:
        """The point as a user would type it, key = value."""
        return ", ".join(f"{key} = {toml_value(value)}" for key, value in self.point.items())


class Tuned(NamedTuple):
    """A curve that was tuned elsewhere: its table with the chosen values (None: that of the experiment itself), its
    scores, best first, and where it is from, for messages."""

    settings: dict[str, Any] | None
    rows: list[Row]
    origin: str


def own_scores(raw: Mapping[str, Any]) -> dict[str, Tuned]:
    """The curves with scores in an experiment file, by label."""
    return {label: Tuned(None, rows, "the file") for label, rows in raw.get("scores", {}).items()}


def read_tuned(paths: Sequence[Path], tuning: Tuning) -> dict[str, Tuned]:
    """The curves that are tuned in these files, by label.

    Raises SettingError, naming the file, if it has no scores, if the same curve is in two files, or if a curve was
    tuned with other settings, another grid or other rules than `tuning` has.
    """
    found: dict[str, Tuned] = {}
    for path in paths:
        part = _tuned_in(path, tuning)
        twice = sorted(found.keys() & part.keys())
        require(not twice, f"{path}: '{', '.join(twice)}' is in another file, too: name one of them")
        found |= part
    return found


def _tuned_in(path: Path, tuning: Tuning) -> dict[str, Tuned]:
    part, scores = read_tuning(path, tuning.overrides), load_toml(path).get("scores", {})
    require(bool(scores), f"{path} has no scores: name a file that twinflower tune has written")
    mine, theirs = ({own.label(curve): curve for curve in own.raw["curve"]} for own in (tuning, part))
    for label in scores:
        if label not in mine or label not in theirs or not _alike(tuning, mine[label], part, theirs[label]):
            raise SettingError(
                f"{path}: the curve '{label}' was tuned in another experiment, which has other settings, another grid "
                "or other rules in [tune]: tune it anew"
            )
    return {label: Tuned(theirs[label], rows, str(path)) for label, rows in scores.items()}


def _alike(tuning: Tuning, curve: Mapping[str, Any], part: Tuning, other: Mapping[str, Any]) -> bool:
    """Whether two curves have the same grid and rules, and the same settings at a point of the grid."""
    rules = [(own.seeds, own.held_out, own.by, own.public) for own in (tuning, part)]
    if rules[0] != rules[1] or tuning.grid(curve) != part.grid(other):
        return False
    point = tuning.points(curve)[0]
    return tuning.config(curve, point).items() == part.config(other, point).items()


def text_of(tuning: Tuning, curves: list[dict[str, Any]], tables: Mapping[str, list[Row]]) -> str:
    """The text of the tuned experiment file: header, [tune], [grid], [run], tuned curves and scores."""
    raw = tuning.raw
    rules = {"seeds": tuning.seeds, "held-out": tuning.held_out, "by": tuning.by}
    rules |= {"public": True} if tuning.public else {}
    if tuning.by in COLUMNS:
        del rules["held-out"]
    parts = [
        "".join(_head_line(key, raw[key]) for key in _HEAD if key in raw),
        "[tune]\n" + to_toml(rules),
        "[grid]\n" + to_toml(flatten(raw.get("grid", {}))),
        to_tables(flatten(raw["run"], "run")),
        *("[[curve]]\n" + to_toml(_curve_keys(curve)) for curve in curves),
        _score_tables(tuning, tables),
    ]
    return "\n".join(parts)


def _head_line(key: str, value: Any) -> str:
    if isinstance(value, str) and "\n" in value:
        return f"{key} = {toml_lines(value)}\n"
    return to_toml({key: value})


def _curve_keys(curve: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a curve, its settings after its label and before its sweep and grid."""
    words = {key: value for key, value in curve.items() if key in CURVE_WORDS}
    lists = {key: flatten(words.pop(key)) for key in ("sweep", "grid") if key in words}
    return words | flatten(settings_in(curve)) | lists


def _score_tables(tuning: Tuning, tables: Mapping[str, list[Row]]) -> str:
    """The table [scores]: for every tuned curve its points, best first."""
    sign = HELD_OUT.get(tuning.by, f"minus {tuning.by}")
    order = "; longer training first" if charged(tuning) else ""
    lines = [f"[scores]  # {sign}, mean over the tuning seeds; higher is better{order}"]
    for label, rows in tables.items():
        texts = [f"    [{toml_value(text)}, {value:.6g}]," for text, value in rows]
        lines += [f"{toml_value(label)} = [", *texts, "]"]
    return "\n".join(lines) + "\n"
