"""The course of runs in every runtime: go on from a checkpoint, compute the rounds, and after each one evaluate the
model, write a checkpoint, and show the run to whoever watches.

The runtimes differ in their driver, which computes the rounds: on arrays (`cohort`) or by messages (`strategy`).
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from twinflower.errors import AbsentError, RunError

from ..results.checkpoint import Checkpoints, checkpoint, restore
from ..results.resume import newest
from ..runs.run import Run, own_columns
from .progress import say


class Driver(Protocol):
    """What computes the rounds of one run, or of several with stacked seeds."""

    runs: list[Run]

    def initial_client(self) -> Any:
        """The initial state of a client, if the driver holds the clients' states."""

    def compute(self, after: Callable[[int], None]) -> None:
        """Compute the rounds that are left; call `after` with the round from which they go on, and after each one."""

    def found(self, run: Run, round_: int) -> dict[str, Any]:
        """What the clients have answered about the model after this round, by the name of the question."""

    def last_answers(self, run: Run) -> tuple[dict[str, Any], list[str]]:
        """What the clients answer about the final model, by the name of the question, and why there is no answer."""

    def close(self) -> None:
        """Nothing more is asked of the clients, and the runs are not resumed."""


def drive(
    driver: Driver,
    checkpoints: Checkpoints | None = None,
    watch: Callable[[Run], None] | None = None,
) -> None:
    """Take the driver's runs to their end; a RunError becomes the failure of a run alone.

    With checkpoints they go on from the newest one, and write further ones. Once there is one, an AbsentError is
    raised, because the run can go on when the clients are back; also in a run that was cut off before its first one,
    which clients may have charged. watch: called with every run before the first round and after each one.
    """
    runs = driver.runs
    if checkpoints and (saved := newest(checkpoints, say)):
        restore(saved, runs, driver.initial_client())
    try:
        with np.errstate(all="ignore"):
            with Evaluator(aside=runs[0].runtime == "flower") as evaluator:
                driver.compute(_After(driver, evaluator, checkpoints, watch, runs[0].round))
            for run in runs:
                run.model, run.points = run.x, run.client_points
                answers, missing = driver.last_answers(run)
                run.answers |= answers
                run.missing = " ".join(missing)
    except RunError as error:
        begun = checkpoints and (checkpoints.rounds() or runs[0].setup.config.output.resume_from)
        if len(runs) > 1 or (begun and isinstance(error, AbsentError)):
            raise  # what resuming needs stays in the folder
        runs[0].failure = str(error)
    for run in runs:
        run.ended_at = time.perf_counter()
    driver.close()


class Evaluator:
    """Adds the rows of metrics.csv; as a context manager, it ends with the last row added.

    aside: evaluate in a thread of its own, which pays off where the clients are other processes: on all rows of MNIST
    an evaluation takes 0.08 s, the first one 0.6 s, and a round on Flower's engine 0.2 s. There is at most one
    evaluation at a time, and its error is raised by the next `begin` or `wait`, so that a run that diverges ends in the
    same round whenever it is repeated.
    """

    def __init__(self, aside: bool) -> None:
        self._thread = ThreadPoolExecutor(1) if aside else None
        self._last: Future[None] | None = None

    def begin(self, run: Run, round_: int, columns: Mapping[str, float]) -> None:
        """Evaluate the model of a run after this round; columns: those of the clients' answers."""
        self.wait()
        words = run, run.so_far(round_), run.server, columns
        if self._thread:
            self._last = self._thread.submit(_evaluate, *words)
        else:
            _evaluate(*words)

    def wait(self) -> None:
        """Wait until the last evaluation has ended."""
        if self._last:
            self._last.result()

    def __enter__(self) -> "Evaluator":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._thread:
            self._thread.shutdown()
        self.wait()  # replies that cannot be used follow from a model that is not finite


def _evaluate(run: Run, so_far: dict[str, Any], server: Any, columns: Mapping[str, float]) -> None:
    """Add a row for the server state after a round, while the next one may be running."""
    with np.errstate(all="ignore"):  # of this thread
        x = run.of_seed(run.setup.algorithm.model(server))
        run.add(so_far, x, {**own_columns(run, server), **columns})


@dataclass(frozen=True)
class _After:
    """What happens after a round, and before the first; begun: the round from which the runs go on."""

    driver: Driver
    evaluator: Evaluator
    checkpoints: Checkpoints | None
    watch: Callable[[Run], None] | None
    begun: int

    def __call__(self, round_: int) -> None:
        runs = self.driver.runs
        if round_ > self.begun or not runs[0].rows:  # else the round was evaluated before the checkpoint
            self._evaluate(round_)
            self._save(round_)
        for run in runs if self.watch else ():
            self.watch(run)  # type: ignore[misc]

    def _evaluate(self, round_: int) -> None:
        for run in self.driver.runs:
            if run.wants(round_):
                self.evaluator.begin(run, round_, run.take(self.driver.found(run, round_)))

    def _save(self, round_: int) -> None:
        if self.checkpoints and self.checkpoints.due(round_):
            self.evaluator.wait()
            self.checkpoints.save(round_, checkpoint(self.driver.runs))
