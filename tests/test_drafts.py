"""What a draft of a schema recognises in the tables, and what it asks: events, codes, units, identifiers, dates."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from twinflower.data import draft_notes
from twinflower.data.cells import Ambiguous
from twinflower.data.checks import problems
from twinflower.data.columns import Category, Number, Range, plain
from twinflower.data.draft_notes import drafted
from twinflower.data.schema import Scale
from twinflower.data.schema_file import parse_schema, to_toml
from twinflower.data.sites import TableData, load_tables
from twinflower.data.tables import read_rows
from twinflower.data.words import events, same_meaning
from twinflower.errors import DataError
from twinflower.simulation import cli
from twinflower.simulation.arguments import remarkable

ROWS = 40


def table(folder, name="a.csv", rows=ROWS, **columns):
    """A CSV file with these columns, each a function of the row's number."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    lines = [",".join(columns), *(",".join(str(of(k)) for of in columns.values()) for k in range(rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


def cycle(*values):
    return lambda k: values[k % len(values)]


def spread(low, high):
    """Numbers that are spread evenly and in no order."""
    return lambda k: f"{low + (high - low) * (k * 17 % ROWS) / ROWS:.4g}"


AGE = spread(20.5, 80.5)


# --------------------------------------------------------------------------------------------------- events

PAIRS = [
    ("DECEASED", "LIVING"), ("died", "survived"), ("Ja", "Nein"), ("event", "no event"), ("Décédé", "Vivant"),
    ("sí", "no"), ("verstorben", "lebt"), ("1:DECEASED", "0:LIVING"), ("Relapse", "relapse-free"), ("Død", "Levende"),
    ("not censored", "censored"), ("Evet", "Hayir"), ("2: dead", "1: alive"), ("True", "False"), ("fallecido", "vivo"),
]  # fmt: skip


@pytest.mark.parametrize(("happened", "censored"), PAIRS)
def test_a_draft_knows_which_value_is_the_event(tmp_path, happened, censored):
    path = table(tmp_path, age=AGE, months=spread(1, 60), status=cycle(happened, censored, censored))
    text, notes = drafted([path], "months", event="status")
    label = parse_schema(text).label
    assert happened in label.happened and censored in label.censored
    assert f"The event is {happened!r} in column 'status' (14 of 40 rows)" in notes[0]
    assert problems(path, parse_schema(text)) == []


@given(st.sampled_from(PAIRS), st.booleans(), st.sampled_from([str, str.upper, str.lower, str.title]))
def test_neither_the_alphabet_nor_the_order_of_the_rows_decides_what_the_event_is(pair, turned, written):
    happened, censored = map(written, pair)
    values = [censored, happened] if turned else [happened, censored]
    assert events("status", values) == ([happened], [censored])


@pytest.mark.parametrize(
    ("column", "event"),
    [("CNSR", "0"), ("censored", "0"), ("alive", "0"), ("event_free", "0"), ("zensiert", "0"), ("died", "1")],
)
def test_a_column_that_says_the_opposite_of_an_event_is_turned_around(tmp_path, column, event):
    path = table(tmp_path, age=AGE, AVAL=spread(1, 60), **{column: cycle(0, 1, 1)})
    text, (note,) = drafted([path], "AVAL", event=column)
    assert parse_schema(text).label.happened[0] == event
    assert f"The event is {event!r}" in note


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("status", (1, 2)),
        ("cens", (0, 1)),
        ("vital_status", (0, 1)),
        ("status", ("A", "B")),
        ("out", ("dead", "x")),
    ],
)
def test_a_run_is_refused_until_it_is_clear_what_the_event_is(tmp_path, column, values):
    path = table(tmp_path, age=AGE, days=spread(1, 60), **{column: cycle(*values)})
    text, (note,) = drafted([path], "days", event=column)
    assert note.startswith(
        f"Which value of '{column}' means that the event happened, '{values[0]}' or '{values[1]}'?"
    )
    with pytest.raises(
        DataError, match=f"event-values is empty: move the value of column '{column}' that means"
    ):
        parse_schema(text)
    one, other = (f'"{value}"' for value in values)
    answered = text.replace("event-values = []", f"event-values = [{one}]").replace(
        f"[{one}, {other}]", f"[{other}]"
    )
    assert parse_schema(answered).label.happened == (str(values[0]),)


