"""The privacy target of a run, and how it is converted to mu."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import SettingError
from ..settings import check_choice
from .accountant import gdp_mu, zcdp_mu, zcdp_rho_papers
from .correlated import NOISES
from .unit import ONE_RECORD, Unit


def _zcdp_mu(epsilon: float, delta: float) -> float:
    """mu from rho + 2 sqrt(rho ln 1/delta) = epsilon (Zhang 2023, (13); Gauthier 2023); adds more noise than needed."""
    return zcdp_mu(zcdp_rho_papers(epsilon, delta))


CONVERSIONS: dict[str, Callable[[float, float], float]] = {"exact": gdp_mu, "zcdp": _zcdp_mu}


@dataclass(frozen=True)
class Target:
    """The privacy target of a run: either a total epsilon per client at delta, or a noise multiplier; the other is 0.

    conversion: how epsilon is converted to mu, one of CONVERSIONS. unit: what is protected; the workloads of the plan
    must be those of a `LocalSchedule` with group = unit.rows. tune_share: the share of the budget, in mu^2, that tuning
    has taken before the run. evaluation_share: the share that evaluations on held-out rows may take. noise: one of
    `correlated.NOISES`. Raises SettingError unless exactly one of epsilon and noise_multiplier is above 0, and for
    shares that do not add up or a name that is not known.
    """

    epsilon: float = 0.0
    delta: float = 1e-4
    noise_multiplier: float = 0.0
    conversion: str = "exact"
    unit: Unit = ONE_RECORD
    tune_share: float = 0.0
    evaluation_share: float = 0.0
    noise: str = "independent"

    def __post_init__(self) -> None:
        if (self.epsilon > 0) == (self.noise_multiplier > 0):
            raise SettingError(
                "privacy needs either privacy.epsilon or privacy.noise-multiplier above 0; got "
                f"{self.epsilon:g} and {self.noise_multiplier:g} (privacy.mode = none trains without privacy)"
            )
        check_choice("privacy.conversion", self.conversion, CONVERSIONS)
        check_choice("privacy.noise", self.noise, NOISES)
        if not 0 <= self.tune_share < 1:
            raise SettingError(f"privacy.tune-share must be from 0 to below 1; got {self.tune_share:g}")
        most = "at most 1" if self.unit.parts == 1 else "less than 1, because training pays separately"
        if not (self.evaluation_share <= 1 - self.tune_share and self.training_share > 0):
            raise SettingError(
                f"privacy.tune-share and privacy.evaluation-share must add up to {most}; got {self.tune_share:g} and "
                f"{self.evaluation_share:g} with {self.unit.setting}"
            )

    @property
    def training_share(self) -> float:
        """The share of the budget for training. What is paid in parallel takes nothing from it."""
        return 1 - self.tune_share - self.evaluation_share * (self.unit.parts - 1)

    @property
    def mu(self) -> float:
        """The mu of the training alone; SettingError if epsilon is too small for a finite noise."""
        return self._total * math.sqrt(self.training_share)

    @property
    def mu_tuning(self) -> float:
        """The mu of the tuning before the run."""
        return self._total * math.sqrt(self.tune_share) if self.tune_share else 0.0

    @property
    def _total(self) -> float:
        mu = CONVERSIONS[self.conversion](self.epsilon, self.delta)
        if not mu**2 > 0:
            raise SettingError(f"epsilon must be large enough for a finite noise; got {self.epsilon:g}")
        return mu
