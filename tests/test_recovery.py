"""Sums that survive lost sites: what is recovered, what stays secret, and what a server or a site may try."""

import time
from collections import Counter
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from numpy.testing import assert_allclose, assert_array_equal
from problems import public, small
from test_masks import COUNT, POINT, Meeting, uniform

from twinflower.clients.records import record_of
from twinflower.clients.store import ContextLedger
from twinflower.errors import AbsentError, DataError, ReplyError, RunError, SettingError
from twinflower.rounds import Problem, Training, rounds
from twinflower.simulation.app.client_app import site_guard
from twinflower.simulation.app.site import read_site
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.forecast import forecast
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import strategy_of
from twinflower.simulation.settings import parse
from twinflower.sums.grid import add, negative, plus
from twinflower.sums.masks import KEY, signed_words
from twinflower.sums.noise import SimulatedSums, counted
from twinflower.sums.recovery import Recovery

# ------------------------------------------------------------------------------------------------------------- shares


class Round:
    """All sites of a session in a round: their masks, what they deal, and what they open for a sum."""

    def __init__(
        self, sites: int, lost: int, round_: int = 3, words: int = 1, meeting: Meeting | None = None
    ) -> None:
        self.recovery, self.round, self.words = Recovery(sites, lost), round_, words
        self.sessions = (meeting or Meeting(sites)).sessions()
        self.dealt = {
            i: self.recovery.deal(session, round_, POINT) for i, session in enumerate(self.sessions)
        }

    def masks(self, sites: Any, count: int = 60) -> np.ndarray:
        """The sum of the masks of these sites."""
        own = [self.sessions[i].mask(count, self.round, POINT, self.words, alone=True) for i in sites]
        return add(np.array(own), words=self.words)

    def opened(self, survivors: Any, sites: Any = ()) -> dict[int, bytes]:
        """What these survivors open, by default all."""
        return {
            i: self.recovery.open(self.sessions[i], self.round, POINT, survivors) for i in sites or survivors
        }

    def found(self, survivors: Any, opened: dict[int, bytes], count: int = 60) -> np.ndarray:
        """What the server finds, from shares that all fit."""
        keys, wrong = self.recovery.keys(survivors, self.dealt, opened)
        assert wrong is None
        return self.recovery.mask(survivors, keys, count, self.words)


@pytest.mark.parametrize(
    ("sites", "lost", "words"), [(3, 1, 1), (5, 2, 1), (5, 2, 3), (10, 2, 1), (10, 4, 3)]
)
def test_the_masks_of_any_survivors_are_found(sites, lost, words):
    """To the bit, from the shares of any survivors that are enough, also if more are lost before they open theirs."""
    now, draw = Round(sites, lost, words=words), np.random.default_rng(sites)
    for missing in range(lost + 1):
        survivors = sorted(draw.permutation(sites)[missing:].tolist())
        holders = draw.permutation(survivors)[: sites - lost].tolist()
        assert_array_equal(now.found(survivors, now.opened(survivors, holders)), now.masks(survivors))


def test_with_fewer_shares_what_is_dealt_fits_every_key_equally(monkeypatch):
    """Exactly, in a field of 7 elements: over all keys of a site and all shares, what it deals for a key and the shares
    of any N - t - 1 holders occur equally often with every key. With those of N - t they occur with one key only."""
    sites, lost, prime = 3, 1, 7
    monkeypatch.setattr("twinflower.sums.recovery.PRIME", prime)
    recovery = Recovery(sites, lost)
    seen = {count: Counter() for count in (sites - lost - 1, sites - lost)}  # type: ignore[var-annotated]
    for key, *shares in product(range(prime), repeat=1 + sites):
        public = hints(recovery, key, shares)
        for count, kinds in seen.items():
            for holders in combinations(range(sites), count):
                kinds[holders, public, tuple(shares[holder] for holder in holders), key] += 1
    for few, kinds in seen.items():
        views = Counter(view[:-1] for view in kinds)
        assert {*views.values()} == ({prime} if few < recovery.needed else {1})
        assert len({*kinds.values()}) == 1


