"""Draw and report stored results. A file that cannot be written is an error message: the results are there already."""

from collections.abc import Callable
from pathlib import Path

from twinflower.errors import DiskError

from ..settings.experiment import Experiment
from .html.write import report_experiment, report_run
from .tracking import track


def present_run(folder: Path) -> list[str]:
    """Write figure and report of a run, and hand it to its tracker; return an error message for each failure."""
    from .figures import draw_run  # slow to import, and only needed at the end

    return _unwritten(lambda: draw_run(folder), lambda: report_run(folder)) + track(folder)


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
