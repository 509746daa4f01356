"""How long a site's table takes to load, and how much memory the site's process needs.

    python benchmarks/tables.py                   # 100,000 rows x 100 columns, as CSV and as Parquet
    python benchmarks/tables.py --rows 1000000    # some minutes; 1 GB of CSV in the temporary directory

Every file is loaded in a process of its own, which prepares a private run on it as a deployed site does (read, scale,
append the column of ones, limit the norms of the rows), and then computes one round of FedPDM. The table gives the
time of the preparation and its CPU time, and the largest memory of the whole process.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import scipy.optimize  # noqa: F401  the plan imports it, and that takes as long as a third of the table
from flwr.app import Context, RecordDict

from twinflower.data.schema_file import read_schema
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.facts import at_site
from twinflower.simulation.runs.setup import prepare_node
from twinflower.simulation.settings import parse

COLUMNS = 100  # with the label
NAMES = [*(f"x{place}" for place in range(COLUMNS - 1)), "y"]
PIECE = 10_000  # rows that are written at once


def write(folder: Path, rows: int) -> None:
    """Write the schema and the tables site.csv and, with pyarrow, site.parquet: normal features with six digits."""
    ranges = "".join(f"{name} = {{ range = [-4, 4] }}\n" for name in NAMES[:-1])
    (folder / "schema.toml").write_text(f'[label]\ncolumn = "y"\nclasses = [0, 1]\n[columns]\n{ranges}')
    draws = np.random.default_rng(0)
    with (folder / "site.csv").open("w") as file:
        file.write(",".join(NAMES) + "\n")
        for first in range(0, rows, PIECE):
            table = draws.normal(size=(min(PIECE, rows - first), COLUMNS))
            table[:, -1] = table[:, 0] > 0
            np.savetxt(file, table, "%.6g", ",")
    try:
        from pyarrow import csv, parquet
    except ImportError:
        return
    parquet.write_table(csv.read_csv(folder / "site.csv"), folder / "site.parquet")


def site(file: Path, rows: int) -> None:
    """Prepare the run at the site; print the seconds that this takes and the largest memory of this process."""
    schema = file.parent / "schema.toml"
    keys = {"data.name": "own", "data.file": str(file), "data.schema": str(schema)}
    keys |= {"data.schema-digest": read_schema(schema).digest, "partition.name": "sizes"}
    keys |= {"partition.sizes": f"{rows}, {rows}", "clients.count": 2, "objective.name": "logistic"}
    keys |= {"regulariser.name": "none", "privacy.mode": "public-state", "privacy.epsilon": 8.0}
    start, busy = time.perf_counter(), time.process_time()
    setup = at_site(prepare_node(parse(keys)), 0)
    start, busy = time.perf_counter() - start, time.process_time() - busy
    client = client_of(setup, 0, Context(0, 0, {}, RecordDict(), {}))
    client.fit([setup.start], {"round": 1})
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"| {file.name} | {start:.1f} s | {busy:.1f} s | {memory:.2f} GiB |", flush=True)


def main() -> None:
    """Write the tables and load each of them, all in processes of their own: a child starts with its parent's peak."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write(given.write, given.rows)
    elif given.load:
        site(given.load, given.rows)
    else:
        _measure(given.rows)


def _measure(rows: int) -> None:
    words = [sys.executable, __file__, "--rows", str(rows)]
    with TemporaryDirectory() as folder:
        subprocess.run([*words, "--write", folder], check=True)
        print(
            f"| {rows:,} rows x {COLUMNS} columns | time | CPU time | memory |\n|---|---|---|---|", flush=True
        )
        for file in sorted(Path(folder).glob("site.*")):
            subprocess.run([*words, "--load", str(file)], check=True)


if __name__ == "__main__":
    main()
