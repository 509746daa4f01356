"""Survival over sites: schemas, settings, runtimes, trained models, reports and the estimator."""

import numpy as np
import pytest
from grids import over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from site_files import three_sites
from sklearn.base import clone
from typer.testing import CliRunner

import twinflower
from twinflower.concordance import concordance, integrated_brier
from twinflower.data.checks import describe_fit, problems
from twinflower.data.columns import Range
from twinflower.data.draft_notes import drafted
from twinflower.data.schema_file import parse_schema, to_toml
from twinflower.data.tables import read_rows
from twinflower.errors import DataError, SettingError
from twinflower.models.assessment import assess
from twinflower.models.time_auc import areas
from twinflower.models.trained import load, predictions
from twinflower.simulation import cli
from twinflower.simulation.report.labels import heading, words
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.reading import read_summary
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.advice import warnings
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse
from twinflower.survival_labels import signed, unsigned

SCHEMA = """
[label]
column = "days"
times = [1, 2000]
event = "died"
[columns]
age = { range = [20, 80] }
frail = { categories = ["no", "yes"] }
"""
PRIVATE = {"privacy.mode": "public-state", "privacy.epsilon": 8.0, "data.row-norm": 1.0}


def patients(seed, rows, censored=False):
    draw = np.random.default_rng(seed)
    age, frail = draw.uniform(20, 80, rows), draw.integers(2, size=rows)
    event = draw.exponential(900 / np.exp(0.03 * (age - 50) + 0.7 * frail))
    end = draw.uniform(0, 3000, rows)
    died = (event <= end) & (not censored)
    lines = [
        f"{a:.2f},{['no', 'yes'][f]},{t:.2f},{int(e)}"
        for a, f, t, e in zip(age, frail, np.minimum(event, end), died, strict=True)
    ]
    return "\n".join(["age,frail,days,died", *lines, ""])


@pytest.fixture
def keys(tmp_path):
    run = {"algorithm": "fedavg", "rounds": 5, "local.max-steps": 1, "fedavg.step-size": 0.4}
    run |= {"objective.name": "discrete-cox", "objective.intervals": "4 x 500", "data.row-scaling": "all"}
    return three_sites(tmp_path, SCHEMA, patients, (80, 120, 60, 100)) | run | {"clients.weighting": "rows"}


# ------------------------------------------------------------------------------------- the schema


@pytest.mark.parametrize("more", ["", 'event-values = ["dead"]\ncensored-values = ["alive", "lost"]'])
def test_the_schema_is_written_as_it_was_read(more):
    text = SCHEMA.replace('event = "died"', f'event = "died"\n{more}')
    schema = parse_schema(text)
    again = parse_schema(to_toml(schema))
    assert again == schema and again.digest == schema.digest
    assert schema.used == ("age", "frail", "days", "died")
    assert parse_schema(SCHEMA.replace("[1, 2000]", "[1, 2001]")).digest != schema.digest


def test_times_are_moved_into_the_range_and_long_ones_are_censored(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "age,frail,days,died\n30,no,0,1\n30,no,7.5,0\n30,yes,2000,true\n30,yes,2001,1\n30,no,9e9,0\n"
    )
    labels = read_rows(path, parse_schema(SCHEMA))[1]
    assert_array_equal(labels, [1.0, -7.5, 2000.0, -2000.0, -2000.0])


