"""F as the mean over the clients or over all rows: what methods minimise, measure and refuse."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import SMALL, VARIANTS, first_variant, keywords, methods_of, one_of_each, run_config, small

from twinflower.algorithms import ALGORITHMS
from twinflower.algorithms.local import LocalMethod
from twinflower.errors import SettingError
from twinflower.problems.central import minimise
from twinflower.problems.interfaces import Batch
from twinflower.simulation.runs.advice import warnings
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import check, parse, parse_run_config
from twinflower.simulation.settings.config import configured
from twinflower.simulation.settings.reader import merge
from twinflower.simulation.tuning.validation import held_out

UNEQUAL = {"partition.name": "sizes", "partition.sizes": "15,300,30,12,90,400,60,25"}
PERSONAL = methods_of("personal")  # the mean of their models is no optimum
BOTH = [name for name, algorithm in ALGORITHMS.items() if algorithm.weightings == ("clients", "rows")]


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_who_takes_which(algorithm):
    """Averaging methods take both. Where duals add up to 0 over the clients, these have equal weights. A likelihood is
    that of all rows."""
    assert algorithm.weightings in [("clients", "rows"), ("clients",), ("rows",)]
    if issubclass(algorithm, LocalMethod):
        assert algorithm.weightings == ("clients", "rows")
    if algorithm.networked or (algorithm.needs_every_client and not algorithm.ends_early):
        assert algorithm.weightings == ("clients",)


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - set(BOTH)))
@pytest.mark.parametrize("door", [parse, lambda keys: parse_run_config(run_config(keys))])
def test_another_weighting_than_the_theorys_is_refused(algorithm, door):
    """Also in Flower's run config, which passes over settings of other algorithms."""
    own = ALGORITHMS[algorithm].weightings[0]
    other = "clients" if own == "rows" else "rows"
    keys = VARIANTS[first_variant(algorithm)]
    check(door(keys | {"weighting": own}))
    with pytest.raises(SettingError, match=f"weighting must be {own} with {algorithm}, .*; got '{other}'"):
        check(door(keys | {"weighting": other}))


def test_a_word_that_means_nothing_is_refused():
    with pytest.raises(
        SettingError, match="clients.weighting must be one of auto, clients, rows; got 'equal'"
    ):
        check(parse({"weighting": "equal"}))


@pytest.mark.parametrize(
    "variant", one_of_each([name for name, keys in VARIANTS.items() if keys["algorithm"] in BOTH])
)
def test_clients_of_one_size_give_the_same_bits_either_way(variant):
    keys = {"samples_per_client": 150, "partition.name": "iid", "rounds": 3}
    models = [
        inprocess.train(small(variant, weighting=weighting, **keys)).model
        for weighting in ("clients", "rows")
    ]
    assert_array_equal(*models)
    stacked = [
        cohort.train([small(variant, weighting=w, seed=s, **keys) for s in (1, 2)])
        for w in ("clients", "rows")
    ]
    for one, other in zip(*stacked, strict=True):
        assert_array_equal(one.model, other.model)


SIZES = (10, 130, 14, 8, 60, 180, 35, 18)
LONG = {"data.name": "breast-cancer", "objective.name": "logistic", "partition.name": "sizes",
        "partition.sizes": ",".join(map(str, SIZES)), "clients.per-round": 0, "rounds": 400, "batch_size": 0,
        "evaluation.every": 400, "reference": True, "l2": 0.1}  # fmt: skip
SPARSE = {"regulariser.weight": 0.01}


EXACT = {
    "privacy.mode": "none",
    "step-decay": 0.0,
    "uplink-ratio": 1.0,
    "final-model": "last",
    "local-start": "server",
}


def exact(variant, keys, weighting):
    """A run of the variant without noise and whatever else is not exact, as far as the method has such settings."""
    layers = [SMALL, VARIANTS[variant], EXACT, keywords(keys), {"weighting": weighting}]
    return prepare(configured(merge(layers).values))


SAMPLED = {"clients.per-round": 4, "rounds": 1500}
# With one full step of every client a method is near proximal gradient descent; these settings ask for more.
HARDER = [
    ("fedpdm", SPARSE),
    ("fedpdm", SPARSE | SAMPLED | {"aggregation": "memory"}),
    ("feddyn", SPARSE),
    ("feddyn", SPARSE | SAMPLED),
    ("scaffold", {"regulariser.name": "none"}),
    ("fedmid", {"local.max-steps": 1, "regulariser.name": "none"}),
]


ONE_STEP = [
    (first_variant(name), SPARSE | {"local.max-steps": 1})
    for name in BOTH
    if name not in PERSONAL and name not in methods_of("doubles_regulariser") + methods_of("constrained")
]


