"""Runs whose server sees sums only, on Flower's messages: what it gets, what it may try, and what happens to lost
replies."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from grids import Wire
from numpy.testing import assert_array_equal
from problems import random_shards
from scipy import stats

from twinflower.algorithms import FedPDM
from twinflower.algorithms.algorithm import RunInfo
from twinflower.clients import ContextLedger, SumClient
from twinflower.clients.records import record_of
from twinflower.clients.store import ContextStore, FileStore
from twinflower.clients.sums import Masks
from twinflower.errors import AbsentError, DataError, RunError, SettingError
from twinflower.privacy import Budget, gdp_epsilon, gdp_mu
from twinflower.privacy.charges import BudgetSpent, Charge
from twinflower.privacy.ledger import read_ledger
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1
from twinflower.rounds import Problem, Training, rounds
from twinflower.simulation.app.client_app import site_guard
from twinflower.simulation.app.site import read_site
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.runs.forecast import forecast
from twinflower.simulation.runs.identity import make_key, read_identity
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.strategies import SumStrategy
from twinflower.sums.discrete import seeded_words
from twinflower.sums.grid import add
from twinflower.sums.masks import simulated
from twinflower.sums.noise import SimulatedSums, Sums
from twinflower.sums.plan import SumGuard
from twinflower.sums.summed import Summed
from twinflower.wire import from_npy

SITES, ROWS, ROUNDS, FEATURES = 4, 30, 5, 60
ERROR = 1e-9


class Study:
    """Four sites that run FedPDM through sums, with seeded noise; as much of a run's setup as its grid needs."""

    def __init__(self, masks: bool = True, honest: int = 3, features: int = FEATURES) -> None:
        self.config = SimpleNamespace(num_clients=SITES, clients=SimpleNamespace(count=SITES))
        self.masks, self.schedule = masks, LocalSchedule(0, 1)
        shards = random_shards([ROWS] * SITES, features=features, classes=2)
        objective = make_objective("logistic", num_features=features, num_classes=2)
        self.problem = Problem(objective, shards, np.zeros(objective.d))
        self.bounds = objective.bounds(20.0)
        algorithm = FedPDM(
            L1(0.01), rho=0.5, step_size=0.5, privacy="public-state", info=RunInfo(SITES, ROUNDS)
        )
        sizes = [ROWS] * SITES
        self.plan = Sums.of(
            algorithm, self.bounds, self.schedule, sizes, ROUNDS, objective.d, honest, mu=gdp_mu(4.0, 1e-4)
        )
        self.algorithm = Summed(algorithm, (1,), self.plan.widths)
        self.identities = simulated(SITES, seed=0)

    def client(self, number: int, context: Any) -> SumClient:
        """The client of a site."""

        def words(round_: int) -> Any:
            return seeded_words(0, number, round_)

        guard = SumGuard(
            self.bounds, self.plan.noise_multiplier, Budget(float(self.plan.mu[number]) ** 2),
            ContextLedger(context.state), None, run="r", sums=self.plan, number=number, words=words,
        )  # fmt: skip
        masks = (
            Masks(self.identities[number], ContextStore(context.state), "settings") if self.masks else None
        )
        return SumClient(
            context, self.algorithm, self.problem.objective, self.problem.shards.rows(number), self.problem.start,
            number, SITES, self.schedule, 0, guard, masks=masks,
        )  # fmt: skip

    def strategy(self, **keys: Any) -> SumStrategy:
        """The server."""
        return SumStrategy(self.algorithm, SITES, retries=2, masks=self.masks, node_timeout=5.0, **keys)

    def run(
        self,
        grid: "Ward | None" = None,
        number: int = ROUNDS,
        strategy: SumStrategy | None = None,
        training: Training | None = None,
    ) -> Any:
        """The model after each round."""
        strategy = strategy or self.strategy()
        points: list[np.ndarray] = []

        def note(round_: int, arrays: ArrayRecord) -> None:
            points.append(self.algorithm.model(strategy.server).copy())

        start = record_of([self.problem.start])
        strategy.start(grid or Ward(self), start, number, evaluate_fn=note, training=training)
        return points


