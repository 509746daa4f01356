"""The section on the coefficients of a linear model, with the facts about them, and files of them."""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from twinflower.errors import SettingError
from twinflower.models.coefficients import BASELINE, INTERCEPT, PER_UNIT, Coefficient
from twinflower.models.inference import Inference
from twinflower.models.joint import JointTest
from twinflower.models.model import inferred
from twinflower.problems.networks import NETWORKS

from ..document import Section, Table
from ..study import StoredRun, of_one_run

_TITLE = "Coefficients"
_MOST_ROWS = 100  # of a table in a report
_UNITS = (
    "Per unit: of the column, within its range. A category is compared with the reference, by default the first one of "
    "its column; a missing number counts as the middle of the range, and its term comes on top of that."
)
_BASELINE = "(baseline): of each interval of time, up to its end, at 0 of all numbers and all references."
_COUNTS = (
    "Log likelihood and AIC: against a perfect fit of the counts, so only differences between models count."
)
_USED = "Used: whether the model's own weight is not zero."
_NO_ERRORS = (
    "There are no confidence intervals; the estimates include the effect of a penalty, and in a private run its noise. "
    "Without a penalty, evaluation.standard-errors = true gives intervals."
)
_ERRORS = (
    "Intervals at 95% and p-values (of no effect) are Wald's, from the information matrix at the model, for "
    "independent rows."
)
_ROBUST = (
    "Standard errors are robust (HC0: with the outer products of the rows' gradients), and so are intervals at 95%, "
    "p-values (of no effect) and tests of columns, which are Wald's, for independent rows."
)
_CLUSTERED = "Intervals at 95%, p-values (of no effect) and tests of columns are Wald's, with robust errors."
_PRIVATE_ERRORS = "Intervals at 95% and p-values (of no effect) are for independent rows."


@of_one_run
def coefficients(run: StoredRun) -> list[Section]:
    """The coefficients of a run on tables with a schema, or why there are none; nothing for other runs and networks."""
    model = run.model
    if model is None or model.inputs.schema is None or model.objective in NETWORKS:
        return []
    try:
        whole = table_of(inferred(model), model.origin.get("outcome", ""))
    except SettingError as error:
        return [Section(_TITLE, [f"None: {error}."])]
    parts = [one._replace(tables=[_shortened(table) for table in one.tables]) for one in whole.parts]
    return [whole._replace(parts=parts) if len(parts) == 1 else whole._replace(parts=[], folded=parts)]


def _shortened(table: Table) -> Table:
    return table.first(_MOST_ROWS, "{more:,} more rows: the command twinflower coefficients shows all.")


def table_of(found: Inference, outcome: str = "") -> Section:
    """All coefficients, those of each outcome in a part of its own, with the facts and what a reader should know.

    outcome: the event or the positive class, as `runs.outcome` says it.
    """
    parts = [
        Section(title, tables=[Table(_headings(found.rows), rows)]) for title, rows in _tables(found.rows)
    ]
    facts = Table(("these estimates", ""), found.facts.lines)
    tests = [_tested(found.tests)] * bool(found.tests)
    return Section(_TITLE, remarks(found, outcome), tables=[*tests, facts], parts=parts)


def _tested(tests: Sequence[JointTest]) -> Table:
    """A table of tests that several coefficients are 0, each with the statistic's distribution."""
    rows = [
        (test.column, test.distribution, f"{test.statistic:.4g}", _p_value(test.p_value)) for test in tests
    ]
    return Table(("all terms of", "distribution", "statistic", "p"), rows)


