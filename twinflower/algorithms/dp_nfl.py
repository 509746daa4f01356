"""(epsilon, delta)-DP-NFL: zCDP-NFL with the older accounting (Gauthier 2023, section 5).

Every round gets the same (epsilon_n, delta_n), so that basic or advanced composition over all rounds gives the total,
and the noise of the classical rule, sigma_n = Delta_k(n) sqrt(2 ln(1.25 / delta_n)) / epsilon_n. The noise is Gaussian
all the same, so a run reports what it really guarantees beside the total it was planned for, which is far more.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..errors import require
from ..privacy.accountant import advanced_share, basic_share, classical_noise_multiplier
from ..settings import Setting, one_of
from .abilities import PlansNoise
from .zcdp_nfl import ZCDPNFL

_SHARES = {"basic": basic_share, "advanced": advanced_share}


@dataclass(frozen=True)
class DPNFL(ZCDPNFL, PlansNoise):
    """zCDP-NFL's settings without budget_ratio, and composition: "basic" or "advanced"."""

    name: ClassVar[str] = "dp-nfl"
    title: ClassVar[str] = "(epsilon, delta)-DP-NFL (Gauthier 2023): with basic or advanced composition, to compare"

    budget_ratio: float = 1.0  # no setting: all rounds have equal shares
    composition: Annotated[str, Setting("composition theorem that turns epsilon into noise", one_of(_SHARES))] = "basic"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.budget_ratio == 1, f"{self.name} shares the budget evenly; got budget_ratio {self.budget_ratio}")

    def noise_multiplier(self, epsilon: float, delta: float, releases: int) -> float:
        """sigma / sensitivity by the classical rule for a total (epsilon, delta)."""
        return classical_noise_multiplier(*_SHARES[self.composition](epsilon, delta, releases))
