"""The coefficients of a linear model in the units of its columns, as an article reports them.

    for row in twinflower.load("runs/hospitals").coefficients():
        print(row.column, row.term, row.estimate, row.ratio)

The score of a row is the intercept plus one term for each column:

    a number          estimate * value, with the value limited to its range
    a category        the estimate of this category; that of the reference, by default the first, is 0
    a missing value   the estimate of the term "is missing", if there is one: for a category in place of the category's,
                      and for a number in addition to estimate * middle of the range, which stands for the value

and for each of the schema's `terms`:

    age:dose, age^2   estimate * product of the values, in the units of the columns
    age:sex           the estimate of this category of sex * age
    bs(age)           the sum of estimate * basis function, without the first one; there is no other term for age

One-hot features have one weight more than the data determine, so only differences of a column's weights mean something:
the weight of the reference is subtracted from the others and added to the intercept. The same holds for the classes of
a softmax model, of which the first is the reference. A score is the logarithm of the odds of the outcome against the
reference class, or for a regression the label in its own units.

In general, features are polynomials in numbers, in indicators of categories without the reference and in basis
functions without the first, and the estimates are the coefficients of the score as such a polynomial. So they are those
of R's formula age * sex + I(age^2), for which numbers are not scaled.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial, reduce
from itertools import product
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..data.cells import few
from ..data.columns import INDICATOR, REFUSE, Category, Column, Number, Range
from ..data.schema import Schema
from ..data.terms import Factor, Product, Spline, range_of
from ..errors import SettingError
from .inputs import Inputs

INTERCEPT, BASELINE, PER_UNIT, MISSING = "(intercept)", "(baseline)", "per unit", "is missing"


class Coefficient(NamedTuple):
    """A row of the table of coefficients.

    outcome, against: the class whose odds are meant, and the reference class; of counts and of survival their column
    and "", and both empty for a regression. column: its name, or "(intercept)". term: "per unit" of a number, a
    category, or "is missing". reference: what the term is compared with, a category or the middle of a range; empty if
    nothing. estimate: how the term changes the score. selected: whether the model's own weight of this feature is not
    0, which says what a sparse model uses. A category that is not selected differs from a reference that is. low, high:
    the ends of the 95% interval of the estimate. effect: what exp(estimate) is a ratio of, "odds", "rate", "hazard" or
    "hazard odds"; empty for a regression. ratio, ratio_low, ratio_high: exp of estimate, low and high, of the intercept
    the odds themselves; NaN for a regression. std_error (of the estimate), p_value (of the hypothesis that the
    coefficient is 0) and the ends of intervals: NaN unless sites have sent what they follow from (`models.inference`)
    and the model is near the maximum, and for a reference.
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

    @property
    def unknown(self) -> "Coefficient":
        """The coefficient without an estimate."""
        return self._replace(estimate=math.nan, ratio=math.nan)


