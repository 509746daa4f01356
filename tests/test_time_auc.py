"""The area under the ROC curve at a time: against its definition, in a table and at the sites."""

import csv
import itertools
import logging
from dataclasses import replace

import numpy as np
import pytest
from grids import Deployed, over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from site_files import three_sites
from test_survival import PRIVATE, SCHEMA, patients
from typer.testing import CliRunner

from twinflower.clients.records import record_of
from twinflower.concordance import _uncensored
from twinflower.errors import SettingError
from twinflower.flower_messages import EVALUATE, reply_record
from twinflower.known_objectives import make_model
from twinflower.models.evaluation import SCORE_COLUMNS
from twinflower.models.intervals import LEVEL
from twinflower.models.score_bins import together
from twinflower.models.time_auc import Persons, TimeBins, _Area, areas
from twinflower.privacy.unit import ONE_RECORD, Unit
from twinflower.problems.interfaces import Batch
from twinflower.queries.held_out import HeldOut, score_bins
from twinflower.queries.held_out_question import HeldOutQuestion, summed
from twinflower.simulation import cli
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.results.reading import read_answers
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.strategies.messages import properties_request, question_request
from twinflower.survival_labels import signed


@pytest.fixture
def keys(tmp_path):
    run = {"algorithm": "fedavg", "rounds": 5, "local.max-steps": 1, "fedavg.step-size": 0.4}
    run |= {"objective.name": "discrete-cox", "objective.intervals": "4 x 500", "data.row-scaling": "all"}
    return three_sites(tmp_path, SCHEMA, patients, (80, 120, 60, 100)) | run | {"clients.weighting": "rows"}


def drawn(rows, seed=0, effect=1.0, censored=3.0):
    """Risks, times and events; a third of the persons, or more, are censored before their event."""
    rng = np.random.default_rng(seed)
    risks = rng.normal(size=rows)
    event = rng.exponential(np.exp(-effect * risks))
    end = rng.uniform(0, censored, rows)
    return risks, np.minimum(event, end), event <= end


def transcribed(risks, at, times, events):
    """The definition, pair by pair."""
    jumps, steps = _uncensored(times, events)
    before = np.append(1.0, steps)[np.searchsorted(jumps, times)]
    found = []
    for time in at:
        above = total = 0.0
        for i in np.flatnonzero(events & (times <= time)):
            for j in np.flatnonzero(times > time):
                above += ((risks[i] > risks[j]) + (risks[i] == risks[j]) / 2) / before[i]
                total += 1 / before[i]
        found.append(above / total if total else np.nan)
    return found


# ------------------------------------------------------------------------------------- the estimate


def test_the_areas_are_those_of_the_definition_also_with_equal_risks_and_times():
    risks, times, events = drawn(120)
    risks, times, at = risks.round(1), times.round(1) + 0.1, [0.15, 0.5, 1.0, 2.0]
    assert_allclose(
        [own.value for own in areas(risks, at, times, events)], transcribed(risks, at, times, events)
    )


def test_without_censoring_it_is_the_area_of_event_by_then_against_event_later():
    from sklearn.metrics import roc_auc_score

    risks, times, _ = drawn(200, censored=1e9)
    (found,) = areas(risks, [0.7], times, np.ones(200, bool))
    assert_allclose(found.value, roc_auc_score(times <= 0.7, risks))


def test_there_is_no_area_without_cases_or_without_controls():
    risks, times, events = drawn(50)
    early, late, past = areas(risks, [times.min() / 2, times.max(), 100.0], times, events)
    alone = areas(risks, [1.0], times, np.zeros(50, bool))[0]
    nobody = areas(np.empty(0), [1.0], np.empty(0), np.empty(0, bool))[0]
    for found in (early, late, past, alone, nobody):
        assert np.isnan(found.value) and found[1:] == (0, 1)


