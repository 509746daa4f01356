"""The settings of FedPDM, which also apply to BSDP-FedPDM."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..settings import Setting, above, one_of
from .base import LocalMethod, LocalStart, StoppingTolerance, check_pull, check_sum_start, check_tolerance


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
    stopping_tolerance: StoppingTolerance = 0.0
    aggregation: Annotated[
        str, Setting("what the server averages: this round's messages, or all clients' last",
                     one_of(("sampled", "memory")))
    ] = "sampled"
    local_start: LocalStart = "server"
    unstable_steps: Annotated[
        str, Setting("whether rho * step-size of 2 and more, which diverges, is allowed", one_of(("refuse", "allow")))
    ] = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unstable_steps == "refuse":
            check_pull("rho", self.rho, self.step_size)
        check_tolerance(self.stopping_tolerance, self.privacy)

    @property
    def pull(self) -> float:
        """rho, the weight of the proximal term."""
        return self.rho

    def check_sum(self, steps: int) -> None:
        """Require in addition that every local loop starts at x0."""
        super().check_sum(steps)
        check_sum_start(self.local_start)
