"""Everything that the runtimes use of Flower beyond its documented interface; no other of their modules does.

The format of messages to NumPyClients is in `twinflower.flower_messages`. Each part says why it is needed.
`tests/test_flower_internals.py` checks each against the installed Flower, and that no other module imports a name that
Flower does not export.
"""

from importlib.metadata import entry_points
from typing import Any

from flwr.app import Message
from flwr.common.logger import update_console_handler
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

QUICK_NODES = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}
"""Environment variables with which nodes begin sooner on a message; in seconds, Flower's default is 1."""


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


def command(name: str) -> Any:
    """The function of one of Flower's commands, imported here so that this process can do something else before."""
    (found,) = entry_points(group="console_scripts", name=name)
    return found.load()


def date_log() -> None:
    """Let this process log with the time, which Flower does at its level DEBUG only."""
    update_console_handler(timestamps=True)


def node_config(text: str) -> dict[str, Any]:
    """What `flower-supernode` makes of its `--node-config`: KEY=VALUE pairs, or the path of a TOML file."""
    from flwr.common.config import parse_config_args  # costs 30 ms, which no message to a node should

    return parse_config_args([text])
