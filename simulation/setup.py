"""From a configuration to the things that run: data, clients' rows, objective, algorithm, start, evaluation."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from twinflower.algorithms import Algorithm
from twinflower.algorithms.abilities import (
    DrawsSteps,
    Forecasts,
    ModelMetrics,
    NeedsEveryClient,
    RestrictsObjective,
)
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.summed import Summed
from twinflower.arrays import Array, Index
from twinflower.batches import LocalSchedule, Shards
from twinflower.central import minimise
from twinflower.clients import CLIENTS, AlgorithmClient, SumClient
from twinflower.clients.ledger import ContextLedger, SeededLedger
from twinflower.clients.store import FileStore
from twinflower.clients.sums import ContextKeys, FileKeys, KeyStore, Masks
from twinflower.data.partition import Partition, describe, divide
from twinflower.data.sets import OWN, ArrayData, Data, Dataset, OwnData, TableData, load_own
from twinflower.data.sites import load_own_table
from twinflower.errors import DataError, require
from twinflower.objectives import (
    Batch,
    ChecksRows,
    LinearModel,
    Model,
    NamedModel,
    check_clipping,
    majority_baseline,
)
from twinflower.privacy.guard import Guard
from twinflower.privacy.ledger import FileLedger, Ledger, fingerprint
from twinflower.privacy.mechanism import Draws, seeded
from twinflower.privacy.plan import Plan
from twinflower.randomness import normals, stream
from twinflower.regularisers import L1AndL2, L1Norm, L1NormInBox, Regulariser, on_part
from twinflower.strategies import STRATEGIES, StarStrategy, SumStrategy
from twinflower.sums.masks import Identity, simulated
from twinflower.sums.plan import SumPlan
from twinflower.sums.runs import SumsPlan
from twinflower.topologies import Neighbours, spectrum, suggested_rho

from .privacy import make_plan, uncoupled
from .settings import DEFAULT_CLIENTS, Config, check


@dataclass(frozen=True)
class Setup:
    """A checked run, ready to start in any runtime."""

    config: Config
    dataset: Dataset
    partition: Partition
    objective: Model
    algorithm: Algorithm
    schedule: LocalSchedule
    start: Array
    plan: Plan | None = None
    site: int = 0

    @cached_property
    def shards(self) -> Shards:
        """All clients' rows; of data own those that this process has, as `site`'s."""
        if self.config.data.name == OWN:
            return Shards.site(Batch(self.dataset.features, self.dataset.labels), self.site)
        return Shards.grouped(
            self.dataset.features, self.dataset.labels, self.partition.rows, self.partition.offsets
        )

    @property
    def method(self) -> Algorithm:
        """The algorithm as it is written, also where the server sees sums only."""
        return self.algorithm.algorithm if isinstance(self.algorithm, Summed) else self.algorithm  # type: ignore[no-any-return]

    def own(self, server: Any) -> Any:
        """The state of `method`'s server."""
        return server.own if isinstance(self.algorithm, Summed) else server

    @property
    def sums(self) -> SumPlan | None:
        """The plan of a run in which the server sees sums only."""
        return self.plan.sums if isinstance(self.plan, SumsPlan) else None

    @property
    def regulariser(self) -> Regulariser:
        """h of the problem."""
        return self.algorithm.regulariser

    @cached_property
    def _training(self) -> Batch:
        return self.weighted(self.shards)

    @property
    def by_rows(self) -> bool:
        """Whether F is the mean over all rows, and not over the clients."""
        return weighting_of(self.config, self.method) == "rows"

    def weighted(self, shards: Shards) -> Batch:
        """All rows of some shards, weighted as in F."""
        rows = shards.everyone()
        return rows._replace(weights=None) if self.by_rows else rows

    def divided(self, dataset: Dataset, partition: Partition) -> "Setup":
        """The same run on other rows."""
        method = with_sizes(self.method, partition.sizes if self.by_rows else ())
        sizes, plan = partition.sizes, self.plan
        if isinstance(plan, SumsPlan):
            plan = plan.resized(method, self.schedule, sizes)
        algorithm = through_sums(method, plan, self.schedule, sizes)
        return replace(self, dataset=dataset, partition=partition, algorithm=algorithm, plan=plan)

    @cached_property
    def _test(self) -> Batch:
        return Batch(self.dataset.test_features, self.dataset.test_labels)

    def evaluate(self, x: Array) -> dict[str, float]:
        """objective F(x) + h(x), F by the run's weighting; test_accuracy (R^2 for a regression), nonzeros of x (d,)."""
        return {
            "objective": float(self.objective.value(x, self._training) + self.regulariser.value(x)),
            "test_accuracy": float(self.objective.score(x, self._test)),
            "nonzeros": int(np.count_nonzero(x)),
        }

    def assess(self, x: Array) -> dict[str, float]:
        """The method's own numbers on a model (d,) and all training rows."""
        algorithm = self.method
        return (
            algorithm.model_metrics(x, self.objective, self._training)
            if isinstance(algorithm, ModelMetrics)
            else {}
        )

    @cached_property
    def optimum(self) -> Array:
        """The minimiser of objective + h over all training rows, for the columns that compare with it."""
        return minimise(self.objective, self.regulariser, self._training, self.start)

    def outlook(self) -> list[tuple[str, str]]:
        """What the method expects of its private run; with `reference = true` measured from the true start."""
        if self.plan is None:
            return []
        advice = uncoupled(self.plan, self.method, self.schedule, self.partition.sizes)
        return self._expected(self.plan) + [("warning", text) for text in advice]

    def _expected(self, plan: Plan) -> list[tuple[str, str]]:
        away = float(((self.optimum - self.start) ** 2).sum()) if self.config.evaluation.reference else None
        workload = self.schedule.workload(int(self.partition.sizes.min()))
        if not isinstance(self.method, Forecasts):
            return []
        return self.method.forecast(plan.bounds, float(plan.multipliers.max()), workload, self.start, away)

    @property
    def neighbours(self) -> Neighbours:
        """Of each client in the graph of a networked method; empty for others."""
        return self.algorithm.info.neighbours

    def graph(self) -> list[tuple[str, str]]:
        """The graph in numbers, as rows of a table, with a rho that suits it where the loss has a public curvature."""
        if not self.neighbours:
            return []
        loss = self.objective.loss if isinstance(self.objective, LinearModel) else None
        curvature = loss.curvature_bound * self.config.data.row_norm**2 if loss else 0.0
        rows = [
            (name.replace("_", " "), f"{value:.4g}")
            for name, value in spectrum(self.neighbours)._asdict().items()
        ]
        if 0 < curvature < np.inf:
            rows.append(("suggested rho", f"{suggested_rho(self.neighbours, curvature):.3g}"))
        return rows

    def baseline(self) -> float | None:
        """Test accuracy of always answering the most frequent class; None for a regression."""
        if not self.dataset.num_classes:
            return None
        return majority_baseline(self.dataset.labels, self.dataset.test_labels)

    def report(self) -> str:
        """Data, partition and note in a few lines."""
        if self.config.data.name == OWN:
            return self.dataset.note
        text = describe(self.partition, self.dataset.labels, self.dataset.num_classes)
        return "\n".join(filter(None, (text, self.dataset.note)))

    def warnings(self) -> list[str]:
        """What is allowed but surely not meant."""
        return [
            *self._flat_start(),
            *self._scaled_columns(),
            *(f"warning: {text}" for key, text in self.outlook() if key == "warning"),
        ]

    def _flat_start(self) -> list[str]:
        """A penalty that keeps a start at zero."""
        weight = {} if self.start.any() else _weight_at_zero(self.config)
        slope = (
            np.abs(self.objective.grad(np.zeros(self.objective.d), self._training)).max() if weight else 0.0
        )
        return [
            f"warning: {key} = {value:g} is no less than the largest slope at 0, {slope:.3g}: so x = 0 is stationary "
            "and the model may stay exactly zero"
            for key, value in weight.items()
            if value >= slope > 0
        ]

    def _scaled_columns(self) -> list[str]:
        """A guarantee beside statistics of the data that it does not cover."""
        data = self.config.data
        scaled = "standardise" if isinstance(data, Data) and data.standardise else f"data {data.name}"
        if self.plan is None or not self.plan.provable or not self.dataset.standardised:
            return []
        return [
            f"warning: {scaled} divides columns by statistics of all rows, which the guarantee does not cover"
        ]

    @property
    def row_norm(self) -> float:
        """The public bound on the norm of a row; infinity if there is none."""
        return self.config.data.row_norm or np.inf

    def guard(self, number: int, ledger: Ledger, run: str) -> Guard | None:
        """The privacy of one simulated partition: seeded noise, as the cohort draws it."""
        if self.plan is None:
            return None
        seed = self.config.seed
        if isinstance(self.plan, SumsPlan):
            return self.plan.seeded_guard(number, ledger, seed, run=run, row_norm=self.row_norm)

        def draws(round_: int) -> Draws:
            return seeded(seed, number, round_)

        return self.plan.simulated_guard(number, ledger, draws, run=run, row_norm=self.row_norm)

    def _ledger(self, number: int, context: Context) -> Ledger:
        config = self.config
        if not config.output.state_dir or self.plan is None:
            return ContextLedger(context.state)
        path = Path(config.output.state_dir) / f"{config.data.name}-{number}.ledger".replace(":", "-")
        rows = self.shards.rows(number)
        budget = (self.plan.epsilon_limit, self.plan.delta)
        return SeededLedger(FileLedger(path, fingerprint(rows.features.data, rows.labels.data), *budget))

    def store(self, number: int, folder: str) -> FileStore | None:
        """Where one partition's state outlives its process, in a folder of the site's; None without one."""
        if not folder:
            return None
        settings = f"{self.algorithm} {self.objective.d} {self.start.sum()!r}"
        owner = f"{number} {hashlib.sha256(settings.encode()).hexdigest()[:16]}"
        return FileStore(
            Path(folder).expanduser() / f"{self.config.data.name}-{number}.state".replace(":", "-"), owner
        )

    def client(
        self,
        number: int,
        context: Context,
        guard: Guard | None = None,
        state_dir: str | None = None,
        identity: Identity | None = None,
    ) -> AlgorithmClient:
        """The NumPyClient of one partition around Flower's context; with a guard, a state-dir and an identity of the
        site's own, or the run's."""
        store = self.store(number, self.config.output.state_dir if state_dir is None else state_dir)
        kind: Callable[..., AlgorithmClient] = CLIENTS[self.config.algorithm]
        if self.sums:
            kind = partial(SumClient, masks=self._masks(number, context, identity, store))
        return kind(
            context,
            self.algorithm,
            self.objective,
            self.shards.rows(number),
            self.start,
            number,
            self.config.clients.count,
            self.schedule,
            self.config.seed,
            guard or self.guard(number, self._ledger(number, context), str(context.run_id)),
            store,
        )

    def _masks(
        self, number: int, context: Context, identity: Identity | None, store: FileStore | None
    ) -> Masks | None:
        """How a client hides its numbers; a simulation does not, unless its settings say so."""
        if identity is None and not getattr(self.config.privacy, "masks", False):
            return None
        identity = identity or simulated(self.config.clients.count, self.config.seed)[number]
        keys: KeyStore = FileKeys(store.key_path) if store else ContextKeys(context.state)
        return Masks(identity, keys, self.config.agreement)

    def at_site(self, number: int) -> "Setup":
        """The same run at the node of one client, whose data-file has this client's rows.

        Raises DataError unless they are as many as partition.sizes says.
        """
        if self.config.data.name != OWN:
            return self
        rows, said = len(self.dataset.labels), self.partition.sizes[number]
        if rows != said:
            raise DataError(f"partition.sizes says {said} rows for client {number}; its data-file has {rows}")
        return replace(self, site=number)

    def with_state_dir(self, folder: Path) -> "Setup":
        """The same run with its clients' state on the disk, in this folder unless the configuration names another."""
        state_dir = self.config.output.state_dir or str(folder)
        return replace(self, config=self.config.put({"output.state-dir": state_dir}))

    def strategy(self, deployed: bool = False) -> StarStrategy:
        """The server side; deployed sites have masks, whatever the settings say of simulations."""
        clients, server = self.config.clients, self.config.server
        kind: Callable[..., StarStrategy] = STRATEGIES[self.config.algorithm]
        if self.sums:
            kind = partial(SumStrategy, masks=deployed or getattr(self.config.privacy, "masks", False))
        return kind(
            self.algorithm, clients.count, clients.per_round, self.config.seed, server.node_timeout,
            min_replies=server.min_replies, void_rounds=server.void_rounds, max_norm=server.max_norm or np.inf,
            first_round=clients.first_round,
        )  # fmt: skip


