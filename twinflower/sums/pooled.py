"""Exact sums over the rows of all sites, for a method whose clients send sums over their rows (`Algorithm.sends_sums`).

client keeps     nothing
       receives  what it receives in the method itself
       sends     its sums as whole numbers of cells modulo 2^192, each in three words of 64 bits (..., 3 n)
server keeps     the method's own state
       learns    the sums over the rows of all clients, which it hands to the method as if one client had sent them

There is no noise: masks (`masks`) hide the messages, and are uniform modulo 2^192, carries included. So a message, and
the sum of any but all of them, is uniform whatever the rows are, and all messages together say the total and no more.

Grid. The sums of a site have no bound in public settings: columns may have any unit, a Poisson loss grows with exp of a
score, and a step can be too long. So the range is far wider than that of any table: a cell is 2^-96 = 1.3e-29, and a
number must be below 2^85 = 3.9e25, which keeps the sums of up to 1000 sites below 2^95, where nothing wraps around. A
site whose number is not, or is not finite, sends no message. Doubles are encoded to the last bit from 2^-44 = 6e-14 on,
and smaller ones to one cell. So totals are more exact than those of doubles, losses of two rounds can be compared as
well as without masks, and a run ends in the same round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..algorithms.algorithm import Stop
from ..algorithms.layout import Layout, MaskedInts, Nothing
from ..arrays import Array, Index
from ..errors import RunError, SettingError
from ..work import LocalWork, Report
from .grid import CellArray, negative
from .noise import check_sites
from .summed import Server, Summed, Upload

WORDS = 3
MOST = 2.0**85
"""The range of a site's numbers."""
_UNITS = (2.0**-96, 2.0**-32, 2.0**32)  # of the words, the lowest first


@dataclass(frozen=True)
class Pooled(Summed):
    """A method whose server receives the exact sums over all clients' rows, and nothing about one client.

    algorithm: the method. rows: the number of all rows, which is public, and the first of the sums.
    """

    modes: ClassVar[tuple[str, ...]] = ("none",)
    ends_early: ClassVar[bool] = True
    words: ClassVar[int] = WORDS

    rows: int = 0

    def __post_init__(self) -> None:
        if not (self.algorithm.sends_sums and self.algorithm.privacy == "none"):
            raise SettingError(
                "privacy.trust = sum without noise is for methods whose messages are sums over rows: set algorithm to "
                f"newton or newton-path, or privacy.mode to gradient or public-state; got {self.algorithm.name}"
            )
        check_sites(self.info.num_clients)
        object.__setattr__(self, "name", f"{self.algorithm.name} with trust sum")

    @property
    def upload(self) -> Layout:
        """The layout of the words."""
        (sums,) = self.algorithm.upload.fields
        return Layout(Upload, MaskedInts("cells", lambda d: WORDS * sums.entries(d)))

    def answers(self, inbox: Any) -> list[bytes]:
        """See `Algorithm.answers`."""
        return self.algorithm.answers(inbox)  # type: ignore[no-any-return]

    def client_update(self, state: Nothing, inbox: Any, work: LocalWork) -> tuple[Nothing, Upload, Report]:
        """The method's sums, in cells; RunError if a number is outside of the range."""
        _, upload, report = self.algorithm.client_update(state, inbox, work)
        return state, Upload(encode(upload.sums)), report

    def advance(self, server: Server, total: CellArray, clients: Index, round_: int) -> Server:
        """See `Summed`; RunError if the messages do not add up to sums over the rows that there are."""
        sums = decode(total)
        if sums[0] != self.rows:
            raise RunError(
                f"round {round_}: the clients' messages do not add up to sums over {self.rows} rows: check that all "
                "clients run this session with the same settings, and that partition.sizes says how many rows each has"
            )
        upload = self.algorithm.upload.kind(sums[None])
        return server._replace(own=self.algorithm.server_update(server.own, upload, np.arange(1), round_))

    def path(self, server: Server, round_: int) -> list[Any]:
        """See `Algorithm.path`."""
        return self.algorithm.path(server.own, round_)  # type: ignore[no-any-return]

    def stops(self, server: Server) -> Stop | None:
        """See `Algorithm.stops`."""
        return self.algorithm.stops(server.own)  # type: ignore[no-any-return]


def encode(values: Array) -> CellArray:
    """Numbers (..., n) as cells (..., 3 n), rounded towards 0; RunError for one outside of the range."""
    rest = np.abs(values.astype(np.float64))
    if not (rest < MOST).all():
        raise RunError(
            f"with privacy.trust = sum a client's sums must be finite and below {MOST:.2g}: give columns other units, "
            "or begin nearer to the optimum"
        )
    cells = np.empty((*rest.shape, WORDS), np.uint64)
    for place, unit in reversed([*enumerate(_UNITS)]):
        whole = np.floor(rest / unit)
        cells[..., place], rest = whole.astype(np.uint64), rest - whole * unit
    signed = np.where(values[..., None] < 0, negative(cells.ravel(), WORDS).reshape(cells.shape), cells)
    return signed.reshape(*values.shape[:-1], -1)  # type: ignore[no-any-return]


def decode(total: CellArray) -> Array:
    """The numbers (n,) in cells (3 n,)."""
    below = total[WORDS - 1 :: WORDS] >= np.uint64(2**63)
    sizes = np.where(np.repeat(below, WORDS), negative(total, WORDS), total).reshape(-1, WORDS)
    size = sizes.astype(np.float64) @ np.array(_UNITS)
    return np.where(below, -size, size)
