"""Amplification by Poisson-sampled mini-batches: optional, through dp-accounting (the extra `dp`).

It holds for one kind of release only:

    ( sum over the batch of g(record), ||g|| <= C,  plus  N(0, sigma^2 I) ) / a PUBLIC number;

every record enters the batch by its own coin with probability q, thrown anew for every release and kept
secret, and nothing un-noised (a private dual, a local step) is carried from one release to the next. A
batch of fixed size, drawn without replacement or in shuffled epochs, is not of this kind: it can cost
ten times the epsilon (Lebeda, Regehr, Kamath and Steinke, 2024, arXiv:2405.20769), and is refused.

Neighbours. One record is replaced, x by x'. Given the rest of the batch, the sum is centred at 0, x or x'
with ||x||, ||x'|| <= C, hence ||x - x'|| <= Delta = 2C. For alpha = e^epsilon >= 1 and any event A with
N_x(A) = a, two Neyman-Pearson bounds (c = C / sigma)

    N_0(A) >= Phi(Phi^-1(a) - c),    N_x'(A) >= Phi(Phi^-1(a) - 2c)

limit P(A) - alpha Q(A) = (1-alpha)(1-q) N_0(A) + q N_x(A) - alpha q N_x'(A), and half-lines attain both at
once for x = C, x' = -C on the line. So that pair dominates, for alpha < 1 by its symmetry.

The trap. Here a noise multiplier is sigma / Delta, as everywhere in this package. dp-accounting divides
sigma by C and, for REPLACE_ONE, doubles C inside its PLD accountant (its RDP accountant does not: issue
378 of google/differential-privacy). So it gets TWICE our multiplier, and only its PLD accountant is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..errors import SettingError, require
from .accountant import check_count, check_positive, check_probability, check_target, gdp_mu, noise_multiplier


@dataclass(frozen=True)
class SampledReleases:
    """`count` equal releases over mini-batches.

    noise_multiplier  sigma / Delta, with Delta = 2C the most that replacing one record moves the FULL sum
    sampling_rate     q in (0, 1]; 1 is the full batch
    """

    noise_multiplier: float
    sampling_rate: float
    count: int = 1
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        check_positive("noise_multiplier", self.noise_multiplier)
        rate = self.sampling_rate
        require(0 < rate <= 1, f"sampling_rate must be above 0 and at most 1; got {rate}")
        check_count("count", self.count)
        require(
            self.sampling == "poisson",
            f"sampling must be 'poisson', other batches do not amplify privacy; got {self.sampling!r} "
            "(account for them as full batches)",
        )


def sampled_epsilon(releases: Sequence[SampledReleases], delta: float) -> float:
    """An upper bound on epsilon at this delta of all the releases together.

    Its excess over the truth is about 1e-8 for one release and 1e-5 for a thousand.
    """
    check_probability("delta", delta)
    return float(_compose(releases).get_epsilon(delta))


def sampled_delta(releases: Sequence[SampledReleases], epsilon: float) -> float:
    """An upper bound on delta at this epsilon of all the releases together."""
    check_positive("epsilon", epsilon)
    return float(_compose(releases).get_delta(epsilon))


def sampled_noise_multiplier(epsilon: float, delta: float, sampling_rate: float, releases: int) -> float:
    """sigma / Delta of `releases` equal releases for (epsilon, delta) in total; on the safe side by 1e-4."""
    check_target(epsilon, delta)
    library = _library()

    def plan(noise: float) -> Any:
        return _event(library, SampledReleases(noise, sampling_rate, releases))

    high = 1.01 * noise_multiplier(gdp_mu(epsilon, delta), releases)  # enough without any amplification
    low = high / 2
    while _accountant(library).compose(plan(low)).get_epsilon(delta) <= epsilon:
        low /= 2
    bracket = library.ExplicitBracketInterval(low, high)
    found = library.calibrate_dp_mechanism(
        lambda: _accountant(library), plan, epsilon, delta, bracket, tol=1e-4 * low
    )
    return float(found)


def _compose(releases: Sequence[SampledReleases]) -> Any:
    """dp-accounting's accountant after all these releases."""
    require(len(releases) > 0, "releases must have at least one entry; got an empty schedule")
    library = _library()
    accountant = _accountant(library)
    for group in releases:
        accountant.compose(_event(library, group))
    return accountant


def _event(library: Any, group: SampledReleases) -> Any:
    """The releases in dp-accounting's words, with the noise in units of C = Delta / 2."""
    release = library.GaussianDpEvent(2 * group.noise_multiplier)
    sampled = library.PoissonSampledDpEvent(group.sampling_rate, release)
    return library.SelfComposedDpEvent(sampled, int(group.count))


def _accountant(library: Any) -> Any:
    return library.pld.PLDAccountant(library.NeighboringRelation.REPLACE_ONE)


def _library() -> Any:
    """dp-accounting, if it is installed and knows Poisson sampling under replacement of a record."""
    try:
        library = import_module("dp_accounting")
    except ImportError as error:
        raise SettingError(
            "accounting for sampled mini-batches must have dp-accounting installed; got none: "
            "install the extra `dp` (pip install 'twinflower[dp]'), or account for full batches"
        ) from error
    require(
        _accountant(library).supports(_event(library, SampledReleases(1.0, 0.5))),
        "dp-accounting must be version 0.6 for sampled mini-batches; got an older one "
        "(pip install 'twinflower[dp]')",
    )
    return library
