"""Private primal-dual federated learning on Flower.

`twinflower.strategies`, `twinflower.clients` and `twinflower.simulation` are parts of this package. A wheel holds them
inside it; in a checkout and in the bundle of `flwr run` they lie beside it, where `__path__` finds them.
"""

from pathlib import Path

_inside = Path(__file__).resolve().parent
if not (_inside / "strategies").is_dir():
    __path__.append(str(_inside.parent))
