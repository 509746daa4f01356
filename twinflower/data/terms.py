"""Terms of a schema beyond its columns: products, powers and splines, each a function of the columns' features.

    terms = ["age:sex", "age^2", "bs(age, 4)", "bs(dose, knots = [2, 5])"]

    age:sex                  products of the features of both columns: of two numbers one, of a number and a category
                             one for each category, of two categories one for each pair
    age^2                    the square of the column's feature, which is a number in [-1, 1]
    bs(age, 4)               4 columns, as in R: a cubic B-spline from one end of the range to the other, with 4 - 3
                             inner knots that divide the range into equal parts; it has one basis function more than
                             columns, because all of them sum to 1
    bs(age, knots = [40])    the same with these inner knots, in units of the column

They are made of features, so a missing value is in them what it is in its column: a missing number is the middle of its
range, and a missing category is none of the categories, or one more with missing = "indicator". The features of a term
have a norm of at most 1: a product of numbers in [-1, 1]; products of which at most one is not 0; or basis functions,
which are at least 0 and sum to 1 (de Boor, A Practical Guide to Splines, 1978, IX).

All columns are in a model by themselves. A term needs the terms below it ("age:sex:dose" needs "age:sex", "age:dose"
and "sex:dose", "age^3" needs "age^2"), or the model would depend on where the zeros of the columns are.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np

from ..decimals import decimal
from ..errors import DataError, expect
from ..settings import alike
from .cells import Floats, few
from .columns import Category, Column, Number, Range

DEGREE = 3
MOST_FEATURES, MOST_POWER, MOST_SPLINE = 200, 5, 20
"""The largest numbers of a term's features, of a power, and of a spline's columns."""
_POWERS = [str(power) for power in range(2, MOST_POWER + 1)]
_CALL = re.compile(r"(\w+)\s*\((.*)\)")
_SPLINE = re.compile(r"([^,]+?)\s*,\s*(?:(\d{1,3})|knots\s*=\s*\[([^\]]*)\])")


class Factor(NamedTuple):
    """A column of a product, a number with its power."""

    column: str
    power: int = 1

    def __str__(self) -> str:
        return self.column if self.power == 1 else f"{self.column}^{self.power}"


@dataclass(frozen=True)
class Product:
    """A product of columns, or a power of a number."""

    factors: tuple[Factor, ...]

    @property
    def name(self) -> str:
        """As it is written in a schema."""
        return ":".join(map(str, self.factors))

    text = name

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it is made of."""
        return tuple(factor.column for factor in self.factors)

    def features(self, columns: Mapping[str, Column]) -> list[str]:
        """Names of its features, the last factor's varying fastest."""
        kinds = [(str(factor), columns[factor.column]) for factor in self.factors]
        names = [column.features if isinstance(column, Category) else (text,) for text, column in kinds]
        return [":".join(parts) for parts in product(*names)]

    def encode(self, columns: Mapping[str, Column], blocks: Mapping[str, Floats]) -> Floats:
        """Its features (rows, m), given those of the columns by name."""
        whole = np.ones((1, 1))
        for name, power in self.factors:
            block = blocks[name][:, :1] ** power if isinstance(columns[name], Number) else blocks[name]
            products = whole[:, :, None] * block[:, None, :]
            whole = products.reshape(len(block), whole.shape[1] * block.shape[1])
        return whole


