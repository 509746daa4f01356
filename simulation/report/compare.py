"""Tables that compare finished runs, grouped by curve."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twinflower.errors import SettingError
from twinflower.privacy import best_guess

from ..results.folder import curve_of, runs_below
from ..results.reading import read_summary
from .labels import score_of

HEADINGS = (
    "run", "algorithm", "runs", "rounds", "test score", "objective", "optimality", "nonzeros", "uplink Mbit",
    "epsilon", "seconds",
)  # fmt: skip


class Comparison(NamedTuple):
    """The ended runs of each curve, by its name, as summaries by their folders, and a message for each folder that is
    left out."""

    groups: dict[str, dict[Path, dict[str, Any]]]
    left_out: list[str]

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of `rows`."""
        return headings(run for runs in self.groups.values() for run in runs.values())

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """A row under `HEADINGS` for each curve: mean +- standard deviation over the seeds, and the largest epsilon."""
        return [row(name, list(runs.values())) for name, runs in self.groups.items()]


def comparison(folders: Sequence[Path]) -> Comparison:
    """The runs to compare. No run counts twice.

    A folder without ended runs is left out; SettingError if it does not exist or nothing remains.
    """
    groups: dict[Path, dict[Path, dict[str, Any]]] = defaultdict(dict)
    left_out = []
    for folder in map(Path.resolve, folders):
        if not folder.is_dir():
            raise SettingError(f"{folder} is not a folder: give the folder of a run or an experiment")
        runs = runs_below(folder)
        for run in runs:
            groups[curve_of(run)][run] = read_summary(run)
        if not runs:
            left_out.append(f"{folder} is left out: no run has ended there")
    if not groups:
        raise SettingError("; ".join(left_out))
    common = Path(os.path.commonpath([name.parent for name in groups]))
    named = {str(name.relative_to(common)): runs for name, runs in groups.items()}
    return Comparison(named, list(dict.fromkeys(left_out)))


def headings(runs: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """`HEADINGS` for these summaries, with the score named by what it is."""
    kinds = sorted({score_of(run) for run in runs}, reverse=True)
    score = f"test {' or '.join(kinds or ['accuracy'])}"
    return tuple(score if name == "test score" else name for name in HEADINGS)


def row(name: str, runs: list[dict[str, Any]]) -> tuple[str, ...]:
    """The row under `HEADINGS` of a curve with these summaries, at least one."""
    finished = [run for run in runs if run["finished"]]
    note = "" if len(finished) == len(runs) else f" ({len(runs) - len(finished)} failed)"
    method = ", ".join(sorted({run["algorithm"] for run in runs}))
    if not finished:
        return (name, method, f"{len(runs)}{note}", *["-"] * 8)
    numbers = (
        spread(finished, "test_accuracy", ".4f"),
        spread(finished, "objective", ".5g"),
        spread(finished, "optimality", ".2g"),
        spread(finished, "nonzeros", ".0f"),
        spread(finished, "uplink_bits", ".3g", 1e-6),
        _epsilon([run["privacy"] for run in finished]),
        spread(finished, "seconds", ".1f"),
    )
    return (name, method, f"{len(runs)}{note}", str(finished[0]["rounds"]), *numbers)


def _epsilon(privacy: list[dict[str, Any] | None]) -> str:
    """The largest epsilon that a client actually spent in any of the runs, as text."""
    private = [p for p in privacy if p is not None]
    if not private:
        return "-"
    if any(p["epsilon"] is None for p in private):
        return "no guarantee"
    worst = max(private, key=lambda p: p["epsilon"])
    return f"{worst['epsilon']:.4g} (delta {worst['delta']:g}; {best_guess(worst['mu']):.0%} guessed)"


def spread(runs: Sequence[dict[str, Any]], key: str, form: str, unit: float = 1.0) -> str:
    """Mean +- standard deviation; a dash if a run did not measure the value, such as optimality without reference."""
    if any(run[key] is None for run in runs):
        return "-"
    values = unit * np.array([run[key] for run in runs], dtype=float)
    spread = f" +- {values.std(ddof=1):{form}}" if len(values) > 1 else ""
    return f"{values.mean():{form}}{spread}"
