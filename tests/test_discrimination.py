"""Discrimination and calibration from counts by class and bin: against scikit-learn, under noise, in every runtime."""

import csv
import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict
from grids import Deployed, over_the_wire, with_content
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binomtest, norm
from site_files import two_classes
from sklearn.metrics import brier_score_loss, confusion_matrix, roc_auc_score, roc_curve
from typer.testing import CliRunner

from twinflower.clients.request import RequestReader
from twinflower.clients.steps import answered
from twinflower.clients.store import ContextStore
from twinflower.errors import ReplyError, SettingError
from twinflower.models.discrimination import (
    Bins,
    ScoreTable,
    ranked,
)
from twinflower.models.evaluation import SCORE_COLUMNS, Evaluation, Released, score_columns
from twinflower.models.intervals import LEVEL, area, binned_area, share
from twinflower.models.score_bins import together
from twinflower.privacy import Budget
from twinflower.privacy.charges import total_cost
from twinflower.privacy.guard import Guard
from twinflower.privacy.ledger import FileLedger
from twinflower.privacy.mechanism import evaluation_draws
from twinflower.privacy.unit import ONE_RECORD, Unit
from twinflower.problems.interfaces import Batch, Bounds
from twinflower.problems.objectives import make_objective
from twinflower.queries.held_out import HeldOut
from twinflower.queries.held_out_question import HeldOutQuestion, summed
from twinflower.queries.model_question import SiteAnswer
from twinflower.simulation import cli
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.results.reading import read_answers, read_summary
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.forecast import forecast
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.strategies.messages import properties_request

BINS = {"evaluation.held-out": 0.4, "evaluation.bins": 20}
PRIVATE = {"privacy.mode": "public-state", "privacy.epsilon": 8.0, "privacy.evaluation-share": 0.8}
GROUP = {
    "privacy.protects": "group",
    "privacy.group-size": 2,
    "privacy.evaluation-share": 0.5,
    "privacy.epsilon": 30.0,
}
SUMS = {"privacy.trust": "sum", "privacy.honest-sites": 2}
KINDS = {"public": {}, "private": PRIVATE, "group": PRIVATE | GROUP, "sums": PRIVATE | SUMS}


@pytest.fixture
def keys(tmp_path):
    return two_classes(tmp_path) | BINS


