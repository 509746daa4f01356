"""What every algorithm promises, by one table (tests/problems.py)."""

import copy
from dataclasses import fields, make_dataclass
from functools import partial

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from grids import over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from problems import PRIVATE_KEYS, SMALL, VARIANTS, convex_problem, one_of_each, small

import twinflower.clients.methods
import twinflower.strategies.methods
from twinflower.algorithms import ALGORITHMS
from twinflower.algorithms.algorithm import check_class, stack, unstack
from twinflower.algorithms.fedpdm import FedPDM
from twinflower.algorithms.scaffold import Scaffold
from twinflower.clients import CLIENTS
from twinflower.clients.records import record_of
from twinflower.privacy.audit import neighbours, replay
from twinflower.privacy.correlated import Window, stacked
from twinflower.privacy.mechanism import CohortDraws, GaussianNoise, by_step, seeded
from twinflower.problems.batches import LocalSchedule
from twinflower.randomness import participants
from twinflower.rounds import Problem, rounds
from twinflower.simulation.results.checkpoint import flatten
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy, strategy_of
from twinflower.simulation.settings import parse
from twinflower.strategies import STRATEGIES
from twinflower.sums.noise import SimulatedSums
from twinflower.work import LocalWork, no_noise

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def test_the_tables_agree():
    assert set(ALGORITHMS) == set(STRATEGIES) == set(CLIENTS)
    assert set(ALGORITHMS) == {keys["algorithm"] for keys in VARIANTS.values()}
    for name, algorithm in ALGORITHMS.items():
        assert STRATEGIES[name].algorithm_class is CLIENTS[name].algorithm_class is algorithm
    for part, table in ((twinflower.clients, CLIENTS), (twinflower.strategies, STRATEGIES)):
        found = [kind for kind in vars(part.methods).values() if hasattr(kind, "algorithm_class")]
        assert found == list(table.values()), "a class has taken the place of another one"


class Undeclared(FedPDM):
    """A class that takes local steps, without the field that this needs."""

    __dataclass_fields__ = {k: v for k, v in FedPDM.__dataclass_fields__.items() if k != "sensitivity"}  # noqa: RUF012


def test_an_algorithm_says_what_it_lacks():
    """At import, and not by a TypeError about a constructor's arguments."""
    for algorithm in ALGORITHMS.values():
        assert check_class(algorithm) is algorithm
    with pytest.raises(TypeError, match="^Undeclared needs sensitivity: see docs/add-an-algorithm.md$"):
        check_class(Undeclared)
    with pytest.raises(
        TypeError, match="^Bare needs name, title, weightings, takes_local_steps, modes, regulariser"
    ):
        check_class(make_dataclass("Bare", []))


def noise_of(setup, clients, round_):
    """What the clients' guards would give out."""
    if setup.plan is None:
        return no_noise
    if setup.sums:
        return SimulatedSums(setup.algorithm, setup.sums)(round_, clients)
    bounds, z = setup.plan.bounds, setup.plan.multipliers[np.atleast_1d(clients)]
    workloads = [setup.schedule.workload(int(m)) for m in np.atleast_1d(setup.shards.extent(clients)[1])]
    sigma = z[:, None] * np.array(
        [[setup.algorithm.release(bounds, workload, round_).spread] for workload in workloads]
    )
    if np.ndim(clients):
        correlated = setup.plan.participation.bandwidths is not None
        each = [draws_of(setup, int(client), round_) for client in clients] if correlated else []
        return GaussianNoise(
            sigma, stacked(each, clients) if correlated else CohortDraws([0], clients, round_)
        )
    return GaussianNoise(sigma[0], draws_of(setup, int(clients), round_))


def draws_of(setup, client, round_):
    """The draws of one client, which may be correlated with those of earlier rounds."""
    bandwidth = setup.plan.participation.bandwidth(client)
    if bandwidth == 1:
        return seeded(0, client, round_)
    load = setup.schedule.workload(setup.shards.span(client)[1])
    first = load.span(setup.schedule.turn(0, client, round_)).first
    return Window(bandwidth).draws(first, by_step(partial(seeded, 0, client), load.steps))


def one_round(setup, clients, server=None, states=None, round_=2):
    algorithm = setup.algorithm
    server = server or algorithm.init_server(setup.start, setup.config.clients.count, np.array(0, np.uint64))
    states = states or stack([algorithm.init_client(setup.start)] * len(clients))
    inbox = algorithm.broadcast(server, round_, clients)
    batches = setup.schedule.batches(setup.shards, clients, 0, round_)
    return algorithm.client_update(
        states, inbox, LocalWork(setup.objective, batches, noise_of(setup, clients, round_), round_)
    )


