"""In which bins the clients of a run count the scores of the rows that they hold out."""

import math

from twinflower.errors import SettingError, require
from twinflower.known_objectives import PROBABILISTIC, SURVIVAL
from twinflower.models.class_scores import ClassBins
from twinflower.models.discrimination import Bins
from twinflower.models.score_bins import ScoreBins
from twinflower.models.time_scores import TimeBins
from twinflower.problems.discrete_cox import interval_ends

from ..settings import Config


def score_bins(config: Config, num_classes: int) -> ScoreBins:
    """The kind and the number of bins of a run on this number of classes, 0 of regression and survival; no bins for a
    run without them."""
    number = config.evaluation.bins
    if number and config.evaluation.auc_times:
        return TimeBins(number, times=tuple(interval_ends(config.evaluation.auc_times) or ()))
    return ClassBins(number, classes=num_classes) if number and num_classes > 2 else Bins(number)


def fineness(bins: ScoreBins) -> int:
    """How many bins a site's policy sees: half the counts of a histogram, two for every bin of two classes."""
    return math.prod(bins.shape) // (2 * bins.histograms)


def check_bins(config: Config, num_classes: int) -> None:
    """Raise SettingError for a model whose scores cannot be counted by bin."""
    objective = config.objective.name
    if objective in SURVIVAL:
        return
    require(
        num_classes > 1,
        "evaluation.bins counts predicted probabilities of classes, or risks of survival; this data set has neither: "
        "set it to 0",
    )
    if objective not in PROBABILISTIC:
        raise SettingError(
            f"evaluation.bins needs predicted probabilities: set objective.name to {' or '.join(PROBABILISTIC[:2])}; "
            f"got {objective}"
        )