class Ward(InProcessGrid):
    """A grid that writes down what the server receives, and passes on what a test makes of its requests and of
    replies."""

    def __init__(self, study: Study) -> None:
        super().__init__(study)  # type: ignore[arg-type]
        self.received: dict[tuple[int, int], np.ndarray] = {}
        self.told: list[str] = []

    def new_client(self, node: int, context: Any) -> Any:
        """The study's."""
        return self.setup.client(node - 1, context)  # type: ignore[attr-defined]

    def request(self, message: Message, site: int, round_: int) -> Message:
        """What the site gets instead."""
        return message

    def lost(self, site: int, round_: int) -> bool:
        """Whether the reply does not arrive."""
        return False

    def answer(self, message: Message) -> Message:
        site = message.metadata.dst_node_id - 1
        if message.metadata.message_type != "train":
            return super().answer(message)
        round_ = int(message.content["fitins.config"]["round"])  # type: ignore[index,arg-type,call-overload]
        reply = super().answer(self.request(message, site, round_))
        if reply.has_error():
            self.told.append(reply.error.reason)
            return reply
        (array,) = reply.content["fitres.parameters"].values()
        cells = from_npy(array.data)
        if (site, round_) in self.received:
            assert_array_equal(self.received[site, round_], cells)  # never other bytes for the same round
        self.received[site, round_] = cells
        return Message(Error(1, "lost on the way"), reply_to=message) if self.lost(site, round_) else reply


class WiredWard(Ward, Wire):
    """The same over the wire."""


def uniform(words: np.ndarray) -> bool:
    """Whether the bytes of 64-bit words pass a chi-square test at each of their 8 places."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8)
    tests = (stats.chisquare(np.bincount(octets[:, place], minlength=256)) for place in range(8))
    return all(ERROR < test.pvalue < 1 - ERROR for test in tests)


# --- what the server gets ---


@pytest.mark.parametrize("kind", [Ward, WiredWard])
def test_masked_and_unmasked_runs_are_the_same_to_the_bit(kind):
    """Over the messages, with masks and without, and on arrays: the same sums and the same models."""
    study = Study()
    plain = Study(masks=False)
    masked, bare = kind(study), kind(plain)
    points = study.run(masked)
    assert_array_equal(points, plain.run(bare))
    noise = SimulatedSums(study.algorithm, study.plan)
    outcomes = rounds(study.algorithm, study.problem, study.schedule, ROUNDS, noise=noise)
    assert_array_equal(points[1:], [study.algorithm.model(at.server) for at in outcomes])
    for round_ in range(1, ROUNDS + 1):
        sums = [add(np.array([grid.received[i, round_] for i in range(SITES)])) for grid in (masked, bare)]
        assert_array_equal(*sums)
        assert not np.array_equal(masked.received[0, round_], bare.received[0, round_])


def test_all_that_the_server_receives_are_uniform_words_and_their_sums():
    """Each site's words, and the sums of every strict subset, in all rounds together; only the sum of all is not."""
    study = Study(features=2000)
    grid = Ward(study)
    study.run(grid)
    assert set(grid.received) == {(i, t) for i in range(SITES) for t in range(1, ROUNDS + 1)}
    words = np.array([[grid.received[i, t] for t in range(1, ROUNDS + 1)] for i in range(SITES)])
    for subset in range(1, 2**SITES - 1):
        chosen = [site for site in range(SITES) if subset >> site & 1]
        assert uniform(add(words[chosen], axis=0).ravel()), f"the words of {chosen} add up to something"
    assert not uniform(add(words, axis=0).ravel())


def test_replies_say_nothing_else():
    """Metrics hold the round, the session, when the state began, and a digest of what the server sent."""
    replies = []

    class Listening(Ward):
        def answer(self, message: Message) -> Message:
            replies.append(super().answer(message))
            return replies[-1]

    study = Study()
    study.run(Listening(study), 1)
    metrics = [r.content["fitres.metrics"] for r in replies if r.metadata.message_type == "train"]
    assert len(metrics) == SITES
    assert {frozenset(told) for told in metrics} == {frozenset({"round", "session", "born", "inbox"})}
    assert len({tuple(told.values()) for told in metrics}) == 1  # the same from every site


# --- what the server may try ---


def config_with(message: Message, **keys: Any) -> Message:
    """The request with other words in its config."""
    content = RecordDict(dict(message.content.items()))
    content["fitins.config"] = ConfigRecord({**content["fitins.config"], **keys})
    return Message(content=content, metadata=message.metadata)


