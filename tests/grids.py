"""Grids on which replies are lost or spoilt, and what it takes to spoil one."""

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from problems import run_config, small

from twinflower.clients.records import record_of
from twinflower.simulation.app import client_app
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy


def rewrite(reply, arrays=None, metrics=None, drop=None):
    """The reply with other arrays or metrics, or without a record."""
    content = RecordDict(dict(reply.content.items()))
    if arrays is not None:
        content["fitres.parameters"] = arrays
    if metrics is not None:
        content["fitres.metrics"] = ConfigRecord(metrics)
    if drop:
        del content[drop]
    return with_content(reply, content)


def with_content(reply, content):
    return Message(content=content, metadata=reply.metadata)


def arrays_of(reply):
    return [array.numpy().copy() for array in reply.content["fitres.parameters"].values()]


def garbage(reply):
    """A reply that no server takes."""
    return rewrite(reply, record_of([]))


def bytes_and_back(message):
    """The message after a way over the wire."""
    return message_from_proto(ProtoMessage.FromString(message_to_proto(message).SerializeToString()))


class Wire(InProcessGrid):
    """A grid as a deployment: every message is serialised, and answered by a new client."""

    def client(self, node):
        return self.new_client(node, self.context(node))

    def answer(self, message):
        return bytes_and_back(super().answer(bytes_and_back(message)))


def over_the_wire(setup, checkpoints=None):
    """As `inprocess.train`."""
    return run_strategy(setup, Wire(setup), "inprocess", checkpoints=checkpoints)


class Faulty(InProcessGrid):
    """The replies of some clients in some rounds go through a fault."""

    def __init__(self, setup, fault, victims, rounds):
        super().__init__(setup)
        self.fault, self.victims, self.rounds = fault, victims, rounds

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        return [r for r in map(self._spoil, replies) if r is not None]

    def _spoil(self, reply):
        here = reply.metadata.message_type == "train" and int(reply.metadata.group_id) in self.rounds
        return self.fault(reply) if here and reply.metadata.src_node_id - 1 in self.victims else reply


class Refused(Faulty):
    """A grid on which the replies of some (round, client) are spoilt on their way to the server."""

    def __init__(self, setup, pairs):
        super().__init__(setup, garbage, (), ())
        self.pairs = pairs

    def _spoil(self, reply):
        name = (int(reply.metadata.group_id or 0), reply.metadata.src_node_id - 1)
        return garbage(reply) if reply.metadata.message_type == "train" and name in self.pairs else reply


class Lossy(InProcessGrid):
    """A grid that loses the first `losses` replies to each of the requests in `lost`, (node, round) pairs."""

    def __init__(self, setup, lost, losses):
        super().__init__(setup)
        self.left = dict.fromkeys(lost, losses)
        self.asked = []

    def answer(self, message):
        reply = super().answer(message)  # the client has done its work
        if message.metadata.message_type == "train":
            address = message.metadata.dst_node_id, message.content["fitins.config"]["round"]
            self.asked.append(address)
            if self.left.get(address, 0) > 0:
                self.left[address] -= 1
                return Message(Error(1, "lost on the way"), reply_to=message)
        return reply


class Deployed(InProcessGrid):
    """Nodes with these node configs, asked by a server with this run config, which need not be what a node is told."""

    def __init__(self, run, *nodes):
        super().__init__(small("fedpdm"))
        self.run_config, self.nodes = run_config(run), nodes

    def get_node_ids(self):
        return range(1, 1 + len(self.nodes))

    def context(self, node):
        if node not in self.contexts:
            config = {"partition-id": node - 1, "num-partitions": len(self.nodes)} | self.nodes[node - 1]
            self.contexts[node] = Context(1, node, config, RecordDict(), dict(self.run_config))
        return self.contexts[node]

    def answer(self, message):
        context = self.context(message.metadata.dst_node_id)
        try:
            return client_app.app(message, context)
        except Exception as error:  # noqa: BLE001  what Flower tells of it
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
