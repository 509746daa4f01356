"""Runs the app of the folder we are in over one process, as Flower would: its client app behind every node.

Words: number of nodes, then key=value of the run config in Python's notation. Not a test; `test_plug_in` and
`test_torch` start it, and benchmarks take its grid.
"""

import ast
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class OneProcess(Grid):
    """A grid whose nodes answer at once."""

    run = set_run = create_message = push_messages = pull_messages = None

    def __init__(self, client_app, nodes, config):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
        self.client_app = client_app
        self.contexts = {
            i + 1: Context(1, i + 1, {"partition-id": i, "num-partitions": nodes}, RecordDict(), config)
            for i in range(nodes)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        return [self._answer(message) for message in messages]

    def _answer(self, message):
        message.metadata.__dict__["_message_id"] = "1"
        try:
            return self.client_app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # noqa: BLE001  a client may raise anything
            return Message(Error(3, repr(error)), reply_to=message)


def component(app, kind):
    """An app that pyproject.toml names as package.module:name."""
    module, name = app["components"][kind].split(":")
    return getattr(import_module(module), name)


def main(nodes, *words):
    """Run the app of this folder."""
    app = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config = app["config"] | {
        key: ast.literal_eval(value) for key, value in (word.split("=", 1) for word in words)
    }
    grid = OneProcess(component(app, "clientapp"), int(nodes), config)
    component(app, "serverapp")(grid, Context(1, 0, {}, RecordDict(), config))


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main(*sys.argv[1:])
