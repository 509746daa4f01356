"""Data sets from the tables of sites: one file per client, or a site's own file, with a schema shared by all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, SettingError, require
from ..randomness import stream
from .schema import Schema, read_schema
from .sets import Dataset, Floats, OwnData, TableData, appended_one, held_out, limited_norm
from .tables import read_rows, table_files

Rows = tuple[Floats, NDArray[Any]]


def schema_of(data: TableData | OwnData) -> Schema:
    """The schema in data.schema; SettingError if data.schema-digest is set and differs from its digest."""
    schema = read_schema(data.schema)
    require(
        data.schema_digest in ("", schema.digest),
        f"data.schema-digest is {data.schema_digest}, but {data.schema} has the digest {schema.digest}: all sites need "
        "the same schema",
    )
    return schema


def load_tables(data: TableData) -> Dataset:
    """A data set from all files, with the training rows in the order of the sites.

    The test rows are those of data.test-file or, without one, a fraction of each class in every file, chosen with a
    fixed seed. Raises DataError and SettingError.
    """
    schema, files = schema_of(data), table_files(data.files)
    tables = [read_rows(file, schema) for file in files]
    if data.test_file:
        test, note = read_rows(data.test_file, schema), f"tested on {Path(data.test_file).name}"
    else:
        tables, test = _divided(files, tables, data.test_fraction, schema.num_classes)
        note = f"tested on {data.test_fraction:g} of the rows of every file"
    (features, labels), sizes = _stacked(tables), tuple(len(labels) for _, labels in tables)
    features, others = (_finished(part, data) for part in (features, test[0]))
    return Dataset(
        data.name, features, labels, others, test[1], schema.num_classes, note,
        sites=sizes if len(files) > 1 else (), schema=schema,
    )  # fmt: skip


def load_own_table(data: OwnData) -> tuple[Schema, Rows]:
    """The schema, and the features and labels of the table in data.file; raises DataError and SettingError."""
    schema = schema_of(data)
    if not data.schema_digest:
        raise SettingError(
            f"data.schema needs data.schema-digest: set it to {schema.digest}, the digest of {data.schema}, which "
            "every node compares with that of its own file"
        )
    features, labels = read_rows(data.file, schema)
    return schema, (_finished(features, data), labels)


def _finished(features: Floats, data: TableData | OwnData) -> Floats:
    """The features with a column of ones appended (data.bias) and row norms limited (data.row-norm), as configured."""
    features = appended_one(features) if data.bias else features
    return limited_norm(features, data.row_norm) if data.row_norm else features


def _stacked(tables: Sequence[Rows]) -> Rows:
    return np.concatenate([features for features, _ in tables]), np.concatenate(
        [labels for _, labels in tables]
    )


def _divided(
    files: Sequence[Path], tables: Sequence[Rows], fraction: float, num_classes: int
) -> tuple[list[Rows], Rows]:
    """The training rows of each file, and the test rows of all files together; DataError if a part is empty."""
    masks = [
        held_out(labels if num_classes else np.zeros(len(labels)), fraction, stream(0, "split", site))
        for site, (_, labels) in enumerate(tables)
    ]
    for file, mask in zip(files, masks, strict=True):
        if mask.all():
            raise DataError(f"{file} has too few rows to hold {fraction:g} of them out: set data.test-file")
    if not any(mask.any() for mask in masks):
        raise DataError(f"{fraction:g} of the rows of every file is none to test on: set data.test-file")
    parts = list(zip(tables, masks, strict=True))
    train = [(features[~mask], labels[~mask]) for (features, labels), mask in parts]
    return train, _stacked([(features[mask], labels[mask]) for (features, labels), mask in parts])
