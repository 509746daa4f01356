"""Runs of a mechanism as rows of numbers, and what stays the same in every run.

Runs may hold millions of numbers, so that none is stored that does not need to be.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from twinflower.arrays import Array, Mask

from .transcript import Outcome, Transcript

_FEW = 300  # numbers of all rounds that are used as they are; more are projected
_DIRECTIONS = 2  # on which the numbers of a round are projected
_LARGEST = 1e50  # numbers are clipped to it, so that their squares are numbers, too
_ABSENT, _NOTHING = "absent", np.empty(0)
_ONE_ENTRY = re.compile(r"float\d+ \(1(, 1)*,?\)")  # type and shape of an array that is not a single number


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


class Seen:
    """What many runs on a data set have in common; the runs are not stored."""

    def __init__(self) -> None:
        self.runs = 0
        self._texts: dict[tuple[int, str], tuple[str, int]] = {}  # the text, and how many runs had it
        self._numbers: dict[
            tuple[int, str], tuple[Array, Mask, int]
        ] = {}  # of a run, which stayed, in how many

    def add(self, run: Transcript) -> None:
        """Look at a run."""
        self.runs += 1
        for round_, outcome in enumerate(run, 1):
            for place, text in outcome.form.items():
                first, times = self._texts.get((round_, place), (text, 0))
                self._texts[round_, place] = first, times + (text == first)
            for place, numbers in outcome.values.items():
                first, same, times = self._numbers.get((round_, place), (numbers, np.array(True), 0))
                if len(numbers) == len(first):
                    self._numbers[round_, place] = first, same & (numbers == first), times + 1

    def texts(self, other: "Seen") -> Iterator[tuple[tuple[int, str], str]]:
        """The places of either that have the same text in all runs, or that no run has."""
        for key in sorted(self._texts | other._texts):
            text, times = self._texts.get(key, (_ABSENT, self.runs))
            if times == self.runs:
                yield key, text

    def numbers(self) -> Iterator[tuple[tuple[int, str], tuple[Array, Mask]]]:
        """The places with numbers in all runs, as many in each: those of a run, and which are the same in all."""
        for key, (first, same, times) in sorted(self._numbers.items(), key=lambda item: item[0]):
            if times == self.runs:
                yield key, (first, same)


def leaks(first: Seen, second: Seen) -> list[Leak]:
    """What may distinguish the data sets with certainty, judging by these runs.

    It is the same, or absent, in all runs on a data set, and different between the two. Of the numbers at a place, each
    is compared by itself.
    """
    texts, numbers = dict(second.texts(first)), dict(second.numbers())
    found = [
        Leak(*key, text, texts[key]) for key, text in first.texts(second) if texts.get(key, text) != text
    ]
    for key, one in first.numbers():
        if key in numbers and len(one[0]) == len(numbers[key][0]):
            found += _leaks_at(*key, one, numbers[key])
    return found


def _leaks_at(round_: int, place: str, one: tuple[Array, Mask], other: tuple[Array, Mask]) -> list[Leak]:
    """The first number at a place that distinguishes the data sets."""
    (first, stays), (second, stays_too) = one, other
    return [
        Leak(round_, place, f"{first[i]:.17g}", f"{second[i]:.17g}", int(i))
        for i in np.flatnonzero(stays & stays_too & (first != second))[:1]
    ]


def changing(runs: Sequence[Transcript]) -> list[str]:
    """Texts and single numbers that are not the same in all runs on the same data."""
    seen: dict[tuple[int, str], set[Any]] = {}
    for run in runs:
        for round_, outcome in enumerate(run, 1):
            for place, value in {**outcome.form, **_single(outcome)}.items():
                seen.setdefault((round_, place), set()).add(value)
    return sorted({place for (_, place), values in seen.items() if len(values) > 1})


def _single(outcome: Outcome) -> dict[str, float]:
    """The single numbers, but for arrays of one entry, such as the only bias of a model."""
    return {
        place: float(numbers[0])
        for place, numbers in outcome.values.items()
        if len(numbers) == 1 and not _ONE_ENTRY.fullmatch(outcome.form.get(place, ""))
    }


class Means:
    """The mean numbers of runs on both data sets; the runs are not stored. A run that lacks a number has 0 there."""

    def __init__(self) -> None:
        self._runs = [0, 0]
        self._sums: dict[tuple[int, str], tuple[Array, Array]] = {}

    def add(self, which: int, run: Transcript) -> None:
        """Look at a run on data set `which`, 0 or 1."""
        self._runs[which] += 1
        for round_, outcome in enumerate(run, 1):
            for place, numbers in outcome.values.items():
                sums = self._sums.setdefault(
                    (round_, place), (np.zeros(len(numbers)), np.zeros(len(numbers)))
                )
                if len(numbers) == len(sums[which]):
                    sums[which][:] += np.clip(numbers, -_LARGEST, _LARGEST)

    @property
    def layout(self) -> tuple[tuple[int, str, int], ...]:
        """(round, place, size) of all numbers, round by round."""
        places = [(round_, place, len(sums[0])) for (round_, place), sums in self._sums.items()]
        return tuple(sorted(places, key=lambda place: place[0]))

    def of(self, which: int) -> list[Array]:
        """The means of every round on data set `which`."""
        parts: dict[int, list[Array]] = {}
        for round_, place, _ in self.layout:
            parts.setdefault(round_, []).append(self._sums[round_, place][which] / self._runs[which])
        return [np.concatenate(part) for part in parts.values()]


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
    def of(cls, means: Means) -> "Features":
        """The features for mechanisms with such runs."""
        first, second = means.of(0), means.of(1)
        centre = tuple((a + b) / 2 for a, b in zip(first, second, strict=True))
        moved = [b - a for a, b in zip(first, second, strict=True)]
        few = sum(size for *_, size in means.layout) <= _FEW
        return cls(means.layout, np.empty((0, 0)) if few else _main_directions(moved), centre)

    def read(self, run: Transcript) -> tuple[Array, Array]:
        """The numbers of a run (q,), and the sum of squares of every round (rounds,)."""
        parts = _rounds(self.layout, run)
        squares = [float(((p - c) ** 2).sum()) for p, c in zip(parts, self.centre, strict=True)]
        return self._projected(parts), np.array(squares)

    def _projected(self, parts: Sequence[Array]) -> Array:
        if not self.directions.size:
            return np.concatenate([*parts, np.empty(0)])
        return np.concatenate([self.directions[:, : len(part)] @ part for part in parts])

    @property
    def rounds(self) -> Array:
        """The round of every entry of `values` (q,)."""
        if self.directions.size:
            return np.repeat(sorted({round_ for round_, *_ in self.layout}), len(self.directions))
        return np.repeat([round_ for round_, *_ in self.layout], [size for *_, size in self.layout])


def _rounds(layout: Sequence[tuple[int, str, int]], run: Transcript) -> list[Array]:
    """The numbers of every round of a run."""
    parts: dict[int, list[Array]] = {}
    for round_, place, size in layout:
        numbers = run[round_ - 1].values.get(place)
        fits = numbers is not None and len(numbers) == size
        used = numbers if numbers is not None and fits else np.zeros(size)
        parts.setdefault(round_, []).append(np.clip(used, -_LARGEST, _LARGEST))
    return [np.concatenate(parts[round_]) for round_ in sorted(parts)]


def _main_directions(moved: Sequence[Array]) -> Array:
    """The orthonormal directions (k, longest round) in which the rounds move most."""
    longest = max(map(len, moved))
    stacked = np.stack([np.pad(move, (0, longest - len(move))) for move in moved])
    _, _, directions = np.linalg.svd(stacked, full_matrices=False)
    return directions[:_DIRECTIONS]