def test_a_schema_must_say_what_1_means_in_a_column_of_censoring():
    text = 'label = { column = "t", times = [1, 9], event = "CNSR" }\ncolumns = { a = { range = [0, 1] } }'
    with pytest.raises(DataError, match="1 may mean censored in column 'CNSR'"):
        parse_schema(text)
    assert parse_schema(text.replace("CNSR", "died")).label.happened == ("1", "true")


@pytest.mark.parametrize(
    ("bad", "good"), [("ill", "healthy"), ("malign", "benign"), ("DEAD", "alive"), ("b", "c")]
)
def test_the_second_of_two_classes_is_the_one_that_happened(tmp_path, bad, good):
    bad = "malignant" if bad == "malign" else bad
    text, notes = drafted([table(tmp_path, age=AGE, y=cycle(bad, good))])
    known = bad != "b"
    assert parse_schema(text).label.names == ((good, bad) if known else (bad, good))
    assert notes == ([] if known else ["Is 'c' of 'y' the outcome whose odds are to be modelled, against 'b'? If not, "
                                       "exchange the two classes."])  # fmt: skip


def test_the_event_stands_in_run_table_and_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(tmp_path, age=AGE, months=spread(1, 60), status=cycle("DECEASED", "LIVING", "LIVING"))
    (tmp_path / "s.toml").write_text(drafted(["a.csv"], "months", event="status").text)
    (tmp_path / "run.toml").write_text(
        '[run]\nalgorithm = "fedavg"\nrounds = 2\ndata = { name = "tables", files = "a.csv", schema = "s.toml", '
        'row-scaling = "all" }\nclients.count = 2\nregulariser.name = "none"\nlocal.max-steps = 1\n'
        'objective = { name = "discrete-cox", intervals = "3 x 10" }'
    )

    def shown(*words):
        result = CliRunner().invoke(cli.app, list(words))
        assert not result.exception, result.exception
        return result.output

    assert "\nevent: DECEASED (14 of 40)\n" in shown("run", "run.toml", "--out", "r")
    assert "Event: DECEASED (14 of 40)." in shown("coefficients", "r")
    assert "event: DECEASED (14 of 40)" in (tmp_path / "r" / "report.html").read_text()
    private = ["--set", "privacy.mode=public-state", "--set", "epsilon=4", "--set", "objective.link=logit"]
    said = shown("run", "run.toml", "--out", "p", *private)
    assert "\nevent: DECEASED\n" in said and "14 of 40" not in said


# --------------------------------------------------------------------------------------- codes of categories


