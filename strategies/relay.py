"""The server of networked methods: a relay between the clients that are still in the graph."""

from collections.abc import Iterable, Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common import log

from twinflower.arrays import Index

from .star import StarStrategy


class RelayStrategy(StarStrategy):
    """Base of the networked strategies, for algorithms that derive from `twinflower.algorithms.relay.Relayed`.

    The algorithm's server state holds the messages to forward. A client that has left the graph gets no further
    requests and is named in the log once.
    """

    def _ask(self, server_round: int, clients: Index, config: Mapping[str, Any]) -> list[Message]:
        return super()._ask(server_round, clients[self._alive[clients]], config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """See `StarStrategy.aggregate_train`; also logs the clients that have left the graph."""
        before = self._alive
        result = super().aggregate_train(server_round, replies)
        for client in np.flatnonzero(before & ~self._alive):
            log(
                WARNING,
                "client %s was silent for too long: it has left the graph, and its data no longer count",
                client,
            )
        return result

    @property
    def _alive(self) -> np.ndarray:
        algorithm = self.algorithm
        assert algorithm.networked  # true for every algorithm class of a relay
        return algorithm.alive(self.server)
