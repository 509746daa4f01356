"""Standard errors, Wald intervals and p-values of coefficients, from the sums in `Information`.

With the observed information matrix H, the Hessian of minus the log likelihood, the covariance of the estimated point
is H^-1, for least squares times the residual variance. H is also the expected information matrix, but for the
discrete-time Cox model with link cloglog, for which statsmodels' default is the expected one. The robust form (Huber
1967, White 1980; HC0) is H^-1 M H^-1 with M the outer products of the gradients. If these are summed over K groups of
rows, it is robust to dependence within a group (Liang and Zeger 1986), and has the factor K / (K - 1) * (n - 1) / (n -
p) for n rows and p parameters; for hazards the factor is 1. These are the defaults of statsmodels (cov_type "cluster",
groups of PHReg). A row of the table of coefficients is T x + constant, so its variance is that of T x. Redundant
entries of x, such as one-hot features beside a column of ones, make H singular; a row is determined if T x does not
depend on the directions without information. Intervals are at 95%: normal, and for least squares without the robust
form Student's t.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import special
from ..arrays import Array, Mask
from ..problems.central import spectrum
from .coefficients import BASELINE, MISSING, PER_UNIT, Coefficient
from .facts import CONVERGED, UNKNOWN, Facts
from .information import Information
from .intervals import LEVEL
from .joint import JointTest, joint_tests
from .printed import TESTS, aligned, by_outcome, headings, tested

_EMPTY = 1e-10  # an eigenvalue of the scaled information, relative to the largest, below which there is no information
_ROUNDINGS = 30.0  # the same, in units of rounding of the entries
_DETERMINED = 1e-6  # share of a row of T in directions without information, up to which it is rounding
_PERFECT = 4.0  # units of rounding of the loss of a row, up to which a fit is perfect
_FAR = 0.01  # standard errors, log odds or log rates between an estimate and the maximum, from which a remark says so
_GONE = 0.5  # log odds or log rates; where an estimate does not exist, each step of Newton's method moves it by about 1

MOST_CLIPPED = 0.01
"""Share of the values of a column outside of its range, up to which intervals are shown. Of 95% intervals for skewed
columns, 94% cover at 1% and 2,000 rows, 90% at 2%, and 64% at 5% (docs/your-data.md)."""
_CLIPPED = (
    "intervals and p-values are withheld, because more than 1% of the values of a column are outside of its range, or "
    "may be, and were clipped to it: {}; a wider range changes that"
)
_UNCOUNTED = (
    "values outside of a public range are clipped to it, and are not counted here (at a site: twinflower schema "
    "--check): if there are more than 1% in {}, the intervals are wrong"
)
_ANOTHER = (
    "; if the reference of {} has no rows, choose another one (coefficients --reference COLUMN=CATEGORY)"
)
_HIDDEN = (
    "a step of Newton's method moves what is not determined by more than .5: columns separate the classes, or a "
    "category has no events, and the maximum does not exist"
)
_UNBOUNDED = {
    True: "the model predicts every row correctly: the rows have one class, or columns separate the classes; then the "
    "maximum of the likelihood does not exist",
    False: "every count is 0, or nobody had the event: then the maximum of the likelihood does not exist",
}


class Estimates(list[Coefficient]):
    """The coefficients of a model, a list, with the `facts` about them, `remarks`, sentences on what they are worth,
    and `tests` of the columns with several terms (`models.joint`).

    Printed, it shows all of these, with the coefficients as a table.
    """

    def __init__(
        self, rows: list[Coefficient], facts: Facts, remarks: list[str], tests: Sequence[JointTest] = ()
    ) -> None:
        super().__init__(rows)
        self.facts, self.remarks, self.tests = facts, remarks, tests

    def __repr__(self) -> str:
        parts = [[title, *aligned(headings(self), rows)] for title, rows in by_outcome(self)] if self else []
        parts += [aligned(TESTS, tested(self.tests))] if self.tests else []
        parts.append([f"{name}: {text}" for name, text in self.facts.lines])
        return "\n".join(["\n\n".join(map("\n".join, parts)), *self.remarks])


class Inference(NamedTuple):
    """The coefficients with their standard errors, p-values and intervals, and remarks on what they are worth.

    private: whether they follow from noisy sums. facts: how far they are from the maximum, and on which rows they rest.
    tests: of the columns with several terms (`models.joint`). robust: whether the errors are. clusters: the number of
    groups to which they are robust, 0 for none.
    """

    rows: list[Coefficient]
    remarks: list[str]
    private: bool = False
    facts: Facts = UNKNOWN
    tests: Sequence[JointTest] = ()
    robust: bool = False
    clusters: int = 0

    @property
    def estimates(self) -> Estimates:
        """The coefficients as a list that has the facts, the remarks and the tests with it."""
        return Estimates(self.rows, self.facts, self.remarks, self.tests)


class Inverse(NamedTuple):
    """The pseudo-inverse of an information matrix scaled by D to a unit diagonal: H^+ = D^-1 V diag(1/e) V^T D^-1.

    root (d, rank): D^-1 V diag(e^-1/2). empty (d, d - rank): directions without information, in units of D x.
    """

    scale: Array
    root: Array
    empty: Array

    @classmethod
    def of(cls, matrix: Array, rounding: float = 0.0) -> "Inverse":
        """The inverse of a symmetric matrix (d, d) without negative eigenvalues; rounding: that of its entries."""
        scale, values, vectors = spectrum(matrix)
        good = values > max(_EMPTY, _ROUNDINGS * rounding) * max(values[-1], 0.0)
        return cls(scale, vectors[:, good] / np.sqrt(values[good]) / scale[:, None], vectors[:, ~good])

    @property
    def rank(self) -> int:
        """The number of directions with information."""
        return self.root.shape[1]

    def determines(self, rows: Array) -> Mask:
        """Whether each row (terms, d) of T is determined, (terms,)."""
        scaled = rows / self.scale
        outside = np.linalg.norm(scaled @ self.empty, axis=1)
        return outside <= _DETERMINED * np.linalg.norm(scaled, axis=1)  # type: ignore[no-any-return]


def infer(
    coefficients: list[Coefficient],
    rows: Array,
    information: Information,
    residuals: bool,
    robust: bool,
    spans: Mapping[str, float] | None = None,
    curvature: float = 0.0,
    newton: bool = False,
    rounding: float = float(np.finfo(np.float64).eps),
    unit: float = 1.0,
    unseen: Collection[str] = (),
) -> Inference:
    """The coefficients `found` with their errors. rows (terms, d): T. residuals: whether the variance of the labels is
    estimated, as for least squares. robust: whether the covariance is robust. spans: as in `coefficients.spans`, by
    which steps in log odds do not depend on the units of the columns. curvature: a bound on that of the mean loss at
    the maximum, where the curvature at another model says little about it; else 0. newton: whether the model was
    trained by Newton's method. rounding: that of the losses, relative to 1. unit: the score of an entry of x that is 1
    for a feature of 1. unseen: classes without rows, beside which no coefficient exists."""
    inverse = Inverse.of(information.matrix, rounding)
    freedom = information.observations - inverse.rank
    loose = undetermined(coefficients, rows, inverse)
    known = inverse.determines(rows)
    rows = np.where(known[:, None], rows, np.nan)
    coefficients = [row if there else row.unknown for row, there in zip(coefficients, known, strict=True)]
    covariance = _covariance(rows, inverse, information, residuals, robust)
    if robust and "hazard" not in coefficients[0].effect:
        covariance *= _small_sample(information, inverse.rank)
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    floor = _PERFECT * rounding
    perfect = residuals and information.loss <= floor * information.observations
    errors[(errors == 0) | perfect] = np.nan  # the reference of a category is no estimate
    way = inverse.root @ (inverse.root.T @ information.gradient)
    step = rows @ way
    moves = np.abs(step) * _spans(coefficients, spans or {})
    gone = moves > _GONE if coefficients[0].effect else np.zeros(len(step), bool)
    gone |= [not {row.outcome, row.against}.isdisjoint(unseen) for row in coefficients]
    hidden = bool(coefficients[0].effect) and not known.all() and bool((unit * np.abs(way)).max() > _GONE)
    distance = float(np.nanmax(np.abs(step) / errors, initial=-np.inf))
    if inverse.rank and not np.isfinite(distance):  # of all combinations, where no coefficient has an error
        distance = _decrement(inverse, information, residuals, floor)
    facts = _facts(distance, information, hidden or bool(gone.any()))
    if facts.converged and not perfect:
        facts = facts._replace(
            log_likelihood=_log_likelihood(information, residuals), parameters=inverse.rank
        )
    far = facts.distance is None or facts.distance > CONVERGED  # there the information matrix is another one
    exact = residuals and not robust
    done = [
        with_error(coefficient, error, freedom if exact else 0.0)
        for coefficient, error in zip(coefficients, np.where(gone | far, np.nan, errors), strict=True)
    ]
    stopped = bool(gone.any()) and _decrement(inverse, information, residuals, floor) < 1
    advice = _advice(information, curvature, newton, stopped)
    remarks = _remarks(done, loose, information, facts, moves, advice)
    remarks += [_HIDDEN] * (hidden and not gone.any())
    remarks += [
        f"no row has the class {name}: take it out of the schema's classes" for name in sorted(unseen)
    ]
    remarks += ["the model predicts every label up to rounding, so there are no standard errors"] * perfect
    tests = joint_tests(done, covariance, freedom if exact else 0.0, gone)
    clusters = int(information.clusters) if robust else 0
    tests = [test for test in tests if not clusters or test.freedom < clusters]
    return Inference(done, remarks, facts=facts, tests=tests, robust=robust, clusters=clusters)


def _spans(coefficients: list[Coefficient], spans: Mapping[str, float]) -> Array:
    """Half the range of the column of each coefficient (terms,), 1 for all but numbers and their products."""
    return np.array([1.0 if row.term == MISSING else spans.get(row.column, 1.0) for row in coefficients])


def _facts(distance: float, information: Information, gone: bool) -> Facts:
    """How far the estimates are from the maximum; no distance without a maximum or with nothing determined."""
    known = bool(information.bounding) and np.isfinite(distance)
    converged = known and distance <= CONVERGED and not gone
    return Facts(
        rows=int(information.observations), distance=distance if known else None, converged=bool(converged)
    )


def _covariance(
    rows: Array, inverse: Inverse, information: Information, residuals: bool, robust: bool
) -> Array:
    """The covariance of the estimates (terms, terms), NaN for what is not determined."""
    parts = rows @ inverse.root  # (terms, rank), whose squares add up to the variances
    if robust:
        return parts @ (inverse.root.T @ information.outer @ inverse.root) @ parts.T  # type: ignore[no-any-return]
    return _variance(inverse, information, residuals) * (parts @ parts.T)  # type: ignore[no-any-return]


def _small_sample(information: Information, parameters: int) -> float:
    """The factor of a covariance that is robust to groups of rows; 1 without groups, NaN for too few of them."""
    rows, clusters = information.observations, information.clusters
    if not clusters:
        return 1.0
    if not (clusters > 1 and rows > parameters):
        return math.nan
    return clusters / (clusters - 1) * (rows - 1) / (rows - parameters)


def _log_likelihood(information: Information, residuals: bool) -> float:
    """The log likelihood of all rows, for least squares at the variance that maximises it."""
    if not residuals:
        return -information.loss
    rows = information.observations
    return -rows / 2 * (math.log(2 * math.pi * 2 * information.loss / rows) + 1)


def _variance(inverse: Inverse, information: Information, residuals: bool) -> float:
    """The factor of the covariance: the residual variance of least squares, NaN without a degree of freedom, else 1."""
    freedom = information.observations - inverse.rank
    if not residuals:
        return 1.0
    return 2 * information.loss / freedom if freedom > 0 else np.nan


def farthest(information: Information, residuals: bool) -> float:
    """The distance to the maximum in standard errors, by one step of Newton's method: the largest of all linear
    combinations of the parameters that are determined, sqrt(g^T H^+ g). residuals: as in `infer`."""
    return _decrement(Inverse.of(information.matrix), information, residuals, 0.0)


def _decrement(inverse: Inverse, information: Information, residuals: bool, floor: float) -> float:
    """See `farthest`; floor: the least variance of a residual."""
    size = float(np.linalg.norm(inverse.root.T @ information.gradient))
    return size / float(np.sqrt(np.maximum(_variance(inverse, information, residuals), floor)))


def with_error(coefficient: Coefficient, error: float, freedom: float = 0.0) -> Coefficient:
    """The coefficient with its error; freedom: of Student's t, 0 for the normal distribution."""
    tail = (1 - LEVEL) / 2
    z = abs(coefficient.estimate / error)
    p_value = 2 * float(special.stdtr(freedom, -z) if freedom else special.ndtr(-z))
    reach = error * float(-special.stdtrit(freedom, tail) if freedom else -special.ndtri(tail))
    low, high = coefficient.estimate - reach, coefficient.estimate + reach
    with np.errstate(over="ignore"):
        ends = np.exp([low, high]).tolist() if coefficient.effect else (math.nan, math.nan)
    return coefficient._replace(
        std_error=float(error), p_value=p_value, low=low, high=high, ratio_low=ends[0], ratio_high=ends[1]
    )


