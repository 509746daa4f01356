"""The client side of a run in which the server sees only sums, for any method (`twinflower.sums.summed`).

A site keeps no state of the method. It stores its key of the session and the messages that it sent, with masks and
noise. A repeated request for a completed round gets the same bytes, and never another mask or other noise.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import ReplyError
from twinflower.sums.grid import plus
from twinflower.sums.masks import Identity, Session, inbox_digest
from twinflower.sums.summed import Summed
from twinflower.work import Report

from .request import RoundRequest
from .shell import AlgorithmClient
from .steps import Arrays, Metrics
from .store import StateStore

_INBOX = "inbox"


@dataclass(frozen=True)
class Masks:
    """What a site needs to mask its messages: its identity, a store for its session keys, and a digest of the shared
    settings."""

    identity: Identity
    store: StateStore
    settings: str

    def announce(self, session: str) -> bytes:
        """Return this site's key message for a session; repeated calls return the same bytes."""
        key = self.store.key(session)
        if key is None:
            key = X25519PrivateKey.generate().private_bytes_raw()
            self.store.save_key(session, key)
        return self.identity.announce(session, self.settings, X25519PrivateKey.from_private_bytes(key))

    def join(self, session: str, roster: object) -> Session:
        """Join the session with this roster; ReplyError if this site does not accept the roster."""
        key = self.store.key(session)
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
        session = self.requests.session(config)
        self.requests.bind(session)
        return properties | {"announcement": self.masks.announce(session)}

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, Metrics]:
        """See `AlgorithmClient.fit`; the roster is checked before anything is charged or computed."""
        request = self.requests.read(config)
        done = self.store.at(request.session, request.round)
        known = done.metrics.get(_INBOX) if done else None  # nothing of the closing message
        if known and known != inbox_digest(parameters).hex():
            raise ReplyError(
                f"round {request.round} is asked again, and with another point than the first time"
            )
        if self.masks:
            self._session(self.masks, request.session, config.get("roster"))
        return super().fit(parameters, config)

    def _session(self, masks: Masks, name: str, roster: object) -> Session:
        """The session with this roster; it is joined once and then cached."""
        if self._joined is None or self._joined[:2] != (name, roster):
            self._joined = name, roster, masks.join(name, roster)
        return self._joined[2]

    def _sealed(self, reply: Arrays, parameters: Arrays, request: RoundRequest) -> Arrays:
        """The reply plus this site's mask, which depends on the parameters that the site received."""
        if self._joined is None:
            return reply
        (cells,), words = reply, self.algorithm.words  # type: ignore[attr-defined]
        mask = self._joined[2].mask(cells.size, request.round, inbox_digest(parameters), words)
        return [plus(cells, mask, words)]

    def _measured(self, report: Report, parameters: Arrays) -> Metrics:
        """Add a digest of the parameters, to detect a request for the same round with other parameters."""
        return super()._measured(report, parameters) | {_INBOX: inbox_digest(parameters).hex()}
