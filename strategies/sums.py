"""The server side of a run in which the server sees only sums, for any method (`twinflower.sums.summed`)."""

from collections.abc import Iterable
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import AbsentError, ReplyError, SettingError
from twinflower.sums.masks import ANNOUNCEMENT, roster_of
from twinflower.sums.summed import Summed

from .messages import properties_in, properties_request
from .star import StarStrategy


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
        if self.sampling.clients_per_round not in (0, self.sampling.num_clients):
            raise SettingError(
                f"trust sum needs all clients in every round; got {self.sampling.clients_per_round} of "
                f"{self.sampling.num_clients}"
            )
        if self.max_norm != float("inf"):
            raise SettingError(
                f"trust sum cannot limit the norm of a single message, which nobody sees; got {self.max_norm:g}"
            )
        self.masks = masks
        self._roster = b""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See `StarStrategy.configure_train`; every request holds the key messages, which are collected first."""
        if self.masks:
            self._roster = self._roster or self._gather()
            config = ConfigRecord({**config, "roster": self._roster})
        return super().configure_train(server_round, arrays, config, grid)

    def begin(self, *args: Any, **kwargs: Any) -> None:
        """See `StarStrategy.begin`; discards the key messages, because a new session has new keys."""
        super().begin(*args, **kwargs)
        self._roster = b""

    def _gather(self) -> bytes:
        """Collect the key messages of all sites, in the order of the sites; AbsentError if one is missing."""

        def ask(client: int, node: int) -> Message:
            return properties_request(node, self.training.session)

        found, missing = self.exchange.ask_all(ask, _key_message, 0)
        if not missing:
            return roster_of([found[client] for client in sorted(found)])
        client, reason = min(missing.items())
        raise AbsentError(
            f"{len(missing)} of {len(self.roster.nodes)} sites sent no key message, and a sum needs all of them, the "
            f"run stops (client {client}: {reason})"
        )


def _key_message(client: int, reply: Message) -> bytes:
    """The key message in a reply; ReplyError if there is none."""
    announcement = properties_in(reply).get("announcement")
    if type(announcement) is not bytes or len(announcement) != ANNOUNCEMENT:
        raise ReplyError("it sent no key message")
    return announcement