@every_variant
def test_a_slice_of_the_cohort_is_one_client(variant):
    setup = small(variant)
    algorithm, clients = setup.algorithm, np.array([1, 4, 6])
    server = algorithm.init_server(setup.start, 8, np.array(0, np.uint64))
    states, uploads, report = one_round(setup, clients)
    for place, i in enumerate(clients):
        inbox = algorithm.broadcast(server, 2, i)
        batches = setup.schedule.batches(setup.shards, int(i), 0, 2)
        alone = algorithm.client_update(
            algorithm.init_client(setup.start),
            inbox,
            LocalWork(setup.objective, batches, noise_of(setup, i, 2), 2),
        )
        for whole, single in zip(
            (*states, *uploads, *report), (*alone[0], *alone[1], *alone[2]), strict=True
        ):
            assert_allclose(whole[place], single, rtol=1e-12, atol=1e-15)


@every_variant
def test_client_update_changes_nothing_it_was_given(variant):
    setup = small(variant)
    clients = np.array([0, 3])
    states = stack([setup.algorithm.init_client(setup.start)] * 2)
    before = [array.copy() for array in states]
    one_round(setup, clients, states=states)
    for array, old in zip(states, before, strict=True):
        assert_array_equal(array, old)


@every_variant
def test_messages_survive_the_wire(variant):
    setup = small(variant)
    algorithm, d = setup.algorithm, setup.objective.d
    server = algorithm.init_server(setup.start + 0.1, 8, np.array(5, np.uint64))
    inbox = algorithm.broadcast(server, 3, np.array(2))
    batches = setup.schedule.batches(setup.shards, 2, 0, 3)
    _, upload, _ = algorithm.client_update(
        algorithm.init_client(setup.start),
        inbox,
        LocalWork(setup.objective, batches, noise_of(setup, np.array(2), 3), 3),
    )
    back = algorithm.inbox.unpack(algorithm.inbox.pack(inbox, d), d)
    for sent, received in zip(inbox, back, strict=True):
        assert_array_equal(received, sent)
    wire = algorithm.upload.pack(upload, d)
    for sent, received in zip(upload, algorithm.upload.unpack(wire, d, inbox), strict=True):
        assert_array_equal(received, sent)
    bits_up, bits_down = algorithm.upload.bits(d), algorithm.inbox.bits(d)
    for bits, arrays in ((bits_up, wire), (bits_down, algorithm.inbox.pack(inbox, d))):
        assert 0 <= sum(8 * a.nbytes for a in arrays) - bits < 8  # filled up to a byte


@every_variant
def test_a_nodes_inbox_is_its_part_of_everybodys(variant):
    setup = small(variant)
    server = setup.algorithm.init_server(setup.start + 0.1, 8, np.array(5, np.uint64))
    nodes = np.array([0, 2, 7])
    for node, part in zip(nodes, unstack(setup.algorithm.broadcast(server, 4, nodes), 3), strict=True):
        for ours, alone in zip(part, setup.algorithm.broadcast(server, 4, node), strict=True):
            assert_array_equal(ours, alone)


@every_variant
def test_only_sampled_clients_have_a_state_and_nobody_is_left_out(variant):
    setup = small(variant)
    grid, strategy = InProcessGrid(setup), strategy_of(setup)
    strategy.start(grid, record_of([setup.start]), num_rounds=5)
    visited = {node - 1 for node, context in grid.contexts.items() if len(context.state)}
    k, everybody = setup.config.clients.sampled, VARIANTS[variant].get("first-round") == "all"
    asked = [np.arange(8) if everybody and t == 1 else participants(0, t, 8, k) for t in range(1, 6)]
    assert visited == {int(i) for clients in asked for i in clients}
    assert (visited == set(range(8))) == (k == 8 or everybody)
    assert [(r.accepted, r.rejected) for r in strategy.rounds] == [(len(clients), {}) for clients in asked]


@every_variant
def test_a_repeated_round_gets_the_same_reply_and_moves_nothing(variant):
    setup = small(variant)
    context = Context(1, 1, {}, RecordDict(), {})
    server = setup.algorithm.init_server(setup.start, 8, np.array(0, np.uint64))
    request = setup.algorithm.inbox.pack(setup.algorithm.broadcast(server, 1, np.array(1)), setup.objective.d)
    first, rows, metrics = client_of(setup, 1, context).fit(request, {"round": 1})
    kept = dict(context.state.items())
    again, _, same = client_of(setup, 1, context).fit(request, {"round": 1})
    assert (rows, metrics) == (len(setup.shards.rows(1).labels), same)
    for a, b in zip(first, again, strict=True):
        assert_array_equal(a, b)
    assert context.state == kept


