"""Updates of several clients in one process, computed together and equal to the bit to each client's own.

NumPy spends much of its time on calling: stacked clients need fewer calls, and take about half the time.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from twinflower.algorithms.algorithm import unstack
from twinflower.arrays import Array
from twinflower.clients import AlgorithmClient
from twinflower.clients.shell import Answer, Opened, Update
from twinflower.networks import Network
from twinflower.objectives import LinearModel
from twinflower.privacy.mechanism import Draws, GaussianNoise
from twinflower.work import LocalWork, Noise, no_noise

from ..setup import Setup
from .ahead import NoiseAhead, RowsAhead, SecondThread
from .local import BLOCK

_CHECKED = 3  # rounds; in the first one all clients may still be at the same point, often 0


class Open(NamedTuple):
    """A client with a round that it has opened."""

    client: AlgorithmClient
    round: Opened

    def update(self) -> Update:
        """The update, computed for this client alone."""
        return self.client.update(self.round)

    def close(self, update: Update | None) -> Answer:
        """Complete the round with this update, or with one computed for this client alone."""
        return self.client.close(self.round, self.update() if update is None else update)


@dataclass
class Together:
    """Computes updates of clients of one run, which share everything but their rows and their state.

    Only for our own objectives on rows, in which no client's numbers depend on another's; PyTorch's results may depend
    on the shapes of arrays. In the first rounds a block is computed in both ways: if a single bit differs, as it might
    with another processor's routines, every client computes alone from then on.
    """

    setup: Setup
    checked: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        second = SecondThread()
        self.ahead, self.schedule = NoiseAhead(second), RowsAhead(self.setup.schedule, second)
        self.exact = _ours(self.setup)

    def blocks(self, clients: Sequence[int]) -> Iterator[list[int]]:
        """The clients, given by number, in blocks whose batches have one shape and fit into the processor's cache."""
        alike = defaultdict(list)
        for client in clients:
            steps, rows, *_ = self.setup.schedule.workload(self.setup.shards.span(client)[1])
            alike[steps, rows].append(client)
        for (_, rows), group in alike.items():
            size = self._size(rows)
            yield from (group[first : first + size] for first in range(0, len(group), size))

    def updates(self, block: Sequence[Open]) -> Sequence[Update | None]:
        """The updates of clients in one block; None for each client that has to compute alone."""
        alone = [None] * len(block)
        if len(block) < 2 or not self.exact or not self._alike(block):
            return alone
        try:
            found = self._update(block)
            self._check(block, found)
        except Exception:  # noqa: BLE001  each alone, only the client that fails is affected, and its reply says why
            return alone
        return found if self.exact else alone

    def _check(self, block: Sequence[Open], found: Sequence[Update]) -> None:
        """Compare one block of each of the first rounds with the clients' own updates."""
        round_ = block[0].round.asked.round
        if round_ not in self.checked and len(self.checked) < _CHECKED:
            self.exact = all(map(_same, found, [each.update() for each in block]))
            self.checked.add(round_)

    def _size(self, rows: int) -> int:
        """The number of clients in a block whose steps have `rows` rows."""
        batch = rows * self.setup.shards.features.shape[1] * self.setup.start.itemsize
        return max(1, BLOCK // max(batch, self.setup.start.nbytes))

    def _alike(self, block: Sequence[Open]) -> bool:
        """Whether all clients look up their rows in the run's data set, and have noise that can be stacked."""
        noises = [each.round.noise for each in block]
        public = all(noise is no_noise for noise in noises)
        known = public or all(isinstance(noise, GaussianNoise) and not noise.grid for noise in noises)
        return known and all(each.client.shards is self.setup.shards for each in block)

    def _update(self, block: Sequence[Open]) -> list[Update]:
        setup, round_ = self.setup, block[0].round.asked.round
        clients = np.array([each.client.client for each in block])
        batches = self.schedule.batches(setup.shards, clients, setup.config.seed, round_)
        noise = self._noise([each.round.noise for each in block])
        state, inbox = (
            _stacked([getattr(each.round, name) for each in block]) for name in ("state", "inbox")
        )
        with np.errstate(all="ignore"):
            new, *rest = setup.algorithm.client_update(
                state, inbox, LocalWork(setup.objective, batches, noise, round_)
            )
        states = _split(new, len(block), state, [each.round.state for each in block])
        return list(map(Update, states, *(_split(part, len(block)) for part in rest)))

    def _noise(self, noises: Sequence[Any]) -> Noise:
        """The noise of stacked clients."""
        if noises[0] is no_noise:
            return no_noise
        sigma = np.array([noise.sigma for noise in noises])
        return self.ahead.of(GaussianNoise(sigma[:, None], _Draws([noise.draws for noise in noises])))


@dataclass(frozen=True)
class _Draws:
    """The draws of stacked clients."""

    own: Sequence[Draws]

    def __call__(self, draw: int, shape: tuple[int, ...]) -> Array:
        """See `DrawsInParts`."""
        return np.stack([own(draw, shape[1:]) for own in self.own])

    def parts(self, draw: int, size: int) -> Iterator[Array]:
        """See `DrawsInParts`."""
        return (own(draw, (size,))[None] for own in self.own)


def _ours(setup: Setup) -> bool:
    """Whether algorithm, objective and loss are this package's own, on rows."""
    objective: Any = setup.objective
    if type(objective) not in (LinearModel, Network):
        return False
    return all(type(part).__module__.startswith("twinflower.") for part in (setup.algorithm, objective.loss))


def _stacked(parts: Sequence[Any]) -> Any:
    """The clients' NamedTuples with a leading axis of clients; an array that all of them share is not copied."""
    columns = zip(*parts, strict=True)
    return type(parts[0])(*(a[0][None] if _shared(a) else np.stack(a) for a in columns))


def _shared(arrays: Sequence[Array]) -> bool:
    return all(array is arrays[0] for array in arrays)


def _split(whole: Any, count: int, old: Any = (), own: Sequence[Any] = ()) -> list[Any]:
    """The NamedTuple of each client; copies, because clients keep them for a different number of rounds. An array that
    is one of the `old` stacked arrays is not copied: each client has it in its `own` NamedTuple."""
    had = {id(stacked): [each[place] for each in own] for place, stacked in enumerate(old)}
    parts = unstack(whole, count)
    columns = [
        had.get(id(array)) or [part[place].copy() for part in parts] for place, array in enumerate(whole)
    ]
    return [type(whole)(*(column[i] for column in columns)) for i in range(count)]


def _same(one: Update, other: Update) -> bool:
    """Whether two updates are equal to the bit."""
    pairs = ((a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))
    return all(np.shape(a) == np.shape(b) and a.tobytes() == b.tobytes() for a, b in pairs)
