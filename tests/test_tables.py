"""Tables of sites: a public schema, and what a file must be to fit it."""

import csv
import io
import json
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinflower.data import csv_tables, draft_notes, drafts, tables
from twinflower.data.cells import texts
from twinflower.data.checks import problems
from twinflower.data.columns import INDICATOR, ZERO, Category, Classes, Number, Range, Target
from twinflower.data.draft_notes import drafted
from twinflower.data.drafts import draft, read_tables
from twinflower.data.schema import Schema
from twinflower.data.schema_file import parse_schema, to_toml
from twinflower.data.schema_file import read_schema as read_schema_file
from twinflower.data.tables import read_features, read_rows
from twinflower.errors import DataError

SCHEMA = """
ignore = ["id"]
[label]
column = "ill"
classes = { no = ["0"], yes = ["1", "2"] }
[columns]
age = { range = [20, 80] }
pain = { categories = ["none", "mild", 3], missing = "indicator" }
dose = { range = [0, 4], missing = "indicator" }
"""
TABLE = """id,age,pain,dose,ill
a,20,none,4,0
b,65,mild,,1
c,110,3.0,1,2
d,50,NA,-7,0
"""
FEATURES = ["age", "pain=none", "pain=mild", "pain=3", "pain is missing", "dose", "dose is missing"]
ENCODED = [
    [-1.0, 1, 0, 0, 0, 1.0, 0],
    [0.5, 0, 1, 0, 0, 0.0, 1],
    [1.0, 0, 0, 1, 0, -0.5, 0],
    [0.0, 0, 0, 0, 1, -1.0, 0],
]
LABELS = [0, 1, 1, 0]


@pytest.fixture(params=["loadtxt", "csv"])
def reader(request, monkeypatch):
    """Both ways to read CSV."""
    if request.param == "csv":
        monkeypatch.setattr(csv_tables, "_plain", lambda *_: None)


def written(folder, content, name="site.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_table_becomes_features_and_labels_by_the_schema_alone(tmp_path, reader):
    schema = parse_schema(SCHEMA)
    assert list(schema.features) == FEATURES
    features, labels = read_rows(written(tmp_path, TABLE), schema)
    np.testing.assert_array_equal(features, ENCODED)
    np.testing.assert_array_equal(labels, LABELS)
    for row, line in enumerate(TABLE.splitlines()[1:]):  # alone it is the same: no statistic of other rows
        one, label = read_rows(written(tmp_path, TABLE.splitlines()[0] + "\n" + line), schema)
        np.testing.assert_array_equal(one, ENCODED[row : row + 1])
        assert label == LABELS[row]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: "\ufeff" + t,
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t.rstrip("\n"),
        lambda t: t.replace("\n", "\n\n"),
        lambda t: "\n\n" + t,
        lambda t: t.replace("none", '"none"').replace("id", '"id"'),
        lambda t: t.replace("65", " 65 ").replace("mild", " mild "),
        lambda t: "\n".join(",".join(line.split(",")[::-1]) for line in t.splitlines()),
        lambda t: "\n".join(line.partition(",")[2] for line in t.splitlines()),
        lambda t: t.replace("b,", '"two\nlines",'),
    ],
    ids=[
        "bom",
        "crlf",
        "no-end",
        "blank-lines",
        "blank-first",
        "quotes",
        "spaces",
        "order",
        "without-ignored",
        "newline-in-quotes",
    ],
)
def test_how_a_table_is_written_does_not_matter(tmp_path, reader, change):
    features, labels = read_rows(written(tmp_path, change(TABLE)), parse_schema(SCHEMA))
    np.testing.assert_array_equal(features, ENCODED)
    np.testing.assert_array_equal(labels, LABELS)


DIALECTS = [(",", "."), (";", "."), (";", ","), ("\t", ","), ("|", ",")]
QUOTED = (",", ",")  # numbers with decimals are in quotes


def in_dialect(table, delimiter, decimal):
    """A table with commas and decimal points, written in another way."""
    return table.translate({ord(","): delimiter, ord("."): decimal})


def dialect_of(delimiter, decimal):
    return f"delimiter = {json.dumps(delimiter)}\ndecimal = {json.dumps(decimal)}\n"


@pytest.mark.parametrize(("delimiter", "decimal"), DIALECTS)
def test_a_table_may_have_other_separators_and_decimal_commas(tmp_path, reader, delimiter, decimal):
    """Of all columns: 3.0 is a category, 0.0 a class, 110.0 a number."""
    table = TABLE.replace("110,", "110.0,").replace("none,4,0", "none,4,0.0").replace("65", " 65.0 ")
    path = written(tmp_path, "\ufeff" + in_dialect(table, delimiter, decimal))
    features, labels = read_rows(path, parse_schema(dialect_of(delimiter, decimal) + SCHEMA))
    np.testing.assert_array_equal(features, ENCODED)
    np.testing.assert_array_equal(labels, LABELS)


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        (
            "1.234",
            "'1.234' has a decimal point, and the schema says decimal = \",\": write it with a comma, or without the "
            "point if that separates thousands$",
        ),
        ("12.34,5", "'12.34,5' is not a number$"),
        ("1,2,3", "'1,2,3' is not a number$"),
    ],
)
def test_a_number_that_could_mean_two_things_is_refused(tmp_path, cell, sentence):
    path = written(tmp_path, in_dialect(TABLE, ";", ",").replace("65", cell))
    with pytest.raises(DataError, match=f"row 2, column 'age': {sentence}"):
        read_rows(path, parse_schema(dialect_of(";", ",") + SCHEMA))


