"""MR-MTL on School (139 schools, exam marks) beside the results of Liu et al. (NeurIPS 2022) at epsilon 6.

    python benchmarks/school.py --data-dir DIR                # the published settings, five splits
    python benchmarks/school.py --data-dir DIR --tuned        # settings chosen with equal effort, five splits

With --results FILE, the error of every training is kept there, and one that is there is not computed again.

DIR holds school/school.mat. Rows are prepared as in the authors' program (github.com/kenziyuliu/private-cross-silo-fl):
a fifth of each school's pupils is test data; each school standardises its columns by its own training rows, which no
guarantee covers; marks from 1 to 70 are mapped to [0, 1]; a linear model with an intercept starts at 0. The score is
the mean squared error on all test rows, each predicted by its school's model. A pupil's gradient is clipped to norm 1.

Published settings: 201 rounds, each an epoch of batches of 32, step size .01, lambda 1, delta .001, schools weighted by
rows. The noise is planned in two ways: as in the program (RDP of Poisson sampling, although batches are drawn without
replacement; a pupil is added or removed), and for the replacement of a pupil with the batches as they are drawn.

Tuned: replacement, 100 rounds of one step on all rows, and models that are means over the last half of the rounds. Each
method tries 12 settings on two splits that are not reported; the tuning is not charged. The program's noise needs
`pip install dp-accounting`.
"""

import argparse
import itertools
import logging
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from kept import Kept
from scipy.io import loadmat
from scipy.optimize import brentq
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from twinflower.algorithms import MRMTL, FedAvg
from twinflower.algorithms.algorithm import RunInfo
from twinflower.arrays import Array, Index
from twinflower.privacy.mechanism import SimulatedNoise
from twinflower.privacy.plan import Plan
from twinflower.privacy.target import Target
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import LinearModel, make_objective
from twinflower.rounds import Problem, rounds

CLIP, DELTA, BATCH, STEP = 1.0, 1e-3, 32, 0.01
PUBLISHED = {"local": 0.02628, "FedAvg": 0.02564, "MR-MTL": 0.02394}  # at epsilon 6
SPLITS = tuple(100 + 1000 * run for run in range(5))  # of the authors' program
OTHERS = tuple(range(5))
TUNING = (50, 51)
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.3, 0.5)
PULLED = tuple(itertools.product((0.03, 0.07, 0.15), (0.5, 2.0, 5.0, 12.0)))  # step sizes and lambdas

Multipliers = Callable[
    [Any, LocalSchedule, Index], Array
]  # of a method, a schedule and the schools' training rows


class School(NamedTuple):
    """The schools of a split: the training rows of each, the test rows of all, and whose they are (rows,)."""

    shards: Shards
    test: Batch
    of_school: Index


@dataclass(frozen=True)
class Epochs(LocalSchedule):
    """A whole epoch of batches in each round."""

    def steps(self, sizes: Index) -> Index:
        """The number of whole batches."""
        return sizes // np.minimum(self.batch_size, sizes)


# ------------------------------------------------------------------------------------------------------- data


def school(data: Path, split: int) -> School:
    """The schools, split and prepared as in the authors' program."""
    mat = loadmat(data / "school" / "school.mat")
    parts = [prepared(*own, split) for own in zip(mat["X"][0], mat["Y"][0], strict=True)]
    train, test = zip(*parts, strict=True)
    features, labels = (np.concatenate(part) for part in zip(*test, strict=True))
    owners = np.repeat(np.arange(len(test)), [len(own[1]) for own in test])
    return School(Shards.of(train), Batch(features, labels), owners)


def prepared(features: Array, marks: Array, split: int) -> list[tuple[Array, Array]]:
    """A school's training and test rows, with a column of ones."""
    train, test, *labels = train_test_split(features, marks.ravel(), test_size=0.2, random_state=split)
    scaler = StandardScaler().fit(train)
    rows = [np.column_stack([scaler.transform(own), np.ones(len(own))]) for own in (train, test)]
    return [(own, (known - 1.0) / 69.0) for own, known in zip(rows, labels, strict=True)]


# ---------------------------------------------------------------------------------------------------- privacy


def replacing(epsilon: float, number: int, method: Any, schedule: LocalSchedule, sizes: Index) -> Array:
    """Noise multipliers (schools,) for the replacement of a pupil, whatever is known about the batches."""
    everybody = [np.arange(len(sizes))] * number
    bounds = objective().bounds(0.0)
    return Plan.of(method, bounds, schedule.workloads(sizes), everybody, Target(epsilon, DELTA)).multipliers


def of_the_program(epsilon: float, number: int, method: Any, schedule: LocalSchedule, sizes: Index) -> Array:
    """The program's noise multipliers, halved: they are relative to CLIP, and a replacement moves a sum by 2 CLIP."""
    counts = schedule.steps(sizes) * number
    shares = np.minimum(BATCH, sizes) / sizes
    return np.array([by_rdp(epsilon, *own) / 2 for own in zip(shares.tolist(), counts.tolist(), strict=True)])


