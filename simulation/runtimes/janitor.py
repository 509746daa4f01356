"""Stop everything that a command has started and remove its folder, even if the command itself was killed.

Every process that a command starts has the environment variable MARK, whose value is the command's folder. Its children
inherit the variable, even in another session. As a script, `python janitor.py FOLDER PACKAGES` waits until its standard
input is closed, which happens when the command ends for any reason, and then cleans up. It starts without
site-packages, and takes psutil from the folder PACKAGES, where the command has it from.
"""

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(sys.argv[2])

import psutil

MARK = "TWINFLOWER_FOLDER"
PACKAGES = Path(psutil.__file__).parents[1]
_LAST_WORD = 10.0  # seconds after SIGKILL; only a process that hangs in the kernel takes longer
_PAUSE = 0.05


def clear(folder: Path, grace: float, hurry: Callable[[], bool] = lambda: False) -> list[int]:
    """End every process of this folder, then remove the folder; return the pids of processes that could not be ended.

    The processes get SIGTERM, and SIGKILL after `grace` seconds or as soon as `hurry()`, which is polled, returns true.
    """
    known: set[psutil.Process] = set()
    if grace > 0:
        _send(psutil.Process.terminate, _present(folder, known))
    _wait(grace, lambda: hurry() or not _present(folder, known))
    _wait(_LAST_WORD, lambda: _killed(_present(folder, known), hurry))
    left = sorted(process.pid for process in _present(folder, known))
    shutil.rmtree(folder, ignore_errors=True)
    return left


def _wait(seconds: float, done: Callable[[], bool]) -> None:
    """Poll. `psutil.wait_procs` would take the exit status of the command's children from its Popen objects."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not done():
        time.sleep(_PAUSE)


def _killed(processes: set[psutil.Process], hurry: Callable[[], bool]) -> bool:
    _send(psutil.Process.kill, processes)
    hurry()
    return not processes


def _send(request: Callable[[psutil.Process], None], processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):  # among others, if the pid was reused
            request(process)


def _present(folder: Path, known: set[psutil.Process]) -> set[psutil.Process]:
    """The live processes that belong to the folder or did so in an earlier call; adds new ones to known."""
    known |= family(folder)
    return alive(known)


def family(folder: Path) -> set[psutil.Process]:
    """The processes with the mark and their descendants; Ray's workers overwrite their environment, and so the mark."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter(["environ"]):
        if process not in found and (process.info["environ"] or {}).get(MARK) == str(folder):
            found |= {process, *_descendants(process)}
    return found


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def alive(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    """Those of the processes that still run; zombies have ended."""
    return {process for process in processes if _runs(process)}


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def main(folder: Path) -> None:
    """Ignore signals, wait for the command to end, and clear up after it."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.stdin.buffer.read()
    clear(folder, grace=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
