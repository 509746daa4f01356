"""Tuning for a fair comparison: every curve of an experiment gets the best point of a grid given in its file.

    [grid]                         lists of values for every curve, each of which must have these settings
    step-size = [0.1, 0.3, 1.0]
    [tune]
    seeds = [100, 101]             must differ from the seeds of the figure
    held-out = 0.2                 share of every client's training rows that is used for the choice
    by = "objective"               the measure to minimise, or "accuracy", which is maximised
    [[curve]]
    grid = {mu = [0.01, 0.1]}      lists of this curve, which replace the common ones; {}: it is not tuned

Each point is run for the number of rounds in the file and scored by its final value of one of these measures:

    objective, accuracy            of the model on the held-out rows; it is trained on the other rows
    node-objective                 the same objective, as the mean over the clients' own models
    node_error, distance, optimality, suboptimality
                                   the column of metrics.csv, on all training rows; needs evaluation.reference = true

Choose the measure that the figure shows: if clients have their own models (networked methods), the mean of these models
can be good although the models are not. For a method without such models, the server's model counts for all clients.
The columns of metrics.csv compare with the optimum, which is unknown in practice, and so find the best result that each
method can reach.

A point that diverges or has incompatible settings is never chosen. Test rows are not used. The tuned file contains the
chosen values in its curves, all scores, and the original grids, so it can be run and tuned again. What other tunings
found of the same experiment is read from their files, so that curves can be tuned in separate jobs.

Tuning uses the data, and the privacy guarantees of the compared runs do not cover this. With privacy.tune-share they
do: then every candidate is charged (`charged`). Without it, a private run on tables can be tuned only if [tune] has
public = true, which says that everybody may know these rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from twinflower.data.sets import OWN, TABLES
from twinflower.errors import SettingError, require
from twinflower.settings import check_choice, nearest

from ..experiment_files import load_toml
from ..settings import Config, Value
from ..settings.config import configured
from ..settings.experiment import CURVE_WORDS, combinations, read_experiment, settings_in
from ..settings.reader import (
    chosen,
    counting_words,
    flatten,
    merge,
    resolve,
    to_tables,
    to_toml,
    toml_lines,
    toml_value,
)
from .scoring import COLUMNS

_RULES: dict[str, Any] = {"seeds": [100, 101], "held-out": 0.2, "by": "objective", "public": False}
HELD_OUT = {
    "objective": "minus the objective on the held-out rows",
    "accuracy": "accuracy (R^2 of a regression) on the held-out rows",
    "node-objective": "minus the mean over clients of their own models' objective on the held-out rows",
}
_MEASURES = (*HELD_OUT, *COLUMNS)

_HEAD = ("title", "source", "claim", "verdict", "seeds", "x", "y", "log-axes", "centre", "ends")

Point = dict[str, Value]
Row = tuple[str, float]  # a point as a user would type it, and its mean score


@dataclass(frozen=True)
class Tuning:
    """A validated experiment file with its grids. overrides: settings that take precedence over the file."""

    raw: dict[str, Any]
    seeds: list[int]
    held_out: float
    by: str
    public: bool = False
    overrides: Mapping[str, Value] = field(default_factory=dict)

    def choices(self, curve: Mapping[str, Any]) -> dict[str, Value]:
        """The choices of a curve (algorithm, data.name, ...), by key."""
        return chosen([flatten(self.raw["run"]), flatten(settings_in(curve))])

    def label(self, curve: Mapping[str, Any]) -> str:
        """The panel and the label of a curve; the label defaults to the algorithm, as in a figure."""
        words = curve.get("panel", ""), curve.get("label", self.choices(curve)["algorithm"])
        return " ".join(str(word) for word in words if word)

    def grid(self, curve: Mapping[str, Any]) -> dict[str, list[Value]]:
        """The lists of values that apply to a curve, by key."""
        if curve.get("grid") == {}:
            return {}
        own, names = _lists(curve), counting_words(self.choices(curve))
        words = {names.get(word, word): word for word in own}
        return {words.get(names.get(key, key), key): values for key, values in _lists(self.raw).items()} | own

    def points(self, curve: Mapping[str, Any]) -> list[Point]:
        """All combinations of the values in the curve's lists."""
        return combinations(self.grid(curve), "grid")

    def config(self, curve: Mapping[str, Any], point: Point) -> Config:
        """The configuration of one point, with evaluation only at the end."""
        merged = merge([self.raw["run"], settings_in(curve), point, self.overrides], tables=1)
        config = configured(merged.values)
        return config.put({"evaluation.every": config.rounds, "evaluation.early": 0})

    def settled(self, curve: Mapping[str, Any], point: Point) -> dict[str, Any]:
        """The curve with the values of a point, whose keys get their sections."""
        choices = self.choices(curve)
        values = {resolve(key, choices).name: value for key, value in point.items()}
        words = {key: value for key, value in curve.items() if key in CURVE_WORDS}
        own = {
            key: value
            for key, value in flatten(settings_in(curve)).items()
            if resolve(key, choices).name not in values
        }
        return {**words, **own, **values}


def _lists(table: Mapping[str, Any]) -> dict[str, list[Value]]:
    """The lists of values in the `grid` of a curve or of the file, by key as written."""
    lists = table.get("grid", {})
    if not isinstance(lists, Mapping):
        raise SettingError(
            f"grid must be keys with lists of values, such as {{rounds = [10, 20]}}; got {lists!r}"
        )
    return flatten(lists)


