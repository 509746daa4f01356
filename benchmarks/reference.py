"""The reference benchmark by one command: FLamby's tasks, School, a9a, and our methods beside each other.

    python benchmarks/reference.py --data-dir DATA --out DIR
    python benchmarks/reference.py --data-dir DATA --out DIR --only school

Parts are computed one after the other: FLamby's tasks and the epsilon of its private results (flamby.py), School
(school.py), SoteriaFL's a9a, and every experiments/methods-*.toml. A part that was interrupted, by Ctrl-C or by
kill -9, goes on where it stopped if the command is started again: a number, or a run of an experiment, that is in DIR
is not computed again. But it is if an experiment file has changed, except for its words, or a script, or the package.

DIR/PART has a part's results. DIR/docs has the documents with tables and figures made from them. In the end the command
says how many numbers of the documents the results agree with: to the printed digits, or to one standard deviation, or
within the range of the seeds.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import flamby
import school
from flamby_tasks import HOSPITALS
from kept import Kept

from experiments import tables
from twinflower.errors import DataError, TwinflowerError
from twinflower.simulation import running
from twinflower.simulation.report.messages import Terminal
from twinflower.simulation.results.files import write_text
from twinflower.simulation.results.folder import claimed, is_experiment
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.settings.experiment import read_experiment

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
DOCUMENTS = ROOT / "docs"
PACKAGE = ("twinflower", "strategies", "clients", "simulation")
SEEDS = 20  # of FLamby's tasks
SOURCES = {  # of folders that a script reads, and of data sets of experiments
    "heart": "UCI Heart Disease, archive.ics.uci.edu/dataset/45, a file with a header for each hospital",
    "flamby": "github.com/owkin/FLamby, with train_test_split.csv and its results by seed",
    "school": "github.com/kenziyuliu/private-cross-silo-fl",
    "a9a": "www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets",
    "adult": "archive.ics.uci.edu/dataset/2",
}
_GIVEN = re.compile(r"published|\(FLamby\)")  # in the row or column of a number that is not ours
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    mark: how the marks of its tables in the documents begin. settings: a digest of what is computed. check(data) raises
    an error if files are missing. compute(data, folder) computes what is left. filled(text, folder): a document with
    the tables of this part.
    """

    what: str
    mark: str
    settings: str
    check: Callable[[Path], None]
    compute: Callable[[Path, Path], None]
    filled: Callable[[str, Path], str]


@dataclass
class Note:
    """What DIR/PART/part.json says. began: when the process that works now began, None if there is none."""

    settings: str
    seconds: float = 0.0
    began: float | None = None
    done: bool = False

    @classmethod
    def of(cls, folder: Path, settings: str) -> "Note":
        """The note in a folder; a new one if there is none. The folder is removed if it is of other settings."""
        path = folder / "part.json"
        found = cls(**json.loads(path.read_text())) if path.exists() else cls(settings)
        if found.settings != settings:
            print(
                f"{folder} has results of other settings, or of another version: they are removed and computed again"
            )
            shutil.rmtree(folder)
            return cls(settings)
        if found.began is not None:  # the process was killed: its last file says how long it worked
            found.ended(max(own.stat().st_mtime for own in folder.rglob("*")))
        return found

    def write(self, folder: Path) -> None:
        """Write the note."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "part.json", json.dumps(asdict(self)))

    def ended(self, now: float) -> None:
        """Add the time since the beginning."""
        self.seconds += max(0.0, now - (self.began or now))
        self.began = None


# ------------------------------------------------------------------------------------------------------ the parts


def parts() -> dict[str, Part]:
    """All parts by name, in their order."""
    files = [ROOT / "experiments" / "soteriafl-a9a.toml", *sorted(ROOT.glob("experiments/methods-*.toml"))]
    return {
        "flamby": Part(
            "FLamby's tasks, every method, preparation, trust and epsilon", "flamby", source("flamby", "flamby_tasks"),
            partial(require_files, [*(f"heart/{name}.csv" for name in HOSPITALS), "flamby/brca.csv"]), flamby_tasks,
            flamby_tables,
        ),
        "flamby-epsilon": lines("the epsilon of FLamby's private results", "epsilon", "flamby", [], corrected=claims),
        "school": lines(
            "MR-MTL on School", "school", "school", ["school/school.mat"],
            published=school.published, tuned=school.tuned,
        ),
    } | {path.stem: experiment(path) for path in files}  # fmt: skip


def flamby_tasks(data: Path, folder: Path) -> None:
    """FLamby's tasks and their figure."""
    flamby.complete(folder / "flamby.csv", flamby.METHODS, data, SEEDS)
    flamby.draw(flamby.stored(folder / "flamby.csv"), folder / "flamby.png")