def weighting_of(config: Config, algorithm: Algorithm | type[Algorithm]) -> str:
    """ "clients" or "rows": the run's weighting, or the algorithm's own."""
    return algorithm.weightings[0] if config.clients.weighting == "auto" else config.clients.weighting


@lru_cache(maxsize=2)
def prepare(config: Config) -> Setup:
    """Check everything at the door and build what runs. Raises SettingError or DataError."""
    return _prepare(config, _graph)


@lru_cache(maxsize=2)
def prepare_node(config: Config) -> Setup:
    """`prepare` for a node, which needs no graph: how many neighbours it has is in its messages.

    So a graph's file is read where the user is, and nowhere else.
    """
    return _prepare(config, lambda config: ())


def _prepare(config: Config, graph: Callable[[Config], Neighbours]) -> Setup:
    config = config.with_clients(DEFAULT_CLIENTS)
    check(config)  # settings first, without waiting for data
    data = _own_dataset(config, config.data) if isinstance(config.data, OwnData) else _dataset(config.data)
    if data.schema:
        config = config.put({"data.schema-digest": data.schema.digest})
    return _assembled(config, data, graph)


def prepare_rows(config: Config, data: Dataset) -> Setup:
    """`prepare` for rows that a program hands over, divided among as many clients as `data.sites` says."""
    config = config.with_clients(len(data.sites))
    check(config)
    return _assembled(config, data, _graph)


