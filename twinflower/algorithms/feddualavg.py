"""FedDualAvg (Yuan, Zaheer and Reddi, ICML 2021): federated dual averaging, with the Euclidean mirror map.

    minimise  (1/N) sum_i f_i(x) + h(x),     f_i smooth, h convex (the paper: psi)
    prox_{s h}(u) = argmin_v h(v) + ||v - u||^2 / (2 s)

    client i in S:  x_i <- prox_{(s + k eta_c) h}(z_i),  z_i <- z_i - eta_c grad f_i(x_i; batch),  k = 0..K-1 from z
    server:         z <- z + eta_s mean_{i in S}(z_i - z),   s <- s + eta_s eta_c K,   x0 <- prox_{s h}(z)

client keeps     nothing
       receives  z (..., d) and s, the length of all steps so far
       sends     z_i - z (..., d), and its number of local steps K
server keeps     z (..., d), from x0 = start, s, from 0, and x0 (..., d)
What happens to missing clients and entries is in `fedmid.ProximalSteps`. The paper's own pages were not at hand: this
is the authors' program (github hongliny/FCO-ICML21), which adds up s as above. The paper allows any mirror map; here it
is ||x||^2 / 2.

What s means. z - start is minus the sum of all gradients, each times its step, and x0 minimises
<start - z, x> + s h(x) + ||x - start||^2 / 2: h is weighted as all linearised losses so far together are, so its share
does not depend on their number, and the means of z, unlike means of x, are as sparse after the prox as their parts. As
s grows, a coordinate of x0 is 0 while the mean of all past gradients is within l1's weight: noise averages out, but
gradients at a bad start are forgotten no faster than 1/s. A strongly convex h (elastic-net) divides by 1 + s l2, so the
steps shorten like 1/s, and x0 converges no faster than a power of 1/s.

Fixed point. If x0 rests, z/s tends to -g, the mean of the gradients along the clients' paths, and -g is in dh(x0). With
one step of all clients all gradients are taken at x0, and it is the optimum of F + h. With several, a path is that of
gradient descent on f_i + h from x0 in the entries where h is smooth, and rests in those that are 0 by more than a
hair: x0 is O(eta_c K) away from the optimum, like FedAvg. A strongly convex h shortens the paths with s, and this
distance vanishes.

Relations. With h = 0 and eta_s = 1 it is FedAvg (if broadcasts are whole). With h = 0 it is FedMiD.
A sparsified broadcast of z is the exact one if it has all entries that the prox does not set to 0; the server goes on
from all of z, because it holds the history of the others.

Privacy. The paper has none. "public-state" adds the noise to z_i, "gradient" to every gradient. z_i - z follows from
these and the inbox, and clients keep nothing. A step maps z to z - eta grad f(prox(z)). Unlike a gradient step on a
convex f it can drive two points apart, because the derivative I - eta H D of it, D that of the prox, is not symmetric.
As a prox is nonexpansive, it does so by a factor of at most 1 + eta L. With this factor, or with gradients of norm at
most C, as always, follows the sensitivity (`widened`): for K > 1 more than FedAvg's, for K = 1 the same.

Sums. As clients keep nothing, and noise is added to z_i last or, with one step, to a gradient behind the prox, sums
are enough for any K, or for "gradient" with K = 1.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..privacy.release import SENSITIVITIES, Release, coupled_sensitivity, gradient_release, norm_sensitivity
from ..problems.batches import Workload
from ..problems.interfaces import Batch, Bounds
from ..problems.regularisers import Zero, prox_each
from ..work import LocalWork
from .algorithm import length, to_nodes
from .fedmid import ProximalSteps
from .layout import Amount, Layout, SparseVector
from .messages import Upload


class Inbox(NamedTuple):
    """z (..., d), zero-padded; the indices of its kept entries (..., k'), or (..., 0) if all are kept; the rand-k seed
    (...,); and s (...,), the length of all steps so far."""

    z: Array
    kept: Index
    seed: Seeds
    elapsed: Array


class Server(NamedTuple):
    """z (..., d); x0 (..., d), its prox; average (..., d) for `final_model`; s (...,); and the key (...,) of the run's
    public random numbers."""

    z: Array
    x0: Array
    average: Array
    elapsed: Array
    key: Seeds


@dataclass(frozen=True)
class FedDualAvg(ProximalSteps):
    """FedDualAvg with the settings of `fedmid.ProximalSteps`."""

    name: ClassVar[str] = "feddualavg"
    title: ClassVar[str] = "FedDualAvg: sums of gradients are averaged, and h is weighted by all steps so far"

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with z = x0 = start and s = 0."""
        return Server(start, start, start, np.zeros(start.shape[:-1], start.dtype), key)

    def broadcast(self, server: Server, round_: int, node: Index) -> Inbox:
        """Send the top-k' entries of z, and s."""
        z, kept = self.thinned(server.z)
        elapsed = server.elapsed if np.ndim(node) == 0 else server.elapsed[..., None]
        return Inbox(to_nodes(z, node), to_nodes(kept, node), self.seeds(server.key, round_, node), elapsed)

    @cached_property
    def inbox(self) -> Layout:
        """The layout of z, the seed for rand-k, and s."""
        _, seed = self.point
        return Layout(Inbox, SparseVector("z", "kept", self.down), seed, Amount("elapsed"))

    def begin(self, inbox: Inbox) -> Array:
        """z."""
        return inbox.z

    def local_step(self, u: Array, inbox: Inbox, work: LocalWork, rows: Batch, k: int) -> Array:
        """Take the gradient at the prox of z_i, and move z_i along it."""
        eta = self.step(work.round)
        x = prox_each(self.regulariser, u, inbox.elapsed + k * eta)             # client: x_i
        return u - eta * self.slope(x, work, rows, k)                           # client: z_i

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """Move z along the mean change, and apply the prox of h with the length of all steps."""
        z, step = self.moved(server.z, uploads, clients, round_)                # server: z
        elapsed = server.elapsed + step                                         # server: s
        x0 = prox_each(self.regulariser, z, elapsed)                            # server: x0
        return self.averaged(server._replace(z=z, x0=x0, elapsed=elapsed), round_)  # type: ignore[no-any-return]

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The noisy gradients of all steps, or the noisy end of the local loop."""
        if self.privacy == "gradient":
            return gradient_release(bounds, workload)
        widened, sensitivity = self.widened(bounds, workload, round_)
        return Release(SENSITIVITIES[sensitivity](widened, self.step(round_), 0.0, workload))

    def widened(self, bounds: Bounds, workload: Workload, round_: int) -> tuple[Bounds, str]:
        """Bounds whose step factor is 1 + eta times the curvature of loss and penalty, for the coupled sensitivity; if
        the norm bound is chosen or is the smaller one, times that of the penalty alone."""
        if isinstance(self.regulariser, Zero):
            return bounds, self.sensitivity
        steep, curvature = bounds.steepest, bounds.curvature if math.isfinite(bounds.curvature) else 0.0
        alone = bounds._replace(penalty=(-steep, steep))
        both = bounds._replace(penalty=(-steep - curvature, steep))
        info = self.step(round_), 0.0, workload
        if self.sensitivity == "coupled" and coupled_sensitivity(both, *info) <= norm_sensitivity(alone, *info):
            return both, "coupled"
        return alone, "norm"

    def extent(self, inbox: Inbox, workload: Workload, round_: int) -> tuple[float, float]:
        """||x|| <= ||z_i|| + c with c = ||prox(0)||, so that ||z_i|| + c grows as in a loop that starts at
        ||z|| + c."""
        farthest = np.asarray(inbox.elapsed + workload.steps * self.step(round_))
        centre = length(prox_each(self.regulariser, np.zeros_like(inbox.z), farthest))
        return length(inbox.z) + centre, 0.0
