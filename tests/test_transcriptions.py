"""Every method against its recursion in plain loops over clients and rounds; newton's end against optima.

A recursion takes a `Case` and yields the model after each round, or only that of the last one: an oracle. It is written
from the paper, which the method's module names, and not from the code. Sparsified messages, lost replies and stopping
rules are in the methods' own tests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import central_optimum, method, random_shards, run
from transcription import drawn, slow_run

from twinflower.algorithms import ALGORITHMS
from twinflower.algorithms.algorithm import RunInfo
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO, ElasticNet
from twinflower.problems.topologies import make_graph
from twinflower.randomness import participants, stream

SIZES, D, WEIGHT, ROUNDS = (20, 13, 31, 20, 8, 16), 4, 0.02, 8
N, TOTAL = len(SIZES), sum(SIZES)
GRAPH = make_graph("star", N)  # clients with 1 and with 5 neighbours
SHARDS = random_shards([*SIZES], D, 2)
START = np.linspace(-1, 1, D)


@dataclass(frozen=True)
class Case:
    """A method with its settings; its clients have the weights `shares` (N,) in F, and k of them reply in a round."""

    a: Any
    shares: np.ndarray
    k: int
    schedule: LocalSchedule
    l2: float = 0.1

    def rounds(self) -> Iterator[tuple[float, dict[int, list[Batch]]]]:
        """The step size of each round, and the batches of each client that replies."""
        for t in range(1, ROUNDS + 1):
            asked = [int(i) for i in participants(0, t, N, self.k)]
            batches = {i: list(self.schedule.batches(SHARDS, i, 0, t)) for i in asked}
            yield self.a.step_size / t ** getattr(self.a, "step_decay", 0.0), batches

    def grad(self, x: np.ndarray, rows: Batch) -> np.ndarray:
        """The gradient of l2-logistic regression; weights of rows are shares of all."""
        shares = 1 / len(rows.labels) if rows.weights is None else rows.weights
        signs = np.where(rows.labels, 1.0, -1.0)
        return self.l2 * x - (shares * signs / (1 + np.exp(signs * (rows.features @ x)))) @ rows.features

    def losses(self, x: np.ndarray, rows: Batch) -> np.ndarray:
        """The loss of each row, without the penalty and clipped if the method clips it."""
        losses = np.log1p(np.exp(-np.where(rows.labels, 1, -1) * (rows.features @ x)))
        return np.minimum(losses, getattr(self.a, "loss_clip", 0.0) or np.inf)

    def mean(self, values: dict[int, Any]) -> Any:
        """The mean over the clients that replied, with their weights in F."""
        return np.average(list(values.values()), 0, self.shares[list(values)])

    def walk(
        self, x: Any, batches: list[Batch], eta: float, shift: Any = 0.0, mu: float = 0.0, to: Any = 0.0
    ) -> Any:
        """The end of the steps x <- x - eta (grad + shift + mu (x - to))."""
        for rows in batches:
            x = x - eta * (self.grad(x, rows) + shift + mu * (x - to))
        return x


def soft(u: np.ndarray, threshold: Any) -> np.ndarray:
    return np.sign(u) * np.maximum(np.abs(u) - threshold, 0)


# ------------------------------------------------------------------------------------------- primal methods


def fedavg(c: Case) -> Iterator[np.ndarray]:
    """McMahan et al., Algorithm 1; Li et al. 2020, Algorithm 2; momentum: Hsu et al., section 4.2, and Ma and Yarats,
    Algorithm 1; memory: Gu et al., Algorithm 1."""
    mu, beta, nu = (getattr(c.a, key, 0.0) for key in ("mu", "server_momentum", "momentum_weight"))
    w = before = START
    v, changes = np.zeros(D), {}
    for eta, asked in c.rounds():
        ends = {i: c.walk(w, batches, eta, mu=mu, to=w) for i, batches in asked.items()}
        changes |= {i: (end - w) / eta for i, end in ends.items()}
        dw = eta * c.mean(changes) if c.a.aggregation == "memory" else c.mean(ends) - w
        v = beta * v + (1 - beta) * dw
        u = w + ((1 - nu) * dw + nu * v if nu else dw + beta * (w - before))
        lengths = {i: sum(eta * (1 - eta * mu) ** j for j in range(len(b))) for i, b in asked.items()}
        before, w = w, soft(u, WEIGHT * c.mean(lengths))
        yield w


def fedadam(c: Case) -> Iterator[np.ndarray]:
    """Reddi et al., Algorithm 2, with the prox in the norm of the metric."""
    a, x, m, v = c.a, START, np.zeros(D), np.full(D, c.a.adaptivity**2)
    for eta, asked in c.rounds():
        delta = c.mean({i: c.walk(x, batches, eta) - x for i, batches in asked.items()})
        m = a.momentum * m + (1 - a.momentum) * delta
        v = {
            "adam": a.memory * v + (1 - a.memory) * delta**2,
            "yogi": v - (1 - a.memory) * delta**2 * np.sign(v - delta**2),
            "adagrad": v + delta**2,
        }[a.second_moment]
        steps = a.server_step / (np.sqrt(v) + a.adaptivity)
        x = soft(x + steps * m, WEIGHT * steps * eta * c.mean({i: len(b) for i, b in asked.items()}))
        yield x


def fedmid(c: Case) -> Iterator[np.ndarray]:
    """The authors' program: the prox in each step, and of the length of all steps at the server."""
    x = START
    for eta, asked in c.rounds():
        ends = dict.fromkeys(asked, x)
        for i, batches in asked.items():
            for rows in batches:
                ends[i] = soft(ends[i] - eta * c.grad(ends[i], rows), WEIGHT * eta)
        length = c.a.server_step * eta * c.mean({i: len(b) for i, b in asked.items()})
        x = soft(x + c.a.server_step * (c.mean(ends) - x), WEIGHT * length)
        yield x