def _assembled(config: Config, data: Dataset, graph: Callable[[Config], Neighbours]) -> Setup:
    """What runs, on these rows."""
    schedule = config.schedule
    objective = config.objective.build(data.features.shape[1], data.num_classes)
    if isinstance(objective, ChecksRows):
        objective.check_rows(Batch(data.features, data.labels))
    h = _regulariser(config, objective)
    division = _divide(config, data)
    algorithm = _with_info(replace(config.method, regulariser=h), config, division, graph(config))
    if isinstance(algorithm, RestrictsObjective):
        algorithm.check(objective)
    check_clipping(objective, algorithm.privacy)
    for layout in (algorithm.inbox, algorithm.upload):
        layout.bits(objective.d)  # sparsification ratios must keep at least one entry of this d
    plan = make_plan(config, algorithm, objective, schedule, division.sizes)
    algorithm = through_sums(algorithm, plan, schedule, division.sizes)
    return Setup(config, data, division, objective, algorithm, schedule, _start(config, objective), plan)


def _weight_at_zero(config: Config) -> dict[str, float]:
    """The weight of a penalty with a kink in every entry at 0, by its key."""
    h = config.regulariser
    if isinstance(h, L1AndL2):
        return {"regulariser.l1": h.l1}
    return {"regulariser.weight": h.weight} if isinstance(h, L1Norm | L1NormInBox) else {}