class Dealer(SimpleNamespace):
    """The session of a site whose keys are all the same and have the same shares."""

    def __init__(self, key: int, shares: list[int]) -> None:
        def parts(number: int) -> list[bytes]:
            return [number.to_bytes(KEY)] * len(shares)

        super().__init__(
            identity=SimpleNamespace(number=0),
            keys=lambda round_, inbox: parts(key),
            shares=lambda dealer, holder, round_, inbox: parts(shares[holder]),
        )


def hints(recovery: Recovery, key: int, shares: list[int]) -> bytes:
    """The public values that a site deals for each of its keys."""
    dealt = recovery.deal(Dealer(key, shares), 1, POINT)  # type: ignore[arg-type]
    row = dealt[: len(dealt) // recovery.sites]
    assert dealt == row * recovery.sites
    return row[:-KEY]


def test_dealing_for_one_more_lost_site_takes_little_longer():
    """With 64 and 65 public values."""
    times = []
    for lost in (63, 64):
        begin = time.process_time()
        hints(Recovery(140, lost), 5, list(range(140)))
        times.append(time.process_time() - begin)
    assert times[1] < 5 * times[0]


def test_a_share_is_new_for_every_dealer_holder_key_and_round():
    """Nothing that is opened is part of anything else."""
    now, later = Round(4, 1), Round(4, 1, round_=4)
    seen = [
        share
        for each in (now, later)
        for dealer in range(4)
        for holder in range(4)
        for share in each.sessions[dealer].shares(dealer, holder, each.round, POINT)
    ]
    assert len({*seen}) == len(seen) == 2 * 4 * 4 * 4


def test_both_ends_derive_the_same_shares():
    """So none has to be sent to its holder, where it could be changed or replayed."""
    sessions = Round(4, 1).sessions
    for dealer, holder in combinations(range(4), 2):
        assert sessions[dealer].shares(dealer, holder, 3, POINT) == sessions[holder].shares(
            dealer, holder, 3, POINT
        )


def test_what_is_opened_uncovers_the_sum_and_nothing_else():
    """The server removes every mask that it finds from every message. Single ones stay uniform, as do the sums of all
    other sets of sites, also with those that were declared lost and arrive late. Only the sum over the survivors does
    not."""
    sites, survivors = 5, [0, 2, 3]
    now = Round(sites, 2)
    alone = np.array([s.mask(COUNT, 3, POINT, alone=True) for s in now.sessions])
    found = {i: np.zeros(COUNT, np.uint64) for i in range(sites)}
    for i in survivors:  # the mask without the pairs of survivors, as the server finds it
        keys = now.sessions[i].keys(3, POINT)
        for other in (i, 1, 4):
            words = signed_words(keys[other], i, other, COUNT)
            found[i] = plus(found[i], words)
            if other != i:
                found[other] = plus(found[other], negative(words))
    rest = np.array([plus(alone[i], negative(found[i])) for i in range(sites)])
    for subset in range(1, 2**sites):
        chosen = [i for i in range(sites) if subset >> i & 1]
        open_ = chosen == survivors
        assert uniform(add(rest[chosen])) != open_, chosen
        assert open_ == (not add(rest[chosen]).any())


def test_a_share_that_was_changed_or_is_of_another_round_is_noticed():
    """By the digest of the key: the server never takes noise for a sum."""
    meeting, survivors = Meeting(5), [0, 1, 3, 4]
    now, later = Round(5, 2, meeting=meeting), Round(5, 2, round_=4, meeting=meeting)
    good = now.opened(survivors)
    changed = bytes([good[1][0] ^ 1]) + good[1][1:]
    for bad in (good | {1: changed}, good | {1: later.opened(survivors)[1]}):
        keys, wrong = now.recovery.keys(survivors, now.dealt, bad)  # one more than is needed: it is found
        assert wrong == 1
        assert_array_equal(now.recovery.mask(survivors, keys, 60), now.masks(survivors))
        del bad[0]
        with pytest.raises(RunError, match="do not fit what site 0 dealt"):
            now.found(survivors, bad)
    for bad in (good | {1: changed, 0: later.opened(survivors)[0]}, later.opened(survivors)):
        with pytest.raises(RunError, match="do not fit what site 0 dealt"):
            now.found(survivors, bad)
    now.dealt[3] = now.dealt[3][:-1] + bytes(
        [now.dealt[3][-1] ^ 1]
    )  # the digest of the key that 3 and 4 share
    assert_array_equal(now.found(survivors, good), now.masks(survivors))  # not needed: 4 is there
    with pytest.raises(RunError, match="do not fit what site 3 dealt"):
        now.found([0, 1, 3], now.opened([0, 1, 3]))


@pytest.mark.parametrize(
    ("named", "why"),
    [
        (b"\1\1\1\0", "one byte for each site"),
        (b"\1\1\1\0\2", "one byte for each site"),
        ("11100", "one byte for each site"),
        (b"\1\1\0\0\0", "sums of at least 3 sites, itself included; the request names 2"),
        (b"\0\1\1\1\1", "itself included; the request names 4"),
    ],
)
def test_sums_that_a_site_does_not_open(named, why):
    """Too few sites, without itself, or no list of sites."""
    with pytest.raises(ReplyError, match=why):
        Recovery(5, 2).survivors(named, 0)
    assert Recovery(5, 2).survivors(Recovery(5, 2).named([0, 2, 4]), 0) == [0, 2, 4]


# -------------------------------------------------------------------------------- a server that says different things


def read(left_out: list[set[int]], honest: int, lost: int) -> tuple[set[int], bool]:
    """The honest sites whose own key a server finds that names another set to each honest site, and whether it finds
    all that covers their sum. left_out: the honest sites that each honest one was told are missing. All sites that
    collude give it their shares, so it needs honest - lost shares of honest ones."""
    needed = honest - lost

    def shares(there: int, missing: int | None = None) -> int:
        return sum(there not in out and (missing is None or missing in out) for out in left_out)

    inside = {j for j in range(honest) if shares(j) >= needed}
    pairs = {(j, k) for j in range(honest) for k in range(honest) if j != k and shares(j, k) >= needed}
    assert not any(j in inside and k in inside for j, k in pairs)  # one kind of shares only
    outside = {*range(honest)} - inside
    return inside, all((j, k) in pairs or (k, j) in pairs for j in inside for k in outside)


@pytest.mark.parametrize(("honest", "lost"), [(3, 1), (5, 2), (6, 2), (7, 2), (7, 3), (12, 3), (20, 4)])
def test_whatever_a_server_says_it_reads_one_sum_over_enough_honest_sites(honest, lost):
    """Random lies, and those that leave out as many as is possible. Their number is the one that the plan counts on."""
    draw, fewest = np.random.default_rng(honest), honest
    lies = [
        [{*draw.permutation(honest)[: draw.integers(lost + 1)]} for _ in range(honest)] for _ in range(300)
    ]
    victims = lost * honest // (honest - lost)
    lies.append([{(lost * i + j) % victims for j in range(lost)} for i in range(honest)])
    for lie in lies:
        inside, readable = read([{int(i) for i in out} for out in lie], honest, lost)
        if inside and readable:
            fewest = min(fewest, len(inside))
            assert len(inside) >= counted(honest, lost)
    assert fewest == counted(honest, lost)


def test_if_nobody_may_be_missing_the_noise_of_all_honest_sites_counts():
    assert [counted(h, 0) for h in (1, 4, 50)] == [1, 4, 50]
    assert [counted(h, t) for h, t in ((3, 1), (5, 2), (7, 2), (10, 2), (10, 4), (50, 3))] == [
        2,
        2,
        5,
        8,
        4,
        47,
    ]


# ------------------------------------------------------------------------------------------------------- runs of sites

TEN = {
    "clients.count": 10, "rounds": 4, "local.max-steps": 1, "privacy.mode": "public-state", "epsilon": 4.0,
    "trust": "sum", "honest-sites": 6, "lost-sites": 2, "masks": True, "regulariser.name": "none",
}  # fmt: skip
BEFORE, REPLY, RECOVERY, OPENED = (
    "before its message",
    "after its message",
    "in the recovery",
    "after it has opened",
)


class Dying(InProcessGrid):
    """Sites are dead from a phase of a round on, until another round. dead: site -> round, phase, round of return."""

    def __init__(self, setup: Any, dead: dict[int, tuple[int, str, int]] | None = None) -> None:
        super().__init__(setup)
        self.dead, self.opened, self.now = dead or {}, {}, 0  # type: ignore[var-annotated]

    def answer(self, message: Message) -> Message:
        site = message.metadata.dst_node_id - 1
        round_, phase, back = self.dead.get(site, (99, "", 99))
        gone = Message(Error(1, "gone"), reply_to=message)
        if message.metadata.message_type == "train":
            self.now = int(message.content["fitins.config"]["round"])  # type: ignore[index,call-overload,arg-type]
        opening = "survivors" in (message.content.get("getpropertiesins.config") or ())
        there = not round_ <= self.now < back
        first = self.now == round_
        if there or (first and phase in (RECOVERY, OPENED) and not opening):
            reply = super().answer(message)
            self._note(site, opening, reply)
            return reply
        if first and ((phase == REPLY and not opening) or (phase == OPENED and opening)):
            super().answer(message)
        return gone

    def _note(self, site: int, opening: bool, reply: Message) -> None:
        if opening:
            self.opened[self.now, site] = reply

    def charges(self, site: int) -> list[int]:
        """The rounds that a site's ledger has charged."""
        return [charge.round for charge in ContextLedger(self.context(site + 1).state).charges()]


def models(setup: Any, grid: Any, strategy: Any = None, training: Any = None) -> list[np.ndarray]:
    """The model after each round."""
    strategy, points = strategy or strategy_of(setup), []

    def note(round_: int, arrays: Any) -> None:
        points.append(setup.algorithm.model(strategy.server).copy())

    start = record_of([setup.start])
    strategy.start(grid, start, setup.config.rounds, evaluate_fn=note, training=training, ends=False)
    return points[1:]


def on_arrays(setup: Any, left_out: dict[int, set[int]]) -> list[np.ndarray]:
    """The models of the run without messages and masks, in which these sites (round -> sites) are not in the sum."""
    problem = Problem(setup.objective, setup.shards, setup.start)
    noise = SimulatedSums(setup.algorithm, setup.sums) if setup.sums else None

    def lost(round_: int, clients: np.ndarray) -> np.ndarray:
        return np.isin(clients, [*left_out.get(round_, ())])

    steps = rounds(setup.algorithm, problem, setup.schedule, setup.config.rounds, noise=noise, lost=lost)
    points = [setup.algorithm.model(at.server) for at in steps]
    assert all(np.abs(point).max() > 1e-3 for point in points)  # zeros would be the same for any sites
    return points


def test_a_sum_without_some_sites_is_the_mean_of_the_others():
    """FedAvg with clients that are missing is the same through sums, also where their weights differ."""
    keys = {"honest_sites": 8, "noise_multiplier": 1e-5, "epsilon": 0.0, "lost_sites": 2}
    setup, out = small("fedavg-sum-rows", **keys), {1: {2}, 3: {5, 6}}
    plain = public("fedavg-sum-rows")
    assert np.ptp(plain.partition.sizes) > 0
    found, known = on_arrays(setup, out), on_arrays(plain, out)
    assert_allclose(found, known, rtol=0, atol=1e-4)
    assert np.abs(np.subtract(known, on_arrays(plain, {}))).max() > 1e-2


def test_on_arrays_as_many_sites_may_be_missing():
    """And the sentence for more of them says how many."""
    setup = prepare(parse(TEN))
    with pytest.raises(
        RunError, match="round 2: fedpdm with trust sum needs all but 2 clients, .* of 3 are lost"
    ):
        on_arrays(setup, {1: {3, 5}, 2: {3, 5, 8}})


@pytest.mark.parametrize("phase", [BEFORE, REPLY, RECOVERY, OPENED])
def test_two_of_ten_are_killed_in_every_phase_and_come_back(phase):
    """The sum of the others has the bits of a run on arrays without masks; each site has charged what it computed, and
    once; those that are back are in the sums again."""
    setup = prepare(parse(TEN))
    grid = Dying(setup, {3: (2, phase, 4), 8: (3, phase, 4)})
    points = models(setup, grid)
    replied = phase in (
        RECOVERY,
        OPENED,
    )  # then the message is in the sum of the round in which the site is killed
    out = {2: {3}, 3: {3, 8}} if not replied else {2: set(), 3: {3}}
    assert_array_equal(points, on_arrays(setup, out))
    assert grid.charges(0) == [1, 2, 3, 4]
    assert grid.charges(3) == ([1, 4] if phase == BEFORE else [1, 2, 4])
    assert grid.charges(8) == ([1, 2, 4] if phase == BEFORE else [1, 2, 3, 4])


def test_a_killed_site_is_back_in_the_next_round_under_a_new_id():
    """Before Flower has noticed that its old node is gone, which takes a minute."""

    class Restarted(Dying):
        def get_node_ids(self) -> list[int]:
            return [*range(1, 11), *([54] if self.now >= 2 else [])]

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            replies = super().send_and_receive(messages, timeout=timeout)
            return [reply for reply in replies if not reply.has_error()]

        def answer(self, message: Message) -> Message:
            if message.metadata.dst_node_id != 54:
                return super().answer(message)
            reply = InProcessGrid.answer(self, Message(message.content, 4, message.metadata.message_type))
            reply.metadata.__dict__["_src_node_id"] = 54
            return reply

    setup, training = prepare(parse(TEN)), Training()
    points = models(setup, Restarted(setup, {3: (2, BEFORE, 99)}), training=training)
    assert [set(done.rejected) for done in training.rounds] == [set(), {3}, set(), set()]
    assert_array_equal(points, on_arrays(setup, {2: {3}}))


def test_without_masks_the_sums_are_the_same():
    """A simulation without masks has no second exchange, and the same bits."""
    dead = {3: (2, BEFORE, 4), 8: (3, REPLY, 4)}
    masked = models(prepare(parse(TEN)), Dying(prepare(parse(TEN)), dead))
    setup = prepare(parse(TEN, {"masks": False}))
    grid = Dying(setup, dead)
    assert_array_equal(models(setup, grid), masked)
    assert not grid.opened


def test_a_third_lost_site_stops_the_run_and_nothing_is_opened():
    """As today, in one sentence; the run goes on when it is back, and each site is charged once."""
    setup = prepare(parse(TEN))
    grid = Dying(setup, {3: (2, BEFORE, 99), 5: (2, REPLY, 99), 8: (2, REPLY, 99)})
    training = Training()
    with pytest.raises(
        AbsentError, match="round 2: fedpdm with trust sum needs all but 2 clients, and 3 did not"
    ) as no:
        models(setup, grid, training=training)
    assert "\n" not in str(no.value)
    assert not any(round_ == 2 for round_, _ in grid.opened)
    training.rounds.pop()
    grid.dead = {}
    assert_array_equal(models(setup, grid, training=training), on_arrays(setup, {})[1:])
    assert grid.charges(5) == [1, 2, 3, 4]


def test_a_run_that_goes_on_reads_the_sum_that_was_opened_before(caplog):
    """Sites 3 and 5 were missing when the others opened their shares for round 2, and then more were lost: the run
    stopped. When all are back, their messages are there, and the sum is still the one without them. The log says so."""
    setup = prepare(parse(TEN))
    dead = {3: (2, REPLY, 99), 5: (2, BEFORE, 99), 8: (2, OPENED, 99), 9: (2, RECOVERY, 99)}
    grid, training = Dying(setup, dead), Training()
    with pytest.raises(
        AbsentError, match="round 2: 8 sites must open their shares, and only 6 did: the run stops"
    ):
        models(setup, grid, training=training)
    training.rounds.pop()
    grid.dead = {}
    assert_array_equal(models(setup, grid, training=training), on_arrays(setup, {2: {3, 5}})[1:])
    assert training.rounds[1].rejected[3] == "others opened their shares of the round for a sum without it"
    lines = [line for line in caplog.messages if line.startswith("round 2: client 3 left out: others opened")]
    assert len(lines) == 1
    assert grid.charges(3) == grid.charges(8) == [1, 2, 3, 4]


def test_a_run_goes_on_only_with_all_sites_of_the_sum_that_was_opened():
    """Seven sites have opened their shares for a sum over all ten. If one of these is away afterwards, the others are
    asked for no other sum, which would leave none to read: when it is back, the run goes on."""
    setup = prepare(parse(TEN))
    grid, training = Dying(setup, dict.fromkeys((3, 5, 8), (2, RECOVERY, 99))), Training()
    with pytest.raises(AbsentError, match="8 sites must open their shares, and only 7 did"):
        models(setup, grid, training=training)
    training.rounds.pop()
    grid.now, grid.dead = 0, {0: (2, BEFORE, 99)}
    with pytest.raises(AbsentError, match="opened their shares for a sum with client 0, which is missing"):
        models(setup, grid, training=training)
    grid.now, grid.dead = 0, {}
    assert_array_equal(models(setup, grid, training=training), on_arrays(setup, {})[1:])
    assert grid.charges(0) == grid.charges(5) == [1, 2, 3, 4]


def test_messages_with_masks_of_other_keys_are_in_no_sum():
    """A site loses its key between its message and the opening: the sum of the round would be noise."""
    setup = prepare(parse(TEN))
    grid, training = Dying(setup, dict.fromkeys(range(10), (2, RECOVERY, 99))), Training()
    with pytest.raises(AbsentError, match="8 sites must open their shares, and only 0 did"):
        models(setup, grid, training=training)
    training.rounds.pop()
    grid.now, grid.dead, state = 0, {}, grid.context(4).state
    for key in [key for key in state if key != "twinflower.ledger"]:
        del state[key]
    with pytest.raises(AbsentError, match="has masks of other keys: a site has lost its key; start anew"):
        models(setup, grid, training=training)


class Altered(Dying):
    """Every reply to a round of these sites (site -> change) has other metrics."""

    def __init__(self, setup: Any, changes: dict[int, Any], *more: Any) -> None:
        super().__init__(setup, *more)
        self.changes, self.asked = changes, 0

    def answer(self, message: Message) -> Message:
        reply, change = super().answer(message), self.changes.get(message.metadata.dst_node_id - 1)
        if message.metadata.message_type != "train" or not change or reply.has_error():
            return reply
        self.asked += 1
        content = RecordDict(dict(reply.content.items()))
        change(content["fitres.metrics"])
        return Message(content=content, metadata=reply.metadata)


def cut(metrics: Any) -> None:
    """The shares that are dealt are a byte too short."""
    metrics["dealt"] = metrics["dealt"][:-1]


def test_a_reply_without_what_it_must_deal_is_left_out(caplog):
    """As if it had not come, and the log says so. If too many are left out, they have been asked again."""
    setup = prepare(parse(TEN))
    assert_array_equal(
        models(setup, Altered(setup, {3: cut})), on_arrays(setup, {t: {3} for t in range(1, 5)})
    )
    assert "round 1: client 3 left out: it dealt no shares" in caplog.messages
    grid = Altered(setup, dict.fromkeys((3, 5, 8), cut))
    with pytest.raises(AbsentError, match=r"3 more requests: the run stops \(client 3: it dealt no shares\)"):
        models(setup, grid)
    assert grid.asked == 4 * 3


def test_a_site_that_opens_wrong_shares_is_named_and_the_sum_is_read(caplog):
    """As long as others can take its place; also with two sites lost there is nobody, and the run stops."""

    class Wrong(Dying):
        def answer(self, message: Message) -> Message:
            reply = super().answer(message)
            if message.metadata.dst_node_id == 6 and "survivors" in (
                message.content.get("getpropertiesins.config") or ()
            ):
                reply.content["getpropertiesres.properties"]["opened"] = bytes(
                    len(reply.content["getpropertiesres.properties"]["opened"])  # type: ignore[arg-type,index,call-overload]
                )
            return reply

    setup = prepare(parse(TEN))
    assert_array_equal(models(setup, Wrong(setup)), on_arrays(setup, {}))
    assert "round 4: the shares of client 5 do not fit; those of the others do" in caplog.messages
    with pytest.raises(RunError, match="do not fit what site 0 dealt"):
        models(setup, Wrong(setup, dict.fromkeys((3, 8), (2, BEFORE, 99))))


def claims(*out: int) -> Any:
    """Says that a sum without these sites was opened before."""

    def change(metrics: Any) -> None:
        metrics["survivors"] = Recovery(10, 2).named([site for site in range(10) if site not in out]).hex()

    return change


@pytest.mark.parametrize(
    ("changes", "dead"),
    [
        ({1: claims(3)}, {}),
        ({1: claims(3, 5), 2: claims(3, 5)}, {}),
        ({1: claims(3)}, {6: (1, BEFORE, 99)}),
        ({1: claims(3, 4, 5)}, {}),
        ({1: claims(1)}, {}),
        ({1: lambda metrics: metrics.update(survivors="no hexadecimal number")}, {}),
        ({1: lambda metrics: metrics.update(survivors=7)}, {}),
        ({1: lambda metrics: metrics.update(survivors="01" * 1000)}, {}),
        (dict.fromkeys(range(5), claims(3, 4, 5)), {}),
    ],
)
def test_sites_cannot_keep_others_out_by_claiming_that_a_sum_was_opened(changes, dead):
    """As many as could be lost, besides those that are; and any number with claims that cannot be true."""
    setup = prepare(parse(TEN))
    gone = {t: {*dead} for t in range(1, 5)}
    assert_array_equal(models(setup, Altered(setup, changes, dead)), on_arrays(setup, gone))


# ------------------------------------------------------------------------------------------------ what a server may try


class Attacked:
    """Five sites with their states on disk, which have made their key messages, and a server that may ask anything."""

    def __init__(self, folder: Any) -> None:
        self.setup, self.folder = prepare(parse(TEN, {"clients.count": 5, "honest-sites": 5})), folder
        self.session, self.recovery = "s", Recovery(5, 2)
        announced = [
            self.client(number).get_properties({"session": "s"})["announcement"] for number in range(5)
        ]
        self.roster = b"".join(announced)
        self.point = self.setup.algorithm.inbox.pack(
            self.setup.algorithm.broadcast(
                self.setup.algorithm.init_server(self.setup.start, 5, np.zeros((), np.uint64)),
                1,
                np.zeros((), int),
            ),
            self.setup.objective.d,
        )

    def client(self, number: int = 0) -> Any:
        """The site as it is after a restart."""
        context = Context(1, number + 1, {}, RecordDict(), {})
        return client_of(self.setup, number, context, state_dir=str(self.folder / str(number)))

    def fit(self, client: Any, round_: int) -> Any:
        return client.fit(self.point, self.config(round_))

    def config(self, round_: int, **more: Any) -> dict[str, Any]:
        return {"round": round_, "session": self.session, "settled": 0, "roster": self.roster, **more}

    def ask(self, client: Any, round_: int, survivors: Any, **more: Any) -> Any:
        """What the site opens for these survivors."""
        named = survivors if isinstance(survivors, bytes) else self.recovery.named(survivors)
        return client.get_properties(self.config(round_, survivors=named, **more))["opened"]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: Any) -> Attacked:
    return Attacked(tmp_path_factory.mktemp("sites"))


