"""Rows of one group, such as the visits of a patient, stay together in every division of rows."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from problems import run_config

from twinflower import FederatedClassifier
from twinflower.data.dataset import held_out as rows_to_test_on
from twinflower.data.partition import divide, held_out_rows, parted, together
from twinflower.data.partitioners import PARTITIONERS
from twinflower.errors import DataError, SettingError
from twinflower.randomness import stream
from twinflower.settings import make
from twinflower.simulation import estimators
from twinflower.simulation.app import client_app
from twinflower.simulation.runs.facts import known as facts_known
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.settings import parse
from twinflower.simulation.tuning import validation

SCHEMA = """
group = "patient"
ignore = ["ward"]
[label]
column = "ill"
classes = ["n", "y"]
[columns]
patient-number = { range = [0, 1000] }
"""
COLUMNS = 12
NOISE = f"""
group = "patient"
[label]
column = "ill"
classes = [0, 1]
[columns]
{chr(10).join(f"x{k} = {{ range = [-4, 4] }}" for k in range(COLUMNS))}
"""


def patients(site, count):
    """A table in which the only feature is the patient's number, and every patient has 1 to 6 rows, shuffled."""
    draw = np.random.default_rng(site)
    rows = [
        f"p{1000 * site + own},{100 * site + own},{draw.choice(['n', 'y'])},{own % 3}"
        for own in range(count)
        for _ in range(draw.integers(1, 7))
    ]
    return "\n".join(["patient,patient-number,ill,ward", *draw.permutation(rows), ""])


@pytest.fixture
def run(tmp_path):
    for site in range(3):
        (tmp_path / f"site-{site}.csv").write_text(patients(site, 20 + site))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return {
        "data.name": "tables", "data.files": str(tmp_path / "site-*.csv"), "data.bias": False, "data.row-norm": 1.0,
        "data.schema": str(tmp_path / "schema.toml"), "regulariser.name": "none", "rounds": 2,
        "evaluation.held-out": 0.3,
    }  # fmt: skip


def persons(features):
    """The patients of encoded rows."""
    return set(features[:, 0])


def _in_run(setup):
    """Test rows, and per client those it trains on and those it holds out; a patient is in one of all these sets."""
    data = setup.dataset
    parts = [data.features[setup.partition.of(i)] for i in range(setup.partition.num_clients)]
    return [data.test_features, *parts, *(setup.held_rows(i).features for i in range(len(parts)))]


def _one_file(run):
    return run | {"data.files": run["data.files"].replace("*", "0"), "clients.count": 3}


def _tuned(run):
    setup = prepare(parse(run | {"evaluation.held-out": 0.0}))
    left, held = validation.held_out(setup, 0.3)
    return [setup.dataset.test_features, left.dataset.features[left.partition.rows], held.features]


def _charged(run):
    setup = prepare(parse(run | {"evaluation.held-out": 0.0}))
    left, held = validation.split(setup, 0.3)
    return [left.dataset.features[left.partition.rows], *(rows.features for rows in held)]


def _folds(run):
    divided = validation.folds(prepare(parse(run | {"evaluation.held-out": 0.0})), 4)
    for left, held in divided:
        assert not persons(left.dataset.features[left.partition.rows]) & persons(held.features)
    return [held.features for _, held in divided]


def _estimator(run, monkeypatch):
    """The clients' rows of a fit without sites, to train on and held out."""
    found = []
    real = estimators.prepare_rows
    monkeypatch.setattr(estimators, "prepare_rows", lambda *given: found.append(real(*given)) or found[-1])
    groups = np.repeat(np.arange(40), 3)
    model = FederatedClassifier(
        rounds=1, num_sites=4, settings={"evaluation.held-out": 0.3}, ranges=(0, 1000)
    )
    model.fit(np.c_[groups, groups], groups % 2, groups=groups)
    return _in_run(found[0])[1:]


SPLITS = {
    "a file for every client": lambda run: _in_run(prepare(parse(run))),
    "one file, divided": lambda run: _in_run(prepare(parse(_one_file(run)))),
    "one file, by label": lambda run: _in_run(
        prepare(parse(_one_file(run) | {"partition.name": "dirichlet"}))
    ),
    "sizes from group-size": lambda run: _in_run(
        prepare(parse(run | PRIVATE | {"algorithm": "fedavg"}))
    ),
    "tune": _tuned,
    "charged tuning": _charged,
    "folds of path": _folds,
}  # fmt: skip


@pytest.mark.parametrize("name", SPLITS)
def test_no_patient_is_in_two_parts(run, name):
    parts = [persons(rows) for rows in SPLITS[name](run)]
    assert parts[0] and parts[1] and len(set().union(*parts)) == sum(map(len, parts))


def test_no_group_of_an_estimator_is_in_two_parts(run, monkeypatch):
    parts = [persons(rows) for rows in _estimator(run, monkeypatch)]
    assert len(set().union(*parts)) == sum(map(len, parts)) == 40


