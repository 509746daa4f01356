"""PyTorch modules as objectives: the same numbers as ours, a bound on every record, the same bits in every runtime."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from cuts import cut_off, equal
from grids import over_the_wire
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from problems import SMALL, VARIANTS, keywords

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed; `bash .ci/torch` installs it and runs these tests"
)

# ruff: noqa: E402
from flwr.app import Context, RecordDict
from torch import nn
from torch.nn import functional
from torch_models import layers

from twinflower.algorithms import ALGORITHMS, FedAvg, FedPDM, Scaffold
from twinflower.algorithms.algorithm import RunInfo
from twinflower.clients import FedAvgClient
from twinflower.errors import SettingError
from twinflower.known_objectives import make_model
from twinflower.norms import norms
from twinflower.privacy.audit import replay
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Batch, Bounds
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, Box, Subdifferentiable, on_part
from twinflower.simulation import cli
from twinflower.simulation.app.site import read_site
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.flower import engine
from twinflower.simulation.settings import parse
from twinflower.torch import ModuleObjective, batched
from twinflower.torch.parameters import to_point

FEW_ULPS = 1 + 2.0**-44
FEATURES, CLASSES, ROWS = 7, 3, 9
LEADS = [((), ()), ((4,), (4,)), ((4,), ()), ((), (4,)), ((2, 4), (2, 4)), ((2, 1), (4,)), ((1,), ())]


def module(*parts, dtype=torch.float64, seed=0):
    """Layers one after the other, with weights that a seed decides."""
    torch.manual_seed(seed)
    return nn.Sequential(*(part() for part in parts)).to(dtype)


def linear():
    return nn.Linear(FEATURES, CLASSES, bias=False)


def batch(lead=(), weighted=False, features=FEATURES, seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.random((*lead, ROWS)) * (rng.random((*lead, ROWS)) > 0.3) if weighted else None
    return Batch(rng.normal(size=(*lead, ROWS, features)), rng.integers(CLASSES, size=(*lead, ROWS)), weights)


def agree(ours, theirs, x, rows, **tolerance):
    """Value, gradient, losses, predictions and score of two objectives at a point."""
    for name in ("value", "grad", "losses", "score"):
        got, wanted = (getattr(f, name)(x, rows) for f in (theirs, ours))
        assert got.shape == np.shape(wanted) and got.dtype == np.float64, name
        assert_allclose(got, wanted, err_msg=name, **tolerance)
    assert_allclose(theirs.predict(x, rows.features), ours.predict(x, rows.features), rtol=1e-12)


# the same numbers as our own objectives


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "keys", [{}, {"l2": 0.1, "nonconvex": 0.2}, {"clip_norm": 0.3}, {"clip_norm": 0.2, "clip": "batch"}]
)
@pytest.mark.parametrize(("points", "clients"), LEADS)
def test_a_linear_module_is_softmax_regression(points, clients, keys, weighted):
    ours, theirs = (
        make_objective("softmax", FEATURES, CLASSES, **keys),
        ModuleObjective(module(linear), **keys),
    )
    x = np.random.default_rng(1).normal(size=(*points, ours.d))
    agree(ours, theirs, x, batch(clients, weighted), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "unit"), [("sigmoid-network", nn.Sigmoid), ("swish-network", nn.SiLU)])
@pytest.mark.parametrize("clip_norm", [0.0, 0.3])
@pytest.mark.parametrize(("points", "clients"), LEADS)
def test_a_module_of_two_layers_is_our_network(points, clients, name, unit, clip_norm):
    ours = make_model(name, FEATURES, CLASSES, hidden_units=5, clip_norm=clip_norm, l2=0.1)
    two = module(lambda: nn.Linear(FEATURES, 5, bias=False), unit, lambda: nn.Linear(5, CLASSES, bias=False))
    theirs = ModuleObjective(two, clip_norm=clip_norm, l2=0.1)
    assert theirs.shapes == ours.shapes
    x = np.random.default_rng(1).normal(size=(*points, ours.d))
    agree(ours, theirs, x, batch(clients, True), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "loss"),
    [("least-squares", lambda z, y: (z - y) ** 2 / 2), ("huber", nn.HuberLoss()), ("absolute", nn.L1Loss())],
)
def test_a_regression(name, loss):
    ours = make_objective(name, FEATURES, 0)
    theirs = ModuleObjective(module(lambda: nn.Linear(FEATURES, 1, bias=False)), loss, classifies=False)
    rng = np.random.default_rng(2)
    rows = Batch(rng.normal(size=(ROWS, FEATURES)), rng.normal(size=ROWS))
    agree(ours, theirs, rng.normal(size=FEATURES), rows, rtol=1e-10, atol=1e-12)


def test_a_single_output_classifies_by_its_sign():
    def loss(score, label):
        return functional.binary_cross_entropy_with_logits(score, label.to(score))

    theirs = ModuleObjective(module(lambda: nn.Linear(FEATURES, 1, bias=False)), loss)
    rows = batch()._replace(labels=np.arange(ROWS) % 2)
    agree(make_objective("logistic", FEATURES, 2), theirs, np.linspace(-1, 1, FEATURES), rows, rtol=1e-10)


@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_gradient_is_the_derivative_of_the_value_and_rows_count_one_by_one(clip_norm):
    """Of a CNN; clipped, the gradient is the mean of the rows' own, each cut."""
    objective = ModuleObjective(layers().double(), row_shape=(1, 8, 8), clip_norm=clip_norm)
    rng = np.random.default_rng(0)
    rows, x = Batch(rng.random((6, 64)), rng.integers(10, size=6)), objective.start()
    alone = np.array([objective.grad(x, Batch(a[None], y[None])) for a, y in zip(*rows[:2], strict=True)])
    assert_allclose(objective.grad(x, rows), alone.mean(0), rtol=1e-9, atol=1e-12)
    if not clip_norm:
        direction = rng.normal(size=objective.d)
        slope = (
            objective.value(x + 1e-6 * direction, rows) - objective.value(x - 1e-6 * direction, rows)
        ) / 2e-6
        assert_allclose(objective.grad(x, rows) @ direction, slope, rtol=1e-6)


