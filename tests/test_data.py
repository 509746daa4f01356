"""Data sets: formats, damage, splits and the order of the options. All files are written here, small."""

import bz2
import gzip
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets
from numpy.testing import assert_allclose, assert_array_equal

from twinflower.data import builtin
from twinflower.data.features import completed
from twinflower.data.sets import ARRAYS, DATASETS, OWN, TABLES, Dataset, load_dataset
from twinflower.data.sites import load_own
from twinflower.errors import DataError, SettingError

PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}
EMBEDDED = {
    "digits": (1797, 64, 10),
    "breast-cancer": (569, 30, 2),
    "diabetes": (442, 10, 0),
    "linear": (3000, 8, 0),
}


def put(folder: Path, name: str, content: bytes | str, ending: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name + ending)
    path.write_bytes(PACK[ending](content.encode() if isinstance(content, str) else content))
    return path


def assert_refused(name: str, folder: Path, *mentioned: str, **options) -> str:
    """The text of the `DataError`: one line that mentions the given words."""
    with pytest.raises(DataError) as caught:
        load_dataset(name, str(folder), **options)
    text = str(caught.value)
    assert "\n" not in text
    for word in mentioned:
        assert word in text
    return text


def same(one: Dataset, other: Dataset) -> bool:
    names = ("features", "labels", "test_features", "test_labels")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


# ------------------------------------------------------------------------------------------ the value


def small(**changes) -> Dataset:
    rows = {"features": np.eye(3), "labels": np.array([0, 1, 2])}
    tests = {"test_features": np.ones((2, 3)), "test_labels": np.array([2, 0])}
    return Dataset(**({"name": "small", "num_classes": 3} | rows | tests | changes))


def test_arrays_take_their_promised_types():
    dataset = small(
        features=np.asfortranarray(np.eye(3, dtype=np.float32)), labels=np.array([0, 1, 2], np.uint8)
    )
    assert dataset.features.dtype == dataset.test_features.dtype == np.float64
    assert dataset.features.flags.c_contiguous
    assert dataset.labels.dtype == dataset.test_labels.dtype == np.int64


def test_regression_targets_are_floats():
    dataset = small(num_classes=0)
    assert dataset.labels.dtype == dataset.test_labels.dtype == np.float64


def test_a_data_set_may_have_no_test_rows():
    dataset = small(test_features=np.ones((0, 3)), test_labels=np.array([], np.int64))
    assert dataset.test_features.shape == (0, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"features": np.diag([1, np.nan, 1])},
        {"test_features": np.full((2, 3), np.inf)},
        {"labels": np.array([0, 1])},
        {"labels": np.array([0, 1, 3])},
        {"labels": np.array([0, 1, -1])},
        {"labels": np.array([0.0, 1.0, 2.0])},
        {"test_labels": np.array([[2, 0]])},
        {"labels": np.array([0.0, np.nan, 1.0]), "num_classes": 0},
        {"features": np.eye(3)[:0], "labels": np.array([], np.int64)},
        {"test_features": np.ones((2, 3)), "test_labels": np.array([], np.int64)},
        {"features": np.ones(3)},
        {"features": np.ones((3, 0)), "test_features": np.ones((2, 0))},
        {"test_features": np.ones((2, 4))},
    ],
)
def test_a_data_set_that_breaks_a_promise_cannot_be_built(changes):
    with pytest.raises(DataError, match="small"):
        small(**changes)


# ------------------------------------------------------------------------------------------- embedded


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_sets_have_their_shapes(name):
    rows, columns, num_classes = EMBEDDED[name]
    dataset = load_dataset(name, bias=False)
    assert len(dataset.features) + len(dataset.test_features) == rows
    assert len(dataset.test_features) == round(0.2 * rows)
    assert dataset.features.shape[1] == columns
    assert dataset.num_classes == num_classes


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_split_depends_on_the_seed_alone(name):
    assert same(load_dataset(name, seed=3), load_dataset(name, seed=3))
    assert not same(load_dataset(name, seed=3), load_dataset(name, seed=4))


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_a_split_is_alike_in_every_class(fraction):
    dataset = load_dataset("digits", test_fraction=fraction)
    test, train = np.bincount(dataset.test_labels), np.bincount(dataset.labels)
    assert np.all(np.abs(test - fraction * (test + train)) < 1)


def test_a_split_loses_and_repeats_nothing():
    dataset = load_dataset("digits", bias=False)
    raw = sklearn.datasets.load_digits()
    both = np.vstack([dataset.features, dataset.test_features])
    labels = np.concatenate([dataset.labels, dataset.test_labels])
    mine, theirs = np.column_stack([both * 16, labels]), np.column_stack([raw.data, raw.target])
    assert_array_equal(mine[np.lexsort(mine.T)], theirs[np.lexsort(theirs.T)])


def test_tables_read_without_scikit_learn_are_those_it_loads():
    for file, header, load in [
        ("digits.csv.gz", 0, sklearn.datasets.load_digits),
        ("breast_cancer.csv", 1, sklearn.datasets.load_breast_cancer),
    ]:
        (features, labels), expected = builtin._shipped(file, header), load()
        assert_array_equal(features, expected.data)
        assert_array_equal(labels, expected.target)


def test_a_split_without_test_rows_is_refused(tmp_path):
    put(tmp_path, "tiny", "1 1:1\n-1 1:2\n")
    assert_refused("libsvm:tiny", tmp_path, "test_fraction", "2 rows", test_fraction=0.1)