def feddualavg(c: Case) -> Iterator[np.ndarray]:
    """The authors' program: z sums gradients, and h has the weight of all steps so far."""
    z, elapsed = START, 0.0
    for eta, asked in c.rounds():
        ends = dict.fromkeys(asked, z)
        for i, batches in asked.items():
            for k, rows in enumerate(batches):
                ends[i] = ends[i] - eta * c.grad(soft(ends[i], WEIGHT * (elapsed + k * eta)), rows)
        elapsed += c.a.server_step * eta * c.mean({i: len(b) for i, b in asked.items()})
        z = z + c.a.server_step * (c.mean(ends) - z)
        yield soft(z, WEIGHT * elapsed)


def mr_mtl(c: Case) -> Iterator[np.ndarray]:
    """The authors' program, with sampled clients."""
    w, mean = np.tile(START, (N, 1)), START
    for eta, asked in c.rounds():
        for i, batches in asked.items():
            w[i] = c.walk(w[i], batches, eta, mu=c.a.mean_pull, to=mean)
        mean = c.shares @ w
        yield mean


def isrl_dp(c: Case) -> Iterator[np.ndarray]:
    """Lowy and Razaviyayn, Algorithm 1, with the prox for its projection, and its outputs."""
    x, path, prox = START, [], c.a.composite == "server-prox"
    for eta, asked in c.rounds():
        g = c.mean({i: c.grad(x, b[0]) for i, b in asked.items()})
        x = soft(x - eta * g, WEIGHT * eta) if prox else x - eta * (g + WEIGHT * np.sign(x))
        path.append(x)
        counts = range(1, len(path) + 1)
        weights = {
            "last": [i == len(path) for i in counts],
            "average": [1 for _ in counts],
            "weighted": counts,
        }
        yield np.average(path, 0, [*weights[c.a.final_model]])


def soteriafl(c: Case) -> Iterator[np.ndarray]:
    """The authors' program, with h and sampled clients."""
    x, s, k = START, np.zeros((N, D)), round(c.a.uplink_ratio * D)
    for t, (eta, asked) in enumerate(c.rounds(), 1):
        before, v = c.shares @ s, {}
        for i, batches in asked.items():
            sent = drawn(0, i, t, D, k)
            v[i] = np.zeros(D)
            v[i][sent] = D / k * (c.grad(x, batches[0]) - s[i])[sent]
            s[i] = s[i] + c.a.shift_step * k / D * v[i]
        x = soft(x - eta * (before + c.mean(v)), WEIGHT * eta)
        yield x


