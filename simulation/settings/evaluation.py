"""The section [evaluation], its rules, and which runs can have standard errors."""

from dataclasses import dataclass
from typing import Annotated

from twinflower.errors import SettingError, require
from twinflower.known_objectives import SURVIVAL, ObjectiveSettings
from twinflower.models.score_bins import MOST_BINS
from twinflower.models.survival import ACTUARIAL, KAPLAN_MEIER
from twinflower.problems.discrete_cox import INTERVALS, LINKS, CoxObjective
from twinflower.problems.losses import UNBOUNDED, BoundedLikelihood, Likelihood
from twinflower.problems.objectives import LOSSES, LinearObjective
from twinflower.settings import Rule, Setting, at_least, one_of

from .sections import Gradient, NoPrivacy, Private

LIKELIHOODS = [*(name for name, loss in LOSSES.items() if isinstance(loss, Likelihood)), *SURVIVAL]
_BOUNDED = [name for name, loss in LOSSES.items() if isinstance(loss, BoundedLikelihood)]


@dataclass(frozen=True)
class Evaluation:
    """The section [evaluation]: when and what to evaluate during a run."""

    every: Annotated[int, Setting("every so many rounds the model is evaluated", at_least(1), "rounds")] = 1
    early: Annotated[int, Setting("up to this round, every round is evaluated", at_least(0), "rounds")] = 0
    reference: Annotated[bool, Setting("compare with the optimum of all rows together")] = False
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
            "in a private run, rounds between evaluations at the clients; 0: of the final model only",
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

    survival_curve: Annotated[
        str,
        Setting(
            "before round 1 clients count the persons that they train on by these intervals of time, for a survival "
            "curve: their ends, such as 365, 730, 1460, or number x length, such as 12 x 30.5; empty: none",
            INTERVALS,
            "that of the times",
            numbers=True,
        ),
    ] = ""

    survival_estimate: Annotated[
        str,
        Setting(
            "how a survival curve counts those who are censored within an interval: actuarial, for half of it, or "
            "kaplan-meier, for all of it, which is right only if every time is the end of an interval",
            one_of((ACTUARIAL, KAPLAN_MEIER)),
        ),
    ] = ACTUARIAL

    errors: Annotated[
        bool,
        Setting(
            "without privacy, clients of a regression send sums of errors and labels of their held-out rows, for R^2, "
            "mean absolute and root mean squared error"
        ),
    ] = False

    standard_errors: Annotated[
        bool,
        Setting(
            "at the end clients send gradient and information matrix of the model, for standard errors and p-values, "
            "with noise in a private run; without penalties only"
        ),
    ] = False

    def released(self, rounds: int) -> list[int]:
        """The rounds after which the clients of a private run evaluate the model, if they hold out rows."""
        every = self.release_every or rounds
        return sorted({*range(every, rounds + 1, every), rounds})

    def check(
        self, rounds: int, objective: ObjectiveSettings, regulariser: str, privacy: NoPrivacy | Private
    ) -> None:
        """Raise SettingError for an evaluation that a run with these settings cannot have."""
        self._check_held_out(privacy, rounds)
        self._check_survival(objective.name)
        if self.standard_errors:
            check_standard_errors(objective, regulariser, privacy)

    def _check_held_out(self, privacy: NoPrivacy | Private, rounds: int) -> None:
        """Raise SettingError for an evaluation at the clients that no budget pays for, or a budget without one."""
        share = privacy.evaluation_share
        if self.held_out and not isinstance(privacy, NoPrivacy | Gradient):
            raise SettingError(
                "evaluation.held-out must be 0 with privacy.mode = as-published, which has no budget for an evaluation "
                f"at the clients; got {self.held_out:g}"
            )
        if self.held_out and not isinstance(privacy, NoPrivacy) and not share > 0:
            raise SettingError(
                "evaluation.held-out needs privacy.evaluation-share above 0 in a private run, the part of the budget "
                f"that the evaluation may spend; got {self.held_out:g} and {share:g}"
            )
        if share and not self.held_out > 0:
            raise SettingError(
                "privacy.evaluation-share needs evaluation.held-out above 0, the part of every client's rows that it "
                f"evaluates on; got {share:g} and {self.held_out:g}"
            )
        if not share > 0 and (self.release_every or self.loss_bound):
            raise SettingError(
                "evaluation.release-every and evaluation.loss-bound belong to a private run with "
                f"privacy.evaluation-share; got {self.release_every} and {self.loss_bound:g} without it"
            )
        if self.bins and not self.held_out > 0:
            raise SettingError(
                "evaluation.bins needs evaluation.held-out above 0, the part of every client's rows whose scores it "
                f"counts; got {self.bins} and {self.held_out:g}"
            )
        require(
            not self.errors or (self.held_out > 0 and isinstance(privacy, NoPrivacy)),
            "evaluation.errors needs evaluation.held-out above 0, the part of every client's rows on which they are "
            "made, and a run without privacy, because these sums are exact",
        )
        if not self.release_every <= rounds:
            raise SettingError(
                f"evaluation.release-every must be at most the number of rounds, {rounds}; got {self.release_every}"
            )

    def _check_survival(self, objective: str) -> None:
        """Raise SettingError for what only a survival model has, or what one must have."""
        if self.survival_curve and objective not in SURVIVAL:
            raise SettingError(
                "evaluation.survival-curve needs times of events as labels: set objective.name to "
                f"{' or '.join(SURVIVAL)}, or leave it empty; got {objective}"
            )
        if bool(self.auc_times) != (objective in SURVIVAL and self.bins > 0):
            raise SettingError(
                "evaluation.auc-times and evaluation.bins belong together for a survival model, and "
                f"evaluation.auc-times to no other: set both or neither; got '{self.auc_times}' and {self.bins} with "
                f"objective {objective}"
            )