def test_breast_cancer_is_standardised_by_its_training_rows():
    dataset = load_dataset("breast-cancer", bias=False)
    assert_allclose(dataset.features.mean(axis=0), 0, atol=1e-12)
    assert_allclose(dataset.features.std(axis=0), 1)
    assert np.abs(dataset.test_features.mean(axis=0)).min() > 1e-6


def test_diabetes_has_standardised_targets():
    dataset = load_dataset("diabetes")
    assert_allclose([dataset.labels.mean(), dataset.labels.std()], [0, 1], atol=1e-12)
    assert abs(dataset.test_labels.mean()) > 1e-6


# -------------------------------------------------------------------------------------------- options


def test_bias_appends_a_column_of_ones():
    plain, biased = load_dataset("digits", bias=False), load_dataset("digits")
    assert_array_equal(biased.features, np.hstack([plain.features, np.ones((len(plain.features), 1))]))
    assert_array_equal(biased.test_features[:, -1], 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bound", [0.5, 4.0, 1e9])
def test_row_norm_shortens_long_rows_and_leaves_short_ones(bias, bound):
    raw, cut = load_dataset("digits", bias=bias), load_dataset("digits", bias=bias, row_norm=bound)
    norms = np.linalg.norm(raw.features, axis=1)
    assert_allclose(np.linalg.norm(cut.features, axis=1), np.minimum(norms, bound), rtol=1e-14)
    assert_array_equal(cut.features[norms <= bound], raw.features[norms <= bound])
    assert_allclose(
        cut.features * norms[:, None], raw.features * np.minimum(norms, bound)[:, None], atol=1e-12
    )


def test_row_norm_keeps_rows_of_zeros(tmp_path):
    put(tmp_path, "zeros", "1 1:0\n-1 1:3\n")
    put(tmp_path, "zeros.t", "1 1:0\n-1 1:3\n")
    assert_array_equal(
        load_dataset("libsvm:zeros", str(tmp_path), bias=False, row_norm=1).features, [[0], [1]]
    )


def test_standardise_uses_training_statistics_and_leaves_constant_columns_alone(tmp_path):
    put(tmp_path, "set", "1 1:2 2:5 3:1\n-1 1:4 2:5 3:2\n1 1:6 2:5 3:6\n")
    put(tmp_path, "set.t", "1 1:4 2:7 3:3\n")
    dataset = load_dataset("libsvm:set", str(tmp_path), standardise=True, bias=False)
    spread = np.sqrt(8 / 3), np.sqrt(14 / 3)
    first, last = np.array([-2, 0, 2]) / spread[0], np.array([-2, -1, 3]) / spread[1]
    assert_allclose(dataset.features, np.column_stack([first, [5, 5, 5], last]))
    assert_allclose(dataset.test_features, [[0, 7, 0]], atol=1e-15)


def test_options_come_in_order_standardise_bias_row_norm():
    raw = load_dataset("digits", bias=False)
    spread = raw.features.std(axis=0)
    centre = np.where(spread > 0, raw.features.mean(axis=0), 0)
    expected = (raw.test_features - centre) / np.where(spread > 0, spread, 1)
    expected = np.hstack([expected, np.ones((len(expected), 1))])
    expected *= np.minimum(1, 2 / np.linalg.norm(expected, axis=1, keepdims=True))
    dataset = load_dataset("digits", standardise=True, row_norm=2.0)
    assert_allclose(dataset.test_features, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "option",
    [{"row_norm": -1.0}, {"row_norm": np.nan}, {"row_norm": np.inf}, {"test_fraction": 0.0}]
    + [{"test_fraction": 1.0}, {"test_fraction": np.nan}, {"seed": -1}],
)
def test_settings_out_of_range_are_named(option):
    with pytest.raises(SettingError, match=next(iter(option)).replace("_", "-")):
        load_dataset("digits", **option)


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    assert_refused("mnits", tmp_path, "mnits", *DATASETS)
    assert_refused("digits:more", tmp_path, *DATASETS)


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {*EMBEDDED, ARRAYS, OWN, TABLES}))
def test_missing_files_are_named_with_the_folders_searched(name, tmp_path):
    text = assert_refused(name, tmp_path, str(tmp_path), str(tmp_path / name.partition(":")[0]), "data-dir")
    assert ("download" in text) == (name in ("mnist", "adult"))


def test_a_name_leads_nowhere_but_into_the_folder(tmp_path):
    (tmp_path / "secret").write_text("hidden:x:0:0")
    (tmp_path / "data").mkdir()
    for name in ("../secret", str(tmp_path / "secret"), "sub/../../secret", "", ".."):
        text = assert_refused(f"libsvm:{name}", tmp_path / "data")
        assert "hidden" not in text


def test_a_folder_is_not_a_file(tmp_path):
    (tmp_path / "ijcnn1").mkdir()
    assert_refused("libsvm:ijcnn1", tmp_path, "no file ijcnn1")


# -------------------------------------------------------------------------------------- MNIST as IDX

