"""A cohort round of zCDP-NFL against the same round by hand, stacked: K = 50, 50 rows each, 8 features.

    python benchmarks/networked.py [--rounds 300]

Both take turns in one process with one BLAS thread; the best time of each counts. No noise, full batches.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from rounds import cohort_round, race
from threadpoolctl import threadpool_limits

from simulation.config import parse
from simulation.setup import Setup, prepare
from twinflower.topologies import adjacency

RHO, ETA = 0.1, 1.0


def job(clients: int) -> Setup:
    """The run."""
    return prepare(
        parse(
            {
                "algorithm": "zcdp-nfl", "dataset": "linear", "bias": False, "objective": "least-squares",
                "regulariser": "none", "num-clients": clients, "samples-per-client": 2400 // clients,
                "batch-size": 0, "max-local-steps": 1, "rho": RHO, "step-size": ETA, "topology": "ring",
            }
        )
    )  # fmt: skip


class Batched:
    """By hand, all clients stacked."""

    def __init__(self, setup: Setup) -> None:
        rows = [setup.shards.rows(k) for k in range(setup.config.num_clients)]
        self.a, self.y = np.stack([r.features for r in rows]), np.stack([r.labels for r in rows])
        self.near = adjacency(setup.page.facts.neighbours)  # type: ignore[attr-defined]
        self.degrees = self.near.sum(1)[:, None]
        self.w = np.zeros((len(rows), self.a.shape[-1]))
        self.dual = np.zeros_like(self.w)
        self.sums = self.near @ self.w

    def round(self) -> None:
        """One round."""
        residual = (self.a @ self.w[..., None])[..., 0] - self.y
        slope = (residual[:, None, :] @ self.a)[:, 0] / self.a.shape[1]
        right = self.w / ETA - slope - self.dual + RHO * (self.degrees * self.w + self.sums)
        self.w = right / (1 / ETA + 2 * RHO * self.degrees)
        self.sums = self.near @ self.w
        self.dual = self.dual + RHO * (self.degrees * self.w - self.sums)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    print("| clients | by hand, stacked, ms | cohort, ms | cohort against by hand |")
    print("|---|---|---|---|")
    with threadpool_limits(1):
        for clients in (50, 200):
            setup = job(clients)
            seconds = race({"hand": Batched(setup).round, "cohort": cohort_round([setup])}, rounds)
            hand, cohort = 1e3 * seconds["hand"], 1e3 * seconds["cohort"]
            print(f"| {clients} | {hand:.3f} | {cohort:.3f} | {cohort / hand:.1f} |")


if __name__ == "__main__":
    main()
