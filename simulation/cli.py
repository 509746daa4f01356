"""The command line: a function for each command.

Each imports what it needs: Flower, matplotlib and the rest together take longer than most commands.
"""

from pathlib import Path
from typing import Annotated

import typer

from twinflower.errors import DiskError, RunError, SettingError, TwinflowerError, require

from .commands import Commands, DataDir, Force, Out, Set, end, ended_by_signal, in_groups, output, sections
from .model_commands import coefficients, path, predict, refit
from .runtimes import RUNTIMES
from .site_commands import check_node, identity, ledger, node, schema
from .streams import lose_nothing

app = typer.Typer(
    cls=Commands, help="Private primal-dual federated learning on Flower.", no_args_is_help=True,
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
_A_FILE = "an experiment's TOML, or the config.toml of a run"


def _print_version(asked: bool) -> None:
    if asked:
        import twinflower

        print(twinflower.__version__)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Private primal-dual federated learning on Flower."""


@app.command("list")
def list_() -> None:
    """List algorithms, data sets, experiments and other named values of settings."""
    from .listing import show

    show()


@app.command()
def settings(
    section: Annotated[
        str,
        typer.Argument(
            help="a section, such as privacy or fedpdm, or a word to look for; run: the keys at the top",
            autocompletion=sections,
        ),
    ] = "",
) -> None:
    """Show settings with meaning, unit, range and default."""
    from .report.console import table
    from .settings import reference

    for name, rows in reference.tables(section).items():
        table(reference.HEADINGS, rows, name)


@app.command()
def run(
    experiment: Annotated[Path | None, typer.Argument(help=_A_FILE)] = None,
    set_: Set = None,
    runtime: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(RUNTIMES)} (default: cohort if the settings allow it, or as a resumed run began)"
        ),
    ] = "",
    seeds: Annotated[
        str, typer.Option(help="seeds, separated by commas, e.g. 0,1,2 (default: those of the file)")
    ] = "",
    out: Out = "",
    data_dir: DataDir = "",
    jobs: Annotated[
        int, typer.Option(help="runs of an experiment at a time, each in its own process; 0: one per core")
    ] = 1,
    curve: Annotated[
        list[str] | None, typer.Option(help="run only the curves with this label (repeatable)")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="folder of an interrupted run or experiment to resume, in place of EXPERIMENT"),
    ] = None,
) -> None:
    """Run an experiment, every curve with every seed, and write its figure and report."""
    from twinflower.settings import check_choice

    from . import running
    from .arguments import only, overrides_of, plan_of, train
    from .results.resume import interrupted

    if runtime:
        check_choice("runtime", runtime, RUNTIMES)
    if experiment and not resume:
        plan = only(plan_of(experiment, set_, data_dir, seeds), curve or [])
        runtime = running.chosen(plan, runtime)
        processes = running.processes(jobs, runtime)
        folder = running.new(plan, runtime, out)
    elif resume and not experiment:
        require(
            not (set_ or seeds or out or curve),
            "--resume goes on as the run began: leave out --set, --seeds, --curve and --out",
        )
        plan, runtime = running.again(resume, runtime, overrides_of(None, data_dir))
        processes, folder = running.processes(jobs, runtime), resume.absolute()
    else:
        raise SettingError(
            "run takes either an experiment's file, as in: twinflower run experiments/digits.toml, or --resume FOLDER"
        )
    train(plan, folder, runtime, lambda: interrupted(plan, folder), not resume, processes)


@app.command("tune")
def tune_(
    experiment: Annotated[Path, typer.Argument(help="an experiment's TOML with a table called grid")],
    out: Annotated[Path | None, output("file to write (default: NAME-tuned.toml here)")] = None,
    data_dir: DataDir = "",
    jobs: Annotated[int, typer.Option(help="points at a time, each in its own process; 0: one per core")] = 1,
    curve: Annotated[
        list[str] | None, typer.Option(help="tune only the curves with this label (repeatable)")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="take the scores of an interrupted tuning with the same --out")
    ] = False,
    join: Annotated[
        list[Path] | None,
        typer.Option(help="a tuned file, whose tuned curves are taken as they are (repeatable)"),
    ] = None,
    force: Force = False,
) -> None:
    """Choose the best grid point of every curve on held-out training rows, and write the tuned experiment."""
    from .arguments import overrides_of
    from .report.console import say
    from .results.files import require_free, write_text
    from .running import processes
    from .tuning.grid import charged, read_tuned, read_tuning, uneven
    from .tuning.scoring import journal_of
    from .tuning.search import tune

    overrides = overrides_of(None, str(Path(data_dir).absolute()) if data_dir else "")
    path = (out or Path(f"{experiment.stem}-tuned.toml")).absolute()
    require_free(path, force)
    if not (path.parent.is_dir() and not path.is_dir()):
        raise SettingError(f"{path} cannot be written: there is no such folder")
    tuning = read_tuning(experiment, overrides)
    joined = read_tuned(join or [], tuning)
    say(*filter(None, [uneven(tuning)]))
    journal = journal_of(path, resume, charged(tuning))
    write_text(path, tune(tuning, say, processes(jobs, "cohort"), journal, curve or [], joined))
    if journal:
        journal.unlink(missing_ok=True)
    say(f"tuned: {path}")


@app.command()
def deploy(
    experiment: Annotated[
        Path, typer.Argument(help="an experiment's TOML with one curve, or a run's config.toml")
    ],
    set_: Set = None,
    out: Out = "",
    data_dir: DataDir = "",
    secure: Annotated[bool, typer.Option(help="with TLS and registered nodes")] = False,
) -> None:
    """Rehearse a deployment: start a SuperLink and SuperNodes on this machine, run once, and stop everything."""

    from . import running
    from .arguments import close, plan_of
    from .report.messages import Terminal
    from .results import names

    plan = plan_of(experiment, set_, data_dir)
    folder = running.new_rehearsal(plan, out)
    with ended_by_signal(
        lambda: f"interrupted; all processes are ended, their logs are in {folder / names.LOGS}"
    ):
        failures = running.rehearse(plan, folder, Terminal(plan, folder), secure)
    close(plan, folder, failures)


@app.command()
def figure(folder: Annotated[Path, typer.Argument(help="folder of a run or an experiment")]) -> None:
    """Redraw the figure of a run or an experiment from stored results."""
    from .report.console import say
    from .report.figures import redraw

    say(str(redraw(folder)))


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="folder of a run or an experiment")]) -> None:
    """Write report.html from stored results, and the figure if it is missing."""
    from .report.console import say
    from .report.present import rewrite

    say(str(rewrite(folder)))


@app.command()
def status(folder: Annotated[Path, typer.Argument(help="folder of a run or an experiment")]) -> None:
    """Show whether a run is running, how it ended, or how to resume it. Exit status 1: it was interrupted or has
    failed."""
    from .report.console import say
    from .results.resume import status

    found = status(folder.absolute())
    say(*found.lines)
    if not found.well:
        raise typer.Exit(1)


@app.command()
def privacy(
    experiment: Annotated[
        Path, typer.Argument(help=f"{_A_FILE}; with --statement or --registry also the run's folder")
    ],
    set_: Set = None,
    data_dir: DataDir = "",
    statement: Annotated[
        bool, typer.Option(help="write a plain-language page in Markdown, in place of tables")
    ] = False,
    registry: Annotated[
        bool,
        typer.Option(help="write a draft in JSON for OpenDP's registry of deployments, in place of tables"),
    ] = False,
    ledger: Annotated[
        Path | None, typer.Option(help="with --statement: folder of a node's ledgers to include")
    ] = None,
    out: Annotated[
        Path | None, output("with --statement or --registry: file to write (default: the screen)")
    ] = None,
    force: Force = False,
) -> None:
    """Show what a run will cost each client in privacy, before it starts."""
    from .arguments import deliver, entry_on, plan_of, statement_on

    require(ledger is None or statement, "--ledger belongs to --statement")
    require(not (statement and registry), "choose one of --statement and --registry")
    if statement:
        deliver(statement_on(experiment, set_, data_dir, ledger), out, "statement")
        return
    if registry:
        deliver(entry_on(experiment, set_, data_dir), out, "entry")
        return
    require(out is None, "--out belongs to --statement and --registry")
    from .report.console import say, table, titled
    from .runs.advice import outlook
    from .runs.forecast import NOISE_HEADINGS, SUMMARY_HEADINGS, forecast, noise_rows, summary
    from .runs.setup import prepare

    curves = plan_of(experiment, set_, data_dir).curves
    if len(curves) == 1:
        setup = prepare(curves[0].config)
        titled(f"privacy of '{curves[0].label}'", forecast(setup) + outlook(setup))
        if setup.plan:
            table(NOISE_HEADINGS, noise_rows(setup))
        return
    rows, remarks = summary((f"{c.panel} {c.label}".strip(), prepare(c.config)) for c in curves)
    table(SUMMARY_HEADINGS, rows)
    say(*remarks)


@app.command()
def graph(
    experiment: Annotated[Path, typer.Argument(help=_A_FILE)],
    set_: Set = None,
    out: Annotated[Path | None, output("PNG file to draw the graph into")] = None,
    data_dir: DataDir = "",
    force: Force = False,
) -> None:
    """Show the properties of a networked method's graph, and draw it (--out)."""
    from .arguments import plan_of
    from .report.console import say, titled
    from .report.figures import draw_graph
    from .runs.advice import graph as properties
    from .runs.setup import prepare

    setups = [prepare(curve.config) for curve in plan_of(experiment, set_, data_dir).curves]
    networked = next((setup for setup in setups if setup.neighbours), None)
    if networked is None:
        raise SettingError(
            f"{experiment} runs no networked method, so there is no graph: choose one, such as --set algorithm=zcdp-nfl"
        )
    titled("graph", properties(networked))
    if out:
        say(f"drawn: {draw_graph(networked.neighbours, out)}")


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="folders of runs or experiments")],
    out: Annotated[Path, output("HTML file to write")] = Path("comparison.html"),
    pool: Annotated[
        bool,
        typer.Option(
            "--pool", help="runs that differ in the seed alone are one curve, as of an array of jobs"
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Compare finished runs: a table, and a report as an HTML file."""
    from .report.console import say, show
    from .report.present import write_report
    from .report.sections.results import results
    from .report.study import Study

    found = Study.of_folders(folders, pool)
    for section in results(found):
        show(section._replace(title=""))
    say(*found.left_out, f"report: {write_report(found, out.absolute())}")


@app.command("table-one")
def table_one(folder: Annotated[Path, typer.Argument(help="folder of a run")]) -> None:
    """Show Table 1 of a run with evaluation.table-one: what its rows are like, by column."""
    from .report.console import show
    from .report.sections.table_one import table_one as sections
    from .report.study import Study

    found = sections(Study.of_run(folder))
    require(bool(found), f"{folder} has no Table 1: train with evaluation.table-one = true")
    for section in found:
        show(section._replace(title=""))


@app.command("audit")
def audit_(
    target: Annotated[
        str,
        typer.Argument(help="the cases to audit, as FILE.py:NAME or MODULE:NAME (NAME: cases by default)"),
    ],
    case: Annotated[
        list[str] | None, typer.Option(help="audit only the case of this name (repeatable)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for audit.html and audit.json")] = None,
    runs: Annotated[
        int, typer.Option(min=40, help="runs on each data set from which an attack is counted")
    ] = 1000,
    most: Annotated[
        int, typer.Option(min=1, help="largest number of runs where an attack is right in every run")
    ] = 10_000,
    confidence: Annotated[
        float, typer.Option(help="confidence of all lower bounds of a case together")
    ] = 0.95,
    canaries: Annotated[
        int, typer.Option(min=0, help="audit one run with K canary records (0: off)", metavar="K")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, max=3999, help="seed of the audit's random numbers")] = 0,
    force: Force = False,
) -> None:
    """Audit the privacy claims of Flower apps by attacks. Exit status 1: a claim does not hold."""
    from .audit import Effort
    from .audit.command import run_all

    effort = Effort(counting=runs, most=most, confidence=confidence, canaries=canaries, seed=seed)
    if not run_all(target, case or [], out and out.absolute(), effort, force):
        raise typer.Exit(1)


for command in (path, refit, predict, coefficients, schema, identity, check_node, ledger):
    app.command(command.__name__.replace("_", "-"))(command)
app.command(context_settings={"ignore_unknown_options": True})(node)
in_groups(app)


def main() -> None:
    """Run the command line. A user error prints one sentence and exits with status 2, a failed run with status 1."""
    lose_nothing()
    try:
        app(prog_name="twinflower")  # a shell's completion goes by this name, not by that of the process
    except (RunError, DiskError) as error:
        end(str(error), 1)
    except TwinflowerError as error:
        end(str(error), 2)
    except OSError as error:
        end(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)
