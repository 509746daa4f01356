"""The loop by hand in PyTorch, with autograd: what libraries that train PyTorch modules one by one can reach."""

import numpy as np
import torch
from job import Job, Tick, read


class Loop:
    """One model for all clients, client by client."""

    def __init__(self, job: Job) -> None:
        self.job, self.features, self.labels = (
            job,
            torch.from_numpy(job.features),
            torch.from_numpy(job.labels),
        )
        self.model = torch.nn.Linear(job.features.shape[-1], job.classes, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=job.step)

    def round(self, start: torch.Tensor) -> torch.Tensor:
        """The mean of the sampled clients' models."""
        chosen = torch.randperm(len(self.labels))[: self.job.sampled]
        return torch.stack([self.client(int(k), start) for k in chosen]).mean(0)

    def client(self, k: int, start: torch.Tensor) -> torch.Tensor:
        """A client's model after its local steps."""
        self.model.weight.data.copy_(start)
        rows = torch.randperm(len(self.labels[k]))[: self.job.steps * self.job.batch]
        features, labels = self.features[k][rows], self.labels[k][rows]
        for a, y in zip(features.split(self.job.batch), labels.split(self.job.batch), strict=True):
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(a), y).backward()
            self.optimizer.step()
        return self.model.weight.detach().clone()


def train(path: str, tick: Tick) -> np.ndarray:
    """The model after the job's rounds."""
    loop = Loop(read(path))
    model = torch.zeros_like(loop.model.weight.detach())
    for _ in range(loop.job.rounds):
        model = loop.round(model)
        tick()
    return model.numpy()
