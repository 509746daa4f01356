"""Flower's commands in processes of ours.

`python -m ...flower_commands flwr PORT WORDS...` is its command line, imported while its SuperLink starts: the command
begins as soon as a process listens on the port of this machine. `python -m ...flower_commands supernode WORDS...` is
its `flower-supernode`, which reports its warnings and dates its log.
"""

import sys

from .flower_internals import command, date_log, run_supernode


def flwr(port: str) -> None:
    """Run `flwr` once a process listens on the port."""
    app = command("flwr")
    from .processes import listening  # a SuperNode needs none of it

    if not listening(int(port)):
        sys.exit("the SuperLink did not listen in time")
    # Flower looks for the app's modules, and an app may bring a twinflower of its own
    for name in [name for name in sys.modules if name.partition(".")[0] == "twinflower"]:
        del sys.modules[name]
    sys.argv[0] = "flwr"
    app()


def supernode() -> None:
    """Run `flower-supernode`."""
    from .progress import report_warnings

    report_warnings()
    date_log()
    run_supernode(sys.argv[1:])


if __name__ == "__main__":
    if sys.argv.pop(1) == "flwr":
        flwr(sys.argv.pop(1))
    else:
        supernode()
