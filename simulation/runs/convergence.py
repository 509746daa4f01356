"""How far a trained model is from the optimum of its run, for a program that holds all rows."""

import numpy as np

from twinflower.arrays import Array
from twinflower.models.inference import farthest
from twinflower.models.information import MOST_PARAMETERS, Information
from twinflower.problems.losses import Squared
from twinflower.problems.objectives import LinearModel, LinearObjective

from ..settings.inference import LIKELIHOODS
from .setup import PreparedRun

_FLAT = 1e-100  # curvature below which there is no information


def distance(setup: PreparedRun, x: Array) -> float | None:
    """The distance of x (d,) from the minimiser of F + h in standard errors: the largest of all linear combinations of
    its entries, by one step of Newton's method. None in a private run, for a model without a likelihood or with more
    than `MOST_PARAMETERS` entries.

    The step is for the gradient mapping L (x - prox(x - F'(x) / L)) in place of F', which is 0 at the minimiser.
    """
    model, chosen = setup.objective, setup.config.objective
    weighted = isinstance(chosen, LinearObjective) and chosen.class_weights
    if setup.plan or weighted or chosen.name not in LIKELIHOODS or not isinstance(model, LinearModel):
        return None
    if model.d > MOST_PARAMETERS:
        return None
    x = x.astype(np.float64)
    sites = [setup.shards.rows(client) for client in range(setup.config.clients.count)]
    sums = Information.together(Information.of(model, x, rows) for rows in sites)
    steepest = max(float(np.linalg.eigvalsh(sums.matrix)[-1]) / sums.rows, _FLAT)
    mapped = x - setup.regulariser.prox(x - setup.central.gradient(x) / steepest, 1 / steepest)
    return farthest(sums._replace(gradient=sums.rows * steepest * mapped), isinstance(model.loss, Squared))
