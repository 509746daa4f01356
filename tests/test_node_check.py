"""`twinflower check-node`: a site's own check of its config, files, ledger and keys, before its node joins."""

import errno
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from site_files import three_sites
from test_sites import SCHEMA, table

from twinflower.data.schema_file import DRAFT
from twinflower.errors import SettingError
from twinflower.flower_messages import PLACES
from twinflower.privacy import gdp_epsilon, gdp_mu
from twinflower.privacy.accountant import Budget
from twinflower.privacy.charges import BudgetSpent, Charge, LedgerError
from twinflower.simulation.app.client_app import ledger_of_site
from twinflower.simulation.app.node_check import check_node
from twinflower.simulation.app.site import read_site
from twinflower.simulation.cli import main
from twinflower.simulation.runs.identity import make_key
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.settings import parse


@pytest.fixture
def node(tmp_path):
    """The node config of the first of three sites, and the run config of a run on all three."""
    keys = three_sites(tmp_path, SCHEMA, table, (40, 60, 50, 100))
    private = {"privacy.mode": "public-state", "privacy.epsilon": 4.0}
    config, (own, *_) = at_sites(prepare(parse(keys | private)))
    words = {
        "partition-id": 0,
        "num-partitions": 3,
        "lifetime-epsilon": 10.0,
        "state-dir": str(tmp_path / "state"),
    }
    return words | own, dict(config.items())


def text(node):
    return " ".join(
        f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in node.items()
    )


def test_all_that_is_right_is_said_and_nothing_is_written(node, tmp_path):
    config, run = node
    right, wrong = check_node(text(config), run)
    assert not wrong
    kinds = [line.split(":")[0] for line in right]
    assert kinds == ["config", "table", "state", "budget", "run"]
    assert right[-1] == "run: the site takes part, and plans epsilon 4"
    assert not (tmp_path / "state").exists()


def test_a_schema_that_is_still_a_draft_is_said(node):
    config, run = node
    schema = Path(config["schema"])
    schema.write_text(f"{DRAFT} site-0.csv.\n{schema.read_text()}")
    right, wrong = check_node(text(config), run)
    assert not wrong
    assert [line for line in right if line.startswith(f"warning: {schema} is a draft: its ranges")]


def test_all_that_is_wrong_is_said_at_once(node, tmp_path):
    config, run = node
    (tmp_path / "site-0.csv").write_text("age,pain,ill\n34,none,y\n200,much,y\n")
    (tmp_path / "file").touch()
    _, wrong = check_node(text(config | {"state-dir": str(tmp_path / "file" / "state")}), run)
    assert len(wrong) == 2
    assert "column 'pain'" in wrong[0] and "cannot be written" in wrong[1]


@pytest.fixture
def full(monkeypatch):
    """A disk on which nothing more can be flushed."""

    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("twinflower.disk.os.fsync", fsync)


