"""A data set as a value: training and test rows, checked at construction, and what the settings of all data share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..arrays import DOUBLE, Index
from ..errors import DataError
from ..problems.interfaces import Batch
from ..settings import Setting, at_least, between, one_of
from .columns import Classes, Marks, Range
from .features import ROW_SCALINGS, Deferred, finite
from .partition import by_group
from .ranges import Unscaled
from .schema import Schema

Floats = NDArray[np.float64]
Labels = NDArray[np.int64] | NDArray[np.float64]
Table = tuple[Floats, Labels]

OWN = "own"  # rows that exist only at the sites: `load_own`
ARRAYS = "arrays"  # arrays passed in by a Python program
TABLES = "tables"  # files with named columns: `sites.load_tables`

Bias = Annotated[bool, Setting("append a column of ones to the features")]
RowNorm = Annotated[
    float,
    Setting("largest norm of a row; longer rows are scaled down to it; 0: no scaling", at_least(0)),
]
RowScaling = Annotated[
    str,
    Setting(
        "what row-norm limits: each row, divided by its own norm if that is larger; or all rows, divided by the "
        "largest norm that the schema allows, so that a linear model is linear in the columns",
        one_of(ROW_SCALINGS),
    ),
]
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


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows. Construction checks the shapes, labels and finiteness, and raises `DataError`.

    features, test_features   (rows, n) and (test rows, n), finite, of type dtype, C-contiguous; or `Deferred`
    labels, test_labels       (rows,) and (test rows,): int64 classes 0..num_classes-1, or finite, of type dtype
                              (there may be no test rows)
    num_classes               0 for regression
    note                      a remark to report with results, such as that another file replaced a missing one
    standardised              whether columns or targets were scaled by statistics of the rows
    sites                     number of rows of each client if the rows are already grouped by client, else ()
    site_names                the names of these clients, such as those of their files, or ()
    schema                    the schema of the table that the features come from, if they come from one
    scaling                   offsets subtracted from the columns, and the divisors applied after, both (n,)
    class_names               the original names of classes 0..num_classes-1
    unscaled                  the rows before scaling if the schema has private ranges; features are then provisional
    dtype                     the type of features, weights and real labels, to which others are converted: a
                              floating-point type, except while a data set is being loaded
    groups                    a number for the group, such as a person, of each training row (rows,); None for none
    row_weights, weight_range the weights of the training rows (rows,) and their public range; None for none. Test rows
                              have no weights
    columns                   the names of the features of rows without a schema, or () for x0, x1, ...
    marks                     which values of the training rows were clipped to the public range of their column, or are
                              missing (`columns.Marks`: rows, `Schema.marked`); None if that is not known
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
    site_names: tuple[str, ...] = ()
    row_weights: Floats | None = None
    weight_range: Range | None = None
    groups: Index | None = None
    marks: Marks | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part in ("", "test_"):
            features, labels = getattr(self, part + "features"), getattr(self, part + "labels")
            if not isinstance(features, Deferred):  # those were checked when they were loaded
                needed = self.name != OWN and not part  # the server of a deployment may have no rows
                if needed or len(labels) or len(features):
                    check_rows(f"{self.name}: {part}", features, labels, self.num_classes)
                object.__setattr__(self, part + "features", np.ascontiguousarray(features, self.dtype))
            kind = np.int64 if self.num_classes else self.dtype
            object.__setattr__(self, part + "labels", np.ascontiguousarray(labels, kind))
        if self.row_weights is not None:
            check_row_weights(self.name, self.row_weights, self.labels, self.weight_range)
            object.__setattr__(self, "row_weights", np.ascontiguousarray(self.row_weights, self.dtype))
        names = self.schema.label.names if self.schema and isinstance(self.schema.label, Classes) else ()
        object.__setattr__(self, "class_names", self.class_names or names or tuple(range(self.num_classes)))
        train, test = self.features.shape[1], self.test_features.shape[1]
        if train != test:
            raise DataError(f"{self.name}: test_features must have {train} columns; got {test}")

    def in_precision(self, dtype: np.dtype[Any]) -> "Dataset":
        """The data set with numbers of this type; the same object if they are of this type already."""
        return self if self.dtype == dtype else replace(self, dtype=dtype)

    def batch(self, rows: Index) -> Batch:
        """These rows with their weights and groups."""
        weights = None if self.row_weights is None else self.row_weights[rows]
        groups = None if self.groups is None else self.groups[rows]
        return Batch(self.features.take(rows, axis=0), self.labels[rows], row_weights=weights, groups=groups)

    def scaled(self, ranges: Sequence[Range]) -> "Dataset":
        """The data set with these ranges in place of the private ones."""
        assert self.unscaled is not None
        features, others = self.unscaled.scaled(ranges)
        schema = self.unscaled.schema.with_ranges(ranges)
        return replace(self, features=features, test_features=others, schema=schema, unscaled=None)


def check_rows(where: str, features: NDArray[Any], labels: NDArray[Any], num_classes: int) -> None:
    """DataError unless the arrays are valid; `where` is the prefix of their names, such as 'mnist: test_'."""
    if features.ndim != 2 or not features.size:
        raise DataError(f"{where}features must have rows and columns; got shape {features.shape}")
    shape = features.shape[:1]
    if labels.shape != shape:
        raise DataError(f"{where}labels must have shape {shape}; got {labels.shape}")
    if not finite(features):
        raise DataError(f"{where}features must be finite; there is NaN or infinity")
    if not finite(labels):
        raise DataError(f"{where}labels must be finite; there is NaN or infinity")
    if num_classes and (labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= num_classes):
        raise DataError(f"{where}labels must be whole numbers from 0 to {num_classes - 1}")


def held_out(
    labels: Labels, fraction: float, draw: Generator, groups: NDArray[Any] | None = None
) -> NDArray[np.bool_]:
    """A random mask (rows,) of round(fraction * rows) rows, stratified by class.

    Rows are shuffled, sorted by class, and selected at even distances, so that a class with r rows contributes
    fraction * r rows, rounded up or down. groups (rows,): the group of every row, such as a person; then groups are
    selected in place of rows, each with its largest label.
    """
    if groups is not None:
        codes, kinds = by_group(groups, labels)
        return held_out(kinds, fraction, draw)[codes]
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    marks = np.floor(np.arange(len(labels) + 1) * fraction + 0.5)
    mask = np.zeros(len(labels), dtype=bool)
    mask[order] = np.diff(marks) > 0
    return mask


def with_features(
    dataset: Dataset, change: Callable[[NDArray[Any]], Any], dtype: np.dtype[Any] = DOUBLE
) -> Dataset:
    """The data set with training and test features changed by a function, and of this type."""
    features, others = change(dataset.features), change(dataset.test_features)
    return replace(dataset, features=features, test_features=others, dtype=dtype)


def standardised(dataset: Dataset) -> Dataset:
    """The data set with columns of mean 0 and standard deviation 1 over the training rows."""
    centre, spread = moments(dataset.features)
    scaled = with_features(dataset, lambda features: (features - centre) / spread)
    first, factor = dataset.scaling or (np.zeros_like(centre), np.ones_like(spread))
    return replace(scaled, standardised=True, scaling=(first + factor * centre, factor * spread))


def moments(train: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of every column, both (n,); 0 and 1 for constant columns, so that they stay as is."""
    centre, spread = train.mean(axis=0), train.std(axis=0)
    varies = (train.min(axis=0) < train.max(axis=0)) & (spread > 0)
    return np.where(varies, centre, 0.0), np.where(varies, spread, 1.0)


def check_row_weights(where: str, weights: NDArray[Any], labels: NDArray[Any], public: Range | None) -> None:
    """DataError unless there is a weight in the public range for every label; `where` is the prefix of their name."""
    if public is None or not public.low >= 0:
        raise DataError(f"{where}: row_weights need weight_range, from 0 on")
    if weights.shape != labels.shape:
        raise DataError(f"{where}: row_weights must have shape {labels.shape}; got {weights.shape}")
    if not ((weights >= public.low) & (weights <= public.high)).all():
        raise DataError(f"{where}: row_weights must be from {public.low:g} to {public.high:g}")
