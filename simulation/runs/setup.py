"""Build a run from its configuration: data, clients' rows, objective, algorithm, starting point, and evaluation."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.algorithms import Algorithm
from twinflower.algorithms.abilities import (
    DrawsSteps,
    NeedsEveryClient,
    RestrictsObjective,
)
from twinflower.algorithms.algorithm import RunInfo
from twinflower.arrays import Array, Index
from twinflower.data.columns import Range
from twinflower.data.dataset import OWN, Dataset
from twinflower.data.own import OwnData, load_own
from twinflower.data.partition import Partition, divide, hold_out
from twinflower.data.sets import ArrayData, Data, TableData
from twinflower.data.sites import load_own_table, schema_to_read
from twinflower.data.tables import check_groups, table_files
from twinflower.errors import require
from twinflower.privacy.plan import Plan
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Batch, ChecksRows, Model, NamedModel
from twinflower.problems.objectives import check_clipping
from twinflower.problems.regularisers import Regulariser, on_part
from twinflower.problems.topologies import Neighbours
from twinflower.randomness import normals, stream
from twinflower.sums.noise import Sums
from twinflower.sums.plan import SumPlan
from twinflower.sums.summed import Summed

from ..settings import DEFAULT_CLIENTS, Config, check
from .central import Central
from .privacy import make_plan


@dataclass(frozen=True)
class Setup:
    """A checked run, ready to start in any runtime.

    partition: the rows that each client trains on. site: the number of the client whose rows a deployed node holds.
    held: the rows on which clients evaluate, None for none. own_held: in the process of a site with rows of its own,
    the latter rows themselves. ranges: private ranges, once they are found.
    """

    config: Config
    dataset: Dataset
    partition: Partition
    objective: Model
    algorithm: Algorithm
    schedule: LocalSchedule
    start: Array
    plan: Plan | None = None
    site: int = 0
    held: Partition | None = None
    own_held: Batch | None = None
    ranges: tuple[tuple[str, Range], ...] = ()

    @cached_property
    def shards(self) -> Shards:
        """All clients' rows; for data `own`, only the rows of this process, stored as those of client `site`."""
        features, labels = self.dataset.features, self.dataset.labels
        if self.config.data.name == OWN:
            shards = Shards.site(Batch(features, labels), self.site)
        else:
            shards = Shards.grouped(features, labels, self.partition.rows, self.partition.offsets)
        return shards.prepared(self.objective)

    @property
    def method(self) -> Algorithm:
        """The algorithm itself, without the wrapper of runs in which the server sees only sums (`Summed`)."""
        return self.algorithm.algorithm if isinstance(self.algorithm, Summed) else self.algorithm  # type: ignore[no-any-return]

    def own(self, server: Any) -> Any:
        """The server state of `method`, given that of the (possibly wrapped) `algorithm`."""
        return server.own if isinstance(self.algorithm, Summed) else server

    @property
    def sums(self) -> Sums | None:
        """The plan of a run in which the server sees only sums; None for other runs."""
        return self.plan.sums if isinstance(self.plan, SumPlan) else None

    @property
    def regulariser(self) -> Regulariser:
        """The regulariser h of the problem, minimise F + h."""
        return self.algorithm.regulariser

    @property
    def by_rows(self) -> bool:
        """Whether F is the mean over all rows rather than the mean over the clients."""
        return weighting_of(self.config, self.method) == "rows"

    @cached_property
    def central(self) -> Central:
        """The problem with all rows in one place."""
        return Central(
            self.objective, self.method, self.dataset, self.shards, self.start, by_rows=self.by_rows
        )

    @property
    def neighbours(self) -> Neighbours:
        """The neighbours of each client in the graph of a networked method; empty for other methods."""
        return self.algorithm.info.neighbours

    @property
    def row_norm(self) -> float:
        """The public bound on the Euclidean norm of a row; infinity if there is none."""
        return self.config.data.row_norm or np.inf

    def with_state_dir(self, folder: Path) -> "Setup":
        """The same run with its clients' state on disk, in this folder unless the configuration names another one."""
        state_dir = self.config.output.state_dir or str(folder)
        return replace(self, config=self.config.put({"output.state-dir": state_dir}))


def weighting_of(config: Config, algorithm: Algorithm | type[Algorithm]) -> str:
    """The weighting of F, "clients" or "rows"; with clients.weighting = "auto", the algorithm's default."""
    return algorithm.weightings[0] if config.clients.weighting == "auto" else config.clients.weighting


