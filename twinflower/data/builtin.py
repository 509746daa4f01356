"""Loaders of the data sets that Twinflower knows by name.

A loader takes a `Source` (the requested name and the options of `sets.load_dataset`) and returns a `Dataset` with the
scaling that is specific to that data set. To add one, write a loader here and add it to `sets.DATASETS`.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..decimals import decimal
from ..errors import DataError, cause, expect
from ..randomness import stream
from .dataset import Dataset, Floats, Labels, Table, held_out, moments, standardised
from .files import (
    PACKED,
    MissingFileError,
    find,
    look_for,
    read_bytes,
    read_fields,
    read_idx,
    read_libsvm,
)


class Source(NamedTuple):
    """The input of a loader: the requested name and the options of `load_dataset`."""

    name: str
    data_dir: str
    download: bool
    test_fraction: float
    seed: int

    @property
    def folders(self) -> list[Path]:
        """data-dir and its subfolder for this name ('libsvm' for 'libsvm:FILE')."""
        return [Path(self.data_dir), Path(self.data_dir, self.name.partition(":")[0])]


Loader = Callable[[Source], Dataset]


def _hold_out(source: Source, features: Floats, labels: Labels, num_classes: int, note: str = "") -> Dataset:
    """Split one table into training and test rows, keeping their order; DataError if either part is empty."""
    kinds = labels if num_classes else np.zeros(len(labels))
    test = held_out(kinds, source.test_fraction, stream(source.seed, "split"))
    text = f"{source.name}: test_fraction {source.test_fraction} of {len(labels)} rows leaves a part empty"
    expect(0 < test.sum() < len(labels), text)
    rest = ~test
    return Dataset(source.name, features[rest], labels[rest], features[test], labels[test], num_classes, note)


# ------------------------------------------------------------------------- embedded in scikit-learn


# A deployed node handles every message in a new process, and importing scikit-learn would take half of its time. So
# tables are read directly from scikit-learn's folder, and its functions are imported only where they are called.


def digits(source: Source) -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels, divided by 16."""
    features, labels = _shipped("digits.csv.gz")
    return _hold_out(source, features / 16, labels, 10)


def breast_cancer(source: Source) -> Dataset:
    """569 tumours with 30 measurements, standardised."""
    return standardised(_hold_out(source, *_shipped("breast_cancer.csv", header=1), 2))


def _shipped(file: str, header: int = 0) -> Table:
    """A numeric table from scikit-learn's data folder, whose last column holds the classes."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("this data set is part of scikit-learn, which is not installed")
    path = Path(package.origin).parent / "datasets" / "data" / file
    table = np.loadtxt(io.BytesIO(read_bytes(path)), delimiter=",", skiprows=header)
    return table[:, :-1], table[:, -1].astype(np.int64)


def diabetes(source: Source) -> Dataset:
    """442 patients with 10 measurements; the target is standardised."""
    from sklearn import datasets as sklearn_sets  # type: ignore[import-untyped]

    bunch = sklearn_sets.load_diabetes()
    raw = _hold_out(source, bunch.data, bunch.target, 0)
    centre, spread = moments(raw.labels.astype(np.float64))
    labels, test_labels = ((values - centre) / spread for values in (raw.labels, raw.test_labels))
    return replace(raw, labels=labels, test_labels=test_labels, standardised=True)


# ------------------------------------------------------------------------------------------- OpenML

# Numbers of training and test rows as published. OpenML joins them, MNIST with the training rows first, Adult with the
# test rows first.
PUBLISHED_ROWS = {"mnist": (60_000, 10_000), "adult": (32_561, 16_281)}


def or_download(from_files: Loader, from_openml: Loader, source: Source) -> Dataset:
    """The data set from its files or, if they are missing and may be downloaded, from OpenML."""
    try:
        return from_files(source)
    except MissingFileError as error:
        if not source.download:
            remedy = "set data.download = true to fetch them from OpenML"
            raise MissingFileError(f"{source.name}: {error}, or {remedy}") from error
    try:
        return from_openml(source)
    except DataError:
        raise
    except Exception as error:  # network, server, cache and parser can fail in many ways
        text = f"{source.name}: the download from OpenML failed ({cause(error)})"
        raise DataError(f"{text}; put the files into data.dir") from error


def _fetch(source: Source, openml_name: str, version: int) -> Any:
    """The data set as scikit-learn's Bunch, cached in data_dir; categories are codes, and missing entries NaN."""
    from sklearn import datasets as sklearn_sets

    with warnings.catch_warnings(action="ignore"):  # retries are announced as warnings
        bunch = sklearn_sets.fetch_openml(
            openml_name,
            version=version,
            data_home=source.data_dir or None,
            as_frame=False,
            parser="liac-arff",  # slow (a minute or so for MNIST), but the other parser needs pandas
        )
    rows, expected = len(bunch.data), sum(PUBLISHED_ROWS[source.name])
    if rows != expected:
        raise DataError(f"{source.name}: OpenML must deliver {expected} rows; got {rows}")
    return bunch


