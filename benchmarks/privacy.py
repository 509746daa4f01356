"""One table of what privacy costs a release: noise, ledger, accounting.

    python benchmarks/privacy.py [--markdown FILE] [--folder FOLDER]

d = 7850 (MNIST and ten classes). The ledger is measured with its fsync on the disk of FOLDER, beside what the
same disk takes for a bare write and fsync of as many bytes: the difference is the ledger's own.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from twinflower.privacy import Budget, gdp_epsilon, total_mu
from twinflower.privacy.charges import Charge
from twinflower.privacy.ledger import FileLedger
from twinflower.privacy.ledger_lines import line
from twinflower.privacy.mechanism import CohortDraws, GaussianNoise, secret, seeded

D, CLIENTS, RELEASES = 7850, 30, 10_000
Row = tuple[str, float, str]


def ms(step: Callable[[], Any], turns: int = 30) -> float:
    """Median milliseconds of a step, after two to warm up."""
    times = []
    for _ in range(turns + 2):
        began = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[2:])


def noise_rows() -> Iterator[Row]:
    """Noise of a release at a site, and of a simulated round in one block and client by client."""
    value, clients = np.zeros(D), np.arange(CLIENTS)
    for name, draws in (("secret, on a grid", secret), ("seeded", seeded(0, 0, 1))):
        noise = GaussianNoise(0.3, draws, grid=draws is secret)
        target = "5" if draws is secret else ""
        yield f"noise of a release, {name}", ms(partial(noise, value)), target
    block = GaussianNoise(0.3, CohortDraws([0], clients, 1))
    singles = [GaussianNoise(0.3, seeded(0, int(client), 1)) for client in clients]
    stacked = np.zeros((CLIENTS, D))
    yield f"seeded noise of {CLIENTS} clients, one block", ms(lambda: block(stacked)), ""
    yield (
        f"seeded noise of {CLIENTS} clients, row by row",
        ms(lambda: [noise(value) for noise in singles]),
        "",
    )


def charge(round_: int) -> Charge:
    """A charge as long as a real one."""
    return Charge("1234567890123456789", round_, 0.12345678901234567, 0.9876543210987654, 1, 1 / 64, "c" * 64)


def ledger_with(folder: Path, charges: int) -> FileLedger:
    """A ledger that already has this many charges. Its last checksum is the one that vouches for all."""
    ledger = FileLedger(folder / f"{charges}.ledger", "d" * 64, 1e6, 1e-4)
    if charges:
        entries = [asdict(charge(n)) | {"run_sum": n / 64, "sum": n / 64} for n in range(1, charges + 1)]
        lines = [b"0" * 16 + b" " + json.dumps(entry).encode() + b"\n" for entry in entries[:-1]]
        before = ledger._header + b"".join(lines)
        ledger.path.write_bytes(before + line(before, entries[-1]))
        assert len(ledger.charges()) == charges
    return ledger


def ledger_rows(folder: Path) -> Iterator[Row]:
    """A charge on the disk, beside a bare write of its length, for short and long ledgers."""
    plenty = Budget(1e9)
    bare = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write() -> None:
        os.write(bare, b"x" * 360)
        os.fsync(bare)

    yield "bare write of 360 bytes and fsync", ms(write), ""
    os.close(bare)
    for charges in (0, 1_000, 10_000):
        ledger, rounds = ledger_with(folder, charges), count(charges + 1)

        def step(ledger: FileLedger = ledger, rounds: Iterator[int] = rounds) -> None:
            ledger.charge(charge(next(rounds)), plenty)

        yield f"ledger charge after {charges:,} others", ms(step), "10" if charges == 1_000 else ""


def accounting_rows() -> Iterator[Row]:
    """mu and epsilon of many releases with noise of their own."""
    sigmas = np.linspace(1.0, 2.0, RELEASES) * 50
    yield (
        f"mu and epsilon of {RELEASES:,} releases",
        ms(lambda: gdp_epsilon(total_mu(1.0, sigmas), 1e-5)),
        "10",
    )


def main() -> None:
    """Print, and perhaps store, the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument(
        "--folder", type=Path, help="put the ledgers on this disk; default: the temporary files'"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        rows = [*noise_rows(), *ledger_rows(Path(folder)), *accounting_rows()]
    lines = [f"| d = {D} | ms | at most |", "|---|---|---|"]
    lines += [f"| {name} | {took:.2f} | {target} |" for name, took, target in rows]
    print("\n".join(lines))
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