@pytest.mark.parametrize(
    ("codes", "groups"),
    [
        ([("M", "F"), ("m", "f"), ("male", "female")], [["F", "f", "female"], ["M", "m", "male"]]),
        (
            [("FALSE", "TRUE"), ("False", "True"), ("0", "1")],
            [["0", "FALSE", "False"], ["1", "TRUE", "True"]],
        ),
        ([("Nein", "Ja"), ("no", "yes"), ("NON", "oui")], [["NON", "Nein", "no"], ["Ja", "oui", "yes"]]),
        (
            [("mild", "severe pain"), ("Mild", "Severe  Pain")],
            [["Mild", "mild"], ["Severe  Pain", "severe pain"]],
        ),
        ([("männlich", "weiblich"), ("h", "w")], None),
        ([("A", "A-"), ("B", "AB")], None),
        ([("0", "1", "2"), ("no", "yes")], None),
    ],
)
def test_codes_that_mean_the_same_are_one_category_and_a_question(tmp_path, codes, groups):
    paths = [
        table(tmp_path, f"{n}.csv", age=AGE, sex=cycle(*own), ill=cycle(0, 0, 1))
        for n, own in enumerate(codes)
    ]
    text, notes = drafted(paths)
    schema = parse_schema(text)
    column = schema.columns[1]
    every = sorted({value for own in codes for value in own})
    assert column == parse_schema(to_toml(schema)).columns[1]
    assert sorted(map(sorted, column.values or [[name] for name in column.categories])) == sorted(
        groups or [[value] for value in every]
    )
    assert any("do these mean the same" in note for note in notes) == bool(groups)
    assert all(problems(path, schema) == [] for path in paths)
    codes_ = [read_rows(path, schema)[0][:, 1:] for path in paths]
    assert not groups or all((own == codes_[0]).all() for own in codes_)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=12, unique=True))
def test_values_in_groups_are_all_values_once(values):
    groups = same_meaning(values)
    assert sorted(value for group in groups for value in group) == sorted(values)


@given(st.lists(st.sampled_from(["mild", "severe", "stage II", "ärgerlich"]), min_size=2, unique=True))
def test_capitals_and_spaces_make_no_category(values):
    variants = [change(value) for value in values for change in (str, str.upper, "  {} ".format)]
    assert len(same_meaning(variants)) == len(values)


def test_the_same_codes_with_another_origin_are_asked_about(tmp_path):
    one = table(tmp_path, "one.csv", age=AGE, sex=cycle(0, 1), ill=cycle(0, 0, 1))
    two = table(tmp_path, "two.csv", age=AGE, sex=cycle(1, 2), ill=cycle(0, 0, 1))
    (note,) = drafted([one, two]).notes
    assert (
        "Column 'sex' has '0', '1' in one.csv, and '1', '2' in two.csv. If these are codes for the same"
        in note
    )


def test_labels_of_several_sites_are_two_classes(tmp_path):
    paths = [
        table(tmp_path, f"{n}.csv", age=AGE, ill=cycle(*own))
        for n, own in enumerate([("no", "yes"), ("No", "YES")])
    ]
    schema = parse_schema(drafted(paths).text)
    assert schema.label.values == (("No", "no"), ("YES", "yes"))
    assert [read_rows(path, schema)[1].tolist() for path in paths] == [[0, 1] * 20] * 2


def test_values_of_categories_are_checked():
    text = 'label = { column = "y", classes = [0, 1] }\ncolumns = { a = { categories = { x = ["1"], z = [%s] } } }'
    assert parse_schema(text % "2, 3").columns[0] == Category("a", ("x", "z"), values=(("1",), ("2", "3")))
    for wrong, sentence in (
        ("1.0", "values of categories must differ; '1' is there twice"),
        ("", "category 'z' must be"),
    ):
        with pytest.raises(DataError, match=sentence):
            parse_schema(text % wrong)


# -------------------------------------------------------------------------------------------------- units

UNITS = [
    ("glucose", (70, 160), 1 / 18.016, 0, "scale = 18.016"),
    ("height", (150, 195), 0.01, 0, "scale = 100"),
    ("temperature", (36, 40), 1.8, 32, "scale = 0.55556, offset = -17.778"),
    ("weight", (50, 100), 2.2046, 0, "scale = 0.4536"),
    ("creatinine", (0.6, 1.4), 88.42, 0, "scale = 0.01131"),
]


