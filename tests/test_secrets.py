"""Nothing of a site's files leaves it in words: a server reads answers, refusals made before a file is open, and a few
fixed sentences. Every request goes through the app that `flwr run` loads on a node."""

import gzip
import io
import logging
import zipfile
from itertools import product

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from grids import Deployed
from numpy.testing import assert_array_equal
from problems import small

from twinflower.algorithms.fedpdm import FedPDM
from twinflower.algorithms.layout import Layout
from twinflower.clients.records import record_of
from twinflower.data.schema_file import read_schema
from twinflower.errors import DataError, ReplyError, RunError, SettingError
from twinflower.privacy.charges import LedgerError
from twinflower.privacy.ledger import FileLedger
from twinflower.problems import objectives
from twinflower.simulation.app import client_app, redact_errors, site
from twinflower.simulation.runs import division, setup
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import inprocess
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.strategies.messages import properties_request
from twinflower.strategies.nodes import meet

MARK = "5713942"  # a label, a value, a word: whatever of a file must not be read elsewhere
START = np.zeros(6)
RUN = {"data.name": "own", "num-features": 2, "num-classes": 2, "clients.count": 2}
RUN |= {"partition.name": "sizes", "partition.sizes": "3,3"}
PRIVATE = {"privacy.mode": "public-state", "epsilon": 8.0}
CANNOT = redact_errors._WITHHELD[Exception]
BECAUSE = "this site cannot take part, because {}; the site's own log has the details"
SIZES = "its number of rows is not that in partition.sizes"
ROWS = b"1 1:1 2:0.5\n0 1:0.5\n1 2:1\n"


def ask(run, node, start=START, round_=1):
    """What the first node answers to the two kinds of questions, as everything that a server can read of it."""
    grid = Deployed(run, node, {})
    content = {"fitins.parameters": record_of([start]), "fitins.config": ConfigRecord({"round": round_})}
    messages = [properties_request(1), Message(RecordDict(content), 1, "train")]
    return grid.send_and_receive(messages)


def readable(reply):
    return reply.error.reason if reply.has_error() else str(dict(reply.content.items()))


def says(run, node, **asked):
    """The sentences of the refusals; nothing that is answered at all holds the mark."""
    replies = list(ask(run, node, **asked))
    assert not [reply for reply in replies if MARK in readable(reply)]
    return {readable(reply) for reply in replies if reply.has_error()}


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A site with rows and a state-dir of its own, and a home that is nobody's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").write_bytes(ROWS)
    return {
        "data-file": str(tmp_path / "rows"),
        "num-features": 2,
        "num-classes": 2,
        "lifetime-epsilon": 9.0,
        "state-dir": str(tmp_path / "state"),
    }


def test_the_site_of_these_tests_answers(node):
    assert says(RUN | PRIVATE, node) == set()


# -------------------------------------------------------------------------------- files that a run names


