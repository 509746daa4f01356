"""Private evaluation at the clients: what it costs, that its intervals cover, and that held-out rows stay out."""

import json
import logging
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from grids import over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from problems import query, small
from scipy.stats import binomtest, chi2, norm

from twinflower.algorithms import FedAvg
from twinflower.clients import ContextLedger
from twinflower.data.partition import Partition, hold_out
from twinflower.errors import ReplyError, SettingError
from twinflower.models.evaluation import Released, estimated, private_columns
from twinflower.models.intervals import LEVEL, share_interval
from twinflower.privacy import Budget, gdp_epsilon, gdp_mu
from twinflower.privacy.audit import neighbours, replay
from twinflower.privacy.charges import BudgetSpent, Charge, LedgerError, total_cost
from twinflower.privacy.ledger import FileLedger, read_ledger
from twinflower.privacy.plan import EVALUATION, Plan
from twinflower.privacy.target import Target
from twinflower.privacy.unit import ONE_RECORD, Unit
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective
from twinflower.queries.held_out import split
from twinflower.queries.held_out_question import HeldOutQuestion, summed
from twinflower.queries.model_question import EVERY_ROUND
from twinflower.simulation.report.messages import evaluated as closing_line
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.results.reading import read_summary
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.facts import all_rows
from twinflower.simulation.runs.forecast import forecast, noise_rows
from twinflower.simulation.runs.privacy import accounts, spent
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import evaluation as evaluation_of
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.simulation.tuning.charged import Charged
from twinflower.strategies.messages import sort_replies
from twinflower.strategies.questions import reading

SHARE = {"evaluation__held_out": 0.3, "privacy__evaluation_share": 0.4}
GROUP = {"privacy__protects": "group", "privacy__group_size": 3}
PRIVATE = [
    "fedpdm-private",
    "fedpdm-gradient",
    "fedavg-sum-rows",
    "ssca-private",
    "ldp-private",
    "mr-mtl-private",
    "zcdp-nfl-private",
]
SUMS = {"privacy__trust": "sum", "privacy__honest_sites": 4, "clients__per_round": 0, "local__max_steps": 1}


def private(name="fedpdm-private", **keys):
    return small(name, **SHARE | keys)


def at_sites(result):
    """The clients' columns of all evaluated rows of metrics.csv."""
    rows = [
        [row[column] for column in query(result.setup, "evaluation").answers.columns] for row in result.rows
    ]
    return [row for row in rows if not np.isnan(row[0])]


# ------------------------------------------------------------------------------------- the interval

RUNS = 1000


def coverage(draw, truth):
    """The share of RUNS simulated runs whose interval holds the truth; draw(rng) gives the sites' releases."""
    rng = np.random.default_rng(0)
    found = [estimated(draw(rng)) for _ in range(RUNS)]
    return np.mean([run["held_out_low"] <= truth <= run["held_out_high"] for run in found])


def of_sites(rows, accuracies, sigma, rng):
    """What sites release whose rows are predicted correctly with these probabilities."""
    pairs = zip(rng.binomial(rows, accuracies), rows, strict=True)
    return [Released(int(m), float(right + sigma * rng.normal()), sigma) for right, m in pairs]


ERROR = math.sqrt(LEVEL * (1 - LEVEL) / RUNS)


@pytest.mark.parametrize(
    ("rows", "accuracies", "sigma"),
    [
        ([20], [0.95], 0.3),
        pytest.param([20], [0.99], 3.0, marks=pytest.mark.slow),
        ([50], [0.5], 1.0),
        ([400], [0.999], 0.5),
        pytest.param([2000], [0.8], 40.0, marks=pytest.mark.slow),
        ([30, 80, 10], [0.9, 0.6, 0.2], 2.0),
        pytest.param([100] * 10, [0.85] * 10, 5.0, marks=pytest.mark.slow),
    ],
)
def test_intervals_cover_at_the_stated_rate(rows, accuracies, sigma):
    """At least 95% of 1,000 runs, up to 3.3 standard errors."""
    truth = float(np.average(accuracies, weights=rows))
    assert coverage(partial(of_sites, rows, accuracies, sigma), truth) >= LEVEL - 3.3 * ERROR


