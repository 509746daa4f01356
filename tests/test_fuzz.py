"""Fuzzed messages, both ways: nothing malformed is taken, nothing breaks, nothing grows.

What is malformed is not decided by the code under test. A change either breaks a rule by what it is, and must be
refused; or it changes bytes blindly, and then whatever was taken must be, array for array, what our own `pack` writes.
A tenth of the messages runs by default, all of them (10,000 replies, 1,000 requests) with `pytest -m slow`.
"""

import logging
import tracemalloc
from zlib import crc32

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from grids import Wire
from problems import VARIANTS, one_of_each, small

from twinflower.clients.records import encode
from twinflower.errors import ReplyError, RunError
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import strategy_of
from twinflower.strategies.messages import sort_replies
from twinflower.strategies.nodes import meet, note_partition
from twinflower.wire import from_npy, to_npy

SHARES = [pytest.param(10, id="tenth"), pytest.param(1, id="all", marks=pytest.mark.slow)]
ROOM = 4 * 2**20  # bytes that handling one small message may take at its peak

GIANTS = [(3 * 10**7,), (10**12,), (2**40, 2**20), (1,) * 9, (-1,), (2**63,), (10**6, 10**6, 0, 10**9)]
WORDS = [
    None,
    True,
    0,
    -1,
    2**63 - 1,
    0.5,
    float("nan"),
    float("inf"),
    "1",
    "",
    "x" * 100_000,
    b"\x00",
    [1],
    [0.5] * 9,
]
DTYPES = [np.float32, np.float16, np.int64, np.int8, np.bool_, np.uint64, np.complex128, ">f8"]


def header(shape, descr="<f8", fortran=False):
    """An .npy header, whatever it says."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def truncated(draw, data):
    return data[: int(draw.integers(len(data)))]


def longer(draw, data):
    return data + draw.bytes(int(draw.integers(1, 100)))


def noise(draw, data):
    return draw.bytes(int(draw.integers(300)))


def giant(draw, data):
    descr = str(draw.choice(["<f8", "<i8", "|u1", "<c16"]))
    return header(GIANTS[draw.integers(len(GIANTS))], descr, bool(draw.integers(2))) + data[-64:]


def objects(draw, data):
    return header((1,), str(draw.choice(["|O", "|S9", "<U3", "<M8[s]", "|V8"]))) + data[-16:]


def nested(draw, data):
    return header("(" * 400 + ")" * 400) + data


def later_version(draw, data):
    return data[:6] + bytes([int(draw.integers(2, 9)), 0]) + data[8:]


def another_type(draw, data):
    kinds = [kind for kind in DTYPES if np.dtype(kind) != from_npy(data).dtype]
    with np.errstate(all="ignore"):
        return to_npy(from_npy(data).real.astype(kinds[draw.integers(len(kinds))]))


def another_shape(draw, data):
    array = from_npy(data)
    return to_npy(
        [array[None], np.append(array, array.ravel()[:1]), array.reshape(-1, 1, 1)][draw.integers(3)]
    )


def not_finite(draw, data):
    array = np.array(from_npy(data), dtype=float)
    array.flat[int(draw.integers(array.size))] = draw.choice([np.nan, np.inf, -np.inf])
    return to_npy(array)


def flipped(draw, data):
    bytes_ = bytearray(data)
    for _ in range(int(draw.integers(1, 4))):
        bytes_[int(draw.integers(len(bytes_)))] ^= 1 << int(draw.integers(8))
    return bytes(bytes_)


BREAKING = [
    truncated, longer, noise, giant, objects, nested, later_version, another_type, another_shape, not_finite,
]  # fmt: skip


def spoil_array(draw, arrays, change):
    """The record with one array's bytes changed; its dtype and shape fields are anybody's guess."""
    record = ArrayRecord()
    at = int(draw.integers(len(arrays)))
    for place, (name, array) in enumerate(arrays.items()):
        data = change(draw, array.data) if place == at else array.data
        record[name] = Array("float64", GIANTS[0], "numpy.ndarray", data)
    return record


def wrong_count(draw, arrays):
    many = [*arrays.values(), *([encode(np.zeros(1))] * int(draw.integers(1, 4)))]
    record = ArrayRecord()
    for place, array in enumerate([many, many[: len(arrays) - 1]][draw.integers(2)]):
        record[str(place)] = array
    return record


def copy(draw, content, records, config):
    """A message's content with one thing wrong, and whether a rule is broken for sure."""
    content = RecordDict(dict(content.items()))
    kind = int(draw.integers(10))
    if kind < 4:
        content[records] = spoil_array(draw, content[records], BREAKING[draw.integers(len(BREAKING))])
    elif kind < 6:
        content[records] = spoil_array(draw, content[records], flipped)
        return content, False
    elif kind == 6:
        content[records] = wrong_count(draw, content[records])
    elif kind == 7:
        del content[str(draw.choice([records, config]))]
    elif kind == 8:
        other = [MetricRecord({"round": 1}), ArrayRecord(), ConfigRecord({"round": 1})]
        wrong = config if draw.integers(2) else records
        del content[wrong]
        content[wrong] = other[draw.integers(2)] if wrong == config else other[2 * draw.integers(2)]
    else:
        words = dict(content[config])
        words["round"] = [w for w in WORDS if w is not None][draw.integers(len(WORDS) - 1)]
        if draw.integers(3) == 0:
            words.pop("round")
        content[config] = ConfigRecord(words)
        return content, type(words.get("round")) is not int
    return content, True


