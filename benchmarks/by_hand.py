"""FedAvg, FedPDM, SCAFFOLD and FedDyn as one would write them in NumPy for softmax regression alone.

The loops do nothing else: no checks, no messages, no settings. They are the yardstick for ours, so anything that makes
them faster belongs here. A model is (classes, features); clients are computed one by one or stacked in front.
"""

from typing import Any, ClassVar

import numpy as np

Array = np.ndarray


class FedAvg:
    """FedAvg, and what the others share. features (clients, rows, features), labels (clients, rows)."""

    pull: ClassVar[float] = 0.0  # mu of the local steps

    def __init__(
        self, features: Array, labels: Array, classes: int, sampled: int, steps: int, batch: int, step: float
    ) -> None:
        self.clients, self.size, width = features.shape
        self.features, self.labels = features.reshape(-1, width), labels.reshape(-1)
        self.sampled, self.steps, self.batch, self.step = sampled, steps, batch, step
        self.rng, self.hot = np.random.default_rng(0), np.eye(classes, dtype=features.dtype)
        self.x0 = np.zeros((classes, width), features.dtype)

    def client_by_client(self) -> Array:
        """A round with the sampled clients one after the other; returns the model."""
        chosen = self.rng.choice(self.clients, self.sampled, replace=False)
        self.serve(np.stack([self.keep(k, self.descend(k, self.x0.copy(), self.order(k))) for k in chosen]))
        return self.x0

    def stacked(self) -> Array:
        """A round with the sampled clients stacked; returns the model."""
        chosen = self.rng.choice(self.clients, self.sampled, replace=False)
        order = np.stack([self.order(k) for k in chosen])
        x = np.repeat(self.x0[None], self.sampled, 0)
        self.serve(self.keep(chosen, self.descend(chosen, x, order)))
        return self.x0

    def order(self, k: int) -> Array:
        """The rows of a client's steps, (steps, batch)."""
        rows = self.rng.permutation(self.size)[: self.steps * self.batch]
        return k * self.size + rows.reshape(self.steps, self.batch)

    def descend(self, k: Any, x: Array, order: Array) -> Array:
        """The local steps of one client, or of clients (K,), in place: x <- x - step (gradient + shift + pull x)."""
        labels, shift = self.labels[order], self.shift(k)
        shift = None if shift is None else self.step * shift
        for t in range(self.steps):
            rows = self.features.take(order[..., t, :], axis=0)
            slopes = self.slopes(rows @ x.swapaxes(-1, -2), labels[..., t, :])
            gradient = slopes.swapaxes(-1, -2) @ rows
            if self.pull:
                x *= 1 - self.step * self.pull
            if shift is not None:
                x -= shift
            x -= gradient
        return x

    def slopes(self, scores: Array, labels: Array) -> Array:
        """step / batch times the slopes of the softmax loss, in place of the scores (..., batch, classes)."""
        scores -= np.maximum.reduce(scores, -1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= np.add.reduce(scores, -1, keepdims=True)
        scores -= self.hot.take(labels, axis=0)
        scores *= self.step / self.batch
        return scores

    def shift(self, k: Any) -> Array | None:
        """What a client adds to each of its gradients."""
        return None

    def keep(self, k: Any, x: Array) -> Array:
        """Keep the client's state after its steps, and return its message."""
        return x

    def serve(self, messages: Array) -> None:
        """Update the server from the messages (K, classes, features)."""
        self.x0 = messages.mean(0)


class Kept(FedAvg):
    """A method whose clients keep an array like the model."""

    def __init__(self, *job: Any) -> None:
        super().__init__(*job)
        self.kept = np.zeros((self.clients, *self.x0.shape), self.x0.dtype)


class FedPDM(Kept):
    """FedPDM without h."""

    pull = 0.05

    def shift(self, k: Any) -> Array:
        return -self.kept[k] - self.pull * self.x0

    def keep(self, k: Any, x: Array) -> Array:
        self.kept[k] += self.pull * (self.x0 - x)
        x -= self.kept[k] / self.pull
        return x


class Scaffold(Kept):
    """SCAFFOLD, option II."""

    def __init__(self, *job: Any) -> None:
        super().__init__(*job)
        self.control = np.zeros_like(self.x0)

    def shift(self, k: Any) -> Array:
        return self.control - self.kept[k]

    def keep(self, k: Any, x: Array) -> Array:
        self.kept[k] += (self.x0 - x) / (self.steps * self.step) - self.control
        return x

    def serve(self, messages: Array) -> None:
        mean = messages.mean(0)
        change = (self.x0 - mean) / (self.steps * self.step) - self.control  # of the clients, in the mean
        self.control = self.control + self.sampled / self.clients * change
        self.x0 = mean


class FedDyn(Kept):
    """FedDyn."""

    pull = 0.05

    def __init__(self, *job: Any) -> None:
        super().__init__(*job)
        self.drift = np.zeros_like(self.x0)

    def shift(self, k: Any) -> Array:
        return -self.kept[k] - self.pull * self.x0

    def keep(self, k: Any, x: Array) -> Array:
        self.kept[k] += self.pull * (self.x0 - x)
        return x

    def serve(self, messages: Array) -> None:
        mean = messages.mean(0)
        self.drift = self.drift + self.pull * self.sampled / self.clients * (self.x0 - mean)
        self.x0 = mean - self.drift / self.pull


BY_HAND = {"fedavg": FedAvg, "fedpdm": FedPDM, "scaffold": Scaffold, "feddyn": FedDyn}