@pytest.mark.parametrize("cell", ["1.234.050,5", "+1.234.050,50 ", "1234050,5"])
def test_with_a_decimal_comma_points_separate_thousands(tmp_path, cell):
    schema = (dialect_of(";", ",") + SCHEMA).replace("[20, 80]", "[0, 2468101]")
    path = written(tmp_path, in_dialect(TABLE, ";", ",").replace("65", cell))
    assert read_rows(path, parse_schema(schema))[0][1, 0] == 0  # the middle


def test_decimal_commas_may_stand_in_quotes_between_commas(tmp_path):
    table = TABLE.replace("65", '"62,50"').replace("3.0", "3")
    features, _ = read_rows(written(tmp_path, table), parse_schema('decimal = ","\n' + SCHEMA))
    assert features[1, 0] == (62.5 - 50) / 30
    with pytest.raises(DataError, match="row 2 has 6 fields; the header has 5"):
        read_rows(written(tmp_path, table.replace('"', "")), parse_schema('decimal = ","\n' + SCHEMA))


@pytest.mark.parametrize("mark", ["sep=;\n", "sep=;\r\n", '"sep=;"\n', "\ufeffsep=;\n"])
def test_excels_line_about_the_separator_is_skipped(tmp_path, reader, mark):
    table = in_dialect(TABLE.replace("3.0", "3"), ";", ",")
    path = written(tmp_path, mark + table)
    schema = parse_schema(dialect_of(";", ",") + SCHEMA)
    np.testing.assert_array_equal(read_rows(path, schema)[0], ENCODED)
    assert problems(path, schema) == []
    assert parse_schema(drafted([path]).text).used == ("id", "age", "pain", "dose", "ill")
    with pytest.raises(DataError, match=", row 2, column '.*' is not UTF-8"):
        read_rows(
            written(tmp_path, (mark + table.replace("mild", "sch\xf6n")).encode("latin-1", "ignore")), schema
        )


def test_a_missing_value_may_be_marked_by_a_point(tmp_path):
    schema = parse_schema('missing-values = [".", "n.d.", ""]\n' + dialect_of(";", ",") + SCHEMA)
    path = written(
        tmp_path, TABLE.replace(",", ";").replace("NA", ".").replace("-7", "n.d.").replace("3.0", "3")
    )
    np.testing.assert_array_equal(read_rows(path, schema)[0][3], [0.0, 0, 0, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ('delimiter = ":"', r"delimiter must be one of \",\" \";\" \"\\t\" \"|\"; got ':'"),
        ("delimiter = [1]", r"delimiter must be one of .*; got \[1\]"),
        ('decimal = ";"', r"decimal must be one of \".\" \",\"; got ';'"),
        ('delimeter = ";"', r"there is no key 'delimeter'; did you mean 'delimiter'\?"),
    ],
)
def test_a_dialect_that_breaks_a_rule_is_one_sentence(own, sentence):
    with pytest.raises(DataError, match=sentence.replace("|", r"\|")):
        parse_schema(own + SCHEMA)


@pytest.mark.parametrize(("delimiter", "decimal"), DIALECTS)
@pytest.mark.parametrize(("other", "mark"), [(",", "."), (";", ","), ("\t", ",")])
def test_a_file_in_another_dialect_is_refused_and_names_the_setting(
    tmp_path, delimiter, decimal, other, mark
):
    if other == delimiter:
        return
    path = written(tmp_path, in_dialect(TABLE, other, mark))
    expected = (
        f"must be separated by .*: set delimiter = {json.dumps(other)} in the schema, or, if other ".replace(
            "\\", r"\\"
        )
    )
    with pytest.raises(DataError, match=expected):
        read_rows(path, parse_schema(dialect_of(delimiter, decimal) + SCHEMA))


def test_sites_may_write_the_same_table_in_different_ways():
    """The digest by which they compare their schemas is of what the columns mean."""
    plain, other = parse_schema(SCHEMA), parse_schema(dialect_of(";", ",") + SCHEMA)
    assert plain.digest == other.digest
    assert parse_schema(to_toml(other)) == other != plain