@pytest.mark.parametrize("sigma", [8.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_with_noise_the_rate_is_attained(sigma):
    """Without ties between counts, and away from 0 and 1, the intervals are no longer than they must be."""
    rate = coverage(partial(of_sites, [3000, 1000], [0.7, 0.7], sigma), 0.7)
    assert abs(rate - LEVEL) <= 3.3 * ERROR


def test_clipped_losses_are_covered_too():
    """One case with noise as in a private run; losses vary less than counts with the same mean."""
    rng, bound = np.random.default_rng(1), 4.0

    def runs():
        for _ in range(RUNS):
            losses = np.minimum(rng.exponential(1.5, 200), bound)
            site = Released(200, float((losses / bound).sum() + 3 * rng.normal()), 3.0)
            yield estimated([site], bound)

    truth = 1.5 * (1 - math.exp(-bound / 1.5))
    rate = np.mean([run["held_out_low"] <= truth <= run["held_out_high"] for run in runs()])
    assert rate >= LEVEL - 3.3 * ERROR


@pytest.mark.parametrize(("right", "rows"), [(0, 7), (3, 7), (7, 7), (450, 1000)])
def test_without_noise_the_interval_is_that_of_clopper_and_pearson(right, rows):
    known = binomtest(right, rows).proportion_ci(method="exact")
    assert_allclose(share_interval(right, rows), known, atol=1e-9)


def test_with_much_noise_the_interval_is_the_normal_one():
    low, high = share_interval(5e5, 10**6, 2e4)
    half = norm.isf(0.025) * math.hypot(2e4, 500.0) / 10**6
    assert_allclose([low, high], [0.5 - half, 0.5 + half], rtol=1e-5)


def test_a_count_outside_the_possible_ones_gives_an_interval_at_the_end():
    for count in (-50.0, 70.0):
        low, high = share_interval(count, 20, 5.0)
        assert 0 <= low < high <= 1
    assert share_interval(70.0, 20, 5.0) == share_interval(20.0, 20, 5.0)


def test_an_estimate_by_hand():
    found = estimated([Released(10, 8.5, 3.0), Released(30, 21.5, 4.0)])
    assert found["held_out_accuracy"] == 30 / 40
    assert (found["held_out_low"], found["held_out_high"]) == share_interval(30.0, 40, 5.0)
    loss = estimated([Released(10, 8.5, 3.0), Released(30, 21.5, 4.0)], bound=2.0)
    assert_allclose([loss["held_out_loss"], loss["held_out_low"]], [1.5, 2 * found["held_out_low"]])


# ------------------------------------------------------------------------------------- the cost


@pytest.mark.parametrize("name", PRIVATE)
def test_a_record_pays_for_training_or_for_the_evaluation(name):
    """The evaluation leaves the noise of training and the total as they were; its own cost is its share."""
    with_it, without = private(name, evaluation__release_every=2), private(name)
    bare, evaluation = (
        replace(with_it.plan, releases=with_it.plan.releases.without(EVALUATION)),
        query(with_it, "evaluation"),
    )
    assert_array_equal(with_it.plan.multipliers, without.plan.multipliers)
    assert_allclose(with_it.plan.mu_limit, bare.mu.max())
    sigmas = [evaluation.sigma(client) for client in range(8)]
    assert len(evaluation.releases) == 3
    assert_allclose([3 / sigma**2 for sigma in sigmas], 0.4 * with_it.plan.mu_limit**2)
    assert_allclose(with_it.plan.mu**2, np.maximum(bare.mu**2, with_it.plan.cost(EVALUATION)))


@pytest.mark.parametrize("unit", [GROUP, {"privacy__protects": "site"}])
def test_a_group_pays_for_both(unit):
    plan = private(**unit, clients__per_round=0).plan
    whole = gdp_mu(30.0, plan.delta) ** 2
    assert_allclose(replace(plan, releases=plan.releases.without(EVALUATION)).mu ** 2, 0.6 * whole)
    assert_allclose(plan.cost(EVALUATION).max(), 0.4 * whole)
    assert_allclose(plan.mu, math.sqrt(whole))
    assert_allclose(gdp_epsilon(plan.mu_limit, plan.delta), 30.0)


def test_sums_state_the_evaluation_in_both_totals():
    plan = private(**SUMS, **GROUP).plan
    trained = plan.sums.mu.max() ** 2
    assert_allclose(plan.mu_limit**2, trained + plan.cost(EVALUATION).max())
    assert_allclose(plan.mu_limit_alone**2, plan.sums.mu_alone.max() ** 2 + plan.cost(EVALUATION).max())


SIDES = pytest.mark.parametrize(
    ("unit", "total"), [(GROUP, np.add), ({"privacy__protects": "site"}, np.add), ({}, np.maximum)]
)


@SIDES
def test_plan_policy_and_summary_agree_on_the_cost_against_everybody_else(unit, total):
    """It is the cost of training without the noise of others, and that of the evaluation."""
    setup = private(**SUMS, **unit)
    plan, (result,) = setup.plan, cohort.train([setup])
    costs = total(plan.sums.costs_alone.sum(0), plan.cost(EVALUATION).max())
    assert_allclose(plan.mu_limit_alone**2, costs.max())
    assert_allclose(accounts(plan)["mu_alone"] ** 2, costs)
    for said in (spent(plan), result.privacy()):
        epsilon = gdp_epsilon(plan.mu_limit_alone, plan.delta)
        assert_allclose([said["mu_alone"], said["epsilon_alone"]], [plan.mu_limit_alone, epsilon])
        assert f"{said['mu_alone']:.4g}-GDP, hence ({epsilon:.4g}, 0.0001)-DP" in said["guarantee"]
        assert dict(forecast(setup))["epsilon in total, against everybody else"].startswith(f"{epsilon:.6g} ")


@SIDES
def test_a_second_run_without_a_lost_site_doubles_both_costs(unit, total):
    """Each run costs what it releases in training and in its evaluation, or for a record the larger of the two."""
    setup = private(**SUMS, **unit)
    plan = setup.plan
    largest = [
        total(costs.sum(0).max(), plan.cost(EVALUATION).max())
        for costs in (plan.sums.costs, plan.sums.costs_alone)
    ]
    epsilons = [gdp_epsilon(math.sqrt(2 * cost), plan.delta) for cost in largest]
    assert_allclose(plan.epsilons_after_a_loss, epsilons)
    assert epsilons[0] > spent(plan)["epsilon"]
    said = dict(forecast(setup))["if a client is lost for good"]
    assert f"epsilon {epsilons[0]:.4g} at most, and to {epsilons[1]:.4g} against everybody else" in said


def test_sums_cut_short_have_spent_their_evaluations_so_far_against_everybody():
    plan = private(**SUMS, **GROUP, evaluation__release_every=2).plan
    trained = plan.sums.costs_alone[:3].sum(0)
    so_far = plan.so_far((round_, range(8)) for round_ in (1, 2, 3))
    assert_allclose(so_far.mu_alone**2, trained + plan.cost(EVALUATION).max() / 3)


def test_tuning_and_evaluation_share_one_budget():
    plan = private(privacy__tune_share=0.3).plan
    whole = gdp_mu(30.0, plan.delta) ** 2
    assert_allclose([plan.mu_tuning**2, plan.cost(EVALUATION).max()], [0.3 * whole, 0.4 * whole])
    assert_allclose(plan.mu.max() ** 2, whole)


def test_a_run_that_ends_early_has_spent_what_it_released():
    setup = private(evaluation__release_every=2, privacy__evaluation_share=1.0)
    (result,) = cohort.train([setup])
    cut = replace(result, rounds=result.rounds[:3])
    assert_allclose(cut.privacy()["mu_evaluation"] ** 2, setup.plan.cost(EVALUATION).max() / 3)


# ------------------------------------------------------------------------------------- the ledger


def charge(run, round_, cost, split):
    return Charge(run, round_, 1.0, cost**-0.5, 1, cost, split=split)


def test_a_ledger_holds_the_largest_cost_of_any_record_however_runs_divide_the_rows(tmp_path):
    """Of every record: in each run, with each split, it is on one side, and pays for the charges of that side."""
    rng = np.random.default_rng(0)
    ledger = FileLedger(tmp_path / "a.ledger", "data", 1e4, 1e-4)
    charges = [
        charge(
            f"run {rng.integers(3)}",
            (t + 1) * int(rng.choice([-1, 1])),
            rng.uniform(0.1, 2),
            f"{rng.integers(2)}",
        )
        for t in range(60)
    ]
    for own in charges:
        ledger.charge(own, Budget(1e6))
    splits = sorted({(own.run, own.split) for own in charges})
    costs = {
        (split, side): sum(c.cost for c in charges if (c.run, c.split) == split and (c.round < 0) == side)
        for split in splits
        for side in (False, True)
    }
    records = [sum(costs[split, side] for split, side in zip(splits, sides, strict=True))
               for sides in np.ndindex(*[2] * len(splits))]  # fmt: skip
    assert_allclose(total_cost(charges), max(records))
    book = read_ledger(tmp_path / "a.ledger")
    assert_allclose(gdp_mu(1e4, 1e-4) ** 2 - book.left, max(records))
    *_, last = (tmp_path / "a.ledger").read_text().splitlines()
    assert_allclose(json.loads(last[last.index("{") :])["sum"], max(records))


def test_another_split_in_the_same_session_is_paid_in_full(tmp_path):
    """A server that gives two runs one session name does not get the second evaluation for free."""
    ledger = FileLedger(tmp_path / "a.ledger", "data", 100.0, 1e-4)
    budget = Budget(3.0)
    ledger.charge(charge("session", 1, 2.0, "first"), budget)
    for other in ("second", ""):
        with pytest.raises(BudgetSpent, match="the run's privacy budget is spent"):
            ledger.charge(charge("session", -1, 2.0, other), budget)
    ledger.charge(charge("session", -1, 2.0, "first"), budget)
    assert total_cost(ledger.charges()) == 2.0


def test_the_identity_of_a_split_depends_on_what_determines_it():
    setups = [private(), private(seed=6), private(evaluation__held_out=0.4), private(rounds=7)]
    assert len({split(setup, 0) for setup in setups}) == 4
    assert split(setups[0], 0) != split(setups[0], 1)
    assert len(split(setups[0], 0)) == 64  # too long to look for two settings with the same one
    assert split(private(output__checkpoint_every=2), 0) == split(setups[0], 0)


def test_the_ledgers_of_a_run_hold_what_it_states(tmp_path):
    keys = {"output__state_dir": str(tmp_path), "clients__per_round": 0, "evaluation__release_every": 1}
    for unit in ({}, GROUP):
        folder = tmp_path / str(len(unit))
        result = inprocess.train(private(**keys | unit | {"output__state_dir": str(folder)}))
        assert len(at_sites(result)) == 5
        for client in range(8):
            book = read_ledger(folder / f"digits-{client}.ledger")
            assert len(book.charges) == 10
            assert_allclose(total_cost(book.charges), result.privacy()["mu"] ** 2)
            assert_allclose(book.left, 0.0, atol=1e-8)


# ------------------------------------------------------------------------------------- replay

ROWS, FEATURES, REACH = 12, 4, 1e3
OBJECTIVE = make_objective("logistic", FEATURES, 2)
TRAINED, HELD = (part.of(0) for part in hold_out(Partition(np.arange(ROWS), np.array([0, ROWS])), 0.5, 0))


def replaced(data, rows):
    """The data with these rows replaced: those to train on as in `neighbours`, the others by correct ones."""
    features = data.features.copy()
    for row in rows:
        features[row] = [1.0, 0, 0, 0] if row in HELD else features[row] * [1, -1, 1, 1]
    return Batch(features, data.labels)


def part(data, rows):
    return Batch(data.features[rows], data.labels[rows])


def replay_costs(unit, rows, rounds=3):
    """The sum of (move / sigma)^2 of a run's training and evaluation when these rows are replaced, and what is charged.

    Every model is evaluated, and is the same on both data sets because the releases are."""
    algorithm, schedule = FedAvg(step_size=0.9, privacy="public-state"), LocalSchedule(0, 1, group=unit.rows)
    data, _ = neighbours(ROWS, FEATURES, 1.0, replaced=ROWS)
    other, bounds = replaced(data, rows), OBJECTIVE.bounds(1.0)
    start = REACH * np.eye(FEATURES)[0]
    inbox = algorithm.broadcast(algorithm.init_server(start, 1, np.array(0, np.uint64)), 1, np.array(0))
    own = part(data, TRAINED), part(other, TRAINED)
    moves = replay(algorithm, OBJECTIVE, *own, schedule, bounds, [inbox] * rounds, sigma=2.0)
    assert all(move.agrees for move in moves)
    trained = sum((move.moved / (2.0 * move.sensitivity)) ** 2 for move in moves)
    target = Target(
        noise_multiplier=2.0, unit=unit, evaluation_share=1 / unit.parts
    )  # both parts cost the same
    plan = Plan.of(algorithm, bounds, [schedule.workload(len(TRAINED))], [[0]] * rounds, target)
    plan = plan.with_evaluation(range(1, rounds + 1), np.array([0]), target)
    sigma = (
        plan.releases.of_kind(EVALUATION)[0].multiplier * HeldOutQuestion().release(len(HELD), unit).spread
    )
    pair = [summed(OBJECTIVE, start, part(rows, HELD)) for rows in (data, other)]
    evaluated = rounds * float(((pair[0] - pair[1]) / sigma).item() ** 2)
    return trained, evaluated, float(plan.mu[0] ** 2)


def test_every_record_costs_at_most_what_is_charged_and_both_sides_attain_it():
    costs = [replay_costs(ONE_RECORD, [row]) for row in range(ROWS)]
    for row, (trained, evaluated, charged) in enumerate(costs):
        assert (trained > 0, evaluated > 0) == (row in TRAINED, row in HELD)
        assert 0.99 * charged <= trained + evaluated <= charged * (1 + 1e-9)


@pytest.mark.parametrize("size", [2, 4, 6])
def test_groups_cost_at_most_what_is_charged_wherever_their_rows_are(size):
    """They attain the cost of each side, and all of it together where the whole of both sides is replaced."""
    rng = np.random.default_rng(size)
    for _ in range(10):
        trained, evaluated, charged = replay_costs(Unit("group", size), rng.choice(ROWS, size, replace=False))
        assert trained + evaluated <= charged * (1 + 1e-9)
    ends = [replay_costs(Unit("group", size), rows[:size]) for rows in (TRAINED, HELD)]
    assert_allclose([ends[0][0], ends[1][1]], ends[0][2] / 2, rtol=0.01)
    trained, evaluated, charged = replay_costs(Unit("site"), range(ROWS))
    assert 0.99 * charged <= trained + evaluated <= charged * (1 + 1e-9)


def test_a_clipped_loss_moves_by_no_more_than_1_and_by_nearly_that():
    data, _ = neighbours(ROWS, FEATURES, 1.0)
    other = replaced(data, HELD[:1])
    moved = [summed(OBJECTIVE, REACH * np.eye(FEATURES)[0], rows, 5.0)[0] for rows in (data, other)]
    assert_allclose(moved[0] - moved[1], 1.0)


def test_whatever_the_losses_are_the_sum_is_bounded():
    class Broken:
        def losses(self, x, rows):
            return np.array([np.nan, np.inf, -np.inf, 1e300, 0.5])

    assert summed(Broken(), np.zeros(1), Batch(np.zeros((5, 1)), np.zeros(5)), 2.0) == [3.25]
    with pytest.raises(SettingError, match="no loss of each row"):
        summed(object(), np.zeros(1), Batch(np.zeros((5, 1)), np.zeros(5)), 2.0)


# ------------------------------------------------------------------------------------- never trained on


def planted(setup):
    """The same run, whose held-out rows are longer than any bound and have other labels."""
    features, labels = setup.dataset.features.copy(), setup.dataset.labels.copy()
    features[setup.held.rows] = 1e30
    labels[setup.held.rows] = (labels[setup.held.rows] + 1) % 10
    return replace(setup, dataset=replace(setup.dataset, features=features, labels=labels))


@pytest.mark.parametrize("name", PRIVATE)
def test_whatever_the_held_out_rows_are_the_model_is_the_same_to_the_bit(name):
    setup = private(name, evaluation__release_every=2)
    for train in (
        inprocess.train,
        over_the_wire,
        lambda setup: cohort.train([setup])[0],
    ):
        clean, other = train(setup), train(planted(setup))
        assert not clean.failure
        assert_array_equal(clean.model, other.model)
        assert at_sites(clean) != at_sites(other)


def test_tuning_keeps_away_from_the_rows_that_the_final_run_of_its_seed_holds_out():
    keys = {"privacy.mode": "public-state", "privacy.epsilon": 4.0, "privacy.tune-share": 0.3}
    keys |= {"evaluation.held-out": 0.2, "privacy.evaluation-share": 0.4, "clients.count": 4, "rounds": 6}
    config = parse({"algorithm": "fedavg", "local.max-steps": 1} | keys)
    tuned = Charged.of([("a", config), ("b", config)], 0.25, 7)
    held = tuned.total.held
    counted = {row.tobytes() for rows in tuned.counted.rows for row in rows.features}
    apart = {row.tobytes() for row in tuned.total.dataset.features[held.rows]}
    for own in tuned.candidates:
        trained = {row.tobytes() for row in own.setup.dataset.features[own.setup.partition.rows]}
        assert not trained & counted and not trained & apart and not counted & apart


# ------------------------------------------------------------------------------------- runtimes


@pytest.mark.parametrize("name", PRIVATE)
def test_all_runtimes_report_the_same(name):
    """To the bit over the wire, and in the cohort, whose models differ by rounding only."""
    setup = private(name, evaluation__release_every=2)
    direct, wired = inprocess.train(setup), over_the_wire(setup)
    assert at_sites(direct) == at_sites(wired)
    assert_allclose(at_sites(direct), at_sites(cohort.train([setup])[0]), rtol=1e-9)
    assert [row["round"] for row in direct.rows if not np.isnan(row["held_out_low"])] == [2, 4, 5]


def test_seeds_that_run_together_report_what_each_reports_alone():
    setups = [private(seed=seed) for seed in (3, 4)]
    together = cohort.train(setups)
    for one, setup in zip(together, setups, strict=True):
        assert at_sites(one) == at_sites(cohort.train([setup])[0])


def test_by_default_only_the_final_model_is_evaluated():
    result = inprocess.train(private())
    assert len(at_sites(result)) == 1
    last, summary = result.rows[-1], result.summary()
    assert {name: summary[name] for name in private_columns()} == {
        name: last[name] for name in private_columns()
    }
    assert last["held_out_low"] <= last["held_out_accuracy"] <= last["held_out_high"]


def test_a_regression_releases_clipped_losses():
    keys = {"data.name": "linear", "objective.name": "huber", "clients.count": 4, "rounds": 5}
    keys |= {"privacy.mode": "public-state", "privacy.epsilon": 8.0, "regulariser.name": "none"}
    keys |= {"evaluation.held-out": 0.5, "privacy.evaluation-share": 0.5}
    with pytest.raises(
        SettingError, match=r"needs classes, and these labels are numbers: set evaluation\.loss-bound"
    ):
        prepare(parse(keys))
    setup = prepare(parse(keys | {"evaluation.loss-bound": 2.0}))
    results = [inprocess.train(setup), cohort.train([setup])[0]]
    exact = np.minimum(setup.objective.losses(results[0].model, _held(setup)), 2.0).mean()
    for result in results:
        last = result.rows[-1]
        assert last["held_out_low"] <= exact <= last["held_out_high"]
        assert 0 <= last["held_out_loss"] <= 2


def _held(setup):
    return Batch(setup.dataset.features[setup.held.rows], setup.dataset.labels[setup.held.rows])


def test_the_noise_is_fresh_and_as_large_as_planned():
    setup = private(evaluation__release_every=1)
    held_out, rounds = query(setup, "evaluation"), range(1, 6)
    sites = [
        held_out._simulated(held_out.question, client, setup.start, t) for client in range(8) for t in rounds
    ]
    exact = [summed(setup.objective, setup.start, setup.held_rows(i))[0] for i in range(8) for t in rounds]
    drawn = np.array([(site.value - right) / site.sigma for site, right in zip(sites, exact, strict=True)])
    assert len(np.unique(drawn)) == len(drawn)
    assert 1e-6 < chi2.sf((drawn**2).sum(), len(drawn)) < 1 - 1e-6


# ------------------------------------------------------------------------------------- asked again


class Cut(InProcessGrid):
    """A grid that is interrupted when the clients are asked to evaluate the third round, or one round later."""

    def __init__(self, setup, kind, round_):
        super().__init__(setup)
        self.kind, self.round = kind, str(round_)

    def answer(self, message):
        if (message.metadata.message_type, message.metadata.group_id) == (self.kind, self.round):
            raise KeyboardInterrupt
        return super().answer(message)


@pytest.mark.parametrize(("kind", "round_"), [("evaluate", 3), ("train", 4)])
def test_a_resumed_run_reports_and_spends_the_same(kind, round_, tmp_path):
    """The second evaluation lies after the last checkpoint in both cases, and before or after the interruption."""
    keys = {"output__checkpoint_every": 2, "evaluation__release_every": 1}
    whole = private(**keys, output__state_dir=str(tmp_path / "whole"))
    known = run_strategy(whole, InProcessGrid(whole), "inprocess")
    setup = private(**keys, output__state_dir=str(tmp_path / "cut"))
    checkpoints = Checkpoints(tmp_path, 2, setup.config)
    with pytest.raises(KeyboardInterrupt):
        run_strategy(setup, Cut(setup, kind, round_), "inprocess", checkpoints=checkpoints)
    resumed = run_strategy(setup, InProcessGrid(setup), "inprocess", checkpoints=checkpoints)
    assert at_sites(resumed) == at_sites(known)
    assert_array_equal(resumed.model, known.model)
    for name in ("digits-0.ledger", "digits-7.ledger"):
        costs = [[c.cost for c in read_ledger(tmp_path / f / name).charges] for f in ("whole", "cut")]
        assert costs[0] == costs[1]


def client(setup, state_dir="", number=0):
    return client_of(setup, number, Context(1, 1, {}, RecordDict(), {}), state_dir=str(state_dir))


def test_a_round_is_evaluated_once_and_asked_again_gives_the_stored_number(tmp_path):
    """Also after a restart of the client, whose noise is secret; a second model is refused, and charged nothing."""
    setup = private(evaluation__release_every=1)
    ledger = FileLedger(tmp_path / "a.ledger", "data", 100.0, 1e-4)
    guard = setup.plan.guard(0, ledger, run="1", split=split(setup, 0))
    context = Context(1, 1, {}, RecordDict(), {})
    first = client_of(setup, 0, context, guard, str(tmp_path)).evaluate([setup.start], {"round": 2})
    context = Context(1, 1, {}, RecordDict(), {})
    mine = client_of(setup, 0, context, guard, str(tmp_path))
    assert mine.evaluate([setup.start], {"round": 2}) == first
    with pytest.raises(ReplyError, match="evaluation of another model was released after round 2"):
        mine.evaluate([setup.start + 1], {"round": 2})
    assert mine.evaluate([setup.start], {"round": 3}) != first
    assert [c.round for c in ledger.charges()] == [-2, -3]
    assert first[2]["sigma"] == query(setup, "evaluation").sigma(0)
    cells = first[2]["value"] / 2.0 ** (math.floor(math.log2(first[2]["sigma"])) - 20)
    assert cells == round(cells)


def test_what_is_charged_and_not_stored_is_not_drawn_again(tmp_path):
    setup = private()
    ledger = FileLedger(tmp_path / "a.ledger", "data", 100.0, 1e-4)
    guard = setup.plan.guard(0, ledger, run="1")
    client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}), guard).evaluate([setup.start], {"round": 5})
    with pytest.raises(LedgerError, match="the evaluation after round 5 of this run was charged before"):
        client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}), guard).evaluate([setup.start], {"round": 5})


