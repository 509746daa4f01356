"""The server side of a run in which the server sees only sums, for any method (`twinflower.sums.summed`)."""

from collections import Counter
from collections.abc import Iterable
from logging import WARNING
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common import log
from flwr.serverapp import Grid

from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import AbsentError, ReplyError, SettingError
from twinflower.rounds import who
from twinflower.sums.grid import CellArray, negative, plus
from twinflower.sums.masks import ANNOUNCEMENT, roster_of
from twinflower.sums.recovery import Recovery
from twinflower.sums.summed import Summed

from .messages import Upload, properties_in, properties_request
from .star import StarStrategy

_LATE = "others opened their shares of the round for a sum without it"


class SumStrategy(StarStrategy):
    """Keeps the server state of the method. Before the first round it collects the key messages of all sites, and every
    request carries all of them. Each round adds up the messages of the sites modulo 2^64 (or a power of it).

    A round needs every site, or all but `Summed.lost`. If more do not reply, the request is repeated to them, and they
    reply with their stored bytes. If too many stay away, the run stops, and can be resumed when they are back. Where
    sites may be missing, each round has a second exchange, in which those that replied open what their sum needs
    (`Recovery`). masks: False for a simulation without masks.
    """

    algorithm_class: ClassVar[type[Algorithm]] = Summed

    def __init__(self, *args: Any, masks: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.sampling.clients_per_round not in (0, self.sampling.num_clients):
            raise SettingError(
                f"trust sum needs all clients in every round; got {self.sampling.clients_per_round} of "
                f"{self.sampling.num_clients}"
            )
        if self.max_norm != float("inf"):
            raise SettingError(
                f"trust sum cannot limit the norm of a single message, which nobody sees; got {self.max_norm:g}"
            )
        self.masks = masks
        lost = self.algorithm.most_absent
        self.recovery = Recovery(self.algorithm.info.num_clients, lost) if masks and lost else None
        self._roster = b""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See `StarStrategy.configure_train`; every request holds the key messages, which are collected first."""
        if self.masks:
            self._roster = self._roster or self._gather()
            config = ConfigRecord({**config, "roster": self._roster})
        return super().configure_train(server_round, arrays, config, grid)

    def begin(self, *args: Any, **kwargs: Any) -> None:
        """See `StarStrategy.begin`; discards the key messages, because a new session has new keys."""
        super().begin(*args, **kwargs)
        self._roster = b""

    def _gather(self) -> bytes:
        """Collect the key messages of all sites, in the order of the sites; AbsentError if one is missing."""

        def ask(client: int, node: int) -> Message:
            return properties_request(node, self.training.session)

        found, missing = self.exchange.ask_all(ask, _key_message, 0)
        if not missing:
            return roster_of([found[client] for client in sorted(found)])
        client, reason = min(missing.items())
        raise AbsentError(
            f"{len(missing)} of {len(self.roster.nodes)} sites sent no key message, and a sum needs all of them, the "
            f"run stops ({who(client, self.training.sites)}: {reason})"
        )

    def _read(self, client: int, reply: Message) -> Upload:
        """See `StarStrategy`; ReplyError also for a message without the shares that belong to it."""
        upload = super()._read(client, reply)
        if self.recovery:
            _bytes_in(upload.metrics.get("dealt"), self.recovery.dealt_size, "it dealt no shares")
        return upload

    def _received(self, round_: int, replies: Iterable[Message]) -> tuple[dict[int, Upload], dict[int, str]]:
        """See `StarStrategy`; the valid replies are those in the sum. AbsentError if one of it is missing."""
        good, rejected = super()._received(round_, replies)
        if self.recovery is None or self._needs(rejected):
            return good, rejected
        survivors = _survivors(good, self.recovery)
        if away := set(survivors).difference(good):
            raise AbsentError(
                f"round {round_}: before the interruption sites opened their shares for a sum with "
                f"{who(min(away), self.training.sites)}, which is missing: the run stops, and can go on when that site "
                "is back"
            )
        late = dict.fromkeys(set(good).difference(survivors), _LATE)
        return {client: good[client] for client in survivors}, rejected | late

    def _values(self, round_: int, good: dict[int, Upload]) -> dict[int, Any]:
        """See `StarStrategy`; one of the uploads is less the masks that remain in the sum."""
        values = super()._values(round_, good)
        if self.recovery:
            first = min(values)
            cells, words = values[first].cells, self.algorithm.words  # type: ignore[attr-defined]
            masks = self._masks(self.recovery, round_, good, cells.size, words)
            values[first] = values[first]._replace(cells=plus(cells, negative(masks, words), words))
        return values

    def _masks(
        self, recovery: Recovery, round_: int, good: dict[int, Upload], count: int, words: int
    ) -> CellArray:
        """The masks (count,) in the sum of these messages; AbsentError if too few sites open their shares."""
        survivors, stamp = sorted(good), self.training.stamp(round_)
        size, named = recovery.opened_size(survivors), recovery.named(survivors)

        def ask(client: int, node: int) -> Message:
            return properties_request(node, roster=self._roster, survivors=named, **stamp)

        def read(client: int, reply: Message) -> bytes:
            return _bytes_in(properties_in(reply).get("opened"), size, "it opened no shares")

        opened, missing = self.exchange.ask(survivors, ask, read, round_)
        if len(opened) < recovery.needed:
            opened, missing = self.exchange.ask_again(opened, missing, ask, read, round_)
        if len(opened) < recovery.needed:
            client, reason = min(missing.items())
            raise AbsentError(
                f"round {round_}: {recovery.needed} sites must open their shares, and only {len(opened)} did: the run "
                f"stops ({who(client, self.training.sites)}: {reason})"
            )
        dealt = {client: upload.metrics["dealt"] for client, upload in good.items()}
        keys, wrong = recovery.keys(survivors, dealt, opened)
        if wrong is not None:
            text = "round %s: the shares of %s do not fit; those of the others do"
            log(WARNING, text, round_, who(wrong, self.training.sites))
        return recovery.mask(survivors, keys, count, words)


def _survivors(good: dict[int, Upload], recovery: Recovery) -> list[int]:
    """The sites whose sum is read. All of these, if enough of them are free to open their shares for it: then so few
    say that they opened theirs for another sum that these could not read it either. Otherwise those for whose sum most
    opened theirs before an interruption."""
    said = Counter(filter(None, (_said(client, upload, recovery) for client, upload in good.items())))
    everyone = tuple(sorted(good))
    bound = said.total() - said[everyone]
    return list(everyone if len(good) - bound >= recovery.needed else said.most_common(1)[0][0])


def _said(client: int, upload: Upload, recovery: Recovery) -> tuple[int, ...]:
    """The sites for whose sum a site says that it opened its shares of the round; empty unless it can have done so."""
    try:
        return tuple(recovery.survivors(bytes.fromhex(upload.metrics["survivors"]), client))
    except (KeyError, TypeError, ValueError, ReplyError):
        return ()


def _bytes_in(value: object, size: int, otherwise: str) -> bytes:
    """A value of a reply that must be bytes of this size; ReplyError otherwise."""
    if type(value) is not bytes or len(value) != size:
        raise ReplyError(otherwise)
    return value


def _key_message(client: int, reply: Message) -> bytes:
    """The key message in a reply; ReplyError if there is none."""
    return _bytes_in(properties_in(reply).get("announcement"), ANNOUNCEMENT, "it sent no key message")
