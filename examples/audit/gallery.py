"""Flower apps with and without faults in their privacy, for `twinflower audit examples/audit/gallery.py`.

Each case is a small app of our own after a public pattern; `about` names the source. Cases whose names begin with
"right:" keep their claim, all others do not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod

from twinflower import audit
from twinflower.privacy import gdp_epsilon, gdp_mu

DIMENSION, DELTA = 6, 1e-4
Rows = Mapping[str, np.ndarray]
Metrics = dict[str, Any]


def rows() -> Rows:
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


def app_of(
    step: Callable[[Rows, np.ndarray, Context, np.random.Generator], tuple[np.ndarray, Metrics]],
    mods: Sequence[Any] = (),
) -> Callable[[Rows, int], ClientApp]:
    """An app that replies to every model with step(rows, model, context, generator)."""

    def app(data: Rows, seed: int) -> ClientApp:
        made, draws = ClientApp(mods=list(mods)), np.random.default_rng(seed)

        @made.train()
        def train(message: Message, context: Context) -> Message:
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
    declared: Sequence[audit.GaussianRelease] = (),
    about: str = "",
) -> audit.Case:
    """The case of an app under the messages and on the pairs that the library proposes."""
    plans = audit.messages([np.zeros(DIMENSION)], rounds)
    mechanisms = {how: audit.client(app, requests) for how, requests in plans.items()}
    return audit.Case(name, mechanisms, audit.pairs(rows()), claim, declared, about=about)


# ------------------------------------------------------------------------------------------ Flower's LocalDpMod


def local_dp_case(
    name: str, mod: LocalDpMod, claim: audit.Claim, rounds: int = 1, about: str = ""
) -> audit.Case:
    """An app with Flower's LocalDpMod."""
    app = app_of(lambda data, model, *_: (trained(data, model), {}), [mod])
    return client_case(name, app, claim, rounds, audit.of_local_dp_mod(mod, rounds), about)


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
    total = gdp_epsilon(np.sqrt(5) * 8.0 / np.sqrt(2 * np.log(1.25 / DELTA)), DELTA)
    yield local_dp_case(
        "right: LocalDpMod with twice the clipping norm, composed",
        LocalDpMod(1.0, 2.0, 8.0, DELTA),
        audit.Claim(total, DELTA),
        rounds=5,
        about="the sensitivity is 2 clipping_norm, and the claim is the exact epsilon of all five rounds",
    )


# ------------------------------------------------------------------------------------------------- own mechanisms


def noisy_step(sigma: float) -> Callable[..., tuple[np.ndarray, Metrics]]:
    """A step that releases the sum of the slopes with noise."""
    return lambda data, model, context, draws: (
        slopes(data, model).sum(0) + sigma * draws.normal(size=DIMENSION), {}
    )  # fmt: skip


def own_cases() -> Iterator[audit.Case]:
    """Small mechanisms; replacing a record moves a sum of slopes of norm up to 1 by up to 2."""
    claim = audit.Claim(2.0, DELTA)
    yield client_case(
        "values without noise", app_of(noisy_step(0.0)), claim,
        about="NVFlare issue 343: a privacy filter that released its values without noise",
    )  # fmt: skip
    sigma = 2 * np.sqrt(3) / gdp_mu(2.0, DELTA)
    yield client_case(
        "right: noisy sums of slopes", app_of(noisy_step(sigma)), claim, 3, [audit.GaussianRelease(2.0, sigma, 3)],
        about="three releases, with noise for all three together",
    )  # fmt: skip


def cases() -> list[audit.Case]:
    """All cases."""
    return [*local_dp_cases(), *own_cases()]
