"""The driver of runs by messages, a strategy over any Flower grid, and what the server of a run gets."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from twinflower.arrays import Array, Index
from twinflower.clients.records import record_of
from twinflower.strategies import STRATEGIES, SiteEvaluation, StarStrategy, SumStrategy
from twinflower.strategies.questions import Agreement, collect

from ..results.checkpoint import Checkpoints
from ..runs.run import Progress, Run
from ..runs.setup import PreparedRun
from .course import drive


def strategy_of(
    setup: PreparedRun,
    deployed: bool = False,
    evaluation: SiteEvaluation | None = None,
    agreement: Agreement | None = None,
) -> StarStrategy:
    """The Flower strategy of the run. deployed: in a run of sums, always use masks, as deployed sites do.

    evaluation: at the clients, by default none. agreement: of the clients on private ranges.
    """
    clients, server = setup.config.clients, setup.config.server
    kind: Callable[..., StarStrategy] = STRATEGIES[setup.config.algorithm]
    if setup.pooled:
        kind = partial(SumStrategy, masks=deployed or setup.config.privacy.masks)
    return kind(
        setup.algorithm, clients.count, clients.per_round, setup.config.seed, server.node_timeout,
        min_replies=server.min_replies, void_rounds=server.void_rounds, max_norm=server.max_norm or np.inf,
        first_round=clients.first_round, evaluation=evaluation, agreement=agreement,
    )  # fmt: skip


def evaluation(setup: PreparedRun, wants: Callable[[int], bool]) -> SiteEvaluation:
    """How the server lets the clients evaluate; wants: after which rounds in a run without privacy."""
    for query in setup.model_queries:
        if query.kind.default:
            question = query.question
            return SiteEvaluation(question.rounds.__contains__ if setup.plan else wants, question)
    return SiteEvaluation()


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
    run = Run(setup=setup, runtime=runtime, progress=progress, server=start, met=False)
    drive(_Messages(run, grid, checkpoints), checkpoints, watch)
    return run


class _Messages:
    """Computes the rounds of a run by messages to its clients, which keep their states."""

    def __init__(self, run: Run, grid: Grid, checkpoints: Checkpoints | None) -> None:
        self.runs, self.run, self.grid, self.checkpoints = [run], run, grid, checkpoints

    @cached_property
    def strategy(self) -> StarStrategy:
        """The strategy; it is made when the run goes on, with what the clients had agreed on before."""
        setup, deployed = self.run.setup, self.run.runtime == "deployment"
        agreement = Agreement(setup.first.entries, self._agree) if setup.first else None
        return strategy_of(setup, deployed, evaluation(setup, self.run.wants), agreement)

    def _agree(self, counts: Array, clients: Index) -> bytes:
        """What all clients get to know of these clients' counts before round 1; evaluate with it from now on."""
        first = self.run.setup.first
        assert first
        self.run.setup = first.agreed(counts, clients)
        return first.content(counts, clients)

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
            evaluate_fn=evaluate, training=self.run, ends=False,
        )  # fmt: skip

    def found(self, run: Run, round_: int) -> dict[str, Any]:
        """See `Driver`."""
        sites = self.strategy.evaluation
        return {sites.question.name: sites.found} if sites.evaluates(round_) else {}

    def last_answers(self, run: Run) -> tuple[dict[str, Any], list[str]]:
        """See `Driver`; a question without an answer comes with a sentence."""
        stamp, private = run.stamp(run.setup.config.rounds), run.setup.plan is not None
        found: dict[str, Any] = {}
        missing: list[str] = []
        for query in run.setup.model_queries:
            if not query.kind.default:
                answer, why = query.of_rounds(run.server), ""
                if answer is None:
                    answer, why = collect(self.strategy.exchange, query.question, run.x, stamp, private)
                found[query.name] = answer
                missing += filter(None, [why])
        return found, missing

    def close(self) -> None:
        """See `Driver`."""
        missed = self.strategy.release(failed=bool(self.run.failure))
        self.run.unreleased = missed if self.run.runtime == "deployment" else []
