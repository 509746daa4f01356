"""PyTorch modules as objectives: the extra `torch`. No other part of twinflower imports torch."""

from ..errors import SettingError

try:
    import torch as _torch
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise SettingError("PyTorch is not installed: pip install torch") from None

from .objective import ModuleObjective, load_objective
