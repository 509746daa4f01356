"""The command line: list, settings, schema, run, predict, tune, privacy, graph, figure, compare, deploy, ledger."""

import csv
import io
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from twinflower.algorithms import ALGORITHMS
from twinflower.data.partition import PARTITIONERS
from twinflower.data.schema import read_schema
from twinflower.data.sets import DATASETS, OWN
from twinflower.data.tables import describe_fit, drafted
from twinflower.errors import RunError, SettingError, TwinflowerError, require
from twinflower.networks import OBJECTIVES
from twinflower.regularisers import REGULARISERS
from twinflower.sparsifiers import SPARSIFIERS
from twinflower.topologies import TOPOLOGIES
from twinflower.trained import load, predictions

from .app.server_app import print_row
from .checkpoint import Checkpoints
from .forecast import NOISE_HEADINGS, SUMMARY_HEADINGS, forecast, noise_rows, summary
from .identity import make_key
from .lock import claimed
from .record import (
    Result,
    broken_bounds,
    read_rows,
    read_summary,
    require_new,
    results_folder,
    write_config,
    write_run,
    write_text,
)
from .report import books
from .report.compare import HEADINGS, closing, comparison
from .report.figures import draw_experiment, draw_graph, draw_run, redraw
from .runtimes import cohort, inprocess
from .runtimes.deployment import rehearse
from .runtimes.engine import Engine, engine
from .runtimes.processes import Interrupted
from .settings import DEFAULT_CLIENTS, Config, parse_text, reference
from .settings.catalogue import DEFAULTS
from .settings.experiment import Curve, Experiment, read_experiment, write_experiment
from .settings.sections import PRIVACY
from .setup import prepare, prepare_seeds
from .tune import read_tuning, tune