def test_a_site_opens_one_kind_of_shares_in_a_round(tmp_path):
    """Asked for the mask of a site and for the shares of that site, it gives what it gave first, and again to the same
    question; another question is refused, also after a restart. So is a round before one that was opened."""
    server = Attacked(tmp_path)
    site = server.client()
    server.fit(site, 1)
    first = server.ask(site, 1, [0, 1, 2])
    assert server.ask(server.client(), 1, [0, 1, 2]) == first
    for survivors in ([0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 3]):
        for each in (site, server.client()):
            with pytest.raises(
                ReplyError, match="round 1 was opened for a sum over other sites, and only one is read"
            ):
                server.ask(each, 1, survivors)
    server.fit(site, 2)
    assert (
        server.ask(site, 2, [0, 1, 3, 4], settled=1) != first
    )  # the shares of round 2; those of 1 may be forgotten
    assert list((tmp_path / "0").glob("*/*/1.round")) and not list((tmp_path / "0").glob("*/*/1.opened"))
    with pytest.raises(ReplyError, match="round 1 is to be opened after a later one"):
        server.ask(server.client(), 1, [0, 1, 2, 3])


def test_a_site_that_has_sent_nothing_opens_nothing(attacked):
    """It comes late, or the server asks for a round to come, for no sites, or in another session's name."""
    site = attacked.client(1)
    with pytest.raises(ReplyError, match="sent no message for the sum of round 1"):
        attacked.ask(site, 1, [0, 1, 2])
    attacked.fit(site, 1)
    with pytest.raises(ReplyError, match="sent no message for the sum of round 2"):
        attacked.ask(site, 2, [0, 1, 2])
    with pytest.raises(ReplyError, match="must name the sites of the sum"):
        attacked.ask(site, 1, b"")
    with pytest.raises(ReplyError, match="belongs to another session"):
        attacked.ask(site, 1, [0, 1, 2], session="t")
    with pytest.raises(ReplyError, match="has 4 entries"):
        attacked.ask(site, 1, [0, 1, 2], roster=attacked.roster[: 4 * 164])
    assert not list((attacked.folder / "1").glob("*/*/*.opened"))  # none of these was decided