@pytest.mark.parametrize("exists", [True, False], ids=["the folder", "the one above"])
def test_a_full_disk_is_said_and_no_file_remains(node, tmp_path, full, exists):
    if exists:
        (tmp_path / "state").mkdir()
    before = sorted(tmp_path.rglob("*"))
    right, (wrong,) = check_node(text(node[0]))
    assert f"state-dir {tmp_path / 'state'} cannot be written (No space left on device)" in wrong
    assert "on a disk with 64 KiB of free space" in wrong and not [
        line for line in right if line.startswith("state")
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_can_be_written_is_left_as_it_was(node, tmp_path):
    (tmp_path / "state").mkdir()
    right, wrong = check_node(text(node[0]))
    assert not wrong and f"state: {tmp_path / 'state'}" in right
    assert not list((tmp_path / "state").iterdir())


def test_a_missing_table_is_said_once(node, tmp_path):
    (tmp_path / "site-0.csv").unlink()
    assert len(check_node(text(node[0]))[1]) == 1


def test_an_empty_ledger_says_that_nothing_is_spent(node):
    """A first charge that no budget covers leaves one."""
    ledger = ledger_of_site(read_site(node[0]))
    with pytest.raises(BudgetSpent):
        ledger.charge(Charge("a run", 1, 1.0, 1.0, 1, 1e6), Budget(1e7))
    right, wrong = check_node(text(node[0]))
    assert not wrong
    assert f"nothing is spent, the ledger {ledger.path} is empty; a run may plan up to epsilon 10" in right[3]


def test_a_run_that_the_rest_of_the_budget_does_not_cover_is_named(node):
    """After a run that cost mu^2 = 2.4, a lifetime of epsilon 10 has room for less than epsilon 6."""
    config, run = node
    ledger = ledger_of_site(read_site(config))
    ledger.charge(Charge("another run", 1, 1.0, 1.0, 1, 2.4), Budget.for_target(10.0, 1e-4))
    before = ledger.path.read_bytes()
    right, wrong = check_node(text(config), run)
    assert not wrong
    left = math.sqrt(gdp_mu(10.0, 1e-4) ** 2 - 2.4)
    assert right[3].endswith(f"a run may plan up to epsilon {gdp_epsilon(left, 1e-4):.4g}")
    _, (refused,) = check_node(text(config), run | {"privacy.epsilon": 8.0})
    assert refused.startswith(
        "the run plans epsilon 8, and of the lifetime budget epsilon 10, delta 0.0001 what is left"
    )
    assert ledger.path.read_bytes() == before


def test_rows_that_have_a_ledger_under_another_path_are_named_by_both_commands(
    node, tmp_path, monkeypatch, capsys
):
    config, _ = node
    ledger = ledger_of_site(read_site(config))
    budget = Budget.for_target(10.0, 1e-4)
    ledger.charge(Charge("a run", 1, 1.0, 1.0, 1, 2.4), budget)
    link = tmp_path / "link.csv"
    link.symlink_to(config["data-file"])
    moved = config | {"data-file": str(link)}
    _, (refused,) = check_node(text(moved))
    assert refused.startswith(
        f"these rows have the ledger {ledger.path}, made under another path of data-file"
    )
    state = tmp_path / "state"
    with pytest.raises(LedgerError, match="these rows have the ledger"):
        ledger_of_site(read_site(moved)).charge(Charge("b", 1, 1.0, 1.0, 1, 2.4), budget)
    assert ledger.path.name in told(monkeypatch, capsys, "ledger", state)
    assert not check_node(text(config))[1]
    assert refused in told(monkeypatch, capsys, "ledger", state, "--node-config", text(moved))
    assert "have the same rows" not in told(monkeypatch, capsys, "ledger", state)
    replace(ledger_of_site(read_site(moved)), sole=False).charge(Charge("b", 1, 1.0, 1.0, 1, 2.4), budget)
    assert "have the same rows: what was spent is the sum" in told(monkeypatch, capsys, "ledger", state)
    assert check_node(text(moved))[1][0].startswith("the same rows have two ledgers")


def test_other_rows_under_the_same_path_are_named_by_both_commands(node, tmp_path, monkeypatch, capsys):
    config, _ = node
    ledger = ledger_of_site(read_site(config))
    ledger.charge(Charge("a run", 1, 1.0, 1.0, 1, 2.4), Budget.for_target(10.0, 1e-4))
    rows = Path(config["data-file"]).read_text().splitlines(keepends=True)
    Path(config["data-file"]).write_text("".join(rows[:-1]))
    _, (refused,) = check_node(text(config))
    assert refused.startswith(f"the ledger {ledger.path} was made for other data")
    assert refused in told(monkeypatch, capsys, "ledger", tmp_path / "state", "--node-config", text(config))


def told(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["twinflower", *map(str, words)])
    with pytest.raises(SystemExit):
        main()
    return " ".join(" ".join(capsys.readouterr()).split())


def test_what_a_run_may_plan_is_limited_by_the_nodes_own_policy_too(node, tmp_path, monkeypatch, capsys):
    """A max-epsilon of 5 at the lifetime's delta binds until less than that is left; without a ledger, too."""
    config = node[0] | {"max-epsilon": 5.0}
    right, _ = check_node(text(config))
    assert right[3].endswith("a run may plan up to epsilon 5 (max-epsilon; the budget leaves 10)")
    ledger = ledger_of_site(read_site(config))
    whole, budget = gdp_mu(10.0, 1e-4) ** 2, Budget.for_target(10.0, 1e-4)
    ledger.charge(Charge("a run", 1, 1.0, 1.0, 1, 1.0), budget)
    left = f"{gdp_epsilon(math.sqrt(whole - 1.0), 1e-4):.4g}"
    assert check_node(text(config))[0][3].endswith(f"epsilon 5 (max-epsilon; the budget leaves {left})")
    shown = told(monkeypatch, capsys, "ledger", tmp_path / "state", "--node-config", text(config))
    assert f"5 (max-epsilon; the budget leaves {left})" in shown
    assert "max-epsilon" not in told(monkeypatch, capsys, "ledger", tmp_path / "state")
    alone = node[0] | {"max-epsilon-alone": 2.0}
    assert "up to epsilon 2 (max-epsilon-alone; " in check_node(text(alone))[0][3]
    strict = node[0] | {"max-delta": 1e-6, "max-epsilon-alone": 20.0}
    assert "(lifetime-epsilon at max-delta; the budget leaves" in check_node(text(strict))[0][3]
    (tmp_path / "other").mkdir()
    shutil.copy(ledger.path, tmp_path / "other" / "another.ledger")
    shown = told(monkeypatch, capsys, "ledger", tmp_path / "other", "--node-config", text(config))
    assert "does not hold the ledger of this node config" in shown
    ledger.charge(Charge("another", 1, 1.0, 1.0, 1, whole - 1.0 - gdp_mu(2.0, 1e-4) ** 2), budget)
    assert check_node(text(config))[0][3].endswith("a run may plan up to epsilon 2")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("partition-id=0 num-partitions=3 data-fil='a'", "did you mean 'data-file'"),
        ("partition-id=oops'", "the node config is not valid"),
        ("missing.toml", "cannot read the node config missing.toml"),
    ],
)
def test_a_node_config_that_no_node_could_use_is_refused(words, sentence):
    with pytest.raises(SettingError, match=sentence):
        check_node(words)


def test_a_node_config_may_be_a_file_and_keys_are_compared(node, tmp_path, capsys, monkeypatch):
    key = tmp_path / "key.pem"
    public = make_key(key)
    peers = tmp_path / "peers.txt"
    peers.write_text(f"0 {public}\n1 {make_key(tmp_path / 'other.pem')}\n")
    config = node[0] | {"identity-key": str(key), "peers-file": str(peers), "max-honest": 2}
    named = {k: v for k, v in config.items() if k not in PLACES} | {"site": "jena"}
    assert "identity: not checked, because the key belongs to a number" in " ".join(
        check_node(text(named))[0]
    )
    file = tmp_path / "node.toml"
    file.write_text("\n".join(text({key: value}) for key, value in config.items()))
    monkeypatch.setattr("sys.argv", ["twinflower", "check-node", str(file)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code and "table: " in told.out
    assert told.err == "error: the peers-file names 2 sites; the node config says 3\n"
