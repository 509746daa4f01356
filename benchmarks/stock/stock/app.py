"""Softmax regression on MNIST: Flower's own FedAvg, and a NumPyClient written by hand.

Run config: data, the folder of MNIST's files; clients, sampled, rounds, steps, batch and step-size of the job; times, a
file for the time at which the training began and those at which its rounds ended.
"""

import gzip
import json
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

PIXELS, CLASSES = 784, 10


def read(folder: str, name: str, header: int) -> NDArray[np.uint8]:
    """The bytes of an IDX file after its header."""
    path = next(Path(folder).glob(f"**/{name}*"))
    content = path.read_bytes()
    return np.frombuffer(
        gzip.decompress(content) if path.suffix == ".gz" else content, np.uint8, offset=header
    )


@lru_cache
def rows(folder: str, clients: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Features (rows, pixels), labels (rows,), and the numbers of each client's rows (clients, rows of one)."""
    features = read(folder, "train-images", 16).reshape(-1, PIXELS) / 255.0
    labels = read(folder, "train-labels", 8).astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    return features, labels, order[: len(order) // clients * clients].reshape(clients, -1)


class SoftmaxClient(NumPyClient):
    """A few steps of gradient descent on batches of its rows."""

    def __init__(self, features: NDArray[Any], labels: NDArray[Any], config: dict[str, Any]) -> None:
        self.features, self.labels, self.config = features, labels, config

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """The point (pixels, classes) after the local steps, and the number of rows."""
        steps, batch, step_size = (self.config[key] for key in ("steps", "batch", "step-size"))
        x, order = parameters[0].copy(), np.random.default_rng(0).permutation(len(self.labels))
        for chosen in order[: steps * batch].reshape(steps, batch):
            features = self.features[chosen]
            slopes = features @ x
            slopes -= slopes.max(1, keepdims=True)
            np.exp(slopes, out=slopes)
            slopes /= slopes.sum(1, keepdims=True)
            slopes[np.arange(batch), self.labels[chosen]] -= 1
            slopes *= step_size / batch
            x -= features.T @ slopes
        return [x], len(self.labels), {}


def client_fn(context: Context) -> Client:
    """The client of this node."""
    config = context.run_config
    features, labels, owners = rows(str(config["data"]), int(config["clients"]))
    own = owners[int(context.node_config["partition-id"])]
    return SoftmaxClient(features[own], labels[own], dict(config)).to_client()


client = ClientApp(client_fn)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and store the times."""
    config, times = context.run_config, [time.time()]
    clients, sampled = int(config["clients"]), int(config["sampled"])
    strategy = FedAvg(
        fraction_train=sampled / clients,
        fraction_evaluate=0.0,
        min_train_nodes=sampled,
        min_available_nodes=clients,
    )

    def note(round_: int, arrays: ArrayRecord) -> None:
        if round_:
            times.append(time.time())

    start = ArrayRecord([np.zeros((PIXELS, CLASSES))])
    strategy.start(grid=grid, initial_arrays=start, num_rounds=int(config["rounds"]), evaluate_fn=note)
    Path(str(config["times"])).write_text(json.dumps(times))
