"""The job of `../peers.py`, and how the loops of other libraries read it and answer."""

import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

UNCOUNTED = 3  # rounds at the start that are not timed
Tick = Callable[[], None]  # called at the end of every round


class Job(NamedTuple):
    """FedAvg of softmax regression, from 0. features (clients, rows, features), labels (clients, rows)."""

    features: np.ndarray
    labels: np.ndarray
    classes: int
    sampled: int
    steps: int
    batch: int
    step: float
    rounds: int


@cache
def read(path: str) -> Job:
    """The job in a file."""
    with np.load(path) as file:
        return Job(*(file[name] if file[name].ndim else file[name].item() for name in Job._fields))


def timed(train: Callable[[Tick], Any]) -> tuple[Any, float]:
    """What train(tick) returns, and the median seconds of a round."""
    ends: list[float] = []
    model = train(lambda: ends.append(time.perf_counter()))
    return model, float(np.median(np.diff(ends[UNCOUNTED - 1 :])))


def answer(train: Callable[[str, Tick], np.ndarray]) -> None:
    """Run a loop on the job in the file sys.argv[1]; write model (classes, features) and time to sys.argv[2]."""
    model, seconds = timed(lambda tick: train(sys.argv[1], tick))
    np.savez(sys.argv[2], model=model, seconds=seconds)