# ------------------------------------------------------------------------------------------- duals


def fedpdm(c: Case) -> Iterator[np.ndarray]:
    """Li 2024, Algorithms 1 and 2."""
    by_rows = bool(c.a.info.sizes)
    slow = slow_run(c.a, SHARDS, c.schedule, c.grad, START, ROUNDS, c.k, by_rows=by_rows)
    return (at.x0 for at in slow)


def scaffold(c: Case) -> Iterator[np.ndarray]:
    """Karimireddy et al., Algorithm 1, option II, eta_g = 1, with the prox of all steps."""
    x, total, own = START, np.zeros(D), np.zeros((N, D))
    for eta, asked in c.rounds():
        ends, changes = {}, {}
        for i, batches in asked.items():
            ends[i] = c.walk(x, batches, eta, total - own[i])  # line 10
            changes[i] = (x - ends[i]) / (len(batches) * eta) - total  # lines 12, 13
            own[i] = own[i] + changes[i]
        x = soft(c.mean(ends), WEIGHT * eta * c.mean({i: len(b) for i, b in asked.items()}))
        total = total + sum(c.shares[i] * change for i, change in changes.items())  # line 17
        yield x


def feddyn(c: Case) -> Iterator[np.ndarray]:
    """Acar et al., Algorithm 1, with gradient steps for its arg min, p_i for its 1/m, and the prox; entry by entry, of
    which some or all are sent, and one that nobody sent becomes 0."""
    alpha, theta, h, linear = c.a.alpha, START, np.zeros(D), np.zeros((N, D))
    for t, (eta, asked) in enumerate(c.rounds(), 1):
        ends = {i: c.walk(theta, b, eta, -linear[i], alpha, theta) for i, b in asked.items()}
        mean, sent = np.zeros(D), {i: drawn(0, i, t, D, round(c.a.uplink_ratio * D)) for i in asked}
        for j in range(D):
            senders = {i: end[j] for i, end in ends.items() if j in sent[i]}
            for i, end in senders.items():
                linear[i, j] = linear[i, j] - alpha * (end - theta[j])
                h[j] = h[j] - alpha * c.shares[i] * (end - theta[j])
            mean[j] = c.mean(senders) - h[j] / alpha if senders else 0.0
        theta = soft(mean, WEIGHT / alpha)
        yield theta


def fedadmm(c: Case) -> Iterator[np.ndarray]:
    """Gong et al., Algorithm 1: the server adds eta times the mean of the changes of w_i + y_i/rho."""
    rho, theta, mean = c.a.rho, START, START
    w, y = np.tile(START, (N, 1)), np.zeros((N, D))
    for step, asked in c.rounds():
        old = w + y / rho
        for i, batches in asked.items():
            start = w[i] if c.a.local_start == "warm" else theta
            w[i] = c.walk(start, batches, step, y[i], rho, theta)
            y[i] = y[i] + rho * (w[i] - theta)
        eta = c.a.server_step or c.shares[list(asked)].sum()
        mean = mean + eta * c.mean({i: w[i] + y[i] / rho - old[i] for i in asked})
        theta = soft(mean, 0.0 if c.a.regulariser is ZERO else WEIGHT / rho)
        yield theta


def feddr(c: Case) -> Iterator[np.ndarray]:
    """Tran-Dinh et al., Algorithm 1."""
    eta, xbar, xtilde = c.a.eta, START, START
    y, x, xhat = (np.tile(START, (N, 1)) for _ in range(3))
    for step, asked in c.rounds():
        for i, batches in asked.items():
            y[i] = y[i] + c.a.alpha * (xbar - x[i])
            x[i] = c.walk(x[i] if c.a.local_start == "warm" else xbar, batches, step, 0.0, 1 / eta, y[i])
            xtilde = xtilde + c.shares[i] * (2 * x[i] - y[i] - xhat[i])
            xhat[i] = 2 * x[i] - y[i]
        xbar = soft(xtilde, WEIGHT * eta)
        yield xbar


