"""Li 2024, Algorithms 1 and 2, in plain loops over clients, entries and steps, with the options of `FedPDM`.

Written from the paper, not from the code: it takes from the package only the settings, the addresses of the public
coins (who is sampled, which rows, which entries) and, where a test does not bring its own, the gradient.
"""

from collections.abc import Callable, Iterator, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, Philox

from twinflower.algorithms import FedPDM
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Batch
from twinflower.randomness import participants, stream


class Slow(NamedTuple):
    """One round: the model after it, the clients' duals and last x, and what was counted on the way."""

    x0: np.ndarray
    duals: dict[int, np.ndarray]
    own: dict[int, np.ndarray]
    asked: list[int]
    lost: list[int]
    steps: list[int]
    fired: list[bool]
    dropped: int  # entries of x0 that were not 0 and yet not broadcast
    nobody: int  # entries that nobody sent, but which had a mean


def largest(v: np.ndarray, k: int) -> list[int]:
    """The k largest entries in magnitude; sorting is stable, so ties go to the lowest index."""
    return sorted(sorted(range(len(v)), key=lambda j: -abs(v[j]))[:k])


def drawn(seed: int, client: int, round_: int, d: int, k: int) -> list[int]:
    """rand-k from the public coins of (seed, client, round)."""
    coin = int(stream(seed, "rand-k", client, round_).integers(2**63))
    return sorted(int(j) for j in Generator(Philox(key=coin)).choice(d, k, replace=False))


def slow_run(
    algorithm: FedPDM,
    shards: Shards,
    schedule: LocalSchedule,
    gradient: Callable[[np.ndarray, Batch], np.ndarray],
    start: np.ndarray,
    rounds: int,
    k: int,
    *,
    seed: int = 0,
    first_round: str = "sampled",
    by_rows: bool = False,
    rejected: Set[tuple[int, int]] = frozenset(),
) -> Iterator[Slow]:
    """The rounds with h = weight ||x||_1, k clients in each; by_rows weighs them by their rows.

    The server refuses the replies of the (round, client) in `rejected`, and a client whose x is not finite forgets
    the round.
    """
    n, d, rho = shards.num_clients, len(start), algorithm.rho
    x0, mean = start.copy(), start.copy()
    share = shards.sizes if by_rows else np.ones(n)  # p_i N, up to a factor
    duals: dict[int, np.ndarray] = {}
    own: dict[int, np.ndarray] = {}
    heard: list[dict[int, float]] = [{} for _ in range(d)]  # of every entry: who sent it, and what
    for t in range(1, rounds + 1):
        eta = algorithm.step_size / t**algorithm.step_decay
        received = np.zeros(d)
        for j in largest(x0, round(algorithm.downlink_ratio * d)):
            received[j] = x0[j]
        dropped = np.count_nonzero(x0) - np.count_nonzero(received)
        if algorithm.aggregation == "sampled":
            heard = [{} for _ in range(d)]
        everyone = t == 1 and first_round == "all"  # S_0 = [N]
        asked = [*range(n)] if everyone else [int(i) for i in participants(seed, t, n, k)]
        lost, steps, fired = [], [], []
        for i in asked:
            dual = duals.get(i, np.zeros(d))
            x = own.get(i, start) if algorithm.local_start == "warm" else received  # line 6
            taken, stop = 0, False
            for rows in schedule.batches(shards, i, seed, t):
                g = gradient(x, rows) - dual + rho * (x - received)
                x, taken = x - eta * g, taken + 1  # (8a)
                stop = 0 < algorithm.stopping_tolerance >= float(g @ g)  # (10)
                if stop:
                    break
            if not np.isfinite(x).all():
                lost.append(i)
                continue
            duals[i], own[i] = dual + rho * (received - x), x  # (8c)
            if (t, i) in rejected:
                lost.append(i)
                continue
            y = x - duals[i] / rho  # (8d)
            for j in sent_entries(algorithm, y, seed, i, t):
                heard[j][i] = float(y[j])
            steps.append(taken)
            fired.append(stop)
        nobody = sum(not heard[j] and mean[j] != 0 for j in range(d))
        for j in range(d):  # (20), (23)
            if heard[j]:
                mean[j] = sum(share[i] * v for i, v in heard[j].items()) / sum(share[i] for i in heard[j])
            elif algorithm.missing == "zero":
                mean[j] = 0.0
        x0 = np.sign(mean) * np.maximum(
            np.abs(mean) - algorithm.regulariser.weight / rho, 0.0
        )  # (12), step 1/rho
        yield Slow(x0, dict(duals), dict(own), asked, lost, steps, fired, dropped, nobody)


def sent_entries(algorithm: FedPDM, y: np.ndarray, seed: int, client: int, round_: int) -> list[int]:
    """Which entries of y a client sends, (16)."""
    k = round(algorithm.uplink_ratio * len(y))
    return (
        drawn(seed, client, round_, len(y), k)
        if algorithm.uplink == "rand-k" and k < len(y)
        else largest(y, k)
    )


def slow_run_of(setup: Any, rejected: Set[tuple[int, int]] = frozenset()) -> Iterator[Slow]:
    """`slow_run` for a run's settings."""
    config = setup.config
    return slow_run(
        setup.algorithm, setup.shards, setup.schedule, setup.objective.grad, setup.start, config.rounds,
        config.clients.sampled, seed=config.seed, first_round=config.clients.first_round, by_rows=setup.by_rows,
        rejected=rejected,
    )  # fmt: skip
