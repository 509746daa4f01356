"""Noise that is correlated over steps: its covariance, its sensitivity by brute force, and what is charged."""

import itertools
from functools import partial

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from numpy.testing import assert_allclose, assert_array_equal
from problems import small

from twinflower.algorithms import FedAvg
from twinflower.algorithms.messages import Inbox
from twinflower.clients import CLIENTS
from twinflower.clients import store as store_module
from twinflower.clients.store import ContextStore, FileStore, noise_seeds
from twinflower.errors import SettingError
from twinflower.privacy.accountant import Budget, gdp_mu
from twinflower.privacy.audit import neighbours, replay
from twinflower.privacy.charges import BudgetSpent, Charge, total_cost
from twinflower.privacy.correlated import (
    Innovations,
    Window,
    best_bandwidth,
    inverse_root,
    largest_factor,
    noise_in_sums,
    squared_sensitivity,
    through_root,
)
from twinflower.privacy.ledger import FileLedger
from twinflower.privacy.mechanism import by_step, keyed, seeded
from twinflower.privacy.participation import Visit, worst_cost
from twinflower.privacy.plan import Plan, Target
from twinflower.privacy.release import Release
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Bounds
from twinflower.problems.objectives import make_objective
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy

widths = pytest.mark.parametrize("p", [1, 2, 3, 8])
BANDED = {
    "rounds": 9, "epsilon": 8.0, "noise_multiplier": 0.0, "privacy.noise": "banded", "local.fresh-batches": False,
    "local.batch-size": 20, "local.max-steps": 2,
}  # fmt: skip
SEEDS = {first: bytes([first]) * 32 for first in range(0, 12, 2)}


def root_matrix(p, steps):
    """B (T, T)."""
    numbers = np.zeros(steps)
    numbers[: min(p, steps)] = inverse_root(p)[:steps]
    return np.array([[numbers[t - s] if t >= s else 0.0 for s in range(steps)] for t in range(steps)])


def assert_covariance(drawn, true):
    """Over the columns of drawn (T, n), within 6 standard errors of a sample covariance."""
    count = drawn.shape[1]
    error = np.sqrt((np.outer(np.diag(true), np.diag(true)) + true**2) / count)
    assert (np.abs(drawn @ drawn.T / count - true) <= 6 * error).all()


def visits(load, turns, p, most=1):
    return [Visit(load.span(t)._replace(most=most, bandwidth=p), 1.0, load.steps) for t in turns]


# --- the factorisation ---


def test_the_square_of_the_inverse_root_takes_differences():
    """(1 - x)^(1/2) squared is 1 - x."""
    assert_allclose(
        np.convolve(inverse_root(30), inverse_root(30))[:30], [1.0, -1.0, *[0.0] * 28], atol=1e-15
    )


@widths
def test_the_inverse_has_no_negative_entry_and_is_the_filter(p):
    inverse = np.linalg.inv(root_matrix(p, 40))
    assert (inverse > -1e-12).all()
    patterns = np.random.default_rng(0).normal(size=(3, 40))
    assert_allclose(through_root(patterns, p), patterns @ inverse.T, rtol=1e-9, atol=1e-12)


