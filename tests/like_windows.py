"""Run a command, or with --python a program, without what Python lacks on Windows: modules, signals and names of os.

psutil, which has another part for Windows, is imported before.
"""

import importlib.abc
import os
import signal
import sys

import psutil  # noqa: F401

MODULES = ("fcntl", "resource", "pwd", "grp", "termios")
SIGNALS = ("SIGHUP", "SIGKILL", "SIGALRM", "SIGUSR1", "SIGCHLD", "SIGQUIT", "setitimer", "pthread_sigmask")
OF_OS = (
    "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC", "sched_getaffinity", "fork", "getuid", "geteuid", "killpg",
    "fchmod", "getpgid",
)  # fmt: skip


class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


for place, names in ((signal, SIGNALS), (os, OF_OS)):
    for name in names:
        if hasattr(place, name):
            delattr(place, name)
sys.meta_path.insert(0, Absent())
for name in MODULES:
    sys.modules.pop(name, None)

if sys.argv[1] == "--python":
    exec(sys.argv[2])
else:
    sys.argv = ["twinflower", *sys.argv[1:]]
    from twinflower.__main__ import main

    main()
