"""Flower's command line `flwr`, which is imported while its SuperLink starts: `python flwr_ready.py PORT WORDS...`.

The command begins as soon as a process listens on the port of this machine.
"""

import socket
import sys
import time
from contextlib import suppress

from flwr.cli.app import app

_TIMEOUT, _PAUSE = 180.0, 0.05  # seconds


def listening(port: int) -> bool:
    """Wait until a process listens on the port; False if none does in time."""
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        time.sleep(_PAUSE)
    return False


if __name__ == "__main__":
    if not listening(int(sys.argv.pop(1))):
        sys.exit(f"the SuperLink did not listen within {_TIMEOUT:g} s")
    sys.argv[0] = "flwr"
    app()
