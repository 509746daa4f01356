"""Coefficients with intervals from what private sites release about a model (`models.newton`).

The estimates are those of a noisy step of Newton's method from the model, so they differ from the model's own weights.
Where the step is not to be trusted, there are no intervals, and the coefficients are the model's own.
"""

from collections.abc import Callable

import numpy as np

from ..arrays import Array
from ..problems.objectives import LinearModel
from .coefficients import Coefficient
from .inference import Inference, with_error
from .newton import LEAST_CLEAR, MOST_BENT, Step, clearness, spanned
from .released import Released

_DETERMINED = 1e-6  # share of a row of T outside the basis, up to which it is rounding
STEPPED = (
    "the estimates are one step of Newton's method from the model, with noisy sums that the sites released after the "
    "last round, so they differ from the model's own weights, with which it predicts; the intervals include the noise "
    "and the sampling of rows"
)


def privately_inferred(
    x: Array, table: Callable[[Array], list[Coefficient]], rows: Array, released: Released, objective: LinearModel,
    features: Array,
) -> Inference:  # fmt: skip
    """The coefficients of the stepped model with their errors.

    table: the coefficients of a point. rows (terms, d): T, as in `models.inference`. features: of public reference rows,
    which span all possible ones.
    """
    basis = spanned(objective, features)
    clear = clearness(released, basis)
    if not clear >= LEAST_CLEAR:
        return Inference(table(x), [_too_noisy(clear)])
    step = Step.of(released, basis)
    bent = step.bent(objective, features)
    if not bent <= MOST_BENT:
        return Inference(table(x), [_too_far(bent)])
    outside = np.linalg.norm(rows - (rows @ basis) @ basis.T, axis=1)
    loose = outside > _DETERMINED * np.linalg.norm(rows, axis=1)
    errors = step.errors(rows)
    errors[(errors == 0) | loose] = np.nan  # a reference is no estimate
    found = table(x + step.step)
    return Inference([with_error(own, error) for own, error in zip(found, errors, strict=True)], [STEPPED])


def _too_noisy(clear: float) -> str:
    return (
        "there are no intervals, because the released information matrix is too noisy: its smallest eigenvalue is "
        f"{clear:.3g} deviations of the noise, and at least {LEAST_CLEAR:g} are needed: a larger privacy.epsilon or "
        "privacy.interval-share, fewer columns, categories without rare ones, or more rows help"
    )


def _too_far(bent: float) -> str:
    return (
        "there are no intervals, because the model is too far from the maximum of the likelihood for one step of Newton's "
        f"method: the square of the largest change of a score is {bent:.3g} standard errors of the score, and at most "
        f"{MOST_BENT:g} are allowed: more rounds or a larger step size help if the model had not converged, and else a "
        "larger privacy.epsilon"
    )
