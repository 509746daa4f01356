"""Intervals in private runs: what sites release after the last round, what it costs, and what follows from it."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from cuts import cut_off, equal
from flwr.app import ConfigRecord, Context, RecordDict
from grids import Deployed, over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from problems import query, small
from test_inference import at_maximum, sites
from typer.testing import CliRunner

import twinflower
from twinflower.data.columns import Category, Number, Range
from twinflower.data.schema import Schema
from twinflower.errors import ReplyError, SettingError
from twinflower.models.information import Information
from twinflower.models.inputs import Inputs
from twinflower.models.model import inferred
from twinflower.models.private_inference import LEAST_CLEAR, MOST_MISSED, Reference, Step
from twinflower.models.released import Released, Units, released_size
from twinflower.privacy.charges import ChargedBefore, total_cost
from twinflower.privacy.plan import COUNTS, INTERVALS
from twinflower.problems.discrete_cox import CoxObjective
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective
from twinflower.simulation import cli
from twinflower.simulation.app import client_app
from twinflower.simulation.app.site import read_site
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.advice import outlook
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.forecast import forecast, noise_rows
from twinflower.simulation.runs.run import trained_model
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse

MODELS = {
    "logistic": make_objective("logistic", 3, 2),
    "softmax, 2 classes": make_objective("softmax", 3, 2),
    "softmax, 4 classes": make_objective("softmax", 3, 4),
    "discrete-cox": CoxObjective(intervals="1, 2, 3").build(3, 0),
}
# what the gradients of two outcomes can attain of twice their bound (`discrete_cox`): 2 T of 2 sqrt(T + T^2)
ATTAINED = {name: math.sqrt(3 / 4) if name == "discrete-cox" else 1.0 for name in MODELS}
PRIVATE = {
    "algorithm": "fedpdm", "fedavg.step-size": None, "fedpdm.step-size": 2.0, "fedpdm.rho": 0.25, "rounds": 3,
    "privacy.mode": "public-state", "privacy.epsilon": 8.0,
}  # fmt: skip


def run(folder, objective="logistic", sizes=(60, 90, 50), **changes):
    keys = sites(folder, objective, sizes)[0] | PRIVATE | {k.replace("_", "-"): v for k, v in changes.items()}
    return prepare(parse({key: value for key, value in keys.items() if value is not None}))


def labels_of(objective, draw, rows):
    if not objective.loss.classifies:
        return draw.choice([-1, 1], size=rows) * draw.uniform(0.1, 4, size=rows)
    return draw.integers(max(objective.outputs, 2), size=rows)


# ------------------------------------------------------------------------------------------ sensitivity


def moved(objective, x, rows, labels):
    """The distance of the releases of two rows at one point."""
    units = Units.of(objective, 1.0)
    one, other = (units.released(objective, x, Batch(rows[[i]], labels[[i]])) for i in (0, 1))
    return float(np.linalg.norm(one - other))


@pytest.mark.parametrize("name", MODELS)
def test_a_row_moves_the_release_by_at_most_1(name):
    objective, draw = MODELS[name], np.random.default_rng(0)
    for scale in (0.1, 1.0, 3.0, 10.0, 1e3):
        for _ in range(300):
            rows = draw.normal(size=(2, 3))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True) * draw.choice([1.0, 1.0, 2.0], size=(2, 1))
            if draw.integers(2):
                rows[1] = -rows[0]
            x = scale * draw.normal(size=objective.d)
            assert moved(objective, x, rows, labels_of(objective, draw, 2)) <= 1 + 1e-12


def opposite(columns):
    """Two rows that are nearly opposite and have the same large score at `saturated`."""
    rows = np.zeros((2, columns))
    rows[:, 0], rows[:, 1] = [0.9999, -0.9999], math.sqrt(1 - 0.9999**2)
    return rows


def saturated(objective, columns):
    """A point at which the label 0, or survival, is predicted with probability 0."""
    x = np.zeros(objective.d)
    x[columns + 1 if objective.loss.classifies and objective.outputs > 1 else 1] = 1e4
    return x


@pytest.mark.parametrize("name", MODELS)
def test_rows_with_long_and_opposite_gradients_attain_the_sensitivity(name):
    objective = MODELS[name]
    labels = np.full(2, objective.loss.public_label)
    assert moved(objective, saturated(objective, 3), opposite(3), labels) >= 0.99 * ATTAINED[name]


@pytest.mark.parametrize("name", MODELS)
def test_gradient_and_matrix_of_a_row_are_bounded_together(name):
    """|g|^2 / C^2 + kappa^2 |H|^2 / B^2 <= 1, from the release, whose first part is g / (2 C)."""
    objective, draw, most = MODELS[name], np.random.default_rng(1), 0.0
    units, a = Units.of(objective, 1.0), np.array([[1.0, 0.0, 0.0]])
    for _ in range(3000):
        x = objective.start(draw) + draw.choice([0.3, 2.0, 6.0, 50.0]) * draw.normal(size=objective.d)
        v = units.released(objective, x, Batch(a, labels_of(objective, draw, 1)))
        g, h = v[: objective.d], v[objective.d :]
        most = max(most, 4 * (g @ g) + 2 * (h @ h))
    assert most <= 1 + 1e-12
    assert most >= 0.99


def test_the_bounds_are_no_larger_than_needed():
    """B: of probabilities of a half. The condition on kappa: softmax (0, 1/2, 1/2) attains it at kappa^2 = 1/4."""
    half = {"logistic": np.zeros(3), "softmax, 2 classes": np.zeros(6), "discrete-cox": np.zeros(6)}
    half["softmax, 4 classes"] = np.array([0, 0, 0, 0, 0, 0, -99, 0, 0, -99, 0, 0.0])
    a = np.array([[1.0, 0.0, 0.0]])
    for name, x in half.items():
        objective = MODELS[name]
        rows = Batch(a, np.full(1, objective.loss.public_label))
        bound, _ = objective.information_bounds(1.0)
        assert np.linalg.norm(objective.information(objective.scores(x, a), rows)) == pytest.approx(bound)
    x = np.array([-99, 0, 0, 0, 0, 0, 0, 0, 0, -99, 0, 0.0])
    v = Units.of(MODELS["softmax, 4 classes"], 1.0).released(
        MODELS["softmax, 4 classes"], x, Batch(a, np.array([0]))
    )
    assert 4 * (v[:12] @ v[:12]) + 2 * (v[12:] @ v[12:]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        ("logistic", {}),
        ("softmax", {"privacy.interval_share": 0.2}),
        ("logistic", {"privacy.protects": "group", "privacy.group_size": 3}),
        ("logistic", {"local.batch_size": 20, "local.max_steps": 2}),
    ],
)
def test_the_release_attains_its_charge_and_never_exceeds_it(objective, changes, tmp_path):
    """Replay of a client at a point of long gradients, with its records and with those replaced by opposite ones."""
    setup = run(tmp_path, objective, **changes)
    columns, replaced = setup.objective.num_features, setup.config.privacy.unit.rows
    x, moved = saturated(setup.objective, columns), []
    for row in opposite(columns):
        client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}))
        rows = client.shards.rows(0)
        features, labels = rows.features.copy(), rows.labels.copy()
        features[:replaced], labels[:replaced] = row, 0
        client.shards = type(client.shards).site(Batch(features, labels), 0)
        reply = client.evaluate([x], {"round": 3, "information": True})[2]
        moved.append(np.frombuffer(reply["information"]))
    (charge,) = client.guard.ledger.charges()
    distance = np.linalg.norm(np.subtract(*moved))
    attained = (
        1.0 if objective == "logistic" else math.sqrt(0.5)
    )  # of two opposite outcomes, not of the largest slope
    assert 0.99 * attained * charge.sensitivity <= distance <= charge.sensitivity * (1 + 1e-9)
    assert charge.sensitivity == replaced and charge.round == 4
    assert charge.cost == pytest.approx((charge.sensitivity / charge.sigma) ** 2)
    share = setup.config.privacy.shares.interval_share
    assert charge.cost == pytest.approx(share * setup.plan.mu_limit**2)


def test_the_noise_is_as_large_as_planned(tmp_path):
    """Chi-square at 5e-10, pooled over clients and seeds."""
    setup, squares, size = run(tmp_path), 0.0, 0
    x = np.zeros(setup.objective.d)
    for seed in range(60):
        mine = replace(setup, config=replace(setup.config, seed=seed))
        for client in range(3):
            v = Units.of(setup.objective, 1.0).released(setup.objective, x, setup.shards.rows(client))
            errors = query(mine, "information")
            own, sigma = errors.question.units, errors.sigma(client)
            found = errors._simulated(errors.question, client, x, 3)
            noise = (own.packed(found.gradient, found.matrix) - v) / sigma
            squares, size = squares + noise @ noise, size + len(v)
    assert abs(squares - size) < 6.2 * math.sqrt(2 * size)


# -------------------------------------------------------------------------------------------- the ledger


def test_the_ledger_is_charged_once_and_what_was_planned(tmp_path):
    setup = run(tmp_path)
    grid = InProcessGrid(setup)
    result = run_strategy(setup, grid, "inprocess")
    charges = grid.client(1).guard.ledger.charges()
    assert [charge.round for charge in charges] == [1, 2, 3, 4]
    assert sum(charge.cost for charge in charges) == pytest.approx(setup.plan.mu_limit**2)
    assert result.privacy()["epsilon"] == pytest.approx(8.0)
    assert result.privacy()["mu_intervals"] ** 2 == pytest.approx(setup.plan.mu_limit**2 / 2)


def test_a_release_that_failed_is_charged_and_not_made_again(tmp_path, monkeypatch):
    setup = run(tmp_path)
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}))
    asked = [setup.start], {"round": 3, "information": True}

    def fail(*_):
        assert [charge.round for charge in client.guard.ledger.charges()] == [4]
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Units, "released", fail)
        with pytest.raises(MemoryError):
            client.evaluate(*asked)
    with pytest.raises(ChargedBefore):
        client.evaluate(*asked)


def test_a_repeated_request_gets_the_same_numbers_and_another_one_is_refused(tmp_path):
    setup = run(tmp_path)
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}))
    x, asked = setup.start, {"round": 3, "session": "one", "information": True}
    first = client.evaluate([x], asked)
    assert client.evaluate([x], asked) == first
    with pytest.raises(ReplyError, match="information matrix of another model"):
        client.evaluate([x + 1], asked)
    for round_ in (1, 2, 4):
        with pytest.raises(ReplyError, match=f"no information matrix is planned after round {round_}"):
            client.evaluate([x], asked | {"round": round_})
    with pytest.raises(ReplyError, match="another session"):
        client.evaluate([x], asked | {"session": "two"})
    assert len(client.guard.ledger.charges()) == 1


def test_without_the_setting_nothing_is_released():
    client = client_of(small("fedpdm-private"), 0, Context(1, 1, {}, RecordDict(), {}))
    with pytest.raises(ReplyError, match="sends no information matrix"):
        client.evaluate([client.start], {"round": 1, "information": True})
    assert client.guard.ledger.charges() == []


def test_a_deployed_site_charges_its_ledger_and_needs_no_policy_for_exact_sums(tmp_path):
    setup = run(tmp_path)
    config, nodes = at_sites(setup)
    policy = [{"lifetime-epsilon": 8.01, "state-dir": str(tmp_path / f"{number}")} for number in range(3)]
    grid = Deployed(config.items(), *(own | node for own, node in zip(policy, nodes, strict=True)))
    result = run_strategy(prepare(config), grid, "deployment")
    assert not result.failure and result.information is not None
    site = read_site({"partition-id": 0, "num-partitions": 3} | policy[0] | nodes[0])
    charges = client_app.site_guard(setup, site, "2").ledger.charges()
    assert [charge.round for charge in charges] == [1, 2, 3, 4]
    assert sum(charge.cost for charge in charges) == pytest.approx(setup.plan.mu_limit**2, rel=1e-6)


# ---------------------------------------------------------------------------------------- the same everywhere


@pytest.mark.parametrize("objective", ["logistic", "softmax"])
def test_all_runtimes_release_the_same(objective, tmp_path):
    setup = run(tmp_path, objective)
    direct, wired, arrays = inprocess.train(setup), over_the_wire(setup), cohort.train([setup])[0]
    for name, own in direct.information.arrays.items():
        assert_array_equal(wired.information.arrays[name], own)
        assert_allclose(arrays.information.arrays[name], own, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("private", [False, True])
def test_with_private_ranges_the_rows_are_scaled_by_them(private, tmp_path):
    keys = sites(tmp_path, "logistic")[0] | (PRIVATE if private else {})
    schema = tmp_path / "schema.toml"
    schema.write_text(schema.read_text().replace("[20, 80]", '"private"'))
    setup = prepare(parse({key: value for key, value in keys.items() if value is not None}))
    direct, wired, arrays = inprocess.train(setup), over_the_wire(setup), cohort.train([setup])[0]
    for other in (wired, arrays):
        for name, own in direct.information.arrays.items():
            assert_allclose(other.information.arrays[name], own, rtol=1e-9, atol=1e-9)
    if private:
        assert_allclose([setup.plan.share(COUNTS), setup.plan.share(INTERVALS)], [0.2, 0.5])


def test_a_run_that_was_cut_off_releases_the_same(tmp_path):
    setup = run(tmp_path, **{"output.checkpoint_every": 2, "rounds": 5})
    whole = setup.with_state_dir(tmp_path / "whole")
    expected = inprocess.train(whole, checkpoints=Checkpoints(tmp_path / "whole", 2))
    mine = setup.with_state_dir(tmp_path / "cut")
    assert cut_off(mine, tmp_path / "cut", 8, False, 2)
    found = inprocess.train(mine, checkpoints=Checkpoints(tmp_path / "cut", 2))
    equal(found, expected)
    assert_array_equal(found.information.matrix, expected.information.matrix)
    again = inprocess.train(
        mine, checkpoints=Checkpoints(tmp_path / "cut", 2)
    )  # asks once more after the last round
    assert_array_equal(again.information.matrix, expected.information.matrix)


class Spoilt(InProcessGrid):
    """A grid on which one site's release is not finite."""

    def answer(self, message):
        reply = super().answer(message)
        config = message.content.config_records.get("evaluateins.config", {})
        if config.get("information") and message.metadata.dst_node_id == 2:
            numbers = np.full(released_size(6), np.nan).tobytes()
            reply.content["evaluateres.metrics"] = ConfigRecord({"round": 3, "information": numbers})
        return reply


