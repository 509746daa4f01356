"""Build a run from its configuration: data, clients' rows, objective, algorithm, starting point, and evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.algorithms import Algorithm
from twinflower.algorithms.untuned import with_step
from twinflower.arrays import Array, Index, Labels
from twinflower.data.columns import Counts, Label, Range, Survival
from twinflower.data.dataset import OWN, Dataset
from twinflower.data.features import EACH
from twinflower.data.partition import Partition, together
from twinflower.data.sets import Data
from twinflower.errors import SettingError
from twinflower.known_objectives import COUNTING, SURVIVAL, ObjectiveSettings, with_weights
from twinflower.models.inputs import Inputs
from twinflower.privacy.plan import Plan
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.discrete_cox import CoxObjective, interval_ends
from twinflower.problems.interfaces import Batch, ChecksRows, Model
from twinflower.problems.regularisers import Regulariser
from twinflower.problems.topologies import Neighbours
from twinflower.queries import asked, first_of
from twinflower.queries.first import First
from twinflower.queries.query import ModelQuery, SiteQuery
from twinflower.randomness import stream
from twinflower.sums.noise import Sums
from twinflower.sums.plan import SumPlan
from twinflower.sums.summed import Summed

from ..settings import Config, check
from .central import Central
from .division import divided, load_rows
from .method import (
    build_method,
    derives_step,
    graph_of,
    starting_point,
    through_sums,
    weighting_of,
    with_noise,
)
from .privacy import make_plan

_REFERENCE = 500  # rows
_SPECIAL = (((COUNTING,), Counts, "counts"), (SURVIVAL, Survival, "times"))


@dataclass(frozen=True)
class PreparedRun:
    """A checked run, ready to start in any runtime.

    partition: the rows that each client trains on. site: the number of the client whose rows a deployed node holds.
    held: the rows on which clients evaluate, None for none. own_held: in the process of a site with rows of its own,
    the held-out rows themselves. ranges: private ranges, once they are found. outside: bounds on how many values of
    their columns are clipped, by column. answers: what clients have answered before round 1, by the name of
    the question (`twinflower.queries`). The class has more than 15 methods because most are properties: names for what
    follows from the fields.
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
    outside: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def queries(self) -> list[SiteQuery]:
        """What sites answer besides the rounds."""
        return asked(self)

    @property
    def model_queries(self) -> list[ModelQuery]:
        """Those of these that are about models."""
        return [query for query in self.queries if isinstance(query, ModelQuery)]

    @cached_property
    def first(self) -> First | None:
        """Those that are answered before round 1."""
        return first_of(self)

    def rows_of(self, client: int) -> Index:
        """The numbers of a client's rows in the data set; for data `own`, of all rows of this process."""
        return (
            np.arange(len(self.dataset.labels)) if self.config.data.name == OWN else self.partition.of(client)
        )

    @property
    def may_count(self) -> bool:
        """Whether this process may tell exact facts about the rows that are trained on: not in a private run, and not
        where only the sites have them."""
        return self.plan is None and self.config.data.name != OWN

    def held_rows(self, client: int) -> Batch | None:
        """The rows on which a client evaluates and never trains, without weights; None if the run holds out none."""
        if self.held is None or self.own_held is not None:
            return self.own_held
        return self.dataset.batch(self.held.of(client))._replace(row_weights=None)

    @cached_property
    def shards(self) -> Shards:
        """All clients' rows; for data `own`, only the rows of this process, stored as those of client `site`."""
        data = self.dataset
        if self.config.data.name == OWN:
            shards = Shards.site(Batch(data.features, data.labels, row_weights=data.row_weights), self.site)
        else:
            shards = Shards.grouped(
                data.features, data.labels, self.partition.rows, self.partition.offsets, data.row_weights
            )
        shards = replace(shards, groups=data.groups)
        if self.method.num_folds:
            shards = replace(shards, folds=fold_numbers(self, self.method.num_folds))
        return shards.prepared(self.objective)

    @cached_property
    def reference_rows(self) -> Array:
        """Public rows (`_REFERENCE`, features), drawn from the ranges and categories of the columns, not from data."""
        return self.inputs.completed(self.inputs.reference(_REFERENCE))

    @property
    def inputs(self) -> Inputs:
        """The transformation from the columns of the data to the features of the objective."""
        own, data = self.config.data, self.dataset
        centre, spread = data.scaling or (None, None)
        return Inputs(
            data.features.shape[1] - own.bias, data.schema, centre, spread, bias=own.bias, row_norm=own.row_norm,
            row_scaling=EACH if isinstance(own, Data) else own.row_scaling, columns=data.columns,
        )  # fmt: skip

    @property
    def method(self) -> Algorithm:
        """The algorithm itself, without the wrapper of runs in which the server sees only sums (`Summed`)."""
        return self.algorithm.algorithm if isinstance(self.algorithm, Summed) else self.algorithm  # type: ignore[no-any-return]

    def own(self, server: Any) -> Any:
        """The server state of `method`, given that of the (possibly wrapped) `algorithm`."""
        return server.own if isinstance(self.algorithm, Summed) else server

    @property
    def pooled(self) -> bool:
        """Whether the server sees only sums over the clients."""
        return isinstance(self.algorithm, Summed)

    @property
    def sums(self) -> Sums | None:
        """The plan of the noise in these sums; None without noise."""
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
        return self.config.data.row_norm or inf

    def with_state_dir(self, folder: Path) -> "PreparedRun":
        """The same run with its clients' state on disk, in this folder unless the configuration names another one."""
        state_dir = self.config.output.state_dir or str(folder)
        return replace(self, config=self.config.put({"output.state-dir": state_dir}))