def flamby_tables(text: str, folder: Path) -> str:
    """A document with the tables of FLamby's tasks."""
    return flamby.filled(text, flamby.stored(folder / "flamby.csv"))


def claims(data: Path, kept: Kept) -> Iterator[str]:
    """The table of FLamby's epsilon, which needs no data."""
    return flamby.corrected()


def lines(
    what: str, mark: str, script: str, files: list[str], **makers: Callable[[Path, Kept], Iterator[str]]
) -> Part:
    """A part whose tables a script makes: NAME fills the table with the mark `MARK NAME`."""

    def compute(data: Path, folder: Path) -> None:
        kept = Kept(folder / "numbers.csv")
        for name, make in makers.items():
            write_text(folder / f"{name}.md", "\n".join(make(data, kept)))

    def filled(text: str, folder: Path) -> str:
        for name in makers:
            own = f"\\1\n\n{(folder / f'{name}.md').read_text()}\n\n\\2"
            text = re.sub(rf"(<!-- {mark} {name} -->).*?(<!-- end -->)", own, text, flags=re.DOTALL)
        return text

    return Part(what, mark, source(script), partial(require_files, files), compute, filled)


def experiment(path: Path) -> Part:
    """An experiment file, whose table and figure have its name."""
    name, title = path.stem, read_experiment(path).title

    def compute(data: Path, folder: Path) -> None:
        trained(path, folder / "runs")
        tables.store(name, folder / "runs", further_rounds(name), folder)
        shutil.copy(folder / "runs" / "figure.png", folder / f"{name}.png")

    return Part(
        title, f"table {name}:", f"{tables.settings_digest(name)} {package()}", lambda data: check_experiment(path),
        compute,        lambda text, folder: tables.filled(text, folder, name),
    )  # fmt: skip


def further_rounds(name: str) -> list[int]:
    """The rounds that are stored of an experiment beside the last one of every run."""
    known = tables.stored(name)[1] if (tables.RESULTS / f"{name}.csv").exists() else []
    runs = [[row[key] for key in ("panel", "curve", "seed")] for row in known]
    return sorted({int(known[k]["round"]) for k, (one, other) in enumerate(pairwise(runs)) if one == other})


def trained(path: Path, folder: Path) -> None:
    """Run an experiment, or what is left of it, as `twinflower run` and `run --resume` do."""
    begun = is_experiment(folder)
    plan = read_experiment(path)
    plan, runtime = running.again(folder, "", {}) if begun else (plan, running.chosen(plan, ""))
    if not begun:
        running.new(plan, runtime, str(folder))
    jobs = running.processes(0, runtime)
    for failure in running.run(plan, folder, runtime, Terminal(plan, folder), not begun, jobs):
        print(failure)


def check_experiment(path: Path) -> None:
    """SystemExit if the data of an experiment are missing."""
    config = read_experiment(path).curves[0].config
    try:
        prepare(config)
    except DataError as error:
        known = SOURCES.get(config.data.name)
        raise SystemExit(f"{error}; it is from {known}" if known else str(error)) from None


def require_files(files: list[str], data: Path) -> None:
    """SystemExit for the first of these files that is missing."""
    for name in files:
        if not (data / name).is_file():
            raise SystemExit(f"{data / name} is missing; it is from {SOURCES[Path(name).parts[0]]}")


def source(*scripts: str) -> str:
    """A digest of these scripts and of the package."""
    return f"{digest(BENCHMARKS / f'{name}.py' for name in scripts)} {package()}"


