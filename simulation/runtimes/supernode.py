"""Flower's command `flower-supernode`, which reports its warnings: `python -m ...supernode WORDS...`."""

import sys

from .flower_internals import command
from .progress import report_warnings

if __name__ == "__main__":
    report_warnings()
    sys.argv[0] = "flower-supernode"
    command("flower-supernode")()
