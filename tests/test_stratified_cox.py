"""Cox's partial likelihood, stratified by site: derivatives, padded rows, and the estimates of statsmodels."""

import numpy as np
import pandas
import pytest
from lifelines import CoxPHFitter
from numpy.testing import assert_allclose
from site_files import three_sites
from statsmodels.duration.hazard_regression import PHReg

import twinflower
from twinflower.errors import SettingError
from twinflower.models.information import Information
from twinflower.problems.interfaces import Batch
from twinflower.problems.stratified_cox import TIES, StratifiedCoxObjective
from twinflower.simulation.report.messages import row_line
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse
from twinflower.survival_labels import signed, unsigned


def persons(seed, rows, columns=3, step=60.0):
    """Rows with tied times; a site's baseline depends on the seed."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(rows, columns))
    rate = np.exp(features @ [0.7, -0.4, 0.2][:columns]) / (300 + 200 * seed)
    times, ends = (
        np.ceil(own / step) * step for own in (draw.exponential(1 / rate), draw.exponential(500, rows))
    )
    return Batch(features, signed(np.minimum(times, ends), times <= ends))


def model(ties, **settings):
    return StratifiedCoxObjective(ties=ties, **settings).build(3, 0)


def slowly(x, rows, ties):
    """The likelihood from its definition, one time after the other."""
    times, events = unsigned(rows.labels)
    scores, total = rows.features @ x, 0.0
    for time in np.unique(times[events]):
        tied, at_risk = events & (times == time), times >= time
        for place, score in enumerate(scores[tied]):
            share = place / tied.sum() if ties == "efron" else 0.0
            highest = scores[at_risk].max()
            rates = np.exp(scores - highest) * (at_risk - share * tied)
            total += np.log(rates[at_risk].sum()) + highest - score
    return total / len(times)


@pytest.mark.parametrize("ties", TIES)
def test_the_value_is_that_of_the_definition(ties):
    rows, x = persons(0, 60), np.array([0.3, 0.1, -2.0])
    assert float(model(ties).value(x, rows)) == pytest.approx(slowly(x, rows, ties), rel=1e-12)
    large = 500.0 * x  # rates that would overflow
    assert np.isfinite(model(ties).value(large, rows))


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("spread", [20.0, 50.0, 200.0])
def test_digits_do_not_depend_on_the_spread_of_the_scores(ties, spread):
    """Early rows with the largest rates, and later ties whose rates are exp(spread) times smaller."""
    rows, x, own = persons(4, 40), np.array([0.3, 0.1, -0.5]), model(ties)
    order = np.argsort(np.abs(rows.labels))
    features = rows.features.copy()
    features[order, 0] += np.linspace(spread, 0, 40) / x[0]
    rows = rows._replace(features=features)
    assert float(own.value(x, rows)) == pytest.approx(slowly(x, rows, ties), rel=1e-12)
    for place, step in enumerate(1e-5 * np.eye(3) / (1 + spread)):
        slope = (slowly(x + step, rows, ties) - slowly(x - step, rows, ties)) / (2 * step[place])
        assert own.grad(x, rows)[place] == pytest.approx(slope, abs=1e-6 * (1 + spread))


@pytest.mark.parametrize("ties", TIES)
def test_gradient_and_hessian_are_the_derivatives(ties):
    rows, x, own = persons(1, 50), np.array([0.3, 0.1, -0.5]), model(ties, l2=0.1)
    found = Information.of(own, x, rows)
    for place, step in enumerate(1e-6 * np.eye(3)):
        slope = (own.value(x + step, rows) - own.value(x - step, rows)) / 2e-6
        bend = (own.grad(x + step, rows) - own.grad(x - step, rows)) / 2e-6
        assert own.grad(x, rows)[place] == pytest.approx(float(slope), abs=1e-8)
        assert_allclose(found.matrix[place] / 50 + 0.1 * np.eye(3)[place], bend, atol=1e-7)


@pytest.mark.parametrize("ties", TIES)
def test_padded_clients_are_those_alone(ties):
    sites = [persons(seed, rows) for seed, rows in ((0, 40), (1, 25), (2, 33))]
    places = [np.where(np.arange(40) < len(own.labels), np.arange(40), 0) for own in sites]
    weights = [(np.arange(40) < len(own.labels)) / len(own.labels) for own in sites]
    features, labels = (
        np.stack([part[place] for part, place in zip(parts, places, strict=True)])
        for parts in ([own.features for own in sites], [own.labels for own in sites])
    )
    x, own = np.random.default_rng(3).normal(size=(3, 3)), model(ties)
    batch = Batch(features, labels, np.stack(weights))
    together = own.value(x, batch), own.grad(x, batch), own.score(x, batch)
    for place, site in enumerate(sites):
        alone = own.value(x[place], site), own.grad(x[place], site), own.score(x[place], site)
        for one, other in zip(together, alone, strict=True):
            assert_allclose(one[place], other, rtol=1e-12, atol=1e-14)


def maximum(sites, ties):
    """The maximum of the likelihood by Newton's method, and the standard errors there."""
    x, own = np.zeros(3), model(ties)
    for _ in range(30):
        found = Information.together([Information.of(own, x, rows) for rows in sites])
        x = x - np.linalg.solve(found.matrix, found.gradient)
    return x, np.sqrt(np.diag(np.linalg.inv(found.matrix)))