def test_a_record_does_not_leave_as_a_graph_that_cannot_be_read(tmp_path):
    """A server names a file of the site as the graph; what could not be parsed of it was the first record's label."""
    (tmp_path / "patients").write_text(f"{MARK} 1:0.5 2:1\n")
    run = {"algorithm": "zcdp-nfl", "topology.name": f"file:{tmp_path / 'patients'}", "clients.count": 2}
    start = small("fedpdm").start
    for keys in (run, run | PRIVATE, run | PRIVATE | {"topology.name": "file:/nowhere"}):
        policy = {"lifetime-epsilon": 9.0, "state-dir": str(tmp_path)} if "privacy.mode" in keys else {}
        grid = Deployed(keys, policy, policy)
        (reply,) = grid.send_and_receive([properties_request(1)])
        assert not reply.has_error()  # the file is not even opened
        assert says(keys, policy, start=start) <= {
            redact_errors._WITHHELD[ReplyError]
        }  # a start is no inbox of this method


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    "run",
    [
        {"data.name": "ijcnn1", "data.dir": "{}"},
        {"data.name": "a6a", "data.dir": "{}"},
        {"data.name": "adult", "data.dir": "{}"},
        {"data.name": "mnist", "data.dir": "{}"},
        {"data.name": "libsvm:ijcnn1", "data.dir": "{}"},
        {"data.name": "libsvm:ijcnn1"},
        {
            "data.name": "own",
            "data.file": "{}/ijcnn1",
            "num-features": 2,
            "partition.name": "sizes",
            "partition.sizes": "1,1",
        },
        {"resume-from": "{}/ijcnn1"},
        {"state-dir": "{}/ijcnn1"},
        {"output.dir": "{}/ijcnn1"},
    ],
)
def test_a_site_opens_no_file_that_a_run_names(tmp_path, run, private):
    for name in ("ijcnn1", "a9a", "adult.data", "adult.test", "train-images-idx3-ubyte"):
        (tmp_path / name).write_text(f"{MARK} 1:{MARK}x\n")
    before = sorted(tmp_path.rglob("*"))
    run = {"clients.count": 2} | {key: str(v).format(tmp_path) for key, v in run.items()}
    run |= {"num-features": 2} if run.get("data.name") == "own" else {}
    policy = {"lifetime-epsilon": 9.0, "state-dir": str(tmp_path / "state")} if private else {}
    told = says(run | (PRIVATE if private else {}), policy, start=small("fedpdm").start)
    assert sorted(p for p in tmp_path.rglob("*") if "/state" not in str(p)) == before
    if "data.name" in run:
        assert len(told) == 1


