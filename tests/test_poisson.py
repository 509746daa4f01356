"""Poisson regression of counts with an exposure: labels, schema, guarantee, runtimes and predictions."""

import math

import numpy as np
import pytest
from grids import over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import poisson
from site_files import three_sites

import twinflower
from twinflower.algorithms import FedAvg
from twinflower.data.schema_file import parse_schema, to_toml
from twinflower.data.tables import read_rows
from twinflower.errors import DataError, SettingError
from twinflower.models.assessment import assess
from twinflower.privacy.audit import replay
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Batch
from twinflower.problems.losses import packed, unpacked
from twinflower.problems.objectives import make_objective
from twinflower.queries.held_out_question import summed
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse

SCHEMA = """
[label]
column = "falls"
counts = 30
exposure = "years"
exposure-range = [0.5, 8]
[columns]
age = { range = [20, 80] }
frail = { categories = ["no", "yes"] }
"""


def patients(seed, rows):
    draw = np.random.default_rng(seed)
    age, frail, years = draw.uniform(20, 80, rows), draw.integers(2, size=rows), draw.uniform(0.5, 8, rows)
    falls = draw.poisson(years * np.exp(0.03 * (age - 50) + 0.7 * frail - 0.5))
    lines = [
        f"{a:.2f},{['no', 'yes'][f]},{y:.3f},{n}" for a, f, y, n in zip(age, frail, years, falls, strict=True)
    ]
    return "\n".join(["age,frail,years,falls", *lines, ""])


@pytest.fixture
def keys(tmp_path):
    run = {"algorithm": "fedavg", "rounds": 60, "local.max-steps": 1, "fedavg.step-size": 0.2}
    run |= {"objective.name": "poisson", "data.row-scaling": "all", "clients.weighting": "rows"}
    return three_sites(tmp_path, SCHEMA, patients, (80, 120, 60, 100)) | run


# ------------------------------------------------------------------------------------- labels and losses


def test_a_label_holds_a_count_and_an_offset():
    counts, offsets = np.arange(6.0), np.array([-15.9, -1.0, 0.0, 1e-9, 0.7, 15.9])
    found = unpacked(packed(counts, offsets))
    assert_array_equal(found[0], counts)
    assert_allclose(found[1], offsets, atol=1e-13)
    assert_array_equal(packed(counts, np.zeros(6)), counts)


def test_any_label_is_a_count_with_a_bounded_offset():
    labels = np.array([-3.0, -0.1, 2.26, 2.9, 1e100])
    counts, offsets = unpacked(labels)
    assert_array_equal(counts, [0, 0, 2, 2, 1e100])
    assert_allclose(offsets, [0, 0, 64 * (0.26 - 0.5), 16, 0])


def test_large_counts_keep_their_offset():
    found = unpacked(packed(np.array([2.0**16 - 1]), np.array([1.2345])))
    assert found[0] == 2**16 - 1
    assert_allclose(found[1], 1.2345, atol=2.0**-31)


def test_the_loss_is_minus_the_log_likelihood_up_to_constants():
    rng = np.random.default_rng(0)
    objective, x = make_objective("poisson", 2, 0), rng.normal(size=2)
    counts, offsets, features = rng.integers(9, size=20), rng.normal(size=20), rng.normal(size=(20, 2))
    losses = objective.losses(x, Batch(features, packed(counts, offsets)))
    rates = np.exp(features @ x + offsets)
    assert_allclose(losses, poisson.logpmf(counts, counts) - poisson.logpmf(counts, rates), atol=1e-12)
    assert (losses >= 0).all()
    assert_allclose(objective.predict(x, features), np.exp(features @ x))


