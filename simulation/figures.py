"""Figures, drawn from stored results only."""

from pathlib import Path
from textwrap import fill

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from twinflower.errors import SettingError, require
from twinflower.topologies import Neighbours, drawing

from .experiment import Curve, Experiment, read_experiment
from .record import POINT_COLUMNS, read_rows, read_summary

_WORDS = {
    "round": "communication round",
    "objective": "objective F(x)",
    "test_accuracy": "test accuracy",
    "uplink_bits": "uplink bits on the wire",
    "downlink_bits": "downlink bits on the wire",
    "paper_uplink_bits": "uplink bits as the papers count",
    "nonzeros": "nonzero entries",
    "stopped": "share of stopped client rounds",
    "consensus": "distance between the clients' points",
    "distance": "relative squared distance to the optimum",
    "cost": "training cost",
    "squared_norm": "squared norm of the model",
    "excess": "cost above its bound",
    "nu": "multiplier",
    "optimality": "optimality (consensus + distance)",
    "node_error": "mean relative squared error of the nodes",
}
_PANEL = (5.2, 3.6)
_LETTERS = 70  # of a title above one panel


def draw_run(folder: Path) -> Path:
    """figure.png of one run folder: objective, test accuracy and nonzeros by round."""
    rows = read_rows(folder)
    figure, axes = _canvas(1, 3)
    for ax, column in zip(axes[0], ("objective", "test_accuracy", "nonzeros"), strict=True):
        ax.plot([r["round"] for r in rows], [r[column] for r in rows], color="C0")
        _label(ax, "round", column)
    summary = read_summary(folder)
    figure.suptitle(f"{summary['algorithm']} on {summary['dataset']}, seed {summary['seed']}")
    return _save(figure, folder)


def draw_experiment(experiment: Experiment, out: Path) -> Path:
    """figure.png of an experiment: a row of panels per y, mean over seeds, band from lowest to highest."""
    panels = list(dict.fromkeys(curve.panel for curve in experiment.curves))
    figure, axes = _canvas(len(experiment.y), len(panels))
    for row, column in zip(axes, experiment.y, strict=True):
        for ax, panel in zip(row, panels, strict=True):
            curves = [curve for curve in experiment.curves if curve.panel == panel]
            if experiment.ends:
                _draw_ends(ax, experiment, out, curves, column)
            else:
                for curve in curves:
                    _draw_curve(ax, experiment, out, curve, column)
            _label(ax, experiment.x, column)
            ax.set_title(panel, fontsize=10)
            if ax.lines:
                ax.legend(fontsize=7, frameon=False)
    figure.suptitle(fill(experiment.title, _LETTERS * len(panels)), fontsize=11)
    return _save(figure, out)


def redraw(folder: Path) -> Path:
    """Draw again what lies in a folder, an experiment's or a run's."""
    require(folder.is_dir(), f"{folder} is not a folder with results")
    if (folder / "experiment.toml").exists():
        return draw_experiment(read_experiment(folder / "experiment.toml"), folder)
    if (folder / "metrics.csv").exists():
        require(bool(read_rows(folder)), f"{folder} holds no evaluated round: there is nothing to draw")
        return draw_run(folder)
    begun = (folder / "config.toml").exists()
    hint = "its run has not ended, --resume goes on with it" if begun else "give the folder of a run"
    raise SettingError(f"{folder} holds neither experiment.toml nor metrics.csv: {hint}")


def draw_graph(neighbours: Neighbours, path: Path) -> Path:
    """A graph of clients as a picture; SettingError if it cannot be written."""
    figure, axes = _canvas(1, 1)
    places, edges = (
        drawing(neighbours),
        [(i, j) for i, others in enumerate(neighbours) for j in others if i < j],
    )
    for i, j in edges:
        axes[0, 0].plot(*places[[i, j]].T, color="C7", linewidth=0.8, zorder=1)
    axes[0, 0].scatter(*places.T, color="C0", s=40, zorder=2)
    for client, (x, y) in enumerate(places):
        axes[0, 0].annotate(str(client), (x, y), fontsize=6, ha="center", va="center", color="white")
    axes[0, 0].set_axis_off()
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise SettingError(f"the graph cannot be drawn into {path}: {error}") from None
    finally:
        plt.close(figure)
    return path.absolute()


def _draw_curve(ax: Axes, experiment: Experiment, out: Path, curve: Curve, column: str) -> None:
    folders = [experiment.folder(out, curve, seed) for seed in experiment.seeds]
    runs = [read_rows(folder) for folder in folders if (folder / "metrics.csv").exists()]
    if not runs or not min(map(len, runs)):
        return  # this curve failed before its first evaluation
    shortest = min(map(len, runs))  # a run that diverged ends early
    x = np.mean([[r.get(experiment.x, np.nan) for r in rows[:shortest]] for rows in runs], axis=0)
    y = np.array([[r.get(column, np.nan) for r in rows[:shortest]] for rows in runs])
    (line,) = ax.plot(x, y.mean(0), label=curve.label, linewidth=1.2)
    if len(runs) > 1:
        ax.fill_between(x, y.min(0), y.max(0), color=line.get_color(), alpha=0.2, linewidth=0)


def _draw_ends(ax: Axes, experiment: Experiment, out: Path, curves: list[Curve], column: str) -> None:
    """Lines through the last rows of runs, with the deviation over seeds."""
    for line in dict.fromkeys(curve.line for curve in curves):
        points = [_end(experiment, out, curve, column) for curve in curves if curve.line == line]
        x, y, spread = np.array([point for point in points if point]).reshape(-1, 3).T
        ax.errorbar(x, y, spread, label=line, linewidth=1.2, marker="o", markersize=3, capsize=2)
    if column in POINT_COLUMNS and experiment.ends:
        ax.set_yscale("log")


def _end(experiment: Experiment, out: Path, curve: Curve, column: str) -> tuple[float, float, float] | None:
    """x, mean and deviation of a column in the last rows of the finished seeds; None if there are none."""
    folders = [experiment.folder(out, curve, seed) for seed in experiment.seeds]
    ends = [read_rows(f)[-1] for f in folders if (f / "model.npz").exists()]
    if not ends:
        return None
    keys = curve.config.items()
    x = (
        keys[experiment.x]
        if experiment.x in keys
        else np.mean([row.get(experiment.x, np.nan) for row in ends])
    )
    y = np.array([row.get(column, np.nan) for row in ends])
    return float(x), float(y.mean()), float(y.std(ddof=1)) if len(y) > 1 else 0.0


def _canvas(rows: int, columns: int) -> tuple[plt.Figure, np.ndarray]:
    return plt.subplots(
        rows, columns, figsize=(_PANEL[0] * columns, _PANEL[1] * rows), squeeze=False, layout="constrained"
    )


def _label(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(_WORDS.get(x, x))
    ax.set_ylabel(_WORDS.get(y, y))
    ax.grid(alpha=0.3)


def _save(figure: plt.Figure, folder: Path) -> Path:
    path = folder / "figure.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
