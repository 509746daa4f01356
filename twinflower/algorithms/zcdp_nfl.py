"""zCDP-NFL: networked ADMM with a linearised local step under zCDP (Gauthier 2023, Algorithm 1).

    w_k = argmin_w  <g_k + R'_k, w> + ||w - w~_k||^2 / (2 eta_n) + <gamma_k, w>
                    + rho sum_{l in N_k} ||w - (w~_k + w~_l) / 2||^2,      g_k, R'_k at w~_k                   (7)
    w~_k = w_k + noise,    gamma_k <- gamma_k + rho sum_{l in N_k} (w~_k - w~_l)                          (8), (9)

`networked_admm` describes the messages, the states of clients and server, and what happens when a client misses rounds.
With clipped gradients the limit is the point where the clipped gradients balance, which the paper does not discuss.

Privacy. Dual and messages are functions of the releases, so the noisy model of a round is its only release. One record
changes it by at most Delta_k(n) = 2 C / (M_k (1/eta_n + 2 rho d_k)) (11). The release is planned for d_k = 0, and the
noise is reduced according to the actual number of neighbours, so that (12) also holds after clients were removed.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..arrays import Array
from ..privacy.release import Rounding
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..problems.regularisers import Zero
from ..settings import Setting, one_of
from ..work import LocalWork
from .algorithm import length
from .echo import Unacknowledged, confirmed
from .networked_admm import Inbox, NetworkedADMM
from .relay import GradientSteps, GrowingBudget


@dataclass(frozen=True)
class LinearisedADMM(NetworkedADMM, GradientSteps):
    """zCDP-NFL's mathematics, shared by both accountings.

    composite: "subgradient" uses a subgradient of R, as in the paper; "prox" uses its prox, which gives exact zeros in
    each message and, without noise, an exact limit at a constant step.
    """

    composite: Annotated[
        str, Setting("how h is handled: by its subgradient as published, or by its prox",
                     one_of(("subgradient", "prox")))
    ] = "subgradient"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.composite == "subgradient":
            self.check_subgradients()

    def primal(self, work: LocalWork, last: Array, pull: Array, degree: Array) -> Array:
        """argmin_w <g, w> + ||w - last||^2 / (2 eta) + <pull, w> + rho d_k ||w||^2, where g is a subgradient of f + h
        at last.

        With "prox", g is the gradient of f alone, and h is added to the objective.
        """
        eta, shrink = self.step(work.round), self.shrink(degree, work.round)[..., None]
        slope = work.gradient(last)
        if self.composite == "subgradient" and not isinstance(self.regulariser, Zero):
            slope = slope + self.subgradient(last)
        w = (last - eta * (slope + pull)) * shrink                              # (7)
        return self.prox(w, eta * shrink) if self.composite == "prox" else w

    def rounding(
        self, state: Unacknowledged, inbox: Inbox, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for the sum of gradients in the local step."""
        _, last, pull = self.pulled(confirmed(state, inbox.heard), inbox)
        eta, degree = self.step(round_), float(inbox.degree)
        kinks = 0.0 if self.composite == "prox" else length(self.subgradient(last))
        slope = length(last) / eta + bounds.gradient + bounds.steepest * length(last) + kinks + length(pull)
        return Rounding(slope / (1 / eta + 2 * self.rho * degree), 0.0, float(self.shrink(inbox.degree, round_)))

    def shrink(self, degree: Array, round_: int) -> Array:
        """Delta_k(n) divided by the sensitivity that the release was planned for."""
        return 1 / (1 + 2 * self.rho * self.step(round_) * degree)


@dataclass(frozen=True)
class ZCDPNFL(LinearisedADMM, GrowingBudget):
    """The method with the settings of `LinearisedADMM`, `networked_admm.NetworkedADMM` and `relay`."""

    name: ClassVar[str] = "zcdp-nfl"
    title: ClassVar[str] = "zCDP-NFL (Gauthier 2023): networked ADMM, neighbours agree, the server relays"