@pytest.mark.parametrize(("column", "ends", "factor", "offset", "remedy"), UNITS)
def test_another_unit_at_one_site_is_asked_about_and_can_be_converted(
    tmp_path, column, ends, factor, offset, remedy
):
    usual = {"age": AGE, column: spread(*ends), "ill": cycle(0, 1)}
    other = usual | {column: lambda k: repr(float(spread(*ends)(k)) * factor + offset)}
    paths = [table(tmp_path, f"{n}.csv", **own) for n, own in enumerate([usual, usual, other])]
    (note,) = drafted(paths).notes
    line = f'"2.csv" = {{ {column} = {{ {remedy}'
    assert line in note and drafted(paths[:2]).notes == []
    text = drafted(paths[:2]).text
    converted = parse_schema(text + f"\n[sites]\n{line} }} }}\n")
    features = [read_rows(path, converted)[0] for path in paths]
    np.testing.assert_allclose(features[2], features[0], atol=2e-3)
    assert converted.digest == parse_schema(text).digest
    assert parse_schema(to_toml(converted)) == converted


@given(
    st.sampled_from([2.2046, 2.54, 10, 18.016, 88.42, 365.25, 1000]),
    st.booleans(),
    st.integers(2, 4),
    st.integers(0, 99),
)
def test_a_factor_between_sites_is_always_asked_about(tmp_path_factory, factor, down, sites, seed):
    """And no question about sites whose numbers have one distribution."""
    draw, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("units")
    paths = []
    for site in range(sites):
        values = draw.normal(100, 15, ROWS) * ((1 / factor if down else factor) if site == 1 else 1.0)
        paths.append(table(folder, f"{site}.csv", x=lambda k, own=values: own[k], ill=cycle(0, 1)))
    asked = [note for note in drafted(paths).notes if "another unit" in note]
    assert any("'x' has the median" in note for note in asked) and len(asked) == 1
    assert not any("another unit" in note for note in drafted([paths[0], *paths[2:]]).notes)


def test_questions_about_units_come_in_the_order_of_the_columns(tmp_path):
    names = ["weight", "height", "glucose", "crp", "age", "dose", "sodium", "urea"]
    paths = []
    for site in range(3):
        columns = {name: lambda k, factor=1000 ** (site == 2): factor * (50 + k) for name in names}
        paths.append(table(tmp_path, f"{site}.csv", **columns, ill=cycle(0, 1)))
    asked = [note.split("'")[1] for note in drafted(paths).notes if "another unit" in note]
    assert asked == names


def test_a_median_of_zero_has_no_factor_and_may_be_a_missing_value(tmp_path):
    """As for cholesterol in one of four hospitals; a scale of 1 would change nothing."""
    paths = [
        table(
            tmp_path,
            f"{site}.csv",
            chol=lambda k, own=site: 0 if own == 2 and k % 10 else 200 + k,
            ill=cycle(0, 1),
        )
        for site in range(3)
    ]
    (asked,) = [note for note in drafted(paths).notes if "another unit" in note]
    assert (
        "Does 0 mean a missing value (missing-values), or is that another unit?" in asked
        and "1.0" not in asked
    )


def test_units_of_sites_in_one_table_and_of_a_misspelt_site(tmp_path):
    schema = 'label = { column = "y", classes = [0, 1] }\ncolumns = { x = { range = [0, 100], missing = "zero" } }\n'
    schema += 'missing-values = ["-9"]\nsites = { %s = { x = { scale = -10, offset = 0.5 } } }\n'
    (tmp_path / "s.toml").write_text(schema % "b")
    path = table(tmp_path, x=lambda k: -9 if k in (2, 3) else k, y=cycle(0, 0, 1, 1), site=cycle("a", "b"))
    data = TableData(
        files=str(path), schema=str(tmp_path / "s.toml"), site_column="site", bias=False, row_norm=0
    )
    found = load_tables(data)
    plain, scaled = [k for k in range(0, 40, 2) if k != 2], [0.5 - 10 * k for k in range(1, 40, 2) if k != 3]
    known = [0.0, 0.0, *np.clip(np.array(plain + scaled) / 50 - 1, -1, 1)]
    np.testing.assert_allclose(sorted(np.vstack([found.features, found.test_features])[:, 0]), sorted(known))
    (tmp_path / "s.toml").write_text(schema % "c")
    with pytest.raises(DataError, match="names 'c', which is none of site"):
        load_tables(data)