BAD = {
    "wrong header": (
        TABLE.replace("age", "Age"),
        r"has no column 'age', which the schema names; did you mean 'Age'\?$",
    ),
    "no header": (
        TABLE.partition("\n")[2],
        r"has none of the columns .* 'age', .*; is its first line a header\?$",
    ),
    "no header, with a value twice": (
        "1,1,mild,3\n",
        r"has none of the columns .*; is its first line a header\?$",
    ),
    "column without a name": (
        "".join(f",{line}\n" for line in TABLE.splitlines()),
        "has a column '' that the schema does not know: list it",
    ),
    "extra column": (
        TABLE.replace("id", "name"),
        "has a column 'name' that the schema does not know: list it",
    ),
    "duplicated header": (TABLE.replace("id", "age"), "has two columns called 'age'$"),
    "unseen category": (
        TABLE.replace("mild", "severe"),
        r", row 2, column 'pain': 'severe' is not one of the cat",
    ),
    "label outside the classes": (
        TABLE.replace(",2\n", ",7\n"),
        r", row 3, column 'ill': '7' is not a value of one",
    ),
    "label missing": (
        TABLE.replace("7,0\n", "7,\n"),
        ", row 4, column 'ill': the label is missing: leave the row out$",
    ),
    "no rule for a missing value": (
        TABLE.replace("65", ""),
        ", row 2, column 'age': the value is missing: give the column missing =",
    ),
    "NaN": (TABLE.replace("65", "nan"), ", row 2, column 'age': the value is missing: give"),
    "mixed types": (TABLE.replace("65", "old"), ", row 2, column 'age': 'old' is not a number$"),
    "decimal comma": (
        TABLE.replace("65", '"6,5"'),
        r""", row 2, column 'age': '6,5' is not a number: for decimal commas in a CSV file set decimal = "," in""",
    ),
    "huge number": (
        TABLE.replace("65", "1e200"),
        ", row 2, column 'age': '1e200' is not a number of at most 1e",
    ),
    "infinity": (TABLE.replace("65", "-inf"), ", row 2, column 'age': '-inf' is not a number"),
    "overflow": (
        TABLE.replace("65", "9" * 400),
        ", row 2, column 'age': '9{40}…' is not a number of at most 1e",
    ),
    "empty file": ("", "is empty; it must begin with a line of column names$"),
    "only blank lines": ("\n\r\n", "is empty; it must begin with a line of column names$"),
    "0 rows": (TABLE.partition("\n")[0] + "\n", "has a header and no rows$"),
    "semicolons": (
        TABLE.replace(",", ";"),
        'must be separated by commas; its header is separated by semicolons: set delimiter = ";" in the schema, '
        "or, if other tables are separated by commas, save this one so, too$",
    ),
    "tabs": (
        TABLE.replace(",", "\t"),
        'must be separated by commas; its header is separated by tabs: set delimiter = "\\\\t" in the schema, '
        "or, if other tables are separated by commas, save this one so, too$",
    ),
    "short row": (TABLE.replace("65,", ""), ", row 2 has 4 fields; the header has 5$"),
    "long row": (TABLE.replace("65,", "65,5,"), ", row 2 has 6 fields; the header has 5$"),
    "Latin-1": (
        TABLE.replace("mild", "schön").encode("latin-1"),
        ", row 2, column 'pain' is not UTF-8 text: save the table as CSV UTF-8$",
    ),
    "Latin-1 in the header": (
        TABLE.replace("id", "né").encode("latin-1"),
        ": the header is not UTF-8 text: save",
    ),
    "UTF-16": (TABLE.encode("utf-16"), ": the header is not UTF-8 text: save the table as CSV UTF-8$"),
    "open quote": (TABLE.replace("mild", '"mild'), r", row \d: not a line of CSV"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_one_sentence_with_file_row_and_column(tmp_path, reader, name):
    content, sentence = BAD[name]
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=sentence) as caught:
        read_rows(path, parse_schema(SCHEMA))
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_rows_are_counted_through_all_pieces(tmp_path, reader, monkeypatch):
    monkeypatch.setattr(csv_tables, "_ROWS", 7)
    lines = [f"x,{20 + n % 60},none,1,0" for n in range(100)]
    path = written(tmp_path, "\n".join(["id,age,pain,dose,ill", *lines]))
    features, _ = read_rows(path, parse_schema(SCHEMA))
    np.testing.assert_allclose(features[:, 0], (np.arange(100) % 60 - 30) / 30, rtol=1e-15)
    for line, row in (("x,old,none,1,0", 61), ("x,30,none,1", 90)):
        content = lines[: row - 1] + [line] + lines[row:]
        with pytest.raises(DataError, match=f", row {row}[ ,]"):
            read_rows(written(tmp_path, "\n".join(["id,age,pain,dose,ill", *content])), parse_schema(SCHEMA))


def test_a_missing_number_may_be_marked_by_a_number(tmp_path, reader):
    """A row is encoded the same whatever the other rows are: with -9 for a missing value, every -9 is one."""
    schema = parse_schema('missing-values = ["-9", "?"]\n' + SCHEMA)
    lines = ["a,20,-9,-9,0", "a,20,-9.0,-9.00,0", "a,20,none,2,0", "a,50,?,?,1"]
    expected = [[-1.0, 0, 0, 0, 1, 0, 1]] * 2 + [[-1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 1]]
    for chosen in ([0, 1, 2, 3], [0, 1, 2], [0], [1], [3]):
        content = "\n".join(["id,age,pain,dose,ill", *(lines[row] for row in chosen)])
        features, _ = read_rows(written(tmp_path, content), schema)
        np.testing.assert_array_equal(features, [expected[row] for row in chosen])
    np.savez(
        tmp_path / "site.npz", age=np.array([20.0, 20]), pain=np.array(["-9", "none"]), dose=np.array([-9.0, 2]),
        ill=np.zeros(2),
    )  # fmt: skip
    np.testing.assert_array_equal(read_rows(tmp_path / "site.npz", schema)[0], [expected[0], expected[2]])


words = st.text('0123456789.,eE+-_ xna"\n\r\t\u0661\xa0', max_size=12) | st.floats().map(repr)


@given(
    st.lists(st.lists(words, min_size=2, max_size=2), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from([*DIALECTS, QUOTED]),
)
def test_both_readers_of_csv_give_the_same_numbers_or_the_same_sentence(
    tmp_path_factory, rows, quoted, dialect
):
    """Whatever the cells are."""
    stream = io.StringIO()
    quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    csv.writer(stream, quoting=quoting, delimiter=dialect[0]).writerows([["a", "y"], *rows])
    schema = parse_schema(
        dialect_of(*dialect)
        + '[label]\ncolumn = "y"\nrange = [0, 1]\n[columns]\na = { range = "private", missing = "zero" }'
    )
    path = written(tmp_path_factory.getbasetemp(), stream.getvalue(), "fuzzed.csv")
    found = []
    for plain in (csv_tables._plain, lambda *_: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csv_tables, "_plain", plain)
            try:
                found.append(np.column_stack(read_rows(path, schema)).tobytes())
            except DataError as error:
                found.append(str(error))
    assert found[0] == found[1]


@given(
    st.lists(
        st.tuples(st.floats(-1e90, 1e90), st.sampled_from(["none", "mild", "3", ""]), st.sampled_from("012")),
        min_size=1,
        max_size=20,
    )
)
def test_every_value_lands_in_minus_one_to_one(rows):
    schema = parse_schema(SCHEMA)
    age, pain, ill = zip(*rows, strict=True)
    cells = {"age": list(map(repr, age)), "pain": pain, "dose": ["1"] * len(rows), "ill": ill}
    features, labels = schema.encode(cells), schema.encode_label(cells)
    assert np.abs(features).max() <= 1
    np.testing.assert_array_equal(features[:, 1:5].sum(1), 1)
    assert set(labels) <= {0, 1}
    inside = (np.array(age) >= 20) & (np.array(age) <= 80)
    np.testing.assert_allclose(features[inside, 0] * 30 + 50, np.array(age)[inside], rtol=1e-12)


def test_arrays_and_parquet_hold_the_same_table(tmp_path):
    schema = parse_schema(SCHEMA)
    columns = {
        "age": np.array([20, 65, 110, 50]),
        "pain": np.array(["none", "mild", "3", "NA"]),
        "dose": np.array([4, np.nan, 1, -7]),
        "ill": np.array([0, 1, 2, 0]),
    }
    np.savez(tmp_path / "site.npz", **columns)
    features, labels = read_rows(tmp_path / "site.npz", schema)
    np.testing.assert_array_equal(features, ENCODED)
    np.testing.assert_array_equal(labels, LABELS)
    import pyarrow as arrow
    from pyarrow import parquet

    texts = arrow.array(["none", "mild", "3", None]).dictionary_encode()
    doses = arrow.array([4.0, None, 1.0, -7.0])
    parquet.write_table(arrow.table(columns | {"pain": texts, "dose": doses}), tmp_path / "site.parquet")
    features, labels = read_rows(tmp_path / "site.parquet", schema)
    np.testing.assert_array_equal(features, ENCODED)
    np.testing.assert_array_equal(labels, LABELS)
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_rows(written(tmp_path, TABLE, "bad.parquet"), schema)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"Parquet needs pyarrow; install it with pip install pyarrow"):
        read_rows(written(tmp_path, b"PAR1", "site.parquet"), parse_schema(SCHEMA))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"age": np.zeros((2, 2))}, r"column 'age' must have shape \(rows,\)"),
        ({"age": np.zeros(2), "dose": np.zeros(3)}, "column 'dose' has 3 rows; another has 2"),
        ({"age": np.array([None])}, "must be an .npz file with an array for each column"),
        ({"age": np.zeros(2, complex)}, "must be numbers or texts"),
        ({}, "has no arrays"),
    ],
)
def test_arrays_that_are_no_columns_are_refused(tmp_path, arrays, sentence):
    np.savez(tmp_path / "site.npz", **arrays)
    with pytest.raises(DataError, match=sentence):
        read_rows(tmp_path / "site.npz", parse_schema(SCHEMA))