def test_rounds_that_are_not_planned_are_refused_and_not_charged():
    setup = private()
    mine, last = client(setup), setup.plan.releases.of_kind(EVALUATION)[0].round
    with pytest.raises(ReplyError, match=f"no evaluation is planned after round {last - 1}"):
        mine.evaluate([setup.start], {"round": last - 1})
    assert mine.guard.ledger.charges() == []
    mine.evaluate([setup.start], {"round": last})


@pytest.mark.parametrize("keys", [{}, GROUP])
def test_a_guard_takes_no_split_for_groups(keys):
    """Their records lie on both sides, so both costs are charged, whatever an app passes."""
    setup = private(**keys)
    for guard in (setup.plan.guard(0, ContextLedger(RecordDict()), split="x"), client(setup).guard):
        assert bool(guard.split) == (not keys)


@pytest.mark.parametrize("noisy", [False, True])
def test_a_reply_of_the_other_kind_is_rejected(noisy):
    """One site that adds or leaves out noise does not change how the others are counted."""
    metrics = {"round": 1, "correct": 5.0, "accuracy": 0.5} | ({"sigma": 1.0, "value": 5.0} if noisy else {})
    content = RecordDict(
        {
            "evaluateres.loss": MetricRecord({"loss": 0.5}),
            "evaluateres.num_examples": MetricRecord({"num_examples": 10}),
            "evaluateres.metrics": ConfigRecord(metrics),
        }
    )
    InProcessGrid(private())  # gives Flower's messages an identity
    reply = Message(content, reply_to=Message(RecordDict(), 7, "evaluate"))
    reply.metadata.__dict__["_src_node_id"] = 7
    for wanted in (False, True):
        good, rejected = sort_replies([reply], {7: 0}, reading(HeldOutQuestion(), 1, wanted), 1)
        assert (len(good), len(rejected)) == ((1, 0) if wanted == noisy else (0, 1))


