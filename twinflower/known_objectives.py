"""The objectives that a run can name: linear models, networks, survival models, and PyTorch modules."""

from dataclasses import dataclass, replace

from .errors import SettingError
from .problems.discrete_cox import DISCRETE_COX, CoxObjective
from .problems.interfaces import Model
from .problems.networks import NETWORKS, NetworkObjective
from .problems.objectives import LOSSES, LinearModel, LinearObjective
from .problems.penalised import Penalties
from .problems.stratified_cox import STRATIFIED_COX, StratifiedCox, StratifiedCoxObjective
from .settings import make


@dataclass(frozen=True)
class TorchObjective(Penalties):
    """The settings of a PyTorch module, torch:FILE.py:NAME."""

    def build(self, num_features: int, num_classes: int) -> Model:
        """The module as an objective, loaded by `twinflower.torch.load_objective`; num_features is not used."""
        from .torch import load_objective  # an optional extra, and slow to import

        penalties = {
            "l2": self.l2,
            "nonconvex": self.nonconvex,
            "clip_norm": self.clip_norm,
            "clip": self.clip,
        }
        return load_objective(self.name, num_classes, **penalties)


COUNTING = "poisson"
PROBABILISTIC = ("softmax", "logistic", *NETWORKS)  # their scores are those of probabilities
TORCH = "torch:FILE.py:NAME"
SURVIVAL = (DISCRETE_COX, STRATIFIED_COX)  # their labels are signed times
ObjectiveSettings = LinearObjective | CoxObjective | StratifiedCoxObjective | TorchObjective
OBJECTIVES: dict[
    str,
    type[LinearObjective] | type[CoxObjective] | type[StratifiedCoxObjective] | type[TorchObjective],
] = {
    **dict.fromkeys(LOSSES, LinearObjective),
    **dict.fromkeys(NETWORKS, NetworkObjective),
    DISCRETE_COX: CoxObjective,
    STRATIFIED_COX: StratifiedCoxObjective,
    TORCH: TorchObjective,
}


def make_model(name: str, num_features: int, num_classes: int, **settings: float | str) -> Model:
    """The objective called `name` (one of OBJECTIVES, or torch:FILE.py:NAME) with its settings.

    num_classes is 0 for regression. Raises SettingError for an unknown name or setting, a value out of range, or labels
    that the loss does not accept.
    """
    known = {**OBJECTIVES, name: TorchObjective} if name.startswith("torch:") else OBJECTIVES
    objective: ObjectiveSettings = make(known, "objective", name, settings)
    objective.check()
    return objective.build(num_features, num_classes)


def with_weights(objective: Model, name: str, heaviest: float) -> Model:
    """The objective of this name for rows with weights of at most `heaviest` (`Batch.row_weights`).

    SettingError for objectives that do not support them: networks and PyTorch modules, and the stratified Cox model,
    in which the weight of a person is also a weight in the risk sets of all others.
    """
    if isinstance(objective, LinearModel) and not isinstance(objective, StratifiedCox):
        return replace(objective, heaviest=heaviest)
    known = ", ".join([*LOSSES, DISCRETE_COX])
    raise SettingError(f"weights of rows need an objective that supports them ({known}); got '{name}'")