def moved(message: Message) -> Message:
    """The request with another point."""
    content = RecordDict(dict(message.content.items()))
    arrays = ArrayRecord()
    for name, array in content["fitins.parameters"].items():
        point = from_npy(array.data).copy()
        point.flat[0] += 1e-12
        arrays[name] = Array(point)
    content["fitins.parameters"] = arrays
    return Message(content=content, metadata=message.metadata)


def test_another_point_for_one_site_leaves_uniform_noise():
    """The site cannot know; the masks do."""

    class Split(Ward):
        def request(self, message: Message, site: int, round_: int) -> Message:
            return moved(message) if site == 2 else message

    study = Study(features=2000)
    grid = Split(study)
    study.run(grid, 1)
    assert uniform(add(np.array([grid.received[i, 1] for i in range(SITES)])))


def test_another_round_for_one_site_leaves_uniform_noise():
    """Site 2 is asked for round 2 while the others are in round 1; its reply is taken as round 1's by a server that
    lies."""
    study = Study(features=2000)

    class Ahead(Ward):
        def request(self, message: Message, site: int, round_: int) -> Message:
            return config_with(message, round=2) if site == 2 else message

    grid = Ahead(study)
    with pytest.raises(RunError, match="the reply belongs to round 2, not 1"):
        study.run(grid, 1)
    assert uniform(add(np.array([grid.received[i, 1] for i in range(SITES)])))


def test_the_same_round_with_another_point_is_refused():
    """In one sentence; the first answer stands."""

    class Twice(Ward):
        def request(self, message: Message, site: int, round_: int) -> Message:
            if site == 1:
                InProcessGrid.answer(self, message)
                return moved(message)
            return message

    study = Study()
    grid = Twice(study)
    with pytest.raises(RunError, match="asked again, and with another point"):
        study.run(grid, 1)


def test_a_repeated_request_gets_the_same_bytes():
    """Ward compares them; and the ledger is charged once."""

    class Again(Ward):
        def answer(self, message: Message) -> Message:
            super().answer(message)
            return super().answer(message)

    study = Study()
    grid = Again(study)
    assert_array_equal(study.run(grid), study.run())
    assert len(ContextLedger(grid.context(1).state).charges()) == ROUNDS


def roster_attacks() -> dict[str, tuple[Any, str]]:
    """What a server may do to the list of key messages of (study, roster), and what sites say."""
    size = 164

    def parts(roster: bytes) -> list[bytes]:
        return [roster[i : i + size] for i in range(0, len(roster), size)]

    def signed_by(study: Study, seed: int) -> bytes:
        session = study.session
        return simulated(SITES, seed)[3].announce(session, "settings", X25519PrivateKey.generate())

    def old(study: Study) -> bytes:
        return study.identities[3].announce("yesterday", "settings", X25519PrivateKey.generate())

    return {
        "a shortened list": (lambda s, r: r[:-size], "peers file has 4"),
        "a reordered list": (lambda s, r: b"".join([parts(r)[i] for i in (1, 0, 2, 3)]), "place 0"),
        "a longer list": (lambda s, r: r + r[-size:], "peers file has 4"),
        "a stranger's key": (lambda s, r: r[:-size] + signed_by(s, 1), "is not signed by the key"),
        "a replayed key message": (lambda s, r: r[:-size] + old(s), "belongs to another session"),
        "the wrong signature": (lambda s, r: r[:-1] + bytes([r[-1] ^ 1]), "is not signed by the key"),
        "no list": (lambda s, r: "", "must carry the key messages"),
    }


@pytest.mark.parametrize("attack", roster_attacks())
@pytest.mark.parametrize("victims", [(0,), (0, 1, 2, 3)])
def test_a_list_that_was_tampered_with_is_refused(attack, victims):
    """By each site that gets it, in one sentence, before anything is charged or computed: there is no sum."""
    change, told = roster_attacks()[attack]

    class Forged(Ward):
        def request(self, message: Message, site: int, round_: int) -> Message:
            config = message.content["fitins.config"]
            study.session = config["session"]
            return (
                config_with(message, roster=change(study, config["roster"])) if site in victims else message
            )

    study = Study()
    grid = Forged(study)
    with pytest.raises(RunError, match=told):
        study.run(grid, 1)
    assert not {site for site, _ in grid.received} & {*victims}
    assert all("\n" not in sentence for sentence in grid.told)
    for victim in victims:
        assert ContextLedger(grid.context(victim + 1).state).charges() == []


