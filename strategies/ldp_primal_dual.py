"""The LDP primal-dual method on the server."""

from typing import Any, ClassVar

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.ldp_primal_dual import LDPPrimalDual as LDPPrimalDualAlgorithm
from twinflower.errors import require

from .star import StarStrategy


class LDPPrimalDual(StarStrategy):
    """Keeps the clients' last messages and their mean. Sends the mean in every round, and once more after the last one:
    `twinflower.algorithms.ldp_primal_dual.LDPPrimalDual`.

    Needs all clients in every round. It repeats the request up to `retries` times to clients that did not reply, and
    then stops the run.
    """

    algorithm_class: ClassVar[type[Algorithm]] = LDPPrimalDualAlgorithm

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *args: Any, **kwargs: Any
    ) -> Result:
        """See `StarStrategy.start`; num_rounds must equal the number of rounds for which the noise was planned."""
        planned = self.algorithm.info.rounds
        require(
            num_rounds == planned,
            f"the algorithm's info plans {planned} rounds, and the noise of each rests on that; got {num_rounds}",
        )
        return super().start(grid, initial_arrays, num_rounds, *args, **kwargs)