@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_chunks_change_nothing_but_rounding(clip_norm):
    whole = ModuleObjective(layers().double(), row_shape=(1, 8, 8), clip_norm=clip_norm)
    rng = np.random.default_rng(0)
    rows = Batch(rng.random((3, 11, 64)), rng.integers(10, size=(3, 11)), rng.random((3, 11)))
    x = rng.normal(size=(3, whole.d))
    for chunk in (1, 4, 25):
        parts = replace(whole, chunk=chunk)
        assert_allclose(parts.value(x, rows), whole.value(x, rows), rtol=1e-12)
        assert_allclose(parts.grad(x, rows), whole.grad(x, rows), rtol=1e-9, atol=1e-12)


def test_gradients_are_clipped_in_doubles_that_stay_in_the_cache(monkeypatch):
    """A few rows at a time, to the same sum: doubles of all of them take longer to write than to compute."""
    objective, seen = ModuleObjective(layers(), row_shape=(1, 8, 8), clip_norm=0.3), []
    rng = np.random.default_rng(0)
    rows = Batch(rng.random((200, 64)), rng.integers(10, size=200))
    known = objective.grad(objective.start(), rows)

    def noted(tensor):
        seen.append(tensor.numel())
        return to_point(tensor)

    monkeypatch.setattr(batched, "to_point", noted)
    monkeypatch.setattr(batched, "_IN_CACHE", 7 * objective.d)
    assert_allclose(objective.grad(objective.start(), rows), known, rtol=1e-9, atol=1e-12)
    assert max(seen) == 7 * objective.d


