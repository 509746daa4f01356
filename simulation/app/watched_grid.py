"""A grid that says when the SuperLink no longer answers.

Flower's grid repeats a request until the SuperLink answers it, and what the server logs meanwhile goes through the
SuperLink, too. A SuperLink that is stopped while somebody reads the log of a run refuses all requests, and waits for
that log to end: for 48 s, until it has missed the server's signs of life.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from flwr.app import Message
from flwr.serverapp import Grid

from twinflower.strategies.nodes import SILENCE
from twinflower.strategies.sites import WrappedGrid


class WatchedGrid(WrappedGrid):
    """A wrapper of another grid that says when a request to the SuperLink has no answer for a while.

    silent(text): called once for a request, in another thread, when it has lasted for `patience` seconds.
    answers(text): called when such a request was answered after all, and did not end in an error.
    """

    def __init__(
        self,
        grid: Grid,
        silent: Callable[[str], None],
        answers: Callable[[str], None],
        patience: float = SILENCE,
    ) -> None:
        super().__init__(grid)
        self.silent, self.answers, self.patience = silent, answers, patience

    def get_node_ids(self) -> Iterable[int]:
        """Call the wrapped grid's method."""
        with self._watched():
            return super().get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Call the wrapped grid's method."""
        with self._watched():
            return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Call the wrapped grid's method."""
        with self._watched():
            return super().pull_messages(message_ids)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Watch a request; the thread that does so has ended afterwards."""
        began, told = time.time(), threading.Event()

        def tell() -> None:
            told.set()
            since = time.strftime("%H:%M:%S", time.localtime(began))
            self.silent(f"the SuperLink has answered no request since {since}")

        timer = threading.Timer(self.patience, tell)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
        if told.is_set():
            self.answers(f"the SuperLink answers again, after {time.time() - began:.0f} s")
