"""Runs whose process dies, and whether what came of them is the same."""

import numpy as np
from numpy.testing import assert_array_equal

from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy

TIMES = ("seconds", "client_updates_per_second")


class PowerCut(BaseException):
    """The process is gone."""


class Cut(InProcessGrid):
    """A grid whose process dies at the n-th request, before the client works or after."""

    def __init__(self, setup, number, after):
        super().__init__(setup)
        self.left, self.after = number, after

    def answer(self, message):
        self.left -= message.metadata.message_type == "train"
        if self.left == 0 and not self.after:
            raise PowerCut
        reply = super().answer(message)
        if self.left == 0:
            raise PowerCut
        return reply


def rows_of(result):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in result.rows]


def equal(one, other):
    assert one.failure == other.failure == ""
    assert_array_equal(one.model, other.model)
    np.testing.assert_equal(rows_of(one), rows_of(other))
    summaries = [{k: v for k, v in result.summary().items() if k not in TIMES} for result in (one, other)]
    np.testing.assert_equal(*summaries)
    told = [[r._replace(seconds=0.0) for r in result.rounds] for result in (one, other)]
    np.testing.assert_equal(*told)


def cut_off(setup, folder, number, after, every):
    try:
        run_strategy(setup, Cut(setup, number, after), "inprocess", checkpoints=Checkpoints(folder, every))
    except PowerCut:
        return True
    return False
