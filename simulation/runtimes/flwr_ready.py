"""Flower's command line `flwr`, imported while its SuperLink starts: `python -m ...flwr_ready PORT WORDS...`.

The command begins as soon as a process listens on the port of this machine.
"""

import sys

from .flower_internals import command
from .processes import listening

if __name__ == "__main__":
    app = command("flwr")
    if not listening(int(sys.argv.pop(1))):
        sys.exit("the SuperLink did not listen in time")
    for name in [name for name in sys.modules if name.partition(".")[0] == "twinflower"]:
        del sys.modules[
            name
        ]  # Flower looks for the app's modules, and an app may bring a twinflower of its own
    sys.argv[0] = "flwr"
    app()
