"""Pairwise masks: a site's message is uniform noise to anyone who lacks the message of another honest site.

The protocol follows Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017.
The sites are fixed at the start of a session. A sum needs all of them, unless masks can be removed (`recovery`).

1. A site has an identity (an Ed25519 key) and the public keys of the sites that it accepts (`Peers`). People exchange
   these keys; they do not come from the server.
2. For a session the site generates an X25519 key and signs it together with the session's name, its own number, and the
   digest of the run's settings. The result is an `announcement` of fixed length.
3. The server forwards all announcements, in the order of the sites, as the `roster`. A site accepts it only if it
   contains every site of its peers exactly once, in order, with a valid signature for this session and these settings,
   and its own announcement unchanged.
4. For a round, the pair (i, j) derives a ChaCha20 key with HKDF-SHA256 from its X25519 secret, from the digest of
   everything that all sites must agree on (session, round, inbox, and the roster with all announcements), and from the
   numbers i and j. The site with the smaller number adds the key stream, as 64-bit words, to its numbers; the other
   one subtracts it.

If sites received different points, rounds, or rosters, their keys differ, their masks do not cancel, and the server
gets uniform noise. The keys of a session are random and stored at the site. A site that loses its key cannot rejoin the
session.

An announcement does not prove that its site knows the secret of the key it announces: a site can sign another's key as
its own. The other sites then share one X25519 secret with both. Their masks differ nevertheless, because the numbers of
the pair are part of the key. A site that announces a key without knowing its secret only spoils the sum.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from ..decimals import whole
from ..errors import ReplyError, SettingError, require
from .grid import CellArray, negative, plus

_PURPOSE = b"twinflower sum 2 "
_SHARES = b"twinflower shares 1 "
KEY = 32
_SIGNATURE = 64
_HEAD = struct.Struct(">32sI32s32s")  # digest of the session, site, digest of the settings, X25519 key
ANNOUNCEMENT = _HEAD.size + _SIGNATURE
"""Bytes of an announcement."""


@dataclass(frozen=True)
class Peers:
    """The sites that a site accepts, itself included: their public Ed25519 keys (32 bytes each), by number."""

    keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not len(self.keys) >= 2:
            raise SettingError(f"a sum needs at least two sites; got {len(self.keys)}")
        require(len({*self.keys}) == len(self.keys), "two sites of the peers file have the same key")
        for number, key in enumerate(self.keys):
            if len(key) != KEY:
                raise SettingError(f"the key of site {number} must have {KEY} bytes; got {len(key)}")

    @classmethod
    def read(cls, text: str) -> "Peers":
        """Parse a file with a line `NUMBER KEY` for every site, the key in hexadecimal; # begins a comment.

        Raises SettingError for a malformed line, or unless each number from 0 to N - 1 occurs exactly once.
        """
        lines = [line.partition("#")[0].split() for line in text.splitlines()]
        try:
            keys = {whole(number): bytes.fromhex(key) for number, key in filter(None, lines)}
        except ValueError:
            raise SettingError(
                "a line of the peers file must be a site's number and its public key in hexadecimal"
            ) from None
        entries = len([line for line in lines if line])
        complete = len(keys) == entries and sorted(keys) == list(range(entries))
        if not complete:
            raise SettingError(
                f"the peers file must list each site from 0 to {max(entries - 1, 0)} exactly once"
            )
        return cls(tuple(keys[number] for number in range(entries)))


@dataclass(frozen=True)
class Identity:
    """A site: its number, its private Ed25519 key, and the sites that it accepts."""

    number: int
    key: Ed25519PrivateKey
    peers: Peers

    def __post_init__(self) -> None:
        if not 0 <= self.number < len(self.peers.keys):
            raise SettingError(
                f"the peers file has no site {self.number}: it names {len(self.peers.keys)} sites"
            )
        own = public_bytes(self.key)
        if own != self.peers.keys[self.number]:
            raise SettingError(
                f"the peers file gives site {self.number} another public key than that of its own identity-key"
            )

    def announce(self, session: str, settings: str, secret: X25519PrivateKey) -> bytes:
        """The announcement for a session of a run with these settings: the public key of `secret`, signed."""
        head = _HEAD.pack(_digest(session), self.number, _digest(settings), public_bytes(secret))
        return head + self.key.sign(_PURPOSE + head)


@dataclass(frozen=True)
class Session:
    """A site in a session whose roster it has accepted.

    agreed: the bytes that must be the same at all sites, session and roster. secrets: the X25519 secret shared with
    each site, by number; for the site itself its private key.
    """

    identity: Identity
    agreed: bytes
    secrets: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def join(
        cls, identity: Identity, secret: X25519PrivateKey, name: str, settings: str, roster: bytes
    ) -> "Session":
        """Check the roster and derive the shared secrets; ReplyError for a roster that this site does not accept."""
        own = identity.announce(name, settings, secret)
        parts = [roster[start : start + ANNOUNCEMENT] for start in range(0, len(roster), ANNOUNCEMENT)]
        count = len(identity.peers.keys)
        _refuse(
            len(roster) != count * ANNOUNCEMENT,
            f"the list of sites has {len(parts)} entries, and this site's peers file has {count}",
        )
        for number, part in enumerate(parts):
            _check(part, number, identity.peers.keys[number], name, settings)
        _refuse(
            parts[identity.number] != own,
            "the list of sites has another key of this site than the one that it made for the session; if the site has "
            "lost its own, the session cannot go on",
        )
        private = secret.private_bytes_raw()
        secrets = (
            private if n == identity.number else _exchange(secret, part) for n, part in enumerate(parts)
        )
        return cls(identity, _PURPOSE + _digest(name) + _digest(roster), tuple(secrets))

    def keys(self, round_: int, inbox: bytes) -> list[bytes]:
        """The keys (N) of this site's masks in a round, the one at its number known to itself only; inbox: digest of
        what the site received in the round."""
        agreed = self._agreed(round_, inbox)
        pairs = (
            struct.pack(">2I", *sorted((self.identity.number, peer))) for peer in range(len(self.secrets))
        )
        return [_key(secret, agreed + pair) for secret, pair in zip(self.secrets, pairs, strict=True)]

    def shares(self, dealer: int, holder: int, round_: int, inbox: bytes) -> list[bytes]:
        """The holder's shares of the dealer's keys (N) in a round; one of the two is this site (`recovery`)."""
        other = holder if dealer == self.identity.number else dealer
        info = _SHARES + self._agreed(round_, inbox) + struct.pack(">2I", dealer, holder)
        stream = _stream(_key(self.secrets[other], info), KEY * len(self.secrets))
        return [stream[start : start + KEY] for start in range(0, len(stream), KEY)]

    def mask(self, count: int, round_: int, inbox: bytes, words: int = 1, alone: bool = False) -> CellArray:
        """The sum (count,) of this site's masks in a round; inbox: see `keys`.

        words: of each number (`grid.plus`). alone: with the mask that no other site knows.
        """
        total, number = np.zeros(count, dtype=np.uint64), self.identity.number
        for peer, key in enumerate(self.keys(round_, inbox)):
            if alone or peer != number:
                total = plus(total, signed_words(key, number, peer, count, words), words)
        return total

    def _agreed(self, round_: int, inbox: bytes) -> bytes:
        """What all sites must agree on in a round."""
        return self.agreed + struct.pack(">Q", round_) + inbox


def simulated(sites: int, seed: int) -> list[Identity]:
    """The identities of simulated sites; their keys are derived from the seed and are not secret."""
    keys = [Ed25519PrivateKey.from_private_bytes(_digest(f"simulated site {seed} {n}")) for n in range(sites)]
    peers = Peers(tuple(map(public_bytes, keys)))
    return [Identity(number, key, peers) for number, key in enumerate(keys)]


def inbox_digest(arrays: Iterable[NDArray[np.generic]]) -> bytes:
    """The SHA-256 digest of the arrays that a site received in a round, including their types and shapes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def public_bytes(key: Ed25519PrivateKey | X25519PrivateKey) -> bytes:
    """The public key, 32 bytes."""
    return key.public_key().public_bytes_raw()


