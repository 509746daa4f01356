"""How a CSV file is written, recognised from its content. Only a draft does so; a run uses what its schema says."""

import csv
import itertools
from collections.abc import Iterable
from pathlib import Path

from .csv_tables import DELIMITERS, Dialect, is_number, opened_text, with_point

_LINES = 100  # from which the delimiter is recognised


def recognised(file: Path) -> Dialect:
    """The dialect of a CSV file; DataError if it cannot be read.

    The delimiter is the one that divides the first lines into the same number of fields, as many as possible. Decimals
    have commas if no number has a decimal point and some have a comma.
    """
    with opened_text(file) as stream:
        lines = [line for line in itertools.islice(stream, _LINES) if line.strip()]
        delimiter = max(DELIMITERS, key=lambda mark: _fields(lines, mark))
        if delimiter == ",":
            return Dialect(delimiter)
        stream.seek(0)
        return Dialect(delimiter, "," if _has_commas(csv.reader(stream, delimiter=delimiter)) else ".")


def _fields(lines: list[str], mark: str) -> tuple[bool, int]:
    """Whether all lines have the same number of fields, which is above 1, and that of the header."""
    widths = [len(fields) for fields in csv.reader(lines, delimiter=mark)]
    return len({*widths}) == 1 and widths[0] > 1, widths[0] if widths else 0


def _has_commas(rows: Iterable[list[str]]) -> bool:
    marked = [field for fields in rows for field in fields if "," in field or "." in field]
    points = any("." in field and is_number(field) for field in marked)
    return not points and any(with_point(field) != field for field in marked)
