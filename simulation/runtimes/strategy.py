"""Run a strategy from start to result over any Flower grid."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from twinflower.clients.records import record_of
from twinflower.errors import AbsentError, RunError
from twinflower.rounds import Training
from twinflower.strategies import StarStrategy

from ..results.checkpoint import Checkpoints, of_strategy, to_strategy
from ..results.record import Progress, Recorder, Result
from ..results.resume import newest
from ..runs import agreement, held_out, server
from ..runs.information import Sums
from ..runs.setup import PreparedRun
from .evaluator import Evaluator
from .progress import say


def run_strategy(
    setup: PreparedRun,
    grid: Grid,
    runtime: str,
    progress: Progress | None = None,
    checkpoints: Checkpoints | None = None,
    watch: Callable[[Result], None] | None = None,
) -> Result:
    """Run all rounds and evaluate centrally; a RunError becomes the result's failure.

    watch: called with the run so far before the first round and after each one.

    With checkpoints the run resumes from the newest one, if there is one, and continues to write checkpoints. Then an
    AbsentError is raised, because the run can be resumed when the clients are back.
    """
    recorder = Recorder(setup, progress)
    evaluation = server.evaluation(setup, lambda round_: recorder.wants(round_) or strategy.ended is not None)
    ranges = server.agreement(setup, recorder.counted)
    strategy = server.strategy_of(setup, runtime == "deployment", evaluation, ranges)
    training = _taken_up(setup, recorder, checkpoints) if checkpoints else None

    began, failure, model, points = time.perf_counter(), "", None, None
    sums: tuple[Sums | None, str] = None, ""
    try:
        with np.errstate(all="ignore"), Evaluator(recorder, aside=runtime == "flower") as evaluator:
            strategy.start(
                grid,
                record_of([setup.start]),
                setup.config.rounds,
                timeout=setup.config.server.round_timeout,
                evaluate_fn=_After(
                    strategy, recorder, evaluator, checkpoints, partial(_show, watch, recorder, runtime)
                ),
                training=training,
            )
        model = setup.algorithm.model(strategy.server)
        points = setup.method.client_models(setup.own(strategy.server))
        sums = server.standard_errors(setup, strategy, model)
    except RunError as error:
        if isinstance(error, AbsentError) and checkpoints and checkpoints.every:
            raise  # what resuming needs stays in the folder
        failure = str(error)
    seconds = time.perf_counter() - began
    return Result(
        recorder.setup, runtime, recorder.rows, seconds, model, failure, strategy.rounds, points, recorder.scores,
        *sums, by_site=recorder.by_site, stop=strategy.ended,
    )  # fmt: skip


def _show(watch: Callable[[Result], None] | None, recorder: Recorder, runtime: str) -> None:
    """Show the run so far to the observer, if there is one."""
    if watch:
        seconds = time.perf_counter() - recorder.began
        watch(Result(recorder.setup, runtime, recorder.rows, seconds, rounds=recorder.rounds))


@dataclass(frozen=True)
class _After:
    """What a run does after each round, and before the first: note its statistics, evaluate, write a checkpoint."""

    strategy: StarStrategy
    recorder: Recorder
    evaluator: Evaluator
    checkpoints: Checkpoints | None
    show: Callable[[], None]

    def __call__(self, flower_round: int, arrays: ArrayRecord) -> None:
        """Called by Flower, which counts from 0 when a run is resumed."""
        if flower_round:
            self.recorder.note(self.strategy.rounds[-1])
        if flower_round or not self.recorder.rows:  # else the round was evaluated before the checkpoint
            round_ = self.strategy.training.number(flower_round)
            self._evaluate(round_)
            self._save(round_)
        self.show()
        if self.checkpoints:
            self.strategy.settle(self.checkpoints.settled())

    def _evaluate(self, round_: int) -> None:
        if self.recorder.wants(round_) or self.strategy.ended:
            sites = self.strategy.evaluation
            found = sites.metrics if sites.evaluates(round_) else {}
            row = held_out.row(self.recorder.setup, found, sites.by_site if found else {})
            self.recorder.found_at_sites(sites.scores, sites.by_site)
            self.evaluator.begin(round_, self.strategy.server, row)

    def _save(self, round_: int) -> None:
        if self.checkpoints and self.checkpoints.due(round_):
            self.evaluator.wait()
            self.checkpoints.save(
                round_,
                of_strategy(
                    self.strategy.training,
                    self.recorder.rows,
                    self.recorder.scores,
                    self.recorder.by_site,
                    self.recorder.setup.persons,
                ),
            )


def _taken_up(setup: PreparedRun, recorder: Recorder, checkpoints: Checkpoints) -> Training | None:
    """The training in the newest checkpoint, None if there is none; the recorder continues after its rows."""
    found = newest(checkpoints, say)
    if found is None:
        return None
    config = setup.config
    template = setup.algorithm.init_server(
        setup.start, config.clients.count, np.array(config.seed, np.uint64)
    )
    training, rows, scores, by_site, persons = to_strategy(found, template)
    recorder.setup = replace(recorder.setup, persons=persons)
    recorder.take_up(rows, training.rounds, scores, by_site)
    if training.ranges:
        recorder.scale(agreement.read(setup, training.ranges))
    return training
