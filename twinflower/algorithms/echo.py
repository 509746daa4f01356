"""Client variables of which the server keeps the sum: moved at once, valid when the server has counted them.

SCAFFOLD's server holds the mean of all c_i, FedDyn's the mean of all duals. A client whose reply is lost or
rejected has moved its own variable, and the server never learns of it: from then on the mean would be wrong for
ever. So a client keeps its variable as it was and as its last reply would make it, and every request echoes the
last round in which the server counted that client's reply. What the echo does not confirm is dropped. The mean
over all clients of `confirmed` is then the server's variable after any sequence of missing rounds and faults.
It costs 64 bits down, and d more numbers on the client. A client that forgets its
whole state (a new node without its stored state) would start from zero, and the mean would be off by what it forgot:
so these methods are `abilities.NeedsClientState`, and the server refuses what such a client sends.
"""

from typing import NamedTuple

import numpy as np

from ..arrays import Array, Index
from .layout import FloatCount, Layout, Point


class Tentative(NamedTuple):
    """A client's variable before its last reply (..., d), after it (..., d), and that reply's round (...,)."""

    before: Array
    after: Array
    round: Array


TENTATIVE = Layout(Tentative, Point("before"), Point("after"), FloatCount("round"))
PAIR = Layout(Tentative, Point("before", per_entry=2), Point("after", per_entry=2), FloatCount("round"))


def untouched(start: Array) -> Tentative:
    """Zero, before any reply."""
    return Tentative(np.zeros_like(start), np.zeros_like(start), np.zeros(start.shape[:-1]))


def confirmed(state: Tentative, heard: Index) -> Array:
    """The variable (..., d) as the server has counted it, given the echo (...,) of the request."""
    return np.where((state.round == heard)[..., None], state.after, state.before)


def tentative(before: Array, after: Array, round_: int) -> Tentative:
    """The state after a reply of this round."""
    return Tentative(before, after, np.full(after.shape[:-1], float(round_)))


def nobody_heard(start: Array, num_clients: int) -> Index:
    """The server's list of rounds (..., N): no reply counted yet."""
    return np.zeros(start.shape[:-1] + (num_clients,), dtype=np.int64)


def hear(heard: Index, clients: Index, round_: int | Index) -> Index:
    """The list after the replies of clients (..., K) were counted."""
    if clients.shape[-1] == heard.shape[-1]:
        return np.broadcast_to(round_, heard.shape)  # everybody
    heard = heard.copy()
    np.put_along_axis(heard, clients, round_, -1)
    return heard


def echo(heard: Index, node: Index) -> Index:
    """What the requests to node (), or to nodes (..., K), echo."""
    if np.ndim(node) and node.shape[-1] == heard.shape[-1]:
        return heard
    return heard[..., node] if np.ndim(node) == 0 else np.take_along_axis(heard, np.asarray(node), -1)
