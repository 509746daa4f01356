"""Small problems and the table of all algorithms that the shared tests run through."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from twinflower.algorithms import ALGORITHMS
from twinflower.clients import AlgorithmClient
from twinflower.problems.batches import Shards
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import LinearModel, make_objective
from twinflower.rounds import Problem, rounds, sampled
from twinflower.simulation.runs.setup import PreparedRun, prepare
from twinflower.simulation.settings import parse
from twinflower.simulation.settings.catalogue import DEFAULTS
from twinflower.simulation.settings.reader import chosen, resolve
from twinflower.work import Report

# Arguments of scikit-learn's LogisticRegression for the l1 penalty; before 1.8 it needs the penalty's name.
OLD = getattr(LogisticRegression(), "penalty", "") == "l2"
LASSO: dict[str, Any] = {"penalty": "l1"} if OLD else {"l1_ratio": 1.0}

# One entry per algorithm and per option that changes its recursion; a newcomer is covered by adding its own.
VARIANTS: dict[str, dict[str, Any]] = {
    "fedpdm": {"algorithm": "fedpdm", "rho": 0.5, "step-size": 0.4},
    "fedpdm-memory-warm": {
        "algorithm": "fedpdm",
        "rho": 0.5,
        "step-size": 0.4,
        "aggregation": "memory",
        "local-start": "warm",
        "step-decay": 0.5,
    },
    "fedpdm-all-first": {
        "algorithm": "fedpdm",
        "rho": 0.5,
        "step-size": 0.4,
        "first-round": "all",
        "aggregation": "memory",
        "final-model": "tail-mean",
    },
    "bsdp-rows": {
        "algorithm": "bsdp-fedpdm",
        "rho": 0.5,
        "step-size": 0.4,
        "aggregation": "memory",
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
    },
    "fedpdm-stopping": {"algorithm": "fedpdm", "rho": 1.0, "step-size": 0.5, "stopping-tolerance": 0.05},
    "bsdp-top-k": {
        "algorithm": "bsdp-fedpdm",
        "rho": 0.5,
        "step-size": 0.4,
        "uplink-ratio": 0.3,
        "downlink-ratio": 0.8,
    },
    "bsdp-rand-k": {
        "algorithm": "bsdp-fedpdm",
        "rho": 0.5,
        "step-size": 0.4,
        "uplink": "rand-k",
        "uplink-ratio": 0.3,
        "missing": "keep",
        "aggregation": "memory",
    },
    "fedpdm-private": {
        "algorithm": "fedpdm",
        "rho": 0.5,
        "step-size": 0.4,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "fedpdm-gradient": {
        "algorithm": "fedpdm",
        "rho": 0.5,
        "step-size": 0.4,
        "privacy.mode": "gradient",
        "stopping-tolerance": 0.5,
        "noise-multiplier": 0.5,
    },
    "fedpdm-published": {
        "algorithm": "fedpdm",
        "rho": 0.5,
        "step-size": 0.4,
        "privacy.mode": "as-published",
        "stopping-tolerance": 0.02,
        "epsilon": 20.0,
    },
    "bsdp-private": {
        "algorithm": "bsdp-fedpdm",
        "rho": 0.5,
        "step-size": 0.4,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "uplink-ratio": 0.4,
        "local-start": "warm",
    },
    "fedavg": {"algorithm": "fedavg", "step-size": 0.4, "step-decay": 0.5},
    "fedavg-subgradient": {
        "algorithm": "fedavg",
        "step-size": 0.4,
        "composite": "local-subgradient",
        "regulariser.name": "group-l1",
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
        "uplink-ratio": 0.3,
    },
    "fedavg-banded": {
        "algorithm": "fedavg",
        "step-size": 0.4,
        "server-momentum": 0.3,
        "privacy.mode": "gradient",
        "privacy.noise": "banded",
        "local.fresh-batches": False,
        "local.batch-size": 4,
        "noise-multiplier": 0.5,
    },
    "fedavg-momentum": {"algorithm": "fedavg", "step-size": 0.4, "server-momentum": 0.7},
    "fedavg-quasi": {"algorithm": "fedavg", "step-size": 0.4, "server-momentum": 0.7, "momentum-weight": 0.6},
    "fedavg-memory": {"algorithm": "fedavg", "step-size": 0.4, "aggregation": "memory"},
    "fedavg-group": {
        "algorithm": "fedavg",
        "step-size": 0.4,
        "regulariser.name": "group-l1",
        "local.max-steps": 0,
    },
    "fedadam": {"algorithm": "fedadam", "step-size": 0.4, "server-step": 1.0, "adaptivity": 1.0},
    "fedadam-yogi": {
        "algorithm": "fedadam",
        "second-moment": "yogi",
        "step-size": 0.4,
        "step-decay": 0.5,
        "uplink-ratio": 0.3,
        "downlink-ratio": 0.8,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "fedadam-adagrad": {
        "algorithm": "fedadam",
        "second-moment": "adagrad",
        "step-size": 0.4,
        "local.max-steps": 0,
        "composite": "local-subgradient",
        "regulariser.name": "group-l1",
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
        "final-model": "tail-mean",
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
    },
    "fedadam-sum": {
        "algorithm": "fedadam",
        "step-size": 0.4,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "trust": "sum",
        "honest-sites": 4,
        "clients.per-round": 0,
    },
    "fedprox": {
        "algorithm": "fedprox",
        "step-size": 0.4,
        "mu": 0.5,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "first-round": "all",
    },
    "proxskip": {"algorithm": "proxskip", "clients.per-round": 0, "local.max-steps": 5},
    "proxskip-private": {
        "algorithm": "proxskip",
        "clients.per-round": 0,
        "communication-probability": 0.4,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "tamuna": {
        "algorithm": "tamuna",
        "clients.per-round": 0,
        "local.max-steps": 5,
        "senders": 3,
        "regulariser.name": "none",
    },
    "tamuna-private": {
        "algorithm": "tamuna",
        "clients.per-round": 0,
        "communication-probability": 0.4,
        "control-step": 0.3,
        "regulariser.name": "none",
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "scaffold": {"algorithm": "scaffold", "step-size": 0.4, "privacy.mode": "public-state", "epsilon": 30.0},
    "scaffold-rows": {
        "algorithm": "scaffold",
        "step-size": 0.4,
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
    },
    "scaffold-gradient": {
        "algorithm": "scaffold",
        "step-size": 0.4,
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
    },
    "scaffold-top-k": {
        "algorithm": "scaffold",
        "step-size": 0.4,
        "uplink-ratio": 0.3,
        "downlink-ratio": 0.8,
        "missing": "keep",
    },
    "feddyn": {"algorithm": "feddyn", "alpha": 0.5, "step-size": 0.4},
    "feddyn-rand-k": {
        "algorithm": "feddyn",
        "alpha": 0.5,
        "step-size": 0.4,
        "uplink": "rand-k",
        "uplink-ratio": 0.3,
        "missing": "keep",
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "feddyn-rows": {
        "algorithm": "feddyn",
        "alpha": 0.5,
        "step-size": 0.4,
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
        "final-model": "tail-mean",
        "tail": 0.7,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "fedadmm": {"algorithm": "fedadmm", "rho": 0.5, "step-size": 0.4},
    "fedadmm-warm": {
        "algorithm": "fedadmm",
        "rho": 0.5,
        "step-size": 0.4,
        "local-start": "warm",
        "stopping-tolerance": 0.02,
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
    },
    "fedadmm-top-k": {
        "algorithm": "fedadmm",
        "rho": 0.5,
        "step-size": 0.4,
        "uplink-ratio": 0.3,
        "downlink-ratio": 0.8,
        "local-start": "warm",
        "final-model": "tail-mean",
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "fedadmm-gradient": {
        "algorithm": "fedadmm",
        "rho": 0.5,
        "step-size": 0.4,
        "composite": "local-subgradient",
        "privacy.mode": "gradient",
        "stopping-tolerance": 0.5,
        "noise-multiplier": 0.5,
    },
    "fedadmm-sum": {
        "algorithm": "fedadmm",
        "rho": 0.5,
        "step-size": 0.4,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "trust": "sum",
        "honest-sites": 4,
        "clients.per-round": 0,
        "local.max-steps": 1,
    },
    "feddr": {"algorithm": "feddr", "eta": 2.0, "alpha": 1.5, "step-size": 0.4},
    "feddr-warm": {
        "algorithm": "feddr",
        "eta": 2.0,
        "alpha": 1.9,
        "step-size": 0.4,
        "local-start": "warm",
        "stopping-tolerance": 0.02,
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
    },
    "feddr-top-k": {
        "algorithm": "feddr",
        "eta": 2.0,
        "alpha": 0.7,
        "step-size": 0.4,
        "uplink-ratio": 0.3,
        "downlink-ratio": 0.8,
        "local-start": "warm",
        "final-model": "tail-mean",
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "feddr-gradient": {
        "algorithm": "feddr",
        "eta": 2.0,
        "alpha": 1.5,
        "step-size": 0.4,
        "composite": "local-subgradient",
        "privacy.mode": "gradient",
        "stopping-tolerance": 0.5,
        "noise-multiplier": 0.5,
    },
    "feddr-sum": {
        "algorithm": "feddr",
        "eta": 2.0,
        "alpha": 1.5,
        "step-size": 0.4,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "trust": "sum",
        "honest-sites": 4,
        "clients.per-round": 0,
        "local.max-steps": 1,
    },
    "fedmid": {"algorithm": "fedmid", "step-size": 0.4},
    "fedmid-rows": {
        "algorithm": "fedmid",
        "step-size": 0.4,
        "server-step": 0.8,
        "local.max-steps": 0,
        "regulariser.name": "group-l1",
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
        "final-model": "tail-mean",
    },
    "fedmid-top-k": {
        "algorithm": "fedmid",
        "step-size": 0.4,
        "step-decay": 0.5,
        "uplink-ratio": 0.3,
        "downlink-ratio": 0.8,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "fedmid-gradient": {
        "algorithm": "fedmid",
        "step-size": 0.4,
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
    },
    "fedmid-sum": {
        "algorithm": "fedmid",
        "step-size": 0.4,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "trust": "sum",
        "honest-sites": 4,
        "clients.per-round": 0,
    },
    "feddualavg": {"algorithm": "feddualavg", "step-size": 0.4},
    "feddualavg-rows": {
        "algorithm": "feddualavg",
        "step-size": 0.4,
        "server-step": 0.8,
        "local.max-steps": 0,
        "regulariser.name": "elastic-net",
        "regulariser.l2": 0.1,
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
        "final-model": "tail-mean",
    },
    "feddualavg-top-k": {
        "algorithm": "feddualavg",
        "step-size": 0.4,
        "step-decay": 0.5,
        "uplink-ratio": 0.3,
        "downlink-ratio": 0.8,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "feddualavg-gradient": {
        "algorithm": "feddualavg",
        "step-size": 0.4,
        "regulariser.name": "group-l1",
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
    },
    "feddualavg-sum": {
        "algorithm": "feddualavg",
        "step-size": 0.4,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "trust": "sum",
        "honest-sites": 4,
        "clients.per-round": 0,
    },
    "mr-mtl": {"algorithm": "mr-mtl", "mean-pull": 0.5, "step-size": 0.4, "regulariser.name": "none"},
    "mr-mtl-rows": {
        "algorithm": "mr-mtl",
        "mean-pull": 0.5,
        "step-size": 0.4,
        "step-decay": 0.5,
        "regulariser.name": "none",
        "final-model": "tail-mean",
        "downlink-ratio": 0.8,
        "local.max-steps": 0,
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
    },
    "mr-mtl-private": {
        "algorithm": "mr-mtl",
        "mean-pull": 0.5,
        "step-size": 0.4,
        "regulariser.name": "none",
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "mr-mtl-gradient": {
        "algorithm": "mr-mtl",
        "mean-pull": 0.5,
        "step-size": 0.4,
        "regulariser.name": "none",
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
    },
    "isrl-dp": {
        "algorithm": "isrl-dp",
        "step-size": 0.4,
        "final-model": "weighted",
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
    },
    "soteriafl": {"algorithm": "soteriafl", "step-size": 0.4},
    "soteriafl-private": {
        "algorithm": "soteriafl",
        "step-size": 0.4,
        "uplink-ratio": 0.3,
        "shift-step": 0.8,
        "final-model": "tail-mean",
        "composite": "local-subgradient",
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
    },
    "soteriafl-top-k-rows": {
        "algorithm": "soteriafl",
        "step-size": 0.4,
        "uplink": "top-k",
        "uplink-ratio": 0.3,
        "downlink-ratio": 0.8,
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
    },
    "ldp-primal-dual": {"algorithm": "ldp-primal-dual", "clients.per-round": 0, "step-size": 0.3, "l2": 0.1},
    "ldp-private": {
        "algorithm": "ldp-primal-dual",
        "clients.per-round": 0,
        "step-size": 0.3,
        "l2": 0.1,
        "scale": 1.0,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "zcdp-nfl": {"algorithm": "zcdp-nfl", "rho": 0.2, "step-size": 0.8},
    "zcdp-nfl-prox": {
        "algorithm": "zcdp-nfl",
        "rho": 0.2,
        "step-size": 0.8,
        "composite": "prox",
        "topology.name": "star",
        "tail": 0.5,
        "clients.per-round": 0,
    },
    "zcdp-nfl-private": {
        "algorithm": "zcdp-nfl",
        "rho": 0.2,
        "step-size": 0.8,
        "step-decay": 0.5,
        "budget-ratio": 0.9,
        "topology.name": "ring",
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "clients.per-round": 0,
    },
    "dp-nfl": {
        "algorithm": "dp-nfl",
        "rho": 0.2,
        "step-size": 0.8,
        "composition": "advanced",
        "privacy.mode": "public-state",
        "epsilon": 30.0,
    },
    "p-admm": {"algorithm": "p-admm", "objective.name": "logistic", "data.name": "breast-cancer", "rho": 0.2},
    "p-admm-private": {
        "algorithm": "p-admm",
        "objective.name": "logistic",
        "data.name": "breast-cancer",
        "rho": 0.2,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "clients.per-round": 0,
    },
    "networked-subgradient": {
        "algorithm": "networked-subgradient",
        "step-size": 0.8,
        "topology.name": "small-world",
        "degree": 4.0,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "budget-ratio": 0.9,
    },
    "ssca": {
        "algorithm": "ssca",
        "step-size": 0.9,
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
    },
    "ssca-private": {
        "algorithm": "ssca",
        "surrogate": "literal",
        "curvature": 1.0,
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
    },
    "ssca-constrained": {
        "algorithm": "ssca-constrained",
        "constraints": "cost <= 1.5",
        "regulariser.name": "none",
        "curvature": 0.5,
    },
    "ssca-groups-private": {
        "algorithm": "ssca-constrained",
        "constraints": "cost <= 1.5, class 3 <= 1.2, feature 20 <= 1.7",
        "regulariser.name": "none",
        "curvature": 1.0,
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
        "loss-clip": 5.0,
        "penalties": "10, 1e4",
    },
    "fedsgm": {
        "algorithm": "fedsgm",
        "minimise": "class 0",
        "constraints": "cost <= 2.2, class 3 <= 2.1",
        "regulariser.name": "none",
        "step-size": 0.4,
        "l2": 0.01,
    },
    "fedsgm-soft": {
        "algorithm": "fedsgm",
        "constraints": "class 3 <= 2.1",
        "regulariser.name": "none",
        "switching": "soft",
        "threshold": 0.05,
        "beta": 20.0,
        "step-size": 0.4,
        "step-decay": 0.5,
        "uplink-ratio": 0.3,
        "downlink-ratio": 0.3,
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
        "local.max-steps": 0,
    },
    "fedsgm-private": {
        "algorithm": "fedsgm",
        "minimise": "feature 2",
        "constraints": "cost <= 2.2, class 3 <= 1.2, feature 4 <= 1.7",
        "regulariser.name": "none",
        "switching": "soft",
        "threshold": 0.3,
        "step-size": 0.4,
        "uplink": "rand-k",
        "uplink-ratio": 0.3,
        "final-model": "last",
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
        "loss-clip": 5.0,
    },
    "newton": {
        "algorithm": "newton",
        "objective.name": "logistic",
        "data.name": "breast-cancer",
        "clients.per-round": 0,
        "batch-size": 0,
    },
    "newton-groups": {
        "algorithm": "newton",
        "data.name": "breast-cancer",
        "regulariser.name": "group-l1",
        "robust": True,
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "clients.per-round": 0,
        "batch-size": 0,
    },
    "newton-path": {
        "algorithm": "newton-path",
        "objective.name": "logistic",
        "data.name": "breast-cancer",
        "clients.per-round": 0,
        "batch-size": 0,
        "newton-path.weights": 2,
        "newton-path.folds": 2,
    },
    "newton-private": {
        "algorithm": "newton",
        "objective.name": "logistic",
        "data.name": "breast-cancer",
        "clients.per-round": 0,
        "batch-size": 0,
        "privacy.mode": "gradient",
        "epsilon": 30.0,
    },
    "newton-private-softmax": {
        "algorithm": "newton",
        "regulariser.name": "group-l1",
        "data.name": "breast-cancer",
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "clients.per-round": 0,
        "batch-size": 0,
        "l2": 0.01,
        "budget-ratio": 0.8,
        "gradient-share": 0.9,
        "privacy.mode": "gradient",
        "noise-multiplier": 0.5,
    },
    "newton-sum": {
        "algorithm": "newton",
        "objective.name": "logistic",
        "data.name": "breast-cancer",
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "clients.per-round": 0,
        "batch-size": 0,
        "l2": 0.01,
        "privacy.mode": "gradient",
        "epsilon": 30.0,
        "trust": "sum",
        "honest-sites": 4,
    },
    "fedpdm-sum": {
        "algorithm": "fedpdm",
        "rho": 0.5,
        "step-size": 0.4,
        "privacy.mode": "public-state",
        "epsilon": 30.0,
        "trust": "sum",
        "honest-sites": 4,
        "clients.per-round": 0,
        "local.max-steps": 1,
    },
    "fedavg-sum-rows": {
        "algorithm": "fedavg",
        "step-size": 0.4,
        "final-model": "tail-mean",
        "partition.name": "dirichlet",
        "partition.dirichlet-alpha": 1.0,
        "weighting": "rows",
        "privacy.mode": "public-state",
        "noise-multiplier": 0.5,
        "trust": "sum",
        "honest-sites": 8,
        "clients.per-round": 0,
    },
    "isrl-dp-top-k": {"algorithm": "isrl-dp", "step-size": 0.4, "uplink-ratio": 0.3, "downlink-ratio": 0.8},
}
RARE = {  # further settings of baselines, whose other entries cover the same code: tested with -m slow only
    "fedadam-adagrad", "fedadam-sum", "fedmid-rows", "fedmid-gradient", "fedmid-sum", "feddualavg-gradient",
    "feddualavg-rows", "feddualavg-sum", "mr-mtl-gradient", "fedadmm-gradient", "fedadmm-warm", "feddr-gradient",
    "feddr-warm", "feddyn-rows", "soteriafl-top-k-rows", "fedsgm-soft",
}  # fmt: skip


def first_variant(algorithm: str) -> str:
    """The name of an algorithm's first entry in VARIANTS."""
    names = [name for name, keys in VARIANTS.items() if keys["algorithm"] == algorithm]
    assert names, f"add an entry for {algorithm} to VARIANTS in tests/problems.py"
    return names[0]


