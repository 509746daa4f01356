"""Fed-Heart-Disease of FLamby (du Terrail et al., NeurIPS 2022): our estimators beside FLamby's published results.

    python benchmarks/flamby.py --data-dir DIR [--method PACKAGE.MODULE:FUNCTION] [--page FILE] [--figure FILE]
    python benchmarks/flamby.py --corrected

The score is FLamby's: the mean of the hospitals' accuracies on their own test rows. Each method is trained without
privacy and so that all messages of a hospital are (epsilon, 1e-4)-private where a patient's record is replaced; under
both preparations and both kinds of trust:

- public ranges: a column is mapped to [-1, 1] by a range that a cardiologist could name without the tables;
- FLamby's scaling: a hospital standardises its columns by mean and deviation of its own training rows. No guarantee
  covers these statistics, so a private result under it holds for rows that were given scaled;
- local noise: a hospital trusts nobody;
- sums: the server sees sums over the four hospitals only, and all four add their noise.

No setting is tuned. All are the estimator's defaults, with one local step a round where there is privacy. There are
results for FLamby's split with 20 seeds, and for 20 splits. They are kept in benchmarks/results/flamby.csv, and a
number that is there is not computed again.

--method adds the results of another method: FUNCTION(epsilon, delta, seed) returns an object with fit(X, y, sites) and
predict(X), or None where it has no such form; X is in [-1, 1].

--corrected prints the epsilon of FLamby's own private results. Its noise is chosen for as many passes over a hospital's
rows as there are rounds (15), while each round takes 100 steps on batches of 4. For Switzerland (30 rows, 8 batches)
that is 1,500 steps in place of 120. Takes minutes, and needs `pip install dp-accounting`.
"""

import argparse
import csv
import itertools
import math
import os
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import flamby_heart as heart
import numpy as np
from sklearn.linear_model import LogisticRegression

from twinflower import FederatedClassifier

STORE = Path(__file__).parent / "results" / "flamby.csv"
EPSILONS = (0.1, 1.0, 4.0, 8.0, math.inf)
DELTA = 1e-4
PREPARATIONS = PUBLIC, OWN = ("public ranges", "FLamby's scaling")
TRUSTS = LOCAL, SUMS = ("local noise", "sums")
FLAMBY_SPLIT = 43
ROUNDS, UPDATES, BATCH = 15, 100, 4  # of FLamby's private runs
CLAIMED = (0.1, 1.0, 5.0, 10.0, 50.0)


class Case(NamedTuple):
    """What a number depends on, besides the seed. epsilon: infinity without privacy. split: a seed of the split."""

    method: str
    preparation: str
    trust: str
    epsilon: float
    splits: str


Make = Callable[[float, float, int], Any]
Results = dict[Case, dict[int, float]]


def ours(algorithm: str, trust: str) -> Make:
    """The estimator with its defaults."""

    def make(epsilon: float, delta: float, seed: int) -> FederatedClassifier:
        private = epsilon < math.inf
        settings = {"clients.weighting": "rows"} | ({"local.max-steps": 1} if private else {})
        if trust == SUMS:
            settings |= {"privacy.trust": "sum", "privacy.honest-sites": len(heart.HOSPITALS)}
        return FederatedClassifier(
            algorithm, epsilon=epsilon if private else None, delta=delta, ranges=(-1, 1), settings=settings,
            random_state=seed,
        )  # fmt: skip

    return make


class Pooled:
    """Logistic regression on the rows of all hospitals."""

    def fit(self, X: Any, y: Any, sites: Any) -> "Pooled":
        self.model = LogisticRegression(max_iter=1000).fit(X, y)
        return self

    def predict(self, X: Any) -> Any:
        return self.model.predict(X)


def alone(epsilon: float, delta: float, seed: int) -> Pooled | None:
    """For comparison only: it has no private form."""
    return Pooled() if epsilon == math.inf else None


METHODS: dict[str, dict[str, Make]] = {
    "pooled logistic regression": {LOCAL: alone},
    **{
        name: {trust: ours(name.lower(), trust) for trust in TRUSTS}
        for name in ("FedPDM", "FedAvg", "SCAFFOLD", "FedDyn")
    },
}


