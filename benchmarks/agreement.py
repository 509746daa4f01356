"""Coefficients over four sites beside those of statsmodels and lifelines on the pooled rows, on three public tables.

    python benchmarks/agreement.py

The tables ship in the packages. Every row prints the largest difference of the estimates, in standard errors, and of
the standard errors, as a share; `agree` is at most 1e-3 of both, for a model that says that it has converged.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from lifelines import CoxPHFitter
from lifelines.datasets import load_gbsg2, load_rossi
from statsmodels.duration.hazard_regression import PHReg

import twinflower
from twinflower.models.inference import _largest_step
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.settings import parse

SITES = 4
LIMIT = 1e-3
Found = tuple[list[float], list[float]]  # estimates and standard errors, in the order of the columns


def ours(table: pd.DataFrame, label: str, event: str, rounds: int, folder: Path) -> tuple[bool, Found]:
    """Whether the run has converged, and what it finds; without an event, the label is a class."""
    columns = [name for name in table if name not in (label, event)]
    for site in range(SITES):
        table[site::SITES].to_csv(folder / f"site-{site}.csv", index=False)
    ends = [f"{name} = {{ range = [{table[name].min()}, {table[name].max()}] }}" for name in columns]
    events = f'event = "{event}"\nevent-values = ["1"]\ncensored-values = ["0"]'
    kind = f"times = [0.5, {table[label].max()}]\n{events}" if event else "classes = [0, 1]"
    text = [f'[label]\ncolumn = "{label}"\n{kind}\n[columns]', *ends]
    (folder / "schema.toml").write_text("\n".join(text))
    keys = {
        "algorithm": "fedavg", "rounds": rounds, "local.max-steps": 1, "clients.weighting": "rows",
        "data.name": "tables", "data.files": str(folder / "site-*.csv"), "data.schema": str(folder / "schema.toml"),
        "data.row-scaling": "all", "data.test-fraction": 0, "evaluation.every": rounds,
        "evaluation.standard-errors": True, "regulariser.name": "none",
        "objective.name": "stratified-cox" if event else "logistic",
    }  # fmt: skip
    start = prepare(parse(keys))
    (query,) = [own for own in start.model_queries if own.name == "information"]
    sums = query.simulated(start.start, start.config.rounds)
    step = 1.8 * _largest_step(sums)
    (result,) = cohort.train([prepare(parse(keys | {"fedavg.step-size": step}))])
    found = twinflower.load(write_run(result, folder / "run")).coefficients()
    rows = [row for row in found if row.column in columns]
    return bool(found.facts.converged), ([row.estimate for row in rows], [row.std_error for row in rows])


def by_logit(table: pd.DataFrame, label: str, _: str) -> Found:
    known = sm.Logit(table[label], sm.add_constant(table.drop(columns=label))).fit(disp=0, tol=1e-12)
    return known.params[1:].tolist(), known.bse[1:].tolist()


def by_phreg(table: pd.DataFrame, label: str, event: str) -> Found:
    columns, sites = table.drop(columns=[label, event]), np.arange(len(table)) % SITES
    known = PHReg(table[label], columns, status=table[event], strata=sites, ties="efron").fit()
    return known.params.tolist(), known.bse.tolist()


def by_lifelines(table: pd.DataFrame, label: str, event: str) -> Found:
    known = CoxPHFitter().fit(table.assign(site=np.arange(len(table)) % SITES), label, event, strata="site")
    return known.params_.tolist(), known.standard_errors_.tolist()


def fair() -> pd.DataFrame:
    """The survey of extramarital affairs in statsmodels, 6,366 rows, as classes."""
    table = sm.datasets.fair.load_pandas().data
    return table.assign(affairs=(table.affairs > 0).astype(int))


def gbsg2() -> pd.DataFrame:
    """The breast cancer study in lifelines, 686 persons, its numbers and the treatment."""
    table = load_gbsg2().assign(horTh=lambda own: (own.horTh == "yes").astype(int))
    return table[["horTh", "age", "tsize", "pnodes", "time", "cens"]]


Peer = Callable[[pd.DataFrame, str, str], Found]
TABLES: dict[str, tuple[Callable[[], pd.DataFrame], str, str, int, dict[str, Peer]]] = {
    "fair (statsmodels)": (fair, "affairs", "", 4000, {"statsmodels Logit": by_logit}),
    "rossi (lifelines)": (
        load_rossi, "week", "arrest", 4000, {"statsmodels PHReg": by_phreg, "lifelines": by_lifelines},
    ),
    "gbsg2 (lifelines)": (
        gbsg2, "time", "cens", 4000, {"statsmodels PHReg": by_phreg, "lifelines": by_lifelines},
    ),
}  # fmt: skip


def compared(known: Found, own: Found) -> tuple[float, float]:
    """The largest difference of estimates in standard errors, and of standard errors as a share."""
    (estimates, errors), (ours_, own_errors) = map(np.array, known), map(np.array, own)
    return float(np.abs((ours_ - estimates) / errors).max()), float(np.abs(own_errors / errors - 1).max())


def main() -> None:
    """Print the table."""
    print("| table | peer | converged | estimates | standard errors | |\n|---|---|---|---|---|---|")
    for name, (load, label, event, rounds, peers) in TABLES.items():
        table: Any = load()
        with tempfile.TemporaryDirectory() as folder:
            converged, own = ours(table, label, event, rounds, Path(folder))
        for peer, fit in peers.items():
            apart = compared(fit(table, label, event), own)
            verdict = "agree" if converged and max(apart) <= LIMIT else "differ"
            print(
                f"| {name} | {peer} | {converged} | {apart[0]:.1e} | {apart[1]:.1e} | {verdict} |", flush=True
            )


if __name__ == "__main__":
    main()