@pytest.mark.parametrize("place", ["columns", "label", "weight"])
def test_a_code_for_a_missing_value_is_found_before_the_scale(tmp_path, place):
    text = 'label = { column = "t", range = [0, 100] }\ncolumns = { x = { range = [0, 100], missing = "zero" } }\n'
    text += 'weight = "w"\nweight-range = [0, 100]\nmissing-values = ["2"]\n'
    text += 'sites = { "a.csv" = { %s = { scale = 10 } } }\n'
    name = {"columns": "x", "label": "t", "weight": "w"}[place]
    path = table(tmp_path, x=lambda k: 0.5 * k + 1, t=lambda k: 0.5 * k + 10, w=lambda k: 0.5 * k + 10)
    schema = parse_schema(text % name)
    if place != "columns":
        table(tmp_path, x=cycle(0.2), t=cycle(0.2), w=cycle(0.2), rows=3)
        assert problems(path, schema) == []  # 0.2 becomes 2, which is no code any more
        assert read_rows(path, schema)[1].tolist() == pytest.approx(
            [-0.96 if place == "label" else -0.996] * 3
        )
    else:
        features = read_rows(path, schema)[0][:, 0]
        assert np.flatnonzero(features == 0.0).tolist() == [2, 8]  # 2, and 5, which becomes 50, the middle


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("x = { scale = 0 }", "scale must not be 0"),
        ("x = { scale = true }", "scale and offset must be numbers"),
        ("x = { factor = 2 }", "there is no key 'factor'"),
        ("x = {}", "must have scale, offset or both"),
        ("c = { scale = 2 }", "'c' is no column of numbers"),
    ],
)
def test_units_are_checked(line, sentence):
    text = 'label = { column = "y", classes = [0, 1] }\n'
    text += 'columns = { x = { range = [0, 1] }, c = { categories = ["a"] } }\n'
    with pytest.raises(DataError, match=sentence):
        parse_schema(f'{text}sites = {{ "a.csv" = {{ {line} }} }}')


# ----------------------------------------------------------------------- identifiers, dates, numbers in texts


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("patient_id", lambda k: 1000 + k),
        ("mrn", lambda k: 10_000_000 + k * 7_654_321 % 89_000_000),
        ("__index_level_0__", lambda k: k),
        ("Unnamed: 0", lambda k: k),
        ("nr", lambda k: k + 1),
        ("subject", lambda k: f"P{k:03}"),
        ("visitId", lambda k: k // 4 * 13 + 5),
        ("laborcode", lambda k: 500_000 + k * 9_973),
    ],
)
def test_identifiers_are_ignored_with_a_question(tmp_path, name, values):
    path = table(tmp_path, **{name: values}, age=AGE, ill=cycle(0, 1))
    text, (note,) = drafted([path])
    assert parse_schema(text).ignore == (name,) and note.startswith(f"Column '{name}' (")


@pytest.mark.parametrize(
    "values",
    [
        lambda k: f"2021-{k % 12 + 1:02}-10",
        lambda k: f"2021{k % 12 + 1:02}{k % 28 + 1:02}",
        lambda k: f"{k % 24:02}:30",
        lambda k: f"{k % 28 + 1}.{k % 12 + 1:02}",
        lambda k: f"{k % 28 + 1:02}.{k % 12 + 1:02}.1951",
        lambda k: f"{k % 12 + 1}/{k % 28 + 1}/21",
        lambda k: f"{k % 28 + 1} Mar 2020",
    ],
)
def test_dates_and_times_are_ignored_with_a_question(tmp_path, values):
    path = table(tmp_path, when=values, age=AGE, ill=cycle(0, 1))
    text, (note,) = drafted([path])
    assert parse_schema(text).ignore == ("when",) and "has dates or times" in note