def test_one_site_without_a_release_leaves_a_model_without_intervals_and_a_warning(tmp_path):
    setup = run(tmp_path)
    result = run_strategy(setup, Spoilt(setup), "inprocess")
    assert result.model is not None and result.information is None
    (warning,) = [text for text in result.warnings() if "standard errors" in text]
    assert "1 clients sent no information matrix (client 1: the information matrix must be finite)" in warning


# ----------------------------------------------------------------------------------------- the noisy step


def sample(name, rows=4000, seed=0):
    """Rows from a model, a point near the maximum, and the rows' sums there."""
    objective, draw = MODELS[name], np.random.default_rng(seed)
    features = draw.uniform(-1, 1, (rows, 3)) / math.sqrt(3)
    own = Batch(features, labels_of(objective, draw, rows))
    x = 0.3 * draw.normal(size=objective.d)
    return objective, own, x, Information.of(objective, x, own)


@pytest.mark.parametrize("name", MODELS)
def test_the_step_is_that_of_the_formula(name):
    """A transcription in a basis of one vector after the other."""
    objective, rows, x, sums = sample(name)
    units, draw = Units.of(objective, 1.0), np.random.default_rng(1)
    v = units.packed(sums.gradient, sums.matrix)
    assert_allclose(v, units.released(objective, x, rows), atol=1e-9)
    released = units.unpacked(v + 2.0 * draw.normal(size=len(v)), objective.d, 2.0)
    known = Reference.of(objective, rows.features[:100])
    found, basis = Step.of(x, released, known), known.basis
    own = np.array([[a @ released.matrix @ b for a in basis.T] for b in basis.T])
    inverse = sum(
        np.outer(a, b) * np.linalg.inv(own)[i, j]
        for i, a in enumerate(basis.T)
        for j, b in enumerate(basis.T)
    )
    s = -inverse @ released.gradient
    gamma, nu = 2.0 * units.gradient, 2.0 * units.matrix
    noise = gamma**2 * np.eye(objective.d) + nu**2 / 2 * (s @ s * np.eye(objective.d) + np.outer(s, s))
    assert_allclose(found.miss, known.missed(x, s), atol=1e-10)
    assert_allclose(found.step, s - found.miss, atol=1e-10)
    assert_allclose(found.root @ found.root.T, inverse + inverse @ noise @ inverse, rtol=1e-8, atol=1e-10)
    size = released.matrix_noise * known.clearness(released)
    assert size == pytest.approx(np.linalg.eigvalsh(own)[0])


