"""The client side of a run in which the server sees only sums, for any method (`twinflower.sums.summed`).

A site keeps no state of the method. It stores its key of the session and the messages that it sent, with masks and
noise. A repeated request for a completed round gets the same bytes, and never another mask or other noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, RecordDict

from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import DataError, ReplyError
from twinflower.sums.masks import Identity, Session, inbox_digest
from twinflower.sums.summed import Summed
from twinflower.work import Report

from .shell import AlgorithmClient, Answer, Arrays, _Asked
from .store import write_whole

ROSTER, ANNOUNCEMENT = "roster", "announcement"
"""Names in a request's config and in a reply's properties."""

_KEY = "twinflower.session-key"  # record of context.state
_INBOX = "inbox"


class KeyStore(Protocol):
    """A store for a site's secret session keys."""

    def find(self, session: str) -> bytes | None:
        """Return the key of a session, if there is one."""

    def save(self, session: str, key: bytes) -> None:
        """Store a new key."""


@dataclass(frozen=True)
class ContextKeys:
    """Stores one key in `context.state`, until Flower's run or the node's process ends."""

    state: RecordDict

    def find(self, session: str) -> bytes | None:
        """See `KeyStore`."""
        record = cast(ConfigRecord, self.state[_KEY]) if _KEY in self.state else {}
        return cast(bytes, record["key"]) if record.get("session") == session else None

    def save(self, session: str, key: bytes) -> None:
        """See `KeyStore`."""
        self.state[_KEY] = ConfigRecord({"session": session, "key": key})


@dataclass(frozen=True)
class FileKeys:
    """Stores keys as files that only their owner may read. path(session): the path of a session's key."""

    path: Callable[[str], Path]

    def find(self, session: str) -> bytes | None:
        """See `KeyStore`."""
        path = self.path(session)
        try:
            return path.read_bytes() if path.exists() else None
        except OSError as error:
            raise DataError(f"the session's key cannot be read: {error.strerror}") from None

    def save(self, session: str, key: bytes) -> None:
        """See `KeyStore`."""
        path = self.path(session)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, key)
        except OSError as error:
            raise DataError(f"the session's key cannot be stored: {error.strerror}") from None


@dataclass(frozen=True)
class Masks:
    """What a site needs to mask its messages: its identity, its key store, and a digest of the shared settings."""

    identity: Identity
    keys: KeyStore
    settings: str

    def announce(self, session: str) -> bytes:
        """Return this site's key message for a session; repeated calls return the same bytes."""
        key = self.keys.find(session)
        if key is None:
            key = X25519PrivateKey.generate().private_bytes_raw()
            self.keys.save(session, key)
        return self.identity.announce(session, self.settings, X25519PrivateKey.from_private_bytes(key))

    def join(self, session: str, roster: object) -> Session:
        """Join the session with this roster; ReplyError if this site does not accept the roster."""
        key = self.keys.find(session)
        if type(roster) is not bytes or key is None:
            raise ReplyError(
                "a request for a sum must carry the key messages of all sites, and this site must have made its own"
            )
        secret = X25519PrivateKey.from_private_bytes(key)
        return Session.join(self.identity, secret, session, self.settings, roster)


class SumClient(AlgorithmClient):
    """Sends its values as integers modulo 2^64, with noise and masks.

    masks: None for a simulation without masks, whose sums are identical to the last bit.
    """

    algorithm_class: ClassVar[type[Algorithm]] = Summed

    def __init__(self, *args: Any, masks: Masks | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.masks = masks
        self._joined: tuple[str, object, Session] | None = None

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the partition of this node, and its key message for the session that the server names."""
        properties = super().get_properties(config)
        if self.masks is None or "session" not in config:
            return properties
        session = self._session_of(config)
        self._bind(session)
        return properties | {ANNOUNCEMENT: self.masks.announce(session)}

    def answer(self, parameters: Arrays, config: dict[str, Any]) -> Answer:
        """See `AlgorithmClient.answer`; the roster is checked before anything is charged or computed."""
        asked = self._read(config)
        kept = self.store.at(asked.session, asked.round)
        known = kept.metrics.get(_INBOX) if kept else None  # nothing of the closing message
        if known and known != inbox_digest(parameters).hex():
            raise ReplyError(
                f"round {asked.round} is asked again, and with another point than the first time"
            )
        if self.masks:
            self._session(self.masks, asked.session, config.get(ROSTER))
        return super().answer(parameters, config)

    def _session(self, masks: Masks, name: str, roster: object) -> Session:
        """The session with this roster; it is joined once and then cached."""
        if self._joined is None or self._joined[:2] != (name, roster):
            self._joined = name, roster, masks.join(name, roster)
        return self._joined[2]

    def _sealed(self, reply: Arrays, parameters: Arrays, asked: _Asked) -> Arrays:
        """The reply plus this site's mask, which depends on the parameters that the site received."""
        if self._joined is None:
            return reply
        (cells,) = reply
        return [cells + self._joined[2].mask(cells.size, asked.round, inbox_digest(parameters))]

    def _measured(self, report: Report, parameters: Arrays) -> dict[str, Any]:
        """Add a digest of the parameters, to detect a request for the same round with other parameters."""
        return super()._measured(report, parameters) | {_INBOX: inbox_digest(parameters).hex()}
