"""The runs of an audit: how many, on which data, with which seeds, and in which order."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from twinflower.errors import SettingError
from twinflower.privacy.accountant import check_count, check_probability
from twinflower.privacy.evidence import Evidence, smaller
from twinflower.privacy.lower_bounds import runs_to_exceed

from .cases import Case
from .transcript import Transcript

T = TypeVar("T")
_SEEDS = 10**6  # from one `Effort.seed` to the next
_LEAST = {"screening": 2, "trying": 20, "learning": 40, "counting": 40, "certain": 2, "most": 1}


@dataclass(frozen=True)
class Effort:
    """How much an audit runs. A run is all rounds on one data set, and there are as many on each of two.

    screening: runs of every pair of data sets under every kind of message. trying: runs of the strongest pair under
    every kind of message, by which they are chosen. learning: runs from which the attack is learned. counting: new runs
    on which its successes are counted. certain: runs that must agree before something may be the same in every run.
    most: runs that may be made to show that it is: 6 to 9 e^epsilon against a claim of epsilon. confidence: with which
    all bounds hold together. canaries: of an audit of one run instead of all these, see `attack.attack_once`; otherwise
    0. seed: another number (from 0) gives other runs.
    """

    screening: int = 6
    trying: int = 60
    learning: int = 300
    counting: int = 1000
    certain: int = 200
    most: int = 10_000
    confidence: float = 0.95
    canaries: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            check_count(name, getattr(self, name))
            if not getattr(self, name) >= least:
                raise SettingError(f"{name} must be at least {least}; got {getattr(self, name)}")
        check_probability("confidence", self.confidence)
        if not self.canaries >= 0:
            raise SettingError(f"canaries must be from 0; got {self.canaries}")
        if not 0 <= self.seed < 4000:
            raise SettingError(f"seed must be from 0 to 3999; got {self.seed}")


class Seeds:
    """Seeds that no run had before."""

    def __init__(self, seed: int) -> None:
        self._next = seed * _SEEDS

    def take(self, number: int) -> range:
        """So many seeds."""
        self._next += number
        return range(self._next - number, self._next)


@dataclass(frozen=True)
class Session:
    """An audit that is under way. progress: called with what it is doing."""

    case: Case
    effort: Effort
    seeds: Seeds
    progress: Callable[[str], object]

    def observed(self, names: Sequence[Any], which: int, seed: int) -> Transcript:
        """What a run on data set `which` of a pair shows, without what is public. names: of messages and pair."""
        run = self.case.mechanisms[names[0]](self.case.pairs[names[1]][which], seed)
        return [outcome.without(self.case.public) for outcome in run]

    def turns(self, names: Sequence[Any], seeds: range, doing: str) -> Iterator[tuple[int, Transcript]]:
        """Runs on both data sets, 0 and 1, with the same seeds; which one is first is random."""
        for number, seed in enumerate(seeds, 1):
            self.progress(f"{doing}, run {number} of {len(seeds)}")
            first = int(np.random.default_rng([seed, 0]).integers(2))
            for which in (first, 1 - first):
                yield which, self.observed(names, which, seed)

    def both(
        self, names: Sequence[Any], seeds: range, doing: str, read: Callable[[Transcript], T]
    ) -> tuple[list[T], list[T]]:
        """What `read` finds in the runs on either data set."""
        sides: tuple[list[T], list[T]] = [], []
        for which, run in self.turns(names, seeds, doing):
            sides[which].append(read(run))
        return sides

    def refuted_by(self, found: Sequence[Evidence]) -> bool:
        """Whether evidence contradicts the claim."""
        return any(
            self.case.claim.refuted_by(one.epsilon) for one in found if self.case.gaussian or not one.gaussian
        )

    def needed(self, alpha: float) -> int:
        """How many runs contradict the claim if an attack is right in all of them."""
        return runs_to_exceed(*self.case.claim[:2], alpha)

    def twice(self, count: Callable[[range], list[Evidence]], runs: int) -> list[Evidence]:
        """Evidence from new runs. If it contradicts the claim, it is counted again, and the smaller bounds are
        taken."""
        found = count(self.seeds.take(runs))
        return list(map(smaller, found, count(self.seeds.take(runs)))) if self.refuted_by(found) else found


def unreported(doing: str) -> None:
    """Ignore the progress."""


@contextmanager
def silence() -> Iterator[None]:
    """What is printed in the block is lost: an app may print in each of thousands of runs."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
