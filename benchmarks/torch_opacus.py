"""A small CNN on digits: our methods beside plain Flower, without privacy and with Opacus at equal epsilon.

    python benchmarks/torch_opacus.py [--tune 100,101] [--epsilon 8] [--seeds 0,1,...,9] [--rounds 30] [--markdown FILE]

Model, data, 10 sites, rounds and clip_norm are those of examples/torch-app for all; every site's messages over all
rounds are (epsilon, 1e-4)-private for one of its images. What "one image" means is chosen once for a row of the table
and its competitors: an image that is added or removed (Opacus's relation; the number of images is public, so that it
is an image that counts as zero), or one that is replaced by another (ours), which takes up to twice the noise.

Opacus's noise comes from its PRV accountant for add or remove, and from dp-accounting's PLD accountant for replace.
Ours comes from our Gaussian accountant, which is exact, for replace; half the clip norm in its bounds gives add or
remove, since a zeroed row moves a clipped sum by clip_norm and not by twice as much. Only Opacus samples its batches at
random, and only its accountants count that.

Every row has two settings to choose: its step size, and one of its own (SECOND): the server's momentum for FedAvg, rho
for FedPDM, the decay of the steps for SCAFFOLD. --tune searches them, by the same rule for all: the 3 x 3 points around
the row's settings in ROWS, again around the best of them by the mean test accuracy over the seeds given, which must not
be those of the table, until the best is in the middle of its nine, or at an end of a list, or three squares are done. A
point that a method refuses (2 rho step size too large) has accuracy 0. Without it the settings in ROWS are used, which
`--tune 100,101` found. Everything runs through Flower's messages in
one process, one thread; seconds are those of a run without the search for the noise. Needs
`pip install "twinflower[torch]" opacus dp-accounting`.
"""

import argparse
import copy
import itertools
import logging
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "torch-app"))

import dp_accounting
import torch
from digits_cnn.methods import CLIP_NORM, DELTA
from digits_cnn.task import Net, load_data, load_test
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvgM
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from plug_in_driver import OneProcess
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from twinflower import algorithms, clients, strategies
from twinflower.clients import ContextLedger
from twinflower.errors import SettingError
from twinflower.privacy import gdp_mu
from twinflower.privacy.plan import Plan
from twinflower.privacy.target import Target
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Bounds
from twinflower.torch import ModuleObjective

SITES = 10
STEP_SIZES = tuple(2.0**power for power in range(-6, 8))
MOMENTA = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)
PENALTIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
DECAYS = (0.0, 0.15, 0.3, 0.5, 0.75)
SECOND = {"momentum": MOMENTA, "rho": PENALTIES, "decay": DECAYS}
SQUARES = 3

Settings = tuple[float, float]  # the step size, and the method's own


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


def replace_noise(epsilon: float, rate: float, steps: int) -> float:
    """sigma / clip_norm where a row is replaced, at most 1e-4 more than needed.

    dp-accounting's PLD accountant doubles the clip norm for REPLACE_ONE itself (its RDP accountant does not).
    """

    def event(noise: float) -> dp_accounting.DpEvent:
        sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(sampled, steps)

    def accountant() -> dp_accounting.PrivacyAccountant:
        return dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)

    high = 2.02 * math.sqrt(steps) / gdp_mu(epsilon, DELTA)  # enough without any amplification
    low = high / 2
    while accountant().compose(event(low)).get_epsilon(DELTA) <= epsilon:
        low /= 2
    bracket = dp_accounting.ExplicitBracketInterval(low, high)
    return float(
        dp_accounting.calibrate_dp_mechanism(accountant, event, epsilon, DELTA, bracket, tol=1e-4 * low)
    )


@cache
def opacus_noise(relation: str, epsilon: float, rate: float, steps: int) -> float:
    """sigma / clip_norm of so many steps, each on a batch that has every row with probability rate."""
    if relation == "replace":
        return replace_noise(epsilon, rate, steps)
    return float(
        get_noise_multiplier(
            target_epsilon=epsilon, target_delta=DELTA, sample_rate=rate, steps=steps, accountant="prv"
        )
    )


