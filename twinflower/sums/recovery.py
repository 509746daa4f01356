"""Sums that survive lost sites: shares of the keys of the masks, so that those of the missing ones can be removed.

This is the double masking of Bonawitz et al. (2017), with keys of one round only, as in Flamingo (Ma et al. 2023). Of N
sites, up to t may be missing. In a round, site i masks its message with a key k_ij for every other site j, which both
derive from their secret, and with a key k_ii of its own. With the message it deals shares of these N keys to all N
sites, itself included; N - t shares give a key. Once the messages are there, the server names the survivors S, at least
N - t sites. Every survivor then opens its shares of

    k_ii, and k_ij for every missing j,        for each survivor i.

From those of any N - t survivors follow all masks in the sum over S that do not cancel. A site opens its shares of a
round for one S only, which it has stored before. docs/sums.md has the theorem and its proof.

Shares. For a key, the polynomial of degree N modulo 2^256 - 189 has the key as its value at 0, and at j + 1 a number
that the dealer and site j derive from their secret, so it need not be sent. The dealer sends the values at -1,
..., -(t + 1), which are public. Then N - t shares determine the polynomial, and with fewer all keys remain equally
likely: this is the scheme of Shamir (1979), with a threshold so high that few numbers are left to send. The digest of
a key shows whether it was found.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import comb, prod

import numpy as np

from ..errors import ReplyError, RunError
from .grid import CellArray, plus
from .masks import KEY, Session, signed_words

PRIME = 2**256 - 189
"""The largest prime below 2^256. A key or a share is above it with probability 2^-248."""


@dataclass(frozen=True)
class Recovery:
    """Of `sites` sites, up to `lost` may be missing in a round; lost is at least 1 and below sites / 2."""

    sites: int
    lost: int

    @property
    def needed(self) -> int:
        """How many survivors there must be, and how many must open their shares."""
        return self.sites - self.lost

    @property
    def dealt_size(self) -> int:
        """Bytes that a site deals: for each of its keys the public values, and the digest."""
        return self.sites * (self.lost + 2) * KEY

    def opened_size(self, survivors: Sequence[int]) -> int:
        """Bytes of the shares that a survivor opens."""
        return len(survivors) * (1 + self.sites - len(survivors)) * KEY

    def named(self, survivors: Sequence[int]) -> bytes:
        """The survivors as bytes, one for each site."""
        return bytes(site in survivors for site in range(self.sites))

    def survivors(self, named: object, site: int) -> list[int]:
        """Inverse of `named`; ReplyError unless this site may open its shares for them."""
        if type(named) is not bytes or len(named) != self.sites or not {*named} <= {0, 1}:
            raise ReplyError("the request must name the sites of the sum, with one byte for each site")
        survivors = [number for number, there in enumerate(named) if there]
        if site not in survivors or len(survivors) < self.needed:
            raise ReplyError(
                f"a site opens shares only for sums of at least {self.needed} sites, itself included; the request "
                f"names {len(survivors)}"
            )
        return survivors

    def deal(self, session: Session, round_: int, inbox: bytes) -> bytes:
        """What a site sends with its message, of length `dealt_size`; inbox: see `Session.mask`."""
        site, keys = session.identity.number, session.keys(round_, inbox)
        held = [session.shares(site, holder, round_, inbox) for holder in range(self.sites)]
        order = self.sites + 1
        weights = [(-1) ** place * comb(order, place + 1) for place in range(order)]
        parts = []
        for key, shares in zip(keys, zip(*held, strict=True), strict=True):
            values = deque(map(_number, (key, *shares)))  # at 0, 1, ..., N; then also at -1, -2, ...
            for _ in self._public:  # differences of order N + 1 of a polynomial of degree N are 0
                values.appendleft(_dot(weights, islice(values, order)))
                parts.append(values[0].to_bytes(KEY))
            parts.append(_digest(key))
        return b"".join(parts)

    def open(self, session: Session, round_: int, inbox: bytes, survivors: Sequence[int]) -> bytes:
        """A survivor's shares of the keys of the survivors' masks that remain in their sum."""
        site = session.identity.number
        held = {dealer: session.shares(dealer, site, round_, inbox) for dealer in survivors}
        return b"".join(held[dealer][other] for dealer, other in self._opened(survivors))

    def keys(
        self, survivors: Sequence[int], dealt: Mapping[int, bytes], opened: Mapping[int, bytes]
    ) -> tuple[list[bytes], int | None]:
        """The keys of the masks in the sum over the survivors, and the site without whose shares they were found.

        dealt: what each of them has dealt. opened: what at least `needed` of them have opened. None if the keys follow
        from the first shares that are enough. RunError if they do not, and if no single site has opened wrong ones, or
        nobody can take its place.
        """
        try:
            return self._keys(survivors, dealt, opened), None
        except RunError:
            for wrong in sorted(opened)[: self.needed] if len(opened) > self.needed else ():
                others = {holder: shares for holder, shares in opened.items() if holder != wrong}
                with suppress(RunError):
                    return self._keys(survivors, dealt, others), wrong
            raise

    def _keys(
        self, survivors: Sequence[int], dealt: Mapping[int, bytes], opened: Mapping[int, bytes]
    ) -> list[bytes]:
        """See `keys`; from the first shares that are enough."""
        holders = sorted(opened)[: self.needed]
        weights = _weights((*self._public, *(holder + 1 for holder in holders)))
        keys = []
        for place, (dealer, other) in enumerate(self._opened(survivors)):
            *hints, digest = _parts(dealt[dealer])[other * (self.lost + 2) :][: self.lost + 2]
            shares = (opened[holder][KEY * place : KEY * (place + 1)] for holder in holders)
            key = _dot(weights, map(_number, (*hints, *shares))).to_bytes(KEY)
            if _digest(key) != digest:
                raise RunError(
                    f"the shares that the sites opened do not fit what site {dealer} dealt: a site or the network has "
                    "changed them, and the sum cannot be read; check that all sites run this version, and resume"
                )
            keys.append(key)
        return keys

    def mask(self, survivors: Sequence[int], keys: Sequence[bytes], count: int, words: int = 1) -> CellArray:
        """The masks (count,) in the sum over the survivors, from their `keys`; words: see `Session.mask`."""
        total = np.zeros(count, dtype=np.uint64)
        for (dealer, other), key in zip(self._opened(survivors), keys, strict=True):
            total = plus(total, signed_words(key, dealer, other, count, words), words)
        return total

    @property
    def _public(self) -> tuple[int, ...]:
        """Where the public values of a polynomial are."""
        return tuple(-place for place in range(1, self.lost + 2))

    def _opened(self, survivors: Sequence[int]) -> list[tuple[int, int]]:
        """Of which keys the survivors open their shares: dealer, and the other site, or the dealer itself."""
        missing = sorted({*range(self.sites)}.difference(survivors))
        return [(dealer, other) for dealer in survivors for other in (dealer, *missing)]


def _dot(weights: Iterable[int], values: Iterable[int]) -> int:
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) % PRIME


def _weights(places: Sequence[int]) -> list[int]:
    """The Lagrange polynomials of these places, at 0: the weights of values there in the value at 0."""

    def weight(place: int) -> int:
        others = [other for other in places if other != place]
        return prod(-other for other in others) * pow(prod(place - other for other in others), -1, PRIME)

    return [weight(place) % PRIME for place in places]


def _number(part: bytes) -> int:
    return int.from_bytes(part)


def _parts(dealt: bytes) -> list[bytes]:
    return [dealt[start : start + KEY] for start in range(0, len(dealt), KEY)]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(b"twinflower key 1 " + key).digest()