def test_a_client_must_hold_out_as_many_rows_as_the_settings_say(caplog):
    """Else one client could claim millions of rows, and its accuracy would be that of the run."""
    setup = private()
    InProcessGrid(setup)  # gives Flower's messages an identity
    evaluation = evaluation_of(setup, lambda round_: False)
    assert list(evaluation.question.sizes) == setup.held.sizes.tolist()
    evaluation.evaluates = lambda round_: True
    nodes = {client: client + 1 for client in range(setup.config.clients.count)}
    for round_, claimed, left_out in ((4, 0, []), (5, 1, [2])):
        replies = []
        for client_, node in nodes.items():
            rows = evaluation.question.sizes[client_] + claimed * (client_ == 2)
            metrics = {"round": round_, "value": 1.0, "sigma": 1.0, "accuracy": 0.5}
            content = {"evaluateres.loss": MetricRecord({"loss": 0.5})}
            content |= {"evaluateres.num_examples": MetricRecord({"num_examples": rows})}
            content |= {"evaluateres.metrics": ConfigRecord(metrics)}
            reply = Message(RecordDict(content), reply_to=Message(RecordDict(), node, "evaluate"))
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        with caplog.at_level(logging.WARNING):
            found = evaluation.read(replies, nodes, round_, private=True)
        rows = sum(size for client_, size in enumerate(evaluation.question.sizes) if client_ not in left_out)
        assert found["held_out_rows"] == rows
    assert "client 2 is not in the evaluation: the client must hold out" in caplog.text