def _far(done: list[Coefficient], facts: Facts, moves: Array) -> str:
    """How far the estimates are from the maximum by one step of Newton's method, (terms,), if that is far.

    Where columns almost separate the classes, or a category has no events, the step is a small part of an enormous
    standard error, but not in log odds or log rates. moves: the steps in these, of numbers over half of their ranges.
    """
    texts = []
    if facts.distance and facts.distance > _FAR:
        texts.append(f"an estimate is up to {facts.distance:.2g} standard errors")
    effect, sizes = done[0].effect, np.nan_to_num(moves)
    worst = int(sizes.argmax())
    if effect and sizes[worst] > _FAR:
        over = " over half of its range" if done[worst].term == PER_UNIT else ""
        texts.append(f"the estimate of {_name(done[worst])} is {sizes[worst]:.2g} in log {effect}{over}")
    return " and ".join(texts)


def _remarks(
    done: list[Coefficient],
    loose: str,
    information: Information,
    facts: Facts,
    moves: Array,
    advice: str,
) -> list[str]:
    """Sentences about estimates that do not exist, are not determined (`loose`), or were not reached."""
    texts = [loose] * bool(loose)
    if not information.bounding:
        return [*texts, f"{_UNBOUNDED[bool(done[0].against)]}, so there are no intervals and p-values"]
    far = _far(done, facts, moves)
    if not far:
        return texts
    return [
        *texts,
        f"{far} from the maximum of the likelihood of all rows: {advice}columns separate the classes, or a category "
        "has no events, and the maximum does not exist",
        *_withheld(done, facts, moves),
    ]


