"""How a CSV file is written, recognised from its content. Only a draft does so; a run uses what its schema says."""

import csv
import itertools
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..decimals import is_decimal
from .csv_tables import DELIMITERS, Dialect, fields_of, opened_text, with_point

_LINES = 100  # from which the delimiter is recognised
# 1,234 in a file whose fields are separated by commas, as English ones are; 1.234 in any other file
_THOUSAND = {mark: re.compile(rf"\s*[+-]?[1-9]\d{{0,2}}[{mark}]\d{{3}}\s*") for mark in ",."}


def recognised(file: Path) -> Dialect:
    """The dialect of a CSV file; DataError if it cannot be read.

    The delimiter is the one that divides the first lines into the same number of fields, as many as possible. Decimals
    have commas if no number has a decimal point and some have a comma; numbers with a mark that may separate thousands
    do not count (`_THOUSAND`).
    """
    with opened_text(file) as stream:
        lines = [line for line in itertools.islice(stream, _LINES) if line.strip()]
        delimiter = max(DELIMITERS, key=lambda mark: _fields(lines, mark))
    with opened_text(file) as stream:
        commas = _has_commas(fields_of(stream, delimiter), _THOUSAND["," if delimiter == "," else "."])
        return Dialect(delimiter, "," if commas else ".")


def _fields(lines: list[str], mark: str) -> tuple[bool, int]:
    """Whether all lines have as many fields as the header, and more than one; and the number of these."""
    reader, width, same = fields_of(lines, mark), 0, False
    with suppress(csv.Error):  # whoever reads the table says where
        width = len(next(reader, []))
        same = all(len(fields) == width for fields in reader)
    return same and width > 1, width


def _has_commas(rows: Iterable[list[str]], thousand: re.Pattern[str]) -> bool:
    commas = False
    with suppress(csv.Error):
        for field in (field for fields in rows for field in fields if not thousand.fullmatch(field)):
            if "." in field and is_decimal(field):
                return False
            commas = commas or with_point(field) != field
    return commas