def test_a_second_session_is_refused():
    """A server cannot have a second budget, or other masks, by another name."""

    class Renamed(Ward):
        def request(self, message: Message, site: int, round_: int) -> Message:
            return config_with(message, session="other") if round_ == 2 and site == 0 else message

    study = Study()
    with pytest.raises(RunError, match="another session"):
        study.run(Renamed(study))


# --- faults ---


def test_lost_replies_are_asked_for_again_and_change_nothing():
    """Each of two sites loses a reply; the same bytes come, and the run is the same to the bit."""

    class Losing(Ward):
        def lost(self, site: int, round_: int) -> bool:
            gone = (site, round_) in left
            left.discard((site, round_))
            return gone

    left = {(1, 2), (3, 2), (0, 4)}
    study = Study()
    assert_array_equal(study.run(Losing(study)), study.run())
    assert not left


def test_a_site_that_stays_away_stops_the_run_which_can_be_resumed():
    """One sentence, no sum, and no other noise or mask when it is back: the rest is the same to the bit."""

    class Away(Ward):
        away = True

        def lost(self, site: int, round_: int) -> bool:
            return self.away and site == 2 and round_ == 3

    study = Study()
    grid, strategy = Away(study), study.strategy()
    with pytest.raises(RunError, match="needs all clients") as stopped:
        study.run(grid, strategy=strategy)
    assert "\n" not in str(stopped.value)
    grid.away = False
    training = replace(strategy.training, rounds=strategy.rounds[:2])
    whole = study.run()
    assert_array_equal(study.run(grid, training=training)[-1], whole[-1])


class Killed(Ward):
    """Site 2 loses its reply of round 3, and its node disappears; it is back as node 54, with its state."""

    away = math.inf  # looks at the nodes until it is back

    def get_node_ids(self) -> list[int]:
        if (2, 3) not in self.received:
            return [1, 2, 3, 4]
        self.away -= 1
        return [1, 2, 4] if self.away > 0 else [1, 2, 4, 54]

    def lost(self, site: int, round_: int) -> bool:
        return (site, round_) == (2, 3) and self.away > 0

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        return [
            reply for reply in super().send_and_receive(messages, timeout=timeout) if not reply.has_error()
        ]

    def answer(self, message: Message) -> Message:
        if message.metadata.dst_node_id != 54:
            return super().answer(message)
        reply = super().answer(Message(message.content, 3, message.metadata.message_type))
        reply.metadata.__dict__["_src_node_id"] = 54
        return reply


def test_a_node_that_is_killed_in_a_round_is_asked_again_when_it_is_back():
    """Under its new id; it sends the same bytes (Ward compares them), and the run ends at the same bits."""
    study = Study()
    grid = Killed(study)
    grid.away = 3
    assert_array_equal(study.run(grid), study.run())
    assert grid.away < 0


def test_a_node_that_is_killed_and_stays_away_stops_the_run():
    """After the time that nodes are waited for, in one sentence."""
    study = Study()
    strategy = study.strategy()
    strategy.node_timeout = 0.3
    with pytest.raises(
        RunError,
        match=r"round 3: \S+ with trust sum needs all clients, and 1 did not answer .* \(client 2: no reply\)",
    ) as stopped:
        study.run(Killed(study), strategy=strategy)
    assert "\n" not in str(stopped.value)


def test_a_site_without_its_key_message_stops_the_run():
    """Before the first round."""

    class Silent(Ward):
        def answer(self, message: Message) -> Message:
            asked = message.content.get("getpropertiesins.config")
            if message.metadata.dst_node_id == 2 and asked and "session" in asked:
                return Message(Error(1, "no"), reply_to=message)
            return super().answer(message)

    study = Study()
    grid = Silent(study)
    with pytest.raises(RunError, match="1 of 4 sites sent no key message"):
        study.run(grid)
    assert not grid.received


