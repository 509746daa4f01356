"""The runtimes: in this process, as a cohort of arrays, on Flower's engine, or on SuperNodes on this machine."""

RUNTIMES = ("inprocess", "cohort", "flower")
"""Names of the runtimes that a user can choose."""

DEFAULT = "inprocess"
