"""The settings of the evaluation on rows that clients hold out, a site's policy for it, and their rules."""

from dataclasses import dataclass
from typing import Annotated, Any

from ..errors import SettingError, require
from ..known_objectives import PROBABILISTIC, SURVIVAL
from ..models.score_bins import MOST_BINS
from ..problems.discrete_cox import INTERVALS
from ..settings import Rule, Setting, at_least


@dataclass(frozen=True)
class HeldOutSettings:
    """Settings of [evaluation]."""

    held_out: Annotated[
        float,
        Setting(
            "part of each client's rows that is never trained on, to evaluate the model there; a private run needs "
            "privacy.evaluation-share, too",
            Rule("from 0 (none) to below 1", lambda v: 0 <= v < 1),
            "fraction of the rows",
        ),
    ] = 0.0
    release_every: Annotated[
        int,
        Setting(
            "in a private run, rounds between evaluations at the clients; 0: evaluate the final model only",
            at_least(0),
            "rounds",
        ),
    ] = 0
    loss_bound: Annotated[
        float,
        Setting(
            "in a private run, clients release losses clipped to this bound instead of counts of correct predictions; "
            "0: counts",
            at_least(0),
        ),
    ] = 0.0
    bins: Annotated[
        int,
        Setting(
            "clients count the scores of their held-out rows by class in so many bins, for the ROC curve and the "
            "calibration, or the risks of persons by time (evaluation.auc-times); 0: none",
            Rule(f"0 or an even number from 2 to {MOST_BINS}", lambda v: v % 2 == 0 and 0 <= v <= MOST_BINS),
            "bins",
        ),
    ] = 0
    auc_times: Annotated[
        str,
        Setting(
            "of a survival model with evaluation.bins, the times of areas under the ROC curve, such as 365, 1095, or "
            "number x length; empty: none",
            INTERVALS,
            "that of the times",
            numbers=True,
        ),
    ] = ""


@dataclass(frozen=True)
class RegressionSettings:
    """Settings of [evaluation] for regressions."""

    errors: Annotated[
        bool,
        Setting(
            "without privacy, clients of a regression send sums of errors and labels of their held-out rows, for R^2, "
            "mean absolute and root mean squared error"
        ),
    ] = False


@dataclass(frozen=True)
class EvaluationShare:
    """Settings of [privacy]."""

    evaluation_share: Annotated[
        float,
        Setting(
            "part that evaluations on held-out rows may spend; a single record pays for these or for training",
            Rule("from 0 to 1", lambda v: 0 <= v <= 1),
            "fraction of the budget",
        ),
    ] = 0.0


@dataclass(frozen=True)
class ScorePolicy:
    """Keys of a site's node config."""

    score_rows: Annotated[
        int | None,
        Setting(
            "fewest held-out rows of which it sends counts of scores, or sums of errors; else it sends none",
            at_least(1),
        ),
    ] = None
    score_bins: Annotated[int, Setting("most bins of such counts", at_least(2), needs="score-rows")] = 20


def released(config: Any) -> list[int]:
    """The rounds after which the clients of a private run evaluate the model, if they hold out rows."""
    every = config.evaluation.release_every or config.rounds
    return sorted({*range(every, config.rounds + 1, every), config.rounds})


def check_evaluation(config: Any) -> None:
    """Raise SettingError for settings of a run that contradict each other."""
    _check_budget(config)
    _check_parts(config)
    own, survival = config.evaluation, config.objective.name in SURVIVAL
    if bool(own.auc_times) != (survival and own.bins > 0):
        raise SettingError(
            "evaluation.auc-times and evaluation.bins belong together for a survival model, and evaluation.auc-times "
            f"to no other: set both or neither; got '{own.auc_times}' and {own.bins} with objective "
            f"{config.objective.name}"
        )


def _check_budget(config: Any) -> None:
    """Raise SettingError for an evaluation at the clients that no budget pays for, or a budget without one."""
    own, mode, share = config.evaluation, config.privacy.mode, config.privacy.shares.evaluation_share
    if own.held_out and mode == "as-published":
        raise SettingError(
            "evaluation.held-out must be 0 with privacy.mode = as-published, which has no budget for an evaluation at "
            f"the clients; got {own.held_out:g}"
        )
    if own.held_out and mode != "none" and not share > 0:
        raise SettingError(
            "evaluation.held-out needs privacy.evaluation-share above 0 in a private run, the part of the budget that "
            f"the evaluation may spend; got {own.held_out:g} and {share:g}"
        )
    if share and not own.held_out > 0:
        raise SettingError(
            "privacy.evaluation-share needs evaluation.held-out above 0, the part of every client's rows that it "
            f"evaluates on; got {share:g} and {own.held_out:g}"
        )
    if not share > 0 and (own.release_every or own.loss_bound):
        raise SettingError(
            "evaluation.release-every and evaluation.loss-bound belong to a private run with "
            f"privacy.evaluation-share; got {own.release_every} and {own.loss_bound:g} without it"
        )


def _check_parts(config: Any) -> None:
    """Raise SettingError for parts of an evaluation that the run does not have."""
    own = config.evaluation
    if own.bins and not own.held_out > 0:
        raise SettingError(
            "evaluation.bins needs evaluation.held-out above 0, the part of every client's rows whose scores it "
            f"counts; got {own.bins} and {own.held_out:g}"
        )
    require(
        not own.errors or (own.held_out > 0 and config.privacy.mode == "none"),
        "evaluation.errors needs evaluation.held-out above 0, the part of every client's rows on which they are made, "
        "and a run without privacy, because these sums are exact",
    )
    if not own.release_every <= config.rounds:
        raise SettingError(
            f"evaluation.release-every must be at most the number of rounds, {config.rounds}; got {own.release_every}"
        )


def check_bins(objective: str, classes: int) -> None:
    """Raise SettingError for a model whose scores cannot be counted by bin."""
    require(
        classes > 1,
        "evaluation.bins counts predicted probabilities of classes, or risks of survival; this data set has neither: "
        "set it to 0",
    )
    if objective not in PROBABILISTIC:
        raise SettingError(
            f"evaluation.bins needs predicted probabilities: set objective.name to {' or '.join(PROBABILISTIC[:2])}; "
            f"got {objective}"
        )


def check_scores(site: Any, bins: int, rows: int) -> None:
    """Raise SettingError unless a site's policy allows counts of the scores of so many rows in so many bins."""
    least, most = site.score_rows, site.score_bins
    remedy = "(evaluation.bins = 0 and evaluation.errors = false train without)"
    if least is None:
        raise SettingError(f"this site counts no scores: its node config has no score-rows {remedy}")
    if not (rows >= least and bins <= most):
        raise SettingError(
            f"this site counts the scores of at least {least} held-out rows in at most {most} bins; the run has {rows} "
            f"rows in {bins} bins {remedy}"
        )
