"""Who is protected: replay with several records, the planner, the sentences, and the site's door."""

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from numpy.testing import assert_allclose
from problems import run_config, small

from twinflower import FederatedClassifier
from twinflower.algorithms import FedAvg, FedPDM, FedProx, LDPPrimalDual
from twinflower.data.schema_file import parse_schema, to_toml
from twinflower.data.tables import check_groups, read_features
from twinflower.errors import DataError, SettingError
from twinflower.privacy import Budget, gdp_epsilon, gdp_mu, total_mu
from twinflower.privacy.audit import neighbours, replay
from twinflower.privacy.charges import Charge, LedgerError
from twinflower.privacy.ledger import FileLedger, read_ledger
from twinflower.privacy.release import gradient_release, norm_sensitivity
from twinflower.privacy.unit import ONE_RECORD, Unit
from twinflower.problems.batches import LocalSchedule, Workload
from twinflower.problems.interfaces import Batch, Bounds
from twinflower.problems.objectives import make_objective
from twinflower.simulation.app import client_app
from twinflower.simulation.app.redact_errors import sentence
from twinflower.simulation.app.site import read_site
from twinflower.simulation.runs.advice import warnings
from twinflower.simulation.runs.forecast import forecast
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.runtimes.rehearsal import node_config
from twinflower.simulation.settings import parse
from twinflower.sums.audit import replay_sums

ROWS, FEATURES, REACH = 12, 4, 1e3
OBJECTIVE = make_objective("logistic", FEATURES, 2)
BOUNDS = OBJECTIVE.bounds(0.7)


# ------------------------------------------------------------------------------------ sensitivities


def moves(algorithm, schedule, replaced, rounds=3):
    """Replay between two data sets near the worst point that differ in so many rows."""
    data, other = neighbours(ROWS, FEATURES, 0.7, REACH, replaced=replaced)
    assert (data.features != other.features).any(1).sum() == replaced
    start = REACH * np.eye(FEATURES)[0]
    inbox = algorithm.broadcast(algorithm.init_server(start, 1, np.array(0, np.uint64)), 1, np.array(0))
    return replay(algorithm, OBJECTIVE, data, other, schedule, BOUNDS, [inbox] * rounds)


METHODS = [
    (FedPDM(rho=0.3, step_size=1.0, privacy="public-state"), 4),
    (FedPDM(rho=0.3, step_size=1.0, privacy="gradient"), 2),
    (FedAvg(step_size=0.9, privacy="public-state"), 1),
    (FedProx(step_size=0.9, privacy="gradient"), 1),
]


@pytest.mark.parametrize("replaced", [1, 2, 5, ROWS])
@pytest.mark.parametrize(("algorithm", "steps"), METHODS)
def test_k_records_attain_k_times_the_sensitivity_and_never_exceed_it(algorithm, steps, replaced):
    one = algorithm.release(BOUNDS, LocalSchedule(0, steps).workload(ROWS), 1).sensitivity
    found = moves(algorithm, LocalSchedule(0, steps, group=replaced), replaced)
    largest = max(move.moved for move in found)
    assert 0.99 * replaced * one <= largest <= (1 + 1e-9) * replaced * one
    assert all(move.moved <= (1 + 1e-9) * move.sensitivity for move in found)
    assert all(move.agrees for move in found)


@pytest.mark.parametrize(("algorithm", "steps"), METHODS)
def test_a_whole_site_moves_a_release_by_no_more_than_its_bound_allows(algorithm, steps):
    everything = LocalSchedule(0, steps, group=0)
    assert everything.workload(ROWS).replaced == ROWS
    found = moves(algorithm, everything, ROWS)
    assert 0.99 <= max(move.moved / move.sensitivity for move in found) <= 1 + 1e-9


def test_the_bound_on_the_whole_release_limits_that_of_a_group():
    """Many local steps that stretch every difference: the norm bound is smaller than k times the coupled one."""
    algorithm = FedPDM(rho=0.3, step_size=30.0, privacy="public-state", unstable_steps="allow")
    whole, one = (LocalSchedule(0, 5, group=k).workload(ROWS) for k in (ROWS, 1))
    bound = norm_sensitivity(BOUNDS, 30.0, 0.3, whole)
    assert algorithm.release(BOUNDS, whole, 1).sensitivity == bound
    assert ROWS * algorithm.release(BOUNDS, one, 1).sensitivity > bound


