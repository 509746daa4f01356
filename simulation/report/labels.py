"""What the columns of metrics.csv are called in figures and reports."""

import re
from collections.abc import Mapping
from typing import Any

from twinflower.data.schema_file import read_schema
from twinflower.data.sets import REGRESSIONS
from twinflower.data.sites import OwnData, TableData
from twinflower.errors import DataError
from twinflower.known_objectives import SURVIVAL, TorchObjective
from twinflower.models.evaluation import OWN_MODEL
from twinflower.problems.objectives import LOSSES

from ..settings import Config
from ..settings.columns import GAP

_SCORES = {
    "test_accuracy": "test",
    "held_out_accuracy": "clients' held-out",
    OWN_MODEL: "own models' held-out",
}
_WORDS = {
    "round": "communication round",
    "objective": "objective (training loss + regulariser)",
    GAP: "objective above the lowest of the panel",
    "test_accuracy": "test accuracy",
    "nonzeros": "nonzero weights",
    "held_out_loss": "loss on the clients' held-out rows",
    "held_out_accuracy": "accuracy on the clients' held-out rows",
    OWN_MODEL: "accuracy of the clients' own models, mean over the clients",
    "held_out_low": "lower end of the clients' 95% interval",
    "held_out_high": "upper end of the clients' 95% interval",
    "held_out_rows": "rows evaluated on at the clients (count)",
    "held_out_auc": "AUC on the clients' held-out rows",
    "held_out_auc_low": "lower end of the AUC's 95% interval",
    "held_out_auc_high": "upper end of the AUC's 95% interval",
    "held_out_r2": "R^2 on all clients' held-out rows together",
    "held_out_mae": "mean absolute error on the clients' held-out rows",
    "held_out_rmse": "root mean squared error on the clients' held-out rows",
    "held_out_brier": "Brier score on the clients' held-out rows",
    "uplink_bits": "sent by all clients so far",
    "downlink_bits": "received by all clients so far",
    "paper_uplink_bits": "sent by all clients so far, as the papers count",
    "local_steps": "local steps per client and round (mean)",
    "stopped": "fraction of client rounds that stopped early",
    "participants": "replies used so far (count)",
    "rejected": "replies left out so far (count)",
    "seconds": "time (s)",
    "consensus": "squared distance of the clients from their mean",
    "distance": "relative squared distance to the optimum",
    "optimality": "optimality (consensus + distance)",
    "node_error": "relative squared error, mean of the nodes",
    "suboptimality": "objective above its optimum",
    "support_f1": "F1 of the support",
    "cost": "training cost (mean loss)",
    "squared_norm": "squared norm of the weights",
    "excess": "largest cost above its bound",
    "nu": "largest multiplier of a bound",
    "slack": "slack of the last step",
    "rounds": "rounds in total, T",
    "privacy.epsilon": "epsilon per client, in total",
}
BITS = {"uplink_bits", "downlink_bits", "paper_uplink_bits"}


def score(config: Config) -> str:
    """What the score of a run is: "accuracy" of a classification, "R^2" of a regression, "C-index" of survival."""
    if config.objective.name in SURVIVAL:
        return "C-index"
    if isinstance(config.objective, TorchObjective):
        return "R^2" if _has_real_labels(config.data) else "accuracy"
    loss = LOSSES.get(config.objective.name)
    return "accuracy" if loss is None or loss.classifies else "R^2"


def score_of(summary: Mapping[str, Any]) -> str:
    """`score` of an ended run, from its summary."""
    if summary["survival"]:
        return "C-index"
    return "R^2" if summary["regression"] else "accuracy"


def _has_real_labels(data: Any) -> bool:
    """Whether the labels are numbers, as far as this follows from the settings."""
    if isinstance(data, TableData | OwnData) and data.schema:
        try:
            return not read_schema(data.schema).num_classes
        except DataError:  # a stored run whose schema has been moved
            return False
    return not data.num_classes if isinstance(data, OwnData) else data.name in REGRESSIONS


def heading(column: str, config: Config) -> str:
    """The heading of a column of metrics.csv in a table."""
    name = column.replace("accuracy", score(config)) if column in _SCORES else column
    return name.replace("_", " ")


def words(column: str, config: Config) -> str:
    """The axis label for a column of metrics.csv or a key of the configuration."""
    if column in _SCORES and score(config) != "accuracy":
        return f"{score(config)} on the {_SCORES[column]} rows"
    return _WORDS.get(column, re.sub("[_-]", " ", column.rpartition(".")[2]))


def number(value: float | None, form: str = ".4f") -> str:
    """A number as text; a dash if it is not known."""
    return "-" if value is None or value != value else f"{value:{form}}"


def bits(value: float | None) -> str:
    """A number of bits as text; a dash if it is not known."""
    from matplotlib.ticker import EngFormatter  # slow to import, and a run that begins has no numbers

    return "-" if value is None or value != value else EngFormatter("bit")(value)
