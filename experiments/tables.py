"""The tables of the documents, made from stored results.

    python experiments/tables.py                               # write the tables into docs/*.md
    python experiments/tables.py --check                       # only say which tables differ from the results
    python experiments/tables.py --store NAME FOLDER [ROUND]   # store the results of experiments/NAME.toml
    python experiments/tables.py --draw NAME ...               # draw docs/figures/NAME.png from stored results

A figure of last rows (`ends = true` or `x = "curve"`) needs no more than the stored results; one by round needs a run.

results/NAME.csv has a line for every run: its panel, curve and seed, and the last row of its metrics (and the row of
ROUND, if given). Its first line has a digest of the settings in NAME.toml, so results that no longer belong to the file
are noticed. A table stands in a document between two marks:

    <!-- table NAME: test_accuracy, objective@10.4 range -->
    <!-- end -->

with a row for every curve, and a column for every panel and every column of the metrics that is named. `gap` is the
objective above the lowest of its panel under the same seed. `@10` is the value after round 10 in place of the last,
`.4` the number of digits (3), `.1e` the same as a power of ten, and the last word says what of the seeds: mean +-
standard deviation (no word), the mean with the lowest and the highest seed (range), or the median with these two
(median). Runs that ended without a model, because it diverged, are left out of these and counted.
"""

