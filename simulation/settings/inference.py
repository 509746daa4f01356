"""Which runs can have standard errors."""

from twinflower.errors import SettingError, require
from twinflower.known_objectives import SURVIVAL, ObjectiveSettings
from twinflower.problems.discrete_cox import LINKS, CoxObjective
from twinflower.problems.losses import UNBOUNDED, BoundedLikelihood, Likelihood
from twinflower.problems.objectives import LOSSES, LinearObjective

from .sections import Gradient, NoPrivacy, Private

LIKELIHOODS = [*(name for name, loss in LOSSES.items() if isinstance(loss, Likelihood)), *SURVIVAL]
_BOUNDED = [name for name, loss in LOSSES.items() if isinstance(loss, BoundedLikelihood)]


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
