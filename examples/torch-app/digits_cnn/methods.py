"""The methods this app can take the place of FedAvg with."""

from typing import NamedTuple

from twinflower import algorithms, clients, strategies
from twinflower.algorithms.algorithm import Algorithm
from twinflower.problems.batches import LocalSchedule

CLIP_NORM, DELTA = 1.0, 1e-4


class Method(NamedTuple):
    """An algorithm with its settings, its two Flower classes, and how local steps take rows."""

    algorithm: Algorithm
    strategy: type[strategies.StarStrategy]
    client: type[clients.AlgorithmClient]
    schedule: LocalSchedule


def method(name: str, private: bool) -> Method:
    """The method called "fedpdm" or "scaffold". A private site takes one step a round, on all its rows: for a module,
    whose curvature nobody knows, noise that falls with the number of rows is enough for one step only."""
    if name not in ("fedpdm", "scaffold"):
        raise ValueError(f"method must be fedpdm or scaffold; got {name!r}")
    schedule = (
        LocalSchedule(batch_size=0, max_local_steps=1)
        if private
        else LocalSchedule(batch_size=16, max_local_steps=8)
    )
    privacy = "public-state" if private else "none"
    if name == "fedpdm":
        algorithm = algorithms.FedPDM(rho=0.1, step_size=2.0 if private else 1.0, privacy=privacy)
        return Method(algorithm, strategies.FedPDM, clients.FedPDMClient, schedule)
    algorithm = algorithms.Scaffold(step_size=8.0 if private else 1.0, privacy=privacy)
    return Method(algorithm, strategies.Scaffold, clients.ScaffoldClient, schedule)