def test_files_that_are_none(tmp_path):
    schema = parse_schema(SCHEMA)
    for name, sentence in (
        ("absent.csv", "cannot be read"),
        ("absent.txt", "must be one of .csv, .parquet, .npz"),
    ):
        with pytest.raises(DataError, match=sentence):
            read_rows(tmp_path / name, schema)
    with pytest.raises(DataError, match=r"must be an .npz file .* \(it does not hold plain arrays\)$"):
        read_rows(written(tmp_path, TABLE, "site.npz"), schema)
    with pytest.raises(DataError, match=r"no file matches .*site-\*.csv"):
        tables.table_files(str(tmp_path / "site-*.csv"))


def test_rows_to_predict_need_no_label(tmp_path, reader):
    without = "\n".join(line.rpartition(",")[0] for line in TABLE.splitlines())
    for content in (TABLE, without):
        np.testing.assert_array_equal(
            read_features(written(tmp_path, content), parse_schema(SCHEMA)), ENCODED
        )


def test_numbers_are_labels_in_their_range(tmp_path):
    schema = parse_schema(
        '[label]\ncolumn = "y"\nrange = [0, 10]\n[columns]\nx = { range = [0, 1], missing = "zero" }'
    )
    features, labels = read_rows(written(tmp_path, "x,y\n,0\n1,7.5\n"), schema)
    np.testing.assert_array_equal(features, [[0], [1]])
    np.testing.assert_array_equal(labels, [-1, 0.5])
    assert schema.num_classes == 0
    with pytest.raises(DataError, match=r"row 1, column 'y': 'x' is not a number"):
        read_rows(written(tmp_path, "x,y\n1,x\n"), schema)


