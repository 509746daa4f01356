"""A deployed site's own rules stand above the run's."""

import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from problems import VARIANTS, run_config, small

from twinflower.clients import CLIENTS
from twinflower.errors import DataError, ReplyError, SettingError
from twinflower.privacy.charges import BudgetSpent, LedgerError
from twinflower.privacy.mechanism import secret
from twinflower.privacy.release import Release, Rounding
from twinflower.problems.interfaces import Bounds
from twinflower.queries import QueryPolicy
from twinflower.settings import settings_of
from twinflower.simulation.app import client_app
from twinflower.simulation.app.client_app import site_guard
from twinflower.simulation.app.redact_errors import sentence
from twinflower.simulation.app.site import read_site
from twinflower.simulation.report.sections import ledger as ledger_report
from twinflower.simulation.runs.client_factory import client_of, guard_of, ledger_of
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse

SHAPE = {"num-features": 64, "num-classes": 10}  # of the digits
NODE = {"partition-id": 0, "num-partitions": 8, "lifetime-epsilon": 30.0}


def private(**keys):
    return small("fedpdm-private", clients__per_round=0, batch_size=0, **keys)


def guard(node, setup=None, run="1"):
    return site_guard(setup or private(), read_site(node), run)


def test_a_site_draws_secret_noise_and_writes_its_ledger(tmp_path):
    node = NODE | {"state-dir": str(tmp_path), "lifetime-epsilon": 100.0}
    site = guard(node)
    assert site.secret
    assert site.draws(1) is secret
    setup = private()
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}), site)
    (first,), _, metrics = client.fit([setup.start], {"round": 1})
    assert metrics == {"round": 1, "session": "1", "born": 1}
    (ledger,) = tmp_path.glob("*.ledger")
    assert len(ledger.read_text().splitlines()) == 2
    other = client_of(setup, 0, Context(2, 1, {}, RecordDict(), {}), guard(node, run="2"))
    (second,), _, _ = other.fit([setup.start], {"round": 1})
    assert not np.any(first == second)


def test_the_lifetime_budget_outlives_runs(tmp_path):
    node = NODE | {"state-dir": str(tmp_path), "lifetime-epsilon": 31.0}
    setup = private()
    release = setup.algorithm.release(
        setup.plan.bounds, setup.schedule.workload(len(setup.shards.rows(0).labels)), 1
    )
    site = guard(node, run="1")
    for round_ in range(1, setup.config.rounds + 1):
        site.open(release, round_)
    with pytest.raises(BudgetSpent, match="lifetime budget epsilon 31"):
        guard(node, run="2").open(release, 1)


def test_the_ledger_names_the_runs_of_flower_in_which_a_session_was_charged(tmp_path):
    node, setup = NODE | {"state-dir": str(tmp_path), "lifetime-epsilon": 31.0}, private()
    release = setup.algorithm.release(
        setup.plan.bounds, setup.schedule.workload(len(setup.shards.rows(0).labels)), 1
    )
    for round_, run in ((1, "77"), (2, "78")):
        guard(node, run=run).open(release, round_, "session")
    (row,) = ledger_report.runs(ledger_report.read_books(tmp_path))
    assert dict(zip(ledger_report.RUN_HEADINGS, row, strict=True))["run"] == "session"
    assert row[-1] == "77, 78"


@pytest.mark.parametrize(
    "change", [{"row_norm": 0.999}, {"bias": False}, {"seed": 1}, {"samples_per_client": 90}]
)
def test_no_change_of_the_run_gives_the_data_a_second_lifetime(tmp_path, change):
    """Scaled or divided otherwise they are other bytes, and still the same people's records."""
    node = NODE | {"state-dir": str(tmp_path), "lifetime-epsilon": 31.0}
    first, second = private(), private(**change)
    workload = first.schedule.workload(len(first.shards.rows(0).labels))
    site = guard(node, first)
    for round_ in range(1, first.config.rounds + 1):
        site.open(first.algorithm.release(site.bounds, workload, round_), round_)
    site = guard(node, second, run="2")
    with pytest.raises(BudgetSpent, match="lifetime budget epsilon 31"):
        site.open(second.algorithm.release(site.bounds, workload, 1), 1)