@lru_cache(maxsize=2)
def prepare(config: Config) -> Setup:
    """Validate the configuration and build the run. Raises SettingError or DataError."""
    return _prepare(config, _graph)


@lru_cache(maxsize=2)
def prepare_server(config: Config) -> Setup:
    """`prepare` for the server of a run on Flower.

    Its rows are computed when it evaluates for the first time, which is after the nodes have started: at the same time,
    this would keep processors and memory from them.
    """
    return _prepare(config, _graph, deferred=True)


@lru_cache(maxsize=2)
def prepare_node(config: Config) -> Setup:
    """`prepare` for a node. It builds no graph, because the messages say how many neighbours the node has.

    A graph file is therefore read only on the user's machine. Rows are computed when they are used (`Deferred`),
    because a node uses few of them in a round, and a simulation has many processes.
    """
    return _prepare(config, lambda config: (), deferred=True)


def _prepare(config: Config, graph: Callable[[Config], Neighbours], deferred: bool = False) -> Setup:
    config = config.with_clients(DEFAULT_CLIENTS)
    check(config)  # before the data are loaded, so that errors in the settings appear at once
    data = (
        _own_dataset(config, config.data)
        if isinstance(config.data, OwnData)
        else _dataset(config.data, config.dtype, deferred)
    )
    if data.schema:
        _check_people(config)
        config = config.put({"data.schema-digest": data.schema.digest})
    return _assembled(config, data, graph)


def _check_held_out(config: Config, data: Dataset) -> None:
    """Raise SettingError for data on which clients cannot evaluate models."""
    share, private = config.evaluation.held_out, config.privacy.mode != "none"
    require(
        not data.standardised,
        f"evaluation.held-out must be 0 with data {config.data.name} whose columns or targets are divided by "
        f"statistics of all rows, the held-out ones included; got {share:g}",
    )
    require(
        data.unscaled is None,
        "evaluation.held-out must be 0 with a schema that has private ranges, by which sites scale only the rows "
        f"that they train on; got {share:g}",
    )
    require(
        not private or bool(data.num_classes or config.evaluation.loss_bound),
        "a private evaluation counts correct predictions, so it needs classes, and these labels are numbers: set "
        "evaluation.loss-bound, to which the losses that it releases are clipped",
    )


def _check_people(config: Config) -> None:
    """DataError if a table has more rows of a person than privacy.group-size; deployed sites have their own limits."""
    if isinstance(config.data, TableData) and config.privacy.unit.size:
        for file in table_files(config.data.files):
            check_groups(file, schema_to_read(config.data), config.privacy.unit.size)


def prepare_rows(config: Config, data: Dataset) -> Setup:
    """`prepare` for rows passed in by a program; `data.sites` holds the number of rows of each client."""
    config = config.with_clients(len(data.sites))
    check(config)
    return _assembled(config, data, _graph)


def _assembled(config: Config, data: Dataset, graph: Callable[[Config], Neighbours]) -> Setup:
    """Build the run on these rows."""
    schedule, data = config.schedule, data.in_precision(config.dtype)
    objective = config.objective.build(data.features.shape[1], data.num_classes)
    if isinstance(objective, ChecksRows):
        objective.check_rows(Batch(data.features, data.labels))
    h = _regulariser(config, objective)
    division, held = _divide(config, data), None
    if config.evaluation.held_out:
        _check_held_out(config, data)
        division, held = hold_out(division, config.evaluation.held_out, config.seed)
        require(
            len(held.rows) > 0, "evaluation.held-out needs a client with two rows; here every one has one"
        )
    algorithm = _with_info(replace(config.method, regulariser=h), config, division, graph(config))
    if isinstance(algorithm, RestrictsObjective):
        algorithm.check(objective)
    check_clipping(objective, algorithm.privacy)
    for layout in (algorithm.inbox, algorithm.upload):
        layout.bits(objective.d)  # SettingError if a sparsification ratio keeps none of the d entries
    for_ranges = config.data.range_share if data.unscaled and not isinstance(config.data, Data) else 0.0
    held_sizes = held.sizes if held else None
    plan = make_plan(config, algorithm, objective, schedule, division.sizes, for_ranges, held_sizes)
    algorithm = through_sums(algorithm, plan, schedule, division.sizes)
    return Setup(
        config, data, division, objective, algorithm, schedule, _start(config, objective).astype(config.dtype),
        plan, held=held,
    )  # fmt: skip


