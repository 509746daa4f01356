"""How often 95% intervals of a linear model's coefficients hold the truth, with and without private training.

    nice python benchmarks/coverage.py --sets 1000

Four sites with equal numbers of rows, five columns (one of them of ones), rows divided by one constant to norms of at
most 1. Gradient descent of one step in a round, in which every site adds Gaussian noise to the mean of its clipped
gradients; the noise of all rounds, of the information matrix and, for least squares, of the sum of squared residuals is
planned for (epsilon, 1e-5)-DP of each site, under replacement of one row. A tenth of mu^2 is for the matrix, and a
tenth for the residuals. Without privacy, it is Wald's interval at the maximum of the likelihood.

    final       the last iterate x_T. Its error is that of the sampling, H^-1 / n, and the noise of the rounds: with
                A = I - step H, the covariance step^2 sigma^2 sum_k A^2k.
    corrected   the mean over the last half of the rounds of x_t - H^-1 g_t with the noisy gradient g_t at x_t, which is
                independent of the noise in x_t, so that only the noise in g_t counts: for least squares with the
                covariance H^-1 / n + H^-1 sigma^2 H^-1 / (T / 2), exactly but for the noise in H.

Both take H from the noisy matrix, whose eigenvalues are raised to twice the deviation of its noise, so that it has an
inverse. Printed is the share of intervals, over data sets and coefficients, that hold the coefficient of the model that
the rows were drawn from, the same for the worst coefficient, and the median length in lengths of Wald's.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from twinflower import special
from twinflower.arrays import Array
from twinflower.privacy.accountant import gdp_mu

SITES, ROUNDS, DELTA, CHUNK = 4, 60, 1e-5, 50
TRUE = np.array([0.8, -0.6, 0.4, 0.0, 0.2])  # of columns within [-1, 1], and of the column of ones
NORM = np.sqrt(len(TRUE))  # by which rows are divided
Z = float(special.ndtri(0.975))


class Family(NamedTuple):
    """A model of labels by scores: draw labels, mean and second derivative of the loss at scores; the clipping norm of
    gradients; the largest second derivative that counts; the step size; whether residuals have a variance."""

    draw: Callable[[np.random.Generator, Array], Array]
    mean: Callable[[Array], Array]
    bend: Callable[[Array], Array]
    clip: float
    most: float
    step: float
    residuals: bool = False


def rates(scores: Array) -> Array:
    """Rates of counts at scores, which are limited so that noise overflows nothing."""
    return np.exp(np.minimum(scores, 20.0))


FAMILIES = {
    "logistic": Family(
        lambda draw, s: (draw.uniform(size=s.shape) < special.expit(s)).astype(float),
        special.expit, lambda s: special.expit(s) * special.expit(-s), 1.0, 0.25, 8.0,
    ),
    "least squares": Family(
        lambda draw, s: s + draw.normal(size=s.shape) / 2, lambda s: s, np.ones_like, 2.0, 1.0, 2.0, True
    ),
    "Poisson": Family(lambda draw, s: draw.poisson(rates(s)).astype(float), rates, rates, 6.0, 5.0, 1.0),
}  # fmt: skip


class Rows(NamedTuple):
    """The rows of many data sets: features (sets, rows, d), labels (sets, rows)."""

    features: Array
    labels: Array

    def scores(self, x: Array) -> Array:
        """The scores of points x (sets, d)."""
        return (self.features @ x[..., None])[..., 0]

    def mean(self, by_row: Array) -> Array:
        """The means (sets, d) of the features times these numbers (sets, rows)."""
        return (by_row[:, None] @ self.features)[:, 0] / by_row.shape[1]

    def gradient(self, family: Family, x: Array) -> Array:
        """The means of the clipped gradients (sets, d)."""
        slopes = family.mean(self.scores(x)) - self.labels
        if np.isfinite(family.clip):
            lengths = np.abs(slopes) * np.linalg.norm(self.features, axis=2)
            slopes *= np.minimum(1.0, family.clip / np.maximum(lengths, 1e-300))
        return self.mean(slopes)

    def information(self, family: Family, x: Array) -> Array:
        """The means of the information matrices (sets, d, d)."""
        bends = np.minimum(family.bend(self.scores(x)), family.most)
        return (self.features * bends[..., None]).swapaxes(1, 2) @ self.features / bends.shape[1]

    def variance(self, x: Array, most: float = np.inf) -> Array:
        """The means of squared residuals (sets,), each at most `most`."""
        return np.minimum((self.labels - self.scores(x)) ** 2, most).mean(1)


def drawn(family: Family, sets: int, rows: int, draw: np.random.Generator) -> Rows:
    """So many data sets from the model."""
    columns = draw.uniform(-1, 1, (sets, rows, len(TRUE)))
    columns[..., -1] = 1.0
    return Rows(columns / NORM, family.draw(draw, columns @ TRUE))


class Found(NamedTuple):
    """Estimates and their standard errors, both (sets, d)."""

    estimates: Array
    errors: Array


def exact(family: Family, rows: Rows) -> Found:
    """The maximum of the likelihood, with Wald's errors."""
    family = family._replace(clip=np.inf, most=np.inf)
    x = np.zeros((len(rows.labels), len(TRUE)))
    for _ in range(12):
        x = x - solved(rows.information(family, x), rows.gradient(family, x))
    count, d = rows.features.shape[1:]
    variance = rows.variance(x) * count / (count - d) if family.residuals else np.ones(len(x))
    inverse = np.linalg.inv(rows.information(family, x)) / count
    return Found(x, np.sqrt(variance[:, None] * np.einsum("sii->si", inverse)))


