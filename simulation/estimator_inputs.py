"""How the scikit-learn estimators turn X into features: arrays by ranges, tables by a schema made of their parameters.

A table is a data frame, or a dictionary of columns. Its schema is like that of a file (`twinflower.data.schema`), so
texts, missing values and private ranges mean the same in both.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from twinflower.arrays import Array, Index, Mask
from twinflower.data.cells import CellError, is_missing, numbers
from twinflower.data.columns import ROUNDING, Number, Range, Target
from twinflower.data.ranges import Bins, Unscaled
from twinflower.data.schema import MISSING_TEXTS, PRIVATE, Schema
from twinflower.data.schema_file import make_schema
from twinflower.errors import SettingError, require
from twinflower.models.inputs import Inputs
from twinflower.settings import LARGEST, alike

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # in scikit-learn 1.5 it is a method of the estimator

    def validate_data(estimator: Any, *arrays: Any, **options: Any) -> Any:
        """Return X, or X and y, after scikit-learn's validation."""
        return estimator._validate_data(*arrays, **options)


_MOST = 10**8  # numbers of a sparse X that is made dense, 0.8 GB
_MISSING_TEXTS = [*MISSING_TEXTS, "<NA>", "NaT"]  # the last two are missing values of pandas


def plain(value: Any) -> Any:
    """The value with numbers and arrays of NumPy as Python's own, which settings and messages need."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return {key: plain(own) for key, own in value.items()} if isinstance(value, Mapping) else value


def dense(X: Any) -> Any:
    """X, as an array if it is a sparse matrix; SettingError if that would be too large."""
    if not sparse.issparse(X):
        return X
    numbers = int(np.prod(X.shape, dtype=object))
    if not numbers <= _MOST:
        raise SettingError(
            f"a sparse X is made dense, which is done up to {_MOST:,} numbers; got {numbers:,}, of shape {X.shape}: "
            "reduce its columns first, for example with TruncatedSVD"
        )
    return X.toarray()


def is_table(X: Any) -> bool:
    """Whether X has named columns."""
    return hasattr(X, "columns") or isinstance(X, Mapping)


def table(X: Any) -> dict[str, NDArray[Any]]:
    """The columns of a table by their names; SettingError unless X is one, and all names are texts."""
    if not is_table(X):
        raise SettingError(
            "ranges by column, categories, missing and terms need columns with names: X must be a data frame or a "
            f"dictionary; got {type(X).__name__}"
        )
    names = list(X.columns if hasattr(X, "columns") else X)
    for name in names:
        if not isinstance(name, str):
            raise SettingError(f"the names of X's columns must be texts; got {plain(name)!r}")
    if len({*names}) != len(names):
        raise SettingError(f"X must not have two columns of the same name; got {', '.join(names)}")
    columns = {name: np.asarray(X[name]) for name in names}
    lengths = {len(own) for own in columns.values()}
    require(len(lengths) == 1, "X must have columns, all with the same number of rows")
    return columns


def validated(estimator: Any, X: Any, y: Any, **options: Any) -> tuple[Array, NDArray[Any]]:
    """X (rows, columns) and y after scikit-learn's validation; SettingError for a table of other columns."""
    try:
        return validate_data(estimator, X, y, dtype=np.float64, **options)  # type: ignore[no-any-return]
    except (ValueError, TypeError) as error:
        if not is_table(X):
            raise
        raise SettingError(
            f"{_not_numbers(X)}{str(error).splitlines()[0].rstrip('.')}: columns of texts need "
            'categories={column: [...]}, missing values need missing="zero" or "indicator", and dates must be made '
            "numbers first"
        ) from None


def _not_numbers(X: Any) -> str:
    """The beginning of a message that names the columns of a table that do not hold numbers; empty if all do."""
    found = [name for name in X if np.asarray(X[name]).dtype.kind not in "biuf"]
    return f"X has columns that do not hold numbers ({', '.join(map(str, found))}): " if found else ""


