"""Tables as real programs write them (nested Parquet, brackets in paths, spaces before quotes, invisible marks), and
terminals that are not UTF-8."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinflower.data.checks import problems
from twinflower.data.drafts import draft, read_tables
from twinflower.data.schema_file import parse_schema
from twinflower.data.tables import read_features, read_rows, table_files
from twinflower.errors import DataError

SCHEMA = """
[label]
column = "ill"
classes = ["no", "yes"]
[columns]
age = { range = [20, 90] }
sex = { categories = ["f", "m"] }
"""
PLAIN = "age,sex,ill\n46,f,no\n52,m,yes\n"


def written(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# --- nested Parquet ---

NESTED = {
    "list": [["I10"], ["E11", "I10"]],
    "struct": [{"a": 1}, {"a": 2}],
    "bytes": [b"I10", b"E11"],
    "list of structs": [[{"a": 1}], []],
    "list with nulls": [[1, 2], None],
}


@pytest.fixture(params=[*NESTED, "map", "fixed"])
def nested(request, tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    odd = {
        "map": lambda: pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
        "fixed": lambda: pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
    }
    column = odd[request.param]() if request.param in odd else pa.array(NESTED[request.param])
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"age": [30, 60], "odd": column, "ill": ["no", "yes"]}), path)
    return path


@pytest.mark.parametrize("use", ['odd = { categories = ["I10"] }', "odd = { range = [0, 1] }"])
def test_a_nested_column_is_a_sentence_with_its_name(nested, use):
    schema = parse_schema(SCHEMA.replace('sex = { categories = ["f", "m"] }', use))
    with pytest.raises(DataError, match=r"column 'odd' holds values of type .* list it under ignore"):
        read_rows(nested, schema)
    assert "column 'odd' holds values of type" in "".join(problems(nested, schema))


def test_a_nested_column_is_ignored_by_name_and_so_by_a_draft(nested):
    schema = parse_schema('ignore = ["odd"]\n' + SCHEMA.replace('sex = { categories = ["f", "m"] }', ""))
    assert read_rows(nested, schema)[0].shape == (2, 1)
    assert draft(read_tables([nested])).ignore == ("odd",)


# --- paths ---


@pytest.mark.parametrize("folder", ["trial [2024]", "[abc]", "a*b", "why?"])
def test_a_path_that_exists_is_a_path_before_it_is_a_pattern(tmp_path, folder):
    place = tmp_path / folder
    place.mkdir()
    names = ["export [final].csv", "site-1.csv", "site-2.csv", "f.csv"]
    files = {name: written(place / name, PLAIN) for name in names}
    for file in files.values():
        assert table_files(str(file)) == [file]
    assert table_files(f"{place}/site-*.csv") == [files["site-1.csv"], files["site-2.csv"]]
    assert table_files(f"{place}/site-[2-9].csv") == [files["site-2.csv"]]
    with pytest.raises(DataError, match="by a pattern such as"):
        table_files(f"{place}/site-1.csv, site-2.csv")


def test_a_pattern_may_be_in_a_folder_and_relative(tmp_path, monkeypatch):
    for name in ("a [1]", "a [2]"):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "s.csv", PLAIN)
    monkeypatch.chdir(tmp_path)
    assert [str(file) for file in table_files("*/s.csv")] == ["a [1]/s.csv", "a [2]/s.csv"]
    assert [str(file) for file in table_files("a [[]2]/*.csv")] == ["a [2]/s.csv"]
    assert [str(file) for file in table_files("a [1]/*.csv")] == ["a [1]/s.csv"]


# --- quotes and marks ---

SAME = {
    "space before quotes": 'age, sex, ill\n46, "f", no\n52, "m", yes\n',
    "space before quotes in the header": '"age", "sex", "ill"\n46, f, no\n52, m, yes\n',
    "several spaces": 'age,   sex,ill\n46,   "f",no\n52,"m",   yes\n',
    "mark in the header": '\ufeff"age",sex,ill\n46,f,no\n52,m,yes\n',
    "two marks": "\ufeff\ufeffage,sex,ill\n46,f,no\n52,m,yes\n",
    "mark in quotes": '"\ufeffage",sex,ill\n46,f,no\n52,m,yes\n',
    "mark in the middle": "age,sex,ill\n46,f,no\n\ufeff52,m,yes\n",
    "zero width": "age,sex\u200b,ill\n46,f\u200b,no\n5\u200b2,m,\u2060yes\n",
    "direction": "age,sex,ill\n\u200f46,f,no\n52,m\u200e,yes\n",
    "joiners": "age,sex,ill\n46,f\u200d,no\u200c\n52,\u200cm,yes\n",
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_what_looks_the_same_is_read_the_same(tmp_path, text):
    file, plain = written(tmp_path / "a.csv", text), written(tmp_path / "b.csv", PLAIN)
    schema = parse_schema(SCHEMA)
    for one, other in zip(read_rows(file, schema), read_rows(plain, schema), strict=True):
        np.testing.assert_array_equal(one, other)
    drafts = [draft(read_tables([path]), label="ill").document() for path in (file, plain)]
    assert drafts[0] == drafts[1]


def test_a_delimiter_after_a_space_and_a_quote_is_content(tmp_path):
    file = written(tmp_path / "a.csv", 'age, sex, note, ill\n46, "f", "a, b", no\n52, "m", "c; d", yes\n')
    assert set(read_tables([file])[0].columns["note"]) == {"a, b", "c; d"}


@pytest.mark.parametrize("again", ["age,sex,ill\n", "\ufeffage,sex,ill\n", '"age", "sex", "ill"\n'])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_second_header_in_joined_files_is_a_sentence(tmp_path, again, quote):
    file = written(tmp_path / "a.csv", PLAIN.replace("f", f"{quote}f{quote}") + again + "30,f,no\n")
    for read in (lambda: read_rows(file, parse_schema(SCHEMA)), lambda: read_tables([file])):
        with pytest.raises(DataError, match="row 3 is the header again, as where files were joined"):
            read()


def test_joiners_within_a_word_are_letters(tmp_path):
    word = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"  # Persian, with a joiner that is spelling
    file = written(tmp_path / "a.csv", f"age,sex,ill\n46,{word},no\n52,m,yes\n")
    assert word in read_tables([file])[0].columns["sex"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("doors")


@given(st.lists(st.tuples(st.integers(20, 90), st.sampled_from("fm")), min_size=1, max_size=6), st.data())
def test_marks_anywhere_change_nothing(folder, rows, data):
    """Marks are put at any places of the lines; spaces before quotes at the beginning of any field."""
    plain = "age,sex,ill\n" + "".join(f"{age},{sex},no\n" for age, sex in rows)
    places = data.draw(st.lists(st.integers(0, len(plain)), max_size=4))
    marked = plain
    for place in sorted(places, reverse=True):
        marked = (
            marked[:place]
            + data.draw(st.sampled_from(["\ufeff", "\u200b", "\u200e", "\u200d"]))
            + marked[place:]
        )
    schema = parse_schema(SCHEMA)
    found = [
        read_features(written(folder / f"{i}.csv", text), schema) for i, text in enumerate((plain, marked))
    ]
    np.testing.assert_array_equal(*found)


# --- terminals ---

TERMINALS = ["ascii", "cp1252", "latin-1", "cp437", "shift_jis"]
GERMAN = (
    "Gr\u00f6\u00dfe,Geschlecht,\u0394-Wert,krank\n" + "170,m\u00e4nnlich,1.5,ja\n160,weiblich,2.5,nein\n" * 3
)


def command(folder, encoding, *words):
    return subprocess.run(
        [sys.executable, "-m", "twinflower", *words],
        cwd=folder, env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("encoding", TERMINALS)
def test_output_survives_every_terminal(tmp_path, encoding):
    written(tmp_path / "a.csv", GERMAN)
    done = command(tmp_path, encoding, "schema", "a.csv", "--label", "krank")
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    shown = done.stdout.decode(encoding)
    for name in ("Gr\u00f6\u00dfe", "\u0394-Wert"):
        assert name.encode(encoding, "backslashreplace").decode(encoding) in shown


@pytest.mark.parametrize("encoding", TERMINALS[:2])
def test_tables_and_errors_survive_every_terminal(tmp_path, encoding):
    written(tmp_path / "\u0394.csv", GERMAN)
    command(tmp_path, "utf-8", "schema", "\u0394.csv", "--label", "krank", "--out", "s.toml")
    fits = command(tmp_path, encoding, "schema", "--check", "s.toml", "\u0394.csv")
    assert fits.returncode == 0 and b"Wert" in fits.stdout
    written(tmp_path / "\u0394.csv", GERMAN.replace("weiblich", "\u4e2d", 1))
    wrong = command(tmp_path, encoding, "schema", "--check", "s.toml", "\u0394.csv")
    assert wrong.returncode == 2 and b"is not one of the categories" in wrong.stderr
    assert b"Traceback" not in wrong.stderr
