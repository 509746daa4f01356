"""Private mini-batches at equal (epsilon, delta): banded and independent noise, full batches, and Opacus's way.

    python benchmarks/private_batches.py [--data-dir DATA] [--tune 100 | --untuned] [--only TEXT] [--markdown FILE]

6,000 rows of MNIST at one client, 100 steps; with batches of 600 rows that is 10 epochs. A softmax regression, and a
network with 32 hidden units (swish). All rows have norm 1, and the clip norm is the same for all methods.

banded, independent   FedAvg with noisy gradients on batches in a fixed order, a record is charged once per epoch
all rows              the same steps on all 6,000 rows
Poisson               what Opacus does: every row is in every batch with probability 1/10, and the noise multiplier is
                      that of dp-accounting's PLD accountant, which composes 100 such steps numerically, as Opacus's PRV
                      accountant does

Neighbouring data sets differ in one record, for all methods alike: it is replaced by another, or it is added or
removed, that is, it counts as zero in one of them, which moves a sum of clipped gradients half as far. All have
momentum 0.9, because what counts is mostly the step size divided by 1 - momentum. --tune searches the step size by
factors of two, from the one that follows from the noise (`fedavg.step-size = 0`) until both neighbours are worse, by
the mean test accuracy over these seeds, which must not be those of the table. --untuned measures the defaults: that
step size, and clip norm 1.
"""

import argparse
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import dp_accounting
import numpy as np

from twinflower.algorithms.untuned import with_step
from twinflower.errors import DataError
from twinflower.problems.interfaces import Batch, Bounds
from twinflower.simulation.runs.setup import PreparedRun, prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.settings.config import configured

ROWS, BATCH, STEPS, DELTA = 6000, 600, 100, 1e-4
EPSILONS = (1.0, 3.0, 8.0)
CLIP_NORM, MOMENTUM = 0.3, 0.9
REPLACE, ADD = "replace", "add or remove"
OBJECTIVES = {
    "softmax": {"objective.name": "softmax"},
    "network": {"objective.name": "swish-network", "objective.hidden-units": 32, "start-scale": 0.1},
}


@lru_cache(maxsize=2)
def prepared(
    model: str, epsilon: float, method: str, folder: str, seed: int, clip_norm: float
) -> PreparedRun:
    """The run with any step size."""
    fixed = {} if method == "all rows" else {"local.batch-size": BATCH, "local.fresh-batches": False}
    noise = {"privacy.noise": "banded"} if method == "banded" else {}
    values = {
        "algorithm": "fedavg", "rounds": STEPS, "seed": seed, "data.name": "mnist", "data.dir": folder,
        "clients.count": 1, "partition.name": "iid", "partition.samples-per-client": ROWS,
        "regulariser.name": "none", "local.max-steps": 1, "objective.clip-norm": clip_norm, "evaluation.every": STEPS,
        "privacy.mode": "gradient", "privacy.epsilon": epsilon, "privacy.delta": DELTA,
        "fedavg.server-momentum": MOMENTUM,
        **OBJECTIVES[model], **fixed, **noise,
    }  # fmt: skip
    return prepare(configured(values))


class Case(NamedTuple):
    """A row of the table."""

    model: str
    epsilon: float
    method: str
    relation: str = REPLACE
    clip_norm: float = CLIP_NORM

    def setup(self, folder: str, seed: int, step_size: float) -> PreparedRun:
        """The run; step_size 0: that which follows from the noise."""
        setup = prepared(self.model, self.epsilon, self.method, folder, seed, self.clip_norm)
        if self.relation != REPLACE:
            bounds = Bounds(setup.plan.bounds.gradient / 2, setup.plan.bounds.curvature)
            setup = replace(setup, plan=replace(setup.plan, bounds=bounds))
        method = (
            replace(setup.algorithm, step_size=step_size)
            if step_size
            else with_step(setup.algorithm, setup.plan)
        )
        return replace(setup, algorithm=method)

    def accuracy(self, folder: str, seed: int, step_size: float) -> float:
        """On the 10,000 test rows."""
        setup = self.setup(folder, seed, step_size)
        if self.method == "Poisson":
            noise = self.clip_norm * poisson_noise(self.epsilon, self.relation)
            return poisson(setup, noise, setup.algorithm.step_size, seed)
        (result,) = cohort.train([setup])
        return float(result.rows[-1]["test_accuracy"])

    def tuned(self, folder: str, seeds: Sequence[int]) -> float:
        """The step size with the highest mean accuracy over these seeds, from that which follows from the noise."""
        means: dict[int, float] = {}

        def mean(power: int) -> float:
            if power not in means:
                means[power] = statistics.fmean(self.accuracy(folder, seed, 2.0**power) for seed in seeds)
            return means[power]

        best = round(math.log2(self.setup(folder, seeds[0], 0.0).algorithm.step_size))
        while (better := max((best - 1, best, best + 1), key=mean)) != best:
            best = better
        tried = {2.0**power: round(accuracy, 4) for power, accuracy in sorted(means.items())}
        print(f"{self!r}: {tried}", file=sys.stderr, flush=True)
        return float(2.0**best)

    def line(self, folder: str, seeds: Sequence[int], step_size: float) -> str:
        """The row as measured."""
        reached = [self.accuracy(folder, seed, step_size) for seed in seeds]
        spread = statistics.stdev(reached) if len(reached) > 1 else 0.0
        return (
            f"| {self.model} | {self.epsilon:g} | {self.method} | {self.relation} | {step_size:.3g} "
            f"| {statistics.fmean(reached):.3f} ± {spread:.3f} |"
        )