def test_settings_that_look_at_single_messages_are_refused():
    """Sampling and a limit on messages."""
    with pytest.raises(SettingError, match="all clients in every round"):
        Study().strategy(clients_per_round=2)
    with pytest.raises(SettingError, match="a single message"):
        Study().strategy(max_norm=3.0)


def test_keys_on_the_disk_are_their_owners_and_outlive_the_process(tmp_path):
    """The same key message after a restart; only the owner may read it."""
    identity = simulated(2, 0)[0]
    told = [Masks(identity, FileStore(tmp_path, "me"), "x").announce("s") for _ in range(2)]
    assert told[0] == told[1]
    (path,) = tmp_path.glob("*/session.key")
    assert path.stat().st_mode & 0o777 == 0o600


def test_both_costs_are_charged():
    """Against the server and one other site, and against everybody: three times as much, with three honest sites."""
    study = Study(honest=3)
    grid = Ward(study)
    study.run(grid)
    charges = ContextLedger(grid.context(1).state).charges()
    assert sum(c.cost for c in charges) == pytest.approx(float(study.plan.mu[0]) ** 2, rel=1e-12)
    assert sum(c.cost_alone for c in charges) == pytest.approx(3 * float(study.plan.mu[0]) ** 2, rel=1e-6)


# --- settings ---

SUMS = {
    "clients.count": 8,
    "rounds": 4,
    "local.max-steps": 1,
    "privacy.mode": "public-state",
    "epsilon": 4.0,
    "trust": "sum",
    "honest-sites": 4,
    "regulariser.name": "none",
}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"clients.per-round": 3}, "needs all clients in every round"),
        ({"local.max-steps": 3}, "needs one local step a round where clients keep a dual"),
        ({"local.batch-size": 10, "local.max-steps": 0}, "needs one local step"),
        ({"uplink-ratio": 0.5, "algorithm": "bsdp-fedpdm"}, "needs uplink-ratio 1"),
        ({"local-start": "warm"}, "needs local-start server"),
        ({"algorithm": "proxskip"}, "is not for proxskip"),
        ({"algorithm": "ldp-primal-dual", "step-size": 0.5, "allocation": "static"}, "needs step-size 1"),
        ({"algorithm": "zcdp-nfl", "objective.clip-norm": 1.0}, "is not for zcdp-nfl"),
        (
            {"honest-sites": 0},
            r"privacy.trust = sum needs privacy.honest-sites, .*\(1 to \d+\), such as \d+$",
        ),
        ({"honest-sites": 9}, "honest-sites must be from 1 to the number of clients, 8"),
        ({"trust": "local"}, "belong to privacy.trust = sum"),
        ({"conversion": "zcdp"}, "set privacy.conversion to exact"),
        ({"server.max-norm": 3.0}, "set server.max-norm to 0"),
        ({"noise-multiplier": 1e-9, "epsilon": 0.0}, "noise-multiplier"),
    ],
)
def test_settings_that_sums_do_not_go_with_are_refused_in_a_sentence(keys, why):
    """Each says why, before anything runs."""
    with pytest.raises(SettingError, match=why) as refusal:
        prepare(parse(SUMS, keys))
    assert "\n" not in str(refusal.value)


def test_a_run_prints_and_stores_both_numbers():
    """In process and in the cohort; the plan's tables have them, and what a lost client costs."""
    setup = prepare(parse(SUMS, {"masks": True}))
    results = [inprocess.train(setup), *cohort.train([prepare(parse(SUMS))])]
    assert_array_equal(results[0].model, results[1].model)
    assert np.abs(results[0].model).max() > 1e-3
    for result in results:
        told = result.privacy()
        assert told is not None
        assert told["epsilon"] == pytest.approx(4.0)
        assert told["mu_alone"] == pytest.approx(2 * told["mu"], rel=1e-6)
        assert (told["trust"], told["honest_sites"]) == ("sum", 4)
        assert f"({told['epsilon_alone']:.4g}, 0.0001)-DP" in told["guarantee"]
        assert "together with up to 4 other clients" in told["guarantee"]
    rows = dict(forecast(setup))
    assert rows["epsilon in total, largest client"].startswith("4 at")
    assert rows["epsilon in total, against everybody else"].startswith(
        f"{results[0].privacy()['epsilon_alone']:.6g}"
    )
    assert "brings the total to epsilon 6.0" in rows["if a client is lost for good"]


