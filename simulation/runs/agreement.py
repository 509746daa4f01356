"""The counts that the clients of a run release before round 1, and what follows from them: private ranges, and survival
curves. They are asked for by messages (`server.agreement`), or computed in one step in a simulation.

The persons of a survival curve are one more histogram, in which a record is in one cell, besides those of the columns
with private ranges. So replacing records moves all counts together as far as those of one more column.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from twinflower.arrays import Array, Index
from twinflower.data.columns import Range
from twinflower.data.ranges import Bins, Unscaled, sensitivity, unpack_ranges
from twinflower.errors import SettingError
from twinflower.first_counts import COUNTS_ROUND, FirstCounts, Persons, PrivateColumns
from twinflower.models.survival import ACTUARIAL, SurvivalTable
from twinflower.privacy.mechanism import GaussianNoise, seeded
from twinflower.privacy.release import Release
from twinflower.work import no_noise

from .rows import places
from .setup import PreparedRun

_TOO_NOISY = 0.1  # standard deviation of a total count, as a share of the rows


def unscaled(setup: PreparedRun) -> Unscaled:
    """The rows before scaling; SettingError if the run has no private ranges."""
    if setup.dataset.unscaled is None:
        raise SettingError("no column of this run has a private range")
    return setup.dataset.unscaled


def counted(setup: PreparedRun) -> bool:
    """Whether the clients count anything before round 1."""
    return setup.dataset.unscaled is not None or setup.time_grid is not None


def _columns(setup: PreparedRun) -> int:
    """The number of columns with private ranges."""
    return len(setup.dataset.unscaled.schema.private) if setup.dataset.unscaled else 0


def _split(setup: PreparedRun) -> int:
    """The number of counts of these columns, which come first."""
    return _columns(setup) * bins_of(setup).count


def release(setup: PreparedRun, client: int) -> Release:
    """The release of a client's counts, whose sensitivity is that of all records that are protected together."""
    replaced = setup.schedule.workload(int(setup.partition.sizes[client])).replaced
    moved = sensitivity(_columns(setup) + (setup.time_grid is not None), replaced)
    return setup.plan.release_of(setup.plan.ranges, client, moved) if setup.plan else Release(moved)


def sigma(setup: PreparedRun, client: int) -> float:
    """The standard deviation of the noise in a client's counts, 0 without privacy."""
    return float(setup.plan.multipliers[client]) * release(setup, client).spread if setup.plan else 0.0


def total_sigma(setup: PreparedRun) -> float:
    """The standard deviation of the noise in a sum of all clients' counts."""
    return math.hypot(*(sigma(setup, client) for client in range(setup.config.clients.count)))


def bins_of(setup: PreparedRun) -> Bins:
    """The bins of the counts, which follow from public numbers."""
    return Bins.for_noise(total_sigma(setup) / int(setup.partition.sizes.sum()))


def counts_of(setup: PreparedRun, number: int) -> FirstCounts | None:
    """What client `number` counts before round 1; None for nothing."""
    if not counted(setup):
        return None
    own, raw, grid = places(setup, number), setup.dataset.unscaled, setup.time_grid
    return FirstCounts(
        release(setup, number),
        int(setup.partition.sizes[number]),
        PrivateColumns(raw.taken(own), bins_of(setup)) if raw else None,
        Persons(setup.dataset.labels[own], grid) if grid else None,
    )


def found(setup: PreparedRun, counts: Array, clients: Index) -> tuple[Range, ...]:
    """The ranges from the counts (K, entries) of these clients (K,)."""
    bins = bins_of(setup)
    total = _together(setup, counts)
    if setup.plan is None:
        return bins.holding_ranges(total)
    return bins.find_ranges(total, *_size(setup, clients))


def _together(setup: PreparedRun, counts: Array) -> Array:
    """The counts (columns, bins) of all clients together."""
    return counts[:, : _split(setup)].sum(0).reshape(-1, bins_of(setup).count)


def _size(setup: PreparedRun, clients: Index) -> tuple[int, float]:
    """The number of rows of these clients, and the deviation of the noise in a count of all of these."""
    noise = math.hypot(*(sigma(setup, int(client)) for client in clients))
    return int(setup.partition.sizes[clients].sum()), noise


def _outside(setup: PreparedRun, counts: Array, clients: Index, ranges: tuple[Range, ...]) -> dict[str, int]:
    """Bounds on the values outside of the private ranges, by column."""
    found = bins_of(setup).outside(_together(setup, counts), *_size(setup, clients), ranges)
    return dict(zip(unscaled(setup).schema.private, found, strict=True))


