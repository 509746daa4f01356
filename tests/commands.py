"""Commands in processes of their own that have imported everything already: children of one server process."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_PROCESSES = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
if sys.platform == "linux":
    _PROCESSES.set_forkserver_preload([
        "twinflower.simulation.running", "twinflower.simulation.cli", "twinflower.simulation.report.figures",
        "twinflower.simulation.runtimes.inprocess", "twinflower.simulation.runtimes.cohort", "pytest", "scipy.optimize",
    ])  # fmt: skip


class Done(NamedTuple):
    """How a command has ended, as by `subprocess.run`."""

    returncode: int
    stdout: str
    stderr: str


def command(*words: str, before: Callable[..., None] | None = None, given: tuple = ()) -> Done:
    """Run `twinflower WORDS` in the project's folder; before(*given): a function of a module, called in the process."""
    with TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("out", "err")]
        process = _PROCESSES.Process(target=_run, args=(files, words, before, given))
        process.start()
        process.join()
        return Done(process.exitcode, *(file.read_text() for file in files))


def _run(files: list[Path], words: tuple[str, ...], before: Callable[..., None] | None, given: tuple) -> None:
    for file, stream in zip(files, (sys.stdout, sys.stderr), strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream.fileno())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    os.chdir(ROOT)
    sys.argv = ["twinflower", *words]
    if before:
        before(*given)
    from twinflower.simulation.cli import main

    main()


def command_killed_at(count: int, *words: str, how: signal.Signals = signal.SIGKILL) -> Done:
    """`command` in a process that sends itself this signal at the n-th checkpoint."""
    return command(*words, before=_die_at, given=(count, how))


def _die_at(count: int, how: signal.Signals) -> None:
    from twinflower.simulation.results.checkpoint import Checkpoints

    saved, real = [], Checkpoints.save

    def save(self, round_, checkpoint):
        real(self, round_, checkpoint)
        saved.append(round_)
        if len(saved) == count:
            os.kill(os.getpid(), how)

    Checkpoints.save = save
