"""The coefficients of a linear model in the units of its columns, as an article reports them.

    for row in twinflower.load("runs/hospitals").coefficients():
        print(row.column, row.term, row.estimate, row.ratio)

The score of a row is the intercept plus one term for each column:

    a number          estimate * value, with the value limited to its range
    a category        the estimate of this category; that of the reference, by default the first, is 0
    a missing value   the estimate of the term "is missing", if there is one: for a category in place of the category's,
                      and for a number in addition to estimate * middle of the range, which stands for the value

One-hot features have one weight more than the data determine, so only differences of a column's weights mean something:
the weight of the reference is subtracted from the others and added to the intercept. The same holds for the classes of
a softmax model, of which the first is the reference. A score is the logarithm of the odds of the outcome against the
reference class, or for a regression the label in its own units.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..data.cells import few
from ..data.columns import INDICATOR, REFUSE, Category, Column, Number
from ..data.schema import Schema
from ..errors import SettingError
from .inputs import Inputs

INTERCEPT, BASELINE, PER_UNIT, MISSING = "(intercept)", "(baseline)", "per unit", "is missing"


class Term(NamedTuple):
    """A row of the table for one outcome.

    column: its name, or "(intercept)". term: "per unit" of a number, a category, or "is missing". reference: what the
    term is compared with, a category or the middle of a range; empty if nothing. estimate: how the term changes the
    score. selected: whether the model's own weight of this feature is not 0, which says what a sparse model uses. A
    category that is not selected differs from a reference that is.
    """

    column: str
    term: str
    reference: str
    estimate: float
    selected: bool


class Coefficient(NamedTuple):
    """A row of the table of coefficients; column, term, reference, estimate and selected are those of a `Term`.

    outcome, against: the class whose odds are meant, and the reference class; of counts and of survival their column
    and "", and both empty for a regression. low, high: the ends of the 95% interval of the estimate. effect: what
    exp(estimate) is a ratio of, "odds", "rate", "hazard" or "hazard odds"; empty for a regression. ratio, ratio_low,
    ratio_high: exp of estimate, low and high, of the intercept the odds themselves; NaN for a regression. std_error (of
    the estimate), p_value (of the hypothesis that the coefficient is 0) and the ends of intervals: NaN unless sites
    have sent what they follow from (`models.inference`) and the model is near the maximum, and for a reference.
    """

    outcome: str
    against: str
    column: str
    term: str
    reference: str
    estimate: float
    selected: bool
    effect: str = ""
    ratio: float = math.nan
    std_error: float = math.nan
    p_value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    ratio_low: float = math.nan
    ratio_high: float = math.nan


def table(
    inputs: Inputs, weights: Array, outcome: str = "", against: str = "", effect: str = ""
) -> list[Coefficient]:
    """The rows of one outcome, the intercept first; outcome, against and effect are as in `Coefficient`.

    weights (features,), with one more for the column of ones if there is one, give the score. SettingError if rows were
    divided by their own norms.
    """
    scaled = weights.astype(np.float64) * _common(inputs)
    intercept = float(scaled[-1]) if inputs.bias else 0.0
    terms = _terms(inputs, scaled[: inputs.num_features], intercept)
    ratios = np.exp([term.estimate for term in terms]) if effect else np.full(len(terms), np.nan)
    return [
        Coefficient(outcome, against, *term, effect, float(ratio))
        for term, ratio in zip(terms, ratios, strict=True)
    ]


def compared(inputs: Inputs, references: Mapping[str, str]) -> Inputs:
    """The inputs with these categories as references, by the name of their column; SettingError for a column or a
    category that is not there."""
    columns = inputs.schema.columns if inputs.schema else ()
    known = {column.name: column for column in columns if isinstance(column, Category)}
    for name, category in references.items():
        if name not in known:
            raise SettingError(f"{name!r} is no column with categories: {few(known) or 'there are none'}")
        if category not in known[name].categories:
            raise SettingError(
                f"column {name!r} has no category {category!r}, only {few(known[name].categories)}"
            )
    if not (references and inputs.schema):
        return inputs
    chosen: dict[str, Column] = {
        name: replace(known[name], base=known[name].categories.index(category))
        for name, category in references.items()
    }
    changed = tuple(chosen.get(column.name, column) for column in columns)
    return replace(inputs, schema=replace(inputs.schema, columns=changed))


def spans(inputs: Inputs) -> dict[str, float]:
    """What a number is divided by, by the name of its column: half the width of its range, or the spread of an array's
    column. A score changes by so much times the estimate over half of the range, in whatever unit the column is."""
    if inputs.schema:
        numbers = [column for column in inputs.schema.columns if isinstance(column, Number)]
        return {column.name: column.range.half for column in numbers if column.range}
    return {} if inputs.spread is None else dict(zip(inputs.names, inputs.spread.tolist(), strict=True))


def _common(inputs: Inputs) -> float:
    """The factor by which all rows are multiplied; SettingError if each row has its own."""
    if inputs.factor is None:
        other = 'row_scaling = "all" of an estimator, or data.row-norm = 0, which needs clip-norm in a private run'
        remedy = "data.row-scaling = all" if inputs.schema else other
        raise SettingError(
            f"rows longer than data.row-norm = {inputs.row_norm:g} were divided by their own norms, so this model is "
            f"not linear in the columns and has no coefficients in their units: train with {remedy}"
        )
    return inputs.factor


def _terms(inputs: Inputs, weights: Array, intercept: float) -> list[Term]:
    """The terms, the intercept first, given the weights of the features before they are multiplied by a factor."""
    if inputs.schema:
        shift, terms = _by_column(inputs.schema, weights)
    else:
        slopes = weights if inputs.spread is None else weights / inputs.spread
        shift = 0.0 if inputs.centre is None else -float(slopes @ inputs.centre)
        terms = [
            Term(name, PER_UNIT, "", float(slope), bool(slope))
            for name, slope in zip(inputs.names, slopes, strict=True)
        ]
    return [Term(INTERCEPT, "", "", intercept + shift, bool(intercept)), *terms]


def _by_column(schema: Schema, weights: Array) -> tuple[float, list[Term]]:
    """What the columns of a table add to the intercept, and their terms."""
    ends = np.cumsum([len(column.features) for column in schema.columns])[:-1]
    shift, terms = 0.0, list[Term]()
    for column, block in zip(schema.columns, np.split(weights, ends), strict=True):
        if isinstance(column, Category):
            shift += float(block[column.base])
            terms += _of_category(column, block)
        else:
            slope, middle = _slope(column, float(block[0]))
            shift -= slope * middle
            terms += _of_number(column, block, slope, middle)
    return shift, terms


def _slope(column: Number, weight: float) -> tuple[float, float]:
    """How the score changes with the number by one unit, and the middle of its range."""
    assert column.range is not None  # a trained model knows its ranges
    return weight / column.range.half, column.range.middle


def _of_number(column: Number, weights: Array, slope: float, middle: float) -> Iterator[Term]:
    yield Term(column.name, PER_UNIT, "", slope, bool(slope))
    if column.missing == INDICATOR:
        yield Term(column.name, MISSING, f"{middle:g}", float(weights[-1]), bool(weights[-1]))


def _of_category(column: Category, weights: Array) -> Iterator[Term]:
    reference, base = column.categories[column.base], float(weights[column.base])
    for category, weight in zip(column.categories, weights.tolist(), strict=False):
        yield Term(column.name, category, reference, weight - base, bool(weight))
    if column.missing != REFUSE:
        weight = float(weights[-1]) if column.missing == INDICATOR else 0.0
        selected = bool(weight) if column.missing == INDICATOR else bool(base)  # it has no feature of its own
        yield Term(column.name, MISSING, reference, weight - base, selected)
