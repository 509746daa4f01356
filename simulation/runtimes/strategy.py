"""The driver of runs by messages: a strategy over any Flower grid."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from twinflower.arrays import Array, Index
from twinflower.clients.records import record_of
from twinflower.strategies import StarStrategy

from ..results.checkpoint import Checkpoints
from ..runs import server
from ..runs.run import Progress, Run
from ..runs.setup import PreparedRun
from .course import drive


def run_strategy(
    setup: PreparedRun,
    grid: Grid,
    runtime: str,
    progress: Progress | None = None,
    checkpoints: Checkpoints | None = None,
    watch: Callable[[Run], None] | None = None,
) -> Run:
    """Run a strategy to its end, evaluating centrally. checkpoints, watch: see `course.drive`."""
    config = setup.config
    seed = np.array(config.seed, np.uint64)
    start = setup.algorithm.init_server(setup.start, config.clients.count, seed)
    run = Run(setup=setup, runtime=runtime, progress=progress, server=start)
    drive(_Messages(run, grid, checkpoints), checkpoints, watch, aside=runtime == "flower")
    return run


class _Messages:
    """Computes the rounds of a run by messages to its clients, which keep their states."""

    def __init__(self, run: Run, grid: Grid, checkpoints: Checkpoints | None) -> None:
        self.runs, self.run, self.grid, self.checkpoints = [run], run, grid, checkpoints

    @cached_property
    def strategy(self) -> StarStrategy:
        """The strategy; it is made when the run goes on, with what the clients had agreed on before."""
        setup, deployed = self.run.setup, self.run.runtime == "deployment"
        evaluation = server.evaluation(setup, self.run.wants)
        return server.strategy_of(setup, deployed, evaluation, server.agreement(setup, self._agree))

    def _agree(self, counts: Array, clients: Index) -> None:
        """Evaluate from now on with what follows from these clients' counts before round 1."""
        assert self.run.setup.first
        self.run.setup = self.run.setup.first.agreed(counts, clients)

    def initial_client(self) -> None:
        """See `Driver`."""

    def compute(self, after: Callable[[int], None]) -> None:
        """See `Driver`."""
        setup = self.run.setup

        def evaluate(flower_round: int, arrays: ArrayRecord) -> None:
            """Called by Flower, which counts from 0 when a run goes on."""
            after(self.run.number(flower_round))
            if self.checkpoints:
                self.strategy.settle(self.checkpoints.settled())

        self.strategy.start(
            self.grid, record_of([setup.start]), setup.config.rounds, timeout=setup.config.server.round_timeout,
            evaluate_fn=evaluate, training=self.run,
        )  # fmt: skip

    def found(self, run: Run, round_: int) -> dict[str, Any]:
        """See `Driver`."""
        sites = self.strategy.evaluation
        return {sites.question.name: sites.found} if sites.evaluates(round_) else {}

    def last_answers(self, run: Run) -> tuple[dict[str, Any], list[str]]:
        """See `Driver`."""
        return server.last_answers(run.setup, self.strategy, run.x)