def test_the_slopes_of_the_interval_are_the_derivatives_by_the_numbers_of_persons():
    """Those of the weights for censoring included."""
    risks, times, events = drawn(60)
    grid, interval = np.unique(times.round(1), return_inverse=True)
    plain = Persons(np.ones(60), interval, events, np.argsort(np.argsort(risks.round(1))), len(grid))
    area = lambda p: _Area(p, p.events & (p.interval < 9), p.interval >= 9)  # noqa: E731
    for place in range(0, 60, 7):
        step = 1e-5 * (np.arange(60) == place)
        ends = [area(replace(plain, numbers=plain.numbers + sign * step)).value for sign in (-1, 1)]
        assert_allclose(area(plain).slopes[place], (ends[1] - ends[0]) / 2e-5, atol=1e-8)


# ------------------------------------------------------------------------------------- in a table
TIMES = (0.25, 0.5, 0.75, 1.0, 1.5)


def rounded_up(times):
    """Times as a grid with the ends `TIMES` has them: the ends of their intervals, or 9 beyond them."""
    return np.append(TIMES, 9.0)[np.searchsorted(TIMES, times)]


def table_of(risks, times, events, bins=100, ends=TIMES):
    return TimeBins(bins, 0.0, 0.6, times=ends).table(risks, signed(times, events))


def test_a_table_has_the_areas_of_times_rounded_up_where_every_risk_has_a_bin_of_its_own():
    risks = np.sort(np.random.default_rng(0).permutation(TimeBins(100, 0.0, 0.6).log_odds[1:-1])[:60])
    _, times, events = drawn(60, seed=2)
    risks = np.random.default_rng(1).permutation(risks)
    table, late = table_of(risks, times, events), rounded_up(times)
    wanted = transcribed(risks, TIMES, late, events & (late < 9))
    assert_allclose([own.value for own in table.areas], wanted)
    exact = areas(risks, TIMES, late, events & (late < 9))
    assert_allclose(np.array(table.areas), np.array(exact), atol=2e-4)  # ends are those of candidates


@pytest.mark.parametrize(("effect", "seed"), [(0.5, 0), (1.0, 1), (2.0, 2)])
def test_a_hundred_bins_give_the_areas_to_a_hundredth(effect, seed):
    risks, times, events = drawn(5000, seed, effect)
    wanted = areas(risks, TIMES, times, events)
    for found, own in zip(table_of(risks, times, events).areas, wanted, strict=True):
        assert abs(found.value - own.value) < 0.01
        assert found.low < own.value < found.high


def test_tables_add_up_and_their_mean_is_that_of_the_times():
    risks, times, events = drawn(400)
    whole = table_of(risks, times, events)
    parts = [table_of(*(own[half::2] for own in (risks, times, events))) for half in (0, 1)]
    both = together(parts)
    assert_array_equal(both.cells, whole.cells)
    assert_allclose(both.auc, np.mean(both.areas, axis=0))
    assert both.rows == 400 and np.isnan(both.brier)
    assert together([own._replace(sigma=s) for own, s in zip(parts, (3.0, 4.0), strict=True)]).sigma == 5


def test_a_table_without_cases_or_controls_has_no_area_and_says_nothing_else():
    for events, times in ((False, 0.1), (False, 9.0), (True, 0.1), (True, 9.0)):
        table = table_of(np.arange(5.0), np.full(5, times), np.full(5, events))
        assert np.isnan(table.auc.value) and np.isnan([own.value for own in table.areas]).all()


def truth(effect, ends, rows=400_000):
    """The areas of the population."""
    rng = np.random.default_rng(9)
    risks = rng.normal(size=rows)
    event = rng.exponential(np.exp(-effect * risks))
    return [
        1 - np.searchsorted(np.sort(risks[event <= t]), risks[event > t]).mean() / (event <= t).sum()
        for t in ends
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.0, 2.0, 8.0])
@pytest.mark.parametrize(
    ("rows", "effect", "ends"), [(2000, 1.0, (0.5, 1.0)), (2000, 0.3, TIMES), (5000, 2.5, (0.5, 1.0))]
)
def test_the_intervals_cover_the_truth_also_with_noise(rows, effect, ends, sigma):
    """Where there is an area; with noise, tables of late times often have none."""
    wanted, rng = truth(effect, ends), np.random.default_rng(3)
    known, hits = np.zeros((2, len(ends)))
    for seed in range(300):
        plain = table_of(*drawn(rows, seed, effect), bins=20, ends=ends)
        noisy = plain._replace(cells=plain.cells + sigma * rng.normal(size=plain.cells.shape), sigma=sigma)
        for place, own in enumerate(noisy.areas):
            known[place] += own.value == own.value
            hits[place] += own.value == own.value and own.low <= wanted[place] <= own.high
    often = known >= 150
    assert (
        often.any() and (hits[often] / known[often] >= LEVEL - 3.3 * np.sqrt(LEVEL * (1 - LEVEL) / 150)).all()
    )


