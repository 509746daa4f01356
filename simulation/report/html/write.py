"""Write reports: report.html in the folder of a run or an experiment, and a file for a comparison."""

from pathlib import Path

from twinflower.errors import SettingError, require

from ...results import names
from ...results.files import write_text
from ...results.folder import has_config, has_ended, is_experiment
from ...results.reading import read_plan, read_title
from ...settings import Config
from ...settings.experiment import Experiment
from ..compare import Comparison
from .comparisons import page_of_comparison, page_of_experiment
from .parts import Page
from .render import html
from .runs import page_of_begun, page_of_run


def report_run(folder: Path) -> Path:
    """Write the report on one run; return its path. Raises DiskError if it cannot be written."""
    return _write(page_of_run(folder), folder / names.REPORT)


def report_experiment(plan: Experiment, folder: Path) -> Path:
    """Write the report on an experiment with several runs; return its path."""
    return _write(page_of_experiment(plan, folder), folder / names.REPORT)


def report_begun(config: Config, folder: Path) -> Path:
    """Write the report that a run has until it ends; return its path."""
    return _write(page_of_begun(config, read_title(folder)), folder / names.REPORT)


def report_comparison(found: Comparison, path: Path) -> Path:
    """Write the report on a comparison to this file; return its path."""
    return _write(page_of_comparison(found), path)


def rewrite(folder: Path) -> Path:
    """Write the report on the run or the experiment in this folder again; return its path."""
    require(folder.is_dir(), f"{folder} is not a folder with results")
    if is_experiment(folder):
        return report_experiment(read_plan(folder), folder)
    if has_ended(folder) or has_config(folder):
        return report_run(folder)
    raise SettingError(f"{folder} holds neither experiment.toml nor config.toml: give the folder of a run")


def _write(page: Page, path: Path) -> Path:
    write_text(path, html(page))
    return path
