"""The server side of a run that sees sums only: any method, through `twinflower.algorithms.summed`."""

from collections.abc import Iterable
from logging import WARNING
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.summed import Summed
from twinflower.errors import RunError, require
from twinflower.sums.masks import ANNOUNCEMENT, roster_of

from .nodes import short
from .star import StarStrategy

_SAYS_NOTHING = "it sent no key message"


class SumStrategy(StarStrategy):
    """Keeps what the method's server keeps. Before the first round it collects the sites' key messages and passes all
    of them on with every request; then it adds up what the sites send, modulo 2^64.

    A round needs every site. One that does not answer is asked again, and answers with the bytes that it has stored;
    if it stays away, the run stops, and can be resumed when it is back. masks: False for a simulation without them.
    """

    algorithm_class: ClassVar[type[Algorithm]] = Summed

    def __init__(self, *args: Any, masks: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        require(
            self.clients_per_round in (0, self.num_clients),
            f"trust sum needs all clients in every round; got {self.clients_per_round} of {self.num_clients}",
        )
        require(
            self.max_norm == float("inf"),
            f"trust sum cannot limit the length of single messages, which nobody sees; got {self.max_norm:g}",
        )
        self.masks = masks
        self._roster = b""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See `StarStrategy`; key messages come first."""
        if self.masks and not self._roster:
            self._roster = self._gather()
        return super().configure_train(server_round, arrays, config, grid)

    def begin(self, *args: Any, **kwargs: Any) -> None:
        """A new session has new keys."""
        super().begin(*args, **kwargs)
        self._roster = b""

    def _stamp(self, server_round: int) -> dict[str, Any]:
        """And the key messages of all sites."""
        return super()._stamp(server_round) | ({"roster": self._roster} if self.masks else {})

    def _gather(self) -> bytes:
        """The key messages of all sites, in their order; RunError if one does not come."""
        found: dict[int, bytes] = {}
        missing = dict.fromkeys(self._nodes, "no reply")
        for _ in range(self.retries + 1):
            for reply in self._send([self._key_question(client) for client in sorted(missing)]):
                self._note_key(reply, found, missing)
            if not missing:
                return roster_of([found[client] for client in sorted(found)])
            log(WARNING, "asking clients %s for their key messages again", sorted(missing))
        client, reason = min(missing.items())
        raise RunError(
            f"{len(missing)} of {len(self._nodes)} sites sent no key message, and a sum needs all of them, the run "
            f"stops (client {client}: {reason})"
        )

    def _key_question(self, client: int) -> Message:
        config = ConfigRecord({"session": self._session})
        return Message(RecordDict({"getpropertiesins.config": config}), self._nodes[client], "get_properties")

    def _note_key(self, reply: Message, found: dict[int, bytes], missing: dict[int, str]) -> None:
        """A site's key message, or why there is none."""
        clients = {node: client for client, node in self._nodes.items()}
        client = clients.get(reply.metadata.src_node_id)
        if client not in missing:
            return
        if reply.has_error():
            missing[client] = short(reply.error.reason)
            return
        record = reply.content.config_records.get("getpropertiesres.properties", ConfigRecord())
        told = record.get("announcement")
        if type(told) is not bytes or len(told) != ANNOUNCEMENT:
            missing[client] = _SAYS_NOTHING
            return
        found[client] = told
        del missing[client]
