"""Coefficients with intervals from what private sites release about a model (`models.newton`).

The estimates are those of a noisy step of Newton's method from the model, so they differ from the model's own weights.
With private rounds of Newton's method it is the step of the last round, from the point before it. Where the step is not
to be trusted, there are no intervals, and the coefficients are the model's own.
"""

from collections.abc import Callable

import numpy as np

from ..arrays import Array
from .coefficients import Coefficient
from .inference import Inference, with_error
from .newton import LEAST_CLEAR, MOST_MISSED, MOST_MISSED_IN_ROUNDS, Reference, Step
from .released import Released

_DETERMINED = 1e-6  # share of a row of T outside the basis, up to which it is rounding
_STEPPED = (
    "the estimates are one step of Newton's method from the model, with noisy sums that the sites released after the "
    "last round, so they differ from the model's own weights, with which it predicts; the intervals include the noise "
    "and the sampling of rows"
)
_LAST_ROUND = (
    "the estimates are the last round's step of Newton's method without its limits for noise, so they differ from the "
    "model's own weights, with which it predicts; the intervals include the noise and the sampling of rows"
)


def privately_inferred(
    x: Array,
    table: Callable[[Array], list[Coefficient]],
    rows: Array,
    released: Released,
    reference: Reference,
) -> Inference:
    """The coefficients of the stepped model with their errors.

    table: the coefficients of a point. rows (terms, d): T, as in `models.inference`.
    """
    clear = reference.clearness(released)
    if not clear >= LEAST_CLEAR:
        return Inference(table(x), [_too_noisy(clear)], private=True)
    at = x if released.base is None else released.base
    step = Step.of(at, released, reference)
    missed = step.missed(reference)
    most = MOST_MISSED if released.base is None else MOST_MISSED_IN_ROUNDS
    if not missed <= most:
        return Inference(table(x), [_too_far(missed, most)], private=True)
    errors = step.errors(rows)
    errors[(errors == 0) | _loose(rows, reference.basis)] = np.nan  # a reference is no estimate
    pairs = zip(table(at + step.step), errors, strict=True)
    remark = _STEPPED if released.base is None else _LAST_ROUND
    return Inference([with_error(row, error) for row, error in pairs], [remark], private=True)


def _loose(rows: Array, basis: Array) -> Array:
    """Which rows (terms, d) have a part outside the basis, (terms,), so that nothing determines what they say of x."""
    outside = np.linalg.norm(rows - (rows @ basis) @ basis.T, axis=1)
    return outside > _DETERMINED * np.linalg.norm(rows, axis=1)  # type: ignore[no-any-return]


def _too_noisy(clear: float) -> str:
    return (
        "there are no intervals, because the released information matrix is too noisy: its smallest eigenvalue is "
        f"{clear:.3g} deviations of its noise, and at least {LEAST_CLEAR:g} are needed; a larger privacy.epsilon or "
        "privacy.interval-share, fewer columns, no rare categories, or more rows help"
    )


def _too_far(missed: float, most: float) -> str:
    return (
        "there are no intervals, because the model is too far from the maximum of the likelihood: one step of Newton's "
        f"method would miss it by {missed:.2g} standard errors of a score, and at most {most:g} are allowed; "
        "more rounds help if the training had not converged, and else a larger privacy.epsilon"
    )