def test_events_are_compared_as_categories_are(tmp_path):
    cells = {"days": [3, 4.0, "5", 6], "died": [1, 0.0, True, "0"]}
    assert_array_equal(parse_schema(SCHEMA).encode_label(cells), [3, -4, 5, -6])
    path = tmp_path / "a.npz"
    np.savez(path, age=[30, 31], frail=["no", "no"], days=[3, 4], died=[True, False])
    assert_array_equal(read_rows(path, parse_schema(SCHEMA))[1], [3, -4])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("times = [1, 2000]", "", "label needs one of classes, range, counts, times"),
        (
            "times = [1, 2000]",
            "range = [1, 9]",
            "label: event, event-values, censored-values and one-row-per-person belong to times",
        ),
        ('event = "died"', "", "times need event, the name of the column that says whether the event happened; got"),
        ("[1, 2000]", "[-1, 2000]", r"times must be above 0, because shorter times, .* got \[-1, 2000\]"),
        ("[1, 2000]", "[0, 2000]", r"times must be above 0, because shorter times, .* got \[0, 2000\]"),
        ("[1, 2000]", '"private"', "the times of a label must be public"),
        ("[1, 2000]", "[2000, 1]", "two finite numbers with low < high"),
        ("[1, 2000]", "[1, 2000]\nrange = [0, 1]", "label needs one of classes, range, counts, times"),
        ('"died"', '"died"\nevent-values = ["0"]\ncensored-values = ["0"]', "'0' is there twice"),
        ('"died"', '"died"\nevent-values = "1"', "event-values must be a list"),
        ('"died"', '"days"', "must differ; 'days' is there twice") ,
        ('"died"', '"died"\nevnt-values = ["1"]', "there is no key 'evnt-values'"),
    ],
)  # fmt: skip
def test_a_label_of_survival_is_checked(old, new, why):
    with pytest.raises(DataError, match=why) as refused:
        parse_schema(SCHEMA.replace(old, new))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("30,no,-1,1", "column 'days': a time must not be negative"),
        ("30,no,x,1", "column 'days': 'x' is not a number"),
        ("30,no,,1", "column 'days': the label is missing"),
        ("30,no,1e101,1", "column 'days': '1e101' is not a number of at most 1e.100 in size"),
        ("30,no,3,2", "column 'died': '2' is not a value of event-values .1, true. or censored-values .0, false."),
        ("30,no,3,", "column 'died': it is not known whether the event happened"),
    ],
)  # fmt: skip
def test_cells_that_are_no_times_or_events_are_refused(row, why, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"age,frail,days,died\n40,yes,2,1\n{row}\n")
    with pytest.raises(DataError, match=f"row 2, {why}") as refused:
        read_rows(path, parse_schema(SCHEMA))
    assert "\n" not in str(refused.value)
    (listed,) = problems(path, parse_schema(SCHEMA))
    assert "row 2, column" in listed


def test_a_time_of_0_is_moved_to_the_public_shortest_time(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("age,frail,days,died\n40,yes,0,1\n40,yes,0,0\n")
    assert_array_equal(read_rows(path, parse_schema(SCHEMA))[1], [1, -1])
    assert describe_fit(path, parse_schema(SCHEMA))[-1] == ("days", 2, 0, 2)


def test_check_lists_every_fault_of_a_table(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "a.csv").write_text("age,frail,days,died\n40,yes,-2,1\n40,yes,2,maybe\n40,yes,-2,0\n")
    done = CliRunner().invoke(
        cli.app, ["schema", "--check", str(tmp_path / "schema.toml"), str(tmp_path / "a.csv")]
    )
    told = str(done.exception)
    assert "a time must not be negative" in told and "(and 1 more row)" in told
    assert "'maybe' is not a value of event-values (" in told


@pytest.mark.parametrize("values", [("0", "1"), ("alive", "dead")])
def test_a_draft_of_a_schema_has_the_time_and_the_event(tmp_path, values):
    path = tmp_path / "a.csv"
    lines = [f"{50 + k},no,{k * 7},{values[k % 2]}" for k in range(40)]
    path.write_text("\n".join(["age,frail,days,died", *lines, ""]))
    schema = parse_schema(drafted([path], "days", event="died").text)
    assert schema.label.times == Range(7.0, 280.0) and schema.names == ("age", "frail")
    assert (schema.label.censored[0], schema.label.happened[0]) == values
    assert problems(path, schema) == []  # a time of 0 is moved to 7
    for label, event, why in (
        ("frail", "died", "column 'frail' cannot be the time: it has no numbers above 0"),
        ("days", "age", "column 'age' cannot be the event: it must have two values; got 40"),
        ("days", "days", "column 'days' cannot be both the time and the event"),
        ("days", "dead", "there is no column 'dead'"),
    ):
        with pytest.raises(DataError, match=why):
            drafted([path], label, event=event)
    path.write_text("age,days,died\n50,0.5,0\n51,0.5,1\n")
    assert parse_schema(drafted([path], "days", event="died").text).label.times == Range(0.5, 1.5)


# ------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"objective.name": "huber"}, "a schema whose label has times belong together; got 'huber'"),
        ({"objective.intervals": ""}, "needs objective.intervals, the ends of the intervals of time"),
        (
            {"objective.intervals": "1000, 2001"},
            "must end by the upper end of the schema's times, 2000, .*; got 2001",
        ),
        (
            {"evaluation.held-out": 0.3, "evaluation.errors": True},
            "are those of a regression, and these labels",
        ),
        ({**PRIVATE, "data.row-norm": 0.0}, "have no public bound: set clip-norm above 0, or row-norm"),
        ({**PRIVATE, "objective.link": "cloglog"}, "have no public bound: set clip-norm above 0"),
    ],
)
def test_settings_that_do_not_fit_survival_are_refused(keys, change, why):
    run = keys | change
    if change.get("objective.name"):
        del run["objective.intervals"]
    with pytest.raises(SettingError, match=why):
        prepare(parse(run))


