"""The search of a grid: the scores of its points, the best of each curve, and what a user should know about it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.errors import SettingError, require

from ..runs.setup import prepare
from ..settings import Config, Value
from ..settings.reader import toml_value
from .charged import Charged
from .grid import Point, Row, Tuned, Tuning, named, own_scores, text_of, typed
from .scoring import Outcome, Scorer

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


def tune(
    tuning: Tuning,
    say: Say = print,
    jobs: int = 1,
    journal: Path | None = None,
    labels: Sequence[str] = (),
    joined: Mapping[str, Tuned] | None = None,
) -> str:
    """Score every grid point of every curve that has a grid; return the tuned file as text.

    jobs: how many points are scored at a time, each in its own process. journal: see `Scorer`; scores in it are not
    computed again. labels: of the curves to tune; if there are none, all. joined: curves that were tuned elsewhere, by
    label (`grid.read_tuned`), which are taken as they are unless they are among `labels`. The other curves that
    are not to be tuned keep the scores that they have in the file.
    """
    to_tune = named(tuning, labels)
    known = (own_scores(tuning.raw) if labels else {}) | dict(joined or {})
    scorer = Scorer(tuning.seeds, tuning.held_out, tuning.by, jobs, journal)
    if journal and journal.is_file():
        scorer.read()
    curves, tables, remarks = [], dict[str, list[Row]](), list[str]()
    for curve in tuning.raw["curve"]:
        label = tuning.label(curve)
        kept = None if labels and curve in to_tune else known.get(label)
        if kept:
            say(f"{label}: as it is in {kept.origin}")
            curves.append(kept.settings or curve)
            tables[label] = kept.rows
        elif not tuning.grid(curve) or curve not in to_tune:
            say(f"{label}: {'is not to be tuned' if tuning.grid(curve) else 'has no grid'}, stays as it is")
            curves.append(curve)
        else:
            best, tables[label], told = _tuned(tuning, curve, say, scorer)
            curves.append(tuning.settled(curve, best.point))
            remarks += told
    for text in remarks:
        say(text)
    return text_of(tuning, curves, tables)


def _tuned(
    tuning: Tuning, curve: Mapping[str, Any], say: Say, scorer: Scorer
) -> tuple[Score, list[Row], list[str]]:
    """The best point of a curve, all points with their scores, best first, and what to say about them at the end."""
    label = tuning.label(curve)
    scores, own = _scores(tuning, curve, say, scorer)
    ranked = sorted(scores, key=lambda s: s.rank, reverse=True)
    best = ranked[0]
    if not best.mean > -np.inf:
        raise SettingError(f"{label}: no point of the grid gives a model")
    say(f"{label}: chosen {typed(best.point)}")
    remarks = _edges(best, tuning.grid(curve))
    if own:
        remarks += _unbeaten(best, own, scorer.start(tuning.config(curve, best.point)))
    rows = [(typed(score.point), score.mean) for score in ranked]
    return best, rows, [f"{label}: {text}" for text in remarks]


def _scores(
    tuning: Tuning, curve: Mapping[str, Any], say: Say, scorer: Scorer
) -> tuple[list[Score], Score | None]:
    """The scores of a curve's points and of its own settings; None for these if privacy.tune-share charges scores."""
    config = tuning.config(curve, {})
    if config.privacy.tune_share:
        require(
            scorer.jobs == 1, "with privacy.tune-share candidates are charged in stages: leave out --jobs"
        )
        return _charged(tuning, curve, say), None
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

    points = {typed(point): point for point in tuning.points(curve)}
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
        say(f"{typed(point)}: left out ({error})")
        return None
    return config


def _free(tuning: Tuning, curve: Mapping[str, Any], say: Say, scorer: Scorer) -> tuple[list[Score], Score]:
    """The scores of a curve's points by `scorer`, each said as it becomes known, and that of its own settings."""
    label, points = tuning.label(curve), tuning.points(curve)
    tried = [_configured(tuning, curve, point) for point in points]
    configs = [own for own in tried if isinstance(own, Config)]
    outcomes = scorer.scores([*configs, tuning.config(curve, {})])
    found = []
    for point, own in zip(points, tried, strict=True):
        values, why = next(outcomes) if isinstance(own, Config) else own
        found.append(Score(point, values))
        say(f"{label}: {typed(point)}: {found[-1].mean:.5g}{why}")
    return found, Score({}, next(outcomes)[0])


def _configured(tuning: Tuning, curve: Mapping[str, Any], point: Point) -> Config | Outcome:
    """The configuration of a point, or -inf and the reason if its settings are incompatible."""
    try:
        return tuning.config(curve, point)
    except SettingError as error:
        return [-np.inf], f" ({error})"


def _edges(best: Score, grid: Mapping[str, list[Value]]) -> list[str]:
    """A remark on chosen numbers that are the smallest or largest of three or more."""
    numbers = {key: [v for v in values if type(v) in (int, float)] for key, values in grid.items()}
    ends = [
        f"{key} = {toml_value(best.point[key])}"
        for key, values in numbers.items()
        if len(set(values)) > 2 and best.point[key] in (min(values), max(values))
    ]
    return [f"at an end of its list: {', '.join(ends)}; a better value may lie outside"] if ends else []


def _unbeaten(best: Score, own: Score, start: float) -> list[str]:
    """Remarks if the best point is no better than the curve's own settings, or than the model before training."""
    known = {"the curve's own settings": own.mean, "the model before training": start}
    return [
        f"no point of the grid is better than {words}: {score:.5g}"
        for words, score in known.items()
        if score >= best.mean
    ]
