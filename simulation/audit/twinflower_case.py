"""Our own clients as a case, with the noise seeded and everything else as at a deployed site."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from twinflower.algorithms.echo import Echoed
from twinflower.arrays import Array
from twinflower.clients import CLIENTS
from twinflower.clients.store import ContextLedger
from twinflower.errors import require
from twinflower.privacy import gdp_epsilon
from twinflower.privacy.audit import neighbours
from twinflower.privacy.mechanism import seeded
from twinflower.problems.interfaces import Batch

from ..runs.setup import PreparedRun, prepare
from ..settings import parse
from .cases import Case, Claim
from .declared import GaussianRelease
from .recorder import Request, client, numpy_request

_FAR = 1e3  # of the model at which the rows of `neighbours` are strongly misclassified


def twinflower_case(
    name: str, *settings: Mapping[str, Any], claim: Claim | None = None, about: str = ""
) -> Case:
    """The first client of a private run with these settings, such as {"algorithm": "fedpdm", "privacy.epsilon": 1.0}.

    The claim is by default the run's epsilon and delta, and the declared releases are those of its plan. Not for runs
    of sums, networked methods, and counts before round 1, as for private ranges, whose clients need more than one
    server message a round.
    """
    setup = prepare(parse(*settings))
    keys = ", ".join(f"{key} = {value}" for part in settings for key, value in part.items())
    return setup_case(name, setup, claim, about or f"a run with {keys}")


def setup_case(
    name: str,
    setup: PreparedRun,
    claim: Claim | None = None,
    about: str = "",
    pairs: Mapping[str, tuple[Batch, Batch]] | None = None,
) -> Case:
    """The same for a run that is set up. pairs: by default extreme rows, and the client's own with one replaced."""
    require(setup.plan is not None, "an audit needs a private run: set privacy.mode and privacy.epsilon")
    require(
        setup.sums is None and not setup.neighbours, "an audit of sums and of networked methods is not built"
    )
    assert setup.plan
    mu, delta = float(setup.plan.mu[0]), setup.plan.delta
    epsilon = float(setup.config.items()["privacy.epsilon"])
    app = client_app(setup)
    return Case(
        name,
        {how: client(app, list(_requests(setup, models))) for how, models in _models(setup).items()},
        pairs or dict(_pairs(setup)),
        claim or Claim(epsilon or gdp_epsilon(mu, delta), delta),
        [GaussianRelease(mu, 1.0)],
        about=about,
    )


def client_app(setup: PreparedRun) -> Any:
    """The function (rows, seed) -> ClientApp of the run's first client with other rows, a `Batch`; its ledger is in
    Flower's context."""

    def app(rows: Batch, seed: int) -> ClientApp:
        def client_fn(context: Context) -> Client:
            assert setup.plan
            guard = setup.plan.guard(0, ContextLedger(context.state), run="audit", row_norm=setup.row_norm)
            guard = replace(guard, draws=lambda round_: seeded(seed, 0, round_))
            kind, count = CLIENTS[setup.config.algorithm], setup.config.clients.count
            return kind(
                context, setup.algorithm, setup.objective, rows, setup.start, 0, count, setup.schedule, guard=guard
            ).to_client()  # fmt: skip

        return ClientApp(client_fn)

    return app


def _models(setup: PreparedRun) -> dict[str, list[Array]]:
    """The models that the server sends in all rounds, by name."""
    features = setup.dataset.features.shape[1]
    first = np.zeros((features, setup.objective.d // features))
    first[0, 0] = -_FAR if first.shape[1] > 1 else _FAR
    by_feature, by_class, rounds = first.ravel(), first.T.ravel(), range(setup.config.rounds)
    return {
        "the model at its start": [setup.start for _ in rounds],
        "a far model": [by_feature for _ in rounds],
        "a far model, by class": [by_class for _ in rounds],
        "far models of both signs in turn": [by_feature * (-1) ** t for t in rounds],
    }


def _requests(setup: PreparedRun, models: list[Array]) -> Iterator[Request]:
    """The requests of a server that has counted every reply so far."""
    algorithm = setup.algorithm
    for round_, x in enumerate(models, 1):
        server = algorithm.init_server(x, 1, np.array(0, np.uint64))
        if isinstance(algorithm, Echoed):
            server = server._replace(heard=np.array([round_ - 1]))
        inbox = algorithm.broadcast(server, round_, np.array(0))
        yield numpy_request(algorithm.inbox.pack(inbox, setup.objective.d), {"round": round_})


def _pairs(setup: PreparedRun) -> Iterator[tuple[str, tuple[Batch, Batch]]]:
    """Data sets of as many rows as the client has: extreme ones, and its own with a row replaced."""
    own, public = setup.shards.rows(0), setup.dataset.weight_range
    size, weight = (len(own.labels), own.features.shape[1], setup.row_norm), public.high if public else None
    if np.isfinite(setup.row_norm):
        yield "one of many saturated rows reversed", neighbours(*size, weight=weight)
        yield "one of many saturated rows reversed, steep", neighbours(*size, tilt=0.3, weight=weight)
    if public:
        light, heavy = (_with_first_weight(own, weight) for weight in (public.low, _FAR * public.high))
        yield "its first row far heavier than allowed", (light, heavy)
    yield (
        "its first row far longer than allowed",
        (own, _with_first(own, -_FAR * own.features[0], own.labels[0])),
    )
    other = np.unique(own.labels[own.labels != own.labels[0]])[-1]
    yield "its first row with another label", (own, _with_first(own, own.features[0], other))


def _with_first(rows: Batch, features: Array, label: Any) -> Batch:
    """The rows with another first one."""
    changed = rows._replace(features=rows.features.copy(), labels=rows.labels.copy())
    changed.features[0], changed.labels[0] = features, label
    return changed


def _with_first_weight(rows: Batch, weight: float) -> Batch:
    """The rows with another weight of the first one."""
    assert rows.row_weights is not None
    weights = rows.row_weights.copy()
    weights[0] = weight
    return rows._replace(row_weights=weights)
