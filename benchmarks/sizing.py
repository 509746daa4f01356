"""What a deployment needs: memory and processor time of nodes, and bytes sent and stored by model size.

    python benchmarks/sizing.py                                          # bytes, in this process
    python benchmarks/sizing.py --nodes 20 [--rounds 3]     # a SuperLink and so many nodes on this machine

The job is FedPDM on the digits. Memory is a process's own (USS), of which nothing is shared, or its share (PSS), with
shared pages divided among the processes that have them. Of a busy node it is the most in samples of 0.2 s.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
from flwr.app import Message
from nodes import processor_seconds

from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.rehearsal import Deployment, deployment
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import Config, parse

JOB = {"algorithm": "fedpdm", "clients.count": 3, "rounds": 4, "local.max-steps": 2}
HIDDEN = (0, 100, 1000, 10_000)  # units of the network's hidden layer; 0: softmax regression
IDLE = 10.0  # seconds
MIB = 2**20


def size(path: Path, pattern: str) -> int:
    """Bytes of the files below the folder whose names match."""
    return sum(file.stat().st_size for file in path.rglob(pattern) if file.is_file())


def content(message: Message) -> int:
    """The bytes of the records of a message."""
    return sum(record.count_bytes() for record in message.content.values())


class Weighing(InProcessGrid):
    """A grid that notes the bytes of the last request and the last reply."""

    request = reply = 0

    def answer(self, message: Message) -> Message:
        """The reply of the node."""
        self.request = content(message)
        reply = super().answer(message)
        self.reply = content(reply)
        return reply


def stored(hidden: int, private: bool = False) -> tuple[int, ...]:
    """Parameters; bytes of a request and of its reply; and after 4 rounds those of a site's state and of its ledger,
    and of the server's two checkpoints."""
    job: dict[str, Any] = JOB | ({"privacy.mode": "public-state", "privacy.epsilon": 8.0} if private else {})
    job |= {"objective.name": "swish-network", "objective.hidden-units": hidden} if hidden else {}
    with tempfile.TemporaryDirectory() as folder:
        config = parse(job | {"output.state-dir": f"{folder}/sites", "output.checkpoint-every": 1})
        setup = prepare(config)
        grid = Weighing(setup)
        run_strategy(setup, grid, "inprocess", checkpoints=Checkpoints(Path(folder, "run"), 1, config))
        sites, count = Path(folder, "sites"), config.clients.count
        ledger = size(sites, "*.ledger") // count
        kept = size(sites, "*") // count - ledger
        return setup.objective.d, grid.request, grid.reply, kept, ledger, size(Path(folder, "run"), "*.npz")


def by_model() -> None:
    """Print the bytes by model size."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    print(
        "| parameters | a request | a reply | a site's state | two checkpoints |",
        "|---|---|---|---|---|",
        sep="\n",
    )
    for hidden in HIDDEN:
        d, request, reply, state, _, checkpoints = stored(hidden)
        print("|", " | ".join(f"{one:,}" for one in (d, request, reply, state, checkpoints)), "|")
    ledger = stored(0, private=True)[4]
    print(f"\nledger of a site after {JOB['rounds']} private rounds: {ledger:,} bytes")


def memory(root: psutil.Process) -> tuple[float, float]:
    """USS and PSS, in MiB, of a process and all that it started."""
    total = [0.0, 0.0]
    for process in (root, *root.children(recursive=True)):
        try:
            found = process.memory_full_info()
        except psutil.Error:  # it has ended
            continue
        total = [total[0] + found.uss / MIB, total[1] + found.pss / MIB]
    return total[0], total[1]


class Busiest(threading.Thread):
    """The largest memory of these processes together, in samples of 0.2 s until `stop` is set."""

    def __init__(self, roots: Iterable[psutil.Process]) -> None:
        super().__init__(daemon=True)
        self.roots, self.stop, self.most = list(roots), threading.Event(), (0.0, 0.0)

    def run(self) -> None:
        """Sample."""
        while not self.stop.wait(0.2):
            now = [memory(root) for root in self.roots]
            self.most = max(self.most, (sum(uss for uss, _ in now), sum(pss for _, pss in now)))


def deployed(count: int, rounds: int) -> None:
    """Print memory, processor time and time per round of nodes on this machine."""
    patient = {"server.round-timeout": 600.0, "server.node-timeout": 600.0}
    config = parse(JOB | patient | {"clients.count": count, "rounds": rounds})
    with deployment() as nodes, tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            nodes.start_node(number, count, {"state-dir": f"{folder}/site-{number}"})
        _measure(nodes, config, Path(folder))


def _measure(nodes: Deployment, config: Config, folder: Path) -> None:
    count = config.clients.count
    roots = [psutil.Process(process.pid) for process in nodes.nodes.values()]
    nodes.run(config.put({"rounds": 1}), folder / "first")  # all have connected, and installed the app
    time.sleep(IDLE)
    idle = [memory(root) for root in roots]
    before = processor_seconds(nodes)
    time.sleep(IDLE)
    at_rest = processor_seconds(nodes) - before
    busiest, before = Busiest(roots), processor_seconds(nodes)
    busiest.start()
    nodes.run(config, folder / "run")
    busiest.stop.set()
    busiest.join()
    worked = processor_seconds(nodes) - before
    seconds = [
        json.loads(line)["seconds"] for line in (folder / "run" / "rounds.jsonl").read_text().splitlines()
    ]
    uss, pss = (sum(values) for values in zip(*idle, strict=True))
    print(f"{count} nodes, {config.rounds} rounds")
    print(f"idle, MiB of a node: {uss / count:.0f} (USS), {pss / count:.0f} (PSS)")
    print(f"busy, MiB of a node at the busiest: {busiest.most[0] / count:.0f}, {busiest.most[1] / count:.0f}")
    print(f"all nodes at the busiest, GiB: {busiest.most[0] / 1024:.2f}, {busiest.most[1] / 1024:.2f}")
    print(f"idle, processor seconds of a node per minute: {60 * at_rest / IDLE / count:.2f}")
    print(f"processor seconds of a node per round: {worked / count / config.rounds:.2f}")
    print(f"seconds of a round: {', '.join(f'{one:.1f}' for one in seconds)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--nodes", type=int, default=0, help="nodes to start; without it, bytes by model size"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.nodes:
        deployed(arguments.nodes, arguments.rounds)
    else:
        by_model()


if __name__ == "__main__":
    main()
