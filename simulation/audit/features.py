"""Runs of a mechanism as rows of numbers, and what stays the same in every run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np

from twinflower.arrays import Array

from .transcript import Outcome, Transcript

_FEW = 300  # numbers of all rounds that are used as they are; more are projected
_DIRECTIONS = 2  # on which the numbers of a round are projected
_LARGEST = 1e50  # numbers are clipped to it, so that their squares are numbers, too
_ABSENT, _VALUES = "absent", " (values)"


class Leak(NamedTuple):
    """Something that is the same in every run on a data set, and another on its neighbour."""

    round: int
    place: str
    first: str
    second: str


def leaks(
    first: Sequence[Transcript], second: Sequence[Transcript], public: frozenset[str] = frozenset()
) -> list[Leak]:
    """What tells the data sets apart with certainty, as far as these runs show; places in `public` are left out.

    It is the same, or absent, in all runs on a data set, and different between the two.
    """
    sides = [[_shown(run) for run in runs] for runs in (first, second)]
    keys = dict.fromkeys(
        key for side in sides for run in side for key in run if key[1].removesuffix(_VALUES) not in public
    )
    found = []
    for round_, place in keys:
        one, other = ({run.get((round_, place), _ABSENT) for run in side} for side in sides)
        if len(one) == len(other) == 1 and one != other:
            found.append(Leak(round_, place, one.pop(), other.pop()))
    return found


def changing(runs: Sequence[Transcript]) -> list[str]:
    """Texts and single numbers that are not the same in all runs on the same data."""
    shown = [_shown(run) for run in runs]
    single = {
        f"{place}{_VALUES}"
        for run in runs
        for o in run
        for place, numbers in o.values.items()
        if len(numbers) == 1
    }
    keys = dict.fromkeys(key for one in shown for key in one)
    changes = [key for key in keys if len({one.get(key) for one in shown}) > 1]
    texts = {place for run in runs for o in run for place in o.form if place not in o.values}
    return sorted({place.removesuffix(_VALUES) for _, place in changes if place in single | texts})


def _shown(run: Transcript) -> dict[tuple[int, str], str]:
    """Everything in a run as text, by round and place."""
    return {
        (round_, place): text
        for round_, outcome in enumerate(run, 1)
        for place, text in _texts(outcome).items()
    }


def _texts(outcome: Outcome) -> dict[str, str]:
    """Form and values by place."""
    numbers = {f"{place}{_VALUES}": _text(values) for place, values in outcome.values.items()}
    return {**outcome.form, **numbers}


def _text(numbers: Array) -> str:
    """Numbers as text without rounding; of many numbers the first, and a checksum of all."""
    if len(numbers) <= 4:
        return " ".join(map(repr, numbers.tolist()))
    return f"{float(numbers[0])!r} ... (checksum {crc32(numbers.tobytes()):08x})"


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
    def of(
        cls, first: Sequence[Transcript], second: Sequence[Transcript], public: frozenset[str]
    ) -> "Features":
        """The features for mechanisms with such runs; both sequences have the same seeds."""
        layout = tuple(
            (round_, place, len(numbers))
            for round_, outcome in enumerate(first[0], 1)
            for place, numbers in outcome.values.items()
            if place not in public
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
