"""Top-k and rand-k: what is kept, what it costs on the wire, and what is not let in."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from twinflower.errors import ReplyError, SettingError
from twinflower.sparsifiers import (
    SPARSIFIERS,
    RandK,
    TopK,
    index_bits,
    kept_entries,
    make_sparsifier,
    pack_indices,
    rand_k,
    scatter,
    top_k,
    unpack_indices,
)

SEED = np.uint64(2**63 + 11)
MODEL_SIZES = [1, 2, 3, 650, 7850]
TIES = arrays(float, st.integers(1, 12), elements=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]))

every_sparsifier = pytest.mark.parametrize("name", SPARSIFIERS)


def ratios(d):
    """Shares that keep between one and all of d entries."""
    return st.integers(1, d).map(lambda k: k / d)


# --- top-k ---


@given(TIES, st.data())
def test_top_k_takes_the_largest_and_of_equals_the_first(y, data):
    k = data.draw(st.integers(1, len(y)))
    by_size = sorted(range(len(y)), key=lambda i: (-abs(y[i]), i))
    assert top_k(y, k).tolist() == sorted(by_size[:k])


def test_top_k_is_the_best_approximation_with_k_terms():
    rng = np.random.default_rng(1)
    for _ in range(20):
        y = rng.normal(size=7)
        kept = (y[top_k(y, 3)] ** 2).sum()
        assert kept == max((y[list(others)] ** 2).sum() for others in combinations(range(7), 3))


def test_top_k_of_a_cohort_is_each_clients_own():
    rng = np.random.default_rng(2)
    y = rng.integers(-3, 4, size=(4, 5, 11)).astype(float)
    together = top_k(y, 4)
    for client in np.ndindex(4, 5):
        assert_array_equal(together[client], top_k(y[client], 4))


def test_a_diverged_model_is_sent_as_such():
    y = np.array([[1.0, np.nan, 2.0, -np.inf], [np.nan] * 4])
    assert_array_equal(top_k(y, 2), [[1, 3], [0, 1]])
    assert np.isnan(TopK(0.5).encode(y, SEED).values[:, 0]).all()


# --- rand-k ---


def test_rand_k_depends_on_the_seed_alone():
    seeds = np.arange(12, dtype=np.uint64).reshape(3, 4)
    together = rand_k(seeds, 50, 9)
    assert together.shape == (3, 4, 9)
    for place in np.ndindex(3, 4):
        assert_array_equal(together[place], rand_k(seeds[place], 50, 9))
    assert len({tuple(row) for row in together.reshape(12, 9)}) == 12


@given(st.integers(0, 2**64 - 1), st.integers(1, 40), st.data())
def test_rand_k_is_ascending_and_distinct(seed, d, data):
    k = data.draw(st.integers(1, d))
    indices = rand_k(np.uint64(seed), d, k)
    assert indices.shape == (k,) and (np.diff(indices) > 0).all() and 0 <= indices[0] <= indices[-1] < d


def test_rand_k_keeps_every_entry_and_every_pair_equally_often():
    draws, d, k = 5000, 8, 3
    _, sent = scatter(RandK(k / d).encode(np.ones((draws, d)), np.arange(draws, dtype=np.uint64)), d)
    both = sent.T.astype(int) @ sent  # its diagonal counts the entries themselves
    share = np.where(np.eye(d), k / d, k * (k - 1) / (d * (d - 1)))
    standard_error = np.sqrt(draws * share * (1 - share))
    assert (np.abs(both - draws * share) < 4 * standard_error).all()


# --- encode ---


@every_sparsifier
@given(y=arrays(float, st.integers(1, 30), elements=st.floats(-1e6, 1e6)), data=st.data())
def test_a_code_holds_k_entries_as_they_are(name, y, data):
    d, ratio = len(y), data.draw(ratios(len(y)))
    dense, sent = scatter(make_sparsifier(name, ratio).encode(y, SEED), d)
    assert sent.sum() == kept_entries(ratio, d)
    assert_array_equal(dense, np.where(sent, y, 0))
    if name == "top-k":  # a contraction, whatever y
        assert ((y - dense) ** 2).sum() <= (1 - sent.sum() / d) * (y**2).sum() * (1 + 1e-12)


@every_sparsifier
def test_with_ratio_1_everything_is_sent(name):
    y = np.random.default_rng(3).normal(size=(5, 9))
    dense, sent = scatter(make_sparsifier(name, 1.0).encode(y, np.arange(5, dtype=np.uint64)), 9)
    assert sent.all()
    assert_array_equal(dense, y)


# --- the wire ---


def test_index_bits_is_the_logarithm():
    assert [index_bits(d) for d in range(1, 8000)] == [math.ceil(math.log2(d)) for d in range(1, 8000)]


@every_sparsifier
@pytest.mark.parametrize("d", MODEL_SIZES)
@given(data=st.data())
def test_messages_come_back_and_have_the_size_that_is_reported(name, d, data):
    sparsifier = make_sparsifier(name, data.draw(ratios(d)))
    code = sparsifier.encode(np.random.default_rng(4).normal(size=d), SEED)
    message = sparsifier.pack(code, d)
    for sent, received in zip(code, sparsifier.unpack(message, d, SEED), strict=True):
        assert_array_equal(sent, received)
    assert 0 <= 8 * sum(array.nbytes for array in message) - sparsifier.bits(d) < 8  # filled up to bytes


def test_sizes_by_hand():
    assert TopK(0.5).bits(7850) == 3925 * (64 + 13)
    assert TopK(1.0).bits(7850) == RandK(1.0).bits(7850) == 7850 * 64
    assert RandK(0.5).bits(7850) == 3925 * 64
    assert_array_equal(pack_indices(np.array([0, 2, 5]), 6), [0b000_010_10, 0b1_0000000])


INDICES, VALUES = pack_indices(np.array([0, 2]), 3), np.array([0.5, -1.0])  # 2 of 3 entries


@pytest.mark.parametrize(
    "message, text",
    [
        ([], "expected 2 arrays, got 0"),
        ([VALUES], "expected 2 arrays, got 1"),
        ([VALUES, INDICES, INDICES], "expected 2 arrays, got 3"),
        ([INDICES, VALUES], "indices must be uint8, got float64"),
        ([VALUES, INDICES.astype(np.int64)], "indices must be uint8, got int64"),
        ([VALUES, INDICES.repeat(2)], r"indices must have shape \(1,\), got \(2,\)"),
        ([VALUES, INDICES[:0]], r"indices must have shape \(1,\), got \(0,\)"),
        ([VALUES, INDICES[None]], r"indices must have shape \(1,\), got \(1, 1\)"),
        ([VALUES, pack_indices(np.array([0, 3]), 3)], "distinct, ascending and below 3"),
        ([VALUES, pack_indices(np.array([1, 1]), 3)], "distinct, ascending and below 3"),
        ([VALUES, pack_indices(np.array([2, 0]), 3)], "distinct, ascending and below 3"),
        ([VALUES.astype(np.float32), INDICES], "values must be float64, got float32"),
        ([VALUES.astype(">f8"), INDICES], "values must be float64, got >f8"),
        ([VALUES.astype(complex), INDICES], "values must be float64, got complex128"),
        ([VALUES[:1], INDICES], r"values must have shape \(2,\), got \(1,\)"),
        ([VALUES[:, None], INDICES], r"values must have shape \(2,\), got \(2, 1\)"),
        ([np.array([0.5, np.nan]), INDICES], "values must be finite"),
        ([np.array([0.5, -np.inf]), INDICES], "values must be finite"),
    ],
)
def test_what_top_k_would_not_send_is_refused(message, text):
    with pytest.raises(ReplyError, match=text):
        TopK(2 / 3).unpack(message, 3, SEED)


@pytest.mark.parametrize(
    "message, text",
    [
        ([VALUES, INDICES], "expected 1 arrays, got 2"),
        ([VALUES[:1]], r"values must have shape \(2,\), got \(1,\)"),
        ([VALUES.astype(int)], "values must be float64, got int64"),
        ([np.array([0.5, np.inf])], "values must be finite"),
    ],
)
def test_what_would_not_be_sent_without_indices_is_refused(message, text):
    with pytest.raises(ReplyError, match=text):
        RandK(2 / 3).unpack(message, 3, SEED)
    with pytest.raises(ReplyError, match=text):
        TopK(1.0).unpack(message, 2, SEED)


def test_mutated_messages_are_refused_or_are_other_messages():
    """1,000 times a few bits flip in some array; what is let in says what packing it again would say."""
    rng = np.random.default_rng(5)
    accepted = 0
    for _ in range(1000):
        d = int(rng.integers(2, 40))
        sparsifier = TopK(rng.integers(1, d) / d)
        message = sparsifier.pack(sparsifier.encode(rng.normal(size=d), SEED), d)
        raw = message[rng.integers(2)].view(np.uint8)
        raw[rng.integers(len(raw), size=3)] ^= np.uint8(1) << rng.integers(8, size=3, dtype=np.uint8)
        try:
            code = sparsifier.unpack(message, d, SEED)
        except ReplyError:
            continue
        accepted += 1
        assert np.isfinite(code.values).all() and (np.diff(code.indices) > 0).all()
        assert 0 <= code.indices[0] <= code.indices[-1] < d
        again = sparsifier.pack(code, d)
        filling = 8 * len(again[1]) - len(code.indices) * index_bits(d)
        assert_array_equal(again[0], message[0])
        assert_array_equal(again[1][:-1], message[1][:-1])
        assert again[1][-1] >> filling == message[1][-1] >> filling
    assert 100 < accepted < 900  # both happened


def test_of_all_strings_only_the_written_ones_are_read():
    """Two of 5 indices are 6 bits and 2 bits of filling, which are 0: 10 pairs in 256 bytes."""
    read = []
    for byte in range(256):
        first, second = byte >> 5, byte >> 2 & 7
        try:
            read.append(tuple(unpack_indices(np.array([byte], np.uint8), 5, 2)))
            assert read[-1] == (first, second)
        except ReplyError:
            assert byte & 3 or not first < second < 5
    assert sorted(read) == list(combinations(range(5), 2))


# --- at the door ---


def test_settings_are_checked():
    with pytest.raises(SettingError, match="uplink must be one of top-k, rand-k; got 'best'"):
        make_sparsifier("best", 0.5)
    for name in SPARSIFIERS:
        for ratio in (0.0, -0.1, 1.5, math.nan):
            with pytest.raises(SettingError, match=f"ratio must be above 0 and at most 1; got {ratio}"):
                make_sparsifier(name, ratio)
        with pytest.raises(SettingError, match=r"between 1 and all of the 650 entries; 0.0001 keeps 0"):
            make_sparsifier(name, 1e-4).bits(650)


def test_k_is_rounded():
    assert [kept_entries(ratio, 10) for ratio in (0.06, 0.14, 0.16, 0.5, 0.96, 1.0)] == [1, 1, 2, 5, 10, 10]