@pytest.mark.parametrize("chunk", [1, 4, 25])
def test_no_more_rows_are_computed_at_once_than_the_chunk(chunk, monkeypatch):
    """Whatever the clients and rows: counted where the gradients of all records come out."""
    objective, seen = ModuleObjective(module(linear), clip_norm=0.3, chunk=chunk), []
    monkeypatch.setattr(
        batched, "norms", lambda grads: seen.append(grads.size // objective.d) or norms(grads)
    )
    objective.grad(np.zeros((5, objective.d)), batch((5,)))
    assert max(seen) <= chunk
    assert sum(seen) == 5 * ROWS


def test_a_float32_module_gives_doubles_near_those_of_its_double():
    single, double = (module(linear, dtype=t) for t in (torch.float32, torch.float64))
    x = np.random.default_rng(1).normal(size=(2, FEATURES * CLASSES))
    for clip_norm in (0.0, 0.3):
        one, two = (ModuleObjective(m, clip_norm=clip_norm) for m in (single, double))
        for name in ("grad", "value"):
            got, wanted = (getattr(f, name)(x, batch((2,))) for f in (one, two))
            assert got.dtype == np.float64
            assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


# a bound on every record


@pytest.mark.parametrize("rows", [13, 41])
def test_a_record_moves_a_single_precision_module_by_no_more_than_its_bound(rows):
    """Weights of 1 / b are not rounded to single precision, in which some are larger."""
    objective = ModuleObjective(nn.Linear(1, 2, bias=False), clip_norm=1.0)
    schedule = LocalSchedule(8, 1, fresh=False)
    load = schedule.workload(rows)
    for record in range(rows):
        grads = []
        for label in (0, 1):
            labels = np.where(np.arange(rows) == record, label, 0)
            shards = Shards.of([(np.full((rows, 1), 1e4), labels)])
            batches = [own for t in range(1, load.per_epoch + 1) for own in schedule.batches(shards, 0, 0, t)]
            grads.append([objective.grad(np.array([0.0, 0.0]), own) for own in batches])
        moved = np.linalg.norm(np.subtract(*grads), axis=1).max()
        assert 1 - 1e-10 < moved * load.rows / 2 < 1 + 1e-12


LAYERS = {
    "linear": lambda n: [nn.Linear(n, 3)],
    "tanh": lambda n: [nn.Linear(n, 4), nn.Tanh(), nn.Linear(4, 3)],
    "relu": lambda n: [nn.Linear(n, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)],
    "norm": lambda n: [nn.Linear(n, 4), nn.LayerNorm(4), nn.SiLU(), nn.Linear(4, 3)],
    "conv": lambda n: [
        nn.Unflatten(1, (1, n)),
        nn.Conv1d(1, 2, 2),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(2 * (n - 1), 3),
    ],
}
numbers = st.one_of(
    st.floats(-3, 3, width=32),
    st.builds(lambda sign, power: sign * 10.0**power, st.sampled_from([-1, 1]), st.floats(-320, 308)),
    st.sampled_from([0.0, math.inf, -math.inf, math.nan]),
)


@settings(max_examples=50)
@given(
    kind=st.sampled_from(sorted(LAYERS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    features=arrays(float, (4, 4), elements=numbers),
    labels=arrays(np.int64, 4, elements=st.integers(0, 2)),
    scale=st.floats(-3, 30),
    power=st.floats(-6, 3),
    seed=st.integers(0, 5),
)
def test_no_records_gradient_exceeds_clip_norm(kind, dtype, features, labels, scale, power, seed):
    """Of random modules at points of any size, and of rows that hold anything; never an error, never NaN."""
    bound = 10.0**power
    torch.manual_seed(seed)
    objective = ModuleObjective(nn.Sequential(*LAYERS[kind](4)).to(dtype), clip_norm=bound)
    x = objective.start() * 10.0**scale
    for row, label in zip(features, labels, strict=True):
        assert math.hypot(*objective.grad(x, Batch(row[None], label[None]))) <= bound * FEW_ULPS
    assert math.hypot(*objective.grad(x, Batch(features, labels))) <= bound * FEW_ULPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("other", [0.0, 1e30, math.nan, math.inf])
def test_a_replaced_record_changes_no_other_records_gradient(dtype, other):
    """To the bit: what the noise must cover is the replaced record's gradient alone."""
    objective = ModuleObjective(layers().to(dtype), row_shape=(1, 8, 8), clip_norm=0.5)
    rng, seen = np.random.default_rng(0), []
    rows = Batch(rng.random((20, 64)), rng.integers(10, size=20))
    replaced = rows._replace(features=np.where(np.arange(20)[:, None] == 7, other, rows.features))
    for each in (rows, replaced):
        work = objective._batched._work(objective.start(), each)
        seen.append(objective._functions.row_grads(*work.tensors))
    there = np.arange(20) != 7
    assert_array_equal(*(np.asarray(g)[there] for g in seen))
    moved = objective.grad(objective.start(), rows) - objective.grad(objective.start(), replaced)
    assert np.linalg.norm(moved) <= 2 * 0.5 / 20 * FEW_ULPS


def test_bounds_say_what_is_known():
    objective = ModuleObjective(module(linear), clip_norm=0.7, l2=0.1)
    assert objective.bounds(0.0) == objective.bounds(1.0) == Bounds(0.7, math.inf, (0.1, 0.1))
    with pytest.raises(SettingError, match="no public bound: set objective.clip-norm .* above 0"):
        ModuleObjective(module(linear)).bounds(1.0)
    algorithm = FedPDM(regulariser=L1(0.1), rho=0.5, step_size=0.4, privacy="public-state")
    bounds, one = (
        objective.bounds(1.0),
        algorithm.release(objective.bounds(1.0), LocalSchedule(0, 1).workload(50), 1),
    )
    assert one.sensitivity == pytest.approx(2 * 0.7 * 0.4 / 50)  # needs no curvature
    three = algorithm.release(bounds, LocalSchedule(0, 3).workload(50), 1)
    assert three.sensitivity > 2 * 0.7 * 0.4  # the bound that does not fall with the rows
    noisy = replace(algorithm, privacy="gradient")
    assert noisy.release(bounds, LocalSchedule(0, 3).workload(50), 1) == (2 * 0.7 / 50, 3, 1.0)


@pytest.mark.parametrize(
    ("privacy", "schedule"),
    [
        ("public-state", LocalSchedule(0, 1)),
        ("public-state", LocalSchedule(5, 3)),
        ("gradient", LocalSchedule(5, 6)),
    ],
)
@pytest.mark.parametrize("algorithm_class", [FedPDM, Scaffold])
def test_no_release_of_a_module_moves_by_more_than_its_sensitivity(algorithm_class, privacy, schedule):
    """A record is replaced, by one that overflows float32 too, and every release is compared."""
    objective = ModuleObjective(layers(), row_shape=(1, 8, 8), clip_norm=0.5)
    algorithm, rng = algorithm_class(step_size=0.4, privacy=privacy), np.random.default_rng(0)
    server, data = algorithm.init_server(objective.start(), 1, np.array(0, np.uint64)), digits_like(rng)
    inboxes = [algorithm.broadcast(server, round_, np.array(0)) for round_ in range(1, 7)]
    for entry in (-1.0, 1e300):
        other = data._replace(
            features=data.features.copy(), labels=(data.labels + 3 * (np.arange(20) == 7)) % 10
        )
        other.features[7] *= entry
        moves = replay(algorithm, objective, data, other, schedule, objective.bounds(0.0), inboxes)
        assert all(move.agrees for move in moves)
        ratios = [move.moved / move.sensitivity for move in moves]
        assert 0.02 < max(ratios) <= 1 + 1e-9, ratios


def digits_like(rng):
    return Batch(rng.random((20, 64)), rng.integers(10, size=20))


# state dicts and named parameters


class Tied(nn.Module):
    """Two layers with one weight, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, rows):
        return self.last(torch.tanh(self.first(rows))) * self.scale


@pytest.mark.parametrize("make", [layers, Tied])
def test_a_state_dict_comes_back(make, tmp_path):
    torch.manual_seed(3)
    mine, other = make(), make()
    width, shape = (64, (1, 8, 8)) if make is layers else (4, ())
    objective = ModuleObjective(mine, row_shape=shape)
    x = np.random.default_rng(0).normal(size=objective.d).astype(np.float32).astype(float)
    objective.save(x, tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert_array_equal(objective.point(state), x)
    other.load_state_dict(state)
    rows = torch.rand(5, width)
    expected = other(rows.reshape(5, *(shape or (width,)))).argmax(-1)
    assert_array_equal(objective.predict(x, rows.numpy()), expected)
    assert_array_equal(objective.start(), objective.point(mine.state_dict()))  # the module is as it was


@pytest.mark.parametrize("clip_norm", [0.0, 0.3])
def test_frozen_parameters_are_constants_of_the_objective(clip_norm):
    """Points are the other parameters. Gradient and norm to clip are theirs, as by autograd."""
    torch.manual_seed(5)
    module, draw = frozen().double(), np.random.default_rng(0)
    objective = ModuleObjective(module, clip_norm=clip_norm)
    rows = Batch(draw.normal(size=(6, 4)), draw.integers(0, 3, 6))
    assert (objective.d, objective.shapes, objective.parameters.names) == (12, ((3, 4),), ["2.weight"])
    grads = []
    for features, label in zip(rows.features, rows.labels, strict=True):
        module.zero_grad()
        functional.cross_entropy(module(torch.tensor(features)[None]), torch.tensor([label])).backward()
        grad = module[2].weight.grad.numpy().ravel()
        grads.append(grad * min(1.0, (clip_norm or np.inf) / np.linalg.norm(grad)))
    x = objective.start()
    assert_allclose(objective.grad(x, rows), np.mean(grads, 0), rtol=1e-12)
    state = objective.state_dict(x + 1)
    assert_array_equal(state["0.weight"], module[0].weight.detach())
    assert_array_equal(objective.point(state), x + 1)
    with pytest.raises(SettingError, match="another frozen parameter '0.bias' than the module"):
        objective.point(state | {"0.bias": torch.zeros(4)})


# rows that are whole numbers


class Words(nn.Module):
    """A bag of words: the mean embedding of a row's words, with `most` as the largest number that it takes."""

    def __init__(self, clamp=True, batch_mean=False):
        super().__init__()
        self.table, self.head, self.clamp, self.batch_mean = (
            nn.Embedding(7, 4),
            nn.Linear(4, CLASSES),
            clamp,
            batch_mean,
        )

    def forward(self, rows):
        words = self.table(rows.clamp(0, 6) if self.clamp else rows).mean(-2)
        return self.head(words - words.mean(0) if self.batch_mean else words)


def word_rows(lead=()):
    draw = np.random.default_rng(0)
    return Batch(draw.integers(0, 7, (*lead, 6, 5)), draw.integers(0, CLASSES, (*lead, 6)))


@pytest.mark.parametrize("clip_norm", [0.0, 0.3])
def test_an_embedding_gets_whole_numbers(clip_norm):
    """From rows of whole numbers and from the same as doubles, which clients make of them; gradients as by autograd,
    and those of clients at once as those of each."""
    torch.manual_seed(5)
    module, rows = Words().double(), word_rows()
    objective = ModuleObjective(module, clip_norm=clip_norm)
    grads = []
    for features, label in zip(rows.features, rows.labels, strict=True):
        module.zero_grad()
        functional.cross_entropy(module(torch.tensor(features)[None]), torch.tensor([label])).backward()
        grad = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
        grads.append(grad * min(1.0, (clip_norm or np.inf) / np.linalg.norm(grad)))
    x, doubles = objective.start(), rows._replace(features=rows.features.astype(float))
    assert_allclose(objective.grad(x, rows), np.mean(grads, 0), rtol=1e-12, atol=1e-15)
    for name in ("grad", "losses", "score"):
        assert_array_equal(getattr(objective, name)(x, doubles), getattr(objective, name)(x, rows))
    many = word_rows((3,))
    alone = [objective.grad(x, Batch(many.features[i], many.labels[i])) for i in range(3)]
    assert_allclose(objective.grad(x, many), alone, rtol=1e-12, atol=1e-15)
    objective.check_rows(doubles)


class Far(nn.Module):
    """An embedding of a few columns of whole numbers of any size, modulo 1,000."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(1000, 4), nn.Linear(4, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(rows.abs() % 1000).mean(-2))


def test_large_whole_numbers_keep_their_value_and_no_number_is_an_error():
    """In single precision, PyTorch's default; a private run clips what no module could take."""
    torch.manual_seed(5)
    objective = ModuleObjective(Far(), clip_norm=1.0)
    features = np.array([[16_777_217, 3], [123_456_789, 5]])
    rows, x = Batch(features, np.array([0, 1])), objective.start()
    doubles = rows._replace(features=features.astype(float))
    assert_array_equal(objective.losses(x, doubles), objective.losses(x, rows))
    objective.check_rows(rows)
    for wild in (1e300, -1e300, np.nan, np.inf):
        grad = objective.grad(x, rows._replace(features=np.array([[wild, 3.0], [1.0, 2.0]])))
        assert np.isfinite(grad).all()
    plain = ModuleObjective(Far())
    plain.check_rows(Batch(np.zeros((0, 2)), np.zeros(0, int)))


def test_a_client_trains_an_embedding():
    """Its rows are doubles by then; one step of FedAvg is one of gradient descent."""
    objective, rows = ModuleObjective(Words().double()), word_rows()
    algorithm = FedAvg(step_size=0.5, info=RunInfo(1, 1))
    client = FedAvgClient(
        Context(1, 1, {}, RecordDict(), {}),
        algorithm,
        objective,
        rows,
        objective.start(),
        0,
        1,
        LocalSchedule(0, 1),
    )
    (x, *_), count, _ = client.fit([objective.start()], {"round": 1})
    assert count == 6
    assert_allclose(
        x, objective.start() - 0.5 * objective.grad(objective.start(), rows), rtol=1e-12, atol=1e-15
    )


def test_whole_numbers_that_a_module_does_not_take_are_refused_in_a_sentence():
    """Without clipping where the rows are known. With it, where an error would say something about a row, at once."""
    objective, rows = ModuleObjective(Words(clamp=False)), word_rows()
    for features, why in (
        (rows.features + 0.5, "a row holds another: round"),
        (rows.features + 1, "does not take a"),
    ):
        with pytest.raises(SettingError, match=why):
            objective.check_rows(rows._replace(features=features))
    with pytest.raises(SettingError, match="must take every whole number, such as by rows.clamp"):
        ModuleObjective(Words(clamp=False), clip_norm=1.0).check_rows(rows)
    with pytest.raises(SettingError, match="depends on the other rows of the batch"):
        ModuleObjective(Words(batch_mean=True)).check_rows(rows)


def test_a_state_dict_of_another_module_is_refused():
    objective = ModuleObjective(Tied())
    state = objective.state_dict(objective.start())
    with pytest.raises(SettingError, match="it lacks first.bias and has first.bia besides"):
        objective.point({("first.bia" if k == "first.bias" else k): v for k, v in state.items()})
    with pytest.raises(SettingError, match=r"'last.bias' with shape \(5,\); the module's has shape \(4,\)"):
        objective.point(state | {"last.bias": torch.zeros(5)})
    with pytest.raises(
        SettingError, match="a state_dict maps names to tensors; got Tied: call module.state_dict"
    ):
        objective.point(Tied())
    with pytest.raises(SettingError, match="another buffer 'scale' than the module"):
        objective.point(state | {"scale": torch.tensor(3.0)})


def test_a_regulariser_of_named_parameters_leaves_the_others_free():
    objective = ModuleObjective(layers())
    u = np.random.default_rng(0).normal(size=(2, objective.d))
    weights = np.concatenate(
        [np.full(p.numel(), n.endswith("weight")) for n, p in objective.module.named_parameters()]
    )
    part = on_part(L1(0.3), objective.parts("*.weight"))
    assert_array_equal(part.prox(u, 0.5), np.where(weights, L1(0.3).prox(u, 0.5), u))
    assert_allclose(part.value(u), 0.3 * np.abs(u * weights).sum(-1))
    assert_array_equal(part.subgradient(u), np.where(weights, 0.3 * np.sign(u), 0.0))
    assert isinstance(part, Subdifferentiable)
    box = on_part(Box(-0.1, 0.1), objective.parts("2.bias, 0.0.weight"))
    assert not isinstance(box, Subdifferentiable)
    (a, b), (c, d) = box.spans
    assert (a, b, d - c, d) == (0, 36, 10, objective.d)
    assert_array_equal(box.prox(u, 1.0)[:, b:c], u[:, b:c])
    assert np.isinf(box.value(u)).all() and not box.value(box.prox(u, 1.0)).any()
    with pytest.raises(SettingError, match="no parameter is called 'weight'; there are 0.0.weight, 0.0.bias"):
        objective.parts("weight")


# what the door refuses


class Forward(nn.Module):
    """A layer, and a function after it."""

    def __init__(self, after):
        super().__init__()
        self.layer, self.after = nn.Linear(4, 3), after

    def forward(self, rows):
        return self.after(self.layer(rows))


class Counting(Forward):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__(nn.Identity())
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, rows):
        self.calls += 1
        return super().forward(rows)


def frozen():
    """A pretrained layer and part of the next one that are not trained."""
    made = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    made[0].requires_grad_(False)
    made[2].bias.requires_grad_(False)
    return made


def all_frozen():
    return nn.Linear(4, 3).requires_grad_(False)


def mixed():
    return nn.Sequential(nn.Linear(4, 4).double(), nn.Linear(4, 3))


def lost():
    made = nn.Linear(4, 3)
    with torch.no_grad():
        made.bias[1] = math.nan
    return made


AT_ONCE = [
    (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        r"layer '1' \(BatchNorm1d\) normalises .* GroupNorm",
    ),
    (lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(), "normalises over the batch"),
    (
        lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 3)),
        r"layer '0' \(Dropout\) draws .*module.eval\(\)",
    ),
    (all_frozen, "no parameters that take a gradient: there is nothing to train"),
    (mixed, "one dtype and one device; got torch.float32 on cpu and torch.float64 on cpu"),
    (lambda: nn.Linear(4, 3).half(), r"'weight' has dtype torch.float16.*module.float\(\)"),
    (lambda: nn.Linear(4, 3, device="meta"), r"'weight' lies on device 'meta'.*module.to\('cpu'\)"),
    (lost, "parameter 'bias' holds NaN or infinity"),
    (lambda: nn.LazyLinear(3), "parameter 'weight' has no shape yet: give the lazy layer its sizes"),
    (nn.Tanh, "no parameters"),
    (lambda: "a module", "must be a torch.nn.Module; got str"),
]
AT_THE_ROWS = [
    (lambda: nn.Linear(5, 3), "cannot take rows of 4 numbers: set row_shape, .*mat1 and mat2"),
    (lambda: Forward(torch.sum), r"an output for each row; 3 rows gave shape \(\)"),
    (lambda: Forward(lambda z: (z, z)), "3 rows gave tuple"),
    (lambda: Forward(lambda z: z - z.mean(0)), "depends on the other rows"),
    (lambda: Forward(lambda z: functional.dropout(z, 0.5)), "draws random numbers"),
    (lambda: Forward(lambda z: z.log()), "output is NaN for rows of normally distributed numbers"),
    (Counting, "buffer 'calls' changes"),
    (lambda: Forward(lambda z: z[..., None]), r"the loss does not fit the module's output of shape \(3, 1\)"),
    (lambda: Forward(lambda z: z * (1 if z.sum() > 1e9 else 2)), "the gradient of each row"),
]


