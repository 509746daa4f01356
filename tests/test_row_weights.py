"""Weights of rows: what they mean, what they cost in privacy, and that nothing on the way of a row loses its weight."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from numpy.testing import assert_allclose, assert_array_equal
from problems import VARIANTS, small

from twinflower import audit
from twinflower.algorithms import ALGORITHMS, FedAvg
from twinflower.clients import CLIENTS
from twinflower.data.columns import Range
from twinflower.errors import DataError, SettingError
from twinflower.known_objectives import make_model, with_weights
from twinflower.models.information import Information
from twinflower.privacy.audit import neighbours, replay
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.central import minimise
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import LOSSES, LinearModel, make_objective
from twinflower.problems.regularisers import Zero
from twinflower.rounds import Problem, rounds
from twinflower.simulation.audit.twinflower_case import setup_case
from twinflower.simulation.runs.setup import prepare, prepare_rows
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse
from twinflower.simulation.tuning.validation import folds
from twinflower.sums.audit import replay_sums

SIZES = (60, 47, 60, 53, 60, 60, 41, 60)  # of the clients of `small`
RANGE = Range(0.0, 3.0)
CLASSES = 10


def weighted(variant, weights="random", public=RANGE, **keys):
    """A run of this variant on digits with weights: random ones, None for none, or an array."""
    plain, rows = small(variant, **keys), sum(SIZES)
    if isinstance(weights, str):
        weights = np.random.default_rng(7).uniform(public.low, public.high, rows)
    data = replace(
        plain.dataset, features=np.asarray(plain.dataset.features)[:rows], labels=plain.dataset.labels[:rows],
        sites=SIZES, row_weights=weights, weight_range=None if weights is None else public,
    )  # fmt: skip
    return prepare_rows(plain.config, data)


# ------------------------------------------------------------------------------------- what a weight means

MODELS = {name: 0 if not loss.classifies else 2 if name == "logistic" else 3 for name, loss in LOSSES.items()}


def model_of(name, heaviest=None, **settings):
    if name.startswith("cox-"):
        plain = make_model("discrete-cox", 4, 0, intervals="1, 2, 4", link=name[4:], **settings)
    else:
        plain = make_objective(name, 4, MODELS[name], **settings)
    return plain if heaviest is None else with_weights(plain, name, heaviest)


def rows_of(name, count, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 4))
    if name.startswith("cox-"):
        return Batch(features, rng.uniform(0.1, 5, count) * rng.choice([-1, 1], count))
    if name == "poisson":
        return Batch(features, rng.integers(6, size=count).astype(float))
    return Batch(features, rng.integers(MODELS[name], size=count) if MODELS[name] else rng.normal(size=count))


every_model = pytest.mark.parametrize("name", [*MODELS, "cox-logit", "cox-cloglog"])
clipped = pytest.mark.parametrize("clip", [0.0, 0.7])


@every_model
@clipped
def test_weights_of_1_change_no_bit(name, clip):
    rows, settings = rows_of(name, 9), {"l2": 0.1, "clip_norm": clip}
    own, plain = model_of(name, 1.0, **settings), model_of(name, **settings)
    x, ones = np.random.default_rng(1).normal(size=plain.d), np.ones(9)
    uneven = np.random.default_rng(2).dirichlet(np.ones(9))
    for dtype in (np.float64, np.float32):
        labels = rows.labels if rows.labels.dtype.kind == "i" else rows.labels.astype(dtype)
        for weights in (None, uneven.astype(dtype)):
            batch = Batch(rows.features.astype(dtype), labels, weights)
            with_ones, at = batch._replace(row_weights=ones.astype(dtype)), x.astype(dtype)
            assert own.value(at, with_ones) == plain.value(at, batch)
            assert_array_equal(own.grad(at, with_ones, 0.3), plain.grad(at, batch, 0.3))
            assert own.grad(at, with_ones, 0.3).dtype == dtype


@every_model
@clipped
def test_a_whole_weight_is_so_many_rows_and_0_is_none(name, clip):
    """The mean is over the number of rows, not over the sum of the weights."""
    rows, weights = rows_of(name, 12), np.array([0, 1, 2, 3] * 3)
    copies = np.repeat(np.arange(12), weights)
    many = Batch(rows.features[copies], rows.labels[copies])
    own, plain = model_of(name, 3.0, clip_norm=clip), model_of(name, clip_norm=clip)
    x, rows = np.random.default_rng(1).normal(size=plain.d), rows._replace(row_weights=weights.astype(float))
    assert_allclose(12 * own.value(x, rows), len(copies) * plain.value(x, many))
    assert_allclose(12 * own.grad(x, rows), len(copies) * plain.grad(x, many), rtol=1e-9, atol=1e-10)
    assert_array_equal(own.score(x, rows), plain.score(x, rows))  # counts rows


@pytest.mark.parametrize(
    "name", ["logistic", "softmax", "least-squares", "poisson", "cox-logit", "cox-cloglog"]
)
def test_an_information_matrix_is_that_of_so_many_rows(name):
    rows, weights, own = rows_of(name, 12), np.array([0, 1, 2, 3] * 3), model_of(name, 3.0)
    copies = np.repeat(np.arange(12), weights)
    x = np.random.default_rng(1).normal(size=own.d)
    plain = [Batch(rows.features[[row]], rows.labels[[row]]) for row in range(12)]
    found = Information.of(own, x, rows._replace(row_weights=1.0 * weights))
    many = Information.together(Information.of(model_of(name), x, plain[row]) for row in copies)
    each = [Information.of(model_of(name), x, row) for row in plain]
    for part in ("loss", "gradient", "matrix"):
        assert_allclose(getattr(found, part), getattr(many, part), rtol=1e-9, atol=1e-10)
    outer = sum(w**2 * one.outer for w, one in zip(weights, each, strict=True))
    assert_allclose(found.outer, outer, rtol=1e-9, atol=1e-10)
    assert (found.rows, many.rows) == (12, 18)
    none = Information.of(own, x, rows._replace(row_weights=np.zeros(12)))
    assert none.bounding == (12 if name == "least-squares" else 0)  # a row of weight 0 is no event


@pytest.mark.parametrize("name", ["absolute", "huber", "logistic"])
def test_the_reference_optimum_is_that_of_so_many_rows(name):
    rows, weights = rows_of(name, 13), np.array([0, 1, 2, 3] * 3 + [1])
    copies = np.repeat(np.arange(13), weights)
    many = Batch(rows.features[copies], rows.labels[copies], np.full(len(copies), 1 / 13))
    settings = {} if name == "absolute" else {"l2": 0.1}
    own = minimise(
        model_of(name, 3.0, **settings), Zero(), rows._replace(row_weights=1.0 * weights), np.zeros(4)
    )
    assert_allclose(
        own, minimise(model_of(name, **settings), Zero(), many, np.zeros(4)), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("variant", ["fedpdm-private", "bsdp-rows", "fedavg", "zcdp-nfl-private"])
def test_a_run_with_weights_of_1_is_the_run_without(variant):
    runs = [weighted(variant, own, Range(0.0, 1.0)) for own in (np.ones(sum(SIZES)), None)]
    own, plain = cohort.train(runs[:1])[0], cohort.train(runs[1:])[0]
    assert_array_equal(own.model, plain.model)
    assert own.rows[-1]["objective"] == plain.rows[-1]["objective"]


def test_twice_the_weights_at_half_the_step_size_are_the_same_run():
    weights = np.random.default_rng(0).uniform(0, 1, sum(SIZES))
    keys = {"objective__l2": 0.0, "regulariser__name": "none"}
    one = weighted("fedavg", weights, fedavg__step_size=0.4, **keys)
    two = weighted("fedavg", 2 * weights, fedavg__step_size=0.2, **keys)
    assert_array_equal(cohort.train([one])[0].model, cohort.train([two])[0].model)


# ----------------------------------------------------------------------------------------- what it costs


@every_model
def test_the_largest_weight_is_a_factor_of_the_bounds(name):
    for settings in ({}, {"clip_norm": 0.3}):
        if not math.isfinite(model_of(name).loss.slope_bound) and not settings:
            continue
        own, plain = (model_of(name, heaviest, **settings).bounds(0.7) for heaviest in (4.0, None))
        assert (own.gradient, own.curvature) == (4 * plain.gradient, 4 * plain.curvature)
        assert (own.penalty, own.weight, plain.weight) == (plain.penalty, 4.0, 1.0)
    if name == "logistic":  # weights of classes are a factor besides
        both = make_model(name, 4, 2, class_weights="1,5")
        assert with_weights(both, name, 4.0).bounds(0.7).gradient == 20 * model_of(name).bounds(0.7).gradient
    by_batch = model_of(name, 4.0, clip_norm=1e-3, clip="batch").bounds(0.7)
    assert by_batch.gradient == 1e-3


def attained(objective, data, neighbour, mode, steps):
    """The largest share of a sensitivity that a release of FedAvg moves by."""
    algorithm = FedAvg(step_size=0.2, privacy=mode)
    start = np.zeros(objective.d)
    start[0] = 1e3
    inbox = algorithm.broadcast(algorithm.init_server(start, 1, np.array(0, np.uint64)), 1, np.array(0))
    schedule = LocalSchedule(0, steps)
    moves = replay(algorithm, objective, data, neighbour, schedule, objective.bounds(1.0), [inbox] * 3)
    assert all(move.agrees for move in moves)
    return max(move.moved / move.sensitivity for move in moves)


@pytest.mark.parametrize("clip", [0.0, 0.4])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("mode", ["public-state", "gradient"])
def test_replay_attains_the_sensitivity_and_never_exceeds_it(mode, steps, clip):
    """The heaviest record is replaced by one that is nearly its negative; then by one of any other weight."""
    objective = with_weights(make_objective("logistic", 4, 2, clip_norm=clip), "logistic", 5.0)
    data, other = neighbours(12, 4, 1.0, weight=5.0)
    lighter = np.random.default_rng(0).uniform(0, 5, 12)
    for weight in (0.0, 2.0, 5.0):
        weights = np.where(np.arange(12) == 0, weight, lighter)
        own = data._replace(row_weights=np.where(np.arange(12) == 0, 5.0, lighter))
        assert attained(objective, own, other._replace(row_weights=weights), mode, steps) <= 1 + 1e-9
    most = attained(objective, data, other, mode, steps)
    assert most <= 1 + 1e-9
    if steps == 1 or mode == "gradient":
        assert most >= 0.99


def test_without_the_factor_the_replay_would_fail():
    plain = make_objective("logistic", 4, 2)
    objective = with_weights(plain, "logistic", 5.0)
    data, other = neighbours(12, 4, 1.0, weight=5.0)
    algorithm, start = FedAvg(step_size=0.2, privacy="gradient"), 1e3 * np.eye(4)[0]
    inbox = algorithm.broadcast(algorithm.init_server(start, 1, np.array(0, np.uint64)), 1, np.array(0))
    (move,) = replay(algorithm, objective, data, other, LocalSchedule(0, 1), plain.bounds(1.0), [inbox])
    assert move.moved >= 4.9 * move.sensitivity


def test_replay_of_sums_attains_the_sensitivity():
    objective = with_weights(make_objective("logistic", 4, 2), "logistic", 5.0)
    (data, other), start = neighbours(12, 4, 1.0, weight=5.0), 1e3 * np.eye(4)[0]
    algorithm = FedAvg(step_size=0.2, privacy="public-state")
    moves = replay_sums(
        algorithm, objective, [data] * 3, other, LocalSchedule(0, 1), objective.bounds(1.0), 2, start=start
    )
    shares = [move.moved / move.sensitivity for move in moves]
    assert 0.99 <= shares[0] <= max(shares) <= 1 + 1e-9


@pytest.mark.parametrize("link", ["logit", "cloglog"])
def test_replacing_a_person_of_a_survival_model_stays_within_the_sensitivity(link):
    objective = model_of(f"cox-{link}", 5.0, clip_norm=0.0 if link == "logit" else 1.0)
    rng, most = np.random.default_rng(3), 0.0
    bound = 2 * objective.bounds(1.0).gradient / 6
    for _ in range(300):
        rows = rows_of(f"cox-{link}", 6, int(rng.integers(2**31)))
        features = rows.features / np.linalg.norm(rows.features, axis=1, keepdims=True)
        weights, x = np.where(np.arange(6) == 0, 5.0, 1.0), 30 * rng.normal(size=objective.d)
        own = Batch(features, rows.labels, row_weights=weights)
        turned = own._replace(features=np.concatenate([-features[:1], features[1:]]))
        gone = own._replace(row_weights=np.ones(6) * (np.arange(6) > 0))
        changes = [turned, gone, own._replace(labels=np.concatenate([-rows.labels[:1], rows.labels[1:]]))]
        moved = [np.linalg.norm(objective.grad(x, own) - objective.grad(x, other)) for other in changes]
        most = max(most, *moved)
    assert 0.5 * bound < most <= bound * (1 + 1e-9)


def test_a_private_client_clips_weights_and_says_nothing():
    """NaN counts 0; neither an error nor the shape of the reply depends on a weight."""
    setup = weighted("fedpdm-private")
    rows = setup.shards.rows(0)
    wild = rows.row_weights.copy()
    wild[:5] = np.nan, -1.0, 1e300, np.inf, 3.0 + 1e-9
    guard = setup.plan.guard(0, None, row_norm=setup.row_norm)
    found = guard.admitted(rows._replace(row_weights=wild))
    assert_array_equal(found.row_weights[:5], [0.0, 0.0, 3.0, 3.0, 3.0])
    assert_array_equal(found.row_weights[5:], rows.row_weights[5:])
    assert guard.admitted(rows) is rows
    pairs = dict(setup_case("ours", setup).pairs)
    light, heavy = pairs["its first row far heavier than allowed"]
    assert light.row_weights[0] == 0.0 and heavy.row_weights[0] == 3000.0
    assert all(own.row_weights is not None for pair in pairs.values() for own in pair)


@pytest.mark.slow
def test_an_attack_comes_close_to_the_claim_of_a_run_with_weights_and_never_exceeds_it():
    keys = {"data.name": "breast-cancer", "objective.name": "logistic", "clients.count": 4, "rounds": 2}
    private = {
        "epsilon": 1.0,
        "privacy.mode": "public-state",
        "local.max-steps": 2,
        "step-size": 0.4,
        "rho": 0.5,
    }
    plain = prepare(parse(keys, private))
    own, rows = plain.dataset, 4 * (len(plain.dataset.labels) // 4)
    data = replace(
        own, features=own.features[:rows], labels=own.labels[:rows], sites=(rows // 4,) * 4,
        row_weights=np.random.default_rng(0).uniform(0, 3, rows), weight_range=RANGE,
    )  # fmt: skip
    effort = audit.Effort(trying=30, learning=90, counting=200, certain=20, most=3000)
    report = audit.audit_case(setup_case("ours", prepare_rows(plain.config, data)), effort)
    assert not report.alarms, report.text()
    assert report.ratio > 0.8


# --------------------------------------------------------------------------- that nothing ignores a weight


@dataclass(frozen=True, eq=False)
class Transcribed(LinearModel):
    """The weighted objective in another way: labels are y + classes * row, and a table has the weight of every row.

    Rows are batches of one row each, whose gradients are multiplied and added up. It takes from the package only the
    objective without weights.
    """

    table: np.ndarray | None = None
    classes: int = CLASSES

    @property
    def one(self):
        return LinearModel(self.loss, self.outputs, self.num_features, clip_norm=self.clip_norm, clip="rows")

    def check_rows(self, rows):
        pass

    def decoded(self, rows):
        return rows._replace(labels=(rows.labels % self.classes).astype(rows.labels.dtype))

    def losses(self, x, rows):
        values = self.one.losses(x, self.decoded(rows))
        return values * self.table[rows.labels // self.classes]

    def grad(self, x, rows, scale=1.0):
        own = self.decoded(rows)
        grads = self.one.grad(x[..., None, :], Batch(own.features[..., None, :], own.labels[..., None]))
        share = (
            np.full(rows.labels.shape, 1 / rows.labels.shape[-1]) if rows.weights is None else rows.weights
        )
        share = share * self.table[rows.labels // self.classes]
        return self.full_grad((share[..., None] * grads).sum(-2) * scale, x, scale)

    def compared(self, x, rows):
        return super().compared(x, self.decoded(rows))

    def score(self, x, rows):
        return super().score(x, self.decoded(rows))


def transcribed(setup):
    """The same run, in which labels carry the rows and the objective looks up their weights."""
    data, plain = setup.dataset, setup.objective
    coded = data.labels + CLASSES * np.arange(len(data.labels))
    own = Transcribed(
        plain.loss, plain.outputs, plain.num_features, l2=plain.l2, nonconvex=plain.nonconvex,
        clip_norm=plain.clip_norm, clip=plain.clip, table=data.row_weights,
    )  # fmt: skip
    data = replace(
        data,
        labels=coded,
        num_classes=CLASSES * len(coded),
        row_weights=None,
        weight_range=None,
        class_names=(),
    )
    return replace(setup, objective=own, dataset=data)


ON_LINEAR = [
    name
    for name, keys in VARIANTS.items()
    if not (ALGORITHMS[keys["algorithm"]].constrained or ALGORITHMS[keys["algorithm"]].sends_sums)
]  # test_newton.py compares sums of weighted rows with statsmodels


@pytest.mark.parametrize("variant", ON_LINEAR)
def test_no_method_and_no_message_loses_a_weight(variant):
    setup = weighted(variant)
    (arrays,), (slow,) = cohort.train([setup]), cohort.train([transcribed(setup)])
    wired = inprocess.train(setup)
    assert not arrays.failure + slow.failure + wired.failure
    assert_allclose(arrays.model, slow.model, rtol=1e-8, atol=1e-10)
    assert_allclose(arrays.model, wired.model, rtol=1e-8, atol=1e-10)
    last = arrays.rows[-1], slow.rows[-1]
    assert last[0]["objective"] == pytest.approx(last[1]["objective"], rel=1e-9)


def test_folds_keep_the_weights():
    setup = weighted("fedavg")
    for own, held in folds(setup, 4):
        whole = np.concatenate([own.central._training.row_weights, held.row_weights])
        assert_allclose(np.sort(whole), np.sort(setup.dataset.row_weights))


def test_an_objective_and_rows_of_which_only_one_has_weights_are_refused():
    rows = rows_of("logistic", 6)
    heavy = rows._replace(row_weights=np.ones(6))
    for objective, batch in ((model_of("logistic", 1.0), rows), (model_of("logistic"), heavy)):
        with pytest.raises(SettingError, match="rows with weights need an objective with their largest"):
            objective.grad(np.zeros(4), batch)
        with pytest.raises(SettingError, match="rows with weights need an objective with their largest"):
            next(rounds(FedAvg(), Problem(objective, Shards.site(batch, 0), np.zeros(4)), LocalSchedule(), 1))
        for given in (batch, Shards.site(batch, 0)):
            with pytest.raises(SettingError, match="rows with weights need an objective with their largest"):
                CLIENTS["fedavg"](
                    Context(1, 1, {}, RecordDict(), {}), FedAvg(), objective, given, np.zeros(4), 0, 1
                )


@pytest.mark.parametrize("name", ["stratified-cox", "swish-network", "torch:model.py:Net"])
def test_objectives_without_weights_are_refused(name):
    objective = make_model(name, 4, 0 if "cox" in name else 3) if "torch" not in name else object()
    with pytest.raises(SettingError, match=f"softmax, .*discrete-cox.; got '{name}'"):
        with_weights(objective, name, 2.0)


@pytest.mark.parametrize("variant", ["ssca-constrained", "fedsgm"])
def test_constraints_on_mean_losses_are_refused(variant):
    with pytest.raises(
        SettingError, match=f"{variant} bounds mean losses, which rows with weights would change"
    ):
        weighted(variant, objective__name="softmax")


@pytest.mark.parametrize(
    ("weights", "public", "why"),
    [
        (np.ones(3), RANGE, r"row_weights must have shape \(441,\); got \(3,\)"),
        (np.full(sum(SIZES), np.nan), RANGE, "row_weights must be from 0 to 3"),
        (np.full(sum(SIZES), 3.5), RANGE, "row_weights must be from 0 to 3"),
        (np.ones(sum(SIZES)), Range(-1.0, 3.0), "row_weights need weight_range, from 0 on"),
    ],
)
def test_a_data_set_checks_its_weights(weights, public, why):
    with pytest.raises(DataError, match=why):
        weighted("fedavg", weights, public)