# ------------------------------------------------------------------------------------- what a release costs


def test_a_person_is_in_one_cell_for_all_times_together():
    rng, bins = np.random.default_rng(0), TimeBins(6, times=TIMES)
    for _ in range(100):
        labels = signed(rng.choice([0.0, 0.25, 1.0, 1.5, 7.0], size=2), rng.integers(2, size=2))
        risks = rng.choice([-np.inf, -1.0, 0.0, 3.0, np.inf], size=2)
        a, b = (bins.counts(risks[k : k + 1], labels[k : k + 1]) for k in (0, 1))
        assert a.sum() == b.sum() == 1 and np.linalg.norm(a - b) <= np.sqrt(2)


@pytest.mark.parametrize("unit", [ONE_RECORD, Unit("group", 2)])
def test_replay_of_a_release_attains_its_charge_and_never_exceeds_it(unit):
    """One person, or two alike, replaced by others: the clipped loss goes from 0 to its bound, and a cell changes."""
    objective = make_model("discrete-cox", 1, 0, intervals="1, 2")
    x, bins = np.array([60.0, 0.0, 0.0]), TimeBins(20, 0.0, 1.0, times=(1.0, 2.0))
    release = HeldOutQuestion(bins=bins, bound=1.0).release(2, unit)
    near = Batch(np.array([[-1.0]] * 2), np.array([-2.0, -2.0]))  # alive at the end, at no risk
    moved = unit.rows or 1
    far = Batch(np.array([[1.0]] * moved + [[-1.0]] * (2 - moved)), np.array([-2.0] * 2))
    a, b = (summed(objective, x, rows, 1.0, bins) for rows in (near, far))
    spent = float((((a - b) / release.spread) ** 2).sum())
    assert 0.99 <= spent <= 1 + 1e-9


# ------------------------------------------------------------------------------------- runs


AT_SITES = {"evaluation.held-out": 0.4, "evaluation.bins": 20, "evaluation.auc-times": "500, 1500"}
NOISY = PRIVATE | {"privacy.evaluation-share": 0.9, "evaluation.loss-bound": 3.0, "privacy.epsilon": 3000.0}
STRATIFIED = {"objective.name": "stratified-cox"}


def of(keys, kind):
    """The keys of a run of this kind, without the intervals of another objective."""
    return {
        name: own for name, own in (keys | kind).items() if kind is not STRATIFIED or "intervals" not in name
    }


@pytest.mark.parametrize("kind", [{}, NOISY, STRATIFIED], ids=["public", "private", "stratified"])
def test_all_runtimes_report_the_same(keys, kind, tmp_path):
    setup = prepare(parse(of(keys | AT_SITES, kind)))
    direct, wired, arrays = inprocess.train(setup), over_the_wire(setup), cohort.train([setup])[0]
    folder = write_run(arrays, tmp_path / "run")
    for client, table in direct.answers["evaluation"].scores.items():
        assert_array_equal(table.cells, wired.answers["evaluation"].scores[client].cells)
        assert_allclose(table.cells, arrays.answers["evaluation"].scores[client].cells, rtol=1e-9)
        again = read_answers(folder, HeldOut)[client]
        for one, other in zip(again, arrays.answers["evaluation"].scores[client], strict=True):
            assert_array_equal(one, other)
    area = together(arrays.answers["evaluation"].scores.values()).auc
    assert [arrays.rows[-1][name] for name in SCORE_COLUMNS[:3]] == list(area)
    page = report_run(folder).read_text(encoding="utf-8")
    assert "Discrimination by time" in page and f"{area.value:.4f}" in page