# ---------------------------------------------------------------------------------------- the schema


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("[20, 80]", "[80, 20]"),
            r"column 'age': range must be \[low, high\], two finite numbers with low < high",
        ),
        (("[20, 80]", "[20, 20]"), "range must be"),
        (("[20, 80]", "[-inf, 80]"), "range must be"),
        (("[20, 80]", "[20]"), "range must be"),
        (("[20, 80]", "[true, 80]"), "range must be"),
        (("range = [20, 80]", ""), "column 'age' needs either range or categories"),
        (("{ range = [20, 80] }", "3"), "column 'age' must be a table such as"),
        (('"mild"', '"3.0"'), "categories must differ; '3' is there twice"),
        (('["none", "mild", 3]', "[]"), "categories must be a list of texts or numbers"),
        (("[20, 80]", '"privat"'), "numbers with low < high; got 'privat'; did you mean 'private'?"),
        (('"indicator"', '"indicater"'), "got 'indicater'; did you mean 'indicator'?"),
        (('"indicator"', '"mean"'), "missing must be one of refuse, zero, indicator; got 'mean'"),
        (("missing", "mising"), "there is no key 'mising'; did you mean 'missing'?"),
        (("ignore", "ignored"), "there is no key 'ignored'; did you mean 'ignore'?"),
        (('"id"', '"age"'), "columns, label, ignore, group and weight must differ; 'age' is there twice"),
        (('"ill"', '"age"'), "columns, label, ignore, group and weight must differ; 'age' is there twice"),
        (('"2"', '"0"'), "values of classes must differ; '0' is there twice"),
        ((', yes = ["1", "2"]', ""), "label needs at least two classes; got 1"),
        (("classes", "clases"), "did you mean 'classes'"),
        (("[label]", "[lable]"), "there is no key 'lable'; did you mean 'label'?"),
        (("ignore", "version = 2\nignore"), "version must be 1; got 2"),
        (("[columns]", "[columns"), "is not TOML"),
    ],
)
def test_a_schema_that_breaks_a_rule_is_one_sentence(tmp_path, change, sentence):
    path = written(tmp_path, SCHEMA.replace(*change, 1), "schema.toml")
    with pytest.raises(DataError, match=sentence.replace("?", r"\?")) as caught:
        read_schema_file(path)
    assert str(caught.value).startswith(f"schema {path}")


def test_files_that_are_no_schema(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_schema_file(tmp_path / "absent.toml")
    with pytest.raises(DataError, match="must be UTF-8 text; byte 0"):
        read_schema_file(written(tmp_path, b"\xff", "schema.toml"))


names = st.text(min_size=1, max_size=8).map(str.strip).filter(bool)
ranges = st.tuples(st.floats(-1e90, 1e90), st.floats(1e-3, 1e90)).map(
    lambda pair: Range(pair[0], float(np.nextafter(max(pair[0] + pair[1], pair[0]), np.inf)))
)


@given(
    st.lists(names, min_size=4, max_size=4, unique=True),
    ranges,
    st.lists(names, min_size=2, max_size=4, unique_by=str.casefold),
    st.booleans(),
)
def test_a_schema_survives_its_own_file(columns, range_, words, regression):
    from twinflower.data.cells import as_text

    words = list(dict.fromkeys(map(as_text, words)))
    a, b, label, ignored = columns
    classes = Classes(label, ("no", "yes"), ((words[0],), ("another", "third")))
    if range_.half <= 0 or any(word in ("another", "third") for word in words):
        return
    if not all(columns):  # the filter of names notwithstanding, from hypothesis 6.100
        return
    schema = Schema(
        (Number(a, range_, ZERO), Category(b, tuple(words), INDICATOR)),
        Target(label, range_) if regression else classes,
        (ignored,),
        ("", "-9"),
    )
    if len(set(schema.features)) < len(schema.features):
        return
    again = parse_schema(to_toml(schema))
    assert again == schema
    assert again.digest == schema.digest


def test_the_digest_is_of_what_a_schema_says(tmp_path):
    schema = parse_schema(SCHEMA)
    assert parse_schema("# a comment\n" + SCHEMA.replace("20, 80", "20.0,  80.0")).digest == schema.digest
    for change in (
        ("80", "81"),
        ('"mild", 3', '3, "mild"'),
        ('"zero"', '"x"'),
        ('["id"]', "[]"),
        ("no =", "nein ="),
    ):
        if change[0] in SCHEMA:
            assert parse_schema(SCHEMA.replace(*change, 1)).digest != schema.digest


# ------------------------------------------------------------------------------------------- drafts


def test_a_draft_ignores_a_column_without_a_name(tmp_path):
    """Such as the row numbers that pandas writes."""
    path = written(tmp_path, "".join(f"{row},{line}\n" for row, line in enumerate(TABLE.splitlines())))
    path.write_text(path.read_text().replace("0,", ",", 1))
    schema = parse_schema(drafted([path], "ill").text)
    assert schema.ignore == ("",)
    read_rows(path, schema)


def test_a_draft_fits_the_tables_it_was_made_from(tmp_path):
    one = written(tmp_path, "age,sex,ca,note,free,num\n28.5,0,,a,u1,0\n76,1,0,b,u2,1\n", "one.csv")
    rest = "".join(f"{30 + n},1,{n % 3},a,v{n},{n % 5}\n" for n in range(60))
    two = written(tmp_path, f"age,sex,ca,note,free,num\n{rest}", "two.csv")
    schema = draft(read_tables([one, two]))
    assert schema.label == Classes("num", (0, 1, 2, 3, 4), (("0",), ("1",), ("2",), ("3",), ("4",)))
    assert schema.ignore == ("free",)
    assert schema.columns == (
        Number("age", Range(28.0, 89.0)),
        Category("sex", ("0", "1")),
        Category("ca", ("0", "1", "2"), INDICATOR),
        Category("note", ("a", "b")),
    )
    assert parse_schema(to_toml(schema)) == schema
    assert [len(read_rows(path, schema)[1]) for path in (one, two)] == [2, 60]
    assert draft(read_tables([one, two]), "age").label == Target("age", Range(28.0, 89.0))
    with pytest.raises(DataError, match="there is no column 'x'"):
        draft(read_tables([one]), "x")
    with pytest.raises(DataError, match="'free' cannot be the label: it has 62 different values"):
        draft(read_tables([one, two]), "free")


@pytest.mark.parametrize(("delimiter", "decimal"), [*DIALECTS, QUOTED])
def test_a_draft_recognises_how_its_tables_are_written(tmp_path, delimiter, decimal):
    stream = io.StringIO()
    rows = [["weight, kg", "note", "ill"], *([f"{n}{decimal}5", "a, b", n % 2] for n in range(20))]
    csv.writer(stream, delimiter=delimiter).writerows(rows)
    path = written(tmp_path, stream.getvalue())
    text = drafted([path]).text
    schema = parse_schema(text)
    assert schema.dialect == (delimiter, decimal)
    assert schema.columns == (Number("weight, kg", Range(0.5, 20.0)), Category("note", ("a, b",)))
    assert problems(path, schema) == []
    assert "# These comments" not in text
    assert len(read_rows(path, schema)[1]) == 20


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty; it must begin with a line of column names"),
        ("a;b\n", "has a header and no rows"),
        ("a b\n1 2\n", "has one column, 'a b': fields must be separated by commas, semicolons, tabs, bars"),
        (f'a;b\n"{"x" * 200_000}";1\n', r"row 1: not a line of CSV \(field larger than field limit"),
        (
            "a;b\nsch\xf6n;1\n".encode("latin-1"),
            "row 1, column 'a;b' is not UTF-8 text: save the table as CSV UTF-8",
        ),
    ],
    ids=["empty", "no rows", "spaces", "long", "Latin-1"],
)
def test_a_draft_of_a_file_that_is_no_table_is_one_sentence(tmp_path, content, sentence):
    with pytest.raises(DataError, match=sentence):
        drafted([written(tmp_path, content)])