def typed(point: Point) -> str:
    """The point as a user would type it, key = value."""
    return ", ".join(f"{key} = {toml_value(value)}" for key, value in point.items())


def read_tuning(path: Path, overrides: Mapping[str, Value] | None = None) -> Tuning:
    """Read and validate a file; SettingError, naming the file, if it is not as the module docstring describes."""
    plan, raw = read_experiment(path, overrides), load_toml(path)
    rules = {**_RULES, **raw.get("tune", {})}
    try:
        if rules.keys() != _RULES.keys():
            raise SettingError(f"[tune] knows {', '.join(_RULES)}; got {', '.join(rules)}")
        require("run" in raw and "curve" in raw, "tuning needs a [run] table and [[curve]] tables")
        shared = sorted(set(rules["seeds"]) & set(plan.seeds))
        if not (bool(rules["seeds"]) and not shared):
            raise SettingError(
                f"[tune] seeds must differ from the figure's, {plan.seeds}; got {rules['seeds']}: choose others"
            )
        if not 0 < rules["held-out"] < 1:
            raise SettingError(f"held-out must be between 0 and 1; got {rules['held-out']}")
        check_choice("by", rules["by"], _MEASURES)
        if rules["by"] not in HELD_OUT and "held-out" in raw["tune"]:
            raise SettingError(
                f"[tune] by = '{rules['by']}' is measured on all training rows: remove held-out"
            )
        how = rules["held-out"], rules["by"], bool(rules["public"])
        tuning = Tuning(raw, list(rules["seeds"]), *how, overrides or {})
        _check_grids(tuning)
        for curve in raw["curve"]:
            _check_measure(tuning, tuning.config(curve, {}))
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None
    return tuning


def _check_measure(tuning: Tuning, config: Config) -> None:
    require(config.data.name != OWN, "tune needs all rows at hand; those of data own are at their sites")
    if not config.evaluation.reference and tuning.by not in HELD_OUT:
        raise SettingError(
            f"[tune] by = '{tuning.by}' compares with the optimum: set reference = true in [run.evaluation]"
        )

    share = config.privacy.tune_share
    require(
        config.privacy.mode == "none" or config.data.name != TABLES or bool(share) or tuning.public,
        "tuning a private run looks at rows, which costs privacy: set privacy.tune-share, the part of the budget that "
        "the candidates take, or [tune] public = true if everybody may know these rows",
    )
    if share and tuning.public:
        raise SettingError(
            f"privacy.tune-share = {share:g} charges the candidates, and [tune] public = true says that nothing is "
            "to be charged: remove one of them"
        )
    if share and (tuning.by != "accuracy" or len(tuning.seeds) != 1):
        raise SettingError(
            "with privacy.tune-share every candidate is charged once and scored by counts of correct predictions: set "
            f"[tune] by = 'accuracy' and one seed; got '{tuning.by}' and {tuning.seeds}"
        )


def _check_grids(tuning: Tuning) -> None:
    grids = [tuning.grid(curve) for curve in tuning.raw["curve"]]
    common = _lists(tuning.raw)
    for curve, grid in zip(tuning.raw["curve"], grids, strict=True):
        for lists in (common, _lists(curve)):
            _check_spellings(lists, counting_words(tuning.choices(curve)))
        foreign = sorted((common.keys() & grid.keys()) - set(counting_words(tuning.choices(curve))))
        if foreign:
            if not any(foreign[0] in counting_words(tuning.choices(other)) for other in tuning.raw["curve"]):
                resolve(foreign[0], tuning.choices(curve))  # refuses what no curve has
            raise SettingError(
                f"grid: '{foreign[0]}' is no setting of the curve '{tuning.label(curve)}', which would have fewer "
                "points: move it from [grid] to the grids of the curves that have it, or write grid = {} in a curve "
                "that is not to be tuned"
            )
        if grid:
            combinations(grid, "grid")
        for key in grid:
            resolve(key, tuning.choices(curve))
    require(any(grids), "nothing to tune: no curve has a grid of settings to choose from")


def _check_spellings(lists: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """SettingError for a setting that has two lists, because its name is written in two ways."""
    words: dict[str, str] = {}
    for word in lists:
        other = words.setdefault(names.get(word, word), word)
        if other != word:
            raise SettingError(
                f"grid: '{other}' and '{word}' are the same setting, which has one list; got {lists[other]} and "
                f"{lists[word]}: leave one of them out"
            )


def named(tuning: Tuning, labels: Sequence[str]) -> list[Any]:
    """The curves with these labels, in every panel, or all; SettingError for a label that no curve has."""
    curves = tuning.raw["curve"]
    of = [{str(curve.get("label", "")), tuning.label(curve)} for curve in curves]
    for label in labels:
        known = list(dict.fromkeys(tuning.label(curve) for curve in curves))
        require(any(label in own for own in of), f"no curve is called '{label}'; {nearest(label, known)}")
    return [curve for curve, own in zip(curves, of, strict=True) if not labels or own & set(labels)]


def charged(tuning: Tuning) -> bool:
    """Whether candidates are charged to the budget."""
    return any(tuning.config(curve, {}).privacy.tune_share for curve in tuning.raw["curve"])


def uneven(tuning: Tuning) -> str:
    """A warning if the tuned curves have different numbers of points; else empty."""
    counts = {len(tuning.points(curve)) for curve in tuning.raw["curve"] if tuning.grid(curve)}
    if len(counts) < 2:
        return ""
    return (
        f"warning: curves have {min(counts)} to {max(counts)} points, and of more points a better one is found by "
        "chance: give every method the same number"
    )


# --- tuned files


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
