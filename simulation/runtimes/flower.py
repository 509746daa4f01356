"""The `flower` runtime: every run uses `flwr run` on one simulation SuperLink, which stops with the command."""

from dataclasses import replace
from pathlib import Path

from twinflower.errors import RunError

from ..results.folder import run_folder
from ..results.resume import left, on_flower
from ..settings.experiment import Curve, Experiment
from .engine import Engine, engine
from .observer import Observer


def run(plan: Experiment, folder: Path, observer: Observer) -> list[str]:
    """Run the remaining runs of an experiment; return an error message for each failure."""
    failures = []
    with engine(observer.line) as flower:
        for curve in plan.curves:
            seeds = left(plan, folder, curve)
            for seed in seeds:
                failures += _run_one(flower, curve, seed, run_folder(plan, folder, curve, seed))
            if seeds:
                observer.ended(curve, ())
    return failures


def _run_one(flower: Engine, curve: Curve, seed: int, folder: Path) -> list[str]:
    try:
        flower.run(on_flower(replace(curve.config, seed=seed), folder), folder)
        return []
    except RunError as error:
        return [f"{curve.label}: {error}"]
