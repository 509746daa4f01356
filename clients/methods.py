"""The client side of every algorithm: what a client keeps, receives and sends.

One class for each algorithm in `twinflower.algorithms`, whose `client_update` is the mathematics.
"""

from twinflower import algorithms

from .shell import AlgorithmClient


# Li 2023, Algorithm 1; Li 2024, Algorithm 1
class FedPDMClient(AlgorithmClient):
    """Keeps its dual (and its last x for a warm start). Receives x0, takes local steps on the augmented Lagrangian,
    updates the dual, and sends y: `twinflower.algorithms.fedpdm.FedPDM.client_update`.
    """

    algorithm_class = algorithms.FedPDM


# Li 2024, Algorithm 2
class BSDPFedPDMClient(AlgorithmClient):
    """Keeps its dual. Receives a sparse x0, sets its missing entries to zero, uses this point in all local steps, and
    sends k entries of y: `twinflower.algorithms.fedpdm.BSDPFedPDM.client_update`.
    """

    algorithm_class = algorithms.BSDPFedPDM


class FedAvgClient(AlgorithmClient):
    """Keeps no state. Receives x0, takes local gradient steps, and sends their end point and their number:
    `twinflower.algorithms.fedavg.FedAvg.client_update`.
    """

    algorithm_class = algorithms.FedAvg


class FedProxClient(AlgorithmClient):
    """Keeps no state. Receives x0, takes local gradient steps with a proximal term towards x0, and sends their end
    point and their number: `twinflower.algorithms.fedprox.FedProx.client_update`.
    """

    algorithm_class = algorithms.FedProx


class FedAdamClient(AlgorithmClient):
    """Keeps nothing. Receives x0, takes local gradient steps, and sends the end point, as FedAvg's client does:
    `twinflower.algorithms.fedavg.Averaging.client_update`.
    """

    algorithm_class = algorithms.FedAdam


class ScaffoldClient(AlgorithmClient):
    """Keeps its control variate c_i before and after its last reply. Receives x0, c and the last round whose reply the
    server used, takes local steps corrected by c - c_i, and sends their end point and their number:
    `twinflower.algorithms.scaffold.Scaffold.client_update`.
    """

    algorithm_class = algorithms.Scaffold


class FedDynClient(AlgorithmClient):
    """Keeps its dual before and after its last reply. Receives x0 and the last round whose reply the server used, takes
    local steps on the dynamically regularised loss, and sends their end point:
    `twinflower.algorithms.feddyn.FedDyn.client_update`.
    """

    algorithm_class = algorithms.FedDyn


class FedADMMClient(AlgorithmClient):
    """Keeps its dual and the sum of all it has sent, before and after its last reply. Receives x0 and the last round
    whose reply the server used, takes local steps on the augmented Lagrangian, and sends a difference:
    `twinflower.algorithms.fedadmm.FedADMM.client_update`.
    """

    algorithm_class = algorithms.FedADMM


class FedDRClient(AlgorithmClient):
    """Keeps y, x and the sum of all it has sent, before and after its last reply. Receives x0 and the last round whose
    reply the server used, moves y, takes local steps towards the prox of its loss at y, and sends a difference:
    `twinflower.algorithms.feddr.FedDR.client_update`.
    """

    algorithm_class = algorithms.FedDR


class FedMiDClient(AlgorithmClient):
    """Keeps nothing. Receives x0, takes proximal gradient steps, and sends the change:
    `twinflower.algorithms.fedmid.FedMiD.client_update`.
    """

    algorithm_class = algorithms.FedMiD


class FedDualAvgClient(AlgorithmClient):
    """Keeps nothing. Receives z and the length of all steps so far, moves z along gradients at its prox, and sends the
    change: `twinflower.algorithms.feddualavg.FedDualAvg.client_update`.
    """

    algorithm_class = algorithms.FedDualAvg


class MRMTLClient(AlgorithmClient):
    """Keeps its own model. Receives the mean of all models, takes local gradient steps from its own model with a pull
    towards that mean, and sends their end point: `twinflower.algorithms.mr_mtl.MRMTL.client_update`.
    """

    algorithm_class = algorithms.MRMTL


class ProxSkipClient(AlgorithmClient):
    """Keeps its last message, from which it computes its control variate. Receives x0, takes local steps, whose number
    is public randomness of the round, and sends their end point:
    `twinflower.algorithms.proxskip.ProxSkip.client_update`.
    """

    algorithm_class = algorithms.ProxSkip