@widths
@pytest.mark.parametrize(
    "source", [by_step(partial(seeded, 5, 3), 2), keyed(SEEDS, 2)], ids=["seeded", "keyed"]
)
def test_what_is_released_has_the_covariance_of_the_factorisation(p, source):
    """Over 20,000 entries of 12 steps, within 6 standard errors of a sample covariance."""
    count, steps = 20_000, 12
    window = Window(p)
    drawn = np.array([window.draws(2 * (t // 2), source)(t % 2, (count,)) for t in range(steps)])
    assert_covariance(drawn, root_matrix(p, steps) @ root_matrix(p, steps).T)


# --- the sensitivity ---


@pytest.mark.parametrize("p", [2, 3, 8])
@pytest.mark.parametrize("per_epoch, steps", [(2, 1), (3, 1), (3, 2), (4, 3), (2, 3)])
def test_the_cost_is_the_largest_norm_over_all_records_all_rounds_that_were_released_and_all_signs(
    p, per_epoch, steps
):
    """Brute force with the inverse matrix, for every set of four rounds; a move may also be absent."""
    load, inverse = (
        LocalSchedule(1, steps, fresh=False).workload(per_epoch),
        np.linalg.inv(root_matrix(p, 4 * steps)),
    )
    for released in itertools.islice(itertools.product([False, True], repeat=4), 1, None):
        turns = 1 + np.flatnonzero(released)
        last = turns[-1] * steps
        made = np.repeat(released, steps)[:last]
        true = []
        for record in range(per_epoch):
            moved = np.flatnonzero((np.arange(last) % per_epoch == record) & made)
            moves = np.array(list(itertools.product([-1.0, 0.0, 1.0], repeat=len(moved))))
            true.append(np.sum((moves @ inverse[:last, moved].T) ** 2, axis=1).max())
        assert_allclose(worst_cost(visits(load, turns, p)), max(true), rtol=1e-9)


def test_no_directions_of_the_moves_reach_further():
    draw, inverse = np.random.default_rng(1), np.linalg.inv(root_matrix(4, 12))
    for _ in range(200):
        moves = draw.normal(size=(12, 3)) * (np.arange(12) % 3 == 0)[:, None]
        moves /= np.maximum(np.linalg.norm(moves, axis=1, keepdims=True), 1e-300)
        assert (
            np.sum((inverse @ moves) ** 2)
            <= squared_sensitivity((np.arange(12) % 3 == 0)[None] * 1.0, 4) + 1e-9
        )


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_groups_that_fill_batches_are_covered(most):
    patterns = (np.arange(14) % 4 == np.arange(4)[:, None]).astype(float)
    images = through_root(patterns, 3)
    true = max(np.sum(images[list(s)].sum(0) ** 2) for s in itertools.combinations(range(4), most))
    cost = squared_sensitivity(patterns, 3, most)
    assert true <= cost * (1 + 1e-12)
    if most in (1, 4):
        assert_allclose(cost, true)


def test_replayed_the_whole_run_costs_what_is_planned():
    """||C moves|| of the record in the first batch: never above the plan, and .99 of it."""
    algorithm, objective, rounds = (
        FedAvg(step_size=0.5, privacy="gradient"),
        make_objective("logistic", 3, 2),
        10,
    )
    bounds, schedule = objective.bounds(0.7), LocalSchedule(2, 1, fresh=False)
    target = Target(2.0, 1e-5, noise="banded")
    plan = Plan.of(algorithm, bounds, [schedule.workload(9)], [[0]] * rounds, target)
    p = plan.participation.bandwidth(0)
    assert p > 1
    data, other = neighbours(9, 3, 0.7)
    inbox = Inbox(np.array([1e3, 0.0, 0.0]), np.empty(0, dtype=np.int64), np.zeros((), np.uint64))
    found = []
    for shift in range(9):
        both = [own._replace(features=np.roll(own.features, shift, axis=0)) for own in (data, other)]
        moves = replay(algorithm, objective, *both, schedule, bounds, [inbox] * rounds)
        found.append(np.sum(through_root(np.array([m.moved / m.sensitivity for m in moves]), p) ** 2))
    assert 0.99**2 * plan.units[0] <= max(found) <= plan.units[0] * (1 + 1e-9)
    assert_allclose(np.sqrt(plan.units[0]) / plan.multipliers[0], gdp_mu(2.0, 1e-5))


@pytest.mark.parametrize("per_epoch, epochs, gain", [(8, 30, 2.2), (20, 30, 3.2)])
def test_running_sums_have_less_error(per_epoch, epochs, gain):
    """Against independent noise of the same guarantee, whose record takes part `epochs` times."""
    steps = per_epoch * epochs
    best = best_bandwidth(per_epoch, steps)
    assert noise_in_sums(1, per_epoch, steps) / noise_in_sums(best, per_epoch, steps) > gain


@pytest.mark.parametrize("per_epoch, steps", [(2, 2), (8, 24), (8, 240), (64, 64), (64, 640), (100, 200)])
def test_the_bandwidth_is_the_best_of_those_that_are_tried(per_epoch, steps):
    """Others would be at most a few percent better; the widest is not always best."""
    best = best_bandwidth(per_epoch, steps)
    errors = {p: noise_in_sums(p, per_epoch, steps) for p in range(1, 65)}
    tried = [2**k for k in range(7) if 2**k <= per_epoch]
    assert best == min(tried, key=errors.__getitem__)
    assert errors[best] < 1.05 * min(errors.values())


def test_clients_that_are_asked_more_often_later_are_told_apart_at_once():
    """Two have the same rows and rounds so far, but not in the whole run, and so not the same bandwidth."""
    load, budget = LocalSchedule(1, 1, fresh=False).workload(32), Target(2.0, 1e-5, noise="banded")
    asked = [[0, 1]] * 32 + [[1]] * 32 * 20
    plan = Plan.of(FedAvg(privacy="gradient"), Bounds(1.0, 1.0), [load, load], asked, budget)
    widths = plan.participation.bandwidths
    assert widths[0] != widths[1]
    so_far = plan.so_far((t, [0, 1]) for t in range(1, 33))
    assert_allclose(so_far.units, [worst_cost(visits(load, range(1, 33), p)) for p in widths])


@widths
def test_noise_in_sums_is_that_of_the_matrices(p):
    """The rows of A B, A the sums, times the norm of C for the first record."""
    inverse = root_matrix(p, 12)
    sums = np.sqrt(np.mean(np.sum((np.tril(np.ones((12, 12))) @ inverse) ** 2, axis=1)))
    moves = np.linalg.inv(inverse) @ (np.arange(12) % 4 == 0)
    assert_allclose(noise_in_sums(p, 4, 12), np.linalg.norm(moves) * sums, rtol=1e-12)


# --- ledgers and noise ---


def test_the_ledger_charges_the_prefix(tmp_path):
    load = LocalSchedule(2, 1, fresh=False).workload(8)
    seen, budget = visits(load, range(1, 9), 4), Budget(99.0)
    ledger = FileLedger(tmp_path / "a.ledger", "data", 99.0, 1e-4)
    spent = []
    for t, visit in enumerate(seen, 1):
        ledger.charge(Charge("a", t, 1.0, 2.0, 1, 0.25, span=visit.span), budget)
        spent.append(total_cost(ledger.charges()))
        assert_allclose(spent[-1], worst_cost(seen[:t]) / 4)
    assert (np.diff(spent) > 0).all()


def test_noise_is_drawn_again_from_the_seeds_to_the_bit():
    window, one = Window(4), keyed(SEEDS, 2)
    first = [window.draws(t, one)(0, (5,)) for t in range(12)]
    assert_array_equal(Window(4).draws(10, keyed({t: SEEDS[t] for t in (6, 8, 10)}, 2))(1, (5,)), first[11])
    assert len({tuple(one.draw(one.address(t), (5,))) for t in range(12)}) == 12


def test_a_window_draws_each_vector_once_and_takes_out_those_that_are_lost():
    window, drawn, lost = Window(4), [], set()

    def draw(step, shape):
        drawn.append(step)
        return np.random.default_rng(step).normal(size=shape)

    vectors = Innovations(lambda step: None if step in lost else step, draw)
    for step in range(12):
        window.draws(step, vectors)(0, (5,))
    assert drawn == list(range(12))
    lost |= {10, 12, 13}
    assert_array_equal(window.draws(14, vectors)(0, (5,)), Window(4).draws(14, vectors)(0, (5,)))


def test_a_step_without_the_numbers_beside_its_gradient_has_the_noise_of_the_others():
    """FedSGM releases values with the first gradient of a round. The draws of a seed depend on how many there are."""
    vectors = by_step(partial(seeded, 5, 3), 2)
    whole, mixed = Window(4), Window(4)
    for first in range(0, 12, 2):
        full = [whole.draws(first, vectors)(draw, (653,)) for draw in range(2)]
        for window in (mixed, Window(4)):  # the second is that of a client that was restarted
            assert_array_equal(window.draws(first, vectors)(0, (653,)), full[0])
            assert_allclose(window.draws(first, vectors)(1, (650,)), full[1][:650], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("p", [1, 2, 8])
def test_the_largest_number_of_the_noise_is_attained(p):
    signs = Innovations(lambda step: step, lambda step, shape: np.full(shape, 1.0 if step == 20 else -1.0))
    assert_allclose(Window(p).draws(20, signs)(0, (1,)), largest_factor(p))


def test_secret_noise_needs_the_seeds_of_earlier_rounds(tmp_path):
    guard = small("fedavg-banded").plan.guard(0, FileLedger(tmp_path / "0.ledger", "data", 99.0, 1e-4))
    span = LocalSchedule(2, 1, fresh=False).workload(8).span(1)._replace(bandwidth=guard.bandwidth)
    assert guard.bandwidth > 1
    with pytest.raises(SettingError, match="seeds of earlier rounds"):
        guard.open(Release(1.0), 1, span=span)


def test_as_many_steps_as_can_be_charged_in_time(tmp_path):
    """A plan with more is refused, and so is a round far beyond the plan that a server asks for."""
    load = LocalSchedule(1, 10_000, fresh=False).workload(2_000)
    with pytest.raises(SettingError, match="at most 20,000,000 steps times batches of an epoch"):
        Plan.of(
            FedAvg(privacy="gradient"), Bounds(1.0, 1.0), [load], [[0]] * 2, Target(2.0, 1e-5, noise="banded")
        )
    guard = small("fedavg-banded").plan.guard(
        0, FileLedger(tmp_path / "0.ledger", "data", 99.0, 1e-4), seed=0
    )
    far = LocalSchedule(2, 1, fresh=False).workload(8).span(10**7)._replace(bandwidth=guard.bandwidth)
    with pytest.raises(BudgetSpent, match="so many steps"):
        guard.open(Release(1.0), 1, span=far)
    assert not guard.ledger.charges()


@pytest.mark.parametrize(
    "make", [lambda folder: ContextStore(RecordDict()), lambda folder: FileStore(folder, "me")]
)
def test_a_node_keeps_the_seeds_of_the_steps_that_later_steps_need(tmp_path, make):
    store, load, kept = make(tmp_path), LocalSchedule(2, 2, fresh=False).workload(8), {}

    def seeds(turn, config="settings", session="session"):
        return noise_seeds(store, session, config, load.span(turn)._replace(bandwidth=4))

    for turn in range(1, 6):
        held = seeds(turn)
        first = 2 * (turn - 1)  # needs steps first - 3, first - 2 and first - 1, of two rounds
        assert sorted(held) == [t for t in (first - 4, first - 2, first) if t >= 0]
        assert all(kept.setdefault(step, seed) == seed for step, seed in held.items())
    assert len(set(kept.values())) == 5
    assert seeds(5)[8] != kept[8]  # repeated after a restored backup: new noise
    assert list(seeds(6, "other settings")) == [10]
    assert list(seeds(7, "settings")) == [12]
    assert list(seeds(7, session="another")) == [12]


@pytest.mark.parametrize("p", [2, 3, 8])
def test_noise_that_is_left_out_costs_no_more(p):
    """For any entries of the matrix of earlier noise, and any moves."""
    draw = np.random.default_rng(3)
    pattern = (np.arange(12) % 3 == 0).astype(float)
    for _ in range(100):
        kept = np.tril(draw.random((12, 12)) < draw.random(), -1) + np.eye(12)
        moves = draw.normal(size=(12, 3))
        moves *= (pattern / np.linalg.norm(moves, axis=1))[:, None]
        moved = np.sum(np.linalg.solve(root_matrix(p, 12) * kept, moves) ** 2)
        assert moved <= squared_sensitivity(pattern[None], p) * (1 + 1e-12)


@pytest.mark.parametrize("variant", ["feddr-gradient", "fedpdm-gradient", "scaffold-gradient"])
@pytest.mark.parametrize("per_round", [0, 3])
def test_plan_ledgers_and_runtimes_agree(variant, per_round):
    setup = small(variant, clients__per_round=per_round, **BANDED)
    assert setup.plan.participation.bandwidths.max() > 1
    grid = InProcessGrid(setup)
    result = run_strategy(setup, grid, "inprocess")
    for client in range(8):
        charges = grid.client(client + 1).guard.ledger.charges()
        assert_allclose(total_cost(charges), setup.plan.mu[client] ** 2, rtol=1e-9)
    (stacked,) = cohort.train([setup])
    assert_allclose(stacked.model, result.model, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("noise", ["independent", "banded"])
def test_ledgers_charge_for_all_batches_that_a_group_can_fill(noise):
    """A group of 45 rows fills two batches of 20 and a part of a third."""
    group = {"privacy.protects": "group", "privacy.group-size": 45, "privacy.noise": noise}
    setup = small("scaffold-gradient", clients__per_round=0, **BANDED | group)
    assert set(setup.plan.participation.most.values()) == {3}
    grid = InProcessGrid(setup)
    run_strategy(setup, grid, "inprocess")
    for client in range(8):
        charges = grid.client(client + 1).guard.ledger.charges()
        assert_allclose(total_cost(charges), setup.plan.mu[client] ** 2, rtol=1e-9)


def replies(setup, folder, rounds, budget=None, restarted=True, session="a"):
    """The replies of a deployed site with secret noise in these rounds, and its ledger."""
    ledger = FileLedger(folder / "0.ledger", "data", 1e9, 1e-4)

    def client():
        guard = setup.plan.guard(0, ledger, run=session, config="settings")
        return CLIENTS[setup.config.algorithm](
            Context(1, 1, {}, RecordDict(), {}), setup.algorithm, setup.objective, setup.shards.rows(0), setup.start, 0,
            setup.config.clients.count, setup.schedule, guard=guard, store=FileStore(folder / "states", "me"),
        )  # fmt: skip

    one, server = client(), setup.algorithm.init_server(setup.start, 8, np.array(0, np.uint64))
    given = []
    for round_ in rounds:
        inbox = setup.algorithm.inbox.pack(
            setup.algorithm.broadcast(server, round_, np.array(1)), setup.objective.d
        )
        arrays, _, _ = (client() if restarted else one).fit(inbox, {"round": round_, "session": session})
        assert arrays  # it is not refused
        given.append(arrays)
    return given, ledger


def test_a_node_that_is_restarted_continues_to_the_bit(tmp_path, monkeypatch):
    """A new process for every round, whose noise comes from the disk, or one process, whose noise is in memory."""
    setup, given = small("fedavg-banded", clients__per_round=0, rounds=4), []
    assert setup.plan.participation.bandwidth(0) > 1
    for restarted in (False, True):
        monkeypatch.setattr(store_module.os, "urandom", np.random.default_rng(0).bytes)
        given.append(replies(setup, tmp_path / str(restarted), range(1, 5), restarted=restarted)[0])
    for one, other in zip(*given, strict=True):
        for a, b in zip(one, other, strict=True):
            assert_array_equal(a, b)


def test_what_a_deployed_site_sends_has_the_planned_covariance(tmp_path, monkeypatch):
    """Its replies without the gradients of its batches, over 650 entries."""
    monkeypatch.setattr(store_module.os, "urandom", np.random.default_rng(0).bytes)
    setup = small("fedavg-banded", clients__per_round=0, rounds=8, local__batch_size=20, local__max_steps=1)
    given, _ = replies(setup, tmp_path, range(1, 9))
    load, rows = setup.schedule.workload(setup.shards.span(0)[1]), Shards.site(setup.shards.rows(0), 0)
    sigma = setup.plan.multipliers[0] * setup.algorithm.release(setup.plan.bounds, load, 1).spread
    batches = [next(iter(setup.schedule.batches(rows, 0, 0, t))) for t in range(1, 9)]
    slopes = np.array([setup.objective.grad(setup.start, batch) for batch in batches])
    sent = np.array([arrays[0] for arrays in given])
    noise = ((setup.start - sent) / setup.algorithm.step_size - slopes) / sigma
    factor = root_matrix(setup.plan.participation.bandwidth(0), 8)
    assert factor[1, 0] < 0
    assert_covariance(noise, factor @ factor.T)


def test_rounding_errors_are_bounded_for_the_largest_noise(tmp_path, monkeypatch):
    """An entry of correlated noise can be larger than every draw that it is made of."""
    setup, rounding, seen = small("fedavg-banded", clients__per_round=0), FedAvg.rounding, []

    def recorded(self, *info):
        seen.append(info[-1])
        return rounding(self, *info)

    monkeypatch.setattr(FedAvg, "rounding", recorded)
    replies(setup, tmp_path, [1])
    load, width = setup.schedule.workload(setup.shards.span(0)[1]), setup.plan.participation.bandwidth(0)
    spread = setup.algorithm.release(setup.plan.bounds, load, 1).spread
    assert_allclose(seen, setup.plan.multipliers[0] * spread * largest_factor(width))


def test_a_node_that_misses_rounds_pays_less_and_one_that_is_cut_off_for_its_prefix(tmp_path):
    setup = small("fedavg-banded", clients__per_round=0, rounds=12, local__batch_size=40, local__max_steps=1)
    planned, load = setup.plan.mu[0] ** 2, setup.schedule.workload(setup.shards.span(0)[1])
    p, spent = setup.plan.participation.bandwidth(0), {}
    lost = 1 + load.per_epoch  # the second time of the first batch, whose records cost most
    for name, asked in {
        "all": range(1, 13),
        "cut off": range(1, 7),
        "lost": [*range(1, lost), *range(lost + 1, 13)],
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        _, ledger = replies(setup, folder, asked)
        spent[name] = total_cost(ledger.charges())
        assert_allclose(
            spent[name], worst_cost(visits(load, asked, p)) * planned / setup.plan.units[0], rtol=1e-9
        )
    assert_allclose(spent["all"], planned)
    assert max(spent["cut off"], spent["lost"]) < planned


def test_a_second_run_on_a_ledger_has_noise_and_costs_of_its_own(tmp_path):
    setup = small("fedavg-banded", clients__per_round=0, rounds=3)
    first, ledger = replies(setup, tmp_path, range(1, 4), session="a")
    second, _ = replies(setup, tmp_path, range(1, 4), session="b")
    assert not np.any(first[0][0] == second[0][0])
    assert_allclose(total_cost(ledger.charges()), 2 * setup.plan.mu[0] ** 2)


def test_epsilon_of_a_whole_run_is_that_of_dp_accounting_for_one_gaussian():
    """By the largest singular shift of the whole run: C moves, divided by the noise."""
    dp = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    load, target = LocalSchedule(2, 1, fresh=False).workload(16), Target(2.0, 1e-5, noise="banded")
    plan = Plan.of(FedAvg(step_size=0.5, privacy="gradient"), Bounds(1.0, 1.0), [load], [[0]] * 40, target)
    p = plan.participation.bandwidth(0)
    assert p > 1
    moves = np.linalg.inv(root_matrix(p, 40)) @ (np.arange(40) % 8 == 0) / plan.multipliers[0]
    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.GaussianDpEvent(1 / np.linalg.norm(moves)))
    assert_allclose(accountant.get_epsilon(1e-5), 2.0, rtol=1e-3)


def test_all_clients_need_a_fixed_order_and_the_largest_is_named():
    algorithm, target = FedAvg(privacy="gradient"), Target(2.0, 1e-5, noise="banded")

    def planned(*loads):
        return Plan.of(algorithm, Bounds(1.0, 1.0), loads, [[0, 1]], target)

    fixed, fresh = LocalSchedule(20, 1, fresh=False), LocalSchedule(2, 1)
    with pytest.raises(SettingError, match="fixed order"):
        planned(fixed.workload(90), fresh.workload(90))
    with pytest.raises(SettingError, match=r"rows of the largest client \(15\)"):
        planned(fixed.workload(3), fixed.workload(15))
    assert planned(fixed.workload(3), fixed.workload(90)).participation.bandwidths.tolist()[0] == 1


def test_settings_that_it_is_not_for_are_refused():
    for keys, text in (
        ({"local.fresh-batches": True}, "fixed order"),
        ({"local.batch-size": 0}, r"rows of the largest client \([0-9]+\)"),
        ({"privacy.mode": "public-state"}, "needs privacy.mode = gradient"),
    ):
        with pytest.raises(SettingError, match=text):
            small("scaffold-gradient", **BANDED | keys)
    with pytest.raises(SettingError, match="fixed order"):
        workload = LocalSchedule(2, 1).workload(9)
        Plan.of(
            FedAvg(privacy="gradient"), Bounds(1.0, 1.0), [workload], [[0]], Target(2.0, 1e-5, noise="banded")
        )
