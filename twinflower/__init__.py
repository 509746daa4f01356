"""Private primal-dual federated learning on Flower.

`twinflower.strategies`, `twinflower.clients` and `twinflower.simulation` are subpackages. In a wheel they are inside
this directory; in a checkout and in the bundle of `flwr run` they are next to it, and `__path__` is extended to find
them.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

_inside = Path(__file__).resolve().parent
if not (_inside / "strategies").is_dir():
    __path__.append(str(_inside.parent))

_LATER = {  # public names and their modules, imported on first use
    "load": "models.trained",
    "read": "simulation.report.study",
    "FederatedClassifier": "simulation.estimators",
    "FederatedRegressor": "simulation.estimators",
    "FederatedCoxRegressor": "simulation.cox_estimator",
}

_MODULES = ("audit",)  # public modules, imported on first use


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _MODULES:
        return import_module(f"twinflower.{name}")
    if name in _LATER:
        return getattr(import_module(f"twinflower.{_LATER[name]}"), name)
    raise AttributeError(f"module 'twinflower' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER, *_MODULES, "__version__"])


def _version() -> str:
    """The version of the installed package; in a bundle of `flwr run`, which is not installed, that in its
    pyproject.toml."""
    import tomllib
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("twinflower")
    except PackageNotFoundError:
        return str(tomllib.loads((_inside.parent / "pyproject.toml").read_text())["project"]["version"])