@pytest.mark.parametrize(("make", "sentence"), AT_ONCE)
def test_a_module_that_cannot_serve_is_refused_when_it_is_given(make, sentence):
    with pytest.raises(SettingError, match=sentence) as told:
        ModuleObjective(make(), clip_norm=1.0)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"chunk": 2.5}, r"chunk must be a whole number, at least 0 \(0 = as memory allows\); got 2.5"),
        ({"chunk": -1}, "chunk must be .*; got -1"),
        ({"clip_norm": "1"}, "clip-norm must be a number; got '1'"),
        ({"clip_norm": True}, "clip-norm must be a number; got True"),
        ({"clip_norm": [1.0]}, "clip-norm must be a number; got"),
        ({"threads": "2"}, "threads must be a whole number, at least 1; got '2'"),
        ({"row_shape": 4}, r"row_shape must be a tuple .*, such as \(1, 28, 28\); got 4"),
        ({"row_shape": (-1, 4)}, r"row_shape must be .* above 0.*; got \(-1, 4\)"),
        ({"loss": "cross entropy"}, "loss must be a function of an output and a label; got str"),
    ],
)
def test_an_argument_of_another_kind_is_refused(arguments, sentence):
    with pytest.raises(SettingError, match=sentence):
        ModuleObjective(nn.Linear(4, 3), **arguments)


