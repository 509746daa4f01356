"""Two tasks of FLamby (du Terrail et al., NeurIPS 2022): our estimators beside FLamby's published results.

    python benchmarks/flamby.py --data-dir DIR [--page FILE] [--figure FILE]
    python benchmarks/flamby.py --data-dir DIR --results NEW.csv       # compute everything again
    python benchmarks/flamby.py --data-dir DIR --by-site                # the scores of all sites, without privacy
    python benchmarks/flamby.py --corrected

The score is FLamby's: the mean of the sites' scores on their own test rows. Each method is trained without privacy, and
so that all messages of a site are (epsilon, 1e-4)-private where a patient's record is replaced; under both preparations
and both kinds of trust:

- public ranges: a number is mapped to [-1, 1] by a range that a doctor could name without the tables;
- FLamby's scaling, of Fed-Heart-Disease: a hospital standardises its columns by mean and deviation of its own training
  rows. No guarantee covers these statistics, so a private result under it holds for rows that were given scaled;
- local noise: a site trusts nobody;
- sums: the server sees sums over all sites only, and all of them add their noise.

No setting is tuned. All are the estimator's defaults, with one local step a round where there is privacy, and 200
rounds for survival without privacy. There are results for FLamby's split with 20 seeds, and for 20 splits. They are
kept in benchmarks/results/flamby.csv, and a number that is there is not computed again.

yours.py computes the results of other methods.

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
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from flamby_tasks import OWN, TASKS, Rows, Task
from kept import drop_torn_line

from twinflower.algorithms import ALGORITHMS
from twinflower.simulation.report.plot_style import COLOURS

STORE = Path(__file__).parent / "results" / "flamby.csv"
EPSILONS = (0.1, 1.0, 4.0, 8.0, math.inf)
DELTA = 1e-4
TRUSTS = LOCAL, SUMS = ("local noise", "sums")
SPLITS = FIXED, REPEATED = ("FLamby's split", "repeated splits")
COMPARED = ("FedPDM", "FedAvg", "SCAFFOLD", "FedDyn", "FedAdam")
BASELINES = ("pooled rows", LOCAL), ("the commoner class", LOCAL)
NO_SETTINGS: Mapping[str, Any] = {}
ROUNDS, UPDATES, BATCH = 15, 100, 4  # of FLamby's private runs
CLAIM = "FLamby's split, epsilon as claimed"
CLAIMED = (0.1, 1.0, 5.0, 10.0, 50.0)


class Case(NamedTuple):
    """What a number depends on, besides the seed. epsilon: infinity without privacy."""

    task: str
    splits: str
    method: str
    preparation: str
    trust: str
    epsilon: float


Make = Callable[[Task, float, int], Any]  # (task, epsilon, seed)
Methods = dict[tuple[str, str], Make]  # by name and trust
Results = dict[Case, dict[int, float]]


def ours(algorithm: str, trust: str, further: Mapping[str, Any] = NO_SETTINGS) -> Make:
    """The estimator with its defaults, but for further settings."""
    kind = ALGORITHMS[algorithm]

    def make(task: Task, epsilon: float, seed: int) -> Any:
        """The estimator for a task, epsilon and seed."""
        private = epsilon < math.inf
        settings = {"clients.weighting": "rows"} if "rows" in kind.weightings else {}
        settings |= {"local.max-steps": 1} if private and kind.takes_local_steps else {}
        if trust == SUMS:
            settings |= {"privacy.trust": "sum", "privacy.honest-sites": task.sites}
        settings |= {key: value for key, value in further.items() if private or "privacy." not in key}
        own = {"epsilon": epsilon if private else None, "delta": DELTA, "random_state": seed}
        return task.make(algorithm, ranges=(-1, 1), settings=settings, **own)

    return make


def pooled(task: Task, epsilon: float, seed: int) -> Any:
    """For comparison only: it has no private form."""
    return task.pooled() if epsilon == math.inf else None


def one_class(task: Task, epsilon: float, seed: int) -> Any:
    """For comparison only: the commoner class for everybody."""
    return task.constant() if task.constant and epsilon == math.inf else None


METHODS: Methods = {
    **dict(zip(BASELINES, (pooled, one_class), strict=True)),
    **{(name, trust): ours(name.lower(), trust) for name in COMPARED for trust in TRUSTS},
    ("SoteriaFL", LOCAL): ours("soteriafl", LOCAL, {"privacy.mode": "gradient"}),
}


# ------------------------------------------------------------------------------------------------------ results


def cases(methods: Methods) -> Iterator[tuple[Case, Make]]:
    """All of these methods; without privacy there is nothing to trust."""
    for name, task in TASKS.items():
        for splits, preparation, epsilon in itertools.product(SPLITS, task.preparations, EPSILONS):
            for (method, trust), make in methods.items():
                if (epsilon < math.inf or trust == LOCAL) and make(task, epsilon, 0) is not None:
                    yield Case(name, splits, method, preparation, trust, epsilon), make


def site_scores(case: Case, make: Make, seed: int, names: list[str], patients: Rows) -> list[float]:
    """The scores of the sites after one training, NaN for a site that has none."""
    task = TASKS[case.task]
    train = task.trained(patients, seed) if case.splits == REPEATED else task.fixed(patients)
    rows = task.prepared(case.preparation, names, patients, train)
    known, others = rows.of(train), rows.of(~train)
    with warnings.catch_warnings():  # methods are compared after a number of rounds, converged or not
        warnings.simplefilter("ignore", UserWarning)
        model = make(task, case.epsilon, seed).fit(known.features, known.labels, sites=known.sites)
    return task.scores(model.predict(others.features), others)


def score(case: Case, make: Make, seed: int, names: list[str], patients: Rows) -> float:
    """The mean of the sites' scores, of those that have one."""
    return float(np.nanmean(site_scores(case, make, seed, names, patients)))


