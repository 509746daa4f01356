"""The sums from which standard errors follow, as all clients of a simulation together have them."""

from typing import cast

from twinflower.arrays import Array
from twinflower.models.information import Information
from twinflower.problems.objectives import LinearModel

from .setup import Setup


def simulated(setup: Setup, x: Array) -> Information | None:
    """The sums over the training rows of all clients at the model x (d,); None if the run asks for none."""
    if not setup.config.evaluation.standard_errors:
        return None
    objective = cast(LinearModel, setup.objective)
    clients = map(setup.shards.rows, range(setup.config.clients.count))
    return Information.together([Information.of(objective, x, rows) for rows in clients])