def fold_numbers(setup: PreparedRun, count: int) -> Index:
    """The number of the fold of each row (rows,), -1 for a row of no client, if every client divides its rows into
    `count` folds of equal sizes, up to one row or, with groups, of equal numbers of groups, of which each is in one
    fold.

    They are drawn from ("folds", client) whatever the run's seed is: a server that chose one could ask about folds
    that differ by single rows. SettingError if a client has fewer rows, or groups, than folds.
    """
    found, groups = np.full(len(setup.dataset.labels), -1), setup.dataset.groups
    clients = range(setup.partition.num_clients) if setup.config.data.name != OWN else [setup.site]
    for client in clients if len(found) else ():
        drawn = stream(0, "folds", client, 1).permutation(setup.rows_of(client))
        rows, places = together(drawn, None if groups is None else groups[drawn])
        parts = np.array_split(np.arange(places[-1] + 1), count)
        if not len(parts[-1]):
            raise SettingError(
                f"{count} folds need {count} rows, or groups of a group column, at every client; one has "
                f"{places[-1] + 1}: take fewer folds"
            )
        found[rows] = np.repeat(np.arange(count), list(map(len, parts)))[places]
    return found


@lru_cache(maxsize=2)
def prepare(config: Config) -> PreparedRun:
    """Validate the configuration and build the run. Raises SettingError or DataError."""
    return _prepare(config)


@lru_cache(maxsize=2)
def prepare_server(config: Config) -> PreparedRun:
    """`prepare` for the server of a run on Flower.

    Its rows are computed when it evaluates for the first time, which is after the nodes have started: at the same time,
    this would keep processors and memory from them.
    """
    return _prepare(config, deferred=True)


@lru_cache(maxsize=2)
def prepare_node(config: Config) -> PreparedRun:
    """`prepare` for a node. It builds no graph, because the messages say how many neighbours the node has.

    A graph file is therefore read only on the user's machine. Rows are computed when they are used (`Deferred`),
    because a node uses few of them in a round, and a simulation has many processes.
    """
    return _prepare(config, deferred=True, with_graph=False)


def prepare_seeds(config: Config, seeds: list[int]) -> list[PreparedRun]:
    """The same run under several seeds, which must be distinct; the data set is loaded only once."""
    if not len(set(seeds)) == len(seeds) > 0:
        raise SettingError(f"seeds must be distinct; got {seeds}")
    return [prepare(replace(config, seed=seed)) for seed in seeds]