app = typer.Typer(
    help="Private primal-dual federated learning on Flower.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip
console = Console() if sys.stdout.isatty() else Console(width=180)

RUNTIMES = ("inprocess", "cohort", "flower")
_BEGUN_ON = "runtime"  # file in a results folder while the run goes on
Tick = Callable[[dict[str, Any]], None]


@app.command("list")
def list_() -> None:
    """Algorithms, data sets, experiments, and the other words that settings know."""
    _table("algorithms", [(name, algorithm.title) for name, algorithm in ALGORITHMS.items()])
    _table("data sets", [(name, entry[0]) for name, entry in DATASETS.items()])
    files = sorted(Path("experiments").glob("*.toml"))
    _table("experiments", [(str(path), read_experiment(path).title) for path in files])
    words: dict[str, Iterable[str]] = {
        "partition.name": PARTITIONERS,
        "objective.name": OBJECTIVES,
        "regulariser.name": REGULARISERS,
        "privacy.mode": PRIVACY,
        "topology.name": TOPOLOGIES,
        "uplink": SPARSIFIERS,
        "runtime": RUNTIMES,
    }
    _table("words of", [(key, ", ".join(known)) for key, known in words.items()])


@app.command()
def settings(
    section: Annotated[str, typer.Argument(help="such as privacy or fedpdm; run for those at the top")] = "",
) -> None:
    """Every setting: what it means, its unit, range and default, and what it belongs to."""
    for name, rows in reference.tables(section).items():
        table = Table(*reference.HEADINGS, title=name, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)


@app.command()
def run(
    experiment: Annotated[
        Path | None, typer.Argument(help="an experiment's TOML, or the config.toml of a run")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the file's")] = None,
    runtime: Annotated[
        str, typer.Option(help=f"{', '.join(RUNTIMES)}; default {RUNTIMES[0]}, or as a resumed run began")
    ] = "",
    seeds: Annotated[str, typer.Option(help="comma separated, e.g. 0,1,2")] = "",
    out: Annotated[str, typer.Option(help="new folder for the results; default runs/NAME")] = "",
    data_dir: Annotated[
        str, typer.Option(help="folder of data files; else the environment variable TWINFLOWER_DATA")
    ] = "",
    resume: Annotated[
        Path | None,
        typer.Option(help="folder of a run or experiment that was cut off; nothing else is needed"),
    ] = None,
) -> None:
    """Run an experiment: every curve under every seed, then the figure."""
    runtime = _runtime(runtime, resume)
    require(
        (experiment is None) != (resume is None), "run takes either an experiment's file or --resume FOLDER"
    )
    if resume:
        require(
            not (set_ or seeds or out),
            "--resume goes on as the run began: leave out --set, --seeds and --out",
        )
    plan = _plan(_begun(resume) if resume else cast(Path, experiment), set_, data_dir, seeds)
    _require_rows(plan)
    _require_messages(plan, runtime)
    if resume:
        folder = resume.absolute()
    else:
        prepare_seeds(plan.curves[0].config, plan.seeds[:1])  # whose mistakes leave no folder behind
        folder = results_folder(out or plan.curves[0].config.output.dir, plan.name)
    with claimed(folder, "command"), _ours(folder, runtime):
        if not resume:
            require_new(folder)
        failures = _run_all(plan, folder, runtime)
    console.print(f"results: {folder}", soft_wrap=True, highlight=False)
    _say_broken_bounds(plan, folder)
    if failures:
        raise RunError("; ".join(failures))


def _ours(folder: Path, runtime: str) -> AbstractContextManager[None]:
    """The claim of the process that writes results; Flower's server app makes its own."""
    return nullcontext() if runtime == "flower" else claimed(folder)


def _run_all(plan: Experiment, folder: Path, runtime: str) -> list[str]:
    """Run what is left of an experiment in its folder, and draw it; the sentences of runs that failed."""
    if not plan.single:
        write_experiment(plan, folder / "experiment.toml")
    write_text(folder / _BEGUN_ON, runtime)
    with _interruptible(plan, folder):
        failures = _RUN[runtime](plan, folder)
    (folder / _BEGUN_ON).unlink(missing_ok=True)
    if not plan.single:
        draw_experiment(plan, folder)
    return failures


@app.command("tune")
def tune_(
    experiment: Annotated[Path, typer.Argument(help="an experiment's TOML with a [grid] table")],
    out: Annotated[Path | None, typer.Option(help="file to write; default NAME-tuned.toml here")] = None,
    data_dir: Annotated[
        str, typer.Option(help="folder of data files; else the environment variable TWINFLOWER_DATA")
    ] = "",
) -> None:
    """Choose every curve's best point of its grid on held-out training rows; write the tuned experiment."""
    overrides: dict[str, Any] = {"data.dir": str(Path(data_dir).absolute())} if data_dir else {}
    path = (out or Path(f"{experiment.stem}-tuned.toml")).absolute()
    require(path.parent.is_dir() and not path.is_dir(), f"{path} cannot be written: there is no such folder")
    text = tune(
        read_tuning(experiment, overrides), overrides, lambda line: console.print(line, highlight=False)
    )
    write_text(path, text)
    console.print(f"tuned: {path}", soft_wrap=True, highlight=False)


@app.command()
def deploy(
    experiment: Annotated[
        Path, typer.Argument(help="an experiment's TOML with one curve, or a run's config.toml")
    ],
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the file's")] = None,
    out: Annotated[str, typer.Option(help="new folder for the results; default runs/NAME")] = "",
    data_dir: Annotated[
        str, typer.Option(help="folder of data files; else the environment variable TWINFLOWER_DATA")
    ] = "",
    secure: Annotated[bool, typer.Option(help="TLS, and registered nodes only")] = False,
) -> None:
    """A rehearsal: SuperLink and SuperNodes on this machine, one run on them, and everything ended again."""
    plan = _plan(experiment, set_, data_dir, "")
    require(plan.single, "deploy takes one curve and one seed")
    _require_rows(plan)
    config = plan.curves[0].config.with_clients(DEFAULT_CLIENTS)
    folder = results_folder(out or config.output.dir, plan.name)
    with claimed(folder, "command"):
        require_new(folder)
        try:
            rehearse(config, folder, secure, _say_line)
        except KeyboardInterrupt as signal:
            _say(
                f"interrupted; all processes are ended, their logs are in {folder / 'logs'}", _status(signal)
            )
    _say_broken_bounds(plan, folder)


@app.command()
def figure(folder: Annotated[Path, typer.Argument(help="folder of a run or an experiment")]) -> None:
    """Redraw a figure from stored results, without training."""
    console.print(str(redraw(folder)), soft_wrap=True, highlight=False)


@app.command()
def privacy(
    experiment: Annotated[Path, typer.Argument(help="an experiment's TOML, or the config.toml of a run")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the file's")] = None,
    data_dir: Annotated[
        str, typer.Option(help="folder of data files; else the environment variable TWINFLOWER_DATA")
    ] = "",
) -> None:
    """What a run will cost each client, before anything runs; of several curves one line each."""
    curves = _plan(experiment, set_, data_dir, "").curves
    if len(curves) == 1:
        setup = prepare(curves[0].config)
        _table(f"privacy of '{curves[0].label}'", forecast(setup) + setup.outlook())
        if setup.plan:
            _table(NOISE_HEADINGS, noise_rows(setup))
        return
    rows, remarks = summary((f"{c.panel} {c.label}".strip(), prepare(c.config)) for c in curves)
    _table(SUMMARY_HEADINGS, rows)
    for remark in remarks:
        console.print(remark, highlight=False, soft_wrap=True)


@app.command()
def graph(
    experiment: Annotated[Path, typer.Argument(help="an experiment's TOML, or the config.toml of a run")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the file's")] = None,
    out: Annotated[Path | None, typer.Option(help="PNG to draw the graph into")] = None,
    data_dir: Annotated[
        str, typer.Option(help="folder of data files; else the environment variable TWINFLOWER_DATA")
    ] = "",
) -> None:
    """The graph of a networked method: its numbers, a rho that suits it, and a drawing."""
    setups = [prepare(curve.config) for curve in _plan(experiment, set_, data_dir, "").curves]
    told = [setup.graph() for setup in setups]
    place = next((i for i, rows in enumerate(told) if rows), None)
    if place is None:
        raise SettingError(f"{experiment} runs no networked method, so there is no graph")
    _table("graph", told[place])
    if out:
        console.print(f"drawn: {draw_graph(setups[place].neighbours, out)}", soft_wrap=True, highlight=False)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="folder of a run on tables, or its model.npz")],
    rows: Annotated[Path, typer.Argument(help="table: CSV, Parquet or .npz; a label column is not needed")],
    out: Annotated[Path | None, typer.Option(help="CSV file to write; default the screen")] = None,
) -> None:
    """Predict the labels of new rows, in their order."""
    names, told = predictions(load(model), rows)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerows([names, *told])
    if out is None:
        print(text.getvalue(), end="")
        return
    write_text(out.absolute(), text.getvalue())
    console.print(f"{len(told)} predictions: {out}", soft_wrap=True, highlight=False)


@app.command()
def schema(
    files: Annotated[list[Path], typer.Argument(help="tables: CSV, Parquet or .npz")],
    label: Annotated[str, typer.Option(help="column of the label; default the last")] = "",
    out: Annotated[Path | None, typer.Option(help="file to write the draft to; default the screen")] = None,
    check: Annotated[Path | None, typer.Option(help="a schema that the tables are compared with")] = None,
) -> None:
    """Draft a schema from tables; or, with --check SCHEMA, see how tables fit one."""
    if check:
        require(not label and out is None, "--check takes a schema as it is: leave out --label and --out")
        known = read_schema(check)
        for path in files:
            rows = [tuple(map(str, row)) for row in describe_fit(path, known)]
            _table(("column", "rows", "missing", "outside its range"), rows, title=str(path))
        console.print(f"digest of {check}: {known.digest}", soft_wrap=True, highlight=False)
        return
    text = drafted(files, label)
    if out is None:
        print(text, end="")
        return
    require(not out.exists(), f"{out} is there already: choose another file, or remove it")
    write_text(out.absolute(), text)
    console.print(
        f"schema: {out}; it was made from the data, see its first lines", soft_wrap=True, highlight=False
    )


@app.command()
def identity(
    file: Annotated[
        Path, typer.Argument(help="new file for the private key; keep it, and show it to nobody")
    ],
) -> None:
    """Make a site's key for runs in which the server sees sums only, and print its public key for the peers file."""
    console.print(make_key(file.expanduser()), soft_wrap=True, highlight=False)


@app.command()
def compare(folders: Annotated[list[Path], typer.Argument(help="folders of runs or experiments")]) -> None:
    """Table of finished runs: mean and spread over seeds."""
    table = Table(*HEADINGS)
    for row in comparison(folders):
        table.add_row(*row)
    console.print(table)


@app.command()
def ledger(
    folder: Annotated[
        Path, typer.Argument(help="folder of a node's ledgers: its state-dir, or ~/.twinflower")
    ],
) -> None:
    """What was spent on a node's data, what is left of the lifetime budget, and by which runs."""
    found = books.read_books(folder.expanduser())
    told = ((books.HEADINGS, books.accounts(found)), (books.RUN_HEADINGS, books.runs(found)))
    for headings, rows in told:
        table = Table(*headings)
        for row in rows:
            table.add_row(*row)
        console.print(table)


def main() -> None:
    """Run the command line; a mistake of the user's is one sentence and status 2, a failed run status 1."""
    try:
        app()
    except RunError as error:
        _say(error, 1)
    except TwinflowerError as error:
        _say(error, 2)
    except OSError as error:
        _say(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)


def _say(error: Exception | str, status: int) -> None:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(status)


@contextmanager
def _interruptible(plan: Experiment, folder: Path) -> Iterator[None]:
    """Ctrl-C says what is left of the run."""
    try:
        yield
    except KeyboardInterrupt as signal:
        if plan.single and not plan.curves[0].config.output.checkpoint_every:
            (folder / _BEGUN_ON).unlink(missing_ok=True)
            _say("interrupted; without output.checkpoint-every nothing is kept", _status(signal))
        _say(f"interrupted; go on with: twinflower run --resume {folder}", _status(signal))


def _status(signal: KeyboardInterrupt) -> int:
    """Of a command that a signal has ended."""
    return signal.status if isinstance(signal, Interrupted) else 130


def _say_line(line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def _runtime(asked: str, resume: Path | None) -> str:
    """The runtime that was asked for; a resumed run goes on with the one it began on."""
    require(asked in ("", *RUNTIMES), f"runtime must be one of {', '.join(RUNTIMES)}; got '{asked}'")
    note = resume / _BEGUN_ON if resume else Path()
    begun = note.read_text(encoding="utf-8") if note.is_file() else ""
    require(
        not asked or not begun or asked == begun,
        f"the run in {resume} began on runtime {begun}: leave out --runtime",
    )
    return asked or (begun if begun in RUNTIMES else RUNTIMES[0])


def _begun(folder: Path) -> Path:
    """The file in a results folder that says what was to be run there."""
    files = [folder / "experiment.toml", folder / "config.toml"]
    found = [path for path in files if path.exists()]
    require(bool(found), f"{folder} holds neither experiment.toml nor config.toml: nothing to resume")
    ended = found == files[1:] and (folder / "summary.json").exists()
    require(not ended, f"the run in {folder} has ended already")
    by_flower = (folder / "resume.toml").exists() and not (folder / _BEGUN_ON).exists()
    require(
        not by_flower,
        f"the run in {folder} was started by flwr run: go on with flwr run . CONNECTION --stream --run-config "
        f"{folder.absolute() / 'resume.toml'}",
    )
    return found[0]


def _plan(experiment: Path, set_: list[str] | None, data_dir: str, seeds: str) -> Experiment:
    overrides = dict(map(parse_text, set_ or []))
    require(
        not seeds or "seed" not in overrides,
        f"--seeds {seeds} and --set seed={overrides.get('seed')} both name seeds: leave one of them out",
    )
    if data_dir:
        overrides.setdefault("data.dir", data_dir)
    return read_experiment(experiment, overrides, _seeds(seeds))


def _require_rows(plan: Experiment) -> None:
    require(
        all(curve.config.data.name != OWN for curve in plan.curves),
        "the rows of data own are at deployed nodes only: run it with flwr run on their SuperLink",
    )


def _require_messages(plan: Experiment, runtime: str) -> None:
    """SettingError for settings about replies in the runtime that has none."""
    keys = ("server.min-replies", "server.void-rounds", "server.max-norm") if runtime == "cohort" else ()
    for curve in plan.curves:
        items = curve.config.items()
        for key in keys:
            require(
                items[key] == DEFAULTS[key],
                f"{key} = {items[key]} has no effect with runtime cohort, which has no replies: choose another "
                f"--runtime, or set {key} to {DEFAULTS[key]}, its default",
            )


def _seeds(text: str) -> list[int] | None:
    try:
        return [int(word) for word in text.split(",")] if text else None
    except ValueError:
        raise SettingError(f"--seeds takes whole numbers with commas between; got '{text}'") from None


def _run_in_process(plan: Experiment, folder: Path) -> list[str]:
    def one_after_the_other(curve: Curve, seeds: list[int], tick: Tick) -> Iterator[Result]:
        for setup in prepare_seeds(curve.config, seeds):
            own = plan.folder(folder, curve, setup.config.seed)
            checkpoints = Checkpoints(own, setup.config.output.checkpoint_every, setup.config)
            if checkpoints.every:
                _require_checkpoint(checkpoints)
                setup = setup.with_state_dir(own / "state")
                write_config(setup.config, own)
            yield inprocess.run(setup, tick, checkpoints=checkpoints)

    return _run_curves(plan, folder, one_after_the_other)


def _require_checkpoint(checkpoints: Checkpoints) -> None:
    """The first is written before anything else, so without one clients' states are of no use."""
    begun = (checkpoints.folder / "state").exists()
    require(
        not begun or checkpoints.newest()[0] is not None,
        f"{checkpoints.folder} holds clients' states and no checkpoint: start anew in another folder",
    )


def _run_cohort(plan: Experiment, folder: Path) -> list[str]:
    def together(curve: Curve, seeds: list[int], tick: Tick) -> list[Result]:
        own = folder if plan.single else folder / curve.slug
        if curve.config.output.checkpoint_every and plan.single:
            write_config(curve.config, own)
        return cohort.run(
            prepare_seeds(curve.config, seeds),
            tick,
            Checkpoints(own, curve.config.output.checkpoint_every, curve.config),
        )

    return _run_curves(plan, folder, together)


def _run_curves(
    plan: Experiment, folder: Path, runner: Callable[[Curve, list[int], Tick], Iterable[Result]]
) -> list[str]:
    """Run and store what is not there yet; the sentences of those that failed."""
    failures = []
    for curve in plan.curves:
        left = _left(plan, folder, curve)
        told: list[Result] = []
        with _Ticker(plan, curve) as ticker:
            for result in runner(curve, left, ticker.tick) if left else ():
                own = plan.folder(folder, curve, result.setup.config.seed)
                draw_run(write_run(result, own))
                Checkpoints(own, 0).clear()
                told.append(result)
        Checkpoints(folder if plan.single else folder / curve.slug, 0).clear()
        for warning in dict.fromkeys(text for result in told for text in result.warnings()):
            console.print(f"{curve.label}: {warning}", highlight=False)
        failures += [f"{curve.label}: {r.failure}" for r in told if r.failure]
        if left:
            _tell(plan, folder, curve)
        _tell_guarantee(told)
    return failures


def _left(plan: Experiment, folder: Path, curve: Curve) -> list[int]:
    """Seeds whose run has not ended in this folder."""
    return [seed for seed in plan.seeds if not (plan.folder(folder, curve, seed) / "summary.json").exists()]


def _run_flower(plan: Experiment, folder: Path) -> list[str]:
    failures = []
    with engine(_say_line) as flower:
        for curve in plan.curves:
            left = _left(plan, folder, curve)
            for seed in left:
                failures += _run_on(flower, curve, seed, plan.folder(folder, curve, seed))
            if left:
                _tell(plan, folder, curve)
    return failures


def _run_on(flower: Engine, curve: Curve, seed: int, folder: Path) -> list[str]:
    try:
        flower.run(_resumable(replace(curve.config, seed=seed), folder), folder)
        return []
    except RunError as error:
        return [f"{curve.label}: {error}"]


def _resumable(config: Config, folder: Path) -> Config:
    """With checkpoints: clients keep their state beside the results, and a run that was begun there goes on."""
    if not config.output.checkpoint_every:
        return config
    begun = str(folder) if (folder / "config.toml").exists() else ""
    require(
        not begun or (folder / "state").is_dir(), f"{folder} has lost its folder state: start anew in another"
    )
    state_dir = config.output.state_dir or str(folder / "state")
    return config.put({"output.state-dir": state_dir, "output.resume-from": begun})


_RUN: dict[str, Callable[[Experiment, Path], list[str]]] = {
    "inprocess": _run_in_process,
    "cohort": _run_cohort,
    "flower": _run_flower,
}


class _Ticker:
    """Progress of one curve: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, plan: Experiment, curve: Curve) -> None:
        self.label, self.rounds = curve.label, curve.config.rounds
        self.bar = Bar(console=console) if console.is_terminal else None
        self.alone = plan.single

    def __enter__(self) -> "_Ticker":
        if self.bar:
            self.bar.start()
            self.task = self.bar.add_task(self.label, total=self.rounds)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def tick(self, row: dict[str, Any]) -> None:
        """An evaluated round."""
        if self.bar:
            self.bar.update(self.task, completed=row["round"])
        elif self.alone:
            print_row(row)


def _tell_guarantee(results: list[Result]) -> None:
    """The sentence of the run that spent the most; what was spent counts also where a run failed."""
    told = [privacy for result in results if (privacy := result.privacy())]
    if told:
        worst = max(told, key=lambda privacy: math.inf if privacy["mu"] is None else privacy["mu"])
        console.print(f"privacy: {worst['guarantee']}", highlight=False, soft_wrap=True)


def _say_broken_bounds(plan: Experiment, folder: Path) -> None:
    """The last line of a command names the curves that exceed a bound; that a bound is not met is no error."""
    parts = []
    for curve in plan.curves:
        seeds = [broken_bounds(plan.folder(folder, curve, seed)) for seed in plan.seeds]
        if broken := [excess for excess in seeds if excess is not None]:
            name = ": ".join(filter(None, (curve.panel, curve.label)))
            parts.append(f"{name} ({len(broken)} of {len(seeds)} seeds, by up to {max(broken):.3g})")
    if parts:
        console.print(f"bounds NOT met: {'; '.join(parts)}", soft_wrap=True, highlight=False)


def _tell(plan: Experiment, folder: Path, curve: Curve) -> None:
    """The curve's last line: its result, or mean and spread over the seeds."""
    folders = [plan.folder(folder, curve, seed) for seed in plan.seeds]
    ended = [own for own in folders if (own / "summary.json").exists() and read_summary(own)["finished"]]
    if ended:
        runs = list(map(read_summary, ended))
        line = f"{closing(runs, len(folders))}{_bounds(runs, ended)}{_lost(runs)}"
        console.print(line, soft_wrap=True, highlight=False)


def _bounds(runs: list[dict[str, Any]], folders: list[Path]) -> str:
    """Whether a constrained model keeps its bounds, under every seed."""
    met = [run["bounds_met"] for run in runs]
    if met[0] is None:
        return ""
    worst = max(read_rows(folder)[-1]["excess"] for folder in folders)
    return f"; bounds {'met' if all(met) else 'NOT met'} ({worst:+.3g} from the limit)"


def _lost(runs: list[dict[str, Any]]) -> str:
    """Replies that were left out, under all seeds."""
    lost = sum(run["rejected_replies"] or 0 for run in runs)
    return f"; {lost} replies left out" if lost else ""


def _table(headings: str | Sequence[str], rows: Sequence[tuple[str, ...]], title: str | None = None) -> None:
    """Rows under headings, or two columns under a title."""
    columns = (headings, "") if isinstance(headings, str) else headings
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