@pytest.mark.parametrize("ties", TIES)
def test_the_maximum_and_its_errors_are_those_of_statsmodels(ties):
    sites = [persons(seed, 120) for seed in range(3)]
    x, errors = maximum(sites, ties)
    features, labels = (np.concatenate([rows[part] for rows in sites]) for part in (0, 1))
    times, events = unsigned(labels)
    known = PHReg(times, features, status=events, strata=np.repeat(np.arange(3), 120), ties=ties).fit()
    assert_allclose(x, known.params, rtol=1e-10)
    assert_allclose(errors, known.bse, rtol=1e-10)


def test_the_maximum_and_its_errors_are_those_of_lifelines_which_has_ties_by_efron():
    sites = [persons(seed, 120) for seed in range(3)]
    times, events = unsigned(np.concatenate([own.labels for own in sites]))
    table = pandas.DataFrame(np.concatenate([own.features for own in sites]), columns=["a", "b", "c"])
    table = table.assign(time=times, event=events, site=np.repeat(np.arange(3), 120))
    fit = {"precision": 1e-12, "r_precision": 1e-14}
    known = CoxPHFitter().fit(table, "time", "event", strata=["site"], fit_options=fit)
    x, errors = maximum(sites, "efron")
    assert_allclose(x, known.params_, rtol=1e-8, atol=1e-10)
    assert_allclose(errors, known.standard_errors_, rtol=1e-8)


def test_a_site_without_events_says_nothing():
    rows = persons(0, 30)
    rows = rows._replace(labels=-np.abs(rows.labels))
    x = np.ones(3)
    assert float(model("efron").value(x, rows)) == 0.0
    assert_allclose(model("efron").grad(x, rows), 0.0)


def test_there_are_no_bounds():
    with pytest.raises(SettingError, match="is not a sum over records"):
        model("efron").bounds(1.0)
    with pytest.raises(SettingError, match="set objective.clip-norm to 0; got 1"):
        StratifiedCoxObjective(clip_norm=1.0).check()


# ------------------------------------------------------------------------------------------ runs

SCHEMA = """
[label]
column = "days"
event = "died"
times = [1, 5000]
[columns]
age = { range = [20, 80] }
dose = { range = [0, 10] }
"""


def patients(seed, rows):
    draw = np.random.default_rng(seed)
    age, dose = draw.integers(20, 81, rows), draw.uniform(0, 10, rows).round(2)
    rate = np.exp(0.03 * (age - 50) - 0.15 * dose) / (400 + 200 * seed)
    times, ends = (
        np.ceil(own / 30) * 30 for own in (draw.exponential(1 / rate), draw.exponential(900, rows))
    )
    days, died = np.minimum(np.minimum(times, ends), 4980), times <= ends
    lines = [f"{a},{d},{t:.0f},{e:d}" for a, d, t, e in zip(age, dose, days, died, strict=True)]
    return "\n".join(["age,dose,days,died", *lines, ""])


