"""Flower's `flower-supernode`, which reports its warnings and dates its log: `python -m ...supernode WORDS...`."""

import sys

from .flower_internals import command, date_log
from .progress import report_warnings

if __name__ == "__main__":
    report_warnings()
    date_log()
    sys.argv[0] = "flower-supernode"
    command("flower-supernode")()
