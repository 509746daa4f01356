"""The server side of a run in which the server sees only sums, for any method (`twinflower.sums.summed`)."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import AbsentError, ReplyError, SettingError
from twinflower.sums.grid import CellArray, negative, plus
from twinflower.sums.masks import ANNOUNCEMENT, roster_of
from twinflower.sums.recovery import Recovery
from twinflower.sums.summed import Summed

from .messages import Upload, properties_in, properties_request
from .star import StarStrategy


class SumStrategy(StarStrategy):
    """Keeps the server state of the method. Before the first round it collects the key messages of all sites, and every
    request carries all of them. Each round adds up the messages of the sites modulo 2^64.

    A round needs every site, or all but `Summed.lost`. The request is repeated to a site that does not reply, and the
    site replies with its stored bytes. If it stays away, the run stops, and can be resumed when the site is back. Where
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
            f"run stops (client {client}: {reason})"
        )

    def _received(self, round_: int, replies: Iterable[Message]) -> tuple[dict[int, Upload], dict[int, str]]:
        """See `StarStrategy`; one of the uploads is less the masks that remain in the sum."""
        good, rejected = super()._received(round_, replies)
        if self.recovery is None:
            return good, rejected
        _check_complete(good, round_)
        out = _left_out(good, self.recovery)
        good = {client: upload for client, upload in good.items() if client not in out}
        rejected |= out
        if not self._needs(rejected):
            first = min(good)
            cells, words = good[first].values.cells, self.algorithm.words  # type: ignore[attr-defined]
            masks = self._masks(self.recovery, round_, good, cells.size, words)
            values = good[first].values._replace(cells=plus(cells, negative(masks, words), words))
            good[first] = good[first]._replace(values=values)
        return good, rejected

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
                f"stops (client {client}: {reason})"
            )
        dealt = {client: upload.metrics["dealt"] for client, upload in good.items()}
        return recovery.mask(survivors, dealt, opened, count, words)


def _before(good: dict[int, Upload]) -> str:
    """The survivors for whose sum most of these sites have opened their shares before an interruption; empty if none
    has."""
    before = Counter(str(own) for upload in good.values() if (own := upload.metrics.get("survivors")))
    return before.most_common(1)[0][0] if before else ""


def _check_complete(good: dict[int, Upload], round_: int) -> None:
    """AbsentError if a site is missing from the sum for which others have opened their shares: no other sum of the
    round can be read any more, and to ask for one would leave none."""
    named = _before(good)
    away = [
        place
        for place in range(len(named) // 2)
        if named[2 * place : 2 * place + 2] == "01" and place not in good
    ]
    if away:
        raise AbsentError(
            f"round {round_}: before the interruption sites opened their shares for a sum with client {away[0]}, which "
            "is missing: the run stops, and can go on when that site is back"
        )


def _left_out(good: dict[int, Upload], recovery: Recovery) -> dict[int, str]:
    """The clients whose messages cannot be in the sum, with the reason: those that deal no shares, and in a round that
    was begun before an interruption, those for which most sites have not opened theirs."""
    dealt = [upload.metrics.get("dealt") for upload in good.values()]
    whole = [type(own) is bytes and len(own) == recovery.dealt_size for own in dealt]
    out = {client: "it dealt no shares" for client, own in zip(good, whole, strict=True) if not own}
    named = _before(good)
    if named:
        out |= {
            client: "it came back after the sum of the round was read without it"
            for client in good
            if named[2 * client : 2 * client + 2] != "01"
        }
    return out


def _bytes_in(value: object, size: int, otherwise: str) -> bytes:
    """A value of a reply that must be bytes of this size; ReplyError otherwise."""
    if type(value) is not bytes or len(value) != size:
        raise ReplyError(otherwise)
    return value


def _key_message(client: int, reply: Message) -> bytes:
    """The key message in a reply; ReplyError if there is none."""
    return _bytes_in(properties_in(reply).get("announcement"), ANNOUNCEMENT, "it sent no key message")
