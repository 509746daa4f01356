"""Tables of sites in runs: one file for each client, and deployed nodes that pin the schema."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from problems import query, run_config
from site_files import three_sites
from test_secrets import CANNOT, MARK, says

from twinflower.data.schema_file import read_schema
from twinflower.data.sets import OwnData
from twinflower.data.tables import read_rows
from twinflower.errors import DataError, SettingError
from twinflower.privacy import gdp_mu
from twinflower.privacy.charges import total_cost
from twinflower.privacy.ledger import read_ledger
from twinflower.simulation.app import client_app
from twinflower.simulation.app.site import read_site
from twinflower.simulation.report.figures import draw_run
from twinflower.simulation.report.messages import row_line
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.facts import at_site
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse

SCHEMA = """
[label]
column = "ill"
classes = { no = ["n"], yes = ["y"] }
[columns]
age = { range = [20, 80] }
pain = { categories = ["none", "mild", "severe"], missing = "indicator" }
"""
PRIVATE = {"privacy.mode": "public-state", "privacy.epsilon": 4.0}


def table(seed, rows):
    draw = np.random.default_rng(seed)
    lines = ["age,pain,ill"]
    for _ in range(rows):
        age, pain = draw.integers(20, 81), draw.choice(["none", "mild", "severe", ""])
        ill = "y" if age + 20 * (pain == "severe") + 8 * draw.normal() > 55 else "n"
        lines.append(f"{age},{pain},{ill}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def sites(tmp_path):
    """Three sites' files, rows to test on, and the keys of a run on them."""
    return three_sites(tmp_path, SCHEMA, table, (40, 60, 50, 100)) | {"rounds": 20}


def test_one_file_is_one_client(sites, tmp_path):
    setup = prepare(parse(sites))
    assert setup.config.clients.count == 3
    schema = read_schema(tmp_path / "schema.toml")
    for number in range(3):
        features, labels = read_rows(tmp_path / f"site-{number}.csv", schema)
        rows = setup.shards.rows(number)
        np.testing.assert_array_equal(rows.labels, labels)
        lengths = np.sqrt((features**2).sum(1) + 1)
        np.testing.assert_allclose(rows.features[:, :-1], features / lengths[:, None], rtol=1e-14)
    assert len(setup.dataset.test_labels) == 100
    result = cohort.train([setup])[0]
    assert result.rows[-1]["test_accuracy"] > 0.8
    np.testing.assert_allclose(inprocess.train(setup).model, result.model, rtol=1e-9, atol=1e-12)


def test_test_rows_are_held_out_of_every_file_alike(sites):
    del sites["data.test-file"]
    setup = prepare(parse(sites | {"data.test-fraction": 0.25}))
    assert list(setup.partition.sizes) == [30, 45, 37]  # half a row is rounded up
    assert len(setup.dataset.test_labels) == 38
    again = prepare(parse(sites | {"data.test-fraction": 0.25, "seed": 5}))
    np.testing.assert_array_equal(again.dataset.test_features, setup.dataset.test_features)
    with pytest.raises(DataError, match=r"site-0.csv has too few rows to hold 0.999 of them out"):
        prepare(parse(sites | {"data.test-fraction": 0.999}))


def test_a_single_file_is_divided_among_clients(sites, tmp_path):
    keys = sites | {
        "data.files": str(tmp_path / "site-1.csv"),
        "clients.count": 6,
        "partition.name": "dirichlet",
    }
    assert prepare(parse(keys)).partition.sizes.sum() == 60


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data.files": ""}, r"data tables needs data.files, such as site-\*.csv, and data.schema"),
        ({"data.schema": ""}, "data tables needs data.files"),
        ({"data.files": "absent-*.csv"}, r"no file matches absent-\*.csv"),
        ({"clients.count": 4}, "clients.count must be 3, the number of files that data.files matches; got 4"),
        ({"partition.name": "labels"}, "the rows of 3 tables are divided already, one table for each client"),
        ({"samples-per-client": 3}, "the rows of 3 tables are divided already, one table for each client"),
        ({"data.schema-digest": "0" * 32}, "data.schema-digest is 0+, but .*schema.toml has the digest"),
        ({"data.schema": "absent.toml"}, "schema absent.toml cannot be read"),
    ],
)
def test_what_a_run_on_tables_needs(sites, change, sentence):
    with pytest.raises((SettingError, DataError), match=sentence):
        prepare(parse(sites | change))


