"""What the arguments of a command mean: the experiment to run, the settings over it, and where a text goes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from twinflower.decimals import whole
from twinflower.errors import DataError, RunError, SettingError, require
from twinflower.settings import Value, nearest

from .commands import ended_by_signal
from .experiment_files import load_toml
from .report.console import say
from .results.files import write_text
from .settings import completed, parse_text
from .settings.experiment import Experiment, read_experiment

if TYPE_CHECKING:
    from .report.study import Case

_WIDE = 200  # columns of a table, above which a check shows only those that have something to show


def plan_of(experiment: Path, set_: Sequence[str] | None, data_dir: str, seeds: str = "") -> Experiment:
    """The experiment in a file, with --set, --data-dir and --seeds over it; SettingError for invalid settings."""
    overrides = overrides_of(set_, data_dir)
    if seeds and "seed" in overrides:
        raise SettingError(
            f"--seeds {seeds} and --set seed={overrides.get('seed')} both name seeds: leave one of them out"
        )
    return read_experiment(experiment, overrides, _seeds(seeds))


def only(plan: Experiment, labels: Sequence[str]) -> Experiment:
    """The experiment with the curves of these labels only, in every panel; with all curves if there are no labels.

    The label of a sweep stands for all its values. SettingError for a label that no curve has.
    """
    known = list(dict.fromkeys(label for curve in plan.curves for label in (curve.label, curve.line)))
    for label in labels:
        if label not in known:
            raise SettingError(f"{plan.name} has no curve '{label}'; {nearest(label, known)}")
    kept = [curve for curve in plan.curves if {curve.label, curve.line} & set(labels)]
    title = f"{plan.title} (only {', '.join(labels)})"
    return replace(plan, curves=kept, title=title) if labels else plan


def overrides_of(set_: Sequence[str] | None, data_dir: str) -> dict[str, Value]:
    """The settings in --set and --data-dir."""
    own: dict[str, Value] = {"data.dir": data_dir} if data_dir else {}
    return own | dict(map(parse_text, set_ or []))


def _seeds(text: str) -> list[int] | None:
    try:
        return [whole(word) for word in text.split(",")] if text else None
    except ValueError:
        raise SettingError(f"--seeds takes comma-separated whole numbers; got '{text}'") from None


def train(
    plan: Experiment,
    folder: Path,
    runtime: str,
    interrupted: Callable[[], str],
    is_new: bool = True,
    jobs: int = 1,
) -> None:
    """Run an experiment and print the last lines of the command; RunError if a run failed.

    interrupted: the message if a signal ends the command. Further arguments: see `running.run`.
    """
    from . import running
    from .report.messages import Terminal

    with ended_by_signal(interrupted):
        failures = running.run(plan, folder, runtime, Terminal(plan, folder), is_new, jobs)
    close(plan, folder, failures)


def close(plan: Experiment, folder: Path, failures: Sequence[str]) -> None:
    """Print the last lines of a command that has run an experiment; RunError if a run failed."""
    from .report.messages import broken, repeated
    from .report.study import Study

    study = Study.of_experiment(plan, folder)
    say(*repeated(study), f"results: {folder}", *broken(study))
    if failures:
        raise RunError("; ".join(failures))


def stopped(plan: Experiment, folder: Path, again: str) -> str:
    """The message of a command whose run was ended by a signal. again: how to train if there is no checkpoint."""
    from .results.resume import interrupted

    text = interrupted(plan, folder)
    return text if f"{folder}" in text else f"{text} of its run; go on with: {again}"


def deliver(text: str, out: Path | None, name: str) -> None:
    """Print a text, or write it to a file and print what it is and where."""
    if out is None:
        print(text, end="")
        return
    write_text(out.absolute(), text)
    say(f"{name}: {out}")


def check_tables(files: Sequence[Path], schema: Path) -> None:
    """Print how every table fits the schema; DataError with all problems of all tables if there are any."""
    from twinflower.data.checks import describe_fit, problems
    from twinflower.data.schema_file import read_schema

    from .report.console import progress, table

    known, found = read_schema(schema), []
    for path in files:
        progress(f"checking the {len(known.columns):,} columns of {path}")
        own = problems(path, known)
        found += own
        if not own:
            rows, plain = remarkable(describe_fit(path, known))
            table(("column", "rows", "missing", "outside its range"), rows, str(path))
            say(*plain)
    say(f"digest of {schema}: {known.digest}")
    if found:
        raise DataError("\n       ".join(found))


def remarkable(fit: Sequence[tuple[str, int, int, int]]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The rows of `checks.describe_fit` to show, and a sentence about the others: of a wide table the first ones with
    values that are missing or outside."""
    if len(fit) <= _WIDE:
        return [tuple(map(str, row)) for row in fit], []
    odd = [tuple(map(str, row)) for row in fit if any(row[2:])]
    text = f"of {len(fit):,} columns {len(odd):,} have values that are missing or outside of their ranges"
    return odd[:_WIDE], [text + (f"; the first {_WIDE} are shown" if len(odd) > _WIDE else "")]