def one_of_each(variants: Iterable[str], *apart: str) -> list[Any]:
    """Entries of VARIANTS as parameters of a test: one for each algorithm by default, and further ones with -m slow.

    apart: keys; of an algorithm, one entry with such a key counts, and one without it.
    """
    first: dict[tuple[Any, ...], str] = {}
    for name in variants:
        first.setdefault((VARIANTS[name]["algorithm"], *(key in VARIANTS[name] for key in apart)), name)
    return [pytest.param(name, marks=() if name in first.values() else pytest.mark.slow) for name in variants]


def methods_of(*kinds: type | str, without: tuple[type | str, ...] = ()) -> list[str]:
    """The names of the methods of all of these kinds, and of none of `without`. A kind is a class from which they
    derive, or the name of an attribute of `Algorithm` that is true."""

    def of_kind(algorithm: Any, kind: type | str) -> bool:
        return bool(getattr(algorithm, kind)) if isinstance(kind, str) else issubclass(algorithm, kind)

    return [
        name
        for name, algorithm in ALGORITHMS.items()
        if all(of_kind(algorithm, kind) for kind in kinds)
        and not any(of_kind(algorithm, kind) for kind in without)
    ]


def method(name: str, **settings: Any) -> Any:
    """A method with the settings of its first entry in VARIANTS, and with those of `settings` that it has."""
    algorithm = ALGORITHMS[name]
    own = {key.replace("-", "_"): value for key, value in VARIANTS[first_variant(name)].items()}
    known = {field.name for field in fields(algorithm)}
    return algorithm(**{key: value for key, value in (own | settings).items() if key in known})


