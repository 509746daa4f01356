"""Attack the published dual, and the public one: docs/figures/attack.png and the numbers of docs/guarantee.md.

    python docs/attack.py

One client with one record, Li 2024's MNIST schedule (rho = 10, eta = 0.04 / sqrt(t)) with one local step. The noise is
what would give epsilon = 1 at delta = 1e-4 in total if the sensitivity of the form were true. The attacker knows
both candidate records and everything that is sent, and keeps the broadcast where the record matters most.

The lower bounds are those of an attack on the client itself: 20,000 clients hold one candidate and 20,000 the other.
All run FedPDM's own client for 60 rounds, with the noise of a simulated private run. The attacker runs the same client
for each candidate, on what was released before, and compares the next release with its value before noise.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from twinflower.algorithms import FedPDM
from twinflower.algorithms.messages import Inbox
from twinflower.algorithms.published import published_true_sensitivities
from twinflower.arrays import Array
from twinflower.privacy import gdp_epsilon, gdp_mu
from twinflower.privacy.audit import lower_bound, neighbours, replay
from twinflower.privacy.mechanism import SimulatedNoise
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective
from twinflower.simulation.report.plot_style import COLOURS, shade
from twinflower.work import LocalWork, Noise

DELTA, RHO, ETA, ROUNDS, TRIALS = 1e-4, 10.0, 0.04, 60, 20_000
FORMS = {"as-published": "published: noise on y, private dual", "public-state": "public state: noise on x"}


def moves_of(privacy: str) -> np.ndarray:
    """How far each release moves when the record is replaced, in units of the sensitivity that scaled its noise."""
    algorithm = FedPDM(rho=RHO, step_size=ETA, step_decay=0.5, privacy=privacy, sensitivity="norm")
    objective = make_objective("logistic", 4, 2)
    data, other = (Batch(r.features[:1], r.labels[:1]) for r in neighbours(2, 4, 1.0))
    inbox = Inbox(np.array([1e3, 0, 0, 0]), np.empty(0, dtype=np.int64), np.zeros((), np.uint64))
    moves = replay(
        algorithm, objective, data, other, LocalSchedule(0, 1), objective.bounds(1.0), [inbox] * ROUNDS
    )
    return np.array([m.moved / m.sensitivity for m in moves])


def measured(moves: np.ndarray, z: float) -> np.ndarray:
    """epsilon that the attacker really has after each round: his test is between two Gaussians."""
    return np.array([gdp_epsilon(np.sqrt((moves[:t] ** 2).sum()) / z, DELTA) for t in range(1, ROUNDS + 1)])


class Released:
    """A `Noise` that remembers the values (clients, d) before noise, and releases them with noise, or given numbers."""

    def __init__(self, noise: Noise | None = None, given: Array | None = None) -> None:
        self.noise, self.given = noise, given

    def __call__(self, value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        """The numbers that are released, a copy, because the algorithm may go on with the array."""
        self.value = value.copy()
        if self.noise is not None:
            self.given = self.noise(self.value, draw, shrink)
        return self.given.copy()


def attacked(privacy: str, z: float) -> float:
    """95 % lower bound on epsilon from what clients release, by the attacker's log-likelihood ratio."""
    scores = [ratios(privacy, z, which) for which in (0, 1)]
    return lower_bound(lambda which, trial: float(scores[which][trial]), TRIALS, DELTA)


def ratios(privacy: str, z: float, which: int) -> Array:
    """The log-likelihood ratios (TRIALS,) of candidate 1 to candidate 0 for clients that hold candidate `which`."""
    algorithm = FedPDM(rho=RHO, step_size=ETA, step_decay=0.5, privacy=privacy, sensitivity="norm")
    objective, schedule, clients = make_objective("logistic", 4, 2), LocalSchedule(0, 1), np.arange(TRIALS)
    records = [Batch(r.features[:1], r.labels[:1]) for r in neighbours(2, 4, 1.0)]
    shards = [Shards.of([(r.features, r.labels)] * TRIALS) for r in records]
    bounds, start = objective.bounds(1.0), np.zeros((TRIALS, 4))
    noise_of = SimulatedNoise(algorithm, shards[which], schedule, bounds, np.full(TRIALS, z), seed=which)
    inbox = Inbox(
        np.array([1e3, 0, 0, 0]) + start, np.empty((TRIALS, 0), dtype=np.int64), np.zeros(TRIALS, np.uint64)
    )
    states, total = [algorithm.init_client(start)] * 2, np.zeros(TRIALS)
    for round_ in range(1, ROUNDS + 1):
        noise = noise_of(round_, clients)
        tape = Released(noise)
        for held in (
            which,
            1 - which,
        ):  # the client, then the attacker's other candidate with the same releases
            own = tape if held == which else Released(given=tape.given)
            batches = schedule.batches(shards[held], clients, 0, round_)
            states[held], *_ = algorithm.client_update(
                states[held], inbox, LocalWork(objective, batches, own, round_)
            )
            away = ((tape.given - own.value) ** 2).sum(-1) / (2 * np.squeeze(noise.sigma, -1) ** 2)
            total += away if held == 0 else -away
    return total


def main() -> None:
    """Draw the figure and print the numbers."""
    z = np.sqrt(ROUNDS) / gdp_mu(1.0, DELTA)
    rounds = np.arange(1, ROUNDS + 1)
    claim = [gdp_epsilon(np.sqrt(t) / z, DELTA) for t in rounds]
    bounds = make_objective("logistic", 4, 2).bounds(1.0)
    etas = [ETA / np.sqrt(t) for t in rounds]
    true = np.array(published_true_sensitivities(bounds, etas, RHO, 1))
    claimed = np.array([4 * eta for eta in etas])
    figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
    worst = measured(true / claimed, z)
    ax.plot(
        rounds, worst, color="black", alpha=0.25, linewidth=5, label="published: worst case by derivation"
    )
    colors = [shade(COLOURS["fedpdm"], nth, 2) for nth in range(2)]
    for color, (privacy, label) in zip(colors, FORMS.items(), strict=True):
        moves = moves_of(privacy)
        ax.plot(rounds, measured(moves, z), color=color, label=label)
        bound = attacked(privacy, z)
        ax.plot(
            [ROUNDS], [bound], "v", color=color, label=f"lower bound from 2 x {TRIALS:,} attacked clients"
        )
        print(f"{privacy}: epsilon {measured(moves, z)[-1]:.3f}, lower bound by the attack {bound:.2f}")
    ax.plot(rounds, claim, "k--", label="what both forms say")
    print(f"said: {claim[-1]:.3f}; published form by derivation: {worst[-1]:.3f}")
    ax.set_xlabel("communication round")
    ax.set_ylabel(f"epsilon at delta = {DELTA:g}")
    ax.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(Path(__file__).parent / "figures" / "attack.png", dpi=130)


if __name__ == "__main__":
    main()
