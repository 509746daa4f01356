"""How a run divides its privacy budget among rounds: weights w_t (T,) with mean 1, sigma_t proportional to 1/sqrt(w_t).

The cost of a round is proportional to its weight, so the total cost does not depend on the choice of the weights
(`release.Release.weight`).
"""

from functools import lru_cache

import numpy as np

from ..arrays import Array
from ..decimals import decimal
from ..errors import SettingError
from ..settings import LARGEST, SMALLEST, moderate

LEAST_SHARE = 1e-3  # as a fraction of the mean weight


def geometric(rounds: int, log_ratio: float) -> Array:
    """Weights (T,) proportional to exp((T - t) log_ratio), so that later rounds get more; -inf <= log_ratio <= 0."""
    to_go = np.arange(rounds - 1, -1, -1.0)
    logs = np.zeros(rounds)
    logs[:-1] = to_go[:-1] * log_ratio
    return from_logs(logs)


def between(rounds: int, corners: list[float]) -> Array:
    """Weights (T,) interpolated geometrically between `corners`, which are evenly spaced over the run."""
    places = np.linspace(0, len(corners) - 1, rounds)
    return from_logs(np.interp(places, np.arange(len(corners)), np.log(corners)))


def from_logs(logs: Array) -> Array:
    """exp(logs), scaled to mean 1 and with no weight below about LEAST_SHARE.

    The paper lets the first noises grow without bound: to infinity, and far before that to a size whose rounding
    errors stay in the duals for good. All floors together take at most LEAST_SHARE of the budget from the other rounds,
    so what the allocation minimises, sum q_t xi_t^2, is at most 1 + LEAST_SHARE times its least value; and no noise is
    more than 32 times the static one.
    """
    weights = np.exp(logs - logs.max())
    weights = np.maximum(weights / weights.mean(), LEAST_SHARE)
    return weights / weights.mean()  # type: ignore[no-any-return]


def read_shares(text: str) -> list[float]:
    """Parse a setting such as "1, 10" into two or more numbers above 0; an empty text gives an empty list."""
    try:
        numbers = [decimal(word) for word in text.split(",")] if text else []
    except ValueError:
        numbers = [0.0]
    good = all(number > 0 and moderate(number) for number in numbers) and len(numbers) != 1
    if not good:
        raise SettingError(
            f"shares must be two or more comma-separated numbers from {SMALLEST:g} to {LARGEST:g}; got '{text}'"
        )
    return numbers


@lru_cache(maxsize=8)
def allocation(name: str, rounds: int, log_ratio: float = 0.0, shares: str = "") -> Array:
    """The weights (T,) of one of ALLOCATIONS. They are cached because every round needs them."""
    if name == "shares":
        return between(rounds, read_shares(shares))
    return geometric(rounds, log_ratio if name == "dynamic" else 0.0)


ALLOCATIONS = ("dynamic", "static", "shares")