@pytest.mark.parametrize(("make", "sentence"), AT_THE_ROWS)
def test_a_module_that_does_not_fit_is_refused_when_it_meets_rows(make, sentence):
    objective = ModuleObjective(make(), clip_norm=1.0)
    rows = Batch(np.ones((2, 4)), np.array([0, 2]))
    for ask in (objective.check_rows, lambda rows: objective.grad(objective.start(), rows)):
        with pytest.raises(SettingError, match=sentence) as told:
            ask(rows)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("features", "labels", "sentence"),
    [
        ([[1.0, math.nan, 0, 0]], [0], "a row holds NaN or infinity"),
        ([[1.0, 0, 0, 0]], [3], "a class must be below the number of outputs"),
        ([[1.0, 0, 0, 0]], [-100], "the loss of a label is NaN or infinite"),
    ],
)
def test_rows_that_no_gradient_can_be_taken_of_are_refused_before_a_run(features, labels, sentence):
    with pytest.raises(SettingError, match=sentence):
        ModuleObjective(nn.Linear(4, 3)).check_rows(Batch(np.array(features), np.array(labels)))


def test_an_output_that_overflows_is_named():
    rows = Batch(np.ones((1, 4)), np.array([0]))
    with pytest.raises(
        SettingError, match="output is infinite for rows of normally distributed numbers: scale"
    ):
        ModuleObjective(Forward(lambda z: z * 1e38 * 1e38)).check_rows(rows)