import argparse
import csv
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from twinflower.simulation.experiment_files import load_toml
from twinflower.simulation.report.figures import draw_experiment
from twinflower.simulation.results import names
from twinflower.simulation.results.folder import run_folder
from twinflower.simulation.results.reading import read_rows
from twinflower.simulation.settings.columns import COLUMNS, CURVE, EXTRA_COLUMNS
from twinflower.simulation.settings.experiment import Curve, Experiment, read_experiment

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results"
STORED = ("test_accuracy", "objective", "nonzeros", "uplink_bits", "downlink_bits", *EXTRA_COLUMNS)
_WORDS = {"title", "source", "claim", "verdict", "x", "y", "log-axes", "centre", "scores", "grid", "tune"}
_TABLE = re.compile(r"(<!-- table ([\w-]+): (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_COLUMN = re.compile(r"(\w+)(?:@(\d+))?(?:\.(\de?))?(?: (range|median))?")

Rows = list[dict[str, str]]


def settings_digest(name: str) -> str:
    """A digest of what an experiment file computes: all of it but its words and its tuning."""
    raw: dict[str, Any] = {k: v for k, v in load_toml(_file(name)).items() if k not in _WORDS}
    raw["curve"] = [{k: v for k, v in curve.items() if k != "grid"} for curve in raw.get("curve", [])]
    return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()[:16]


def place(plan: Experiment, curve: Curve) -> tuple[str, str]:
    """The column and the row of a curve in a table: its panel and label, or with `ends` its line and its x.

    A curve of a line that has no such setting has its label for a row. Lines in panels are rows, with a column for
    every x.
    """
    if plan.ends and curve.line != curve.label:
        x = curve.config.items().get(plan.x)
        point = curve.label if x is None else f"{x:g}"
        return (point, f"{curve.panel}: {curve.line}") if curve.panel else (curve.line, point)
    return curve.panel, curve.label


def store(name: str, folder: Path, rounds: list[int], results: Path | None = None) -> Path:
    """Write the stored results of an experiment from the folder of its runs; return their file.

    results: the folder of stored results in place of RESULTS, here and in the functions below.
    """
    plan, lines = read_experiment(_file(name)), []
    for curve in plan.curves:
        for seed in plan.seeds:
            run = run_folder(plan, folder, curve, seed)
            rows = read_rows(run)
            kept = [row for row in rows[:-1] if row["round"] in rounds]
            kept += rows[-1:] if (run / names.MODEL).exists() else [{"round": plan.curves[0].config.rounds}]
            head = dict(zip(("panel", "curve", "seed"), (*place(plan, curve), seed), strict=True))
            lines += [
                head | {key: f"{row[key]:.6g}" for key in ("round", *STORED) if key in row} for row in kept
            ]
    columns = list(dict.fromkeys(key for line in lines for key in line))
    measured = [c for c in columns if any(line.get(c, "nan") != "nan" for line in lines)]
    path = _stored_file(name, results)
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# settings {settings_digest(name)}\n")
        writer = csv.DictWriter(file, measured, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return path


def stored(name: str, results: Path | None = None) -> tuple[str, Rows]:
    """The digest of the settings under which results were stored, and their lines."""
    first, *rest = _stored_file(name, results).read_text(encoding="utf-8").splitlines()
    return first.removeprefix("# settings "), list(csv.DictReader(rest))


def draw(name: str, results: Path | None = None) -> Path:
    """Draw the figure of an experiment from its stored results into docs/figures; SystemExit if it shows rounds."""
    plan, lines = read_experiment(_file(name)), stored(name, results)[1]
    if not plan.ends and plan.x != CURVE:
        raise SystemExit(
            f"the figure of {name} shows rounds, and only last rows are stored: run the experiment"
        )
    picture = ROOT / "docs" / "figures" / f"{name}.png"
    with TemporaryDirectory() as folder:
        for curve in plan.curves:
            for seed in plan.seeds:
                steps = [
                    row for row in lines
                    if (row["panel"], row["curve"], row["seed"]) == (*place(plan, curve), str(seed))
                ]  # fmt: skip
                _restore(
                    run_folder(plan, Path(folder), curve, seed),
                    max(steps, key=lambda row: float(row["round"])),
                )
        picture.write_bytes(draw_experiment(plan, Path(folder)).read_bytes())
    return picture


def _restore(run: Path, row: dict[str, str]) -> None:
    """Write a run folder with this last row; without a model if the run ended without one."""
    run.mkdir(parents=True)
    row = dict.fromkeys(COLUMNS, "nan") | {key: value or "nan" for key, value in row.items()}
    numbers = {key: value for key, value in row.items() if key not in ("panel", "curve", "seed")}
    (run / names.METRICS).write_text(f"{','.join(numbers)}\n{','.join(numbers.values())}\n", encoding="utf-8")
    if row["objective"] != "nan":
        (run / names.MODEL).touch()


def table(name: str, spec: str, results: Path | None = None) -> str:
    """The Markdown of a table, from stored results."""
    rows, wanted = with_gaps(stored(name, results)[1]), [part.strip() for part in spec.split(",")]
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    heads = [_head(panel, part, len(wanted) == 1) for panel in panels for part in wanted]
    lines = ["| " + " | ".join(["", *heads]).strip() + " |", "|---" * (len(heads) + 1) + "|"]
    for curve in dict.fromkeys(row["curve"] for row in rows):
        own = [[r for r in rows if (r["panel"], r["curve"]) == (panel, curve)] for panel in panels]
        cells = [_cell(found, part) for found in own for part in wanted]
        lines.append("| " + " | ".join([curve, *cells]) + " |")
    return "\n".join(lines) + "\n"


def with_gaps(rows: Rows) -> Rows:
    """The lines with a further column gap, the objective minus the lowest of the same panel and seed."""
    lowest: dict[tuple[str, str], float] = {}
    for row in rows:
        run = row["panel"], row["seed"]
        lowest[run] = min(lowest.get(run, np.inf), float(row.get("objective") or np.inf))

    def gap(row: dict[str, str]) -> str:
        return (
            f"{float(row['objective']) - lowest[row['panel'], row['seed']]:.6g}"
            if row.get("objective")
            else ""
        )

    return [row | {"gap": gap(row)} for row in rows]


def _head(panel: str, part: str, alone: bool) -> str:
    column, round_, *_ = _parts(part)
    words = column.replace("_", " ") + (f" at round {round_}" if round_ else "")
    return panel if alone and panel else f"{panel}: {words}".removeprefix(": ")


def _cell(found: Rows, part: str) -> str:
    column, round_, digits, kind = _parts(part)
    last = max((int(float(row["round"])) for row in found), default=0)
    own = [row for row in found if int(float(row["round"])) == int(round_ or last)]
    values = np.array([float(row[column]) for row in own if row[column]])
    missing = f" ({len(values)} of {len(own)})" if len(values) < len(own) else ""
    if not len(values):
        return "no model" if own and not any(row.get("objective") for row in own) else ""
    if kind:
        centre = np.median(values) if kind == "median" else values.mean()
        return f"{centre:.{digits}} [{values.min():.{digits}}, {values.max():.{digits}}]{missing}"
    spread = f" +- {values.std(ddof=1):.{digits}}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}}{spread}{missing}"


def _parts(part: str) -> tuple[str, str, str, str]:
    found = _COLUMN.fullmatch(part)
    if found is None:
        raise SystemExit(f"a column of a table is written as NAME@ROUND.DIGITS WORD; got '{part}'")
    column, round_, digits, kind = found.groups(default="")
    return column, round_, digits if digits.endswith("e") else f"{digits or 3}f", kind


def filled(text: str, results: Path | None = None, only: str = "") -> str:
    """A document with all its tables made anew, or those of one experiment only."""

    def anew(found: re.Match[str]) -> str:
        if only not in ("", found[2]):
            return found[0]
        return found[1] + "\n" + table(found[2], found[3], results) + "\n" + found[5]

    return _TABLE.sub(anew, text)


def documents() -> Iterator[Path]:
    """The documents that have tables."""
    return (p for p in sorted((ROOT / "docs").glob("*.md")) if "<!-- table " in p.read_text(encoding="utf-8"))


def main() -> None:
    """Store results, or write or check all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--store", nargs="+", metavar="NAME FOLDER [ROUND]")
    parser.add_argument("--draw", nargs="+", metavar="NAME")
    given = parser.parse_args()
    if given.draw:
        print(*map(draw, given.draw), sep="\n")
        return
    if given.store:
        name, folder, *rounds = given.store
        print(store(name, Path(folder), list(map(int, rounds))))
        return
    stale = [p for p in documents() if filled(p.read_text(encoding="utf-8")) != p.read_text(encoding="utf-8")]
    for path in stale:
        print(f"{path.name}: a table differs from the stored results")
        if not given.check:
            path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(given.check and bool(stale))


def _stored_file(name: str, results: Path | None) -> Path:
    return (results or RESULTS) / f"{name}.csv"


def _file(name: str) -> Path:
    return ROOT / "experiments" / f"{name}.toml"


if __name__ == "__main__":
    main()