RNG = np.random.default_rng(0)
IMAGES = {part: RNG.integers(0, 256, (rows, 28, 28), np.uint8) for part, rows in (("train", 7), ("t10k", 3))}
DIGITS = {part: RNG.integers(0, 10, len(images)).astype(np.uint8) for part, images in IMAGES.items()}
NAMES = [f"{part}-{kind}-ubyte" for part in IMAGES for kind in ("images-idx3", "labels-idx1")]


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def put_mnist(folder: Path, ending: str = "", dotted: bool = False, **changes: np.ndarray) -> None:
    for part in IMAGES:
        arrays = {"images-idx3": IMAGES[part], "labels-idx1": DIGITS[part]}
        for kind, array in arrays.items():
            name = kind.replace("-", ".") if dotted else kind
            put(folder, f"{part}-{name}-ubyte", idx(changes.get(f"{part}_{kind[:6]}", array)), ending)


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("dotted", [True, False])
@pytest.mark.parametrize("sub", ["", "mnist"])
def test_mnist_is_read_under_all_its_names(tmp_path, ending, dotted, sub):
    put_mnist(tmp_path / sub, ending, dotted)
    dataset = load_dataset("mnist", str(tmp_path), bias=False)
    assert dataset.num_classes == 10
    assert_array_equal(dataset.features, IMAGES["train"].reshape(7, 784) / 255)
    assert_array_equal(dataset.test_features, IMAGES["t10k"].reshape(3, 784) / 255)
    assert_array_equal(dataset.labels, DIGITS["train"])
    assert_array_equal(dataset.test_labels, DIGITS["t10k"])


def test_the_home_directory_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    put_mnist(tmp_path / "files")
    assert load_dataset("mnist", "~/files").features.shape == (7, 785)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ending", PACK)
def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path, name, ending):
    put_mnist(tmp_path, ending)
    path = tmp_path / (name + ending)
    whole = path.read_bytes()
    for length in {*range(0, min(40, len(whole))), *range(40, len(whole), 311), len(whole) - 1}:
        path.write_bytes(whole[:length])
        assert_refused("mnist", tmp_path, str(path))


@pytest.mark.parametrize("ending", [".gz", ".bz2"])
def test_a_flipped_byte_ends_in_a_data_error_or_changes_nothing(tmp_path, ending):
    put_mnist(tmp_path, ending)
    good = load_dataset("mnist", str(tmp_path))
    path = tmp_path / (NAMES[2] + ending)
    whole, draw, refused = path.read_bytes(), np.random.default_rng(1), 0
    places = {*range(60), *draw.integers(0, len(whole), 100).tolist(), *range(len(whole) - 20, len(whole))}
    for place in places:
        flip = 1 << int(draw.integers(8))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
        try:  # some header bits, such as gzip's time stamp, mean nothing to us
            assert same(load_dataset("mnist", str(tmp_path)), good)
        except DataError:
            refused += 1
    assert refused > 0.8 * len(places)


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_of_an_idx_header_counts(tmp_path, name):
    put_mnist(tmp_path)
    path = tmp_path / name
    whole = path.read_bytes()
    for place in range(16 if "images" in name else 8):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert_refused("mnist", tmp_path, str(path))


def test_a_header_that_claims_too_much_costs_no_memory(tmp_path):
    put_mnist(tmp_path)
    put(tmp_path, NAMES[0], struct.pack(">4I", 0x0803, 2**32 - 1, 28, 28) + IMAGES["train"].tobytes())
    tracemalloc.start()
    assert_refused("mnist", tmp_path, NAMES[0], str((2**32 - 1) * 784), str(7 * 784))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 2**20


@pytest.mark.parametrize(
    ("changes", "mentioned"),
    [
        ({"train_images": IMAGES["train"][:, :27]}, ["(28, 28)", "(27, 28)"]),
        ({"train_images": DIGITS["train"]}, ["0x00000803", "0x00000801"]),
        ({"train_labels": IMAGES["train"]}, ["0x00000801", "0x00000803"]),
        ({"train_labels": DIGITS["train"][:-1]}, ["7 labels", "got 6"]),
        ({"t10k_labels": np.array([1, 10, 2], np.uint8)}, ["0 to 9", "got 10"]),
        ({"t10k_images": IMAGES["t10k"][:0]}, ["at least one"]),
    ],
)
def test_wrong_idx_content_is_explained(tmp_path, changes, mentioned):
    put_mnist(tmp_path, **changes)
    part, kind = next(iter(changes)).split("_")
    assert_refused("mnist", tmp_path, f"{part}-{kind}", *mentioned)


def test_bytes_after_the_last_image_are_refused(tmp_path):
    put_mnist(tmp_path)
    put(tmp_path, NAMES[0], idx(IMAGES["train"]) + b"\0")
    assert_refused("mnist", tmp_path, NAMES[0], str(7 * 784), str(7 * 784 + 1))


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("twinflower.data.files._LARGEST_BYTES", 2000)
    put_mnist(tmp_path, ".gz")
    assert_refused("mnist", tmp_path, NAMES[0], "2000")


# ---------------------------------------------------------------------------------------------- Adult

# The first rows of UCI's adult.data; then one with missing entries.
ROWS = [
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K",
    "50, Self-emp-not-inc, 83311, Bachelors, 13, Married-civ-spouse, Exec-managerial, Husband, White, Male, 0, 0, "
    "13, United-States, <=50K",
    "52, Self-emp-not-inc, 209642, HS-grad, 9, Married-civ-spouse, Exec-managerial, Husband, White, Male, 0, 0, "
    "45, United-States, >50K",
    "54, ?, 180211, Some-college, 10, Married-civ-spouse, ?, Husband, Asian-Pac-Islander, Male, 0, 1902, 60, ?, >50K",
]
ADULT_NUMBERS = 5