def _regulariser(config: Config, objective: Model) -> Regulariser:
    """The regulariser h, applied to the whole point or only to the parameters named by regulariser.parameters."""
    h = config.regulariser
    parts = objective.parts(h.parameters or "*") if isinstance(objective, NamedModel) else []
    require(
        h.name != "group-l1" or len(parts) < 2,
        "regulariser group-l1 needs one matrix: set regulariser.parameters to the name of one parameter; got "
        f"{len(parts)} parameters",
    )
    whole = h.build(parts[-1].rows if parts else objective.shapes[-1][0])
    return on_part(whole, parts) if h.parameters else whole


@lru_cache(maxsize=2)
def _dataset(data: Data | TableData | ArrayData, dtype: np.dtype[Any], deferred: bool) -> Dataset:
    return data.load(os.environ.get("TWINFLOWER_DATA", ""), dtype, deferred)


def _own_dataset(config: Config, data: OwnData) -> Dataset:
    """The rows of this process's data-file: a node trains on them, the server evaluates on them."""
    if data.schema:
        loaded = load_own_table(data)
    else:
        rows = load_own(
            data.file, data.num_features, data.num_classes, bias=data.bias, row_norm=data.row_norm
        )
        loaded = Dataset(OWN, *rows, *rows, data.num_classes)
    sites, others = config.clients.count, len(loaded.labels)
    where = f"the server evaluates on {others} others" if others else "only they evaluate the model"
    return replace(loaded, note=f"{sites} sites with rows of their own; {where}")


def _divide(config: Config, data: Dataset) -> Partition:
    if config.data.name == OWN:
        offsets = np.cumsum([0, *config.sizes])
        return Partition(np.arange(offsets[-1]), offsets)
    if data.sites:
        offsets = np.cumsum([0, *data.sites])
        return Partition(np.arange(offsets[-1]), offsets)
    return divide(data.labels, config.clients.count, config.partition, config.seed, data.num_classes)


def _graph(config: Config) -> Neighbours:
    """The graph of a networked method; empty for other methods."""
    return () if config.topology is None else config.topology.build(config.clients.count)


def _with_info(algorithm: Any, config: Config, division: Partition, neighbours: Neighbours) -> Algorithm:
    """The algorithm with the public run information; SettingError if it needs every client but clients are sampled."""
    require(
        not isinstance(algorithm, NeedsEveryClient) or config.sampled == config.clients.count,
        f"{algorithm.name} needs all clients in every round: set clients.per-round to 0; got "
        f"{config.clients.per_round} of {config.clients.count}",
    )
    key = config.seed if isinstance(algorithm, DrawsSteps) else 0
    info = RunInfo(config.clients.count, config.rounds, (), neighbours, config.data.row_norm, key)
    by_rows = weighting_of(config, algorithm) == "rows"
    return with_sizes(replace(algorithm, info=info), division.sizes if by_rows else ())


def through_sums(algorithm: Algorithm, plan: Plan | None, schedule: LocalSchedule, sizes: Index) -> Algorithm:
    """The algorithm as it runs: wrapped in `Summed` if the plan lets the server see only sums."""
    if not isinstance(plan, SumPlan):
        return algorithm
    return Summed(algorithm, tuple(schedule.steps(sizes).tolist()), plan.sums.widths)


def with_sizes(algorithm: Any, sizes: Index | Sequence[int]) -> Algorithm:
    """The algorithm with the clients weighted in F by their numbers of rows, (N,) or (seeds, N).

    Without sizes, or if all are equal, F is the unweighted mean over the clients.
    """
    known = _as_tuple(np.asarray(sizes, dtype=np.int64)) if len(sizes) and np.ptp(sizes) else ()
    return replace(algorithm, info=algorithm.info._replace(sizes=known))  # type: ignore[no-any-return]


def _as_tuple(sizes: Index) -> Any:
    """The sizes as (nested) tuples of int, because an algorithm must be hashable."""
    return tuple(map(_as_tuple, sizes)) if sizes.ndim else int(sizes)


def _start(config: Config, objective: Model) -> Array:
    """The public starting point (d,): the objective's own, or with start-scale > 0 normal draws of that scale."""
    if not config.start_scale:
        return objective.start(stream(config.seed, "start"))
    return config.start_scale * normals(config.seed, "start", 0, 0, objective.d)


def prepare_seeds(config: Config, seeds: list[int]) -> list[Setup]:
    """The same run under several seeds, which must be distinct; the data set is loaded only once."""
    require(len(set(seeds)) == len(seeds) > 0, f"seeds must be distinct; got {seeds}")
    return [prepare(replace(config, seed=seed)) for seed in seeds]