def test_a_draft_says_which_files_are_written_in_another_way(tmp_path):
    names = {"a.csv": (";", ","), "b.csv": (";", ","), "c.csv": ("\t", ".")}
    table = "dose,ill\n1.5,0\n2.5,1\n"
    paths = [written(tmp_path, in_dialect(table, *own), name) for name, own in names.items()]
    text = drafted(paths).text
    assert "c.csv has tabs and decimal points, and other files have semicolons and decimal commas" in text
    assert parse_schema(text).dialect == (";", ",")
    np.testing.assert_array_equal(
        read_rows(paths[2], parse_schema(drafted(paths[2:]).text))[0],
        read_rows(paths[0], parse_schema(text))[0],
    )


def test_a_draft_reports_texts_among_numbers_and_fits_once_they_are_listed(tmp_path):
    numeric = "chol,ill\n" + "".join(f"{150 + n},{n % 2}\n" for n in range(30))
    texts_ = "chol,ill\n" + "".join(f"{'n.d.' if n < 60 else '<100'},{n % 2}\n" for n in range(90))
    paths = [written(tmp_path, numeric, f"{name}.csv") for name in "abc"] + [
        written(tmp_path, texts_, "d.csv")
    ]
    text = drafted(paths).text
    words = " ".join(text.replace("#", "").split())
    assert "Column 'chol' has numbers in a.csv, b.csv, c.csv, and texts in d.csv: '<100', 'n.d.'" in words
    assert "row 1, column 'chol': 'n.d.' is not a number (and 89 more rows)" in words
    schema = parse_schema(text)
    assert schema.columns == (Number("chol", Range(150.0, 180.0)),)
    mended = parse_schema(
        text.replace('""', '"", "n.d.", "<100"').replace("180.0]", '180.0], missing = "zero"')
    )
    assert [problems(path, mended) for path in paths] == [[]] * 4


def test_a_draft_with_thousands(tmp_path):
    """In either way of writing them; where it is not clear what a number means, the draft asks."""

    def draft_of(*cells):
        path = written(tmp_path, "cost;ill\n" + "".join(f"{cell};{n % 2}\n" for n, cell in enumerate(cells)))
        return path, drafted([path])

    cells = [f"{n}.{n}00,5" for n in range(1, 10)]
    path, (text, notes) = draft_of(*cells, "750", "800,5")
    assert parse_schema(text).columns == (Number("cost", Range(750.0, 10000.0)),)
    assert problems(path, parse_schema(text)) == notes == []
    _, (text, notes) = draft_of(*cells, "12.000")
    assert parse_schema(text).dialect == (";", ",")
    assert any("'12.000' has a decimal point, and the schema says" in note for note in notes)
    for own in (["1,234.5", "2,345.5", "750"], ["1'234.5", "2 345.5", "750.5"], ["1,5", "2,5", "7.5"]):
        _, (text, notes) = draft_of(*own)
        assert isinstance(parse_schema(text).columns[0], Category)
        (note,) = notes
        assert note.startswith(f"Column 'cost' is read as text because of {own[0]!r}"[:50])


def test_a_draft_names_a_number_whose_marks_may_be_a_slip(tmp_path):
    """1.027,5 among numbers up to 1,1 is read as 1027.5, which would widen the range without a word."""
    cells = [f"1,0{n}" for n in range(1, 10)] + ["1.027,5"]
    path = written(tmp_path, "dose;ill\n" + "".join(f"{cell};{n % 2}\n" for n, cell in enumerate(cells)))
    text, (note,) = drafted([path])
    assert note == (
        "Column 'dose' has '1.027,5', read as 1027.5, with points between thousands. Is that right? The range of its "
        "other numbers is [1, 1.1]."
    )
    assert parse_schema(text).columns == (Number("dose", Range(1.0, 1100.0)),)


def test_a_draft_goes_on_past_rows_of_another_length(tmp_path):
    rows = [f"{n}.5,{n % 2}" for n in range(20)]
    for place in (1, 4, 5, 9, 12, 13, 17):
        rows[place] = "1000.5,1,1" if place % 2 else "1000.5"
    path = written(tmp_path, "dose,ill\n" + "\n".join(rows) + "\n")
    text, notes = drafted([path])
    assert notes[0] == (
        "Left out of this draft, because the header has more or fewer fields: row 2, 5, 6, 10, 13 and 2 more of "
        f"{path.name}."
    )
    assert any("row 2 has 3 fields; the header has 2 (and 4 more rows)" in note for note in notes)
    assert parse_schema(text).columns == (Number("dose", Range(0.5, 20.0)),)
    with pytest.raises(DataError, match="row 1 has 3 fields; the header has 2$"):
        drafted([written(tmp_path, "dose,ill\n1,2,3\n1,2,3\n")])


