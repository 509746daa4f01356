"""The settings of FedPDM, which also apply to BSDP-FedPDM."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..errors import require
from ..settings import Setting, above, at_least, one_of
from .base import LocalMethod, check_pull


@dataclass(frozen=True)
class FedPDMSettings(LocalMethod):
    """The settings of `fedpdm.FedPDM`.

    rho > 0: penalty of the augmented Lagrangian; with rho * step_size >= 2 the local loop diverges. stopping_tolerance:
    nu of (11), 0 = off. aggregation: "sampled" averages this round's y, as in the paper, and does not converge to the
    optimum unless all clients take part; "memory" averages every client's last y and converges. local_start: "server"
    starts at x0 (Li 2024 line 6), "warm" at the client's last x. unstable_steps: "allow" accepts rho * step_size >= 2,
    to show the effect of the published setting. privacy has an additional value, "as-published". All other settings are
    in `base.LocalMethod` and, for sparsified messages, `messages.Messages`.
    """

    modes: ClassVar[tuple[str, ...]] = ("none", "public-state", "gradient", "as-published")

    rho: Annotated[float, Setting("penalty of the augmented Lagrangian", above(0))] = 0.05
    stopping_tolerance: Annotated[
        float, Setting("a client stops once a gradient's squared norm is at most this; 0 never", at_least(0))
    ] = 0.0
    aggregation: Annotated[
        str, Setting("what the server averages: this round's messages, or all clients' last",
                     one_of(("sampled", "memory")))
    ] = "sampled"
    local_start: Annotated[
        str, Setting("where local steps start: the server's point, or the client's last", one_of(("server", "warm")))
    ] = "server"
    unstable_steps: Annotated[
        str, Setting("whether rho * step-size of 2 and more, which diverges, is allowed", one_of(("refuse", "allow")))
    ] = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unstable_steps == "refuse":
            check_pull("rho", self.rho, self.step_size)
        require(
            self.privacy != "public-state" or not self.stopping_tolerance,
            "stopping-tolerance must be 0 with privacy = public-state, because a number of steps that depends on "
            f"the data leaks information; got {self.stopping_tolerance}: use privacy = gradient for the stopping rule",
        )

    @property
    def pull(self) -> float:
        """rho, the weight of the proximal term."""
        return self.rho

    def check_sum(self, steps: int) -> None:
        """Require in addition that every local loop starts at x0."""
        super().check_sum(steps)
        require(
            self.local_start == "server",
            "trust sum needs local-start server: a warm start takes the gradient at a point that only the site knows; "
            f"got {self.local_start}",
        )
