"""How often 95% intervals of a linear model's coefficients hold the truth, with and without privacy.

    nice python benchmarks/coverage.py --sets 1000
    nice python benchmarks/coverage.py --sets 4000 --newton --rounds 3 --models logistic --designs correlated skewed

Four sites with equal numbers of rows, divided by one constant to norms of at most 1. The columns are four numbers and a
column of ones, or two numbers, a category of three values of which one has 5% of the rows, and a column of ones; with
--designs uneven numbers that are not spread evenly over their ranges, as the public reference rows are. Plain gradient
descent, in which every site adds noise to its mean gradient, and after it the release from which intervals follow, for
half of the budget (`twinflower.models.released`, `twinflower.models.private_inference`), under (epsilon, 1e-5)-DP of
each site with replacement of one row. Without privacy, it is Wald's interval at the maximum of the likelihood. With
--newton the sites take rounds of private Newton instead, and intervals follow from the last one. Events of the model
rare-events are those of the logistic one in 8% of the rows.

Printed is the share of data sets that get intervals by the two rules of `twinflower.models.private_inference`, and
among these the share of intervals, over data sets and coefficients, that hold the coefficient of the model that the
rows were drawn from, the same for the worst coefficient, and the median length in lengths of Wald's. Coefficients are
those that the data determine: each is projected to the directions with information.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from scipy.optimize import brentq

from twinflower import special
from twinflower.algorithms import Newton
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.newton import Upload
from twinflower.algorithms.private_newton import _mean
from twinflower.arrays import Array, Labels
from twinflower.models.private_inference import (
    LEAST_CLEAR,
    MOST_MISSED,
    MOST_MISSED_IN_ROUNDS,
    Reference,
    Step,
)
from twinflower.models.released import Released, Units
from twinflower.privacy.plan import INTERVALS, ROUND, Plan
from twinflower.privacy.release import Release, gradient_release
from twinflower.privacy.target import Target
from twinflower.problems.batches import LocalSchedule, Workload
from twinflower.problems.discrete_cox import CoxObjective
from twinflower.problems.interfaces import Batch, Bounds
from twinflower.problems.objectives import LinearModel, make_objective
from twinflower.survival_labels import signed

SITES, DELTA, SHARE, CHUNK, MOST_WALD = 4, 1e-5, 0.5, 50, 1000
Z = float(special.ndtri(0.975))
NUMBERS = np.array(
    [0.8, -0.6, 0.4, 0.0, 0.2]
)  # weights of four numbers within [-1, 1] and of the column of ones
CATEGORY = np.array([0.8, -0.6, 0.0, 0.5, -0.4, 0.2])  # of two numbers, three values of a category, and ones


class Design(NamedTuple):
    """Columns of rows: weights (columns,), the norm by which rows are divided, and functions that draw (rows, columns),
    those of the sites and those of public reference rows."""

    weights: Array
    norm: float
    draw: Callable[[np.random.Generator, int], Array]
    reference: Callable[[np.random.Generator, int], Array]


def numbers(draw: np.random.Generator, rows: int) -> Array:
    """Four numbers and a column of ones."""
    return np.column_stack([draw.uniform(-1, 1, (rows, 4)), np.ones(rows)])


def category(draw: np.random.Generator, rows: int) -> Array:
    """Two numbers, a category as three features of 0 or 1, and a column of ones."""
    values = np.eye(3)[draw.choice(3, size=rows, p=[0.55, 0.4, 0.05])]
    return np.column_stack([draw.uniform(-1, 1, (rows, 2)), values, np.ones(rows)])


def even_category(draw: np.random.Generator, rows: int) -> Array:
    """The same with categories that are equally frequent, as the product's reference rows have them."""
    values = np.eye(3)[draw.choice(3, size=rows)]
    return np.column_stack([draw.uniform(-1, 1, (rows, 2)), values, np.ones(rows)])


def correlated(draw: np.random.Generator, rows: int) -> Array:
    """Four numbers with a correlation of .7 between neighbours, of deviation .4, and a column of ones."""
    numbers = draw.normal(size=(rows, 4))
    for k in range(1, 4):
        numbers[:, k] = 0.7 * numbers[:, k - 1] + np.sqrt(1 - 0.7**2) * numbers[:, k]
    return np.column_stack([(0.4 * numbers).clip(-1, 1), np.ones(rows)])


