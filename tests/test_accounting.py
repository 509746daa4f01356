"""What a run writes down, counted by hand; and that every key of a user reaches its place."""

import csv
import json
import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from grids import Refused, over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from problems import small
from transcription import slow_run_of

from twinflower.clients.records import record_of
from twinflower.data.partition import partition
from twinflower.data.sets import load_dataset
from twinflower.errors import RunError
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.objectives import LOSSES, LinearModel
from twinflower.problems.penalties import REGULARISERS
from twinflower.problems.regularisers import L1, Ball, Box, ElasticNet, GroupL1, WeightedL1Box, Zero
from twinflower.problems.turns import Turns
from twinflower.randomness import participants
from twinflower.settings import settings_of
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.advice import warnings
from twinflower.simulation.runs.run import Run
from twinflower.simulation.runs.setup import prepare_seeds
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy, strategy_of

# ------------------------------------------------------------------------------- a client with a bad row

MARK = 1e-9  # in pixel 0, which is 0 in every digit


class Brittle(LinearModel):
    """A linear model whose gradient on a batch with the marked row is NaN, as if it had overflowed."""

    def grad(self, x, rows, scale=1.0):
        there = rows.features[..., 0] == MARK
        bad = there.any(-1) if rows.weights is None else (there & (rows.weights > 0)).any(-1)
        return np.where(bad[..., None], np.nan, super().grad(x, rows, scale))


def brittle(setup, row):
    """The run with one marked row of the data set: its owner fails in the rounds whose batches hold it."""
    features = setup.dataset.features.copy()
    features[row, 0] = MARK
    dataset = replace(setup.dataset, features=features)
    return replace(
        setup,
        dataset=dataset,
        objective=Brittle(**{f.name: getattr(setup.objective, f.name) for f in fields(setup.objective)}),
    )


def in_process(setup):
    return inprocess.train(setup)


def as_cohort(setup):
    (result,) = cohort.train([setup])
    return result


both_runtimes = pytest.mark.parametrize("run", [in_process, as_cohort])

# Ragged clients, floor(m/b) - 1 local steps but at least 1, and a last round that is not a third one.
RAGGED = {
    "clients.count": 5, "clients.per-round": 3, "partition.name": "sizes", "partition.sizes": "30, 12, 45, 20, 8",
    "batch_size": 10, "local.max-steps": 0, "rounds": 8, "evaluation.every": 3, "seed": 2,
}  # fmt: skip
STEPS = [2, 1, 3, 1, 1]


def ragged(variant="bsdp-top-k", **keys):
    """A run in which client 2 loses some rounds to its row number 7."""
    setup = small(variant, **(RAGGED | keys))
    return brittle(setup, setup.partition.of(2)[7])


# --------------------------------------------------------------------------------------- columns by hand


@both_runtimes
def test_totals_and_means_of_a_run_with_rejected_replies(run):
    """65 of 650 entries up and 325 down, of 64 bits and a 10-bit index each; 32 bits in the papers."""
    setup = ragged(uplink_ratio=0.1, downlink_ratio=0.5)
    result = run(setup)
    slow = list(slow_run_of(setup))
    assert {tuple(s.lost) for s in slow} == {(), (2,)}  # some rounds lose a client, some do not
    assert [row["round"] for row in result.rows] == [0, 3, 6, 8]
    for row, first in zip(result.rows, (0, 0, 3, 6), strict=True):
        t = row["round"]
        accepted = sum(len(s.asked) - len(s.lost) for s in slow[:t])
        assert row["participants"] == accepted
        assert row["rejected"] == sum(len(s.lost) for s in slow[:t])
        assert row["uplink_bits"] == 65 * (64 + 10) * accepted
        assert row["downlink_bits"] == 325 * (64 + 10) * 3 * t
        assert row["paper_uplink_bits"] == 65 * 32 * accepted
        by_round = [np.mean([STEPS[i] for i in s.asked if i not in s.lost]) for s in slow[first:t]]
        assert_allclose(row["local_steps"], np.mean(by_round) if t else 0.0, rtol=1e-14)
        assert row["stopped"] == 0.0
    seconds = [row["seconds"] for row in result.rows]
    assert seconds == sorted(seconds) and seconds[0] >= 0
    assert [r.asked for r in result.rounds] == [tuple(s.asked) for s in slow]


