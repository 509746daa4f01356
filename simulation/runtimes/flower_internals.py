"""Everything that we use of Flower beyond its documented interface; no other module does.

Each part says why it is needed. `tests/test_flower_internals.py` checks each against the installed Flower, and that no
other module imports a name that Flower does not export.
"""

import re
from importlib.metadata import entry_points
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RAISED = 2
"""The code of an error reply for an exception in a client, so that ours in process look like Flower's."""

QUICK_NODES = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}
"""Environment variables with which nodes begin sooner on a message; in seconds, Flower's default is 1."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ALARM = re.compile(r"(?:WARNING|ERROR) *:\s*(.*)")
_CONNECTED = "SuperNode ID: "


def begin_run(run: int) -> Run:
    """Make this process a server's, and return Flower's description of its run. In Flower's
    processes the SuperLink sets these numbers; without them no `Message` can be made."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, 0, 1
    return Run.create_empty(run_id=run)


def number(message: Message, number_: int) -> str:
    """Give a message its id, as the SuperLink does; return the id, to which the reply will refer."""
    message.metadata.__dict__["_message_id"] = str(number_)
    return message.metadata.message_id


def is_simulated(grid: Grid) -> bool:
    """Whether Flower simulates the nodes on this machine. No documented part of Flower says so, but only the grid of a
    simulation holds the SuperLink's state."""
    return hasattr(grid, "state")


def command_line() -> Any:
    """The function of Flower's command `flwr`, imported here so that this can be done ahead of time."""
    (command,) = entry_points(group="console_scripts", name="flwr")
    return command.load()


def news(line: str) -> str:
    """What a line of a SuperNode's log holds for the user: that it has connected, a warning or an error; else empty.

    Nothing depends on it: a node's own messages reach nobody else.
    """
    if _CONNECTED in line:
        return "connected"
    found = _ALARM.match(_COLOUR.sub("", line).rstrip())
    return found[1] if found else ""
