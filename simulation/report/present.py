"""Write what a reader sees of stored results: a report of all sections, and a figure.

A file that cannot be written is an error message after a run, because the results are there already.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from twinflower.errors import DiskError, SettingError
from twinflower.queries import QUERIES

from ..results import names
from ..results.files import write_text
from ..results.folder import has_config, has_ended, is_experiment, is_part
from ..results.reading import read_plan, read_title
from ..settings import Config
from ..settings.experiment import Experiment
from . import sections
from .document import Page, Section, html
from .sections.coefficients import coefficients
from .sections.curves import curves
from .sections.penalty import penalty
from .sections.privacy import headline, privacy
from .sections.provenance import columns, evidence, settings
from .sections.results import alarm, facts, results, trained, warnings
from .sections.sites import sites
from .study import Case, Study
from .tracking import track

_Sections = Callable[[Study], list[Section]]
_FOOTER = "Made from stored results by Twinflower; the command twinflower {} makes it again."


def _of_questions() -> Iterator[_Sections]:
    """The section of each question to the sites that has one."""
    modules = {module.name for module in iter_modules(sections.__path__)}
    for name in (query.name for query in QUERIES):
        if name in modules:
            yield getattr(import_module(f"{sections.__name__}.{name}"), name)


SECTIONS: Sequence[_Sections] = (
    warnings, results, curves, columns, penalty, coefficients, *_of_questions(), sites, privacy, settings, evidence,
)  # fmt: skip
"""All sections in the order of a page; one that has nothing to say returns none."""


def page(study: Study) -> Page:
    """The report; SettingError if a file of a run is damaged."""
    parts = [part for section in SECTIONS for part in section(study)]
    numbers = list(facts(study.run)) if study.run else []
    footer = _FOOTER.format(study.command)
    return Page(study.kind, study.title, alarm(study), _lead(study), numbers, parts, footer)


def _lead(study: Study) -> list[str]:
    """What a reader should know first."""
    if study.run:
        return [trained(study.run.config, study.run.summary["ended"]), headline(Case.of_run(study.run))]
    if study.plan is None:
        return [trained(study.curves[0].config)] if study.alone else [*study.left_out]
    named = {"Source": study.plan.source, "Claim": study.plan.claim, "Found": study.plan.verdict}
    return [f"{name}: {text}" for name, text in named.items() if text]


# --- reports: report.html in the folder of a run or an experiment, and a file for a comparison


def report_run(folder: Path) -> Path:
    """Write the report on one run; return its path. Raises DiskError if it cannot be written."""
    return write_report(Study.of_run(folder), folder / names.REPORT)


def report_experiment(plan: Experiment, folder: Path) -> Path:
    """Write the report on an experiment with several runs; return its path."""
    return write_report(Study.of_experiment(plan, folder), folder / names.REPORT)


def report_begun(config: Config, folder: Path) -> Path:
    """Write the report that a run has until it ends; return its path."""
    return write_report(Study.of_config(config, read_title(folder)), folder / names.REPORT)


def write_report(study: Study, path: Path) -> Path:
    """Write the report to this file; return its path."""
    write_text(path, html(page(study)))
    return path


# --- reports and figures


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
        raise SettingError(
            f"{folder} is not a folder with results: give the folder of a run or an experiment"
        )
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
