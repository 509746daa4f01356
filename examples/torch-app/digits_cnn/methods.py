"""The methods this app can take the place of FedAvg with."""

from typing import NamedTuple

from twinflower import algorithms, clients, strategies
from twinflower.algorithms.page import Page
from twinflower.batches import Walk

CLIP_NORM, DELTA = 1.0, 1e-4


class Method(NamedTuple):
    """An algorithm with its settings, its two Flower classes, and how local steps take rows."""

    page: Page
    strategy: type[strategies.StarStrategy]
    client: type[clients.PageClient]
    walk: Walk


def method(name: str, private: bool) -> Method:
    """The method called "fedpdm" or "scaffold". A private site takes one step a round, on all its rows: for a module,
    whose curvature nobody knows, noise that falls with the number of rows is enough for one step only."""
    if name not in ("fedpdm", "scaffold"):
        raise ValueError(f"method must be fedpdm or scaffold; got {name!r}")
    walk = Walk(batch_size=0, max_local_steps=1) if private else Walk(batch_size=16, max_local_steps=8)
    privacy = "public-state" if private else "none"
    if name == "fedpdm":
        page = algorithms.FedPDM(rho=0.1, step_size=2.0 if private else 1.0, privacy=privacy)
        return Method(page, strategies.FedPDM, clients.FedPDMClient, walk)
    page = algorithms.Scaffold(step_size=8.0 if private else 1.0, privacy=privacy)
    return Method(page, strategies.Scaffold, clients.ScaffoldClient, walk)
