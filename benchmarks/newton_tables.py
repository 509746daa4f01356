"""Newton's method against statsmodels and lifelines on public tables that are cut unequally over sites.

    python benchmarks/newton_tables.py [FOLDER...]

prints, for each table and each folder of a run of newton on tables with standard errors (a logistic or a Cox model),
the rounds and the largest differences of estimates, standard errors and ends of intervals, in standard errors, and of
p-values, from those of the other library on the pooled rows.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import statsmodels.api as sm
from lifelines import CoxPHFitter
from lifelines.datasets import load_rossi
from scipy.stats import norm, t
from sklearn.datasets import load_diabetes
from statsmodels.duration.hazard_regression import PHReg

from twinflower.algorithms import Newton
from twinflower.algorithms.algorithm import RunInfo
from twinflower.models.model import _differentials, inferred
from twinflower.models.trained import load
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.discrete_cox import DISCRETE_COX, LINKS
from twinflower.problems.losses import packed
from twinflower.problems.objectives import LinearModel, make_objective
from twinflower.problems.stratified_cox import StratifiedCoxObjective
from twinflower.rounds import Problem, rounds
from twinflower.simulation.results.reading import read_config
from twinflower.simulation.runs.setup import prepare
from twinflower.survival_labels import signed, unsigned

SHARES = (0.62, 0.23, 0.1, 0.05)


class Table(NamedTuple):
    """Rows, their model, and what another library gives for it: estimates (p,) and their standard errors (p,).

    contrast (p, d): the estimates as linear functions of x. freedom: of Student's t; 0 for the normal distribution.
    variance: of the errors, by which the covariance is multiplied.
    """

    name: str
    features: np.ndarray
    labels: np.ndarray
    objective: LinearModel
    estimates: np.ndarray
    errors: np.ndarray
    contrast: np.ndarray
    freedom: float = 0.0
    variance: float = 1.0


def cut(rows: int) -> np.ndarray:
    """The sizes of four unequal sites."""
    ends = np.round(np.cumsum(SHARES) * rows).astype(int)
    return np.diff([0, *ends])


def trained(table: Table) -> tuple[np.ndarray, np.ndarray, int]:
    """Estimates and their standard errors, and the number of rounds."""
    rows = len(table.labels)
    ends = np.concatenate([[0], np.cumsum(cut(rows))])
    shards = Shards.grouped(table.features, table.labels, np.arange(rows), ends)
    algorithm = Newton(info=RunInfo(quadratic=table.freedom > 0))
    problem = Problem(table.objective, shards, np.zeros(table.objective.d))
    steps = list(rounds(algorithm, problem, LocalSchedule(0, 1), 30))
    server = steps[-1].server
    stop = algorithm.stops(server)
    assert stop is not None
    assert stop.reason == "converged"
    inverse = np.linalg.pinv(algorithm.information(server).matrix, rcond=1e-11, hermitian=True)
    covariance = table.variance * table.contrast @ inverse @ table.contrast.T
    return table.contrast @ server.x, np.sqrt(np.diag(covariance)), len(steps)


def inference(estimates: np.ndarray, errors: np.ndarray, freedom: float) -> dict[str, np.ndarray]:
    """What a table of coefficients shows."""
    law: Any = t(freedom) if freedom else norm
    reach = law.ppf(0.975) * errors
    return {
        "estimates": estimates, "errors": errors, "low": estimates - reach, "high": estimates + reach,
        "p": 2 * law.sf(np.abs(estimates / errors)),
    }  # fmt: skip


def with_ones(columns: Any) -> np.ndarray:
    """The columns in units of their standard deviations around their means, and a column of ones."""
    columns = np.asarray(columns, float)
    return np.column_stack([(columns - columns.mean(0)) / columns.std(0), np.ones(len(columns))])


def tables() -> Iterator[Table]:
    """All tables."""
    yield fair()
    yield randhie()
    yield anes96()
    yield diabetes()
    yield from cox(load_rossi().sample(frac=1.0, random_state=0))


def fair() -> Table:
    """Logistic regression, against a generalised linear model."""
    rows = sm.datasets.fair.load_pandas().data
    features, labels = with_ones(rows.drop(columns="affairs")), (rows.affairs > 0).to_numpy(int)
    known = sm.GLM(labels, features, family=sm.families.Binomial()).fit(tol=1e-15)
    d = features.shape[1]
    objective = make_objective("logistic", d, 2)
    return Table("fair, logistic", features, labels, objective, known.params, known.bse, np.eye(d))


def randhie() -> Table:
    """Poisson regression, against a generalised linear model."""
    rows = sm.datasets.randhie.load_pandas().data
    features, counts = with_ones(rows.drop(columns="mdvis")), rows.mdvis.to_numpy(float)
    known = sm.GLM(counts, features, family=sm.families.Poisson()).fit(tol=1e-15)
    d, labels = features.shape[1], packed(counts, np.zeros(len(counts)))
    objective = make_objective("poisson", d, 0)
    return Table("randhie, Poisson", features, labels, objective, known.params, known.bse, np.eye(d))


def anes96() -> Table:
    """Softmax regression, against multinomial logit, whose coefficients are contrasts to the first class."""
    rows = sm.datasets.anes96.load_pandas().data
    features = with_ones(rows[["logpopul", "selfLR", "age", "educ", "income"]])
    labels = rows.PID.to_numpy(int)
    known = sm.MNLogit(labels, features).fit(method="newton", tol=1e-15, disp=0)
    d, classes = features.shape[1], 7
    contrast = np.kron(np.column_stack([-np.ones(classes - 1), np.eye(classes - 1)]), np.eye(d))
    return Table(
        "anes96, multinomial", features, labels, make_objective("softmax", d, classes),
        np.asarray(known.params).T.ravel(), np.asarray(known.bse).T.ravel(), contrast,
    )  # fmt: skip


def diabetes() -> Table:
    """Linear regression, against ordinary least squares."""
    features, labels = load_diabetes(return_X_y=True)
    features = with_ones(features)
    known, d = sm.OLS(labels, features).fit(), features.shape[1]
    return Table(
        "diabetes, linear", features, labels, make_objective("least-squares", d, 0), known.params, known.bse, np.eye(d),
        known.df_resid, known.scale,
    )  # fmt: skip


def cox(rossi: Any) -> Iterator[Table]:
    """Cox's model with every site as a stratum, against PHReg, and against lifelines, whose ties are Efron's."""
    columns = ["fin", "age", "race", "wexp", "mar", "paro", "prio"]
    features = with_ones(rossi[columns])[:, :-1]
    times, events = rossi.week.to_numpy(float), rossi.arrest.to_numpy(int)
    sizes = cut(len(rossi))
    strata, d = np.repeat(range(4), sizes), len(columns)
    for ties in ("breslow", "efron"):
        known = PHReg(times, features, status=events, strata=strata, ties=ties).fit(disp=0)
        model = StratifiedCoxObjective(ties=ties).build(d, 0)
        yield Table(
            f"rossi, Cox, {ties}, PHReg",
            features,
            signed(times, events == 1),
            model,
            known.params,
            known.bse,
            np.eye(d),
        )
    frame = rossi[["week", "arrest"]].assign(
        site=strata, **{c: features[:, k] for k, c in enumerate(columns)}
    )
    fitted = CoxPHFitter().fit(frame, "week", "arrest", strata=["site"], fit_options={"precision": 1e-12})
    yield Table(
        "rossi, Cox, efron, lifelines", features, signed(times, events == 1),
        StratifiedCoxObjective(ties="efron").build(d, 0), fitted.params_[columns].to_numpy(),
        fitted.standard_errors_[columns].to_numpy(), np.eye(d),
    )  # fmt: skip


def of_run(folder: Path) -> str:
    """The comparison of the coefficients of a run with statsmodels on its training rows, which are public here."""
    model, setup = load(folder), prepare(read_config(folder).config)
    sites = [setup.shards.rows(site) for site in range(setup.config.clients.count)]
    rows, labels = (
        np.concatenate(parts) for parts in zip(*((s.features, s.labels) for s in sites), strict=True)
    )
    if setup.config.objective.name == "logistic":
        fitted = sm.GLM(labels, rows, family=sm.families.Binomial()).fit(tol=1e-15)
        known, covariance = np.asarray(fitted.params), np.asarray(fitted.cov_params())
    elif setup.config.objective.name == DISCRETE_COX:
        known, covariance = _discrete(rows, labels, setup.objective.loss)
    else:
        ties = setup.config.objective.ties
        known, covariance = _stratified(rows, labels, [len(site.labels) for site in sites], ties)
    contrast = _differentials(model)
    errors = np.sqrt(np.einsum("td,de,te->t", contrast, covariance, contrast))
    ours, theirs = inferred(model).rows, inferred(replace(model, x=known)).rows
    shown = [place for place, row in enumerate(ours) if row.std_error > 0]
    there = inference(np.array([theirs[place].estimate for place in shown]), errors[shown], 0.0)
    names = {"estimates": "estimate", "errors": "std_error", "low": "low", "high": "high", "p": "p_value"}
    here = {key: np.array([getattr(ours[place], name) for place in shown]) for key, name in names.items()}
    sizes = "/".join(str(len(site.labels)) for site in sites)
    number = len((folder / "rounds.jsonl").read_text().splitlines())
    return f"{folder.name}: {len(labels)} rows at {sizes}, {number} rounds; {differences(here, there)}"


def _discrete(rows: np.ndarray, labels: np.ndarray, loss: Any) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and covariance by a GLM of every person's intervals, in a basis of the columns that these determine."""
    at_risk, events = loss.histories(labels)
    person, interval = np.nonzero(at_risk)
    columns = np.hstack([rows[person], np.eye(len(loss.ends))[interval]])
    values, vectors = np.linalg.eigh(columns.T @ columns)
    basis = vectors[:, values > 1e-9 * values[-1]]
    link = sm.families.links.CLogLog() if loss.link is LINKS["cloglog"] else sm.families.links.Logit()
    model = sm.GLM(events[person, interval], columns @ basis, family=sm.families.Binomial(link=link))
    fitted = model.fit(tol=1e-15, maxiter=200)
    covariance = np.linalg.inv(-model.hessian(fitted.params, observed=True))
    return basis @ fitted.params, basis @ covariance @ basis.T