def test_rows_of_a_site_column_stay_together_at_every_site(run, tmp_path):
    """A patient who was at two wards is a group of rows at each of them."""
    keys = _one_file(run) | {"data.site-column": "ward", "clients.count": 0}
    text = (tmp_path / "schema.toml").read_text().replace('ignore = ["ward"]', "")
    (tmp_path / "schema.toml").write_text(text)
    setup = prepare(parse(keys))
    for client in range(3):
        kept = persons(setup.dataset.features[setup.partition.of(client)])
        assert kept and not kept & persons(setup.held_rows(client).features)


# ------------------------------------------------------------------------------------- the divisions themselves

GROUPS = st.lists(st.integers(0, 12), min_size=2, max_size=60).map(np.array)


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.floats(0.01, 0.99), st.integers(0, 99))
def test_groups_are_whole_in_every_division(groups, share, seed):
    rows = len(groups)
    kept, held = held_out_rows(rows, share, seed, 0, groups)
    assert sorted([*kept, *held]) == list(range(rows)) and len(kept)
    assert not set(groups[kept]) & set(groups[held])
    mask = rows_to_test_on(groups % 2, share, stream(seed, "split"), groups)
    assert not set(groups[mask]) & set(groups[~mask])
    clients = len(set(groups)) // 2
    if clients:
        whole = divide(groups % 2, clients, make(PARTITIONERS, "partition", "iid", {}), seed, 2, groups)
        owners = [set(groups[whole.of(i)]) for i in range(clients)]
        assert sorted(whole.rows) == list(range(rows)) and sum(map(len, owners)) == len(set(groups))


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.floats(0.01, 0.99), st.integers(0, 99), st.integers(0, 3))
def test_the_server_knows_the_numbers_of_rows_from_the_largest_group(groups, share, seed, more):
    """Whatever the groups are: they are public, but the server plans with the numbers of rows alone."""
    most = int(np.bincount(groups).max()) + more
    parts = held_out_rows(len(groups), share, seed, 5, groups, most)
    public = held_out_rows(len(groups), share, seed, 5, None, most)
    assert [*map(len, parts)] == [*map(len, public)]
    assert not set(groups[parts[0]]) & set(groups[parts[1]])
    assert len(parts[0]) + len(parts[1]) >= len(groups) - most + 1


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(30)).map(np.array), st.integers(1, 29))
def test_without_groups_all_divisions_are_those_of_single_rows(rows, size):
    """To the bit, also if every row is a group of its own."""
    for groups in (None, 7 * np.arange(30)):
        own = None if groups is None else groups[rows]
        others, first = parted(rows, size, own)
        assert_array_equal(first, rows[:size])
        assert_array_equal(others, rows[size:])
        kept, groups_in_order = together(rows, own)
        assert_array_equal(kept, rows)
        assert_array_equal(groups_in_order, np.arange(30))


@pytest.mark.parametrize(("size", "share"), [(1, 0.5), (2, 0.2), (57, 0.25), (500, 0.999)])
def test_held_out_rows_are_the_first_of_a_clients_permutation(size, share):
    """As in all earlier versions, so that a run can be repeated."""
    first = stream(3, "held-out", 4).permutation(size)[: min(max(round(share * size), 1), size - 1)]
    for groups in (None, np.arange(size)):
        kept, held = held_out_rows(size, share, 3, 4, groups)
        assert_array_equal(held, np.sort(first))
        assert_array_equal(kept, np.setdiff1d(np.arange(size), first))


def test_large_and_small_groups_are_held_out_equally_often():
    groups = np.repeat(np.arange(12), [1, 9] * 6)
    counts = np.zeros(12)
    for seed in range(400):
        counts[np.unique(groups[held_out_rows(60, 0.25, seed, 0, groups)[1]])] += 1
    small, large = counts[::2].sum() / 2400, counts[1::2].sum() / 2400
    assert abs(small - large) < 4 * math.sqrt(2 * 0.25 / 2400)


# ------------------------------------------------------------------------------------- the case


def noise(seed, folder):
    """Two sites with 24 patients of 15 nearly equal visits each, and labels that depend on nothing."""
    draw = np.random.default_rng(seed)
    for site in range(2):
        ill, centres = draw.integers(0, 2, 24), draw.normal(size=(24, COLUMNS))
        rows = [
            f"{own},"
            + ",".join(f"{x:.2f}" for x in centres[own] + 0.1 * draw.normal(size=COLUMNS))
            + f",{ill[own]}"
            for own in range(24)
            for _ in range(15)
        ]
        names = ",".join(f"x{k}" for k in range(COLUMNS))
        (folder / f"noise-{site}.csv").write_text("\n".join([f"patient,{names},ill", *rows, ""]))
    (folder / "noise.toml").write_text(NOISE)
    return {
        "data.name": "tables", "data.files": str(folder / "noise-*.csv"), "data.schema": str(folder / "noise.toml"),
        "data.row-scaling": "all", "algorithm": "fedavg", "rounds": 20, "evaluation.every": 20, "seed": seed,
        "evaluation.held-out": 0.25, "evaluation.bins": 100, "objective.name": "logistic", "regulariser.name": "none",
        "local.max-steps": 20, "fedavg.step-size": 20.0,
    }  # fmt: skip


