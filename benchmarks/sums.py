"""What it costs that the server sees sums only: bytes, and time of a client's round.

    python benchmarks/sums.py [--markdown FILE]

d = 7850 (MNIST and ten classes), 10 and 100 sites. Medians on one core, of a site that keeps nothing in memory between
messages, as a deployed node's process does, and so checks the key messages anew in every round; and of the server.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from twinflower.privacy.mechanism import GaussianNoise, secret
from twinflower.sums.discrete import discrete_gaussian, secret_words
from twinflower.sums.grid import SHARE_BITS, Grid, SumNoise, add
from twinflower.sums.masks import ANNOUNCEMENT, Session, inbox_digest, roster_of, simulated
from twinflower.wire import to_npy

D, SITES = 7850, (10, 100)
HEADINGS = ("d = 7850", *(f"{sites} sites" for sites in SITES))


def ms(step: Callable[[], Any], turns: int = 15) -> str:
    """Median milliseconds of a step, after two to warm up."""
    times = []
    for _ in range(turns + 2):
        began = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - began))
    return f"{statistics.median(times[2:]):.2f} ms"


def rows(sites: int) -> Iterator[tuple[str, str]]:
    """What is measured, and its value for so many sites."""
    identities = simulated(sites, 0)
    secrets = [X25519PrivateKey.generate() for _ in identities]
    announced = [site.announce("s", "c", key) for site, key in zip(identities, secrets, strict=True)]
    roster, point = roster_of(announced), np.random.default_rng(0).normal(size=D)
    cells = np.random.default_rng(0).integers(0, 2**64, (sites, D), dtype=np.uint64)
    noise = SumNoise(
        Grid(1e-9, sites), 1.0, [lambda count: discrete_gaussian(count, SHARE_BITS, secret_words())]
    )

    def join() -> Session:
        return Session.join(identities[0], secrets[0], "s", "c", roster)

    joined = join()
    yield "set-up: messages of a site", f"1 reply of {ANNOUNCEMENT} bytes"
    yield "set-up: messages of the server", f"{sites} questions"
    yield "a round, to a site: the point", f"{len(to_npy(point)):,} bytes"
    yield "a round, to a site: all key messages", f"{len(roster):,} bytes"
    yield "a round, from a site", f"{len(to_npy(cells[0])):,} bytes"
    yield (
        "a site without sums: Gaussian noise on a grid",
        ms(lambda: GaussianNoise(0.3, secret, grid=True)(point)),
    )
    yield "a site: discrete noise, and whole cells", ms(lambda: noise(point))
    yield "a site: key messages checked, keys agreed", ms(join)
    yield "a site: its masks", ms(lambda: joined.mask(D, 1, inbox_digest([point])))
    yield "the server: the sum", ms(lambda: add(cells))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, help="write the table there, too")
    path = parser.parse_args().markdown
    columns = [dict(rows(sites)) for sites in SITES]
    lines = [
        HEADINGS,
        ("---",) * len(HEADINGS),
        *((name, *(c[name] for c in columns)) for name in columns[0]),
    ]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    print(table)
    if path:
        path.write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