def test_commas_between_thousands_are_no_decimal_commas(tmp_path):
    path = written(tmp_path, "cost,ill\n" + "".join(f'"{n},{n}00",{n % 2}\n' for n in range(1, 10)))
    text, (note,) = drafted([path])
    assert parse_schema(text).dialect == (",", ".")
    assert "'cost' is read as text because of '1,100'" in note


def test_a_draft_needs_two_values_of_the_label(tmp_path):
    path = written(tmp_path, "dose,ill\n1.5,1\n2.5,1\n")
    with pytest.raises(
        DataError, match="'ill' cannot be the label: all of its values are '1'; add a table that has"
    ):
        drafted([path])
    other = written(tmp_path, "dose,ill\n1.5,0\n2.5,\n", "other.csv")
    assert parse_schema(drafted([path, other]).text).num_classes == 2


@pytest.mark.parametrize("word", ["il", "Ill", "ILL"])
def test_a_misspelt_label_gets_a_suggestion(tmp_path, word):
    with pytest.raises(DataError, match=r"there is no column '.*' in .*; did you mean 'ill'\?"):
        drafted([written(tmp_path, TABLE)], word)


def test_a_draft_names_what_a_file_lacks(tmp_path):
    one = written(tmp_path, "Age,dose,ill\n1.5,2.5,0\n2.5,3.5,1\n", "one.csv")
    two = written(tmp_path, "age,ill\n1.5,0\n2.5,\n", "two.csv")
    text = " ".join(drafted([one, two]).text.replace("#", "").split())
    assert (
        "Is 'Age' in one.csv the same column as 'age' in two.csv? Then give it one name in all files." in text
    )
    assert f"{one} has no column 'age', which the schema names {two} has no column 'Age', 'dose'" in text
    assert f"{two}, row 2, column 'ill': the label is missing: leave the row out" in text


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({**dict.fromkeys(range(20, 80), 1), -9: 4}, [-9]),
        ({**dict.fromkeys(range(20, 80), 1), 999: 2}, [999]),
        ({**dict.fromkeys(range(20, 80), 1), 999: 2, -9: 2}, [999, -9]),
        ({**dict.fromkeys(range(20, 80), 1), 999: 1}, []),
        ({**dict.fromkeys(range(100, 600, 3), 1), 0: 120}, [0]),
        (dict.fromkeys(range(20, 80), 5), []),
        ({0: 5, 1: 5, -9: 2}, [-9]),
        ({0: 5, 1: 5, 9: 2}, [9]),
        ({3: 5, 6: 5, 7: 2}, []),
        ({7: 5, 8: 5, 9: 2}, []),
        ({0: 5, 1: 5}, []),
        ({1: 5}, []),
    ],
)
def test_numbers_that_may_stand_for_missing_values(values, found):
    assert list(draft_notes.marks(values)) == found


def test_a_draft_asks_about_such_numbers(tmp_path):
    table = "age,ill\n" + "".join(f"{20 + n},{n % 2}\n" for n in range(40)) + "-9,0\n-9,1\n"
    path = written(tmp_path, table)
    asked = (
        'list "-9" under missing-values, take it out of the range, [20, 59] without it, and give the column missing = '
        '"indicator" or "zero".'
    )
    assert asked in " ".join(drafted([path]).text.replace("#", "").split())
    assert problems(path, parse_schema(drafted([path]).text)) == []


@given(st.lists(words, min_size=2, max_size=8), st.sampled_from([*DIALECTS, QUOTED]))
def test_a_draft_is_a_schema_whatever_the_tables_hold(tmp_path_factory, cells, dialect):
    """Its comments, too, in which texts of the tables stand."""
    stream = io.StringIO()
    rows = [["a", "b", "y"], *([cell, "1", n] for n, cell in enumerate(cells))]
    csv.writer(stream, delimiter=dialect[0]).writerows(rows)
    path = written(tmp_path_factory.getbasetemp(), stream.getvalue(), "drafted.csv")
    try:
        text = drafted([path]).text
    except DataError as error:
        assert "\n" not in str(error)
        return
    assert (problems(path, parse_schema(text)) == []) or "do not fit this draft yet" in text


@given(st.floats(-1e80, 1e80), st.floats(-1e80, 1e80))
def test_a_drafted_range_holds_its_numbers(low, high):
    text = io.StringIO()
    values = [low, high, (low + high) / 2, 0.5, 1.5, -0.25]
    csv.writer(text).writerows([["x", "y"], *([repr(v), v > 0] for v in values), ["0", True], ["1", False]])
    seen = drafts.Seen.of([Counter(texts(row.split(",")[0] for row in text.getvalue().splitlines()[1:]))])
    column = seen.column("x")
    assert isinstance(column, Number)
    assert column.range.low <= min(values)
    assert max(values) <= column.range.high


@pytest.mark.slow
def test_a_large_table_takes_little_more_memory_than_its_features(tmp_path):
    import tracemalloc

    rows, columns = 50_000, 40
    path = tmp_path / "site.csv"
    with path.open("w") as file:
        file.write(",".join(f"x{n}" for n in range(columns)) + ",y\n")
        line = ",".join(["0.12345"] * columns)
        file.writelines(f"{line},{n % 2}\n" for n in range(rows))
    columns_ = ", ".join(f"x{n} = {{ range = [0, 1] }}" for n in range(columns))
    schema = parse_schema(f'label = {{ column = "y", classes = [0, 1] }}\ncolumns = {{ {columns_} }}')
    tracemalloc.start()
    features, _ = read_rows(path, schema)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert features.shape == (rows, columns)
    assert peak < 2.5 * features.nbytes  # Python counts the pieces until they are copied