@every_variant
def test_a_later_round_goes_on_from_the_stored_state(variant):
    """Two calls of fresh client objects over one context equal two rounds of the algorithm."""
    setup = small(variant, clients__per_round=0)
    algorithm, d = setup.algorithm, setup.objective.d
    context = Context(1, 1, {}, RecordDict(), {})
    server = algorithm.init_server(setup.start + 0.05, 8, np.array(0, np.uint64))
    state = algorithm.init_client(setup.start)
    for round_ in (1, 2):
        inbox = algorithm.broadcast(server, round_, np.array(1))
        reply, _, _ = client_of(setup, 1, context).fit(
            algorithm.inbox.pack(inbox, setup.objective.d), {"round": round_}
        )
        batches = setup.schedule.batches(setup.shards, 1, 0, round_)
        state, upload, _ = algorithm.client_update(
            state, inbox, LocalWork(setup.objective, batches, noise_of(setup, np.array(1), round_), round_)
        )
        for ours, theirs in zip(algorithm.upload.pack(upload, d), reply, strict=True):
            assert_array_equal(ours, theirs)


def same_rows(a, b, **tolerance):
    assert len(a.rows) == len(b.rows)
    for x, y in zip(a.rows, b.rows, strict=True):
        for key in x.keys() - {"seconds"}:
            assert_allclose(x[key], y[key], err_msg=key, **tolerance)


class Shuffled(InProcessGrid):
    """A grid whose replies come in the opposite order."""

    def pull_messages(self, message_ids):
        return list(super().pull_messages(message_ids))[::-1]


@pytest.mark.parametrize("variant", one_of_each(VARIANTS, "privacy.mode"))
def test_the_runtimes_agree(variant):
    """In process, with replies in another order, over the wire with a new client for every message, and as a cohort."""
    setup = small(variant)
    fast, exact = inprocess.train(setup), over_the_wire(setup)
    (stacked,) = cohort.train([setup])
    for other in (exact, run_strategy(setup, Shuffled(setup), "inprocess")):
        assert_array_equal(fast.model, other.model)
        same_rows(fast, other, rtol=0)
    assert_allclose(stacked.model, fast.model, rtol=1e-9, atol=1e-12)
    same_rows(stacked, fast, rtol=1e-9)
    assert np.any(fast.model)


@pytest.mark.parametrize("variant", ["fedpdm", "ldp-primal-dual"])
def test_later_rounds_do_not_overwrite_an_outcome(variant):
    """Neither its uploads nor the server's state, which may hold on to them."""
    setup = small(variant, clients__per_round=0)
    problem = Problem(setup.objective, setup.shards, setup.start)
    loop = rounds(setup.algorithm, problem, setup.schedule, 2, block=3)
    first = next(loop)
    before = copy.deepcopy(flatten((first.server, first.uploads)))
    next(loop)
    for now, then in zip(flatten((first.server, first.uploads)), before, strict=True):
        assert_array_equal(now, then)


