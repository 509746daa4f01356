"""Rows, batches and weights: each row as often as promised, and a cohort's batches are its clients'."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from twinflower.data.features import Deferred
from twinflower.errors import SettingError
from twinflower.problems import batches
from twinflower.problems.batches import Batches, LocalSchedule, Shards
from twinflower.problems.objectives import make_objective
from twinflower.problems.turns import Turns

RAGGED, EQUAL = [7, 12, 3, 1, 10], [8, 8, 8]
WALKS = [
    LocalSchedule(3),
    LocalSchedule(3, 11),
    LocalSchedule(3, 11, fresh=False),
    LocalSchedule(5, 2),
    LocalSchedule(3, 1, turns=Turns(5, 3)),
    LocalSchedule(3, 2, fresh=False, turns=Turns(5, 3)),
    LocalSchedule(3, 0, fresh=False),
    LocalSchedule(20),
    LocalSchedule(0, 4),
]

every_walk = pytest.mark.parametrize("schedule", WALKS, ids=str)
even_and_ragged = pytest.mark.parametrize("sizes", [RAGGED, EQUAL], ids=str)


def draw_shards(rng, sizes):
    """Rows in random order, three of them nobody's; the label of a row is its number."""
    total = sum(sizes) + 3
    offsets = np.cumsum([0, *sizes])
    order = rng.permutation(total)[: offsets[-1]]
    return Shards.grouped(rng.uniform(1, 2, (total, 4)), np.arange(total), order, offsets)


def walked(schedule, shards, client, seed=0, round_=1):
    """Row numbers (T, b) of one client's steps."""
    return np.array([batch.labels for batch in schedule.batches(shards, client, seed, round_)])


# --- one client ---


