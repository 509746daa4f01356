"""The sums from which standard errors follow: exact in a run without privacy, and noisy in a private one."""

from typing import Any, cast

import numpy as np

from twinflower.arrays import Array
from twinflower.models.information import Information
from twinflower.models.newton import LEAST_CLEAR, Reference
from twinflower.models.released import Released, Units
from twinflower.privacy.mechanism import GaussianNoise, seeded
from twinflower.privacy.release import Release
from twinflower.problems.objectives import LinearModel

from .agreement import noisiest
from .setup import Setup

Sums = Information | Released


def asked(setup: Setup) -> bool:
    """Whether the clients of the run are asked for these sums."""
    return setup.config.evaluation.standard_errors


def together(sites: list[Any]) -> Sums | None:
    """The sums of all of these sites; None without any."""
    return type(sites[0]).together(sites) if sites else None


def simulated(setup: Setup, x: Array) -> Sums | None:
    """The sums over the training rows of all clients at the model x (d,); None if the run asks for none."""
    if not asked(setup):
        return None
    of = _released if setup.plan else _exact
    return together([of(setup, x, client) for client in range(setup.config.clients.count)])


def _model(setup: Setup) -> LinearModel:
    return cast(LinearModel, setup.objective)


def _exact(setup: Setup, x: Array, client: int) -> Information:
    return Information.of(_model(setup), x, setup.shards.rows(client))


# --- private runs


def units(setup: Setup) -> Units:
    """The units of the releases of a private run."""
    return Units.of(_model(setup), setup.row_norm)


def release(setup: Setup, client: int) -> Release:
    """The release of a client after the last round, which all records that are protected together can move."""
    assert setup.plan
    moved = setup.schedule.workload(int(setup.partition.sizes[client])).replaced
    return setup.plan.release_of(setup.plan.intervals, client, float(moved))


def sigma(setup: Setup, client: int) -> float:
    """The standard deviation of the noise in a client's release."""
    assert setup.plan
    return float(setup.plan.multipliers[client]) * release(setup, client).spread


def _released(setup: Setup, x: Array, client: int) -> Released:
    """The release of a client in a simulation, with the same noise as in its `PrivateIntervals`."""
    own, deviation = units(setup), sigma(setup, client)
    noise = GaussianNoise(deviation, seeded(setup.config.seed, client, setup.config.rounds + 1))
    values = noise(own.released(_model(setup), x, setup.shards.rows(client)))
    return own.unpacked(values, len(x), deviation)


def planned(setup: Setup) -> list[tuple[str, str]]:
    """The releases for intervals, as a row of `twinflower privacy`; empty without them."""
    if not asked(setup) or setup.plan is None:
        return []
    share = float((setup.plan.intervals / setup.plan.shares).max())
    return [("intervals", f"for {share:.3g} of the budget; {_outlook(setup)}")]


def advice(setup: Setup) -> list[str]:
    """A warning if the noise will probably leave no intervals; else empty."""
    if not asked(setup) or setup.plan is None or _expected(setup) >= LEAST_CLEAR:
        return []
    return [
        f"there will probably be no intervals: {_outlook(setup)}: raise epsilon or privacy.interval-share, take fewer "
        "columns, or set evaluation.standard-errors to false, which leaves the budget to the training"
    ]


def _outlook(setup: Setup) -> str:
    return (
        "by public reference rows at the start, the smallest eigenvalue of the information matrix is "
        f"{_expected(setup):.3g} deviations of its noise, and at least {LEAST_CLEAR:g} are needed; columns that "
        "are not spread evenly over their ranges can have a tenth of it"
    )


def _expected(setup: Setup) -> float:
    """`Reference.clearness` at the starting point, without noise, for rows like the reference rows."""
    known, sizes = Reference.of(_model(setup), setup.inputs.spanning()), setup.partition.sizes
    matrix = known.information(setup.start) * sizes.sum() / len(known.rows.labels)
    noise = float(np.hypot.reduce([sigma(setup, client) for client in range(len(sizes))]))
    return known.clearness(Released(setup.start, matrix, 0.0, noise * units(setup).matrix))


def release_row(setup: Setup) -> list[tuple[str, ...]]:
    """The release for intervals with the largest noise, as a row under `forecast.NOISE_HEADINGS`; empty without any."""
    if not asked(setup) or setup.plan is None:
        return []
    return [noisiest(setup, "intervals", setup.config.rounds + 1, release, sigma)]
