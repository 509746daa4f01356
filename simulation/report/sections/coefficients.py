"""The section on the coefficients of a linear model, with the facts about them, and files of them."""

import json
import math
from pathlib import Path
from typing import Any

from twinflower.errors import SettingError
from twinflower.models.coefficients import BASELINE, Coefficient
from twinflower.models.inference import Inference
from twinflower.models.model import inferred
from twinflower.models.printed import TESTS, by_outcome, has_errors, headings, tested
from twinflower.problems.networks import NETWORKS

from ...results.files import csv_text
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
    head = headings(found.rows)
    parts = [Section(title, tables=[Table(head, rows)]) for title, rows in by_outcome(found.rows)]
    facts = Table(("these estimates", ""), found.facts.lines)
    tests = [Table(TESTS, tested(found.tests))] * bool(found.tests)
    return Section(_TITLE, remarks(found, outcome), tables=[*tests, facts], parts=parts)


def remarks(found: Inference, outcome: str = "") -> list[str]:
    """What a reader of the tables should know; outcome: see `table_of`."""
    robust = _CLUSTERED if found.clusters else _ROBUST
    kind = _PRIVATE_ERRORS if found.private else robust if found.robust else _ERRORS
    errors = [kind] if has_errors(found.rows) else []
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


_SUFFIX = ".json"


def as_file(inference: Inference, path: Path) -> str:
    """The content of a file of coefficients in full precision: JSON if its name ends in .json, else CSV."""
    return as_json(inference) if path.suffix.lower() == _SUFFIX else as_csv(inference)


def as_csv(inference: Inference) -> str:
    """A row for each coefficient, and the facts in columns of their own; an empty cell is what is not known."""
    rows = [_record(row) | inference.facts.columns(row.column) for row in inference.rows]
    return csv_text([rows[0], *(row.values() for row in rows)])


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