def test_labels_that_are_no_signed_times_are_refused_without_privacy():
    run = {
        "algorithm": "fedavg",
        "objective.name": "discrete-cox",
        "objective.intervals": "1, 2",
        "rounds": 2,
    }
    with pytest.raises(SettingError, match="this data set has classes"):
        prepare(parse(run | {"data.name": "digits"}))


def test_sites_without_events_are_named_without_privacy_only(keys, tmp_path):
    (tmp_path / "site-1.csv").write_text(patients(1, 50, censored=True))
    (result,) = cohort.train([prepare(parse(keys))])
    assert "warning: nobody had the event at client 1: check the column of the event" in (result.warnings())
    (private,) = cohort.train([prepare(parse(keys | PRIVATE))])
    assert not any("event" in text for text in private.warnings())


def test_intervals_that_nobody_completes_are_named_without_privacy_only(keys, tmp_path):
    for site in range(3):
        path = tmp_path / f"site-{site}.csv"
        head, *rows = path.read_text().splitlines()
        path.write_text("\n".join([head, *(row for row in rows if float(row.split(",")[2]) < 1500), ""]))
    told = [" ".join(warnings(prepare(parse(keys | more)))) for more in ({}, PRIVATE)]
    assert "nobody was observed without the event until 1500, so the baseline" in told[0]
    assert "nobody" not in told[1]
    assert "nobody" not in " ".join(warnings(prepare(parse(keys | {"objective.intervals": "2 x 500"}))))
    (tmp_path / "one.csv").write_text(patients(1, 50, censored=True))
    (result,) = cohort.train([prepare(parse(keys | {"data.files": str(tmp_path / "one.csv")}))])
    assert any(text.startswith("warning: everybody is censored") for text in result.warnings())


# ------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    "kind",
    [{}, {"objective.link": "cloglog"}, PRIVATE, PRIVATE | {"objective.clip-norm": 1.0, "objective.link": "cloglog"}],
    ids=["plain", "cloglog", "private", "private cloglog"],
)  # fmt: skip
def test_all_runtimes_give_the_same_model(keys, kind):
    setup = prepare(parse(keys | kind))
    direct, wired, arrays = inprocess.train(setup), over_the_wire(setup), cohort.train([setup])[0]
    assert_array_equal(direct.model, wired.model)
    assert_allclose(direct.model, arrays.model, rtol=1e-9)
    assert not direct.failure


@pytest.mark.parametrize(
    "kind",
    [
        {"algorithm": "fedpdm"},
        {"algorithm": "scaffold", "local.max-steps": 3},
        {"algorithm": "ssca", "objective.l2": 0.1},
        {"algorithm": "p-admm", "topology.name": "ring", "data.row-norm": 1.0, "p-admm.rho": 0.1},
        {"regulariser.name": "l1", "regulariser.weight": 0.01},
        {**PRIVATE, "privacy.mode": "gradient", "privacy.trust": "sum", "privacy.honest-sites": 2},
        {"precision": "single"},
        {"evaluation.held-out": 0.3},
        {
            **PRIVATE,
            "evaluation.held-out": 0.3,
            "privacy.evaluation-share": 0.3,
            "evaluation.loss-bound": 5.0,
        },
    ],
    ids=str,
)
def test_other_methods_and_settings_work(keys, kind):
    run = {
        key: value for key, value in keys.items() if not (key.startswith("fedavg") and "algorithm" in kind)
    }
    if kind.get("algorithm") in ("ssca", "p-admm"):
        del run["local.max-steps"]
    if kind.get("algorithm") in ("ssca", "p-admm", "scaffold"):
        del run["clients.weighting"]
    (result,) = cohort.train([prepare(parse(run | kind))])
    assert not result.failure and np.isfinite(result.model).all()
    last = result.rows[-1]
    assert 0.3 < last["test_accuracy"] < 1  # a C-index
    if kind == {"evaluation.held-out": 0.3}:
        assert 0.3 < last["held_out_accuracy"] < 1


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """A run of many rounds in its folder, and its result."""
    folder = tmp_path_factory.mktemp("survival")
    run = {"algorithm": "fedavg", "rounds": 300, "local.max-steps": 1, "fedavg.step-size": 1.0}
    run |= {"objective.name": "discrete-cox", "objective.intervals": "4 x 500", "data.row-scaling": "all"}
    run |= {"objective.link": "cloglog", "clients.weighting": "rows", "evaluation.standard-errors": True}
    keys = three_sites(folder, SCHEMA, patients, (200, 300, 100, 100))
    (result,) = cohort.train([prepare(parse(keys | run))])
    return write_run(result, folder / "run"), result