def proxskip(c: Case) -> Iterator[np.ndarray]:
    """Mishchenko et al., Algorithm 2, iteration by iteration, with the method's coins."""
    gamma, p = c.a.step_size, c.a.communication_probability
    x, h = np.tile(START, (N, 1)), np.zeros((N, D))
    for t in range(1, ROUNDS + 1):
        for left in reversed(range(c.a.steps_of(t))):
            ahead = np.array([x[i] - gamma * (c.grad(x[i], SHARDS.rows(i)) - h[i]) for i in range(N)])
            met = soft((ahead - gamma / p * h).mean(0), WEIGHT * gamma / p)
            x = ahead if left else np.tile(met, (N, 1))
            h = h + p / gamma * (x - ahead)
        yield met


def tamuna(c: Case) -> Iterator[np.ndarray]:
    """Condat et al., the authors' program with all clients: columns of a pattern with s ones in a row, permuted."""
    gamma, p, s = c.a.step_size, c.a.communication_probability, c.a.senders
    eta = c.a.control_step or p * N * (s - 1) / (s * (N - 1))
    pattern, k = np.zeros((D, N)), 0
    for j in range(D):
        for _ in range(s):
            pattern[j, k], k = 1, (k + 1) % N
    mean, h = START, np.zeros((N, D))
    for t in range(1, ROUNDS + 1):
        sent = pattern[:, stream(0, "rand-k", round_=t).permutation(N)].T
        x = np.tile(mean, (N, 1))
        for _ in range(c.a.steps_of(t)):
            x = np.array([x[i] - gamma * (c.grad(x[i], SHARDS.rows(i)) - h[i]) for i in range(N)])
        mean = (sent * x).sum(0) / s
        h = h + eta / gamma * sent * (mean - x)
        yield mean


def ldp_primal_dual(c: Case) -> Iterator[np.ndarray]:
    """Zhang 2023 (6), with the explicit dual y and the matrix L = I - 1 1^T / n, without noise."""
    gamma, pull = c.a.step_size, (c.a.scale or N) / N
    lap, y, x = np.eye(N) - 1 / N, np.zeros((N, D)), soft(np.tile(START, (N, 1)), WEIGHT * gamma * pull)
    for _ in range(ROUNDS):
        slopes = np.array([pull * c.grad(x[i], SHARDS.rows(i)) for i in range(N)])
        sent = x - gamma * (slopes + lap @ y)
        y, z = y + lap @ sent, sent - gamma * lap @ sent
        x = soft(z, WEIGHT * gamma * pull)
        yield soft(sent.mean(0), WEIGHT * gamma * pull)


# ------------------------------------------------------------------------------------------- graphs


def networked_admm(c: Case) -> Iterator[np.ndarray]:
    """Gauthier 2023 (7)-(9), node by node, at the released models; P-ADMM by proximal gradient steps to its argmin."""
    w, dual, rho = np.tile(START, (N, 1)), np.zeros((N, D)), c.a.rho
    for t in range(1, ROUNDS + 1):
        new = np.zeros((N, D))
        for k in range(N):
            weight, rows = 2 * rho * len(GRAPH[k]), SHARDS.rows(k)
            right = rho * sum(w[k] + w[o] for o in GRAPH[k]) - dual[k]
            if c.a.name == "p-admm":
                for _ in range(60):
                    slope = c.grad(new[k], rows) + weight * new[k] - right
                    new[k] = soft(new[k] - slope / (weight + 0.5), WEIGHT / (weight + 0.5))
                continue
            eta = c.a.step_size / t**c.a.step_decay
            right = right + w[k] / eta - c.grad(w[k], rows)
            prox = c.a.composite == "prox"
            right = soft(right, WEIGHT) if prox else right - WEIGHT * np.sign(w[k])
            new[k] = right / (1 / eta + weight)
        w = new
        dual = dual + rho * np.array([sum(w[k] - w[o] for o in GRAPH[k]) for k in range(N)])
        yield w.mean(0)


def networked_subgradient(c: Case) -> Iterator[np.ndarray]:
    """Nedic and Ozdaglar 2009 with Metropolis weights."""
    w, near = np.tile(START, (N, 1)), [len(others) for others in GRAPH]
    for t in range(1, ROUNDS + 1):
        new = np.zeros((N, D))
        for k in range(N):
            weights = {o: 1 / (1 + max(near[k], near[o])) for o in GRAPH[k]}
            slope = c.grad(w[k], SHARDS.rows(k)) + WEIGHT * np.sign(w[k])
            new[k] = w[k] + sum(a * (w[o] - w[k]) for o, a in weights.items())
            new[k] -= c.a.step_size / t**c.a.step_decay * slope
        w = new
        yield w.mean(0)