def digest(files: Iterable[Path]) -> str:
    """A digest of what is in the files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


@cache
def package() -> str:
    """A digest of the package that computes."""
    return digest(sorted(path for name in PACKAGE for path in (ROOT / name).rglob("*.py")))


# ------------------------------------------------------------------------------------------------------ agreement


def documents(found: dict[str, Part], out: Path) -> None:
    """Write the documents that have tables of these parts, and their figures, below out/docs."""
    for path in DOCUMENTS.glob("*.md"):
        text = before = path.read_text(encoding="utf-8")
        for name, part in found.items():
            text = part.filled(text, out / name)
        if any(f"<!-- {part.mark}" in before for part in found.values()):
            (out / "docs" / "figures").mkdir(parents=True, exist_ok=True)
            write_text(out / "docs" / path.name, text)
    for name in found:
        for picture in (out / name).glob("*.png"):
            shutil.copy(picture, out / "docs" / "figures")


def agreement(part: Part, folder: Path) -> tuple[int, int, int]:
    """How many numbers the documents have of a part, how many of them the results have with the same digits, and how
    many with the same digits or within the spread that the documents have."""
    numbers = same = near = 0
    for path in DOCUMENTS.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        old, new = cells(text, part.mark), cells(part.filled(text, folder), part.mark)
        ours = [
            key for key, cell in old.items() if _NUMBER.match(cell) and not _GIVEN.search(" ".join(key[1:]))
        ]
        numbers += len(ours)
        same += sum(old[key] == new.get(key) for key in ours)
        near += sum(agree(old[key], new.get(key, "")) for key in ours)
    return numbers, same, near


def cells(text: str, mark: str) -> dict[tuple[str, ...], str]:
    """The cells of all tables with this mark, by mark, row and column. The row is named by its first
    cell, by columns without a number in any row, and by those whose heading is a setting."""
    found = {}
    for head, block in re.findall(
        rf"<!-- ({re.escape(mark)}.*?) -->(.*?)<!-- end -->", text, flags=re.DOTALL
    ):
        rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block.strip().splitlines()]
        columns, _, *rows = rows or [[], []]  # a new mark may have no table yet
        named = [place for place, name in enumerate(columns) if not place or name in ("epsilon", "claimed") or
                 not any(_NUMBER.match(row[place]) for row in rows)]  # fmt: skip
        for row in rows:
            own = [row[place] for place in named]
            found |= {(head, *own, name): row[k] for k, name in enumerate(columns) if k not in named}
    return found


def agree(old: str, new: str) -> bool:
    """Whether a number of a table is the same, or within the spread of the old one: mean +- deviation, or centre
    [lowest, highest]."""
    if old == new or not _NUMBER.match(new):
        return old == new
    a, *spread = [float(found[0]) for found in _NUMBER.finditer(old)]
    b = float(_NUMBER.match(new)[0])
    low, high = spread if len(spread) == 2 else (a - sum(spread), a + sum(spread))
    return low <= b <= high


# ---------------------------------------------------------------------------------------------------- the command


def run(name: str, part: Part, data: Path, out: Path) -> None:
    """Compute what is left of a part, and say for how long."""
    folder = out / name
    note = Note.of(folder, part.settings)
    if note.done:
        print(f"{name}: done before, in {minutes(note.seconds)}; results: {folder}", flush=True)
        return
    print(f"{name}: {part.what}" + (" (goes on)" if note.seconds else ""), flush=True)
    note.began = time.time()
    note.write(folder)
    try:
        part.compute(data, folder)
        note.done = True
    finally:
        note.ended(time.time())
        note.write(folder)
    print(f"{name}: {minutes(note.seconds)}; results: {folder}", flush=True)


def minutes(seconds: float) -> str:
    """A time, in minutes and seconds."""
    return f"{seconds // 60:.0f}:{seconds % 60:02.0f} minutes"


def summary(found: dict[str, Part], out: Path) -> Iterator[str]:
    """Lines of Markdown: for each part the time, and how many numbers of the documents agree."""
    yield "| part | time | numbers in the documents | same digits | same digits or within their spread |"
    yield "|---|---|---|---|---|"
    total = 0.0
    for name, part in found.items():
        seconds = Note.of(out / name, part.settings).seconds
        total += seconds
        counts = agreement(part, out / name)
        yield f"| {name} | {minutes(seconds)} | " + " | ".join(map(str, counts)) + " |"
    yield f"| all | {minutes(total)} | | | |"


def main() -> None:
    """Compute what is left, write the documents, and print the summary."""
    known = parts()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results, new or begun")
    parser.add_argument("--only", choices=known, metavar="PART", help=f"one of {', '.join(known)}")
    given = parser.parse_args()
    data, out = given.data_dir.absolute(), given.out.absolute()
    if not data.is_dir():
        parser.error(
            f"there is no folder {data}: --data-dir is where heart/, flamby/, school/ and libsvm/ are"
        )
    os.environ["TWINFLOWER_DATA"] = str(data)
    chosen = {given.only: known[given.only]} if given.only else known
    try:
        for part in chosen.values():
            part.check(data)
        out.mkdir(parents=True, exist_ok=True)
        with claimed(out):
            for name, part in chosen.items():
                run(name, part, data, out)
            documents(chosen, out)
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command goes on")
    except TwinflowerError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{error.strerror}: {error.filename}")
    print("", *summary(chosen, out), f"\ndocuments: {out / 'docs'}", sep="\n")


if __name__ == "__main__":
    main()