def test_a_model_predicts_risks_and_survival(trained_run):
    folder, _ = trained_run
    model = twinflower.load(folder)
    rows = {"age": [50.0, 70.0], "frail": ["no", "yes"]}
    risk, survival = model.predict(rows), model.predict_survival(rows)
    by_name = {(row.column, row.term): row for row in model.coefficients()}
    slope, ill = by_name["age", "per unit"], by_name["frail", "yes"]
    assert_allclose(risk[1] - risk[0], 20 * slope.estimate + ill.estimate)
    assert_allclose(risk[0], by_name["(baseline)", "to 500"].estimate + 50 * slope.estimate)
    assert_array_equal(model.times, [500, 1000, 1500, 2000])
    assert survival.shape == (2, 4) and (np.diff(survival) < 0).all() and (survival[0] > survival[1]).all()
    assert_allclose(
        np.log(survival[1]) / np.log(survival[0]), np.exp(risk[1] - risk[0])
    )  # proportional hazards
    for row, truth in ((slope, 0.03), (ill, 0.7)):
        assert abs(row.estimate - truth) < 3 * row.std_error < 0.5
        assert row.low < row.estimate < row.high and row.effect == "hazard"
        assert_allclose(row.ratio, np.exp(row.estimate))
    names, table = predictions(model, rows)
    assert names == ["risk", *(f"survival to {end}" for end in (500, 1000, 1500, 2000))]
    assert_allclose(table, np.column_stack([risk, survival]))
    with pytest.raises(SettingError, match="scikit-learn has no models of survival"):
        model.to_sklearn()


def test_a_model_survives_its_file(trained_run, tmp_path):
    folder, _ = trained_run
    model = load(folder)
    model.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    assert_array_equal(again.x, model.x)
    assert (
        again.document() == model.document()
        and repr(again) == "TrainedSurvival(discrete-cox of 2 columns, d=8)"
    )
    assert again.coef_.shape == (3,) and again.intercept_.shape == (4,)


def test_a_model_is_measured_by_its_concordance(trained_run):
    folder, result = trained_run
    model, test = load(folder), folder.parent / "test.csv"
    features = model.inputs.features({"age": [30.0], "frail": ["no"]})
    assert_allclose(features @ model.x[:4] + model.x[4], model.predict({"age": [30.0], "frail": ["no"]}))
    measured = assess(model, test)
    found = {row.name: row.value for row in measured.measures}
    labels = read_rows(test, model.inputs.schema)[1]
    wanted = concordance(model.predict(test), *unsigned(labels)).share
    brier = integrated_brier(model.predict_survival(test), model.times, *unsigned(labels))
    times = 500, 1000, 1500
    early = [own.value for own in areas(model.predict(test), times, *unsigned(labels))]
    assert np.isnan(found.pop("area under the ROC curve at 2000"))
    assert measured.remarks == [
        "There is no area under the ROC curve at 2000: nobody was observed beyond it."
    ]
    assert found == {
        "rows": 100, "events": (labels > 0).sum(), "concordance index": wanted, "integrated Brier score": brier,
    } | {f"area under the ROC curve at {time}": own for time, own in zip(times, early, strict=True)}  # fmt: skip
    assert 0 < brier < 0.25
    assert model.score(test) == wanted == result.rows[-1]["test_accuracy"]
    assert wanted > 0.6


def test_reports_say_what_they_show(trained_run):
    folder, result = trained_run
    page = report_run(folder).read_text(encoding="utf-8")
    for text in (
        "C-index",
        "hazard ratio",
        "hazard of died",
        "a time of 1 to 2000, until the event in column died",
    ):
        assert text in page
    config = result.setup.config
    assert heading("test_accuracy", config) == "test C-index"
    assert words("test_accuracy", config) == "C-index on the test rows"
    assert read_summary(folder)["survival"] is True


# ------------------------------------------------------------------------------------- the estimator


def people(rows=300, seed=0):
    draw = np.random.default_rng(seed)
    X = draw.uniform(-1, 1, size=(rows, 3))
    event, end = draw.exponential(np.exp(-X @ [1.5, -1.0, 0.0])), draw.uniform(0, 3, rows)
    return X, np.minimum(event, end), event <= end


