"""A first draft of a schema, made from tables."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import DataError, expect
from .columns import INDICATOR, REFUSE, Category, Classes, Column, Number, Range, Target, listed, texts
from .schema import MISSING_TEXTS, Schema
from .schema_file import to_toml
from .tables import check_names, opened

_MOST_CATEGORIES = 50  # largest number of categories of a text column
_FEW_NUMBERS = 6  # up to this many distinct integers are treated as categories
_MOST_CLASSES = 20


def draft(paths: Sequence[str | Path], label: str = "", private_ranges: bool = False) -> Schema:
    """A draft schema for these tables, to be reviewed: its ranges and categories are taken from the data.

    label is the name of the label column; by default, the last column of the first table. Numeric columns get the range
    of their values, rounded outwards to two digits, or with private_ranges no range but "private". Text columns, and
    columns with few distinct integers, become categories. A column with missing values gets an indicator. Text columns
    with too many values and columns without a name are ignored.
    """
    tables = [_everything(Path(path).expanduser()) for path in paths]
    names = list(dict.fromkeys(name for table in tables for name in table))
    label = label or list(tables[0])[-1]
    expect(label in names, f"there is no column '{label}' in {', '.join(map(str, paths))}")
    seen = {name: _Seen.of([cell for table in tables for cell in table.get(name, [None])]) for name in names}
    columns = [seen[name].column(name) for name in names if name != label]
    used = tuple(
        replace(own, range=None) if private_ranges and isinstance(own, Number) else own
        for own in columns
        if isinstance(own, Number | Category)
    )
    expect(bool(used), f"no column of {paths[0]} but the label can be used")
    return Schema(used, seen[label].label(label), tuple(name for name in columns if isinstance(name, str)))


_DRAFTED = """\
# A draft, made from all values of {files}. Its ranges and categories are
# data, which no guarantee covers: before a private run, replace them by what is publicly known. Choose what a missing
# value becomes: "refuse", "zero" (the middle of the range, or no category), or "indicator" (and one more feature).
# Columns without a name, and columns of text with more than {most} different values, are listed under ignore. All sites
# must use the same schema.

"""


def drafted(paths: Sequence[str | Path], label: str = "", private_ranges: bool = False) -> str:
    """The text of a draft schema, with a comment at the top that says that it was made from the data."""
    names = ", ".join(Path(path).name for path in paths).encode("ascii", "replace").decode()
    return _DRAFTED.format(files=" ".join(names.split()), most=_MOST_CATEGORIES) + to_toml(
        draft(paths, label, private_ranges)
    )


def _everything(file: Path) -> dict[str, list[Any]]:
    """All columns of a table, by name, read without a schema."""
    header, pieces = opened(file)
    check_names(file, header)
    found: dict[str, list[Any]] = {name: [] for name in header}
    for piece in pieces(header):
        for name, cells in piece.items():
            found[name].extend(listed(cells))
    expect(any(found.values()), f"{file} has a header and no rows")
    return found


class _Seen:
    """The distinct values of a column: whether any are missing, the texts, and the numbers if all are numeric."""

    def __init__(self, texts: set[str], missing: bool) -> None:
        self.texts, self.missing = texts, missing
        self.numbers = _all_numbers(texts)

    @classmethod
    def of(cls, cells: Iterable[Any]) -> "_Seen":
        every = set(texts(set(cells)))
        present = every - set(MISSING_TEXTS)
        return cls(present, present != every)

    def column(self, name: str) -> Column | str:
        """The column in the draft, or its name if the draft ignores it."""
        rule = INDICATOR if self.missing else REFUSE
        if not name:
            return name
        if self._are_categories(_FEW_NUMBERS, _MOST_CATEGORIES):
            return Category(name, tuple(self._ordered()), rule)
        range_ = self._range()
        return Number(name, range_, rule) if range_ else name

    def label(self, name: str) -> Classes | Target:
        """The label in the draft; DataError if the column cannot be a label."""
        if len(self.texts) > 1 and self._are_categories(_MOST_CLASSES, _MOST_CLASSES):
            ordered = self._ordered()
            whole = self.numbers is not None
            names = tuple(int(float(text)) if whole else text for text in ordered)
            return Classes(name, names, tuple((text,) for text in ordered))
        range_ = self._range()
        if range_ is None:
            raise DataError(f"column '{name}' cannot be the label: it has {len(self.texts)} different values")
        return Target(name, range_)

    def _are_categories(self, most_numbers: int, most_texts: int) -> bool:
        if self.numbers is None:
            return 1 <= len(self.texts) <= most_texts
        whole = all(value == int(value) for value in self.numbers)
        return 1 <= len(self.numbers) <= most_numbers and whole

    def _ordered(self) -> list[str]:
        return sorted(self.texts, key=float) if self.numbers is not None else sorted(self.texts)

    def _range(self) -> Range | None:
        if not self.numbers:
            return None
        low, high = _rounded(min(self.numbers), math.floor), _rounded(max(self.numbers), math.ceil)
        return Range(low, high) if low < high else Range(low - 1.0, low + 1.0)


def _all_numbers(texts: set[str]) -> list[float] | None:
    """The texts as numbers; None unless all are finite numbers."""
    try:
        values = list(map(float, texts))
    except ValueError:
        return None
    return values if values and all(map(math.isfinite, values)) else None


def _rounded(value: float, direction: Any) -> float:
    """The value rounded to two significant digits with `direction`, math.floor or math.ceil."""
    if not value:
        return 0.0
    digits = math.floor(math.log10(abs(value))) - 1
    return float(f"{direction(float(f'{value / 10.0**digits:.9g}'))}e{digits}")