@both_runtimes
def test_rand_k_pays_for_its_seed_on_the_way_down(run):
    setup = ragged("bsdp-rand-k", uplink_ratio=0.1)
    last = run(setup).rows[-1]
    assert last["uplink_bits"] == 65 * 64 * last["participants"]
    assert last["downlink_bits"] == (650 * 64 + 64) * 3 * 8


@both_runtimes
def test_steps_and_stops_are_means_since_the_last_row(run):
    setup = ragged("fedpdm-stopping", stopping_tolerance=0.08)
    slow = list(slow_run_of(setup))
    rows = run(setup).rows
    for row, before in zip(rows[1:], rows, strict=False):
        since = slow[before["round"] : row["round"]]
        assert_allclose(row["local_steps"], np.mean([np.mean(s.steps) for s in since]), rtol=1e-14)
        assert_allclose(row["stopped"], np.mean([np.mean(s.fired) for s in since]), rtol=1e-14)
    assert len({row["stopped"] for row in rows[1:]}) == 3
    assert len({row["local_steps"] for row in rows[1:]}) == 3


def test_replies_lost_on_the_way_are_paid_for_downwards_only():
    setup = small("bsdp-top-k", uplink_ratio=0.1, downlink_ratio=0.5, rounds=4)
    lost = {(t, int(i)) for t in (2, 3) for i in participants(0, t, 8, 3)[: t - 1]}
    result = run_strategy(setup, Refused(setup, lost), "inprocess")
    assert [row["participants"] for row in result.rows] == [0, 3, 5, 6, 9]
    assert [row["rejected"] for row in result.rows] == [0, 0, 1, 3, 3]
    assert [row["uplink_bits"] // (65 * 74) for row in result.rows] == [0, 3, 5, 6, 9]
    assert [row["downlink_bits"] // (325 * 74) for row in result.rows] == [0, 3, 6, 9, 12]


@both_runtimes
def test_the_objective_is_the_mean_over_clients_and_the_score_that_of_test_rows(run):
    """Row by row: softmax loss averaged within each client, then over clients; penalties; h."""
    setup = ragged("fedpdm", objective__l2=0.03, nonconvex=0.02, regulariser__name="elastic-net", regulariser__l1=0.004,
                   regulariser__l2=0.05, rounds=3)  # fmt: skip
    result = run(setup)
    x, data = result.model, setup.dataset
    matrix = x.reshape(10, 65)

    def loss(row):
        scores = [float(weights @ data.features[row]) for weights in matrix]
        return math.log(sum(map(math.exp, scores))) - scores[data.labels[row]]

    clients = [np.mean([loss(row) for row in setup.partition.of(i)]) for i in range(5)]
    smooth = sum(0.015 * v**2 + 0.02 * v**2 / (1 + v**2) for v in x)
    h = sum(0.004 * abs(v) + 0.025 * v**2 for v in x)
    right = [
        max(range(10), key=lambda c: matrix[c] @ a) == y
        for a, y in zip(data.test_features, data.test_labels, strict=True)
    ]
    last = result.rows[-1]
    assert_allclose(last["objective"], np.mean(clients) + smooth + h, rtol=1e-12)
    assert_allclose(last["test_accuracy"], np.mean(right), rtol=1e-14)
    assert last["nonzeros"] == sum(v != 0 for v in x)
    at_start = [
        setup.central.evaluate(setup.start)[key] for key in ("objective", "test_accuracy", "nonzeros")
    ]
    assert [result.rows[0][key] for key in ("objective", "test_accuracy", "nonzeros")] == at_start


@both_runtimes
def test_the_folder_repeats_the_rows(run, tmp_path):
    setup = ragged("fedpdm-stopping", stopping_tolerance=0.08)
    result = run(setup)
    folder = write_run(result, tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    with (folder / "metrics.csv").open() as file:
        written = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    assert written == result.rows
    last = written[-1]
    for key in (
        "test_accuracy",
        "objective",
        "nonzeros",
        "uplink_bits",
        "downlink_bits",
        "paper_uplink_bits",
    ):
        assert summary[key] == last[key], key
    assert (summary["rounds"], summary["rejected_replies"]) == (8, last["rejected"])
    assert last["rejected"] > 0
    # three rounds, three rounds, two rounds
    stopped = (3 * written[1]["stopped"] + 3 * written[2]["stopped"] + 2 * written[3]["stopped"]) / 8
    assert_allclose(summary["stopping_rule_fired"], stopped, rtol=1e-14)
    assert (summary["finished"], summary["failure"], summary["privacy"]) == (True, None, None)
    assert (summary["algorithm"], summary["dataset"], summary["seed"]) == ("fedpdm", "digits", 2)
    assert (summary["runtime"], summary["parameters"]) == (result.runtime, 650)
    assert result.runtime == {in_process: "inprocess", as_cohort: "cohort"}[run]
    assert_allclose(summary["client_updates_per_second"] * summary["seconds"], last["participants"])
    labels, test_labels = list(setup.dataset.labels), setup.dataset.test_labels
    favourite = max(sorted(set(labels)), key=labels.count)
    assert_allclose(summary["majority_baseline"], np.mean(test_labels == favourite), rtol=1e-14)
    with np.load(folder / "model.npz") as file:
        assert_array_equal(file["x"], result.model)
        assert_array_equal(file["shape"], [10, 65])


# ------------------------------------------------------------------------- updates that are not finite


@pytest.mark.parametrize("variant", ["fedpdm-memory-warm", "bsdp-top-k", "bsdp-rand-k", "fedpdm-stopping"])
def test_a_client_whose_update_is_not_finite_is_left_out_alike_everywhere(variant):
    """Its state stays that of its last good round, and goes on from there."""
    setup = ragged(variant)
    slow = list(slow_run_of(setup))
    rounds_of_2 = ["lost" if 2 in s.lost else "good" for s in slow if 2 in s.asked]
    assert "good lost good" in " ".join(rounds_of_2)
    for result in (in_process(setup), as_cohort(setup)):
        assert_allclose(result.model, slow[-1].x0, rtol=0, atol=1e-11)
        assert [len(r.rejected) for r in result.rounds] == [len(s.lost) for s in slow]
        assert result.failure == ""


def test_of_stacked_seeds_one_may_lose_a_client():
    """Then all are run one by one, with the rows that each would have alone."""
    seeds = [2, 3, 4]
    setups = prepare_seeds(small("fedpdm", **RAGGED).config, seeds)
    row = setups[0].partition.of(2)[7]
    setups = [brittle(setup, row) for setup in setups]
    lost = [sum(len(s.lost) for s in slow_run_of(setup)) for setup in setups]
    assert lost[0] > 0
    assert 0 in lost
    for setup, result, number in zip(setups, cohort.train(setups), lost, strict=True):
        alone = in_process(setup)
        assert_allclose(result.model, alone.model, rtol=0, atol=1e-11)
        assert result.rows[-1]["rejected"] == alone.rows[-1]["rejected"] == number
        for ours, theirs in zip(result.rows, alone.rows, strict=True):
            assert_allclose(
                [ours[key] for key in ours if key != "seconds"],
                [theirs[key] for key in ours if key != "seconds"],
                rtol=1e-9,
            )


@dataclass(frozen=True)
class Undefined(L1):
    """An l1 norm whose prox breaks one entry."""

    broken: float = np.nan

    def prox(self, u, step):
        x = super().prox(u, step)
        x[..., 1] = self.broken
        return x


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("rounds", "evaluate_every"), [(1, 1), (3, 100)])
@pytest.mark.parametrize(
    "run",
    [in_process, as_cohort, over_the_wire],
    ids=["in", "cohort", "wire"],
)
def test_a_model_that_is_not_finite_is_never_finished(run, rounds, evaluate_every, value, tmp_path):
    setup = small("fedpdm", rounds=rounds, evaluation__every=evaluate_every)
    setup = replace(setup, algorithm=replace(setup.algorithm, regulariser=Undefined(0.004, value)))
    (tmp_path / "model.npz").write_text("of an earlier run")
    result = run(setup)
    write_run(result, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["failure"] == "the model diverged in round 1: lower step-size"
    assert (summary["finished"], summary["rounds"]) == (False, 0)
    assert not (tmp_path / "model.npz").exists()


def test_stacked_seeds_with_a_broken_model_all_fail():
    setups = prepare_seeds(small("fedpdm", rounds=2).config, [0, 1])
    setups = [replace(s, algorithm=replace(s.algorithm, regulariser=Undefined(0.004))) for s in setups]
    assert [(r.model, "diverged in round 1" in r.failure) for r in cohort.train(setups)] == [(None, True)] * 2


@pytest.mark.parametrize("regulariser", ["l1", "none", "box", "ball"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_run_refuses_points_that_are_not_finite(regulariser, value):
    """Under l1 their objective is infinite too, and must not pass for a point outside of h's set."""
    run = Run(setup=small("fedpdm", regulariser__name=regulariser), runtime="cohort")
    x = np.where(np.arange(650) == 3, value, 0.0)
    with pytest.raises(RunError, match="not finite in round 0"), np.errstate(all="ignore"):
        run.add(run.so_far(0), x)
    assert run.rows == []


def test_an_infinite_objective_is_refused_unless_x_is_outside_of_hs_set():
    def objective(regulariser, value):
        setup = small("fedpdm", regulariser__name=regulariser, l2=0.1)
        run = Run(setup=setup, runtime="cohort")
        run.add(run.so_far(0), np.where(np.arange(650) == 3, value, 0.0))
        return run.rows[0]["objective"]

    assert objective("box", 2.0) == objective("ball", 2.0) == np.inf
    assert np.isfinite(objective("l1", 2.0))
    with pytest.raises(RunError, match="not finite"), np.errstate(all="ignore"):
        objective("l1", 1e200)  # the square overflows


# ------------------------------------------------------------------------------- keys reach their places


@pytest.mark.parametrize("fresh", [True, False])
@both_runtimes
def test_fresh_batches(run, fresh):
    """Six batches an epoch, three steps a round: fixed ones come again after two rounds, fresh ones never."""
    setup = small("fedpdm", fresh_batches=fresh, seed=3, clients__per_round=0, batch_size=30)
    assert setup.schedule == LocalSchedule(30, 3, fresh, turns=Turns(8, 8), anew=True)
    first, second, third = (setup.schedule.batches(setup.shards, 4, 3, t).positions for t in (1, 2, 3))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, third) == (not fresh)
    *_, last = slow_run_of(setup)
    assert_allclose(run(setup).model, last.x0, rtol=0, atol=1e-11)


@both_runtimes
@pytest.mark.parametrize("seed", [0, 3])
def test_the_seed_decides_who_is_sampled_which_rows_and_which_entries(run, seed):
    """Each on its own: everybody takes part with full batches, and so on, so that one kind of draw is left."""
    only = {
        "sampling": ("fedpdm", {"batch_size": 0, "partition.name": "contiguous"}),
        "batches": ("fedpdm", {"clients.per-round": 0, "partition.name": "contiguous"}),
        "rand-k": ("bsdp-rand-k", {"clients.per-round": 0, "batch_size": 0, "partition.name": "contiguous"}),
    }
    for name, (variant, keys) in only.items():
        setup, other = small(variant, seed=seed, **keys), small(variant, seed=seed + 1, **keys)
        *_, last = slow_run_of(setup)
        result = run(setup)
        assert_allclose(result.model, last.x0, rtol=0, atol=1e-11, err_msg=name)
        assert not np.allclose(result.model, run(other).model), name
        assert result.rounds[-1].asked == tuple(last.asked)


@both_runtimes
def test_start_scale(run):
    start = small("fedpdm", start_scale=0.5).start
    assert abs(start.std() / 0.5 - 1) < 4 / math.sqrt(2 * 650)  # of 650 normals, within 4 standard errors
    assert abs(start.mean()) < 4 * 0.5 / math.sqrt(650)
    assert_allclose(small("fedpdm", start_scale=1.5).start, 3 * start, rtol=1e-15)
    assert_array_equal(small("fedpdm").start, np.zeros(650))
    setup = small("fedpdm", start_scale=0.5, seed=1, rounds=1, local_start="warm")
    assert not np.isclose(setup.start, start).any()
    *_, last = slow_run_of(setup)
    result = run(setup)
    assert_allclose(result.model, last.x0, rtol=0, atol=1e-11)
    assert result.rows[0]["objective"] == setup.central.evaluate(setup.start)["objective"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("row_norm", [0.0, 0.7])
@pytest.mark.parametrize("standardise", [True, False])
def test_how_rows_are_prepared(bias, row_norm, standardise):
    data = small("fedpdm", bias=bias, row_norm=row_norm, standardise=standardise).dataset
    expected = load_dataset("digits", bias=bias, row_norm=row_norm, standardise=standardise)
    assert_array_equal(data.features, expected.features)
    assert_array_equal(data.test_features, expected.test_features)
    assert data.features.shape[1] == 64 + bias
    assert (np.linalg.norm(data.features, axis=1).max() <= 0.7 + 1e-12) == (row_norm > 0)
    if not row_norm:
        assert np.allclose(data.features[:, :64].mean(0), 0) == standardise
        assert_array_equal(data.features[:, 64:], np.ones((len(data.labels), int(bias))))


def test_how_losses_are_shaped():
    setup = small(
        "fedpdm", objective__name="rowwise-logistic", l2=0.3, nonconvex=0.2, clip_norm=0.1, bias=False
    )
    assert setup.objective == LinearModel(
        LOSSES["rowwise-logistic"], 10, 64, l2=0.3, nonconvex=0.2, clip_norm=0.1
    )
    setup = small("fedpdm", data__name="diabetes", objective__name="least-squares")
    assert (setup.objective.loss, setup.objective.outputs) == (LOSSES["least-squares"], 1)
    assert setup.central.baseline() is None


@pytest.mark.parametrize(
    ("name", "h"),
    [
        ("none", Zero()),
        ("l1", L1(0.2)),
        ("l1-box", WeightedL1Box(0.2, -0.4, 0.4)),
        ("elastic-net", ElasticNet(0.2, 0.3)),
        ("group-l1", GroupL1(0.2, 10)),
        ("box", Box(-0.4, 0.4)),
        ("ball", Ball(0.5)),
    ],
)
def test_every_regulariser_gets_its_numbers(name, h):
    numbers = {"weight": 0.2, "l1": 0.2, "l2": 0.3, "bound": 0.4, "radius": 0.5}
    own = {f"regulariser.{key}": numbers[key] for key in settings_of(REGULARISERS[name]) if key in numbers}
    setup = small("fedpdm", regulariser__name=name, **own)
    assert setup.regulariser == setup.algorithm.regulariser == h


@pytest.mark.parametrize(
    ("keys", "known"),
    [
        ({"partition.name": "iid", "samples_per_client": 20}, {"samples_per_client": 20}),
        ({"partition.name": "contiguous"}, {}),
        ({"partition.name": "labels", "labels_per_client": 2}, {"labels_per_client": 2}),
        ({"partition.name": "dirichlet", "dirichlet_alpha": 0.9}, {"dirichlet_alpha": 0.9}),
        (
            {"partition.name": "sizes", "partition.sizes": "9,8,7,6,5,4,3,2"},
            {"sizes": [9, 8, 7, 6, 5, 4, 3, 2]},
        ),
    ],
)
def test_how_rows_are_divided(keys, known):
    setup = small("fedpdm", seed=5, **keys)
    expected = partition(setup.dataset.labels, 8, keys["partition.name"], 5, num_classes=10, **known)
    assert_array_equal(setup.partition.rows, expected.rows)
    assert_array_equal(setup.partition.offsets, expected.offsets)
    held = [len(set(setup.dataset.labels[expected.of(i)])) for i in range(8)]
    assert held == [2] * 8 or "labels_per_client" not in keys
    for i in range(8):
        own = InProcessGrid(setup).client(i + 1).shards.rows(i)
        assert_array_equal(own.features, setup.dataset.features[expected.of(i)])
        assert_array_equal(own.labels, setup.dataset.labels[expected.of(i)])


@pytest.mark.parametrize(
    ("rounds", "every", "evaluated"), [(4, 1, [0, 1, 2, 3, 4]), (4, 2, [0, 2, 4]), (5, 3, [0, 3, 5]), (2, 9, [0, 2])]
)  # fmt: skip
@both_runtimes
def test_evaluate_every(run, rounds, every, evaluated):
    rows = run(small("fedpdm", rounds=rounds, evaluation__every=every)).rows
    assert [row["round"] for row in rows] == evaluated


def test_timeouts():
    setup = small("fedpdm", node_timeout=7.0, round_timeout=9.0, rounds=2)
    waits = []

    class Watched(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            waits.extend((message.metadata.message_type, timeout) for message in messages)
            return super().send_and_receive(messages, timeout=timeout)

    strategy = strategy_of(setup)
    sampling = strategy.sampling
    assert (strategy.node_timeout, sampling.clients_per_round, sampling.num_clients) == (7.0, 3, 8)
    run_strategy(setup, Watched(setup), "inprocess")
    assert [wait for kind, wait in waits if kind == "train"] == [9.0] * 6
    asked = [wait for kind, wait in waits if kind == "get_properties"]
    assert len(asked) == 8
    assert all(6 < wait <= 7 for wait in asked)


@pytest.mark.parametrize("name", ["l1", "l1-box", "elastic-net", "group-l1"])
def test_a_weight_at_the_slope_is_warned_of(name):
    """The slope is that of the mean over ragged clients, so of a mean of means."""

    def setup_with(weight):
        key = "regulariser.l1" if name == "elastic-net" else "regulariser.weight"
        return small("fedpdm", **RAGGED, objective__l2=0.1, regulariser__name=name, **{key: float(weight)})

    setup = setup_with(0.1)
    zero = np.zeros(650)
    means = [setup.objective.grad(zero, setup.shards.rows(i)) for i in range(5)]
    slope = np.abs(setup.objective.grad(zero, setup.shards.everyone())).max()
    assert_allclose(slope, np.abs(np.mean(means, axis=0)).max(), rtol=1e-12)
    below, at, above = (warnings(setup_with(w)) for w in (np.nextafter(slope, 0), slope, 2 * slope))
    warns = name != "group-l1"  # whose columns are judged together
    assert (len(below), len(at), len(above)) == (0, int(warns), int(warns))
    assert not warns or f"the largest slope at 0, {slope:.3g}" in at[0]


def test_a_private_run_is_not_told_the_slope_itself():
    """It is an exact function of the records."""
    private = small("fedpdm", weight=50.0, **{"privacy.mode": "public-state", "epsilon": 1.0})
    (said,) = [text for text in warnings(private) if "slope" in text]
    assert "no less than the largest slope at 0: so x = 0" in said


def test_the_strategy_is_given_the_start():
    """An algorithm that evaluates round 0 sees the public start, bit for bit."""
    setup, seen = small("fedpdm", start_scale=0.5, rounds=1), []
    strategy_of(setup).start(
        InProcessGrid(setup),
        record_of([setup.start]),
        1,
        evaluate_fn=lambda t, arrays: seen.append(arrays["0"].numpy().copy()),
    )
    assert_array_equal(seen[0], setup.start)