def remarks(found: Inference, outcome: str = "") -> list[str]:
    """What a reader of the tables should know; outcome: see `table_of`."""
    robust = _CLUSTERED if found.clusters else _ROBUST
    kind = _PRIVATE_ERRORS if found.private else robust if found.robust else _ERRORS
    errors = [kind] if _has_errors(found.rows) else []
    return [
        *([_sentence(outcome)] if outcome else []),
        _UNITS,
        *([_BASELINE] if found.rows[0].column == BASELINE else []),
        *([_COUNTS] if found.rows[0].effect == "rate" and found.facts.log_likelihood is not None else []),
        f"{_USED} {'' if errors or found.remarks else _NO_ERRORS}".strip(),
        *errors,
        *map(_sentence, found.remarks),
    ]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _has_errors(found: Sequence[Coefficient]) -> bool:
    return any(row.std_error == row.std_error for row in found)


def _headings(found: Sequence[Coefficient]) -> tuple[str, ...]:
    kind = found[0].effect
    effect = (f"log {kind}", f"{kind} ratio") if kind else ("effect",)
    if not _has_errors(found):
        return ("column", "term", *effect, "used")
    interval, error = f"95% interval of the {effect[-1]}", f"standard error of the {effect[0]}"
    return ("column", "term", *effect, interval, error, "p", "used")


def _tables(found: Sequence[Coefficient]) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """The rows of text of each outcome, with its title."""
    errors = _has_errors(found)
    for outcome, rows in groupby(found, key=lambda row: (row.effect, row.outcome, row.against)):
        yield _title(*outcome), [_cells(row, errors) for row in rows]


def _title(effect: str, outcome: str, against: str) -> str:
    name = f"{effect} of {outcome}" if effect else "effects, in units of the label"
    return f"{name} against {against}" if against else name


def _cells(row: Coefficient, errors: bool) -> tuple[str, ...]:
    ratio = (f"{row.ratio:.4g}",) if row.effect else ()
    more = _errors(row) if errors else ()
    return (row.column, _term(row), f"{row.estimate:.4g}", *ratio, *more, "yes" if row.selected else "no")


def _errors(row: Coefficient) -> tuple[str, str, str]:
    """The interval, of the ratio if there is one, the standard error and the p-value; dashes if there are none."""
    if row.std_error != row.std_error:
        return ("-", "-", "-")
    low, high = (row.ratio_low, row.ratio_high) if row.effect else (row.low, row.high)
    return f"{low:.4g} to {high:.4g}", f"{row.std_error:.4g}", _p_value(row.p_value)


def _p_value(value: float) -> str:
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


def _term(row: Coefficient) -> str:
    if row.column in (INTERCEPT, BASELINE) or row.term == PER_UNIT:
        return row.term
    return f"{row.term} (reference)" if row.term == row.reference else f"{row.term} (against {row.reference})"


_SUFFIX = ".json"


def as_file(inference: Inference, path: Path) -> str:
    """The content of a file of coefficients in full precision: JSON if its name ends in .json, else CSV."""
    return as_json(inference) if path.suffix.lower() == _SUFFIX else as_csv(inference)


def as_csv(inference: Inference) -> str:
    """A row for each coefficient, and the facts in columns of their own; an empty cell is what is not known."""
    text = io.StringIO()
    rows = [_record(row) | inference.facts.columns(row.column) for row in inference.rows]
    table = csv.DictWriter(text, rows[0], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def as_json(inference: Inference) -> str:
    """The facts, the remarks and the coefficients; null is what is not known."""
    content = {
        "facts": inference.facts.document,
        "remarks": remarks(inference),
        "coefficients": [_record(row) for row in inference.rows],
        "tests": [test._asdict() for test in inference.tests],
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _record(row: Coefficient) -> dict[str, Any]:
    """The fields of a coefficient with the names of both scales; None for a number that is not known or not finite."""
    kind = row.effect
    scales = {"estimate_is": f"log {kind}" if kind else "label", "ratio_is": f"{kind} ratio" if kind else ""}
    fields = {key: cell for key, cell in row._asdict().items() if key != "effect"} | scales
    return {
        key: None if isinstance(cell, float) and not math.isfinite(cell) else cell
        for key, cell in fields.items()
    }
