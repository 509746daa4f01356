"""Which node is which client's, through all restarts of nodes, and lines about who is absent.

A server that waits is never silent for long, and does not repeat itself.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from logging import WARNING
from typing import Any

from flwr.app import Error, Message
from flwr.common import log
from flwr.serverapp import Grid

from twinflower.errors import AbsentError, RunError
from twinflower.flower_messages import BEGINS, GONE, RAISED, SITE
from twinflower.rounds import REFUSED, who

from .messages import NO_REPLY, properties_in, properties_request, short
from .sites import NumberingGrid, in_order, note_site

SILENCE = 10.0
"""The longest silence of a server that waits, in seconds."""

_GREETING = 10.0  # seconds for a node that joins a running training to report its partition
_PAUSE = 0.2  # seconds between two looks at which nodes are present
_REPEAT = 20.0  # seconds after which a node that was asked for its partition is asked again
_COUNTED = 10  # rounds of an absence between two lines about it
_MOST_NAMED = 5  # nodes, clients or reasons listed in one message
_LONGEST_SAID = 300  # characters of each reason where one message lists several


def meet(
    grid: Grid, num_clients: int, timeout: float, session: str = "", sites: list[str] | None = None
) -> dict[int, int]:
    """Query every node for its partition until all partitions are found; return a dict partition -> node.

    num_clients: the number of partitions; 0 means the number that the nodes report. session: that begins, if it does; a
    node whose ledger does not cover its plan fails. sites: the names of nodes without partitions by their numbers, in a
    run that goes on; else empty, and filled in the order of the names. Raises RunError for too few nodes (after at most
    `timeout` seconds), a wrong number of partitions, or a partition or a name held by two nodes. A node that fails does
    not matter if all partitions are found.
    """
    sites = [] if sites is None else sites
    nodes = _gather(grid, num_clients, timeout, session, sites)
    if sites:
        nodes = in_order(nodes, sites)
        log(
            WARNING,
            "sites in the order of their names: %s",
            ", ".join(f"{i} {name}" for i, name in enumerate(sites)),
        )
        _begin(grid, nodes, timeout, session, sites)
    return nodes


def _begin(grid: Grid, nodes: Mapping[int, int], timeout: float, session: str, sites: Sequence[str]) -> None:
    """Say to each site which client it is; AbsentError if one does not take part."""
    questions = _Questions(NumberingGrid(grid, nodes), max(timeout, _GREETING), session)
    silent, failures = {node: sites[client] for client, node in nodes.items()}, dict[str, Error]()
    while silent and questions.waited < questions.timeout:
        for node, reply in questions.ask(silent).items():
            name = silent.pop(node, "")
            if name and (error := _error_in(reply)):
                failures[name] = error
        time.sleep(_PAUSE if silent else 0.0)
    failures |= dict.fromkeys(silent.values(), Error(GONE, NO_REPLY))
    if failures:
        raise AbsentError(
            f"{len(failures)} of {len(nodes)} sites cannot take part: {_reasons(failures, 'site')}"
        )


def _gather(grid: Grid, num_clients: int, timeout: float, session: str, sites: list[str]) -> dict[int, int]:
    """The node of every client, numbered by its partition, or by the place of its name in `sites`."""
    nodes: dict[int, int] = {}
    failures: dict[int, Error] = {}
    questions, reminder = _Questions(grid, timeout, session), Reminder()
    deadline = time.monotonic() + timeout
    while not num_clients or len(nodes) < num_clients:
        failed = {node for node, error in failures.items() if error.code != GONE}
        new = sorted(set(grid.get_node_ids()) - failed - set(nodes.values()))
        for node, reply in questions.ask(new).items():
            if error := _error_in(reply):
                failures[node] = error
            else:
                num_clients = note_partition(reply, nodes, num_clients, sites)
        if len(nodes) < num_clients or not num_clients:
            if time.monotonic() > deadline or _hopeless(nodes, num_clients, failures):
                raise AbsentError(_too_few(nodes, num_clients, timeout, failures, sites))
            reminder.look(lambda: _waiting(nodes, num_clients, deadline, sites))  # noqa: B023  called at once
            time.sleep(_PAUSE)
    for node in failures.keys() - set(nodes.values()):
        log(WARNING, "node %s is not needed: %s", node, short(failures[node].reason))
    return nodes


class _Questions:
    """Asks nodes for their partitions in the message that begins a run.

    A node without a reply is asked again, because its message may be lost. A slow node may also answer a question that
    was asked before: its first reply counts.
    """

    def __init__(self, grid: Grid, timeout: float, session: str) -> None:
        self.grid, self.timeout, self.session = grid, timeout, session
        self.began = time.monotonic()
        self.open: list[Message] = []

    @property
    def waited(self) -> float:
        """Seconds since the first question."""
        return time.monotonic() - self.began

    def ask(self, nodes: Iterable[int]) -> dict[int, Message]:
        """Ask these nodes, and wait until it is time to ask again; return the replies, one for each node."""
        requests = [properties_request(node, self.session, BEGINS) for node in nodes]
        earlier = {id_ for request in self.open if (id_ := request.metadata.message_id)}
        self.open += requests
        replies = list(self.grid.send_and_receive(requests, timeout=self._patience()))
        replies += self.grid.pull_messages(earlier) if earlier else ()
        found: dict[int, Message] = {}
        for reply in replies:
            found.setdefault(_node_of(reply, self.open), reply)
        self.open = [own for own in self.open if own.metadata.dst_node_id not in found]
        return found

    def _patience(self) -> float:
        """Seconds to wait until 20 s, 60 s, 180 s and so on have passed since the first question, if that is at most
        half of the timeout, else until its end."""
        repeat = _REPEAT
        while repeat <= self.waited:
            repeat *= 3
        return max((repeat if 2 * repeat <= self.timeout else self.timeout) - self.waited, 1.0)


def _error_in(reply: Message) -> Error | None:
    """Why a node cannot take part; None if it can."""
    if reply.has_error():
        return reply.error
    return Error(RAISED, REFUSED) if properties_in(reply).get("refused") is True else None


def _hopeless(nodes: Mapping[int, int], wanted: int, failures: Mapping[int, Error]) -> bool:
    """Whether nodes have failed that are needed. One that is gone may return, or have a successor that still starts."""
    remains = any(error.code != GONE for error in failures.values())
    return remains and len(nodes) + len(failures) >= max(wanted, 1)


def _node_of(reply: Message, requests: Sequence[Message]) -> int:
    """The node that a reply is about. For a node that has left, Flower itself replies, under a different node id."""
    about = reply.metadata.reply_to_message_id
    nodes = {request.metadata.message_id: request.metadata.dst_node_id for request in requests}
    own = reply.metadata.src_node_id
    asked = {request.metadata.dst_node_id for request in requests}
    return own if own in asked else nodes.get(about, own)


def note_partition(reply: Message, nodes: dict[int, int], wanted: int, sites: list[str] | None = None) -> int:
    """Add the node of this reply to `nodes` (partition -> node) and return the number of clients.

    wanted: the expected number, 0 if unknown. sites: see `note_site`. Raises RunError if the reply does not fit.
    """
    properties = properties_in(reply)
    if SITE in properties:
        note_site(reply, nodes, wanted, [] if sites is None else sites)
        return wanted
    partition, count = properties.get("partition-id"), properties.get("num-partitions")
    if type(partition) is not int or type(count) is not int:
        raise RunError(
            f"node {reply.metadata.src_node_id} did not report its partition: it does not run a Twinflower client. Is "
            "this SuperLink another app's?"
        )
    if sites:
        raise RunError(
            f"a node holds partition {partition}, and other nodes have names only: give all of them a partition-id, or "
            "none"
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


def _missing(nodes: Mapping[int, int], wanted: int, sites: Sequence[str]) -> list[int]:
    """The clients that are missing, if anything is known about them: their partitions or names."""
    known = bool(nodes) and len(sites) in (0, wanted)
    return [client for client in range(wanted) if client not in nodes] if known else []


def _waiting(nodes: Mapping[int, int], wanted: int, deadline: float, sites: Sequence[str]) -> str:
    missing = _missing(nodes, wanted, sites)
    absent = f" for {partitions(missing, sites)}" if missing else ""
    left = max(deadline - time.monotonic(), 0.0)
    return f"{len(nodes)} of {wanted or 'the'} sites are here; waiting{absent}, at most {left:.0f} s more"


def _too_few(
    nodes: Mapping[int, int], wanted: int, waited: float, failures: Mapping[int, Error], sites: Sequence[str]
) -> str:
    missing = _missing(nodes, wanted, sites)
    who = "is site" if sites else "holds partition"
    absent = f" (nobody {who} {some([sites[i] for i in missing] if sites else missing)})" if missing else ""
    if failures:
        number = max(wanted, len(nodes) + len(failures))
        return f"{len(failures)} of {number} nodes cannot take part{absent}: {_reasons(failures)}"
    return (
        f"waited {waited:g} s for {wanted or 'any'} nodes, but only {len(nodes)} reported their "
        f"{'names' if sites else 'partition'}{absent}: "
        "start the missing nodes, or raise node-timeout"
    )


def _reasons(failures: Mapping[int, Error] | Mapping[str, Error], kind: str = "node") -> str:
    """The reasons of failed nodes, or sites, in one line; those with the same reason are listed together."""
    groups: dict[str, list[Any]] = {}
    for node, error in failures.items():
        groups.setdefault(short(error.reason), []).append(node)
    longest = _LONGEST_SAID if len(groups) > 1 else None
    parts = [
        f"{kind}{'s' * (len(nodes) > 1)} {some(sorted(nodes))}: {reason[:longest]}"
        for reason, nodes in groups.items()
    ]
    return "; ".join(parts[:_MOST_NAMED]) + ("; ..." if len(parts) > _MOST_NAMED else "")


class Roster:
    """The node of every client. A node that returns under a new id is recognised by the partition that it reports.

    nodes: client -> node. sites: the names of the clients by number, if their nodes have no partitions.
    """

    def __init__(self, nodes: dict[int, int], sites: Sequence[str] = ()) -> None:
        self.nodes, self.sites = nodes, list(sites)
        self._strangers: set[int] = set()  # nodes that were asked for their partition
        self._waiting: dict[int, int] = {}  # client -> a second node of that client

    def clients(self, clients: Iterable[int]) -> dict[int, int]:
        """These clients by their nodes."""
        return {self.nodes[client]: client for client in clients}

    def update(self, grid: Grid, silent: Set[int] = frozenset(), patience: float = _GREETING) -> Set[int]:
        """Let nodes take the place of others of the same client that have gone; return the ids of all present nodes.

        silent: clients whose old node is not waited for, because it does not reply. patience: seconds to wait for the
        reports of new nodes.
        """
        present = set(grid.get_node_ids())
        new = sorted(present - self._strangers - set(self.nodes.values()))
        requests = list(
            map(properties_request, new)
        )  # a list, because Flower's grid iterates over its messages twice
        for reply in grid.send_and_receive(requests, timeout=patience) if new else ():
            self._strangers.add(reply.metadata.src_node_id)
            if not reply.has_error():
                self._welcome(reply, present)
        self._let_in(present, silent)
        return present

    def find(self, grid: Grid, silent: Set[int], timeout: float) -> None:
        """Wait until the nodes of these clients are present, for at most `timeout` seconds."""
        deadline, reminder = time.monotonic() + timeout, Reminder()
        while silent:
            left = max(deadline - time.monotonic(), _GREETING)
            present = self.update(grid, silent, left)
            if {self.nodes[client] for client in silent} <= present or time.monotonic() > deadline:
                return
            reminder.look(lambda: f"waiting for {partitions(sorted(silent), self.sites)} to return")
            time.sleep(_PAUSE)

    def _welcome(self, reply: Message, present: Set[int]) -> None:
        """Add a new node to the waiting list of the partition that it reports."""
        found: dict[int, int] = {}
        try:
            note_partition(reply, found, len(self.nodes), self.sites)
        except RunError as error:
            log(WARNING, "ignored: %s", error)
        for client, node in found.items():
            self._waiting[client] = node
            if self.nodes[client] in present:
                log(WARNING, "a second node for %s waits until the first is gone", who(client, self.sites))

    def _let_in(self, present: Set[int], silent: Set[int]) -> None:
        """Replace nodes that are gone or silent by waiting ones. Flower notices only after a while that a node was
        killed."""
        for client, node in list(self._waiting.items()):
            if node not in present:
                del self._waiting[client]
            elif self.nodes[client] not in present or client in silent:
                log(WARNING, "%s is back on another node", who(client, self.sites))
                self.nodes[client] = self._waiting.pop(client)


class Reminder:
    """Says what a wait is for, whenever there was silence for `SILENCE` seconds; by default in Flower's log."""

    def __init__(self, say: Callable[[str], None] = lambda text: log(WARNING, "%s", text)) -> None:
        self._say = say
        self._due = time.monotonic() + SILENCE

    def look(self, text: Callable[[], str]) -> None:
        """Say the text if the last line, or the first wait's beginning, was `SILENCE` seconds ago."""
        if time.monotonic() >= self._due:
            self._say(text())
            self.spoken()

    def spoken(self) -> None:
        """Count the silence from now on, because something else was said."""
        self._due = time.monotonic() + SILENCE