@pytest.mark.parametrize("replaced", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("schedule", [LocalSchedule(3, 8), LocalSchedule(4, 5), LocalSchedule(5, 3)])
def test_in_mini_batches_the_releases_of_a_round_cost_no_more_than_is_charged(schedule, replaced):
    """Wherever the k records are: sum (move / sensitivity)^2 <= touched, and the worst round attains it if they fit."""
    algorithm = FedAvg(step_size=0.9, privacy="gradient")
    schedule = LocalSchedule(schedule.batch_size, schedule.max_local_steps, group=replaced)
    release = algorithm.release(BOUNDS, schedule.workload(ROWS), 1)
    costs: dict[int, float] = {}
    for move in moves(algorithm, schedule, replaced, rounds=60):
        costs[move.round] = costs.get(move.round, 0.0) + (move.moved / move.sensitivity) ** 2
    assert max(costs.values()) <= release.affected_releases * (1 + 1e-9)


def test_the_cost_of_a_gradient_release_is_the_largest_over_all_placements():
    """By enumeration: k records among the batches of an epoch, at most b in each."""
    for b, per_epoch, k in [(3, 4, 1), (3, 4, 2), (3, 4, 3), (3, 4, 6), (2, 5, 7), (4, 1, 4)]:
        release = gradient_release(Bounds(1.0, 1.0), Workload(per_epoch, b, per_epoch, k))
        squares = max(sum(n * n for n in parts) for parts in _placements(k, b, per_epoch))
        worst = 4 * squares / b**2
        charged = release.affected_releases * release.sensitivity**2
        assert worst <= charged * (1 + 1e-12)
        if k <= b or k % b == 0:
            assert_allclose(charged, worst)


def _placements(k, b, batches):
    if batches == 1:
        return [(k,)] if k <= b else []
    return [(n, *rest) for n in range(min(k, b) + 1) for rest in _placements(k - n, b, batches - 1)]


@pytest.mark.parametrize("replaced", [1, 3, 7])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedPDM(rho=0.2, step_size=0.5, privacy="public-state"),
        LDPPrimalDual(step_size=1.0, allocation="static", privacy="public-state"),
    ],
)
def test_sums_move_by_no_more_than_k_times_the_sensitivity(algorithm, replaced):
    rng = np.random.default_rng(3)
    features = rng.normal(size=(3, ROWS, FEATURES))
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    data, other = neighbours(ROWS, FEATURES, 1.0, replaced=replaced)
    sites = [data, *(Batch(rows, rng.integers(0, 2, ROWS)) for rows in features)]
    bounds, start = OBJECTIVE.bounds(1.0), REACH * np.eye(FEATURES)[0]
    schedule = LocalSchedule(0, 1, group=replaced)
    algorithm = replace(algorithm, info=algorithm.info._replace(num_clients=4, rounds=10))
    one = algorithm.release(bounds, LocalSchedule(0, 1).workload(ROWS), 1).sensitivity
    found = replay_sums(algorithm, OBJECTIVE, sites, other, schedule, bounds, 10, 3.0, start=start)
    assert 0.95 * replaced * one <= max(move.moved for move in found) <= (1 + 1e-9) * replaced * one
    assert all(move.moved <= (1 + 1e-9) * move.sensitivity for move in found)


# ------------------------------------------------------------------------------------------ the plan

GROUP = {"privacy.protects": "group", "privacy.group-size": 3}


def planned(**keys):
    return small("fedpdm-private", clients__per_round=0, **keys)


def test_the_planner_raises_the_noise_so_that_epsilon_is_that_of_the_group():
    one, three = planned(), planned(**GROUP)
    epsilon, delta = one.config.privacy.epsilon, one.plan.delta
    sigmas = [
        setup.plan.multipliers
        * setup.algorithm.release(setup.plan.bounds, setup.schedule.workload(40), 1).spread
        for setup in (one, three)
    ]
    assert_allclose(sigmas[1], 3 * sigmas[0])
    assert_allclose(three.plan.epsilon_limit, epsilon)
    workload, rounds = three.schedule.workload(40).for_one_row, round(three.plan.units[0])
    record = three.algorithm.release(three.plan.bounds, workload, 1).sensitivity
    mu = total_mu(np.full(rounds, 3 * record), sigmas[1][0])
    assert_allclose(gdp_epsilon(mu, delta), epsilon)