def test_the_schema_is_part_of_the_run(sites, tmp_path):
    """Its content decides, not the way to it."""
    first = prepare(parse(sites)).config
    shutil.copy(tmp_path / "schema.toml", tmp_path / "copy.toml")
    copied = prepare(parse(sites | {"data.schema": str(tmp_path / "copy.toml")})).config
    assert not copied.changed(first.items())
    (tmp_path / "wider.toml").write_text(SCHEMA.replace("[20, 80]", "[10, 90]"))
    other = prepare(parse(sites | {"data.schema": str(tmp_path / "wider.toml"), "rounds": 19})).config
    assert first.changed(other.items()) == ["data.schema-digest", "rounds"]
    assert replace(other, rounds=20).digest != first.digest


# ------------------------------------------------------------------------------------------ one table with all sites


@pytest.fixture
def together(sites, tmp_path):
    """The same rows in one table, in another order, with a column that names the site; and the keys of its run."""
    lines = []
    for number, name in enumerate(("9", "10", "11")):
        head, *own = (tmp_path / f"site-{number}.csv").read_text().splitlines()
        lines.append([f"{name},{line}" for line in own])
    mixed = [line for part in zip(*(own[:40] for own in lines), strict=True) for line in reversed(part)]
    rest = [line for own in lines for line in own[40:]]
    (tmp_path / "all.csv").write_text("\n".join([f"hospital,{head}", *mixed, *rest]) + "\n")
    return sites | {"data.files": str(tmp_path / "all.csv"), "data.site-column": "hospital"}


def test_one_table_with_a_site_column_is_as_one_file_for_each_site(sites, together):
    """Sites are in numerical order, which is that of the files, and the rows of a site in the order of the table."""
    one, other = (prepare(parse(keys)) for keys in (sites, together))
    assert other.config.clients.count == 3
    for number in range(3):
        np.testing.assert_array_equal(one.shards.rows(number).features, other.shards.rows(number).features)
    np.testing.assert_array_equal(cohort.train([one])[0].model, cohort.train([other])[0].model)
    del together["data.test-file"], sites["data.test-file"]
    held = [prepare(parse(keys)).dataset for keys in (sites, together)]
    np.testing.assert_array_equal(held[0].test_features, held[1].test_features)
    assert held[1].note == "tested on 0.2 of the rows of every site"


def test_a_table_that_is_trained_on_and_tested_on_is_named(sites):
    assert "trained on" not in prepare(parse(sites)).dataset.note
    own = sites["data.files"].replace("*", "1")
    note = prepare(parse(sites | {"data.test-file": own})).dataset.note
    assert note == "tested on site-1.csv, whose rows are trained on, too"


def test_sites_with_names_are_in_alphabetical_order(together, tmp_path):
    text = (tmp_path / "all.csv").read_text()
    for number, name in (("9", "north"), ("10", "East"), ("11", "hill")):
        text = text.replace(f"\n{number},", f"\n{name},")
    (tmp_path / "all.csv").write_text(text)
    assert prepare(parse(together)).partition.sizes.tolist() == [60, 50, 40]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data.site-column": "clinic"}, "all.csv has no column 'clinic', which data.site-column names$"),
        ({"data.site-column": "pain"}, "data.site-column is 'pain', which is a feature in .*schema.toml"),
        ({"data.site-column": "ill"}, "data.site-column is 'ill', which is the label in .*schema.toml"),
        ({"clients.count": 4}, "clients.count must be 3, the number of sites in column 'hospital'; got 4"),
        ({"partition.name": "labels"}, "the rows of 3 sites are divided already, one site for each client"),
        (
            {"data.files": "site-*.csv"},
            "data.site-column divides the rows of one table; data.files matches 3",
        ),
        ({"data.site-column": ""}, "all.csv has a column 'hospital' that the schema does not know"),
    ],
)
def test_what_a_site_column_needs(together, tmp_path, monkeypatch, change, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SettingError, DataError), match=sentence):
        prepare(parse(together | change))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("\n9,", "\n,", "all.csv, row 3, column 'hospital' is missing, and every row needs its site"),
        ("\n9,", "\nNA,", "all.csv, row 3, column 'hospital' is missing"),
    ],
)
def test_every_row_needs_its_site(together, tmp_path, old, new, sentence):
    (tmp_path / "all.csv").write_text((tmp_path / "all.csv").read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=sentence):
        prepare(parse(together))