@cache
def poisson_noise(epsilon: float, relation: str) -> float:
    """sigma / clip norm; the PLD accountant doubles the clip norm for a replaced row itself."""
    relations = dp_accounting.NeighboringRelation
    known = relations.REPLACE_ONE if relation == REPLACE else relations.ADD_OR_REMOVE_ONE

    def event(noise: float) -> dp_accounting.DpEvent:
        sampled = dp_accounting.PoissonSampledDpEvent(BATCH / ROWS, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(sampled, STEPS)

    return float(
        dp_accounting.calibrate_dp_mechanism(
            lambda: dp_accounting.pld.PLDAccountant(known), event, epsilon, DELTA,
            dp_accounting.ExplicitBracketInterval(0.3, 40.0), tol=1e-3,
        )
    )  # fmt: skip


def poisson(setup: PreparedRun, noise: float, step_size: float, seed: int) -> float:
    """DP-SGD on Poisson batches with momentum, for the objective, rows and start of a run; its test accuracy.

    noise: the standard deviation in the sum of the clipped gradients of a batch.
    """
    rows, draw = setup.shards.rows(0), np.random.default_rng((seed, ROWS))
    x, moved = setup.start, np.zeros_like(setup.start)
    for _ in range(STEPS):
        taken = np.flatnonzero(draw.random(ROWS) < BATCH / ROWS)
        batch = Batch(rows.features[taken], rows.labels[taken], np.full(len(taken), 1 / BATCH))
        slope = setup.objective.grad(x, batch) + noise / BATCH * draw.normal(size=x.shape)
        moved = MOMENTUM * moved - step_size * slope
        x = x + moved
    data = setup.dataset
    return float(setup.objective.score(x, Batch(data.test_features, data.test_labels)))


_FOUND = {  # what `--tune 100` found, by epsilon
    ("softmax", "independent", REPLACE): (2.0, 4.0, 8.0),
    ("softmax", "banded", REPLACE): (4.0, 8.0, 16.0),
    ("softmax", "Poisson", REPLACE): (4.0, 8.0, 32.0),
    ("softmax", "all rows", REPLACE): (4.0, 8.0, 32.0),
    ("network", "independent", REPLACE): (0.5, 1.0, 4.0),
    ("network", "banded", REPLACE): (1.0, 4.0, 8.0),
    ("network", "Poisson", REPLACE): (2.0, 4.0, 8.0),
    ("network", "all rows", REPLACE): (2.0, 4.0, 8.0),
    ("softmax", "independent", ADD): (2.0, 8.0, 16.0),
    ("softmax", "banded", ADD): (8.0, 16.0, 32.0),
    ("softmax", "Poisson", ADD): (8.0, 16.0, 32.0),
    ("softmax", "all rows", ADD): (8.0, 32.0, 32.0),
}
TUNED = {
    Case(model, epsilon, method, relation): step
    for (model, method, relation), steps in _FOUND.items()
    for epsilon, step in zip(EPSILONS, steps, strict=True)
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9")
    parser.add_argument(
        "--tune", default="", metavar="SEEDS", help="choose the settings on these other seeds"
    )
    parser.add_argument("--untuned", action="store_true", help="the step size that follows from the noise")
    parser.add_argument("--only", default="", help="rows of the table that contain this text")
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    seeds, tuning = ([int(n) for n in text.split(",") if n] for text in (chosen.seeds, chosen.tune))
    if set(seeds) & set(tuning):
        raise SystemExit("--tune must name other seeds than --seeds")
    lines = [
        "| model | epsilon | method | neighbours | step size | test accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for case in (case._replace(clip_norm=1.0) if chosen.untuned else case for case in TUNED):
        if chosen.only not in f"{case.model} {case.epsilon:g} {case.method}, {case.relation}":
            continue
        step_size = 0.0 if chosen.untuned else case.tuned(chosen.data_dir, tuning) if tuning else TUNED[case]
        lines.append(case.line(chosen.data_dir, seeds, step_size))
        print(lines[-1], flush=True)
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        raise SystemExit(f"error: {error}; --data-dir names the folder with MNIST") from None
