"""Partitions: what every method promises, what each one adds, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from twinflower.data.partition import Partition, describe, partition
from twinflower.data.partitioners import PARTITIONERS, _draw_labels, apportion
from twinflower.errors import SettingError

# Training rows per class of MNIST and Adult, the settings of Li 2024.
MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
ADULT = [24720, 7841]

OPTIONS = {
    "iid": {},
    "labels": {"labels_per_client": 2},
    "one-class": {},
    "dirichlet": {"dirichlet_alpha": 1.0},
    "mixed": {"iid_rows": 4},
    "sizes": {"sizes": [30, 1, 40, 7, 22, 15]},
    "contiguous": {},
}
BLIND = [name for name, method in PARTITIONERS.items() if not method.by_class]


def shuffled(class_rows: list[int], seed: int = 0) -> np.ndarray:
    """Labels with so many rows of each class, in random order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(class_rows)), class_rows))


def table(parts: Partition, labels: np.ndarray) -> np.ndarray:
    """Rows of each client (N,) and class (C,), counted with a plain loop."""
    return np.array(
        [np.bincount(labels[parts.of(i)], minlength=labels.max() + 1) for i in range(parts.num_clients)]
    )


def assert_partition(parts: Partition, rows: int, num_clients: int) -> None:
    assert parts.num_clients == num_clients
    assert parts.rows.dtype == parts.offsets.dtype == np.int64
    assert parts.offsets[0] == 0
    assert parts.offsets[-1] == len(parts.rows)
    assert parts.sizes.min() >= 1
    assert len(np.unique(parts.rows)) == len(parts.rows)
    assert parts.rows.min() >= 0
    assert parts.rows.max() < rows


LABELS = shuffled([70, 20, 40, 50])  # 180 rows

without_deadline = settings(deadline=None)  # a busy machine is no failure


# ----------------------------------------------------------------------------------------- all methods


def test_all_methods_are_covered_here():
    assert set(OPTIONS) == set(PARTITIONERS)
    assert all(method.description for method in PARTITIONERS.values())


@pytest.mark.parametrize("method", OPTIONS)
def test_clients_are_disjoint_and_not_empty(method):
    assert_partition(partition(LABELS, 6, method, 0, **OPTIONS[method]), len(LABELS), 6)


@pytest.mark.parametrize("method", OPTIONS)
def test_the_seed_decides(method):
    one, again, other = (partition(LABELS, 6, method, seed, **OPTIONS[method]) for seed in (1, 1, 2))
    assert_array_equal(one.rows, again.rows)
    assert_array_equal(one.offsets, again.offsets)
    assert np.array_equal(one.rows, other.rows) == (method == "contiguous")


@pytest.mark.parametrize("method", OPTIONS)
def test_clients_hold_views_in_order(method):
    parts = partition(LABELS, 6, method, 0, **OPTIONS[method])
    assert_array_equal(np.concatenate([parts.of(i) for i in range(6)]), parts.rows)
    assert_array_equal([len(parts.of(i)) for i in range(6)], parts.sizes)
    assert all(np.shares_memory(parts.of(i), parts.rows) for i in range(6))


@pytest.mark.parametrize("client", [-1, 6])
def test_there_is_no_client_outside(client):
    with pytest.raises(SettingError, match=r"0\.\.5"):
        partition(LABELS, 6, "iid", 0).of(client)


@pytest.mark.parametrize("method", ["iid", "dirichlet", "sizes"])
def test_rows_of_a_client_come_in_random_order(method):
    """A client that keeps its last rows for validation must not get one class or the end of the file."""
    parts = partition(LABELS, 6, method, 0, **OPTIONS[method])
    for rows in (parts.of(i) for i in range(6)):
        assert len(rows) < 10 or (np.any(np.diff(rows) < 0) and np.any(np.diff(rows) > 0))


@pytest.mark.parametrize("method", OPTIONS)
def test_samples_per_client_cuts(method):
    parts = partition(LABELS, 6, method, 0, **OPTIONS[method], samples_per_client=9)
    assert_partition(parts, len(LABELS), 6)
    whole = partition(LABELS, 6, method, 0, **OPTIONS[method])
    assert_array_equal(parts.sizes, np.minimum(whole.sizes, 9))


