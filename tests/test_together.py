"""Updates that several clients in one process compute together."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from problems import VARIANTS, small
from scipy import stats

from twinflower.algorithms import FedPDM
from twinflower.batches import LocalSchedule
from twinflower.clients.sums import ROSTER
from twinflower.errors import DataError
from twinflower.objectives import LinearModel, Softmax
from twinflower.simulation.runtimes import inprocess, together
from twinflower.simulation.runtimes.inprocess import InProcessGrid, LocalGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.runtimes.together import Together

every_variant = pytest.mark.parametrize("variant", VARIANTS)
SUMS = {"fedpdm-sum", "fedavg-sum-rows"}  # noise of another kind, so that each client computes alone


def trained(setup, monkeypatch):
    """The result of a run in process, and its `Together`."""
    made = []

    def note(setup):
        made.append(Together(setup))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(inprocess, "Together", note)
        result = inprocess.train(setup)
    return result, made[0]


def stacked_rounds(monkeypatch):
    """The shapes of the batches' steps of all updates: () for a client that computes alone."""
    shapes = []
    update = LocalSchedule.batches

    def noted(*arguments):
        batches = update(*arguments)
        shapes.append(batches.steps.shape)
        return batches

    monkeypatch.setattr(LocalSchedule, "batches", noted)
    return shapes


@every_variant
def test_clients_compute_together(variant, monkeypatch):
    """That the results equal those through messages, to the bit, is a test of all runtimes."""
    shapes = stacked_rounds(monkeypatch)
    _, used = trained(small(variant, rounds=8), monkeypatch)
    assert used.exact
    assert len(used.checked) == (0 if variant in SUMS else 3)
    assert (shapes[-1] == ()) == (variant in SUMS)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("variant", ["scaffold", "fedpdm-private", "bsdp-rand-k"])
def test_the_size_of_a_block_changes_no_bit(variant, size, monkeypatch):
    setup = small(variant, clients__per_round=0)
    whole = inprocess.train(setup).model
    monkeypatch.setattr(together, "BLOCK", size * setup.start.nbytes)
    blocks = list(Together(setup).blocks(range(8)))
    assert {len(block) for block in blocks} <= {size, 8 % size}
    assert sorted(client for block in blocks for client in block) == list(range(8))
    assert_array_equal(inprocess.train(setup).model, whole)


@pytest.mark.parametrize(
    "keys", [{"batch_size": 0}, {"batch_size": 150}, {"batch_size": 20, "local__max_steps": 0}]
)
def test_clients_of_unequal_batches_are_not_stacked(keys):
    setup = small("fedavg", partition__name="dirichlet", partition__dirichlet_alpha=1.0, **keys)
    work = [setup.schedule.workload(int(size)) for size in setup.partition.sizes]
    blocks = list(Together(setup).blocks(range(8)))
    assert len(blocks) > 1
    assert all(len({work[client][:2] for client in block}) == 1 for block in blocks)
    assert_array_equal(inprocess.train(setup).model, over_messages(setup).model)


def test_large_batches_are_computed_in_small_blocks(monkeypatch):
    setup = small("fedavg", batch_size=100)
    monkeypatch.setattr(together, "BLOCK", 2 * 100 * setup.shards.features[0].nbytes)
    assert {len(block) for block in Together(setup).blocks(range(8))} == {2}


def over_messages(setup):
    return run_strategy(setup, InProcessGrid(setup), "inprocess")


class Foreign(Softmax):
    """A loss from another package."""


def test_only_objectives_of_this_package_are_stacked(monkeypatch):
    """An objective from elsewhere may forget an axis, which changes nothing for a client alone."""
    setup = small("fedavg")
    shapes = stacked_rounds(monkeypatch)
    inprocess.train(replace(setup, objective=replace(setup.objective, loss=Foreign())))
    assert set(shapes) == {()}


