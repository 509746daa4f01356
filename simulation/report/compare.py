"""A table of finished runs, grouped by curve."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.errors import require
from twinflower.privacy import best_guess

from ..record import read_summary

HEADINGS = (
    "run", "algorithm", "runs", "rounds", "test accuracy", "objective", "optimality", "nonzeros", "uplink Mbit",
    "epsilon", "seconds",
)  # fmt: skip


def comparison(folders: Sequence[Path]) -> list[tuple[str, ...]]:
    """Rows under `HEADINGS`. Seeds of one curve share a row: mean +- standard deviation, and the largest epsilon.

    Raises SettingError for a folder without results.
    """
    groups: dict[Path, list[dict[str, Any]]] = defaultdict(list)
    for folder in map(Path.absolute, folders):
        summaries = sorted(folder.rglob("summary.json"))
        require(bool(summaries), f"{folder} holds no summary.json: give the folder of a run or an experiment")
        for path in summaries:
            run = path.parent
            name = run.parent if run.name.startswith("seed-") else run
            groups[name].append(read_summary(run))
    common = Path(os.path.commonpath([name.parent for name in groups]))
    return [_row(str(name.relative_to(common)), runs) for name, runs in groups.items()]


def closing(runs: Sequence[dict[str, Any]], planned: int) -> str:
    """What finished seeds of one curve reached, in a line; planned: how many there should be."""
    first, seeds = runs[0], ""
    if planned > 1:
        all_ = "" if len(runs) == planned else f"{len(runs)} of "
        seeds = f", {all_}{planned} seeds, mean +- standard deviation"
    score = "test R^2" if first["majority_baseline"] is None else "test accuracy"
    return (
        f"{first['algorithm']} on {first['dataset']}{seeds}: {score} {_spread(runs, 'test_accuracy', '.4f')}, "
        f"{_spread(runs, 'nonzeros', '.1f' if len(runs) > 1 else '.0f')} of {first['parameters']} entries nonzero, "
        f"{_spread(runs, 'seconds', '.1f')} s"
    )


def _row(name: str, runs: list[dict[str, Any]]) -> tuple[str, ...]:
    finished = [run for run in runs if run["finished"]]
    note = "" if len(finished) == len(runs) else f" ({len(runs) - len(finished)} failed)"
    method = ", ".join(sorted({run["algorithm"] for run in runs}))
    if not finished:
        return (name, method, f"{len(runs)}{note}", *["-"] * 8)
    numbers = (
        _spread(finished, "test_accuracy", ".4f"),
        _spread(finished, "objective", ".5g"),
        _spread(finished, "optimality", ".2g"),
        _spread(finished, "nonzeros", ".0f"),
        _spread(finished, "uplink_bits", ".3g", 1e-6),
        _epsilon([run["privacy"] for run in finished]),
        _spread(finished, "seconds", ".1f"),
    )
    return (name, method, f"{len(runs)}{note}", str(finished[0]["rounds"]), *numbers)


def _epsilon(privacy: list[dict[str, Any] | None]) -> str:
    """What the largest client really spent in any of the runs."""
    told = [p for p in privacy if p is not None]
    if not told:
        return "-"
    if any(p["epsilon"] is None for p in told):
        return "no guarantee"
    worst = max(told, key=lambda p: p["epsilon"])
    return f"{worst['epsilon']:.4g} (delta {worst['delta']:g}; {best_guess(worst['mu']):.0%} guessed)"


def _spread(runs: Sequence[dict[str, Any]], key: str, form: str, unit: float = 1.0) -> str:
    """Mean and deviation; a dash where a run did not measure it, as optimality without a reference."""
    if any(run[key] is None for run in runs):
        return "-"
    values = unit * np.array([run[key] for run in runs], dtype=float)
    spread = f" +- {values.std(ddof=1):{form}}" if len(values) > 1 else ""
    return f"{values.mean():{form}}{spread}"
