"""What a run puts out: the last point of the server, or the mean of its last ones."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import one_of_each, small, variants_of

from twinflower.algorithms import FedAvg
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.local import LocalMethod
from twinflower.clients.records import record_of
from twinflower.errors import SettingError
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import strategy_of

METHODS = variants_of(LocalMethod)
HALF = (7, {}, 4)


def path_of(setup):
    """The model after every round."""
    models, strategy = [], strategy_of(setup)
    strategy.start(
        InProcessGrid(setup),
        record_of([setup.start]),
        setup.config.rounds,
        evaluate_fn=lambda round_, arrays: models.append(arrays["0"].numpy().copy()),
    )
    return np.array(models[1:])


@pytest.mark.parametrize(
    ("variant", "rounds", "tail", "counted"),
    [
        *(pytest.param(*v.values, *HALF, marks=v.marks) for v in one_of_each(METHODS)),
        *(
            ("fedpdm-private", *case)
            for case in [(7, {"tail": 0.4}, 3), (10, {"tail": 0.1}, 1), (4, {"tail": 1.0}, 4)]
        ),
    ],
)
def test_the_output_is_the_mean_of_the_last_points(variant, rounds, tail, counted):
    """Of half of the rounds unless tail says otherwise, rounded up; until then the last point. Nothing else changes."""
    points = path_of(small(variant, rounds=rounds, final_model="last"))
    setup = small(variant, rounds=rounds, final_model="tail-mean", **({"tail": 0.5} | tail))
    hand = [
        points[max(0, rounds - counted) : t].mean(0) if t > rounds - counted else points[t - 1]
        for t in range(1, rounds + 1)
    ]
    assert_allclose(path_of(setup), hand, rtol=0, atol=1e-14)
    result = inprocess.train(setup)
    assert_allclose(result.model, hand[-1], rtol=0, atol=1e-14)
    assert result.rows[-1] | {"seconds": 0} == result.rows[-1] | {"seconds": 0} | setup.central.evaluate(
        result.model
    )
    (stacked,) = cohort.train([setup])
    assert_allclose(stacked.model, result.model, rtol=1e-9, atol=1e-12)
    assert counted == 1 or not np.allclose(hand[-1], points[-1], atol=1e-6)


@pytest.mark.parametrize("variant", ["fedpdm-private", "scaffold-gradient"])
def test_a_mean_of_what_was_released_costs_nothing(variant):
    last, mean = (inprocess.train(small(variant, final_model=output)) for output in ("last", "tail-mean"))
    assert last.summary()["privacy"] == mean.summary()["privacy"]
    assert [r.asked for r in last.rounds] == [r.asked for r in mean.rounds]


def test_without_the_number_of_rounds_there_is_no_tail():
    """An algorithm of another app, whose run information say nothing of them."""
    algorithm, x = FedAvg(final_model="tail-mean"), np.zeros(3)
    server = algorithm.init_server(x, 2, np.array(0, np.uint64))
    algorithm.averaged(server, 1)
    with pytest.raises(SettingError, match=r"needs the run's number of rounds in info.rounds; got 1"):
        algorithm.averaged(server, 2)
    known = FedAvg(final_model="tail-mean", info=RunInfo(rounds=2))
    assert_array_equal(known.averaged(server._replace(x0=x + 1.0), 2).average, x + 1.0)