class Absences:
    """Logs why clients are left out of rounds: once for each reason, and then how many rounds they have missed.

    sites: the clients' names, if they have some.
    """

    def __init__(self, sites: Sequence[str] = ()) -> None:
        self.sites = sites
        self._missed: dict[int, tuple[int, str]] = {}  # client -> rounds in a row, and the last reason

    def note(self, round_: int, asked: Iterable[int], rejected: Mapping[int, str]) -> None:
        """Log what is new about the clients that were asked in this round; rejected: client -> reason."""
        for client in sorted(asked):
            missed, known = self._missed.pop(client, (0, ""))
            if client in rejected:
                self._missed[client] = missed + 1, rejected[client]
                self._log(round_, client, missed + 1, rejected[client], known)
            elif missed > 1:
                log(
                    WARNING,
                    "round %s: %s is back after %s missed rounds",
                    round_,
                    who(client, self.sites),
                    missed,
                )

    def _log(self, round_: int, client: int, missed: int, reason: str, known: str) -> None:
        if reason != known:
            log(WARNING, "round %s: %s left out: %s", round_, who(client, self.sites), reason)
        elif missed % _COUNTED == 0:
            text = "round %s: %s left out for the %sth round in a row: %s"
            log(WARNING, text, round_, who(client, self.sites), missed, reason)


def partitions(numbers: Sequence[int], sites: Sequence[str] = ()) -> str:
    """These partitions, as text; the sites with these names, if there are any."""
    plural = "s" if len(numbers) > 1 else ""
    if sites:
        return f"site{plural} {some([sites[client] for client in numbers])}"
    return f"partition{plural} {some(numbers)}"


def some(numbers: Sequence[int | str]) -> str:
    """The first numbers or names of a list, as text."""
    return ", ".join(map(str, numbers[:_MOST_NAMED])) + (", ..." if len(numbers) > _MOST_NAMED else "")