def test_the_decision_is_on_disk_before_anything_is_opened(attacked, monkeypatch):
    """A site that cannot store it opens nothing."""
    site = attacked.client(2)
    attacked.fit(site, 1)

    def broken(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("twinflower.clients.store.write_whole", broken)
    with pytest.raises(Exception, match="opened 1 cannot be stored: No space left"):
        attacked.ask(site, 1, [0, 1, 2])
    monkeypatch.undo()
    assert attacked.ask(attacked.client(2), 1, [0, 2, 3])  # nothing was opened before


def test_two_processes_of_a_site_decide_one_after_the_other(attacked, monkeypatch):
    """While one decides which sum it opens, another one waits, and gives up in a sentence."""
    site, other = attacked.client(4), attacked.client(4)
    attacked.fit(site, 1)
    monkeypatch.setattr("twinflower.clients.store._PATIENCE", 0.1)
    with site.store.locked("s"), pytest.raises(DataError, match="the session's key cannot be locked"):
        attacked.ask(other, 1, [0, 1, 4])
    attacked.ask(site, 1, [2, 3, 4])
    with pytest.raises(ReplyError, match="was opened for a sum over other sites"):
        attacked.ask(other, 1, [0, 1, 4])


def test_a_point_that_only_one_site_got_opens_no_mask(attacked):
    """Shares depend on it, as masks do."""
    session = attacked.client(3).masks.join("s", attacked.roster)
    assert not {*session.shares(3, 4, 1, POINT)} & {*session.shares(3, 4, 1, bytes(32))}


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (
            {"lost-sites": 3},
            "privacy.lost-sites must be below half of privacy.honest-sites, 6, .* got 3: lower it",
        ),
        (
            {"trust": "local", "honest-sites": 0, "masks": False},
            "privacy.lost-sites .* belong to privacy.trust = sum",
        ),
        (
            {"algorithm": "newton", "privacy.mode": "gradient", "objective.name": "softmax"},
            "newton plans its steps and intervals for the noise of all clients in every round: set privacy.lost-sites",
        ),
    ],
)
def test_settings_are_refused_in_a_sentence(keys, why):
    with pytest.raises(SettingError, match=why) as refusal:
        prepare(parse(TEN, keys))
    assert "\n" not in str(refusal.value)