@pytest.mark.parametrize("variant", one_of_each(VARIANTS))
def test_a_cohort_in_blocks_is_the_whole(variant, monkeypatch):
    setups = [small(variant, seed=seed, rounds=3) for seed in range(2)]
    whole = [cohort.train(setups[:1])[0], *cohort.train(setups)]
    monkeypatch.setattr(cohort, "BLOCK", 1)
    blocks = [cohort.train(setups[:1])[0], *cohort.train(setups)]
    for one, other in zip(blocks, whole, strict=True):
        assert_allclose(one.model, other.model, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("variant", one_of_each(VARIANTS))
def test_seeds_stacked_are_seeds_alone(variant):
    setups = [
        small(variant, seed=s, rounds=3, partition__name="dirichlet", partition__dirichlet_alpha=1.0)
        for s in (3, 2**63 + 1)
    ]
    together = cohort.train(setups)
    for setup, result in zip(setups, together, strict=True):
        (alone,) = cohort.train([setup])
        assert_allclose(result.model, alone.model, rtol=1e-9, atol=1e-12)
        same_rows(result, alone, rtol=1e-9)
    solved = setups[0].algorithm.ends_early  # at the optimum of all rows, however these are divided
    assert solved or not np.allclose(together[0].model, together[1].model)


# ------------------------------------------------------------- what no newcomer passes by forgetting it

GUARDED = [
    name for name, keys in VARIANTS.items() if keys.get("privacy.mode", "as-published") != "as-published"
]


def moves(setup, algorithm, number=6):
    """The replay of client 0 on neighbouring data, with the messages of a run in which all its replies arrive."""
    problem = Problem(setup.objective, setup.shards, setup.start)
    servers = [algorithm.init_server(setup.start, setup.config.clients.count, np.array(0, np.uint64))]
    servers += [step.server for step in rounds(algorithm, problem, setup.schedule, number - 1)]
    inboxes = [algorithm.broadcast(server, t, np.array(0)) for t, server in enumerate(servers, 1)]
    pair = neighbours(20, setup.dataset.features.shape[1], setup.config.data.row_norm)
    return replay(algorithm, setup.objective, *pair, setup.schedule, setup.plan.bounds, inboxes)


def keeps_its_promise(found):
    return all(move.agrees and move.moved <= move.sensitivity * (1 + 1e-9) for move in found)


@pytest.mark.parametrize("variant", GUARDED)
def test_a_record_moves_only_the_values_under_the_noise_and_these_by_no_more_than_is_charged(variant):
    """Whatever was released before: messages and kept states are functions of what was released."""
    setup = small(variant, clients__per_round=0, rounds=6)
    found = moves(setup, setup.method)
    assert len(found) >= 6 and max(move.moved for move in found) > 0
    assert keeps_its_promise(found)


def as_kind(kind, algorithm):
    """An algorithm of this subclass with the same settings."""
    return kind(**{field.name: getattr(algorithm, field.name) for field in fields(algorithm)})


class NoisyMessageOnly(FedPDM):
    """The noise is in the message, and the kept dual is computed without it."""

    def client_update(self, state, inbox, work):
        clean, _, report = super().client_update(state, inbox, work._replace(noise=no_noise))
        _, upload, _ = super().client_update(state, inbox, work)
        return clean, upload, report


def test_a_private_variant_does_not_pass_by_forgetting_its_state():
    setup = small("fedpdm-private", clients__per_round=0, rounds=6)
    assert not keeps_its_promise(moves(setup, as_kind(NoisyMessageOnly, setup.algorithm)))


def keeps_a_state(variant):
    algorithm = small(variant).method
    return bool(algorithm.state.fields) and not algorithm.needs_every_client


STEADY = {
    "regulariser.name": "none", "clients.per-round": 0, "step-decay": 0.0, "stopping-tolerance": 0.0,
    "uplink-ratio": 1.0, "downlink-ratio": 1.0, "final-model": "last",
}  # fmt: skip


def limits(algorithm):
    """The models in round 10 and at the end, of a run without lost replies and of one in which many of the first 20
    rounds' are lost."""
    shards, objective = convex_problem(clients=8)
    problem = Problem(objective, shards, np.zeros(objective.d))

    def lost(round_, clients):
        return (clients + round_ * (clients % 3)) % 4 == 0 if round_ <= 20 else clients < 0

    return np.array([
        tenth_and_last(algorithm, rounds(algorithm, problem, LocalSchedule(0, 2), 600, lost=losses))
        for losses in (None, lost)
    ])  # fmt: skip


def tenth_and_last(algorithm, steps):
    """The models in round 10 and at the end, or where a model has come to rest."""
    models = [np.inf]
    for at in steps:
        models.append(algorithm.model(at.server))
        if len(models) > 40 and np.abs(models[-1] - models[-2]).max() < 1e-11:
            break
    return models[10], models[-1]


def public_and_steady(variant):
    """The variant with constant steps, whole messages, no noise and no h."""
    known = {key: value for key, value in VARIANTS[variant].items() if key not in PRIVATE_KEYS}
    there = {name.rpartition(".")[2] for name in small(variant).config.items()}
    steady = {key: value for key, value in STEADY.items() if key.rpartition(".")[2] in there}
    return prepare(parse(SMALL, known, steady, {"rounds": 600}))


STATEFUL = {  # variants that differ in nothing but noise, messages and sampling are one method here
    repr(public_and_steady(variant).method): variant
    for variant in reversed(VARIANTS)
    if keeps_a_state(variant)
}


@pytest.mark.parametrize("variant", STATEFUL.values())
def test_lost_replies_do_not_change_where_a_run_ends(variant):
    """A client that has lost a reply is one step ahead of what the server has counted."""
    setup = public_and_steady(variant)
    calm, lossy = limits(setup.algorithm)
    assert np.abs(lossy[0] - calm[0]).max() > 1e-4
    assert_allclose(lossy[1], calm[1], atol=1e-6)


class Deaf(Scaffold):
    """Clients that ignore the echo: they keep every update, counted or not."""

    def client_update(self, state, inbox, work):
        return super().client_update(state._replace(before=state.after), inbox, work)


def test_a_variant_does_not_pass_by_ignoring_the_echo():
    setup = public_and_steady("scaffold")
    calm, lossy = limits(as_kind(Deaf, setup.algorithm))
    assert np.abs(lossy[1] - calm[1]).max() > 1e-3
