"""What durable state costs a client round: FedPDM's dual and reply on the disk against both in memory.

    python benchmarks/state.py [--markdown FILE] [--folder FOLDER]

d = 7850 (MNIST and ten classes), 10 local steps of 10 rows, as in `rounds.py`. The client is asked for round after
round; the disk is FOLDER's, and a bare write and fsync of as many bytes stands beside it.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from flwr.app import Context, RecordDict
from rounds import job
from threadpoolctl import threadpool_limits

from twinflower.clients import AlgorithmClient
from twinflower.disk import write_whole
from twinflower.simulation.runs.client_factory import client_of

ROUNDS = 100


def client(state_dir: str) -> AlgorithmClient:
    """Client 0 of the job, with its state in memory or in a folder."""
    return client_of(job(), 0, Context(1, 1, {}, RecordDict(), {}), state_dir=state_dir)


def round_ms(one: AlgorithmClient) -> list[float]:
    """Milliseconds of rounds 1, 2, ... of a client."""
    x0, times = np.zeros(one.objective.d), []
    for round_ in range(1, ROUNDS + 1):
        request: dict[str, Any] = {"round": round_, "session": "benchmark", "settled": round_ - 1}
        began = time.perf_counter()
        one.fit([x0], request)
        times.append(1e3 * (time.perf_counter() - began))
    return times


def write_ms(folder: Path, size: int) -> list[float]:
    """Milliseconds of bare writes of so many bytes, with fsync."""
    times = []
    for turn in range(ROUNDS):
        began = time.perf_counter()
        write_whole(folder / str(turn), bytes(size))
        times.append(1e3 * (time.perf_counter() - began))
    return times


def main() -> None:
    """Print, and perhaps store, the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument(
        "--folder", type=Path, help="where the state is written; default the temporary folder"
    )
    arguments = parser.parse_args()
    with threadpool_limits(1), tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        kept = statistics.median(round_ms(client(""))[5:])
        stored = statistics.median(round_ms(client(name))[5:])
        size = max(path.stat().st_size for path in Path(name).rglob("*.round"))
        bare = statistics.median(write_ms(Path(name), size))
    lines = [
        "| one client round, d = 7850 | ms |",
        "|---|---|",
        f"| state in memory | {kept:.2f} |",
        f"| state on the disk (`state-dir`), {size:,} bytes a round | {stored:.2f} |",
        f"| of which a bare write and fsync of as many bytes | {bare:.2f} |",
    ]
    print("\n".join(lines))
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
