"""Messages to nodes in the format of Flower's NumPyClient, and the requests of a round."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from twinflower.algorithms.algorithm import Algorithm
from twinflower.clients.records import record_of
from twinflower.flower_messages import EVALUATE, FIT, PROPERTIES, reply_record, request_record
from twinflower.rounds import Round

from .quorum import mean_of
from .replies import Inspector, Upload


def properties_request(node: int, session: str = "") -> Message:
    """A message that asks a node for its partition, and if a session is named, for what else the client has for it."""
    config = ConfigRecord({"session": session} if session else {})
    return Message(RecordDict({request_record(PROPERTIES, "config"): config}), node, "get_properties")


def properties_in(reply: Message) -> ConfigRecord:
    """What a client replies to a `properties_request`; empty if the reply holds nothing of it."""
    return reply.content.config_records.get(reply_record(PROPERTIES, "properties"), ConfigRecord())


def fit_request(node: int, arrays: ArrayRecord, config: Mapping[str, Any]) -> Message:
    """A message that asks a node for a round, whose number is in the config."""
    return Message(_content(FIT, arrays, config), node, "train", group_id=str(config["round"]))


def question_request(node: int, model: ArrayRecord, config: Mapping[str, Any]) -> Message:
    """A message that asks a node about a model; config: round, session, and the fields of the question."""
    return Message(_content(EVALUATE, model, config), node, "evaluate", group_id=str(config["round"]))


def _content(kind: str, arrays: ArrayRecord, config: Mapping[str, Any]) -> RecordDict:
    content = RecordDict({request_record(kind, "parameters"): arrays})
    content[request_record(kind, "config")] = ConfigRecord(dict(config))
    return content


@dataclass(frozen=True)
class Requests:
    """The requests of a round to its clients, and how their replies are read.

    config: of every request. inboxes: client -> inbox.
    """

    algorithm: Algorithm
    inspector: Inspector
    round: int
    config: Mapping[str, Any]
    inboxes: Mapping[int, Any]
    _records: dict[tuple[int, ...], ArrayRecord] = field(default_factory=dict, init=False)

    def message(self, client: int, node: int) -> Message:
        """The request to a client at this node; inboxes that hold the same array objects are encoded only once."""
        inbox = self.inboxes[client]
        same = tuple(map(id, inbox))  # inboxes keeps the arrays alive, so no id is reused
        if same not in self._records:
            self._records[same] = record_of(self.algorithm.inbox.pack(inbox, self.inspector.entries))
        return fit_request(node, self._records[same], self.config)

    def read(self, client: int, reply: Message) -> Upload:
        """What a client sent; ReplyError for an invalid reply."""
        return self.inspector.read(client, self.inboxes[client], reply, self.round)

    def statistics(self, accepted: Iterable[Upload], rejected: Mapping[int, str]) -> Round:
        """The round's statistics, except for its duration."""
        layouts = self.algorithm.upload, self.algorithm.inbox
        up, down = (layout.bits(self.inspector.entries, self.inspector.dtype) for layout in layouts)
        metrics = [upload.metrics for upload in accepted]
        return Round(
            self.round,
            tuple(self.inboxes),
            len(metrics),
            dict(sorted(rejected.items())),
            up * len(metrics),
            down * len(self.inboxes),
            mean_of(metrics, "local-steps"),
            mean_of(metrics, "stopped"),
        )