@pytest.mark.parametrize(
    "keys", [{"algorithm": "ssca", "privacy.mode": "gradient"}, {"algorithm": "feddyn", "alpha": 0.1}]
)
def test_a_run_of_sums_that_was_cut_off_goes_on_to_the_same_bits(tmp_path, keys):
    """From a checkpoint, with the sites' keys and replies on the disk: the rounds behind it get the stored bytes."""
    setup = prepare(parse(SUMS, keys, {"masks": True, "rounds": 5, "checkpoint-every": 2}))
    whole = inprocess.train(setup)
    setup = setup.with_state_dir(tmp_path / "state")

    class Cut(InProcessGrid):
        def answer(self, message: Message) -> Message:
            if message.metadata.message_type == "train" and message.content["fitins.config"]["round"] == 4:
                raise KeyboardInterrupt
            return super().answer(message)

    points = Checkpoints(tmp_path, 2, setup.config)
    with pytest.raises(KeyboardInterrupt):
        run_strategy(setup, Cut(setup), "inprocess", None, points)
    again = run_strategy(
        setup, InProcessGrid(setup), "inprocess", None, Checkpoints(tmp_path, 2, setup.config)
    )
    assert not again.failure
    assert_array_equal(again.model, whole.model)


def test_a_run_that_a_site_stops_keeps_its_checkpoints(tmp_path):
    """It goes on when the site is back, also after an attempt while the site was still away."""
    setup = prepare(parse(SUMS, {"masks": True, "checkpoint-every": 1}))
    whole = inprocess.train(setup)
    setup = setup.with_state_dir(tmp_path / "state")

    class Away(InProcessGrid):
        def answer(self, message: Message) -> Message:
            if message.metadata.message_type == "train" and message.content["fitins.config"]["round"] == 3:
                return Message(Error(1, "lost"), reply_to=message)
            return super().answer(message)

    def run(grid: InProcessGrid) -> Any:
        return run_strategy(setup, grid, "inprocess", None, Checkpoints(tmp_path, 1, setup.config))

    for _ in range(2):
        with pytest.raises(AbsentError, match="needs all clients"):
            run(Away(setup))
    assert_array_equal(run(InProcessGrid(setup)).model, whole.model)


def test_sites_count_on_no_more_honest_ones_than_their_policy_says(tmp_path):
    """And they need an identity; what a run asks is compared with the site's own words."""
    setup = prepare(parse(SUMS))
    node = {"partition-id": 0, "num-partitions": 8, "lifetime-epsilon": 9.0, "state-dir": str(tmp_path)}
    with pytest.raises(SettingError, match="needs identity-key, peers-file and max-honest"):
        site_guard(setup, read_site(node), "r")
    keys = {"identity-key": "k", "peers-file": "p"}
    with pytest.raises(
        SettingError, match="counts on at most 3 honest sites; the run has privacy.honest-sites 4"
    ):
        site_guard(setup, read_site(node | keys | {"max-honest": 3}), "r")
    with pytest.raises(SettingError, match="belong together"):
        read_site(node | keys)
    guard = site_guard(setup, read_site(node | keys | {"max-honest": 4}), "r")
    assert isinstance(guard, SumGuard)
    assert guard.secret


class Hospital:
    """A deployed site that takes part in one run and then in another, without a client that was lost."""

    def __init__(self, folder: Path, number: int, lifetime: float) -> None:
        self.folder, self.number = folder, number
        self.node = {"identity-key": "k", "peers-file": "p", "max-honest": 4, "lifetime-epsilon": lifetime}

    def charge(self, setup: Any, run: str, rounds_done: int) -> None:
        """Charge the first rounds of a run, through the site's own door."""
        place = {"partition-id": self.number, "num-partitions": setup.config.clients.count}
        guard = site_guard(setup, read_site(self.node | place | {"state-dir": str(self.folder)}), run)
        workload = setup.schedule.workload(int(setup.partition.sizes[self.number]))
        for round_ in range(1, rounds_done + 1):
            guard.open(setup.algorithm.release(guard.bounds, workload, round_), round_)

    @property
    def charges(self) -> list[Charge]:
        """All charges so far."""
        (path,) = self.folder.glob("*.ledger")
        return read_ledger(path).charges