@pytest.mark.parametrize(
    "values", [spread(4.5, 9.5), spread(0.01, 0.99), lambda k: 1950 + k * 7 % 60, lambda k: 20 + k]
)
def test_measurements_are_neither(tmp_path, values):
    path = table(tmp_path, x=values, age=AGE, ill=cycle(0, 1))
    text, notes = drafted([path])
    assert parse_schema(text).ignore == () and notes == []


@pytest.mark.parametrize(
    ("form", "keys"),
    [
        ("{} kg", {"unit": "kg"}),
        ("{}%", {"unit": "%"}),
        ("{}mg/dl", {"unit": "mg/dl"}),
        ("{} °C", {"unit": "°C"}),
        ("{} kg/m2", {"unit": "kg/m2"}),
        ("<{}", {"below": "limit"}),
        ("> {}", {"above": "limit"}),
        ("<{} mg", {"unit": "mg", "below": "limit"}),
    ],
)
def test_numbers_in_texts_are_numbers_with_a_question(tmp_path, form, keys):
    path = table(
        tmp_path, x=lambda k: spread(2, 50)(k) if k % 2 else form.format(spread(2, 50)(k)), ill=cycle(0, 1)
    )
    text, notes = drafted([path])
    schema = parse_schema(text)
    assert schema.columns == (Number("x", Range(2.0, 49.0), **keys),)
    assert len(notes) == len(keys) and problems(path, schema) == []
    values = np.array([float(spread(2, 50)(k)) for k in range(ROWS)])
    np.testing.assert_allclose(read_rows(path, schema)[0][:, 0], (values - 25.5) / 23.5)
    if "below" in keys:
        half = parse_schema(text.replace('censored-below = "limit"', 'censored-below = "half"'))
        expected = np.clip((np.where(np.arange(ROWS) % 2, values, values / 2) - 25.5) / 23.5, -1, 1)
        np.testing.assert_allclose(read_rows(path, half)[0][:, 0], expected)


def test_texts_with_decimal_commas_and_units(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("dose;x;ill\n" + "".join(f"{k},5;{k},25 kg;{k % 2}\n" for k in range(20)))
    schema = parse_schema(drafted([path]).text)
    assert schema.columns[1] == Number("x", Range(0.25, 20.0), unit="kg") and problems(path, schema) == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            lambda k: f"{50 + k} {'kg' if k % 2 else 'lb'}",
            "has numbers in 'kg' and 'lb': bring them to one unit",
        ),
        (lambda k: f"{100 + k}/{60 + k % 7}", "is read as text because of '100/60'"),
        (lambda k: f"{k}-{k + 9} years", "is read as text because of '0-9 years'"),
    ],
)
def test_texts_that_are_no_numbers_yet_are_asked_about(tmp_path, values, sentence):
    path = table(tmp_path, x=lambda k: values(k % 20), age=AGE, ill=cycle(0, 1))
    text, notes = drafted([path])
    assert any(
        sentence.replace("'kg' and 'lb'", "'lb' and 'kg'") in note or sentence in note for note in notes
    )
    assert not any(isinstance(own, Number) for own in parse_schema(text).columns if own.name == "x")


@given(
    st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), min_size=8, max_size=30, unique=True),
    st.booleans(),
)
def test_a_unit_changes_no_number(tmp_path_factory, values, spaced):
    unit, folder = " kg" if spaced else "kg", tmp_path_factory.mktemp("unit")
    rows = {"rows": len(values), "ill": cycle(0, 1)}
    plain = table(folder, "plain.csv", x=lambda k: f"{values[k]:.3f}", **rows)
    with_unit = table(folder, "unit.csv", x=lambda k: f"{values[k]:.3f}{unit}", **rows)
    one, two = (read_rows(path, parse_schema(drafted([path]).text))[0] for path in (plain, with_unit))
    np.testing.assert_array_equal(one, two)