def test_no_file_that_stands_in_the_nodes_working_folder_is_read_either(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients").write_text(f"{MARK} 1:{MARK}x\n")
    (sentence,) = says({"data.name": "libsvm:patients", "clients.count": 2}, {})
    assert "opens no file that a run names" in sentence


def test_a_graph_file_is_read_by_the_server_alone(tmp_path, monkeypatch):
    """The run through the nodes' app has the bits of one process that knows the graph."""
    (tmp_path / "graph").write_text("0 1\n1 2\n2 3\n3 0\n0 2\n")
    keys = {
        "algorithm": "zcdp-nfl",
        "topology.name": f"file:{tmp_path / 'graph'}",
        "clients.count": 4,
        "rounds": 3,
    }
    there = prepare(parse(keys))
    expected = inprocess.train(there).model
    grid = Deployed(keys | {"topology.name": "file:/nowhere"}, {}, {}, {}, {})
    assert_array_equal(run_strategy(there, grid, "inprocess").model, expected)


# ------------------------------------------------------------------------ whatever is wrong with the files


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def archive(name, content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr(name, content)
    return stream.getvalue()


GOOD = np.ones((3, 2))
CORRUPT = {
    "a label": ("rows", MARK.encode() + b"x 1:1\n" + ROWS),
    "a class": ("rows", ROWS[:-6] + MARK.encode() + b" 2:1\n"),
    "a number that is no class": ("rows", ROWS[:-6] + b"0." + MARK.encode() + b" 2:1\n"),
    "an index": ("rows", ROWS + f"1 {MARK}x:1\n".encode()),
    "a column too far": ("rows", ROWS + f"1 {MARK}:1\n".encode()),
    "index zero": ("rows", b"\n" * (int(MARK[:4])) + b"1 0:1\n" + ROWS),
    "a negative index": ("rows", ROWS + f"1 -{MARK}:1\n".encode()),
    "indices in disorder": ("rows", ROWS + f"1 {MARK}:1 1:1\n".encode()),
    "a value": ("rows", ROWS + f"1 1:{MARK}x\n".encode()),
    "infinity": ("rows", ROWS + f"1 1:1e{MARK}\n".encode()),
    "text": ("rows", f"name,diagnosis\nmiller,{MARK}\n".encode()),
    "bytes": ("rows", MARK.encode() + bytes(range(256))),
    "nothing": ("rows", b""),
    "other rows": ("rows", ROWS * int(MARK[:3])),
    "packed": ("rows.gz", gzip.compress(MARK.encode() + ROWS)[:-9]),
    "packed bytes": ("rows.gz", MARK.encode()),
    "packed text": ("rows.bz2", b"BZh9" + MARK.encode()),
    "no archive": ("rows.npz", MARK.encode()),
    "half an archive": ("rows.npz", b"PK\x03\x04" + MARK.encode()),
    "other names": ("rows.npz", npz(**{MARK: GOOD})),
    "other members": ("rows.npz", archive("features.npy", MARK)),
    "a header": ("rows.npz", archive("features.npy", b"\x93NUMPY\x01\x00" + MARK.encode() * 40)),
    "objects": ("rows.npz", npz(features=np.array([[MARK, None]], dtype=object), labels=np.zeros(1))),
    "words": ("rows.npz", npz(features=np.array([[MARK]]), labels=np.zeros(1))),
    "columns": ("rows.npz", npz(features=np.ones((3, int(MARK[:4]))), labels=np.zeros(3))),
    "rows": ("rows.npz", npz(features=np.ones((int(MARK[:5]), 2)), labels=np.zeros(int(MARK[:5])))),
    "classes": ("rows.npz", npz(features=GOOD, labels=np.full(3, int(MARK)))),
    "a class between": ("rows.npz", npz(features=GOOD, labels=np.full(3, float("0." + MARK)))),
    "nan": ("rows.npz", npz(features=np.full((3, 2), np.nan), labels=np.full(3, int(MARK)))),
    "complex": ("rows.npz", npz(features=GOOD * int(MARK) * 1j, labels=np.zeros(3))),
    "too long": ("rows.npz", npz(features=np.full((3, 2), float(MARK)), labels=np.zeros(3))),
}


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("kind", CORRUPT)
def test_no_corrupt_file_is_quoted(tmp_path, node, kind, private):
    name, content = CORRUPT[kind]
    (tmp_path / name).write_bytes(content)
    allowed = node if private else {"allow-non-private": True}
    run = RUN | (PRIVATE if private else {}) | {"row-norm": 0.0 if kind == "too long" else 1.0}
    run |= {"clip-norm": 1.0} if kind == "too long" else {}
    told = says(run, allowed | {"data-file": str(tmp_path / name)})
    if kind == "too long":
        assert told == set()
    elif private:
        assert told == {CANNOT}
    else:
        reason = SIZES if kind in ("other rows", "rows") else "one of its files cannot be used"
        assert told == {BECAUSE.format(reason)}


@pytest.mark.parametrize(
    "neighbour",
    [b"4 1:1 2:0.5\n0 1:0.5\n1 2:1\n", b"0.5 1:1 2:0.5\n0 1:0.5\n1 2:1\n", b"1 1:1 9:0.5\n0 1:0.5\n1 2:1\n"],
    ids=["another class", "between classes", "a larger index"],
)
def test_no_setting_of_a_run_asks_whether_a_record_fits(node, tmp_path, neighbour):
    """A server that chooses columns and classes learns nothing from who refuses, neither the largest index
    nor whether one record has another class."""
    answers = []
    for content in (ROWS, neighbour):
        (tmp_path / "own").write_bytes(content)
        own = node | {"data-file": str(tmp_path / "own"), "state-dir": str(tmp_path / f"{len(answers)}")}
        asked = product((1, 2, 3, 9, 10**6), (0, 2, 3, 5, 10))
        runs = (RUN | PRIVATE | {"num-features": n, "num-classes": c} for n, c in asked)
        answers.append(
            [says(run, own) for run in runs if (run["num-features"], run["num-classes"]) != (2, 2)]
        )
    assert answers[0] == answers[1]
    assert all(len(told) == 1 and "by its node config" in min(told) for told in answers[0])


def test_no_other_row_is_counted_aloud(node, tmp_path):
    """A count is no mark: 3 rows are promised, and 571 are there."""
    (tmp_path / "rows").write_bytes(ROWS * 190 + b"1 1:1\n")
    (sentence,) = says(RUN | PRIVATE, node)
    assert not any(letter.isdigit() for letter in sentence)


@pytest.mark.parametrize("content", ["", f"{MARK}\n", f"0123456789abcdef {MARK}\n"])
@pytest.mark.parametrize("kind", ["ledger", "round"])
def test_no_file_of_the_sites_own_is_quoted(node, tmp_path, content, kind):
    assert not says(RUN | PRIVATE, node)
    files = list((tmp_path / "state").rglob(f"*.{kind}"))
    assert len(files) == 1
    files[0].write_text(content)
    told = says(RUN | PRIVATE, node, round_=2)
    empty_ledger = kind == "ledger" and not content  # is a new one
    assert told == (
        set() if empty_ledger else {redact_errors._WITHHELD[LedgerError] if kind == "ledger" else CANNOT}
    )


class Odd(Exception):
    """An error that cannot even be told."""

    def __str__(self):
        raise RuntimeError(MARK)


ERRORS = [
    ValueError(MARK), KeyError(MARK), IndexError(MARK), MemoryError(MARK), RuntimeError(MARK), OSError(5, MARK, MARK),
    UnicodeDecodeError("utf-8", MARK.encode(), 0, 1, MARK), np.linalg.LinAlgError(MARK), zipfile.BadZipFile(MARK),
    ZeroDivisionError(MARK), RecursionError(MARK), StopIteration(MARK), AssertionError(MARK), TypeError(MARK),
    ExceptionGroup(MARK, [ValueError(MARK)]), SettingError(MARK), DataError(MARK), ReplyError(MARK), RunError(MARK),
    LedgerError(MARK), np.exceptions.AxisError(MARK), Odd(MARK),
]  # fmt: skip
STAGES = [
    (division, "load_own"), (client_app, "prepare_node"), (client_app, "at_site"), (client_app, "stream_bytes"),
    (Layout, "unpack"), (FedPDM, "release"), (FileLedger, "charge"),
    (objectives.LinearModel, "grad"), (FedPDM, "client_update"), (Layout, "pack"), (Layout, "shapes"),
    (site, "read_site"), (client_app, "read_site"),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_error_is_quoted_wherever_it_comes_from(node, monkeypatch, error):
    for place, name in STAGES:
        with monkeypatch.context() as patch:

            def fail(*args, **kwargs):
                raise error

            patch.setattr(place, name, fail)
            setup.prepare_node.cache_clear()
            assert says(RUN | PRIVATE, node) <= set(redact_errors._WITHHELD.values())


@pytest.fixture
def log(caplog):
    """What the site's own log has."""
    logging.getLogger("flwr").addHandler(caplog.handler)
    yield caplog
    logging.getLogger("flwr").removeHandler(caplog.handler)


def test_the_sites_own_log_has_the_whole_story(node, tmp_path, log):
    (tmp_path / "rows").write_text(f"{MARK}x 1:1\n")
    assert says(RUN | PRIVATE, node) == {CANNOT}
    assert f"{MARK}x" in log.text


SCHEMA = """
group = "who"
[label]
column = "ill"
classes = [0, 1]
[columns]
age = { range = [20, 80] }
sex = { categories = ["f", "m"] }
"""
TABLE = "who,age,sex,ill\na,30,f,0\nb,40,m,1\nc,50,f,1\n"
COLUMNS = "the columns of its table are not those of the schema"
VALUE = "a value in its table does not fit the schema"
NOT_CSV = "its table is not valid CSV in UTF-8"
BAD_TABLES = {
    "wrong header": (TABLE.replace("age", MARK), COLUMNS, "no column 'age'"),
    "extra column": (TABLE.replace("who,", f"who,{MARK},").replace("\na", "\na,1"), COLUMNS, "does not know"),
    "duplicated header": (TABLE.replace("who", "age"), COLUMNS, "two columns called 'age'"),
    "unseen category": (TABLE.replace("m", MARK), VALUE, f"row 2, column 'sex': '{MARK}' is not one of"),
    "label outside the classes": (TABLE.replace("m,1", f"m,{MARK}"), VALUE, f"row 2, column 'ill': '{MARK}'"),
    "mixed types": (
        TABLE.replace("40", f"{MARK}x"),
        VALUE,
        f"row 2, column 'age': '{MARK}x' is not a number",
    ),
    "huge number": (TABLE.replace("40", f"{MARK}e300"), VALUE, "row 2, column 'age'"),
    "NaN": (TABLE.replace("40", "NaN"), VALUE, "row 2, column 'age': the value is missing"),
    "empty file": ("", NOT_CSV, "is empty"),
    "wrong delimiter": (TABLE.replace(",", ";"), NOT_CSV, "must be separated by commas"),
    "Latin-1": (
        TABLE.replace("m,1", f"{MARK}é,1").encode("latin-1"),
        NOT_CSV,
        "row 2, column 'sex' is not UTF-8",
    ),
    "long row": (TABLE.replace("m,1", f"m,{MARK},1"), NOT_CSV, "row 2 has 5 fields"),
    "0 rows": (TABLE.partition("\n")[0], "its table has no rows", "has a header and no rows"),
    "another number of rows": (
        TABLE + "d,60,f,1\n",
        SIZES,
        "has 4",
    ),
    "absent": (None, "its table cannot be read", "cannot be read: No such file"),
}


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """The keys of a run on tables, and the node config of a site whose table is `site-MARK.csv`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    schema = str(tmp_path / "schema.toml")
    keys = {"num-features": 0, "num-classes": 0, "objective.name": "logistic"}
    run = RUN | keys | {"data.schema": schema, "data.schema-digest": read_schema(schema).digest}
    return run, {"data-file": str(tmp_path / f"site-{MARK}.csv"), "schema": schema}


@pytest.mark.parametrize("name", BAD_TABLES)
@pytest.mark.parametrize("private", [False, True])
def test_a_server_learns_why_a_table_does_not_fit_only_without_privacy(tables, tmp_path, log, name, private):
    """In general words, that is; file, row, column and value are in the site's own log."""
    content, reason, detail = BAD_TABLES[name]
    run, site_config = tables
    if content is not None:
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / f"site-{MARK}.csv").write_bytes(content)
    if private:
        policy = {"lifetime-epsilon": 9.0, "protects": "group", "group-size": 2}
        run = run | PRIVATE | {"privacy.protects": "group", "privacy.group-size": 2}
        expected = CANNOT
    else:
        policy = {"allow-non-private": True}
        expected = BECAUSE.format(reason)
    state = {"state-dir": str(tmp_path / "state")}
    assert says(run, site_config | policy | state) == {expected}
    assert f"site-{MARK}.csv" in log.text
    assert detail in log.text


def test_a_private_run_is_not_told_why_whatever_the_site_allows(tables, tmp_path):
    """A site without a budget takes part in no private run, and says nothing about its table to its server either."""
    run, site_config = tables
    (tmp_path / f"site-{MARK}.csv").write_text(TABLE.replace("40", MARK + "x"))
    group = {"allow-non-private": True, "protects": "group", "group-size": 2}
    for keys in (PRIVATE, {"privacy.mode": "as-published", "epsilon": 8.0}):
        assert says(run | keys, site_config | group) == {CANNOT}


def test_nor_is_a_run_without_privacy_at_a_site_that_takes_part_in_private_runs_only(tables, tmp_path):
    run, site_config = tables
    (tmp_path / f"site-{MARK}.csv").write_text(TABLE.replace("40", MARK + "x"))
    (sentence,) = says(run, site_config | {"lifetime-epsilon": 9.0, "protects": "group", "group-size": 2})
    assert sentence.startswith("this site takes part in private runs only")


def test_the_server_stops_with_the_sites_reason(tables, tmp_path):
    run, site_config = tables
    for number, content in enumerate((TABLE, TABLE.replace("40", f"{MARK}x"))):
        (tmp_path / f"{number}.csv").write_text(content)
    nodes = [
        site_config | {"data-file": str(tmp_path / f"{number}.csv"), "allow-non-private": True}
        for number in (0, 1)
    ]
    with pytest.raises(RunError, match=f"1 of 2 nodes cannot take part .*because {VALUE}") as stopped:
        meet(Deployed(run, *nodes), 2, 1.0)
    assert MARK not in str(stopped.value)


def test_a_refusal_by_policy_is_told(node):
    (sentence,) = says(RUN | PRIVATE | {"epsilon": 9.5}, node)
    assert "allows at most epsilon 9 at delta 0.0001" in sentence
    (sentence,) = says(RUN, node)
    assert (
        sentence
        == "this site takes part in private runs only (lifetime-epsilon, data-file); the run has none"
    )
