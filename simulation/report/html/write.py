"""Write reports: report.html in the folder of a run or an experiment, and a file for a comparison."""

from pathlib import Path

from ...results import names
from ...results.files import write_text
from ...results.reading import read_title
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


def _write(page: Page, path: Path) -> Path:
    write_text(path, html(page))
    return path
