"""Updates of several clients in one process, computed together and equal to the bit to each client's own.

NumPy spends much of its time on calling: stacked clients need fewer calls, and take about half the time.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from twinflower.arrays import Array
from twinflower.clients import AlgorithmClient
from twinflower.clients.shell import Answer, Opened, Update
from twinflower.privacy.mechanism import GaussianNoise
from twinflower.work import LocalWork, Noise, no_noise

from ..setup import Setup
from .ahead import Ahead
from .local import BLOCK


class Begun(NamedTuple):
    """A client and a round that it has opened."""

    client: AlgorithmClient
    opened: Opened

    def close(self, update: Update | None) -> Answer:
        """Complete the round with this update, or with the client's own."""
        return self.client.close(self.opened, update or self.client.update(self.opened))


@dataclass
class Together:
    """Computes updates of clients of one run, which share everything but their rows and their state.

    The first block is computed in both ways. If a single bit differs, or if the update fails, every client of the run
    computes alone: an objective or an algorithm from elsewhere may depend on the number of clients in its arrays.
    """

    setup: Setup
    exact: bool | None = None
    ahead: Ahead = field(default_factory=Ahead)

    def blocks(self, clients: Sequence[int]) -> Iterator[list[int]]:
        """The clients, given by number, in blocks whose batches have one shape and fit into the processor's cache."""
        alike = defaultdict(list)
        for client in clients:
            steps, rows, *_ = self.setup.schedule.workload(self.setup.shards.span(client)[1])
            alike[steps, rows].append(client)
        for (_, rows), group in alike.items():
            size = self._size(rows)
            yield from (group[first : first + size] for first in range(0, len(group), size))

    def updates(self, block: Sequence[Begun]) -> Sequence[Update | None]:
        """The updates of clients in one block; None for each client that has to compute alone."""
        alone = [None] * len(block)
        if len(block) < 2 or self.exact is False or not self._alike(block):
            return alone
        try:
            found = self._update(block)
            if self.exact is None:
                self.exact = all(map(_same, found, (begun.client.update(begun.opened) for begun in block)))
        except Exception:  # noqa: BLE001  alone, it affects only one client, and the reply names the reason
            self.exact = False
        return found if self.exact else alone

    def _size(self, rows: int) -> int:
        """The number of clients in a block whose steps have `rows` rows."""
        batch = rows * self.setup.shards.features.shape[1] * self.setup.start.itemsize
        return max(1, BLOCK // max(batch, self.setup.start.nbytes))

    def _alike(self, block: Sequence[Begun]) -> bool:
        """Whether all clients look up their rows in the run's data set, and have noise that can be stacked."""
        kinds = {type(begun.opened.noise) for begun in block}
        known = kinds <= {type(no_noise)} or kinds <= {GaussianNoise}
        return known and all(begun.client.shards is self.setup.shards for begun in block)

    def _update(self, block: Sequence[Begun]) -> list[Update]:
        setup, round_ = self.setup, block[0].opened.asked.round
        clients = np.array([begun.client.client for begun in block])
        batches = setup.schedule.batches(setup.shards, clients, setup.config.seed, round_)
        work = LocalWork(
            setup.objective, batches, self._noise([begun.opened.noise for begun in block]), round_
        )
        state, inbox = (
            _stacked([getattr(begun.opened, name) for begun in block]) for name in ("state", "inbox")
        )
        with np.errstate(all="ignore"):
            whole = setup.algorithm.client_update(state, inbox, work)
        return list(map(Update, *(_split(part, len(block)) for part in whole)))

    def _noise(self, noises: Sequence[Any]) -> Noise:
        """The noise of stacked clients."""
        if noises[0] is no_noise:
            return no_noise

        def draws(draw: int, shape: tuple[int, ...]) -> Array:
            return np.stack([noise.draws(draw, shape[1:]) for noise in noises])

        sigma = np.array([noise.sigma for noise in noises])
        return self.ahead.of(GaussianNoise(sigma[:, None], draws))


def _stacked(parts: Sequence[Any]) -> Any:
    """The clients' NamedTuples with a leading axis of clients; an array that all of them share is not copied."""
    columns = zip(*parts, strict=True)
    return type(parts[0])(*(a[0][None] if _shared(a) else np.stack(a) for a in columns))


def _shared(arrays: Sequence[Array]) -> bool:
    return all(array is arrays[0] for array in arrays)


def _split(whole: Any, count: int) -> list[Any]:
    """The NamedTuple of each client; copies, because clients keep them for a different number of rounds."""
    return [type(whole)(*(a[0 if len(a) == 1 else i].copy() for a in whole)) for i in range(count)]


def _same(one: Update, other: Update) -> bool:
    """Whether two updates are equal to the bit."""
    pairs = ((a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))
    return all(np.shape(a) == np.shape(b) and a.tobytes() == b.tobytes() for a, b in pairs)