def _regulariser(config: Config, objective: Model) -> Regulariser:
    """h, of the whole point or of the parameters that regulariser.parameters names."""
    h = config.regulariser
    parts = objective.parts(h.parameters or "*") if isinstance(objective, NamedModel) else []
    require(
        h.name != "group-l1" or len(parts) < 2,
        "regulariser group-l1 needs one matrix: set regulariser.parameters to the name of one parameter; got "
        f"{len(parts)} parameters",
    )
    whole = h.build(parts[-1].rows if parts else objective.shapes[-1][0])
    return on_part(whole, [part.span for part in parts]) if h.parameters else whole


@lru_cache(maxsize=2)
def _dataset(data: Data | TableData | ArrayData) -> Dataset:
    return data.load(os.environ.get("TWINFLOWER_DATA", ""))


def _own_dataset(config: Config, data: OwnData) -> Dataset:
    """The rows of this process's data-file, to train on at a node and to evaluate on at the server."""
    schema, num_classes = None, data.num_classes
    if data.schema:
        schema, rows = load_own_table(data)
        num_classes = schema.num_classes
    else:
        rows = load_own(data.file, data.num_features, num_classes, bias=data.bias, row_norm=data.row_norm)
    note = (
        f"{config.clients.count} sites with rows of their own; the server evaluates on {len(rows[1])} others"
    )
    return Dataset(OWN, *rows, *rows, num_classes, note, schema=schema)