def skewed(draw: np.random.Generator, rows: int) -> Array:
    """Four numbers that are mostly near the low end of their range, with a long tail, and a column of ones."""
    return np.column_stack([(draw.exponential(0.4, (rows, 4)) - 1).clip(-1, 1), np.ones(rows)])


def uneven(draw: np.random.Generator, rows: int) -> Array:
    """Four numbers that are mostly in a part of their range, near its middle, or at its ends, and a column of ones."""
    high, low = draw.normal(0.4, 0.3, rows), draw.uniform(-1, 1, rows) ** 3
    ends, left = draw.choice([-1, 1], size=rows, p=[0.8, 0.2]), draw.normal(-0.3, 0.35, rows)
    return np.column_stack([high.clip(-1, 1), low, ends, left.clip(-1, 1), np.ones(rows)])


DESIGNS = {
    "numbers": Design(NUMBERS, np.sqrt(5), numbers, numbers),
    "rare": Design(CATEGORY, 2.0, category, even_category),
    "uneven": Design(NUMBERS, np.sqrt(5), uneven, numbers),
    "correlated": Design(NUMBERS, np.sqrt(5), correlated, numbers),
    "skewed": Design(NUMBERS, np.sqrt(5), skewed, numbers),
}


class Case(NamedTuple):
    """A model: its objective, the true point (d,), and a function that draws labels for columns."""

    objective: LinearModel
    truth: Array
    labels: Callable[[np.random.Generator, Array], Labels]


def logistic(design: Design) -> Case:
    """Two classes."""
    w = design.weights

    def labels(draw: np.random.Generator, columns: Array) -> Labels:
        """Classes drawn with the model's probabilities."""
        return (draw.uniform(size=len(columns)) < special.expit(columns @ w)).astype(np.int64)

    return Case(make_objective("logistic", len(w), 2), w * design.norm, labels)


def rare_events(design: Design) -> Case:
    """Two classes, of which one has 8% of the rows."""
    columns = design.draw(np.random.default_rng(8), 100_000)
    level = brentq(lambda c: special.expit(columns @ design.weights + c).mean() - 0.08, -9.0, 9.0)
    return logistic(design._replace(weights=design.weights + level * np.eye(len(design.weights))[-1]))


def multinomial(design: Design) -> Case:
    """Three classes, with the weights 0, w, and w in reverse and halved."""
    matrix = np.stack([0 * design.weights, design.weights, -design.weights[::-1] / 2])

    def labels(draw: np.random.Generator, columns: Array) -> Labels:
        """Classes drawn with the model's probabilities."""
        return (columns @ matrix.T + draw.gumbel(size=(len(columns), 3))).argmax(1)

    return Case(make_objective("softmax", matrix.shape[1], 3), matrix.ravel() * design.norm, labels)


def discrete_cox(design: Design) -> Case:
    """Survival in three intervals, with censoring in all of them; the column of ones has the weight 0."""
    w, levels = np.append(design.weights[:-1], 0.0), np.array([-1.3, -1.0, -0.8])

    def labels(draw: np.random.Generator, columns: Array) -> Labels:
        """Signed times drawn with the model's hazards; censoring is uniform over seven intervals."""
        hazards = special.expit((columns @ w)[:, None] + levels)
        happened = draw.uniform(size=hazards.shape) < hazards
        interval = np.where(happened.any(1), happened.argmax(1), 3)
        censored = draw.integers(1, 8, size=len(columns))
        event = interval < np.minimum(censored, 3)
        return signed(np.where(event, interval + 0.5, np.minimum(censored, 3)), event)

    return Case(
        CoxObjective(intervals="1, 2, 3").build(len(w), 0), np.append(w * design.norm, levels), labels
    )


MODELS = {
    "logistic": logistic,
    "rare-events": rare_events,
    "multinomial": multinomial,
    "discrete-cox": discrete_cox,
}


