"""Sites without a partition: the server numbers them in the order of their names, and says in each request which client
the site is."""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from twinflower.errors import RunError
from twinflower.flower_messages import PLACES, SITE, SITE_NAME

from .messages import properties_in


def note_site(reply: Message, nodes: dict[int, int], wanted: int, sites: list[str]) -> None:
    """Add the node of this reply to `nodes` (client -> node), and its name to `sites`, unless they are complete.

    wanted: the number of clients, 0 if unknown. Raises RunError if the reply does not fit.
    """
    name, node = properties_in(reply)[SITE], reply.metadata.src_node_id
    if type(name) is not str or not SITE_NAME.fullmatch(name):
        raise RunError(
            f"node {node}: the name of a site is 1 to 64 letters, digits, dots, hyphens and underscores"
        )
    if not wanted:
        raise RunError(f"site {name} has no partition-id, so set clients.count to the number of sites; got 0")
    if nodes and not sites:
        raise RunError(
            f"site {name} has no partition-id, and other nodes have one: give it to all of them, or to none"
        )
    if name not in sites and len(sites) == wanted:
        raise RunError(
            f"site {name} is not one of the {wanted} sites of this run, {', '.join(sites)}: start only these nodes, or "
            "set clients.count for a new run"
        )
    if name not in sites:
        sites.append(name)
    client = sites.index(name)
    if client in nodes:
        raise RunError(
            f"two nodes claim to be site {name}: give every node its own name, site in its node config"
        )
    nodes[client] = node


def in_order(nodes: Mapping[int, int], sites: list[str]) -> dict[int, int]:
    """The nodes (client -> node) with clients numbered by name; the names are sorted in place."""
    by_name = {sites[client]: node for client, node in nodes.items()}
    sites.sort()
    return {sites.index(name): node for name, node in by_name.items()}


class WrappedGrid(Grid):
    """A grid that passes everything on to another one."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def set_run(self, run: Any) -> None:
        """Call the wrapped grid's method."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the wrapped grid."""
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Call the wrapped grid's method."""
        return self.grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Call the wrapped grid's method."""
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Call the wrapped grid's method."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Call the wrapped grid's method."""
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Call the wrapped grid's method."""
        return self.grid.send_and_receive(messages, timeout=timeout)


class NumberingGrid(WrappedGrid):
    """A grid whose messages say to each site which client it is. nodes: client -> node, also as it changes later."""

    def __init__(self, grid: Grid, nodes: Mapping[int, int]) -> None:
        super().__init__(grid)
        self.nodes = nodes

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send the messages with the numbers; those to nodes that are no client's yet are left as they are."""
        messages, clients = list(messages), {node: client for client, node in self.nodes.items()}
        for message in messages:
            node = message.metadata.dst_node_id
            for config in message.content.config_records.values() if node in clients else ():
                config[PLACES[0]], config[PLACES[1]] = clients[node], len(clients)
        return self.grid.send_and_receive(messages, timeout=timeout)