def test_the_step_of_a_quadratic_has_this_covariance():
    """Over the noise alone: 20,000 draws, entries to 5 standard errors and 5% for the second order of the noise."""
    draw, d, sigma = np.random.default_rng(3), 3, 1.0
    units, h = Units(1.0, 2.0), np.diag([60.0, 100.0, 140.0])
    e = np.array([0.5, -1.0, 0.8])
    v, found = units.packed(h @ e, h), []
    for noise in draw.normal(size=(20_000, len(v))):
        released = units.unpacked(v + sigma * noise, d, sigma)
        found.append(e - np.linalg.solve(released.matrix, released.gradient))
    inverse, nu = np.linalg.inv(h), sigma * 2.0
    noise = np.eye(d) + nu**2 / 2 * (e @ e * np.eye(d) + np.outer(e, e))
    expected = inverse @ noise @ inverse
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert_allclose(
        np.cov(np.array(found).T) / scale, expected / scale, atol=5 * math.sqrt(2 / 20_000) + 0.05
    )


@pytest.mark.parametrize("name", MODELS)
def test_m_is_by_how_much_a_step_on_the_reference_rows_misses(name):
    objective, rows, x, _ = sample(name)
    known = Reference.of(objective, rows.features[:200])
    target = x + 0.5 * known.basis @ np.random.default_rng(5).normal(size=known.basis.shape[1])
    own = known.rows
    gradient = 200 * (objective.grad(x, own) - objective.grad(target, own))  # 0 at the target
    stepped = x - np.linalg.pinv(known.information(x), rcond=1e-10, hermitian=True) @ gradient
    assert_allclose(stepped - target, known.missed(x, target - x), atol=1e-9)
    tiny = 1e-4 * (target - x)
    assert np.linalg.norm(known.missed(x, tiny)) < 1e-3 * np.linalg.norm(tiny)
    assert np.isinf(known.missed(1e7 * np.abs(x), tiny)).all() or name != "logistic"