class Descent:
    """Gradient descent of one step in a round, with noise in the gradients."""

    privacy = "gradient"

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The release of a site in a round."""
        return gradient_release(bounds, workload)

    def noise_multiplier(self, epsilon: float, delta: float, releases: int) -> None:
        """There is no accounting of its own."""


def planned(objective: LinearModel, rows: int, rounds: int, epsilon: float) -> Plan:
    """The plan of the sites' noise, the release after the last round included."""
    workloads = LocalSchedule(0, 1).workloads(np.full(SITES, rows // SITES))
    asked, target = [range(SITES)] * rounds, Target(epsilon, DELTA)
    return Plan.of(Descent(), objective.bounds(1.0), workloads, asked, target, {INTERVALS: SHARE})


class Found(NamedTuple):
    """The estimates of data sets and their standard errors, both (sets, d)."""

    estimates: Array
    errors: Array


def exact(objective: LinearModel, rows: Batch, basis: Array) -> Found:
    """The maximum of the likelihood in this basis (d, r), with Wald's errors."""
    found = []
    for features, labels in zip(rows.features, rows.labels, strict=True):
        x, own = np.zeros(objective.d), Batch(features, labels)
        for _ in range(12):
            matrix = basis.T @ objective.information(objective.scores(x, features), own) @ basis
            x = x - basis @ np.linalg.solve(matrix, basis.T @ objective.grad(x, own) * len(labels))
        found.append((x, np.sqrt(np.diag(basis @ np.linalg.inv(matrix) @ basis.T))))
    return Found(*map(np.stack, zip(*found, strict=True)))


def private(
    case: Case, rows: Batch, reference: Reference, plan: Plan, draw: np.random.Generator
) -> Iterator[tuple[Array, Array] | None]:
    """The estimate and its errors, both (d,), of each data set, None for one without intervals."""
    objective, projection = case.objective, reference.basis @ reference.basis.T
    units, spread = Units.of(objective, 1.0), plan.release_of(INTERVALS, 0, 1.0).spread
    sigma = float(plan.multipliers[0]) * spread * np.sqrt(SITES)  # of the sum over the sites
    points = descent(objective, rows, plan, draw)
    for x, features, labels in zip(points, rows.features, rows.labels, strict=True):
        v = units.released(objective, x, Batch(features, labels))
        released = units.unpacked(v + sigma * draw.normal(size=v.shape), objective.d, sigma)
        step = accepted(x, released, reference)
        yield None if step is None else (projection @ (x + step.step), step.errors(projection))


def by_newton(
    case: Case, rows: Batch, reference: Reference, epsilon: float, rounds: int, draw: np.random.Generator
) -> Iterator[tuple[Array, Array] | None]:
    """The same from the last of some rounds of private Newton."""
    objective, projection = case.objective, reference.basis @ reference.basis.T
    algorithm = Newton(privacy="gradient", info=RunInfo(SITES, rounds, row_norm=1.0))
    workloads = LocalSchedule(0, 1).workloads(np.full(SITES, rows.labels.shape[-1] // SITES))
    plan = Plan.of(
        algorithm, objective.bounds(1.0), workloads, [range(SITES)] * rounds, Target(epsilon, DELTA)
    )
    sigmas = plan.multipliers * algorithm.release(plan.bounds, workloads[0], 1).sensitivity
    algorithm = algorithm.with_noise(objective, sigmas)
    for features, labels in zip(rows.features, rows.labels, strict=True):
        server = algorithm.init_server(np.zeros(objective.d), SITES, np.zeros((), np.uint64))
        for round_ in range(1, rounds + 1):
            weight = algorithm.release(plan.bounds, workloads[0], round_).weight
            mean = _mean(objective, algorithm.private.units(objective), server.x, Batch(features, labels))
            noise = sigmas[:, None] / np.sqrt(weight) * draw.normal(size=(SITES, len(mean)))
            server = algorithm.server_update(server, Upload(mean + noise), np.arange(SITES), round_)
        released = algorithm.information(server).of_rows(len(labels), server.base)
        step = accepted(server.base, released, reference, MOST_MISSED_IN_ROUNDS)
        yield None if step is None else (projection @ (server.base + step.step), step.errors(projection))


def accepted(x: Array, released: Released, reference: Reference, most: float = MOST_MISSED) -> Step | None:
    """The step from x if both rules allow intervals."""
    if reference.clearness(released) < LEAST_CLEAR:
        return None
    step = Step.of(x, released, reference)
    return step if step.missed(reference) <= most else None


def descent(objective: LinearModel, rows: Batch, plan: Plan, draw: np.random.Generator) -> Array:
    """The last points (sets, d) of noisy gradient descent from 0 with the step 2 / curvature."""
    sets, count = rows.labels.shape
    release = gradient_release(plan.bounds, LocalSchedule(0, 1).workload(count // SITES))
    sigma = float(plan.multipliers[0]) * release.spread / np.sqrt(SITES)  # of the mean over the sites
    x = np.zeros((sets, objective.d))
    for _ in plan.releases.of_kind(ROUND):
        x = x - 2 / plan.bounds.curvature * (objective.grad(x, rows) + sigma * draw.normal(size=x.shape))
    return x


def drawn(case: Case, design: Design, sets: int, rows: int, draw: np.random.Generator) -> Batch:
    """So many data sets from the model, features (sets, rows, columns)."""
    columns = [design.draw(draw, rows) for _ in range(sets)]
    return Batch(np.stack(columns) / design.norm, np.stack([case.labels(draw, own) for own in columns]))


class Measured(NamedTuple):
    """What was found for data sets: Wald's intervals, those of private runs with any, and the true point (d,)."""

    wald: Found
    private: Found | None
    share: float
    truth: Array


def measured(
    name: str, design: Design, rows: int, epsilon: float, sets: int, rounds: int, newton: bool = False
) -> Measured:
    """The intervals of so many data sets; epsilon 0: without privacy."""
    case = MODELS[name](design)
    reference = Reference.of(case.objective, design.reference(np.random.default_rng(99), 500) / design.norm)
    plan = planned(case.objective, rows, rounds, epsilon) if epsilon else None
    wald, found = [], []
    for chunk in range(-(-sets // CHUNK)):
        own = drawn(case, design, min(CHUNK, sets), rows, np.random.default_rng([rows, chunk]))
        if chunk * CHUNK < MOST_WALD:
            wald.append(exact(case.objective, own, reference.basis))
        draw = np.random.default_rng([rows, chunk, int(epsilon)])
        if plan and newton:
            found += by_newton(case, own, reference, epsilon, rounds, draw)
        elif plan:
            found += private(case, own, reference, plan, draw)
    kept = [own for own in found if own is not None]
    return Measured(
        Found(*map(np.concatenate, zip(*wald, strict=True))),
        Found(*map(np.stack, zip(*kept, strict=True))) if kept else None,
        len(kept) / max(len(found), 1),
        reference.basis @ reference.basis.T @ case.truth,
    )


def coverage(found: Found, truth: Array) -> Array:
    """The share of intervals (d,) that hold the true coefficient."""
    return (np.abs(found.estimates - truth) <= Z * found.errors).mean(0)  # type: ignore[no-any-return]


def cells(found: Measured) -> tuple[str, str, str, str]:
    """The share of data sets with intervals, and of intervals that hold the truth, the worst, and their length."""
    own = found.private or found.wald
    held = coverage(own, found.truth)
    length = float(np.median(own.errors) / np.median(found.wald.errors))
    share = found.share if found.private else 1.0
    return f"{share:.3f}", f"{held.mean():.3f}", f"{held.min():.3f}", f"{length:.2f}"


def main() -> None:
    """Print a row of a Markdown table for every model, design, number of rows and epsilon."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--sets", type=int, default=1000)
    asked.add_argument("--rounds", type=int, default=20)
    asked.add_argument("--rows", type=int, nargs="+", default=[500, 2000, 5000])
    asked.add_argument("--epsilons", type=float, nargs="+", default=[0.0, 4.0, 1.0])
    asked.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS])
    asked.add_argument("--designs", nargs="+", default=["numbers", "rare"], choices=[*DESIGNS])
    asked.add_argument(
        "--newton", action="store_true", help="rounds of private Newton, no release after them"
    )
    options = asked.parse_args()
    print("| model | columns | rows | epsilon | with intervals | covered | worst | length |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.models:
        for design in options.designs:
            for rows in options.rows:
                for epsilon in options.epsilons:
                    found = measured(
                        name, DESIGNS[design], rows, epsilon, options.sets, options.rounds, options.newton
                    )
                    what = name, design, f"{rows}", f"{epsilon:g}" if epsilon else "none"
                    numbers = cells(found) if found.private or not epsilon else ("0", "-", "-", "-")
                    print("|", " | ".join([*what, *numbers]), "|", flush=True)


if __name__ == "__main__":
    main()
