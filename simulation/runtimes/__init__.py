"""The runtimes: arrays of stacked clients (`cohort`), or Flower messages to the real clients: in this process, on
Flower's engine, or to SuperNodes on this machine."""

RUNTIMES = ("cohort", "inprocess", "flower")
"""Names of the runtimes that a user can choose."""
