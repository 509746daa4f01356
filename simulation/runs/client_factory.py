"""The clients of a run, and what each of them gets: guard, ledger, store, masks."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context

from twinflower.clients import CLIENTS, AlgorithmClient, SumClient
from twinflower.clients.store import ContextLedger, ContextStore, FileStore, SeededLedger
from twinflower.clients.sums import Masks
from twinflower.privacy.charges import Ledger
from twinflower.privacy.exact_rounds import ExactRounds
from twinflower.privacy.guard import Guard
from twinflower.privacy.ledger import fingerprint
from twinflower.queries.held_out import split
from twinflower.sums.masks import Identity, simulated

from .facts import all_rows
from .setup import PreparedRun


def guard_of(setup: PreparedRun, number: int, ledger: Ledger, run: str) -> Guard | None:
    """The guard of one simulated client, with the same seeded noise as in the cohort; None without privacy."""
    if setup.plan is None:
        return None
    return setup.plan.guard(
        number,
        ledger,
        seed=setup.config.seed,
        run=run,
        row_norm=setup.row_norm,
        split=split(setup, number),
    )


def ledger_of(setup: PreparedRun, number: int, context: Context) -> Ledger:
    """The ledger of one simulated client, in output.state-dir or else in Flower's context."""
    config = setup.config
    if not config.output.state_dir or setup.plan is None:
        return ContextLedger(context.state)
    path = Path(config.output.state_dir) / f"{config.data.name}-{number}.ledger".replace(":", "-")
    rows = all_rows(setup, number)
    budget = (setup.plan.epsilon_limit, setup.plan.delta)
    parts = (rows.features, rows.labels, rows.row_weights)
    data = fingerprint([part.data for part in parts if part is not None])
    return SeededLedger(path, data, *budget, unit=setup.plan.unit)


def store_of(setup: PreparedRun, number: int, folder: str) -> FileStore | None:
    """The file store in this folder that keeps one client's state across restarts; None without a folder."""
    if not folder:
        return None
    settings = f"{setup.algorithm} {setup.objective.d} {setup.start.sum()!r}"
    owner = f"{number} {hashlib.sha256(settings.encode()).hexdigest()[:16]}"
    return FileStore(
        Path(folder).expanduser() / f"{setup.config.data.name}-{number}.state".replace(":", "-"), owner
    )


def client_of(
    setup: PreparedRun,
    number: int,
    context: Context,
    guard: Guard | None = None,
    state_dir: str | None = None,
    identity: Identity | None = None,
    shared: bool = False,
    site: Any = None,
    exact_rounds: ExactRounds | None = None,
) -> AlgorithmClient:
    """The NumPyClient of partition `number` with Flower's context.

    A deployed site passes its own guard, state-dir and identity; by default they follow from the run's settings.
    shared: let the client look up its rows in the data set; by default it gets a copy of them, which costs more
    than a round of a few steps. site: the policy of a deployed site. exact_rounds: see
    `AlgorithmClient`.
    """
    store = store_of(setup, number, setup.config.output.state_dir if state_dir is None else state_dir)
    guard = guard or guard_of(setup, number, ledger_of(setup, number, context), str(context.run_id))
    kind: Callable[..., AlgorithmClient] = CLIENTS[setup.config.algorithm]
    if setup.pooled:
        kind = partial(SumClient, masks=_masks(setup, number, context, identity, store))
    counts = setup.first.counts_of(number, site) if setup.first else None
    answers = [answer for query in setup.model_queries if (answer := query.answer(number, guard, site))]
    return kind(
        context,
        setup.algorithm,
        setup.objective,
        setup.shards if shared and not (counts and counts.scales) else setup.shards.rows(number),
        setup.start,
        number,
        setup.config.clients.count,
        setup.schedule,
        setup.config.seed,
        guard,
        store,
        setup.held_rows(number),
        counts,
        answers,
        exact_rounds,
    )


def _masks(
    setup: PreparedRun, number: int, context: Context, identity: Identity | None, store: FileStore | None
) -> Masks | None:
    """The masks that hide a client's numbers in the sum; None in a simulation unless `privacy.masks` is set."""
    if identity is None and not setup.config.privacy.masks:
        return None
    identity = identity or simulated(setup.config.clients.count, setup.config.seed)[number]
    return Masks(identity, store or ContextStore(context.state), setup.config.result_digest)