class TamunaClient(AlgorithmClient):
    """Keeps its control variate, its last message and the column of its mask. Receives x0 and a column, takes local
    steps, whose number is public randomness of the round, and sends the entries of their end point in the mask:
    `twinflower.algorithms.tamuna.Tamuna.client_update`.
    """

    algorithm_class = algorithms.Tamuna


class ISRLDPClient(AlgorithmClient):
    """Keeps no state. Receives x0 and sends the (noisy) mean gradient of one batch:
    `twinflower.algorithms.isrl_dp.ISRLDP.client_update`.
    """

    algorithm_class = algorithms.ISRLDP


class SoteriaFLClient(AlgorithmClient):
    """Keeps its shift, before and after its last reply. Receives x0, the last round whose reply the server used and the
    seed of the entries to send, and sends these entries of the difference between its (noisy) gradient and the shift:
    `twinflower.algorithms.soteriafl.SoteriaFL.client_update`.
    """

    algorithm_class = algorithms.SoteriaFL


class LDPPrimalDualClient(AlgorithmClient):
    """Keeps its last message, its dual and its point. Receives the mean of all clients' last messages, completes the
    previous round with it, and sends one (noisy) gradient step:
    `twinflower.algorithms.ldp_primal_dual.LDPPrimalDual`.

    If a request is repeated for the same round, the client sends the stored message, because new noise would spend
    budget twice. The server rejects a client that has lost its state, because the duals would no longer sum to 0.
    """

    algorithm_class = algorithms.LDPPrimalDual


class ZCDPNFLClient(AlgorithmClient):
    """Keeps its dual and its last message, before and after its last reply. Receives the sum of its neighbours'
    messages, the dual steps since that reply, and the round of that reply. Takes one linearised ADMM step and sends the
    new point with noise:
    `twinflower.algorithms.zcdp_nfl.ZCDPNFL.client_update`.
    """

    algorithm_class = algorithms.ZCDPNFL


class DPNFLClient(AlgorithmClient):
    """The same client as for zCDP-NFL, with noise calibrated by the older accounting of DP-NFL:
    `twinflower.algorithms.zcdp_nfl.DPNFL.client_update`.
    """

    algorithm_class = algorithms.DPNFL


class PADMMClient(AlgorithmClient):
    """The same client as for zCDP-NFL, but it solves its local problem exactly:
    `twinflower.algorithms.p_admm.PADMM.client_update`.
    """

    algorithm_class = algorithms.PADMM


class NetworkedSubgradientClient(AlgorithmClient):
    """Keeps no state. Receives its own last message and the mean over its neighbourhood, and takes one subgradient
    step: `twinflower.algorithms.networked_subgradient.NetworkedSubgradient.client_update`.
    """

    algorithm_class = algorithms.NetworkedSubgradient


class SSCAClient(AlgorithmClient):
    """Keeps no state. Receives x and sends the (noisy) mean gradient of one batch:
    `twinflower.algorithms.ssca.SSCA.client_update`.
    """

    algorithm_class = algorithms.SSCA


class ConstrainedSSCAClient(AlgorithmClient):
    """Keeps no state. Receives x and sends (noisy) gradients and values of the constraints on one batch:
    `twinflower.algorithms.ssca_constrained.ConstrainedSSCA.client_update`.
    """

    algorithm_class = algorithms.ConstrainedSSCA


class FedSGMClient(AlgorithmClient):
    """Keeps what its messages left out, before and after its last reply, and the server's point if it receives only
    entries of it. Receives that point, what the steps follow, and the last round whose reply the server used; sends
    entries of its change and the values of the bounds: `twinflower.algorithms.fedsgm.FedSGM.client_update`.
    """

    algorithm_class = algorithms.FedSGM


class NewtonClient(AlgorithmClient):
    """Keeps no state. Receives a point and sends the loss, the score and the information of its rows there, and with
    privacy the last two with noise: `twinflower.algorithms.newton.Newton.client_update`.
    """

    algorithm_class = algorithms.Newton


class NewtonPathClient(AlgorithmClient):
    """Keeps no state. Receives the points of all weights of a penalty, on all rows and without each of its folds, and
    sends the sums of `NewtonClient` there, and the loss of each fold:
    `twinflower.algorithms.newton_path.NewtonPath.client_update`.
    """

    algorithm_class = algorithms.NewtonPath


CLIENTS: dict[str, type[AlgorithmClient]] = {
    kind.algorithm_class.name: kind for kind in list(vars().values()) if hasattr(kind, "algorithm_class")
}
"""The class for each algorithm, by the name that a user types: all classes above with an `algorithm_class`."""