def test_a_run_of_sums_pays_for_the_group_with_the_cost_of_discrete_noise():
    """mu = (k Delta / w + 2 sqrt(d)) / S (1 + sqrt(pi d / 2) / S), round by round."""
    keys = GROUP | {"privacy.trust": "sum", "privacy.honest-sites": 4, "local.max-steps": 1}
    plan = planned(**keys).plan
    one = planned(**{k: v for k, v in keys.items() if k not in GROUP}).plan
    deviation, d = 2.0**30 * math.sqrt(4), plan.sums.entries
    cells = plan.sums.moves / np.array(plan.sums.widths)[:, None]
    mu = (cells + 2 * math.sqrt(d)) / deviation * (1 + math.sqrt(math.pi / 2 * d) / deviation)
    assert_allclose(np.sqrt((mu**2).sum(0)), plan.mu)
    assert_allclose(plan.sums.moves, 3 * one.sums.moves)
    assert_allclose(plan.sums.longest, one.sums.longest)
    assert_allclose(plan.sums.mu.max(), gdp_mu(plan.epsilon_limit, plan.delta))


def test_what_is_charged_for_a_group_is_the_cost_of_the_group(tmp_path):
    setup = planned(**GROUP)
    ledger = FileLedger(tmp_path / "a.ledger", "data", 100.0, 1e-4, unit=setup.plan.unit)
    guard = setup.plan.guard(0, ledger, run="1")
    workload = setup.schedule.workload(int(setup.partition.sizes[0]))
    release = setup.algorithm.release(guard.bounds, workload, 1)
    guard.open(release, 1)
    (charge,) = ledger.charges()
    one = setup.algorithm.release(guard.bounds, workload.for_one_row, 1).sensitivity
    assert_allclose([charge.sensitivity, charge.cost], [3 * one, (3 * one / charge.sigma) ** 2])


@pytest.mark.parametrize(
    ("keys", "unit", "words"),
    [
        ({}, "one of its records", "two equally likely candidates for a record picks"),
        (GROUP, "up to 3 of its records", "candidates for 3 of its records picks the right one"),
        ({"privacy.protects": "site"}, "all its records", "detects a given set of all its records"),
    ],
)
def test_planner_and_summary_say_who_is_protected(keys, unit, words):
    setup = planned(**keys)
    told = dict(forecast(setup))
    assert told["what is protected"] == f"{unit}, for each client"
    assert f"under replacement of {unit}: " in told["guarantee"]
    assert words in told["guarantee"]
    (result,) = cohort.train([setup])
    privacy = result.privacy()
    assert privacy["unit"] == f"per client, all rounds, replacement of {unit}"
    assert_allclose(privacy["epsilon"], setup.config.privacy.epsilon)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (
            {"privacy.group-size": 3},
            "belongs to protects = group, which needs it; got 3 with protects = record",
        ),
        ({"privacy.protects": "group"}, "which needs it; got 0 with protects = group"),
        (GROUP | {"privacy.protects": "site"}, "got 3 with protects = site"),
        ({"privacy.protects": "person"}, "protects must be one of record, group, site; got 'person'"),
        (GROUP | {"privacy.mode": "as-published"}, "setting of privacy.mode public-state or gradient"),
        (GROUP | {"privacy.mode": "none", "privacy.epsilon": 0.0}, "setting of privacy.mode"),
    ],
)
def test_contradictory_settings_are_one_sentence(keys, why):
    run = {"algorithm": "fedpdm", "privacy.mode": "public-state", "privacy.epsilon": 2.0} | keys
    with pytest.raises(SettingError, match=why) as refused:
        prepare(parse(run))
    assert "\n" not in str(refused.value)


# ----------------------------------------------------------------------------- the group column

SCHEMA = """
group = "patient"
[label]
column = "ill"
classes = ["n", "y"]
[columns]
age = { range = [20, 80] }
"""


