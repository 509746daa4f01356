"""Numbers as a site writes them, brought to the form and the unit of the schema."""

from typing import NamedTuple

import numpy as np

from ..decimals import decimal, is_decimal
from ..settings import LARGEST
from .cells import Ambiguous, Cells, Measured, listed, numbers
from .columns import Number
from .csv_tables import with_point

LIMIT, HALF = "limit", "half"  # <0.5 stands for 0.5 or for 0.25
LIMITS = {"censored-below": (LIMIT, HALF), "censored-above": (LIMIT,)}


class Scale(NamedTuple):
    """A unit of a site: scale * number + offset is in the unit of the schema."""

    scale: float = 1.0
    offset: float = 0.0


def has_signs(column: Number) -> bool:
    """Whether the column's numbers may be written with a unit, or with limits of detection such as <0.5."""
    return bool(column.unit or column.below or column.above)


def plain(column: Number, cells: Cells, commas: bool) -> Cells:
    """The cells without the column's unit, and with numbers in place of <0.5 and >500; others as they are.

    commas: whether their decimals have commas; a number with a point, which may be that of thousands, is then refused.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        return cells
    return [_plain(column, cell, commas) if isinstance(cell, str) else cell for cell in listed(cells)]


def _plain(column: Number, cell: str, commas: bool) -> str | Ambiguous:
    text = cell.strip()
    size = len(column.unit)
    if size and text[-size:].casefold() == column.unit.casefold():
        text = text[:-size].strip()
    sign = text[:1] if (column.below and text[:1] == "<") or (column.above and text[:1] == ">") else ""
    number = text[len(sign) :].strip()
    if commas and "." in number and is_decimal(number):
        return Ambiguous(cell)
    number = with_point(number) if commas else number
    return _halved(number) if sign == "<" and column.below == HALF else number


def _halved(text: str) -> str:
    try:
        return repr(decimal(text) / 2)
    except ValueError:
        return text


def scaled(cells: Cells, absent: frozenset[str], unit: Scale) -> Measured:
    """The cells as numbers (rows,) in the unit of the schema, NaN for missing ones; CellError for any other cell."""
    values = numbers(cells, absent) * unit.scale + unit.offset
    return np.clip(values, -LARGEST, LARGEST).view(Measured)