def table(
    inputs: Inputs, weights: Array, outcome: str = "", against: str = "", effect: str = ""
) -> list[Coefficient]:
    """The rows of one outcome, the intercept first; outcome, against and effect are as in `Coefficient`.

    weights (features,), with one more for the column of ones if there is one, give the score. SettingError if rows were
    divided by their own norms.
    """
    scaled = weights.astype(np.float64) * _common(inputs)
    intercept = float(scaled[-1]) if inputs.bias else 0.0
    new = partial(Coefficient, outcome, against, effect=effect)
    terms = _terms(inputs, scaled[: inputs.num_features], intercept, new)
    if not effect:
        return terms
    with np.errstate(over="ignore"):  # estimates that do not exist
        ratios = np.exp([term.estimate for term in terms]).tolist()
    return [term._replace(ratio=ratio) for term, ratio in zip(terms, ratios, strict=True)]


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
    column; of a product all of these. A score changes by so much times the estimate over half of the range, in whatever
    unit the column is."""
    if inputs.schema:
        numbers = [column for column in inputs.schema.columns if isinstance(column, Number)]
        halves = {column.name: column.range.half for column in numbers if column.range}
        products = [term for term in inputs.schema.terms if isinstance(term, Product)]
        return halves | {
            term.name: math.prod(halves.get(name, 1.0) ** power for name, power in term.factors)
            for term in products
        }
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


def _terms(
    inputs: Inputs, weights: Array, intercept: float, new: Callable[..., Coefficient]
) -> list[Coefficient]:
    """The terms, the intercept first, given the weights of the features before they are multiplied by a factor."""
    if inputs.schema:
        rows, matrix = _by_schema(inputs.schema)
        shift, *estimates = (matrix @ weights).tolist()
        used = [bool(row.feature is not None and weights[row.feature]) for row in rows]
        terms = [
            new(row.column, row.term, row.reference, estimate, known)
            for row, estimate, known in zip(rows, estimates, used, strict=True)
        ]
    else:
        slopes = weights if inputs.spread is None else weights / inputs.spread
        shift = 0.0 if inputs.centre is None else -float(slopes @ inputs.centre)
        terms = [
            new(name, PER_UNIT, "", float(slope), bool(slope))
            for name, slope in zip(inputs.names, slopes, strict=True)
        ]
    return [new(INTERCEPT, "", "", intercept + shift, bool(intercept)), *terms]


# --- of a schema, whose features are polynomials

Atom = tuple[int, int]
"""What a polynomial is made of: the index of a column with the power of a number, a category, or `_GONE`, the indicator
of a missing value; or -1 - the index of a spline among the terms, with a basis function."""
Monomial = tuple[Atom, ...]
Polynomial = dict[Monomial, float]
_GONE = -1
_ONE: Monomial = ()


class _Row(NamedTuple):
    """A row of the table: a monomial, None for a reference, and the feature whose weight says if it is used."""

    column: str
    term: str
    reference: str
    monomial: Monomial | None
    feature: int | None


@lru_cache(maxsize=8)
def _by_schema(schema: Schema) -> tuple[list[_Row], Array]:
    """The rows of the table without the intercept, and the matrix (1 + rows, features) by which weights become what is
    added to the intercept, and the estimates."""
    rows, polynomials = list(_rows(schema)), _polynomials(schema)
    places = {row.monomial: place for place, row in enumerate(rows, 1) if row.monomial} | {_ONE: 0}
    matrix = np.zeros((1 + len(rows), len(polynomials)))
    for feature, polynomial in enumerate(polynomials):
        for monomial, coefficient in polynomial.items():
            matrix[places[monomial], feature] += coefficient
    return rows, matrix


def _rows(schema: Schema) -> Iterator[_Row]:
    """The rows of the columns and of the terms, in the order of the features."""
    curved = {term.column for term in schema.terms if isinstance(term, Spline)}
    first, columns = 0, {column.name: column for column in schema.columns}
    for index, column in enumerate(schema.columns):
        if isinstance(column, Category):
            yield from _of_category(index, column, first)
        else:
            yield from _of_number(index, column, first, column.name in curved)
        first += len(column.features)
    for place, term in enumerate(schema.terms):
        yield from (
            _of_spline(place, term, first) if isinstance(term, Spline) else _of_product(schema, term, first)
        )
        first += len(term.features(columns))


def _of_number(index: int, column: Number, first: int, curved: bool) -> Iterator[_Row]:
    if not curved:
        yield _Row(column.name, PER_UNIT, "", ((index, 1),), first)
    if column.missing == INDICATOR:
        yield _Row(column.name, MISSING, f"{range_of(column).middle:g}", ((index, _GONE),), first + 1)


def _of_category(index: int, column: Category, first: int) -> Iterator[_Row]:
    reference = column.categories[column.base]
    for code, category in enumerate(column.categories):
        monomial = None if code == column.base else ((index, code),)
        yield _Row(column.name, category, reference, monomial, first + code)
    if column.missing != REFUSE:
        place = (
            len(column.categories) if column.missing == INDICATOR else column.base
        )  # it has no feature of its own
        yield _Row(column.name, MISSING, reference, ((index, _GONE),), first + place)


def _of_spline(place: int, term: Spline, first: int) -> Iterator[_Row]:
    for code in range(1, term.size):
        yield _Row(term.name, str(code), "", ((-1 - place, code),), first + code)


class _Level(NamedTuple):
    """A value of a factor of a product. atom: None for a reference; place: among the factor's features, or None."""

    atom: Atom | None
    text: str
    place: int | None