def test_losses_are_of_one_record():
    with pytest.raises(SettingError, match="set reduction='sum'"):
        ModuleObjective(nn.Linear(4, 3), nn.CrossEntropyLoss(weight=torch.ones(3)))
    weights = torch.tensor([1.0, 2.0, 4.0]).double()
    weighted = nn.CrossEntropyLoss(weight=weights, reduction="sum")
    rows = batch(features=4)
    one, other = (
        ModuleObjective(nn.Linear(4, 3).double(), loss) for loss in (weighted, functional.cross_entropy)
    )
    x = one.start()
    assert_allclose(one.losses(x, rows), other.losses(x, rows) * weights.numpy()[rows.labels])
    with pytest.raises(
        SettingError, match=r"must be a scalar; for an output of shape \(3,\) and one label it gave \(3,\)"
    ):
        ModuleObjective(nn.Linear(4, 3), lambda z, y: z).check_rows(rows)
    with pytest.raises(
        SettingError, match=r"does not fit the module's output of shape \(3,\).*a target size"
    ):
        ModuleObjective(nn.Linear(4, 3), nn.MSELoss()).check_rows(rows)


def test_layers_that_only_look_dangerous_are_taken():
    """In a module in eval mode the rows' gradients are their own: the mean over rows is that of each row alone."""
    still = (
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).double().eval()
    )
    objective, rows = ModuleObjective(still, clip_norm=1.0), Batch(np.eye(4)[:2], np.array([0, 2]))
    objective.check_rows(rows)
    x = objective.start()
    alone = [objective.grad(x, Batch(rows.features[[i]], rows.labels[[i]])) for i in (0, 1)]
    assert_allclose(objective.grad(x, rows), np.mean(alone, axis=0), rtol=1e-12, atol=1e-14)


