"""The columns and the label of the rows that a site trains on, as variables to describe or to group by."""

from typing import TypeVar

import numpy as np

from ..arrays import Array
from ..data.columns import ABSENT, REFUSE, Category, Classes, Column, Counts, Label, Number, Range, Survival
from ..errors import SettingError, require
from ..models.summaries import MISSING, Variable
from ..problems.losses import unpacked
from ..survival_labels import unsigned
from .query import Run

C = TypeVar("C", Category, Number)
_EVENT = ("censored", "event")


def label_variables(label: Label, bins: int) -> tuple[Variable, ...]:
    """The label as variables."""
    if isinstance(label, Classes):
        return (Variable(label.column, tuple(map(str, label.names))),)
    if isinstance(label, Survival):
        return Variable(label.event, _EVENT), Variable(label.column, range=label.times, bins=bins)
    public = Range(0.0, label.most) if isinstance(label, Counts) else label.range
    return (Variable(label.column, range=public, bins=bins),)


def column_variable(column: Column, bins: int = 0) -> Variable:
    """A column as a variable."""
    may_miss = column.missing != REFUSE
    if isinstance(column, Category):
        return Variable(column.name, column.categories, may_miss=may_miss)
    return Variable(column.name, range=column.range, bins=bins, may_miss=may_miss)


def check_categories(variable: Variable, setting: str, *taken: str) -> None:
    """Raise SettingError unless the categories differ from the name of the missing values, if there can be any, and
    from the other names taken."""
    names = {*taken, *[MISSING] * variable.may_miss}
    name = next((name for name in variable.categories if name in names), None)
    if name is not None:
        what = "missing values are" if name == MISSING else "all rows together are"
        raise SettingError(
            f"{setting} cannot count category '{name}' of column '{variable.name}', because {what} called that, too: "
            f'rename it in the schema, as in categories = {{ other = ["{name}"], ... }}'
        )


def column_named(run: Run, kind: type[C], setting: str, name: str) -> C:
    """The column of this kind and name in the schema of a run's tables; SettingError if there is none."""
    schema = run.dataset.schema if run.dataset.marks is not None else None
    columns = {own.name: own for own in schema.columns if isinstance(own, kind)} if schema else {}
    if name not in columns:
        what = "categories" if kind is Category else "numbers"
        raise SettingError(
            f"{setting} must be a column of {what} in a schema ({', '.join(columns) or 'there is none'}); got '{name}'"
        )
    return columns[name]


def check_whole_rows(run: Run, setting: str) -> None:
    """Raise SettingError for rows whose columns cannot be read off the features."""
    require(
        run.inputs.factor is not None,
        f"{setting} needs rows that are not divided by their own norms: set data.row-scaling to all, or data.row-norm "
        "to 0",
    )


def column_values(run: Run, column: Column, client: int) -> Array:
    """The values (rows,) of a column at a client, see `Variable`."""
    data, rows = run.dataset, run.rows_of(client)
    assert data.schema is not None and data.marks is not None
    first = data.schema.features.index(column.features[0])
    if isinstance(column, Category):
        values = data.features[rows, first : first + len(column.categories)].argmax(1).astype(np.float64)
    else:
        values = data.features[rows, first] / (run.inputs.factor or 1.0)
    gone = data.marks[rows, data.schema.columns.index(column)] == ABSENT
    return np.where(gone, np.nan, values)


def label_values(run: Run, client: int) -> Array:
    """The values (rows, variables) of the label at a client, in the order of `label_variables`."""
    labels, schema = run.dataset.labels[run.rows_of(client)].astype(np.float64), run.dataset.schema
    assert schema is not None
    if isinstance(schema.label, Survival):
        times, events = unsigned(labels)
        return np.column_stack([events, schema.label.times.scaled(times)])
    if isinstance(schema.label, Counts):
        labels = Range(0.0, schema.label.most).scaled(unpacked(labels)[0])
    return labels[:, None]
