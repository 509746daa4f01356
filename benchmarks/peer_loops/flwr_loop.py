"""Flower's own FedAvg on its simulation engine, with clients in NumPy.

The clients are functions of messages, as Flower's guide "Upgrade to Message API" recommends instead of a NumPyClient.
"""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Job, Tick, read

clients = ClientApp()


@clients.train()
def steps(message: Message, context: Context) -> Message:
    """The local steps of one client."""
    job, k = read(message.content["config"]["job"]), context.node_config["partition-id"]
    (x,) = message.content["arrays"].to_numpy_ndarrays()
    arrays = ArrayRecord([descend(job, x.copy(), job.features[k], job.labels[k])])
    metrics = MetricRecord({"num-examples": len(job.labels[k])})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def descend(job: Job, x: np.ndarray, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The local steps from x, in place."""
    order = np.random.default_rng().permutation(len(labels))[: job.steps * job.batch]
    for rows in order.reshape(job.steps, job.batch):
        a = features[rows]
        slopes = a @ x.T
        slopes -= slopes.max(1, keepdims=True)
        np.exp(slopes, out=slopes)
        slopes /= slopes.sum(1, keepdims=True)
        slopes[np.arange(job.batch), labels[rows]] -= 1
        slopes *= job.step / job.batch
        x -= slopes.T @ a
    return x


def train(path: str, tick: Tick) -> np.ndarray:
    """The model after the job's rounds."""
    job, server, models = read(path), ServerApp(), []
    count, _, width = job.features.shape

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        """All rounds of Flower's FedAvg."""
        strategy = FedAvg(job.sampled / count, 0.0, min_train_nodes=job.sampled, min_available_nodes=count)
        result = strategy.start(
            grid,
            ArrayRecord([np.zeros((job.classes, width), job.features.dtype)]),
            job.rounds,
            train_config=ConfigRecord({"job": path}),
            evaluate_fn=lambda round_, arrays: tick() if round_ else None,
        )
        models.extend(result.arrays.to_numpy_ndarrays())

    run_simulation(server, clients, count, backend_config={"client_resources": {"num_cpus": 1}})
    return models[0]
