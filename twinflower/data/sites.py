"""Data sets from the files of sites: a table per client, or a site's own table, with a schema shared by all, or a
site's own rows in a file without names of columns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ..arrays import DOUBLE
from ..decimals import decimal
from ..errors import DataError, SettingError
from ..randomness import stream
from ..settings import FRACTION, LARGEST, Setting, alike, at_least
from .dataset import (
    OWN,
    TABLES,
    Bias,
    Dataset,
    Floats,
    RangeShare,
    RowNorm,
    RowScaling,
    SchemaDigest,
    SchemaFile,
    Table,
    check_rows,
    held_out,
)
from .features import ALL, EACH, completed
from .files import FormatError, read_arrays, read_libsvm
from .ranges import Unscaled
from .schema import Schema
from .schema_file import read_schema
from .tables import Rows, encoded_cells, read_names, read_weighted, table_files


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
    if features.dtype.kind not in "fiu" or labels.dtype.kind not in "fiu":
        raise DataError(
            f"{file}: features and labels must be numbers; got {features.dtype} and {labels.dtype}"
        )
    return features, labels


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
    test_fraction: Annotated[
        float,
        Setting(
            "without a test-file, the share of every file's rows to test on; 0: all rows are trained on, and the "
            "server has no test score",
            FRACTION,
        ),
    ] = 0.2
    range_share: RangeShare = 0.2
    bias: Bias = True
    row_norm: RowNorm = 1.0
    row_scaling: RowScaling = EACH

    @property
    def num_sites(self) -> int:
        """Number of clients, one per file or per site; 0 if the rows of a single file are not divided yet."""
        if self.site_column:
            return len(site_names(self))
        count = len(table_files(self.files))
        return count if count > 1 else 0

    def load(self, folder: str = "", dtype: np.dtype[Any] = DOUBLE, deferred: bool = False) -> Dataset:
        """Load the data set in this precision; `folder` and `deferred` have no effect. Raises DataError and
        SettingError."""
        return load_tables(self).in_precision(dtype)


def schema_of(data: TableData | OwnData) -> Schema:
    """The schema in data.schema; SettingError if data.schema-digest is set and differs from its digest."""
    schema = read_schema(data.schema)
    if data.schema_digest not in ("", schema.digest):
        raise SettingError(
            f"data.schema-digest is {data.schema_digest}, but {data.schema} has the digest {schema.digest}: all "
            "sites need the same schema"
        )
    return schema


def load_tables(data: TableData) -> Dataset:
    """A data set from all files, with the training rows in the order of the sites.

    The test rows are those of data.test-file or, without one, a fraction of each class in every file, chosen with a
    fixed seed; with a group column a fraction of its groups. Raises DataError and SettingError.
    """
    schema, reading = schema_of(data), schema_to_read(data)
    _check_sites(data, reading)
    tables = _by_column(data, reading) if data.site_column else _by_file(data, reading)
    names, parts = list(tables), list(tables.values())
    if data.test_file:
        test, note = _read(data.test_file, reading.unweighted, data), f"tested on {Path(data.test_file).name}"
        if Path(data.test_file).resolve() in [file.resolve() for file in table_files(data.files)]:
            note += ", whose rows are trained on, too"
        elif schema.group and (again := _persons(test) & set().union(*map(_persons, parts))):
            note += f", {len(again)} of whose persons are trained on, too"
    else:
        parts, test = _divided(names, parts, data.test_fraction, schema.num_classes)
        note = _tested_on(data)
    sizes = tuple(len(part.labels) for part in parts)
    if len(sizes) == 1:
        return _dataset(data, schema, Rows.stacked(parts), test, note=note)
    called = site_names(data) if data.site_column else [Path(name).name for name in names]
    return _dataset(data, schema, Rows.stacked(parts), test, note=note, sites=sizes, site_names=tuple(called))


def _persons(rows: Rows) -> set[Any]:
    """The groups of these rows."""
    return set() if rows.groups is None else set(rows.groups.tolist())


def _tested_on(data: TableData) -> str:
    """Which rows a run without data.test-file is tested on."""
    if not data.test_fraction:
        return "no rows are held out for a test (data.test-fraction = 0), so the server measures no score"
    return f"tested on {data.test_fraction:g} of the rows of every {'site' if data.site_column else 'file'}"


def _by_file(data: TableData, schema: Schema) -> dict[str, Rows]:
    """The rows of every file, by its name."""
    return {str(file): _read(file, schema, data) for file in table_files(data.files)}


def _by_column(data: TableData, schema: Schema) -> dict[str, Rows]:
    """The rows of every site, by its name, in the order of `site_names`."""
    file = _only_file(data)
    rows, owners = _read(file, schema, data), np.array(read_names(file, schema, data.site_column))
    scaled = {name: _read(file, schema.at(name), data) for name in schema.sites}
    return {
        f"{file}, {data.site_column} {name}": scaled.get(name, rows).taken(owners == name)
        for name in site_names(data)
    }


def _check_sites(data: TableData, schema: Schema) -> None:
    """DataError if the schema has units of a site whose name is none: a misspelt one would have no effect."""
    files = [*table_files(data.files), *([Path(data.test_file)] if data.test_file else [])]
    known = site_names(data) if data.site_column else [file.name for file in files]
    for name in schema.sites:
        parts = len(Path(name).parts)
        there = any((Path(*file.parts[:-parts]) / name).is_file() for file in files) and not data.site_column
        if name not in known and not there:
            raise DataError(
                f"sites in {schema.source} names '{name}', which is none of {data.site_column or data.files}"
                f"{alike(name, known)}"
            )


def site_names(data: TableData) -> list[str]:
    """The values of data.site-column, ascending, as numbers if all are; DataError if there is only one."""
    file = _only_file(data)
    names = _distinct(file, file.stat().st_mtime_ns, schema_to_read(data), data.site_column)
    if len(names) < 2:
        raise DataError(
            f"{file} has one value, {names[0]}, in column '{data.site_column}', and data.site-column needs two: leave "
            "it out to divide the rows of one site"
        )
    return names


@lru_cache(maxsize=2)
def _distinct(file: Path, changed: int, schema: Schema, column: str) -> list[str]:
    """The different texts of a column in order; changed: when the file was written."""
    names = sorted(set(read_names(file, schema, column)))
    try:
        return sorted(names, key=decimal)
    except ValueError:
        return names


def _only_file(data: TableData) -> Path:
    files = table_files(data.files)
    if len(files) != 1:
        raise SettingError(
            f"data.site-column divides the rows of one table; data.files matches {len(files)}: leave one of them out"
        )
    return files[0]


def schema_to_read(data: TableData) -> Schema:
    """The schema of tables that may also have the column of the sites; SettingError if it is used otherwise."""
    schema, column = schema_of(data), data.site_column
    used = dict.fromkeys(schema.names, "a feature") | dict.fromkeys(schema.label.encoders, "the label")
    used |= {schema.weight.column: "the weight"} if schema.weight else {}
    if column in used:
        raise SettingError(
            f"data.site-column is '{column}', which is {used.get(column)} in {schema.source}: a site's name cannot "
            "be both"
        )
    return replace(schema, ignore=(*schema.ignore, column)) if column else schema


def load_own_table(data: OwnData) -> Dataset:
    """The table in data.file, whose rows are both training and test rows; without a file there are no rows.

    Raises DataError and SettingError.
    """
    schema = schema_of(data)
    if not data.schema_digest:
        raise SettingError(
            f"data.schema needs data.schema-digest: set it to {schema.digest}, the digest of {data.schema}, which "
            "every node compares with that of its own file"
        )
    rows = _read(data.file, schema, data) if data.file else _no_rows(schema, data)
    return _dataset(data, schema, rows, rows)


def _no_rows(schema: Schema, data: OwnData) -> Rows:
    """As `_read`, for a table without rows."""
    rows = encoded_cells(dict.fromkeys(schema.used, ()), schema)
    return rows if schema.private else rows._replace(features=_finished(rows.features, schema, data))


def _read(file: str | Path, schema: Schema, data: TableData | OwnData) -> Rows:
    """The rows of a table as the objective receives them, but with private ranges as they are before scaling."""
    return read_weighted(
        file, schema, None if schema.private else partial(_finished, schema=schema, data=data)
    )


def _dataset(data: TableData | OwnData, schema: Schema, rows: Rows, test: Rows, **others: Any) -> Dataset:
    """The data set of these rows from `_read`; private ranges are [-1, 1] for the time being."""
    if rows.groups is not None:
        others |= {"groups": np.unique(rows.groups, return_inverse=True)[1]}
    others["marks"] = rows.marks
    if schema.weight:
        others |= {"row_weights": rows.weights, "weight_range": schema.weight.range}
    if not schema.private:
        return Dataset(data.name, *rows[:2], *test[:2], schema.num_classes, schema=schema, **others)
    unscaled = Unscaled(schema, rows.features, test.features, partial(_finished, schema=schema, data=data))
    features, test_features = unscaled.scaled()
    return Dataset(
        data.name, features, rows.labels, test_features, test.labels, schema.num_classes, schema=schema,
        unscaled=unscaled, **others,
    )  # fmt: skip


def _finished(features: Floats, schema: Schema, data: TableData | OwnData) -> Floats:
    """The features with a column of ones appended (data.bias) and row norms limited (data.row-norm), as configured."""
    longest = schema.longest(data.bias) if data.row_scaling == ALL else 0.0
    return completed(features, data.bias, data.row_norm, longest=longest)


def _divided(
    names: Sequence[str], tables: Sequence[Rows], fraction: float, num_classes: int
) -> tuple[list[Rows], Rows]:
    """The training rows of each table, and the test rows of all tables together, none at fraction 0; DataError if
    another fraction leaves a part empty."""
    masks = [
        held_out(
            table.labels if num_classes else np.zeros(len(table.labels)),
            fraction,
            stream(0, "split", site),
            table.groups,
        )
        for site, table in enumerate(tables)
    ]
    for name, mask in zip(names, masks, strict=True):
        if mask.all():
            raise DataError(f"{name} has too few rows to hold {fraction:g} of them out: set data.test-file")
    if fraction and not any(mask.any() for mask in masks):
        raise DataError(f"{fraction:g} of the rows of every table is none to test on: set data.test-file")
    parts = list(zip(tables, masks, strict=True))
    test = Rows.stacked([table.taken(mask) for table, mask in parts])
    return [table.taken(~mask) for table, mask in parts], test
