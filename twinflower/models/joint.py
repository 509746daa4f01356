"""Tests of several coefficients at once: all terms of a column, and all that one model has and a nested one has not.

A column with k terms, such as a category with k + 1 values, or a number in the scores of k + 1 classes, has k p-values
that depend on the choice of the reference. Wald's statistic b^T C^-1 b of its estimates b (k,) with the covariance
C (k, k) does not: it is chi-squared with k degrees of freedom if all are 0; for least squares without the robust form,
b^T C^-1 b / k is F with k degrees of freedom and those of the residuals. Twice the difference of the log likelihoods
of nested models at their maxima is chi-squared, too, with the difference of the numbers of parameters.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .. import special
from ..arrays import Array, Index, Mask
from ..errors import SettingError
from .coefficients import BASELINE, INTERCEPT, Coefficient
from .facts import Facts

_SAME = 1e-9  # relative difference of log likelihoods that is rounding


class JointTest(NamedTuple):
    """A test that the coefficients of all terms of a column are 0.

    statistic: chi-squared with `freedom` degrees of freedom; F with `freedom` and `residuals` if that is not 0.
    """

    column: str
    statistic: float
    freedom: int
    p_value: float
    residuals: float = 0.0

    @property
    def distribution(self) -> str:
        """That of the statistic if all coefficients are 0, as text."""
        return f"F({self.freedom}, {self.residuals:g})" if self.residuals else f"chi-squared({self.freedom})"


def joint_tests(
    rows: Sequence[Coefficient], covariance: Array, residuals: float, gone: Mask
) -> list[JointTest]:
    """A test for each column of which several coefficients have an error. covariance (terms, terms): theirs. residuals:
    the degrees of freedom of a residual variance that was estimated; 0 without one. gone (terms,): which coefficients
    may not exist; of their columns there is no test, and of those with a singular covariance, as from too few clusters.
    """
    lost = {row.column for row, away in zip(rows, gone, strict=True) if away} | {INTERCEPT, BASELINE}
    columns = dict.fromkeys(row.column for row in rows if row.column not in lost)
    places = {name: _estimated(rows, name) for name in columns}
    estimates = np.array([row.estimate for row in rows])
    tests = [
        (_wald(name, estimates[own], covariance[np.ix_(own, own)], residuals), len(own))
        for name, own in places.items()
        if len(own) > 1
    ]
    return [test for test, terms in tests if test.freedom == terms]


def _estimated(rows: Sequence[Coefficient], column: str) -> Index:
    """The places of the coefficients of a column that have an error."""
    return np.flatnonzero([row.column == column and row.std_error > 0 for row in rows])


def _wald(column: str, estimates: Array, covariance: Array, residuals: float) -> JointTest:
    freedom = int(np.linalg.matrix_rank(covariance, hermitian=True))
    wald = float(estimates @ np.linalg.pinv(covariance, hermitian=True) @ estimates)
    if residuals:
        p_value = float(special.fdtrc(freedom, residuals, wald / freedom))
        return JointTest(column, wald / freedom, freedom, p_value, residuals)
    return JointTest(column, wald, freedom, float(special.chdtrc(freedom, wald)))


def likelihood_ratio(model: Facts, nested: Facts) -> JointTest:
    """The test of the columns that a model has and a nested one has not, from the facts about both.

    SettingError unless both are maxima of a likelihood of equally many rows, and the first has more parameters and no
    lower a likelihood.
    """
    for which, facts in (("the model", model), ("the nested model", nested)):
        if not (facts.converged and facts.log_likelihood is not None):
            raise SettingError(
                f"{which} of a likelihood-ratio test must be at the maximum of the likelihood, which must exist: train "
                "it with algorithm = newton, evaluation.standard-errors = true and without privacy, penalty and class "
                "weights, and leave out columns that separate the classes"
            )
    if model.rows != nested.rows:
        raise SettingError(
            f"both models of a likelihood-ratio test must be trained on the same rows; got {model.rows} and "
            f"{nested.rows}"
        )
    assert model.log_likelihood is not None and nested.log_likelihood is not None
    gain = model.log_likelihood - nested.log_likelihood
    freedom = (model.parameters or 0) - (nested.parameters or 0)
    if not (freedom > 0 and gain >= -_SAME * math.fabs(model.log_likelihood)):
        raise SettingError(
            "the nested model of a likelihood-ratio test must have fewer parameters than the other, and no higher "
            f"likelihood (are the two swapped?); got {nested.parameters} and {model.parameters} parameters, and log "
            f"likelihoods of {nested.log_likelihood:.6g} and {model.log_likelihood:.6g}"
        )
    statistic = max(2 * gain, 0.0)
    return JointTest("", statistic, freedom, float(special.chdtrc(freedom, statistic)))