# --------------------------------------------------------------------------------------------- arrays


def array_inputs(X: Array, ranges: Any, norms: Mapping[str, Any], names: Sequence[str] = ()) -> Inputs:
    """The scaling of the columns (rows, columns) from their ranges to [-1, 1]; none for private ranges.

    ranges: (low, high), "private", or None for those of X. norms: row_norm and row_scaling of the inputs.
    names: of the columns, if they have different ones.
    """
    inputs = Inputs(X.shape[1], columns=tuple(names) if len({*names}) == X.shape[1] else (), **norms)
    if isinstance(ranges, str):
        return inputs
    low, high = (X.min(0), X.max(0)) if ranges is None else pairs(ranges, X.shape[1])
    half = np.where(high > low, high / 2 - low / 2, 1.0)
    return replace(inputs, centre=low / 2 + high / 2, spread=half, clipped=ranges is not None)


def pairs(given: Any, columns: int, name: str = "ranges") -> tuple[Array, Array]:
    """The lowest and the highest value of each column, both (columns,); SettingError for invalid ranges.

    name: of the parameter that gives them.
    """
    try:
        low, high = (np.broadcast_to(np.asarray(own, dtype=np.float64), columns) for own in given)
    except (ValueError, TypeError):
        low = high = np.zeros(columns)
    if not (np.isfinite([low, high]).all() and (low < high).all()):
        each = f" for each of {columns} columns" if columns > 1 else ""
        raise SettingError(f"{name} must be (low, high) with low < high{each}; got {plain(given)!r}")
    return low, high


