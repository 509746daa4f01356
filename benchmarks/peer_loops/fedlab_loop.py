"""FedLab's standalone simulation, after its examples/standalone-mnist/standalone.py."""

import sys
from unittest.mock import MagicMock

import numpy as np
import torch
from job import Job, Tick, read

# FedLab imports torchvision for data sets not used here. Builds for CUDA do not load beside a PyTorch without CUDA.
sys.modules["torchvision"] = MagicMock()

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Rows(FedDataset):
    """The clients' rows. Batches are slices of one tensor: torch's DataLoader, which collates rows, is slower."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.features, self.labels = torch.from_numpy(job.features), torch.from_numpy(job.labels)
        self.used = job.steps * job.batch

    def get_dataloader(self, id, batch_size, type="train"):
        rows = torch.randperm(self.labels.shape[1])[: self.used]
        features, labels = self.features[id][rows], self.labels[id][rows]
        return list(zip(features.split(batch_size), labels.split(batch_size), strict=True))


def train(path: str, tick: Tick) -> np.ndarray:
    """The model after the job's rounds."""
    job = read(path)
    clients, _, width = job.features.shape
    model = torch.nn.Linear(width, job.classes, bias=False)
    torch.nn.init.zeros_(model.weight)
    handler = FedAvgServerHandler(model, job.rounds, job.sampled / clients)
    trainer = FedAvgSerialClientTrainer(model, clients)
    trainer.setup_dataset(Rows(job))
    trainer.setup_optim(1, job.batch, job.step)
    pipeline = StandalonePipeline(handler, trainer)
    pipeline.evaluate = tick  # called after every round
    pipeline.main()
    return handler.model.weight.detach().numpy()