def by_site(data: Path) -> Iterator[str]:
    """Lines of Markdown: the score of every site on FLamby's split, without privacy, after one training."""
    for name, task in TASKS.items():
        patients = task.read(data)
        sites = " | ".join(f"site {site}" for site in range(task.sites))
        yield from (
            f"\n{name}:\n",
            f"| method | preparation | {sites} | mean |",
            "|---" * (task.sites + 3) + "|",
        )
        for case, make in cases(METHODS):
            if case.task == name and case.splits == FIXED and case.epsilon == math.inf:
                own = site_scores(case, make, 0, *patients)
                cells = " | ".join(f"{value:.3f}" for value in [*own, np.nanmean(own)])
                yield f"| {case.method} | {case.preparation} | {cells} |"


def stored(path: Path) -> Results:
    """What has been computed: by case and seed, the score."""
    found: Results = defaultdict(dict)
    if path.exists():
        with path.open() as file:
            for *words, epsilon, seed, value in csv.reader(file):
                found[Case(*words, float(epsilon))][int(seed)] = float(value)
    return found


def complete(path: Path, methods: Methods, data: Path, seeds: int) -> None:
    """Compute and append what is not there yet, FLamby's own results first."""
    if path.exists():
        drop_torn_line(path)
    known, patients = stored(path), {name: task.read(data) for name, task in TASKS.items()}
    todo = [
        (case, make, seed)
        for case, make in cases(methods)
        for seed in range(seeds)
        if seed not in known[case]
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        write = csv.writer(file, lineterminator="\n").writerow
        for case, own in published(data / "flamby").items():
            for seed, value in ({} if known[case] else own).items():
                write([*case, seed, f"{value:.6f}"])
        for case, make, seed in todo:
            write([*case, seed, f"{score(case, make, seed, *patients[case.task]):.6f}"])
            file.flush()


def published(folder: Path) -> Results:
    """FLamby's results: five seeds without privacy, and FedAvg by the epsilon that it claims, at delta 1e-4."""
    sites: dict[Case, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, files in (("Fed-Heart-Disease", "heart_seed*.csv"), ("Fed-TCGA-BRCA", "tcga_seed*.csv")):
        for row in (row for path in sorted(folder.glob(files)) for row in rows_of(path)):
            if row["Test"].startswith("client_test") and not row["Method"].startswith("Local"):
                method = row["Method"].replace("Pooled Training", "pooled rows").removesuffix("100")
                case = Case(name, FIXED, f"{method} (FLamby)", TASKS[name].preparations[-1], LOCAL, math.inf)
                sites[case][int(row["seed"])].append(float(row["Metric"]))
    found = {
        case: {seed: statistics.fmean(own) for seed, own in runs.items()} for case, runs in sites.items()
    }
    for row in rows_of(folder / "results_fed_heart_disease.csv"):
        if row["e"] and float(row["d"]) == DELTA:
            case = Case("Fed-Heart-Disease", CLAIM, "FedAvg (FLamby)", OWN, LOCAL, float(row["e"]))
            found.setdefault(case, {})[int(row["seed"])] = float(row["perf"])
    return found


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header."""
    with path.open() as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------------------------------------- table and figure


def spread(values: dict[int, float] | None) -> str:
    """Mean and standard deviation over seeds, as in a table."""
    if not values:
        return ""
    own = list(values.values())
    return f"{statistics.fmean(own):.3f}" + (f" +- {statistics.stdev(own):.3f}" if len(set(own)) > 1 else "")


def table(found: Results, task: str, splits: str) -> list[str]:
    """Lines of Markdown: a row for each method, preparation and trust, a column for each epsilon."""
    own = {case: values for case, values in found.items() if (case.task, case.splits) == (task, splits)}
    columns = sorted({case.epsilon for case in own})
    words = ["none" if epsilon == math.inf else f"epsilon {epsilon:g}" for epsilon in columns]
    lines = [f"| method | preparation | trust | {' | '.join(words)} |", "|---" * (3 + len(words)) + "|"]
    for row in dict.fromkeys(case[2:5] for case in own):
        cells = [spread(own.get(Case(task, splits, *row, epsilon))) for epsilon in columns]
        lines.append("| " + " | ".join([*row, *cells]) + " |")
    return lines


def filled(text: str, found: Results) -> str:
    """A page whose tables, between <!-- flamby TASK: SPLITS --> and <!-- end -->, are those of the results."""

    def block(match: re.Match[str]) -> str:
        return "\n".join([match[1], "", *table(found, match[2], match[3]), "", match[4]])

    return re.sub(r"(<!-- flamby (.+?): (.+?) -->).*?(<!-- end -->)", block, text, flags=re.DOTALL)


def draw(found: Results, path: Path) -> None:
    """Score by epsilon over the repeated splits, with the deviation over splits, beside the two baselines."""
    from matplotlib import pyplot as plt

    panels = [(name, preparation) for name, task in TASKS.items() for preparation in task.preparations]
    figure, axes = plt.subplots(1, len(panels), figsize=(12, 3.8), layout="constrained")
    for panel, (task, preparation) in zip(axes, panels, strict=True):
        panel.set(title=f"{task}, {preparation}", xlabel="epsilon", xticks=range(len(EPSILONS)))
        panel.set_xticklabels(["no noise" if epsilon == math.inf else f"{epsilon:g}" for epsilon in EPSILONS])
        panel.set_ylabel(f"mean {TASKS[task].measure} of the sites")
        panel.grid(alpha=0.3)
        for (method, _), (line, x, side) in zip(
            BASELINES, (("--", 0.01, "left"), (":", 0.99, "right")), strict=True
        ):
            own = found.get(Case(task, REPEATED, method, preparation, LOCAL, math.inf))
            if own:
                height = statistics.fmean(own.values())
                panel.axhline(height, color="grey", linestyle=line)
                across = panel.get_yaxis_transform()
                panel.text(x, height, method, fontsize=8, va="bottom", ha=side, transform=across)
        for place, (method, trust) in enumerate(itertools.product(COMPARED[:2], TRUSTS)):
            scores = [found.get(Case(task, REPEATED, method, preparation, trust, e)) for e in EPSILONS]
            _draw_line(panel, method, trust, (place - 1.5) / 15, scores)
    low, high = min(ax.get_ylim()[0] for ax in axes[:2]), max(ax.get_ylim()[1] for ax in axes[:2])
    for panel in axes[:2]:  # one score, one scale
        panel.set_ylim(low, high)
    axes[0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=120)


def _draw_line(
    panel: Any, method: str, trust: str, shift: float, scores: Sequence[dict[int, float] | None]
) -> None:
    """The scores of one method by epsilon; no line leads to the last one, which is without noise."""
    x = np.array([place for place, own in enumerate(scores) if own])
    own = [list(values.values()) for values in scores if values]
    centre, deviation = np.array(list(map(statistics.fmean, own))), list(map(statistics.stdev, own))
    look = {"color": COLOURS[method.lower()], "markerfacecolor": None if trust == LOCAL else "white"}
    panel.errorbar(x + shift, centre, deviation, fmt="o", capsize=3, **look)
    noisy = x < len(EPSILONS) - 1
    panel.plot(
        x[noisy] + shift, centre[noisy], "o-" if trust == LOCAL else "o-.", label=f"{method}, {trust}", **look
    )


def corrected(claims: Sequence[float] = CLAIMED) -> Iterator[str]:
    """Lines of Markdown: what FLamby claims, and what its noise gives after all its steps, at delta 1e-4."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relations = dp_accounting.NeighboringRelation
    batches = math.ceil(30 / BATCH)  # Switzerland, for which the difference is largest

    def steps(noise: float, count: int) -> dp_accounting.DpEvent:
        sampled = dp_accounting.PoissonSampledDpEvent(1 / batches, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(sampled, count)

    yield from ("| claimed | add or remove | replace |", "|---|---|---|")
    for claimed in claims:
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


def tables(found: Results) -> Iterator[str]:
    """Lines of Markdown: all tables, each with its title."""
    for task, splits in dict.fromkeys(case[:2] for case in found):
        yield from ("", f"{task}: {splits}", "", *table(found, task, splits))


def main() -> None:
    """Complete the results, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir", type=Path, help="folder with heart/ and flamby/; without it, nothing is computed"
    )
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds, and of repeated splits")
    parser.add_argument("--results", type=Path, default=STORE)
    parser.add_argument("--page", type=Path, help="a page whose tables are filled")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--corrected", action="store_true", help="only FLamby's own epsilon")
    parser.add_argument(
        "--by-site", action="store_true", help="only the scores of all sites, without privacy"
    )
    chosen = parser.parse_args()
    if chosen.by_site and not chosen.data_dir:
        parser.error("--by-site needs --data-dir")
    if chosen.by_site:
        print(*by_site(chosen.data_dir), sep="\n")
        return
    if chosen.corrected:
        print(*corrected(), sep="\n")
        return
    if chosen.data_dir:
        complete(chosen.results, METHODS, chosen.data_dir, chosen.seeds)
    found = stored(chosen.results)
    print(*tables(found), sep="\n")
    if chosen.page:
        chosen.page.write_text(filled(chosen.page.read_text(), found))
    if chosen.figure:
        draw(found, chosen.figure)


if __name__ == "__main__":
    main()