# ------------------------------------------------------------------------------------------- surrogates and bounds


def unbiased(c: Case, values: dict[int, Any]) -> Any:
    """sum_i p_i v_i over the clients that replied, times N over their number."""
    return N / len(values) * sum(c.shares[i] * value for i, value in values.items())


def ssca(c: Case) -> Iterator[np.ndarray]:
    """Ye 2021, Algorithm 1 by (2)-(5), with h whole in the surrogate."""
    tau, x, slope, kappa = c.a.curvature, START, np.zeros(D), 0.0
    for t, (_, asked) in enumerate(c.rounds(), 1):
        rho, gamma = c.a.averaging / t**c.a.step_decay, c.a.step_size / t ** (c.a.step_decay + 0.05)
        g = unbiased(c, {i: c.grad(x, b[0]) for i, b in asked.items()})
        slope = (1 - rho) * slope + rho * (g - 2 * tau * x)
        kappa = (1 - rho) * kappa + rho
        weight = kappa if c.a.surrogate == "exact" else 1.0
        x = (1 - gamma) * x + gamma * soft(-slope / (2 * tau * weight), WEIGHT / (2 * tau))
        yield x


def ssca_constrained(c: Case) -> Iterator[np.ndarray]:
    """Ye 2021, Algorithm 2 by (14), (15), (20)-(23) for one bound, with U in the average or outside of it."""
    tau, x, slope, a, kappa = c.a.curvature, START, np.zeros(D), 0.0, 0.0
    for t, (_, asked) in enumerate(c.rounds(), 1):
        rho, gamma = c.a.averaging / t**c.a.step_decay, c.a.step_size / t ** (c.a.step_decay + 0.05)
        g = unbiased(c, {i: c.grad(x, b[0]) for i, b in asked.items()})
        f = unbiased(c, {i: c.losses(x, b[0]).mean() - LIMIT for i, b in asked.items()})
        slope = (1 - rho) * slope + rho * (g - 2 * tau * x)
        a = (1 - rho) * a + rho * (f + tau * x @ x - g @ x)
        kappa = (1 - rho) * kappa + rho
        weight, excess = (tau * kappa, a) if c.a.surrogate == "exact" else (tau, a - (1 - kappa) * LIMIT)
        b = slope @ slope
        room = b - 4 * weight * excess
        nu = 1e5 if room <= 0 else min(max((np.sqrt(b / room) - 1) / weight, 0.0), 1e5)
        x = (1 - gamma) * x + gamma * (-nu * slope / (2 * (1 + nu * weight)))
        yield x


LIMIT = 0.68  # of the mean loss; that of class 0 has a half of it
BOUND = {"regulariser": ZERO, "constraints": f"cost <= {LIMIT}"}


def fedsgm(c: Case) -> Iterator[np.ndarray]:
    """The module's (1)-(6) with whole messages: f is the mean loss of class 1 with the penalty, g that of class 0."""
    x, s, e, kept = START, 0.0, c.a.threshold, [(0.0, START)]
    for t, (eta, asked) in enumerate(c.rounds(), 1):
        kept.append(((1 - s) * (t > 1), x))
        ends, values = dict.fromkeys(asked, x), {}
        for i, batches in asked.items():
            for rows in batches:
                weights = np.where(rows.labels, 1 - s, s) / len(rows.labels)
                slope = c.grad(ends[i], rows._replace(weights=weights)) - s * c.l2 * ends[i]
                ends[i] = ends[i] - eta * slope
            first = batches[0]
            values[i] = ((first.labels == 0) * (c.losses(x, first) - LIMIT)).mean()
        x = x + unbiased(c, {i: end - x for i, end in ends.items()})
        over = unbiased(c, values) - e
        s = (
            float(over > 0)
            if c.a.switching == "hard"
            else float(np.clip(1 + (c.a.beta or 2 / e) * over, 0, 1))
        )
        weights, points = zip(*kept, strict=True)
        output = np.average(points, 0, weights) if any(weights) else points[-1]
        yield output if c.a.final_model == "average" else x