def solved(matrices: Array, vectors: Array) -> Array:
    """The solutions of linear systems (sets, d)."""
    return np.linalg.solve(matrices, vectors[..., None])[..., 0]


def private(family: Family, rows: Rows, epsilon: float, draw: np.random.Generator) -> dict[str, Found]:
    """The estimates of a private run, with the errors that account for its noise."""
    count = rows.features.shape[1]
    mu, moved = (
        gdp_mu(epsilon, DELTA),
        SITES / count / np.sqrt(SITES),
    )  # of the mean over a site, in all sites' mean
    others = 0.1 * (1 + family.residuals)
    sigma = 2 * family.clip * moved * np.sqrt(ROUNDS / (1 - others)) / mu
    points, gradients, last = descent(family, rows, sigma, draw)
    spread = np.sqrt(2) * family.most * moved / (mu * np.sqrt(0.1))
    h = raised(rows.information(family, last) + symmetric(draw, len(last)) * spread, 2 * spread)
    variance = np.ones(len(last))
    if family.residuals:
        noise = family.clip**2 * moved / (mu * np.sqrt(0.1))
        variance = np.maximum(
            rows.variance(last, family.clip**2) + noise * draw.normal(size=len(last)), noise
        )
    inverse = np.linalg.inv(h)
    sampling = variance[:, None, None] * inverse / count
    middle = np.mean([x - solved(h, g) for x, g in zip(points, gradients, strict=True)], axis=0)
    added = sigma**2 / len(points) * inverse @ inverse
    return {
        "final": Found(last, deviations(sampling + carried(h, family.step, sigma))),
        "corrected": Found(middle, deviations(sampling + added)),
    }


def descent(
    family: Family, rows: Rows, sigma: float, draw: np.random.Generator
) -> tuple[list[Array], list[Array], Array]:
    """Noisy gradient descent from 0: points and noisy gradients of the last half of the rounds, and the last point."""
    x, points, gradients = np.zeros((len(rows.labels), len(TRUE))), [], []
    for _ in range(ROUNDS):
        slope = rows.gradient(family, x) + sigma * draw.normal(size=x.shape)
        points.append(x)
        gradients.append(slope)
        x = x - family.step * slope
    return points[ROUNDS // 2 :], gradients[ROUNDS // 2 :], x


def symmetric(draw: np.random.Generator, sets: int) -> Array:
    """Symmetric noise (sets, d, d), of deviation 1 in the diagonal and 1 / sqrt 2 beside it, because a matrix has these
    entries twice."""
    upper = np.triu(draw.normal(size=(sets, len(TRUE), len(TRUE))))
    return (upper + upper.swapaxes(1, 2)) / np.where(np.eye(len(TRUE)) > 0, 2.0, np.sqrt(2))


def raised(matrices: Array, least: float) -> Array:
    """Symmetric matrices with eigenvalues of at least `least`."""
    values, vectors = np.linalg.eigh(matrices)
    return (vectors * np.maximum(values, least)[:, None]) @ vectors.swapaxes(1, 2)


def carried(h: Array, step: float, sigma: float) -> Array:
    """The covariance of the last point by all noise, step^2 sigma^2 sum_k (I - step H)^2k (sets, d, d)."""
    values, vectors = np.linalg.eigh(h)
    power = (1 - step * values) ** 2
    sums = sum(power**k for k in range(ROUNDS))
    return step**2 * sigma**2 * (vectors * sums[:, None]) @ vectors.swapaxes(1, 2)


def deviations(covariances: Array) -> Array:
    """The square roots of the diagonals (sets, d)."""
    return np.sqrt(np.einsum("sii->si", covariances))


def measured(name: str, rows: int, epsilon: float, sets: int) -> dict[str, list[Found]]:
    """The estimates of all data sets, by construction; epsilon 0: without privacy."""
    found: dict[str, list[Found]] = {}
    for chunk in range(-(-sets // CHUNK)):
        draw = np.random.default_rng([rows, chunk])
        own = drawn(FAMILIES[name], CHUNK, rows, draw)
        every = {"exact": exact(FAMILIES[name], own)}
        if epsilon:
            every |= private(FAMILIES[name], own, epsilon, np.random.default_rng([rows, chunk, int(epsilon)]))
        for key, value in every.items():
            found.setdefault(key, []).append(value)
    return found


def coverage(found: list[Found]) -> Array:
    """The share of intervals (d,) that hold the true coefficient."""
    held = [np.abs(own.estimates - TRUE * NORM) <= Z * own.errors for own in found]
    return np.concatenate(held).mean(0)  # type: ignore[no-any-return]


def main() -> None:
    """Print a row of a Markdown table for every model, number of rows and epsilon."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--sets", type=int, default=1000)
    asked.add_argument("--rows", type=int, nargs="+", default=[2000])
    asked.add_argument("--models", nargs="+", default=[*FAMILIES], choices=[*FAMILIES])
    options = asked.parse_args()
    print(
        "| model | rows | epsilon | construction | covered | worst | length |\n|---|---|---|---|---|---|---|"
    )
    for name in options.models:
        for rows in options.rows:
            for epsilon in (0.0, 4.0, 1.0):
                found = measured(name, rows, epsilon, options.sets)
                wald = np.median(np.concatenate([own.errors for own in found["exact"]]))
                for key, own in list(found.items())[bool(epsilon) :]:
                    share, length = coverage(own), np.median(np.concatenate([each.errors for each in own]))
                    cells = name, rows, f"{epsilon:g}" if epsilon else "none", key
                    numbers = f"{share.mean():.3f}", f"{share.min():.3f}", f"{length / wald:.2f}"
                    print("|", *(f"{cell} |" for cell in (*cells, *numbers)), flush=True)


if __name__ == "__main__":
    main()