@pytest.mark.parametrize("objective", ["logistic", "softmax"])
def test_without_noise_the_intervals_are_the_exact_ones(objective, tmp_path):
    """At the maximum of the likelihood, to 1e-8, and after one step of Newton's method from anywhere near it."""
    setup = at_maximum(prepare(parse(sites(tmp_path, objective)[0])))
    sums = query(setup, "information").simulated(setup.start, setup.config.rounds)
    exact = inferred(trained_model(setup, setup.start, None, sums))
    model = trained_model(setup, setup.start, None, Released(sums.gradient, sums.matrix, 1e-12, 1e-12))
    found = inferred(model)
    for name in ("estimate", "std_error", "p_value", "low", "high"):
        own, known = ([getattr(row, name) for row in rows] for rows in (found.rows, exact.rows))
        assert_allclose(own, known, rtol=1e-8, atol=1e-8, err_msg=name)
    assert found.remarks[0].startswith("the estimates are one step of Newton's method")
    near = setup.start + 1e-4 * np.arange(len(setup.start))
    sums = query(setup, "information").simulated(near, setup.config.rounds)
    stepped = inferred(trained_model(setup, near, None, Released(sums.gradient, sums.matrix, 1e-12, 1e-12)))
    assert_allclose([row.estimate for row in stepped.rows], [row.estimate for row in exact.rows], atol=1e-6)