# -------------------------------------------------------------------------------------------- MNIST

_SIDE = 28  # pixels


def mnist_files(source: Source) -> Dataset:
    """MNIST from its four IDX files; pixels are bytes."""
    train, test = _mnist_part(source, "train"), _mnist_part(source, "t10k")
    return Dataset(source.name, *train, *test, num_classes=10, dtype=np.dtype(np.uint8))


def _mnist_part(source: Source, part: str) -> tuple[NDArray[Any], Labels]:
    images_file, labels_file = (
        find(source.folders, f"{part}-{kind}-ubyte", f"{part}-{kind.replace('-', '.')}-ubyte")
        for kind in ("images-idx3", "labels-idx1")
    )
    images, labels = read_idx(images_file, (_SIDE, _SIDE)), read_idx(labels_file, ())
    if len(images) != len(labels):
        expected = f"{labels_file} must have {len(images)} labels, one for each image of {images_file}"
        raise DataError(f"{expected}; got {len(labels)}")
    if not labels.max() < 10:
        raise DataError(f"{labels_file} must hold labels from 0 to 9; got {labels.max()}")
    return images.reshape(len(images), -1), labels.astype(np.int64)


def mnist_openml(source: Source) -> Dataset:
    """MNIST from OpenML; pixels are bytes."""
    bunch = _fetch(source, "mnist_784", version=1)
    features, labels, train = bunch.data, bunch.target.astype(np.int64), PUBLISHED_ROWS["mnist"][0]
    return Dataset(
        source.name, features[:train], labels[:train], features[train:], labels[train:], 10, "from OpenML"
    )


# -------------------------------------------------------------------------------------------- Adult


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ADULT_COLUMNS = _words(
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country income"
)

_ADULT_SCALES = {
    "age": 100,
    "education-num": 16,
    "capital-gain": 100_000,
    "capital-loss": 5_000,
    "hours-per-week": 100,
}

# The values listed in UCI's adult.names, in alphabetical order; the first of each list is encoded as all zeros.
_ADULT_CATEGORIES = {
    "workclass": _words(
        "Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay"
    ),
    "marital-status": _words(
        "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated Widowed"
    ),
    "occupation": _words(
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners "
        "Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support "
        "Transport-moving"
    ),
    "relationship": _words("Husband Not-in-family Other-relative Own-child Unmarried Wife"),
    "race": _words("Amer-Indian-Eskimo Asian-Pac-Islander Black Other White"),
    "sex": _words("Female Male"),
    "native-country": _words(
        "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France Germany "
        "Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica "
        "Japan Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico "
        "Scotland South Taiwan Thailand Trinadad&Tobago United-States Vietnam Yugoslavia"
    ),
}

_ADULT_INCOMES = ("<=50K", ">50K")


def adult_files(source: Source) -> Dataset:
    """Adult from adult.data and adult.test."""
    paths = [find(source.folders, base) for base in ("adult.data", "adult.test")]
    train, test = (_adult_table(str(path), read_fields(path, len(_ADULT_COLUMNS))) for path in paths)
    return Dataset(source.name, *train, *test, num_classes=2, class_names=_ADULT_INCOMES)


