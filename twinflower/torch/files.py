"""The objective "torch:FILE.py:NAME", which the function NAME in a user's Python file returns."""

import sys
from dataclasses import replace
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn
from torch.nn.functional import mse_loss

from ..errors import SettingError
from .checks import in_one_sentence
from .objective import ModuleObjective, seeded

PREFIX = "torch"


def load_objective(name: str, num_classes: int, **penalised: Any) -> ModuleObjective:
    """The objective called "torch:FILE.py:NAME", with the run's clip_norm, clip, l2 and nonconvex.

    NAME is a function without arguments. It returns either an nn.Module, which receives the rows unchanged and is
    trained with cross entropy (with squared error for regression), or a ModuleObjective, which can set the loss and
    the row shape. The run's seed determines the initial weights. Raises SettingError if the file or the function does
    not exist, or if it returns anything else.
    """
    path, factory = _parts(name)
    with in_one_sentence(f"{path}: {factory}() failed"):
        make = getattr(_imported(path), factory, None)
        if not callable(make):
            raise SettingError(f"{path} defines no function '{factory}'")
        made = seeded(make, 0)  # type: ignore[arg-type]
    objective = (
        made if isinstance(made, ModuleObjective) else _plain(made, num_classes, f"{path}: {factory}()")
    )
    overridden = [key for key in penalised if getattr(objective, key) != getattr(ModuleObjective, key)]
    if overridden:
        keys = ", ".join(overridden)
        raise SettingError(
            f"{path}: {keys} must be left to the run's settings; set {keys.replace('_', '-')} there"
        )
    return replace(objective, factory=make, **penalised)


def _plain(made: Any, num_classes: int, where: str) -> ModuleObjective:
    if not isinstance(made, nn.Module):
        raise SettingError(
            f"{where} must return an nn.Module or a ModuleObjective; it returned {type(made).__name__}"
        )
    return ModuleObjective(made) if num_classes else ModuleObjective(made, mse_loss, classifies=False)


def _parts(name: str) -> tuple[Path, str]:
    """The file and the function's name in "torch:FILE.py:NAME"; SettingError for a malformed name or no such file."""
    _, _, rest = name.partition(":")
    path, colon, factory = rest.rpartition(":")
    if not (bool(colon) and path.endswith(".py") and factory.isidentifier()):
        raise SettingError(
            f"a PyTorch objective is written torch:FILE.py:NAME, NAME a function in that file; got '{name}'"
        )
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise SettingError(f"there is no file {file}, which objective '{name}' names")
    return file, factory


def _imported(path: Path) -> ModuleType:
    """Import the file as a module. Its name is a hash of path and content, so that an edited file is imported again."""
    name = f"twinflower_torch_{path.stem}_{sha256(bytes(path) + path.read_bytes()).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
