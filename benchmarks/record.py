"""What every experiment file and every test variant computes, as digests, to compare before and after a change.

    python benchmarks/record.py OUT.json [--data-dir DIR] [--only TEXT] [--flower]
    python benchmarks/record.py --compare BEFORE.json AFTER.json

A change that only restructures the code must leave all digests as they are. Each curve of each experiment runs a few
rounds on the cohort runtime under one seed, and each variant of tests/problems.py runs in process and in the cohort,
alone and with two seeds stacked; --flower adds Flower's engine, some 20 seconds a variant. Recorded are the model,
every column of the metrics but the time, who took part, the bits on the wire, and the privacy spent. Results are
compared, not settings, so keys may be renamed between two records. Digests of the same code differ between processors
and versions of the libraries.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
from problems import VARIANTS, small

from twinflower.errors import DataError
from twinflower.simulation.results.reading import read_rows
from twinflower.simulation.runs.run import Run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.flower import Engine, engine
from twinflower.simulation.settings import Config
from twinflower.simulation.settings.experiment import read_experiment

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
ROUNDS = 3
SEEDS = (0, 1)

Entry = dict[str, Any]
Found = Iterator[tuple[str, Callable[[], Entry]]]  # the name of a run, and what makes its entry


def digest(value: Any) -> str:
    """A short digest of an array, or of a value's text."""
    data = np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def entry_of(result: Run) -> Entry:
    """What a run computed."""
    up, down = (sum(getattr(r, name) for r in result.rounds) for name in ("uplink_bits", "downlink_bits"))
    info = {"finished": result.model is not None, "uplink_bits": up, "downlink_bits": down}
    info["participation"] = digest([(r.round, tuple(map(int, r.asked)), r.accepted) for r in result.rounds])
    arrays = {"model": result.model, "client models": result.points}
    info |= {name: digest(array) for name, array in arrays.items() if array is not None}
    return info | metrics_of(result.rows) | privacy_of(result.privacy())


def metrics_of(rows: list[dict[str, Any]]) -> Entry:
    """A digest of each column, but of the time."""
    columns = rows[0].keys() - {"seconds"} if rows else ()
    return {f"metrics.{name}": digest([float(row[name]) for row in rows]) for name in sorted(columns)}


def privacy_of(found: dict[str, Any] | None) -> Entry:
    """The numbers of the privacy spent."""
    return {
        f"privacy.{name}": value for name, value in (found or {}).items() if isinstance(value, float | None)
    }


@cache
def computed(config: Config) -> Entry:
    """What a curve computes; many differ in the number of rounds only, and agree when it is capped."""
    (result,) = cohort.train([prepare(config)])
    return entry_of(result)


def curves() -> Found:
    """Every curve of every experiment file, under the file's first seed."""
    for path in sorted(EXPERIMENTS.glob("*.toml")):
        plan = read_experiment(path)
        capped = read_experiment(path, {"rounds": ROUNDS, "seed": plan.seeds[0]})
        for curve in capped.curves:
            yield f"{path.name} | {curve.panel} | {curve.label}", lambda config=curve.config: computed(config)


def variants() -> Found:
    """Every variant in process, in the cohort, and in the cohort with two seeds."""
    for name in VARIANTS:
        yield f"{name} | in process", lambda name=name: entry_of(inprocess.train(small(name)))
        yield f"{name} | cohort", lambda name=name: entry_of(cohort.train([small(name)])[0])
        yield f"{name} | cohort, seeds stacked", lambda name=name: stacked(name)


def stacked(name: str) -> Entry:
    """Two seeds of a variant in one cohort."""
    entries = map(entry_of, cohort.train([small(name, seed=seed) for seed in SEEDS]))
    return {
        f"seed {s}: {key}": value
        for s, entry in zip(SEEDS, entries, strict=True)
        for key, value in entry.items()
    }


def on_flower(running: Engine) -> Found:
    """Every variant on Flower's engine."""
    for name in VARIANTS:
        yield f"{name} | Flower", lambda name=name: from_folder(running, small(name).config)


def from_folder(running: Engine, config: Config) -> Entry:
    """What a run on Flower's engine left in its folder."""
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out) / "run"
        running.run(config, folder)
        summary = json.loads((folder / "summary.json").read_text())
        found = {name: summary[name] for name in ("finished", "uplink_bits", "downlink_bits")}
        with np.load(folder / "model.npz") as saved:
            models = {"model": digest(saved["x"])}
        return found | models | metrics_of(read_rows(folder)) | privacy_of(summary["privacy"])


def collect(found: Found, only: str, skipped: list[str]) -> Entry:
    """The entries of the runs with this text in their names; those without data are listed."""
    entries = {}
    for name, make in found:
        if only not in name:
            continue
        try:
            entries[name] = make()
        except DataError:
            skipped.append(name)
        print(name, flush=True)
    return entries


def write(out: Path, only: str, flower: bool) -> None:
    """Run everything and write the record."""
    skipped: list[str] = []
    record = collect(curves(), only, skipped) | collect(variants(), only, skipped)
    if flower:
        with engine() as running:
            record |= collect(on_flower(running), only, skipped)
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(record)} runs in {out}")
    if skipped:
        print(f"{len(skipped)} runs skipped, because their data is not there: give --data-dir")


def compare(before: Entry, after: Entry) -> list[str]:
    """A line for each run that differs, with the names of what differs, and for each that only one record has."""
    lines = [f"only before: {name}" for name in before if name not in after]
    lines += [f"only after: {name}" for name in after if name not in before]
    keys = {name: unequal(before[name], after[name]) for name in before if name in after}
    return lines + [f"differs: {name}: {', '.join(own)}" for name, own in keys.items() if own]


def unequal(before: Entry, after: Entry) -> list[str]:
    """Names of what two entries do not share, in order."""
    return [name for name in {**before, **after} if before.get(name, ...) != after.get(name, ...)]


def show(lines: list[str], count: int) -> None:
    """Print the differences; status 1 if there are any."""
    print("\n".join(lines) if lines else f"all {count} runs are equal")
    sys.exit(bool(lines))


def main() -> None:
    """Record, or compare two records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="where to write the record")
    parser.add_argument(
        "--data-dir", default="", help="folder of the data sets; those that are not there are skipped"
    )
    parser.add_argument("--only", default="", help="only runs with this text in their names")
    parser.add_argument("--flower", action="store_true", help="also every variant on Flower's engine")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    arguments = parser.parse_args()
    if arguments.compare:
        before, after = (json.loads(path.read_text()) for path in arguments.compare)
        show(compare(before, after), len(before))
    if not arguments.out:
        parser.error("give a file for the record, or --compare BEFORE AFTER")
    if arguments.data_dir:
        os.environ["TWINFLOWER_DATA"] = str(Path(arguments.data_dir).resolve())
    write(arguments.out, arguments.only, arguments.flower)


if __name__ == "__main__":
    main()