def test_what_a_ledger_says_of_itself_is_the_same_for_all_data(tmp_path):
    """Errors go to the server, and a hash of the rows in a file's name would tell which rows they are."""
    node = NODE | {"state-dir": str(tmp_path / "state"), "data-file": str(tmp_path / "rows.npz")} | SHAPE
    names = []
    for content in (b"one", b"another"):
        (tmp_path / "rows.npz").write_bytes(content)
        names.append(guard(node).ledger.path)
        guard(node).ledger.charges()
    assert names[0] == names[1]
    guard(node).open(Release(1.0), 1)
    (tmp_path / "rows.npz").write_bytes(b"a third")
    with pytest.raises(LedgerError, match="made for other data"):
        guard(node).open(Release(1.0), 2)


def linked(path, folder):
    (folder / "link.csv").symlink_to(path)
    return folder / "link.csv"


def copied(path, folder):
    return shutil.copy(path, folder / "copy.csv")


def mounted(path, folder):
    return Path(shutil.copytree(path.parent, folder / "mount")) / path.name


def packed(path, folder):
    (folder / "rows.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    return folder / "rows.csv.gz"


@pytest.mark.parametrize("move", [linked, copied, mounted, packed])
def test_the_same_rows_under_another_path_get_no_second_lifetime(tmp_path, move):
    """Once the ledger has the new name, as the sentence says, its old charges count."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "rows.csv"
    path.write_text("age,ill\n1,2\n")
    node = NODE | {"state-dir": str(tmp_path / "state"), "data-file": str(path)} | SHAPE
    setup = private()
    release = setup.algorithm.release(
        setup.plan.bounds, setup.schedule.workload(len(setup.shards.rows(0).labels)), 1
    )
    first = guard(node)
    for round_ in range(1, setup.config.rounds + 1):
        first.open(release, round_)
    moved = guard(node | {"data-file": str(move(path, tmp_path))}, run="2")
    with pytest.raises(LedgerError, match="these rows have the ledger") as refused:
        moved.open(release, 1)
    assert (
        sentence(refused.value)
        == "this site's ledger cannot vouch for what was spent; the site's own log says why"
    )
    first.ledger.path.rename(tmp_path / "state" / str(refused.value).split()[-1])
    with pytest.raises(BudgetSpent, match="lifetime budget epsilon 30"):
        moved.open(release, 1)


def test_new_rows_behind_the_same_link_are_noticed_as_in_a_projected_volume(tmp_path):
    """Kubernetes replaces the folder that a link names; the path in the node config stays the same."""
    for version, text in (("1", "a"), ("2", "a"), ("3", "b")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "rows.csv").write_text(text)
    node = (
        NODE | {"state-dir": str(tmp_path / "state"), "data-file": str(tmp_path / "now" / "rows.csv")} | SHAPE
    )
    for round_, version in enumerate("12", 1):
        (tmp_path / "now").unlink(missing_ok=True)
        (tmp_path / "now").symlink_to(tmp_path / version)
        guard(node).open(Release(1.0), round_)
    (tmp_path / "now").unlink()
    (tmp_path / "now").symlink_to(tmp_path / "3")
    with pytest.raises(LedgerError, match="made for other data .* once this one is moved out of its folder"):
        guard(node).open(Release(1.0), 3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"privacy.mode": "as-published", "noise_multiplier": 1e3, "epsilon": 0.0},
            "no part in as-published runs",
        ),
        ({"standardise": True}, "means and deviations are data"),
    ],
)
def test_a_run_whose_guarantee_a_ledger_cannot_keep_is_refused(tmp_path, change, sentence):
    with pytest.raises(SettingError, match=sentence):
        guard(NODE | {"state-dir": str(tmp_path)}, private(**change))


@pytest.mark.parametrize("variant", ["fedpdm-private", "fedpdm-sum"])
def test_steps_that_may_diverge_are_refused_also_where_the_server_sees_only_sums(tmp_path, variant):
    node = NODE | {"state-dir": str(tmp_path), "lifetime-epsilon": 1e4}
    node |= {"identity-key": "not read here", "peers-file": "not read here", "max-honest": 8}
    assert guard(node, small(variant, clients__per_round=0))
    with pytest.raises(SettingError, match="unstable-steps = allow: diverging numbers drown the noise"):
        guard(node, small(variant, clients__per_round=0, unstable_steps="allow"))


@pytest.mark.parametrize("x", [1e10, 2.0**52, 1e300])
@pytest.mark.parametrize("variant", ["fedpdm-private", "ssca-private", "ldp-private", "zcdp-nfl-private"])
def test_a_server_cannot_drown_the_noise_in_the_rounding_of_its_own_numbers(tmp_path, variant, x):
    """x0 - eta g is rounded to a multiple of ulp(x0) before the noise is there, and with it again afterwards."""
    setup = small(variant, clients__per_round=0, epsilon=8.0, noise_multiplier=0.0, l2=0.1)
    site = guard(NODE | {"state-dir": str(tmp_path)}, setup)
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}), site)
    large, small_ = (requests(setup, size) for size in (x, 0.0))
    with pytest.raises(ReplyError, match="too large for the noise"):
        client.fit(large, {"round": 1})
    assert not site.ledger.charges()
    assert client.fit(small_, {"round": 1})[0]


def requests(setup, size):
    """What a server sends in the first round, with numbers of this size in place of a start."""
    start = np.full_like(setup.start, size)
    server = setup.algorithm.init_server(start, setup.config.clients.count, np.array(0, np.uint64))
    return setup.algorithm.inbox.pack(setup.algorithm.broadcast(server, 1, np.array(0)), len(start))


def test_noise_must_be_larger_than_all_rounding_together(tmp_path):
    site = guard(NODE | {"state-dir": str(tmp_path)})
    sigma = site.noise_multiplier * 2.0
    most = 2.0**29 * sigma
    site.check_size(Release(2.0), 1, Rounding(most, 1e100), [np.array(1e99), np.array(2**60), np.empty(0)])
    site.check_size(Release(2.0), 1, Rounding(most / 8, 0.0, 1 / 8), [])
    site.check_size(Release(2.0, weight=4.0), 1, Rounding(most / 2, 0.0), [])
    for rounding in (1.01 * most, np.inf, np.nan):
        with pytest.raises(ReplyError, match="too large for the noise: .* rounding .* more than 6e-08 of it"):
            site.check_size(Release(2.0), 1, Rounding(rounding, 0.0), [])
    for points in (1.01e100, np.inf, np.nan):
        with pytest.raises(ReplyError, match="they could overflow in a local step"):
            site.check_size(Release(2.0), 1, Rounding(0.0, points), [])
    for release, shrink in (
        (Release(2.0), 1 / 8),
        (Release(2.0, weight=4.0), 1.0),
    ):  # the spread really drawn
        with pytest.raises(ReplyError, match="too large for the noise"):
            site.check_size(release, 1, Rounding(most, 0.0, shrink), [])
    for wrong in (1e101, np.nan, -np.inf):
        with pytest.raises(ReplyError, match="too large for the noise"):
            site.check_size(Release(2.0), 1, Rounding(0.0, 0.0), [np.zeros(3), np.array([0.0, wrong])])


@pytest.mark.parametrize(
    ("release", "rows", "shrink", "gradient"),
    [
        (1e-101, 1, 1.0, 1.0),
        (1e101, 1, 1.0, 1.0),
        (1.0, 1, 1e-101, 1.0),
        (1.0, 1, 0.0, 1.0),
        (1.0, 10, 1.0, 1e-100),
    ],
)
def test_noise_and_gradients_must_be_numbers_that_floats_resolve(tmp_path, release, rows, shrink, gradient):
    """Near 1e-308 floats have few digits: a record that moves a mean by less than the last of them is not hidden."""
    site = replace(guard(NODE | {"state-dir": str(tmp_path)}), bounds=Bounds(gradient, 0.5))
    with pytest.raises(ReplyError, match="too small or too large for floats"):
        site.check_size(Release(release), rows, Rounding(0.0, 0.0, shrink), [])


PRIVATE_VARIANTS = [name for name, keys in VARIANTS.items() if keys.get("privacy.mode", "none") != "none"]


@pytest.mark.parametrize("variant", [name for name in PRIVATE_VARIANTS if name != "fedpdm-published"])
def test_no_honest_run_is_taken_for_a_hostile_one(tmp_path, variant):
    """Every private method with the noise and the checks of deployed sites."""
    setup = small(variant, clients__per_round=0)
    node = NODE | {"lifetime-epsilon": 1e4, "state-dir": str(tmp_path)}
    node |= {"identity-key": "not read here", "peers-file": "not read here", "max-honest": 8}

    class Sites(InProcessGrid):
        def client(self, node_id):
            if node_id not in self._clients:
                site = read_site(node | {"partition-id": node_id - 1})
                own = site_guard(self.setup, site, "1")
                self._clients[node_id] = client_of(self.setup, node_id - 1, self.context(node_id), own)
            return self._clients[node_id]

    result = run_strategy(setup, Sites(setup), "inprocess")
    assert not result.failure
    assert not any(done.rejected for done in result.rounds)


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ({"partition-id": 0, "num-partitions": 8}, "lifetime-epsilon=E"),
        (NODE | {"lifetime-epsilon": 29.0}, "allows at most epsilon 29"),
        (NODE | {"max-epsilon": 2.0}, "allows at most epsilon 2"),
        (NODE | {"min-noise-multiplier": 100.0}, "needs a noise-multiplier of at least 100"),
    ],
)
def test_a_run_that_breaks_the_sites_rules_is_refused(node, sentence, tmp_path):
    with pytest.raises(SettingError, match=sentence):
        guard({"state-dir": str(tmp_path)} | node)


def test_a_site_with_a_policy_takes_no_part_without_privacy():
    with pytest.raises(SettingError, match=r"private runs only \(lifetime-epsilon\)"):
        guard(NODE, small("fedpdm"))
    assert guard({"partition-id": 0, "num-partitions": 8}, small("fedpdm")) is None


BARE = {"partition-id": 0, "num-partitions": 8}


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (
            "max_epsilon",
            2.0,
            r"^'max_epsilon' is not a key of this app's node config; did you mean 'max-epsilon'\?",
        ),
        ("lifetime_epsilon", 9.0, "did you mean 'lifetime-epsilon'"),
        ("Max-Epsilon", 2.0, "did you mean 'max-epsilon'"),
        ("max-epsilom", 2.0, "did you mean 'max-epsilon'"),
        ("min-noise", 2.0, "did you mean 'min-noise-multiplier'"),
        ("data-folder", "rows", "'data-folder' is not a key"),
        (
            "wholly-other",
            1,
            'known keys: partition-id, num-partitions, .*goes into ignore-keys="wholly-other"',
        ),
        ("max-epsilon", "2", "node config max-epsilon must be a number; got '2'"),
        ("max-epsilon", True, "max-epsilon must be a number; got True"),
        ("max-epsilon", 0, "max-epsilon must be above 0; got 0.0"),
        ("max-epsilon", float("nan"), "max-epsilon must be"),
        ("lifetime-epsilon", float("inf"), "lifetime-epsilon must be finite; got inf"),
        ("lifetime-epsilon", -1.0, "lifetime-epsilon must be above 0"),
        ("lifetime-delta", 1.0, "lifetime-delta must be above 0 and below 1; got 1"),
        ("min-noise-multiplier", -1.0, "min-noise-multiplier must be at least 0; got -1"),
        ("allow-non-private", 1, "allow-non-private must be true or false; got 1"),
        ("allow-non-private", "true", "allow-non-private must be true or false"),
        ("state-dir", "state", "state-dir must be an absolute path"),
        ("partition-id", -1, "partition-id must be at least 0; got -1"),
        ("partition-id", 8, "partition-id must be below num-partitions = 8; got 8"),
        ("partition-id", "0", "partition-id must be a whole number"),
        ("ignore-keys", 3, "ignore-keys must be text"),
        ("max-epsilon", 1e200, "max-epsilon must be 0 or from 1e-100 to 1e.100 in size; got 1e"),
        ("group-size", 2**48, "group-size must be below 2.48; got 281474976710656"),
        ("protects", "groups", "one of record, group, site; got 'groups'; did you mean 'group'"),
    ],
)
def test_a_node_config_with_a_mistake_is_refused(key, value, sentence):
    """A misspelt policy must not be a policy that nobody keeps."""
    with pytest.raises(SettingError, match=sentence):
        read_site(BARE | {key: value})


def test_keys_of_another_app_are_passed_over_when_the_site_names_them():
    site = read_site(
        BARE | {"gpu": 1, "faults": "none", "ignore-keys": "gpu, faults, max-epsilon", "max-epsilon": 2.0}
    )
    assert site.max_epsilon == 2.0  # a known key is never passed over
    with pytest.raises(SettingError, match="'gpus' is not a key"):
        read_site(BARE | {"gpus": 1, "ignore-keys": "gpu"})


def test_a_site_with_rows_of_its_own_needs_a_word_for_runs_without_privacy(own, tmp_path):
    _, keys = own
    node = BARE | {"num-partitions": 4, "data-file": str(tmp_path / "0.npz")} | SHAPE

    def join(**settings):
        return client_app.client_fn(Context(1, 1, node | settings, RecordDict(), run_config(keys)))

    with pytest.raises(SettingError, match=r"private runs only \(data-file\); the run has none"):
        join()
    with pytest.raises(SettingError, match=r"private runs only \(data-file\)"):
        join(**{"allow-non-private": False})
    join(**{"allow-non-private": True})
    for policy in (
        {"lifetime-epsilon": 9.0},
        {"max-epsilon": 9.0},
        {"max-epsilon-alone": 9.0},
        {"min-noise-multiplier": 0.0},
    ):
        with pytest.raises(SettingError, match=f"allow-non-private contradicts {next(iter(policy))}"):
            join(**{"allow-non-private": True}, **policy)


def test_rows_longer_than_the_public_bound_are_scaled_to_it(caplog):
    """An error would reveal that one is longer; the site's own log says so."""
    setup = private()
    rows, context = setup.shards.rows(0), Context(1, 1, {}, RecordDict(), {})
    own = rows._replace(features=rows.features.copy())
    own.features[3] *= 1e3
    scaled = CLIENTS["fedpdm"](
        context, setup.algorithm, setup.objective, own, setup.start, 0, setup.config.clients.count, setup.schedule,
        guard=guard_of(setup, 0, ledger_of(setup, 0, context), "1"),
    ).shards.rows(0)  # fmt: skip
    assert "rows outside their public bounds were scaled" in caplog.text
    np.testing.assert_allclose(scaled.features, rows.features, rtol=1e-12)


def test_the_run_cannot_make_a_deployed_site_use_seeded_noise(monkeypatch, tmp_path):
    """Outside Flower's simulation engine the guard is the site's, whatever the run config says."""
    seen = []

    def spy(setup, site, run):
        seen.append(site_guard(setup, site, run))
        return seen[-1]

    monkeypatch.setattr(client_app, "site_guard", spy)
    config = parse({"clients.count": 8, "privacy.mode": "public-state", "epsilon": 8.0})
    prepare(config)
    context = Context(1, 1, NODE | {"state-dir": str(tmp_path)}, RecordDict(), dict(config.items()))
    client_app.client_fn(context)
    assert seen[0].secret


def test_a_node_with_another_number_of_partitions_is_refused(tmp_path):
    config = dict(parse({"clients.count": 5}).items())
    context = Context(1, 1, NODE | {"state-dir": str(tmp_path)}, RecordDict(), config)
    with pytest.raises(SettingError, match="clients.count is 5, but there are 8 nodes"):
        client_app.client_fn(context)


def own_files(setup, folder):
    """What each client of a run on digits has, as a file of its own, and the test rows as the server's."""
    for client in range(setup.config.clients.count):
        rows = setup.shards.rows(client)
        np.savez(folder / f"{client}.npz", features=rows.features[:, :-1], labels=rows.labels)
    np.savez(
        folder / "server.npz", features=setup.dataset.test_features[:, :-1], labels=setup.dataset.test_labels
    )


@pytest.fixture
def own(tmp_path):
    """A run on divided rows, and the keys of the same run on rows that nobody divided."""
    shared = {"row-norm": 0.0, "clients.count": 4, "rounds": 3, "batch-size": 20}
    setup = prepare(parse(shared | {"partition.name": "dirichlet", "partition.dirichlet-alpha": 0.5}))
    own_files(setup, tmp_path)
    sizes = ",".join(map(str, setup.partition.sizes))
    keys = {
        "data.name": "own",
        "num-features": 64,
        "num-classes": 10,
        "partition.name": "sizes",
        "partition.sizes": sizes,
    }
    return setup, shared | keys | {"data.file": str(tmp_path / "server.npz")}


class OwnRows(InProcessGrid):
    """A deployment in one process: every node goes through the app's own client_fn with a node config of its own."""

    def client(self, node):
        if node not in self._clients:
            context = self.context(node)
            file = self.setup.config.data.file.replace("server", str(node - 1))
            context.node_config |= {"data-file": file, "allow-non-private": True}
            context.run_config = self.setup.config.items()
            self._clients[node] = client_app.client_fn(context).numpy_client
        return self._clients[node]


def test_rows_of_ones_own_give_the_same_model_as_divided_ones(own):
    divided, keys = own
    setup = prepare(parse(keys))
    result = run_strategy(setup, OwnRows(setup), "inprocess")
    np.testing.assert_array_equal(result.model, inprocess.train(divided).model)
    assert result.rows[-1]["test_accuracy"] == divided.central.evaluate(result.model)["test_accuracy"]
    assert "4 sites with rows of their own" in result.summary()["partition"]


def test_a_site_whose_file_is_not_what_the_run_says_takes_no_part(own, tmp_path):
    _, keys = own
    node = {"partition-id": 1, "num-partitions": 4, "allow-non-private": True}

    def join(**settings):
        return client_app.client_fn(Context(1, 1, node | settings, RecordDict(), run_config(keys)))

    with pytest.raises(SettingError, match="data-file=PATH"):
        join()
    with pytest.raises(DataError, match="rows for client 1; .*2.npz has"):
        join(**{"data-file": str(tmp_path / "2.npz")})
    join(**{"data-file": str(tmp_path / "1.npz")})
    keys = {"clients.count": 4}
    with pytest.raises(SettingError, match="takes part in runs with data.name = own only; got digits"):
        join(**{"data-file": str(tmp_path / "1.npz")})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num-features": 0}, "needs data.num-features"),
        ({"partition.sizes": ""}, "needs data.num-features or data.schema, and partition.sizes"),
        ({"partition.sizes": "10,20"}, "must name 4 sites; got 2"),
        ({"partition.sizes": "10,20,0,5"}, "above 0"),
        (
            {"standardise": True},
            "standardise is a setting of data.name digits, .*, and this run has data.name own",
        ),
    ],
)
def test_what_must_be_public_is_asked_for(own, change, sentence):
    with pytest.raises(SettingError, match=sentence):
        prepare(parse(own[1] | change))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"lifetime-delta": 1e-6}, "lifetime-delta needs lifetime-epsilon"),
        ({"max-delta": 1e-6}, "max-delta needs max-epsilon or max-epsilon-alone"),
        ({"data-file": "/rows.npz", "lifetime-epsilon": 9.0}, "num-features and num-classes"),
        (
            {"data-file": "/rows.npz", "num-features": 3, "lifetime-epsilon": 9.0},
            "num-features and num-classes",
        ),
        (
            {"data-file": "/rows.npz", "num-features": 0, "num-classes": 2},
            "num-features must be at least 1; got 0",
        ),
    ],
)
def test_half_a_policy_is_refused(keys, words):
    with pytest.raises(SettingError, match=words):
        read_site(BARE | keys)