# ------------------------------------------------------------------------------------------------------ results


def cases(methods: dict[str, dict[str, Make]]) -> Iterator[tuple[Case, Make]]:
    """All of these methods; without privacy there is nothing to trust."""
    conditions = itertools.product(PREPARATIONS, EPSILONS, ("FLamby's", "repeated"))
    for preparation, epsilon, splits in conditions:
        for name, makers in methods.items():
            for trust, make in makers.items():
                if (epsilon < math.inf or trust == LOCAL) and make(epsilon, DELTA, 0):
                    yield Case(name, preparation, trust, epsilon, splits), make


def score(case: Case, make: Make, seed: int, names: list[str], patients: heart.Rows) -> float:
    """The score of one training."""
    train = heart.trained_rows(patients, FLAMBY_SPLIT if case.splits == "FLamby's" else seed)
    prepare = heart.by_ranges if case.preparation == PUBLIC else heart.by_own_rows
    rows = prepare(names, patients, train)
    model = make(case.epsilon, DELTA, seed).fit(
        rows[train].features, rows[train].labels, sites=rows[train].sites
    )
    return heart.score(model.predict(rows[~train].features), rows[~train])


def stored(path: Path) -> Results:
    """What has been computed: case, seed, score."""
    found: Results = defaultdict(dict)
    if path.exists():
        with path.open() as file:
            for method, preparation, trust, epsilon, splits, seed, value in csv.reader(file):
                case = Case(method, preparation, trust, float(epsilon), splits)
                found[case][int(seed)] = float(value)
    return found


def complete(path: Path, methods: dict[str, dict[str, Make]], data: Path, seeds: int) -> None:
    """Compute and append what is not there yet, FLamby's own results first."""
    known, (names, patients) = stored(path), heart.patients(data)
    todo = (
        (case, make, seed)
        for case, make in cases(methods)
        for seed in range(seeds)
        if seed not in known[case]
    )
    with path.open("a", newline="") as file:
        write = csv.writer(file, lineterminator="\n").writerow
        for case, own in published(data / "flamby").items():
            if case not in known:
                for seed, value in own.items():
                    write([*case, seed, f"{value:.6f}"])
        for case, make, seed in todo:
            write([*case, seed, f"{score(case, make, seed, names, patients):.6f}"])
            file.flush()