def test_a_table_of_one_site_has_nothing_to_divide(together, tmp_path):
    head, *lines = (tmp_path / "all.csv").read_text().splitlines()
    (tmp_path / "all.csv").write_text("\n".join([head, *(line for line in lines if line.startswith("9,"))]))
    with pytest.raises(
        DataError, match="all.csv has one value, 9, in column 'hospital', and data.site-column needs"
    ):
        prepare(parse(together))


def test_a_table_of_several_sites_is_not_deployed(together):
    with pytest.raises(SettingError, match="deploy needs one table for each node"):
        at_sites(prepare(parse(together)))


# ------------------------------------------------------------------------------------------ deployment


def own_keys(sites, tmp_path):
    """The same run where every node has its own file."""
    digest = read_schema(tmp_path / "schema.toml").digest
    keys = {key: value for key, value in sites.items() if key not in ("data.files", "data.test-file")}
    own = {"data.name": "own", "data.file": sites["data.test-file"], "data.schema-digest": digest}
    return keys | own | {"partition.name": "sizes", "partition.sizes": "40,60,50", "clients.count": 3}


class Nodes(InProcessGrid):
    """Every node goes through the app's own client_fn with a node config of its own."""

    def client(self, node):
        if node not in self._clients:
            context, config = self.context(node), self.setup.config
            assert isinstance(config.data, OwnData)
            file = config.data.file.replace("test.csv", f"site-{node - 1}.csv")
            context.node_config |= {
                "data-file": file,
                "schema": config.data.schema,
                "allow-non-private": True,
            }
            context.run_config = config.items()
            self._clients[node] = client_app.client_fn(context).numpy_client
        return self._clients[node]


@pytest.mark.parametrize("scaling", ["each", "all"])
def test_nodes_with_tables_of_their_own_train_the_same_model(sites, tmp_path, scaling):
    sites["data.row-scaling"] = scaling
    setup = prepare(parse(own_keys(sites, tmp_path)))
    result = run_strategy(setup, Nodes(setup), "inprocess")
    assert not result.failure
    np.testing.assert_array_equal(result.model, inprocess.train(prepare(parse(sites))).model)
    assert result.rows[-1]["test_accuracy"] > 0.8


def test_nodes_hold_out_the_same_rows_as_the_simulation(sites, tmp_path):
    """The same model and the same metrics, from each node's own file."""
    share = {"evaluation.held-out": 0.2}
    setup, simulated = prepare(parse(own_keys(sites, tmp_path) | share)), prepare(parse(sites | share))
    assert simulated.held.sizes.tolist() == [8, 12, 10]
    for number in range(3):
        node = prepare(
            parse(own_keys(sites, tmp_path) | share | {"data.file": str(tmp_path / f"site-{number}.csv")})
        )
        np.testing.assert_equal(at_site(node, number).held_rows(number), simulated.held_rows(number))
    result, known = run_strategy(setup, Nodes(setup), "inprocess"), inprocess.train(simulated)
    np.testing.assert_array_equal(result.model, known.model)
    for column in ("held_out_loss", "held_out_accuracy", "held_out_rows"):
        assert [row[column] for row in result.rows] == [row[column] for row in known.rows]


@pytest.mark.parametrize("scaling", ["each", "all"])
def test_a_rehearsal_gives_every_node_its_file(sites, tmp_path, scaling):
    sites["data.row-scaling"] = scaling
    setup = prepare(parse(sites | PRIVATE))
    config, nodes = at_sites(setup)
    assert (
        config.items()
        == parse(own_keys(sites, tmp_path) | PRIVATE | {"partition.sizes": "40, 60, 50"}).items()
    )
    for number, node in enumerate(nodes):
        policy = {"lifetime-epsilon": 9.0, "state-dir": str(tmp_path / f"{number}")}
        context = {"partition-id": number, "num-partitions": 3} | policy | node
        client_app.client_fn(Context(1, 1, context, RecordDict(), run_config(config.items())))
    assert [node.get("allow-non-private") for node in at_sites(prepare(parse(sites)))[1]] == [True] * 3
    for change, why in (
        ({"data.files": str(tmp_path / "site-0.csv"), "clients.count": 2}, "one table for each node"),
        ({"data.test-file": ""}, "rows to evaluate on: data.test-file, .* or evaluation.held-out"),
    ):
        with pytest.raises(SettingError, match=f"deploy needs {why}"):
            at_sites(prepare(parse(sites | change)))