@cache
def by_rdp(epsilon: float, share: float, count: int) -> float:
    """The noise of `count` steps on Poisson samples, by RDP at the program's orders, if a pupil is added or removed."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    logging.getLogger("absl").setLevel(logging.ERROR)  # some orders do not converge and are left out
    orders = [1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512]

    def excess(noise: float) -> float:
        step = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
        return float(RdpAccountant(orders).compose(step, count).get_epsilon(DELTA)) - epsilon

    return float(brentq(excess, 0.3, 200.0, xtol=1e-3))


# ------------------------------------------------------------------------------------------------------- runs


def objective() -> LinearModel:
    """Least squares with clipped gradients of rows, for 28 columns and ones."""
    return make_objective("least-squares", 29, 0, clip_norm=CLIP)


METHODS: dict[str, Callable[..., Any]] = {
    "local": partial(MRMTL, mean_pull=0.0),
    "FedAvg": FedAvg,
    "MR-MTL": MRMTL,
}


def error(
    name: str, settings: Mapping[str, Any], data: School, schedule: LocalSchedule, number: int,
    noise: Multipliers | None, seed: int,
) -> float:  # fmt: skip
    """The mean squared error on the test rows after so many rounds; noise: None without privacy."""
    sizes = data.shards.sizes
    info = RunInfo(len(sizes), number, sizes=tuple(sizes.tolist()))
    method = METHODS[name](privacy="gradient" if noise else "none", info=info, **settings)
    model = objective()
    problem = Problem(model, data.shards.prepared(model), np.zeros(model.d))
    drawn = noise and SimulatedNoise(
        method, data.shards, schedule, model.bounds(0.0), noise(method, schedule, sizes), seed
    )
    *_, end = rounds(method, problem, schedule, number, noise=drawn, seed=seed)
    shared = np.repeat(method.model(end.server)[None], len(sizes), 0)
    models = method.client_models(end.server) if isinstance(method, MRMTL) else shared
    predicted = (data.test.features * models[data.of_school]).sum(-1)
    return float(np.mean((predicted - data.test.labels) ** 2))


def published(data: Path, kept: Kept) -> Iterator[str]:
    """Lines of Markdown: the published settings under both kinds of noise, beside the published errors."""
    number = 201
    kinds: dict[str, Multipliers | None] = {
        "the program's noise": partial(of_the_program, 6.0, number),
        "replacement, epsilon 6": partial(replacing, 6.0, number),
        "no privacy": None,
    }
    yield f"| method | published, epsilon 6 | {' | '.join(kinds)} |"
    yield "|---" * (2 + len(kinds)) + "|"
    splits = {split: school(data, split) for split in SPLITS}
    for name, value in PUBLISHED.items():
        settings = {"step_size": STEP} | ({"mean_pull": 1.0} if name == "MR-MTL" else {})
        cells = [
            [
                kept.get(
                    (name, "published settings", kind, str(split)),
                    partial(error, name, settings, own, Epochs(BATCH), number, noise, split),
                )
                for split, own in splits.items()
            ]
            for kind, noise in kinds.items()
        ]
        yield f"| {name} | {value:.5f} | " + " | ".join(map(spread, cells)) + " |"


def tuned(data: Path, kept: Kept) -> Iterator[str]:
    """Lines of Markdown: each method with the best of its 12 settings."""
    number, schedule = 100, LocalSchedule(0, 1)
    tuning, others = ({split: school(data, split) for split in splits} for splits in (TUNING, OTHERS))
    grid = {name: [{"step_size": step} for step in STEPS] for name in ("local", "FedAvg")}
    grid["MR-MTL"] = [{"step_size": step, "mean_pull": pull} for step, pull in PULLED]
    yield "| epsilon | method | chosen | mean squared error |"
    yield "|---|---|---|---|"
    for epsilon, (name, points) in itertools.product((1.0, 6.0), grid.items()):
        noise = partial(replacing, epsilon, number)

        def errors(settings: Mapping[str, float], splits: Mapping[int, School], name: str = name,
                   noise: Multipliers = noise, epsilon: float = epsilon) -> list[float]:  # fmt: skip
            """The error of the method with these settings on each split."""
            tail = {"final_model": "tail-mean", **settings}
            return [
                kept.get(
                    (name, in_words(settings), f"epsilon {epsilon:g}", str(split)),
                    partial(error, name, tail, own, schedule, number, noise, split),
                )
                for split, own in splits.items()
            ]

        best = min(points, key=lambda settings: statistics.fmean(errors(settings, tuning)))
        yield f"| {epsilon:g} | {name} | {in_words(best)} | {spread(errors(best, others))} |"


def in_words(settings: Mapping[str, float]) -> str:
    """Settings as in a table."""
    return ", ".join(f"{key.replace('_', '-')} {value:g}" for key, value in settings.items())


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation, as in a table."""
    return f"{statistics.fmean(values):.5f} +- {statistics.stdev(values):.5f}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--tuned", action="store_true", help="settings chosen with equal effort")
    parser.add_argument("--results", type=Path, help="file in which the error of every training is kept")
    given = parser.parse_args()
    for line in (tuned if given.tuned else published)(given.data_dir, Kept(given.results)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
