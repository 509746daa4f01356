"""Numbers in texts from outside: what Python reads as a number and a table does not mean as one stays a text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinflower.data.drafts import draft, read_tables
from twinflower.data.files import read_libsvm
from twinflower.data.schema_file import parse_schema
from twinflower.data.sites import TableData, load_own, site_names
from twinflower.data.tables import read_names, read_rows
from twinflower.decimals import decimal, decimals, whole
from twinflower.errors import DataError, SettingError, TwinflowerError
from twinflower.problems.constraints import parse_group
from twinflower.simulation.arguments import plan_of
from twinflower.simulation.settings import parse, parse_text
from twinflower.sums.masks import Peers

texts = st.text("0123456789+-.eE_ nNaAiIfFtTyY\u0663\uff17\u00a0,x", max_size=9)
codes = st.from_regex(r"[0-9]{1,2}[_eE]?[0-9]{1,2}|[0-9]{1,3}", fullmatch=True)


def unsigned(text):
    return text[1:] if text.startswith(("+", "-")) else text


def is_written(text):
    """Whether the text is [sign] digits [. digits] [e [sign] digits], digit by digit."""
    mantissa, exponent, power = unsigned(text.strip()).replace("E", "e").partition("e")
    left, _, right = mantissa.partition(".")
    fine = left + right and set(left + right) <= {*"0123456789"}
    return bool(fine and (not exponent or (unsigned(power) and set(unsigned(power)) <= {*"0123456789"})))


@given(texts)
def test_a_number_is_what_tables_write(text):
    if is_written(text):
        assert decimal(text) == float(text.strip())
    else:
        with pytest.raises(ValueError, match="not a decimal number"):
            decimal(text)


@given(st.lists(texts | st.floats(-1e9, 1e9).map(repr), max_size=5))
def test_many_numbers_are_read_as_each_of_them(words):
    if all(map(is_written, words)):
        assert decimals(words) == list(map(decimal, words))
    else:
        with pytest.raises(ValueError):
            decimals(words)


@pytest.mark.parametrize("text", ["1_0", "\u0663", "1.0", "1e1", "", "infinity"])
def test_a_whole_number_has_only_digits(text):
    with pytest.raises(ValueError, match="not a whole number"):
        whole(text)


# --- tables ---

SCHEMA = 'version = 1\n[label]\ncolumn = "ill"\nclasses = ["no", "yes"]\n[columns]\n'
NUMBERS = parse_schema(SCHEMA + "age = { range = [-10, 10] }")


@pytest.mark.parametrize("others", [["3"], ['"3"'], ["3", "NA"]], ids=["fast", "quoted", "missing"])
@pytest.mark.parametrize("text", ["1_2", "inf", "Infinity", "\u0663", "\uff17", "1_0.5", "1e1_0"])
def test_a_column_of_numbers_refuses_other_texts(tmp_path, text, others):
    file = tmp_path / "a.csv"
    file.write_text("age,ill\n" + "".join(f"{cell},no\n" for cell in [text, *others]), encoding="utf-8")
    with pytest.raises(DataError, match="row 1, column 'age': '.*' is not a number"):
        read_rows(file, NUMBERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("decimals")


@given(st.lists(codes, min_size=2, max_size=6, unique=True))
def test_different_names_of_sites_stay_different(folder, names):
    file = folder / "names.csv"
    file.write_text("age,site,ill\n" + "".join(f"1,{name},no\n" for name in names))
    assert read_names(file, replace(NUMBERS, ignore=("site",)), "site") == names


@pytest.mark.parametrize("names", [["1_1", "11", "2_1", "21"], ["1e1", "10", "01", "1"], ["\u0661", "1"]])
def test_every_site_of_a_column_is_a_client(tmp_path, names):
    (tmp_path / "s.toml").write_text(SCHEMA + "age = { range = [-10, 10] }")
    file = tmp_path / "sites.csv"
    file.write_text("age,site,ill\n" + "".join(f"1,{name},no\n" for name in names), encoding="utf-8")
    assert len(
        site_names(TableData(files=str(file), schema=str(tmp_path / "s.toml"), site_column="site"))
    ) == len(names)


@given(st.lists(codes, min_size=2, max_size=6, unique=True))
def test_different_texts_are_different_categories(folder, words):
    schema = parse_schema(SCHEMA + f"ward = {{ categories = {list(words)} }}")
    file = folder / "wards.csv"
    file.write_text("ward,ill\n" + "".join(f"{word},no\n" for word in words))
    np.testing.assert_array_equal(read_rows(file, schema)[0], np.eye(len(words)))


@pytest.mark.parametrize(
    "values",
    [["18_24", "25_34", "35_44"], ["1_2", "12", "3_1", "31"], ["1e5", "2e5", "3e4"], ["12E3", "120E2", "7"],
     ["\u0661", "\u0662", "\u0663"], ["01", "1", "1_0"]],
)  # fmt: skip
def test_a_draft_takes_codes_as_categories(tmp_path, values):
    file = tmp_path / "a.csv"
    file.write_text(
        "code,ill\n" + "".join(f"{v},{w}\n" for v in values for w in ("no", "yes")), encoding="utf-8"
    )
    (column,) = draft(read_tables([file])).columns
    assert sorted(column.categories) == sorted(values)


@pytest.mark.parametrize("line", ["1 1_0:2", "1 1:1_0", "1_0 1:2"])
def test_libsvm_has_no_underscores_but_in_comments(tmp_path, line):
    file = tmp_path / "a.txt"
    file.write_text(f"0 1:1 # patient_1\n{line}\n")
    with pytest.raises(DataError, match="line 2 has an underscore"):
        load_own(str(file), 10, 0)
    file.write_text("0 1:1 # patient_1\n")
    assert read_libsvm([file])[0][0].tolist() == [[1.0]]


# --- settings ---


@pytest.mark.parametrize(
    ("assignment", "value"),
    [("data.schema=2024_01", "2024_01"), ("data.schema=2024", "2024"), ("data.files=1e5", "1e5"),
     ("site-column=1_1", "1_1"), ("output.dir=infinity", "infinity"), ("rounds=1_000", "1_000"),
     ("rounds=\u0663", "\u0663"), ("partition.sizes=10", "10"), ("rounds=30", 30), ("fedpdm.rho=1e-3", 1e-3)],
)  # fmt: skip
def test_an_assignment_is_a_number_only_where_it_is_one(assignment, value):
    assert parse_text(assignment)[1] == value


@pytest.mark.parametrize(
    "keys",
    [{"partition.name": "sizes", "partition.sizes": "1_0, 20"},
     {"algorithm": "ssca-constrained", "ssca-constrained.constraints": "cost <= 0_1"},
     {"regulariser.name": "selected", "regulariser.entries": "\u0663, 5"},
     {"objective.name": "discrete-cox", "objective.intervals": "1_0, 20"},
     {"objective.name": "discrete-cox", "objective.intervals": "\u0663 x 5"},
     {"objective.name": "softmax", "objective.class-weights": "1_0, 1"}],
)  # fmt: skip
def test_a_list_of_numbers_in_a_setting_is_strict(keys):
    with pytest.raises(SettingError, match="must"):
        _ = parse(keys).sizes


@pytest.mark.parametrize("seeds", ["1_0", "\u0663", "1e1"])
def test_seeds_are_whole_numbers(seeds):
    with pytest.raises(SettingError, match="--seeds takes comma-separated whole numbers"):
        plan_of(Path("experiments/digits.toml"), None, "", seeds)


def test_a_peers_file_and_a_group_have_plain_numbers():
    with pytest.raises(SettingError, match="a line of the peers file"):
        Peers.read(f"0 {'00' * 32}\n0_1 {'01' * 32}\n")
    with pytest.raises(TwinflowerError, match="class C"):
        parse_group("class \u0663", "key")
