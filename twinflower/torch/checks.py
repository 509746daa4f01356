"""Checks that every record has its own gradient in a PyTorch module; each violation raises a SettingError."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import Any
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter

from ..errors import SettingError, require

_DTYPES = (torch.float32, torch.float64)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def check_module(module: nn.Module) -> None:
    """SettingError for a module whose layers or parameters are unsuitable; the module is not called."""
    if not isinstance(module, nn.Module):
        raise SettingError(f"module must be a torch.nn.Module; got {type(module).__name__}")
    check_layers(module)
    parameters = dict(module.named_parameters())
    require(
        any(tensor.requires_grad for tensor in parameters.values()),
        "the module has no parameters that take a gradient: there is nothing to train",
    )
    for name, tensor in parameters.items():
        _check_parameter(name, tensor)
    kinds = {(str(tensor.dtype), str(tensor.device)) for tensor in parameters.values()}
    if len(kinds) != 1:
        raise SettingError(
            f"the parameters must have one dtype and one device; got {' and '.join(map(' on '.join, sorted(kinds)))}: "
            "call module.to(dtype=..., device=...)"
        )


def check_layers(module: nn.Module) -> None:
    """SettingError for layers that mix the records of a batch or draw random numbers."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            raise SettingError(
                f"layer '{name}' ({type(layer).__name__}) normalises over the batch, so no record has a gradient of "
                "its own: use GroupNorm or LayerNorm, or call module.eval() to keep its statistics fixed"
            )
        rate = layer.p if isinstance(layer, _DROPOUTS) else 0.0
        if rate and layer.training:
            raise SettingError(
                f"layer '{name}' ({type(layer).__name__}) draws random numbers that no seed of the run decides: call "
                "module.eval(), or set p = 0"
            )


def _check_parameter(name: str, tensor: Tensor) -> None:
    if isinstance(tensor, UninitializedParameter):
        raise SettingError(
            f"parameter '{name}' has no shape yet: give the lazy layer its sizes, or call the module with a row first"
        )
    if tensor.dtype not in _DTYPES:
        raise SettingError(
            f"parameter '{name}' has dtype {tensor.dtype}; float32 and float64 are possible: call module.float()"
        )
    if not _there(tensor.device):
        raise SettingError(
            f"parameter '{name}' lies on device '{tensor.device}', which this machine does not have: call "
            "module.to('cpu') (and torch.load(..., map_location='cpu'))"
        )
    if not torch.isfinite(tensor).all():
        raise SettingError(f"parameter '{name}' holds NaN or infinity: start from finite numbers")


def _there(device: torch.device) -> bool:
    """Whether this machine can compute on the device."""
    return device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_available())


def check_loss(loss: Any) -> None:
    """SettingError for a loss that is not callable, or whose mean cancels the weight of a single record."""
    if not callable(loss):
        raise SettingError(f"loss must be a function of an output and a label; got {type(loss).__name__}")
    if getattr(loss, "weight", None) is not None and getattr(loss, "reduction", "") == "mean":
        raise SettingError(
            f"{type(loss).__name__} divides by the weights of the records in a batch, so the weight of a single one is "
            "lost: set reduction='sum' (a loss is called with one record at a time)"
        )


def check_whole(name: str, value: Any, least: int, meaning: str = "") -> None:
    """SettingError unless the value is an integer >= least; `meaning` is added to the rule in the message."""
    if not (isinstance(value, int) and value >= least):
        raise SettingError(f"{name} must be a whole number, at least {least}{meaning}; got {value!r}")


def check_row_shape(shape: Any) -> None:
    """SettingError unless the shape is a tuple of positive integers."""
    if not (isinstance(shape, tuple) and all(isinstance(size, int) and size > 0 for size in shape)):
        raise SettingError(
            f"row_shape must be a tuple of whole numbers above 0, such as (1, 28, 28); got {shape!r}"
        )


@contextmanager
def no_broadcasting() -> Iterator[None]:
    """Turn torch's warning that a loss broadcasts a label against an output of another shape into an error."""
    with catch_warnings():
        filterwarnings("error", "Using a target size")
        yield


@contextmanager
def in_one_sentence(what: str) -> Iterator[None]:
    """Turn any exception into a SettingError of one sentence that begins with `what`."""
    try:
        yield
    except SettingError:
        raise
    except Exception as error:  # noqa: BLE001  a user's module may raise any exception
        words = shorten(f"{type(error).__name__}: {error}", 300)
        raise SettingError(f"{what} ({words})") from None


def check_outputs(forward: Callable[[Tensor], Any], module: nn.Module, rows: Tensor) -> Tensor:
    """The outputs (b, ...) for rows (b, ...); SettingError unless each output depends only on its own row."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        outputs = forward(rows)
        torch.manual_seed(2)
        again = forward(rows)
    if not (isinstance(outputs, Tensor) and outputs.shape[:1] == rows.shape[:1]):
        raise SettingError(
            f"the module must return one tensor with an output for each row; {len(rows)} rows gave "
            f"{_described(outputs)}"
        )
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise SettingError(
                f"buffer '{name}' changes when the module is called, and would carry data from record to record: call "
                "module.eval(), or replace the layer that keeps it"
            )
    require(
        not bool(outputs.isnan().any()),
        "the module's output is NaN for rows of normally distributed numbers: avoid 0 / 0 and roots or logarithms of "
        "negative numbers in its forward",
    )
    require(
        torch.equal(outputs, again),
        "the module draws random numbers that the run does not seed: call module.eval() or remove its dropout",
    )
    alone = torch.cat([forward(row[None]) for row in rows])
    require(
        torch.allclose(alone, outputs, rtol=1e-3, atol=1e-4 * float(outputs.abs().max())),
        "the module's output for a row depends on the other rows of the batch: normalise within a row (GroupNorm, "
        "LayerNorm)",
    )
    return outputs


def _described(outputs: Any) -> str:
    return f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