def check_standard_errors(
    objective: ObjectiveSettings, regulariser: str, privacy: NoPrivacy | Private
) -> None:
    """Raise SettingError for a run whose model has no standard errors, or whose budget cannot pay for them."""
    if objective.name not in LIKELIHOODS:
        raise SettingError(
            f"evaluation.standard-errors needs a likelihood: set objective.name to {', '.join(LIKELIHOODS)}; got "
            f"{objective.name}"
        )
    if isinstance(privacy, Private):
        _check_private(objective, regulariser, privacy)
    require(
        regulariser in ("none", "selected")
        and not (objective.l2 or objective.nonconvex or objective.clip_norm),
        "evaluation.standard-errors needs the maximum of the likelihood, which a penalty or clipping moves: set "
        "regulariser.name to none, and objective.l2, objective.nonconvex and objective.clip-norm to 0; "
        "twinflower refit trains the columns of a sparse model again without its penalty",
    )


def _check_private(objective: ObjectiveSettings, regulariser: str, privacy: Private) -> None:
    """Raise SettingError for a private run in which nothing can be released from which intervals follow."""
    require(
        not (isinstance(objective, LinearObjective) and objective.class_weights),
        "evaluation.standard-errors must be false in a private run with objective.class-weights, because a weighted "
        "loss is not a likelihood and its robust errors need exact sums: remove the weights, or train without privacy",
    )
    bounded = objective.name in _BOUNDED or (
        isinstance(objective, CoxObjective) and LINKS[objective.link].curvature_bound < float("inf")
    )
    if not bounded:
        raise SettingError(f"evaluation.standard-errors: {UNBOUNDED}; got {objective.name}")
    if not (isinstance(privacy, Gradient) and privacy.trust == "local"):
        raise SettingError(
            "evaluation.standard-errors must be false with privacy.trust = sum and privacy.mode = as-published, "
            f"which have no plan for what sites release after the last round; got true with privacy.mode {privacy.mode}"
        )
    require(
        not privacy.tune_share,
        "privacy.tune-share and evaluation.standard-errors share no budget: set one of them to 0 or false",
    )
    require(
        regulariser != "selected",
        "evaluation.standard-errors must be false in a private run of selected columns, because intervals would have "
        "to account for the selection: set regulariser.name to none",
    )