# --------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Columns:
    """The parameters of an estimator that describe the columns of a table; see `FederatedClassifier`."""

    ranges: Any
    categories: Mapping[str, Sequence[Any]]
    missing: str
    terms: Sequence[str] = ()

    def inputs(
        self, X: Mapping[str, NDArray[Any]], label: Mapping[str, Any], norms: Mapping[str, Any]
    ) -> Inputs:
        """The encoding of the table X.

        label: the classes or the range of y, as in the file of a schema. norms: as in `array_inputs`.
        """
        names = list(X)
        for parameter in ("categories", "ranges"):
            _check_known(parameter, getattr(self, parameter), names)
        document = {
            "missing-values": _MISSING_TEXTS,
            "label": plain({"column": unused(names, "y"), **label}),
            "columns": plain(self._documents(X, names)),
            "terms": list(self.terms),
        }
        schema = make_schema(document)
        return Inputs(len(schema.features), schema, **norms)

    def _documents(self, X: Mapping[str, NDArray[Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What a schema says about each column."""
        numeric = [name for name in names if name not in self.categories]
        kinds = {name: {"categories": list(own)} for name, own in self.categories.items()}
        kinds |= {name: {"range": own} for name, own in self._ranges(X, numeric).items()}
        return {name: {**kinds[name], "missing": self.missing} for name in names}

    def _ranges(self, X: Mapping[str, NDArray[Any]], names: Sequence[str]) -> dict[str, Any]:
        """The range of each of these columns: [low, high] or "private"."""
        if isinstance(self.ranges, Mapping):
            absent = [name for name in names if name not in self.ranges]
            if absent:
                raise SettingError(
                    f"column {absent[0]!r} has neither a range nor categories: give it one, or leave it out of X"
                )
            return {name: _listed(self.ranges[name]) for name in names}
        if isinstance(self.ranges, str):
            return dict.fromkeys(names, self.ranges)
        if self.ranges is None:
            return {name: _found(name, X[name]) for name in names}
        low, high = pairs(self.ranges, len(names))
        return dict(zip(names, np.stack([low, high], axis=1).tolist(), strict=True))


def _check_known(parameter: str, given: Any, names: Sequence[str]) -> None:
    """SettingError if the parameter names a column that X does not have."""
    for name in given if isinstance(given, Mapping) else ():
        if name not in names:
            raise SettingError(
                f"{parameter} names a column {plain(name)!r} that X does not have{alike(name, names)}"
            )


def unused(names: Collection[str], name: str) -> str:
    """The name, with underscores if a column has it."""
    while name in names:
        name += "_"
    return name


def _listed(own: Any) -> Any:
    """A range as a schema has it, with floats."""
    try:
        return own if isinstance(own, str) else [float(bound) for bound in own]
    except (ValueError, TypeError):
        return own


def _found(name: str, column: NDArray[Any]) -> list[float]:
    """The range of the numbers in a column."""
    try:
        values = numbers(column, frozenset(_MISSING_TEXTS))
    except CellError as error:
        raise SettingError(
            f"column {name!r}, {error.cell}: for a column of texts give categories={{{name!r}: [...]}}"
        ) from None
    known = values[~np.isnan(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    return [low, high] if low < high else [low - 1.0, high + 1.0]


# ------------------------------------------------------------------------------------- private ranges


def unscaled(X: Any, inputs: Inputs) -> Unscaled | None:
    """The rows X before scaling if some columns have private ranges, else None."""
    if inputs.schema is None:
        if inputs.centre is not None:
            return None
        schema = Schema(tuple(Number(name, None) for name in inputs.names), Target("y", Range(-1.0, 1.0)))
    else:
        schema = inputs.schema
        if not schema.private:
            return None
    rows = inputs.encoded(X)
    return Unscaled(schema, rows, rows, inputs.completed)


def counted(values: Array) -> tuple[Range, ...]:
    """The ranges that private ranges of these columns (rows, columns) would be without noise."""
    bins = Bins.for_noise(0.0)
    return bins.holding_ranges(bins.counts(values))


def scaled_by(inputs: Inputs, ranges: Sequence[Range]) -> Inputs:
    """The inputs with these ranges in place of the private ones."""
    if inputs.schema:
        return replace(inputs, schema=inputs.schema.with_ranges(ranges))
    centre, spread = (np.array(own) for own in zip(*((r.middle, r.half) for r in ranges), strict=True))
    return replace(inputs, centre=centre, spread=spread, clipped=True)


def check_ranges(ranges: Any, private: bool) -> None:
    """SettingError for a private fit without ranges, or for a text other than "private"."""
    if ranges is None and private:
        raise SettingError(
            "with epsilon the ranges of the columns must be public: give ranges=(low, high), two numbers or two arrays "
            f'of one for each column, ranges={{column: (low, high)}}, or "{PRIVATE}"; those of the data are not '
            "covered by the guarantee"
        )
    if isinstance(ranges, str) and ranges != PRIVATE:
        raise SettingError(
            f'ranges must be (low, high) or "{PRIVATE}"; got {ranges!r}{alike(ranges, [PRIVATE])}'
        )


# -------------------------------------------------------------------------- sites, groups and weights


def centred(y: Array, public: Any, private: bool) -> tuple[float, float]:
    """The midpoint and half the width of the range of targets y (rows,); SettingError for an invalid range.

    public: (low, high), or None for the range of y, which a private fit refuses.
    """
    require(
        public is not None or not private,
        "with epsilon the range of y must be public: give target_range=(low, high)",
    )
    ends = (y.min(), y.max()) if public is None else pairs(public, 1, "target_range")
    low, high = (float(np.min(end)) for end in ends)
    return low / 2 + high / 2, high / 2 - low / 2 or 1.0


def limited(
    y: NDArray[Any], has_range: bool, given: Any, weights: Array | None, names: Collection[str]
) -> tuple[NDArray[Any], dict[str, Mask]]:
    """The labels (rows,), clipped to [-1, 1] if they have a range, and which labels and weights were clipped.

    weights: those of `weighted`, given as `given`. names: of the columns.
    """
    outside = {}
    if weights is not None:
        outside[unused(names, "sample_weight")] = weights != np.asarray(given, dtype=np.float64)
    if not has_range:
        return y, outside
    return np.clip(y, -1.0, 1.0), {unused(names, "y"): np.abs(y) > 1 + ROUNDING, **outside}


def weighted(given: Any, rows: int, public: Any, private: bool) -> tuple[Array | None, Range | None]:
    """The weights (rows,), clipped to their range, and this range; None without weights. SettingError for invalid ones.

    given: one for each row, or a number. public: (low, high), or None for the range of the weights.
    """
    if given is None:
        return None, None
    require(
        public is not None or not private,
        "with epsilon the range of sample_weight must be public: give weight_range=(low, high)",
    )
    values = _weights(given, rows)
    low, high = (values.min(), values.max()) if public is None else pairs(public, 1, "weight_range")
    found = Range(float(np.min(low)), float(np.min(high)))
    if not found.low >= 0:
        raise SettingError(f"weight_range must begin at 0 or above; got {plain(public)!r}")
    require(found.high > 0, "sample_weight must not be zero in every row")
    return np.clip(values, found.low, found.high), found


def _weights(given: Any, rows: int) -> Array:
    """The weights (rows,); SettingError unless there is a number from 0 on for every row."""
    try:
        values = np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError):
        raise SettingError("sample_weight must be numbers from 0 on") from None
    values = np.full(rows, values) if values.ndim == 0 else values
    if values.shape != (rows,):
        raise SettingError(f"sample_weight must have shape ({rows},), one for each row; got {values.shape}")
    wrong = ~((values >= 0) & (values <= LARGEST))
    if wrong.any():
        raise SettingError(
            f"sample_weight must be numbers from 0 to {LARGEST:g}; that of row {int(wrong.argmax()) + 1} is not"
        )
    return values


def by_site(
    sites: Any, rows: int, number: int, seed: int, groups: Index | None = None
) -> tuple[Index, tuple[int, ...]]:
    """A permutation (rows,) that sorts the rows by site, and each site's number of rows.

    Without sites the rows are assigned at random to `number` sites, all rows of a group (rows,) to the same.
    """
    if sites is None:
        own = np.arange(rows) if groups is None else groups
        persons = int(own.max()) + 1
        codes = (np.random.default_rng(seed).permutation(persons) % min(number, persons))[own]
    else:
        codes = _codes("sites", sites, rows)
    return np.argsort(codes, kind="stable"), tuple(map(int, np.bincount(codes)))


def _codes(name: str, labels: Any, rows: int) -> Index:
    """The place of each row's label (rows,) among all labels in ascending order; SettingError if a label is missing.

    name: what the labels name, for messages.
    """
    labels = np.asarray(labels)
    if labels.shape != (rows,):
        raise SettingError(f"{name} must have shape ({rows},), one for each row; got {labels.shape}")
    absent = [row for row, label in enumerate(labels.tolist()) if is_missing(label)]
    if absent:
        raise SettingError(f"{name} must name one for every row; row {absent[0] + 1} has none")
    try:
        return np.unique(labels, return_inverse=True)[1]
    except TypeError:
        raise SettingError(f"{name} must be all numbers or all texts; got some of both") from None


def numbered(groups: Any, rows: int, private: bool, most: int | None) -> Index | None:
    """The number of every row's group (rows,), None without groups; SettingError if a group of a private fit has more
    rows than the `most` that are protected together."""
    if groups is None:
        return None
    codes = _codes("groups", groups, rows)
    if not private:  # nobody is protected
        return codes
    require(
        most is not None, "groups need group_size in a private fit, the largest number of rows of one group"
    )
    largest = int(np.bincount(codes).max())
    if not largest <= (most or 0):
        raise SettingError(
            f"group_size is {plain(most)}, and one group has {largest} rows: raise it, or leave rows out"
        )
    return codes
