"""The table of a linear model's coefficients, for the terminal, a report and a CSV file."""

import csv
import io
from collections.abc import Sequence
from itertools import groupby

from twinflower.models.coefficients import INTERCEPT, PER_UNIT, Coefficient

REMARKS = (
    "Per unit: of the column, within its range. A category is compared with the first one of its column, the "
    "reference; a missing number counts as the middle of the range, and its term comes on top of that.",
    "Used: whether the model's own weight is not zero. There are no confidence intervals: the estimates include the "
    "noise of a private run, and the effect of a penalty.",
)


def headings(found: Sequence[Coefficient]) -> tuple[str, ...]:
    """The headings of the rows of `tables`."""
    effect = ("log odds", "odds ratio") if found[0].outcome else ("effect",)
    return ("column", "term", *effect, "used")


def tables(found: Sequence[Coefficient]) -> dict[str, list[tuple[str, ...]]]:
    """The rows of text of each outcome, by its title."""
    groups = groupby(found, key=lambda row: (row.outcome, row.against))
    return {_title(*outcome): list(map(_cells, rows)) for outcome, rows in groups}


def _title(outcome: str, against: str) -> str:
    return f"odds of {outcome} against {against}" if outcome else "effects, in units of the label"


def _cells(row: Coefficient) -> tuple[str, ...]:
    odds = (f"{row.odds_ratio:.4g}",) if row.outcome else ()
    return (row.column, _term(row), f"{row.estimate:.4g}", *odds, "yes" if row.selected else "no")


def _term(row: Coefficient) -> str:
    if row.column == INTERCEPT or row.term == PER_UNIT:
        return row.term
    return f"{row.term} (reference)" if row.term == row.reference else f"{row.term} (against {row.reference})"


def as_csv(found: Sequence[Coefficient]) -> str:
    """All coefficients in full precision, under the names of their fields."""
    text = io.StringIO()
    rows = (["" if cell != cell else cell for cell in row] for row in found)
    csv.writer(text, lineterminator="\n").writerows([Coefficient._fields, *rows])
    return text.getvalue()
