"""The networked subgradient method on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.networked_subgradient import NetworkedSubgradient as NetworkedSubgradientAlgorithm

from .relay import RelayStrategy


class NetworkedSubgradient(RelayStrategy):
    """A relay that keeps the last message of every client. Sends each client its own last message and the mean over its
    neighbourhood: `twinflower.algorithms.networked_subgradient.NetworkedSubgradient`.

    For a missing client its last message is used again. After `dead_after` rounds without a reply it leaves the graph.
    """

    algorithm_class: ClassVar[type[Algorithm]] = NetworkedSubgradientAlgorithm
