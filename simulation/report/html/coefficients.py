"""The section of a report on the coefficients of a linear model."""

from collections.abc import Sequence
from pathlib import Path

from twinflower.errors import DataError, SettingError
from twinflower.models.model import inferred
from twinflower.models.trained import load
from twinflower.problems.networks import NETWORKS

from ...results import names
from ..coefficients import FACTS, headings, remarks, tables
from .parts import Section, Table

_TITLE = "Coefficients"
_MOST_ROWS = 100  # of a table


def coefficients(folder: Path) -> list[Section]:
    """The coefficients of a run on tables with a schema, or why there are none; nothing for other runs and networks."""
    if not (folder / names.MODEL).exists():
        return []
    try:
        model = load(folder)
        if model.inputs.schema is None or model.objective in NETWORKS:
            return []
        known = inferred(model)
        found = known.rows
    except DataError:  # a point alone, with which nothing can be predicted
        return []
    except SettingError as error:
        return [Section(_TITLE, [f"None: {error}."])]
    parts = [
        Section(title, tables=[_shortened(headings(found), rows)]) for title, rows in tables(found).items()
    ]
    about = Section(
        _TITLE, remarks(known, model.origin.get("outcome", "")), tables=[Table(FACTS, known.facts.lines)]
    )
    return [about._replace(parts=parts) if len(parts) == 1 else about._replace(folded=parts)]


def _shortened(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    more = len(rows) - _MOST_ROWS
    remark = f"{more:,} more rows: the command twinflower coefficients shows all." if more > 0 else ""
    return Table(names, rows[:_MOST_ROWS], remark)