def show_ledgers(folder: Path, node_config: str, openmetrics: Path | None) -> None:
    """Print the ledgers of a folder as tables, or write metrics for Prometheus to a file; node_config: empty, or of the
    node whose policy limits what a run may plan."""
    from .app.node_check import ledger_and_policy
    from .report.console import show
    from .report.openmetrics import of_books
    from .report.sections.ledger import ledgers, read_books

    found = read_books(folder.expanduser())
    if openmetrics:
        write_text(openmetrics.expanduser(), of_books(found))
        return
    policies = dict([ledger_and_policy(node_config)] if node_config else [])
    for name in policies.keys() - dict(found).keys():
        raise SettingError(f"{folder} does not hold the ledger of this node config, {name}")
    show(ledgers(found, policies))


def release_run(folder: Path, run: str) -> None:
    """Release what a run has reserved in the ledgers of a folder, and print what; SettingError if it has nothing."""
    from twinflower.privacy import gdp_epsilon

    from .report.sections.ledger import read_books

    folder = folder.expanduser()
    found = [(name, book) for name, book in read_books(folder) if run in book.reserved]
    if not found:
        raise SettingError(
            f"no run {run} has reserved anything in {folder}; twinflower ledger {folder} lists the runs"
        )
    for name, book in found:
        rest = book.ledger(folder / name).release(run)
        epsilon = gdp_epsilon(rest**0.5, book.delta)
        say(
            f"gave up epsilon {epsilon:.4g}, which run {run} had reserved in {name}; what it spent stays spent, and if "
            "it goes on after all, its next charge reserves again"
        )


def check_site(node_config: str, run_config: Path | None, number: str, allowed: Path | None) -> None:
    """Print what is right about a node; DataError with all that is not, if there is anything."""
    from .app.node_check import allowed_apps, check_node

    right, wrong = check_node(
        node_config, dict(completed(load_toml(run_config))) if run_config else None, number
    )
    say(*right)
    if wrong:
        raise DataError("\n       ".join(wrong))
    if allowed:
        say(allowed_apps(allowed))


def show_coefficients(
    model: Path,
    out: Path | None,
    robust: bool,
    references: Mapping[str, str] | None = None,
    against: Path | None = None,
) -> None:
    """Print the coefficients of a linear model as tables, or write them to a file, and what to know of them; against: a
    run whose model is nested in it, for a likelihood-ratio test."""
    from twinflower.models.model import inferred, nested_test
    from twinflower.models.trained import load

    from .report.console import show
    from .report.sections.coefficients import as_file, table_of

    known = load(model)
    if robust and known.information is None:
        raise SettingError(f"{model} has no standard errors: train with evaluation.standard-errors = true")
    require(
        not (robust and against),
        "a likelihood-ratio test is for independent rows and has no robust form: leave --robust or --against out",
    )
    found = inferred(known, robust, references)
    if against:
        found = found._replace(tests=[*found.tests, nested_test(known, load(against), str(against))])
    section = table_of(found, known.origin.get("outcome", ""))._replace(title="")
    if out:
        deliver(as_file(found, out), out, f"{len(found.rows)} coefficients")
    show(section._replace(parts=[]) if out else section)


def show_assessment(model: Path, rows: Path, out: Path | None, site: int | None, times: str) -> None:
    """Print how well a model predicts a table with labels, or write the measures to a CSV file."""
    from twinflower.models.assessment import assess
    from twinflower.models.trained import load

    from .report.console import show
    from .report.sections.evaluation import as_csv, assessment

    known = load(model, site)
    found = assess(known, rows, _times(times))
    if out:
        deliver(as_csv(found.measures), out, f"{len(found.measures)} measures")
    else:
        show(assessment(found, known))


def _times(text: str) -> Sequence[float]:
    """The times in --times."""
    from twinflower.problems.discrete_cox import INTERVALS, interval_ends

    if not INTERVALS.holds(text):
        raise SettingError(f"--times must be {INTERVALS.text}; got '{text}'")
    return interval_ends(text) or ()


def statement_on(path: Path, set_: Sequence[str] | None, data_dir: str, ledgers: Path | None) -> str:
    """The privacy statement of an experiment with one curve, or of an ended run, as Markdown."""
    from .report.document import markdown
    from .report.sections.privacy import page

    return markdown(*page(_case(path, set_, data_dir), path, ledgers))


def entry_on(path: Path, set_: Sequence[str] | None, data_dir: str) -> str:
    """The draft of the registry's entry for an experiment with one curve, or for an ended run, as JSON."""
    import json

    from .report.registry import entry

    return json.dumps(entry(_case(path, set_, data_dir)), indent=2) + "\n"


def _case(path: Path, set_: Sequence[str] | None, data_dir: str) -> "Case":
    from .report.study import Case
    from .runs.setup import prepare

    if path.is_dir() and set_:
        raise SettingError(f"the run in {path} stays as it was: leave out --set")
    curves = [] if path.is_dir() else plan_of(path, set_, data_dir).curves
    if not len(curves) < 2:
        raise SettingError(f"a statement is on one run: {path} has {len(curves)} curves")
    return Case.of_setup(prepare(curves[0].config)) if curves else Case.of_folder(path)
