"""Every draw has an address, and nobody else's draws are found there."""

import math
from itertools import product

import numpy as np
import pytest
from numpy.random import Philox
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import kstest

from twinflower import randomness
from twinflower.errors import SettingError
from twinflower.randomness import (
    PURPOSES,
    normals,
    normals_by_round,
    participants,
    permutations,
    stream,
    uniforms,
)


def test_no_two_addresses_share_a_number():
    addresses = list(product((0, 1, 2**63), PURPOSES, range(5), range(8)))  # seed, purpose, client, round
    rows = [uniforms(*address, 8) for address in addresses] + [stream(*a).random(8) for a in addresses]
    # 53-bit numbers: a chance collision among these has probability 3e-9
    assert len(np.unique(rows)) == 2 * len(addresses) * 8


def test_the_same_address_gives_the_same_numbers():
    for address in product((0, 7), PURPOSES, (0, 3), (0, 5)):
        assert_array_equal(uniforms(*address, 9), uniforms(*address, 9))
        assert_array_equal(stream(*address).random(9), stream(*address).random(9))


def test_the_numbers_of_a_purpose_stay_where_they_are():
    # stored: stored results depend on these codes; new purposes get new ones
    codes = ["participants", "batches", "partition", "rand-k", "start", "noise", "data", "graph", "split"]
    assert PURPOSES.items() >= dict(zip(codes, range(1, 10), strict=True)).items()
    assert len(set(PURPOSES.values())) == len(PURPOSES)


@pytest.mark.parametrize("size", [1, 4, 5, 785])
def test_a_clients_row_is_its_stretch_of_the_rounds_philox_stream(size):
    key = np.array([11, PURPOSES["noise"]], dtype=np.uint64)
    stretch = math.ceil(size / 4)  # counters of four draws
    for client in (0, 1, 6, 10**6):
        bits = Philox(key=key, counter=[0, 0, 0, 3]).advance(client * stretch).random_raw(size)
        assert_array_equal(uniforms(11, "noise", client, 3, size), (bits >> np.uint64(11)) * 2.0**-53)


@pytest.mark.parametrize("draw", [uniforms, normals])
@pytest.mark.parametrize("size", [1, 4, 5, 785, 1023, 1024])
@pytest.mark.parametrize(
    "clients", [[0, 1, 2, 3], [5, 6, 7], [3], [0, 2, 9], [9, 2, 0], [4, 4], [10**6, 3]], ids=str
)
def test_a_cohorts_block_is_its_clients_rows(draw, size, clients):
    block = draw(5, "noise", np.array(clients), 2, size)
    assert block.shape == (len(clients), size)
    for row, client in zip(block, clients, strict=True):
        assert_array_equal(row, draw(5, "noise", client, 2, size))


@pytest.mark.parametrize("size", [1, 4, 5, 1023])
@pytest.mark.parametrize("rounds", [[7], [0, 3, 2, 2**40], range(5, 9)], ids=str)
def test_rounds_drawn_together_are_those_drawn_one_by_one(size, rounds):
    drawn = normals_by_round(5, "noise", 3, rounds, size)
    assert_array_equal(drawn, [normals(5, "noise", np.arange(3), round_, size) for round_ in rounds])


@pytest.mark.parametrize("size", [1, 7, 600, 70_000])
def test_permutations_of_many_addresses_are_those_of_their_streams(size):
    seeds, clients, kept = [0, 5, 2**64 - 1], [9, 0, 3], min(size, 50)
    drawn = permutations(seeds, "batches", clients, [4] * len(seeds), size, (3, kept))
    for own, seed, client in zip(drawn, seeds, clients, strict=True):
        draw = stream(seed, "batches", client, 4)
        for entries in own:
            assert_array_equal(entries, draw.permutation(size)[:kept])


def test_uniforms_are_uniform():
    u = uniforms(1, "noise", np.arange(100), 1, 1001)
    assert (u >= 0).all() and (u < 1).all()
    assert kstest(u.ravel(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("size", [1001, 2001])
def test_normals_have_the_moments_of_the_normal_distribution(size):
    """By the inverse CDF, and by the ziggurat algorithm for long vectors."""
    z = normals(2, "noise", np.arange(200), 1, size)
    moments = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}  # mean and variance of z^p
    for power, (mean, variance) in moments.items():
        assert abs((z**power).mean() - mean) < 4 * math.sqrt(variance / z.size)
    assert kstest(z.ravel(), "norm").pvalue > 1e-3
    for one, other in ((z[1:], z[:-1]), (z[:, 1:], z[:, :-1])):  # neighbours in clients and in entries
        assert abs((one * other).mean()) < 4 / math.sqrt(one.size)


def test_normals_are_finite_for_the_extreme_uniforms(monkeypatch):
    extremes = np.array([0, 2.0**-53, 0.5, 1 - 2.0**-53])
    monkeypatch.setattr(randomness, "uniforms", lambda *address: extremes)
    z = normals(0, "noise", 0, 0, len(extremes))
    assert (np.diff(z) > 0).all() and z[2] == 0 and -8.5 < z[0] < z[1] < -8
    assert_allclose(z[3], -z[1], rtol=1e-12)


def test_participants_are_distinct_and_ascending():
    for round_ in range(200):
        for n, k in ((10, 1), (10, 3), (100, 30), (10, 9)):
            chosen = participants(3, round_, n, k)
            assert chosen.shape == (k,) and (np.diff(chosen) > 0).all() and 0 <= chosen[0] <= chosen[-1] < n
        assert_array_equal(participants(3, round_, 7, 7), range(7))


def test_participants_are_uniform_in_pairs_and_independent_over_rounds():
    rounds, n, k = 4000, 8, 3
    sent = np.zeros((rounds, n))
    for round_ in range(rounds):
        sent[round_, participants(4, round_, n, k)] = 1
    share = np.where(np.eye(n), k / n, k * (k - 1) / (n * (n - 1)))
    assert (np.abs(sent.T @ sent - rounds * share) < 4 * np.sqrt(rounds * share * (1 - share))).all()
    overlap = (sent[1:] * sent[:-1]).sum(1)  # hypergeometric: n items, k of them good, k drawn
    variance = k * (k / n) * (1 - k / n) * (n - k) / (n - 1)
    assert abs(overlap.mean() - k * k / n) < 4 * math.sqrt(variance / (rounds - 1))


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: stream(seed, "batches"),
        lambda seed: uniforms(seed, "noise", 0, 1, 3),
        lambda seed: normals(seed, "noise", np.arange(2), 1, 3),
        lambda seed: participants(seed, 1, 10, 3),
    ],
)
def test_a_negative_seed_is_refused(draw):
    with pytest.raises(SettingError, match="seed must be a whole number from 0 to"):
        draw(-1)
