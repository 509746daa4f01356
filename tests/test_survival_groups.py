"""Survival curves by a column of categories, such as the arm of a trial, and the log-rank test, from sites' counts."""

import csv
import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from grids import Deployed, over_the_wire
from lifelines import KaplanMeierFitter
from lifelines.statistics import multivariate_logrank_test
from numpy.testing import assert_allclose, assert_array_equal
from problems import query
from site_files import three_sites

from twinflower.errors import SettingError
from twinflower.models.survival import SurvivalTable, TimeGrid, log_rank
from twinflower.queries.survival import CurveAnswers, SurvivalCurve
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.reading import read_answers
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.forecast import forecast
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.settings import parse
from twinflower.strategies.messages import properties_request
from twinflower.survival_labels import signed

SCHEMA = """
[label]
column = "days"
event = "died"
times = [1, 3000]
[columns]
age = { range = [20, 80] }
arm = { categories = ["drug", "placebo", "none"], missing = "zero" }
"""
SIZES = (120, 150, 130)
KEYS = {
    "algorithm": "fedavg", "fedavg.step-size": 0.05, "rounds": 1, "objective.name": "discrete-cox",
    "objective.intervals": "4 x 500", "evaluation.survival-curve": "12 x 250", "evaluation.survival-by": "arm",
    "evaluation.survival-estimate": "kaplan-meier",
}  # fmt: skip
PRIVATE = {"algorithm": "fedpdm", "privacy.mode": "public-state", "privacy.epsilon": 8.0}
PRIVATE |= {"fedavg.step-size": None, "fedpdm.step-size": 0.01}
ARMS = ["drug", "placebo", "none", "missing"]


def patients(seed, rows):
    """With times that are ends of intervals, and hazards that differ between arms and sites."""
    draw = np.random.default_rng(seed)
    arm = draw.choice(ARMS, rows, p=[0.4, 0.4, 0.15, 0.05])
    event = draw.exponential(600.0 + 600 * (arm == "drug") + 200 * seed, rows)
    end = draw.exponential(1200.0, rows)
    days = np.minimum(np.ceil(np.minimum(event, end) / 250) * 250, 3000)
    columns = {"age": draw.integers(20, 81, rows), "arm": np.where(arm == "missing", "NA", arm), "days": days}
    return pd.DataFrame(columns | {"died": (event <= end).astype(int)}).to_csv(index=False)


@pytest.fixture
def keys(tmp_path):
    return three_sites(tmp_path, SCHEMA, patients, (*SIZES, 50)) | KEYS | {"data.name": "tables"}


def run(keys, changes=None):
    keys = keys | (changes or {})
    return prepare(parse({key: value for key, value in keys.items() if value is not None}))


def sites(folder):
    return [pd.read_csv(folder / f"site-{site}.csv").fillna({"arm": "missing"}) for site in range(3)]


def test_curves_are_those_of_lifelines_and_the_log_rank_tests_too(keys, tmp_path):
    persons = inprocess.train(run(keys)).setup.answers["survival"]
    whole, pooled = SurvivalTable.together(persons.values()), pd.concat(sites(tmp_path))
    for name, table in whole.by_group.items():
        own = pooled[pooled.arm == name]
        known = KaplanMeierFitter().fit(own.days, own.died).survival_function_["KM_estimate"]
        curve = table.curve()
        shown = ~np.isnan(curve.survival)
        at = np.searchsorted(known.index, curve.time[shown], side="right") - 1
        assert_allclose(curve.survival[shown], known.iloc[at], atol=1e-12)
        assert_array_equal(curve.at_risk, [(own.days >= time).sum() for time in curve.time])
        assert table.rows == len(own)
    test, known = log_rank([whole]), multivariate_logrank_test(pooled.days, pooled.arm, pooled.died)
    assert test.freedom == 3
    assert test.statistic == pytest.approx(known.test_statistic, rel=1e-8)
    assert test.p_value == pytest.approx(known.p_value, rel=1e-8)
    one = multivariate_logrank_test(sites(tmp_path)[1].days, sites(tmp_path)[1].arm, sites(tmp_path)[1].died)
    assert log_rank([persons[1]]).statistic == pytest.approx(one.test_statistic, rel=1e-8)


def slowly(frames, names):
    """The statistic of the test stratified by these tables, time by time."""
    gap, covariance = np.zeros(len(names)), np.zeros((len(names), len(names)))
    for frame in frames:
        for time in np.unique(frame.days):
            risk = np.array([((frame.arm == name) & (frame.days >= time)).sum() for name in names])
            died = np.array(
                [((frame.arm == name) & (frame.days == time) & (frame.died == 1)).sum() for name in names]
            )
            n, d, p = risk.sum(), died.sum(), risk / risk.sum()
            gap += died - d * p
            covariance += (np.diag(p) - np.outer(p, p)) * d * (n - d) / (n - 1 if n > 1 else 1)
    return gap[1:] @ np.linalg.solve(covariance[1:, 1:], gap[1:])