def put_adult(folder: Path, rows: list[str] = ROWS, tests: list[str] = ROWS[2:], ending: str = "") -> None:
    put(folder, "adult.data", "\n".join(rows) + "\n", ending)
    put(folder, "adult.test", "\n".join(tests) + "\n", ending)


def adult(folder: Path, rows: list[str]) -> np.ndarray:
    put_adult(folder, rows)
    return load_dataset("adult", str(folder), bias=False).features


def changed(column: int, text: str, row: int = 0) -> str:
    fields = ROWS[row].split(", ")
    fields[column] = text
    return ", ".join(fields)


@pytest.mark.parametrize("ending", PACK)
def test_adult_has_81_columns_and_its_labels(tmp_path, ending):
    put_adult(tmp_path / "adult", ending=ending)
    dataset = load_dataset("adult", str(tmp_path), bias=False)
    assert dataset.features.shape == (4, 81)
    assert dataset.test_features.shape == (2, 81)
    assert_array_equal(dataset.labels, [0, 0, 1, 1])
    assert_array_equal(dataset.features[2:], dataset.test_features)


def test_one_adult_row_by_hand(tmp_path):
    row = adult(tmp_path, ROWS)[0]
    assert_allclose(row[:ADULT_NUMBERS], [0.39, 13 / 16, 0.02174, 0, 0.4])
    # offsets after 5 numbers: workclass 7, marital-status 6, occupation 13, relationship 5, race 4, sex 1, country 40
    state_gov, never_married, not_in_family, white, male = 5 + 5, 12 + 3, 31 + 0, 36 + 3, 40
    united_states = 41 + 37
    places = [state_gov, never_married, not_in_family, white, male, united_states]
    assert_array_equal(np.flatnonzero(row[ADULT_NUMBERS:]), np.array(places) - ADULT_NUMBERS)


def test_a_question_mark_is_all_zeros(tmp_path):
    missing = changed(1, "?"), changed(6, "?"), changed(13, "?")
    rows = adult(tmp_path, [*ROWS, *missing])
    assert_array_equal(
        rows[4:].sum(axis=1), rows[0].sum() - [1, 0, 1]
    )  # Adm-clerical, the first, is zeros too
    all_missing = ", ".join(["20", "?", "1", "x", "16", *["?"] * 5, "0", "0", "100", "?", "<=50K"])
    assert_allclose(adult(tmp_path, [all_missing])[0], [0.2, 1, 0, 0, 1] + [0] * 76)


def test_dummies_tell_all_categories_apart(tmp_path):
    columns = {name: builtin._ADULT_COLUMNS.index(name) for name in builtin._ADULT_CATEGORIES}
    assert sum(len(known) - 1 for known in builtin._ADULT_CATEGORIES.values()) == 81 - ADULT_NUMBERS
    for name, known in builtin._ADULT_CATEGORIES.items():
        assert list(known) == sorted(known)
        rows = adult(tmp_path, [changed(columns[name], text) for text in known])
        assert len(np.unique(rows, axis=0)) == len(known)
        assert_array_equal(rows[1:, ADULT_NUMBERS:].sum(axis=1), rows[0, ADULT_NUMBERS:].sum() + 1)


def test_fnlwgt_and_textual_education_do_not_matter(tmp_path):
    rows = adult(tmp_path, [ROWS[0], changed(2, "1"), changed(3, "Doctorate")])
    assert_array_equal(rows[1:], rows[[0, 0]])


def test_comments_full_stops_blank_lines_and_line_ends_are_understood(tmp_path):
    put_adult(tmp_path)
    plain = load_dataset("adult", str(tmp_path))
    put(
        tmp_path,
        "adult.test",
        "|1x3 Cross validator\r\n" + "".join(row + ".\r\n" for row in ROWS[2:]) + "\r\n",
    )
    put(tmp_path, "adult.data", "\ufeff" + "\n\n".join(ROWS).replace(", ", ","))
    assert same(load_dataset("adult", str(tmp_path)), plain)


@pytest.mark.parametrize(
    ("line", "mentioned"),
    [
        (changed(1, "Astronaut"), ["workclass", "Astronaut", "8"]),
        (changed(13, "Atlantis"), ["native-country", "Atlantis", "41"]),
        (changed(14, ">60K"), ["income", ">60K"]),
        (changed(14, "?"), ["income", "?"]),
        (changed(0, "old"), ["age", "old"]),
        (changed(0, "?"), ["age", "?"]),
        (changed(10, "nan"), ["capital-gain", "nan"]),
        (changed(12, "inf"), ["hours-per-week", "inf"]),
        (ROWS[0] + ", 1", ["15 columns", "16"]),
        (ROWS[0].rsplit(",", 1)[0], ["15 columns", "14"]),
    ],
)
def test_a_wrong_adult_row_is_named(tmp_path, line, mentioned):
    put_adult(tmp_path, [*ROWS, line])
    assert_refused("adult", tmp_path, str(tmp_path / "adult.data"), " 5 ", *mentioned)


def test_an_adult_file_that_ends_within_a_row_is_refused(tmp_path):
    put_adult(tmp_path)
    whole = (tmp_path / "adult.test").read_bytes()
    for missing in range(2, len(ROWS[3]) + 1):
        (tmp_path / "adult.test").write_bytes(whole[:-missing])
        assert_refused("adult", tmp_path, "adult.test")