def test_a_report_and_survival_csv_name_the_time_and_the_sites(keys, tmp_path):
    (result,) = cohort.train([prepare(parse(keys | {"evaluation.survival-curve": "4 x 500"}))])
    folder = write_run(result, tmp_path / "run")
    with (folder / "survival.csv").open() as file:
        found = {row["client"]: row["site"] for row in csv.DictReader(file)}
    assert found == {"all": "all"} | {f"{place}": f"site-{place}.csv" for place in range(3)}
    page = report_run(folder).read_text(encoding="utf-8")
    assert ">time (days)<" in page


def test_a_single_time_can_be_a_number(keys):
    assert parse(keys | AT_SITES | {"evaluation.auc-times": 500}).evaluation.auc_times == "500"


def test_at_the_sites_without_privacy_it_is_the_table_of_all_held_out_persons(keys):
    setup = prepare(parse(keys | AT_SITES | {"evaluation.bins": 100}))
    result = inprocess.train(setup)
    rows, labels = setup.dataset.features[setup.held.rows], setup.dataset.labels[setup.held.rows]
    risks = setup.objective.predict(result.model, rows)
    found = together(result.answers["evaluation"].scores.values())
    assert found.rows == len(labels)
    late = np.append([500.0, 1500.0], 9e9)[np.searchsorted([500.0, 1500.0], np.abs(labels))]
    wanted = areas(risks, [500.0, 1500.0], late, (labels > 0) & (late < 9e9))
    assert np.abs([a.value - b.value for a, b in zip(found.areas, wanted, strict=True)]).max() < 0.01


def test_a_run_that_is_resumed_has_its_counts(keys, tmp_path):
    setup = prepare(parse(keys | AT_SITES | {"output.checkpoint-every": 1}))
    first, again = (
        cohort.train([setup], checkpoints=Checkpoints(tmp_path, 1, setup.config))[0] for _ in range(2)
    )
    for one, other in zip(
        first.answers["evaluation"].scores[1], again.answers["evaluation"].scores[1], strict=True
    ):
        assert_array_equal(one, other)


@pytest.mark.parametrize(("most", "refused"), [(49, True), (50, False)])
def test_a_site_limits_the_counts_of_20_bins_and_5_cells_of_time_as_those_of_50_bins_of_two_classes(
    most, refused, keys
):
    config, nodes = at_sites(prepare(parse(keys | AT_SITES)))
    policy = {"score-rows": 1, "score-bins": most, "survival-rows": 1, "survival-cell": 1}
    reply = Deployed(config.items(), *(own | policy for own in nodes)).answer(properties_request(1))
    assert reply.has_error() == refused
    assert not refused or "in at most 49 bins; the run has" in str(reply.error.reason)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({}, "counts no persons for evaluation.auc-times: its node config has no survival-rows"),
        (
            {"survival-rows": 1, "survival-cell": 50},
            "unless there are at least 1 in all, and 50 events or none",
        ),
    ],
)
def test_a_sites_policy_for_counts_by_time_holds_for_its_held_out_rows_too(policy, why, keys):
    config, nodes = at_sites(prepare(parse(keys | AT_SITES)))
    own = [node | {"score-rows": 1, "score-bins": 50} | policy for node in nodes]
    reply = Deployed(config.items(), *own).answer(properties_request(1))
    assert reply.has_error() and why in str(reply.error.reason)