def test_a_draft_without_a_feature_says_why(tmp_path):
    path = table(tmp_path, id=lambda k: 1000 + k, ill=cycle(0, 1))
    with pytest.raises(DataError, match="but the label can be used; column 'id' looks like an identifier"):
        drafted([path])


def test_the_time_of_a_draft_and_of_a_check_grows_with_the_columns(tmp_path, monkeypatch):
    """Counted in comparisons of names, not in seconds: no pair of names is compared in one wide table, or in two."""
    asked = []
    monkeypatch.setattr(draft_notes, "get_close_matches", lambda *names: asked.append(names) or [])
    columns = {f"g{n:04}": (lambda k, n=n: f"{(k * 7 + n) % 97 / 10}") for n in range(300)}
    one = table(tmp_path, "one.csv", rows=12, **columns, ill=cycle(0, 1))
    two = table(
        tmp_path, "two.csv", rows=12, **{f"G_{name[1:]}": of for name, of in columns.items()}, ill=cycle(0, 1)
    )
    same = [note for note in drafted([one, two]).notes if "the same column as" in note]
    assert asked == []
    assert len(same) == 300 and "'g0000'" in same[0] and "'G_0000'" in same[0]


def test_the_check_of_a_wide_table_shows_the_columns_with_something_to_show():
    fit = [(f"g{n}", 9, int(n == 7), int(n == 8)) for n in range(201)]
    assert remarkable(fit) == (
        [("g7", "9", "1", "0"), ("g8", "9", "0", "1")],
        ["of 201 columns 2 have values that are missing or outside of their ranges"],
    )
    assert remarkable(fit[:200]) == ([tuple(map(str, row)) for row in fit[:200]], [])


@pytest.mark.parametrize(
    "values",
    [
        ("Y", "O"),
        ("AA", "Aa", "aa"),
        ("F", "N"),
        ("T", "S"),
        ("W", "F"),
        ("C", "c"),
        ("N", "S", "O"),
        ("0", "1", "O"),
    ],
)
def test_values_that_may_be_codes_stay_apart(values):
    """Young and old, genotypes, antigens: words of one side only, or letters that would leave a single category."""
    assert same_meaning(values) == [[value] for value in values]


@given(st.lists(st.sampled_from("01AaCcFfHhJjMmNnOoSsTtVvWwYy"), min_size=2, unique=True))
@example(["1", "F", "N"])
def test_different_letters_stay_apart(values):
    groups = same_meaning(values)
    assert all(len({value.casefold() for value in group if value.isalpha()}) <= 1 for group in groups)


@given(st.lists(st.text("abAB01oyn", min_size=1, max_size=3), min_size=2, unique=True))
def test_never_is_a_column_left_with_one_group(values):
    assert len(same_meaning(values)) > 1


@pytest.mark.parametrize(
    "column",
    ["relapsefree", "nonevent", "disease_free", "PFS_free", "lost_to_followup", "lfu", "withdrawn", "dropout",
     "administrative_end", "no_metastasis"],
)  # fmt: skip
def test_a_name_that_may_mean_no_event_is_a_question(column):
    assert events(column, ["0", "1"]) is None
    assert events("no_relapse", ["0", "1"]) == (["0"], ["1"])


@pytest.mark.parametrize("text", ["1.234 g", "<1.234", "> 1.234 g"])
def test_a_point_among_decimal_commas_is_ambiguous_with_a_unit_and_with_a_limit(text):
    column = Number("dose", Range(0, 1e4), unit="g", below="limit", above="limit")
    assert str(plain(column, [text, "1,5 g"], commas=True)[0]) == str(Ambiguous(text))
    assert plain(column, [text, "1,5 g"], commas=True)[1] == "1.5"
    assert plain(column, [text], commas=False) == ["1.234"]


