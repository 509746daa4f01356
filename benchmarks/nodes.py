"""Deployed nodes: how long stock FedAvg and ours take per round, and how much processor time per message.

    python benchmarks/nodes.py --data-dir DIR [--rounds 10] [--turns 2]

Both apps run in turn on the same SuperLink and SuperNodes on this machine, on the MNIST job of `engine.py` with three
clients. Flower starts a process for every message, so the time of a message is mostly that of imports. The first round,
in which nodes install the app, does not count. Processor time is that of a node and all that it started.
"""

import argparse
import json
import os
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
    """The median seconds of a round after the first, and the processor seconds per message."""
    before = processor_seconds(nodes)
    with tempfile.TemporaryDirectory() as folder:
        seconds = run(nodes, config, Path(folder))
    return median(seconds[1:]), (processor_seconds(nodes) - before) / (NODES * config.rounds)


def race(config: Config, turns: int) -> dict[str, tuple[float, float]]:
    """Both apps in turn; of each, the least of both figures."""
    apps, found = {"stock": stock, "ours": ours}, {"stock": [], "ours": []}
    with deployment() as nodes:
        for number in range(NODES):
            nodes.start_node(number, NODES, {"data-dir": config.data.dir})
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
    arguments = parser.parse_args()
    own = {
        "clients.count": NODES,
        "clients.per-round": NODES,
        "rounds": arguments.rounds,
        "evaluation.every": arguments.rounds,
    }
    own["data.dir"] = str(Path(arguments.data_dir).absolute())
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
