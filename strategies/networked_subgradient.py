"""The networked subgradient method on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.networked_subgradient import NetworkedSubgradient as NetworkedSubgradientPage

from .relay import RelayStrategy


class NetworkedSubgradient(RelayStrategy):
    """Relays: keeps the last message of every client, sends each its own and the mean of its
    neighbourhood: `twinflower.algorithms.networked_subgradient.NetworkedSubgradient`.

    A missing client is frozen at its last message; one that is silent for `dead_after` rounds leaves the graph.
    """

    algorithm_class: ClassVar[type[Algorithm]] = NetworkedSubgradientPage
