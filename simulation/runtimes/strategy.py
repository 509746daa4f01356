"""Run a strategy from start to result over any Flower grid."""

import time

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from twinflower.algorithms.abilities import client_models
from twinflower.clients.records import record_of
from twinflower.errors import AbsentError, RunError
from twinflower.strategies.rounds import Snapshot

from ..results.checkpoint import Checkpoints, of_strategy, to_strategy
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
    recorder = Recorder(setup, progress)
    evaluation = held_out.evaluation(setup, recorder.wants)
    ranges = agreement.agreement(setup, recorder.scale)
    strategy = strategy_of(setup, runtime == "deployment", evaluation, ranges)
    snapshot = _taken_up(setup, recorder, checkpoints) if checkpoints else None

    def after(flower_round: int, arrays: ArrayRecord) -> None:
        round_ = flower_round + (snapshot.round if snapshot else 0)
        if flower_round:
            recorder.note(strategy.rounds[-1])
        if flower_round or not snapshot:  # the round of a snapshot was evaluated before it was taken
            if recorder.wants(round_):
                found = evaluation.metrics if evaluation.evaluates(round_) else {}
                evaluator.begin(round_, strategy.server, held_out.row(setup, found))
            if checkpoints and checkpoints.due(round_):
                evaluator.wait()
                checkpoints.save(round_, of_strategy(strategy.training.snapshot(), recorder.rows))
        if checkpoints:
            strategy.settle(checkpoints.settled())

    began, failure, model, points = time.perf_counter(), "", None, None
    try:
        with np.errstate(all="ignore"), Evaluator(recorder, aside=runtime == "flower") as evaluator:
            strategy.start(
                grid,
                record_of([setup.start]),
                setup.config.rounds,
                timeout=setup.config.server.round_timeout,
                evaluate_fn=after,
                snapshot=snapshot,
            )
        model = setup.algorithm.model(strategy.server)
        points = client_models(setup.method, setup.own(strategy.server))
    except RunError as error:
        if isinstance(error, AbsentError) and checkpoints and checkpoints.every:
            raise  # what resuming needs stays in the folder
        failure = str(error)
    seconds = time.perf_counter() - began
    return Result(recorder.setup, runtime, recorder.rows, seconds, model, failure, strategy.rounds, points)


def _taken_up(setup: Setup, recorder: Recorder, checkpoints: Checkpoints) -> Snapshot | None:
    """The snapshot in the newest checkpoint, None if there is none; the recorder continues after its rows."""
    found = newest(checkpoints, say)
    if found is None:
        return None
    config = setup.config
    template = setup.algorithm.init_server(
        setup.start, config.clients.count, np.array(config.seed, np.uint64)
    )
    snapshot, rows = to_strategy(found, template)
    recorder.take_up(rows, snapshot.rounds)
    if snapshot.ranges:
        recorder.scale(agreement.read(setup, snapshot.ranges))
    return snapshot
