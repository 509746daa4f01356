"""Private primal-dual federated learning on Flower.

`twinflower.strategies`, `twinflower.clients` and `twinflower.simulation` are parts of this package. A wheel holds them
inside it; in a checkout and in the bundle of `flwr run` they lie beside it, where `__path__` finds them.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

_inside = Path(__file__).resolve().parent
if not (_inside / "strategies").is_dir():
    __path__.append(str(_inside.parent))

_LATER = {  # names of this package, which loads no module of its own by itself
    "load": "trained",
    "FederatedClassifier": "simulation.estimators",
    "FederatedRegressor": "simulation.estimators",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"twinflower.{_LATER[name]}"), name)
    raise AttributeError(f"module 'twinflower' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER])
