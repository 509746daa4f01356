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
chosen values in its curves, all scores, and the original grids, so it can be run and tuned again.

Tuning uses the data, and the privacy guarantees of the compared runs do not cover this. With privacy.tune-share they
do: then every candidate is charged (`charged`). Without it, a private run on tables can be tuned only if [tune] has
public = true, which says that everybody may know these rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.data.sets import OWN, TABLES
from twinflower.errors import SettingError, require
from twinflower.settings import check_choice, nearest

from ..experiment_files import load_toml
from ..runs.setup import prepare
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
from .charged import Charged
from .scoring import COLUMNS, Outcome, Scorer

_HEAD = ("title", "source", "claim", "verdict", "seeds", "x", "y", "log-axes", "centre", "ends")
_RULES: dict[str, Any] = {"seeds": [100, 101], "held-out": 0.2, "by": "objective", "public": False}
_HELD_OUT = {
    "objective": "minus the objective on the held-out rows",
    "accuracy": "accuracy (R^2 of a regression) on the held-out rows",
    "node-objective": "minus the mean over clients of their own models' objective on the held-out rows",
}
_MEASURES = (*_HELD_OUT, *COLUMNS)

Point = dict[str, Value]
Say = Callable[[str], None]


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


@dataclass(frozen=True)
class Tuning:
    """A validated experiment file with its grids. overrides: settings that take precedence over the file."""

    raw: dict[str, Any]
    seeds: list[int]
    held_out: float
    by: str
    public: bool = False
    overrides: Mapping[str, Value] = field(default_factory=dict)

    def _algorithm(self, curve: Mapping[str, Any]) -> str:
        return str(self.choices(curve)["algorithm"])

    def choices(self, curve: Mapping[str, Any]) -> dict[str, Value]:
        """The choices of a curve (algorithm, data.name, ...), by key."""
        return chosen([flatten(self.raw["run"]), flatten(settings_in(curve))])

    def label(self, curve: Mapping[str, Any]) -> str:
        """The panel and the label of a curve; the label defaults to the algorithm, as in a figure."""
        words = curve.get("panel", ""), curve.get("label", self._algorithm(curve))
        return " ".join(str(word) for word in words if word)

    def grid(self, curve: Mapping[str, Any]) -> dict[str, list[Value]]:
        """The lists of values that apply to a curve, by key."""
        own = curve.get("grid")
        return {} if own == {} else flatten(self.raw.get("grid", {})) | flatten(own or {})

    def points(self, curve: Mapping[str, Any]) -> list[Point]:
        """All combinations of the values in the curve's lists."""
        return combinations(self.grid(curve), "grid")

    def config(self, curve: Mapping[str, Any], point: Point) -> Config:
        """The configuration of one point, with evaluation only at the end."""
        merged = merge([self.raw["run"], settings_in(curve), point, self.overrides], tables=2)
        config = configured(merged.values)
        return config.put({"evaluation.every": config.rounds, "evaluation.early": 0})

    def settled(self, curve: Mapping[str, Any], point: Point) -> dict[str, Any]:
        """The curve with the values of a point, whose keys get their sections."""
        own = flatten(settings_in(curve))
        choices = self.choices(curve)
        words = {key: value for key, value in curve.items() if key in CURVE_WORDS}
        return {**words, **own, **{resolve(key, choices).name: value for key, value in point.items()}}


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
        if rules["by"] not in _HELD_OUT and "held-out" in raw["tune"]:
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
    if not config.evaluation.reference and tuning.by not in _HELD_OUT:
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
    common = flatten(tuning.raw.get("grid", {}))
    for curve, grid in zip(tuning.raw["curve"], grids, strict=True):
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


def tune(
    tuning: Tuning, say: Say = print, jobs: int = 1, journal: Path | None = None, labels: Sequence[str] = ()
) -> str:
    """Score every grid point of every curve that has a grid; return the tuned file as text.

    jobs: how many points are scored at a time, each in its own process. journal: see `Scorer`; scores in it are not
    computed again. labels: of the curves to tune; if there are none, all.
    """
    chosen_curves = _named(tuning, labels)
    scorer = Scorer(tuning.seeds, tuning.held_out, tuning.by, jobs, journal)
    if journal and journal.is_file():
        scorer.read()
    curves, tables = [], {}
    for curve in tuning.raw["curve"]:
        label = tuning.label(curve)
        if not tuning.grid(curve) or curve not in chosen_curves:
            say(f"{label}: {'is not to be tuned' if tuning.grid(curve) else 'has no grid'}, stays as it is")
            curves.append(curve)
            continue
        scores = _scores(tuning, curve, say, scorer)
        best = max(scores, key=lambda s: s.rank)
        if not best.mean > -np.inf:
            raise SettingError(f"{label}: no point of the grid gives a model")
        say(f"{label}: chosen {best.text}{_edges(best, tuning.grid(curve))}")
        curves.append(tuning.settled(curve, best.point))
        tables[label] = scores
    return _document(tuning, curves, tables)


