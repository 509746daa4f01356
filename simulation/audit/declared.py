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
    FedAvg,
)

from twinflower.errors import SettingError, require
from twinflower.privacy import gdp_epsilon, total_mu
from twinflower.privacy.accountant import check_count, check_positive, check_probability

RELATIONS = ("replace", "add or remove", "zero")
"""Which data sets are neighbours: one record (or, at a server, one client's update) is replaced by another; it is added
or removed; or it becomes zero, while the number of records stays."""
ANY = "any"  # of a release that all neighbours move by no more than its sensitivity


class GaussianRelease(NamedTuple):
    """`times` releases of values that one neighbour moves by at most `sensitivity`, with noise of deviation sigma.

    sampling: the probability with which a record takes part in each, independently (Poisson); 1 without sampling. A
    record that is sampled is added or removed, not replaced. relation: for which neighbours; one of `RELATIONS`, or
    "any".
    """

    sensitivity: float
    sigma: float
    times: int = 1
    sampling: float = 1.0
    relation: str = "replace"


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
    data sets, whether a record is replaced, added or removed; its noise is scaled by the separate `sensitivity`. Raises
    SettingError for an epsilon of 0, and a delta that is not between 0 and 1, which the mod accepts."""
    check_count("rounds", rounds)
    check_positive("epsilon of LocalDpMod", mod.epsilon)
    check_probability("delta of LocalDpMod", mod.delta)
    sigma = mod.sensitivity * np.sqrt(2 * np.log(1.25 / mod.delta)) / mod.epsilon
    return [GaussianRelease(2 * mod.clipping_norm, float(sigma), rounds, relation=ANY)]


def of_fixed_clipping(
    strategy: DifferentialPrivacyServerSideFixedClipping | DifferentialPrivacyClientSideFixedClipping,
    rounds: int,
    num_examples: Sequence[int],
    replaced: bool = False,
) -> list[GaussianRelease]:
    """The releases of Flower's strategies with fixed clipping around FedAvg, which weights clients by their rows.

    num_examples: of the clients of a round, all of whom reply. One client's update then moves the mean by clipping_norm
    times its weight, not by clipping_norm / num_sampled_clients, if it becomes zero (relation "zero"); twice as far if
    it is replaced. This is no bound for a client that comes or goes ("add or remove"): the mean is then over other
    weights. Raises SettingError if the inner strategy does not take the mean of FedAvg, or for fewer clients than
    num_sampled_clients.
    """
    check_count("rounds", rounds)
    mean = getattr(type(strategy.strategy), "aggregate_train", None)
    if mean is not FedAvg.aggregate_train:
        raise SettingError(
            f"only the mean of FedAvg has a known sensitivity; {type(strategy.strategy).__name__} does something else: "
            "declare its releases yourself"
        )
    if not (len(num_examples) >= strategy.num_sampled_clients and min(num_examples) >= 0 < sum(num_examples)):
        raise SettingError(
            f"num_examples must have an entry from 0 for each of {strategy.num_sampled_clients} sampled clients, not "
            f"all of them 0; got {list(num_examples)}"
        )
    weight = max(num_examples) / sum(num_examples)
    relation = "replace" if replaced else "zero"
    sigma = strategy.noise_multiplier * strategy.clipping_norm / strategy.num_sampled_clients
    return [
        GaussianRelease((1 + replaced) * weight * strategy.clipping_norm, sigma, rounds, relation=relation)
    ]


def of_history(
    history: Iterable[tuple[float, float, int]], replaced: bool = False, *, poisson_sampling: bool
) -> list[GaussianRelease]:
    """The releases in the history of an Opacus accountant, of (noise multiplier, sampling rate, steps).

    Their relation is "add or remove". poisson_sampling: as given to Opacus's make_private; its accountant assumes it,
    so that other batches are refused. replaced: for the replacement of a record, which moves a sum of clipped gradients
    twice as far as adding one; only without sampling.
    """
    steps = list(history)
    require(
        poisson_sampling or all(rate == 1 for _, rate, _ in steps),
        "the history assumes Poisson sampling, and the batches were not sampled so: the epsilon it gives does not hold",
    )
    require(
        not (replaced and any(rate < 1 for _, rate, _ in steps)),
        "with a sampling rate below 1 records are added or removed, not replaced",
    )
    relation = "replace" if replaced else "add or remove"
    return [GaussianRelease(1.0 + replaced, noise, count, rate, relation) for noise, rate, count in steps]
