"""Evaluate a run's models while its next rounds are running."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ..results.record import Recorder, own_columns


class Evaluator:
    """Adds the rows of metrics.csv through a recorder; as a context manager, it ends with the last row added.

    aside: evaluate in a thread of its own, which pays off where the clients are other processes: on all rows of MNIST
    an evaluation takes 0.08 s, the first one 0.6 s, and a round on Flower's engine 0.2 s. There is at most one
    evaluation at a time, and its error is raised by the next `begin` or `wait`, so that a run that diverges ends in the
    same round whenever it is repeated.
    """

    def __init__(self, recorder: Recorder, aside: bool) -> None:
        self.recorder = recorder
        self._thread = ThreadPoolExecutor(1) if aside else None
        self._last: Future[None] | None = None

    def begin(self, round_: int, server: Any, found: Mapping[str, float]) -> None:
        """Evaluate the server state after this round; found: the columns from the clients' evaluation."""
        self.wait()
        so_far = self.recorder.so_far(round_)
        if self._thread:
            self._last = self._thread.submit(self._add, so_far, server, found)
        else:
            self._add(so_far, server, found)

    def _add(self, so_far: Mapping[str, Any], server: Any, found: Mapping[str, float]) -> None:
        setup = self.recorder.setup
        with np.errstate(all="ignore"):
            own = own_columns(setup, server)
            self.recorder.add(so_far, setup.algorithm.model(server), {**own, **found})

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
