"""What the values of a column say about it when they are compared, in one table and between tables."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from .cells import Floats
from .columns import Category, Classes, Column, Label, Survival
from .drafts import Seen, spanned
from .schema_file import to_line
from .words import events

_ENOUGH = 5  # numbers of a table that are compared with those of others
_FACTOR = 3.0  # between medians, from which units may differ
_FEW_LEVELS = 3  # categories that tables should have in common
# Factors between units in use: powers of ten; glucose, cholesterol, creatinine and triglycerides in mmol/l and mg/dl;
# inches, pounds, feet, stones; days, weeks, months and years; kPa; kJ. Then degrees Fahrenheit.
_FACTORS = (10, 100, 1000, 1e6, 18.016, 38.67, 88.42, 88.57, 2.54, 2.2046, 3.2808, 6.35,
            7, 12, 24, 30.44, 60, 365.25, 7.5006, 4.184)  # fmt: skip
_UNITS = [(scale, 0.0) for factor in _FACTORS for scale in (float(factor), 1 / factor)] + [
    (5 / 9, -160 / 9),
    (1.8, 32.0),
]


def about_units(column: str, tables: Mapping[str, Seen]) -> Iterator[str]:
    """A question about every table whose numbers lie elsewhere than those of most tables, by their names.

    Its middle half and that of the table with the middle median do not overlap, or the medians differ by a factor of 3.
    """
    quartiles = {
        name: _quartiles(seen) for name, seen in tables.items() if sum(seen.numbers.values()) >= _ENOUGH
    }
    ordered = sorted(quartiles, key=lambda name: quartiles[name][1])
    usual = ordered[len(ordered) // 2] if len(ordered) > 2 else next(iter(quartiles), "")
    for name, values in quartiles.items():
        if _differ(values, quartiles[usual]):
            rest = spanned(number for other in tables if other != name for number in tables[other].numbers)
            yield (
                f"Column '{column}' has the median {values[1]:g} in {name}, and {quartiles[usual][1]:g} in {usual}. "
                f"Is that another unit? Then write {_remedy(column, name, values, quartiles[usual])} under [sites], "
                "where a number becomes scale * number + offset, and choose the range; that of the other tables is "
                f"[{rest.low:g}, {rest.high:g}]."
            )


def _quartiles(seen: Seen) -> Floats:
    values = np.repeat(list(seen.numbers), list(seen.numbers.values()))
    return np.quantile(values, [0.25, 0.5, 0.75], method="inverted_cdf")


def _differ(one: Floats, other: Floats) -> bool:
    small, large = sorted((abs(one[1]), abs(other[1])))
    return bool(
        one[0] > other[2] or one[2] < other[0] or (one[1] * other[1] > 0 and large >= _FACTOR * small)
    )


def _remedy(column: str, name: str, values: Floats, usual: Floats) -> str:
    """The line of a schema with the known units that fit the quartiles best, else with the factor of the medians, if
    they have one."""

    def distance(unit: tuple[float, float]) -> float:
        return float(np.abs(unit[0] * values + unit[1] - usual).max())

    scale, offset = min(_UNITS, key=distance)
    if distance((scale, offset)) > max(usual[2] - usual[0], 0.1 * abs(usual[1])):
        scale, offset = (usual[1] / values[1] if usual[1] * values[1] > 0 else 1.0), 0.0
    unit = {"scale": float(f"{scale:.5g}")} | ({"offset": float(f"{offset:.5g}")} if offset else {})
    return to_line({name: {column: unit}})


def about_values(column: Column | Label) -> Iterator[str]:
    """A question about every category or class that stands for several values."""
    if isinstance(column, Category | Classes):
        name, kind = (
            (column.name, "categories") if isinstance(column, Category) else (column.column, "classes")
        )
        several = [", ".join(map(repr, values)) for values in column.values if len(values) > 1]
        if several:
            yield (
                f"Column '{name}': do these mean the same, as the draft takes them: {'; '.join(several)}? If not, "
                f"list them as {kind} of their own."
            )


def about_levels(column: Category, tables: Mapping[str, Seen]) -> Iterator[str]:
    """A question about the first two tables with other categories: no common one, or the same small
    number of categories with other codes."""
    codes = {
        value: code for code, values in enumerate(column.values or zip(column.categories)) for value in values
    }
    levels = {name: {codes[text] for text in seen.texts} for name, seen in tables.items() if seen.texts}
    for one, other in combinations(dict.fromkeys(map(frozenset, levels.values())), 2):
        if one.isdisjoint(other) or (len(one) == len(other) <= _FEW_LEVELS):
            names = [next(name for name, group in levels.items() if group == asked) for asked in (one, other)]
            texts = [
                ", ".join(repr(column.categories[code]) for code in sorted(group)) for group in (one, other)
            ]
            yield (
                f"Column '{column.name}' has {texts[0]} in {names[0]}, and {texts[1]} in {names[1]}. If these are "
                'codes for the same, give each category its values, such as categories = { no = ["0", "2"], yes = '
                '["1"] }, or write the same codes in all files.'
            )
            return


def about_event(label: Label, seen: Seen) -> Iterator[str]:
    """What the draft takes as the event, or as the second of two classes, or the question which it is.

    seen: the values of the column of the event, or of the label.
    """
    counts, total = seen.texts, seen.texts.total()
    if isinstance(label, Survival):
        if label.one_row is False:
            yield (
                "Has a person several rows, with the start and the end of an interval each? A row would count as a "
                "person: merge the rows of each person. When every row is another person, followed from time 0, write "
                "one-row-per-person = true. Until then a run is refused."
            )
        if not label.happened:
            yield (
                f"Which value of '{label.event}' means that the event happened, {_either(label.censored)}? The draft "
                "cannot know: move it from censored-values to event-values. Until then a run is refused."
            )
            return
        happened = [text for text in label.happened if text in counts] or list(label.happened)
        num_events = sum(counts[text] for text in happened)
        yield (
            f"The event is {_either(happened)} in column '{label.event}' ({num_events:,} of {total:,} rows). If the "
            "event is another value, exchange event-values and censored-values."
        )
    elif isinstance(label, Classes) and len(label.names) == 2:
        known = events(label.column, [values[0] for values in label.values])
        if not known or known[0][0] not in label.values[1]:
            yield (
                f"Is '{label.names[1]}' of '{label.column}' the outcome whose odds are to be modelled, against "
                f"'{label.names[0]}'? If not, exchange the two classes."
            )


def _either(values: Sequence[str]) -> str:
    return " or ".join(map(repr, values))
