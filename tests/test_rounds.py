"""Rounds that need everybody, the message after the last one, unequal shares of a budget, columns of a method's own.

No method of the foundation needs these, so FedPDM borrows them here.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from grids import Lossy
from numpy.testing import assert_allclose, assert_array_equal
from problems import small, state_of

from twinflower.algorithms import ALGORITHMS
from twinflower.algorithms.fedpdm import FedPDM
from twinflower.clients import CLIENTS
from twinflower.errors import SettingError
from twinflower.privacy import gdp_mu
from twinflower.privacy.guard import Guard
from twinflower.simulation.results.reading import read_rows
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.strategies import STRATEGIES

EVERYONE = {"clients.per-round": 0, "rounds": 4}


@pytest.fixture
def borrow(monkeypatch):
    """Let FedPDM have attributes and methods of `Algorithm` that it does not need."""

    def lend(**attributes):
        algorithm = dataclass(frozen=True)(type("FedPDM", (FedPDM,), attributes))
        monkeypatch.setitem(ALGORITHMS, "fedpdm", algorithm)
        monkeypatch.setattr(STRATEGIES["fedpdm"], "algorithm_class", algorithm)
        monkeypatch.setattr(CLIENTS["fedpdm"], "algorithm_class", algorithm)
        prepare.cache_clear()

    yield lend
    prepare.cache_clear()


@pytest.fixture
def needs_all(borrow):
    borrow(needs_every_client=True)


@pytest.mark.usefixtures("needs_all")
@pytest.mark.parametrize("variant", ["fedpdm", "fedpdm-private"])
def test_lost_replies_are_asked_for_again_and_change_nothing(variant):
    setup = small(variant, **EVERYONE)
    grid = Lossy(setup, [(2, 1), (5, 3), (6, 3)], losses=3)
    result = run_strategy(setup, grid, "inprocess")
    whole = inprocess.train(setup)
    assert_array_equal(result.model, whole.model)
    assert grid.asked.count((5, 3)) == grid.asked.count((2, 1)) == 4
    assert grid.asked.count((1, 3)) == 1
    assert result.summary()["privacy"] == whole.summary()["privacy"]
    assert all(not done.rejected for done in result.rounds)


@pytest.mark.usefixtures("needs_all")
def test_a_client_that_stays_away_ends_the_run_in_one_sentence():
    setup = small("fedpdm", **EVERYONE)
    grid = Lossy(setup, [(5, 3)], losses=99)
    result = run_strategy(setup, grid, "inprocess")
    assert result.model is None
    assert result.failure == (
        "round 3: fedpdm needs all clients, and 1 did not answer even after 3 more requests: the run stops "
        "(client 4: error 1: lost on the way)"
    )
    assert grid.asked.count((5, 3)) == 4
    assert result.rounds[-1].rejected == {4: "error 1: lost on the way"}


@pytest.mark.usefixtures("needs_all")
def test_a_method_that_needs_everybody_samples_nobody():
    with pytest.raises(
        SettingError, match="fedpdm needs all clients in every round: set clients.per-round to 0"
    ):
        small("fedpdm")


def test_the_last_inbox_finishes_every_state(borrow):
    borrow(closes=True, finish=lambda self, state, inbox: state._replace(dual=inbox.x0))
    setup = small("fedpdm")
    grid = Lossy(setup, [(3, 6)], losses=1)
    result = run_strategy(setup, grid, "inprocess")
    for node in range(1, 9):
        assert_array_equal(state_of(grid.client(node)).dual, result.model)
    assert [address for address in grid.asked if address[1] == 6] == [(node, 6) for node in range(1, 9)]
    session = grid.contexts[3].state["twinflower.session"]["session"]
    repeated = grid.client(3).fit([result.model], {"round": 6, "closing": True, "session": session})
    assert repeated[0] == []


def test_nothing_private_is_computed_for_the_last_inbox(monkeypatch):
    setup = small("fedpdm-private")
    monkeypatch.setattr(Guard, "open", lambda *_: pytest.fail("a charge"))
    client = InProcessGrid(setup).client(1)
    arrays, _, metrics = client.fit([setup.start], {"round": 6, "closing": True})
    assert (arrays, metrics["round"]) == ([], 6)


@pytest.fixture
def rising(monkeypatch):
    """Round t weighs 4^t."""
    plain = FedPDM.release
    prepare.cache_clear()  # a plan rests on the releases
    monkeypatch.setattr(
        FedPDM,
        "release",
        lambda self, bounds, workload, round_: plain(self, bounds, workload, round_)._replace(
            weight=4.0**round_
        ),
    )
    yield
    prepare.cache_clear()


@pytest.mark.usefixtures("rising")
def test_unequal_shares_spend_the_target_exactly():
    setup = small("fedpdm-private", batch_size=0)
    grid = InProcessGrid(setup)
    result = run_strategy(setup, grid, "inprocess")
    spent = []
    for node in range(1, 9):
        charges = grid.client(node).guard.ledger.charges()
        spent.append(sum(charge.cost for charge in charges))
        for charge in charges:
            z = setup.plan.multipliers[node - 1]
            assert_allclose(charge.sigma, z * charge.sensitivity / 2**charge.round, rtol=1e-12)
            assert_allclose(charge.cost, (charge.sensitivity / charge.sigma) ** 2, rtol=1e-12)
    assert_allclose(spent, setup.plan.mu**2, rtol=1e-12)
    assert_allclose(
        np.sqrt(spent), np.where(setup.plan.releases.rounds_in > 0, gdp_mu(30.0, 1e-4), 0.0), rtol=1e-12
    )
    assert_allclose(result.summary()["privacy"]["epsilon"], 30.0, rtol=1e-9)
    (stacked,) = cohort.train([setup])
    assert_allclose(stacked.model, result.model, rtol=1e-9, atol=1e-12)
    least = setup.plan.least_multiplier(7)  # whatever rounds the server asks for
    assert least == pytest.approx(setup.plan.multipliers[7] / 2**5)
    assert least <= min(c.sigma / c.sensitivity for c in charges)


@pytest.mark.parametrize("stacked", [False, True])
def test_columns_of_a_methods_own(tmp_path, borrow, stacked):
    points = np.stack([np.full(650, 1.0), np.full(650, 3.0)])
    borrow(
        server_columns=("slack",),
        server_metrics=lambda self, server: {"slack": server.x0.sum(-1)},
        client_models=lambda self, server: np.broadcast_to(points, (*server.x0.shape[:-1], 2, 650)),
    )
    setups = [small("fedpdm", reference=True, l2=0.1, seed=seed, rounds=2) for seed in (0, 1)]
    results = cohort.train(setups) if stacked else [inprocess.train(setup) for setup in setups]
    for setup, result in zip(setups, results, strict=True):
        write_run(result, tmp_path / str(setup.config.seed))
        last = read_rows(tmp_path / str(setup.config.seed))[-1]
        best = setup.central.optimum
        assert last["slack"] == pytest.approx(result.model.sum())
        assert last["consensus"] == 650.0
        assert last["distance"] == pytest.approx(((2 - best) ** 2).sum() / (best**2).sum())
        assert last["optimality"] == last["consensus"] + last["distance"]
        errors = ((points - best) ** 2).sum(1) / (best**2).sum()
        assert last["node_error"] == pytest.approx(errors.mean())


def test_the_reference_of_a_run_is_its_own_optimum():
    """A convex run with all clients ends where the central solver says."""
    setup = small(
        "fedpdm",
        reference=True,
        l2=0.1,
        rounds=150,
        **{"clients.per-round": 0},
        batch_size=0,
        local__max_steps=4,
    )
    (result,) = cohort.train([setup])
    assert result.rows[-1]["distance"] < 1e-8 < 0.5 < result.rows[0]["distance"]
    assert abs(result.rows[-1]["suboptimality"]) < 1e-8 < 0.01 < result.rows[0]["suboptimality"]


def test_a_model_is_compared_with_the_support_of_the_optimum():
    central = small("fedpdm", reference=True, l2=0.1, weight=0.01).central
    best = central.optimum
    chosen = np.flatnonzero(best)
    assert 0 < chosen.size < best.size
    x = best.copy()
    x[chosen[0]] = 0.0  # one is missing, and one too many
    x[np.flatnonzero(best == 0)[0]] = 1.0
    found = central.beside_optimum(x, central.evaluate(x)["objective"])
    assert found["support_f1"] == pytest.approx(1 - 1 / chosen.size)
    assert found["suboptimality"] > 0
    assert central.beside_optimum(best, central.lowest) == {"suboptimality": 0.0, "support_f1": 1.0}
    assert central.beside_optimum(0 * best, 1.0)["support_f1"] == 0.0
