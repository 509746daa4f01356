"""Flower apps with and without faults in their privacy, for `twinflower audit examples/audit/gallery.py`.

Each case is a small app of our own after a public pattern; `about` names the source. Cases whose names begin with
"right:" keep their claim, all others do not.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from twinflower import audit
from twinflower.privacy import gdp_epsilon, gdp_mu
from twinflower.privacy.audit import neighbours
from twinflower.problems.interfaces import Batch
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.settings import parse

DIMENSION, DELTA = 6, 1e-4
Rows = Mapping[str, np.ndarray]
Result = tuple[np.ndarray, dict[str, Any]]
Step = Callable[[Rows, np.ndarray, Context, np.random.Generator], Result]


def own_rows() -> Rows:
    """The data of the client: 20 rows of norm 1 with labels -1 and 1."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(20, DIMENSION))
    return {"x": x / np.linalg.norm(x, axis=1, keepdims=True), "label": draws.choice([-1.0, 1.0], 20)}


def slopes(data: Rows, model: np.ndarray) -> np.ndarray:
    """The gradients (rows, d) of the logistic loss for rows shortened to norm 1, each of norm at most 1."""
    x = data["x"] / np.maximum(np.linalg.norm(data["x"], axis=1, keepdims=True), 1)
    margins = np.clip(data["label"] * (x @ model), -500, 500)
    return -(data["label"] / (1 + np.exp(margins)))[:, None] * x


def trained(data: Rows, model: np.ndarray) -> np.ndarray:
    """The model after a long step; never exactly the received one, by which LocalDpMod would divide by zero."""
    return model - 10 * slopes(data, model).mean(0) + 1e-12


def app_of(step: Step, mods: Sequence[Any] = ()) -> Callable[[Rows, int], ClientApp]:
    """An app that replies to every model with step(rows, model, context, generator)."""

    def app(data: Rows, seed: int) -> ClientApp:
        """The app of a site with these rows."""
        made, draws = ClientApp(mods=list(mods)), np.random.default_rng(seed)

        @made.train()
        def train(message: Message, context: Context) -> Message:
            """The reply of a round."""
            (model,) = message.content["arrays"].to_numpy_ndarrays()
            model, metrics = step(data, model, context, draws)
            content = {
                "arrays": ArrayRecord([model]),
                "metrics": MetricRecord({"num-examples": 20} | metrics),
            }
            return Message(RecordDict(content), reply_to=message)

        return made

    return app


def client_case(
    name: str,
    app: Callable[[Rows, int], ClientApp],
    claim: audit.Claim,
    rounds: int = 1,
    *more: Any,
    **keys: Any,
) -> audit.Case:
    """The case of an app on the rows above."""
    return audit.client_case(name, app, [np.zeros(DIMENSION)], own_rows(), claim, rounds, *more, **keys)


# ------------------------------------------------------------------------------------------ Flower's LocalDpMod


def local_dp_case(
    name: str, mod: LocalDpMod, claim: audit.Claim, rounds: int = 1, about: str = ""
) -> audit.Case:
    """An app with Flower's LocalDpMod."""
    app = app_of(lambda data, model, *_: (trained(data, model), {}), [mod])
    only = ["the model as given", "a far model"] if rounds > 10 else []
    return client_case(name, app, claim, rounds, audit.of_local_dp_mod(mod, rounds), about=about, only=only)


def local_dp_cases() -> Iterator[audit.Case]:
    """Flower's mod for local differential privacy: noise not tied to the clipping, and no sum over rounds."""
    yield local_dp_case(
        "sensitivity not tied to the clipping norm",
        LocalDpMod(1.0, 1e-4, 8.0, DELTA),
        audit.Claim(8.0, DELTA),
        about="LocalDpMod takes both as independent arguments; an app of a hospital platform has 1 and 1e-4 (FLIP "
        "pull request 833)",
    )
    yield local_dp_case(
        "rounds not composed",
        LocalDpMod(1.0, 2.0, 8.0, DELTA),
        audit.Claim(8.0, DELTA),
        rounds=30,
        about="LocalDpMod names the epsilon of one round; 30 rounds of (8, 1e-4) are about 87.6 in all",
    )
    yield client_case(
        "LocalDpMod fails for an update of zero",
        app_of(
            lambda data, model, *_: (model - slopes(data, model).mean(0), {}),
            [LocalDpMod(1.0, 2.0, 2.0, DELTA)],
        ),
        audit.Claim(2.0, DELTA),
        about="it divides by the norm of the update: whether a client answers shows whether its slopes cancel",
    )
    total = gdp_epsilon(math.sqrt(5) * 8.0 / math.sqrt(2 * math.log(1.25 / DELTA)), DELTA)
    yield local_dp_case(
        "right: LocalDpMod with twice the clipping norm, composed",
        LocalDpMod(1.0, 2.0, 8.0, DELTA),
        audit.Claim(total, DELTA),
        rounds=5,
        about="the sensitivity is 2 clipping_norm, and the claim is the exact epsilon of all five rounds",
    )


