"""Softmax regression on MNIST: Flower's own FedAvg, and a client written by hand in NumPy.

The client is a function of messages, because Flower's FedAvg for messages cannot train a NumPyClient: every one fails.

Run config: data, the folder of MNIST's files; clients, sampled, rounds, steps, batch and step-size of the job; times, a
file for the time at which the training began and those at which its rounds ended.
"""

import gzip
import json
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
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


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """The reply of a node: the point (pixels, classes) after a few steps of gradient descent on batches of its rows."""
    config = context.run_config
    features, labels, owners = rows(str(config["data"]), int(config["clients"]))
    own = owners[int(context.node_config["partition-id"])]
    steps, batch, step_size = int(config["steps"]), int(config["batch"]), float(config["step-size"])
    (received,) = cast(ArrayRecord, message.content["arrays"]).to_numpy_ndarrays()
    x, order = received.copy(), np.random.default_rng().permutation(own)
    for chosen in order[: steps * batch].reshape(steps, batch):
        batch_features = features[chosen]
        slopes = batch_features @ x
        slopes -= slopes.max(1, keepdims=True)
        np.exp(slopes, out=slopes)
        slopes /= slopes.sum(1, keepdims=True)
        slopes[np.arange(batch), labels[chosen]] -= 1
        slopes *= step_size / batch
        x -= batch_features.T @ slopes
    content = RecordDict()
    content["arrays"], content["metrics"] = ArrayRecord([x]), MetricRecord({"num-examples": len(own)})
    return Message(content, reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and store the times. RuntimeError if a reply is missing, because failing clients would be fast."""
    config, times = context.run_config, [time.time()]
    clients, sampled, rounds = (int(config[key]) for key in ("clients", "sampled", "rounds"))
    strategy = FedAvg(
        fraction_train=sampled / clients,
        fraction_evaluate=0.0,
        min_train_nodes=sampled,
        min_available_nodes=clients,
        train_metrics_aggr_fn=lambda replies, key: MetricRecord({"replies": len(replies)}),
    )

    def note(round_: int, arrays: ArrayRecord) -> None:
        if round_:
            times.append(time.time())

    start = ArrayRecord([np.zeros((PIXELS, CLASSES))])
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=note)
    counts = [metrics["replies"] for metrics in result.train_metrics_clientapp.values()]
    if counts != [sampled] * rounds:
        raise RuntimeError(f"not all of the {sampled} clients of each of {rounds} rounds replied: {counts}")
    Path(str(config["times"])).write_text(json.dumps(times))
