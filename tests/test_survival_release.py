"""The counts for a survival curve in runs: what leaves a site, what it costs, and what the folder of a run shows."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from cuts import cut_off, equal
from grids import Deployed, over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from problems import query
from site_files import three_sites

from twinflower import queries
from twinflower.concordance import concordance
from twinflower.data.dataset import ARRAYS, Dataset
from twinflower.errors import SettingError
from twinflower.models.survival import SurvivalTable
from twinflower.privacy.plan import COUNTS
from twinflower.queries.first import COUNTS_ROUND
from twinflower.queries.survival import SurvivalCurve
from twinflower.simulation.app import client_app
from twinflower.simulation.app.site import read_site
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.results.reading import read_answers
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.client_factory import guard_of
from twinflower.simulation.runs.forecast import forecast, noise_rows
from twinflower.simulation.runs.setup import prepare, prepare_rows
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.strategies.messages import properties_request
from twinflower.survival_labels import signed, unsigned

SIZES = (150, 200, 250)
KEYS = {
    "algorithm": "fedavg", "fedavg.step-size": 0.05, "rounds": 3, "regulariser.name": "none", "data.name": ARRAYS,
    "objective.name": "discrete-cox", "objective.intervals": "4 x 300", "evaluation.survival-curve": "8 x 150",
}  # fmt: skip
PRIVATE = {"algorithm": "fedpdm", "privacy.mode": "public-state", "privacy.epsilon": 8.0}
PRIVATE |= {"fedavg.step-size": None, "fedpdm.step-size": 0.01}


def persons(seed=0):
    draw = np.random.default_rng(seed)
    rows = sum(SIZES)
    times, end = draw.exponential(700.0, rows), draw.exponential(900.0, rows)
    labels = signed(np.minimum(times, end), times <= end)
    features = draw.normal(size=(rows, 3)) / 4
    return Dataset(ARRAYS, features, labels, features, labels, 0, sites=SIZES)


def run(changes=None, data=None):
    keys = {key: value for key, value in (KEYS | (changes or {})).items() if value is not None}
    return prepare_rows(parse(keys), data or persons())


# ------------------------------------------------------------------------------------------ the runs


@pytest.mark.parametrize("changes", [{}, PRIVATE])
def test_messages_and_arrays_count_the_same(changes):
    setup = run(changes)
    own = cohort.train([setup])[0].setup.answers["survival"]
    assert own.keys() == {0, 1, 2}
    for train in (inprocess.train, over_the_wire):
        other = train(setup).setup.answers["survival"]
        for client, table in own.items():
            assert_array_equal(other[client].cells, table.cells)
            assert (other[client].rows, other[client].sigma) == (table.rows, table.sigma)


def test_without_privacy_the_counts_are_those_of_all_persons():
    setup = run()
    found = SurvivalTable.together(cohort.train([setup])[0].setup.answers["survival"].values())
    assert_array_equal(found.cells, query(setup, "survival").grid.counts(persons().labels))
    assert (found.rows, found.sigma) == (600, 0.0)


def test_single_precision_counts_the_same():
    """Also at the edges, which are then numbers of that precision, too."""
    data = persons()
    data = replace(data, labels=np.sign(data.labels) * (np.floor(np.abs(data.labels) / 30.1) + 1) * 30.1)
    keys = {"evaluation.survival-curve": "40 x 30.1", "rounds": 1}
    double, single = (
        cohort.train([run(keys | {"precision": own}, data)])[0].setup.answers["survival"]
        for own in ("double", "single")
    )
    for client in range(3):
        assert_array_equal(single[client].cells, double[client].cells)


def test_every_seed_has_noise_of_its_own_and_the_same_alone():
    setups = [replace_seed(run(PRIVATE), seed) for seed in (0, 1)]
    together = cohort.train(setups)
    assert not np.allclose(
        together[0].setup.answers["survival"][0].cells, together[1].setup.answers["survival"][0].cells
    )
    for setup, result in zip(setups, together, strict=True):
        alone = cohort.train([setup])[0].setup.answers["survival"]
        assert_array_equal(alone[0].cells, result.setup.answers["survival"][0].cells)


def replace_seed(setup, seed):
    return prepare_rows(replace(setup.config, seed=seed), setup.dataset)


def test_a_run_without_a_curve_counts_nothing(tmp_path):
    result = inprocess.train(run({"evaluation.survival-curve": ""}))
    write_run(result, tmp_path)
    assert "survival" not in result.setup.answers
    assert not (tmp_path / "survival.csv").exists()
    assert "Survival" not in report_run(tmp_path).read_text()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"objective.name": "huber", "objective.intervals": None}, "survival-curve needs times of events as labels"),
        ({"evaluation.survival-curve": "3, 2"}, "survival-curve must be 1 to 1000 ascending numbers"),
        (PRIVATE | {"privacy.survival-share": 1.0}, "survival-share must be from 0.001 to 0.999"),
        (PRIVATE | {"privacy.tune-share": 0.1}, "tune-share and survival curves share no budget, because"),
        (
            {"algorithm": "isrl-dp", "fedavg.step-size": None, "privacy.mode": "gradient", "privacy.epsilon": 8.0}
            | {"privacy.trust": "sum", "privacy.honest-sites": 2},
            "no plan for the counts for survival curves: leave evaluation.survival-curve empty$",
        ),
        (
            {"algorithm": "fedpdm", "fedavg.step-size": None, "privacy.mode": "as-published", "privacy.epsilon": 8.0},
            "privacy.mode = as-published have no plan for the counts",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(changes, sentence):
    with pytest.raises(SettingError, match=sentence):
        run(changes)


def test_what_is_refused_names_every_question_that_is_asked(monkeypatch):
    other = type("Other", (SurvivalCurve,), {"follows": "medians", "otherwise": "ask for none"})
    monkeypatch.setattr(queries, "QUERIES", (SurvivalCurve, other))
    with pytest.raises(
        SettingError, match=r"share and survival curves and medians share .* empty and ask for none$"
    ):
        run(PRIVATE | {"privacy.tune-share": 0.1})


# ------------------------------------------------------------------------------------------ the cost


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"privacy.survival-share": 0.5},
        {"privacy.protects": "group", "privacy.group-size": 3},
        {"evaluation.held-out": 0.2, "evaluation.loss-bound": 2.0, "privacy.evaluation-share": 0.2},
    ],
)
def test_the_counts_attain_their_charge_and_never_exceed_it(changes):
    """Replay: the worst move of the counts over the noise that a client adds is what its ledger is charged."""
    setup = run(PRIVATE | changes)
    share = setup.config.privacy.shares.survival_share
    for client in range(3):
        counts, replaced = setup.first.counts_of(client), setup.config.privacy.unit.rows
        ledger = Noted()
        noise = guard_of(setup, client, ledger, "run").open(counts.release, COUNTS_ROUND, "run")
        (charge,) = ledger.noted
        before, moves = counts.parts[0].counts(), []
        for early, late in ((1.0, -1.0), (-1.0, 1e9), (np.nan, 1.0), (150.0, 150.1)):
            one, other = (counts.parts[0].labels.copy() for _ in range(2))
            one[:replaced], other[:replaced] = early, late
            moved = (counts.parts[0].grid.counts(own) for own in (one, other))
            moves.append(np.linalg.norm(np.subtract(*moved)) / charge.sigma)
        assert max(moves) ** 2 <= charge.cost * (1 + 1e-12)
        assert max(moves) ** 2 >= 0.99 * charge.cost
        assert noise(np.zeros(40_000)).std() == pytest.approx(charge.sigma, rel=5 / math.sqrt(80_000))
        assert counts.counts() == pytest.approx(before)
        assert charge.cost == pytest.approx(share * setup.plan.mu_limit**2, rel=1e-9)
    assert setup.plan.epsilon_limit == pytest.approx(8.0)


class Noted:
    """A ledger that notes every charge."""

    def __init__(self):
        self.noted = []

    def charge(self, charge, budget):
        assert budget.fits(charge.cost)
        self.noted.append(charge)


def test_the_noise_is_as_large_as_planned():
    """Chi-square at 5e-10, pooled over the counts of many runs."""
    exact = query(run(), "survival").grid
    squares = size = 0.0
    for seed in range(40):
        setup = replace_seed(run(PRIVATE), seed)
        for client, table in setup.first.simulated().answers["survival"].items():
            rows = setup.dataset.labels[setup.partition.of(client)]
            squares += float((((table.cells - exact.counts(rows)) / table.sigma) ** 2).sum())
            size += exact.cells
            assert table.sigma == setup.first.sigma(client)
    assert abs(squares - size) < 6.2 * math.sqrt(2 * size)


def test_the_plan_shows_the_counts():
    setup = run(PRIVATE)
    told = dict(forecast(setup))
    assert told["survival curve"].startswith(
        "in 8 intervals, for 0.1 of the budget; a total count of 600 rows"
    )
    assert "the counts before round 1 included" in told["guarantee"]
    assert noise_rows(setup)[0][:2] == ("counts of persons", "0")


# ---------------------------------------------------------------------------------- what is left behind


@pytest.mark.parametrize("changes", [{}, PRIVATE])
def test_the_folder_holds_the_curves(tmp_path, changes):
    result = inprocess.train(run(changes))
    write_run(result, tmp_path)
    with (tmp_path / "survival.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["client"] == "all"]
    assert {row["site"] for row in rows} == {"all"}
    curve = SurvivalTable.together(result.setup.answers["survival"].values()).curve()
    assert_allclose([float(row["survival"]) for row in rows], curve.survival)
    assert_allclose([float(row["low"]) for row in rows], curve.low)
    read = SurvivalTable.together(read_answers(tmp_path, SurvivalCurve).values())
    for name, column in read.curve()._asdict().items():
        assert_allclose(column, getattr(curve, name), err_msg=name, atol=1e-9)
    page = report_run(tmp_path).read_text()
    assert "Fraction without the event" in page
    assert "The median survival is " in page
    assert ("stand out from it" in page) == bool(changes)


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        ("actuarial", "as at risk for half of it"),
        ("kaplan-meier", "as at risk up to its end, so the curve lies"),
    ],
)
def test_every_output_says_which_estimate_it_is(tmp_path, estimate, words):
    """By default the actuarial one."""
    chosen = {} if estimate == "actuarial" else {"evaluation.survival-estimate": estimate}
    result = inprocess.train(run(chosen))
    write_run(result, tmp_path)
    path = tmp_path / "survival.csv"
    assert {row["estimate"] for row in csv.DictReader(path.read_text().splitlines())} == {estimate}
    page = report_run(tmp_path).read_text()
    assert words in page and f"{estimate.title()} estimate. The band is" in page
    assert all(
        own.actuarial == (estimate == "actuarial") for own in result.setup.answers["survival"].values()
    )
    read = read_answers(tmp_path, SurvivalCurve)
    assert all(own.actuarial == (estimate == "actuarial") for own in read.values())


@pytest.mark.parametrize("changes", [{}, PRIVATE])
def test_a_run_that_was_cut_off_keeps_its_counts(tmp_path, changes):
    setup = run({**changes, "output.checkpoint-every": 2, "rounds": 5})
    whole = setup.with_state_dir(tmp_path / "whole")
    expected = inprocess.train(whole, checkpoints=Checkpoints(tmp_path / "whole", 2))
    for number, after in (
        (5, True),
        (10, False),
    ):  # in round 1, with the checkpoint of round 0, and in round 3
        folder = tmp_path / f"{number}"
        mine = setup.with_state_dir(folder)
        assert cut_off(mine, folder, number, after, 2)
        found = inprocess.train(mine, checkpoints=Checkpoints(folder, 2))
        equal(found, expected)
        for client, table in expected.setup.answers["survival"].items():
            assert_array_equal(found.setup.answers["survival"][client].cells, table.cells)


@pytest.mark.parametrize("runtime", [inprocess, cohort])
def test_a_run_cut_off_after_its_last_evaluation_keeps_the_scores_of_the_sites(tmp_path, runtime):
    setup = run({"evaluation.held-out": 0.2, "output.checkpoint-every": 3, "rounds": 3})
    found = []
    for _ in range(2):  # the second one finds the checkpoint of the last round
        mine, checkpoints = setup.with_state_dir(tmp_path), Checkpoints(tmp_path, 3)
        train = runtime.train
        (result,) = (
            train([mine], checkpoints=checkpoints)
            if runtime is cohort
            else [train(mine, checkpoints=checkpoints)]
        )
        found.append(result.answers["evaluation"].by_site)
    assert found[0] == found[1] and len(found[0]) == 3


def test_sites_without_events_and_without_censoring(tmp_path):
    """All persons of one site are censored and all of another have the event; a curve of 1 is one, too."""
    data = persons()
    labels = np.abs(data.labels)
    labels[: SIZES[0]] *= -1
    result = inprocess.train(run(data=replace(data, labels=labels)))
    assert_array_equal(result.setup.answers["survival"][0].curve().survival, 1.0)
    assert result.setup.answers["survival"][2].cells[8:16].sum() == 0
    write_run(result, tmp_path)
    page = report_run(tmp_path).read_text()
    assert "not reached" in page and "inf to" not in page
    censored = inprocess.train(run(data=replace(data, labels=-np.abs(labels))))
    assert math.isinf(
        SurvivalTable.together(censored.setup.answers["survival"].values()).curve().median().value
    )


# ----------------------------------------------------------------------------------- concordance by site


def test_every_site_finds_the_concordance_of_its_held_out_rows(tmp_path):
    setup = run({"evaluation.held-out": 0.3})
    results = [train(setup) for train in (inprocess.train, lambda own: cohort.train([own])[0])]
    for result in results:
        for site in range(3):
            rows = setup.held_rows(site)
            risk = setup.objective.predict(result.model, rows.features)
            expected = concordance(risk, *unsigned(rows.labels)).share
            assert result.answers["evaluation"].by_site[site] == pytest.approx(expected)
    write_run(results[0], tmp_path)
    assert "held-out C-index" in report_run(tmp_path).read_text()
    private = PRIVATE | {"privacy.evaluation-share": 0.2, "evaluation.loss-bound": 5.0}
    assert not cohort.train([run(private | {"evaluation.held-out": 0.3})])[0].answers["evaluation"].by_site


# ------------------------------------------------------------------------------------- deployed sites

SCHEMA = """
[label]
column = "days"
event = "died"
times = [1, 3000]
[columns]
age = { range = [20, 80] }
"""


def patients(seed, rows):
    draw = np.random.default_rng(seed)
    days, died = np.ceil(draw.exponential(700.0, rows)), draw.integers(2, size=rows)
    lines = zip(draw.integers(20, 80, rows), days, died, strict=True)
    return "\n".join(["age,days,died", *(f"{a},{d:.0f},{e}" for a, d, e in lines), ""])


@pytest.mark.parametrize(
    ("policy", "grid", "why"),
    [
        (
            {"survival-rows": None},
            "4 x 500",
            "this site counts no persons for evaluation.survival-curve: its node config has no",
        ),
        ({"survival-rows": 121}, "4 x 500", "unless there are at least 121 in all"),
        (
            {"survival-rows": 120},
            "100 x 20",
            "and 5 events or none, and 5 censored or none, in every interval",
        ),
        ({"survival-rows": 120}, "2 x 700", ""),
        ({"survival-rows": 120, "survival-cell": 1}, "100 x 20", ""),
    ],
)
def test_a_site_decides_whether_it_counts_without_noise(policy, grid, why, tmp_path):
    keys = three_sites(tmp_path, SCHEMA, patients, (120, 150, 130, 50)) | KEYS | {"data.name": "tables"}
    config, nodes = at_sites(prepare(parse(keys | {"evaluation.survival-curve": grid})))
    configs = [
        {key: value for key, value in (own | {"survival-cell": 5} | policy).items() if value is not None}
        for own in nodes
    ]
    reply = Deployed(config.items(), *configs).answer(properties_request(1))
    assert (why in str(reply.error.reason)) if why else not reply.has_error()


@pytest.mark.parametrize(("intervals", "refused"), [("2 x 700", False), ("100 x 20", True)])
def test_a_site_sends_no_information_matrix_that_tells_of_few_events(intervals, refused, tmp_path):
    keys = three_sites(tmp_path, SCHEMA, patients, (320, 350, 330, 50)) | KEYS | {"data.name": "tables"}
    keys |= {"evaluation.standard-errors": True, "objective.intervals": intervals, "data.row-scaling": "all"}
    config, nodes = at_sites(prepare(parse(keys | {"evaluation.survival-curve": ""})))
    nodes = [own | {"standard-error-rows": 30, "survival-cell": 5} for own in nodes]
    reply = Deployed(config.items(), *nodes).answer(properties_request(1))
    assert reply.has_error() == refused
    why = "this site sends no information matrix unless there are 5 events or none, and 5 censored or none, in every"
    assert not refused or why in str(reply.error.reason)


def test_nodes_with_tables_of_their_own_count_the_same(tmp_path):
    keys = three_sites(tmp_path, SCHEMA, patients, (120, 150, 130, 50)) | KEYS | {"data.name": "tables"}
    setup = prepare(parse(keys))
    config, nodes = at_sites(setup)
    nodes = [own | {"survival-rows": 1, "survival-cell": 1} for own in nodes]
    found = run_strategy(prepare(config), Deployed(config.items(), *nodes), "inprocess").setup.answers[
        "survival"
    ]
    for client, table in cohort.train([setup])[0].setup.answers["survival"].items():
        assert_array_equal(found[client].cells, table.cells)
        assert found[client].rows == table.rows


@pytest.mark.parametrize("private", [False, True])
def test_private_ranges_and_a_curve_are_one_release(private, tmp_path):
    keys = (
        three_sites(tmp_path, SCHEMA.replace("[20, 80]", '"private"'), patients, (120, 150, 130, 50)) | KEYS
    )
    keys |= {"data.name": "tables", **(PRIVATE if private else {})}
    setup = prepare(parse({key: value for key, value in keys.items() if value is not None}))
    one, other = cohort.train([setup])[0], inprocess.train(setup)
    assert one.setup.ranges == other.setup.ranges
    assert_allclose(one.model, other.model, rtol=1e-9)
    for client, table in one.setup.answers["survival"].items():
        assert_array_equal(other.setup.answers["survival"][client].cells, table.cells)
        counts = setup.first.counts_of(client)
        assert counts.release.sensitivity == pytest.approx(2.0)  # of two histograms
        if not private:
            assert_array_equal(table.cells, counts.parts[1].counts())
    if private:
        plan = setup.plan
        assert plan.share(COUNTS) == pytest.approx(0.2 + 0.1)  # of both shares
        assert plan.epsilon_limit == pytest.approx(8.0)


def test_a_site_charges_its_persons_to_its_ledger(tmp_path):
    """Secret noise, a ledger on disk, and together with the rounds no more than planned."""
    keys = (
        three_sites(tmp_path, SCHEMA, patients, (120, 150, 130, 50))
        | KEYS
        | PRIVATE
        | {"data.name": "tables"}
    )
    setup = prepare(parse({key: value for key, value in keys.items() if value is not None}))
    config, nodes = at_sites(setup)
    policy = [{"lifetime-epsilon": 8.01, "state-dir": str(tmp_path / f"{number}")} for number in range(3)]
    grid = Deployed(config.items(), *(own | node for own, node in zip(policy, nodes, strict=True)))
    result = run_strategy(prepare(config), grid, "deployment")
    assert not result.failure
    exact = setup.first.counts_of(0).parts[0].counts()
    assert np.abs(result.setup.answers["survival"][0].cells - exact).min() > 0
    site = read_site({"partition-id": 0, "num-partitions": 3} | policy[0] | nodes[0])
    charges = client_app.site_guard(setup, site, "2").ledger.charges()
    assert [charge.round for charge in charges] == [0, 1, 2, 3]
    assert charges[0].sensitivity == pytest.approx(math.sqrt(2))
    assert charges[0].cost / sum(charge.cost for charge in charges) == pytest.approx(0.1)
    assert sum(charge.cost for charge in charges) == pytest.approx(setup.plan.mu_limit**2)