# ------------------------------------------------------------------------------------------------- clip and noise


class Engine:
    """Adds up slopes of norm 1, adds noise of z times the sensitivity 2, and counts its steps: what libraries for
    private training do, for the replacement of a record."""

    def __init__(self, multiplier: float, draws: np.random.Generator) -> None:
        self.multiplier, self.draws, self.steps = multiplier, draws, 0

    def sum(self, data: Rows, model: np.ndarray) -> np.ndarray:
        """A noisy sum of slopes."""
        self.steps += 1
        return slopes(data, model).sum(0) + 2 * self.multiplier * self.draws.normal(size=model.shape)

    def epsilon(self, steps: int = 0) -> float:
        """The exact epsilon of so many steps, by default of those so far."""
        return gdp_epsilon(math.sqrt(steps or self.steps) / self.multiplier, DELTA)


def engine_step(multiplier: float, steps: int) -> Step:
    """Local steps with an engine that is new in every round; the app prints the epsilon of this engine."""

    def step(data: Rows, model: np.ndarray, context: Context, draws: np.random.Generator) -> Result:
        engine = Engine(multiplier, draws)
        for _ in range(steps):
            model = model - 0.1 * engine.sum(data, model)
        return model, {"epsilon": engine.epsilon()}

    return step


def sampled_step(multiplier: float, rate: float, steps: int) -> Step:
    """Local steps on records that are sampled with a rate; adding or removing one moves a sum by 1."""

    def step(data: Rows, model: np.ndarray, context: Context, draws: np.random.Generator) -> Result:
        """All local steps of a round."""
        total = np.zeros_like(model)
        for _ in range(steps):
            chosen = draws.random(len(data["label"])) < rate
            noise = multiplier * draws.normal(size=model.shape)
            total += slopes({name: column[chosen] for name, column in data.items()}, model).sum(0) + noise
        return total, {}

    return step