@pytest.mark.parametrize("method", ["iid", "contiguous", "dirichlet", "sizes"])
def test_a_cut_keeps_the_first_rows_of_each_client(method):
    cut, whole = (partition(LABELS, 6, method, 0, **OPTIONS[method], samples_per_client=s) for s in (9, 0))
    for client in range(6):
        assert_array_equal(cut.of(client), whole.of(client)[:9])


@pytest.mark.parametrize("method", ["iid", "contiguous", "labels", "one-class"])
def test_equal_sizes_out_of_reach_are_refused(method):
    with pytest.raises(SettingError, match="samples-per-client"):
        partition(LABELS, 6, method, 0, **OPTIONS[method], samples_per_client=31)


@pytest.mark.parametrize("method", OPTIONS)
def test_one_client_for_each_row_is_the_most(method):
    labels = np.resize([0, 1], 6)
    each = {"labels_per_client": 1, "iid_rows": 1, "sizes": [1] * 6, "dirichlet_alpha": 1e6}
    options = {key: each[key] for key in OPTIONS[method]}
    assert_array_equal(np.sort(partition(labels, 6, method, 0, **options).rows), np.arange(6))
    with pytest.raises(SettingError, match=r"clients.count must be in 1\.\.6"):
        partition(labels, 7, method, 0, **options)


