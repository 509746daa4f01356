"""The `inprocess` runtime: the actual strategy and clients over an in-process Flower `Grid`.

Messages are Flower's, with arrays in wire format, and pass through Flower's own `ClientApp`. This runtime is for tests,
faults, ledgers on disk and debugging; `cohort` computes the same numbers, up to rounding, faster.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from twinflower.clients import AlgorithmClient
from twinflower.errors import DataError
from twinflower.flower_messages import RAISED

from ..results.checkpoint import Checkpoints
from ..results.folder import run_folder
from ..results.resume import in_process
from ..runs.client_factory import client_of, store_of
from ..runs.run import Progress, Run
from ..runs.setup import PreparedRun, prepare_seeds
from ..settings.experiment import Curve, Experiment
from . import flower_internals
from .computing import computing
from .strategy import run_strategy


class InProcessGrid(Grid):
    """A grid with nodes 1..N, where node i + 1 holds partition i. A node's context and its client are created on first
    use."""

    def __init__(self, setup: PreparedRun) -> None:
        self.setup = setup
        self.contexts: dict[int, Context] = {}
        self._clients: dict[int, AlgorithmClient] = {}
        self._replies: dict[str, Message] = {}
        self._ids = count(1)
        self._app = ClientApp(self._client_fn)
        run = int.from_bytes(os.urandom(7))  # random, so that a ledger on disk never takes two runs for one
        self._run = flower_internals.begin_run(run)

    def set_run(self, run: Any) -> None:
        """Set Flower's description of the run."""
        self._run = run

    @property
    def run(self) -> Any:
        """Flower's description of the run."""
        return self._run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Deprecated in Flower; use `Message`."""
        raise NotImplementedError("use flwr.app.Message(...)")

    def get_node_ids(self) -> Iterable[int]:
        """The node numbers 1..N."""
        return range(1, self.setup.config.clients.count + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Process every message at once and store its reply; return the messages' ids.

        messages must not be an iterator, because Flower's own grid iterates over it twice.
        """
        assert iter(messages) is not messages
        ids = []
        for message in messages:
            ids.append(flower_internals.number(message, next(self._ids)))
            self._replies[ids[-1]] = self.answer(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return and remove the stored replies to these messages."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Process the messages and return their replies; the timeout has no effect."""
        return self.pull_messages(self.push_messages(messages))

    def answer(self, message: Message) -> Message:
        """The reply of the node; an exception in the client becomes an error reply, as in Flower."""
        try:
            return self._app(message, self.context(message.metadata.dst_node_id))
        except Exception as error:  # noqa: BLE001  a client may raise anything
            return Message(Error(RAISED, f"{type(error).__name__}: {error}"), reply_to=message)

    def context(self, node: int) -> Context:
        """The node's Flower context, which holds its state."""
        if node not in self.contexts:
            config: UserConfig = {"partition-id": node - 1, "num-partitions": self.setup.config.clients.count}
            self.contexts[node] = Context(self._run.run_id, node, config, RecordDict(), {})
        return self.contexts[node]

    def client(self, node: int) -> AlgorithmClient:
        """The client of the node, created on first use."""
        if node not in self._clients:
            self._clients[node] = self.new_client(node, self.context(node))
        return self._clients[node]

    def new_client(self, node: int, context: Context) -> AlgorithmClient:
        """A client of the node with this context."""
        return client_of(self.setup, node - 1, context)

    def _client_fn(self, context: Context) -> Client:
        return self.client(context.node_id).to_client()


def train(
    setup: PreparedRun, progress: Progress | None = None, checkpoints: Checkpoints | None = None
) -> Run:
    """Run the strategy over an `InProcessGrid`; with checkpoints, resume from the newest one."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with computing():
            if checkpoints:
                _require_states(setup, checkpoints)
            return run_strategy(setup, InProcessGrid(setup), "inprocess", progress, checkpoints)
    finally:
        logger.setLevel(level)


def _require_states(setup: PreparedRun, checkpoints: Checkpoints) -> None:
    """Raise DataError unless every client sampled before the newest checkpoint still has its state."""
    found, _ = checkpoints.newest()
    if found is None or not setup.config.output.state_dir:
        return
    for client, _ in found.info.get("born", ()):
        store = store_of(setup, client, setup.config.output.state_dir)
        if store and store.last(found.info["session"]) is None:
            raise DataError(
                f"the state of client {client} is not in {setup.config.output.state_dir}: without it the run cannot go "
                "on; start anew in another folder"
            )


def train_seeds(
    plan: Experiment, folder: Path, curve: Curve, seeds: list[int], progress: Progress
) -> Iterator[Run]:
    """Run a curve of the experiment in this folder with these seeds, one after the other."""
    for prepared in prepare_seeds(curve.config, seeds):
        setup, checkpoints = in_process(prepared, run_folder(plan, folder, curve, prepared.config.seed))
        yield train(setup, progress, checkpoints)