# ------------------------------------------------------------------------------------------- optima


def everyone(shards: Shards = SHARDS) -> Batch:
    return Batch(shards.features, shards.labels)


def newton(c: Case) -> Iterator[np.ndarray]:
    """The optimum of F + h over all rows; with privacy and no noise, Newton's steps on F + h."""
    logistic, x = make_objective("logistic", D, 2, l2=c.l2), START
    if c.a.privacy == "none":
        yield central_optimum(logistic, L1(WEIGHT), everyone())
        return
    for _ in range(ROUNDS):
        odds = SHARDS.features @ x
        curvature = 1 / ((1 + np.exp(odds)) * (1 + np.exp(-odds)))
        matrix = (SHARDS.features * curvature[:, None]).T @ SHARDS.features / TOTAL + c.l2 * np.eye(D)
        gradient, v = c.grad(x, everyone()), x
        for _ in range(500):
            v = soft(v - (gradient + matrix @ (v - x)) / 0.4, WEIGHT / 0.4)
        x = v
        yield x


def newton_path(c: Case) -> Iterator[np.ndarray]:
    """For each weight the mean loss over two folds of the optima on the other rows, and the optimum on all rows."""
    logistic, rows = make_objective("logistic", D, 2, l2=c.l2), everyone()
    largest = np.abs(c.grad(np.zeros(D), rows)).max()
    net = isinstance(c.a.regulariser, ElasticNet)
    path = []
    for weight in np.geomspace(largest, c.a.ratio * largest, c.a.weights):
        h = ElasticNet(weight, weight / 2) if net else L1(weight)
        ends = [central_optimum(logistic, h, rows.kept(fold != FOLDS)) for fold in (0, 1)]
        errors = [c.losses(x, rows.kept(fold == FOLDS)).mean() for fold, x in enumerate(ends)]
        path += [
            weight,
            np.mean(errors),
            np.std(errors, ddof=1) / np.sqrt(2),
            *central_optimum(logistic, h, rows),
        ]
    yield np.array(path)


FOLDS = np.arange(TOTAL) % 2

# ------------------------------------------------------------------------------------------- the table

WALK, EQUAL = LocalSchedule(5), LocalSchedule(5, 3)  # 1 to 5 steps, by the client's rows; 3 steps
MOMENTUM, MEMORY = {"server_momentum": 0.7}, {"aggregation": "memory"}
SPARSE, WARM = {"uplink_ratio": 0.5, "uplink": "rand-k"}, {"local_start": "warm"}
GROUPS = {"regulariser": ZERO, "constraints": f"class 0 <= {LIMIT}", "minimise": "class 1"}
CLIPPED = {"loss_clip": 0.9}
PATH = {"weights": 4, "folds": 2}
SOFT = {"switching": "soft", "beta": 10.0, "threshold": 0.05}