@pytest.mark.parametrize("done", [1, 4])
def test_a_new_cohort_without_the_lost_site_costs_what_the_planner_states(tmp_path, done):
    """Both totals in the ledger are at most what is stated, and exactly that if the site was lost in the last round."""
    first, second = prepare(parse(SUMS)), prepare(parse(SUMS, {"clients.count": 7}))
    stated = first.plan.epsilons_after_a_loss
    said = dict(forecast(first))["if a client is lost for good"]
    assert f"epsilon {stated[0]:.4g} at most, and to {stated[1]:.4g} against everybody else" in said
    smallest = int(first.plan.mu.argmax())  # the client with the fewest rows pays most
    site = Hospital(tmp_path, smallest, stated[0] * (1 + 1e-6))
    site.charge(first, "first", done)
    site.charge(second, "second", 4)
    costs = np.array([(c.cost, c.cost_alone) for c in site.charges])
    spent = [gdp_epsilon(math.sqrt(cost), 1e-4) for cost in costs.sum(0)]
    assert len(costs) == done + 4
    if done == 4:
        assert spent == pytest.approx(stated, rel=1e-9)
    else:
        assert (np.array(spent) < 0.95 * np.array(stated)).all()


def test_a_new_cohort_that_the_lifetime_budget_does_not_cover_costs_nothing(tmp_path):
    """The site refuses before the first charge."""
    first, second = prepare(parse(SUMS)), prepare(parse(SUMS, {"clients.count": 7}))
    site = Hospital(tmp_path, 6, 0.99 * first.plan.epsilons_after_a_loss[0])
    site.charge(first, "first", 4)
    with pytest.raises(BudgetSpent, match="nothing is spent"):
        site.charge(second, "second", 1)
    assert len(site.charges) == 4


def test_two_sites_cannot_lose_one():
    """One site is no sum."""
    rows = dict(forecast(prepare(parse(SUMS, {"clients.count": 2, "honest-sites": 2}))))
    assert rows["if a client is lost for good"] == "no sum is possible without it"


def test_a_site_can_bound_the_guarantee_against_everybody_else(tmp_path):
    """The second number of the plan, to the digit; a run without sums has the same number against everybody."""
    node = {"partition-id": 0, "num-partitions": 8, "lifetime-epsilon": 9.0, "state-dir": str(tmp_path)}
    keys = {"identity-key": "k", "peers-file": "p", "max-honest": 4}
    setup, local = prepare(parse(SUMS)), prepare(parse(SUMS, {"trust": "local", "honest-sites": 0}))
    alone = gdp_epsilon(setup.sums.mu_alone.max(), 1e-4)
    assert alone > 8
    site_guard(setup, read_site(node | keys | {"max-epsilon-alone": alone * (1 + 1e-6)}), "r")
    site_guard(local, read_site(node | {"max-epsilon-alone": 4.0}), "r")
    for run, own, limit in ((setup, keys, alone * (1 - 1e-6)), (setup, keys, 4.0), (local, {}, 3.99)):
        said = f"allows at most epsilon {limit:g} at delta 0.0001 for a run against everybody else together"
        with pytest.raises(SettingError, match=said) as refusal:
            site_guard(run, read_site(node | own | {"max-epsilon-alone": limit}), "r")
        assert "\n" not in str(refusal.value)


def test_identities_are_made_once_and_read_strictly(tmp_path):
    """A key for its owner only, and sentences for files that hold something else."""
    keys = [make_key(tmp_path / f"{n}.pem") for n in range(2)]
    assert (tmp_path / "0.pem").stat().st_mode & 0o777 == 0o600
    with pytest.raises(SettingError, match="exists"):
        make_key(tmp_path / "0.pem")
    peers = tmp_path / "peers"
    peers.write_text("".join(f"{n} {key}\n" for n, key in enumerate(keys)))
    assert read_identity(1, tmp_path / "1.pem", peers).peers.keys == tuple(map(bytes.fromhex, keys))
    with pytest.raises(SettingError, match="gives site 0 another public key"):
        read_identity(0, tmp_path / "1.pem", peers)
    with pytest.raises(DataError, match="holds no Ed25519 key"):
        read_identity(0, peers, peers)
    with pytest.raises(DataError, match="cannot be read"):
        read_identity(0, tmp_path / "nowhere", peers)
