"""Data sets as tables of numbers: `load_dataset(name, data_dir)` and the list of names, `DATASETS`.

A loader takes a `Source` (the requested name and the options of `load_dataset`) and returns a `Dataset` with the
scaling that is specific to that data set; `load_dataset` then applies the options that all data sets share. To add a
data set, write a loader and add it to `DATASETS` at the end of this module.
"""

import io
import os
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..arrays import DOUBLE
from ..errors import DataError, cause, require
from ..randomness import stream
from ..settings import LARGEST, PROBABILITY, Setting, at_least, between
from .features import Deferred, completed, finite
from .files import (
    PACKED,
    FormatError,
    MissingFileError,
    find,
    look_for,
    read_bytes,
    read_fields,
    read_idx,
    read_libsvm,
)
from .ranges import Unscaled
from .schema import Classes, Range, Schema

Floats = NDArray[np.float64]
Labels = NDArray[np.int64] | NDArray[np.float64]
Table = tuple[Floats, Labels]


# ------------------------------------------------------------------------------------------ the value


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows. Construction checks the shapes, labels and finiteness, and raises `DataError`.

    features, test_features   (rows, n) and (test rows, n), finite, of type dtype, C-contiguous; or `Deferred`
    labels, test_labels       (rows,) and (test rows,): int64 classes 0..num_classes-1, or finite, of type dtype
    num_classes               0 for regression
    note                      a remark to report with results, such as that another file replaced a missing one
    standardised              whether columns or targets were scaled by statistics of the rows
    sites                     number of rows of each client if the rows are already grouped by client, else ()
    schema                    the schema of the table that the features come from, if they come from one
    scaling                   offsets subtracted from the columns, and the divisors applied after, both (n,)
    class_names               the original names of classes 0..num_classes-1
    unscaled                  the rows before scaling if the schema has private ranges; features are then provisional
    dtype                     the type of features and real labels, to which others are converted: a floating-point
                              type, except while a data set is being loaded
    """

    name: str
    features: Floats
    labels: Labels
    test_features: Floats
    test_labels: Labels
    num_classes: int
    note: str = ""
    standardised: bool = False
    sites: tuple[int, ...] = ()
    schema: Schema | None = None
    scaling: tuple[Floats, Floats] | None = None
    class_names: tuple[Any, ...] = ()
    unscaled: Unscaled | None = None
    dtype: np.dtype[Any] = DOUBLE

    def __post_init__(self) -> None:
        for part in ("", "test_"):
            features, labels = getattr(self, part + "features"), getattr(self, part + "labels")
            if not isinstance(features, Deferred):  # those were checked when they were loaded
                if self.name != OWN or len(labels):  # the server of a deployment may have no rows
                    _check_rows(f"{self.name}: {part}", features, labels, self.num_classes)
                object.__setattr__(self, part + "features", np.ascontiguousarray(features, self.dtype))
            kind = np.int64 if self.num_classes else self.dtype
            object.__setattr__(self, part + "labels", np.ascontiguousarray(labels, kind))
        names = self.schema.label.names if self.schema and isinstance(self.schema.label, Classes) else ()
        object.__setattr__(self, "class_names", self.class_names or names or tuple(range(self.num_classes)))
        train, test = self.features.shape[1], self.test_features.shape[1]
        _expect(train == test, f"{self.name}: test_features must have {train} columns; got {test}")

    def in_precision(self, dtype: np.dtype[Any]) -> "Dataset":
        """The data set with numbers of this type; the same object if they are of this type already."""
        return self if self.dtype == dtype else replace(self, dtype=dtype)

    def scaled(self, ranges: Sequence[Range]) -> "Dataset":
        """The data set with these ranges in place of the private ones."""
        assert self.unscaled is not None
        features, others = self.unscaled.scaled(ranges)
        schema = self.unscaled.schema.with_ranges(ranges)
        return replace(self, features=features, test_features=others, schema=schema, unscaled=None)


def _expect(condition: bool, text: str) -> None:
    """Raise `DataError(text)` unless the condition holds."""
    if not condition:
        raise DataError(text)


def _check_rows(where: str, features: NDArray[Any], labels: NDArray[Any], num_classes: int) -> None:
    """DataError unless the arrays are valid; `where` is the prefix of their names, such as 'mnist: test_'."""
    tabular = features.ndim == 2 and features.size > 0
    _expect(tabular, f"{where}features must have rows and columns; got shape {features.shape}")
    shape = features.shape[:1]
    _expect(labels.shape == shape, f"{where}labels must have shape {shape}; got {labels.shape}")
    _expect(finite(features), f"{where}features must be finite; there is NaN or infinity")
    _expect(finite(labels), f"{where}labels must be finite; there is NaN or infinity")
    if num_classes:
        in_range = labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < num_classes
        _expect(in_range, f"{where}labels must be whole numbers from 0 to {num_classes - 1}")


# ------------------------------------------------------------------------------------- loading by name


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
OWN = "own"  # rows that exist only at the sites: `load_own`
ARRAYS = "arrays"  # arrays passed in by a Python program
TABLES = "tables"  # files with named columns: `sites.load_tables`

Bias = Annotated[bool, Setting("append a column of ones to the features")]
RowNorm = Annotated[
    float,
    Setting("largest norm of a row; longer rows are scaled down to it; 0: no scaling", at_least(0)),
]


@dataclass(frozen=True)
class Data:
    """The settings of a data set."""

    name: str = "digits"
    dir: Annotated[
        str, Setting("folder of data files; empty: TWINFLOWER_DATA, or the current folder", unit="path")
    ] = ""
    bias: Bias = True
    row_norm: RowNorm = 1.0
    standardise: Annotated[
        bool, Setting("scale columns to mean 0 and deviation 1; no guarantee covers these statistics")
    ] = False

    def load(self, folder: str = "", dtype: np.dtype[Any] = DOUBLE, deferred: bool = False) -> Dataset:
        """Load the data set in this precision; `folder` is used for files if `dir` is empty; deferred: see
        `load_dataset`. Raises DataError and SettingError."""
        options = {
            "bias": self.bias,
            "row_norm": self.row_norm,
            "standardise": self.standardise,
            "dtype": dtype,
            "deferred": deferred,
        }
        return load_dataset(self.name, self.dir or folder, **options, download=self.downloads)  # type: ignore[arg-type]

    @property
    def downloads(self) -> bool:
        """Whether missing files may be downloaded."""
        return False


@dataclass(frozen=True)
class PublishedData(Data):
    """The settings of a data set that can also be downloaded from OpenML."""

    name: str = "mnist"
    download: Annotated[bool, Setting("fetch absent files from OpenML")] = False

    @property
    def downloads(self) -> bool:
        """Whether missing files may be downloaded."""
        return self.download


SchemaFile = Annotated[
    str, Setting("file that says what the columns of a table are; all sites share it", unit="path")
]
SchemaDigest = Annotated[
    str,
    Setting("identity of the schema, as `twinflower schema --check` prints it; nodes compare it with theirs"),
]


RangeShare = Annotated[
    float,
    Setting(
        "share of a private run's budget for the ranges of columns whose schema says range = private",
        between(0.001, 0.999),
    ),
]


@dataclass(frozen=True)
class TableData:
    """The settings of tables with named columns and a schema; each file is one client, or each value of site-column."""

    name: str = TABLES
    files: Annotated[
        str, Setting("CSV, Parquet or .npz files, one for each client; site-*.csv: all of these", unit="path")
    ] = ""
    schema: SchemaFile = ""
    schema_digest: SchemaDigest = ""
    site_column: Annotated[
        str, Setting("column that names the site of each row of a single file; empty: one file, one client")
    ] = ""
    test_file: Annotated[
        str, Setting("table to test on; empty: a share of the rows of every file", unit="path")
    ] = ""
    test_fraction: Annotated[float, Setting("that share", PROBABILITY)] = 0.2
    range_share: RangeShare = 0.2
    bias: Bias = True
    row_norm: RowNorm = 1.0

    @property
    def num_sites(self) -> int:
        """Number of clients, one per file or per site; 0 if the rows of a single file are not divided yet."""
        from .sites import site_names
        from .tables import table_files

        if self.site_column:
            return len(site_names(self))
        count = len(table_files(self.files))
        return count if count > 1 else 0

    def load(self, folder: str = "", dtype: np.dtype[Any] = DOUBLE, deferred: bool = False) -> Dataset:
        """Load the data set in this precision; `folder` and `deferred` have no effect. Raises DataError and
        SettingError."""
        from .sites import load_tables

        return load_tables(self).in_precision(dtype)


@dataclass(frozen=True)
class ArrayData:
    """The settings for arrays passed in by a Python program, such as by `twinflower.FederatedClassifier`."""

    name: str = ARRAYS
    range_share: RangeShare = 0.2
    bias: Bias = True
    row_norm: RowNorm = 1.0

    def load(self, folder: str = "", dtype: np.dtype[Any] = DOUBLE, deferred: bool = False) -> Dataset:
        """Raise DataError: these rows cannot be loaded by name."""
        raise DataError("data = arrays is available only from Python: use twinflower.FederatedClassifier")


@dataclass(frozen=True)
class OwnData:
    """The settings for rows that exist only at the sites.

    The number of features and the number of classes (0 for regression), or a schema, are public.
    """

    name: str = OWN
    file: Annotated[
        str,
        Setting(
            "rows on which the server evaluates; empty: only the sites do; every node has its own",
            unit="path",
        ),
    ] = ""
    num_features: Annotated[int, Setting("features of a row, without the column of ones", at_least(0))] = 0
    num_classes: Annotated[int, Setting("classes; 0: regression", at_least(0))] = 0
    schema: SchemaFile = ""
    schema_digest: SchemaDigest = ""
    range_share: RangeShare = 0.2
    bias: Bias = True
    row_norm: RowNorm = 1.0


class Entry(NamedTuple):
    """An entry of `DATASETS`: a description for users, the loader, and the number by which the loaded features are
    still to be divided."""

    description: str
    load: Loader
    divisor: int = 1


def load_dataset(
    name: str,
    data_dir: str = "",
    *,
    bias: bool = True,
    row_norm: float = 0.0,
    standardise: bool = False,
    download: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    dtype: np.dtype[Any] = DOUBLE,
    deferred: bool = False,
) -> Dataset:
    """Load a data set of `DATASETS` with its own scaling, then apply standardise, bias and row_norm in this order.

    name           a key of `DATASETS`; for 'libsvm:FILE', FILE is a file name with or without .gz or .bz2
    data_dir       the folder with the files, or with one subfolder per name; '' is the current folder
    standardise    scale columns to mean 0 and standard deviation 1 over the training rows; constant columns
                   do not change. These statistics depend on the data, and the privacy guarantee of a later
                   run does not cover them.
    bias           append a column of ones
    row_norm       R > 0 multiplies each row, including the column of ones, by min(1, R / its Euclidean norm);
                   0 disables this. It uses no statistics of the data, so it can give a sensitivity bound.
    download       download missing files from OpenML (mnist, adult) and cache them in data_dir, or in
                   scikit-learn's own data folder if data_dir is ''
    test_fraction  fraction of each class, in (0, 1), to hold out by `seed` if the set has no test rows
    dtype          the floating-point type of the result; all numbers are computed as doubles and then rounded to it
    deferred       compute features that a file holds as bytes only when rows are taken (`Deferred`)

    Raises `DataError` for an unknown name or a missing or damaged file, and `SettingError` for invalid options.
    """
    require(0 <= row_norm < np.inf, f"data.row-norm must be a number from 0 (off); got {row_norm}")
    require(0 < test_fraction < 1, f"test-fraction must be in (0, 1); got {test_fraction}")
    entry = DATASETS.get(_LIBSVM if name.startswith("libsvm:") and name != "libsvm:" else name)
    if entry is None:
        raise DataError(f"unknown data set {name!r}; known: {', '.join(DATASETS)}")
    dataset = entry.load(Source(name, os.path.expanduser(data_dir), download, test_fraction, seed))
    divisor = entry.divisor
    if standardise:
        dataset, divisor = _standardised(_with_features(dataset, lambda raw: raw / entry.divisor)), 1
    complete = partial(completed, bias=bias, row_norm=row_norm, divisor=divisor, dtype=dtype)
    as_bytes = dataset.features.dtype == dataset.test_features.dtype == np.uint8
    return _with_features(dataset, partial(Deferred, complete) if deferred and as_bytes else complete, dtype)


def load_own(
    path: str, num_features: int, num_classes: int, *, bias: bool = True, row_norm: float = 0.0
) -> Table:
    """A site's own rows: features (rows, num_features, and one more with bias) and labels (rows,).

    path is an .npz file with the arrays `features` and `labels`, or else a LIBSVM file with indices from 1; '' is for
    no rows. Labels are classes 0..num_classes-1, or real numbers if num_classes is 0. bias and row_norm are as in
    `load_dataset`; no step uses statistics of the data. Raises `DataError` for a missing, damaged or unsuitable file.
    """
    if not path:
        return np.empty((0, num_features + bias)), np.zeros(0, dtype=int if num_classes else float)
    file = Path(path).expanduser()
    features, labels = _own_arrays(file) if file.suffix == ".npz" else _own_libsvm(file, num_features)
    _expect(
        features.ndim == 2,
        f"{file}: features must be two-dimensional (rows, columns); got shape {features.shape}",
    )
    columns = features.shape[1]
    _expect(columns == num_features, f"{file} must have {num_features} features; it has {columns}")
    if num_classes and np.all(labels == np.rint(labels)):
        labels = labels.astype(np.int64)
    _check_rows(f"{file}: ", features, labels, num_classes)
    largest = float(np.abs(features).max(initial=0.0))  # with row_norm, too: it differs between runs
    _expect(
        largest <= LARGEST, f"{file} must have features of at most {LARGEST:g} in size; one has {largest:g}"
    )
    return completed(features, bias, row_norm), labels


def _arrays(source: Source) -> Dataset:
    return ArrayData().load()


def _tables(source: Source) -> Dataset:
    raise DataError("data tables needs files and a schema: use twinflower.data.sites.load_tables")


def _own(source: Source) -> Dataset:
    raise DataError(
        "data = own works only on deployed nodes, where each node has its own data-file: start the run with flwr run"
    )


def _own_libsvm(file: Path, num_features: int) -> Table:
    try:
        return read_libsvm([file], num_features, 1)[0]
    except FormatError as error:
        raise DataError(
            f"{file} has no format of a data-file: .npz with arrays features and labels (numpy.savez writes it), or "
            "LIBSVM text, lines 'label index:value ...' with indices from 1. CSV needs a schema. As LIBSVM text: "
            f"{error}"
        ) from error


def _own_arrays(file: Path) -> Table:
    content = read_bytes(file)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            features, labels = arrays["features"], arrays["labels"]
    except (ValueError, KeyError, OSError, zipfile.BadZipFile, AttributeError) as error:
        expected = f"{file} must be an .npz file with arrays features and labels"
        raise DataError(f"{expected} ({cause(error)})") from error
    numeric = features.dtype.kind in "fiu" and labels.dtype.kind in "fiu"
    _expect(numeric, f"{file}: features and labels must be numbers; got {features.dtype} and {labels.dtype}")
    return features, labels


def _with_features(
    dataset: Dataset, change: Callable[[NDArray[Any]], Any], dtype: np.dtype[Any] = DOUBLE
) -> Dataset:
    features, others = change(dataset.features), change(dataset.test_features)
    return replace(dataset, features=features, test_features=others, dtype=dtype)


def _standardised(dataset: Dataset) -> Dataset:
    centre, spread = _moments(dataset.features)
    scaled = _with_features(dataset, lambda features: (features - centre) / spread)
    first, factor = dataset.scaling or (np.zeros_like(centre), np.ones_like(spread))
    return replace(scaled, standardised=True, scaling=(first + factor * centre, factor * spread))


def _moments(train: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of every column, both (n,); 0 and 1 for constant columns, so that they stay as is."""
    centre, spread = train.mean(axis=0), train.std(axis=0)
    varies = (train.min(axis=0) < train.max(axis=0)) & (spread > 0)
    return np.where(varies, centre, 0.0), np.where(varies, spread, 1.0)


