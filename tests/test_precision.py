"""Runs in single precision: every number is a float32, from the rows to the model, and close to that of doubles."""

from dataclasses import replace

import numpy as np
import pytest
from cuts import PowerCut, cut_off
from flwr.app import Context, RecordDict
from grids import over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from problems import VARIANTS, one_of_each, public, random_shards, run, small, state_of

import twinflower
from twinflower.algorithms.feddyn import FedDyn
from twinflower.algorithms.fedpdm import FedPDM
from twinflower.algorithms.messages import mean_of_senders, mean_over_clients
from twinflower.algorithms.scaffold import Scaffold
from twinflower.clients import CLIENTS, ContextLedger, FedPDMClient
from twinflower.clients.records import record_of
from twinflower.errors import ReplyError, SettingError
from twinflower.norms import norms, outer_norms
from twinflower.privacy.guard import Guard
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective
from twinflower.problems.penalties import make_regulariser
from twinflower.rounds import Problem, rounds
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.client_factory import client_of, guard_of
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.cohort import Cohort
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import strategy_of
from twinflower.simulation.settings import parse

EPSILON = float(np.finfo(np.float32).eps)
STEPS = 15  # at most, of a client in these runs
CLOSE = {"rtol": 8 * STEPS * EPSILON, "atol": 8 * STEPS * EPSILON}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def single(variant, **keys):
    return public(variant, precision="single", **keys)


def doubles(tree, name=""):
    """The fields of nested NamedTuples that hold doubles."""
    for field, part in zip(tree._fields, tree, strict=True):
        if isinstance(part, tuple):
            yield from doubles(part, f"{name}{field}.")
        elif np.asarray(part).dtype == np.float64:
            yield f"{name}{field}"


def test_rows_and_the_starting_point_are_single():
    setup = single("fedpdm", start_scale=0.1)
    data, (classic,) = setup.dataset, {public("fedpdm", start_scale=0.1).start.dtype}
    assert {a.dtype for a in (data.features, data.test_features, setup.start)} == {np.dtype(np.float32)}
    assert (data.labels.dtype, classic) == (np.int64, np.float64)
    regression = prepare(parse({"data.name": "linear", "objective.name": "huber", "precision": "single"}))
    assert regression.dataset.labels.dtype == regression.dataset.test_labels.dtype == np.float32


@every_variant
def test_a_cohort_computes_in_single_precision_only(variant):
    """Relays sum messages over all rounds, of which they take differences; these sums alone are doubles."""
    setup = single(variant)
    for at in Cohort([setup]).rounds(5):
        inbox = setup.algorithm.broadcast(at.server, at.round + 1, np.array([0, 1]))
        found = [*doubles(at.states.all()), *doubles(at.uploads), *doubles(inbox), *doubles(at.server)]
        assert not {*found} - {"total"}
        assert setup.algorithm.model(at.server).dtype == np.float32


@pytest.mark.parametrize("keys", [
    {"batch-size": 0},
    {"objective.name": "sigmoid-network", "clip-norm": 1.0},
    {"objective.name": "swish-network", "batch-size": 0, "nonconvex": 0.01},
    {"clip-norm": 0.5, "clip": "batch"},
])  # fmt: skip
def test_clients_of_different_sizes_compute_in_single_precision_only(keys):
    """Their batches are padded with rows of weight 0."""
    uneven = {"partition.name": "dirichlet", "partition.dirichlet-alpha": 1.0}
    setups = [public("fedpdm", precision=precision, **keys, **uneven) for precision in ("single", "double")]
    ours, theirs = (next(Cohort([setup]).rounds(1)) for setup in setups)
    assert not [*doubles(ours.states.all()), *doubles(ours.uploads), *doubles(ours.server)]
    assert_allclose(ours.server.x0, theirs.server.x0, **CLOSE)


def test_a_graph_that_loses_a_client_stays_single():
    setup = single("zcdp-nfl", clients__per_round=0, dead_after=2)
    problem = Problem(setup.objective, setup.shards, setup.start)
    lost = {"lost": lambda round_, clients: clients == 2}
    *_, end = rounds(setup.algorithm, problem, setup.schedule, 5, **lost)
    assert setup.algorithm.server_metrics(end.server)["alive"] == 7
    assert not {*doubles(end.server)} - {"total"}
    assert setup.algorithm.model(end.server).dtype == np.float32
    assert setup.algorithm.client_models(end.server).dtype == np.float32


@pytest.mark.parametrize("train", [inprocess.train, lambda setup: cohort.train([setup])[0]])
def test_the_sites_evaluate_in_single_precision(train):
    ours, theirs = (
        train(public("fedpdm", precision=p, evaluation__held_out=0.2)) for p in ("single", "double")
    )
    for row, other in zip(ours.rows, theirs.rows, strict=True):
        assert_allclose(row["held_out_loss"], other["held_out_loss"], **CLOSE)


