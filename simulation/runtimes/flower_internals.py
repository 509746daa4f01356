"""Everything that the runtimes use of Flower beyond its documented interface; no other of their modules does.

The format of messages to NumPyClients is in `twinflower.flower_messages`. Each part says why it is needed.
`tests/test_flower_internals.py` checks each against the installed Flower, and that no other module imports a name that
Flower does not export.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.common.logger import update_console_handler
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from twinflower.errors import SettingError

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


INVALID_BUNDLE = 7
"""The code of the error reply of a node that does not run a bundle."""

_RESTRICTED = ("1.41.", "1.42.")  # versions of Flower of which `restrict_bundles` is known to hold


def build_bundle(app: Path) -> bytes:
    """The bundle that `flwr run` sends for the app in this folder; ValueError, or Flower's own error, if it is none."""
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(app)


def bundle_name(bundle: bytes) -> str:
    """The publisher, name and version of a bundle; raises errors of the libraries that read it."""
    from flwr.cli.config_utils import get_fab_metadata

    return " ".join(get_fab_metadata(bundle))


def restrict_bundles(refused: Callable[[bytes], str]) -> None:
    """Let the SuperNode that is started in this process ask `refused` about the bundle of every run before it stores
    the bundle. For a text the SuperNode replies with that error and nothing of the bundle is unpacked or imported.

    Flower has no such option: its trusted entities accept only bundles of Flower Hub. The node does what it does for a
    bundle that these do not sign. Of an allowed bundle, Flower finds the unpacked folder by publisher, name and version
    as the server states them, and by 8 digits of the hash, and does not look into one that exists: it is removed first.
    Raises RuntimeError for a version of Flower of which this is not known to hold.
    """
    if not version("flwr").startswith(_RESTRICTED):
        raise RuntimeError(f"bundles cannot be refused with Flower {version('flwr')}")
    node: Any = import_module("flwr.supernode.start_client_internal")
    pull = _dropping(node._pull_and_store_message)

    def pull_allowed(*, get_fab: Callable[[str, int], Any], **others: Any) -> Any:
        def signed(hash_: str, run: int) -> Any:
            fab = get_fab(hash_, run)
            text = refused(fab.content)
            node.FAB_VERIFICATION_ERROR = Error(INVALID_BUNDLE, text)
            if not text:
                _forget_unpacked(fab.content)
            return replace(fab, verifications={"valid_license": "refused" if text else "allowed"})

        return pull(get_fab=signed, **{**others, "trusted_entities": {"the node's administrator": ""}})

    node._pull_and_store_message = pull_allowed
    node._verify_fab = lambda fab, entities: fab.verifications == {"valid_license": "allowed"}


def _dropping(pull: Callable[..., int | None]) -> Callable[..., int | None]:
    """The step in which a SuperNode receives a message, but a message that it gives up leaves nothing behind.

    If the run ends while Flower's node receives a message, as when the SuperLink is restarted, Flower keeps the message
    and its task. A node sends one reply for every message that it receives: from then on it would send the reply to the
    message before, and a server would wait in vain for the last one.
    """

    def pull_or_drop(
        *, receive: Callable[[], Any], state: Any, object_store: Any, **others: Any
    ) -> int | None:
        received: list[Message] = []

        def noted() -> Any:
            found = receive()
            received.extend(found[:1] if found else ())
            return found

        run = pull(receive=noted, state=state, object_store=object_store, **others)
        for message in received if run is None else ():
            _drop(message, state, object_store)
        return run

    return pull_or_drop


def _drop(message: Message, state: Any, store: Any) -> None:
    """Remove a message, its task, and the reply, if the client was quick enough to make one."""
    run = message.metadata.run_id
    for task in state.get_tasks(run_ids=[run]):
        state.finish_task(task.task_id, sub_status="stopped", details="the message was given up")
    replies = state.get_messages_legacy(run_ids=[run], is_reply=True)
    for id_ in (message.metadata.message_id, *(reply.metadata.message_id for reply in replies)):
        state.delete_messages(message_ids=[id_])
        store.delete(id_)


def _forget_unpacked(bundle: bytes) -> None:
    from flwr.common.constant import APP_DIR, FAB_HASH_TRUNCATION
    from flwr.supercore.utils import get_flwr_home

    digest = hashlib.sha256(bundle).hexdigest()[:FAB_HASH_TRUNCATION]
    for folder in (get_flwr_home() / APP_DIR).glob(f"*.{digest}"):
        shutil.rmtree(folder)


def supernode_options(words: Sequence[str]) -> Mapping[str, Any]:
    """The options of `flower-supernode` in these words; exits like that command for wrong ones."""
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    return vars(_parse_args_run_supernode().parse_args(words))


def run_supernode(words: Sequence[str]) -> None:
    """Run `flower-supernode` in this process, which ends with it; SettingError if its port is in use."""
    sys.argv = ["flower-supernode", *words]
    try:
        command("flower-supernode")()
    except RuntimeError as error:
        if "API failed to start" not in str(error):
            raise
        port = supernode_options(words)["port"]
        raise SettingError(
            f"the node's own server cannot use the port {port}: another node may use it; give every node on a machine "
            "a --port of its own"
        ) from None


def date_log() -> None:
    """Let this process log with the time, which Flower does at its level DEBUG only."""
    update_console_handler(timestamps=True)


def node_config(text: str) -> dict[str, Any]:
    """What `flower-supernode` makes of its `--node-config`: KEY=VALUE pairs, or the path of a TOML file."""
    from flwr.common.config import parse_config_args  # costs 30 ms, which no message to a node should

    return parse_config_args([text])
