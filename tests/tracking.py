"""What the tests of methods whose server tracks a mean (`echo.TracksMean`) have in common."""

import numpy as np
from problems import convex_problem, run

from twinflower.algorithms.algorithm import RunInfo
from twinflower.privacy.audit import neighbours, replay
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.objectives import make_objective
from twinflower.sums.audit import replay_sums

FULL = LocalSchedule(0, 5)
FEATURES, ROWS = 4, 6
PRIVATE = [
    {"privacy": "public-state"},
    {"privacy": "public-state", "sensitivity": "norm"},
    {"privacy": "public-state", "local_start": "warm"},
    {"privacy": "public-state", "uplink_ratio": 0.5},
    {"privacy": "gradient"},
    {"privacy": "gradient", "local_start": "warm", "stopping_tolerance": 0.5},
]


def x0_of(algorithm, k=0, number=15, **keys):
    """The server's points (number, d) of rounds with k of the clients, 0 for all."""
    shards, objective = convex_problem()
    steps = run(
        algorithm, shards, objective, LocalSchedule(4, 5), number, k, start=np.ones(objective.d), **keys
    )
    return np.array([at.server.x0 for at in steps])


def seeded_noise(t, clients=None):
    """The same noise for every method, as a function of the round and the client."""
    draws = {int(i): np.random.default_rng((t, int(i))).normal(size=5) for i in np.atleast_1d(clients)}

    def noise(value, draw=0, shrink=1.0):
        return value + 0.1 * np.stack([draws[int(i)] for i in np.atleast_1d(clients)])

    return noise


def moves_of(algorithm, schedule=FULL, number=8):
    """How far a record moves each release, given all before; every reply is counted."""
    objective, (data, other) = make_objective("logistic", FEATURES, 2), neighbours(ROWS, FEATURES, 0.7)
    server = algorithm.init_server(np.zeros(FEATURES), 1, np.array(0, np.uint64))
    servers = [server._replace(heard=np.array([t]), x0=np.full(FEATURES, 300.0 * t)) for t in range(number)]
    inboxes = [algorithm.broadcast(at, t, np.array(0)) for t, at in enumerate(servers, 1)]
    return replay(algorithm, objective, data, other, schedule, objective.bounds(0.7), inboxes)


def with_quiet_part(kind, part, parts=3):
    """A planted fault: this of the parts of a client's state is computed from its point without noise."""

    class Quiet(kind):
        def client_update(self, state, inbox, work):
            noisy, upload, report = super().client_update(state, inbox, work)
            without = work._replace(noise=lambda value, draw=0, shrink=1.0: value)
            quiet, *_ = super().client_update(state, inbox, without)
            kept = np.split(noisy.after, parts, -1)
            kept[part] = np.split(quiet.after, parts, -1)[part]
            return noisy._replace(after=np.concatenate(kept, -1)), upload, report

    return Quiet


def summed_ratio(kind, steps, **settings):
    """The largest move of a later sum through the method as written, relative to its sensitivity."""
    rng, features, sites = np.random.default_rng(3), 6, 4
    data, other = neighbours(20, features, 1.0)
    others = [
        data._replace(features=np.roll(data.features, i, -1), labels=rng.integers(0, 2, 20)) for i in range(3)
    ]
    objective = make_objective("logistic", features, 2)
    algorithm = kind(info=RunInfo(sites, 40), **settings)
    moves = replay_sums(
        algorithm, objective, [data, *others], other, LocalSchedule(0, steps), objective.bounds(1.0), 40, 3.0,
        start=np.zeros(features),
    )  # fmt: skip
    return max(move.moved / move.sensitivity for move in moves)