@pytest.mark.parametrize(("variant", "keys"), ONE_STEP + HARDER)
@pytest.mark.parametrize("weighting", ["clients", "rows"])
def test_a_run_ends_at_the_optimum_of_its_weighting(variant, keys, weighting):
    """The optimum of all rows together, weighted as the run says; the other weighting's is another point."""
    setup = exact(variant, LONG | keys, weighting)
    (result,) = cohort.train([setup])
    data, h = setup.dataset, setup.regulariser
    sizes = setup.partition.sizes
    count = sum(SIZES)
    each = np.full(count, 1 / count) if weighting == "rows" else np.repeat(1 / (8 * sizes), sizes)
    order = setup.partition.rows
    rows = Batch(data.features[order], data.labels[order], each)
    best = minimise(setup.objective, h, rows, setup.start)
    assert_allclose(result.model, best, atol=1e-7)
    lowest = setup.objective.value(best, rows) + h.value(best)
    assert_allclose(result.rows[-1]["objective"], lowest, rtol=1e-9)
    assert result.rows[-1]["distance"] < 1e-12
    other = exact(variant, LONG | keys, "clients" if weighting == "rows" else "rows")
    assert np.linalg.norm(other.central.optimum - best) > 0.1 * np.linalg.norm(best)


def test_feddyn_is_fedpdm_by_rows_too():
    keys = {"weighting": "rows", "clients.per-round": 0, "rounds": 12, **UNEQUAL}
    one, other = (cohort.train([small(v, **keys)])[0].model for v in ("fedpdm", "feddyn"))
    assert_allclose(one, other, rtol=0, atol=1e-12)


def test_the_objective_means_the_same_in_every_method():
    """One model, the same number, whether SSCA reports it or FedAvg by rows; by clients it is another."""
    setups = [small("ssca", **UNEQUAL)] + [
        small(variant, weighting="rows", **UNEQUAL) for variant in ("fedavg", "fedpdm", "isrl-dp")
    ]
    x = np.random.default_rng(0).normal(size=setups[0].objective.d)
    told = [setup.central.evaluate(x)["objective"] for setup in setups]
    assert len(set(told)) == 1
    assert abs(small("fedavg", **UNEQUAL).central.evaluate(x)["objective"] - told[0]) > 1e-3


def test_held_out_rows_are_weighted_as_in_f_and_so_are_the_rest():
    setup, held = held_out(small("fedavg", weighting="rows", **UNEQUAL), 0.2)
    assert held.weights is None
    assert setup.algorithm.info.sizes == tuple(setup.partition.sizes) == (12, 240, 24, 10, 72, 320, 48, 20)
    setup, held = held_out(small("fedavg", **UNEQUAL), 0.2)
    assert held.weights is not None
    assert setup.algorithm.info.sizes == ()


@pytest.mark.parametrize("variant", ["fedpdm-private", "fedavg-subgradient", "scaffold"])
def test_weights_at_the_server_change_no_release(variant):
    """Sizes are public and weighting is post-processing: what a client sends first, and what it pays, stay the same."""
    by_clients, by_rows = (small(variant, weighting=w, **UNEQUAL) for w in ("clients", "rows"))
    assert_array_equal(by_clients.plan.mu, by_rows.plan.mu)
    for size in by_rows.partition.sizes:
        release = [
            s.algorithm.release(s.plan.bounds, s.schedule.workload(int(size)), 1)
            for s in (by_clients, by_rows)
        ]
        assert release[0] == release[1]
    first = [inprocess.train(small(variant, weighting=w, rounds=1, **UNEQUAL)) for w in ("clients", "rows")]
    assert not np.array_equal(first[0].model, first[1].model)
    assert first[0].summary()["privacy"] == first[1].summary()["privacy"]


@pytest.mark.parametrize("trust", [{}, {"trust": "sum", "honest-sites": 8, "local.max-steps": 1}])
def test_a_small_client_whose_noise_dominates_is_named_before_the_run(trust):
    """The ratio in the warning is that of the noise that the two means really have."""
    keys = UNEQUAL | {"clients.per-round": 0, "batch-size": 0} | trust
    keys |= {} if trust else {"noise-multiplier": 2.0, "epsilon": 0.0}
    by_clients, by_rows = (small("fedpdm-private", weighting=w, **keys) for w in ("clients", "rows"))
    (advice,) = (text for text in warnings(by_clients) if "clients.weighting = rows" in text)
    assert "client 3 has 12 rows" in advice
    assert not any("clients.weighting" in text for text in warnings(by_rows))
    said = float(advice.split(" has ")[2].split(" times")[0])
    if trust:  # the planned noise of a sum, in units of the weights
        plans = [setup.sums.sigmas[0] for setup in (by_clients, by_rows)]
        assert said == pytest.approx(plans[0] / plans[1], rel=0.05)
    else:
        sizes = by_clients.partition.sizes
        sigmas = [
            2.0
            * by_clients.algorithm.release(
                by_clients.plan.bounds, by_clients.schedule.workload(int(m)), 1
            ).spread
            for m in sizes
        ]
        draws = np.random.default_rng(0).normal(size=(20_000, 8)) * sigmas
        ratio = draws.mean(1).std() / (draws @ (sizes / sizes.sum())).std()
        assert said == pytest.approx(ratio, rel=0.05)
    equal = small("fedpdm-private", clients__per_round=0)
    assert not any("clients.weighting" in text for text in warnings(equal))
