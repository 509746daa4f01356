"""The current names of keys from versions without sections, for the hint in the error message."""

from twinflower.settings import kebab

_RENAMED = {
    "dataset": "data.name",
    "data-dir": "data.dir",
    "data-file": "data.file",
    "num-clients": "clients.count",
    "clients-per-round": "clients.per-round",
    "partition": "partition.name",
    "client-sizes": "partition.sizes",
    "objective": "objective.name",
    "regulariser": "regulariser.name",
    "regulariser-l1": "regulariser.weight",
    "regulariser-l2": "regulariser.l2",
    "regulariser-bound": "regulariser.bound",
    "regulariser-radius": "regulariser.radius",
    "regulariser-parameters": "regulariser.parameters",
    "max-local-steps": "local.max-steps",
    "evaluate-every": "evaluation.every",
    "evaluate-early": "evaluation.early",
    "privacy": "privacy.mode",
    "published-c0": "privacy.c0",
    "out": "output.dir",
    "topology": "topology.name",
    "graph-seed": "topology.seed",
    "output": "output.dir (folder of results) or ALGORITHM.final-model",
    "tau": "ALGORITHM.budget-ratio (networked methods) or ALGORITHM.curvature (SSCA)",
}


def renamed(word: str) -> str:
    """The current key that replaces an old one; empty if there is none."""
    return _RENAMED.get(kebab(word), "")