def test_the_stratified_test_sums_over_sites(keys, tmp_path):
    """And is not that of the pooled persons where hazards differ between sites."""
    persons = inprocess.train(run(keys)).setup.answers["survival"]
    stratified = log_rank(persons.values())
    assert stratified.statistic == pytest.approx(slowly(sites(tmp_path), ARMS), rel=1e-8)
    pooled = log_rank([SurvivalTable.together(persons.values())])
    assert pooled.statistic == pytest.approx(slowly([pd.concat(sites(tmp_path))], ARMS), rel=1e-8)
    assert abs(pooled.statistic - stratified.statistic) > 0.01


def test_a_log_rank_test_has_its_level_and_sees_a_difference():
    """1,000 data sets without a difference: one in twenty is below .05."""
    draw, grid, small = np.random.default_rng(0), TimeGrid((0.5, 1.0, 1.5, 2.0)), 0
    for _ in range(1000):
        labels = signed(draw.exponential(1.0, 200), draw.random(200) < 0.8)
        arm = draw.integers(0, 2, 200)
        small += compared(grid, labels, arm).p_value < 0.05
    assert abs(small / 1000 - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 1000)
    labels = signed(draw.exponential(1.0 + arm, 200), np.ones(200, bool))
    assert compared(grid, labels, arm).p_value < 0.01


def compared(grid, labels, arm):
    groups = {str(own): grid.counts(labels[arm == own]) for own in range(2)}
    return log_rank([SurvivalTable.of_groups(groups, np.array(grid.edges), len(labels), 0.0, False)])


def test_where_nothing_can_be_compared_there_is_no_test():
    grid = TimeGrid((1.0, 2.0))
    assert compared(grid, np.array([-0.5, -1.5]), np.array([0, 1])) is None  # nobody had the event
    assert compared(grid, np.array([0.5, 1.5]), np.array([0, 0])) is None  # nobody is in the other group
    assert compared(grid, np.array([0.5, 1.5]), np.array([0, 1])).freedom == 1
    assert log_rank([]) is None


# ------------------------------------------------------------------------------------------ the runs


@pytest.mark.parametrize("changes", [{}, PRIVATE])
def test_messages_and_arrays_count_the_same(changes, keys):
    setup = run(keys, changes)
    (arrays,) = cohort.train([setup])
    for train in (inprocess.train, over_the_wire):
        for client, table in train(setup).setup.answers["survival"].items():
            known = arrays.setup.answers["survival"][client]
            assert list(table.groups) == list(known.groups) == ARMS
            assert_array_equal(list(table.groups.values()), list(known.groups.values()))
    found = arrays.setup.answers["survival"]
    back = CurveAnswers.restored(json.loads(json.dumps(CurveAnswers.stored(found))))
    for client, table in found.items():
        assert_array_equal(list(back[client].groups.values()), list(table.groups.values()))
        assert back[client][2:5] == table[2:5]


@pytest.mark.parametrize("changes", [{}, PRIVATE])
def test_numbers_at_risk_stand_below_every_curve_at_the_same_ends_of_intervals(changes, keys, tmp_path):
    """Those of the table at the ticks of the axis: at an end, whoever enters the next interval; none after a curve."""
    folder = write_run(inprocess.train(run(keys, changes)), tmp_path / "run")
    page = report_run(folder).read_text()
    shown = dict(re.findall(r'aria-label="([^"]+), at risk: ([^"]+)"', page))
    table = SurvivalTable.together(read_answers(folder, SurvivalCurve).values())
    known = {name: own.curve() for name, own in {"all sites": table, **table.by_group}.items()}
    assert known.keys() < shown.keys() and len(shown) == len(known) + len(SIZES)
    for name, text in shown.items():
        numbers = dict(reversed(part.split(" at ")) for part in text.split(", "))
        assert list(numbers) == ["0", "750", "1500", "2250", "3000"]
        if name in known:
            entering, end = known[name].at_risk[::3], np.append(1.0, known[name].survival)[::3]
            pairs = zip(entering, end[:-1], strict=True)
            assert list(numbers.values())[:-1] == [f"{n:.0f}" if at == at else "-" for n, at in pairs]