def test_without_noise_the_intervals_of_survival_are_the_exact_ones():
    objective, rows, x, _ = sample("discrete-cox")
    for _ in range(20):
        sums = Information.of(objective, x, rows)
        x = x - np.linalg.solve(sums.matrix, sums.gradient)
    step = Step.of(
        x, Released(sums.gradient, sums.matrix, 1e-12, 1e-12), Reference.of(objective, rows.features)
    )
    assert_allclose(step.errors(np.eye(objective.d)), np.sqrt(np.diag(np.linalg.inv(sums.matrix))), rtol=1e-8)
    assert_allclose(step.step, 0.0, atol=1e-10)


def test_reference_rows_span_all_rows_with_missing_values_too():
    columns = (
        Number("age", Range(0.0, 1.0), missing="indicator"),
        Category("group", ("a", "b"), missing="zero"),
        Category("kind", ("a", "b"), missing="indicator"),
        Number("size", Range(0.0, 1.0), missing="zero"),
    )
    inputs = Inputs(8, Schema(label=None, columns=columns))
    found = Reference.of(make_objective("logistic", 9, 2), inputs.spanning())
    assert found.basis.shape == (9, 8)  # the three features of `kind` and the column of ones are redundant
    redundant = np.array([0, 0, 0, 0, 1, 1, 1, 0, -1.0])
    assert_allclose(redundant @ found.basis, 0.0, atol=1e-10)