@every_variant
def test_messages_and_kept_states_are_single(variant):
    setup = single(variant)
    grid, strategy = InProcessGrid(setup), strategy_of(setup)
    strategy.start(grid, record_of([setup.start]), num_rounds=5)
    assert not {*doubles(strategy.server)} - {"total"}
    for node in grid.contexts:
        if len(grid.contexts[node].state):
            assert not [*doubles(state_of(grid.client(node)))]


@every_variant
def test_the_wire_holds_half_the_bits_of_doubles(variant):
    """Numbers take 32 bits, and what is counted is what is sent; indices, counts and seeds are as in doubles."""
    bits = []
    for setup in (single(variant), public(variant)):
        algorithm, d, dtype = setup.algorithm, setup.objective.d, setup.start.dtype
        server = algorithm.init_server(setup.start, 8, np.array(0, np.uint64))
        inbox = algorithm.broadcast(server, 1, np.array(1))
        request = algorithm.inbox.pack(inbox, d)
        reply, _, _ = client_of(setup, 1, Context(1, 1, {}, RecordDict(), {})).fit(request, {"round": 1})
        algorithm.upload.unpack(reply, d, inbox, dtype)
        for layout, arrays in ((algorithm.inbox, request), (algorithm.upload, reply)):
            assert 0 <= sum(8 * a.nbytes for a in arrays) - layout.bits(d, dtype) < 8
            floats = sum(a.size for a in arrays if a.dtype == dtype)
            bits.append((layout.bits(d, dtype), floats))
    for (ours, floats), (others, same) in zip(bits[:2], bits[2:], strict=True):
        assert floats == same
        assert others - ours == 32 * floats


@pytest.mark.parametrize("variant", one_of_each(VARIANTS))
def test_the_runtimes_agree(variant):
    """In process to the bit with what goes over the wire, and as a cohort to rounding."""
    setup = single(variant)
    fast, exact = inprocess.train(setup), over_the_wire(setup)
    (stacked,) = cohort.train([setup])
    assert_array_equal(fast.model, exact.model)
    assert fast.model.dtype == stacked.model.dtype == np.float32
    assert_allclose(stacked.model, fast.model, **CLOSE)
    assert np.any(fast.model)
    for row, other in zip(fast.rows, stacked.rows, strict=True):
        assert_allclose(row["objective"], other["objective"], **CLOSE)
        assert [row[key] for key in ("uplink_bits", "downlink_bits")] == [
            other[key] for key in ("uplink_bits", "downlink_bits")
        ]


@pytest.mark.parametrize("variant", one_of_each(VARIANTS))
def test_single_is_double_to_its_precision(variant):
    (ours,), (theirs,) = cohort.train([single(variant)]), cohort.train([public(variant)])
    assert_allclose(ours.model, theirs.model, **CLOSE)
    for row, other in zip(ours.rows, theirs.rows, strict=True):
        assert_allclose(row["objective"], other["objective"], **CLOSE)
        assert type(row["objective"]) is type(row["test_accuracy"]) is float


@pytest.mark.parametrize("variant", one_of_each(VARIANTS))
def test_stacked_seeds_are_seeds_alone(variant):
    setups = [single(variant, seed=seed) for seed in (3, 4)]
    for setup, result in zip(setups, cohort.train(setups), strict=True):
        (alone,) = cohort.train([setup])
        assert result.model.dtype == np.float32
        assert_allclose(result.model, alone.model, **CLOSE)


RESUMED = pytest.mark.parametrize(
    "variant", ["fedpdm-memory-warm", "scaffold-rows", "zcdp-nfl-prox", "ssca-constrained"]
)


@RESUMED
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(variant, tmp_path):
    setup = single(variant, checkpoint_every=1)
    mine = setup.with_state_dir(tmp_path)
    assert cut_off(mine, tmp_path, 2 * setup.config.clients.sampled + 1, False, 1)
    result = inprocess.train(mine, checkpoints=Checkpoints(tmp_path, 1))
    assert result.model.dtype == np.float32
    assert_array_equal(result.model, inprocess.train(setup).model)


@RESUMED
def test_a_cohort_goes_on_to_the_same_bits(variant, tmp_path, capsys):
    setup, folder = single(variant), Checkpoints(tmp_path, 3)

    def stop(row):
        if row["round"] == 4:
            raise PowerCut

    with pytest.raises(PowerCut):
        cohort.train([setup], stop, folder)
    assert folder.rounds() == [0, 3]
    (resumed,), (whole,) = cohort.train([setup], None, folder), cohort.train([setup])
    assert "resumed after round 3" in capsys.readouterr().out
    assert_array_equal(resumed.model, whole.model)
    assert not {*doubles(resumed.server)} - {"total"}