def roster_of(announcements: Sequence[bytes]) -> bytes:
    """The roster that the server forwards; announcements in the order of the sites."""
    return b"".join(announcements)


def _check(part: bytes, number: int, key: bytes, session: str, settings: str) -> None:
    """Raise ReplyError unless `part` is the announcement of this site for this session and these settings."""
    claimed_session, claimed_number, claimed_settings, _ = _HEAD.unpack_from(part)
    _refuse(
        claimed_number != number,
        f"place {number} of the list of sites holds a key message of site {claimed_number}",
    )
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(part[_HEAD.size :], _PURPOSE + part[: _HEAD.size])
    except (InvalidSignature, ValueError):
        raise ReplyError(
            f"the key message of site {number} is not signed by the key that this site's peers file has for it"
        ) from None
    _refuse(
        claimed_session != _digest(session), f"the key message of site {number} belongs to another session"
    )
    _refuse(claimed_settings != _digest(settings), f"site {number} runs with other settings than this site")


def _exchange(secret: X25519PrivateKey, part: bytes) -> bytes:
    """The X25519 secret shared with the site of this announcement."""
    *_, key = _HEAD.unpack_from(part)
    try:
        return secret.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:  # a point of small order
        raise ReplyError("a site's session key is no proper key") from None


def _refuse(wrong: bool, text: str) -> None:
    if wrong:
        raise ReplyError(text)


def _digest(text: str | bytes) -> bytes:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).digest()


def signed_words(key: bytes, site: int, peer: int, count: int, words: int = 1) -> CellArray:
    """What a site adds for a peer: the `count` words of this key, and their negative if the peer's number is lower."""
    stream = np.frombuffer(_stream(key, 8 * count), dtype="<u8").astype(np.uint64, copy=False)
    return stream if site <= peer else negative(stream, words)


def _key(secret: bytes, agreed: bytes) -> bytes:
    return HKDF(SHA256(), KEY, salt=None, info=agreed).derive(secret)


def _stream(key: bytes, size: int) -> bytes:
    """A ChaCha20 key stream. A constant nonce is safe, because no key is used twice."""
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))