# ---------------------------------------------------------------------------------------------- the rules


def remark_of(model):
    found = inferred(model)
    assert np.isnan([row.std_error for row in found.rows]).all()
    assert_allclose([row.estimate for row in found.rows], [row.estimate for row in model._table()])
    (remark,) = found.remarks
    return remark


def test_a_matrix_that_is_too_noisy_gives_no_intervals(tmp_path):
    (result,) = cohort.train([run(tmp_path, **{"privacy.epsilon": 1.0})])
    remark = remark_of(trained_model(result.setup, result.model, None, result.information))
    assert "the released information matrix is too noisy" in remark
    assert f"at least {LEAST_CLEAR:g} are needed" in remark and "privacy.interval-share" in remark


def test_a_model_far_from_the_maximum_gives_no_intervals(tmp_path):
    (result,) = cohort.train(
        [run(tmp_path, sizes=(600, 900, 500), **{"privacy.epsilon": 1e6, "fedpdm.step_size": 0.01})]
    )
    remark = remark_of(trained_model(result.setup, result.model, None, result.information))
    assert "the model is too far from the maximum of the likelihood" in remark
    assert f"at most {MOST_MISSED:g} are allowed" in remark and "more rounds help" in remark


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"privacy.interval-share": 1.0}, "interval-share must be from 0.001 to 0.999"),
        ({"privacy.tune-share": 0.2}, "privacy.tune-share and evaluation.standard-errors share no budget"),
        ({"objective.clip-norm": 0.5}, "which a penalty or clipping moves"),
        ({"objective.l2": 0.5}, "which a penalty or clipping moves"),
        ({"regulariser.name": "l1"}, "which a penalty or clipping moves"),
        ({"regulariser.name": "selected", "regulariser.entries": "0"}, "in a private run of selected columns"),
        ({"privacy.trust": "sum", "privacy.honest-sites": 2}, "with privacy.trust = sum or privacy.mode = as-pub"),
        ({"privacy.mode": "as-published"}, "with privacy.trust = sum or privacy.mode = as-published"),
        ({"data.row-scaling": "each"}, "not divided by their own norms"),
        ({"algorithm": "dp-nfl", "clients.weighting": "auto", "topology.degree": 2}, "place for intervals: set"),
    ],
)  # fmt: skip
def test_what_is_refused(changes, sentence, tmp_path):
    keys = sites(tmp_path, "logistic")[0] | PRIVATE | changes
    if "algorithm" in changes:
        keys = {key: value for key, value in keys.items() if not key.startswith(("fedpdm.", "local."))}
    with pytest.raises(SettingError, match=sentence) as refused:
        prepare(parse({key: value for key, value in keys.items() if value is not None}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("objective", ["poisson", "least-squares"])
def test_models_without_public_bounds_are_refused(objective, tmp_path):
    with pytest.raises(
        SettingError, match="clipping would move the maximum: set objective.name to logistic or"
    ):
        run(tmp_path, objective, **{"objective.clip_norm": 1.0})


def test_weights_of_rows_are_refused(tmp_path):
    keys = sites(tmp_path, "logistic")[0] | PRIVATE
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'weight = "age"\nweight-range = [0, 80]\n' + re.sub(r"(?m)^age = .*$", "", schema.read_text())
    )
    with pytest.raises(SettingError, match="in a private run with weights of rows"):
        prepare(parse({key: value for key, value in keys.items() if value is not None}))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_an_objective_of_rows_with_weights_has_no_units(name):
    """Its bounds on the information matrix would be those of rows without weights."""
    with pytest.raises(SettingError, match="weights of rows"):
        Units.of(replace(MODELS[name], heaviest=4.0), 1.0)


def test_all_shares_together_must_leave_something_for_the_rounds(tmp_path):
    keys = sites(tmp_path, "logistic")[0] | PRIVATE | {"data.range-share": 0.5}
    schema = tmp_path / "schema.toml"
    schema.write_text(schema.read_text().replace("[20, 80]", '"private"'))
    with pytest.raises(SettingError, match="interval-share must add up to less than 1; got 1 in all"):
        prepare(parse({key: value for key, value in keys.items() if value is not None}))


# ------------------------------------------------------------------------------------- what users see


def test_the_plan_shows_the_release(tmp_path):
    setup, more = run(tmp_path), tmp_path / "more"
    more.mkdir()
    told = dict(forecast(setup))
    assert told["intervals"].startswith("for 0.5 of the budget; by public reference rows at the start")
    assert "what it releases after the last round for intervals included" in told["guarantee"]
    assert noise_rows(setup)[-1][:2] == ("intervals", "4")
    warned = dict(outlook(run(tmp_path, **{"privacy.epsilon": 1.0})))["warning"]
    assert "there will probably be no intervals" in warned and "at least 5 are needed" in warned
    assert "warning" not in dict(
        outlook(run(more, sizes=(6000, 9000, 5000), **{"privacy.epsilon": 50.0, "privacy.delta": 1e-6}))
    )
    assert setup.plan.least_multiplier(0) == pytest.approx(
        min(query(setup, "information").sigma(0), float(setup.plan.multipliers[0]))
    )


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_the_forecast_names_the_deviation_of_numbers_from_which_there_are_intervals(share, tmp_path):
    """Rows like the reference rows, but with twice or half of that deviation, are clear enough, or not."""
    private = {"privacy.epsilon": 20.0, "privacy.delta": 1e-6}
    setup = run(tmp_path, sizes=(6000, 9000, 5000), **private)
    text = dict(forecast(setup))["intervals"]
    deviation = share * float(re.search(r"for which it must be (\S+) of the width", text)[1])
    features = setup.inputs.spanning()
    features[:, :2] *= deviation * np.sqrt(12)  # age and size, before three groups
    known = Reference.of(setup.objective, features)
    total = setup.partition.sizes.sum() / len(features)
    noise = np.sqrt(sum(query(setup, "information").sigma(client) ** 2 for client in range(3)))
    eigenvalue = np.linalg.eigvalsh(known.basis.T @ known.information(setup.start) @ known.basis)[0]
    clear = total * eigenvalue / (noise * query(setup, "information").question.units.matrix)
    assert (clear >= LEAST_CLEAR) == (share > 1)
    assert ("warning" in dict(outlook(setup))) == (float(deviation / share) > 0.1)


def test_folder_command_and_report_show_the_intervals(tmp_path):
    changes = {
        "privacy.epsilon": 60.0,
        "rounds": 40,
        "fedpdm.step_size": 4.0,
        "fedpdm.rho": 0.05,
        "privacy.delta": 1e-5,
    }
    (result,) = cohort.train([run(tmp_path, sizes=(1500, 1500, 1500), **changes)])
    folder = write_run(result, tmp_path / "run")
    model = twinflower.load(folder)
    found = model.coefficients()
    remark, uncounted = inferred(model).remarks
    assert "in age, size, the intervals are wrong" in uncounted
    assert remark.startswith("the estimates are one step of Newton's method")
    assert sum(row.std_error > 0 for row in found) == 5
    own = [row.estimate for row in model._table()]
    assert np.abs(np.subtract(own, [row.estimate for row in found])).max() > 1e-6
    page = report_run(folder).read_text(encoding="utf-8")
    shown = CliRunner().invoke(cli.app, ["coefficients", str(folder)]).output
    for row in found:
        if row.std_error > 0:
            assert f"{row.std_error:.4g}" in shown and f"{row.std_error:.4g}" in page
    assert "One step of Newton" in page.replace("one step", "One step") and "Wald" not in shown
    refused = CliRunner().invoke(cli.app, ["coefficients", str(folder), "--robust"])
    assert "the robust form needs exact sums" in refused.output + str(refused.exception)


@pytest.mark.parametrize("protects", [{}, {"privacy.protects": "group", "privacy.group_size": 2}])
def test_with_an_evaluation_the_total_is_still_the_target(protects, tmp_path):
    setup = run(tmp_path, **{"evaluation.held_out": 0.2, "privacy.evaluation_share": 0.3}, **protects)
    grid = InProcessGrid(setup)
    result = run_strategy(setup, grid, "inprocess")
    assert result.information is not None
    assert result.privacy()["epsilon"] == pytest.approx(8.0)
    charges = grid.client(1).guard.ledger.charges()
    assert sorted(charge.round for charge in charges) == [-3, 1, 2, 3, 4]
    assert total_cost(charges) == pytest.approx(setup.plan.mu_limit**2)


@pytest.mark.parametrize("name", MODELS)
def test_no_model_and_no_label_makes_a_release_that_is_not_finite(name):
    """What the server sends and a row holds may be as large as a private client allows."""
    objective = MODELS[name]
    rows = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    labels = np.zeros(3, np.int64) if objective.loss.classifies else np.array([1e100, -1e100, 0.0])
    for x in (np.full(objective.d, 1e100), np.full(objective.d, -1e100), 1e100 * np.eye(objective.d)[0]):
        with np.errstate(all="raise", under="ignore"):
            v = Units.of(objective, 1.0).released(objective, x, Batch(rows, labels))
        assert np.isfinite(v).all() and np.linalg.norm(v) <= 3