def table(rows, each=3, people="p"):
    draw = np.random.default_rng(rows)
    lines = [
        f"{people}{row // each},{draw.integers(20, 81)},{draw.choice(['n', 'y'])}" for row in range(rows)
    ]
    return "patient,age,ill\n" + "\n".join(lines) + "\n"


@pytest.fixture
def run(tmp_path):
    for number in range(2):
        (tmp_path / f"site-{number}.csv").write_text(table(30 + number))
    (tmp_path / "test.csv").write_text(table(40))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    files = {"data.files": "site-*.csv", "data.schema": "schema.toml", "data.test-file": "test.csv"}
    keys = {"data.name": "tables", "regulariser.name": "none", "rounds": 2}
    private = {"privacy.mode": "public-state", "privacy.epsilon": 4.0}
    return keys | private | {key: str(tmp_path / file) for key, file in files.items()}


def test_a_group_column_is_no_feature_and_predictions_do_not_need_it(tmp_path):
    schema = parse_schema(SCHEMA)
    (tmp_path / "new.csv").write_text("age\n50\n80\n")
    assert_allclose(read_features(tmp_path / "new.csv", schema)[:, 0], [0.0, 1.0])
    assert parse_schema(to_toml(schema)) == schema
    assert parse_schema(SCHEMA.replace('group = "patient"', "")).digest != schema.digest


def test_a_table_with_more_rows_of_a_person_than_the_run_protects_is_refused(run, tmp_path):
    assert warnings(prepare(parse(run | GROUP))) == []
    (tmp_path / "site-1.csv").write_text(table(30, each=4))
    with pytest.raises(DataError, match=r"site-1.csv has 4 rows with the same patient, and group-size is 3"):
        prepare(parse(run | GROUP | {"rounds": 3}))
    prepare(parse(run | {"privacy.protects": "site"}))
    (warning,) = warnings(prepare(parse(run)))
    assert "the guarantee protects single records: set privacy.protects = group" in warning


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace("patient", "name"), "has no column 'patient', which the schema names"),
        (
            lambda text: text.replace("p2,", ",", 1),
            "row 7, column 'patient': a person must be named",
        ),
    ],
)
def test_a_table_that_does_not_say_whose_record_a_row_is_is_refused(run, tmp_path, change, why):
    (tmp_path / "site-0.csv").write_text(change(table(30)))
    with pytest.raises(DataError, match=why):
        prepare(parse(run | GROUP))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"patient"', '"age"', "columns, label, ignore, group and weight must differ; 'age' is there twice"),
        ('"patient"', "3", "group must be the name of a column; got 3"),
    ],
)
def test_a_group_column_that_cannot_be_is_refused(old, new, why):
    with pytest.raises(DataError, match=why):
        parse_schema(SCHEMA.replace(old, new))


def test_people_are_counted_in_every_kind_of_file(tmp_path):
    schema = parse_schema(SCHEMA)
    people, rows = np.repeat(np.arange(4.0), 3), {"age": np.full(12, 50.0), "ill": np.array(["n", "y"] * 6)}
    np.savez(tmp_path / "a.npz", patient=people, **rows)
    check_groups(tmp_path / "a.npz", schema, 3)
    with pytest.raises(DataError, match="has 3 rows with the same patient, and group-size is 2"):
        check_groups(tmp_path / "a.npz", schema, 2)


# ------------------------------------------------------------------------------------ a site's door


def joining(run, tmp_path, node, **keys):
    """Let the node of site 0 take part in a run with data.name = own."""
    digest = parse_schema(SCHEMA).digest
    own = {key: value for key, value in run.items() if key not in ("data.files", "data.test-file")}
    own |= {"data.name": "own", "data.file": run["data.test-file"], "data.schema-digest": digest}
    own |= {"partition.name": "sizes", "partition.sizes": "30,31", "clients.count": 2} | keys
    site = {
        "partition-id": 0,
        "num-partitions": 2,
        "lifetime-epsilon": 9.0,
        "state-dir": str(tmp_path / "state"),
    }
    site |= {"data-file": str(tmp_path / "site-0.csv"), "schema": str(tmp_path / "schema.toml")} | node
    return client_app.client_fn(Context(1, 1, site, RecordDict(), run_config(own)))


