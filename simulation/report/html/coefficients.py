"""The section of a report on the coefficients of a linear model."""

from pathlib import Path

from twinflower.errors import DataError, SettingError
from twinflower.models.trained import load
from twinflower.problems.networks import NETWORKS

from ...results import names
from ..coefficients import REMARKS, headings, tables
from .parts import Section, Table

_TITLE = "Coefficients"


def coefficients(folder: Path) -> list[Section]:
    """The coefficients of a run on tables with a schema, or why there are none; nothing for other runs and networks."""
    if not (folder / names.MODEL).exists():
        return []
    try:
        model = load(folder)
        if model.inputs.schema is None or model.objective in NETWORKS:
            return []
        found = model.coefficients()
    except DataError:  # a point alone, with which nothing can be predicted
        return []
    except SettingError as error:
        return [Section(_TITLE, [f"None: {error}."])]
    parts = [Section(title, tables=[Table(headings(found), rows)]) for title, rows in tables(found).items()]
    if len(parts) == 1:
        return [Section(_TITLE, REMARKS, parts=parts)]
    return [Section(_TITLE, REMARKS, folded=parts)]
