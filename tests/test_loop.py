"""The training loop on arrays: what a round does with clients that are asked, lost, not finite, or never met."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import convex_problem, last, method, methods_of, small

from twinflower.algorithms import ALGORITHMS, FedPDM, LDPPrimalDual
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.echo import Echoed
from twinflower.client_states import ClientStates
from twinflower.errors import RunError
from twinflower.privacy.mechanism import SimulatedNoise
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.regularisers import L1, ZERO
from twinflower.rounds import Problem, rounds, sampled, start
from twinflower.simulation.runtimes import inprocess

ROOT = Path(__file__).resolve().parent.parent
WALK = LocalSchedule(4, 3)


@pytest.fixture
def problem():
    shards, objective = convex_problem()
    return Problem(objective, shards, np.zeros(objective.d))


def fedpdm(**settings):
    return FedPDM(L1(0.01), rho=0.5, step_size=0.5, **settings)


def assert_equal_states(one, other):
    for ours, theirs in zip(one, other, strict=True):
        assert_array_equal(ours, theirs)


def test_a_run_goes_on_from_any_round_to_the_same_bits(problem):
    algorithm, sampling = fedpdm(local_start="warm"), sampled(6, 3, seed=2)
    whole = last(rounds(algorithm, problem, WALK, 9, sampling))
    half = last(rounds(algorithm, problem, WALK, 4, sampling))
    again = last(rounds(algorithm, problem, WALK, 9, sampling, begin=half))
    assert_array_equal(again.server.x0, whole.server.x0)
    assert_equal_states(again.states.all(), whole.states.all())


def test_states_go_through_storage_to_the_same_bits(problem):
    algorithm, sampling = fedpdm(), sampled(6, 2)
    half = last(rounds(algorithm, problem, WALK, 3, sampling))
    places, stored = half.states.visited()
    assert {tuple(place) for place in places.tolist()} == {
        (0, i) for t in (1, 2, 3) for i in sampling(t).tolist()
    }
    states = ClientStates(algorithm, problem.start, 6)
    states.restore(places, stored)
    assert_equal_states(states.all(), half.states.all())


@pytest.mark.parametrize("name", methods_of(Echoed))
@pytest.mark.parametrize("first", [False, True])
def test_replies_may_be_lost_in_the_first_or_second_part_of_a_run_only(problem, name, first):
    """In rounds 1 to 4 or 5 to 9; the other part is told that no reply is ever lost."""
    h = ZERO if ALGORITHMS[name].constrained else L1(0.01)
    algorithm, sampling = method(name, regulariser=h, privacy="none"), sampled(6, 3, seed=1)

    def lost(round_, clients):
        return (clients % 3 == round_ % 3) & ((round_ <= 4) == first)

    whole = last(rounds(algorithm, problem, WALK, 9, sampling, lost=lost))
    half = last(rounds(algorithm, problem, WALK, 4, sampling, lost=lost if first else None))
    again = last(rounds(algorithm, problem, WALK, 9, sampling, lost=None if first else lost, begin=half))
    assert_equal_states(again.server, whole.server)
    assert_equal_states(again.states.all(), whole.states.all())
    clean = last(rounds(algorithm, problem, WALK, 9, sampling))
    assert not np.array_equal(again.server.x0, clean.server.x0)


class Pair(NamedTuple):
    """A state of a number and a vector."""

    number: np.ndarray
    vector: np.ndarray


class Keeping:
    """A method whose clients start with the number 0, which is whole, and the vector `start`."""

    def init_client(self, start):
        return Pair(np.zeros((), int), start)


@pytest.mark.parametrize("seeds", [(), (2,)])
def test_every_client_gets_back_the_state_that_was_put_last(seeds):
    """Against a dictionary, over random rounds with some or all clients, and through storage."""
    rng, count = np.random.default_rng(len(seeds)), 9
    start = rng.normal(size=(*seeds, 3))
    states = ClientStates(Keeping(), start, count)
    known = {(s, i): (0.0, own) for s, own in enumerate(np.atleast_2d(start)) for i in range(count)}
    for _ in range(60):
        many = count if rng.random() < 0.2 else int(rng.integers(1, count))
        clients = np.sort(rng.permuted(np.tile(np.arange(count), (*seeds, 1)), axis=-1)[..., :many], axis=-1)
        put = Pair(rng.normal(size=clients.shape), rng.normal(size=(*clients.shape, 3)))
        states.put(clients, put)
        for place, i in np.ndenumerate(clients):
            known[place[0] if seeds else 0, int(i)] = put.number[place], put.vector[place]
        if rng.random() < 0.3:
            stored = states.visited()
            states = ClientStates(Keeping(), start, count)
            states.restore(*stored)
        found = states.all()
        for (s, i), (number, vector) in known.items():
            own = (s, i) if seeds else (i,)
            assert found.number[own] == number
            assert_array_equal(found.vector[own], vector)


def test_a_lost_reply_moves_the_client_and_not_the_server(problem):
    algorithm = fedpdm()
    whole = next(rounds(algorithm, problem, WALK, 1))
    part = next(rounds(algorithm, problem, WALK, 1, lost=lambda t, clients: clients == 4))
    assert_equal_states(part.states.all(), whole.states.all())
    assert_array_equal(part.counted, [0, 1, 2, 3, 5])
    alone = next(rounds(algorithm, problem, WALK, 1, lambda t: np.array([0, 1, 2, 3, 5])))
    assert_allclose(part.server.x0, alone.server.x0, rtol=0, atol=1e-14)
    assert not np.allclose(part.server.x0, whole.server.x0)


def test_a_method_that_needs_every_client_stops_where_a_reply_is_lost(problem):
    algorithm = LDPPrimalDual(L1(0.01), RunInfo(6, 5))
    steps = rounds(
        algorithm, problem, LocalSchedule(0, 1), 5, lost=lambda t, clients: (clients == 4) & (t == 2)
    )
    assert next(steps).round == 1
    with pytest.raises(
        RunError, match="round 2: ldp-primal-dual needs all clients, and the replies of 1 are lost"
    ):
        next(steps)


@pytest.mark.parametrize("fault", ["nobody asked", "all lost"])
def test_without_a_reply_the_server_stays_as_it_is(problem, fault):
    sampling = (lambda t: np.arange(0)) if fault == "nobody asked" else None
    lost = (lambda t, clients: clients >= 0) if fault == "all lost" else None
    before = start(fedpdm(), problem)
    after = next(rounds(fedpdm(), problem, WALK, 1, sampling, lost=lost))
    assert len(after.counted) == 0
    assert after.server is not None
    assert_array_equal(after.server.x0, before.server.x0)
    assert np.any(after.states.all().dual) == (fault == "all lost")


def spoilt(problem, clients):
    """These clients' gradients are not numbers."""
    features = problem.shards.features.copy()
    for i in clients:
        features[problem.shards.order[problem.shards.starts[i]]] = np.nan
    return problem._replace(shards=replace(problem.shards, features=features))


