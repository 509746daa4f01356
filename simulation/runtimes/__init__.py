"""The runtimes: arrays of stacked clients (`cohort`), or Flower messages to the real clients: in this process, on
Flower's engine, or to SuperNodes on this machine."""

from importlib import import_module
from typing import Any

RUNTIMES = ("cohort", "inprocess", "flower")
"""Names of the runtimes that a user can choose."""


def runtime(name: str) -> Any:
    """The module of a runtime, imported on first use: arrays need no Flower."""
    return import_module(f"{__name__}.{name}")