def test_the_estimator_takes_all_forms_of_labels():
    X, times, events = people()
    both = np.array(list(zip(events, times, strict=True)), dtype=[("died", bool), ("days", float)])
    found = []
    for y in (both, np.column_stack([events, times]), signed(times, events)):
        model = twinflower.FederatedCoxRegressor(intervals="5 x 0.5", num_sites=3, random_state=0).fit(X, y)
        found.append(model.coef_)
        assert model.score(X, y) > 0.7
    assert_array_equal(found[0], found[1])
    assert_array_equal(found[0], found[2])
    assert_array_equal(model.times_, [0.5, 1, 1.5, 2, 2.5])
    assert model.predict_survival(X).shape == (300, 5) and clone(model).intervals == "5 x 0.5"


def test_the_estimator_takes_tables_and_privacy():
    X, times, events = people()
    table = {"event": X[:, 0], "b": X[:, 1], "c": np.where(X[:, 2] > 0, "yes", "no")}
    model = twinflower.FederatedCoxRegressor(
        intervals="5 x 0.5", epsilon=20, ranges={"event": (-1, 1), "b": (-1, 1)}, categories={"c": ["no", "yes"]},
        row_scaling="all", random_state=0,
    ).fit(table, signed(times, events))  # fmt: skip
    assert model.score(table, signed(times, events)) > 0.6
    assert [row.column for row in model.model_.coefficients()][-4:] == ["event", "b", "c", "c"]
    assert model.privacy_["epsilon"] <= 20 * (1 + 1e-9)


def test_a_private_model_says_nothing_of_single_times(tmp_path):
    X, times, events = people()
    table, saved = dict(zip("abc", X.T, strict=True)), []
    labels = signed(times, events)
    for place, change in ((0, labels[0]), (0, -4711.123456), (1, 0.0), (slice(None), -times)):
        y = labels.copy()
        y[place] = change
        model = twinflower.FederatedCoxRegressor(
            intervals="5 x 0.5", epsilon=1, ranges=dict.fromkeys("abc", (-1, 1)), rounds=1, random_state=0
        ).fit(table, y)
        model.model_.save(tmp_path / "model.npz")
        saved.append(str(np.load(tmp_path / "model.npz")["description"]))
    assert len(set(saved)) == 1


def test_a_private_fit_moves_a_time_of_0_and_says_nothing_of_it():
    y = np.array([[1, 0.0], [0, 0.0], [1, 2.0]])
    keys = {
        "intervals": "1, 2",
        "epsilon": 1,
        "ranges": (0, 1),
        "rounds": 1,
        "num_sites": 1,
        "random_state": 0,
    }
    near = np.maximum(y, [0, 1e-9])
    zero, other = (twinflower.FederatedCoxRegressor(**keys).fit(np.eye(3), own).model_ for own in (y, near))
    assert_array_equal(zero.x, other.x)


@pytest.mark.parametrize(
    ("y", "keys", "why"),
    [
        (np.array([1.0, 2, 0]), {}, "times must be above 0; y has a time of 0"),
        (np.array([-1.0, -2, -3]), {}, "y must have an event; everybody is censored"),
        (np.array([[1, 2.0], [0, -2], [1, 1]]), {}, "the times in y must be numbers above 0"),
        (np.array([[1, 2.0], [0, np.nan], [1, 1]]), {}, "the times in y must be numbers above 0"),
        (
            np.array([[1, 2.0], [2, 2], [1, 1]]),
            {},
            "the events in y, its first column, must be true or false, or 1 or 0",
        ),
        (
            np.array(["no", "yes", "no"]),
            {},
            "y must hold numbers, or events and times; got values of the type <U3",
        ),
        (
            np.array([[1, "abc"], [0, 2], [1, 1]], object),
            {},
            "the times in y must be numbers above 0; got other values",
        ),
        (np.ones(3), {"intervals": [1, 2]}, "intervals must be a text such as"),
        (np.ones((3, 3)), {}, "two columns of these, or signed times; got shape"),
        (np.ones(3), {"intervals": ""}, "needs objective.intervals"),
        (
            np.array([1.0, 2.0, 2.0]),
            {"objective": "huber"},
            "objective must be one of discrete-cox; got 'huber'",
        ),
        (np.ones(3), {"epsilon": 1}, "with epsilon the ranges of the columns must be public"),
    ],
)
def test_the_estimator_says_what_is_wrong(y, keys, why):
    with pytest.raises(SettingError, match=why):
        twinflower.FederatedCoxRegressor(**{"intervals": "1, 2"} | keys).fit(np.eye(3), y)
