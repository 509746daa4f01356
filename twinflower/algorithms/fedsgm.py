"""FedSGM (Upadhyay, Moon and Hashemi, 2026): federated switching gradients, for bounds on losses.

    minimise  f(w) = mean_j f_j(w)    subject to    g(w) = max_m g_m(w) <= 0,     g_m(w) = mean_j g_jm(w)

    client j in S:  w_j <- w_j - eta grad [(1 - s) f_j + s g_jm](w_j; batch),  E times from w             (1)
                    v_j = C(e_j + w - w_j),   e_j <- e_j + w - w_j - v_j                                  (2)
    server:         x <- x - mean_{j in S} v_j                                                            (3)
                    G = max_m mean_{j in S} g_jm(w), at the m of the maximum,
                    s <- 1 if G > epsilon else 0,   or, soft,   s <- clip(1 + beta (G - epsilon), 0, 1)   (4)
                    w <- w + C_0(x - w)                                                                   (5)
    output:         the mean of all w, each weighted by 1 - s of its round                                (6)

client keeps     e_j (..., d) and, if broadcasts are sparsified, its w (..., d), both before and after its last reply
       receives  x, or the largest entries of x - w, (..., d); s and m; the last of its rounds that the server counted
       sends     v_j, k entries of a vector (..., d), and the values g_jm(w) (..., M)
server keeps     x, the mean (6), its weight, s and m; the last counted round of each client and, if broadcasts are
                 sparsified, its w (..., N, d)
A client that does not reply is left out of the means, and keeps its e_j. If its reply was lost, the echo (`echo`) makes
it return to the e_j and the w before it. With rows as weights, f_j and g_jm, and so what j sent, are multiplied by N_j
over the mean of all N_j, which is unbiased also for sampled clients; FedAvg's weights add up to 1 instead.

The paper's text was not at hand. (1)-(6) follow its abstract, public reviews of it, and the special cases that these
name: with E = 1, one client and whole messages it is the switching subgradient method (Polyak 1967; Lan and Zhou 2020),
without constraints and with E = 1 EF14 (Seide et al. 2014). The equation numbers are ours, and so are these choices:

- The paper decides by G at the point from which the steps of the same round start, which takes two exchanges. Here
  s is computed from the values sent with the steps of the round before: it is one round late, and round 1, with
  s = 0, is not in (6). As (6) has the weights by which the steps followed f, the usual proof holds if epsilon is larger
  by what g can rise in a round, at most eta E L^2 with L the largest slope: with eta ~ 1 / sqrt(T) this is of the order
  of epsilon itself.
- Several bounds are one, the largest: a maximum of means of convex losses is convex, and the gradient of one that
  attains it is a subgradient, while each client's own maximum would be another problem.
- A client's w is the last one that it is known to have: with all clients there is one w, as in (5); a sampled client
  receives entries of the difference from its own. (6) takes the mean over those that replied. v_j is a change of
  the point, not divided by eta, so that e_j keeps its meaning if steps decay. C is top-k or rand-k, without d/k.
- The problem (`problems.constraints`): f is the loss of the group `minimise` plus the objective's penalty, g_m is
  F_m - U_m of `bounded_losses`. Both are means over all of a client's rows, in which other rows count 0. So a group of
  a tenth of the rows has a tenth of the slope and of the value that epsilon (`threshold`) is compared with.

Fixed point. None: s jumps, and the points move around the solution by steps of length eta; their mean converges. If no
bound is ever exceeded, all clients take part and messages are whole, x is FedAvg's. With few sampled clients G is above
epsilon in as many rounds as the solution needs: it is a quantile of G that rests at epsilon, not its mean, so the bound
may be missed by as much as G varies. (By its reviews, the paper's guarantee has a term of this size.)

h. It has none: a prox or a projection in (3) would act on points from which e_j are missing.

Privacy. "gradient" adds noise to every gradient in (1), and to the values, which are released together with the first
one. A row enters that gradient with weight (1 - s) [in f] + s [in g_m] <= 1, so it moves it by 2 C over the number of
rows, even if the row changes its group, and each value in units of loss_clip by at most 1. A client refuses a request
whose s is not in [0, 1]. Everything else follows from what was released. There is no "public-state": values would need
a release of their own.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import SettingError, require
from ..privacy.release import Release, Rounding, gradient_release
from ..problems.batches import Workload
from ..problems.constraints import Group, check_classes, groups_of_a_record, parse_group, shares
from ..problems.interfaces import Batch, Bounds
from ..problems.penalised import Penalised
from ..problems.regularisers import Zero
from ..settings import Setting, at_least, one_of
from ..work import LocalWork, Report, no_noise
from .algorithm import to_nodes
from .bounded_losses import BoundedLosses
from .echo import (
    PAIR,
    UNACKNOWLEDGED,
    Echoed,
    Unacknowledged,
    acknowledge,
    confirmed,
    initial,
    nobody_heard,
    of_node,
    unacknowledged,
)
from .layout import Amount, Count, Entries, Layout, Point
from .local import LocalMethod
from .messages import mean_over_clients, unbiased_mean
from .relay import put_rows, rows_of_node


@dataclass(frozen=True)
class Switching(LocalMethod, BoundedLosses):
    """The problem and the switch: settings, mixed gradients, measures, and what one record changes.

    The settings are those of `LocalMethod` (`missing` and `sensitivity` have no effect) and of `BoundedLosses`, and
    these.

    minimise: the group whose loss is in f; "none" leaves the objective's penalty alone. threshold: epsilon in (4).
    switching, beta: (4); with beta = 0 it is the theory's least, 2 / epsilon. final_model: "average" is (6).
    """

    modes: ClassVar[tuple[str, ...]] = ("none", "gradient")
    server_columns: ClassVar[tuple[str, ...]] = ("switch", "squared_norm")
    model_columns: ClassVar[tuple[str, ...]] = ("cost", "excess", "group_cost", "group_objective")

    minimise: Annotated[str, Setting("rows whose loss is minimised: cost, class C, feature J or none")] = field(
        default="cost", kw_only=True
    )
    threshold: Annotated[
        float, Setting("excess of a bound, as a mean over all rows, above which steps follow it", at_least(0))
    ] = field(default=0.001, kw_only=True)
    switching: Annotated[
        str, Setting("steps along either, or near the threshold along both", one_of(("hard", "soft")))
    ] = field(default="hard", kw_only=True)
    beta: Annotated[float, Setting("slope of a soft switch; 0: 2 / threshold", at_least(0))] = field(
        default=0.0, kw_only=True
    )
    final_model: Annotated[
        str, Setting("model to evaluate and deploy: the last, the mean of those that followed the objective, or of the "
                     "last part", one_of(("last", "average", "tail-mean")))
    ] = field(default="average", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            isinstance(self.regulariser, Zero),
            "fedsgm has no prox: set regulariser to none, and write a penalty as objective.l2",
        )
        require(
            self.switching == "hard" or bool(self.beta or self.threshold),
            "a soft switch needs beta or threshold above 0: set fedsgm.threshold, or switching to hard",
        )
        self.group  # noqa: B018  raises SettingError
        self.check_clip(self.privacy != "none")

    def check_sum(self, steps: int) -> None:
        """Always raise SettingError: running on sums alone is not yet supported."""
        require(False, "trust sum does not support fedsgm, whose messages contain losses as well as steps: use fedavg")

    def check(self, objective: Any) -> None:
        """Raise SettingError for an objective without losses of rows, or without a class that is named."""
        super().check(objective)
        check_classes([self.group], objective)

    @cached_property
    def group(self) -> Group:
        """The rows whose losses, summed and divided by the number of all rows, are f without the penalty."""
        return parse_group(self.minimise, "minimise")

    def slope(self, objective: Any, x: Array, rows: Batch, inbox: Any) -> Array:
        """The gradient (..., d) of (1 - s) f_j + s g_jm at x on these rows."""
        s = inbox.switch[..., None]
        bound = sum((inbox.bound == m)[..., None] * shares(c, rows, x.dtype) for m, c in enumerate(self.bounded))
        weights = (1 - s) * shares(self.group, rows, x.dtype) + s * bound
        grad = objective.grad(x, rows._replace(weights=weights))
        if isinstance(objective, Penalised):  # the penalty belongs to f_j alone
            grad -= s * objective.add_penalty_grad(np.zeros_like(grad), x)
        return grad  # type: ignore[no-any-return]

    def decided(self, values: Array) -> tuple[Array, Index]:
        """s and m (...,) from the mean values (..., M)."""
        over, bound = values.max(-1) - self.threshold, values.argmax(-1)
        if self.switching == "hard":
            return (over > 0).astype(values.dtype), bound                       # (4)
        return np.clip(1 + (self.beta or 2 / self.threshold) * over, 0, 1), bound

    def server_metrics(self, server: Any) -> dict[str, Array]:
        """s of the next round, and ||w||^2 of the model."""
        return {"switch": server.switch, "squared_norm": (self.model(server) ** 2).sum(-1)}

    def model_metrics(self, x: Array, objective: Any, rows: Batch) -> dict[str, float]:
        """Those of `BoundedLosses`, the mean loss of the group that is minimised, and f."""
        group_rows = rows._replace(weights=shares(self.group, rows, x.dtype))
        return {
            **super().model_metrics(x, objective, rows),
            "group_cost": self.group.mean_loss(objective.losses(x, rows), rows),
            "group_objective": float(objective.value(x, group_rows)),
        }

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The noisy gradients of all steps, all charged as the first one, which holds the values, too.

        A record is in the groups of all rows and of features, and in those of its class; a value that it stays in,
        leaves or joins moves by at most 1.
        """
        release = gradient_release(bounds, workload)
        squares = (2 * bounds.gradient) ** 2 + sum(groups_of_a_record(self.bounded))
        return release._replace(sensitivity=math.sqrt(squares) * workload.replaced_in_batch / workload.rows)

    def rounding(
        self, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for each gradient, and for the values in units of loss_clip."""
        loop = super().rounding(state, inbox, bounds, workload, round_, sigma)
        return loop._replace(size=loop.size + math.fsum(1 + c.limit / self.unit for c in self.bounded))


class Inbox(NamedTuple):
    """x0 (..., d): x, or the kept entries of x - w; their indices (..., k'), or (..., 0) if all are kept; the rand-k
    seed (...,); heard (...,), the last round of this client that the server counted; s (...,); and m (...,)."""

    x0: Array
    kept: Index
    seed: Seeds
    heard: Index
    switch: Array
    bound: Index


class Upload(NamedTuple):
    """The entries of v_j that are sent (..., k); their indices as in `messages.Upload`; the values g_jm (..., M)."""

    y: Array
    indices: Index
    values: Array


class Server(NamedTuple):
    """x0 (..., d), x; average (..., d) and its weight counted (...,); s and m (...,); followed (..., N, d), w of each
    client, N = 0 if broadcasts are whole; heard (..., N), the last counted round of each client; and the key (...,) of
    the run's public random numbers."""

    x0: Array
    average: Array
    counted: Array
    switch: Array
    bound: Index
    followed: Array
    heard: Index
    key: Seeds


@dataclass(frozen=True)
class FedSGM(Switching, Echoed):
    """FedSGM: its messages, states and steps."""

    name: ClassVar[str] = "fedsgm"
    title: ClassVar[str] = "FedSGM: steps along the objective, or along a bound on a loss while it is exceeded"

    # ------------------------------------------------------------------------------------- messages and states

    @property
    def follows(self) -> bool:
        """Whether broadcasts are sparsified, and clients keep their w."""
        return self.downlink_ratio < 1

    @property
    def state(self) -> Layout:
        """The layout of e_j, or of e_j and w."""
        return PAIR if self.follows else UNACKNOWLEDGED

    @cached_property
    def inbox(self) -> Layout:
        """The layout of x or its difference from w, the echo, s and m."""
        most = len(self.bounded) - 1
        return Layout(Inbox, Count("heard"), *self.point, Amount("switch", most=1), Count("bound", most=most))

    @cached_property
    def upload(self) -> Layout:
        """The layout of the entries sent, and of the values."""
        values = Point("values", per_entry=0, extra=len(self.bounded))
        return Layout(Upload, Entries("y", "indices", self.up), values)

    def init_client(self, start: Array) -> Unacknowledged:
        """Start with e_j = 0 and w = start."""
        rest = np.zeros_like(start)
        return initial(np.concatenate([rest, start], -1) if self.follows else rest)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with x = w = start and s = 0."""
        clients, none = num_clients if self.follows else 0, np.zeros(start.shape[:-1], start.dtype)
        if not start.nbytes * clients < 2**32:
            raise SettingError(
                f"a sparsified downlink of fedsgm keeps {clients} x {start.shape[-1]} numbers, more than 4 GiB: set "
                "downlink-ratio to 1"
            )
        followed = np.repeat(start[..., None, :], clients, axis=-2)
        heard = nobody_heard(start, num_clients)
        return Server(start, start, none, none, none.astype(np.int64), followed, heard, key)

    def broadcast(self, server: Server, round_: int, node: Index) -> Inbox:
        """Send x or entries of its difference from the node's w, s, m and the echo."""
        x0, kept = self._difference(server, node)
        s, m = server.switch, server.bound
        if np.ndim(node):
            s, m = s[..., None], m[..., None]
        return Inbox(x0, kept, self.seeds(server.key, round_, node), of_node(server.heard, node), s, m)

    def _difference(self, server: Server, node: Index) -> tuple[Array, Index]:
        """x, or C_0(x - w) for one node or for nodes (..., K), and the indices of its entries."""
        x = to_nodes(server.x0, node)
        return self.thinned(x - rows_of_node(server.followed, node) if self.follows else x)

    # --------------------------------------------------------------------------------------------- the client

    def client_update(
        self, state: Unacknowledged, inbox: Inbox, work: LocalWork
    ) -> tuple[Unacknowledged, Upload, Report]:
        """Take E steps along the mixed gradient, and send a part of e_j and the way back, and the values at w."""
        rest, w = self._counted(state, inbox)
        end, values = self._steps(w, inbox, work)
        report = Report(work.batches.steps, np.zeros(work.batches.steps.shape, dtype=bool))
        owed = rest + w - end
        v = self.message(owed, inbox, report)
        rest = owed - self.received(v, w.shape[-1])[0]                          # (2)
        kept = (rest, w) if self.follows else (rest,)
        counted = confirmed(state, inbox.heard)
        return unacknowledged(counted, np.concatenate(kept, -1), work.round), Upload(v.y, v.indices, values), report

    def _counted(self, state: Unacknowledged, inbox: Inbox) -> tuple[Array, Array]:
        """e_j, and the point w where the local steps start, (..., d) each."""
        counted = confirmed(state, inbox.heard)
        if not self.follows:
            return counted, inbox.x0
        rest, w = np.split(counted, 2, -1)
        return rest, w + inbox.x0                                               # (5)

    def local_start_and_shift(self, state: Any, inbox: Any) -> tuple[Array, Array | float]:
        """The point w where the local steps start, and no shift."""
        return self._counted(state, inbox)[1], 0.0

    def _steps(self, w: Array, inbox: Inbox, work: LocalWork) -> tuple[Array, Array]:
        """The end of the local steps (..., d), and the (noisy) values g_jm(w) in units of loss_clip (..., M)."""
        x, values, d, eta = w, np.empty(0), w.shape[-1], self.step(work.round)
        noise = work.noise if self.privacy == "gradient" else no_noise
        for k, rows in enumerate(work.batches):
            value = self.slope(work.objective, x, rows, inbox)
            if k == 0:
                value = np.concatenate([value, self.excesses(work.objective.losses(w, rows), rows)], -1)  # type: ignore[attr-defined]
            value = noise(value, k)
            slope, values = (value[..., :d], value[..., d:]) if k == 0 else (value, values)
            x = np.where((k < work.batches.steps)[..., None], x - eta * slope, x)  # (1)
        return x, values

    # --------------------------------------------------------------------------------------------- the server

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """Step along the mean of what was sent, decide what the next steps follow, and add w to the output."""
        x, (w, followed) = server.x0, self._points(server, clients)
        v = self.received(uploads, x.shape[-1])[0]
        switch, bound = self.decided(unbiased_mean(uploads.values, clients, self.info.sizes) * self.unit)
        after = server._replace(
            x0=x - unbiased_mean(v, clients, self.info.sizes),                  # (3)
            switch=switch,
            bound=bound,
            followed=followed,
            heard=acknowledge(server.heard, clients, round_),
        )
        if self.final_model != "average":
            return self.averaged(after, round_)  # type: ignore[no-any-return]
        average, counted = self._output(server, mean_over_clients(w) if self.follows else x, round_)
        return after._replace(average=average, counted=counted)

    def _points(self, server: Server, clients: Index) -> tuple[Array, Array]:
        """The w (..., K, d) from which clients (..., K) took steps in this round, and all w after it."""
        if not self.follows:
            return server.followed, server.followed
        w = rows_of_node(server.followed, clients) + self._difference(server, clients)[0]  # (5)
        return w, put_rows(server.followed, clients, w)

    def _output(self, server: Server, w: Array, round_: int) -> tuple[Array, Array]:
        """The mean (6) and its weight with the w (..., d) of this round; w itself until there is some weight."""
        weight = (1 - server.switch) * (round_ > 1)
        total = server.counted + weight
        share = np.where(total > 0, weight / np.where(total > 0, total, 1), 1)[..., None].astype(w.dtype, copy=False)
        return server.average + share * (w - server.average), total
