"""Runs of a mechanism as rows of numbers, and what stays the same in every run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from twinflower.arrays import Array

from .transcript import Transcript

_FEW = 300  # numbers of all rounds that are used as they are; more are projected
_DIRECTIONS = 2  # on which the numbers of a round are projected
_LARGEST = 1e50  # numbers are clipped to it, so that their squares are numbers, too
_ABSENT, _NOTHING = "absent", np.empty(0)


class Leak(NamedTuple):
    """Something that is the same in every run on a data set, and another on its neighbour. entry: of the numbers at
    the place; None for a text."""

    round: int
    place: str
    first: str
    second: str
    entry: int | None = None

    def on_second(self, run: Transcript) -> bool:
        """Whether a run shows what the runs on the second data set have shown."""
        outcome = run[self.round - 1]
        if self.entry is None:
            return outcome.form.get(self.place, _ABSENT) == self.second
        numbers = outcome.values.get(self.place, _NOTHING)
        return self.entry < len(numbers) and f"{numbers[self.entry]:.17g}" == self.second


def leaks(first: Sequence[Transcript], second: Sequence[Transcript]) -> list[Leak]:
    """What may distinguish the data sets with certainty, judging by these runs.

    It is the same, or absent, in all runs on a data set, and different between the two. Of the numbers at a place, each
    is compared by itself.
    """
    forms, numbers = (sorted(_keys([*first, *second], part)) for part in (0, 1))
    found = []
    for round_, place in forms:
        one, other = ({run[round_ - 1].form.get(place, _ABSENT) for run in side} for side in (first, second))
        if len(one) == len(other) == 1 and one != other:
            found.append(Leak(round_, place, one.pop(), other.pop()))
    for round_, place in numbers:
        sides = [[run[round_ - 1].values.get(place, _NOTHING) for run in side] for side in (first, second)]
        if len({len(numbers) for side in sides for numbers in side}) == 1:
            found += _told_by(round_, place, *map(np.stack, sides))
    return found


def _told_by(round_: int, place: str, first: Array, second: Array) -> list[Leak]:
    """The first number at a place (n, size) that tells the data sets apart."""
    same = (first == first[0]).all(0) & (second == second[0]).all(0) & (first[0] != second[0])
    return [
        Leak(round_, place, f"{first[0, i]:.17g}", f"{second[0, i]:.17g}", int(i))
        for i in np.flatnonzero(same)[:1]
    ]


def _keys(runs: Sequence[Transcript], part: int) -> set[tuple[int, str]]:
    """The rounds and places of the forms, part 0, or of the values, part 1."""
    return {
        (round_, place) for run in runs for round_, outcome in enumerate(run, 1) for place in outcome[part]
    }


def changing(runs: Sequence[Transcript]) -> list[str]:
    """Texts and single numbers that are not the same in all runs on the same data."""
    seen: dict[tuple[int, str], set[Any]] = {}
    for run in runs:
        for round_, outcome in enumerate(run, 1):
            single = {place: float(v[0]) for place, v in outcome.values.items() if len(v) == 1}
            for place, value in {**outcome.form, **single}.items():
                seen.setdefault((round_, place), set()).add(value)
    return sorted({place for (_, place), values in seen.items() if len(values) > 1})


@dataclass(frozen=True)
class Features:
    """Turns runs into rows of numbers.

    layout: (round, place, size) of the numbers that are used; those that a run lacks are 0. directions: of every round,
    on which long rounds are projected; empty if all numbers are used as they are. centre: of every round, from which
    the squares of `energies` are taken.
    """

    layout: tuple[tuple[int, str, int], ...]
    directions: Array
    centre: tuple[Array, ...]

    @classmethod
    def of(cls, first: Sequence[Transcript], second: Sequence[Transcript]) -> "Features":
        """The features for mechanisms with such runs; both sequences have the same seeds."""
        layout = tuple(
            (round_, place, len(numbers))
            for round_, outcome in enumerate(first[0], 1)
            for place, numbers in outcome.values.items()
        )
        means = [_means([_rounds(layout, run) for run in side]) for side in (first, second)]
        centre = tuple((a + b) / 2 for a, b in zip(*means, strict=True))
        moved = [b - a for a, b in zip(*means, strict=True)]
        few = sum(size for *_, size in layout) <= _FEW
        return cls(layout, np.empty((0, 0)) if few else _main_directions(moved), centre)

    def values(self, run: Transcript) -> Array:
        """The numbers of a run (q,)."""
        parts = _rounds(self.layout, run)
        if not self.directions.size:
            return np.concatenate([*parts, np.empty(0)])
        return np.concatenate([self.directions[:, : len(part)] @ part for part in parts])

    def energies(self, run: Transcript) -> Array:
        """The sum of squares of every round (rounds,)."""
        parts = zip(_rounds(self.layout, run), self.centre, strict=True)
        return np.array([float(((part - centre) ** 2).sum()) for part, centre in parts])

    @property
    def rounds(self) -> Array:
        """The round of every entry of `values` (q,)."""
        if self.directions.size:
            return np.repeat(_round_numbers(self.layout), len(self.directions))
        return np.repeat([round_ for round_, *_ in self.layout], [size for *_, size in self.layout])


def _round_numbers(layout: Sequence[tuple[int, str, int]]) -> list[int]:
    return sorted({round_ for round_, *_ in layout})


def _rounds(layout: Sequence[tuple[int, str, int]], run: Transcript) -> list[Array]:
    """The numbers of every round of a run."""
    parts: dict[int, list[Array]] = {}
    for round_, place, size in layout:
        numbers = run[round_ - 1].values.get(place)
        fits = numbers is not None and len(numbers) == size
        used = numbers if numbers is not None and fits else np.zeros(size)
        parts.setdefault(round_, []).append(np.clip(used, -_LARGEST, _LARGEST))
    return [np.concatenate(parts[round_]) for round_ in sorted(parts)]


def _means(runs: Sequence[Sequence[Array]]) -> list[Array]:
    """The mean numbers of every round."""
    return [np.mean(parts, axis=0) for parts in zip(*runs, strict=True)]


def _main_directions(moved: Sequence[Array]) -> Array:
    """The orthonormal directions (k, longest round) in which the rounds move most."""
    longest = max(map(len, moved))
    stacked = np.stack([np.pad(move, (0, longest - len(move))) for move in moved])
    _, _, directions = np.linalg.svd(stacked, full_matrices=False)
    return directions[:_DIRECTIONS]
