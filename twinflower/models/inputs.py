"""The transformation from users' rows to the features of a model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from ..data.columns import CLIPPED, INDICATOR, REFUSE, ROUNDING, Category, Column, Marks, Number
from ..data.features import EACH, ROW_SCALINGS, common_factor, completed
from ..data.schema import Schema
from ..data.schema_file import parse_schema, to_toml
from ..data.tables import read_features, similar
from ..errors import DataError, cause
from ..randomness import stream

_SPANNING, _INCOMPLETE = 500, 25  # rows, at least; rows that are repeated with missing values


@dataclass(frozen=True)
class Inputs:
    """The transformation from users' rows to the features of a model.

    Rows are tables, encoded by a schema, or arrays (rows, num_features). Every column of an array is centred and
    divided by its spread, (num_features,); with `clipped`, it is then limited to [-1, 1]. For both kinds, the column of
    ones is appended next, and row norms are limited last, each by itself or all by one factor (`row_scaling`).
    columns: the names of the columns of an array that was a data frame; empty for x0, x1, ...
    """

    num_features: int
    schema: Schema | None = None
    centre: Array | None = None
    spread: Array | None = None
    clipped: bool = False
    bias: bool = True
    row_norm: float = 0.0
    row_scaling: str = EACH
    columns: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the input columns."""
        if self.schema:
            return self.schema.names
        return self.columns or tuple(f"x{i}" for i in range(self.num_features))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the input columns, and the schema's terms."""
        return (*self.names, *(term.text for term in self.schema.terms)) if self.schema else self.names

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, without the column of ones."""
        return self.schema.features if self.schema else self.names

    def features(self, rows: Any) -> Array:
        """The features (rows, num_features), with one more column if `bias`; DataError for unsuitable rows."""
        return self.completed(self.encoded(rows))

    def encoded(self, rows: Any) -> Array:
        """The features (rows, num_features) without a column of ones and before row norms are limited."""
        return self._by_schema(self.schema, rows) if self.schema else self._scaled(self._matrix(rows))

    def marks(self, rows: Any) -> Marks:
        """Which values of an array or a mapping of columns are clipped to their range or missing, (rows, columns)."""
        if self.schema:
            return self.schema.encode_marked(self._cells(rows))[1]
        if not self.clipped or self.centre is None or self.spread is None:
            return np.zeros((len(rows), self.num_features), np.int8)
        outside = np.abs((rows - self.centre) / self.spread) > 1 + ROUNDING
        return CLIPPED * outside.astype(np.int8)

    def completed(self, plain: Array) -> Array:
        """The features with the column of ones and with limited row norms."""
        return completed(plain, self.bias, self.row_norm, longest=self._longest)

    def reference(self, rows: int) -> Array:
        """Public rows (rows, num_features) in the form that `encoded` has, drawn with a fixed seed and not from data:
        numbers uniform in [-1, 1], and categories uniform among those of their column."""
        plain = self._drawn(rows)
        return self.schema.with_terms(plain) if self.schema else plain

    def _drawn(self, rows: int) -> Array:
        """`reference` without terms."""
        draw = stream(0, "reference")
        if self.schema is None:
            return draw.uniform(-1.0, 1.0, (rows, self.num_features))
        return np.hstack([_column(column, rows, draw) for column in self.schema.columns])

    def spanning(self, spread: float = 1.0) -> Array:
        """Public rows with the features that a model has, of which all possible rows are linear combinations: those of
        `reference`, some of them again with each column missing that may be; with numbers multiplied by spread."""
        plain, schema = self._drawn(max(_SPANNING, 2 * self.num_features)), self.schema
        if schema is None:
            return self.completed(plain * spread)
        for column in schema.columns:
            if isinstance(column, Number):
                schema.blocks(plain)[column.name][:, 0] *= spread
        return self.completed(
            schema.with_terms(np.vstack([plain, *_incomplete(schema, plain[:_INCOMPLETE])]))
        )

    @property
    def _longest(self) -> float:
        """The bound on the norms of rows by which all of them are divided; 0 if they are not."""
        if self.row_scaling == EACH:
            return 0.0
        return self.schema.longest(self.bias) if self.schema else math.sqrt(self.num_features + self.bias)

    @property
    def factor(self) -> float | None:
        """The factor by which all rows are multiplied; None if each has its own."""
        if not self.row_norm:
            return 1.0
        return common_factor(self.row_norm, self._longest) if self._longest else None

    def _by_schema(self, schema: Schema, rows: Any) -> Array:
        if isinstance(rows, str | Path):
            return read_features(rows, schema)
        if _named(rows):
            return schema.encode(self._cells(rows))
        table = np.asarray(rows, dtype=None if isinstance(rows, np.ndarray) else object)
        _check_shape(table, len(schema.names))
        return schema.encode({name: table[:, i] for i, name in enumerate(schema.names)})

    def _cells(self, rows: Any) -> dict[str, Any]:
        """The cells of a data frame or a mapping by column, in the model's order."""
        absent = [name for name in self.names if name not in rows]
        if absent:
            header = [str(name) for name in rows]
            hint = similar(absent[:1], [name for name in header if name not in self.names])
            who = "the model's schema names" if self.schema else "the model has"
            raise DataError(f"the rows have no column '{absent[0]}', which {who}{hint}")
        return {name: _plain(rows[name]) for name in self.names}

    def _matrix(self, rows: Any) -> Array:
        if isinstance(rows, str | Path):
            raise DataError(
                "this model was trained without a schema, so it takes arrays of numbers, and no file"
            )
        if self.columns and _named(rows):  # whatever their order
            rows = np.transpose(list(self._cells(rows).values()))
        try:
            table = np.asarray(rows, dtype=np.float64)
        except (ValueError, TypeError) as error:
            raise DataError(f"rows must be numbers: {cause(error)}") from None
        _check_shape(table, self.num_features)
        if not np.isfinite(table).all():
            raise DataError("rows must be finite numbers; there is NaN or infinity")
        return table

    def _scaled(self, table: Array) -> Array:
        if self.centre is None or self.spread is None:
            return table
        scaled = (table - self.centre) / self.spread
        return np.clip(scaled, -1.0, 1.0) if self.clipped else scaled

    def document(self) -> dict[str, Any]:
        """The inputs as a JSON-compatible dictionary."""
        scaling = {"centre": self.centre, "spread": self.spread}
        lists = {name: None if array is None else array.tolist() for name, array in scaling.items()}
        schema = to_toml(self.schema) if self.schema else None
        plain = {
            "num_features": self.num_features, "bias": self.bias, "row_norm": self.row_norm,
            "row_scaling": self.row_scaling, **({"columns": list(self.columns)} if self.columns else {}),
        }  # fmt: skip
        return plain | lists | {"clipped": self.clipped, "schema": schema}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Inputs":
        """Inverse of `document`; KeyError, TypeError, ValueError or DataError for an invalid document."""
        arrays = {
            key: None if document[key] is None else np.array(document[key], dtype=np.float64)
            for key in ("centre", "spread")
        }
        width, text = document["num_features"], document["schema"]
        schema = None if text is None else parse_schema(text)
        if schema and schema.private:
            raise ValueError(f"its schema has no range for {schema.private[0]}")
        if any(array is not None and array.shape != (width,) for array in arrays.values()):
            raise ValueError("centre and spread")
        if document.get("row_scaling", EACH) not in ROW_SCALINGS:
            raise ValueError("row_scaling")
        columns = tuple(map(str, document.get("columns", ())))
        if len({*columns}) not in (0, width) or len({*columns}) != len(columns):
            raise ValueError("columns")
        return cls(
            int(width), schema, **arrays, clipped=bool(document["clipped"]),
            bias=bool(document["bias"]), row_norm=float(document["row_norm"]),
            row_scaling=str(document.get("row_scaling", EACH)), columns=columns,
        )  # fmt: skip


def _check_shape(table: NDArray[Any], columns: int) -> None:
    if table.ndim != 2 or table.shape[1] != columns:
        raise DataError(f"rows must have shape (rows, {columns}); got {table.shape}")


def _column(column: Column, rows: int, draw: np.random.Generator) -> Array:
    """Reference features of a column, (rows, its features)."""
    size = len(column.features)
    if isinstance(column, Category):
        return np.eye(size)[draw.integers(size, size=rows)]
    return np.hstack([draw.uniform(-1.0, 1.0, (rows, 1)), np.zeros((rows, size - 1))])


def _named(rows: Any) -> bool:
    """Whether these rows are a data frame or a mapping."""
    return hasattr(rows, "columns") or isinstance(rows, Mapping)


def _incomplete(schema: Schema, rows: Array) -> list[Array]:
    """These rows (rows, features of the columns) with each column missing that may be."""
    variants = []
    for column in schema.columns:
        if column.missing != REFUSE:
            variants.append(rows.copy())
            block = schema.blocks(variants[-1])[column.name]
            block[:] = 0.0
            block[:, -1] = float(column.missing == INDICATOR)
    return variants


def _plain(column: Any) -> Any:
    return column if isinstance(column, list | tuple) else np.asarray(column)
