"""The server side of every algorithm: what the server keeps, sends and receives, and what a missing client means.

One class for each algorithm in `twinflower.algorithms`, whose `server_update` is the mathematics.
"""

from collections.abc import Iterable, Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from twinflower import algorithms
from twinflower.arrays import Index
from twinflower.errors import SettingError
from twinflower.rounds import who

from .star import StarStrategy


class RelayStrategy(StarStrategy):
    """Base of the networked strategies, for algorithms that derive from `twinflower.algorithms.relay.Relayed`.

    The algorithm's server state holds the messages to forward. A client that has left the graph gets no further
    requests and is named in the log once.
    """

    def _ask(self, server_round: int, clients: Index, config: Mapping[str, Any]) -> list[Message]:
        return super()._ask(server_round, clients[self._alive[clients]], config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """See `StarStrategy.aggregate_train`; also logs the clients that have left the graph."""
        before = self._alive
        result = super().aggregate_train(server_round, replies)
        for client in np.flatnonzero(before & ~self._alive):
            text = "%s was silent for too long: it has left the graph, and its data no longer count"
            log(WARNING, text, who(int(client), self.training.sites))
        return result

    @property
    def _alive(self) -> np.ndarray:
        algorithm = self.algorithm
        assert algorithm.networked  # true for every algorithm class of a relay
        return algorithm.alive(self.server)


# Li 2023, Algorithm 1; Li 2024, Algorithm 1
class FedPDM(StarStrategy):
    """Keeps x0, and with aggregation = "memory" also every client's last y. Sends x0, receives y_i, takes the mean, and
    applies the prox of h with step 1/rho: `twinflower.algorithms.fedpdm.FedPDM.server_update`.

    A missing client is left out of the mean ("sampled") or represented by its last y ("memory").
    """

    algorithm_class = algorithms.FedPDM


# Li 2024, Algorithm 2
class BSDPFedPDM(StarStrategy):
    """Keeps x0. Sends the k' largest entries of x0 (and a seed for rand-k), receives k entries of each y_i, divides the
    sum in each entry by the number of clients that sent it, and applies the prox:
    `twinflower.algorithms.fedpdm.BSDPFedPDM.server_update`.

    A missing client is not counted as a sender of any entry.
    """

    algorithm_class = algorithms.BSDPFedPDM


class FedAvg(StarStrategy):
    """Keeps x0. Sends x0, receives each client's x and number of local steps, and takes the mean. Unless the clients
    used subgradients of h, it then applies the prox with the total step length of the round:
    `twinflower.algorithms.fedavg.FedAvg.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class = algorithms.FedAvg


class FedProx(StarStrategy):
    """Keeps x0. Sends x0, receives each client's x and number of local steps, then takes the mean and applies the prox
    as in FedAvg: `twinflower.algorithms.fedprox.FedProx.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class = algorithms.FedProx


class FedAdam(StarStrategy):
    """Keeps x0 and running means of the clients' mean change and of its squares, takes an adaptive step, and applies
    the prox of h in its norm: `twinflower.algorithms.fedadam.FedAdam.step_to`.

    A missing client is left out of the mean.
    """

    algorithm_class = algorithms.FedAdam


class Scaffold(StarStrategy):
    """Keeps x0, the mean c of the clients' control variates, and for every client the last round whose reply was used.
    Sends x0, c and that round, receives x and the number of local steps, and computes the new c from them:
    `twinflower.algorithms.scaffold.Scaffold.server_update`.

    A missing client is left out of the mean of x, and its c_i stays unchanged: from the round that it is sent it learns
    that its last reply was not used, and it undoes that step of c_i.
    """

    algorithm_class = algorithms.Scaffold


class FedDyn(StarStrategy):
    """Keeps x0, the mean of the clients' duals (drift), and for every client the last round whose reply was used. Sends
    x0 and that round, receives x, updates the drift, and applies the prox with step 1/alpha to mean - drift/alpha:
    `twinflower.algorithms.feddyn.FedDyn.server_update`.

    A missing client is left out of the mean of x, and its dual stays unchanged: from the round that it is sent it
    learns that its last reply was not used, and it undoes that dual step.
    """

    algorithm_class = algorithms.FedDyn


class FedADMM(StarStrategy):
    """Keeps x0, the mean before its prox, and for every client the last round whose reply was used. Sends x0 and that
    round, receives differences, adds their mean to the mean, and applies the prox with step 1/rho:
    `twinflower.algorithms.fedadmm.FedADMM.server_update`.

    A missing client changes nothing: from the round that it is sent it learns whether its last reply was used, and if
    not, it sends the difference anew.
    """

    algorithm_class = algorithms.FedADMM


class FedDR(StarStrategy):
    """Keeps x0, the mean before its prox, and for every client the last round whose reply was used. Sends x0 and that
    round, receives differences, adds their mean to the mean, and applies the prox with step eta:
    `twinflower.algorithms.feddr.FedDR.server_update`.

    A missing client changes nothing: from the round that it is sent it learns whether its last reply was used, and if
    not, it sends the difference anew.
    """

    algorithm_class = algorithms.FedDR


class FedMiD(StarStrategy):
    """Keeps x0 and sends it. Receives changes, moves along their mean, and applies the prox of h with the length of the
    clients' steps: `twinflower.algorithms.fedmid.FedMiD.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class = algorithms.FedMiD


class FedDualAvg(StarStrategy):
    """Keeps z and the length of all steps so far, and sends both. Receives changes of z, moves along their mean, and
    evaluates the prox of h at z: `twinflower.algorithms.feddualavg.FedDualAvg.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class = algorithms.FedDualAvg


class MRMTL(StarStrategy):
    """Keeps the last model of every client and their mean x0. Sends x0, and receives each client's own model:
    `twinflower.algorithms.mr_mtl.MRMTL.server_update`. A client evaluates its own model.

    A missing client stays in the mean with its last model.
    """

    algorithm_class = algorithms.MRMTL


class ProxSkip(StarStrategy):
    """Keeps x0, the prox of the mean of all messages. Sends x0, receives the end points of the clients' local steps,
    minus their control variates: `twinflower.algorithms.proxskip.ProxSkip.server_update`.

    The request is repeated to a client that does not reply, and the run stops if there is still no reply.
    """

    algorithm_class = algorithms.ProxSkip


class Tamuna(StarStrategy):
    """Keeps x0, and sends it with each client's column of the mask. Receives the entries in the mask of the end points
    of the clients' local steps, and averages each: `twinflower.algorithms.tamuna.Tamuna.server_update`.

    The request is repeated to a client that does not reply, and the run stops if there is still no reply.
    """

    algorithm_class = algorithms.Tamuna


class ISRLDP(StarStrategy):
    """Keeps x0 and the average of all its iterates. Sends x0, receives each client's (noisy) mean gradient, takes one
    gradient step and applies the prox: `twinflower.algorithms.isrl_dp.ISRLDP.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class = algorithms.ISRLDP


class SoteriaFL(StarStrategy):
    """Keeps x0, the mean of the clients' shifts, and for every client the last round whose reply was used. Sends x0,
    that round and the seed of the entries to send, receives these entries of the clients' differences, takes one step
    along the mean shift plus the mean difference, and applies the prox:
    `twinflower.algorithms.soteriafl.SoteriaFL.server_update`.

    A missing client is left out of the mean difference. From the round that it is sent it learns whether its last reply
    was used, and if not, it discards that step of its shift.
    """

    algorithm_class = algorithms.SoteriaFL


class LDPPrimalDual(StarStrategy):
    """Keeps the clients' last messages and their mean. Sends the mean in every round, and once more after the last one:
    `twinflower.algorithms.ldp_primal_dual.LDPPrimalDual`.

    Needs all clients in every round. It repeats the request up to `retries` times to clients that did not reply, and
    then stops the run.
    """

    algorithm_class = algorithms.LDPPrimalDual

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *args: Any, **kwargs: Any
    ) -> Result:
        """See `StarStrategy.start`; num_rounds must equal the number of rounds for which the noise was planned."""
        planned = self.algorithm.info.rounds
        if num_rounds != planned:
            raise SettingError(
                f"the algorithm's info plans {planned} rounds, and the noise of each rests on that; got {num_rounds}"
            )
        return super().start(grid, initial_arrays, num_rounds, *args, **kwargs)


class ZCDPNFL(RelayStrategy):
    """A relay that keeps the last message of every client. Sends each client the sum of its neighbours' messages and
    the dual steps that it has not received yet: `twinflower.algorithms.zcdp_nfl.ZCDPNFL`.

    For a missing client its last message is used again. After `dead_after` rounds without a reply it leaves the graph.
    """

    algorithm_class = algorithms.ZCDPNFL


class DPNFL(RelayStrategy):
    """The same relay as for zCDP-NFL: `twinflower.algorithms.zcdp_nfl.DPNFL`.

    For a missing client its last message is used again. After `dead_after` rounds without a reply it leaves the graph.
    """

    algorithm_class = algorithms.DPNFL


class PADMM(RelayStrategy):
    """The same relay as for zCDP-NFL: `twinflower.algorithms.p_admm.PADMM`.

    For a missing client its last message is used again. After `dead_after` rounds without a reply it leaves the graph.
    """

    algorithm_class = algorithms.PADMM


class NetworkedSubgradient(RelayStrategy):
    """A relay that keeps the last message of every client. Sends each client its own last message and the mean over its
    neighbourhood: `twinflower.algorithms.networked_subgradient.NetworkedSubgradient`.

    For a missing client its last message is used again. After `dead_after` rounds without a reply it leaves the graph.
    """

    algorithm_class = algorithms.NetworkedSubgradient


class SSCA(StarStrategy):
    """Keeps x and the averaged surrogate of F. Sends x, receives each client's (noisy) batch gradient, and moves x
    towards the minimiser of the surrogate: `twinflower.algorithms.ssca.SSCA.server_update`.

    A missing client is left out, and the others are weighted to represent all rows.
    """

    algorithm_class = algorithms.SSCA


class ConstrainedSSCA(StarStrategy):
    """Keeps x, a surrogate of every constraint, the multipliers and the slack. Sends x, receives gradients and values
    of the constraints, and moves x towards the smallest model that satisfies the surrogate constraints:
    `twinflower.algorithms.ssca_constrained.ConstrainedSSCA.server_update`.

    A missing client is left out, and the others are weighted to represent all rows.
    """

    algorithm_class = algorithms.ConstrainedSSCA


class FedSGM(StarStrategy):
    """Keeps x, the mean of the points that followed the objective, and for every client the last round whose reply was
    used. Sends x or entries of its change, adds the mean of the clients' changes, and follows the objective or the
    largest bound next, by the values that came with them: `twinflower.algorithms.fedsgm.FedSGM.server_update`.

    A missing client is left out of the means. From the round that it is sent it learns whether its last reply was used,
    and if not, it discards that change and returns to what its earlier messages had left out.
    """

    algorithm_class = algorithms.FedSGM


class Newton(StarStrategy):
    """Keeps the best point so far and the step from it. Sends the next point, receives every client's loss, score and
    information there, and takes or shortens the step: `twinflower.algorithms.newton.Newton.server_update`. The run ends
    when it has converged; with privacy it has a fixed number of rounds.

    A round needs every client: the request is repeated to one that does not reply, and if it stays away, the run stops
    and can be resumed.
    """

    algorithm_class = algorithms.Newton


class NewtonPath(StarStrategy):
    """Keeps for every weight of a penalty, on all rows and without each fold, what `Newton` keeps. Sends the next
    points of all, receives every client's sums there, and takes or shortens each step:
    `twinflower.algorithms.newton_path.NewtonPath.server_update`. The run ends when all have converged.

    A round needs every client, as that of `Newton` does.
    """

    algorithm_class = algorithms.NewtonPath


STRATEGIES: dict[str, type[StarStrategy]] = {
    kind.algorithm_class.name: kind for kind in list(vars().values()) if hasattr(kind, "algorithm_class")
}
"""The class for each algorithm, by the name that a user types: all classes above with an `algorithm_class`."""