def undetermined(done: list[Coefficient], rows: Array, inverse: Inverse) -> str:
    """A sentence that names the coefficients that the data do not determine; empty if they determine all. rows
    (terms, d): T."""
    loose = ~inverse.determines(rows)
    if not loose.any():
        return ""
    by_column: dict[tuple[str, str], list[bool]] = {}
    for row, open_ in zip(done, loose.tolist(), strict=True):
        if row.reference and row.term != row.reference:
            by_column.setdefault((row.outcome, row.column), []).append(open_)
    empty = dict.fromkeys(column for (_, column), terms in by_column.items() if all(terms) and len(terms) > 1)
    why = f"columns are collinear or hardly vary in their range{_at_risk(done)}"
    text = f"not determined, because {why}: {_named(done, loose)}"
    return text + (_ANOTHER.format(", ".join(empty)) if empty else "")


def _withheld(done: list[Coefficient], facts: Facts, moves: Array) -> list[str]:
    """A sentence on the intervals that are not shown; empty if all are."""
    if (facts.distance or 0.0) > CONVERGED:
        return [f"intervals and p-values are withheld beyond {CONVERGED:g} standard errors from the maximum"]
    gone = _named(done, moves > _GONE) if done[0].effect else ""
    return [f"intervals and p-values are withheld where an estimate may not exist: {gone}"] * bool(gone)


