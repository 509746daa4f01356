"""Audits of Flower apps, by a short name: this is `twinflower.simulation.audit`."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .simulation.audit import *  # noqa: F403

sys.modules[__name__] = import_module("twinflower.simulation.audit")
