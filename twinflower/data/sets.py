"""Data sets as tables of numbers: `load_dataset(name, data_dir)` and the list of names, `DATASETS`.

A loader (`builtin`) returns a `Dataset` with the scaling that is specific to that data set; `load_dataset` then applies
the options that all data sets share.
"""

import os
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from ..arrays import DOUBLE
from ..errors import DataError, SettingError
from ..settings import Setting
from . import builtin
from .builtin import LIBSVM, PUBLISHED_ROWS, Loader, Source
from .dataset import (
    ARRAYS,
    OWN,
    TABLES,
    Bias,
    Dataset,
    RangeShare,
    RowNorm,
    RowScaling,
    standardised,
    with_features,
)
from .features import EACH, Deferred, completed
from .sites import OwnData, TableData


@dataclass(frozen=True)
class Data:
    """The settings of a data set."""

    download = False  # a setting of `PublishedData`

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
        return load_dataset(
            self.name, self.dir or folder, bias=self.bias, row_norm=self.row_norm, standardise=self.standardise,
            download=self.download, dtype=dtype, deferred=deferred,
        )  # fmt: skip


@dataclass(frozen=True)
class PublishedData(Data):
    """The settings of a data set that can also be downloaded from OpenML."""

    name: str = "mnist"
    download: Annotated[bool, Setting("fetch absent files from OpenML")] = False


@dataclass(frozen=True)
class ArrayData:
    """The settings for arrays passed in by a Python program, such as by `twinflower.FederatedClassifier`."""

    name: str = ARRAYS
    range_share: RangeShare = 0.2
    bias: Bias = True
    row_norm: RowNorm = 1.0
    row_scaling: RowScaling = EACH

    def load(self, folder: str = "", dtype: np.dtype[Any] = DOUBLE, deferred: bool = False) -> Dataset:
        """Raise DataError: these rows cannot be loaded by name."""
        raise DataError("data = arrays is available only from Python: use twinflower.FederatedClassifier")


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
    if not 0 <= row_norm < np.inf:
        raise SettingError(f"data.row-norm must be a number from 0 (off); got {row_norm}")
    if not 0 < test_fraction < 1:
        raise SettingError(f"test-fraction must be in (0, 1); got {test_fraction}")
    entry = DATASETS.get(LIBSVM if name.startswith("libsvm:") and name != "libsvm:" else name)
    if entry is None:
        raise DataError(f"unknown data set {name!r}; known: {', '.join(DATASETS)}")
    dataset = entry.load(Source(name, os.path.expanduser(data_dir), download, test_fraction, seed))
    divisor = entry.divisor
    if standardise:
        dataset, divisor = standardised(with_features(dataset, lambda raw: raw / entry.divisor)), 1
    complete = partial(completed, bias=bias, row_norm=row_norm, divisor=divisor, dtype=dtype)
    as_bytes = dataset.features.dtype == dataset.test_features.dtype == np.uint8
    return with_features(dataset, partial(Deferred, complete) if deferred and as_bytes else complete, dtype)


def _arrays(source: Source) -> Dataset:
    return ArrayData().load()


def _tables(source: Source) -> Dataset:
    raise DataError("data tables needs files and a schema: use twinflower.data.sites.load_tables")


def _own(source: Source) -> Dataset:
    raise DataError(
        "data = own works only on deployed nodes, where each node has its own data-file: start the run with flwr run"
    )


# --------------------------------------------------------------------------------------------- list

REGRESSIONS = (
    "diabetes",
    "linear",
)  # data sets with real labels, beside files whose labels are not known by name
WITHOUT_FILES = ("digits", "breast-cancer", "diabetes", "linear")
DATASETS: dict[str, Entry] = {
    "digits": Entry("1,797 handwritten digits of 8 x 8 pixels, 10 classes; embedded", builtin.digits),
    "breast-cancer": Entry(
        "569 tumours, 30 standardised measurements, 2 classes; embedded", builtin.breast_cancer
    ),
    "diabetes": Entry("442 patients, 10 measurements, regression; embedded", builtin.diabetes),
    "linear": Entry("3,000 synthetic rows of norm 1, 8 features, regression with noise 0.1", builtin.linear),
    "mnist": Entry(
        "70,000 handwritten digits of 28 x 28 pixels, 10 classes; IDX files",
        partial(builtin.or_download, builtin.mnist_files, builtin.mnist_openml),
        divisor=255,
    ),
    "adult": Entry(
        "48,842 census rows as 81 columns, income over 50K or not; adult.data and adult.test",
        partial(builtin.or_download, builtin.adult_files, builtin.adult_openml),
    ),
    "ijcnn1": Entry(
        "engine data, 22 features, 2 classes; LIBSVM file ijcnn1",
        partial(builtin.libsvm, file="ijcnn1", num_features=22),
    ),
    "a9a": Entry(
        "Adult as 123 binary features, 2 classes; LIBSVM files a9a and a9a.t",
        partial(builtin.libsvm, file="a9a", num_features=123),
    ),
    "a6a": Entry("11,220 rows of a9a; LIBSVM file a6a, or the first rows of a9a", builtin.a6a),
    OWN: Entry("rows that only the nodes of a deployment have", _own),
    ARRAYS: Entry("rows that a Python program hands over", _arrays),
    TABLES: Entry(
        "CSV, Parquet or .npz files with named columns and a schema, one file for each client", _tables
    ),
    LIBSVM: Entry(
        "any file in LIBSVM format, with FILE.t as its test rows if that exists", builtin.libsvm_named
    ),
}

_SETTINGS: dict[str, type[Data] | type[OwnData] | type[TableData] | type[ArrayData]] = {
    ARRAYS: ArrayData,
    OWN: OwnData, TABLES: TableData, **dict.fromkeys(PUBLISHED_ROWS, PublishedData),
}  # fmt: skip
SOURCES = {name: _SETTINGS.get(name, Data) for name in DATASETS}  # the settings class of each data set
