"""pfl-research's simulation, after its benchmarks/image_classification/pytorch/train.py.

Its guide "Fast distributed simulations" recommends data sets in memory and rare evaluation.
"""

import numpy as np
import torch
from job import Job, Tick, read
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Softmax(torch.nn.Linear):
    def loss(self, features, labels):
        return torch.nn.functional.cross_entropy(self(features), labels)

    def metrics(self, features, labels):
        return {}  # required; there is nothing to report


class Rounds(TrainingProcessCallback):
    def __init__(self, tick: Tick) -> None:
        self.tick = tick

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.tick()
        return False, Metrics()


def users(job: Job) -> FederatedDataset:
    """Clients with the rows of their next steps, because a pfl data set always has its rows in the same order."""
    features, labels = torch.from_numpy(job.features), torch.from_numpy(job.labels)

    def user(k: int) -> PyTorchTensorDataset:
        rows = torch.randperm(labels.shape[1])[: job.steps * job.batch]
        return PyTorchTensorDataset((features[k][rows], labels[k][rows]))

    return FederatedDataset(user, get_user_sampler("minimize_reuse", range(len(labels))))


def train(path: str, tick: Tick) -> np.ndarray:
    """The model after the job's rounds."""
    job = read(path)
    module, data = Softmax(job.features.shape[-1], job.classes, bias=False), users(job)
    torch.nn.init.zeros_(module.weight)
    FederatedAveraging().run(
        NNAlgorithmParams(job.rounds, evaluation_frequency=10**9, train_cohort_size=job.sampled, val_cohort_size=None),
        SimulatedBackend(data, val_data=None),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=job.step, local_batch_size=job.batch),
        callbacks=[Rounds(tick)],
        send_metrics_to_platform=False,
    )  # fmt: skip
    return module.weight.detach().numpy()