def _hold_out(source: Source, features: Floats, labels: Labels, num_classes: int, note: str = "") -> Dataset:
    """Split one table into training and test rows, keeping their order; DataError if either part is empty."""
    kinds = labels if num_classes else np.zeros(len(labels))
    test = held_out(kinds, source.test_fraction, stream(source.seed, "split"))
    text = f"{source.name}: test_fraction {source.test_fraction} of {len(labels)} rows leaves a part empty"
    _expect(0 < test.sum() < len(labels), text)
    rest = ~test
    return Dataset(source.name, features[rest], labels[rest], features[test], labels[test], num_classes, note)


def held_out(labels: Labels, fraction: float, draw: Generator) -> NDArray[np.bool_]:
    """A random mask (rows,) of round(fraction * rows) rows, stratified by class.

    Rows are shuffled, sorted by class, and selected at even distances, so that a class with r rows contributes
    fraction * r rows, rounded up or down.
    """
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    marks = np.floor(np.arange(len(labels) + 1) * fraction + 0.5)
    mask = np.zeros(len(labels), dtype=bool)
    mask[order] = np.diff(marks) > 0
    return mask


# ------------------------------------------------------------------------- embedded in scikit-learn


# A deployed node handles every message in a new process, and importing scikit-learn would take half of its time. So
# tables are read directly from scikit-learn's folder, and its functions are imported only where they are called.