@pytest.mark.parametrize("m, b", [(12, 3), (10, 3), (7, 7), (5, 9), (4, 1)])
def test_an_epoch_takes_no_row_twice_and_full_epochs_take_all_equally(m, b):
    shards = draw_shards(np.random.default_rng(1), [6, m])
    size, per_epoch = min(b, m), max(m // b, 1)
    epochs = 1000
    rows = walked(LocalSchedule(b, epochs * per_epoch), shards, 1).reshape(epochs, per_epoch * size)
    assert (np.diff(np.sort(rows), axis=1) > 0).all()
    own, counts = np.unique(rows, return_counts=True)
    assert_array_equal(own, np.sort(shards.rows(1).labels))
    share = per_epoch * size / m  # 1 where the batches fill the epoch
    assert (np.abs(counts - epochs * share) <= 4 * np.sqrt(epochs * share * (1 - share))).all()


def test_epochs_are_shuffled_anew():
    shards = draw_shards(np.random.default_rng(2), [12])
    epochs = walked(LocalSchedule(3, 12), shards, 0).reshape(3, 12)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_more_steps_go_on_where_fewer_end():
    shards = draw_shards(np.random.default_rng(3), [10])
    assert_array_equal(walked(LocalSchedule(3, 20), shards, 0)[:7], walked(LocalSchedule(3, 7), shards, 0))


def test_default_steps_are_one_less_than_an_epoch():
    sizes = np.arange(1, 61)
    for b in range(1, 15):
        assert LocalSchedule(b).steps(sizes).tolist() == [max(m // b - 1, 1) for m in sizes]
        fixed = LocalSchedule(b, fresh=False).steps(sizes).tolist()
        assert fixed == [max(math.ceil(m / b) - 1, 1) for m in sizes]
        assert LocalSchedule(b, 4).steps(sizes).tolist() == [4] * 60
    assert LocalSchedule(0, 4).steps(sizes).tolist() == [4] * 60


@every_walk
@pytest.mark.parametrize("client", range(len(RAGGED)))
def test_a_walk_keeps_the_pace_that_it_tells(schedule, client):
    shards, m = draw_shards(np.random.default_rng(4), RAGGED), RAGGED[client]
    workload, rows = schedule.workload(m), walked(schedule, shards, client)
    size = min(schedule.batch_size or m, m)
    assert rows.shape == (workload.steps, workload.rows)
    assert workload.steps == schedule.steps(np.array(m)) == schedule.batches(shards, client, 0, 1).steps
    assert workload.per_epoch == (m // size if schedule.fresh else math.ceil(m / size))
    assert workload.rows == (size if schedule.fresh else math.ceil(m / workload.per_epoch))
    # what a gradient release relies on: no record is in more than one batch of an epoch
    counts = (rows[..., None] == shards.rows(client).labels).any(1).sum(0)
    assert counts.max() <= -(-workload.steps // workload.per_epoch)


@pytest.mark.parametrize("m", range(1, 26))
@pytest.mark.parametrize("b", [1, 2, 3, 4, 7, 12, 25, 30])
def test_batches_of_a_fixed_order_have_every_row_once_with_one_weight(m, b):
    shards, schedule = draw_shards(np.random.default_rng(16), [2, m]), LocalSchedule(b, 1, fresh=False)
    load, total, sizes = schedule.workload(m), np.zeros(m + 5), []
    for round_ in range(1, load.per_epoch + 1):
        (step,) = schedule.batches(shards, 1, 0, round_)
        weights = np.full(load.rows, 1 / load.rows) if step.weights is None else step.weights
        np.add.at(total, step.labels, weights)
        sizes.append((weights > 0).sum())
    assert_allclose(np.sort(total)[-m:], 1 / load.rows, rtol=1e-15)
    assert np.count_nonzero(total) == m
    assert max(sizes) == load.rows <= b and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float32])
@pytest.mark.parametrize("schedule", [LocalSchedule(4, 3, fresh=False), LocalSchedule(0, 1)], ids=str)
def test_weights_of_rows_of_any_type_are_those_of_doubles(schedule, kind):
    """They would all be 0 if they were whole numbers, as the rows."""

    def weights(dtype):
        shards = Shards.of([(np.ones((m, 2), dtype), np.arange(m)) for m in (11, 4)])
        return [step.weights for step in schedule.batches(shards, np.array([0, 1]), 0, 1)]

    for ours, doubles in zip(weights(kind), weights(np.float64), strict=True):
        assert_allclose(ours, doubles, rtol=1e-7)


def test_the_first_steps_keep_their_weights():
    """7 rows in batches of 3, 2 and 2."""
    shards = draw_shards(np.random.default_rng(17), [7, 7])
    for clients in (1, np.array([0, 1])):
        batches = LocalSchedule(3, 3, fresh=False).batches(shards, clients, 0, 1)
        (first,) = batches.first(1)
        assert_array_equal(first.weights, 1 / 3)
        assert [np.atleast_2d(own.weights)[0].min() for own in batches] == [1 / 3, 0, 0]


def test_a_row_that_is_not_in_a_batch_cannot_change_it():
    """Not even if it has no number: batches that are a row short are padded with rows of their own."""
    objective, x = make_objective("least-squares", 2, 0), np.ones(2)
    for bad in range(7):
        features = np.ones((7, 2))
        features[bad] = np.nan
        shards = Shards.of([(features, np.zeros(7))])
        batches = LocalSchedule(2, 4, fresh=False).batches(shards, 0, 0, 1)
        grads = np.array([objective.grad(x, step) for step in batches])
        assert np.isnan(grads).any(1).sum() == 1


def test_fresh_batches_change_from_epoch_to_epoch_and_fixed_ones_do_not():
    shards = draw_shards(np.random.default_rng(5), [12, 12])
    fresh, fixed = LocalSchedule(3, 8), LocalSchedule(3, 8, fresh=False)
    first = walked(fresh, shards, 1, round_=1)
    assert_array_equal(walked(fresh, shards, 1, round_=1), first)
    fixed_first = walked(fixed, shards, 1, round_=1)
    assert_array_equal(fixed_first[:4], first[:4])
    assert_array_equal(fixed_first[4:], first[:4])
    assert_array_equal(walked(fixed, shards, 1, round_=9), fixed_first)  # two epochs a round
    assert (walked(fresh, shards, 1, round_=2) != first).any()
    assert (walked(fresh, shards, 1, seed=1) != first).any()


def test_clients_draw_orders_of_their_own():
    shards = Shards.grouped(np.ones((24, 1)), np.arange(24), np.arange(24), np.array([0, 12, 24]))
    assert (walked(LocalSchedule(3, 4), shards, 0) != walked(LocalSchedule(3, 4), shards, 1) - 12).any()


@even_and_ragged
def test_full_batches_are_all_own_rows_in_every_step(sizes):
    shards = draw_shards(np.random.default_rng(6), sizes)
    for client in range(len(sizes)):
        steps = list(LocalSchedule(0, 3).batches(shards, client, 0, 1))
        assert len(steps) == 3 and all(batch.weights is None for batch in steps)
        for batch in steps:
            assert_array_equal(batch.labels, shards.rows(client).labels)
            assert_array_equal(batch.features, shards.rows(client).features)


# --- cohorts ---


@every_walk
@even_and_ragged
def test_a_cohorts_batches_are_its_clients(schedule, sizes):
    shards = draw_shards(np.random.default_rng(7), sizes)
    clients = np.array([2, 0, 1]) if sizes is EQUAL else np.array([0, 3, 4, 1])
    together = schedule.batches(shards, clients, 5, 2)
    steps = list(together)
    for place, client in enumerate(clients):
        alone = list(schedule.batches(shards, client, 5, 2))
        assert together.steps[place] == len(alone)
        for ours, own in zip(steps, alone, strict=False):  # idle steps follow
            weights, alone_weights = (
                np.full(rows.labels.shape, 1 / len(own.labels)) if rows.weights is None else rows.weights
                for rows in (ours, own)
            )
            there, own_there = weights[place] > 0, alone_weights > 0
            assert_array_equal(ours.labels[place][there], own.labels[own_there])
            assert_array_equal(ours.features[place][there], own.features[own_there])
            assert_array_equal(weights[place][there], alone_weights[own_there])


@every_walk
@pytest.mark.parametrize("at_once", [0, 2**20])
def test_features_that_are_computed_when_they_are_taken(schedule, at_once, monkeypatch):
    """Step by step, or those of all steps at once if they are few."""
    shards, taken = draw_shards(np.random.default_rng(8), RAGGED), []

    def complete(raw):
        taken.append(len(raw))
        return raw / 2.0

    lazy = replace(shards, features=Deferred(complete, shards.features * 2))
    monkeypatch.setattr(batches, "_TOGETHER", at_once)
    lazy.features.shape  # noqa: B018  computes one row, once
    for clients in (1, np.array([0, 3, 4, 1])):
        known = [batch.features for batch in schedule.batches(shards, clients, 5, 2)]
        taken.clear()
        found = [batch.features for batch in schedule.batches(lazy, clients, 5, 2)]
        for ours, exact in zip(found, known, strict=True):
            assert_array_equal(ours, exact)
        assert len(taken) == (len(known) if not at_once and schedule.batch_size else 1)
    assert list(Batches(np.array(0), lazy, np.zeros((0, 3), int))) == []


@every_walk
def test_weighted_means_are_the_clients_own_means(schedule):
    shards = draw_shards(np.random.default_rng(8), RAGGED)
    objective = make_objective("least-squares", 4, 0)
    x = np.random.default_rng(9).normal(size=(len(RAGGED), 4))
    together = schedule.batches(shards, np.arange(len(RAGGED)), 0, 1)
    for step, ours in enumerate(together):
        grads, values = objective.grad(x, ours), objective.value(x, ours)
        for client in np.flatnonzero(step < together.steps):
            own = list(schedule.batches(shards, client, 0, 1))[step]
            if ours.weights is not None:
                shares = 1 / len(own.labels) if own.weights is None else own.weights
                means = ours.weights[client] @ ours.features[client]
                assert_allclose(means, (np.broadcast_to(shares, own.labels.shape) @ own.features), rtol=1e-15)
            assert_allclose(values[client], objective.value(x[client], own), rtol=1e-14)
            assert_allclose(grads[client], objective.grad(x[client], own), rtol=1e-13)


@every_walk
@even_and_ragged
def test_stacked_seeds_are_single_runs(schedule, sizes):
    seeds, parts = [4, 9], [draw_shards(np.random.default_rng(seed), sizes) for seed in (10, 11)]
    features, labels = parts[0].features, parts[0].labels
    parts = [Shards(features, labels, p.order, p.starts, p.sizes) for p in parts]
    clients = np.array([[0, 2], [1, 2]])
    together = schedule.batches(Shards.stacked(parts), clients, np.array(seeds)[:, None], 3)
    for s, seed in enumerate(seeds):
        for k, client in enumerate(clients[s]):
            alone = list(schedule.batches(parts[s], client, seed, 3))
            assert together.steps[s, k] == len(alone)
            for ours, own in zip(together, alone, strict=False):
                there = slice(None) if ours.weights is None else ours.weights[s, k] > 0
                own_there = slice(None) if own.weights is None else own.weights > 0
                assert_array_equal(ours.labels[s, k][there], own.labels[own_there])


@every_walk
def test_a_site_walks_as_in_the_whole(schedule):
    shards = draw_shards(np.random.default_rng(12), RAGGED)
    for client in range(len(RAGGED)):
        site = Shards.site(shards.rows(client), client)
        assert site.num_clients == 1
        assert_array_equal(site.rows(client).features, shards.rows(client).features)
        assert_array_equal(walked(schedule, site, client), walked(schedule, shards, client))


# --- everyone ---


@even_and_ragged
def test_everyones_mean_is_the_mean_of_the_clients_means(sizes):
    shards = draw_shards(np.random.default_rng(13), sizes)
    everyone = shards.everyone()
    assert sorted(everyone.labels) == sorted(shards.order)  # nobody's rows stay out
    means = [shards.rows(client).features.mean(0) for client in range(len(sizes))]
    assert_allclose(everyone.weights @ everyone.features, np.mean(means, axis=0), rtol=1e-15)


def test_everyones_mean_where_clients_share_rows():
    rng = np.random.default_rng(14)
    order = rng.permutation(20)
    starts, sizes = np.array([0, 4, 9, 12]), np.array([8, 8, 3, 8])
    shards = Shards(rng.uniform(1, 2, (20, 4)), np.arange(20), order, starts, sizes)
    means = [shards.rows(client).features.mean(0) for client in range(4)]
    everyone = shards.everyone()
    assert_allclose(everyone.weights @ everyone.features, np.mean(means, axis=0), rtol=1e-15)


def test_grouped_rows_are_their_clients():
    shards = draw_shards(np.random.default_rng(15), RAGGED)
    assert shards.num_clients == len(RAGGED)
    assert [len(shards.rows(client).labels) for client in range(len(RAGGED))] == RAGGED
    assert_array_equal(np.concatenate([shards.rows(c).labels for c in range(len(RAGGED))]), shards.order)
    batch = shards.take(np.array([[0, 1], [2, 3]]), np.full((2, 2), 0.5))
    assert batch.features.shape == (2, 2, 4) and batch.weights.shape == batch.labels.shape


# --- at the door ---


@pytest.mark.parametrize(
    "settings, text",
    [
        ((-1, 1), "batch-size must be at least 0 .* got -1"),
        ((10, -1), "local.max-steps must be at least 1 with full batches, and at least 0 .* got -1"),
        ((0, 0), "local.max-steps must be at least 1 with full batches.* got 0"),
    ],
)
def test_walks_that_cannot_be_are_refused(settings, text):
    with pytest.raises(SettingError, match=text):
        LocalSchedule(*settings)
