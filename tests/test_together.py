"""Updates that several clients in one process compute together, and noise that is drawn in advance."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from problems import VARIANTS, small

from twinflower.errors import DataError
from twinflower.objectives import LinearModel
from twinflower.privacy.mechanism import GaussianNoise, seeded_cohort
from twinflower.privacy.simulated import SimulatedNoise
from twinflower.simulation.runtimes import ahead, cohort, inprocess, together
from twinflower.simulation.runtimes.ahead import Ahead
from twinflower.simulation.runtimes.inprocess import InProcessGrid, LocalGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.runtimes.together import Together

every_variant = pytest.mark.parametrize("variant", VARIANTS)
PRIVATE = ("fedpdm-private", "fedpdm-gradient", "isrl-dp", "zcdp-nfl-private", "ssca-private")
SUMS = {"fedpdm-sum", "fedavg-sum-rows"}  # noise of another kind, so that each client computes alone
UNLIKE = {"p-admm-private"}  # the last bits of its product of matrices depend on the number of clients


@dataclass(frozen=True)
class Counting(LinearModel):
    """An objective whose gradient depends on the number of clients in its arrays, as no objective should."""

    def grad(self, x, rows, scale=1.0):
        return super().grad(x, rows, scale) * (1.0 + 1e-9 * (x.ndim > 1))


@dataclass(frozen=True)
class Failing(LinearModel):
    """An objective that fails on the rows of one client."""

    first_label: int = 0

    def grad(self, x, rows, scale=1.0):
        if (rows.labels[..., 0] == self.first_label).any():
            raise DataError("these rows are no good")
        return super().grad(x, rows, scale)


def with_objective(setup, kind, **keys):
    own = {name: getattr(setup.objective, name) for name in setup.objective.__dataclass_fields__}
    return replace(setup, objective=kind(**own, **keys))


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


@every_variant
def test_clients_compute_together(variant, monkeypatch):
    """That the results equal those through messages, to the bit, is a test of all runtimes."""
    _, used = trained(small(variant), monkeypatch)
    assert used.exact is (None if variant in SUMS else variant not in UNLIKE)


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


@pytest.mark.parametrize("batch", [0, 150])
def test_clients_of_unequal_batches_are_not_stacked(batch):
    setup = small("fedavg", partition__name="dirichlet", partition__dirichlet_alpha=1.0, batch_size=batch)
    work = [setup.schedule.workload(int(size)) for size in setup.partition.sizes]
    blocks = list(Together(setup).blocks(range(8)))
    assert len(blocks) > 1
    assert all(len({work[client][:2] for client in block}) == 1 for block in blocks)
    through_messages = run_strategy(setup, InProcessGrid(setup), "inprocess")
    assert_array_equal(inprocess.train(setup).model, through_messages.model)


def test_an_objective_that_depends_on_the_number_of_clients_computes_each_alone(monkeypatch):
    setup = with_objective(small("fedavg"), Counting)
    result, used = trained(setup, monkeypatch)
    assert used.exact is False
    assert_array_equal(result.model, run_strategy(setup, InProcessGrid(setup), "inprocess").model)


def test_a_client_that_fails_affects_no_other(monkeypatch):
    setup = small("fedavg", clients__per_round=0, rounds=1)
    firsts = [int(next(iter(setup.schedule.batches(setup.shards, i, 0, 1))).labels[0]) for i in range(8)]
    setup = with_objective(setup, Failing, first_label=firsts[2])
    result, used = trained(setup, monkeypatch)
    lost = result.rounds[0].rejected
    assert used.exact is False
    assert 2 in lost and len(lost) < 8
    assert set(lost) >= {i for i, first in enumerate(firsts) if first == firsts[2]}
    assert "DataError: these rows are no good" in lost[2]
    other = run_strategy(setup, InProcessGrid(setup), "inprocess")
    assert_array_equal(result.model, other.model)
    assert lost == other.rounds[0].rejected


def test_a_client_keeps_only_its_own_part_of_a_block():
    setup = small("scaffold", clients__per_round=0, rounds=2)
    grid = LocalGrid(setup)
    run_strategy(setup, grid, "inprocess")
    for node in range(1, 9):
        kept = grid.client(node).store._kept
        assert kept.round == 2
        for array in kept.arrays.values():
            assert array.base is None or array.base.nbytes == array.nbytes


@pytest.mark.parametrize("variant", PRIVATE)
def test_noise_in_advance_is_the_same_noise(variant, monkeypatch):
    setup = small(variant)
    monkeypatch.setattr(ahead, "_LEAST", 2**62)
    plain = inprocess.train(setup).model, cohort.train([setup])[0].model
    begun = []
    begin = Ahead._begin
    monkeypatch.setattr(ahead, "_LEAST", 1)
    monkeypatch.setattr(Ahead, "_begin", lambda *asked: begun.append(begin(*asked)) or begun[-1])
    early = inprocess.train(setup).model, cohort.train([setup])[0].model
    assert any(begun)
    for one, other in zip(plain, early, strict=True):
        assert_array_equal(one, other)


def test_seeds_stacked_draw_their_noise_in_advance(monkeypatch):
    setups = [small("fedpdm-private", seed=seed) for seed in (1, 2)]
    monkeypatch.setattr(ahead, "_LEAST", 1)
    for setup, result in zip(setups, cohort.train(setups), strict=True):
        monkeypatch.setattr(ahead, "_LEAST", 2**62)
        assert_array_equal(result.model, cohort.train([setup])[0].model)


def test_draws_of_another_number_or_length_than_expected_are_right_too(monkeypatch):
    monkeypatch.setattr(ahead, "_LEAST", 1)
    clients, early = np.arange(3), Ahead()
    for round_, asked in enumerate([[(0, 5), (1, 5)], [(0, 7), (1, 5)], [(1, 5)], [(0, 5), (0, 5), (2, 4)]]):
        plain = GaussianNoise(np.full((3, 1), 2.0), seeded_cohort([0], clients, round_))
        noise = early.of(plain)
        for draw, width in asked:
            value = np.ones((3, width))
            assert_array_equal(noise(value, draw), plain(value, draw))


def test_an_error_in_a_draw_reaches_the_round(monkeypatch):
    monkeypatch.setattr(ahead, "_LEAST", 1)
    monkeypatch.setattr(SimulatedNoise, "_seeds", [2**64])
    with pytest.raises(ValueError, match="seed must be"):
        cohort.train([small("fedpdm-private")])