def _digits(source: Source) -> Dataset:
    features, labels = _shipped("digits.csv.gz")
    return _hold_out(source, features / 16, labels, 10)


def _breast_cancer(source: Source) -> Dataset:
    return _standardised(_hold_out(source, *_shipped("breast_cancer.csv", header=1), 2))


def _shipped(file: str, header: int = 0) -> Table:
    """A numeric table from scikit-learn's data folder, whose last column holds the classes."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("this data set is part of scikit-learn, which is not installed")
    path = Path(package.origin).parent / "datasets" / "data" / file
    table = np.loadtxt(io.BytesIO(read_bytes(path)), delimiter=",", skiprows=header)
    return table[:, :-1], table[:, -1].astype(np.int64)


def _diabetes(source: Source) -> Dataset:
    from sklearn import datasets as sklearn_sets  # type: ignore[import-untyped]

    bunch = sklearn_sets.load_diabetes()
    raw = _hold_out(source, bunch.data, bunch.target, 0)
    centre, spread = _moments(raw.labels.astype(np.float64))
    labels, test_labels = ((own - centre) / spread for own in (raw.labels, raw.test_labels))
    return replace(raw, labels=labels, test_labels=test_labels, standardised=True)


# ------------------------------------------------------------------------------------------- OpenML

# Numbers of training and test rows as published. OpenML joins them, MNIST with the training rows first, Adult with the
# test rows first.
PUBLISHED_ROWS = {"mnist": (60_000, 10_000), "adult": (32_561, 16_281)}


def _or_download(from_files: Loader, from_openml: Loader, source: Source) -> Dataset:
    try:
        return from_files(source)
    except MissingFileError as error:
        if not source.download:
            raise MissingFileError(f"{source.name}: {error}, or switch download on") from error
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
    _expect(rows == expected, f"{source.name}: OpenML must deliver {expected} rows; got {rows}")
    return bunch


# -------------------------------------------------------------------------------------------- MNIST

_SIDE = 28  # pixels


def _mnist_files(source: Source) -> Dataset:
    train, test = _mnist_part(source, "train"), _mnist_part(source, "t10k")
    return Dataset(source.name, *train, *test, num_classes=10, dtype=np.dtype(np.uint8))


def _mnist_part(source: Source, part: str) -> tuple[NDArray[Any], Labels]:
    images_file, labels_file = (
        find(source.folders, f"{part}-{kind}-ubyte", f"{part}-{kind.replace('-', '.')}-ubyte")
        for kind in ("images-idx3", "labels-idx1")
    )
    images, labels = read_idx(images_file, (_SIDE, _SIDE)), read_idx(labels_file, ())
    expected = f"{labels_file} must have {len(images)} labels, one for each image of {images_file}"
    _expect(len(images) == len(labels), f"{expected}; got {len(labels)}")
    _expect(labels.max() < 10, f"{labels_file} must hold labels from 0 to 9; got {labels.max()}")
    return images.reshape(len(images), -1), labels.astype(np.int64)


def _mnist_openml(source: Source) -> Dataset:
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


def _adult_files(source: Source) -> Dataset:
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
        value = float(text)
    except ValueError:
        value = np.nan
    _expect(isfinite(value), f"{where} must have a finite number for {name}; row {row} has {text!r}")
    return value


def _dummies(where: str, name: str, column: Sequence[str]) -> Floats:
    """One-hot columns (rows, categories - 1); the first category and '?' are encoded as all zeros."""
    known = _ADULT_CATEGORIES[name]
    codes = _codes(where, name, known, [known[0] if text == "?" else text for text in column])
    return np.equal(codes[:, None], np.arange(1, len(known))).astype(np.float64)


def _codes(where: str, name: str, known: Sequence[str], column: Sequence[str]) -> NDArray[np.int64]:
    """The index (rows,) of each value in the list of known values; DataError for other values."""
    places = {text: place for place, text in enumerate(known)}
    for row, text in enumerate(column, 1):
        if text not in places:
            expected = f"{where} must have one of UCI's {len(known)} values for {name}"
            raise DataError(f"{expected}; row {row} has {text!r}")
    return np.array([places[text] for text in column])


def _adult_openml(source: Source) -> Dataset:
    bunch = _fetch(source, "adult", version=2)
    texts = [_texts(bunch, name) for name in _ADULT_COLUMNS[:-1]]
    rows = list(zip(*texts, bunch.target, strict=True))
    num_test = PUBLISHED_ROWS["adult"][1]
    in_order = float(rows[num_test][2]) == 77516  # fnlwgt of the first row of UCI's adult.data
    _expect(in_order, f"{source.name}: OpenML must deliver the test rows before the training rows")
    test, train = (_adult_table("OpenML's adult", part) for part in (rows[:num_test], rows[num_test:]))
    return Dataset(source.name, *train, *test, num_classes=2, note="from OpenML", class_names=_ADULT_INCOMES)


def _texts(bunch: Any, name: str) -> list[str]:
    """A column of OpenML's table as text, in the format of UCI's files."""
    column = bunch.data[:, bunch.feature_names.index(name)]
    if name not in bunch.categories:
        return [str(value) for value in column]
    return ["?" if np.isnan(code) else bunch.categories[name][int(code)] for code in column]


# ------------------------------------------------------------------------------------------- LIBSVM

_LIBSVM = "libsvm:FILE"
_MOST_CLASSES = 1000  # labels with more distinct integers than this are regression targets
_A6A_ROWS = 11_220


def _libsvm_folders(source: Source) -> list[Path]:
    return [*source.folders, Path(source.data_dir, "libsvm")]


def _libsvm_named(source: Source) -> Dataset:
    file = source.name.partition(":")[2]
    _expect(
        file == Path(file).name, f"{source.name}: FILE must be the name of a file in data.dir, without a path"
    )
    return _libsvm(source, file)


def _libsvm(source: Source, file: str, num_features: int = 0) -> Dataset:
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
    _expect(len(values) > 1, f"{source.name}: labels must have at least two values; all are {values[0]:g}")
    return classes, tuple(map(int, values))


def _a6a(source: Source) -> Dataset:
    """The data set a6a or, if its file is missing, the first 11,220 rows of a9a, with the other rows as test rows."""
    if look_for(_libsvm_folders(source), "a6a"):
        return _libsvm(source, "a6a", num_features=123)
    path = find([*_libsvm_folders(source), Path(source.data_dir, "a9a")], "a6a", "a9a")
    [(features, labels)] = read_libsvm([path], num_features=123)
    expected = f"{path} must have more than {_A6A_ROWS} rows to stand in for a6a"
    _expect(len(labels) > _A6A_ROWS, f"{expected}; got {len(labels)}")
    first, rest = ((features[part], labels[part]) for part in (slice(_A6A_ROWS), slice(_A6A_ROWS, None)))
    note = f"no file a6a: the first {_A6A_ROWS} rows of a9a are its training rows, the others its test rows"
    return _joined(source, first, rest, note)


# ---------------------------------------------------------------------------------------- synthetic


def _linear(source: Source, rows: int = 3000, features: int = 8) -> Dataset:
    """y = <a, w> + 0.1 z with rows a of norm 1 and standard normal w and z. The seed only affects the test split."""
    draw = stream(0, "data")
    a = draw.normal(size=(rows, features))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    labels = a @ draw.normal(size=features) + 0.1 * draw.normal(size=rows)
    return _hold_out(source, a, labels, 0)


# --------------------------------------------------------------------------------------------- list

WITHOUT_FILES = ("digits", "breast-cancer", "diabetes", "linear")
DATASETS: dict[str, Entry] = {
    "digits": Entry("1,797 handwritten digits of 8 x 8 pixels, 10 classes; embedded", _digits),
    "breast-cancer": Entry("569 tumours, 30 standardised measurements, 2 classes; embedded", _breast_cancer),
    "diabetes": Entry("442 patients, 10 measurements, regression; embedded", _diabetes),
    "linear": Entry("3,000 synthetic rows of norm 1, 8 features, regression with noise 0.1", _linear),
    "mnist": Entry(
        "70,000 handwritten digits of 28 x 28 pixels, 10 classes; IDX files",
        partial(_or_download, _mnist_files, _mnist_openml),
        divisor=255,
    ),
    "adult": Entry(
        "48,842 census rows as 81 columns, income over 50K or not; adult.data and adult.test",
        partial(_or_download, _adult_files, _adult_openml),
    ),
    "ijcnn1": Entry(
        "engine data, 22 features, 2 classes; LIBSVM file ijcnn1",
        partial(_libsvm, file="ijcnn1", num_features=22),
    ),
    "a9a": Entry(
        "Adult as 123 binary features, 2 classes; LIBSVM files a9a and a9a.t",
        partial(_libsvm, file="a9a", num_features=123),
    ),
    "a6a": Entry("11,220 rows of a9a; LIBSVM file a6a, or the first rows of a9a", _a6a),
    OWN: Entry("rows that only the nodes of a deployment have", _own),
    ARRAYS: Entry("rows that a Python program hands over", _arrays),
    TABLES: Entry(
        "CSV, Parquet or .npz files with named columns and a schema, one file for each client", _tables
    ),
    _LIBSVM: Entry("any file in LIBSVM format, with FILE.t as its test rows if that exists", _libsvm_named),
}

_SETTINGS: dict[str, type[Data] | type[OwnData] | type[TableData] | type[ArrayData]] = {
    ARRAYS: ArrayData,
    OWN: OwnData, TABLES: TableData, **dict.fromkeys(PUBLISHED_ROWS, PublishedData),
}  # fmt: skip
SOURCES = {name: _SETTINGS.get(name, Data) for name in DATASETS}  # the settings class of each data set