@dataclass(frozen=True)
class Spline:
    """A cubic B-spline of a number. knots: the inner ones, in units of the column; text: as it is written in a
    schema."""

    column: str
    knots: tuple[float, ...]
    text: str

    @property
    def name(self) -> str:
        """Its name in a table of coefficients."""
        return f"bs({self.column})"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it is made of."""
        return (self.column,)

    @property
    def size(self) -> int:
        """The number of basis functions."""
        return len(self.knots) + DEGREE + 1

    def features(self, columns: Mapping[str, Column]) -> list[str]:
        """Names of the basis functions, from 0 on."""
        return [f"{self.name} {place}" for place in range(self.size)]

    def encode(self, columns: Mapping[str, Column], blocks: Mapping[str, Floats]) -> Floats:
        """The basis functions (rows, m), given the features of the columns by name."""
        from scipy.interpolate import BSpline  # slow to import, and few schemas have splines

        scaled = range_of(columns[self.column]).scaled(np.array(self.knots))
        knots = np.concatenate([np.full(DEGREE + 1, -1.0), scaled, np.full(DEGREE + 1, 1.0)])
        return BSpline(knots, np.eye(self.size), DEGREE)(blocks[self.column][:, 0])  # type: ignore[no-any-return]

    def averages(self, column: Column) -> Floats:
        """The values (m,) of the column with which the basis functions sum to the column itself (Greville 1967)."""
        range_ = range_of(column)
        knots = np.concatenate([np.full(DEGREE, range_.low), self.knots, np.full(DEGREE, range_.high)])
        return np.lib.stride_tricks.sliding_window_view(knots, DEGREE).mean(1)  # type: ignore[no-any-return]


Term = Product | Spline


def range_of(column: Column) -> Range:
    """The range of a number, which must be public."""
    assert isinstance(column, Number) and column.range  # checked where the schema is read
    return column.range


def parse_terms(given: Any, columns: Sequence[Column]) -> tuple[Term, ...]:
    """The terms of a schema with these columns; DataError for an invalid one."""
    if not (isinstance(given, list) and all(isinstance(text, str) for text in given)):
        raise DataError(
            f'terms must be a list of texts such as ["age:sex", "age^2", "bs(age, 4)"]; got {given!r}'
        )
    known = {column.name: column for column in columns}
    terms = tuple(_term(text.strip(), known) for text in given)
    for term in terms:
        _check_size(term, known)
    _check_together(terms)
    return terms


def _term(text: str, columns: Mapping[str, Column]) -> Term:
    call = _CALL.fullmatch(text)
    if call and text not in columns:
        expect(
            call[1] == "bs", f"terms: '{text}' calls '{call[1]}', and the only function is bs, for B-splines"
        )
        return _spline(text, call[2].strip(), columns)
    factors = tuple(_factor(text, part.strip(), columns) for part in text.split(":"))
    if len(factors) == 1 and factors[0].power == 1:
        raise DataError(
            f"terms: '{text}' is a column, which is in every model by itself: leave it out of terms"
        )
    twice = [name for name, count in Counter(factor.column for factor in factors).items() if count > 1]
    if twice:
        raise DataError(f"terms: '{text}' has column '{twice[0]}' twice: write '{twice[0]}^2' for its square")
    return Product(factors)


def _factor(text: str, part: str, columns: Mapping[str, Column]) -> Factor:
    name, power = (part, "1") if part in columns or "^" not in part else map(str.strip, part.rsplit("^", 1))
    column = _column(text, name, columns)
    if not (power in _POWERS or name == part):
        raise DataError(
            f"terms: the power in '{text}' must be a whole number from 2 to {MOST_POWER}; got '{power}'"
        )
    if isinstance(column, Category) and power != "1":
        raise DataError(
            f"terms: '{text}' is a power of '{name}', which has categories: powers are for numbers"
        )
    return Factor(name, int(power))


def _column(text: str, name: str, columns: Mapping[str, Column]) -> Column:
    if name not in columns:
        _check_notation(text, name)
        raise DataError(f"terms: '{text}' needs '{name}' in [columns], where it is not{alike(name, columns)}")
    column = columns[name]
    if isinstance(column, Number) and column.range is None:
        raise DataError(
            f"terms: '{text}' needs a public range of column '{name}', [low, high]; its range is private"
        )
    return column


def _check_notation(text: str, part: str) -> None:
    """DataError with the remedy for what other formulas allow, in a part that names no column."""
    expect(
        "*" not in text,
        f"terms: '{text}' is no term: write '{text.replace('*', ':')}'; its columns are always in",
    )
    expect(
        not _CALL.fullmatch(part), f"terms: '{text}' has a spline as a factor, and only columns have products"
    )


def _spline(text: str, inside: str, columns: Mapping[str, Column]) -> Spline:
    parts = _SPLINE.fullmatch(inside)
    if not parts:
        raise DataError(
            f"terms: '{text}' must be like 'bs(age, 4)', with the number of columns, or 'bs(age, knots = [40, 60])'"
        )
    name, size, listed = parts.groups()
    column = _column(text, name, columns)
    if not isinstance(column, Number):
        raise DataError(
            f"terms: '{text}' is a spline of '{name}', which has categories: splines are for numbers"
        )
    low, high = range_of(column).low, range_of(column).high
    if size is None:
        knots = _knots(text, listed, low, high)
        return Spline(name, knots, f"bs({name}, knots = [{', '.join(map(repr, knots))}])")
    if not DEGREE <= int(size) <= MOST_SPLINE:
        raise DataError(f"terms: a spline must have {DEGREE} to {MOST_SPLINE} columns; got '{text}'")
    inner = np.linspace(low, high, int(size) - DEGREE + 2)[1:-1]
    return Spline(name, tuple(inner.tolist()), f"bs({name}, {int(size)})")


def _knots(text: str, listed: str, low: float, high: float) -> tuple[float, ...]:
    """The knots in a text such as 40, 60."""
    try:
        knots = tuple(decimal(knot) for knot in listed.split(",") if knot.strip())
    except ValueError:
        raise DataError(f"terms: the knots in '{text}' must be numbers, such as [40, 60]") from None
    ends = (low, *knots, high)
    if not all(a < b for a, b in pairwise(ends)):
        raise DataError(
            f"terms: the knots in '{text}' must ascend between {low:g} and {high:g}, the ends of the column's range"
        )
    if not len(knots) + DEGREE <= MOST_SPLINE:
        raise DataError(f"terms: '{text}' must have at most {MOST_SPLINE - DEGREE} knots; got {len(knots)}")
    return knots


def _check_size(term: Term, columns: Mapping[str, Column]) -> None:
    if isinstance(term, Product):
        sizes = [len(columns[name].features) for name in term.columns if isinstance(columns[name], Category)]
        if not math.prod(sizes) <= MOST_FEATURES:
            raise DataError(
                f"terms: '{term.name}' must have at most {MOST_FEATURES} features; got {math.prod(sizes)}: merge "
                "categories"
            )


def _below(term: Term) -> list[Product]:
    """The products with one power or column less, without single columns."""
    if isinstance(term, Spline):
        return []
    others = [
        [*term.factors[:i], *([Factor(f.column, f.power - 1)] if f.power > 1 else []), *term.factors[i + 1 :]]
        for i, f in enumerate(term.factors)
    ]
    return [Product(tuple(rest)) for rest in others if len(rest) > 1 or any(f.power > 1 for f in rest)]


def _check_together(terms: Sequence[Term]) -> None:
    """DataError for terms that repeat each other, or without those below them."""
    names = [frozenset(term.factors) if isinstance(term, Product) else term.name for term in terms]
    for place, term in enumerate(terms):
        if names[place] in names[:place]:
            raise DataError(f"terms: '{term.name}' is there twice: leave one of them out")
    splines = {term.column for term in terms if isinstance(term, Spline)}
    for term in terms:
        if isinstance(term, Product) and any(f.power > 1 and f.column in splines for f in term.factors):
            raise DataError(
                f"terms: '{term.name}' and a spline of the same column repeat each other: leave one of them out"
            )
        absent = [lower.name for lower in _below(term) if frozenset(lower.factors) not in names]
        if absent:
            raise DataError(
                f"terms: '{term.name}' needs {few(absent)}, too, or the model would depend on where the zeros of the "
                "columns are"
            )
