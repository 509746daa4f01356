"""How h is treated if clients take local gradient steps from x0: by a prox at the server, or in the local steps.

"server-prox"        x0 <- prox_h(mean x, s) with s the mean over the clients of `local.path_length`, Q eta for FedAvg:
                     the distance that the local steps cover along a constant unit gradient. Its fixed point solves
                     0 in dh(x0) + (1/s)(x0 - mean x): the optimality condition, but with local gradients averaged
                     along the clients' paths from x0 rather than taken at x0. One full-batch step is exactly
                     proximal gradient descent; several steps, or unequal ones, stay O(s) away from the optimum.
"local-subgradient"  every local step adds a subgradient of h, as in the papers' benchmarks. Entries rarely become 0.

"public-state" noise cannot be combined with local-subgradient: the bounds on the effect of one record on x require
steps that are Lipschitz in x, and x -> x - eta dh(x) is not (two points on either side of 0 can change sides); only a
bound that grows with sqrt(d) would hold. Subgradients of h do not depend on data, so they can be combined with
"gradient", which adds noise to every gradient of the loss.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError
from ..problems.regularisers import Subdifferentiable, Zero, prox_each
from ..settings import Setting, one_of
from ..work import LocalWork
from .local import LocalEnd, LocalMethod, Subgradient, path_length
from .messages import Upload


@dataclass(frozen=True)
class ServerProx(LocalMethod):
    """The settings of `local.LocalMethod` and `messages.Messages`, and composite, "server-prox" or "local-subgradient".

    A subclass's server state has the fields x0, mean and average, (..., d) each (`LocalMethod.averaged`).
    """

    composite: Annotated[
        str, Setting("how h is handled: prox at the server, or subgradients in the local steps",
                     one_of(("server-prox", "local-subgradient")))
    ] = "server-prox"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.composite == "local-subgradient":
            self._check_subgradients()

    def _check_subgradients(self) -> None:
        h = type(self.regulariser).__name__
        if not isinstance(self.regulariser, Subdifferentiable):
            raise SettingError(
                f"composite local-subgradient needs a regulariser that is finite everywhere (none, l1, elastic-net, "
                f"group-l1); got {h}, which holds an indicator: use composite server-prox"
            )
        if self.privacy == "public-state" and not isinstance(self.regulariser, Zero):
            raise SettingError(
                f"composite must be server-prox with privacy public-state; got local-subgradient with {h}: a step "
                "along subgradients is not Lipschitz, so no useful bound on one record's influence holds: use "
                "server-prox, or privacy gradient"
            )

    def descend(self, work: LocalWork, x0: Array, shift: Array | float) -> LocalEnd:
        """The shared local loop from x0, with subgradients of h if composite is "local-subgradient"."""
        return self.local_loop(work, x0, shift, subgradient=self.subgradient)

    @property
    def subgradient(self) -> Subgradient | None:
        """The subgradient of h for the local steps, or None if they do not use one."""
        h = self.regulariser
        local = self.composite == "local-subgradient" and not isinstance(h, Zero)
        return h.subgradient if local and isinstance(h, Subdifferentiable) else None

    def subgradient_bounds(self, d: int) -> tuple[float, float]:
        """See `LocalMethod.subgradient_bounds`."""
        h = self.regulariser
        return h.subgradient_bound(d) if self.subgradient and isinstance(h, Subdifferentiable) else (0.0, 0.0)

    def step_to_mean(self, server: Any, uploads: Upload, clients: Index, round_: int) -> Any:
        """The server's state after averaging the points sent and, with "server-prox", applying the prox of h."""
        y, sent = self.received(uploads, server.x0.shape[-1])
        return self.step_to(self.mean(server, y, sent, self.info.shares(clients)), server, uploads, clients, round_)

    def step_to(self, mean: Array, server: Any, uploads: Upload, clients: Index, round_: int) -> Any:
        """The server's state after the mean (..., d) of the points was computed."""
        x0 = self.proximal(mean, self.reached(uploads, clients, round_))
        return self.averaged(server._replace(x0=x0, mean=mean), round_)

    def reached(self, uploads: Upload, clients: Index, round_: int) -> Array:
        """s, the mean (...,) of `local.path_length` over the clients that replied."""
        reached, shares = path_length(self.step(round_), self.pull, uploads.steps), self.info.shares(clients)
        return reached.mean(-1) if shares is None else np.average(reached, -1, shares)  # type: ignore[no-any-return]

    def proximal(self, u: Array, step: Array | float) -> Array:
        """prox_h(u, step) with "server-prox", otherwise u; u (..., d), step a number or (...,)."""
        return prox_each(self.regulariser, u, np.asarray(step)) if self.composite == "server-prox" else u