def prepare_rows(config: Config, data: Dataset) -> PreparedRun:
    """`prepare` for rows passed in by a program; `data.sites` holds the number of rows of each client."""
    config = config.with_clients(len(data.sites))
    check(config)
    return _assembled(config, data)


def _prepare(config: Config, deferred: bool = False, with_graph: bool = True) -> PreparedRun:
    config = config.with_clients()
    check(config)  # before the data are loaded, so that errors in the settings appear at once
    data = load_rows(config, deferred)
    if data.schema:
        config = config.put({"data.schema-digest": data.schema.digest})
    return _assembled(config, data, with_graph)


def _assembled(config: Config, data: Dataset, with_graph: bool = True) -> PreparedRun:
    """Build the run on these rows."""
    schedule, data = config.schedule, data.in_precision(config.dtype)
    objective = config.objective.build(data.features.shape[1], data.num_classes)
    if isinstance(objective, ChecksRows):
        objective.check_rows(Batch(data.features, data.labels))
    if data.weight_range:
        objective = with_weights(objective, config.objective.name, data.weight_range.high)
    _check_labels(config, data)
    division, held = divided(config, data)
    method = build_method(config, objective, division.sizes, graph_of(config) if with_graph else ())
    start = starting_point(config, objective)
    setup = PreparedRun(config, data, division, objective, method, schedule, start, held=held)
    plan = make_plan(config, method, objective, schedule, division.sizes, setup.queries)
    if plan and derives_step(config):
        method = with_step(method, plan)
        plan = make_plan(config, method, objective, schedule, division.sizes, setup.queries)
    method = with_noise(method, objective, plan, schedule, division.sizes)
    method = through_sums(method, config.privacy.trust, plan, schedule, division.sizes)
    setup = replace(setup, plan=plan, algorithm=method)
    for query in setup.queries:
        query.check()
        _check_pooled(setup, query)
    return setup


def _check_pooled(setup: PreparedRun, query: SiteQuery) -> None:
    """Raise SettingError if single sites would send exact answers to a server that is to see only sums over them."""
    if setup.config.privacy.exact_sums and query.asks_sites:
        raise SettingError(
            f"privacy.trust = sum without noise leaves no place for {query.follows}, for which every site sends exact "
            f"numbers of its own: {query.otherwise}"
        )


def _check_labels(config: Config, data: Dataset) -> None:
    """Raise SettingError if the objective is for counts or for survival and the labels are not, or the other way round.

    In a private run the labels themselves are not looked at, because an error would reveal something about one; there
    any number is a count or a time.
    """
    for names, kind, what in _SPECIAL:
        chosen, known = config.objective.name in names, "' or '".join(names)
        if data.schema and chosen != isinstance(data.schema.label, kind):
            raise SettingError(
                f"objective '{known}' and a schema whose label has {what} belong together; got "
                f"'{config.objective.name}'"
            )
    if data.schema:
        _check_intervals(config.objective, data.schema.label)
    if data.schema or config.privacy.mode != "none":
        return
    if config.objective.name == COUNTING and not (not data.num_classes and _whole(data.labels)):
        raise SettingError(
            f"objective '{COUNTING}' needs counts, whole numbers from 0 on; this data set has other labels"
        )
    if config.objective.name in SURVIVAL and not (not data.num_classes and bool((data.labels != 0).all())):
        raise SettingError(
            f"objective '{config.objective.name}' needs signed times, t for the event at time t > 0 and -t for "
            "censoring then; this data set has other labels"
        )


def _check_intervals(objective: ObjectiveSettings, label: Label) -> None:
    """Raise SettingError for intervals that nobody can complete, in which a hazard would follow from events alone."""
    if isinstance(objective, CoxObjective) and isinstance(label, Survival):
        last, most = max(interval_ends(objective.intervals) or ()), label.times.high
        if not last <= most:
            raise SettingError(
                f"objective.intervals must end by the upper end of the schema's times, {most:g}, where everybody "
                f"else is censored; got {last:g}"
            )


def _whole(labels: Labels) -> bool:
    return bool(((labels >= 0) & (labels == labels.round())).all())