@pytest.mark.parametrize("content", [b"", b"\n \n", b"|1x3 Cross validator\n", b"\xff\xfe\x00\x01"])
def test_an_adult_file_without_rows_or_text_is_refused(tmp_path, content):
    put_adult(tmp_path)
    put(tmp_path, "adult.data", content)
    assert_refused("adult", tmp_path, "adult.data")


# --------------------------------------------------------------------------------------------- LIBSVM


def libsvm(features: np.ndarray, labels: np.ndarray, first: int = 1) -> str:
    lines = [
        f"{label:+g} " + " ".join(f"{i + first}:{x!r}" for i, x in enumerate(row.tolist()) if x)
        for row, label in zip(features, labels, strict=True)
    ]
    return "\n".join(lines) + "\n"


def table(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    sparse = draw.normal(size=(rows, columns)) * (draw.random((rows, columns)) < 0.4)
    sparse[0] = 1  # every column occurs
    return sparse


SIGNS = np.resize([-1, 1], 30)


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("written", ["", "with ending"])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("sub", ["", "libsvm"])
def test_libsvm_files_come_back_exactly(tmp_path, ending, written, first, sub):
    train, test = table(30, 6), table(30, 4, seed=1)
    put(tmp_path / sub, "set", libsvm(train, SIGNS, first), ending)
    put(tmp_path / sub, "set.t", libsvm(test, -SIGNS, first), ending)
    dataset = load_dataset("libsvm:set" + (written and ending), str(tmp_path), bias=False)
    assert_array_equal(dataset.features, train)
    assert_array_equal(dataset.test_features, np.pad(test, ((0, 0), (0, 2))))
    assert_array_equal(dataset.labels, SIGNS > 0)
    assert_array_equal(dataset.test_labels, SIGNS < 0)
    assert (dataset.num_classes, dataset.note) == (2, "")


def test_an_index_zero_in_either_file_holds_for_both(tmp_path):
    train, test = table(30, 6), table(30, 6, seed=1)
    test[:, 0] = 0
    put(tmp_path, "set", libsvm(train, SIGNS, first=0))
    put(tmp_path, "set.t", libsvm(test, SIGNS, first=0))
    assert_array_equal(load_dataset("libsvm:set", str(tmp_path), bias=False).test_features, test)


def test_without_a_test_file_rows_are_held_out_and_the_note_says_so(tmp_path):
    put(tmp_path, "set", libsvm(table(30, 6), SIGNS))
    dataset = load_dataset("libsvm:set", str(tmp_path), bias=False)
    assert (len(dataset.features), len(dataset.test_features)) == (24, 6)
    assert "set.t" in dataset.note
    assert "0.2" in dataset.note
    both = np.vstack([dataset.features, dataset.test_features])
    assert_array_equal(np.unique(both, axis=0), np.unique(table(30, 6), axis=0))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([-1, 1, 1], [0, 1, 1]), ([7, 2, 5], [2, 0, 1]), ([0, 1, 0], [0, 1, 0]), ([1, 2, 1], [0, 1, 0])],
)
def test_whole_labels_become_classes_in_ascending_order(tmp_path, labels, classes):
    for name in ("set", "set.t"):
        put(tmp_path, name, libsvm(table(3, 2), np.array(labels)))
    dataset = load_dataset("libsvm:set", str(tmp_path))
    assert_array_equal(dataset.labels, classes)
    assert dataset.num_classes == max(classes) + 1


def test_classes_are_numbered_over_training_and_test_rows(tmp_path):
    put(tmp_path, "set", libsvm(table(3, 2), np.array([1, 5, 5])))
    put(tmp_path, "set.t", libsvm(table(2, 2), np.array([3, 5])))
    dataset = load_dataset("libsvm:set", str(tmp_path))
    assert_array_equal(dataset.labels, [0, 2, 2])
    assert_array_equal(dataset.test_labels, [1, 2])


def test_broken_labels_are_regression_targets(tmp_path):
    targets = np.linspace(-1, 2, 30)
    put(tmp_path, "set", libsvm(table(30, 6), targets))
    dataset = load_dataset("libsvm:set", str(tmp_path))
    assert dataset.num_classes == 0
    both = np.sort(np.concatenate([dataset.labels, dataset.test_labels]))
    assert_allclose(both, targets, atol=1e-5)


def test_very_many_whole_labels_are_regression_targets(tmp_path):
    put(tmp_path, "set", "".join(f"{year} 1:1\n" for year in range(1001)))
    assert load_dataset("libsvm:set", str(tmp_path)).num_classes == 0


@pytest.mark.parametrize(("name", "columns"), [("ijcnn1", 22), ("a9a", 123), ("a6a", 123)])
def test_named_sets_have_their_width_whatever_the_file_shows(tmp_path, name, columns):
    put(tmp_path / name, name, libsvm(table(30, 5), SIGNS))
    assert load_dataset(name, str(tmp_path), bias=False).features.shape == (24, columns)
    put(tmp_path / name, name, libsvm(table(30, columns + 1), SIGNS))
    assert_refused(name, tmp_path, str(tmp_path / name), f"{columns} features", str(columns + 1))


