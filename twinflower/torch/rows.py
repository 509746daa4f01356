"""A module and a loss as functions of the rows of one client."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from .parameters import Parameters

RowLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RowFunctions:
    """Functions of one client: point (d,), features (b, ...), labels (b,), weights (b,). See `ModuleObjective`."""

    module: nn.Module
    parameters: Parameters
    loss: RowLoss
    classifies: bool

    def outputs(self, point: Tensor, features: Tensor) -> Tensor:
        """The outputs of the module for the rows, (b, ...)."""
        return functional_call(self.module, self.parameters.named(point), (features,))  # type: ignore[no-any-return]

    def row_loss(self, output: Tensor, label: Tensor) -> Tensor:
        """The loss () of one output; a single number is passed as a scalar."""
        return self.loss(output.reshape(()) if output.numel() == 1 else output, label)

    def losses(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The loss of each row, (b,)."""
        return vmap(self.row_loss)(self.outputs(point, features), labels)  # type: ignore[no-any-return]

    def predictions(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The predicted labels (b,)."""
        outputs = self.outputs(point, features).flatten(1)
        if outputs.shape[-1] > 1:
            return outputs.argmax(-1)
        return (outputs[..., 0] > 0).to(outputs) if self.classifies else outputs[..., 0]

    def loss_of_row(self, point: Tensor, row: Tensor, label: Tensor) -> Tensor:
        """The loss () of one row (...)."""
        return self.row_loss(self.outputs(point, row[None])[0], label)

    def row_grads(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The gradient of each row's loss, (b, d)."""
        return vmap(grad(self.loss_of_row), (None, 0, 0))(point, features, labels)  # type: ignore[no-any-return]

    def total(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of the losses, ()."""
        return (weights * self.losses(point, features, labels, weights)).sum()