def engine_cases() -> Iterator[audit.Case]:
    """Private training whose printed epsilon is not that of everything released."""
    z, steps, rounds = 4.0, 2, 10
    releases = [audit.GaussianRelease(2.0, 2 * z, steps * rounds)]
    engine = Engine(z, np.random.default_rng(0))
    yield client_case(
        "an engine made anew in every round", app_of(engine_step(z, steps)), audit.Claim(engine.epsilon(steps), DELTA),
        rounds, releases,
        about="Flower's example with Opacus makes a new engine in every round, and prints the epsilon of that engine; "
        "so does the private strategy of FLamby's benchmark",
    )  # fmt: skip
    yield client_case(
        "right: an engine that counts all rounds", app_of(engine_step(z, steps)),
        audit.Claim(engine.epsilon(steps * rounds), DELTA), rounds, releases,
        about="the same with the epsilon of all steps",
    )  # fmt: skip
    yield client_case(
        "one step is accounted for, eight are made", app_of(engine_step(z, 8)), audit.Claim(engine.epsilon(1), DELTA),
        declared=[audit.GaussianRelease(2.0, 2 * z, 8)],
        about="the number of steps in the accounting is a constant 1 (FL-bench pull request 200)",
    )  # fmt: skip
    rate, epochs, batches = 0.25, 10, 4
    told, made = (
        [audit.GaussianRelease(1.0, 0.8, n, rate, "add or remove")] for n in (epochs, epochs * batches)
    )
    yield client_case(
        "epochs are accounted for as steps", app_of(sampled_step(0.8, rate, epochs * batches)),
        audit.Claim(audit.certified(told, DELTA).epsilon, DELTA, "add or remove"), declared=made,
        about="an accountant of steps that is given the number of epochs instead of the number of steps",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- single faults


def faulty(fault: str, sigma: float) -> Step:
    """A noisy sum of slopes with a fault."""

    def step(data: Rows, model: np.ndarray, context: Context, draws: np.random.Generator) -> Result:
        """The noisy sum of a round."""
        total, noise, metrics = slopes(data, model).sum(0), draws.normal(size=model.shape), {}
        if fault == "reused":
            context.state.setdefault("noise", ArrayRecord([noise]))
            (noise,) = context.state["noise"].to_numpy_ndarrays()
        scale = {"none": 0.0, "scaled": sigma * np.linalg.norm(total)}.get(fault, sigma)
        if fault == "labels":
            metrics["positives"] = int((data["label"] > 0).sum())
        if fault == "steps":
            metrics["local-steps"] = int(np.ceil(1e3 * np.linalg.norm(total)))
        if fault == "error" and np.abs(data["x"]).max() > 100:
            raise ValueError("a feature is out of range")
        return total + scale * noise, metrics

    return step


FAULTS = {
    "none": (
        "values without noise",
        "NVFlare issue 343: a privacy filter that released its values without noise",
    ),
    "reused": ("noise reused in every round", "a generator that is seeded in every round with the same seed"),
    "scaled": (
        "noise scaled by the data",
        "noise scaled by the norm of what is released, not by a public bound",
    ),
    "labels": ("labels counted in the metrics", "metrics are sent as they are, beside a noisy model"),
    "steps": (
        "a number of steps that depends on the data",
        "steps until convergence, reported beside a noisy model",
    ),
    "error": (
        "an error that depends on a record",
        "a check of the rows that raises, whose text Flower sends",
    ),
}


def fault_cases() -> Iterator[audit.Case]:
    """Mechanisms that would be right but for one fault. Replacing a record moves a sum of slopes by up to 2."""
    claim, rounds = audit.Claim(2.0, DELTA), 3
    sigma = 2 * math.sqrt(rounds) / gdp_mu(2.0, DELTA)
    releases = [audit.GaussianRelease(2.0, sigma, rounds)]  # what each of them declares
    for fault, (name, about) in FAULTS.items():
        yield client_case(name, app_of(faulty(fault, sigma)), claim, rounds, releases, about=about)
    yield client_case(
        "right: noisy sums of slopes", app_of(faulty("", sigma)), claim, rounds,
        releases, about="three releases, with noise for all three together",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- central mechanisms


def central_case(
    name: str,
    num_examples: Sequence[int],
    second: np.ndarray,
    about: str,
    multiplier: float = 3.0,
    rounds: int = 2,
) -> audit.Case:
    """Flower's central differential privacy with fixed clipping at 1; the first client's update becomes `second`."""
    first = np.eye(1, DIMENSION)[0]

    def strategy() -> DifferentialPrivacyServerSideFixedClipping:
        return DifferentialPrivacyServerSideFixedClipping(FedAvg(), multiplier, 1.0, len(num_examples))

    others = [audit.Update([np.full(DIMENSION, 0.1)], rows) for rows in num_examples[1:]]
    pair = tuple([audit.Update([change], num_examples[0]), *others] for change in (first, second))
    claim = audit.Claim(gdp_epsilon(math.sqrt(rounds) / multiplier, DELTA), DELTA, "zero")
    return audit.Case(
        name,
        {"rounds": audit.server(strategy, [np.zeros(DIMENSION)], rounds)},
        {"the first client's update, and another": pair},
        claim,
        audit.of_fixed_clipping(strategy(), rounds, num_examples),
        frozenset({"metrics/num-examples"}),
        about,
    )


def central_cases() -> Iterator[audit.Case]:
    """The mean over the clients is released with noise of z clipping_norm / K for K clients."""
    nearly_zero, zero = np.full(DIMENSION, 1e-9), np.zeros(DIMENSION)
    unequal = [990, *[10] * 9]
    yield central_case(
        "central noise for equal weights, weights by rows", unequal, nearly_zero,
        "FedAvg weights by rows: a client of 990 of 1,080 rows moves the mean by .92 of the clipping norm, not by .1",
    )  # fmt: skip
    yield central_case(
        "right: central noise, equal weights", [10] * 10, nearly_zero, "the same with equal numbers of rows"
    )
    yield central_case(
        "central: an update of zero is an error",
        [10] * 10,
        zero,
        "flwr 1.42 divides by the norm of every update",
    )
    yield central_case(
        "central: one NaN",
        [10] * 10,
        np.full(DIMENSION, np.nan),
        "flwr 1.42 neither refuses nor replaces NaN",
    )


# ---------------------------------------------------------------------------------------------------- our own


OURS = {
    "data.name": "breast-cancer",
    "objective.name": "logistic",
    "clients.count": 4,
    "local.max-steps": 2,
    "step-size": 0.4,
}


def own_cases() -> Iterator[audit.Case]:
    """Private runs of Twinflower, and FedPDM as its paper has it."""
    for mode in ("public-state", "gradient"):
        keys = {"rho": 0.5, "privacy.mode": mode, "epsilon": 1.0, "rounds": 5}
        yield audit.twinflower_case(f"right: FedPDM, {mode}", OURS | keys)
    rounds = 20
    published = {
        "privacy.mode": "as-published", "local.max-steps": 1, "rho": 0.3, "step-size": 0.5, "rounds": rounds,
        "noise-multiplier": math.sqrt(rounds) / gdp_mu(1.0, DELTA),
    }  # fmt: skip
    setup = prepare(parse(OURS | published))
    pair = neighbours(2, setup.dataset.features.shape[1], setup.row_norm)
    first, second = (Batch(rows.features[:1], rows.labels[:1]) for rows in pair)
    yield audit.setup_case(
        "a private dual is carried over the rounds",
        setup,
        audit.Claim(1.0, DELTA),
        "FedPDM-DP as published: its sensitivity holds for one round, and the un-noised dual carries on",
        {"the only row reversed": (first, second)},
    )


def cases() -> list[audit.Case]:
    """All cases."""
    groups = local_dp_cases, engine_cases, fault_cases, central_cases, own_cases
    return [case for group in groups for case in group()]