POLICY = {"protects": "group", "group-size": 3}


def test_a_site_takes_part_in_runs_that_protect_at_least_as_much(run, tmp_path):
    for keys in (GROUP, GROUP | {"privacy.group-size": 5}, {"privacy.protects": "site"}):
        joining(run, tmp_path, POLICY, **keys)
    for keys in ({}, GROUP | {"privacy.group-size": 2}):
        with pytest.raises(
            SettingError, match="node config has protects = group with group-size = 3, and the run"
        ):
            joining(run, tmp_path, POLICY, **keys)
    with pytest.raises(
        SettingError, match="schema names a group column, 'patient': it needs protects = group"
    ):
        joining(run, tmp_path, {}, **GROUP)
    assert not list(tmp_path.rglob("*.ledger"))


def test_a_rehearsals_nodes_protect_what_the_run_does(run):
    setup = prepare(parse(run | GROUP))
    site = read_site({"partition-id": 0, "num-partitions": 2} | node_config(setup))
    assert site.unit == setup.plan.unit == Unit("group", 3)


def test_the_cap_is_the_sites_own_and_the_server_does_not_learn_what_exceeds_it(run, tmp_path):
    """A server could otherwise find the largest number of a person's rows by asking for one cap after the other."""
    (tmp_path / "site-0.csv").write_text(table(30, each=5))
    with pytest.raises(DataError, match="site-0.csv has 5 rows with the same patient") as refused:
        joining(run, tmp_path, POLICY, **GROUP | {"privacy.group-size": 10})
    assert sentence(refused.value) == "this site cannot answer; the site's own log says why"
    assert not list(tmp_path.rglob("*.ledger"))


def test_a_node_config_that_contradicts_itself_is_refused():
    node = {"partition-id": 0, "num-partitions": 2}
    with pytest.raises(SettingError, match="got 4 with protects = record"):
        read_site(node | {"group-size": 4})
    with pytest.raises(SettingError, match="protects must be one of record, group, site; got 'person'"):
        read_site(node | {"protects": "person"})


def test_a_ledger_remembers_what_it_protects(tmp_path):
    def ledger(unit):
        return FileLedger(tmp_path / "a.ledger", "data", 5.0, 1e-4, unit=unit)

    charge = Charge("run", 1, 1.0, 1.0, 1, 0.1)
    ledger(Unit("group", 3)).charge(charge, Budget(1.0))
    assert read_ledger(tmp_path / "a.ledger").unit == Unit("group", 3)
    for other in (ONE_RECORD, Unit("group", 4), Unit("site")):
        with pytest.raises(LedgerError, match="or protects other groups"):
            ledger(other).charges()


# ---------------------------------------------------------------------------------- scikit-learn


def test_the_front_door_protects_groups():
    rng = np.random.default_rng(0)
    X, y, groups = rng.uniform(size=(60, 3)), rng.integers(0, 2, 60), np.repeat(np.arange(20), 3)
    model = FederatedClassifier(epsilon=4, ranges=(0, 1), group_size=3, rounds=2, random_state=0)
    told = model.fit(X, y, groups=groups).privacy_
    assert "under replacement of up to 3 of its records" in told["guarantee"]
    assert_allclose(told["epsilon"], 4.0)
    with pytest.raises(SettingError, match="group_size is 3, and one group has 6 rows"):
        model.fit(X, y, groups=groups // 2)
    with pytest.raises(SettingError, match="groups must have shape"):
        model.fit(X, y, groups=groups[1:])
    with pytest.raises(SettingError, match="groups need group_size in a private fit"):
        FederatedClassifier(epsilon=4, ranges=(0, 1)).fit(X, y, groups=groups)
    for size in (None, 2):  # without privacy nobody is protected, and no size is needed
        exact = FederatedClassifier(ranges=(0, 1), group_size=size, rounds=2, random_state=0)
        np.testing.assert_array_equal(
            exact.fit(X, y, groups % 5, groups).coef_, exact.fit(X, y, groups % 5).coef_
        )
        with pytest.raises(SettingError, match="groups must have shape"):
            exact.fit(X, y, groups=groups[1:])
