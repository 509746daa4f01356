"""Coefficients and tests of them as rows of text, for screens, reports and Python."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from .coefficients import BASELINE, INTERCEPT, Coefficient
from .joint import JointTest

TESTS = ("all terms of", "distribution", "statistic", "p")
"""The headings of `tested`."""


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table with columns of equal width."""
    widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (head, *rows)]


def tested(tests: Sequence[JointTest]) -> list[tuple[str, ...]]:
    """The rows of text of tests that several coefficients are 0, each with the statistic's distribution."""
    return [
        (test.column, test.distribution, f"{test.statistic:.4g}", _p_value(test.p_value)) for test in tests
    ]


def has_errors(found: Sequence[Coefficient]) -> bool:
    """Whether any of these coefficients has a standard error."""
    return any(row.std_error == row.std_error for row in found)


def headings(found: Sequence[Coefficient]) -> tuple[str, ...]:
    """The headings of the rows of text of these coefficients."""
    kind = found[0].effect
    effect = (f"log {kind}", f"{kind} ratio") if kind else ("effect",)
    if not has_errors(found):
        return ("column", "term", *effect, "used")
    interval, error = f"95% interval of the {effect[-1]}", f"standard error of the {effect[0]}"
    return ("column", "term", *effect, interval, error, "p", "used")


def by_outcome(found: Sequence[Coefficient]) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """The rows of text of each outcome, with its title."""
    errors = has_errors(found)
    for outcome, rows in groupby(found, key=lambda row: (row.effect, row.outcome, row.against)):
        yield _title(*outcome), [_cells(row, errors) for row in rows]


def _title(effect: str, outcome: str, against: str) -> str:
    name = f"{effect} of {outcome}" if effect else "effects, in units of the label"
    return f"{name} against {against}" if against else name


def _cells(row: Coefficient, errors: bool) -> tuple[str, ...]:
    estimates = [row.estimate, *[row.ratio] * bool(row.effect)]
    more = _errors(row) if errors else ()
    shown = ("-" if number != number else f"{number:.4g}" for number in estimates)
    return (row.column, _term(row), *shown, *more, "yes" if row.selected else "no")


def _errors(row: Coefficient) -> tuple[str, str, str]:
    """The interval, of the ratio if there is one, the standard error and the p-value; dashes if there are none."""
    if row.std_error != row.std_error:
        return ("-", "-", "-")
    low, high = (row.ratio_low, row.ratio_high) if row.effect else (row.low, row.high)
    return f"{low:.4g} to {high:.4g}", f"{row.std_error:.4g}", _p_value(row.p_value)


def _p_value(value: float) -> str:
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


def _term(row: Coefficient) -> str:
    if row.column in (INTERCEPT, BASELINE) or not row.reference:
        return row.term
    return f"{row.term} (reference)" if row.term == row.reference else f"{row.term} (against {row.reference})"
