"""The single place where a client's private values are protected: validate, charge the ledger, return the noise."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..arrays import Array
from ..errors import ReplyError, SettingError
from ..norms import norms
from ..problems.interfaces import Batch, Bounds
from ..problems.turns import Span
from ..settings import LARGEST, SMALLEST
from ..work import Noise
from .accountant import Budget, gdp_mu
from .charges import BudgetSpent, Charge, Ledger
from .correlated import MOST_STEPS, Draws, Window
from .mechanism import MOST_SIGMAS, GaussianNoise, by_step, keyed, secretly
from .participation import Visit, worst_cost
from .release import Release, Rounding

Seeds = Callable[[Span], Mapping[int, bytes]]
_RELATIVE = 1e-9  # rounding error of a norm, up to which a row is not too long


@dataclass(frozen=True)
class Policy:
    """A site's own privacy limits, which hold whatever the server requests.

    min_noise_multiplier: the smallest allowed sigma / sensitivity. max_epsilon: the largest epsilon, at max_delta, that
    one run may plan to spend. max_epsilon_alone: the same against all other parties together, which makes a difference
    only if the run relies on the noise of other sites.
    """

    min_noise_multiplier: float = 0.0
    max_epsilon: float = math.inf
    max_delta: float = 1e-4
    max_epsilon_alone: float = math.inf

    def check(self, noise_multiplier: float, budget: Budget, mu_alone: float = 0.0) -> None:
        """Raise SettingError if a run's plan violates the site's limits; mu_alone: its mu against all other parties."""
        if not noise_multiplier >= self.min_noise_multiplier:
            raise SettingError(
                f"this site's policy needs a noise-multiplier of at least {self.min_noise_multiplier:g}; the run "
                f"has {noise_multiplier:g}"
            )
        self._check_plan(math.sqrt(budget.mu_max_squared), self.max_epsilon, "")
        self._check_plan(mu_alone, self.max_epsilon_alone, " against everybody else together")

    def _check_plan(self, mu: float, epsilon: float, attacker: str) -> None:
        allowed = math.inf if math.isinf(epsilon) else gdp_mu(epsilon, self.max_delta)
        if not mu <= allowed * (1 + 1e-9):
            raise SettingError(
                f"this site's policy allows at most epsilon {epsilon:g} at delta {self.max_delta:g} for a "
                f"run{attacker}; the run plans mu = {mu:.4g}, and {allowed:.4g} is allowed"
            )


@dataclass(frozen=True)
class Guard:
    """Charges one client's rounds in one run and returns the noise of each.

    bounds: public bounds on gradients and curvature for rows of the allowed norm. noise_multiplier: sigma / sensitivity
    of a release of weight 1. budget: the run's budget. ledger: where charges are recorded. draws(round): the source of
    standard normal draws for a round. secret: whether noisy values are rounded to a grid (`GaussianNoise`). run,
    config: identities of the run and its settings, written to the ledger. row_norm: the public bound on the norm of
    the site's rows. split: see `charges.Charge`. window: of the noise of the rounds if it is correlated over steps.
    """

    bounds: Bounds
    noise_multiplier: float
    budget: Budget
    ledger: Ledger
    draws: Callable[[int], Draws]
    secret: bool = False
    run: str = ""
    config: str = ""
    row_norm: float = math.inf
    split: str = ""
    window: Window | None = None

    @property
    def bandwidth(self) -> int:
        """That of the noise of the rounds; 1 if it is independent."""
        return self.window.bandwidth if self.window else 1

    def counting(self, noise_multiplier: float, draws: Callable[[int], Draws]) -> "Guard":
        """The guard of the same run for releases about held-out rows."""
        return Guard(
            self.bounds, noise_multiplier, self.budget, self.ledger, draws, self.secret, self.run, self.config,
            self.row_norm, self.split,
        )  # fmt: skip

    def admitted(self, rows: Batch) -> Batch:
        """The rows as `bounds` assumes them; the same object if they already are.

        Features and labels that are real numbers are clipped to 1e100 in size, with 0 for NaN, and a row longer than
        row_norm is scaled to that norm. A weight is clipped to its bounds, from 0 to `bounds.weight`. What becomes of a
        row depends on that row alone. Nothing raises an error, because an error would reveal something about a row.
        """
        features, labels = _moderate(rows.features), _moderate(rows.labels)
        bound = min(self.row_norm, LARGEST)
        with np.errstate(over="ignore"):  # squares may overflow
            lengths = norms(np.asarray(features, float))
        long = lengths > bound * (1 + _RELATIVE)
        if long.any():
            features = features * np.where(long, bound / np.maximum(lengths, bound), 1.0)[:, None]
        weights = rows.row_weights
        if weights is not None:
            weights = _within(weights, self.bounds.weight)
        same = features is rows.features and labels is rows.labels and weights is rows.row_weights
        return rows if same else Batch(features, labels, row_weights=weights)

    def check_size(self, release: Release, rows: int, rounding: Rounding, known: Iterable[Array]) -> None:
        """Raise ReplyError if rounding errors could be large compared to the round's noise, or if floats could overflow
        or underflow.

        rows: the number of rows in a mean gradient. rounding: the rounding of the round, computed from `known`, all the
        arrays that the round starts from. Nothing in this check depends on private data.
        """
        noise = self.noise_multiplier * release.spread * rounding.shrink
        parts = [noise, release.spread * rounding.shrink, 2 * self.bounds.gradient / rows]
        if not all(SMALLEST < part < LARGEST for part in parts):
            raise ReplyError("the settings make gradients or their noise too small or too large for floats")
        longest = [float(np.abs(array).max()) for array in known if array.dtype.kind == "f" and array.size]
        finite = all(number <= LARGEST for number in [rounding.points, *longest])
        if not (finite and rounding.size <= MOST_SIGMAS * noise):
            raise ReplyError(
                "the request, the state or the settings hold numbers that are too large for the noise: they could "
                f"overflow in a local step, or their rounding errors amount to more than {2.0**-53 * MOST_SIGMAS:.0e} "
                "of it"
            )

    def check_plan(self, session: str = "") -> float:
        """Return what the run still has to charge of its plan, in mu^2; BudgetSpent or LedgerError if its ledger does
        not cover it. session: see `open`."""
        return self.ledger.check_plan(session or self.run, self.config, self.budget)

    def open(
        self,
        release: Release,
        round_: int,
        run: str = "",
        span: Span | None = None,
        seeds: Seeds | None = None,
    ) -> Noise:
        """Charge the round to the ledger and return its noise.

        run: the session under which the round is charged; the guard's own run is then Flower's, of which a session that
        was resumed has several. span: of a round that goes on in a permutation of the rows (`Charge`); without it the
        round is charged as if a record were in every round. seeds: makes the secret seed of a span, from which noise
        that is correlated over steps is drawn, and returns it with those of earlier spans (`keyed`). The charge is
        recorded before anything private is computed. Raises BudgetSpent or LedgerError, and SettingError for a release
        without a finite sensitivity.
        """
        if not SMALLEST < release.sensitivity < LARGEST:
            raise SettingError(
                f"the sensitivity of round {round_} must be between {SMALLEST:g} and {LARGEST:g}; got "
                f"{release.sensitivity:g}: change clip-norm, row-norm or step-size"
            )
        if span and span.bandwidth > 1 and span.last * span.per_epoch > MOST_STEPS:
            raise BudgetSpent("the run's correlated noise is not planned for so many steps")
        sigma = self.noise_multiplier * release.spread
        units = (
            worst_cost([Visit(span, release.weight, release.affected_releases)]) if span else release.units
        )
        cost = units / self.noise_multiplier**2
        charge = Charge(
            run or self.run,
            round_,
            release.sensitivity,
            sigma,
            release.affected_releases,
            cost,
            self.config,
            split=self.split,
            flower_run=self.run if run else "",
            span=span,
        )
        self.ledger.charge(charge, self.budget)
        draws = self._correlated(self.window, span, seeds) if self.window and span else self.draws(round_)
        return GaussianNoise(sigma, draws, grid=self.secret)

    def _correlated(self, window: Window, span: Span, seeds: Seeds | None) -> Draws:
        """The draws of the steps of a span."""
        if self.draws is not secretly:
            return window.draws(span.first, by_step(self.draws, span.steps))
        if seeds is None:
            raise SettingError("secret noise that is correlated over steps needs the seeds of earlier rounds")
        return window.draws(span.first, keyed(seeds(span), span.steps))


def _within(weights: Array, most: float) -> Array:
    """The weights clipped to [0, most], with 0 in place of NaN; the same object if that changes nothing."""
    if ((weights >= 0) & (weights <= most)).all():
        return weights
    return np.clip(np.nan_to_num(weights, nan=0.0), 0.0, most)


def _moderate(array: Array) -> Array:
    """The numbers clipped to 1e100 in size, with 0 in place of NaN; the array itself if that changes nothing."""
    if array.dtype.kind != "f" or (np.abs(array, dtype=np.float64) <= LARGEST).all():
        return array
    return np.clip(np.nan_to_num(array, nan=0.0), -LARGEST, LARGEST)
