"""Run a strategy from start to result over any Flower grid."""

import time

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from twinflower.algorithms.abilities import client_models
from twinflower.clients.records import record_of
from twinflower.errors import AbsentError, RunError
from twinflower.strategies import StarStrategy

from ..results.checkpoint import of_strategy, to_strategy
from ..results.folder import Checkpoints
from ..results.record import Progress, Recorder, Result
from ..results.resume import newest
from ..runs import agreement, held_out
from ..runs.parties import strategy_of
from ..runs.setup import Setup
from .evaluator import Evaluator
from .progress import say


def run_strategy(
    setup: Setup,
    grid: Grid,
    runtime: str,
    progress: Progress | None = None,
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Run all rounds and evaluate centrally; a RunError becomes the result's failure.

    With checkpoints the run resumes from the newest one, if there is one, and continues to write checkpoints. Then an
    AbsentError is raised, because the run can be resumed when the clients are back.
    """
    strategy = strategy_of(setup, deployed=runtime == "deployment")
    recorder = Recorder(setup, progress, rounds=strategy.rounds)
    if setup.held:
        strategy.evaluates = held_out.released(setup).__contains__ if setup.plan else recorder.wants
    strategy.agreement = agreement.agreement(setup, recorder.scale)
    first = _take_up(setup, strategy, recorder, checkpoints) if checkpoints else 0

    def evaluate(round_: int, arrays: ArrayRecord) -> None:
        round_ += first
        if recorder.rows and round_ <= first:
            return  # this round was evaluated before the checkpoint
        if recorder.wants(round_):
            found = strategy.site_metrics if strategy.evaluates(round_) else {}
            evaluator.begin(round_, strategy.server, held_out.row(setup, found))
        if checkpoints and checkpoints.due(round_):
            evaluator.wait()
            checkpoints.save(round_, of_strategy(strategy.snapshot(), recorder.rows))
            strategy.settled = checkpoints.settled()

    began, failure, model, points = time.perf_counter(), "", None, None
    try:
        with np.errstate(all="ignore"), Evaluator(recorder, aside=runtime == "flower") as evaluator:
            strategy.start(
                grid,
                record_of([setup.start]),
                setup.config.rounds,
                timeout=setup.config.server.round_timeout,
                evaluate_fn=evaluate,
            )
        model, points = (
            setup.algorithm.model(strategy.server),
            client_models(setup.method, setup.own(strategy.server)),
        )
    except RunError as error:
        if isinstance(error, AbsentError) and checkpoints and checkpoints.every:
            raise  # what resuming needs stays in the folder
        failure = str(error)
    seconds = time.perf_counter() - began
    return Result(recorder.setup, runtime, recorder.rows, seconds, model, failure, strategy.rounds, points)


def _take_up(setup: Setup, strategy: StarStrategy, recorder: Recorder, checkpoints: Checkpoints) -> int:
    """Resume from the newest checkpoint and return its round, 0 if there is none."""
    strategy.settled = 0
    found = newest(checkpoints, say)
    if found is None:
        return 0
    config = setup.config
    template = setup.algorithm.init_server(
        setup.start, config.clients.count, np.array(config.seed, np.uint64)
    )
    snapshot, rows = to_strategy(found, template)
    strategy.resume(snapshot)
    recorder.take_up(rows)
    if snapshot.ranges:
        recorder.scale(agreement.read(setup, snapshot.ranges))
    strategy.settled = checkpoints.settled()
    return snapshot.round