def test_the_users_module_and_torchs_seed_are_left_alone():
    mine = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval()
    objective, before = ModuleObjective(mine), torch.get_rng_state()
    mine.train()
    with torch.no_grad():
        mine[0].weight.fill_(math.nan)
    rows = batch(features=4)
    assert_array_equal(objective.grad(objective.start(), rows), objective.grad(objective.start(), rows))
    assert_array_equal(torch.get_rng_state(), before)


# runs: every algorithm on a small CNN

MODELS = Path(__file__).with_name("torch_models.py")
CONVEX = ("p-admm", "p-admm-private")  # exact local steps: a smooth and convex loss only
ON_CNN = [
    variant
    for variant, own in VARIANTS.items()
    if variant not in CONVEX and not ALGORITHMS[own["algorithm"]].sends_sums
]
ONE_EACH = list({VARIANTS[variant]["algorithm"]: variant for variant in ON_CNN}.values())


def config(variant, made="cnn", **keys):
    """A quick run of a variant with a module of `torch_models`; clipped where it is private."""
    rows = {
        "data.name": "digits",
        "objective.name": f"torch:{MODELS}:{made}",
        "bias": False,
        "row-norm": 0.0,
        "rounds": 3,
    }
    own = VARIANTS[variant]
    if own.get("privacy.mode", "none") != "none":
        rows["clip-norm"] = 0.5
    if own.get("regulariser.name") == "group-l1":
        rows["regulariser.parameters"] = "2.weight"
    return parse(SMALL | {"local.max-steps": 2}, own, rows, keywords(keys))