def drawn(count, shift, base, seed=0, spread=1.0):
    """Log odds and labels of rows; the log odds are normal, with a mean that is higher by `shift` for positives."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=count)
    odds = base + shift * labels + np.where(labels, spread, 1.0) * rng.normal(size=count)
    return odds, labels


# ------------------------------------------------------------------------------------- the counts


def test_bins_are_equal_steps_of_the_arcsine_of_the_root():
    edges = Bins(20).edges
    assert (edges[0], edges[10], edges[20]) == (0.0, 0.5, 1.0)
    assert_allclose(np.diff(np.arcsin(np.sqrt(edges))), np.pi / 40)


def test_bins_around_a_centre_are_those_around_0_moved_and_stretched_but_for_one_edge_at_one_half():
    plain, own = Bins(20).log_odds, Bins(20, -2.0, 0.5).log_odds
    moved = plain * 0.5 - 2.0
    at_half = own == 0
    assert at_half.sum() == 1
    assert_allclose(own[~at_half], moved[~at_half])
    assert (np.diff(own) > 0).all()


def test_bins_around_reference_rows_have_their_mean_and_a_share_of_their_deviation():
    odds = np.array([1.0, 3.0, np.inf, np.nan])
    assert Bins(8).around(odds) == Bins(8, 2.0, 0.6)
    assert Bins(8).around(np.array([np.nan])) == Bins(8)
    assert Bins(8).around(np.full(3, 5.0)).valid


def test_every_row_is_in_one_cell_and_one_half_is_not_positive():
    odds = np.array([-np.inf, 0.0, np.nextafter(0, 1), np.inf, -1.0])
    counts = Bins(2).counts(odds, np.array([0, 1, 1, 1, 0]))
    assert_array_equal(counts, [[2, 0], [1, 2]])


@pytest.mark.parametrize(("shift", "base"), [(1.0, 0.0), (3.0, -1.0), (1.5, -4.0), (0.3, 0.0)])
@pytest.mark.parametrize("shrunk", [1.0, 0.01])
def test_a_hundred_bins_give_the_area_to_a_hundredth(shift, base, shrunk):
    """Good and poor models, one of a rare outcome whose scores are all small, and all of them far too cautious."""
    odds, labels = drawn(20_000, shift, base)
    exact = roc_auc_score(labels, odds)
    bins = Bins(100).around(shrunk * (base + 1.0 + 3.0 * np.random.default_rng(1).normal(size=500)))
    assert_allclose(ranked(odds, labels).value, exact, rtol=1e-12)
    assert abs(bins.table(shrunk * odds, labels).auc.value - exact) < 0.002


def test_everything_else_is_that_of_scikit_learn():
    odds, labels = drawn(1000, 1.0, -1.0)
    table, scores = Bins(40, -0.5, 0.8).table(odds, labels), 1 / (1 + np.exp(-odds))
    assert_allclose(table.brier, brier_score_loss(labels, scores), rtol=1e-12)
    false, true = table.roc()
    for k, edge in enumerate(table.edges):
        (tn, fp), (fn, tp) = confusion_matrix(labels, scores > edge)
        found = table.at(edge)
        assert found[:5] == (edge, tp, fp, fn, tn)
        assert_allclose([false[k], true[k]], [fp / (fp + tn), tp / (tp + fn)])
        assert_allclose([found.sensitivity.value, found.specificity.value], [true[k], 1 - false[k]])
    known = roc_curve(labels, np.digitize(scores, table.edges, right=True))
    assert_allclose(table.auc.value, np.trapezoid(known[1], known[0]))
    groups = [group for group in table.calibration() if group.rows]
    assert sum(group.rows for group in groups) == 1000
    for group in groups:
        inside = (group.low < scores) & (scores <= group.high)
        assert_allclose(
            [group.predicted, group.observed.value], [scores[inside].mean(), labels[inside].mean()]
        )


def test_tables_add_up_and_noisy_ones_have_the_hypotenuse_of_their_noise():
    (odds, labels), bins = drawn(300, 1.0, 0.0), Bins(10)
    halves = [bins.table(odds[own], labels[own]) for own in (slice(100), slice(100, 300))]
    assert_allclose(together(halves).cells, bins.table(odds, labels).cells)
    noisy = [ScoreTable.noisy(np.ones((2, 10)), bins.edges, sigma) for sigma in (3.0, 4.0)]
    assert together(noisy).sigma == 5.0


@pytest.mark.parametrize("label", [0, 1])
def test_rows_of_one_class_have_no_area_and_the_brier_score_stays(label):
    table = Bins(10).table(np.log(np.array([0.25, 4.0])), np.array([label, label]))
    assert math.isnan(table.auc.value)
    assert table.auc[1:] == (0.0, 1.0)
    assert_allclose(table.brier, np.mean((np.array([0.2, 0.8]) - label) ** 2))
    columns = score_columns([Evaluation(2, 0.0, 0.0, table)])
    assert list(columns) == list(SCORE_COLUMNS)


def test_no_rows_are_no_error():
    table = Bins(10).table(np.empty(0), np.empty(0, int))
    assert math.isnan(table.auc.value)
    assert math.isnan(table.brier)
    assert np.isnan(table.roc()[0]).all()
    assert math.isnan(table.calibration()[0].observed.value)


# ------------------------------------------------------------------------------------- the intervals


@pytest.mark.parametrize(("hits", "misses"), [(0, 7), (3, 4), (450, 550), (7, 0)])
def test_without_noise_the_interval_of_a_share_is_that_of_wilson(hits, misses):
    known = binomtest(hits, hits + misses).proportion_ci(method="wilson")
    assert_allclose(share(hits, misses)[1:], known, atol=1.1e-4)


def test_an_area_of_one_has_an_interval_below_it():
    found = area(np.array([5.0, 0.0]), np.array([0.0, 4.0]))
    assert found.value == found.high == 1.0
    assert 0.4 < found.low < 0.9


def test_noise_that_hides_a_class_says_nothing():
    assert area(np.full(20, 40.0), np.full(20, 1.0), 5.0)[1:] == (0.0, 1.0)
    assert share(3.0, -9.0, 4.0)[1:] == (0.0, 1.0)


RUNS = 400
FITTING, WIDE, ELSEWHERE = (0.5, 1.5), (6.0, 6.0), (-8.0, 0.5)  # mean and deviation of the reference rows
AREAS = {  # rows, share of positives, shift, spread of the positives, base, bins, noise of a count, reference rows
    "no noise": (200, 0.5, 1.0, 1.0, 0.0, 1000, 0.0, FITTING),
    "noise": (1000, 0.5, 1.0, 1.0, 0.0, 20, 8.0, FITTING),
    "rare outcome": (4000, 0.1, 1.0, 1.0, -2.0, 20, 8.0, FITTING),
    "wide ranges": (1000, 0.5, 1.5, 1.0, 0.0, 20, 0.0, WIDE),
    "wide ranges, noise": (1000, 0.5, 1.5, 1.0, 0.0, 20, 8.0, WIDE),
    "ranges elsewhere": (1000, 0.5, 1.5, 1.0, 0.0, 20, 0.0, ELSEWHERE),
}
MORE_AREAS = {
    "few rows, good model": (40, 0.3, 3.0, 1.0, 0.0, 100, 0.0, FITTING),
    "rare, no noise": (1000, 0.05, 1.0, 1.0, -3.0, 100, 0.0, FITTING),
    "wide positives": (500, 0.5, 0.5, 2.0, 0.0, 100, 0.0, FITTING),
    "many rows": (10_000, 0.5, 1.0, 1.0, 0.0, 100, 5.0, FITTING),
    "many rows, wide ranges": (10_000, 0.5, 1.5, 1.0, 0.0, 100, 0.0, WIDE),
    "good model, noise": (500, 0.5, 3.0, 1.0, 0.0, 20, 5.0, FITTING),
    "few positives, noise": (200, 0.2, 3.0, 1.0, 0.0, 20, 3.0, FITTING),
    "mostly noise": (400, 0.5, 1.0, 1.0, 0.0, 20, 8.0, FITTING),
    "no discrimination, noise": (1000, 0.5, 0.0, 1.0, 0.0, 20, 4.0, FITTING),
    "ranges elsewhere, noise": (1000, 0.5, 1.5, 1.0, 0.0, 20, 8.0, ELSEWHERE),
}
NARROW = ("no noise",)  # cases in which ties in bins widen the interval by less than a twentieth


def bins_of(number, base, reference):
    """The bins for a model whose log odds on reference rows have this mean, beyond `base`, and this deviation."""
    mean, spread = reference
    return Bins(number).around(base + mean + spread * norm.ppf((np.arange(500) + 0.5) / 500))


def counted(rng, count, shift, spread, base, edges):
    """The counts (bins,) of rows whose log odds are normal."""
    odds = base + shift + spread * rng.normal(size=count)
    return np.histogram(odds, edges)[0].astype(float)


def covered(case, runs):
    """The share of runs whose interval holds the area of the population, P(positive > negative)."""
    rows, rate, shift, spread, base, bins, sigma, reference = case
    rng, edges = np.random.default_rng(0), bins_of(bins, base, reference).log_odds
    truth, hits = float(norm.cdf(shift / math.hypot(1.0, spread))), 0
    for _ in range(runs):
        ill = rng.binomial(rows, rate)
        both = counted(rng, rows - ill, 0.0, 1.0, base, edges), counted(rng, ill, shift, spread, base, edges)
        found = binned_area(*(own + sigma * rng.normal(size=bins) for own in both), sigma)
        hits += found.low <= truth <= found.high
    return hits / runs


@pytest.mark.parametrize("case", AREAS)
def test_the_interval_of_the_area_covers_at_the_stated_rate(case):
    """At least so often; where ties in bins hardly matter also not more often."""
    rate, room = covered(AREAS[case], RUNS), 3.3 * math.sqrt(LEVEL * (1 - LEVEL) / RUNS)
    assert rate >= LEVEL - room
    assert case not in NARROW or rate <= LEVEL + room


@pytest.mark.slow
@pytest.mark.parametrize("case", (AREAS | MORE_AREAS).values(), ids=AREAS | MORE_AREAS)
def test_the_interval_of_the_area_covers_in_2000_runs(case):
    """At least .94, up to 3.3 standard errors: the sampling variance is an approximation (`intervals.area`)."""
    runs = 2000
    assert covered(case, runs) >= 0.94 - 3.3 * math.sqrt(LEVEL * (1 - LEVEL) / runs)


def test_ties_in_bins_widen_the_interval_by_as_much_as_they_can_hide():
    (odds, labels), bins = drawn(4000, 1.5, 0.0), bins_of(20, 0.0, WIDE)
    table, exact = bins.table(odds, labels), ranked(odds, labels)
    (negatives, positives), (plain, wide) = table.counts, (area(*table.counts), table.auc)
    ties = negatives @ positives / (2 * negatives.sum() * positives.sum())
    assert_allclose([plain.low - wide.low, wide.high - plain.high], ties)
    assert not plain.low <= exact.value <= plain.high
    assert wide.low <= exact.value <= wide.high
    assert abs(exact.value - wide.value) <= ties


@pytest.mark.parametrize(
    ("rows", "p", "sigma", "cells"),
    [(200, 0.3, 2.0, (5, 15)), (500, 0.95, 4.0, (10, 10)), (60, 0.5, 0.0, (1, 1))],
)
def test_the_interval_of_a_share_covers_at_the_stated_rate(rows, p, sigma, cells):
    rng, hits = np.random.default_rng(0), 0
    for right in rng.binomial(rows, p, RUNS):
        a, b = (
            own + sigma * math.sqrt(n) * rng.normal()
            for own, n in zip((right, rows - right), cells, strict=True)
        )
        found = share(a, b, sigma, *cells)
        hits += found.low <= p <= found.high
    assert hits / RUNS >= LEVEL - 3.3 * math.sqrt(LEVEL * (1 - LEVEL) / RUNS)


# ------------------------------------------------------------------------------------- what a release costs

OBJECTIVE = make_objective("logistic", 2, 2)
X = np.array([4.0, -1.0])
ROWS = Batch(np.array([[1.0, 0.0], [-1.0, 0.5], [0.3, 1.0], [-1.0, 0.0]]), np.array([0, 1, 1, 0]))


BINS_OF = {number: Bins(number, 0.5, 2.0) for number in (2, 6, 20, 40)}


def swapped(places):
    """The rows with these replaced by ones of the same class that are predicted the other way."""
    features = ROWS.features.copy()
    features[places] = np.where(ROWS.labels[places] == 1, 1.0, -1.0)[:, None] * [1.0, 0.0]
    if 2 in places:
        features[2] = [1.0, -1.0]
    return Batch(features, ROWS.labels)


@pytest.mark.parametrize(
    ("unit", "places"), [(ONE_RECORD, [0]), (ONE_RECORD, [1]), (Unit("group", 2), [0, 3])]
)
@pytest.mark.parametrize("bins", [2, 40])
def test_replay_of_a_release_attains_its_charge_and_never_exceeds_it(unit, places, bins, tmp_path):
    """Two sites that differ in these records are asked the same, with the same noise, and charged the same."""
    question, multiplier = HeldOutQuestion((3,), BINS_OF[bins]), 1 / 0.7
    release = question.release(4, unit)
    worst = [[0, 3], [1, 1]] if unit is not ONE_RECORD else None
    found = []
    for number, rows in enumerate((ROWS, swapped(places))):
        ledger = FileLedger(tmp_path / f"{number}.ledger", "data", 1e3, 1e-4)
        guard = Guard(Bounds(1.0, 1.0), multiplier, Budget(1e3), ledger, evaluation_draws(0, 0), run="1")
        mine = SiteAnswer(question, guard, release)
        store, requests = ContextStore(RecordDict()), RequestReader(None, RecordDict(), "1")
        _, _, metrics = answered(mine, OBJECTIVE, X, rows, {"round": 3}, requests, store)
        released = store.of("evaluation").last("1").arrays["values"]
        assert metrics["scores"] == released[1:].astype("<f8").tobytes()
        found.append((released, total_cost(ledger.charges())))
    (a, cost), (b, other) = found
    spent = float((((a - b) / (multiplier * release.spread)) ** 2).sum())
    assert cost == other
    assert_allclose(cost, 0.49)
    assert spent <= cost * (1 + 1e-9)
    if worst is None:
        assert spent >= 0.99 * cost


def test_a_group_that_moves_together_attains_its_charge():
    """Two records of the same kind, replaced by two of another kind."""
    release = HeldOutQuestion(bins=BINS_OF[20]).release(2, Unit("group", 2))
    pair = [Batch(np.tile([end, 0.0], (2, 1)), np.array([1, 1])) for end in (-1.0, 1.0)]
    moved = np.subtract(*(summed(OBJECTIVE, X, rows, bins=BINS_OF[20]) for rows in pair))
    assert_allclose(np.linalg.norm(moved), release.sensitivity)


def test_no_replacement_of_a_record_moves_a_release_by_more_than_2():
    """Any labels, and scores that are infinite or not a number; clipped losses, too."""
    rng = np.random.default_rng(0)
    values = [0.0, 1e-300, 1.0, -1e308, np.inf, -np.inf, np.nan]
    for bound in (0.0, 1.5):
        for _ in range(200):
            features = rng.choice(values, size=(2, 3, 2))
            features[1, 1:] = features[0, 1:]
            labels = np.array([[rng.integers(2), 0, 1], [rng.integers(2), 0, 1]])
            x = X * rng.choice([1.0, 1e200])
            pair = [
                summed(OBJECTIVE, x, Batch(f, y), bound, BINS_OF[6])
                for f, y in zip(features, labels, strict=True)
            ]
            assert np.isfinite(pair).all()
            assert np.linalg.norm(pair[0] - pair[1]) <= 2 + 1e-9


def test_the_sum_has_half_of_the_cost_and_the_noise_that_the_plan_states():
    plain, both = (3.0 * HeldOutQuestion(bins=Bins(bins)).release(9, ONE_RECORD).spread for bins in (0, 10))
    assert_allclose(both, 2 * plain)
    found = Released.of(np.arange(21.0), 9, both, Bins(10))
    assert_allclose((found.value, found.sigma), (0.0, math.sqrt(2) * plain))
    assert_allclose(found.scores.sigma, both)
    assert_array_equal(found.scores.counts, np.arange(1.0, 21.0).reshape(2, 10))


# ------------------------------------------------------------------------------------- without noise, at a site


def test_a_client_counts_the_scores_of_one_model_after_each_round(keys):
    setup = prepare(parse(keys | {"rounds": 2}))
    client, x = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {})), setup.start
    asked = {"round": 1, "session": "one", "centre": 0.0, "width": 1.0}
    first = client.evaluate([x], asked)
    assert client.evaluate([x], asked) == first
    for model, change in ((x + 1, {}), (x, {"centre": 0.5}), (x, {"round": 0})):
        with pytest.raises(ReplyError, match="another model was evaluated after this round or a later one"):
            client.evaluate([model], asked | change)
    client.evaluate([x + 1], asked | {"round": 2})
    with pytest.raises(ReplyError, match="nothing exact is sent about the rows after round 3"):
        client.evaluate([x], asked | {"round": 3})
    with pytest.raises(ReplyError, match="another session"):
        client.evaluate([x], asked | {"round": 2, "session": "two"})


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({}, "this site counts no scores: its node config has no score-rows"),
        (
            {"score-rows": 17},
            "of at least 17 held-out rows in at most 20 bins; the run has 16 rows in 20 bins",
        ),
        ({"score-rows": 16, "score-bins": 18}, "in at most 18 bins; the run has 16 rows in 20 bins"),
        ({"score-rows": 16}, ""),
    ],
)
def test_a_site_decides_whether_it_counts_without_noise(policy, why, keys, tmp_path):
    config, nodes = at_sites(prepare(parse(keys)))
    reply = Deployed(config.items(), *(own | policy for own in nodes)).answer(properties_request(1))
    assert (why in str(reply.error.reason)) if why else not reply.has_error()


# ------------------------------------------------------------------------------------- runtimes


def same_scores(one, other):
    assert one and one.keys() == other.keys()
    for client, table in one.items():
        assert_array_equal(table.cells, other[client].cells)
        assert_array_equal(table.edges, other[client].edges)
        assert table.sigma == other[client].sigma


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_all_runtimes_report_the_same(keys, kind):
    """To the bit over the wire; in the cohort up to the rounding of models and sums, which moves no count here."""
    setup = prepare(parse(keys | kind))
    direct, wired, arrays = inprocess.train(setup), over_the_wire(setup), cohort.train([setup])[0]
    assert sorted(direct.answers["evaluation"].scores) == [0, 1, 2]
    same_scores(direct.answers["evaluation"].scores, wired.answers["evaluation"].scores)
    columns = [[result.rows[-1][name] for name in SCORE_COLUMNS] for result in (direct, wired, arrays)]
    assert columns[0] == columns[1]
    assert_allclose(columns[0], columns[2], rtol=1e-9)
    for client, table in direct.answers["evaluation"].scores.items():
        assert_allclose(table.cells, arrays.answers["evaluation"].scores[client].cells, rtol=1e-9)
    assert {name: direct.summary()[name] for name in SCORE_COLUMNS} == {
        name: direct.rows[-1][name] for name in SCORE_COLUMNS
    }


def test_without_privacy_the_sites_together_are_all_held_out_rows(keys):
    setup = prepare(parse(keys))
    result = inprocess.train(setup)
    rows = Batch(setup.dataset.features[setup.held.rows], setup.dataset.labels[setup.held.rows])
    scores = 1 / (1 + np.exp(-Bins(1).scores(setup.objective, result.model, rows.features)))
    last = result.rows[-1]
    assert last["held_out_brier"] == pytest.approx(brier_score_loss(rows.labels, scores), rel=1e-12)
    assert abs(last["held_out_auc"] - roc_auc_score(rows.labels, scores)) < 0.03  # 20 bins
    assert last["held_out_auc_low"] < last["held_out_auc"] < last["held_out_auc_high"]


def test_bins_leave_the_training_and_the_total_budget_as_they_are(keys):
    both = [prepare(parse(keys | PRIVATE | {"evaluation.bins": bins})) for bins in (0, 20)]
    results = [inprocess.train(setup) for setup in both]
    assert_array_equal(results[0].model, results[1].model)
    assert results[0].privacy()["mu"] == results[1].privacy()["mu"]
    assert not results[0].answers["evaluation"].scores
    said = dict(forecast(both[1]))["evaluation at the clients"]
    assert "half of the cost is for counts by class in 20 bins of the score, each with noise of" in said


def test_seeds_that_run_together_report_what_each_reports_alone(keys):
    setups = [prepare(parse(keys | PRIVATE | {"seed": seed})) for seed in (3, 4)]
    for one, setup in zip(cohort.train(setups), setups, strict=True):
        same_scores(one.answers["evaluation"].scores, cohort.train([setup])[0].answers["evaluation"].scores)


@pytest.mark.parametrize("kind", [{}, PRIVATE], ids=["public", "private"])
def test_a_run_that_is_resumed_after_its_last_evaluation_has_its_counts(keys, kind, tmp_path):
    keys = keys | kind | {"output.checkpoint-every": 1, "output.state-dir": str(tmp_path / "state")}
    setup = prepare(parse(keys))
    checkpoints = Checkpoints(tmp_path / "run", 1, setup.config)
    whole = run_strategy(setup, InProcessGrid(setup), "inprocess", checkpoints=checkpoints)
    again = run_strategy(setup, InProcessGrid(setup), "inprocess", checkpoints=checkpoints)
    same_scores(whole.answers["evaluation"].scores, again.answers["evaluation"].scores)
    arrays = Checkpoints(tmp_path / "cohort", 1, setup.config)
    together = [cohort.train([setup], checkpoints=arrays)[0].answers["evaluation"].scores for _ in range(2)]
    same_scores(*together)


def spoilt(scores):
    """A fault: an evaluation with other counts."""

    def fault(reply):
        content = RecordDict(dict(reply.content.items()))
        record = content["evaluateres.metrics"]
        content["evaluateres.metrics"] = ConfigRecord({**record, "scores": scores(record["scores"])})
        return with_content(reply, content)

    return fault


def doubles(change):
    return lambda content: change(np.frombuffer(content, "<f8").copy()).tobytes()


FAULTS = {
    "too short": lambda content: content[:-8],
    "no bytes": lambda content: 5,
    "not a number": doubles(lambda cells: cells * np.nan),
    "one row more": doubles(lambda cells: cells + (np.arange(len(cells)) == 0)),
    "half rows": doubles(
        lambda cells: cells + 0.5 * ((np.arange(len(cells)) < 1) - 1.0 * (np.arange(len(cells)) == 1))
    ),
    "negative": doubles(lambda cells: -cells),
    "more than the rows": doubles(lambda cells: cells + 100.0 * (np.arange(len(cells)) == len(cells) - 1)),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_site_with_other_counts_is_left_out_of_the_evaluation_only(keys, fault):
    class Spoilt(InProcessGrid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            wrong = [r.metadata.message_type == "evaluate" and r.metadata.src_node_id == 3 for r in replies]
            return [spoilt(fault)(r) if bad else r for r, bad in zip(replies, wrong, strict=True)]

    setup = prepare(parse(keys))
    good, bad = inprocess.train(setup), run_strategy(setup, Spoilt(setup), "inprocess")
    assert_array_equal(good.model, bad.model)
    assert sorted(bad.answers["evaluation"].scores) == [0, 1]
    assert bad.rows[-1]["held_out_rows"] == setup.held.sizes[:2].sum()


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"data.name": "linear", "objective.name": "huber"}, "this data set has neither: set it to 0"),
        ({"evaluation.held-out": 0.0}, "bins needs evaluation.held-out above 0"),
        ({"evaluation.bins": 7}, "0 or an even number from 2 to 1000"),
    ],
)
def test_what_cannot_be_counted_is_refused_in_one_sentence(keys, why):
    with pytest.raises(SettingError, match=why) as refused:
        prepare(parse({"clients.count": 4, "rounds": 2, "algorithm": "fedavg"} | BINS | keys))
    assert "\n" not in str(refused.value)


def test_scores_that_are_no_probabilities_are_refused(keys):
    with pytest.raises(SettingError, match="set objective.name to softmax or logistic; got rowwise-logistic"):
        prepare(parse(keys | {"objective.name": "rowwise-logistic"}))
    with pytest.raises(SettingError, match="no scores"):
        Bins(1).scores(object(), np.zeros(1), np.zeros((1, 1)))


# ------------------------------------------------------------------------------------- what users see


@pytest.mark.parametrize("kind", [{}, PRIVATE], ids=["public", "private"])
def test_the_folder_and_the_report_hold_the_counts(keys, kind, tmp_path):
    (result,) = cohort.train([prepare(parse(keys | kind))])
    folder = write_run(result, tmp_path / "run")
    same_scores(read_answers(folder, HeldOut), result.answers["evaluation"].scores)
    page = report_run(folder).read_text(encoding="utf-8")
    assert "Discrimination and calibration" in page
    assert f"{result.rows[-1]['held_out_auc']:.4f}" in page
    assert ("Every count has noise of" in page) == bool(kind)
    assert read_summary(folder)["held_out_auc"] == result.rows[-1]["held_out_auc"]


def test_a_run_without_bins_has_no_such_file(keys, tmp_path):
    (result,) = cohort.train([prepare(parse(keys | {"evaluation.bins": 0}))])
    folder = write_run(result, tmp_path / "run")
    assert not (folder / "scores.csv").exists()
    assert "Discrimination and calibration" not in report_run(folder).read_text(encoding="utf-8")


def evaluated(*words):
    return CliRunner().invoke(cli.app, ["predict", *map(str, words), "--evaluate"])


def test_predict_evaluates_a_table(keys, tmp_path):
    (result,) = cohort.train([prepare(parse(keys))])
    folder, table = write_run(result, tmp_path / "run"), tmp_path / "test.csv"
    out = tmp_path / "measures.csv"
    assert "specificity" in evaluated(folder, table).output
    evaluated(folder, table, "--out", out)
    found = {row["name"]: float(row["value"]) for row in csv.DictReader(out.read_text().splitlines())}
    test = result.setup.dataset
    scores = 1 / (1 + np.exp(-Bins(1).scores(result.setup.objective, result.model, test.test_features)))
    assert_allclose(found["area under the ROC curve"], roc_auc_score(test.test_labels, scores))
    assert_allclose(found["Brier score"], brier_score_loss(test.test_labels, scores))
    assert_allclose(found["accuracy"], result.rows[-1]["test_accuracy"])


def test_predict_evaluates_a_regression_in_units_of_the_label(keys, tmp_path):
    text = (tmp_path / "schema.toml").read_text().replace("classes = [0, 1]", "range = [0, 10]")
    (tmp_path / "schema.toml").write_text(text)
    keys = keys | {"evaluation.bins": 0, "objective.name": "least-squares", "fedavg.step-size": 0.5}
    (result,) = cohort.train([prepare(parse(keys))])
    folder, out = write_run(result, tmp_path / "run"), tmp_path / "measures.csv"
    evaluated(folder, tmp_path / "test.csv", "--out", out)
    found = {row["name"]: float(row["value"]) for row in csv.DictReader(out.read_text().splitlines())}
    test = result.setup.dataset
    errors = 5 * (result.setup.objective.predict(result.model, test.test_features) - test.test_labels)
    assert_allclose(found["root mean squared error"], math.sqrt(np.mean(errors**2)))
    assert_allclose(found["mean absolute error"], np.abs(errors).mean())
    assert_allclose(found["R^2"], result.rows[-1]["test_accuracy"])