@pytest.mark.parametrize(
    "objective", ["logistic", "softmax", "rowwise-logistic", "huber", "least-squares", "absolute"]
)
def test_every_loss_computes_in_the_precision_of_the_rows(objective):
    rng = np.random.default_rng(0)
    classes = 0 if objective in ("huber", "least-squares", "absolute") else 2
    labels = rng.integers(2, size=7) if classes else rng.normal(size=7).astype(np.float32)
    rows = Batch(rng.normal(size=(7, 4)).astype(np.float32), labels)
    model = make_objective(objective, 4, classes, l2=0.1, nonconvex=0.1, clip_norm=0.5)
    x = rng.normal(size=model.d).astype(np.float32)
    assert model.grad(x, rows).dtype == model.losses(x, rows).dtype == np.float32
    wide = Batch(rows.features.astype(float), rows.labels)
    assert_allclose(model.grad(x, rows), model.grad(x.astype(float), wide), rtol=1e-5, atol=1e-6)
    assert_allclose(model.value(x, rows), model.value(x.astype(float), wide), rtol=1e-6)


def test_evaluation_sums_in_double_precision():
    """A million losses near 1 lose no digits; their plain sum in single precision would."""
    rows = Batch(np.ones((10**6, 1), np.float32), np.zeros(10**6, np.float32), np.full(10**6, 1e-6))
    x = np.full(1, 1.1, np.float32)
    model = make_objective("least-squares", 1, 0)
    assert abs(model.value(x, rows) - float(x[0]) ** 2 / 2) <= EPSILON
    assert model.value(x, rows).dtype == np.float64


def test_means_over_clients_sum_in_double_precision():
    values = np.full((10**6, 2), 1.1, np.float32)
    assert_array_equal(mean_over_clients(values), values[0])
    sent = np.ones(values.shape, dtype=bool)
    for shares in (None, np.full(10**6, 1e-6)):
        found = mean_of_senders(values, sent, np.zeros(2, np.float32), shares)
        assert found.dtype == np.float64
        assert_allclose(found, values[0].astype(float), rtol=1e-10)
    assert (
        abs(np.add.accumulate(values[:, 0])[-1] / 1.1e6 - 1) > 100 * EPSILON
    )  # one after the other, as NumPy does


@pytest.mark.parametrize("length", [1e-36, 1e-25, 1.0, 1e25, 1e38])
def test_norms_are_safe_from_the_smaller_range(length):
    """Squares of the first two underflow and of the last two overflow."""
    vector = np.array([[3.0, 4.0]], np.float32) / 5 * np.float32(length)
    exact = np.linalg.norm(vector.astype(float))
    assert_allclose(norms(vector), exact, rtol=4 * EPSILON)
    outer = outer_norms((np.ones((1, 1), np.float32), norms(vector)))
    assert outer.dtype == np.float32
    assert outer == np.inf if exact > 2.0**100 else np.isclose(outer, exact, rtol=4 * EPSILON)


@pytest.mark.parametrize(("name", "settings"), [("box", {"bound": 0.3}), ("ball", {"radius": 0.3}),
                                                ("l1-box", {"weight": 0.1, "bound": 0.3})])  # fmt: skip
def test_a_projected_point_is_in_its_set(name, settings):
    h = make_regulariser(name, **settings)
    points = np.random.default_rng(0).normal(size=(200, 50)).astype(np.float32)
    inside = h.prox(points, 0.7)
    assert inside.dtype == np.float32
    assert np.isfinite(h.value(inside)).all()
    assert np.isinf(h.value(inside * np.float32(1.001))).all()
    assert not h.prox(np.zeros_like(points), 0.7).any()


def test_the_reference_optimum_is_a_double_and_the_distance_reaches_the_precision():
    keys = {"l2": 0.1, "rounds": 300, "evaluation.every": 300, "evaluation.reference": True}
    setup = single("proxskip", batch_size=0, step_size=1.0, **keys)
    assert setup.central.optimum.dtype == np.float64
    (result,) = cohort.train([setup])
    assert result.rows[-1]["distance"] < (100 * EPSILON) ** 2


