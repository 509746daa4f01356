"""The server side of a run in which the server sees only sums, for any method (`twinflower.algorithms.summed`)."""

from collections.abc import Iterable
from logging import WARNING
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.summed import Summed
from twinflower.errors import AbsentError, require
from twinflower.sums.masks import ANNOUNCEMENT, roster_of

from .nodes import short
from .star import StarStrategy

_SAYS_NOTHING = "it sent no key message"


class SumStrategy(StarStrategy):
    """Keeps the server state of the method. Before the first round it collects the key messages of all sites, and every
    request carries all of them. Each round adds up the messages of the sites modulo 2^64.

    A round needs every site. The request is repeated to a site that does not reply, and the site replies with its
    stored bytes. If it stays away, the run stops, and can be resumed when the site is back. masks: False for a
    simulation without masks.
    """

    algorithm_class: ClassVar[type[Algorithm]] = Summed

    def __init__(self, *args: Any, masks: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        require(
            self.clients_per_round in (0, self.num_clients),
            f"trust sum needs all clients in every round; got {self.clients_per_round} of {self.num_clients}",
        )
        require(
            self.inspector.max_norm == float("inf"),
            "trust sum cannot limit the norm of a single message, which nobody sees; got "
            f"{self.inspector.max_norm:g}",
        )
        self.masks = masks
        self._roster = b""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See `StarStrategy.configure_train`; collects the key messages first."""
        if self.masks and not self._roster:
            self._roster = self._gather()
        return super().configure_train(server_round, arrays, config, grid)

    def begin(self, *args: Any, **kwargs: Any) -> None:
        """See `StarStrategy.begin`; discards the key messages, because a new session has new keys."""
        super().begin(*args, **kwargs)
        self._roster = b""

    def _stamp(self, server_round: int) -> dict[str, Any]:
        """Add the key messages of all sites to the fields of every request."""
        return super()._stamp(server_round) | ({"roster": self._roster} if self.masks else {})

    def _gather(self) -> bytes:
        """Collect the key messages of all sites, in the order of the sites; AbsentError if one is missing."""
        found: dict[int, bytes] = {}
        missing = dict.fromkeys(self.roster.nodes, "no reply")
        for _ in range(self.retries + 1):
            for reply in self._send([self._key_question(client) for client in sorted(missing)]):
                self._note_key(reply, found, missing)
            if not missing:
                return roster_of([found[client] for client in sorted(found)])
            log(WARNING, "asking clients %s for their key messages again", sorted(missing))
        client, reason = min(missing.items())
        raise AbsentError(
            f"{len(missing)} of {len(self.roster.nodes)} sites sent no key message, and a sum needs all of them, the "
            f"run stops (client {client}: {reason})"
        )

    def _key_question(self, client: int) -> Message:
        config = ConfigRecord({"session": self.session})
        return Message(
            RecordDict({"getpropertiesins.config": config}), self.roster.nodes[client], "get_properties"
        )

    def _note_key(self, reply: Message, found: dict[int, bytes], missing: dict[int, str]) -> None:
        """Store the key message of a reply in `found`, or the reason why there is none in `missing`."""
        clients = {node: client for client, node in self.roster.nodes.items()}
        client = clients.get(reply.metadata.src_node_id)
        if client not in missing:
            return
        if reply.has_error():
            missing[client] = short(reply.error.reason)
            return
        record = reply.content.config_records.get("getpropertiesres.properties", ConfigRecord())
        announcement = record.get("announcement")
        if type(announcement) is not bytes or len(announcement) != ANNOUNCEMENT:
            missing[client] = _SAYS_NOTHING
            return
        found[client] = announcement
        del missing[client]
