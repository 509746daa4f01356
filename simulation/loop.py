"""A strategy's run from start to result, over any Flower grid."""

import time

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from strategies.star import record_of
from twinflower.errors import RunError
from twinflower.wire import from_npy

from .record import Progress, Recorder, Result, own_columns
from .setup import Setup


def run_strategy(setup: Setup, grid: Grid, runtime: str, progress: Progress | None = None) -> Result:
    """Run all rounds and evaluate centrally; a RunError becomes the result's failure."""
    strategy = setup.strategy()
    recorder = Recorder(setup, progress, rounds=strategy.rounds)

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord | None:
        if not recorder.wants(round_):
            return None
        own = own_columns(setup, strategy.server)
        return MetricRecord(recorder.evaluate(round_, from_npy(arrays["0"].data), own))

    began, failure, model = time.perf_counter(), "", None
    try:
        with np.errstate(all="ignore"):
            strategy.start(
                grid,
                record_of([setup.start]),
                setup.config.rounds,
                timeout=setup.config.round_timeout,
                evaluate_fn=evaluate,
            )
        model = setup.page.model(strategy.server)
    except RunError as error:
        failure = str(error)
    return Result(setup, runtime, recorder.rows, time.perf_counter() - began, model, failure, strategy.rounds)
