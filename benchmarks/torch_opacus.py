"""A small CNN on digits: our methods beside plain Flower, without privacy and with Opacus at equal epsilon.

    python benchmarks/torch_opacus.py [--epsilon 8] [--seeds 0,1,2] [--rounds 30] [--markdown FILE]

Model, data, 10 sites, rounds and clip_norm are those of examples/torch-app for all; every site's messages over all
rounds are (epsilon, 1e-4)-private for one of its images. The units differ: Opacus counts an image that is added or
removed, and samples batches at random; ours count an image that is replaced, which is the stronger statement (it needs
twice the noise). Everything runs through Flower's messages in one process, one thread. Needs
`pip install "twinflower[torch]" opacus`.
"""

import argparse
import copy
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "torch-app"))

import numpy as np
import torch
from digits_cnn.methods import CLIP_NORM, DELTA
from digits_cnn.task import Net, load_data, load_test
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from plug_in_driver import OneProcess
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from twinflower import algorithms, clients, strategies
from twinflower.batches import Walk
from twinflower.clients import ContextLedger
from twinflower.privacy.guard import Guard
from twinflower.torch import ModuleObjective

SITES = 10


class Run(NamedTuple):
    """What all rows share."""

    rounds: int
    epsilon: float
    seed: int

    def net(self) -> Net:
        """The start."""
        torch.manual_seed(self.seed)
        return Net()


def accuracy(net: Net) -> float:
    """On the images that no site has."""
    test = load_test()
    with torch.no_grad():
        scores = net(torch.from_numpy(test.features).reshape(-1, 1, 8, 8)).numpy()
    return float((scores.argmax(1) == test.labels).mean())


def dataset(partition: int) -> TensorDataset:
    """A site's images."""
    rows = load_data(partition, SITES)
    return TensorDataset(torch.from_numpy(rows.features).reshape(-1, 1, 8, 8), torch.from_numpy(rows.labels))


def plain_flower(run: Run, batch: int, steps: int, step_size: float, private: bool) -> Net:
    """FedAvg of Flower around SGD, or around Opacus's DP-SGD: steps of expected size batch (0: all rows) a round."""
    app, net = ClientApp(), run.net()
    sizes = [len(dataset(i)) for i in range(SITES)]
    rates = [min(1.0, batch / n) if batch else 1.0 for n in sizes]
    noise = [
        get_noise_multiplier(
            target_epsilon=run.epsilon,
            target_delta=DELTA,
            sample_rate=q,
            steps=steps * run.rounds,
            accountant="prv",
        )
        if private
        else 0.0
        for q in rates
    ]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        local, i = copy.deepcopy(net), int(context.node_config["partition-id"])
        local.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(local.parameters(), lr=step_size)
        loader = DataLoader(dataset(i), batch_size=batch or sizes[i], shuffle=True)
        model = local
        if private:
            model, optimizer, loader = PrivacyEngine().make_private(
                module=local, optimizer=optimizer, data_loader=loader, noise_multiplier=noise[i],
                max_grad_norm=CLIP_NORM,
            )  # fmt: skip
        for images, labels in (item for _, item in zip(range(steps), _forever(loader), strict=False)):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(local.state_dict()),
            "metrics": MetricRecord({"num-examples": sizes[i]}),
        }
        return Message(RecordDict(content), reply_to=message)

    result = FedAvg(fraction_evaluate=0.0).start(
        OneProcess(app, SITES, {}), ArrayRecord(net.state_dict()), num_rounds=run.rounds
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    return net


def _forever(loader: DataLoader):
    while True:
        yield from loader


def ours(run: Run, method: str, walk: Walk, private: bool, **settings: float) -> Net:
    """One of our methods, by the name of its classes."""
    page = getattr(algorithms, method)(privacy="public-state" if private else "none", **settings)
    objective = ModuleObjective(run.net(), row_shape=(1, 8, 8), clip_norm=CLIP_NORM if private else 0.0)

    def client_fn(context: Context):
        i = int(context.node_config["partition-id"])
        rows = load_data(i, SITES)
        guard = private and Guard.planned(
            page, objective.bounds(0.0), walk.pace(len(rows.labels)), run.rounds, run.epsilon, DELTA,
            ContextLedger(context.state),
        )  # fmt: skip
        client = getattr(clients, f"{method}Client")
        return client(
            context, page, objective, rows, objective.start(), i, SITES, walk, run.seed, guard or None
        ).to_client()

    grid, start = OneProcess(ClientApp(client_fn), SITES, {}), ArrayRecord([objective.start()])
    result = getattr(strategies, method)(page).start(grid, start, run.rounds)
    net = run.net()
    net.load_state_dict(objective.state_dict(*result.arrays.to_numpy_ndarrays()))
    return net


SGD, ALL = Walk(16, 8), Walk(0, 1)
ROWS: list[tuple[str, str, Callable[[Run], Net]]] = [
    ("FedAvg of Flower, SGD", "none", partial(plain_flower, batch=16, steps=8, step_size=0.3, private=False)),
    ("FedAvg", "none", partial(ours, method="FedAvg", walk=SGD, private=False, step_size=0.3)),
    ("FedPDM", "none", partial(ours, method="FedPDM", walk=SGD, private=False, step_size=0.3, rho=0.5)),
    ("SCAFFOLD", "none", partial(ours, method="Scaffold", walk=SGD, private=False, step_size=0.3)),
    ("FedAvg of Flower, Opacus, 1 step on all rows", "add or remove",
     partial(plain_flower, batch=0, steps=1, step_size=1.0, private=True)),
    ("FedAvg of Flower, Opacus, 8 steps of 16 rows", "add or remove",
     partial(plain_flower, batch=16, steps=8, step_size=0.3, private=True)),
    ("FedAvg, 1 step on all rows", "replace", partial(ours, method="FedAvg", walk=ALL, private=True, step_size=1.0)),
    ("FedPDM, 1 step on all rows", "replace",
     partial(ours, method="FedPDM", walk=ALL, private=True, step_size=1.0, rho=0.5)),
    ("SCAFFOLD, 1 step on all rows", "replace",
     partial(ours, method="Scaffold", walk=ALL, private=True, step_size=1.0)),
]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = ["| method | neighbours | test accuracy | seconds |", "|---|---|---|---|"]
    for name, unit, make in (row for row in ROWS if chosen.only in row[0]):
        reached, seconds = [], []
        for seed in map(int, chosen.seeds.split(",")):
            began = time.process_time()
            reached.append(accuracy(make(Run(chosen.rounds, chosen.epsilon, seed))))
            seconds.append(time.process_time() - began)
        spread = statistics.stdev(reached) if len(reached) > 1 else 0.0
        lines.append(f"| {name} | {unit} | {np.mean(reached):.3f} +- {spread:.3f} | {min(seconds):.1f} |")
        print(lines[-1], flush=True)
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