@pytest.mark.parametrize(("keys", "message"), [
    ({"privacy.mode": "public-state", "epsilon": 5.0}, "precision must be double in a private run"),
    ({"privacy.mode": "as-published", "epsilon": 5.0}, "precision must be double in a private run"),
    ({"objective.name": "torch:net.py:net"}, "precision must be double with a PyTorch module"),
    ({"precision": "half"}, "precision must be one of double, single; got 'half'"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_sentence(keys, message):
    with pytest.raises(SettingError, match=message) as refused:
        prepare(parse({"precision": "single"} | keys))
    assert "\n" not in str(refused.value)


def client(start, guard=None):
    rows = Batch(np.eye(3, dtype=start.dtype), np.array([0, 1, 0]))
    algorithm = FedPDM(privacy="public-state" if guard else "none")
    objective = make_objective("logistic", 3, 2, clip_norm=1.0)
    return FedPDMClient(
        Context(1, 1, {}, RecordDict(), {}), algorithm, objective, rows, start, 0, 2, guard=guard
    )


def test_a_private_client_takes_doubles_only():
    plan = prepare(parse({"privacy.mode": "public-state", "epsilon": 5.0, "clip-norm": 1.0})).plan
    guard: Guard = plan.guard(0, None, seed=0)
    with pytest.raises(SettingError, match="a private client computes in double precision"):
        client(np.zeros(3, np.float32), guard)


def test_rows_of_another_precision_are_refused():
    rows = Batch(np.eye(3), np.zeros(3))
    algorithm, objective = FedPDM(), make_objective("huber", 3, 0)
    with pytest.raises(
        SettingError, match="start is float32, so features, real labels and weights must be, too"
    ):
        FedPDMClient(
            Context(1, 1, {}, RecordDict(), {}), algorithm, objective, rows, np.zeros(3, np.float32), 0, 2
        )


@pytest.mark.parametrize(("ours", "theirs"), [(np.float32, np.float64), (np.float64, np.float32)])
def test_a_message_of_the_other_precision_is_refused(ours, theirs):
    with pytest.raises(ReplyError, match=f"x0 must be {np.dtype(ours)}, got {np.dtype(theirs)}"):
        client(np.zeros(3, ours)).fit([np.zeros(3, theirs)], {"round": 1})


def test_a_saved_model_keeps_its_precision_and_predicts(tmp_path):
    setup = single("fedpdm")
    (result,) = cohort.train([setup])
    write_run(result, tmp_path)
    model = twinflower.load(tmp_path)
    assert model.x.dtype == np.float32
    assert_array_equal(model.x, result.model)
    rows = public("fedpdm").dataset.test_features[:, :-1]
    features = model.inputs.features(rows).astype(np.float32)
    assert_array_equal(model.predict(rows), setup.objective.predict(result.model, features))
    assert_allclose(model.predict_proba(rows).sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_a_client_computes_in_the_precision_of_its_start(dtype):
    """Also on rows of another type: the bounds of a private client are those of doubles."""
    setup = small("fedpdm-private")
    rows = setup.shards.rows(0)
    rows = rows._replace(features=(rows.features / 2).astype(dtype))
    context = Context(1, 1, {}, RecordDict(), {})
    guard = guard_of(setup, 0, ContextLedger(context.state), "1")
    kind = CLIENTS["fedpdm"]
    client = kind(context, setup.algorithm, setup.objective, rows, setup.start, 0, 8, guard=guard)
    assert client.shards.features.dtype == np.float64


@pytest.mark.parametrize("labels", [np.zeros(5), np.array([0, 1, 2, 3, 10]), np.array([-1, 0, 0, 0, 0])])
def test_labels_outside_the_classes_are_refused_before_any_round(labels):
    """One fixed sentence: it names no label, because it may leave the site."""
    setup = small("fedavg")
    rows = setup.shards.rows(0)
    wrong = Batch(rows.features[:5], labels)
    for held_out in (None, wrong):
        with pytest.raises(SettingError, match=r"^labels must be whole numbers of type int64 from 0 to 9$"):
            CLIENTS["fedavg"](
                Context(1, 1, {}, RecordDict(), {}), setup.algorithm, setup.objective,
                rows if held_out else wrong, setup.start, 0, 8, held_out=held_out,
            )  # fmt: skip


@pytest.mark.parametrize("algorithm", [Scaffold(step_size=0.5), FedDyn(step_size=0.5, alpha=0.5)])
def test_the_servers_sum_does_not_drift_from_the_clients_variables(algorithm):
    """In single precision, with 10 clients: 10 x0 rounded to single would add the same error in every round."""
    shards = random_shards([8] * 10, features=20, classes=2)
    shards = replace(shards, features=shards.features.astype(np.float32))
    objective = make_objective("logistic", num_features=20, num_classes=2)
    start = np.full(20, 0.1, np.float32)
    *_, end = run(algorithm, shards, objective, LocalSchedule(0, 1), 1500, start=start)
    tracked = end.server.control if isinstance(algorithm, Scaffold) else end.server.drift
    mean = end.states.after.mean(0, dtype=np.float64)
    assert tracked.dtype == np.float32
    assert np.abs(tracked - mean).max() < 10 * EPSILON * np.abs(end.states.after).max()
