"""The apps that Flower loads. What they need is imported when they are first called.

Flower's engine loads both apps before it starts Ray; the server then imports its modules while Ray starts.
"""

import gc
import os
import sys

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

# Ray starts after this module is imported. By default it starts workers of its own, which compete with Flower's.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")

# A deployed node starts a process for every message. Where bytecode is not written, as in Flower's images, each would
# compile all modules of this app again, which takes a fifth of its time.
sys.dont_write_bytecode = False


class _Client(ClientApp):
    """The app in `client_app`. Flower's engine sends its app with every message: of this one, only the name."""

    def __call__(self, message: Message, context: Context) -> Message:
        gc.freeze()  # or importing this app would scan all of Flower's modules for garbage, which takes .07 s
        from ..streams import lose_nothing
        from .client_app import app

        lose_nothing()
        return app(message, context)

    def __reduce__(self) -> str:
        return "client"


client = _Client()
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the app in `server_app`, and say so at once: its imports take a second, and waiting for nodes longer."""
    from twinflower import __version__

    from ..runtimes.progress import say
    from ..streams import lose_nothing

    lose_nothing()
    say(f"Twinflower {__version__} prepares the run")
    from .server_app import app

    app(grid, context)