def _stratified(
    rows: np.ndarray, labels: np.ndarray, sizes: list[int], ties: str
) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and covariance by PHReg, in an orthonormal basis of the differences of rows with redundant columns."""
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    basis = vectors[:, values > 1e-12 * values[-1]]
    times, events = unsigned(labels)
    strata = np.repeat(range(len(sizes)), sizes)
    fitted = PHReg(times, rows @ basis, status=events.astype(int), strata=strata, ties=ties).fit(disp=0)
    return basis @ fitted.params, basis @ fitted.cov_params() @ basis.T


def differences(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> str:
    """The largest differences, of all but p-values in standard errors."""
    scale = dict.fromkeys(ours, theirs["errors"]) | {"p": np.ones(1)}
    return ", ".join(f"{key} {np.abs((ours[key] - theirs[key]) / scale[key]).max():.1e}" for key in ours)


def main() -> None:
    """Print the comparison."""
    for folder in map(Path, sys.argv[1:]):
        print(of_run(folder), flush=True)
    for table in tables():
        estimates, errors, number = trained(table)
        ours = inference(estimates, errors, table.freedom)
        theirs = inference(table.estimates, table.errors, table.freedom)
        sizes = "/".join(map(str, cut(len(table.labels))))
        shown = differences(ours, theirs)
        print(f"{table.name}: {len(table.labels)} rows at {sizes}, {number} rounds; {shown}", flush=True)


if __name__ == "__main__":
    main()