# ---------------------------------------------------------------------------------- the command line


def command(*arguments):
    from typer.testing import CliRunner

    from twinflower.simulation import cli

    return CliRunner().invoke(cli.app, ["schema", *map(str, arguments)])


def test_the_command_drafts_a_schema_and_says_that_it_looked_at_the_data(tmp_path):
    path, out = written(tmp_path, TABLE), tmp_path / "schema.toml"
    shown = command(path).output
    assert shown.startswith(
        "# A draft, made from all values of site.csv. Its ranges and categories are\n# data, which"
    )
    assert read_rows(path, parse_schema(shown))[0].shape[0] == 4
    shown = command(path, "--out", out, "--label", "pain").output
    assert "it was made from the data" in shown
    assert f"\n{path}, row 4, column 'pain': the label is missing: leave the row out\n" in shown
    assert read_schema_file(out).label == Classes(
        "pain", ("3", "mild", "none"), (("3",), ("mild",), ("none",))
    )
    with pytest.raises(ValueError, match="there already"):
        raise command(path, "--out", out).exception


def test_the_command_shows_a_site_how_its_table_fits(tmp_path):
    path, schema = written(tmp_path, TABLE), written(tmp_path, SCHEMA, "schema.toml")
    shown = command("--check", schema, path).output
    rows = [line.replace("│", " ").split() for line in shown.splitlines()]
    assert ["age", "4", "0", "1"] in rows
    assert ["pain", "4", "1", "0"] in rows
    assert ["dose", "4", "1", "1"] in rows
    assert f"digest of {schema}: {parse_schema(SCHEMA).digest}" in shown
    with pytest.raises(DataError, match="row 2, column 'age': 'old' is not a number"):
        raise command("--check", schema, written(tmp_path, TABLE.replace("65", "old"), "bad.csv")).exception


MISSING = 'the value is missing: give the column missing = "zero" or "indicator", or leave the row out'


@pytest.mark.parametrize("quoted", [False, True])
def test_a_check_names_short_and_long_rows_and_goes_on(tmp_path, monkeypatch, quoted):
    monkeypatch.setattr(csv_tables, "_ROWS", 3)
    lines = ["x,30,none,1,0"] * 12
    lines[1], lines[4], lines[5], lines[8], lines[10] = (
        "x,30,none",
        "x,old,none,1,0",
        "x",
        "1,2,3,4,5,6",
        "x,,none,1,0",
    )
    text = "\n".join(["id,age,pain,dose,ill", *lines])
    path = written(tmp_path, text.replace("none", '"none"') if quoted else text)
    assert problems(path, parse_schema(SCHEMA)) == [
        f"{path}, row 5, column 'age': 'old' is not a number",
        f"{path}, row 11, column 'age': {MISSING}",
        f"{path}, row 2 has 3 fields; the header has 5",
        f"{path}, row 6 has 1 fields; the header has 5",
        f"{path}, row 9 has 6 fields; the header has 5",
    ]


def test_a_check_of_numbers_that_could_mean_two_things_names_all_of_their_kind(tmp_path):
    lines = ["x;30;none;1,5;0", "x;1.234;none;1,5;0", "x;30;none", "x;2.345;none;?;0", "x;alt;none;1.5;0"]
    path = written(tmp_path, "\n".join(["id;age;pain;dose;ill", *lines]))
    sentence = 'has a decimal point, and the schema says decimal = ",": write it with a comma, or without the point if'
    assert problems(path, parse_schema(dialect_of(";", ",") + SCHEMA)) == [
        f"{path}, row 2, column 'age': '1.234' {sentence} that separates thousands (and 1 more row)",
        f"{path}, row 5, column 'age': 'alt' is not a number",
        f"{path}, row 5, column 'dose': '1.5' {sentence} that separates thousands",
        f"{path}, row 3 has 3 fields; the header has 5",
    ]


def test_a_check_lists_every_problem_of_every_table(tmp_path):
    schema = written(tmp_path, SCHEMA, "schema.toml")
    bad = TABLE.replace("65", "old").replace("110", "").replace("none", "awful").replace("7,0", "7,9")
    cut = TABLE.replace("dose", "Dose").replace("b,65,mild,,1", "b,x,mild,,1").replace("d,50,NA,-7,0", "d,50")
    names = [written(tmp_path, table, f"{n}.csv") for n, table in enumerate([bad, TABLE, cut, "\n"])]
    result = command("--check", schema, *names)
    found = [line.strip() for line in str(result.exception).splitlines()]
    assert isinstance(result.exception, DataError)
    assert found == [
        f"{names[0]}, row 2, column 'age': 'old' is not a number",
        f"{names[0]}, row 3, column 'age': {MISSING}",
        f"{names[0]}, row 1, column 'pain': 'awful' is not one of the categories, which are none, mild, 3",
        f"{names[0]}, row 4, column 'ill': '9' is not a value of one of the classes, which are 0, 1, 2",
        f"{names[2]} has no column 'dose', which the schema names; did you mean 'Dose'?",
        f"{names[2]} has a column 'Dose' that the schema does not know: list it under ignore there, or remove it",
        f"{names[2]}, row 2, column 'age': 'x' is not a number",
        f"{names[2]}, row 4 has 2 fields; the header has 5",
        f"{names[3]} is empty; it must begin with a line of column names",
    ]
    assert f"digest of {schema}" in result.output
    assert "outside its range" in result.output
