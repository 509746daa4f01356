"""Tuning for a fair comparison: every curve of an experiment gets the best point of a grid given in its file.

    [grid]                         lists of values, for every curve whose algorithm has the key
    step-size = [0.1, 0.3, 1.0]
    [tune]
    seeds = [100, 101]             must differ from the seeds of the figure
    held-out = 0.2                 share of every client's training rows that is used for the choice
    by = "objective"               the measure to minimise, or "accuracy", which is maximised
    [[curve]]
    grid = {mu = [0.01, 0.1]}      lists of this curve, which replace the common ones

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.arrays import Array
from twinflower.data.sets import OWN, TABLES
from twinflower.errors import SettingError, require
from twinflower.problems.interfaces import Batch
from twinflower.settings import check_choice

from ..experiment_files import load_toml
from ..runs.run import Run
from ..runs.setup import PreparedRun, prepare, prepare_seeds
from ..runtimes import cohort
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
from .validation import held_out

_HEAD = ("title", "source", "claim", "verdict", "seeds", "x", "y", "log-axes", "centre", "ends")
_RULES: dict[str, Any] = {"seeds": [100, 101], "held-out": 0.2, "by": "objective", "public": False}
_HELD_OUT = {
    "objective": "minus the objective on the held-out rows",
    "accuracy": "accuracy (R^2 of a regression) on the held-out rows",
    "node-objective": "minus the mean over clients of their own models' objective on the held-out rows",
}
_COLUMNS = ("node_error", "distance", "optimality", "suboptimality")
_MEASURES = (*_HELD_OUT, *_COLUMNS)

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
        known = counting_words(self.choices(curve))
        common = {key: values for key, values in flatten(self.raw.get("grid", {})).items() if key in known}
        return common | flatten(curve.get("grid", {}))

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
    for curve, grid in zip(tuning.raw["curve"], grids, strict=True):
        if grid:
            combinations(grid, "grid")
        for key in grid:
            resolve(key, tuning.choices(curve))
    require(any(grids), "nothing to tune: no curve has a grid of settings to choose from")
    unused = sorted(flatten(tuning.raw.get("grid", {})).keys() - set().union(*grids))
    if unused:
        raise SettingError(f"grid: no curve knows '{', '.join(unused)}'")


def score(config: Config, seeds: list[int], share: float, by: str) -> list[float]:
    """The score of a configuration for every seed; higher is better. share: the share of rows that is held out."""
    setups = prepare_seeds(config, seeds)
    if by in _COLUMNS:
        return [_finite(-_column(result, by)) for result in cohort.train(setups)]
    training, held = zip(*(held_out(s, share) for s in setups), strict=True)
    judged = zip(cohort.train(training), held, strict=True)
    return [-np.inf if r.model is None else _finite(_judge(r, r.model, rows, by)) for r, rows in judged]


def _finite(value: float) -> float:
    """The score, or -inf, with which a point is never chosen, if it is not finite."""
    return value if np.isfinite(value) else -np.inf


def _column(result: Run, name: str) -> float:
    """The final value of a column; without own models of the clients, the distance takes the place of node_error."""
    last = result.rows[-1]
    return float(last.get(name, last["distance"])) if result.model is not None else np.inf


def _judge(result: Run, x: Array, held: Batch, by: str) -> float:
    if by == "accuracy":
        return float(result.setup.objective.score(x, held))
    own = result.points if by == "node-objective" else None
    models = x[None] if own is None else own
    return -float(np.mean([_objective(result.setup, model, held) for model in models]))


def _objective(setup: PreparedRun, x: Array, rows: Batch) -> float:
    return float(setup.objective.value(x, rows) + setup.regulariser.value(x))


def tune(tuning: Tuning, say: Say = print) -> str:
    """Score every grid point of every curve that has a grid; return the tuned file as text."""
    curves, tables = [], {}
    for curve in tuning.raw["curve"]:
        label = tuning.label(curve)
        if not tuning.grid(curve):
            say(f"{label}: has no grid, stays as it is")
            curves.append(curve)
            continue
        scores = _scores(tuning, curve, say)
        best = max(scores, key=lambda s: s.rank)
        if not best.mean > -np.inf:
            raise SettingError(f"{label}: no point of the grid gives a model")
        say(f"{label}: chosen {best.text}{_edges(best, tuning.grid(curve))}")
        curves.append(tuning.settled(curve, best.point))
        tables[label] = scores
    return _document(tuning, curves, tables)


def _scores(tuning: Tuning, curve: Mapping[str, Any], say: Say) -> list[Score]:
    """The scores of a curve's points, charged if privacy.tune-share says so."""
    config = tuning.config(curve, {})
    if config.privacy.tune_share:
        return _charged(tuning, curve, say)
    if config.privacy.mode != "none":
        rows = (
            "[tune] public = true says so"
            if tuning.public
            else f"the data set {config.data.name} is published"
        )
        say(f"{tuning.label(curve)}: free, because {rows}; the guarantee does not cover the choice")
    return [_scored(tuning, curve, point, say) for point in tuning.points(curve)]


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


def _scored(tuning: Tuning, curve: Mapping[str, Any], point: Point, say: Say) -> Score:
    try:
        config = tuning.config(curve, point)
        result, why = Score(point, score(config, tuning.seeds, tuning.held_out, tuning.by)), ""
    except SettingError as error:  # for example, a step-size that is too large for this mu
        result, why = Score(point, [-np.inf]), f" ({error})"
    say(f"{tuning.label(curve)}: {result.text}: {result.mean:.5g}{why}")
    return result


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
    if tuning.by in _COLUMNS:
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