def test_a_ledger_recognises_the_rows_with_and_without_evaluation():
    """Its fingerprint is that of all rows of the client, wherever they lie."""
    without = private(evaluation__held_out=0.0, privacy__evaluation_share=0.0)
    for client_ in range(3):
        rows = [all_rows(setup, client_) for setup in (private(), without)]
        for one, other in zip(*rows, strict=True):
            assert_array_equal(one, other)


def test_a_server_that_evaluates_every_model_gets_no_more_than_the_budget():
    setup = private(privacy__evaluation_share=1.0)
    mine = client(setup)
    own = mine.answers["evaluation"]  # as in an app that names no rounds
    mine.answers["evaluation"] = replace(own, question=replace(own.question, rounds=EVERY_ROUND))
    mine.evaluate([setup.start], {"round": 1})
    with pytest.raises(
        ReplyError, match="the evaluation after round 2 is refused: the run's privacy budget is spent"
    ):
        mine.evaluate([setup.start], {"round": 2})


def test_evaluation_does_not_touch_the_state_of_the_training():
    setup = private(evaluation__release_every=1)
    ones, twos = client(setup), client(setup)
    inbox = setup.algorithm.broadcast(
        setup.algorithm.init_server(setup.start, 8, np.array(0, np.uint64)), 1, np.array(0)
    )
    for round_ in (1, 2):
        packed = setup.algorithm.inbox.pack(inbox, setup.objective.d)
        replies = [own.fit(packed, {"round": round_})[0] for own in (ones, twos)]
        twos.evaluate([setup.start], {"round": round_})
        for a, b in zip(*replies, strict=True):
            assert_array_equal(a, b)


