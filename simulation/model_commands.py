"""The commands about trained models: predictions, and of linear ones the weight of a penalty, a fit without it,
coefficients and their tests; `cli` adds them to the command line."""

import json
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from twinflower.errors import SettingError, require
from twinflower.settings import check_choice

from .commands import DataDir, Force, Out, Set, ended_by_signal, output


def path(
    experiment: Annotated[Path, typer.Argument(help="an experiment's TOML with one curve and one seed")],
    set_: Set = None,
    weights: Annotated[int, typer.Option(help="number of weights in the path")] = 20,
    ratio: Annotated[float, typer.Option(help="the smallest weight divided by the largest")] = 0.01,
    largest: Annotated[
        float,
        typer.Option(
            help="largest weight (0: the smallest at which every penalised coefficient is 0; a private run must "
            "name it)"
        ),
    ] = 0.0,
    folds: Annotated[int, typer.Option(help="folds of every client's rows; a private run counts one")] = 5,
    choose: Annotated[
        str,
        typer.Option(help="min: the lowest error; 1se: the largest weight within one standard error of it"),
    ] = "min",
    penalise_intercept: Annotated[
        bool, typer.Option("--penalise-intercept", help="penalise the intercept, too")
    ] = False,
    out: Out = "",
    data_dir: DataDir = "",
) -> None:
    """Choose the weight of an l1 or elastic-net penalty by cross-validation at the clients, and train with it."""
    from twinflower.algorithms.newton_path import LOWEST, SIMPLEST, choices

    from . import running
    from .arguments import plan_of, stopped, train
    from .report.console import say
    from .results import names
    from .results.writing import write_path
    from .runs.ended import entry_names
    from .runs.setup import prepare
    from .tuning import penalty_path

    check_choice("--choose", choose, (LOWEST, SIMPLEST))
    asked = plan_of(experiment, set_, data_dir)
    if not asked.single:
        raise SettingError(f"path takes one curve and one seed; {experiment} has more")
    runtime, config = running.chosen(asked, ""), replace(asked.curves[0].config, seed=asked.seeds[0])
    config = config if penalise_intercept else penalty_path.free_intercept(config, say)
    folder = running.new(asked, runtime, out)
    with ended_by_signal(lambda: _without_path(folder)):
        points = penalty_path.path(config, penalty_path.Plan(weights, ratio, largest, folds), say)
    chosen = points[choices(points)[choose == SIMPLEST]]
    say(f"chosen: weight {chosen.weight:.6g}")
    write_path(points, entry_names(prepare(config)), folder)
    keys = penalty_path.training_at(config, chosen)
    own = [*(set_ or []), *(f"{key}={json.dumps(value)}" for key, value in keys.items())]
    plan = plan_of(experiment, own, data_dir)
    again = f"twinflower run {experiment} {' '.join(f'--set {shlex.quote(word)}' for word in own)}"
    stored = f"the path is in {folder / names.PATH}"
    train(plan, folder, runtime, lambda: f"{stopped(plan, folder, again)}; {stored}")


def _without_path(folder: Path) -> str:
    """Remove the folder of a path that was interrupted; return the message that says so."""
    with suppress(OSError):  # it is not empty
        folder.rmdir()
    return "interrupted; nothing is kept of a path that has not ended: give the command again"


def refit(
    folder: Annotated[Path, typer.Argument(help="folder of a run of a linear model with a penalty")],
    set_: Set = None,
    out: Out = "",
    data_dir: DataDir = "",
) -> None:
    """Train a sparse model's columns again without the penalty, for estimates with standard errors."""
    from twinflower.models.trained import load

    from . import running
    from .arguments import plan_of, stopped, train
    from .results import names

    kept = ", ".join(map(str, load(folder).unpenalised.tolist()))
    keys = [
        "regulariser.name=selected",
        f"regulariser.entries={kept}",
        "regulariser.intercept=true",
        "evaluation.standard-errors=true",
    ]
    plan = plan_of(folder / names.CONFIG, [*keys, *(set_ or [])], data_dir)
    runtime = running.chosen(plan, "")
    results = running.new(plan, runtime, out or f"{folder.absolute()}-refit")
    again = "the same command and another --out"
    train(plan, results, runtime, lambda: f"{stopped(plan, results, again)}; {folder} stays as it was")


def predict(
    model: Annotated[Path, typer.Argument(help="folder of a run on tables, or its model.npz")],
    rows: Annotated[Path, typer.Argument(help="table: CSV, Parquet or .npz; a label column is not needed")],
    out: Annotated[Path | None, output("CSV file to write (default: the screen)")] = None,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate", help="compare with the labels in the table, in place of writing predictions"
        ),
    ] = False,
    site: Annotated[
        int | None,
        typer.Option(help="site whose own model to use (mr-mtl, networked methods, ldp-primal-dual)"),
    ] = None,
    times: Annotated[
        str,
        typer.Option(help='with --evaluate: times of the AUC of a survival model, e.g. "365, 730"'),
    ] = "",
    force: Force = False,
) -> None:
    """Predict the labels of new rows, or measure the predictions (--evaluate)."""
    from twinflower.models.trained import load, predictions

    from .arguments import deliver, show_assessment
    from .results.files import csv_text

    if evaluate:
        show_assessment(model, rows, out, site, times)
        return

    require(not times, "--times belongs to --evaluate")
    names, predicted = predictions(load(model, site), rows)
    deliver(csv_text([names, *predicted]), out, f"{len(predicted)} predictions")


def coefficients(
    model: Annotated[Path, typer.Argument(help="folder of a run of a linear model, or its model.npz")],
    out: Annotated[
        Path | None, output("CSV file to write, or JSON if it ends in .json (default: the screen)")
    ] = None,
    robust: Annotated[
        bool, typer.Option("--robust", help="robust standard errors (HC0, or by group)")
    ] = False,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=CATEGORY",
            help="compare a column's categories with this one, not with the first (repeatable)",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="folder of a run with fewer columns on the same rows: add a likelihood-ratio test"),
    ] = None,
    force: Force = False,
) -> None:
    """Show a linear model's coefficients in the units of its columns, with odds, rate or hazard ratios, and with
    intervals if the run has standard errors."""
    from .arguments import show_coefficients

    references = dict(_pair(text) for text in reference or [])
    show_coefficients(model, out, robust, references, against)


def _pair(text: str) -> tuple[str, str]:
    """The column and the category of --reference; SettingError without an equals sign."""
    column, equals, category = text.partition("=")
    require(bool(equals), f"--reference is COLUMN=CATEGORY, such as pain=typical; got {text!r}")
    return column, category