@pytest.mark.parametrize(
    ("method", "options", "word"),
    [
        ("idd", {}, "one of iid, labels, one-class, mixed, dirichlet, sizes, contiguous"),
        ("iid", {"num_clients": 0}, "clients.count"),
        ("iid", {"samples_per_client": -1}, "samples-per-client"),
        ("iid", {"seed": -1}, "seed"),
        ("iid", {"labels": LABELS[:0]}, "labels"),
        ("iid", {"labels": LABELS[:, None]}, "labels"),
        ("labels", {"labels_per_client": 0}, "labels-per-client must be at least 1"),
        ("labels", {"labels_per_client": 5}, r"labels-per-client must be in 1\.\.4.*got 5"),
        ("labels", {"labels_per_client": 5, "num_classes": 9}, r"labels-per-client must be in 1\.\.4"),
        ("labels", {"labels_per_client": 2, "num_clients": 91}, "clients.count must be lower"),
        ("labels", {"labels_per_client": 3, "samples_per_client": 2}, "samples-per-client"),
        ("labels", {"labels_per_client": 2, "num_classes": 3}, r"labels must be in 0\.\.2"),
        ("labels", {"labels_per_client": 2, "labels": LABELS - 1}, "labels must be in"),
        ("one-class", {"num_clients": 3}, "clients.count must be at least 4"),
        ("one-class", {"samples_per_client": 21}, "samples-per-client must be lower"),
        ("dirichlet", {"dirichlet_alpha": -1.0}, "dirichlet-alpha"),
        ("dirichlet", {"dirichlet_alpha": np.nan}, "dirichlet-alpha"),
        ("dirichlet", {"dirichlet_alpha": np.inf}, "dirichlet-alpha"),
        (
            "dirichlet",
            {"dirichlet_alpha": 1e-3, "num_clients": 100},
            "raise partition.dirichlet-alpha, lower clients.count",
        ),
        ("sizes", {}, "sizes"),
        ("sizes", {"sizes": [10] * 5}, "sizes must be 6"),
        ("sizes", {"sizes": [[10] * 6]}, "sizes must be comma-separated whole numbers"),
        ("sizes", {"sizes": [10.5] * 6}, "sizes must be comma-separated whole numbers"),
        ("sizes", {"sizes": [0] + [10] * 5}, "at least 1"),
        ("sizes", {"sizes": [31] + [30] * 5}, "at most 180.*got 181"),
    ],
)
def test_settings_that_break_a_rule_are_named(method, options, word):
    arguments = {"labels": LABELS, "num_clients": 6, "method": method, "seed": 0} | options
    with pytest.raises(SettingError, match=word) as caught:
        partition(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", OPTIONS)
def test_regression_targets_have_no_classes(method):
    targets = LABELS + 0.5
    if method in BLIND:
        parts = partition(targets, 6, method, 0, **OPTIONS[method])
        assert_array_equal(parts.rows, partition(LABELS, 6, method, 0, **OPTIONS[method]).rows)
    else:
        with pytest.raises(SettingError, match="iid, sizes, contiguous"):
            partition(targets, 6, method, 0, **OPTIONS[method])


def test_the_description_counts():
    labels = np.array([0, 0, 1, 2, 2, 2])
    parts = Partition(np.array([0, 1, 2, 5, 3]), np.array([0, 3, 4, 5]))
    text = describe(parts, labels, 3)
    assert "3 clients hold 5 of 6 rows" in text
    assert "rows per client, min / median / max: 1 / 1 / 3\n" in text
    assert "labels per client, min / median / max: 1 / 1 / 2 of 3" in text
    assert "labels" not in describe(parts, labels + 0.5, 0)


# ----------------------------------------------------------------------------- iid, contiguous, sizes


@without_deadline
@given(rows=st.integers(1, 200), num_clients=st.integers(1, 200), seed=st.integers(0, 2**32))
@pytest.mark.parametrize("method", ["iid", "contiguous"])
def test_even_methods_use_all_rows_and_differ_by_at_most_one(method, rows, num_clients, seed):
    num_clients = min(rows, num_clients)
    parts = partition(np.zeros(rows), num_clients, method, seed)
    assert_array_equal(np.sort(parts.rows), np.arange(rows))
    assert np.ptp(parts.sizes) <= 1


def test_iid_gives_each_row_to_each_client_equally_often():
    """Standard error of a frequency over 2,000 seeds is sqrt(p (1 - p) / 2000); five of them on both sides."""
    draws, rows, clients = 2000, 6, 3
    counts = np.zeros((clients, rows))
    for seed in range(draws):
        parts = partition(np.zeros(rows), clients, "iid", seed)
        counts[np.repeat(np.arange(clients), parts.sizes), parts.rows] += 1
    p = 1 / clients
    assert np.all(np.abs(counts / draws - p) < 5 * np.sqrt(p * (1 - p) / draws))


def test_contiguous_is_the_file_in_chunks():
    parts = partition(np.zeros(10), 3, "contiguous", 0)
    for client, rows in enumerate(np.array_split(np.arange(10), 3)):
        assert_array_equal(parts.of(client), rows)


def test_sizes_are_what_was_asked_and_the_rest_is_unused():
    sizes = [30, 1, 40]
    parts = partition(LABELS, 3, "sizes", 0, sizes=sizes)
    assert_array_equal(parts.sizes, sizes)
    assert len(parts.rows) == sum(sizes) < len(LABELS)


# --------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("samples", [0, 600])
def test_the_mnist_setting_of_paper_003(seed, samples):
    labels = shuffled(MNIST)
    parts = partition(labels, 100, "labels", seed, labels_per_client=4, samples_per_client=samples)
    assert_partition(parts, 60_000, 100)
    assert_array_equal(parts.sizes, 600)
    counts = table(parts, labels)
    assert_array_equal((counts > 0).sum(axis=1), 4)
    assert_array_equal(counts.sum(axis=0), MNIST)
    clients_per_label = (counts > 0).sum(axis=0)
    assert np.all(np.abs(clients_per_label - 400 * np.array(MNIST) / 60_000) < 1)
    assert np.all(np.abs(counts[counts > 0] - 150) <= 5)


def test_equal_classes_are_held_equally_often_in_equal_parts():
    labels = shuffled([100] * 10)
    counts = table(partition(labels, 25, "labels", 0, labels_per_client=4), labels)
    assert_array_equal((counts > 0).sum(axis=0), 10)
    assert set(np.unique(counts)) == {0, 10}


@without_deadline
@given(data=st.data())
def test_labels_are_exact_and_sizes_equal(data):
    class_rows = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any))
    present = np.count_nonzero(class_rows)
    k = data.draw(st.integers(1, present))
    pairs = [sum(min(rows, clients) for rows in class_rows) for clients in range(1, sum(class_rows) + 1)]
    most = max((n for n, room in enumerate(pairs, 1) if room >= n * k), default=0)
    labels = shuffled(class_rows)
    clients = data.draw(st.integers(1, most))
    parts = partition(labels, clients, "labels", data.draw(st.integers(0, 99)), labels_per_client=k)
    assert_partition(parts, len(labels), clients)
    assert np.ptp(parts.sizes) == 0
    counts = table(parts, labels)
    assert_array_equal((counts > 0).sum(axis=1), k)
    if clients * k >= present:
        assert np.all((counts > 0).any(axis=0) == (np.bincount(labels) > 0))


