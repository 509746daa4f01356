"""(epsilon, delta)-DP-NFL: zCDP-NFL with the older accounting (Gauthier 2023, section 5).

Every round gets the same (epsilon_n, delta_n), chosen so that basic or advanced composition over all rounds gives the
total. Its noise follows the classical rule, sigma_n = Delta_k(n) sqrt(2 ln(1.25 / delta_n)) / epsilon_n. Exact
accounting of this Gaussian noise gives a far smaller epsilon, which a run reports beside the planned total.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..privacy.accountant import advanced_share, basic_share, classical_noise_multiplier
from ..settings import Setting, one_of
from .zcdp_nfl import LinearisedADMM

_SHARES = {"basic": basic_share, "advanced": advanced_share}


@dataclass(frozen=True)
class DPNFL(LinearisedADMM):
    """zCDP-NFL's settings without budget_ratio, and composition: "basic" or "advanced"."""

    name: ClassVar[str] = "dp-nfl"
    title: ClassVar[str] = "(epsilon, delta)-DP-NFL (Gauthier 2023): basic or advanced composition; a baseline"

    composition: Annotated[str, Setting("composition theorem that turns epsilon into noise", one_of(_SHARES))] = "basic"

    def noise_multiplier(self, epsilon: float, delta: float, releases: int) -> float:
        """sigma / sensitivity by the classical rule for a total (epsilon, delta)."""
        return classical_noise_multiplier(*_SHARES[self.composition](epsilon, delta, releases))
