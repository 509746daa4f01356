"""The table of a linear model's coefficients, for the terminal, a report and a CSV file."""

import csv
import io
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from twinflower.models.coefficients import BASELINE, INTERCEPT, PER_UNIT, Coefficient
from twinflower.models.inference import Inference

_UNITS = (
    "Per unit: of the column, within its range. A category is compared with the first one of its column, the "
    "reference; a missing number counts as the middle of the range, and its term comes on top of that."
)
_BASELINE = "(baseline): of each interval of time, up to its end, at 0 of all numbers and all references."
_USED = "Used: whether the model's own weight is not zero."
_NO_ERRORS = (
    "There are no confidence intervals; the estimates include the effect of a penalty, and in a private run its noise. "
    "Without a penalty, evaluation.standard-errors = true gives intervals."
)
_ERRORS = (
    "Intervals at 95% and p-values (of no effect) are Wald's, from the information matrix at the model, for "
    "independent rows; robust: with the outer products of the rows' gradients (HC0)."
)
_PRIVATE_ERRORS = "Intervals at 95% and p-values (of no effect) are for independent rows."


def remarks(found: Inference) -> list[str]:
    """What a reader of the tables should know."""
    errors = [_PRIVATE_ERRORS if found.private else _ERRORS] if _has_errors(found.rows) else []
    return [
        _UNITS,
        *([_BASELINE] if found.rows[0].column == BASELINE else []),
        f"{_USED} {'' if errors or found.remarks else _NO_ERRORS}".strip(),
        *errors,
        *map(_sentence, found.remarks),
    ]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _has_errors(found: Sequence[Coefficient]) -> bool:
    return any(row.std_error == row.std_error for row in found)


def headings(found: Sequence[Coefficient]) -> tuple[str, ...]:
    """The headings of the rows of `tables`."""
    effect: tuple[str, ...] = ("effect",)
    if found[0].effect:
        effect = f"log {found[0].effect}", f"{found[0].effect} ratio"
    if not _has_errors(found):
        return ("column", "term", *effect, "used")
    return ("column", "term", *effect, f"95% interval of the {effect[-1]}", "standard error", "p", "used")


def tables(found: Sequence[Coefficient]) -> dict[str, list[tuple[str, ...]]]:
    """The rows of text of each outcome, by its title."""
    groups, errors = (
        groupby(found, key=lambda row: (row.effect, row.outcome, row.against)),
        _has_errors(found),
    )
    return {_title(*outcome): [_cells(row, errors) for row in rows] for outcome, rows in groups}


def _title(effect: str, outcome: str, against: str) -> str:
    name = f"{effect} of {outcome}" if effect else "effects, in units of the label"
    return f"{name} against {against}" if against else name


def _cells(row: Coefficient, errors: bool) -> tuple[str, ...]:
    odds = (f"{row.odds_ratio:.4g}",) if row.effect else ()
    more = _errors(row) if errors else ()
    return (row.column, _term(row), f"{row.estimate:.4g}", *odds, *more, "yes" if row.selected else "no")


def _errors(row: Coefficient) -> tuple[str, str, str]:
    """The interval, of the odds ratio if there is one, the standard error and the p-value; dashes if there are none."""
    if row.std_error != row.std_error:
        return ("-", "-", "-")
    low, high = np.exp([row.low, row.high]) if row.effect else (row.low, row.high)
    p_value = "<0.0001" if row.p_value < 1e-4 else f"{row.p_value:.4f}"
    return f"{low:.4g} to {high:.4g}", f"{row.std_error:.4g}", p_value


def _term(row: Coefficient) -> str:
    if row.column in (INTERCEPT, BASELINE) or row.term == PER_UNIT:
        return row.term
    return f"{row.term} (reference)" if row.term == row.reference else f"{row.term} (against {row.reference})"


def as_csv(found: Sequence[Coefficient]) -> str:
    """All coefficients in full precision, under the names of their fields."""
    text = io.StringIO()
    rows = (["" if cell != cell else cell for cell in row] for row in found)
    csv.writer(text, lineterminator="\n").writerows([Coefficient._fields, *rows])
    return text.getvalue()
