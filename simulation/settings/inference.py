"""Which runs can have standard errors."""

from twinflower.errors import require
from twinflower.known_objectives import SURVIVAL, ObjectiveSettings
from twinflower.problems.losses import Likelihood
from twinflower.problems.objectives import LOSSES, LinearObjective

_LIKELIHOODS = [*(name for name, loss in LOSSES.items() if isinstance(loss, Likelihood)), *SURVIVAL]


def check_standard_errors(objective: ObjectiveSettings, regulariser: str, privacy: str) -> None:
    """Raise SettingError for a run whose model has no standard errors, or in which they would cost privacy."""
    require(
        privacy == "none",
        "evaluation.standard-errors must be false in a private run: the information matrix is an exact function of the "
        "records, which no budget pays for, and intervals that count in the noise of the training were measured to "
        "hold the truth too rarely in some settings, so none are offered; got true with "
        f"privacy.mode {privacy}",
    )
    require(
        objective.name in _LIKELIHOODS,
        f"evaluation.standard-errors needs a likelihood: set objective.name to {', '.join(_LIKELIHOODS)}; got "
        f"{objective.name}",
    )
    require(
        not (isinstance(objective, LinearObjective) and objective.class_weights),
        "evaluation.standard-errors: a weighted loss is not a likelihood: remove objective.class-weights",
    )
    require(
        regulariser in ("none", "selected")
        and not (objective.l2 or objective.nonconvex or objective.clip_norm),
        "evaluation.standard-errors needs the maximum of the likelihood, which a penalty or clipping moves: set "
        "regulariser.name to none, and objective.l2, objective.nonconvex and objective.clip-norm to 0; "
        "twinflower refit trains the columns of a sparse model again without its penalty",
    )
