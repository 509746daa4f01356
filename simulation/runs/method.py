"""The algorithm of a run, built from its settings: its regulariser, public information, sums, and starting point."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from twinflower.algorithms import Algorithm
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.fedavg import FedAvg
from twinflower.arrays import Array, Index
from twinflower.errors import SettingError
from twinflower.privacy.plan import Plan
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Model, NamedModel
from twinflower.problems.losses import Squared
from twinflower.problems.objectives import LinearModel
from twinflower.problems.penalised import check_clipping
from twinflower.problems.regularisers import Regulariser, Support, on_part
from twinflower.problems.topologies import Neighbours
from twinflower.randomness import normals, stream
from twinflower.settings import point_of
from twinflower.sums.plan import SumPlan
from twinflower.sums.pooled import Pooled
from twinflower.sums.summed import Summed

from ..settings import Config
from ..settings.sections import Gradient


def build_method(config: Config, objective: Model, sizes: Index, neighbours: Neighbours) -> Algorithm:
    """The algorithm for clients with these numbers of rows (N,); SettingError if it does not fit the objective."""
    algorithm = replace(config.method, regulariser=regulariser_of(config, objective))
    if derives_step(config):
        algorithm = replace(algorithm, step_size=1.0)
    algorithm = _with_info(algorithm, config, sizes, neighbours, objective)
    algorithm.check(objective)
    check_clipping(objective, algorithm.privacy)
    for layout in (algorithm.inbox, algorithm.upload):
        layout.bits(objective.d)  # SettingError if a sparsification ratio keeps none of the d entries
    return algorithm


def derives_step(config: Config) -> bool:
    """Whether the step size follows from the noise of a run (`untuned.with_step`)."""
    privacy = config.privacy
    noisy = isinstance(privacy, Gradient) and privacy.trust == "local"
    return noisy and isinstance(config.method, FedAvg) and not config.method.step_size


def derived_step(config: Config, method: Algorithm) -> float | None:
    """The step size of this method, if it follows from the noise of the run; else None."""
    return cast(FedAvg, method).step_size if derives_step(config) else None


def regulariser_of(config: Config, objective: Model) -> Regulariser:
    """The regulariser h, applied to the whole point, or only to the parameters named by regulariser.parameters, or only
    to the weights of the columns."""
    h = config.regulariser
    parts = objective.parts(h.parameters or "*") if isinstance(objective, NamedModel) else []
    if h.name == "group-l1" and not len(parts) < 2:
        raise SettingError(
            "regulariser group-l1 needs one matrix: set regulariser.parameters to the name of one parameter; got "
            f"{len(parts)} parameters"
        )
    whole = h.build(parts[-1].rows if parts else objective.shapes[-1][0])
    last = max(whole.entries) if isinstance(whole, Support) else 0
    if not last < objective.d:
        raise SettingError(
            f"regulariser.entries must be below {objective.d}, the number of entries of this model; got {last}"
        )
    if h.intercept:
        return on_part(whole, parts) if h.parameters else whole
    if not (isinstance(objective, LinearModel) and not isinstance(whole, Support)):
        raise SettingError(
            "regulariser.intercept = false needs a linear model, and a regulariser other than selected, whose "
            f"entries say what is free; got {config.objective.name} and {h.name}"
        )
    return on_part(whole, objective.columns(config.data.bias))


def _with_info(
    algorithm: Any, config: Config, sizes: Index, neighbours: Neighbours, objective: Model
) -> Algorithm:
    """The algorithm with the public run information; SettingError if it needs every client but clients are sampled."""
    if algorithm.needs_every_client and config.clients.sampled != config.clients.count:
        raise SettingError(
            f"{algorithm.name} needs all clients in every round: set clients.per-round to 0; got "
            f"{config.clients.per_round} of {config.clients.count}"
        )
    key = config.seed if algorithm.draws_steps else 0
    quadratic = isinstance(objective, LinearModel) and isinstance(objective.loss, Squared)
    info = RunInfo(
        config.clients.count, config.rounds, (), neighbours, config.data.row_norm, key, quadratic, config.objective.l2
    )  # fmt: skip
    by_rows = weighting_of(config, algorithm) == "rows"
    return with_sizes(replace(algorithm, info=info), sizes if by_rows else ())


def weighting_of(config: Config, algorithm: Algorithm | type[Algorithm]) -> str:
    """The weighting of F, "clients" or "rows"; with clients.weighting = "auto", the algorithm's default."""
    return algorithm.weightings[0] if config.clients.weighting == "auto" else config.clients.weighting


def with_sizes(algorithm: Any, sizes: Index | Sequence[int]) -> Algorithm:
    """The algorithm with the clients weighted in F by their numbers of rows, (N,) or (seeds, N).

    Without sizes, or if all are equal, F is the unweighted mean over the clients.
    """
    known = _as_tuple(np.asarray(sizes, dtype=np.int64)) if len(sizes) and np.ptp(sizes) else ()
    return replace(algorithm, info=algorithm.info._replace(sizes=known))  # type: ignore[no-any-return]


def _as_tuple(sizes: Index) -> Any:
    """The sizes as (nested) tuples of int, because an algorithm must be hashable."""
    return tuple(map(_as_tuple, sizes)) if sizes.ndim else int(sizes)


def through_sums(
    algorithm: Algorithm, trust: str, plan: Plan | None, schedule: LocalSchedule, sizes: Index
) -> Algorithm:
    """The algorithm as it runs: wrapped in `Summed` if the server sees only sums (privacy.trust = "sum"), without noise
    in `Pooled`."""
    if trust != "sum":
        return algorithm
    if plan is None:
        return Pooled(algorithm, rows=int(sizes.sum()))
    assert isinstance(plan, SumPlan)
    return Summed(algorithm, tuple(schedule.steps(sizes).tolist()), plan.sums.widths, plan.sums.lost)


def with_noise(
    algorithm: Algorithm, objective: Model, plan: Plan | None, schedule: LocalSchedule, sizes: Index
) -> Algorithm:
    """The algorithm for a server that knows the noise of the plan, if the method's messages hold noisy sums."""
    if plan is None or not algorithm.sends_sums:
        return algorithm
    releases = (algorithm.release(plan.bounds, workload, 1) for workload in schedule.workloads(sizes))
    sensitivities = np.array([release.sensitivity for release in releases])
    return algorithm.with_noise(objective, plan.multipliers * sensitivities)


def graph_of(config: Config) -> Neighbours:
    """The graph of a networked method; empty for other methods."""
    return () if config.topology is None else config.topology.build(config.clients.count)


def starting_point(config: Config, objective: Model) -> Array:
    """The public starting point (d,): the objective's own, that of start-point, or with start-scale > 0 normal draws of
    that scale. Raises SettingError for a start-point of another size."""
    if config.start_point:
        start = np.array(point_of(config.start_point))
        if len(start) != objective.d:
            raise SettingError(
                f"start-point must have one number for each of the model's {objective.d} entries; got {len(start)}"
            )
    elif config.start_scale:
        start = config.start_scale * normals(config.seed, "start", 0, 0, objective.d)
    else:
        start = objective.start(stream(config.seed, "start"))
    return start.astype(config.dtype)