def variants_of(ability: type) -> list[str]:
    """The entries of VARIANTS whose algorithm derives from this class, except those through sums."""
    return [
        name
        for name, keys in VARIANTS.items()
        if issubclass(ALGORITHMS[keys["algorithm"]], ability) and keys.get("trust") != "sum"
    ]


SMALL = {"clients.count": 8, "clients.per-round": 3, "rounds": 5, "batch-size": 10, "local.max-steps": 3}


def keywords(keys: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments as settings: clients__per_round is clients.per-round."""
    return {key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()}


def run_config(keys: dict[str, Any]) -> dict[str, Any]:
    """What Flower hands over where these settings were put over the defaults."""
    choices = chosen([keys])
    return DEFAULTS | {resolve(key, choices).name: value for key, value in keys.items()}


def small(variant: str, **keys: Any) -> PreparedRun:
    """A quick run of a variant on the embedded digits; keys as `keywords` takes them."""
    return prepare(parse(SMALL, VARIANTS[variant], keywords(keys)))


PRIVATE_KEYS = {"privacy.mode", "privacy.noise", "epsilon", "noise-multiplier", "trust", "honest-sites"}


def query(setup: PreparedRun, name: str) -> Any:
    """The question of this name that a run asks."""
    return next(own for own in setup.queries if own.name == name)


def public(variant: str, **keys: Any) -> PreparedRun:
    """`small` without the variant's privacy."""
    known = {key: value for key, value in VARIANTS[variant].items() if key not in PRIVATE_KEYS}
    return prepare(parse(SMALL, known, keywords(keys)))


class Step(NamedTuple):
    """The server after a round, the states of all clients (N, ...), and what those that count sent and reported."""

    server: Any
    states: Any
    uploads: Any
    report: Report


def run(algorithm, shards, objective, schedule, number, k=0, *, start=None, **keys) -> Iterator[Step]:
    """The training loop, k clients in a round (0: all); further keywords are those of `rounds`."""
    problem = Problem(objective, shards, np.zeros(objective.d) if start is None else start)
    keys = {"sampling": sampled(shards.num_clients, k or shards.num_clients)} | keys
    for at in rounds(algorithm, problem, schedule, number, **keys):
        yield Step(at.server, at.states.all(), at.uploads, at.report)


def last(steps: Iterable[Any]) -> Any:
    """The end of a run."""
    *_, final = steps
    return final


def at_rest(steps: Iterable[Any], point: str = "x0") -> Any:
    """The end of a run, or where this vector of the server has not moved by more than 1e-12 in each of 30 rounds."""
    resting, before = 0, np.inf
    for at in steps:
        now = getattr(at[0], point)
        resting, before = resting + 1 if np.abs(now - before).max() <= 1e-12 else 0, now
        if resting == 30:
            break
    return at


def state_of(client: AlgorithmClient) -> Any:
    """The state that a client of the in-process grid keeps now."""
    session = client.context.state["twinflower.done"]["session"]
    return client.rounds.state(client.rounds.last(session))


def random_shards(sizes: list[int], features: int, classes: int, seed: int = 0) -> Shards:
    """Clients of these sizes with rows of norm at most 1 and every class (or real labels) somewhere."""
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    rows = rng.normal(size=(total, features))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = rng.integers(classes, size=total) if classes else rng.normal(size=total)
    return Shards.grouped(rows, labels, np.arange(total), np.cumsum([0, *sizes]))


def convex_problem(clients: int = 6, rows: int = 12, features: int = 5) -> tuple[Shards, LinearModel]:
    """Strongly convex l2-logistic regression over clients that disagree."""
    shards = random_shards([rows] * clients, features, 2, seed=1)
    tilt = np.repeat(np.linspace(-0.5, 0.5, clients), rows)[:, None]
    shards = replace(shards, features=shards.features + tilt)
    return shards, make_objective("logistic", features, 2, l2=0.1)


def central_optimum(objective: LinearModel, h: Any, rows: Batch, steps: int = 20_000) -> np.ndarray:
    """Minimiser of f + h by a long proximal gradient run on all rows, until it stands still."""
    x = np.zeros(objective.d)
    step = 1.0 / (0.25 * (rows.features**2).sum(1).max() + objective.l2)
    for _ in range(steps):
        x, before = h.prox(x - step * objective.grad(x, rows), step), x
        if np.abs(x - before).max() <= 1e-16:
            break
    return x


def bits_of(algorithm, d):
    """Bits of one upload and of one inbox on the wire."""
    return algorithm.upload.bits(d), algorithm.inbox.bits(d)