def test_an_update_that_is_not_finite_is_forgotten_and_left_out(problem):
    algorithm, bad = fedpdm(), spoilt(problem, [3])
    with np.errstate(all="ignore"):
        at = next(rounds(algorithm, bad, LocalSchedule(0, 2), 1))
    assert_array_equal(at.counted, [0, 1, 2, 4, 5])
    assert not at.states.all().dual[3].any()
    good = next(rounds(algorithm, problem, LocalSchedule(0, 2), 1, lambda t: at.counted))
    assert_allclose(at.server.x0, good.server.x0, rtol=0, atol=1e-14)
    with np.errstate(all="ignore"), pytest.raises(RunError, match="round 1: 6 of 6 updates are not finite"):
        next(rounds(algorithm, spoilt(problem, range(6)), LocalSchedule(0, 2), 1))


@pytest.mark.parametrize("variant", ["networked-subgradient", "zcdp-nfl"])
def test_a_networks_mean_that_overflows_is_noticed_after_the_last_round(variant):
    """Every message is finite, but not their sum."""
    setup = small(variant)
    problem = Problem(setup.objective, setup.shards, np.full(setup.objective.d, 3e307))
    run = rounds(setup.algorithm, problem, setup.schedule, 1)
    with np.errstate(all="ignore"):
        assert np.isfinite(next(run).server.w).all()
        with pytest.raises(RunError, match="the model diverged in round 1"):
            next(run)


def test_the_last_inbox_closes_the_states_once_all_rounds_are_done(problem):
    algorithm = LDPPrimalDual(L1(0.01), RunInfo(6, 5))
    *_, end = rounds(algorithm, problem, LocalSchedule(0, 1), 5)
    assert_array_equal(end.states.all().x, algorithm.client_models(end.server))
    steps = rounds(algorithm, problem, LocalSchedule(0, 1), 5)
    fourth = [next(steps) for _ in range(4)][-1]
    assert not np.allclose(fourth.states.all().x, algorithm.client_models(fourth.server))


def test_a_client_that_was_never_asked_has_no_state_in_memory(problem):
    """A million registered clients that share one client's rows."""
    count = 10**6
    starts, sizes = (
        np.broadcast_to(array[:1], count) for array in (problem.shards.starts, problem.shards.sizes)
    )
    many = replace(problem.shards, starts=starts, sizes=sizes)
    asked = np.array([3, 500, count - 1])
    at = last(rounds(fedpdm(), problem._replace(shards=many), WALK, 2, lambda t: asked))
    assert_array_equal(at.states.visited()[0][:, 1], asked)


@pytest.mark.parametrize("variant", ["fedpdm-private", "fedavg-subgradient", "ldp-private"])
def test_the_simulated_noise_is_what_the_clients_guards_give_out(variant):
    """The loop on arrays against Flower's clients, of different sizes and so with different noise."""
    sizes = {"partition.name": "sizes", "partition.sizes": "15,300,30,12,90,400,60,25"}
    setup = small(variant, **sizes)
    problem, plan = Problem(setup.objective, setup.shards, setup.start), setup.plan
    noise = SimulatedNoise(setup.algorithm, setup.shards, setup.schedule, plan.bounds, plan.multipliers)
    end = last(rounds(setup.algorithm, problem, setup.schedule, 5, setup.config.asked, noise))
    assert_allclose(setup.algorithm.model(end.server), inprocess.train(setup).model, rtol=1e-9, atol=1e-12)
    clean = last(rounds(setup.algorithm, problem, setup.schedule, 5, setup.config.asked))
    assert not np.allclose(setup.algorithm.model(clean.server), setup.algorithm.model(end.server), rtol=1e-3)


def test_the_documented_example_runs_without_flower():
    example = (ROOT / "docs/api/rounds.md").read_text().split("```python\n")[1]
    lines = example.split("```")[0].rstrip().splitlines()
    assert len([line for line in lines if line and "import" not in line]) <= 10
    alone = "\nimport sys\nassert not any(name.partition('.')[0] == 'flwr' for name in sys.modules)\n"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines) + alone], capture_output=True, text=True, cwd=ROOT, check=True
    )
    first, *_, end = [line.split() for line in done.stdout.splitlines()]
    assert (len(first), int(end[0])) == (3, 30)
    assert float(end[1]) < float(first[1])  # the objective
    assert 0 < int(end[2]) < 8  # nonzeros
