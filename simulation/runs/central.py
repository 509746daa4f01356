"""The problem of a run with all clients' rows in one place: its optimum, and the evaluation of models on all rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from twinflower.algorithms import Algorithm
from twinflower.arrays import Array
from twinflower.data.dataset import Dataset
from twinflower.problems.batches import Shards
from twinflower.problems.central import minimise
from twinflower.problems.interfaces import Batch, Model
from twinflower.problems.objectives import majority_baseline
from twinflower.problems.regularisers import OnPart, Support
from twinflower.problems.stratified_cox import StratifiedCox


def weighted(shards: Shards, by_rows: bool) -> Batch:
    """All rows of some shards, weighted as in F. by_rows: F is the mean over the rows, not over the clients."""
    rows = shards.everyone()
    return rows._replace(weights=None) if by_rows else rows


@dataclass(frozen=True)
class Central:
    """minimise F(x) + h(x), with F over the rows of all clients and h the regulariser of the method.

    start (d,): where the search for the optimum begins. by_rows: see `weighted`.
    """

    objective: Model
    method: Algorithm
    dataset: Dataset
    shards: Shards
    start: Array
    by_rows: bool

    @property
    def has_rows(self) -> bool:
        """Whether this process has rows to evaluate on; a server may leave that to the sites."""
        return len(self.dataset.labels) > 0

    @property
    def has_score(self) -> bool:
        """Whether this process has test rows that can be scored; rows of unknown sites are not comparable if every site
        is a stratum."""
        return len(self.dataset.test_labels) > 0 and not self._by_site

    @property
    def _by_site(self) -> bool:
        """Whether the loss compares rows of one site only."""
        return isinstance(self.objective, StratifiedCox)

    @cached_property
    def _training(self) -> Batch:
        rows = weighted(self.shards, self.by_rows)
        return rows._replace(features=np.asarray(rows.features))

    @cached_property
    def _test(self) -> Batch:
        return Batch(np.asarray(self.dataset.test_features), self.dataset.test_labels)

    def evaluate(self, x: Array) -> dict[str, float]:
        """Evaluate x (d,): objective F(x) + h(x), F with the run's weighting; test_accuracy (for a regression R^2); and
        nonzeros, the number of nonzero entries. Without rows here the first two are NaN, see also `has_score`."""
        objective, accuracy = math.nan, math.nan
        if self.has_rows:
            value = self._mean(lambda rows: self.objective.value(x, rows))
            objective = float(value) + float(self.method.regulariser.value(x))
        if self.has_score:
            accuracy = float(self.objective.score(x, self._test))
        return {"objective": objective, "test_accuracy": accuracy, "nonzeros": int(np.count_nonzero(x))}

    def _mean(self, of: Callable[[Batch], Array]) -> Array:
        """F or its gradient on all training rows, given that of some rows."""
        if not self._by_site:
            return of(self._training)
        sites = range(self.shards.first, self.shards.first + self.shards.num_clients)
        values = [of(self.shards.rows(site)) for site in sites]
        return np.average(values, axis=0, weights=self.shards.sizes if self.by_rows else None)

    def gradient(self, x: Array) -> Array:
        """The gradient of F at x (d,)."""
        return self._mean(lambda rows: self.objective.grad(x, rows))

    def assess(self, x: Array) -> dict[str, float]:
        """The method's model metrics for x (d,), computed on all training rows; empty if it has none,
        or if rows of several sites are not comparable."""
        if not (self.method.model_columns and self.has_rows) or self._by_site:
            return {}
        return self.method.model_metrics(x, self.objective, self._training)

    @cached_property
    def optimum(self) -> Array:
        """The minimiser x* (d,) of F + h over all training rows, the reference for distance and optimality.

        It is computed in double precision also for a run in single precision.
        """
        rows, start = self._training, self.start.astype(np.float64, copy=False)
        rows = rows._replace(features=rows.features.astype(np.float64, copy=False))
        return minimise(self.objective, self.method.regulariser, rows, start)

    @cached_property
    def lowest(self) -> float:
        """The objective at the optimum."""
        return self.evaluate(self.optimum)["objective"]

    def beside_optimum(self, x: Array, objective: float) -> dict[str, float]:
        """Two comparisons of x (d,), whose objective is given, with the optimum x*: suboptimality, the objective above
        its own; and support_f1, 2 |S and S*| / (|S| + |S*|) for the nonzero entries S and S* of both (1: the same)."""
        chosen, right = x != 0, self.optimum != 0
        total = int(chosen.sum() + right.sum())
        f1 = 2 * int((chosen & right).sum()) / total if total else 1.0
        return {"suboptimality": objective - self.lowest, "support_f1": f1}

    @cached_property
    def slope_at_zero(self) -> float:
        """The largest slope of F at x = 0, on all rows."""
        return float(np.abs(self.gradient(np.zeros(self.objective.d))).max())

    def zero(self) -> tuple[Array, float]:
        """The point (d,) whose penalised entries are 0 and whose others, if there are any (`OnPart`), are optimal; and
        the largest slope of F there in a penalised entry, the smallest l1 weight at which this point is a solution."""
        h, zero = self.method.regulariser, np.zeros(self.objective.d)
        if not isinstance(h, OnPart):
            return zero, self.slope_at_zero
        free = np.flatnonzero(h.filled(np.ones_like(zero), h.part(zero)))
        x = minimise(self.objective, Support(tuple(free.tolist())), self._training, zero)
        return x, float(np.abs(h.part(self.gradient(x))).max())

    def baseline(self) -> float | None:
        """The test accuracy of the most frequent class; None for a regression or without test rows."""
        if not (self.dataset.num_classes and len(self.dataset.test_labels)):
            return None
        return majority_baseline(self.dataset.labels, self.dataset.test_labels)
