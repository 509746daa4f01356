"""Draw and report stored results. A file that cannot be written is an error message: the results are there already."""

from collections.abc import Callable
from pathlib import Path

from twinflower.errors import DiskError, SettingError

from ..results import names
from ..results.folder import has_config, has_ended, is_experiment, is_part
from ..results.reading import read_plan
from ..settings import Config
from ..settings.experiment import Experiment
from .html.write import report_experiment, report_run
from .tracking import track


def present_run(folder: Path, config: Config) -> list[str]:
    """Write figure and report of a run, and hand it to its tracker; return an error message for each failure.

    A run of an experiment with several has neither until a tracker or a user (`rewrite`) wants them: they take longer
    than a short run.
    """
    if is_part(folder) and not config.output.tracker:
        return []
    from .figures import draw_run  # slow to import, and only needed at the end

    return _unwritten(lambda: draw_run(folder), lambda: report_run(folder)) + track(folder)


def rewrite(folder: Path) -> Path:
    """Write the report on the run or the experiment in this folder again, and the figure of an ended run that has none;
    return the path of the report."""
    if not folder.is_dir():
        raise SettingError(f"{folder} is not a folder with results")
    if is_experiment(folder):
        return report_experiment(read_plan(folder), folder)
    if not (has_ended(folder) or has_config(folder)):
        raise SettingError(
            f"{folder} holds neither experiment.toml nor config.toml: give the folder of a run"
        )
    if has_ended(folder) and not (folder / names.FIGURE).exists():
        from .figures import draw_run

        draw_run(folder)
    return report_run(folder)


def present_experiment(plan: Experiment, folder: Path) -> list[str]:
    """Write the figure and the report of an experiment; return an error message for each that cannot be written."""
    from .figures import draw_experiment

    return _unwritten(lambda: draw_experiment(plan, folder), lambda: report_experiment(plan, folder))


def _unwritten(*writers: Callable[[], Path]) -> list[str]:
    failures = []
    for write in writers:
        try:
            write()
        except DiskError as error:
            failures.append(str(error))
    return failures