def _of_product(schema: Schema, term: Product, first: int) -> Iterator[_Row]:
    levels = [_levels(schema, factor) for factor in term.factors]
    sizes = [sum(level.place is not None for level in factor) for factor in levels]
    reference = ":".join(level.text for factor in levels for level in factor if level.atom is None)
    for chosen in product(*levels):
        atoms = [level.atom for level in chosen if level.atom]
        places = [level.place for level in chosen if level.place is not None]
        if len(atoms) == len(chosen):
            text = ":".join(level.text for level in chosen if level.text) or PER_UNIT
            feature = first + int(np.ravel_multi_index(places, sizes)) if len(places) == len(chosen) else None
            yield _Row(term.name, text, reference, tuple(sorted(atoms)), feature)


def _levels(schema: Schema, factor: Factor) -> list[_Level]:
    index = schema.names.index(factor.column)
    column = schema.columns[index]
    if isinstance(column, Number):
        return [_Level((index, factor.power), "", 0)]
    levels = [
        _Level(None if code == column.base else (index, code), category, code)
        for code, category in enumerate(column.categories)
    ]
    if column.missing != REFUSE:
        place = len(levels) if column.missing == INDICATOR else None
        levels.append(_Level((index, _GONE), f"{column.name} {MISSING}", place))
    return levels


def _polynomials(schema: Schema) -> list[Polynomial]:
    """Every feature as a polynomial."""
    known = {column.name: (index, column) for index, column in enumerate(schema.columns)}
    features = [polynomial for index, column in known.values() for polynomial in _features(index, column)]
    for place, term in enumerate(schema.terms):
        if isinstance(term, Spline):
            features += _indicators([(-1 - place, code) for code in range(term.size)], 0)
        else:
            factors = [
                _features(*known[name], power)[: _width(known[name][1])] for name, power in term.factors
            ]
            features += [reduce(_times, chosen) for chosen in product(*factors)]
    return [_as_splines(schema, known, feature) for feature in features]


def _width(column: Column) -> int | None:
    """How many features of a column enter a product, None for all."""
    return 1 if isinstance(column, Number) else None


def _features(index: int, column: Column, power: int = 1) -> list[Polynomial]:
    """The features of a column, of a number with its value to this power."""
    gone: list[Polynomial] = [{((index, _GONE),): 1.0}] * (column.missing == INDICATOR)
    if isinstance(column, Number):
        return [_power(index, range_of(column), power), *gone]
    indicators = _indicators([(index, code) for code in range(len(column.categories))], column.base)
    if column.missing != REFUSE:
        indicators[column.base][((index, _GONE),)] = -1.0
    return [*indicators, *gone]


def _power(index: int, span: Range, power: int) -> Polynomial:
    """((value - middle) / half)^power."""
    binomial = [
        math.comb(power, k) * (-span.middle) ** (power - k) / span.half**power for k in range(power + 1)
    ]
    return {((index, k),) if k else _ONE: coefficient for k, coefficient in enumerate(binomial)}


def _indicators(atoms: Sequence[Atom], base: int) -> list[Polynomial]:
    """Indicators, or basis functions, which sum to 1, without the one of the reference."""
    reference: Polynomial = {_ONE: 1.0} | {(atom,): -1.0 for atom in atoms}
    del reference[(atoms[base],)]
    return [reference if code == base else {(atom,): 1.0} for code, atom in enumerate(atoms)]


def _times(one: Polynomial, other: Polynomial) -> Polynomial:
    """The product of polynomials in different columns."""
    return {tuple(sorted(a + b)): u * v for (a, u), (b, v) in product(one.items(), other.items())}


def _as_splines(schema: Schema, known: Mapping[str, tuple[int, Column]], feature: Polynomial) -> Polynomial:
    """The polynomial with a number that has a spline as a sum of its basis functions."""
    for place, term in enumerate(schema.terms):
        slope = feature.pop(((known[term.column][0], 1),), 0.0) if isinstance(term, Spline) else 0.0
        if slope and isinstance(term, Spline):
            start, *others = (slope * term.averages(known[term.column][1])).tolist()
            feature[_ONE] = feature.get(_ONE, 0.0) + start
            feature |= {((-1 - place, code),): value - start for code, value in enumerate(others, 1)}
    return feature
