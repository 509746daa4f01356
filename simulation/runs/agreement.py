"""How the clients of a run agree on private ranges, by messages or, in a simulation, in one step."""

import math
from dataclasses import replace

import numpy as np

from twinflower.arrays import Array, Index
from twinflower.clients.ranges import COUNTS_ROUND, PrivateColumns
from twinflower.data.columns import Range
from twinflower.data.ranges import Bins, Unscaled, sensitivity, unpack_ranges
from twinflower.errors import SettingError
from twinflower.privacy.mechanism import GaussianNoise, seeded
from twinflower.privacy.release import Release

from .rows import places
from .setup import Setup

_TOO_NOISY = 0.1  # standard deviation of a total count, as a share of the rows


def unscaled(setup: Setup) -> Unscaled:
    """The rows before scaling; SettingError if the run has no private ranges."""
    if setup.dataset.unscaled is None:
        raise SettingError("no column of this run has a private range")
    return setup.dataset.unscaled


def release(setup: Setup, client: int) -> Release:
    """The release of a client's counts, whose sensitivity is that of all records that are protected together."""
    replaced = setup.schedule.workload(int(setup.partition.sizes[client])).replaced
    moved = sensitivity(len(unscaled(setup).schema.private), replaced)
    return setup.plan.counts_release(client, moved) if setup.plan else Release(moved)


def sigma(setup: Setup, client: int) -> float:
    """The standard deviation of the noise in a client's counts, 0 without privacy."""
    return float(setup.plan.multipliers[client]) * release(setup, client).spread if setup.plan else 0.0


def total_sigma(setup: Setup) -> float:
    """The standard deviation of the noise in a sum of all clients' counts."""
    return math.hypot(*(sigma(setup, client) for client in range(setup.config.clients.count)))


def bins_of(setup: Setup) -> Bins:
    """The bins of the counts, which follow from public numbers."""
    return Bins.for_noise(total_sigma(setup) / int(setup.partition.sizes.sum()))


def columns_of(setup: Setup, number: int) -> PrivateColumns | None:
    """What client `number` counts and scales; None without private ranges."""
    if setup.dataset.unscaled is None:
        return None
    return PrivateColumns(
        unscaled(setup).taken(places(setup, number)), bins_of(setup), release(setup, number)
    )


def found(setup: Setup, counts: Array, clients: Index) -> tuple[Range, ...]:
    """The ranges from the counts (K, entries) of these clients (K,)."""
    bins = bins_of(setup)
    total = counts.sum(0).reshape(-1, bins.count)
    return bins.find_ranges(total, int(setup.partition.sizes[clients].sum()))


def scaled(setup: Setup, ranges: tuple[Range, ...]) -> Setup:
    """The same run with its rows scaled by these ranges."""
    names = unscaled(setup).schema.private
    return replace(setup, dataset=setup.dataset.scaled(ranges), ranges=tuple(zip(names, ranges, strict=True)))


def read(setup: Setup, content: bytes) -> tuple[Range, ...]:
    """The ranges that `pack_ranges` has made."""
    return unpack_ranges(content, len(unscaled(setup).schema.private))


def simulated(setup: Setup) -> Setup:
    """The run with the ranges that its clients agree on in a simulation; itself without private ranges."""
    if setup.dataset.unscaled is None:
        return setup
    clients = np.arange(setup.config.clients.count)
    counts = np.stack([_counts(setup, int(client)) for client in clients])
    return scaled(setup, found(setup, counts, clients))


def _counts(setup: Setup, client: int) -> Array:
    counts = bins_of(setup).counts(unscaled(setup).values[places(setup, client)]).ravel()
    draws = seeded(setup.config.seed, client, COUNTS_ROUND)
    return GaussianNoise(sigma(setup, client), draws)(counts) if setup.plan else counts


def planned(setup: Setup) -> list[tuple[str, str]]:
    """The counts that the clients release before round 1, as a row of `twinflower privacy`; empty without them."""
    if setup.dataset.unscaled is None or setup.plan is None:
        return []
    share = float((setup.plan.ranges / setup.plan.shares).max())
    text = (
        f"of {len(unscaled(setup).schema.private)} columns, for {share:.3g} of the budget; a total count of "
        f"{setup.partition.sizes.sum()} rows has noise of {total_sigma(setup):.4g}"
    )
    return [("private ranges", text)]


def release_row(setup: Setup) -> list[tuple[str, ...]]:
    """The release of counts with the largest noise, as a row under `forecast.NOISE_HEADINGS`; empty without counts."""
    if setup.dataset.unscaled is None or setup.plan is None:
        return []
    client = max(range(setup.config.clients.count), key=lambda number: sigma(setup, number))
    own = release(setup, client)
    numbers = setup.plan.multipliers[client], own.sensitivity, own.weight, sigma(setup, client)
    return [("counts for ranges", str(COUNTS_ROUND), str(client), *(f"{number:.6g}" for number in numbers))]


def advice(setup: Setup) -> list[str]:
    """A warning if the noise of the counts hides most columns; else empty."""
    rows = int(setup.partition.sizes.sum())
    if setup.dataset.unscaled is None or total_sigma(setup) <= _TOO_NOISY * rows:
        return []
    return [
        f"the counts for private ranges have noise of {total_sigma(setup):.3g}, with {rows} rows in total, so many "
        "ranges will be wrong: raise data.range-share or epsilon, or give the schema's columns public ranges"
    ]
