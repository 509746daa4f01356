"""A site's own rows, in a file without names of columns."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from ..errors import DataError
from ..settings import LARGEST, Setting, at_least
from .dataset import OWN, Bias, RangeShare, RowNorm, RowScaling, SchemaDigest, SchemaFile, Table, check_rows
from .features import EACH, completed
from .files import FormatError, read_arrays, read_libsvm


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
    row_scaling: RowScaling = EACH


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
    if features.ndim != 2:
        raise DataError(
            f"{file}: features must be two-dimensional (rows, columns); got shape {features.shape}"
        )
    columns = features.shape[1]
    if columns != num_features:
        raise DataError(f"{file} must have {num_features} features; it has {columns}")
    if num_classes and np.all(labels == np.rint(labels)):
        labels = labels.astype(np.int64)
    check_rows(f"{file}: ", features, labels, num_classes)
    largest = float(np.abs(features).max(initial=0.0))  # with row_norm, too: it differs between runs
    if not largest <= LARGEST:
        raise DataError(f"{file} must have features of at most {LARGEST:g} in size; one has {largest:g}")
    return completed(features, bias, row_norm), labels


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
    expected = f"{file} must be an .npz file with arrays features and labels"
    features, labels = read_arrays(file, expected, ("features", "labels")).values()
    numeric = features.dtype.kind in "fiu" and labels.dtype.kind in "fiu"
    if not numeric:
        raise DataError(
            f"{file}: features and labels must be numbers; got {features.dtype} and {labels.dtype}"
        )
    return features, labels