class PublicNodes(InProcessGrid):
    """Nodes with tables of their own that take part without privacy and send information matrices."""

    def __init__(self, setup, folder):
        super().__init__(setup)
        self.folder = folder

    def new_client(self, node, context):
        context.node_config |= {
            "data-file": str(self.folder / f"site-{node - 1}.csv"),
            "schema": self.setup.config.data.schema,
            "allow-non-private": True,
            "standard-error-rows": 3,
            "score-rows": 5,
        }
        context.run_config = run_config(self.setup.config.items())
        return client_app.client_fn(context).numpy_client


def test_deployed_sites_send_what_they_would_in_a_simulation(sites, tmp_path):
    """Information matrices, and counts of scores without noise."""
    sites |= {"data.row-scaling": "all", "evaluation.standard-errors": True, "objective.name": "logistic"}
    sites |= {"evaluation.held-out": 0.2, "evaluation.bins": 10}
    config, _ = at_sites(prepare(parse(sites | {"data.test-file": ""})))
    setup = prepare(config)
    result = run_strategy(setup, PublicNodes(setup, tmp_path), "deployment")
    known = inprocess.train(prepare(parse(sites)))
    np.testing.assert_allclose(result.information.packed, known.information.packed, rtol=1e-9, atol=1e-9)
    assert result.information.rows == 120
    for site, table in result.answers["evaluation"].scores.items():
        np.testing.assert_allclose(table.counts, known.answers["evaluation"].scores[site].counts)


class PrivateNodes(InProcessGrid):
    """Private nodes with tables, ledgers and secret noise of their own; the server has no rows."""

    def __init__(self, setup, folder):
        super().__init__(setup)
        self.folder = folder

    def client(self, node):
        if node not in self._clients:
            context, config = self.context(node), self.setup.config
            context.node_config |= {
                "data-file": str(self.folder / f"site-{node - 1}.csv"),
                "schema": config.data.schema,
                "lifetime-epsilon": 4.1,
                "state-dir": str(self.folder / f"state-{node - 1}"),
            }
            context.run_config = run_config(config.items())
            self._clients[node] = client_app.client_fn(context).numpy_client
        return self._clients[node]


def test_a_server_without_rows_reports_what_the_private_sites_release(sites, tmp_path):
    """The estimate is the test accuracy, and every site has charged it to its ledger."""
    share = {"evaluation.held-out": 0.2, "privacy.evaluation-share": 0.5, "data.test-file": ""}
    share |= {"evaluation.bins": 10}
    config, _ = at_sites(prepare(parse(sites | PRIVATE | share)))
    assert (config.data.file, config.partition.sizes) == ("", "40, 60, 50")
    setup = prepare(config)
    result = run_strategy(setup, PrivateNodes(setup, tmp_path), "deployment")
    last, summary = result.rows[-1], result.summary()
    assert last["held_out_rows"] == 8 + 12 + 10
    assert last["held_out_low"] <= last["test_accuracy"] <= last["held_out_high"]
    assert summary["test_accuracy"] == last["held_out_accuracy"]
    assert (summary["test_accuracy_from"], summary["objective"]) == ("clients", None)
    assert np.isnan([row["test_accuracy"] for row in result.rows[:-1]]).all()
    assert "objective" not in row_line(last)
    for number in range(3):
        (ledger,) = (tmp_path / f"state-{number}").glob("*.ledger")
        charges = read_ledger(ledger).charges
        assert [charge.round for charge in charges] == [*range(1, 21), -20]
        np.testing.assert_allclose(total_cost(charges), gdp_mu(4.0, 1e-4) ** 2)
    assert sorted(result.answers["evaluation"].scores) == [0, 1, 2]
    assert all(
        table.sigma == query(setup, "evaluation").sigma(site)
        for site, table in result.answers["evaluation"].scores.items()
    )
    write_run(result, tmp_path / "run")
    draw_run(tmp_path / "run")
    text = report_run(tmp_path / "run").read_text(encoding="utf-8")
    assert "on the rows that the sites hold out" in text
    assert "for 0.5 of the budget in mu^2" in text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "needs rows to evaluate on: data.file, for the server .* or evaluation.held-out"),
        ({"evaluation.held-out": 0.2, "evaluation.reference": True}, "on rows of the server: set data.file"),
    ],
)
def test_a_server_without_rows_computes_nothing_on_them(sites, tmp_path, change, why):
    with pytest.raises(SettingError, match=why):
        prepare(parse(own_keys(sites, tmp_path) | {"data.file": ""} | change))