# ------------------------------------------------------------------------------------- refusals


def test_a_site_with_a_single_row_evaluates_nothing_and_spends_nothing(caplog):
    keys = {"partition__name": "sizes", "partition__sizes": "1,40,40,40", "clients__count": 4}
    setup = private(**keys | {"clients__per_round": 0, "local__batch_size": 0, "local__max_steps": 1})
    assert setup.held.sizes.tolist() == [0, 12, 12, 12]
    alone = client(setup)
    with pytest.raises(ReplyError, match="this client holds out no rows to evaluate on"):
        alone.evaluate([setup.start], {"round": 1})
    assert not alone.guard.ledger.charges()
    direct, stacked = inprocess.train(setup), cohort.train([setup])[0]
    assert direct.rows[-1]["held_out_rows"] == 36
    assert_allclose(at_sites(direct), at_sites(stacked))
    assert_allclose(setup.plan.cost(EVALUATION) > 0, [False, True, True, True])


@pytest.mark.parametrize(
    "metrics", [{}, {"round": 0}, {"round": 1.0}, {"round": True}, {"round": 1, "session": ""}]
)
def test_a_request_without_a_round_or_session_is_refused_before_it_is_charged(metrics):
    mine = client(private())
    with pytest.raises(ReplyError, match="the request"):
        mine.evaluate([mine.start], metrics)
    assert not mine.guard.ledger.charges()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"privacy.evaluation-share": 0.0}, "held-out needs privacy.evaluation-share above 0 in a private run"),
        ({"evaluation.held-out": 0.0}, "evaluation-share needs evaluation.held-out above 0"),
        ({"privacy.evaluation-share": 1.1}, "evaluation-share must be from 0 to 1; got 1.1"),
        ({"privacy.tune-share": 0.7}, "must add up to at most 1; got 0.7 and 0.5 with protects = record"),
        ({"privacy.protects": "site", "privacy.tune-share": 0.5}, "must add up to less than 1, because training"),
        ({"evaluation.release-every": 31}, "release-every must be at most the number of rounds, 30; got 31"),
        (
            {"privacy.mode": "none", "privacy.epsilon": 0, "privacy.evaluation-share": 0, "evaluation.loss-bound": 1.0},
            "belong to a private run with privacy.evaluation-share",
        ),
        (
            {"partition.name": "sizes", "partition.sizes": "1,1", "clients.count": 2},
            "needs a client with two rows; here every one has one",
        ),
        ({"data.name": "breast-cancer", "objective.name": "logistic"}, "divided by statistics of all rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused_in_one_sentence(keys, why):
    run = {"algorithm": "fedavg", "privacy.mode": "public-state", "privacy.epsilon": 2.0}
    run |= {"evaluation.held-out": 0.2, "privacy.evaluation-share": 0.5} | keys
    run = {key: value for key, value in run.items() if value or keys.get("privacy.mode") != "none"}
    with pytest.raises(SettingError, match=why) as refused:
        prepare(parse(run))
    assert "\n" not in str(refused.value)


def test_the_papers_own_form_has_no_budget_for_it():
    with pytest.raises(SettingError, match="must be 0 with privacy.mode = as-published"):
        small("fedpdm-published", evaluation__held_out=0.3)


def test_a_private_client_takes_no_held_out_rows_without_a_budget():
    setup = small("fedpdm-private")
    with pytest.raises(SettingError, match="needs a SiteAnswer to HeldOutQuestion"):
        client_of(replace(setup, own_held=setup.shards.rows(0)), 0, Context(1, 1, {}, RecordDict(), {}))


# ------------------------------------------------------------------------------------- what users see


def test_planner_and_summary_show_the_share():
    setup = private(evaluation__release_every=2)
    said = dict(forecast(setup))
    assert said["evaluation at the clients"].startswith(
        "after 3 rounds, 2 to 5, on 432 held-out rows with noise of"
    )
    assert (
        said["spent by evaluation"]
        == "0.4 of the budget in mu^2, in parallel with training: a record pays for one of the two"
    )
    assert "those of the evaluation on held-out rows included" in said["guarantee"]
    assert noise_rows(setup)[-1][:3] == ("evaluation", "5", "0")
    grouped = dict(forecast(private(**GROUP)))
    assert grouped["spent by evaluation"].startswith("0.4 of the budget in mu^2, in addition to training")
    privacy = cohort.train([setup])[0].privacy()
    assert_allclose(privacy["mu_evaluation"] ** 2 / privacy["mu"] ** 2, 0.4)


def test_a_client_that_only_evaluates_is_listed_with_its_cost():
    """Client 1 is never asked to train in these five rounds."""
    setup = private()
    assert setup.plan.releases.rounds_in[1] == 0
    (result,) = cohort.train([setup])
    rows = {row["client"]: row for row in result.clients()}
    assert len(rows) == 8
    assert rows[1]["asked"] == 0
    assert_allclose(rows[1]["mu"] ** 2, setup.plan.cost(EVALUATION)[1])


def test_the_command_ends_with_the_estimate_its_interval_and_its_share(tmp_path):
    (result,) = cohort.train([private()])
    write_run(result, tmp_path)
    (line,) = closing_line(read_summary(tmp_path))
    last = result.rows[-1]
    interval = f"(95% interval {last['held_out_low']:.4f} to {last['held_out_high']:.4f})"
    expected = (
        f"held-out accuracy {last['held_out_accuracy']:.4f} {interval} on 432 rows, for 0.4 of the budget"
    )
    assert line == f"at the clients: {expected} in mu^2"
    assert closing_line(read_summary(tmp_path) | {"held_out_accuracy": None}) == []
