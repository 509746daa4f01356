"""What the server of a run gets: its strategy, the evaluation at the clients, and the counts that they release first.

A node imports none of this.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from twinflower.arrays import Array, Index
from twinflower.data.ranges import pack_ranges
from twinflower.models.information import packed_size
from twinflower.models.released import released_size
from twinflower.strategies import STRATEGIES, SiteEvaluation, StarStrategy, SumStrategy
from twinflower.strategies.information import collect, exact_sums
from twinflower.strategies.ranges import Agreement

from . import information
from .agreement import counted, entries, found
from .held_out import bins, released
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
    if setup.held is None:
        return SiteEvaluation()
    evaluates = released(setup).__contains__ if setup.plan else wants
    own = setup.config.evaluation
    return SiteEvaluation(evaluates, own.loss_bound, setup.held.sizes.tolist(), partial(bins, setup))


def agreement(setup: PreparedRun, keep: Callable[[Array, Index], None]) -> Agreement | None:
    """The request for the counts by messages, None if there are none; keep: called with all counts and clients."""
    if not counted(setup):
        return None

    def ranges(counts: Array, clients: Index) -> bytes:
        keep(counts, clients)
        return pack_ranges(found(setup, counts, clients)) if setup.dataset.unscaled else b""

    return Agreement(entries(setup), ranges)


def standard_errors(
    setup: PreparedRun, strategy: StarStrategy, x: Array
) -> tuple[information.Sums | None, str]:
    """The sums of all clients at the final model x (d,); None, and a sentence why if a client sends none."""
    if not information.asked(setup):
        return None, ""
    if known := information.of_rounds(setup, strategy.server):
        return known, ""
    stamp = strategy.training.stamp(setup.config.rounds)
    sites, why = collect(strategy.exchange, x, stamp, *_reading(setup))
    return information.together(sites), why


def _reading(setup: PreparedRun) -> tuple[int, Callable[[int, Array], information.Sums]]:
    """How many numbers a client sends, and what they say."""
    d, sizes = setup.objective.d, setup.partition.sizes
    if setup.plan:
        return released_size(d), lambda client, own: information.units(setup).unpacked(
            own, d, information.sigma(setup, client)
        )
    return packed_size(d), lambda client, own: exact_sums(own, d, int(sizes[client]))