@pytest.mark.parametrize(
    ("least", "bins", "times", "ends"),
    [
        (1, 20, "3 x 500", {"sent"}),
        (2, 2, "1000", {"sent"}),
        (2, 20, "1000", {"sent", "small cells"}),
        (20, 2, "1000", {"small margins"}),
    ],
)
def test_a_site_releases_no_count_of_persons_below_its_policy(least, bins, times, ends, keys):
    """Of the table of risks and times as it is sent, for models of the server's choice; the margins say less."""
    asked = {"evaluation.held-out": 0.4, "evaluation.bins": bins, "evaluation.auc-times": times}
    setup = prepare(parse(keys | asked))
    config, nodes = at_sites(setup)
    policy = {"score-rows": 1, "score-bins": 1000, "survival-rows": 1, "survival-cell": least}
    grid = Deployed(config.items(), *(own | policy for own in nodes))
    draw, seen = np.random.default_rng(0), set()
    asked_of = {"session": "session", "centre": 0.0, "width": 1.0}
    for round_, node in itertools.product(range(3), (1, 2)):
        x, where = 0.3 * draw.normal(size=setup.objective.d), TimeBins(bins, times=setup_times(setup))
        reply = grid.answer(question_request(node, record_of([x]), asked_of | {"round": round_}))
        held = setup.held_rows(node - 1)
        cells = where.counts(where.scores(setup.objective, x, held.features), held.labels)
        if cells[cells > 0].min() >= least:
            assert_array_equal(np.frombuffer(metrics_of(reply)["scores"]).reshape(cells.shape), cells)
            seen.add("sent")
        elif (cells.sum(1)[cells.sum(1) > 0] >= least).all():
            assert f"unless there are {least} or none in every bin of risks" in reply.error.reason
            seen.add("small cells")
        else:
            assert f"and {least} events or none" in reply.error.reason
            seen.add("small margins")
    assert seen == ends


def setup_times(setup):
    return score_bins(setup.config, 0).times


def metrics_of(reply):
    return reply.content.config_records[reply_record(EVALUATE, "metrics")]


def test_a_run_names_the_sites_that_keep_back_their_counts(keys, caplog):
    config, nodes = at_sites(prepare(parse(keys | AT_SITES | {"rounds": 1})))
    policy = [
        {"score-rows": 1, "score-bins": 50, "survival-rows": 1, "survival-cell": least} for least in (1, 2, 1)
    ]
    setup = prepare(config)
    grid = Deployed(config.items(), *(own | node for own, node in zip(nodes, policy, strict=True)))
    logging.getLogger("flwr").addHandler(caplog.handler)
    result = run_strategy(setup, grid, "deployment")
    logging.getLogger("flwr").removeHandler(caplog.handler)
    assert not result.failure and sorted(result.answers["evaluation"].scores) == [0, 2]
    assert (
        "1 is not in the evaluation: error 2: this site counts no persons for evaluation.auc-times"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"evaluation.auc-times": ""}, "belong together"),
        ({"evaluation.bins": 0}, "belong together"),
        ({"evaluation.auc-times": "5, 2"}, "ascending numbers above 0"),
        ({"evaluation.held-out": 0.0}, "bins needs evaluation.held-out above 0"),
    ],
)
def test_what_cannot_be_counted_is_refused_in_one_sentence(keys, change, why):
    with pytest.raises(SettingError, match=why) as refused:
        prepare(parse(keys | AT_SITES | change))
    assert "\n" not in str(refused.value)


# ------------------------------------------------------------------------------------- a table


def evaluated(*words):
    return CliRunner().invoke(cli.app, ["predict", *map(str, words)])


@pytest.mark.parametrize("kind", [{}, STRATIFIED], ids=["discrete", "stratified"])
def test_predict_evaluates_a_table_at_some_times(keys, kind, tmp_path):
    (result,) = cohort.train([prepare(parse(of(keys, kind)))])
    folder, table, out = write_run(result, tmp_path / "run"), tmp_path / "test.csv", tmp_path / "measures.csv"
    said = evaluated(folder, table, "--evaluate", "--times", "300, 900, 9000").output
    assert "There is no area under the ROC curve at 9000: nobody was observed beyond it." in said
    evaluated(folder, table, "--evaluate", "--times", "300, 900", "--out", out)
    found = {row["name"]: row["value"] for row in csv.DictReader(out.read_text().splitlines())}
    labels = result.setup.dataset.test_labels
    risks = result.setup.objective.predict(result.model, result.setup.dataset.test_features)
    for time in (300, 900):
        own = next(
            float(value)
            for name, value in found.items()
            if name.startswith(f"area under the ROC curve at {time}")
        )
        assert_allclose(own, transcribed(risks, [time], np.abs(labels), labels > 0))
    for words in (["--times", "300"], ["--evaluate", "--times", "soon"], ["--evaluate", "--times", "-3"]):
        assert evaluated(folder, table, *words).exit_code