@pytest.mark.parametrize("changes", [{}, PRIVATE])
def test_the_folder_and_the_report_have_the_groups(changes, keys, tmp_path):
    result = inprocess.train(run(keys, changes))
    folder = write_run(result, tmp_path / "run")
    with (folder / "survival.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["client"] == "all"]
    for name, table in SurvivalTable.together(result.setup.answers["survival"].values()).by_group.items():
        own = [float(row["survival"]) for row in rows if row["group"] == name]
        assert_allclose(own, table.curve().survival)
    read, page = read_answers(folder, SurvivalCurve), report_run(folder).read_text()
    for client, table in result.setup.answers["survival"].items():
        for name, group in table.by_group.items():
            assert_allclose(read[client].by_group[name].cells, group.cells, atol=0.5)
    assert "Survival by arm" in page and "drug: at risk" in page
    test = log_rank(result.setup.answers["survival"].values())
    assert (
        ("There is no log-rank test, because its p-value would be wrong" in page)
        == bool(changes)
        == (test is None)
    )
    assert (
        changes or f"Log-rank test, stratified by site: chi-squared {test.statistic:.4g} on 3 degrees" in page
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"evaluation.survival-by": "age"},
            r"survival-by must be a column of categories in a schema \(arm\); got 'age'",
        ),
        ({"evaluation.survival-curve": ""}, "survival-by needs evaluation.survival-curve"),
    ],
)
def test_what_is_refused(changes, sentence, keys):
    with pytest.raises(SettingError, match=sentence):
        run(keys, changes)


def test_a_category_with_the_name_of_the_missing_values_is_refused(keys, tmp_path):
    categories = '{ drug = ["drug"], placebo = ["placebo"], missing = ["none"] }'
    (tmp_path / "schema.toml").write_text(SCHEMA.replace('["drug", "placebo", "none"]', categories))
    with pytest.raises(
        SettingError, match="survival-by cannot count category 'missing' of column 'arm'.*rename it"
    ):
        run(keys)
    assert run(keys, {"evaluation.survival-by": ""}).first


@pytest.mark.parametrize(("cell", "refused"), [(5, True), (1, False)])
def test_a_site_s_policy_holds_for_every_cell_of_every_group(cell, refused, keys):
    """In all, the site has 5 persons with the event, and 5 without, but not in every group."""
    setup = run(keys, {"evaluation.survival-curve": "1000"})
    config, nodes = at_sites(setup)
    nodes = [own | {"survival-rows": 1, "survival-cell": cell} for own in nodes]
    reply = Deployed(config.items(), *nodes).answer(properties_request(1))
    assert reply.has_error() == refused
    assert not refused or "in every interval of every group: choose longer" in reply.error.reason
    config, nodes = at_sites(run(keys, {"evaluation.survival-curve": "1000", "evaluation.survival-by": ""}))
    nodes = [own | {"survival-rows": 1, "survival-cell": cell} for own in nodes]
    assert not Deployed(config.items(), *nodes).answer(properties_request(1)).has_error()


# ----------------------------------------------------------------------------------------- with noise


def test_replacing_a_person_moves_the_counts_of_all_groups_by_sqrt_2_at_most(keys):
    """Also into another group; the release is charged as without groups."""
    setup, plain = run(keys, PRIVATE), run(keys, PRIVATE | {"evaluation.survival-by": ""})
    counts = setup.first.counts_of(0)
    assert counts.release == plain.first.counts_of(0).release
    part, moves = counts.parts[0], []
    for label, code in ((1.0, 0), (1.0, 3), (-1.0, 0), (1e9, 2), (np.nan, 1)):
        labels, codes = part.labels.copy(), part.codes.copy()
        labels[0], codes[0] = label, code
        moves.append(type(part)(labels, part.grid, codes, part.groups).counts())
    assert all(own.sum() == SIZES[0] for own in moves)
    steps = [np.linalg.norm(one - other) for one in moves for other in moves]
    assert max(steps) == pytest.approx(counts.release.sensitivity) == pytest.approx(math.sqrt(2))


def test_the_noise_of_a_group_is_in_its_deviations():
    """At fixed persons, the deviation over many draws of the noise is what is added to the sampling's: in a group,
    whose number of persons is not public, and in all."""
    draw, grid, sigma = np.random.default_rng(0), TimeGrid((1.0, 2.0, 3.0)), 2.0
    exact = {
        str(own): grid.counts(signed(draw.exponential(2.0 + own, 900), draw.random(900) < 0.7))
        for own in (0, 1)
    }

    def table(noise):
        groups = {name: own + noise * draw.normal(size=own.shape) for name, own in exact.items()}
        return SurvivalTable.of_groups(groups, np.array(grid.edges), 1800, noise, True)

    def curves(noise):
        own = table(noise)
        return [part.curve() for part in (own, *own.by_group.values())]

    known, drawn = curves(0.0), [curves(sigma) for _ in range(500)]
    for place, one in enumerate(known):
        own = [found[place] for found in drawn]
        added = np.mean([found.deviation**2 for found in own], 0) - one.deviation**2
        assert_allclose(added, np.var([found.survival for found in own], axis=0), rtol=5 * np.sqrt(2 / 500))


def test_the_plan_names_the_groups(keys):
    told = dict(forecast(run(keys, PRIVATE)))
    assert told["survival curve"].startswith("in 12 intervals and 4 groups, for 0.1 of the budget")
    noise = run(keys, PRIVATE).first.total_sigma * math.sqrt(4)  # all persons are the sum of four groups
    assert told["survival curve"].endswith(f"noise of {noise:.4g}")
    assert query(run(keys, PRIVATE), "survival").squared_move == 2
