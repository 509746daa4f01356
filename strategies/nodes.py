"""Which node holds which partition, and readable messages for nodes that fail."""

import time
from collections.abc import Mapping, Sequence
from logging import WARNING

from flwr.app import Error, Message
from flwr.common import log
from flwr.serverapp import Grid

from twinflower.errors import AbsentError, RunError
from twinflower.flower_messages import GONE

from .replies import short
from .requests import properties_in, properties_request
from .waiting import Reminder, partitions, some

_LONGEST_SAID = 300  # characters of each reason where one message lists several
_MOST_NAMED = 5  # reasons listed in one message


def meet(grid: Grid, num_clients: int, timeout: float) -> dict[int, int]:
    """Query every node for its partition until all partitions are found; return a dict partition -> node.

    num_clients: the number of partitions; 0 means the number that the nodes report. Raises RunError for too few nodes
    (after at most `timeout` seconds), a wrong number of partitions, or a partition held by two nodes. A node that fails
    does not matter if all partitions are found.
    """
    nodes: dict[int, int] = {}
    failures: dict[int, Error] = {}
    deadline, reminder = time.monotonic() + timeout, Reminder()
    while not num_clients or len(nodes) < num_clients:
        failed = {node for node, error in failures.items() if error.code != GONE}
        new = sorted(set(grid.get_node_ids()) - failed - set(nodes.values()))
        patience = max(deadline - time.monotonic(), 1.0)
        requests = list(map(properties_request, new))
        for reply in grid.send_and_receive(requests, timeout=patience):
            if reply.has_error():
                failures[_node_of(reply, requests)] = reply.error
            else:
                num_clients = note_partition(reply, nodes, num_clients)
        if len(nodes) < num_clients or not num_clients:
            if time.monotonic() > deadline or _hopeless(nodes, num_clients, failures):
                raise AbsentError(_too_few(nodes, num_clients, timeout, failures))
            reminder.look(lambda: _waiting(nodes, num_clients, deadline))  # noqa: B023  called at once
            time.sleep(0.2)
    for node in failures.keys() - set(nodes.values()):
        log(WARNING, "node %s is not needed: %s", node, short(failures[node].reason))
    return nodes


def _hopeless(nodes: Mapping[int, int], wanted: int, failures: Mapping[int, Error]) -> bool:
    """Whether nodes have failed that are needed. One that is gone may return, or have a successor that still starts."""
    remains = any(error.code != GONE for error in failures.values())
    return remains and len(nodes) + len(failures) >= max(wanted, 1)


def _node_of(reply: Message, requests: Sequence[Message]) -> int:
    """The node that a reply is about. For a node that has left, Flower itself replies, under a different node id."""
    about = reply.metadata.reply_to_message_id
    nodes = {request.metadata.message_id: request.metadata.dst_node_id for request in requests}
    own = reply.metadata.src_node_id
    return own if own in nodes.values() else nodes.get(about, own)


def note_partition(reply: Message, nodes: dict[int, int], wanted: int) -> int:
    """Add the node of this reply to `nodes` (partition -> node) and return the number of clients.

    wanted: the expected number, 0 if unknown. Raises RunError if the reply does not fit.
    """
    properties = properties_in(reply)
    partition, count = properties.get("partition-id"), properties.get("num-partitions")
    if type(partition) is not int or type(count) is not int:
        raise RunError(
            f"node {reply.metadata.src_node_id} did not report its partition: it does not run a Twinflower client. Is "
            "this SuperLink another app's?"
        )
    wanted = wanted or count
    if count != wanted or not 0 <= partition < count:
        raise RunError(
            f"clients.count is {wanted}, but a node holds partition {partition} of {count}: start {wanted} nodes "
            f'(flwr run . --federation-config "num-supernodes={wanted}") or set clients.count to 0'
        )
    if partition in nodes:
        raise RunError(f"two nodes hold partition {partition}: give every node its own partition-id")
    nodes[partition] = reply.metadata.src_node_id
    return wanted


def _waiting(nodes: Mapping[int, int], wanted: int, deadline: float) -> str:
    missing = [client for client in range(wanted) if client not in nodes]
    absent = f" for {partitions(missing)}" if nodes and missing else ""
    left = max(deadline - time.monotonic(), 0.0)
    return f"{len(nodes)} of {wanted or 'the'} sites are here; waiting{absent}, at most {left:.0f} s more"


def _too_few(nodes: Mapping[int, int], wanted: int, waited: float, failures: Mapping[int, Error]) -> str:
    missing = [client for client in range(wanted) if client not in nodes]
    absent = f" (nobody holds partition {some(missing)})" if nodes and missing else ""
    if failures:
        number = max(wanted, len(nodes) + len(failures))
        return f"{len(failures)} of {number} nodes cannot take part{absent}: {_reasons(failures)}"
    return (
        f"waited {waited:g} s for {wanted or 'any'} nodes, but only {len(nodes)} reported their partition{absent}: "
        "start the missing nodes, or raise node-timeout"
    )


def _reasons(failures: Mapping[int, Error]) -> str:
    """The reasons of failed nodes in one line; nodes with the same reason are listed together."""
    groups: dict[str, list[int]] = {}
    for node, error in failures.items():
        groups.setdefault(short(error.reason), []).append(node)
    longest = _LONGEST_SAID if len(groups) > 1 else None
    parts = [f"node {some(nodes)}: {reason[:longest]}" for reason, nodes in groups.items()]
    return "; ".join(parts[:_MOST_NAMED]) + ("; ..." if len(parts) > _MOST_NAMED else "")