def test_stages_are_categories_and_no_numbers_in_two_units(tmp_path):
    path = table(
        tmp_path, stage=cycle("1a", "1b", "2a", "2b", "3a", "3b"), age=lambda k: 30 + k % 40, ill=cycle(0, 1)
    )
    assert [column.name for column in parse_schema(drafted([path]).text).columns] == ["stage", "age"]


def test_an_event_with_four_values_is_refused(tmp_path):
    path = table(
        tmp_path, age=lambda k: 30 + k % 40, months=lambda k: 1 + k % 9, status=cycle("A", "B", "C", "D")
    )
    with pytest.raises(DataError, match="it must have two values; got 4"):
        drafted([path], "months", event="status")


def test_the_line_for_another_unit_can_be_copied(tmp_path):
    ill, one = cycle(0, 1), {"blood glucose": lambda k: 90 + k % 40}
    usual = [table(tmp_path, f"{n}.csv", **one, ill=ill) for n in (1, 2)]
    other = table(tmp_path, "sité 1.csv", **{"blood glucose": lambda k: (90 + k % 40) / 18.016}, ill=ill)
    text, notes = drafted([*usual, other])
    (line,) = (
        note.split("Then write ")[1].split(" under [sites]")[0] for note in notes if "another unit" in note
    )
    known = parse_schema(f"{text}\n[sites]\n{line}\n")
    assert known.sites == {"sité 1.csv": {"blood glucose": Scale(18.016, 0.0)}}


def test_the_longest_name_of_a_site_counts(tmp_path):
    path = table(tmp_path, x=lambda k: k % 17 / 2, ill=cycle(0, 1))
    text = (
        drafted([path]).text
        + '\n[sites]\n"g.csv" = { x = { scale = 2 } }\n"b/g.csv" = { x = { scale = 3 } }\n'
    )
    known = parse_schema(text)
    assert [known.at(Path(site)).scales["x"].scale for site in ("a/g.csv", "a/b/g.csv")] == [2, 3]
    assert not known.at("a/g.csv").scales  # a value of a column must be equal
    assert known.at("g.csv").scales["x"].scale == 2


def visits(k):
    """Three rows of each person, with the start and the end of an interval each."""
    person, visit = divmod(k, 3)
    return person, visit, 4 * visit * (1 + person % 5), 4 * (visit + 1) * (1 + person % 5)


@pytest.mark.parametrize("start", ["tstart", "entry_time", "column7"])
def test_intervals_of_a_person_are_not_counted_as_persons(tmp_path, start):
    """By the name of their start, or because they touch, also where the column is ignored."""
    path = table(
        tmp_path, age=lambda k: 30 + visits(k)[0] % 41 / 2, **{start: lambda k: visits(k)[2]},
        stop=lambda k: visits(k)[3], died=lambda k: int(k % 6 == 5), rows=60,
    )  # fmt: skip
    text, notes = drafted([path], "stop", event="died")
    assert "one-row-per-person = false" in text and any("several rows" in note for note in notes)
    with pytest.raises(DataError, match="every row must be another person, followed from time 0"):
        parse_schema(text)
    assert parse_schema(text.replace("person = false", "person = true")).label.one_row


def test_a_schema_that_ignores_the_start_of_intervals_says_whose_the_rows_are(tmp_path):
    path = table(tmp_path, age=AGE, months=lambda k: 1 + k % 30 / 2, died=cycle(0, 1))
    text = drafted([path], "months", event="died").text
    assert parse_schema(text).label.one_row is None  # an ordinary table is not asked about
    with pytest.raises(DataError, match="column 'tstart' looks like the start of an interval"):
        parse_schema(text.replace("ignore = []", 'ignore = ["tstart"]'))
    with pytest.raises(DataError, match="one-row-per-person must be true or false; got 1"):
        parse_schema(text.replace("[label]", "[label]\none-row-per-person = 1"))