def joining(sites, tmp_path, keys=(), **node):
    own = {
        "partition-id": 0,
        "num-partitions": 3,
        "lifetime-epsilon": 9.0,
        "state-dir": str(tmp_path / "state"),
    }
    own |= {"data-file": str(tmp_path / "site-0.csv"), "schema": str(tmp_path / "schema.toml")}
    run = own_keys(sites, tmp_path) | PRIVATE | dict(keys)
    node = {key.replace("_", "-"): value for key, value in node.items()}
    merged = {key: value for key, value in (own | node).items() if value is not None}
    return client_app.client_fn(Context(1, 1, merged, RecordDict(), run_config(run)))


def test_a_private_node_compares_the_schema_before_it_opens_its_file(sites, tmp_path, monkeypatch):
    joining(sites, tmp_path)
    monkeypatch.setattr("twinflower.data.sites.read_weighted", lambda *_: pytest.fail("the file was opened"))
    for digest in ("0" * 32, ""):
        with pytest.raises(
            SettingError, match=r"this site's schema has the digest \w+; the run has (0+|none): all"
        ):
            joining(
                sites, tmp_path, {"data.schema-digest": digest} | ({} if digest else {"data.num-features": 3})
            )
    with pytest.raises(
        SettingError, match=r'a run with data.schema-digest needs --node-config "schema=PATH"'
    ):
        joining(sites, tmp_path, schema=None, num_features=6, num_classes=2)
    with pytest.raises(SettingError, match="num-features and num-classes .*, or schema, are needed"):
        joining(sites, tmp_path, schema=None)
    with pytest.raises(SettingError, match="node config schema says which features"):
        joining(sites, tmp_path, num_features=6)
    with pytest.raises(SettingError, match="node config schema says which features"):
        read_site({"partition-id": 0, "num-partitions": 3, "schema": str(tmp_path / "schema.toml")})


def test_a_run_cannot_make_a_node_look_for_files(sites, tmp_path, monkeypatch):
    monkeypatch.setattr("glob.glob", lambda *_: pytest.fail("the node looked for files that a run names"))
    keys = sites | PRIVATE
    node = {"partition-id": 0, "num-partitions": 3, "lifetime-epsilon": 9.0, "state-dir": str(tmp_path)}
    for own in ({}, {"data-dir": str(tmp_path)}):
        with pytest.raises(SettingError, match="a deployed site opens no file that a run names"):
            client_app.client_fn(Context(1, 1, node | own, RecordDict(), run_config(keys)))


def test_a_server_needs_the_digest_of_the_schema(sites, tmp_path):
    keys = own_keys(sites, tmp_path)
    digest = keys.pop("data.schema-digest")
    with pytest.raises(
        SettingError, match=f"data.schema needs data.schema-digest: set it to {digest}, the digest of"
    ):
        prepare(parse(keys))
    with pytest.raises(SettingError, match="data.schema says how many features and classes there are: leave"):
        prepare(parse(keys | {"data.num-features": 6}))


BAD_TABLES = {
    "wrong header": lambda text: text.replace("age", MARK),
    "extra column": lambda text: text.replace("age", f"{MARK},age"),
    "unseen category": lambda text: text.replace("mild", MARK),
    "label outside the classes": lambda text: text.replace(",y\n", f",{MARK}\n"),
    "mixed types": lambda text: text + f"{MARK}x,mild,n\n",
    "huge number": lambda text: text + f"{MARK}e300,mild,n\n",
    "missing value": lambda text: text + ",mild,n\n",
    "empty file": lambda text: "",
    "0 rows": lambda text: text.partition("\n")[0],
    "more rows": lambda text: text + f"{MARK},mild,n\n",
    "wrong delimiter": lambda text: text.replace(",", ";"),
    "open quote": lambda text: text.replace("mild", f'"{MARK}', 1),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_server_learns_only_that_a_site_cannot_take_part(sites, tmp_path, name):
    """Whatever is wrong with its table: the same sentence, without a number or a word of the file."""
    run = own_keys(sites, tmp_path) | PRIVATE
    node = {"data-file": str(tmp_path / "site-0.csv"), "schema": str(tmp_path / "schema.toml")}
    node |= {"num-partitions": 3, "lifetime-epsilon": 9.0, "state-dir": str(tmp_path / "state")}
    assert says(run, node, start=np.zeros(12)) == set()
    (tmp_path / "bad.csv").write_text(BAD_TABLES[name]((tmp_path / "site-0.csv").read_text()))
    bad = node | {"data-file": str(tmp_path / "bad.csv"), "state-dir": str(tmp_path / "other")}
    assert says(run, bad, start=np.zeros(12)) == {CANNOT}
    assert not list((tmp_path / "other").rglob("*.ledger"))  # nothing was charged