def _adult_table(where: str, rows: Sequence[Sequence[str]]) -> Table:
    """UCI's 15 text columns as 81 features (rows, 81) and labels, 1 for '>50K'. Source: the experiments of Li 2024.

    fnlwgt (a census weight) and the textual education (redundant with education-num) are dropped. The five
    numeric columns come first; then every column with c categories becomes c - 1 columns of 0 and 1, 76 in
    total. The first category is encoded as all zeros, and so is a missing value '?', which cannot be
    distinguished from it. The category lists are fixed, so that any number of rows gives the same 81 columns.

    The paper does not state its scaling. Unscaled, capital-gain (up to 99,999) would dominate all other
    columns, so the numeric columns are divided by public constants, not by statistics of the data: age / 100,
    education-num / 16, capital-gain / 100,000, capital-loss / 5,000, hours-per-week / 100. All entries of
    UCI's files are then in [0, 1], and the largest row norm is 3.1 (181 after `standardise`, because of rare
    categories); logistic regression reaches 0.85 test accuracy either way.
    """
    columns = dict(zip(_ADULT_COLUMNS, zip(*rows, strict=True), strict=True))
    numbers = [_scaled(where, name, columns[name]) for name in _ADULT_SCALES]
    dummies = [_dummies(where, name, columns[name]) for name in _ADULT_CATEGORIES]
    incomes = [text.rstrip(".") for text in columns["income"]]  # lines of adult.test end with a full stop
    return np.hstack(numbers + dummies), _codes(where, "income", _ADULT_INCOMES, incomes)


def _scaled(where: str, name: str, column: Sequence[str]) -> Floats:
    """A numeric column (rows, 1), divided by its public constant."""
    numbers = [_number(where, name, row, text) for row, text in enumerate(column, 1)]
    return np.array(numbers)[:, None] / _ADULT_SCALES[name]


def _number(where: str, name: str, row: int, text: str) -> float:
    try:
        value = decimal(text)
    except ValueError:
        value = np.nan
    if not isfinite(value):
        raise DataError(f"{where} must have a finite number for {name}; row {row} has {text!r}")
    return value


def _dummies(where: str, name: str, column: Sequence[str]) -> Floats:
    """One-hot columns (rows, categories - 1); the first category and '?' are encoded as all zeros."""
    known = _ADULT_CATEGORIES[name]
    codes = _codes(where, name, known, [known[0] if text == "?" else text for text in column])
    return np.equal(codes[:, None], np.arange(1, len(known))).astype(np.float64)


def _codes(where: str, name: str, known: Sequence[str], column: Sequence[str]) -> NDArray[np.int64]:
    """The index (rows,) of each value in the list of known values; DataError for other values."""
    codes = {text: code for code, text in enumerate(known)}
    for row, text in enumerate(column, 1):
        if text not in codes:
            expected = f"{where} must have one of UCI's {len(known)} values for {name}"
            raise DataError(f"{expected}; row {row} has {text!r}")
    return np.array([codes[text] for text in column])


def adult_openml(source: Source) -> Dataset:
    """Adult from OpenML."""
    bunch = _fetch(source, "adult", version=2)
    texts = [_texts(bunch, name) for name in _ADULT_COLUMNS[:-1]]
    rows = list(zip(*texts, bunch.target, strict=True))
    num_test = PUBLISHED_ROWS["adult"][1]
    if float(rows[num_test][2]) != 77516:  # fnlwgt of the first row of UCI's adult.data
        raise DataError(f"{source.name}: OpenML must deliver the test rows before the training rows")
    test, train = (_adult_table("OpenML's adult", part) for part in (rows[:num_test], rows[num_test:]))
    return Dataset(source.name, *train, *test, num_classes=2, note="from OpenML", class_names=_ADULT_INCOMES)


def _texts(bunch: Any, name: str) -> list[str]:
    """A column of OpenML's table as text, in the format of UCI's files."""
    column = bunch.data[:, bunch.feature_names.index(name)]
    if name not in bunch.categories:
        return [str(value) for value in column]
    return ["?" if np.isnan(code) else bunch.categories[name][int(code)] for code in column]