def test_a_better_model_has_a_smaller_clipped_loss():
    """What a private run with evaluation.loss-bound releases; the loss without its constant would be below 0."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 2))
    rows = Batch(features, rng.poisson(np.exp(features @ [0.5, -0.3] + 1.5)).astype(float))
    rows = Batch(np.column_stack([features, np.ones(200)]), rows.labels)
    objective = make_objective("poisson", 3, 0)
    good, none = (float(summed(objective, np.array(x), rows, 5.0)[0]) for x in ([0.5, -0.3, 1.5], [0.0] * 3))
    assert 0.05 < good / 200 < 0.2  # half the deviance of a row is about 1/2
    assert none > 2 * good


def test_the_loss_goes_on_linearly_where_rates_would_overflow():
    loss, labels = make_objective("poisson", 1, 0).loss, np.zeros(4)
    scores = np.array([20.0 - 1e-7, 20.0, 21.0, 1e4])[:, None]
    values, slopes = loss.values(scores, labels), loss.slopes(scores, labels)[:, 0]
    assert np.isfinite(values).all()
    assert_allclose(slopes[1:], np.exp(20.0))
    assert_allclose((values[2] - values[1]) / np.exp(20.0), 1.0)
    assert_allclose((values[1] - values[0]) / 1e-7, np.exp(20.0), rtol=1e-5)


def test_replay_attains_the_sensitivity_and_never_exceeds_it():
    """One record replaced, from many events at a low rate to none at a high one: its clipped gradient turns round."""
    objective = make_objective("poisson", 3, 0, clip_norm=0.5)
    features = np.tile([1.0, 0.0, 0.0], (6, 1))
    labels = packed(np.array([30.0, 1.0, 0.0, 2.0, 1.0, 5.0]), np.array([-2.0, 0.1, 0.3, 0.0, 1.0, 2.0]))
    algorithm, start = FedAvg(step_size=0.3, privacy="public-state"), np.array([2.0, 0.0, 0.0])
    inbox = algorithm.broadcast(algorithm.init_server(start, 1, np.array(0, np.uint64)), 1, np.array(0))
    for place, other in ((0, packed(np.zeros(1), np.full(1, 15.0))), (3, np.array([1e100]))):
        changed = labels.copy()
        changed[place] = other[0]
        rows = Batch(features, labels), Batch(features, changed)
        moves = replay(algorithm, objective, *rows, LocalSchedule(0, 1), objective.bounds(1.0), [inbox] * 4)
        assert all(move.agrees for move in moves)
        assert all(move.moved <= move.sensitivity * (1 + 1e-9) for move in moves)
        assert place or all(move.moved >= 0.99 * move.sensitivity for move in moves)


def test_a_private_run_needs_a_bound_on_gradients(keys):
    private = {"privacy.mode": "public-state", "privacy.epsilon": 8.0}
    with pytest.raises(SettingError, match="have no public bound: set clip-norm above 0"):
        prepare(parse(keys | private))
    prepare(parse(keys | private | {"objective.clip-norm": 1.0}))


# ------------------------------------------------------------------------------------- the schema


def test_the_schema_is_written_as_it_was_read():
    schema = parse_schema(SCHEMA)
    again = parse_schema(to_toml(schema))
    assert again == schema and again.digest == schema.digest
    assert parse_schema(SCHEMA.replace("[0.5, 8]", "[0.5, 9]")).digest != schema.digest


def test_counts_and_exposures_are_clipped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("age,frail,years,falls\n30,no,0.1,50\n30,yes,100,3\n")
    counts, offsets = unpacked(read_rows(path, parse_schema(SCHEMA))[1])
    assert_array_equal(counts, [30, 3])
    assert_allclose(offsets, np.log([0.5, 8]))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "counts = 30",
            "counts = 0",
            "counts must be the largest count, a whole number from 1 to 65535; got 0",
        ),
        ("counts = 30", "range = [0, 3]", "exposure and exposure-range belong to counts"),
        ("counts = 30", "", "needs one of classes, range, counts"),
        ('exposure = "years"', "", "exposure and exposure-range belong together"),
        ("[0.5, 8]", "[0, 8]", "exposure-range must be within 1e-07 and 9e.06"),
        ("[0.5, 8]", "[8, 0.5]", "two finite numbers with low < high"),
    ],
)
def test_a_label_of_counts_is_checked(old, new, why):
    with pytest.raises(DataError, match=why) as refused:
        parse_schema(SCHEMA.replace(old, new))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("30,no,1,2.5", "column 'falls': a count must be a whole number from 0 on"),
        ("30,no,1,-1", "column 'falls': a count must be a whole number from 0 on"),
        ("30,no,0,1", "column 'years': an exposure must be a number above 0"),
        ("30,no,,1", "column 'years': an exposure must be a number above 0"),
        ("30,no,1,", "column 'falls': the label is missing"),
    ],
)
def test_cells_that_are_no_counts_or_exposures_are_refused(row, why, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"age,frail,years,falls\n40,yes,2,1\n{row}\n")
    with pytest.raises(DataError, match=f"row 2, {why}"):
        read_rows(path, parse_schema(SCHEMA))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"objective.name": "least-squares"},
            "a schema whose label has counts belong together; got 'least-squares'",
        ),
        ({"precision": "single"}, "precision must be double with objective poisson"),
    ],
)
def test_settings_that_do_not_fit_counts_are_refused(keys, change, why):
    with pytest.raises(SettingError, match=why):
        prepare(parse(keys | change))


def test_labels_that_are_no_counts_are_refused_without_privacy():
    plain = {"algorithm": "fedavg", "objective.name": "poisson", "rounds": 2}
    for name in ("linear", "digits"):
        with pytest.raises(SettingError, match="needs counts"):
            prepare(parse(plain | {"data.name": name}))
    private = {"privacy.mode": "gradient", "privacy.epsilon": 3.0, "objective.clip-norm": 1.0}
    prepare(parse(plain | private | {"data.name": "linear"}))  # an error would reveal something about a label


# ------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    "kind", [{}, {"privacy.mode": "public-state", "privacy.epsilon": 8.0, "objective.clip-norm": 1.0}]
)
def test_all_runtimes_give_the_same_model(keys, kind):
    setup = prepare(parse(keys | kind | {"rounds": 5}))
    direct, wired, arrays = inprocess.train(setup), over_the_wire(setup), cohort.train([setup])[0]
    assert_array_equal(direct.model, wired.model)
    assert_allclose(direct.model, arrays.model, rtol=1e-9)
    assert not direct.failure


def test_a_model_predicts_rates_and_is_measured_on_counts(keys, tmp_path):
    (result,) = cohort.train([prepare(parse(keys))])
    folder = write_run(result, tmp_path / "run")
    model = twinflower.load(folder)
    rates = model.predict({"age": [50.0, 70.0], "frail": ["no", "yes"]})
    by_name = {(row.column, row.term): row for row in model.coefficients()}
    slope, ill = by_name["age", "per unit"], by_name["frail", "yes"]
    assert_allclose(np.log(rates[1] / rates[0]), 20 * slope.estimate + ill.estimate)
    assert_allclose(ill.ratio, math.exp(ill.estimate))
    assert 0.3 < ill.estimate < 1.1
    counts, offsets = unpacked(read_rows(tmp_path / "test.csv", model.inputs.schema)[1])
    expected = model.predict(tmp_path / "test.csv") * np.exp(offsets)
    found = {row.name: row.value for row in assess(model, tmp_path / "test.csv").measures}
    assert_allclose(found["mean absolute error"], np.abs(expected - counts).mean())
    assert_allclose(found["R^2"], result.rows[-1]["test_accuracy"])
    page = report_run(folder).read_text(encoding="utf-8")
    assert "rate ratio" in page and "a count of at most 30 per unit of years, 0.5 to 8" in page
    with pytest.raises(SettingError, match="Poisson regression has no offset"):
        model.to_sklearn()


def test_without_an_exposure_the_model_is_that_of_an_exposure_of_one(keys, tmp_path):
    """And differs from the one with exposures, which it would fit if the column were used."""
    plain = SCHEMA.replace('exposure = "years"\nexposure-range = [0.5, 8]\n', "")
    (tmp_path / "plain.toml").write_text(plain.replace("[label]", 'ignore = ["years"]\n[label]'))
    (tmp_path / "ones").mkdir()
    for path in tmp_path.glob("site-*.csv"):
        header, *rows = path.read_text().splitlines()
        lines = [f"{age},{frail},1,{falls}" for age, frail, _, falls in (row.split(",") for row in rows)]
        (tmp_path / "ones" / path.name).write_text("\n".join([header, *lines, ""]))
    changes = {}, {"data.schema": str(tmp_path / "plain.toml")}, {"data.files": str(tmp_path / "ones/*.csv")}
    rates, counts, ones = (cohort.train([prepare(parse(keys | own))])[0].model for own in changes)
    assert_array_equal(counts, ones)
    assert abs(counts - rates).max() > 0.5


def test_estimators_do_not_offer_it():
    estimator = twinflower.FederatedRegressor(objective="poisson")
    with pytest.raises(SettingError, match="objective must be one of .*; got 'poisson'"):
        estimator.fit(np.zeros((20, 2)), np.arange(20.0) % 3)
