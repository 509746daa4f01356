"""The methods this app tries. The package is the app's own; Twinflower's is `twinflower.strategies`."""

from typing import NamedTuple

from twinflower import algorithms, clients, strategies
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.regularisers import L1

WALK = LocalSchedule(batch_size=0, max_local_steps=4)  # 4 local steps a round, each on all rows


class Method(NamedTuple):
    """An algorithm's algorithm and its two Flower classes."""

    algorithm: algorithms.Algorithm
    strategy: type[strategies.StarStrategy]
    client: type[clients.AlgorithmClient]


def method(name: str, private: bool) -> Method:
    """The method called "sparse" or "drift"."""
    if name not in ("sparse", "drift"):
        raise ValueError(f"method must be sparse or drift; got {name!r}")
    privacy = "public-state" if private else "none"
    if name == "sparse":
        algorithm = algorithms.FedPDM(regulariser=L1(0.002), rho=0.5, step_size=1.0, privacy=privacy)
        return Method(algorithm, strategies.FedPDM, clients.FedPDMClient)
    algorithm = algorithms.Scaffold(regulariser=L1(0.0), step_size=1.0, privacy=privacy)
    return Method(algorithm, strategies.Scaffold, clients.ScaffoldClient)
