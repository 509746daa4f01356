"""The client side of a run in which the server sees only sums, for any method (`twinflower.sums.summed`).

A site keeps no state of the method. It stores its key of the session and the messages that it sent, with masks and
noise. A repeated request for a completed round gets the same bytes, and never another mask or other noise. Where sites
may be missing, it also stores for which sum it has opened its shares of a round (`Recovery`), and opens them for no
other one.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import ReplyError
from twinflower.sums.grid import plus
from twinflower.sums.masks import Identity, Session, inbox_digest
from twinflower.sums.recovery import Recovery
from twinflower.sums.summed import Summed
from twinflower.work import Report

from .request import RoundRequest
from .shell import AlgorithmClient
from .steps import Arrays, Metrics
from .store import CompletedRound, StateStore

_INBOX, _SURVIVORS = "inbox", "survivors"  # metrics of a stored round, and of the sum in which it was opened
_KEYS = "keys"  # a metric: digest of the session's keys, with which the message was masked


def _digest_of(session: Session) -> str:
    return hashlib.sha256(session.agreed).hexdigest()


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
        lost = self.algorithm.most_absent
        self.recovery = Recovery(self.num_clients, lost) if masks and lost else None
        self.opened = self.store.of("opened")
        self._joined: tuple[str, object, Session] | None = None

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the partition of this node, and its key message for the session that the server names; or what it
        opens for the sum of a round over the survivors that the server names."""
        properties = super().get_properties(config)
        if self.masks is None or "session" not in config:
            return properties
        if self.recovery and _SURVIVORS in config:
            return properties | {"opened": self._opened(self.masks, self.recovery, config)}
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
            session = self._session(self.masks, request.session, config.get("roster"))
            self._check_keys(done, session)
        arrays, rows, metrics = super().fit(parameters, config)
        if self.recovery and self._joined and arrays:
            metrics |= {"dealt": self.recovery.deal(self._joined[2], request.round, inbox_digest(parameters))}
            before = self.opened.at(request.session, request.round)
            metrics |= {_SURVIVORS: before.metrics[_SURVIVORS]} if before else {}
        return arrays, rows, metrics

    def _opened(self, masks: Masks, recovery: Recovery, config: dict[str, Any]) -> bytes:
        """What this site opens for the sum of a round. ReplyError if it has no message in the round, or has opened its
        shares for another sum of it, or for one of a later round."""
        request = self.requests.read(config)
        done = self.store.at(request.session, request.round)
        point = done.metrics.get(_INBOX) if done else None
        if point is None:
            raise ReplyError(
                f"this site sent no message for the sum of round {request.round}, or it is settled"
            )
        survivors = recovery.survivors(config[_SURVIVORS], self.client)
        session = self._session(masks, request.session, config.get("roster"))
        self._check_keys(done, session)
        with self.store.locked(request.session):
            self._decide(request, config[_SURVIVORS].hex())
        return recovery.open(session, request.round, bytes.fromhex(point), survivors)

    def _check_keys(self, done: CompletedRound | None, session: Session) -> None:
        """ReplyError if a stored message of the round was masked with other keys than those of this session."""
        known = done.metrics.get(_KEYS) if done else None
        if self.recovery and known is not None and known != _digest_of(session):
            raise ReplyError(
                "the message of this round has masks of other keys: a site has lost its key; start anew"
            )

    def _decide(self, request: RoundRequest, survivors: str) -> None:
        """Store for which sum this site opens its shares of a round, before it does."""
        before, last = self.opened.at(request.session, request.round), self.opened.last(request.session)
        if before is None and last is not None and last.round > request.round:
            raise ReplyError(f"round {request.round} is to be opened after a later one")
        if before is not None and before.metrics[_SURVIVORS] != survivors:
            raise ReplyError(
                f"round {request.round} was opened for a sum over other sites, and only one is read"
            )
        if before is None:
            stored = {"round": request.round, "session": request.session, _SURVIVORS: survivors}
            self.opened.save(request.session, CompletedRound({}, stored), request.settled)

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
        alone = self.recovery is not None
        mask = self._joined[2].mask(cells.size, request.round, inbox_digest(parameters), words, alone)
        return [plus(cells, mask, words)]

    def _measured(self, report: Report, parameters: Arrays) -> Metrics:
        """Add a digest of the parameters, to detect a request for the same round with other parameters."""
        keys = {_KEYS: _digest_of(self._joined[2])} if self.recovery and self._joined else {}
        return super()._measured(report, parameters) | {_INBOX: inbox_digest(parameters).hex()} | keys