def entries(setup: PreparedRun) -> int:
    """The number of counts of a client."""
    return _split(setup) + (setup.time_grid.cells if setup.time_grid else 0)


def agreed(setup: PreparedRun, counts: Array, clients: Index) -> PreparedRun:
    """The same run with what follows from the counts (K, entries) of these clients (K,)."""
    setup = replace(setup, persons=_persons(setup, counts, clients))
    if not setup.dataset.unscaled:
        return setup
    ranges = found(setup, counts, clients)
    return replace(scaled(setup, ranges), outside=_outside(setup, counts, clients, ranges))


def _persons(setup: PreparedRun, counts: Array, clients: Index) -> dict[int, SurvivalTable]:
    """The persons of every client by the cells of the grid; empty without a survival curve."""
    if not setup.time_grid:
        return {}
    edges, cells, sizes = np.array(setup.time_grid.edges), counts[:, _split(setup) :], setup.partition.sizes
    actuarial = setup.config.evaluation.survival_estimate == ACTUARIAL
    return {
        int(client): SurvivalTable(own, edges, int(sizes[client]), sigma(setup, client), actuarial)
        for client, own in zip(clients, cells, strict=True)
    }


def scaled(setup: PreparedRun, ranges: tuple[Range, ...]) -> PreparedRun:
    """The same run with its rows scaled by these ranges."""
    names = unscaled(setup).schema.private
    return replace(setup, dataset=setup.dataset.scaled(ranges), ranges=tuple(zip(names, ranges, strict=True)))


def read(setup: PreparedRun, content: bytes) -> tuple[Range, ...]:
    """The ranges that `pack_ranges` has made."""
    return unpack_ranges(content, len(unscaled(setup).schema.private))


def simulated(setup: PreparedRun) -> PreparedRun:
    """The run with what follows from its clients' counts in a simulation; itself if they count nothing."""
    if not counted(setup):
        return setup
    clients = np.arange(setup.config.clients.count)
    counts = np.stack([_counts(setup, int(client)) for client in clients])
    return agreed(setup, counts, clients)


def _counts(setup: PreparedRun, client: int) -> Array:
    counts = counts_of(setup, client)
    assert counts
    draws = seeded(setup.config.seed, client, COUNTS_ROUND)
    return counts.counts(GaussianNoise(sigma(setup, client), draws) if setup.plan else no_noise)


def planned(setup: PreparedRun) -> list[tuple[str, str]]:
    """The counts that the clients release before round 1, as rows of `twinflower privacy`; empty without them."""
    if not counted(setup) or setup.plan is None:
        return []
    share = float((setup.plan.ranges / setup.plan.shares).max())
    text = (
        f"for {share:.3g} of the budget; a total count of {setup.partition.sizes.sum()} rows has noise of "
        f"{total_sigma(setup):.4g}"
    )
    ranges = [("private ranges", f"of {_columns(setup)} columns, {text}")] if _columns(setup) else []
    if not setup.time_grid:
        return ranges
    return [*ranges, ("survival curve", f"in {len(setup.time_grid.edges)} intervals, {text}")]


def release_row(setup: PreparedRun) -> list[tuple[str, ...]]:
    """The release of counts with the largest noise, as a row under `forecast.NOISE_HEADINGS`; empty without counts."""
    if not counted(setup) or setup.plan is None:
        return []
    what = "counts for ranges" if setup.dataset.unscaled else "counts of persons"
    return [noisiest(setup, what, COUNTS_ROUND, release, sigma)]


def noisiest(
    setup: PreparedRun,
    what: str,
    round_: int,
    release: Callable[[PreparedRun, int], Release],
    sigma: Callable[[PreparedRun, int], float],
) -> tuple[str, ...]:
    """The row under `forecast.NOISE_HEADINGS` of the client whose release beside the rounds has most noise."""
    assert setup.plan
    client = max(range(setup.config.clients.count), key=lambda number: sigma(setup, number))
    own = release(setup, client)
    numbers = setup.plan.multipliers[client], own.sensitivity, own.weight, sigma(setup, client)
    return what, str(round_), str(client), *(f"{number:.6g}" for number in numbers)


def advice(setup: PreparedRun) -> list[str]:
    """A warning if the noise of the counts hides most columns; else empty."""
    rows = int(setup.partition.sizes.sum())
    if setup.dataset.unscaled is None or total_sigma(setup) <= _TOO_NOISY * rows:
        return []
    return [
        f"the counts for private ranges have noise of {total_sigma(setup):.3g}, with {rows} rows in total, so many "
        "ranges will be wrong: raise data.range-share or epsilon, or give the schema's columns public ranges"
    ]