def published(folder: Path) -> Results:
    """FLamby's results: five seeds without privacy, and FedAvg by the epsilon that it claims, at delta 1e-4."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("heart_seed*.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                if row["Test"].startswith("client_test"):
                    found[row["Method"]][int(row["seed"])].append(float(row["Metric"]))
    results = {
        Case(f"{name} (FLamby)", OWN, LOCAL, math.inf, "FLamby's"): {
            s: statistics.fmean(v) for s, v in own.items()
        }
        for name, own in found.items()
    }
    with (folder / "results_fed_heart_disease.csv").open() as file:
        for row in csv.DictReader(file):
            if row["e"] and float(row["d"]) == DELTA:
                case = Case("FedAvg (FLamby)", OWN, LOCAL, float(row["e"]), "FLamby's, claimed")
                results.setdefault(case, {})[int(row["seed"])] = float(row["perf"])
    return results


# ---------------------------------------------------------------------------------------------- table and figure


def spread(values: dict[int, float] | None) -> str:
    """Mean and standard deviation over seeds, as in a table."""
    if not values:
        return ""
    own = list(values.values())
    return f"{statistics.fmean(own):.3f}" + (f" +- {statistics.stdev(own):.3f}" if len(set(own)) > 1 else "")


def table(found: Results, splits: str) -> list[str]:
    """Lines of Markdown: a row for each method, preparation and trust, a column for each epsilon."""
    lines = ["| method | preparation | trust | epsilon 0.1 | 1 | 4 | 8 | none |", "|---" * 8 + "|"]
    for row in dict.fromkeys(case[:3] for case in found if case.splits == splits):
        cells = [spread(found.get(Case(*row, epsilon, splits))) for epsilon in EPSILONS]
        lines.append("| " + " | ".join([*row, *cells]) + " |")
    return lines


def filled(text: str, found: Results) -> str:
    """A page whose tables, between <!-- flamby SPLITS --> and <!-- end -->, are those of the results."""

    def block(match: re.Match[str]) -> str:
        return "\n".join([match[1], "", *table(found, match[2]), "", match[3]])

    return re.sub(r"(<!-- flamby (.+?) -->).*?(<!-- end -->)", block, text, flags=re.DOTALL)


def draw(found: Results, path: Path) -> None:
    """Score by epsilon over the repeated splits, with the deviation over splits."""
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
    lines = list(itertools.product(("FedPDM", "FedAvg"), TRUSTS))
    for axes, preparation in zip(panels, PREPARATIONS, strict=True):
        axes.set(title=preparation, xlabel="epsilon of a hospital's patient", xticks=range(len(EPSILONS)))
        axes.set_xticklabels(["none" if epsilon == math.inf else f"{epsilon:g}" for epsilon in EPSILONS])
        for place, (method, trust) in enumerate(lines):
            series = [found.get(Case(method, preparation, trust, e, "repeated")) for e in EPSILONS]
            x, own = zip(
                *((x, list(values.values())) for x, values in enumerate(series) if values), strict=True
            )
            axes.errorbar(
                np.array(x) + (place - 1.5) / 15, list(map(statistics.fmean, own)), list(map(statistics.stdev, own)),
                fmt="o-" if trust == LOCAL else "s--", color=f"C{place // 2}", capsize=3, label=f"{method}, {trust}",
            )  # fmt: skip
    panels[0].set_ylabel("mean accuracy of the four hospitals")
    panels[1].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=120)


def corrected() -> Iterator[str]:
    """Lines of Markdown: what FLamby claims, and what its noise gives after all its steps, at delta 1e-4."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relations = dp_accounting.NeighboringRelation
    batches = math.ceil(30 / BATCH)  # Switzerland, for which the difference is largest

    def steps(noise: float, count: int) -> dp_accounting.DpEvent:
        sampled = dp_accounting.PoissonSampledDpEvent(1 / batches, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(sampled, count)

    yield from ("| claimed | add or remove | replace |", "|---|---|---|")
    for claimed in CLAIMED:
        noise = dp_accounting.calibrate_dp_mechanism(
            lambda: PLDAccountant(relations.ADD_OR_REMOVE_ONE),
            lambda n: steps(n, ROUNDS * batches),
            claimed,
            DELTA,
        )
        known = (
            PLDAccountant(relation).compose(steps(noise, ROUNDS * UPDATES)).get_epsilon(DELTA)
            for relation in (relations.ADD_OR_REMOVE_ONE, relations.REPLACE_ONE)
        )
        yield f"| {claimed:g} | " + " | ".join(f"{epsilon:.2f}" for epsilon in known) + " |"


def loaded(word: str) -> dict[str, dict[str, Make]]:
    """The method that PACKAGE.MODULE:FUNCTION names."""
    module, _, function = word.partition(":")
    sys.path.insert(0, "")
    return {word: {LOCAL: getattr(import_module(module), function)}}


def main() -> None:
    """Complete the results, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir", type=Path, help="folder with heart/*.csv and flamby/*.csv; none: no new results"
    )
    parser.add_argument("--seeds", type=int, default=20, help="of FLamby's split, and repeated splits")
    parser.add_argument("--method", default="", metavar="PACKAGE.MODULE:FUNCTION", help="another method")
    parser.add_argument("--results", type=Path, default=STORE)
    parser.add_argument("--page", type=Path, help="a page whose tables are filled")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--corrected", action="store_true", help="only FLamby's own epsilon")
    chosen = parser.parse_args()
    if chosen.corrected:
        print(*corrected(), sep="\n")
        return
    if chosen.data_dir:
        chosen.results.parent.mkdir(exist_ok=True)
        complete(
            chosen.results,
            METHODS | (loaded(chosen.method) if chosen.method else {}),
            chosen.data_dir,
            chosen.seeds,
        )
    found = stored(chosen.results)
    for splits in dict.fromkeys(case.splits for case in found):
        print("", splits, "", *table(found, splits), sep="\n")
    if chosen.page:
        chosen.page.write_text(filled(chosen.page.read_text(), found))
    if chosen.figure:
        draw(found, chosen.figure)


if __name__ == "__main__":
    main()