def plain_flower(run: Run, settings: Settings, relation: str, batch: int, steps: int) -> Net:
    """FedAvgM of Flower around SGD, or around Opacus's DP-SGD: steps of expected size batch (0: all rows) a round."""
    app, net, (step_size, momentum) = ClientApp(), run.net(), settings

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """The node's model after its local steps."""
        local, i = copy.deepcopy(net), int(context.node_config["partition-id"])
        local.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(local.parameters(), lr=step_size)
        rows = dataset(i)
        loader = DataLoader(rows, batch_size=batch or len(rows), shuffle=True)
        model = local
        if relation != "none":
            noise = opacus_noise(relation, run.epsilon, 1 / len(loader), steps * run.rounds)
            model, optimizer, loader = PrivacyEngine().make_private(
                module=local, optimizer=optimizer, data_loader=loader, noise_multiplier=noise,
                max_grad_norm=CLIP_NORM,
            )  # fmt: skip
        for images, labels in (item for _, item in zip(range(steps), _forever(loader), strict=False)):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(local.state_dict()),
            "metrics": MetricRecord({"num-examples": len(rows)}),
        }
        return Message(RecordDict(content), reply_to=message)

    result = FedAvgM(fraction_evaluate=0.0, server_momentum=momentum).start(
        OneProcess(app, SITES, {}), ArrayRecord(net.state_dict()), num_rounds=run.rounds
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    return net


def _forever(loader: DataLoader):
    while True:
        yield from loader


def ours(
    run: Run,
    settings: Settings,
    relation: str,
    method: str,
    schedule: LocalSchedule,
    privacy: str = "public-state",
    noise: str = "independent",
) -> Net:
    """One of our methods, by the name of its classes."""
    private = relation != "none"
    own = {"FedAvg": "server_momentum", "FedPDM": "rho", "Scaffold": "step_decay"}[method]
    algorithm = getattr(algorithms, method)(
        privacy=privacy if private else "none", step_size=settings[0], **{own: settings[1]}
    )
    objective = ModuleObjective(run.net(), row_shape=(1, 8, 8), clip_norm=CLIP_NORM if private else 0.0)

    @cache
    def plan(rows: int) -> Plan:
        """That of a site with so many rows."""
        workloads, asked = schedule.workloads([rows]), [[0]] * run.rounds
        return Plan.of(algorithm, bounds(relation), workloads, asked, Target(run.epsilon, DELTA, noise=noise))

    def client_fn(context: Context):
        """The client of a node, with a guard if the run is private."""
        i = int(context.node_config["partition-id"])
        rows = load_data(i, SITES)
        guard = plan(len(rows.labels)).guard(0, ContextLedger(context.state)) if private else None
        client = getattr(clients, f"{method}Client")
        return client(
            context, algorithm, objective, rows, objective.start(), i, SITES, schedule, run.seed, guard
        ).to_client()

    grid, start = OneProcess(ClientApp(client_fn), SITES, {}), ArrayRecord([objective.start()])
    result = getattr(strategies, method)(algorithm).start(grid, start, run.rounds)
    net = run.net()
    net.load_state_dict(objective.state_dict(*result.arrays.to_numpy_ndarrays()))
    return net


def bounds(relation: str) -> Bounds:
    """What a guard may rest on. It plans for a replaced row, which moves a clipped sum by twice this gradient."""
    return Bounds(CLIP_NORM if relation == "replace" else CLIP_NORM / 2, math.inf)


class Row(NamedTuple):
    """A row of the table; make(run, settings, relation). settings: what `--tune 100,101` found; second: in SECOND."""

    name: str
    relation: str
    second: str
    settings: Settings
    make: Callable[[Run, Settings, str], Net]

    def reached(self, run: Run, settings: Settings) -> float:
        """Test accuracy; 0 if the method refuses the settings."""
        try:
            return accuracy(self.make(run, settings, self.relation))
        except SettingError:
            return 0.0

    def tuned(self, runs: list[Run]) -> Settings:
        """The settings with the highest mean accuracy over these runs in a search over squares of the grid."""
        axes = (STEP_SIZES, SECOND[self.second])
        centre = tuple(axis.index(value) for axis, value in zip(axes, self.settings, strict=True))
        means: dict[tuple[int, ...], float] = {}
        for _ in range(SQUARES):
            for point in self._square(centre, axes):
                settings = tuple(axis[at] for axis, at in zip(axes, point, strict=True))
                if point not in means:
                    means[point] = statistics.fmean(self.reached(run, settings) for run in runs)
            best = max(means, key=means.__getitem__)
            if best == centre:
                break
            centre = best
        found = {
            tuple(axis[at] for axis, at in zip(axes, point, strict=True)): mean
            for point, mean in means.items()
        }
        chosen = max(found, key=found.__getitem__)
        print(f"{self.name} ({self.relation}): {len(found)} points, {chosen}: {found}", flush=True)
        return chosen

    @staticmethod
    def _square(centre: tuple[int, ...], axes: tuple[tuple[float, ...], ...]) -> list[tuple[int, ...]]:
        """The points at most one step from the centre on each axis."""
        near = [range(max(at - 1, 0), min(at + 2, len(axis))) for at, axis in zip(centre, axes, strict=True)]
        return list(itertools.product(*near))

    def line(self, runs: list[Run], settings: Settings) -> str:
        """The row as measured."""
        reached, seconds = [], []
        for run in runs:
            began = time.process_time()
            reached.append(self.reached(run, settings))
            seconds.append(time.process_time() - began)
        spread = statistics.stdev(reached) if len(runs) > 1 else 0.0
        return (
            f"| {self.name} | {self.relation} | {settings[0]:g} | {self.second} {settings[1]:g} "
            f"| {statistics.fmean(reached):.3f} ± {spread:.3f} | {min(seconds):.1f} |"
        )


SGD, ALL, IN_ORDER = LocalSchedule(16, 8), LocalSchedule(0, 1), LocalSchedule(16, 8, fresh=False)
FLOWER, OPACUS = "FedAvg of Flower", "FedAvg of Flower, Opacus"
flower_sgd, flower_all = partial(plain_flower, batch=16, steps=8), partial(plain_flower, batch=0, steps=1)
our_sgd, our_all = partial(ours, schedule=SGD, privacy="gradient"), partial(ours, schedule=ALL)
our_banded = partial(ours, schedule=IN_ORDER, privacy="gradient", noise="banded")
BANDED = "banded noise, 8 steps of 16"
ADD, REPLACE = "add or remove", "replace"
ROWS = [
    Row(f"{FLOWER}, 8 steps of 16", "none", "momentum", (1.0, 0.6), flower_sgd),
    Row("FedAvg, 8 steps of 16", "none", "momentum", (1.0, 0.3), partial(our_sgd, method="FedAvg")),
    Row("FedPDM, 8 steps of 16", "none", "rho", (0.5, 0.02), partial(our_sgd, method="FedPDM")),
    Row("SCAFFOLD, 8 steps of 16", "none", "decay", (1.0, 0.15), partial(our_sgd, method="Scaffold")),
    Row(f"{OPACUS}, 8 steps of 16", ADD, "momentum", (2.0, 0.0), flower_sgd),
    Row(
        "FedAvg, noisy gradients, 8 steps of 16",
        ADD,
        "momentum",
        (0.5, 0.6),
        partial(our_sgd, method="FedAvg"),
    ),
    Row(
        "FedPDM, noisy gradients, 8 steps of 16", ADD, "rho", (0.25, 0.05), partial(our_sgd, method="FedPDM")
    ),
    Row(f"FedAvg, {BANDED}", ADD, "momentum", (1.0, 0.6), partial(our_banded, method="FedAvg")),
    Row(f"FedPDM, {BANDED}", ADD, "rho", (0.5, 0.02), partial(our_banded, method="FedPDM")),
    Row(f"{OPACUS}, 1 step on all", ADD, "momentum", (8.0, 0.3), flower_all),
    Row("FedAvg, 1 step on all", ADD, "momentum", (4.0, 0.8), partial(our_all, method="FedAvg")),
    Row("FedPDM, 1 step on all", ADD, "rho", (2.0, 0.05), partial(our_all, method="FedPDM")),
    Row("SCAFFOLD, 1 step on all", ADD, "decay", (8.0, 0.0), partial(our_all, method="Scaffold")),
    Row(f"{OPACUS}, 8 steps of 16", REPLACE, "momentum", (1.0, 0.3), flower_sgd),
    Row(
        "FedAvg, noisy gradients, 8 steps of 16",
        REPLACE,
        "momentum",
        (0.25, 0.6),
        partial(our_sgd, method="FedAvg"),
    ),
    Row(
        "FedPDM, noisy gradients, 8 steps of 16",
        REPLACE,
        "rho",
        (0.5, 0.1),
        partial(our_sgd, method="FedPDM"),
    ),
    Row(f"FedAvg, {BANDED}", REPLACE, "momentum", (0.25, 0.9), partial(our_banded, method="FedAvg")),
    Row(f"FedPDM, {BANDED}", REPLACE, "rho", (0.125, 0.02), partial(our_banded, method="FedPDM")),
    Row(f"{OPACUS}, 1 step on all", REPLACE, "momentum", (8.0, 0.0), flower_all),
    Row("FedAvg, 1 step on all", REPLACE, "momentum", (2.0, 0.8), partial(our_all, method="FedAvg")),
    Row("FedPDM, 1 step on all", REPLACE, "rho", (2.0, 0.1), partial(our_all, method="FedPDM")),
    Row("SCAFFOLD, 1 step on all", REPLACE, "decay", (8.0, 0.15), partial(our_all, method="Scaffold")),
]


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9")
    parser.add_argument(
        "--tune", default="", metavar="SEEDS", help="choose the settings on these other seeds"
    )
    parser.add_argument("--only", default="", help="rows whose name or relation has this text")
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    chosen = parsed()
    seeds, tuning = (
        [int(word) for word in words.split(",") if word] for words in (chosen.seeds, chosen.tune)
    )
    if set(seeds) & set(tuning):
        raise SystemExit("--tune must name other seeds than --seeds")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    lines = [
        "| method | neighbours | step size | and | test accuracy | seconds |",
        "|---|---|---|---|---|---|",
    ]
    runs, others = ([Run(chosen.rounds, chosen.epsilon, seed) for seed in part] for part in (seeds, tuning))
    for row in (row for row in ROWS if chosen.only in f"{row.name}|{row.relation}"):
        lines.append(row.line(runs, row.tuned(others) if others else row.settings))
        print(lines[-1], flush=True)
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