# A method's recursion, and settings to run it with; those not named are its first ones in problems.VARIANTS.
RECURSIONS: dict[str, tuple[Callable[[Case], Iterator[np.ndarray]], list[dict[str, Any]]]] = {
    "fedpdm": (fedpdm, [{}, MEMORY | WARM, {"stopping_tolerance": 0.01}]),
    "bsdp-fedpdm": (fedpdm, [{"downlink_ratio": 0.75}, SPARSE | MEMORY]),
    "fedavg": (fedavg, [{}, MOMENTUM, MOMENTUM | {"momentum_weight": 0.6}, MEMORY]),
    "fedprox": (fedavg, [{}, MEMORY]),
    "fedadam": (fedadam, [{"adaptivity": 0.1, "second_moment": m} for m in ("adam", "yogi", "adagrad")]),
    "scaffold": (scaffold, [{}, {"final_model": "tail-mean"}]),
    "feddyn": (feddyn, [{}, SPARSE]),
    "fedadmm": (fedadmm, [{}, WARM, {"server_step": 0.7, "regulariser": ZERO}]),
    "feddr": (feddr, [{}, WARM | {"alpha": 2.0}]),
    "fedmid": (fedmid, [{"server_step": 0.7}]),
    "feddualavg": (feddualavg, [{"server_step": 0.7}]),
    "mr-mtl": (mr_mtl, [{"regulariser": ZERO}]),
    "proxskip": (proxskip, [{}]),
    "tamuna": (tamuna, [{"regulariser": ZERO}, {"regulariser": ZERO, "senders": 4, "control_step": 0.15}]),
    "isrl-dp": (
        isrl_dp,
        [{"final_model": output} for output in ("average", "weighted")]
        + [{"composite": "local-subgradient"}],
    ),
    "soteriafl": (soteriafl, [{"shift_step": 0.7}, SPARSE]),
    "ldp-primal-dual": (ldp_primal_dual, [{}, {"scale": 1.0}]),
    "ssca": (ssca, [{"averaging": 0.7}, {"averaging": 0.7, "surrogate": "literal"}]),
    "ssca-constrained": (
        ssca_constrained,
        [BOUND | CLIPPED, BOUND | {"averaging": 0.7, "surrogate": "literal"}],
    ),
    "fedsgm": (
        fedsgm,
        [GROUPS | CLIPPED, GROUPS | SOFT, GROUPS | SOFT | {"beta": 0.0, "final_model": "average"}],
    ),
    "zcdp-nfl": (networked_admm, [{}, {"composite": "prox"}]),
    "dp-nfl": (networked_admm, [{}]),
    "p-admm": (networked_admm, [{}]),
    "networked-subgradient": (networked_subgradient, [{}]),
    "newton": (newton, [{}, {"privacy": "gradient"}]),
    "newton-path": (newton_path, [PATH, PATH | {"regulariser": ElasticNet(0.02, 0.01)}]),
}


def test_every_method_has_a_recursion():
    assert set(RECURSIONS) == set(ALGORITHMS), "write the recursion of a new method as a plain loop"


def case_of(name: str, settings: dict[str, Any], weighting: str) -> Case:
    """The method with these settings, clients and weights."""
    kind, sizes = ALGORITHMS[name], SIZES if weighting == "rows" else ()
    info = RunInfo(N, ROUNDS, sizes, GRAPH if kind.networked else (), row_norm=1.0, key=7, l2=0.1)
    usual = {"regulariser": L1(WEIGHT), "step_size": 0.5, "step_decay": 0.5, "privacy": "none", "info": info}
    algorithm = method(name, **usual | {"final_model": "last"} | settings)
    everybody = kind.needs_every_client or kind.networked
    shares = np.array(SIZES) / TOTAL if sizes else np.full(N, 1 / N)
    schedule = WALK if sizes else EQUAL
    if everybody:
        schedule = LocalSchedule(0, 50 if kind.takes_local_steps else 1)
    return Case(
        algorithm, shares, N if everybody else 3, schedule, 0.0 if name == "ssca-constrained" else 0.1
    )


CASES = [
    (name, settings, weighting)
    for name, (_, listed) in RECURSIONS.items()
    for settings in listed
    for weighting in ALGORITHMS[name].weightings
]


def seen(algorithm: Any, server: Any) -> np.ndarray:
    """The model after a round; of a path, the weights, their errors with standard errors, and their models."""
    path = [np.array([p.weight, p.error, p.std_error, *p.x]) for p in algorithm.path(server, 0)]
    return np.concatenate(path) if path else algorithm.model(server)


@pytest.mark.parametrize(("name", "settings", "weighting"), CASES, ids=str)
def test_every_round_is_the_recursions(name, settings, weighting):
    case, objective = case_of(name, settings, weighting), make_objective("logistic", D, 2)
    objective = replace(objective, l2=case.l2)
    algorithm = case.a.with_noise(objective, np.zeros(N))
    steps = run(
        algorithm, replace(SHARDS, folds=FOLDS), objective, case.schedule, ROUNDS, case.k, start=START
    )
    ours, papers = [seen(algorithm, at.server) for at in steps], list(RECURSIONS[name][0](case))
    if getattr(algorithm, "final_model", "") == "tail-mean":
        half = ROUNDS // 2
        papers = [np.mean(papers[min(half, t) : t + 1], 0) for t in range(ROUNDS)]
    assert_allclose(ours[-len(papers) :], papers, rtol=0, atol=1e-9 if len(papers) == ROUNDS else 1e-6)
    assert np.abs(papers[-1][-D:] - START).max() > 0.1
