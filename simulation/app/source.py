"""Whether simulated nodes run the source of the bundle that was sent.

Flower's engine starts the nodes in the folder in which its SuperLink was started, and Python finds the modules of that
folder first. The server itself runs the bundle.
"""

import hashlib
from pathlib import Path

import twinflower

BUNDLE = Path(twinflower.__file__).resolve().parents[1]
_PARTS = ("twinflower", "strategies", "clients", "simulation")


def other_source(folder: Path, bundle: Path = BUNDLE) -> list[str]:
    """A warning for the user if nodes started in this folder import other modules than those of the bundle."""
    if not (folder / "twinflower" / "__init__.py").is_file() or _digest(folder) == _digest(bundle):
        return []
    return [
        f"warning: Flower's local SuperLink was started in {folder}, so the nodes run the modules there and not those "
        "of the bundle that was sent, and results are written there: end that flower-superlink and start this run "
        "again, or set FLWR_LOCAL_SUPERLINK_HTTP_API_PORT and FLWR_LOCAL_CONTROL_API_PORT to free ports"
    ]


def _digest(folder: Path) -> str:
    """A hash of the names and contents of all modules in a checkout or a bundle."""
    found = hashlib.sha256()
    for file in sorted(file for part in _PARTS for file in (folder / part).rglob("*.py")):
        found.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
        found.update(file.read_bytes())
    return found.hexdigest()