def _divide(config: Config, data: Dataset) -> Partition:
    if config.data.name == OWN:
        offsets = np.cumsum([0, *config.sizes])
        return Partition(np.arange(offsets[-1]), offsets)
    if data.sites:
        offsets = np.cumsum([0, *data.sites])
        return Partition(np.arange(offsets[-1]), offsets)
    return divide(data.labels, config.clients.count, config.partition, config.seed, data.num_classes)


def _graph(config: Config) -> Neighbours:
    """The graph of a networked method, none of others."""
    return () if config.topology is None else config.topology.build(config.clients.count)


def _with_info(algorithm: Any, config: Config, division: Partition, neighbours: Neighbours) -> Algorithm:
    """The algorithm that knows the run it is in, if it asks for that; what all clients must do is checked here."""
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
    """The algorithm as it runs: through sums where the plan says so."""
    if not isinstance(plan, SumsPlan):
        return algorithm
    return Summed(algorithm, tuple(schedule.steps(sizes).tolist()), plan.sums.widths)


def with_sizes(algorithm: Any, sizes: Index | Sequence[int]) -> Algorithm:
    """The algorithm for clients with these numbers of rows, (N,) or (seeds, N), as weights in F.

    Without sizes, or if all are equal, F is the plain mean over the clients.
    """
    told = _as_tuple(np.asarray(sizes, dtype=np.int64)) if len(sizes) and np.ptp(sizes) else ()
    return replace(algorithm, info=algorithm.info._replace(sizes=told))  # type: ignore[no-any-return]


def _as_tuple(sizes: Index) -> Any:
    """An algorithm is hashed, so its numbers are tuples."""
    return tuple(map(_as_tuple, sizes)) if sizes.ndim else int(sizes)


def _start(config: Config, objective: Model) -> Array:
    """The public starting point: the objective's own, or normal numbers of the scale that was asked for."""
    if not config.start_scale:
        return objective.start(stream(config.seed, "start"))
    with np.errstate(over="ignore"):
        start = config.start_scale * normals(config.seed, "start", 0, 0, objective.d)
        length = start @ start
    require(bool(np.isfinite(length)), f"start-scale is too large; got {config.start_scale:g}")
    return start


def prepare_seeds(config: Config, seeds: list[int]) -> list[Setup]:
    """The same run under several seeds; the data set is loaded once."""
    require(len(set(seeds)) == len(seeds) > 0, f"seeds must be distinct; got {seeds}")
    return [prepare(replace(config, seed=seed)) for seed in seeds]
