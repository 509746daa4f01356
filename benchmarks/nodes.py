"""Deployed nodes: how long stock FedAvg and ours take per round, and how much processor time per message.

    python benchmarks/nodes.py --data-dir DIR [--rounds 10] [--turns 2] [--rows ROWS] [--epsilon EPSILON]

Both apps run in turn on the same SuperLink and SuperNodes on this machine, on the MNIST job of `engine.py` with three
clients. Flower starts a process for every message, so the time of a message is mostly that of imports. The first round,
in which nodes install the app, does not count. Processor time is that of a node and all that it started. With --rows
both apps get the first rows of MNIST only, and with --epsilon our run is private and its nodes keep ledgers.
"""

import argparse
import gzip
import json
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # as in Flower's images
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
from engine import JOB, STEPS, stock_words

from twinflower.simulation.runtimes.rehearsal import Deployment, deployment
from twinflower.simulation.settings import Config, parse

NODES = 3
_PARTS = {"images-idx3": (16, 784), "labels-idx1": (8, 1)}  # bytes of the header, and of a row


def cut(source: Path, folder: Path, rows: int) -> Path:
    """Write the first rows of MNIST's training files, and its test files, to the folder."""
    for part, (head, size) in _PARTS.items():
        for kind, most in (("train", rows), ("t10k", 10_000)):
            name = f"{kind}-{part}-ubyte"
            text = gzip.decompress(next(source.glob(f"**/{name}.gz")).read_bytes())
            body = text[8:head] + text[head : head + most * size]
            (folder / name).write_bytes(text[:4] + struct.pack(">I", most) + body)
    return folder


def processor_seconds(nodes: Deployment) -> float:
    """The processor time of all nodes and of the processes that they started, also of those that have ended."""
    roots = [psutil.Process(process.pid) for process in nodes.nodes.values()]
    times = [process.cpu_times() for root in roots for process in (root, *root.children(recursive=True))]
    return sum(own.user + own.system + own.children_user + own.children_system for own in times)


def stock(nodes: Deployment, config: Config, folder: Path) -> list[float]:
    """The seconds of each round of the stock app."""
    times, words = folder / "times.json", stock_words(config, folder / "times.json")
    nodes.flwr(*words[: words.index("--federation-config")])
    marks = json.loads(times.read_text())
    return [end - begin for begin, end in pairwise(marks)]


def ours(nodes: Deployment, config: Config, folder: Path) -> list[float]:
    """The seconds of each round of our app."""
    nodes.run(config, folder / "run")
    rounds = (folder / "run" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in rounds]


def measured(
    nodes: Deployment, config: Config, run: Callable[[Deployment, Config, Path], list[float]]
) -> tuple[float, float]:
    """The median seconds of a round after the first, and the processor seconds per message: one a round, and of our
    app one more, with which it meets a node."""
    before, messages = processor_seconds(nodes), NODES * (config.rounds + (run is ours))
    with tempfile.TemporaryDirectory() as folder:
        seconds = run(nodes, config, Path(folder))
    return median(seconds[1:]), (processor_seconds(nodes) - before) / messages


def race(config: Config, turns: int) -> dict[str, tuple[float, float]]:
    """Both apps in turn; of each, the least of both figures."""
    apps, found = {"stock": stock, "ours": ours}, {"stock": [], "ours": []}
    with deployment() as nodes:
        for number in range(NODES):
            own = {"data-dir": config.data.dir, "state-dir": str(nodes.home / f"state-{number}")}
            nodes.start_node(
                number, NODES, own | ({"lifetime-epsilon": 1e3} if config.method.privacy != "none" else {})
            )
        for turn in range(turns + 1):
            for name, run in apps.items():
                done = measured(nodes, config if turn else config.put({"rounds": 2}), run)
                found[name] += [done] if turn else []
    return {name: tuple(map(min, zip(*own, strict=True))) for name, own in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True, help="folder of the MNIST files")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rows", type=int, help="how many training rows both apps have; default: all")
    parser.add_argument("--epsilon", type=float, help="makes our run private")
    arguments = parser.parse_args()
    own = {
        "clients.count": NODES,
        "clients.per-round": NODES,
        "rounds": arguments.rounds,
        "evaluation.every": arguments.rounds,
    }
    if arguments.epsilon:
        own |= {"privacy.mode": "gradient", "privacy.epsilon": arguments.epsilon, "data.row-norm": 1.0}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(arguments.data_dir).absolute()
        own["data.dir"] = str(cut(data, Path(folder), arguments.rows) if arguments.rows else data)
        config = parse({"local.max-steps": STEPS}, JOB | own)
        config.data.load(deferred=True)  # DataError before any process starts
        found = race(config, arguments.turns)
    print("| deployed nodes | stock | ours | |", "|---|---|---|---|", sep="\n")
    for row, unit in enumerate(("a round, seconds", "a message, seconds of processor time")):
        theirs, own_ = found["stock"][row], found["ours"][row]
        print(
            f"| {unit} | {theirs:.2f} | {own_:.2f} | ratio {own_ / theirs:.2f}, difference {own_ - theirs:+.2f} |"
        )


if __name__ == "__main__":
    main()