def test_a_key_of_a_question_does_nothing_without_the_key_it_needs():
    keys = settings_of(QueryPolicy)
    needing = {name: key for name, key in keys.items() if key.setting.needs}
    assert "score-bins" in needing and {key.setting.needs for key in needing.values()} <= keys.keys()
    for name, key in needing.items():
        other = "sum" if key.default == "local" else (key.default or 1) + 1
        changed, same = {name: other}, {} if key.default is None else {name: key.default}
        assert read_site(BARE | same)
        assert key.value_in(read_site(BARE | changed | {key.setting.needs: 9})) == other
        with pytest.raises(SettingError, match=f"^node config {name} needs {key.setting.needs}: "):
            read_site(BARE | changed)


def test_flowers_name_of_the_data_file_is_taken_for_ours():
    """Both the rows and the promise that comes with them: private runs only."""
    rows = SHAPE | {"lifetime-epsilon": 9.0}
    ours, flowers = (read_site(BARE | rows | {key: "/rows.npz"}) for key in ("data-file", "data-path"))
    assert ours == flowers
    assert flowers.promises == ["lifetime-epsilon", "data-file"]
    with pytest.raises(SettingError, match="data-path and data-file mean the same: give one of them"):
        read_site(BARE | rows | {"data-file": "/a.npz", "data-path": "/b.npz"})
    assert read_site(BARE | {"data-path": "/b.csv", "ignore-keys": "data-path"}).data_file == ""


def test_a_site_without_a_data_dir_looks_nowhere_for_files(tmp_path, monkeypatch):
    """Neither in the folder it was started in nor in the one that its owner's environment names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TWINFLOWER_DATA", str(tmp_path))
    (tmp_path / "ijcnn1").write_text("+1 1:1\n-1 2:1\n" * 20)
    run = {"data.name": "ijcnn1", "clients.count": BARE["num-partitions"]}
    with pytest.raises(SettingError, match="data-dir, in the node config"):
        read_site(BARE).config(parse(run).items())
    assert read_site(BARE | {"data-dir": str(tmp_path)}).config(parse(run).items()).data.dir == str(tmp_path)