def packed_as(arrays, mine):
    """Whether these are the arrays that our own packing writes for what was understood, bit by bit."""
    return [to_npy(from_npy(a.data)) for a in arrays.values()] == [to_npy(np.asarray(a)) for a in mine]


class Peak:
    """Most memory taken inside, in bytes."""

    def __enter__(self):
        tracemalloc.reset_peak()
        self.before = tracemalloc.get_traced_memory()[0]
        return self

    def __exit__(self, *error):
        self.taken = tracemalloc.get_traced_memory()[1] - self.before


@pytest.fixture(autouse=True)
def traced():
    logging.getLogger("flwr").setLevel(logging.ERROR)
    tracemalloc.start()
    yield
    tracemalloc.stop()
    logging.getLogger("flwr").setLevel(logging.NOTSET)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("share", SHARES)
def test_replies(variant, share):
    """10,000 over the table; each ends in a good upload or in a rejection with a reason."""
    setup = small(variant)
    grid, strategy = InProcessGrid(setup), strategy_of(setup)
    strategy.begin(meet(grid, 8, 10), setup.start)
    replies = list(grid.send_and_receive(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)))
    draw, d = np.random.default_rng(crc32(variant.encode())), setup.objective.d
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(10_000 // len(VARIANTS) // share + 1):
        reply = replies[draw.integers(len(replies))]
        content, broken = copy(draw, reply.content, "fitres.parameters", "fitres.metrics")
        told = Message(content=content, metadata=reply.metadata)
        with Peak() as peak:
            node = reply.metadata.src_node_id
            good, rejected = sort_replies([told], {node: node - 1}, strategy.requests.read, 1)
        assert peak.taken < ROOM
        assert len(good) + len(rejected) == 1
        for reason in rejected.values():
            assert 0 < len(reason) <= 1000
            assert reason.isprintable()
        for upload, metrics in good.values():
            assert not broken
            assert metrics["round"] == 1
            assert packed_as(content["fitres.parameters"], setup.algorithm.upload.pack(upload, d))
            assert all(np.isfinite(part).all() for part in upload)
    assert tracemalloc.get_traced_memory()[0] - before < ROOM


def state_and_ledger(context):
    """Everything a client keeps, as bytes."""
    kept = {}
    for name, record in context.state.items():
        values = record.items()
        kept[name] = [(k, bytes(v.data) if isinstance(v, Array) else v) for k, v in values]
    return kept


@pytest.mark.parametrize("variant", one_of_each(VARIANTS, "privacy.mode"))
@pytest.mark.parametrize("first", [True, False], ids=["before any round", "after a round"])
@pytest.mark.parametrize("share", SHARES)
def test_requests(variant, first, share):
    """1,000 over the table, through Flower's own ClientApp: one clear error, nothing moved and nothing charged."""
    setup = small(variant, clients__per_round=0)
    grid, strategy = Wire(setup), strategy_of(setup)
    strategy.begin(meet(grid, 8, 10), setup.start)
    requests = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    if not first:
        replies = list(grid.send_and_receive(requests))
        strategy.aggregate_train(1, replies)
        requests = strategy.configure_train(2, ArrayRecord(), ConfigRecord(), grid)
    request = requests[0]
    request.metadata.__dict__["_message_id"] = "1"
    context, algorithm, d = grid.context(request.metadata.dst_node_id), setup.algorithm, setup.objective.d
    before, clean = state_and_ledger(context), RecordDict(dict(context.state.items()))
    draw = np.random.default_rng(crc32(variant.encode()))
    for _ in range(500 // len(VARIANTS) // share + 1):
        content, broken = copy(draw, request.content, "fitins.parameters", "fitins.config")
        with Peak() as peak:
            reply = grid.answer(Message(content=content, metadata=request.metadata))
        assert peak.taken < 4 * ROOM  # the client's data are in there, too
        if reply.has_error():
            after, session = state_and_ledger(context), "twinflower.session"
            if "is not finite" in reply.error.reason and session not in before:
                after.pop(session, None)  # in order, but with numbers that overflow: the session has its name
            assert after == before, reply.error.reason
            assert reply.error.reason
            continue
        assert not broken
        metrics = reply.content["fitres.metrics"]
        assert metrics["round"] == content["fitins.config"]["round"]
        if "refused" not in metrics and metrics["round"] > int(not first):
            inbox = algorithm.inbox.unpack(
                [from_npy(a.data) for a in content["fitins.parameters"].values()], d
            )
            assert packed_as(content["fitins.parameters"], algorithm.inbox.pack(inbox, d))
        context.state.clear()
        context.state.update(clean)


@pytest.mark.parametrize("shape", GIANTS)
def test_a_giant_that_is_only_announced_takes_no_room(shape):
    with Peak() as peak, pytest.raises(ReplyError):
        from_npy(header(shape) + bytes(64))
    assert peak.taken < 2**17


@pytest.mark.parametrize("shape", GIANTS)
def test_a_giant_announced_to_a_client_takes_no_room(shape):
    """Flower would hand the bytes to `np.load`, which makes room for what the header says."""
    setup = small("fedpdm", clients__per_round=0)
    grid, strategy = Wire(setup), strategy_of(setup)
    strategy.begin(meet(grid, 8, 10), setup.start)
    (request, *_) = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    request.metadata.__dict__["_message_id"] = "1"
    content = RecordDict(dict(request.content.items()))
    content["fitins.parameters"] = spoil_array(
        np.random.default_rng(0), content["fitins.parameters"], lambda draw, data: header(shape) + bytes(64)
    )
    with Peak() as peak:
        reply = grid.answer(Message(content=content, metadata=request.metadata))
    assert reply.has_error()
    assert peak.taken < ROOM


@pytest.mark.parametrize("value", WORDS[3:], ids=range(len(WORDS) - 3))
@pytest.mark.parametrize("key", ["partition-id", "num-partitions"])
def test_a_node_that_tells_nonsense_of_itself_is_refused_in_one_sentence(key, value):
    request = Message(RecordDict(), 7, "get_properties")
    request.metadata.__dict__["_message_id"] = "1"
    InProcessGrid(small("fedpdm"))  # gives Flower's messages an identity
    told = ConfigRecord({"partition-id": 0, "num-partitions": 8} | {key: value})
    reply = Message(RecordDict({"getpropertiesres.properties": told}), reply_to=request)
    nodes = {}
    with pytest.raises(RunError):
        note_partition(reply, nodes, 8)
    assert nodes == {}


def test_a_long_or_forged_reason_makes_one_short_line():
    setup = small("fedpdm")
    grid, strategy = InProcessGrid(setup), strategy_of(setup)
    strategy.begin(meet(grid, 8, 10), setup.start)
    (one, *_) = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    one.metadata.__dict__["_message_id"] = "1"
    forged = "boom\nround 1: client 0 accepted\x1b[2J" + "x" * 10**6
    reply = Message(Error(3, forged), reply_to=one)
    _, rejected = sort_replies([reply], {one.metadata.dst_node_id: 0}, strategy.requests.read, 1)
    (reason,) = rejected.values()
    assert len(reason) <= 1000
    assert reason.isprintable()
