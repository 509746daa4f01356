"""Random numbers that are determined by an address: (seed, purpose, client, round).

Philox is a counter-based generator, so any position of its stream is available at once. The key is (seed, purpose),
the last counter word is the round, and every client has its own range of the other counter words. Skipping a client,
reordering replies or stacking clients therefore changes no other draw, and the draws of a whole cohort come from one
call, bit for bit equal to what each client draws alone.

These numbers are for simulation and for public coins (sampling, batches, rand-k), never for secret noise.
"""

import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.random import Generator, Philox

from . import special
from .arrays import Array, Index, read_only
from .errors import SettingError

PURPOSES = {
    name: code
    for code, name in enumerate(
        (
            "participants",
            "batches",
            "partition",
            "rand-k",
            "start",
            "noise",
            "data",
            "graph",
            "split",
            "steps",
            "held-out",
            "tuning",
            "evaluation",
            "reference",
            "folds",
        ),
        1,
    )
}

FIRST_ROUNDS = ("sampled", "all")

_DRAWS_PER_BLOCK = 4  # one Philox counter yields four 64-bit draws
LONG = 1024  # from this length on, a vector of normal numbers takes a stream of its own


def _philox(seed: int, purpose: str, counter: Sequence[int]) -> Generator:
    _check_seed(seed)
    key = np.array([seed, PURPOSES[purpose]], dtype=np.uint64)
    return Generator(Philox(key=key, counter=np.array(counter, dtype=np.uint64)))


class _Movable(threading.local):
    """A generator of this thread that is moved to an address, because making one takes as long as many draws."""

    def __init__(self) -> None:
        self.philox = Philox(key=0)
        self.generator, self.state = Generator(self.philox), self.philox.state

    def turn(self, seed: int, client: int, round_: int) -> None:
        """Move to the address of another seed, client and round."""
        _check_seed(seed)
        address = self.state["state"]
        address["key"][0], address["counter"][2:] = seed, (client + 1, round_)
        self.philox.state = self.state


_movable = _Movable()


def _moved(seed: int, purpose: str, counter: Sequence[int]) -> Generator:
    """This thread's generator, moved to an address; the next call moves it away."""
    _check_seed(seed)
    state = _movable.state
    state["state"]["key"][:] = seed, PURPOSES[purpose]
    state["state"]["counter"][:] = counter
    _movable.philox.state = state
    return _movable.generator


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**64:
        raise SettingError(f"seed must be a whole number from 0 to 2^64 - 1; got {seed}")


def stream(seed: int, purpose: str, client: int = 0, round_: int = 0) -> Generator:
    """A separate generator for one address; use it when the number of draws is not known in advance."""
    return _philox(seed, purpose, (0, 0, client + 1, round_))


def permutations(
    seeds: Iterable[int],
    purpose: str,
    clients: Iterable[int],
    rounds: Iterable[int],
    size: int,
    shape: tuple[int, int],
) -> Index:
    """The first shape[1] entries of shape[0] permutations of 0, ..., size - 1 for each address (seed, client, round),
    as its `stream` gives them: (addresses, *shape)."""
    addresses = list(zip(seeds, clients, rounds, strict=True))
    drawn, row = np.empty((len(addresses), *shape), np.int64), np.empty(size, np.int64)
    ordered = _numbers(1 << size.bit_length())[:size]  # `permutation(size)` would make it anew each time
    shuffle = _moved(0, purpose, (0, 0, 0, 0)).shuffle  # to each address below
    for permuted, address in zip(drawn, addresses, strict=True):
        _movable.turn(*address)
        for entries in permuted:
            row[:] = ordered
            shuffle(row)
            entries[:] = row[: shape[1]]
    return drawn


@lru_cache
def _numbers(count: int) -> Index:
    """The numbers from 0 to count - 1."""
    return read_only(np.arange(count))


def uniforms(seed: int, purpose: str, client: int | Index, round_: int, size: int) -> Array:
    """Uniform numbers in [0, 1) for one client (size,) or for many (clients, size).

    A client's row depends only on its own address, provided that a purpose always draws the same size in a
    round. Consecutive clients in ascending order, such as a whole cohort, take a single call.
    """
    clients = np.atleast_1d(np.asarray(client))
    blocks = -(-size // _DRAWS_PER_BLOCK)
    width = blocks * _DRAWS_PER_BLOCK

    def rows(first: int, count: int) -> Array:
        return _moved(seed, purpose, (first * blocks, 0, 0, round_)).random((count, width))

    if (clients[1:] - clients[:-1] == 1).all():
        block = rows(int(clients[0]), len(clients))
    else:
        block = np.concatenate([rows(int(i), 1) for i in clients])
    return block[:, :size].reshape(np.shape(client) + (size,))


def normals(seed: int, purpose: str, client: int | Index, round_: int, size: int) -> Array:
    """Standard normal numbers, (size,) or (clients, size).

    Short vectors come from the inverse CDF, which uses one uniform draw each, so a whole cohort takes a single call.
    Long ones come from the ziggurat algorithm on a stream for each client, which is faster.
    """
    if size >= LONG:
        drawn = np.empty(np.shape(client) + (size,))
        for i, row in zip(np.ravel(client), drawn.reshape(-1, size), strict=True):
            address = (0, 1, int(i) + 1, round_)  # apart from that of `stream`
            _moved(seed, purpose, address).standard_normal(out=row)
        return drawn
    return _by_inverse(uniforms(seed, purpose, client, round_, size))


def normals_by_round(seed: int, purpose: str, num_clients: int, rounds: Sequence[int], size: int) -> Array:
    """`normals` of the clients 0 to num_clients - 1 in several rounds, (rounds, clients, size), for size < LONG.

    For a few hundred numbers per round this takes little more than half as long as a call for each.
    """
    assert size < LONG
    width = -(-size // _DRAWS_PER_BLOCK) * _DRAWS_PER_BLOCK
    drawn = np.empty((len(rounds), num_clients, width))
    for row, round_ in zip(drawn, rounds, strict=True):
        _moved(seed, purpose, (0, 0, 0, round_)).random(out=row)
    return _by_inverse(drawn[..., :size])


def _by_inverse(uniform: Array) -> Array:
    """Standard normal numbers from uniform ones by the inverse CDF, which is infinite at 0.

    A uniform number is a multiple of 2^-53 and may be 0.
    """
    positive = np.maximum(uniform, 2.0**-54)
    return special.ndtri(positive, out=positive)  # type: ignore[no-any-return]


def participants(
    seed: int, round_: int, num_clients: int, clients_per_round: int, first_round: str = "sampled"
) -> Index:
    """The partition numbers sampled in a round, (K,), ascending, drawn without replacement; all of them if K = N.

    first_round (one of FIRST_ROUNDS): "all" samples every client in round 1, as the FedPDM papers do (S_0 = [N]).
    The samples of later rounds do not depend on it.
    """
    if clients_per_round == num_clients or (first_round == "all" and round_ == 1):
        return np.arange(num_clients)
    draw = stream(seed, "participants", round_=round_)
    return np.sort(draw.choice(num_clients, clients_per_round, replace=False))