def test_a6a_may_be_the_first_rows_of_a9a(tmp_path):
    rows = 11_230
    lines = [f"{'+1' if i % 4 == 0 else '-1'} {1 + i % 123}:1\n" for i in range(rows)]
    put(tmp_path, "a9a", "".join(lines), ".bz2")
    dataset = load_dataset("a6a", str(tmp_path), bias=False)
    assert_array_equal(dataset.features.argmax(axis=1), np.arange(11_220) % 123)
    assert_array_equal(dataset.test_features.argmax(axis=1), np.arange(11_220, rows) % 123)
    assert_array_equal(dataset.labels, np.arange(11_220) % 4 == 0)
    assert "a9a" in dataset.note
    assert "11220" in dataset.note
    put(tmp_path, "a9a", "".join(lines[:11_220]), ".bz2")
    assert_refused("a6a", tmp_path, "a9a", "11220")


def test_a6a_itself_is_preferred(tmp_path):
    put(tmp_path, "a9a", libsvm(table(30, 6), SIGNS))
    put(tmp_path, "a6a", libsvm(table(20, 6), SIGNS[:20]))
    dataset = load_dataset("a6a", str(tmp_path), bias=False)
    assert len(dataset.features) + len(dataset.test_features) == 20
    assert "a9a" not in dataset.note


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n\n",
        "1\n-1\n",
        "1 1:nan\n-1 1:1\n",
        "1 1:1\n-1 2:-inf\n",
        "nan 1:1\n-1 1:1\n",
        "1 1:1e999\n-1 1:1\n",
        "1 1:one\n-1 1:1\n",
        "1 one:1\n-1 1:1\n",
        "yes 1:1\nno 1:1\n",
        "1 1:1\n-1 1\n",
        "1 1:1\n-1 1:\n",
        "1 1:1 1:2\n-1 1:1\n",
        "1 2:1 1:2\n-1 1:1\n",
        "1 -1:1\n-1 1:1\n",
        "1 99999999999999999999:1\n-1 1:1\n",
        "1,2 1:1\n-1 1:1\n",
        "a,b,c\n1,2,3\n",
        b"\xff\xfe\x00\x01",
        b"1 1:1\x00\n-1 1:1\n",
    ],
)
def test_what_is_not_libsvm_is_refused(tmp_path, content):
    path = put(tmp_path, "set", content)
    assert_refused("libsvm:set", tmp_path, str(path))


def test_labels_that_are_all_the_same_are_refused(tmp_path):
    put(tmp_path, "set", "1 1:1\n1 1:2\n" * 5)
    assert_refused("libsvm:set", tmp_path, "libsvm:set", "two values")


def test_an_absurd_index_costs_no_memory(tmp_path):
    path = put(tmp_path, "set", "1 2147483640:1\n-1 1:1\n")
    tracemalloc.start()
    assert_refused("libsvm:set", tmp_path, str(path), "dense")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 2**20


@pytest.mark.parametrize("ending", [".gz", ".bz2"])
def test_a_truncated_packed_text_is_refused_wherever_it_ends(tmp_path, ending):
    path = put(tmp_path, "set", libsvm(table(30, 6), SIGNS), ending)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert_refused("libsvm:set", tmp_path, str(path))


def test_a_damaged_test_file_is_not_replaced_by_a_split(tmp_path):
    put(tmp_path, "set", libsvm(table(30, 6), SIGNS))
    path = put(tmp_path, "set.t", "")
    assert_refused("libsvm:set", tmp_path, str(path))


# ------------------------------------------------------------------------------------------- download


def as_openml(lines: list[str]) -> SimpleNamespace:
    """UCI lines in the layout of fetch_openml(as_frame=False, parser='liac-arff'): codes, NaN if missing."""
    columns = list(zip(*(line.split(", ") for line in lines), strict=True))
    data, categories = [], {}
    for name, column in zip(builtin._ADULT_COLUMNS[:-1], columns, strict=False):
        if name in builtin._ADULT_CATEGORIES or name == "education":
            known = categories[name] = sorted(set(column) - {"?"}, reverse=True)
            data.append([np.nan if text == "?" else known.index(text) for text in column])
        else:
            data.append([float(text) for text in column])
    names, target = list(builtin._ADULT_COLUMNS[:-1]), np.array(columns[-1], object)
    return SimpleNamespace(data=np.array(data).T, target=target, categories=categories, feature_names=names)


@pytest.fixture
def openml(monkeypatch):
    """A stand-in for OpenML: set `answer` to a bunch or an exception; `calls` records the arguments."""
    stand_in = SimpleNamespace(answer=None, calls=[])

    def fetch(*args, **options):
        stand_in.calls.append((args, options))
        if isinstance(stand_in.answer, Exception):
            raise stand_in.answer
        return stand_in.answer

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    monkeypatch.setattr(builtin, "PUBLISHED_ROWS", {"mnist": (7, 3), "adult": (4, 2)})
    return stand_in


def test_downloaded_adult_equals_the_files(tmp_path, openml):
    openml.answer = as_openml([*ROWS[2:], *ROWS])
    downloaded = load_dataset("adult", str(tmp_path), download=True)
    put_adult(tmp_path)
    assert same(downloaded, load_dataset("adult", str(tmp_path)))
    assert "OpenML" in downloaded.note
    [(args, options)] = openml.calls
    assert (args, options["version"], options["data_home"]) == (("adult",), 2, str(tmp_path))