def test_a_rare_label_is_held_where_there_are_places_for_all():
    labels = shuffled([1000, 800, 3])  # in proportion, the last would have 0.01 of 8 places
    counts = table(partition(labels, 4, "labels", 0, labels_per_client=2), labels)
    assert_array_equal((counts > 0).sum(axis=0), [4, 3, 1])
    assert_array_equal(counts.sum(axis=1), 450)


def test_a_client_with_all_labels_of_unequal_size_gets_the_small_one_in_full():
    labels = shuffled([90, 10])
    parts = partition(labels, 10, "labels", 0, labels_per_client=2)
    assert_array_equal(table(parts, labels), [[9, 1]] * 10)


def test_one_label_each_is_limited_by_the_label_with_fewest_rows_per_client():
    labels = shuffled([70, 30])  # 2 clients for the first label, 1 for the second
    parts = partition(labels, 3, "labels", 0, labels_per_client=1)
    assert_array_equal(parts.sizes, 30)
    with pytest.raises(SettingError, match=r"1\.\.30"):
        partition(labels, 3, "labels", 0, labels_per_client=1, samples_per_client=31)


@without_deadline
@given(data=st.data())
def test_drawn_labels_have_the_given_margins(data):
    clients, classes = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 6))
    k = data.draw(st.integers(1, classes))
    needed = np.zeros(classes, np.int64)
    for _ in range(clients * k):
        needed[data.draw(st.sampled_from(np.flatnonzero(needed < clients).tolist()))] += 1
    held = _draw_labels(needed, clients, k, np.random.default_rng(0))
    assert_array_equal(held.sum(axis=1), k)
    assert_array_equal(held.sum(axis=0), needed)


def test_pairs_of_labels_are_all_drawn():
    """No pattern such as 'neighbouring labels only': all 45 pairs of 10 labels occur among 100 clients."""
    held = _draw_labels(np.full(10, 40), 100, 4, np.random.default_rng(0))
    together = held.T.astype(int) @ held
    assert together.min() > 0


# ------------------------------------------------------------------------------------------ one-class


def test_the_adult_setting_of_paper_003():
    labels = shuffled(ADULT)
    parts = partition(labels, 100, "one-class", 0, samples_per_client=325)
    assert_partition(parts, 32_561, 100)
    counts = table(parts, labels)
    assert_array_equal(parts.sizes, 325)
    assert_array_equal((counts > 0).sum(axis=0), [76, 24])
    assert_array_equal(counts.max(axis=1), 325)


def test_one_class_uses_every_row_and_divides_classes_evenly():
    labels = shuffled(MNIST)
    counts = table(partition(labels, 37, "one-class", 0), labels)
    assert_array_equal((counts > 0).sum(axis=1), 1)
    assert_array_equal(counts.sum(axis=0), MNIST)
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


def test_a_rare_class_has_a_client():
    labels = shuffled([1000, 1, 0, 5])
    counts = table(partition(labels, 4, "one-class", 0), labels)
    assert_array_equal((counts > 0).sum(axis=0), [2, 1, 0, 1])


def test_one_class_clients_stand_in_random_order():
    labels = shuffled([500, 500])
    held = table(partition(labels, 50, "one-class", 0), labels).argmax(axis=1)
    assert 10 < np.count_nonzero(np.diff(held)) < 40  # 24.5 changes expected, standard deviation 3.5


def test_samples_shift_clients_to_classes_that_have_the_rows():
    labels = shuffled([100, 59])  # proportional: 10 and 6 clients, but 6 * 10 > 59
    counts = table(partition(labels, 15, "one-class", 0, samples_per_client=10), labels)
    assert_array_equal((counts > 0).sum(axis=0), [10, 5])
    assert_array_equal(counts.sum(axis=1), 10)