@pytest.fixture
def keys(tmp_path):
    run = {"algorithm": "fedavg", "rounds": 400, "local.max-steps": 1, "fedavg.step-size": 3.0}
    run |= {"objective.name": "stratified-cox", "data.row-scaling": "all", "clients.weighting": "rows"}
    run |= {"evaluation.standard-errors": True, "evaluation.every": 100}
    return three_sites(tmp_path, SCHEMA, patients, (80, 120, 60, 50)) | run


def test_a_run_has_the_hazard_ratios_and_errors_of_statsmodels(keys, tmp_path):
    setup = prepare(parse(keys))
    results = [cohort.train([setup])[0], inprocess.train(setup)]
    assert_allclose(results[1].model, results[0].model, rtol=1e-9, atol=1e-9)
    assert results[0].rows[-1]["objective"] < results[0].rows[0]["objective"]
    write_run(results[1], tmp_path / "run")
    model = twinflower.load(tmp_path / "run")
    tables = [np.genfromtxt(tmp_path / f"site-{site}.csv", delimiter=",", skip_header=1) for site in range(3)]
    rows, strata = np.concatenate(tables), np.repeat(np.arange(3), [len(own) for own in tables])
    known = PHReg(rows[:, 2], rows[:, :2], status=rows[:, 3], strata=strata, ties="efron").fit()
    found = model.coefficients()
    assert [row.column for row in found] == ["age", "dose"]
    assert_allclose([row.estimate for row in found], known.params, rtol=1e-6)
    assert_allclose([row.std_error for row in found], known.bse, rtol=1e-6)
    assert_allclose([row.ratio for row in found], np.exp(known.params), rtol=1e-6)
    assert np.isnan(results[0].rows[-1]["test_accuracy"])  # persons of several sites are not comparable
    assert row_line(results[0].rows[-1], "C-index").count("C-index") == 0
    page = report_run(tmp_path / "run").read_text()
    assert "hazard ratio" in page
    assert "set evaluation.held-out for it" in page


def test_sites_with_different_baselines_are_scored_and_averaged_by_site(keys):
    keys |= {"evaluation.standard-errors": False, "evaluation.held-out": 0.3, "rounds": 20}
    setup = prepare(parse(keys))
    own, sites = setup.objective, [setup.shards.rows(site) for site in range(3)]
    slopes = [own.grad(np.zeros(own.d), rows) for rows in sites]
    slope = np.abs(np.average(slopes, axis=0, weights=setup.shards.sizes)).max()
    assert setup.central.slope_at_zero == pytest.approx(slope, rel=1e-12)
    (result,) = cohort.train([setup])
    last, weights = result.rows[-1], setup.held.sizes
    found = np.average([result.answers["evaluation"].by_site[site] for site in range(3)], weights=weights)
    assert last["test_accuracy"] == last["held_out_accuracy"] == pytest.approx(found)
    assert result.summary()["test_accuracy_from"] == "clients"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"local.batch-size": 10}, "a batch must be all rows of a site"),
        (
            {"algorithm": "isrl-dp", "privacy.mode": "gradient", "privacy.epsilon": 8.0},
            "is not a sum over records",
        ),
        ({"evaluation.reference": True}, "is not a mean over all rows"),
        ({"objective.clip-norm": 1.0}, "set objective.clip-norm to 0"),
        ({"objective.name": "huber"}, "whose label has times belong together"),
    ],
)
def test_what_is_refused(keys, changes, sentence):
    changed = {key: value for key, value in (keys | changes).items() if key.split(".")[0] != "fedavg"}
    changed.pop("evaluation.standard-errors")
    if changed["algorithm"] == "isrl-dp":
        changed.pop("local.max-steps")
    with pytest.raises(SettingError, match=sentence):
        prepare(parse(changed))
