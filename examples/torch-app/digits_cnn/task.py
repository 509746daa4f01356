"""The module and the data, as in any Flower app with PyTorch."""

from functools import lru_cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from twinflower.problems.interfaces import Batch
from twinflower.torch import ModuleObjective


class Net(nn.Module):
    """Two convolutions and a linear layer, 994 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(32, 10),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (b, 10) of images (b, 1, 8, 8)."""
        return self.layers(images)


def make_objective(clip_norm: float = 0.0) -> ModuleObjective:
    """The module with its loss; the same start on the server and on every node."""
    torch.manual_seed(0)
    return ModuleObjective(Net(), cross_entropy, row_shape=(1, 8, 8), clip_norm=clip_norm)


def load_data(partition: int, num_partitions: int) -> Batch:
    """A site's images as rows of 64 numbers from 0 to 1: no site has all digits in equal numbers."""
    images, labels = _digits()
    train = np.flatnonzero(np.arange(len(labels)) % 5)
    order = train[np.argsort(labels[train] + 5 * np.random.default_rng(1).random(len(train)))]
    mine = np.array_split(order, num_partitions)[partition]
    return Batch(images[mine], labels[mine])


def load_test() -> Batch:
    """Every fifth image, which no site has."""
    images, labels = _digits()
    return Batch(images[::5], labels[::5])


@lru_cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    bunch = load_digits()
    return (bunch.data / 16).astype(np.float32), bunch.target
