"""The path of a sparse model over the weights of its penalty, and the choice of a weight by cross-validation.

The weights fall geometrically from the smallest one at which all weights of columns are 0. That is the largest slope of
F in them (for the l1 norm, max_j |dF/dx_j|) where they are 0 and the intercept, if it is not penalised, is optimal. At
each weight a run on all rows, and one on all but each fold, start where the runs at the weight before have ended (warm
starts: Friedman, Hastie and Tibshirani 2010, section 2.5). The error of a weight is the mean over the folds of the loss
on the fold's rows, without penalties. Every client divides its own rows.

In a private run both would be exact functions of the records. There the largest weight is public, and the weights
are the candidates of a charged tuning (`charged`), scored by noisy counts of correct predictions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from twinflower.algorithms import Newton, NewtonPath
from twinflower.algorithms.newton_path import ROUNDING, PathPoint
from twinflower.arrays import Array
from twinflower.errors import RunError, SettingError, require
from twinflower.problems.discrete_cox import DISCRETE_COX
from twinflower.problems.interfaces import Batch, RowLosses
from twinflower.problems.objectives import LOSSES, LinearModel
from twinflower.problems.penalties import L1AndL2, L1Norm
from twinflower.problems.stratified_cox import StratifiedCox
from twinflower.settings import SMALLEST, Value

from ..runs.method import regulariser_of
from ..runs.setup import PreparedRun, prepare
from ..runtimes import cohort
from ..settings import Config
from .charged import Charged
from .validation import folds

Say = Callable[[str], None]


class Plan(NamedTuple):
    """How many weights, from the largest (0: the smallest at which every penalised coefficient is 0) to `ratio` times
    it; the folds."""

    weights: int = 20
    ratio: float = 0.01
    largest: float = 0.0
    folds: int = 5

    def check(self) -> None:
        """SettingError for a number out of range."""
        if not self.weights > 1:
            raise SettingError(f"--weights must be at least 2; got {self.weights}")
        if not 0 < self.ratio < 1:
            raise SettingError(f"--ratio must be between 0 and 1; got {self.ratio:g}")
        if not 0 <= self.largest < np.inf:
            raise SettingError(f"--largest must be at least 0; got {self.largest:g}")
        if not self.folds > 1:
            raise SettingError(f"--folds must be at least 2; got {self.folds}")


def training_at(config: Config, point: PathPoint) -> dict[str, Value]:
    """The settings of the run that gives the model of a point of the path, from where the path began it."""
    start = np.where(np.abs(point.start) < SMALLEST, 0.0, point.start).tolist()
    return settings_at(config, point.weight) | {"start-point": ", ".join(map(repr, start))}


def settings_at(config: Config, weight: float) -> dict[str, Value]:
    """The settings of the regulariser at this weight of its l1 norm. An elastic net keeps the ratio of its weights."""
    own = config.regulariser
    free: dict[str, Value] = {"regulariser.intercept": own.intercept}
    if isinstance(own, L1AndL2):
        return {"regulariser.l1": weight, "regulariser.l2": weight * own.l2 / own.l1} | free
    return {"regulariser.weight": weight} | free


def free_intercept(config: Config, say: Say) -> Config:
    """The settings with an intercept, or a baseline of survival, that the penalty does not see; of a linear model whose
    intercept alone `minimise` finds."""
    if config.objective.name not in (*LOSSES, DISCRETE_COX) or config.objective.name == "absolute":
        return config
    free = config.put({"regulariser.intercept": False})
    setup = prepare(free)
    if not setup.objective.convex:
        return config
    try:
        if setup.plan is None:
            setup.central.zero()
    except SettingError:
        say("the intercept is penalised, too, because by itself it has no optimum")
        return config
    return free


def path(config: Config, plan: Plan, say: Say) -> list[PathPoint]:
    """The path of a run, from the largest weight down. Raises SettingError if it has none, RunError if one of its runs
    fails."""
    plan.check()
    own = config.regulariser
    if not isinstance(own, L1Norm) and (not (isinstance(own, L1AndL2) and own.l1 > 0)):
        raise SettingError(
            "a path needs regulariser.name l1, or elastic-net with regulariser.l1 above 0, whose ratio to "
            f"regulariser.l2 is kept; got {own.name}"
        )
    config = config.put({"evaluation.every": config.rounds, "evaluation.early": 0})
    return (_exact if config.privacy.mode == "none" else _charged)(config, plan, say)


def _weights(largest: float, plan: Plan) -> Array:
    return np.geomspace(largest, plan.ratio * largest, plan.weights)


def _exact(config: Config, plan: Plan, say: Say) -> list[PathPoint]:
    """The path of a run without privacy."""
    if isinstance(config.method, Newton):
        return _at_once(config, plan, say)
    setup = prepare(config)
    if not (isinstance(setup.objective, LinearModel) and not isinstance(setup.objective, StratifiedCox)):
        raise SettingError(
            "a path needs a linear model, and adds up the losses of single rows, which objective "
            f"'{config.objective.name}' does not offer"
        )
    divided = folds(setup, plan.folds)
    runs, points = [setup, *(own for own, _ in divided)], []
    start, slope = setup.central.zero()
    models = [start.astype(setup.start.dtype)] * len(runs)
    for weight in _weights(plan.largest or ROUNDING * slope, plan).tolist():
        start = models[0]
        models = _trained(runs, models, settings_at(config, weight))
        losses = [_loss(setup, x, rows) for x, (_, rows) in zip(models[1:], divided, strict=True)]
        spread = float(np.std(losses, ddof=1) / np.sqrt(plan.folds))
        points.append(PathPoint(weight, float(np.mean(losses)), spread, config.rounds, models[0], start))
        say(_line(points[-1]))
    return points


def _line(point: PathPoint) -> str:
    return (
        f"weight {point.weight:.4g}: {np.count_nonzero(point.x)} nonzeros, loss {point.error:.5g} +- "
        f"{point.std_error:.2g}"
    )


def _at_once(config: Config, plan: Plan, say: Say) -> list[PathPoint]:
    """The path of a run of newton: a run of newton-path."""
    method = NewtonPath(
        weights=plan.weights, ratio=plan.ratio, largest=plan.largest, folds=plan.folds,
        tolerance=config.method.tolerance,  # type: ignore[attr-defined]
    )  # fmt: skip
    (run,) = cohort.train([prepare(replace(config, method=method))])
    if run.failure or not (points := run.path):
        raise RunError(
            f"no path after {run.round} rounds: {run.failure or run.early or 'set rounds to more'}"
        )
    for point in points:
        say(_line(point))
    say(f"all weights and folds in {run.round} round{'s' * (run.round != 1)}")
    return points


def _trained(runs: Sequence[PreparedRun], starts: Sequence[Array], keys: Mapping[str, Value]) -> list[Array]:
    """The models (d,) of these runs from these starting points, with these settings of the regulariser."""
    results = cohort.train([_at(own, x, keys) for own, x in zip(runs, starts, strict=True)])
    failed = next((own.failure for own in results if own.model is None), "")
    if failed:
        raise RunError(
            f"no model at {', '.join(f'{key} = {value}' for key, value in keys.items())}: {failed}"
        )
    return [cast(Array, own.model) for own in results]


def _at(setup: PreparedRun, start: Array, keys: Mapping[str, Value]) -> PreparedRun:
    config = setup.config.put(keys)
    h, algorithm = regulariser_of(config, setup.objective), cast(Any, setup.algorithm)
    return replace(setup, config=config, algorithm=replace(algorithm, regulariser=h), start=start)


def _loss(setup: PreparedRun, x: Array, rows: Batch) -> float:
    """The mean loss of rows, weighted as in F."""
    losses = cast(RowLosses, setup.objective).losses(x, rows)
    return float(np.average(losses, weights=rows.weights))


def _charged(config: Config, plan: Plan, say: Say) -> list[PathPoint]:
    """The path of a private run, whose scores are charged."""
    require(
        plan.largest > 0,
        "a private path needs public weights: set --largest, because the smallest weight at which every penalised "
        "coefficient is 0 is a function of the records",
    )
    require(
        config.privacy.tune_share > 0,
        "a private path costs privacy: set privacy.tune-share, the part of the budget that its weights take",
    )
    weights = {f"weight {weight:.6g}": weight for weight in _weights(plan.largest, plan).tolist()}
    configs = [(text, config.put(settings_at(config, weight))) for text, weight in weights.items()]
    tuning = Charged.of(configs, 1 / plan.folds, config.seed)
    for line in tuning.announced():
        say(line)
    found = {own.text: own for own in tuning.run(say)}
    require(any(own.reached for own in found.values()), "no weight was trained: the ledgers refuse it")
    return [
        PathPoint(
            weight, 1 - found[text].score.value, found[text].score.deviation, found[text].reached, np.empty(0)
        )
        for text, weight in weights.items()
    ]