@pytest.mark.parametrize(
    "variant", [v if v in ONE_EACH else pytest.param(v, marks=pytest.mark.slow) for v in ON_CNN]
)
def test_every_algorithm_runs_on_a_cnn_stacked_or_one_by_one(variant):
    """In double precision, so that rounding is small; public coins and noise are the same in both."""
    setup = prepare(config(variant, "precise"))
    one_by_one, (stacked,) = inprocess.train(setup), cohort.train([setup])
    assert one_by_one.failure == stacked.failure == ""
    assert np.linalg.norm(one_by_one.model - setup.start) > 1e-4
    assert_allclose(stacked.model, one_by_one.model, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("variant", CONVEX)
def test_a_method_for_convex_losses_says_so(variant):
    with pytest.raises(SettingError, match="needs a smooth and convex loss: choose another objective"):
        prepare(config(variant, bias=False))


@pytest.mark.parametrize("variant", ["scaffold", "fedpdm-private"])
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(tmp_path, variant):
    """With its clients' state and ledgers on the disk, through Flower's own messages."""
    setup = prepare(config(variant, checkpoint_every=1))
    whole = setup.with_state_dir(tmp_path / "whole")
    expected = over_the_wire(whole, Checkpoints(tmp_path / "whole", 1))
    mine = setup.with_state_dir(tmp_path / "mine")
    assert cut_off(mine, tmp_path / "mine", setup.config.clients.sampled + 2, True, 1)
    equal(inprocess.train(mine, checkpoints=Checkpoints(tmp_path / "mine", 1)), expected)


@pytest.mark.slow
def test_flowers_engine_gives_the_bits_of_inprocess(tmp_path):
    """Every algorithm, and each one's model.pt."""
    with engine() as flower:
        for variant in ONE_EACH:
            run = config(variant)
            flower.run(run, tmp_path / variant)
            ours = inprocess.train(prepare(run))
            assert_array_equal(np.load(tmp_path / variant / "model.npz")["x"], ours.model, err_msg=variant)
            state = torch.load(tmp_path / variant / "model.pt", weights_only=True)
            layers().load_state_dict(state)
            assert_allclose(ours.setup.objective.point(state), ours.model, rtol=2**-23)


def test_a_run_starts_where_its_seed_says_and_writes_a_state_dict(tmp_path, capsys):
    starts = [prepare(config("fedavg", seed=seed)).start for seed in (0, 1)]
    assert not np.array_equal(*starts)
    assert_array_equal(starts[0], prepare(replace(config("fedavg", seed=0), rounds=2)).start)
    words = [f"--set=objective.name=torch:{MODELS}:plain", "--set=rounds=3", f"--out={tmp_path / 'run'}"]
    status = command("run", "experiments/digits.toml", "--set=privacy.mode=none", *words)
    assert status == 0, capsys.readouterr().err
    state = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert_array_equal(state["weight"].numpy().ravel(), np.load(tmp_path / "run" / "model.npz")["x"])


def command(*words):
    """Exit status of the command line."""
    with patch.object(sys, "argv", ["twinflower", *words]), pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def test_a_regression_with_a_module():
    setup = prepare(
        parse(
            {
                "data.name": "diabetes",
                "objective.name": f"torch:{MODELS}:slope",
                "step-size": 0.1,
                "rounds": 5,
                "rho": 0.5,
            }
        )
    )
    (result,) = cohort.train([setup])
    assert result.rows[-1]["objective"] < 0.9 * result.rows[0]["objective"]
    assert result.rows[-1]["test_accuracy"] > result.rows[0]["test_accuracy"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("torch:nowhere.py:cnn", "there is no file .*nowhere.py"),
        ("torch:cnn", "is written torch:FILE.py:NAME"),
        (f"torch:{MODELS}", "is written torch:FILE.py:NAME"),
        (f"torch:{MODELS}:rnn", "torch_models.py defines no function 'rnn'"),
        (f"torch:{MODELS}:number", "defines no function 'number'"),
        (
            f"torch:{MODELS}:loaded",
            r"loaded\(\) failed .*size mismatch for weight: .*\[10, 64\].*\[10, 65\]",
        ),
        (f"torch:{MODELS}:word", "must return an nn.Module or a ModuleObjective; it returned str"),
        (f"torch:{MODELS}:clipped", "clip_norm must be left to the run's settings; set clip-norm there"),
        (f"torch:{MODELS}:cnn", r"rows have 65 numbers, and row_shape \(1, 8, 8\) has 64 .*bias = false"),
    ],
)
def test_an_objective_that_cannot_be_loaded(name, sentence):
    with pytest.raises(SettingError, match=sentence) as told:
        prepare(parse({"objective.name": name}))
    assert "\n" not in str(told.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_cuda_module_on_a_machine_without_one():
    with pytest.raises(SettingError, match=r"torch_models.py: on_cuda\(\) failed \(.*(CUDA|NVIDIA)"):
        prepare(parse({"objective.name": f"torch:{MODELS}:on_cuda"}))


def test_settings_that_need_a_module_or_one_matrix():
    with pytest.raises(
        SettingError,
        match="regulariser.parameters is a setting of objective.name torch:FILE.py:NAME, and this run",
    ):
        prepare(parse({"regulariser.parameters": "weight"}))
    keys = {"objective.name": f"torch:{MODELS}:cnn", "bias": False, "regulariser.name": "group-l1"}
    with pytest.raises(SettingError, match="group-l1 needs one matrix: .* got 6 parameters"):
        prepare(parse(keys))
    (span,) = prepare(parse(keys | {"regulariser.parameters": "2.weight"})).regulariser.spans
    assert span[1] - span[0] == 360


def test_a_deployed_site_runs_no_file_that_a_run_names():
    site = read_site({"partition-id": 0, "num-partitions": 3})
    with pytest.raises(
        SettingError, match="a deployed site runs no Python file that a run names: .*ModuleObjective"
    ):
        site.config(config("fedavg", clients__count=3).items())


# the example app


def drive(*words):
    """The lines that examples/torch-app prints with 4 nodes, run in one process."""
    driver, app = (
        Path(__file__).with_name("plug_in_driver.py"),
        MODELS.parent.parent / "examples" / "torch-app",
    )
    paths = os.pathsep.join([str(MODELS.parent.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, driver, "4", *words], cwd=app, env=os.environ | {"PYTHONPATH": paths}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_example_app(tmp_path):
    """Both methods learn. Of 360 images a guess gets a tenth right, give or take 0.016: 0.3 is 12 standard errors more.
    The noise of a private run is secret, so no two are alike. `out` is a state_dict."""
    out = tmp_path / "model.pt"
    for words in (
        ["method='fedpdm'"],
        ["method='scaffold'"],
        ["method='scaffold'", "epsilon=8.0"],
        ["epsilon=8.0"],
    ):
        lines = drive(*words, "rounds=15", f"out={str(out)!r}")
        assert float(lines[-1].split()[-1]) > 0.3, lines
        guarantee = "privacy: for each site, all its messages together are (8, 0.0001)-DP"
        assert sum(guarantee in line for line in lines) == ("epsilon=8.0" in words)
        assert sum("privacy: none" in line for line in lines) == ("epsilon=8.0" not in words)
    state = torch.load(out, weights_only=True)
    assert sum(tensor.numel() for tensor in state.values()) == 994
    drive("epsilon=8.0", "rounds=15", f"out={str(out)!r}")
    again = torch.load(out, weights_only=True)
    assert all(not torch.equal(state[name], again[name]) for name in state)