def test_downloaded_mnist_equals_the_files(tmp_path, openml):
    images = np.vstack([IMAGES["train"], IMAGES["t10k"]]).reshape(10, 784).astype(np.float64)
    digits = np.concatenate([DIGITS["train"], DIGITS["t10k"]]).astype(str).astype(object)
    openml.answer = SimpleNamespace(data=images, target=digits)
    downloaded = load_dataset("mnist", str(tmp_path), download=True)
    put_mnist(tmp_path)
    assert same(downloaded, load_dataset("mnist", str(tmp_path)))


@pytest.mark.parametrize("name", ["mnist", "adult"])
def test_files_that_are_there_are_not_downloaded(tmp_path, openml, name):
    put_mnist(tmp_path)
    put_adult(tmp_path)
    load_dataset(name, str(tmp_path), download=True)
    assert openml.calls == []


@pytest.mark.parametrize("name", ["mnist", "adult"])
def test_files_that_are_absent_name_the_setting_that_fetches_them(tmp_path, name):
    assert_refused(name, tmp_path, "set data.dir (--data-dir)", "set data.download = true")


def test_a_damaged_file_is_not_replaced_by_a_download(tmp_path, openml):
    put_adult(tmp_path, ["damaged"])
    assert_refused("adult", tmp_path, "adult.data", download=True)
    assert openml.calls == []


@pytest.mark.parametrize("name", ["mnist", "adult"])
@pytest.mark.parametrize(
    "failure", [URLError("no network"), TimeoutError(), ValueError("no\ndata set"), KeyError("class")]
)
def test_a_failing_download_is_one_sentence(tmp_path, openml, name, failure):
    openml.answer = failure
    assert_refused(name, tmp_path, name, "OpenML", "data.dir", download=True)


def test_a_download_of_other_rows_is_refused(tmp_path, openml):
    openml.answer = as_openml(ROWS)
    assert_refused("adult", tmp_path, "6 rows", "got 4", download=True)
    openml.answer = as_openml([*ROWS, *ROWS[2:]])
    assert_refused("adult", tmp_path, "test rows before the training rows", download=True)
    openml.answer.feature_names = ["other"]
    assert_refused("adult", tmp_path, "OpenML", download=True)


def test_replacing_a_field_checks_again():
    with pytest.raises(DataError, match="labels"):
        replace(small(), num_classes=2)


# ------------------------------------------------------------------------------------ a site's own rows


def test_own_rows_come_from_arrays_or_libsvm(tmp_path):
    features, labels = np.array([[3.0, 4.0], [0.0, 0.5]]), np.array([1, 0])
    np.savez(tmp_path / "site.npz", features=features, labels=labels)
    (tmp_path / "site.txt").write_text("1 1:3 2:4\n0 2:0.5\n")
    for name in ("site.npz", "site.txt"):
        rows, classes = load_own(str(tmp_path / name), 2, 2, row_norm=1.0)
        assert_allclose(rows, [[3 / 26**0.5, 4 / 26**0.5, 1 / 26**0.5], [0, 0.5 / 1.25**0.5, 1 / 1.25**0.5]])
        assert_array_equal(classes, labels)
    plain, numbers = load_own(str(tmp_path / "site.npz"), 2, 0, bias=False)
    assert_array_equal(plain, features)
    assert numbers.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"features": np.ones((3, 2))}, "arrays features and labels"),
        ({"features": np.ones((3, 4)), "labels": np.zeros(3)}, "must have 2 features; it has 4"),
        ({"features": np.ones(3), "labels": np.zeros(3)}, "features must be two-dimensional"),
        ({"features": np.ones((3, 2)), "labels": np.zeros(2)}, "labels must have shape"),
        ({"features": np.full((3, 2), np.nan), "labels": np.zeros(3)}, "finite"),
        ({"features": np.ones((3, 2)), "labels": np.array([0, 1, 2])}, "from 0 to 1"),
        ({"features": np.ones((3, 2)), "labels": np.array([0, 0.5, 1])}, "from 0 to 1"),
        ({"features": np.array([["a", "b"]]), "labels": np.zeros(1)}, "must be numbers"),
        ({"features": np.array([[None, 1]]), "labels": np.zeros(1)}, "arrays features and labels"),
    ],
)
def test_own_rows_that_are_wrong_are_refused(tmp_path, arrays, sentence):
    np.savez(tmp_path / "site.npz", **arrays)
    with pytest.raises(DataError, match=sentence) as caught:
        load_own(str(tmp_path / "site.npz"), 2, 2)
    assert "site.npz" in str(caught.value)