@without_deadline
@given(
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=8),
    extra=st.integers(0, 50),
)
def test_seats_are_proportional(weights, extra):
    parties = len(weights)
    seats = parties + extra
    low, high = np.ones(parties, np.int64), np.full(parties, seats)
    share = apportion(np.array(weights), seats, low, high)
    assert share.sum() == seats
    assert share.min() >= 1
    for i, one in enumerate(weights):  # more rows never mean fewer clients
        assert all(share[i] >= share[j] for j, other in enumerate(weights) if one > other)


def test_shares_round_without_favour_to_the_large():
    low, high = np.zeros(3, np.int64), np.full(3, 7)
    assert_array_equal(apportion(np.array([53, 24, 23]), 7, low, high), [3, 2, 2])  # d'Hondt: 4, 2, 1


def test_exact_shares_are_met():
    assert_array_equal(
        apportion(np.array([30, 20, 50]), 10, np.zeros(3, np.int64), np.full(3, 10)), [3, 2, 5]
    )
    assert_array_equal(
        apportion(np.array([30, 20, 50]), 10, np.zeros(3, np.int64), np.array([10, 10, 4])), [4, 2, 4]
    )


# ------------------------------------------------------------------------------------------ dirichlet


@without_deadline
@given(alpha=st.floats(1e-3, 1e6), seed=st.integers(0, 99))
def test_dirichlet_uses_every_row(alpha, seed):
    parts = partition(LABELS, 3, "dirichlet", seed, dirichlet_alpha=alpha)
    assert_partition(parts, len(LABELS), 3)
    assert_array_equal(np.sort(parts.rows), np.arange(len(LABELS)))


def test_a_large_alpha_divides_classes_evenly_and_a_small_one_does_not():
    labels = shuffled(MNIST)
    even = table(partition(labels, 10, "dirichlet", 0, dirichlet_alpha=1e6), labels)
    assert np.all(np.abs(even - np.array(MNIST) / 10) < 0.01 * np.array(MNIST))
    uneven = table(partition(labels, 10, "dirichlet", 0, dirichlet_alpha=0.05), labels)
    assert np.median(uneven.max(axis=0) / MNIST) > 0.5


def test_dirichlet_shares_have_their_variance():
    """A share is Beta(a, (N-1) a): mean 1/N, variance (N-1) / (N^2 (N a + 1)); 4 clients, 400 seeds, 10 classes."""
    clients, alpha = 4, 0.5
    labels = shuffled([1000] * 10)
    shares = np.array(
        [
            table(partition(labels, clients, "dirichlet", seed, dirichlet_alpha=alpha), labels)[0] / 1000
            for seed in range(400)
        ]
    )
    variance = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert abs(shares.mean() - 1 / clients) < 5 * np.sqrt(variance / shares.size)
    fourth = np.mean((shares - shares.mean()) ** 4)
    assert abs(shares.var() - variance) < 5 * np.sqrt((fourth - variance**2) / shares.size)


# ---------------------------------------------------------------------------------------------- scale


@pytest.mark.parametrize("method", ["iid", "contiguous"])
def test_many_clients(method):
    parts = partition(np.zeros(300_000), 100_000, method, 0)
    assert_array_equal(parts.sizes, 3)


# ----------------------------------------------------------------------------------------------- mixed


def test_mixed_is_a_share_at_random_and_the_rest_of_one_label():
    """Appendix A.4 of Zhang 2023 in small: class counts of what is not the client's own label look like the whole."""
    labels = shuffled([900, 800, 1000, 700])
    parts = partition(labels, 4, "mixed", 3, iid_rows=200, samples_per_client=500)
    counts = table(parts, labels)
    assert_array_equal(counts.sum(1), 500)
    for client, row in enumerate(counts):
        assert row[client] > 300 + 20
        others = np.delete(row, client)
        expected = 200 * np.delete(np.bincount(labels), client) / len(labels)
        assert np.abs(others - expected).max() < 5 * np.sqrt(expected.max())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"iid_rows": 26}, r"iid-rows must be in 0\.\.25"),
        ({"iid_rows": 5, "samples_per_client": 4}, r"samples-per-client must be in 5\.\."),
        ({"iid_rows": 5, "samples_per_client": 60}, r"samples-per-client must be in 5\.\."),
    ],
)
def test_mixed_needs_enough_rows(options, sentence):
    with pytest.raises(SettingError, match=sentence):
        partition(shuffled([25, 25, 25, 25]), 4, "mixed", 0, **options)
