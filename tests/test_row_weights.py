"""Weights of rows: what they mean, what they cost in privacy, and that nothing on the way of a row loses its weight."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import VARIANTS, small

from twinflower.data.columns import Range
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import LinearModel
from twinflower.simulation.runs.setup import prepare_rows
from twinflower.simulation.runtimes import cohort, inprocess

SIZES = (60, 47, 60, 53, 60, 60, 41, 60)  # of the clients of `small`
RANGE = Range(0.0, 3.0)
CLASSES = 10


def weighted(variant, **keys):
    """A run of this variant on digits with random weights."""
    plain = small(variant, **keys)
    rows = sum(SIZES)
    weights = np.random.default_rng(7).uniform(RANGE.low, RANGE.high, rows)
    data = plain.dataset
    data = replace(
        data, features=np.asarray(data.features)[:rows], labels=data.labels[:rows], sites=SIZES,
        row_weights=weights, weight_range=RANGE,
    )  # fmt: skip
    return prepare_rows(plain.config, data)


@dataclass(frozen=True, eq=False)
class Transcribed(LinearModel):
    """The weighted objective in another way: labels are y + classes * row, and a table has the weight of every row.

    Rows are batches of one row each, whose gradients are multiplied and added up. It takes from the package only the
    objective without weights.
    """

    table: np.ndarray | None = None
    classes: int = CLASSES

    @property
    def one(self):
        return LinearModel(self.loss, self.outputs, self.num_features, clip_norm=self.clip_norm, clip="rows")

    def check_rows(self, rows):
        pass

    def decoded(self, rows):
        return rows._replace(labels=(rows.labels % self.classes).astype(rows.labels.dtype))

    def losses(self, x, rows):
        values = self.one.losses(x, self.decoded(rows))
        return values * self.table[rows.labels // self.classes]

    def grad(self, x, rows, scale=1.0):
        own = self.decoded(rows)
        grads = self.one.grad(x[..., None, :], Batch(own.features[..., None, :], own.labels[..., None]))
        share = (
            np.full(rows.labels.shape, 1 / rows.labels.shape[-1]) if rows.weights is None else rows.weights
        )
        share = share * self.table[rows.labels // self.classes]
        return self.full_grad((share[..., None] * grads).sum(-2) * scale, x, scale)

    def compared(self, x, rows):
        return super().compared(x, self.decoded(rows))

    def score(self, x, rows):
        return super().score(x, self.decoded(rows))


def transcribed(setup):
    """The same run, in which labels carry the rows and the objective looks up their weights."""
    data, plain = setup.dataset, setup.objective
    coded = data.labels + CLASSES * np.arange(len(data.labels))
    own = Transcribed(
        plain.loss, plain.outputs, plain.num_features, l2=plain.l2, nonconvex=plain.nonconvex,
        clip_norm=plain.clip_norm, clip=plain.clip, table=data.row_weights,
    )  # fmt: skip
    data = replace(
        data,
        labels=coded,
        num_classes=CLASSES * len(coded),
        row_weights=None,
        weight_range=None,
        class_names=(),
    )
    return replace(setup, objective=own, dataset=data)


ON_LINEAR = [name for name, keys in VARIANTS.items() if keys["algorithm"] != "ssca-constrained"]


@pytest.mark.parametrize("variant", ON_LINEAR)
def test_no_method_and_no_message_loses_a_weight(variant):
    setup = weighted(variant)
    (arrays,), (slow,) = cohort.train([setup]), cohort.train([transcribed(setup)])
    wired = inprocess.train(setup)
    assert not arrays.failure + slow.failure + wired.failure
    assert_allclose(arrays.model, slow.model, rtol=1e-8, atol=1e-10)
    assert_allclose(arrays.model, wired.model, rtol=1e-8, atol=1e-10)
    last = arrays.rows[-1], slow.rows[-1]
    assert last[0]["objective"] == pytest.approx(last[1]["objective"], rel=1e-9)
