"""Hand finished runs to an experiment tracker: MLflow, or any function of a run folder.

The setting `output.tracker` is read where results are written: on the user's machine, or the server of a deployment. A
node never imports what it names.
"""

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from twinflower.errors import SettingError

from ..results import names
from ..results.reading import read_config, read_rows, read_summary

Tracker = Callable[[Path], None]
"""Called with the folder of every run that has ended, after its files are written, the figure and report too."""

MLFLOW = "mlflow"
_LONGEST = 500  # characters of a parameter in MLflow
_ARTEFACTS = (
    names.CONFIG,
    names.METRICS,
    names.SUMMARY,
    names.REPORT,
    names.FIGURE,
    names.MODEL,
    names.MODULE,
)


def tracker(name: str) -> Tracker | None:
    """The tracker of this name: "mlflow", or MODULE:FUNCTION; None for an empty name. SettingError if there is none."""
    if name in ("", MLFLOW):
        return _mlflow() if name else None
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise AttributeError(name)
        found: Tracker = getattr(import_module(module), function)
        return found
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"output.tracker must be {MLFLOW} or MODULE:FUNCTION of an installed module; got {name} ({error})"
        ) from None


def track(folder: Path) -> list[str]:
    """Hand a run to its tracker, if it has one; return an error message if that fails, because the run is complete."""
    name = read_config(folder).config.output.tracker
    try:
        found = tracker(name)
        if found:
            found(folder)
    except Exception as error:  # noqa: BLE001  a tracker may raise anything
        return [f"{folder} could not be handed to the tracker {name}: {error}"]
    return []


def _mlflow() -> Tracker:
    try:
        import mlflow  # noqa: F401
    except ImportError:
        raise SettingError("output.tracker = mlflow needs MLflow: pip install mlflow-skinny") from None
    return log_to_mlflow


def log_to_mlflow(folder: Path) -> None:
    """Log a run's settings, metrics by round, privacy, report and model to MLflow, where its own settings say
    (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME)."""
    import mlflow

    summary = read_summary(folder)
    with mlflow.start_run(run_name=folder.name):
        items = read_config(folder).config.items()
        mlflow.log_params({key: str(value)[:_LONGEST] for key, value in items.items()})
        for row in read_rows(folder):
            found = {key: value for key, value in row.items() if math.isfinite(value)}
            mlflow.log_metrics(found, step=int(row["round"]))
        mlflow.set_tags(
            {"guarantee": (summary["privacy"] or {}).get("guarantee", "none"), "folder": str(folder)}
        )
        for name in _ARTEFACTS:
            if (folder / name).exists():
                mlflow.log_artifact(str(folder / name))
        if not summary["finished"]:
            mlflow.set_tag("failure", summary["failure"])
            mlflow.end_run("FAILED")