# ------------------------------------------------------------------------------------------- LIBSVM

LIBSVM = "libsvm:FILE"
_MOST_CLASSES = 1000  # labels with more distinct integers than this are regression targets
_A6A_ROWS = 11_220


def _libsvm_folders(source: Source) -> list[Path]:
    return [*source.folders, Path(source.data_dir, "libsvm")]


def libsvm_named(source: Source) -> Dataset:
    """The file in the name libsvm:FILE."""
    file = source.name.partition(":")[2]
    if file != Path(file).name:
        raise DataError(f"{source.name}: FILE must be the name of a file in data.dir, without a path")
    return libsvm(source, file)


def libsvm(source: Source, file: str, num_features: int = 0) -> Dataset:
    """The data set in FILE, with the test rows in FILE.t if that exists, else with test rows held out."""
    path = find(_libsvm_folders(source), file)
    test_name = _unpacked_name(file) + ".t"
    test_path = look_for(_libsvm_folders(source), test_name)
    if test_path is not None:
        train, test = read_libsvm([path, test_path], num_features)
        return _joined(source, train, test)
    [(features, labels)] = read_libsvm([path], num_features)
    classes, names = _classes(source, labels)
    note = f"no file {test_name}: {source.test_fraction:g} of the rows are held out for testing"
    return replace(_hold_out(source, features, classes, len(names), note), class_names=names)


def _unpacked_name(file: str) -> str:
    return next((file.removesuffix(ending) for ending in PACKED if file.endswith(ending)), file)


def _joined(source: Source, train: Table, test: Table, note: str = "") -> Dataset:
    """A data set from a training and a test table, with classes numbered consistently over both."""
    rows = len(train[1])
    classes, names = _classes(source, np.concatenate([train[1], test[1]]))
    parts = (train[0], classes[:rows], test[0], classes[rows:])
    return Dataset(source.name, *parts, len(names), note, class_names=names)


def _classes(source: Source, labels: Labels) -> tuple[Labels, tuple[int, ...]]:
    """The labels as classes 0..C-1 with their names, or unchanged and without names for regression.

    Integer labels become classes in ascending order, and their values become the names, unless there are more than
    `_MOST_CLASSES` values. All other labels are regression targets.
    """
    values, classes = np.unique(labels, return_inverse=True)
    if len(values) > _MOST_CLASSES or np.any(values != np.rint(values)):
        return labels, ()
    if not len(values) > 1:
        raise DataError(f"{source.name}: labels must have at least two values; all are {values[0]:g}")
    return classes, tuple(map(int, values))


def a6a(source: Source) -> Dataset:
    """The data set a6a or, if its file is missing, the first 11,220 rows of a9a, with the other rows as test rows."""
    if look_for(_libsvm_folders(source), "a6a"):
        return libsvm(source, "a6a", num_features=123)
    path = find([*_libsvm_folders(source), Path(source.data_dir, "a9a")], "a6a", "a9a")
    [(features, labels)] = read_libsvm([path], num_features=123)
    if not len(labels) > _A6A_ROWS:
        raise DataError(f"{path} must have more than {_A6A_ROWS} rows to stand in for a6a; got {len(labels)}")
    first, rest = ((features[part], labels[part]) for part in (slice(_A6A_ROWS), slice(_A6A_ROWS, None)))
    note = f"no file a6a: the first {_A6A_ROWS} rows of a9a are its training rows, the others its test rows"
    return _joined(source, first, rest, note)


# ---------------------------------------------------------------------------------------- synthetic


def linear(source: Source, rows: int = 3000, features: int = 8) -> Dataset:
    """y = <a, w> + 0.1 z with rows a of norm 1 and standard normal w and z. The seed only affects the test split."""
    draw = stream(0, "data")
    a = draw.normal(size=(rows, features))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    labels = a @ draw.normal(size=features) + 0.1 * draw.normal(size=rows)
    return _hold_out(source, a, labels, 0)