def test_own_rows_of_a_file_that_is_no_archive(tmp_path):
    (tmp_path / "site.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataError, match="arrays features and labels"):
        load_own(str(tmp_path / "site.npz"), 2, 2)
    with pytest.raises(DataError, match="absent"):
        load_own(str(tmp_path / "absent.npz"), 2, 2)


def test_one_record_with_index_zero_moves_nobody_elses_columns(tmp_path):
    """Of a site's own LIBSVM file the first index is 1, or one person's record decides where all columns lie."""
    others = "1 1:3 2:4\n0 2:0.5\n"
    (tmp_path / "site.txt").write_text(f"# patients\n\n{others}1 0:7 1:1\n1 1:1\n")
    with pytest.raises(DataError, match=r"site.txt must have indices from 1; line 5 has a lower one"):
        load_own(str(tmp_path / "site.txt"), 2, 2)
    for record in ("1 1:7 2:1", "0 2:7"):
        (tmp_path / "site.txt").write_text(f"{others}{record}\n")
        rows, _ = load_own(str(tmp_path / "site.txt"), 2, 2, bias=False)
        assert_array_equal(rows[:2], [[3, 4], [0, 0.5]])


@pytest.mark.parametrize("word", ["0:1", "00:1", "+0:1", "0:0", "qid:3 0:1"])
def test_index_zero_is_refused_however_it_is_written(tmp_path, word):
    (tmp_path / "site.txt").write_text(f"1 1:1\n1 {word}\n")
    with pytest.raises(DataError, match="line 2 has a lower one"):
        load_own(str(tmp_path / "site.txt"), 2, 2)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("site.csv", "age,dose,label\n61,0.5,1\n48,0.1,0\n"),
        ("site.tsv", "61\t0.5\t1\n"),
        ("site.json", '{"features": []}'),
    ],
)
def test_a_site_is_told_which_formats_there_are(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as error:
        load_own(str(tmp_path / name), 2, 2)
    told = str(error.value)
    for word in (
        name,
        ".npz with arrays features and labels",
        "LIBSVM text",
        "label index:value",
        "CSV needs a schema",
    ):
        assert word in told
    assert "\n" not in told
    with pytest.raises(DataError, match=f"{tmp_path / 'absent.csv'} cannot be read") as error:
        load_own(str(tmp_path / "absent.csv"), 2, 2)
    assert "CSV" not in str(error.value)


# ------------------------------------------------------------------------------------ block by block


def at_once(features, bias, row_norm, divisor):
    """What `completed` returns, computed without blocks."""
    whole = features / divisor
    whole = np.hstack([whole, np.ones((len(whole), 1))]) if bias else whole
    lengths = np.linalg.norm(whole, axis=1, keepdims=True)
    return whole * (row_norm / np.maximum(lengths, row_norm)) if row_norm else whole


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("row_norm", [0.0, 2.0])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("block", [1, 40, 10**9])
def test_blocks_of_rows_give_the_bits_of_the_whole_table(monkeypatch, bias, row_norm, kind, dtype, block):
    monkeypatch.setattr("twinflower.data.features._BLOCK", block)
    features = np.random.default_rng(1).integers(0, 256, (50, 9)).astype(kind)
    result = completed(features, bias, row_norm, 255, np.dtype(dtype))
    assert result.dtype == dtype
    assert result.flags.c_contiguous
    assert_array_equal(result, at_once(features, bias, row_norm, 255).astype(dtype))


def test_a_table_is_completed_in_the_memory_of_its_result():
    features = np.ones((20_000, 99), np.uint8)
    tracemalloc.start()
    try:
        result = completed(features, True, 1.0, 255)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * result.nbytes


@pytest.mark.parametrize("place", [0, 25, 49])
def test_no_block_is_left_unchecked(monkeypatch, place):
    monkeypatch.setattr("twinflower.data.features._BLOCK", 20)
    features = np.ones((50, 3))
    features[place] = np.inf
    with pytest.raises(DataError, match="features must be finite"):
        small(features=features, labels=np.zeros(50, int))


def test_mnist_is_scaled_and_standardised_as_numbers_from_0_to_1(tmp_path):
    put_mnist(tmp_path)
    images = IMAGES["train"].reshape(7, 784) / 255
    standard = load_dataset("mnist", str(tmp_path), standardise=True, bias=False)
    centre, spread = standard.scaling
    varies = images.min(0) < images.max(0)
    assert_allclose(centre[varies], images.mean(0)[varies])
    assert_array_equal(standard.features, (images - centre) / spread)
    single = load_dataset("mnist", str(tmp_path), row_norm=1.0, dtype=np.dtype(np.float32))
    double = load_dataset("mnist", str(tmp_path), row_norm=1.0)
    assert_array_equal(single.features, double.features.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"row_norm": 1.0}], ids=str)
def test_deferred_features_are_those_of_the_whole_table(tmp_path, options, dtype):
    put_mnist(tmp_path)
    whole, lazy = (
        load_dataset("mnist", str(tmp_path), **options, dtype=np.dtype(dtype), deferred=deferred)
        for deferred in (False, True)
    )
    rows = np.array([[2, 0, 6], [1, 1, 5]])
    for found, wanted in (
        (lazy.features.take(rows, axis=0), whole.features[rows]),
        (np.asarray(lazy.features), whole.features),
        (np.asarray(lazy.test_features), whole.test_features),
    ):
        assert_array_equal(found, wanted)
        assert found.dtype == wanted.dtype == lazy.features.dtype == dtype
    assert lazy.features.shape == whole.features.shape
    assert_array_equal(lazy.labels, whole.labels)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["diabetes", "digits"])
def test_only_features_in_bytes_are_deferred(name, dtype):
    whole, same = (load_dataset(name, dtype=np.dtype(dtype), deferred=deferred) for deferred in (False, True))
    for part in ("features", "labels", "test_features", "test_labels"):
        assert_array_equal(getattr(same, part), getattr(whole, part), strict=True)


def test_deferred_features_keep_the_bytes_of_the_file(tmp_path):
    put_mnist(tmp_path)
    assert load_dataset("mnist", str(tmp_path), row_norm=1.0, deferred=True).features.raw.dtype == np.uint8


def test_deferred_features_are_checked_when_they_are_loaded(tmp_path):
    put(tmp_path, "set", "1 1:nan 2:2\n2 1:1 2:1\n")
    with pytest.raises(DataError):
        load_dataset("libsvm:set", str(tmp_path), deferred=True)
