"""The sums from which standard errors follow: exact in a run without privacy, and noisy in a private one."""

from typing import Any, cast

import numpy as np

from twinflower.arrays import Array
from twinflower.data.columns import Number
from twinflower.models.information import Information
from twinflower.models.newton import LEAST_CLEAR, Reference
from twinflower.models.released import Released, Units
from twinflower.privacy.mechanism import GaussianNoise, seeded
from twinflower.privacy.release import Release
from twinflower.problems.objectives import LinearModel

from .agreement import noisiest
from .setup import PreparedRun

Sums = Information | Released


def asked(setup: PreparedRun) -> bool:
    """Whether the clients of the run are asked for these sums."""
    return setup.config.evaluation.standard_errors


def together(sites: list[Any]) -> Sums | None:
    """The sums of all of these sites; None without any."""
    return type(sites[0]).together(sites) if sites else None


def of_rounds(setup: PreparedRun, server: Any) -> Sums | None:
    """The sums that the messages of the last round hold, given the server's state; None for most methods."""
    return setup.algorithm.information(server) if setup.algorithm.ends_early else None


def simulated(setup: PreparedRun, x: Array, server: Any) -> Sums | None:
    """The sums over the training rows of all clients at the model x (d,), or, of some methods, those of the last round;
    None if the run asks for none."""
    if not asked(setup):
        return None
    if known := of_rounds(setup, server):
        return known
    of = _released if setup.plan else _exact
    return together([of(setup, x, client) for client in range(setup.config.clients.count)])


def _model(setup: PreparedRun) -> LinearModel:
    return cast(LinearModel, setup.objective)


def _exact(setup: PreparedRun, x: Array, client: int) -> Information:
    return Information.of(_model(setup), x, setup.shards.rows(client))


# --- private runs


def units(setup: PreparedRun) -> Units:
    """The units of the releases of a private run."""
    return Units.of(_model(setup), setup.row_norm)


def release(setup: PreparedRun, client: int) -> Release:
    """The release of a client after the last round, which all records that are protected together can move."""
    assert setup.plan
    moved = setup.schedule.workload(int(setup.partition.sizes[client])).replaced
    return setup.plan.release_of(setup.plan.intervals, client, float(moved))


def sigma(setup: PreparedRun, client: int) -> float:
    """The standard deviation of the noise in a client's release."""
    assert setup.plan
    return float(setup.plan.multipliers[client]) * release(setup, client).spread


def _released(setup: PreparedRun, x: Array, client: int) -> Released:
    """The release of a client in a simulation, with the same noise as in its `PrivateIntervals`."""
    own, deviation = units(setup), sigma(setup, client)
    noise = GaussianNoise(deviation, seeded(setup.config.seed, client, setup.config.rounds + 1))
    values = noise(own.released(_model(setup), x, setup.shards.rows(client)))
    return own.unpacked(values, len(x), deviation)


def planned(setup: PreparedRun) -> list[tuple[str, str]]:
    """The releases for intervals, as a row of `twinflower privacy`; empty without them."""
    if not asked(setup) or setup.plan is None:
        return []
    share = float((setup.plan.intervals / setup.plan.shares).max())
    return [("intervals", f"for {share:.3g} of the budget; {_outlook(setup)}")]


def advice(setup: PreparedRun) -> list[str]:
    """A warning if the noise will probably leave no intervals; else empty."""
    if not asked(setup) or setup.plan is None or _expected(setup, _TYPICAL) >= LEAST_CLEAR:
        return []
    return [
        f"there will probably be no intervals: {_outlook(setup)}: raise epsilon or privacy.interval-share, take fewer "
        "columns or narrower ranges, or set evaluation.standard-errors to false, which leaves the budget to the "
        "training"
    ]


_EVEN = 12**-0.5
"""Standard deviation of a number that is spread evenly over its range, as a share of the width of the range."""
_TYPICAL = 0.1
"""That of many clinical columns, such as an age with a deviation of 9 years in [20, 90]."""
_HALVINGS = 6


def _outlook(setup: PreparedRun) -> str:
    return (
        "by public reference rows at the start, the smallest eigenvalue of the information matrix is "
        f"{_expected(setup, _EVEN):.3g} deviations of its noise for numbers spread evenly over their ranges, and "
        f"{_expected(setup, _TYPICAL):.3g} for numbers whose standard deviation is a tenth of the width of their "
        f"range; at least {LEAST_CLEAR:g} are needed{_least(setup)}. It is lower for a class, or events, in few of the "
        "rows (a fifth for 5% of them), for means far from the middle of a range, and for correlated columns"
    )


def _least(setup: PreparedRun) -> str:
    """From which standard deviation of the numbers there are enough, as text; empty without any."""
    low, high = _EVEN / 100, _EVEN
    if _expected(setup, high) < LEAST_CLEAR:
        return ""
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if _expected(setup, middle) >= LEAST_CLEAR else (middle, high)
    return f", for which it must be {high:.2g} of the width"


def _numbers(setup: PreparedRun) -> list[int]:
    """The places of the features that are numbers."""
    inputs = setup.inputs
    if inputs.schema is None:
        return list(range(inputs.num_features))
    names = {own.name for own in inputs.schema.columns if isinstance(own, Number)}
    return [place for place, name in enumerate(inputs.feature_names) if name in names]


def _expected(setup: PreparedRun, spread: float) -> float:
    """`Reference.clearness` at the starting point, without noise, for rows like the reference rows, whose numbers have
    this standard deviation, as a share of the width of their range, around its middle."""
    features = setup.inputs.spanning()
    features[:, _numbers(setup)] *= spread / _EVEN
    known, sizes = Reference.of(_model(setup), features), setup.partition.sizes
    matrix = known.information(setup.start) * sizes.sum() / len(known.rows.labels)
    noise = float(np.hypot.reduce([sigma(setup, client) for client in range(len(sizes))]))
    return known.clearness(Released(setup.start, matrix, 0.0, noise * units(setup).matrix))


def release_row(setup: PreparedRun) -> list[tuple[str, ...]]:
    """The release for intervals with the largest noise, as a row under `forecast.NOISE_HEADINGS`; empty without any."""
    if not asked(setup) or setup.plan is None:
        return []
    return [noisiest(setup, "intervals", setup.config.rounds + 1, release, sigma)]