def where_unclipped(done: Inference) -> Inference:
    """The inference without intervals and p-values if more than `MOST_CLIPPED` of the values of a column were clipped,
    or can have been, and with a remark on columns of which nobody has counted them.

    The model is one of the clipped values, whose coefficients are others than those of the column.
    """
    if not any(row.std_error > 0 for row in done.rows):
        return done  # there are none, for another reason
    known = done.facts.clipped or {}
    many = [f"{name} ({n})" for name, n in known.items() if n and n.values > MOST_CLIPPED * n.rows]
    unknown = [name for name, n in known.items() if n is None]
    rows = [with_error(row, math.nan) for row in done.rows] if many else done.rows
    remarks = [_CLIPPED.format(", ".join(many))] * bool(many) + [
        _UNCOUNTED.format(", ".join(unknown))
    ] * bool(unknown)
    tests = () if many else done.tests
    return done._replace(rows=rows, remarks=[*done.remarks, *remarks], tests=tests)


def _advice(information: Information, curvature: float, newton: bool, stopped: bool) -> str:
    """How a run comes nearer to the maximum, if that exists; curvature and newton: as in `infer`; stopped: whether
    an estimate may not exist, so near to what is one that Newton's method has ended."""
    if newton:
        return "" if stopped else "raise rounds; if it stays so, "
    return (
        "algorithm = newton reaches it in a few rounds; else train for more rounds, with clients.weighting = rows, or "
        f"with another step-size: with one local step, {_largest_step(information, curvature)}; if it stays so, "
    )


def _largest_step(information: Information, curvature: float) -> str:
    """What is known of 1 / L, with L the largest curvature of the mean over all rows; curvature: as in `infer`."""
    if curvature:
        return f"{1 / curvature:.2g} is at most 1 / L at the maximum"
    step = information.rows / np.linalg.eigvalsh(information.matrix)[-1]
    return f"{step:.2g} is 1 / L at this model, and steps above twice 1 / L do not settle"


def _at_risk(done: list[Coefficient]) -> str:
    """A further reason why a baseline hazard is not determined; empty for other models."""
    return ", or nobody is at risk in an interval" if any(row.column == BASELINE for row in done) else ""


def _named(done: list[Coefficient], which: Any) -> str:
    return ", ".join(_name(row) for row, there in zip(done, which, strict=True) if there)


def _name(row: Coefficient) -> str:
    name = f"{row.column} {row.term}".strip()
    return f"{name} ({row.outcome})" if row.against else name
