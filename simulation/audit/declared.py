"""What an app declares about its noise, and what that guarantees, exactly composed.

Static reading: the settings of Flower's mods and strategies and of Opacus's accountants become Gaussian releases.
Flower's modes with adaptive clipping are not read.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from twinflower.errors import SettingError, require
from twinflower.privacy import gdp_epsilon, total_mu
from twinflower.privacy.accountant import check_count


class GaussianRelease(NamedTuple):
    """`times` releases of values that one neighbour moves by at most `sensitivity`, with noise of deviation sigma.

    sampling: the probability with which a record takes part in each, independently (Poisson); 1 without sampling. A
    record that is sampled is added or removed, not replaced.
    """

    sensitivity: float
    sigma: float
    times: int = 1
    sampling: float = 1.0


class Certified(NamedTuple):
    """What declared releases guarantee together: epsilon at a delta, and mu, None if they are not Gaussian."""

    epsilon: float
    mu: float | None


def certified(releases: Sequence[GaussianRelease], delta: float) -> Certified:
    """The smallest epsilon at delta of all releases; infinite if one has no noise.

    Exact for full participation (`twinflower.privacy.accountant`). With sampling it is the upper bound of
    dp-accounting, which must be installed, from privacy loss distributions.
    """
    if any(release.sigma == 0 for release in releases):
        return Certified(np.inf, np.inf)
    if all(release.sampling == 1 for release in releases):
        pairs = [(r.sensitivity, r.sigma / np.sqrt(r.times)) for r in releases]
        mu = total_mu(*zip(*pairs, strict=True))
        return Certified(gdp_epsilon(mu, delta), mu)
    return Certified(_sampled_epsilon(releases, delta), None)


def _sampled_epsilon(releases: Sequence[GaussianRelease], delta: float) -> float:
    try:
        import dp_accounting as dp
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise SettingError(
            "releases with sampling below 1 need dp-accounting: pip install dp-accounting"
        ) from None
    accountant = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for release in releases:
        noisy = dp.GaussianDpEvent(release.sigma / release.sensitivity)
        accountant.compose(dp.PoissonSampledDpEvent(release.sampling, noisy), release.times)
    return float(accountant.get_epsilon(delta))


def of_local_dp_mod(mod: LocalDpMod, rounds: int) -> list[GaussianRelease]:
    """The releases of Flower's LocalDpMod: an update of norm at most clipping_norm, and so 2 clipping_norm between two
    data sets, whether a record is replaced, added or removed; its noise is scaled by the separate `sensitivity`."""
    check_count("rounds", rounds)
    sigma = mod.sensitivity * np.sqrt(2 * np.log(1.25 / mod.delta)) / mod.epsilon
    return [GaussianRelease(2 * mod.clipping_norm, float(sigma), rounds)]


def of_fixed_clipping(
    strategy: DifferentialPrivacyServerSideFixedClipping | DifferentialPrivacyClientSideFixedClipping,
    rounds: int,
    num_examples: Sequence[int],
    replaced: bool = False,
) -> list[GaussianRelease]:
    """The releases of Flower's strategies with fixed clipping around FedAvg, which weights clients by their rows.

    num_examples: of the clients of a round. One client's update then moves the mean by clipping_norm times its weight,
    not by clipping_norm / num_sampled_clients, if it becomes zero; twice as far if it is replaced.
    """
    check_count("rounds", rounds)
    weight = max(num_examples) / sum(num_examples)
    sigma = strategy.noise_multiplier * strategy.clipping_norm / strategy.num_sampled_clients
    return [GaussianRelease((1 + replaced) * weight * strategy.clipping_norm, sigma, rounds)]


def of_history(history: Iterable[tuple[float, float, int]], replaced: bool = False) -> list[GaussianRelease]:
    """The releases in the history of an Opacus accountant, of (noise multiplier, sampling rate, steps).

    replaced: for the replacement of a record, which moves a sum of clipped gradients twice as far as adding one; only
    without sampling.
    """
    steps = list(history)
    require(
        not (replaced and any(rate < 1 for _, rate, _ in steps)),
        "with a sampling rate below 1 records are added or removed, not replaced",
    )
    return [GaussianRelease(1.0 + replaced, noise, count, rate) for noise, rate, count in steps]