def test_a_model_of_noise_is_no_better_than_chance_on_held_out_patients(tmp_path):
    """Split by rows, the area under the curve is about .9: every patient's other visits are trained on."""
    areas = []
    for seed in range(16):
        result = cohort.train([prepare(parse(noise(seed, tmp_path)))])[0]
        areas.append(result.rows[-1]["held_out_auc"])
    assert abs(np.mean(areas) - 0.5) < 3.5 * np.std(areas, ddof=1) / 4 < 0.3


# ------------------------------------------------------------------------------------- deployed sites


def deployed(run, **keys):
    """The run at its sites, whose server has no rows."""
    run = run | {"evaluation.held-out": 0.3} | keys
    return at_sites(prepare(parse(run)))


def node(config, number, entries):
    own = {"partition-id": number, "num-partitions": 3} | entries
    return client_app.site_setup(client_app.read_site(own), run_config(config.items()))


GROUP = {"privacy.group-size": 6}
PRIVATE = GROUP | {
    "privacy.mode": "gradient",
    "privacy.epsilon": 9.0,
    "privacy.protects": "group",
    "privacy.evaluation-share": 0.4,
}


def test_a_site_holds_out_whole_patients_and_as_many_rows_as_the_server_expects(run):
    config, nodes = deployed(run, **GROUP)
    server = prepare(config)
    for number, entries in enumerate(nodes):
        site = node(config, number, entries)
        held = site.held_rows(number)
        assert len(site.dataset.labels) == server.partition.sizes[number]
        assert len(held.labels) == server.held.sizes[number]
        assert not persons(site.dataset.features) & persons(held.features)


def test_rows_that_no_site_uses_are_among_the_facts(run):
    config = deployed(run, **GROUP)[0]
    facts = facts_known(prepare(config))
    assert facts.rows + sum(facts.dropped.values()) == sum(config.sizes)
    assert any("group-size" in reason for reason in facts.dropped)


@pytest.mark.parametrize("person", ["p3", "p7", "p11"])
def test_new_values_of_a_person_change_that_persons_rows_and_no_division(run, tmp_path, person):
    """Neighbouring tables have the same groups."""
    before, there = _in_run(prepare(parse(run))), tmp_path / "neighbour"
    there.mkdir()
    for file in tmp_path.glob("site-*.csv"):
        (there / file.name).write_text(
            file.read_text().replace(f"\n{person},{person[1:]},", f"\n{person},999,")
        )
    after = _in_run(prepare(parse(run | {"data.files": str(there / "site-*.csv")})))
    moved = [np.flatnonzero((old != new).any(1)) for old, new in zip(before, after, strict=True)]
    assert [rows.shape for rows in before] == [rows.shape for rows in after]
    changed = [old[rows] for old, rows in zip(before, moved, strict=True) if len(rows)]
    assert len(changed) == 1 and len(persons(changed[0])) == 1
    assert len(changed[0]) == (there / "site-0.csv").read_text().count(f"\n{person},999,")


@pytest.mark.parametrize("again", [0, 2])
def test_a_test_file_with_persons_of_the_training_files_says_so(run, tmp_path, again):
    lines = (tmp_path / "site-0.csv").read_text().splitlines()
    wanted = [line for line in lines[1:] if line.split(",")[0] in ("p1", "p2")[:again]]
    (tmp_path / "test.csv").write_text("\n".join([lines[0], *wanted, "new-1,5,n,0", "new-2,6,y,0", ""]))
    note = prepare(parse(run | {"data.test-file": str(tmp_path / "test.csv")})).dataset.note
    assert note == "tested on test.csv" + f", {again} of whose persons are trained on, too" * bool(again)


def test_a_server_needs_the_largest_number_of_rows_of_a_patient(run):
    with pytest.raises(SettingError, match="group column needs privacy.group-size"):
        prepare(deployed(run)[0])


def test_a_site_refuses_a_patient_with_more_rows(run):
    config, nodes = deployed(run, **GROUP | {"privacy.group-size": 2})
    with pytest.raises(DataError, match="rows of one group, and privacy.group-size is 2"):
        node(config, 0, nodes[0])


def test_a_row_without_a_patient_is_refused(run, tmp_path):
    file = tmp_path / "site-1.csv"
    file.write_text(file.read_text().replace("\np1003,", "\n,", 1))
    with pytest.raises(DataError, match=r"site-1.csv, row \d+, column 'patient': a person must be named"):
        prepare(parse(run))


def test_a_partition_by_group_names_the_groups_if_there_are_too_few(run):
    with pytest.raises(SettingError, match="clients.count must be in 1..1[0-9], the rows or their groups"):
        prepare(parse(_one_file(run) | {"clients.count": 30}))