@pytest.mark.parametrize(
    ("variant", "rounds"), [("fedavg", {1}), ("zcdp-nfl", {1, 2})], ids=["at once", "in the second round"]
)
def test_dependence_on_other_clients_is_found_in_the_first_rounds(variant, rounds, monkeypatch):
    """A planted penalty whose norm is that of all clients' points; it is 0 where these are."""
    grad = LinearModel.grad

    def pulled(self, x, rows, scale=1.0):
        return grad(self, x, rows, scale) + scale * 0.1 * x / np.sqrt(1 + (x * x).sum())

    monkeypatch.setattr(LinearModel, "grad", pulled)
    result, used = trained(small(variant, clients__per_round=0), monkeypatch)
    assert not used.exact
    assert used.checked == rounds
    assert_array_equal(result.model, over_messages(small(variant, clients__per_round=0)).model)


def test_states_are_compared_too(monkeypatch):
    """A planted fault in a dual alone."""
    update = FedPDM.client_update

    def shifted(self, state, inbox, work):
        new, upload, report = update(self, state, inbox, work)
        return new._replace(dual=new.dual + 1e-9 * (new.dual.ndim > 1)), upload, report

    monkeypatch.setattr(FedPDM, "client_update", shifted)
    assert not trained(small("fedpdm"), monkeypatch)[1].exact


def test_a_client_that_fails_affects_no_other(monkeypatch):
    setup = small("fedavg", clients__per_round=0, rounds=2)
    batches = [[setup.schedule.batches(setup.shards, i, 0, t) for i in range(8)] for t in (1, 2)]
    firsts = [[int(next(iter(b)).labels[0]) for b in round_] for round_ in batches]
    slopes = Softmax.slopes

    def failing(self, scores, labels):
        if (labels[..., 0] == firsts[0][2]).any():
            raise DataError("these rows are no good")
        return slopes(self, scores, labels)

    monkeypatch.setattr(Softmax, "slopes", failing)
    result, used = trained(setup, monkeypatch)
    lost = [round_.rejected for round_ in result.rounds]
    assert used.exact
    assert 2 in lost[0] and len(lost[0]) < 8
    assert "DataError: these rows are no good" in lost[0][2]
    other = over_messages(setup)
    assert lost == [round_.rejected for round_ in other.rounds]
    assert_array_equal(result.model, other.model)


def test_masked_sums_stay_masked():
    """Site 0's message is uniform in a run with masks, and it refuses a roster that is not one."""
    keys = {"clients__per_round": 0, "rounds": 1, "honest_sites": 4}
    masked, plain = (small("fedpdm-sum", privacy__masks=masks, **keys) for masks in (True, False))
    seen = {}
    for setup in (masked, plain):
        grid = Listening(setup)
        run_strategy(setup, grid, "inprocess")
        seen[setup is masked] = grid.cells
    signed = {key: np.abs(cells.astype(np.int64)) for key, cells in seen.items()}
    assert signed[False].max() < 2**40
    assert stats.kstest(signed[True] / 2.0**63, "uniform").pvalue > 1e-9  # the masks are secret
    (reply,) = [r for r in grid_with_roster(masked, b"junk") if r.node == 1]
    assert "ReplyError" in reply.error


class Listening(LocalGrid):
    """Notes site 0's message."""

    def fit(self, requests):
        replies = super().fit(requests)
        self.requests = requests
        (self.cells,) = next(reply.arrays for reply in replies if reply.node == 1)
        return replies


def grid_with_roster(setup, roster):
    """The replies to the requests of a round with another roster."""
    grid = Listening(setup)
    run_strategy(setup, grid, "inprocess")
    fresh = LocalGrid(setup)
    return fresh.fit([r._replace(config={**r.config, ROSTER: roster}) for r in grid.requests])


def test_a_client_keeps_only_its_own_part_of_a_block():
    setup = small("scaffold", clients__per_round=0, rounds=2)
    grid = LocalGrid(setup)
    run_strategy(setup, grid, "inprocess")
    for node in range(1, 9):
        kept = grid.client(node).store._kept
        assert kept.round == 2
        for array in kept.arrays.values():
            assert array.base is None or array.base.nbytes == array.nbytes