def _named(tuning: Tuning, labels: Sequence[str]) -> list[Any]:
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


def _scores(tuning: Tuning, curve: Mapping[str, Any], say: Say, scorer: Scorer) -> list[Score]:
    """The scores of a curve's points, charged if privacy.tune-share says so."""
    config = tuning.config(curve, {})
    if config.privacy.tune_share:
        require(
            scorer.jobs == 1, "with privacy.tune-share candidates are charged in stages: leave out --jobs"
        )
        return _charged(tuning, curve, say)
    if config.privacy.mode != "none":
        rows = (
            "[tune] public = true says so"
            if tuning.public
            else f"the data set {config.data.name} is published"
        )
        say(f"{tuning.label(curve)}: free, because {rows}; the guarantee does not cover the choice")
    return _free(tuning, curve, say, scorer)


def _charged(tuning: Tuning, curve: Mapping[str, Any], say: Say) -> list[Score]:
    """The released scores of a charged tuning, each from the last stage that the candidate reached."""
    label = tuning.label(curve)

    def reported(line: str) -> None:
        say(f"{label}: {line}")

    points = {Score(point, []).text: point for point in tuning.points(curve)}
    tried = [(text, _tried(tuning, curve, point, reported)) for text, point in points.items()]
    configs = [(text, config) for text, config in tried if config is not None]
    if not configs:
        raise SettingError(f"{label}: no point of the grid gives a model")
    plan = Charged.of(configs, tuning.held_out, tuning.seeds[0])
    for line in plan.announced():
        reported(line)
    found = plan.run(reported)
    return [Score(points[c.text], [c.score.value], c.reached) for c in found]


def _tried(tuning: Tuning, curve: Mapping[str, Any], point: Point, say: Say) -> Config | None:
    """The configuration of a point; None, and a line that says why, if its settings are incompatible."""
    try:
        config = tuning.config(curve, point)
        prepare(config)
    except SettingError as error:  # for example, a step-size that is too large for this mu
        say(f"{Score(point, []).text}: left out ({error})")
        return None
    return config


def _free(tuning: Tuning, curve: Mapping[str, Any], say: Say, scorer: Scorer) -> list[Score]:
    """The scores of a curve's points by `scorer`, each said as it becomes known."""
    label, points = tuning.label(curve), tuning.points(curve)
    tried = [_configured(tuning, curve, point) for point in points]
    outcomes = scorer.scores([own for own in tried if isinstance(own, Config)])
    found = []
    for point, own in zip(points, tried, strict=True):
        values, why = next(outcomes) if isinstance(own, Config) else own
        found.append(Score(point, values))
        say(f"{label}: {found[-1].text}: {found[-1].mean:.5g}{why}")
    return found


def _configured(tuning: Tuning, curve: Mapping[str, Any], point: Point) -> Config | Outcome:
    """The configuration of a point, or -inf and the reason if its settings are incompatible."""
    try:
        return tuning.config(curve, point)
    except SettingError as error:
        return [-np.inf], f" ({error})"


def _edges(best: Score, grid: Mapping[str, list[Value]]) -> str:
    """A remark on chosen values at an end of their list, where a better value may lie outside; else empty."""
    ends = [
        key for key, values in grid.items() if len(values) > 2 and best.point[key] in (values[0], values[-1])
    ]
    return f"; at the end of its list: {', '.join(ends)}" if ends else ""


def _document(tuning: Tuning, curves: list[dict[str, Any]], tables: Mapping[str, list[Score]]) -> str:
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


def _score_tables(tuning: Tuning, tables: Mapping[str, list[Score]]) -> str:
    """The table [scores]: for every tuned curve its points, best first."""
    sign = _HELD_OUT.get(tuning.by, f"minus {tuning.by}")
    order = "; longer training first" if any(s.reached for own in tables.values() for s in own) else ""
    lines = [f"[scores]  # {sign}, mean over the tuning seeds; higher is better{order}"]
    for label, scores in tables.items():
        ranked = sorted(scores, key=lambda s: s.rank, reverse=True)
        rows = [f"    [{toml_value(s.text)}, {s.mean:.6g}]," for s in ranked]
        lines += [f"{toml_value(label)} = [", *rows, "]"]
    return "\n".join(lines) + "\n"