def test_a_site_needs_a_disk_to_remember_what_it_opened(tmp_path):
    """A node that has only Flower's context could be asked twice at the same time, or after a restart."""
    setup = prepare(parse(TEN))
    node = {"partition-id": 0, "num-partitions": 10, "lifetime-epsilon": 9.0, "max-honest": 6}
    node |= {"identity-key": "k", "peers-file": "p"}
    with pytest.raises(
        SettingError, match="a run with privacy.lost-sites needs state-dir in every site's node config"
    ):
        site_guard(setup, read_site(node), "r")
    assert site_guard(setup, read_site(node | {"state-dir": str(tmp_path)}), "r")


def test_the_noise_is_planned_for_the_sites_that_count():
    """With up to 2 of 6 honest ones missing, and the lies of a server, that of 3: as if 3 were honest and none missing.
    The guarantee against everybody else is better for it."""
    lost = prepare(parse(TEN, {"honest-sites": 5})).plan
    none = prepare(parse(TEN, {"honest-sites": 2, "lost-sites": 0})).plan
    assert lost.sums.counted == none.sums.counted == 2
    assert_array_equal(lost.sums.sigmas, none.sums.sigmas)
    assert_array_equal([lost.mu, lost.mu_alone], [none.mu, none.mu_alone])
    assert lost.attacker == "the server together with up to 5 other clients"
    rows = dict(forecast(prepare(parse(TEN, {"honest-sites": 5}))))
    assert rows["trust"].endswith(
        "at least 5 of them honest, up to 2 missing in a round, so the noise of 2 counts"
    )
