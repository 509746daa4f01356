"""MR-MTL (Liu, Hu, Wu and Smith, NeurIPS 2022): mean-regularised multi-task learning, a model for every client.

    minimise  sum_i p_i { f_i(w_i) + lambda/2 ||w_i - wbar||^2 },  wbar = sum_i p_i w_i,  p_i = 1/N or N_i/N

    client i:  w_i <- w_i - eta (grad f_i(w_i; batch) + lambda (w_i - wbar)),  Q times from its last w_i           (1)
    server:    wbar <- sum_i p_i w_i, over the last models of all clients                                          (2)

client keeps     x (..., d), its own model w_i
       receives  x0 (..., d), the mean wbar
       sends     w (..., d)
server keeps     models (..., N, d), the last one received from each client, x0 (..., d), and for `final_model` a mean
                 of the models over the last rounds, average (..., N, d)
A client that misses a round stays in the mean with its last model. If its reply is lost, its next one replaces that.
lambda = 0 trains each client alone. As lambda grows, all w_i tend to the optimum of sum_i p_i f_i.

Fixed point. w_i rests under (1) only if grad f_i(w_i) + lambda (w_i - wbar) = 0, for any number of full-batch steps. As
sum_j p_j (w_j - wbar) = 0, this is the gradient of the problem above: wbar depends on w_i, but its terms cancel. (1)
and (2) minimise sum_i p_i (f_i(w_i) + lambda/2 ||w_i - y||^2) alternately over the w_i of clients that take part and
over y, so a round of small steps never increases the objective, whoever takes part.

The numbers (1) and (2) are ours: the paper was read through its authors' program (`trainers/mrmtl.py`). There, all
clients take part in every round; per-row clipping includes the term of lambda, which here is outside; and rows are the
weights. h has no place in the problem and is refused: a prox of w_i would be another method. So are sparsified
uploads, with which the server would know another w_i than the client.

Privacy. The paper adds noise to every clipped gradient ("gradient"). "public-state" adds it to the end point of (1). In
both, w_i is noisy and is what is sent: the start of the next loop is public, and so is its centre wbar
(`LocalMethod.release` with mu = lambda). The models are the releases themselves, so whoever uses one of them spends
nothing. With sums the server would not know the models, and the loop would start at a point that only the site knows.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import SettingError
from ..problems.regularisers import Zero
from ..settings import Setting, at_least
from ..work import LocalWork, Report
from .local import LocalMethod, check_pull
from .messages import VECTOR, Upload, Vector, mean_of_senders
from .relay import put_rows


class Server(NamedTuple):
    """models (..., N, d); their mean x0 (..., d); average (..., N, d) for `final_model`; and the key (...,) of the
    run's public random numbers."""

    models: Array
    x0: Array
    average: Array
    key: Seeds


@dataclass(frozen=True)
class MRMTL(LocalMethod):
    """MR-MTL with FedAvg's settings, and mean_pull >= 0, the lambda above, with mean_pull * step_size < 2. `uplink` and
    `missing` have no effect. With final_model = "tail-mean" every client's model is a mean over the last rounds."""

    name: ClassVar[str] = "mr-mtl"
    title: ClassVar[str] = "MR-MTL: a model for every client, pulled towards the mean of all models"

    personal: ClassVar[bool] = True

    mean_pull: Annotated[float, Setting("weight of the pull towards the mean of all models", at_least(0))] = 0.1

    state = VECTOR

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull("mean-pull", self.mean_pull, self.step_size)
        if not isinstance(self.regulariser, Zero):
            raise SettingError(
                f"mr-mtl has no regulariser; got {type(self.regulariser).__name__}: set regulariser.name to none"
            )
        if self.uplink_ratio != 1:
            raise SettingError(
                "mr-mtl needs uplink-ratio 1, because the server keeps every client's whole model; got "
                f"{self.uplink_ratio:g}"
            )

    @property
    def pull(self) -> float:
        """lambda, the weight of the pull towards the mean."""
        return self.mean_pull

    def init_client(self, start: Array) -> Vector:
        """Start with w = start."""
        return Vector(start)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start as if every client had sent the start."""
        models = np.repeat(start[..., None, :], num_clients, axis=-2)
        return Server(models, start, models, key)

    def client_update(
        self, state: Vector, inbox: Any, work: LocalWork
    ) -> tuple[Vector, Upload, Report]:
        """Take Q local steps from the client's own model, and send the end point."""
        w, report = self.local_loop(work, inbox.x0, 0.0, state.x)               # (1)
        return Vector(w), self.message(w, inbox, report), report

    def local_start_and_shift(self, state: Vector, inbox: Any) -> tuple[Array, float]:
        """The local loop starts at the client's own model, without a shift."""
        return state.x, 0.0

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """Replace the models of the clients that replied, and average those of all clients."""
        models = put_rows(server.models, clients, uploads.y)
        average = self.tail_mean(server.average, models, round_)
        return server._replace(models=models, x0=self._mean(models), average=average)  # (2)

    def _mean(self, models: Array) -> Array:
        """The mean (..., d) of models (..., N, d), with the clients' weights in F."""
        everybody = np.broadcast_to(np.arange(models.shape[-2]), models.shape[:-1])
        mean = mean_of_senders(models, None, shares=self.info.shares(everybody))
        return mean.astype(models.dtype, copy=False)

    def model(self, server: Server) -> Array:
        """The mean (..., d) of the clients' models, for whoever has none."""
        return self._mean(server.average)

    def client_models(self, server: Server) -> Array:
        """The clients' models (..., N, d), or their means over the last rounds."""
        return server.average

    def check_sum(self, steps: int) -> None:
        """Raise SettingError: with sums the server does not know the models."""
        raise SettingError(
            "mr-mtl has no form with trust sum: every site has a model of its own, which the server must know: choose "
            "privacy.trust local, or a method with one model for all sites"
        )
