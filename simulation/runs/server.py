"""What the server of a run gets: its strategy, the evaluation at the clients, and the counts that they release first.

A node imports none of this.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from twinflower.arrays import Array, Index
from twinflower.strategies import STRATEGIES, SiteEvaluation, StarStrategy, SumStrategy
from twinflower.strategies.questions import Agreement, collect

from .setup import PreparedRun


def strategy_of(
    setup: PreparedRun,
    deployed: bool = False,
    evaluation: SiteEvaluation | None = None,
    agreement: Agreement | None = None,
) -> StarStrategy:
    """The Flower strategy of the run. deployed: in a run of sums, always use masks, as deployed sites do.

    evaluation: at the clients, by default none. agreement: of the clients on private ranges.
    """
    clients, server = setup.config.clients, setup.config.server
    kind: Callable[..., StarStrategy] = STRATEGIES[setup.config.algorithm]
    if setup.sums:
        kind = partial(SumStrategy, masks=deployed or setup.config.privacy.masks)
    return kind(
        setup.algorithm, clients.count, clients.per_round, setup.config.seed, server.node_timeout,
        min_replies=server.min_replies, void_rounds=server.void_rounds, max_norm=server.max_norm or np.inf,
        first_round=clients.first_round, evaluation=evaluation, agreement=agreement,
    )  # fmt: skip


def evaluation(setup: PreparedRun, wants: Callable[[int], bool]) -> SiteEvaluation:
    """How the server lets the clients evaluate; wants: after which rounds in a run without privacy."""
    for query in setup.model_queries:
        if query.kind.default:
            question = query.question
            return SiteEvaluation(question.rounds.__contains__ if setup.plan else wants, question)
    return SiteEvaluation()


def agreement(setup: PreparedRun, keep: Callable[[Array, Index], None]) -> Agreement | None:
    """The request for the counts by messages, None if there are none; keep: called with all counts and clients."""
    first = setup.first
    if first is None:
        return None

    def content(counts: Array, clients: Index) -> bytes:
        keep(counts, clients)
        return first.content(counts, clients)

    return Agreement(first.entries, content)


def last_answers(setup: PreparedRun, strategy: StarStrategy, x: Array) -> tuple[dict[str, Any], list[str]]:
    """What all clients answer about the final model x (d,), by the name of the question, and a sentence for each
    question that a client does not answer."""
    stamp, private = strategy.training.stamp(setup.config.rounds), setup.plan is not None
    found: dict[str, Any] = {}
    missing: list[str] = []
    for query in setup.model_queries:
        if not query.kind.default:
            found[query.name], why = query.of_rounds(strategy.server), ""
            if found[query.name] is None:
                found[query.name], why = collect(strategy.exchange, query.question, x, stamp, private)
            missing += filter(None, [why])
    return found, missing
