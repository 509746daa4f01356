"""What graphs and faults cost zCDP-NFL, without noise: rounds until the mean of ||w_k - w*||^2 / ||w*||^2 is 1e-6.

    python benchmarks/networked_faults.py

50 clients, 48 rows each, ridge (l2 = 0.02), 8 features, step-size 4. Replies and requests are
lost at random, half of each, or clients stay away for good.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from twinflower.errors import RunError
from twinflower.problems.topologies import FILE, TOPOLOGIES, spectrum
from twinflower.rounds import Problem, rounds
from twinflower.settings import settings_of
from twinflower.simulation.runs.setup import PreparedRun, prepare
from twinflower.simulation.settings import parse

CLIENTS, GOAL, MOST = 50, 1e-6, 2000
Fate = Callable[[int], tuple[np.ndarray, np.ndarray]]
GRAPHS = [name for name in TOPOLOGIES if not name.startswith(FILE)]


def job(**keys: Any) -> PreparedRun:
    """The run."""
    own = {key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()}
    base = {
        "algorithm": "zcdp-nfl", "data.name": "linear", "bias": False, "objective.name": "least-squares",
        "objective.l2": 0.02, "regulariser.name": "none", "clients.count": CLIENTS, "samples-per-client": 48,
        "batch-size": 0, "step-size": 4.0, "rho": 0.1, "rounds": MOST,
    }  # fmt: skip
    return prepare(parse(base, own))


def on(topology: str) -> dict[str, Any]:
    """The keys of a topology, with degree 4 where it has a degree."""
    degree = {"degree": 4.0} if "degree" in settings_of(TOPOLOGIES[topology]) else {}
    return {"topology.name": topology} | degree


def everybody(round_: int) -> tuple[np.ndarray, np.ndarray]:
    """Who is reached, and whose reply arrives: all."""
    return np.ones(CLIENTS, bool), np.ones(CLIENTS, bool)


def missing(share: float) -> Fate:
    """A share of the clients is missing in each round."""

    def fate(round_: int) -> tuple[np.ndarray, np.ndarray]:
        coin = np.random.default_rng(round_).random(CLIENTS)
        return coin >= share / 2, coin >= share

    return fate


def gone(clients: list[int], first: int) -> Fate:
    """These clients are lost for ever from a round on."""

    def fate(round_: int) -> tuple[np.ndarray, np.ndarray]:
        here = ~(np.isin(np.arange(CLIENTS), clients) & (round_ >= first))
        return here, here

    return fate


def rounds_needed(setup: PreparedRun, fate: Fate = everybody, most: int = MOST) -> tuple[int | str, float]:
    """Rounds until the goal, and how far the model is from everybody's optimum in the end."""
    algorithm: Any = setup.algorithm
    problem, best = Problem(setup.objective, setup.shards, setup.start), setup.central.optimum
    steps = rounds(
        algorithm, problem, setup.schedule, most, lambda n: np.flatnonzero(fate(n)[0]),
        lost=lambda n, clients: ~fate(n)[1][clients],
    )  # fmt: skip
    for at in steps:
        error = ((algorithm.client_models(at.server) - best) ** 2).sum(-1).mean() / (best @ best)
        if error < GOAL:
            return at.round, float(error)
    return f"> {most}", float(error)


ELASTIC = {
    "regulariser.name": "elastic-net",
    "regulariser.l1": 0.005,
    "regulariser.l2": 0.02,
    "composite": "prox",
}
ABSOLUTE = {"objective.name": "absolute", "objective.l2": 0.0, "step_size": 2.0, "step_decay": 0.5}


def other_losses() -> None:
    """Elastic net by the prox to the goal; absolute deviations, whose steps must decay, after half and all rounds."""
    print(
        "\n| topology, rho 0.1 | elastic net: rounds | absolute deviations: node error after 500 and 2000 rounds |"
    )
    print("|---|---|---|")
    for name in GRAPHS:
        elastic = rounds_needed(job(**on(name), **ELASTIC))[0]
        errors = [rounds_needed(job(**on(name), **ABSOLUTE), most=most)[1] for most in (500, MOST)]
        print(f"| {name} | {elastic} | {errors[0]:.1e}, {errors[1]:.1e} |", flush=True)


def main() -> None:
    """Print the tables."""
    print(
        "| topology | edges | diameter | connectivity | rho 0.005 | rho 0.02 | rho 0.1 |\n|---|---|---|---|---|---|---|"
    )
    for name in GRAPHS:
        setups = [job(**on(name), rho=rho) for rho in (0.005, 0.02, 0.1)]
        numbers = spectrum(setups[0].algorithm.info.neighbours)  # type: ignore[attr-defined]
        needed = " | ".join(str(rounds_needed(setup)[0]) for setup in setups)
        print(
            f"| {name} | {numbers.edges} | {numbers.diameter} | {numbers.connectivity:.3g} | {needed} |",
            flush=True,
        )
    other_losses()
    print("\n| faults (regular graph of degree 4) | rounds | error at the end |\n|---|---|---|")
    lost = {f"{share:.0%} missing per round": missing(share) for share in (0.0, 0.1, 0.3, 0.5)}
    lost |= {f"5 clients lost in round {n}": gone([0, 1, 2, 3, 4], n) for n in (1, 30)}
    for name, fate in lost.items():
        try:
            needed, error = rounds_needed(job(**on("regular"), dead_after=20), fate)
            print(f"| {name} | {needed} | {error:.1e} |", flush=True)
        except RunError as failure:
            print(f"| {name} | stopped: {failure} | |")


if __name__ == "__main__":
    main()
