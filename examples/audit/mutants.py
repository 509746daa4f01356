"""Private clients of Twinflower with a planted fault each, for `twinflower audit examples/audit/mutants.py`.

A fault replaces a method while a case runs. Faults and algorithms were paired at random.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from twinflower import audit
from twinflower.algorithms import ALGORITHMS
from twinflower.clients import AlgorithmClient
from twinflower.errors import ReplyError
from twinflower.models.evaluation import evaluate
from twinflower.privacy.guard import Guard
from twinflower.privacy.mechanism import GaussianNoise, seeded
from twinflower.problems.batches import LocalSchedule
from twinflower.simulation.audit.transcript import Transcript
from twinflower.work import no_noise

Patches = Mapping[tuple[type, str], Any]
SEED, NUMBER = 2026, 20
RUN = {
    "data.name": "breast-cancer",
    "objective.name": "logistic",
    "clients.count": 4,
    "rounds": 4,
    "privacy.epsilon": 1.0,
}
LOCAL = {"privacy.mode": "public-state", "step-size": 0.4, "local.max-steps": 2}
METHODS: dict[str, dict[str, Any]] = {
    "FedPDM": LOCAL | {"algorithm": "fedpdm", "rho": 0.5},
    "FedPDM with noisy gradients": LOCAL | {"algorithm": "fedpdm", "rho": 0.5, "privacy.mode": "gradient"},
    "FedAvg": LOCAL | {"algorithm": "fedavg"},
    "SCAFFOLD": LOCAL | {"algorithm": "scaffold"},
    "FedDyn": LOCAL | {"algorithm": "feddyn"},
    "FedADMM": LOCAL | {"algorithm": "fedadmm"},
    "ISRL-DP": {"algorithm": "isrl-dp", "privacy.mode": "gradient", "step-size": 0.4},
    "SSCA": {"algorithm": "ssca", "privacy.mode": "gradient"},
}

open_guard, admitted, add_noise = Guard.open, Guard.admitted, GaussianNoise.__call__


def mutant(case: audit.Case, name: str, patches: Patches, about: str = "") -> audit.Case:
    """The case with methods replaced while it runs."""

    def patched(mechanism: audit.Mechanism) -> audit.Mechanism:
        """A mechanism with these methods."""

        def run(data: Any, seed: int) -> Transcript:
            with ExitStack() as stack:
                for (owner, method), function in patches.items():
                    stack.enter_context(patch.object(owner, method, function))
                return mechanism(data, seed)

        return run

    mechanisms = {how: patched(mechanism) for how, mechanism in case.mechanisms.items()}
    return replace(case, name=name, mechanisms=mechanisms, about=about or case.about)


# --------------------------------------------------------------------------------------------------- the faults


def scaled(factor: Callable[[GaussianNoise, np.ndarray], Any]) -> Patches:
    """Noise whose deviation is multiplied by factor(noise, value)."""

    def call(self: GaussianNoise, value: np.ndarray, draw: int = 0, shrink: Any = 1.0) -> np.ndarray:
        return add_noise(self, value, draw, shrink * factor(self, value))

    return {(GaussianNoise, "__call__"): call}


def drawn(change: Callable[[np.ndarray], np.ndarray]) -> Patches:
    """Noise from changed draws."""

    def call(self: GaussianNoise, value: np.ndarray, draw: int = 0, shrink: Any = 1.0) -> np.ndarray:
        return value + self.sigma * shrink * change(self.draws(draw, value.shape))

    return {(GaussianNoise, "__call__"): call}


def opened(change: Callable[[GaussianNoise, Guard, int], Any]) -> Patches:
    """A guard that returns other noise: change(noise, guard, round)."""

    def open_(self: Guard, release: Any, round_: int, *others: Any) -> Any:
        return change(open_guard(self, release, round_, *others), self, round_)

    return {(Guard, "open"): open_}


def reported(metrics: Callable[[AlgorithmClient, Any], Mapping[str, Any]]) -> Patches:
    """A reply with these metrics."""

    def measured(self: AlgorithmClient, report: Any, parameters: Any) -> dict[str, Any]:
        return dict(metrics(self, parameters))

    return {(AlgorithmClient, "_measured"): measured}


def own_rows(client: AlgorithmClient) -> Any:
    return client.shards.rows(client.client)


def loss(client: AlgorithmClient, parameters: Any) -> dict[str, float]:
    inbox = client.algorithm.inbox.unpack(parameters, client.objective.d)._asdict()
    return {"loss": evaluate(client.objective, inbox.get("x0", inbox.get("x")), own_rows(client)).loss}


def first_draw(client: AlgorithmClient) -> float:
    assert client.guard
    return float(client.guard.draws(1)(0, (client.objective.d,))[0])


def refuse_long(self: Guard, rows: Any) -> Any:
    if np.linalg.norm(rows.features, axis=1).max() > self.row_norm * (1 + 1e-9):
        raise ReplyError("a row is too long")
    return rows


def of_one_step(self: LocalSchedule, rows: int) -> Any:
    return workload(self, rows)._replace(steps=1)


workload = LocalSchedule.workload


def weighed(self: AlgorithmClient, reply: Any, parameters: Any, request: Any) -> Any:
    share = float((own_rows(self).labels > 0).mean())
    return [array * share if array.dtype.kind == "f" else array for array in reply]


def updated(algorithm: type, change: Callable[..., Any]) -> Patches:
    """A local update that is replaced by change(update, algorithm, state, inbox, work)."""
    update = algorithm.client_update

    def call(self: Any, state: Any, inbox: Any, work: Any) -> Any:
        return change(update, self, state, inbox, work)

    return {(algorithm, "client_update"): call}


def private_state(update: Any, algorithm: Any, state: Any, inbox: Any, work: Any) -> Any:
    noisy, plain = (update(algorithm, state, inbox, w) for w in (work, work._replace(noise=no_noise)))
    return plain[0], *noisy[1:]


def noise_first(update: Any, algorithm: Any, state: Any, inbox: Any, work: Any) -> Any:
    start = inbox._replace(**{inbox._fields[0]: work.noise(inbox[0])})
    return update(algorithm, state, start, work._replace(noise=no_noise))


FAULTS: dict[str, Callable[[type], Patches]] = {
    "no noise": lambda _: drawn(lambda z: 0 * z),
    "no noise on the first number": lambda _: drawn(lambda z: np.where(np.arange(z.size), z, 0)),
    "no noise in the third round": lambda _: opened(lambda noise, _, t: no_noise if t == 3 else noise),
    "the same noise in every round": lambda _: opened(lambda noise, own, _: replace(noise, draws=own.draws(1))),
    "one draw for all numbers": lambda _: drawn(lambda z: np.full_like(z, z[0])),
    "half of the noise": lambda _: scaled(lambda *_: 0.5),
    "nine tenths of the noise": lambda _: scaled(lambda *_: 0.9),
    "the variance as deviation": lambda _: scaled(lambda noise, _: noise.sigma),
    "noise scaled by the value": lambda _: scaled(lambda _, value: min(1.0, 10 * float(np.linalg.norm(value)))),
    "noise cut off at one deviation": lambda _: drawn(lambda z: np.clip(z, -1, 1)),
    "uniform noise": lambda _: drawn(lambda z: np.sqrt(12) * (np.modf(np.abs(z) * 1e3)[0] - 0.5)),
    "noise divided by the rows once more": lambda _: opened(lambda noise, *_: replace(noise, sigma=noise.sigma / 114)),
    "a fixed seed": lambda _: opened(lambda noise, _, t: replace(noise, draws=seeded(0, 0, t))),
    "rows not shortened": lambda _: {(Guard, "admitted"): lambda self, rows: rows},
    "an error for a long row": lambda _: {(Guard, "admitted"): refuse_long},
    "the sensitivity of one step for two": lambda _: {(LocalSchedule, "workload"): of_one_step},
    "the loss in the metrics": lambda _: reported(loss),
    "a count of labels in the metrics": lambda _: reported(
        lambda client, _: {"positives": int((own_rows(client).labels > 0).sum())}
    ),
    "a draw of the noise in the metrics": lambda _: reported(lambda client, _: {"draw": first_draw(client)}),
    "a key of the noise in the metrics": lambda _: reported(
        lambda client, _: {"key": hash(first_draw(client)) & 0xFFFFFFFF}
    ),
    "a weight that depends on labels": lambda _: {(AlgorithmClient, "_sealed"): weighed},
    "a state from before the noise": lambda method: updated(method, private_state),
    "noise before the local steps": lambda method: updated(method, noise_first),
}  # fmt: skip


def chosen() -> Iterator[tuple[str, str]]:
    """Faults and methods, paired at random."""
    draws = np.random.default_rng(SEED)
    faults = draws.permutation(list(FAULTS))[:NUMBER]
    return zip(faults, draws.choice(list(METHODS), NUMBER), strict=True)


def cases() -> list[audit.Case]:
    """The mutants."""
    return [mutated(str(fault), str(method)) for fault, method in chosen()]


def mutated(fault: str, method: str) -> audit.Case:
    """A method with a fault."""
    keys = METHODS[method]
    case = audit.twinflower_case(method, RUN | keys)
    return mutant(case, f"{fault}: {method}", FAULTS[fault](ALGORITHMS[keys["algorithm"]]))


def originals() -> list[audit.Case]:
    """The methods without a fault."""
    return [audit.twinflower_case(f"right: {method}", RUN | keys) for method, keys in METHODS.items()]
