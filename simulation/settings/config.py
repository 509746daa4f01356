"""The configuration of one run: a validated value with one attribute per section."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from twinflower.algorithms import ALGORITHMS
from twinflower.algorithms.abilities import Constrained
from twinflower.arrays import PRECISIONS, Index
from twinflower.data.features import EACH
from twinflower.data.partitioners import PARTITIONERS, Method, Sizes
from twinflower.data.sets import OWN, TABLES, ArrayData, Data, OwnData, TableData
from twinflower.errors import require
from twinflower.known_objectives import COUNTING, SURVIVAL, ObjectiveSettings, TorchObjective
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.regularisers import Penalty
from twinflower.problems.stratified_cox import NOT_SEPARABLE, STRATIFIED_COX
from twinflower.problems.topologies import Topology
from twinflower.randomness import participants
from twinflower.settings import Value, build, changed

from .catalogue import CATALOGUE, CHOICES, CHOSEN, DEFAULTS, PLAIN, TOP, applying, kind_of
from .inference import check_standard_errors
from .sections import Clients, Evaluation, Gradient, Local, NoPrivacy, Output, Private, Server

DEFAULT_CLIENTS = 10  # used if clients.count is 0 and there are no Flower nodes to count
PATHS = (
    "data.dir",
    "data.file",
    "data.files",
    "data.test-file",
    "data.schema",
    "output.dir",
    "output.state-dir",
    "output.resume-from",
    "output.openmetrics",
)  # files and folders that a run reads or writes
_MOST_SINGLE_ROUNDS = 2**24
INCIDENTAL = {
    *PATHS, "data.download", "output.checkpoint-every", "output.tracker", "server.node-timeout", "server.round-timeout",
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Everything that determines the result of a run. method: the algorithm with its settings, except h."""

    method: Any
    rounds: int
    seed: int
    start_scale: float
    precision: str
    data: Data | OwnData | TableData | ArrayData
    clients: Clients
    partition: Method
    objective: ObjectiveSettings
    regulariser: Penalty
    local: Local
    privacy: NoPrivacy | Private
    evaluation: Evaluation
    server: Server
    output: Output
    topology: Topology | None = None

    def __post_init__(self) -> None:
        clients = self.clients
        require(
            not clients.count or self.server.min_replies <= self.sampled,
            f"server.min-replies can be at most the number of clients asked, {self.sampled}; got "
            f"{self.server.min_replies}",
        )
        require(
            not clients.count or clients.per_round <= clients.count,
            f"clients.per-round can be at most clients.count = {clients.count}; got {clients.per_round}",
        )

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.method.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The floating-point type of rows, points, duals and messages."""
        return PRECISIONS[self.precision]

    @property
    def sampled(self) -> int:
        """The number K of clients sampled per round; clients.first-round can make round 1 sample all of them."""
        return self.clients.per_round or self.clients.count

    def asked(self, round_: int) -> Index:
        """The clients sampled in a round, by the public sampling."""
        clients = self.clients
        return participants(self.seed, round_, clients.count, self.sampled, clients.first_round)

    @property
    def schedule(self) -> LocalSchedule:
        """The local schedule of the clients, with one step per round for methods without local steps."""
        local = self.local
        return LocalSchedule(
            local.batch_size,
            local.max_steps if self.method.takes_local_steps else 1,
            local.fresh_batches,
            self.privacy.unit.rows,
        )

    @property
    def sizes(self) -> list[int]:
        """The number of rows of every client if partition.sizes lists them; else empty."""
        return self.partition.numbers if isinstance(self.partition, Sizes) else []

    @property
    def digest(self) -> str:
        """A hash of the whole configuration, 16 hexadecimal digits."""
        return hashlib.sha256(repr(sorted(self.items().items())).encode()).hexdigest()[:16]

    @property
    def result_digest(self) -> str:
        """A SHA-256 hash of the settings that determine the result, the same on machines with other file paths."""
        mine = {key: value for key, value in self.items().items() if key not in INCIDENTAL}
        return hashlib.sha256(repr(sorted(mine.items())).encode()).hexdigest()

    @property
    def unusual(self) -> dict[str, Value]:
        """The settings that determine the result and differ from their defaults, by their keys."""
        mine = self.items()
        return {key: mine[key] for key in mine.keys() - INCIDENTAL if mine[key] != CATALOGUE[key].key.default}

    def changed(self, items: Mapping[str, Value]) -> list[str]:
        """The keys whose value differs from that in `items`, except those that do not affect the result."""
        mine = self.items()
        return sorted(key for key in mine.keys() - INCIDENTAL if mine[key] != items.get(key))

    def with_clients(self, count: int) -> "Config":
        """The same run with clients.count filled in if it is 0: the number of tables, or else `count`."""
        if self.clients.count:
            return self
        sites = self.data.num_sites if isinstance(self.data, TableData) and self.data.files else 0
        return self.put({"clients.count": sites or count})

    def put(self, values: Mapping[str, Value]) -> "Config":
        """The same run with other values for these keys, which must have an effect here and not be choices."""
        parts: dict[str, dict[str, Value]] = {}
        for name, value in values.items():
            declared = CATALOGUE[name]
            parts.setdefault(declared.section, {})[declared.leaf] = value
        new: dict[str, Any] = {k.replace("-", "_"): v for k, v in parts.pop("", {}).items()}
        for section, own in parts.items():
            attribute = "method" if section == self.algorithm else section
            new[attribute] = changed(getattr(self, attribute), own)
        return replace(self, **new)

    @property
    def choices(self) -> dict[str, Value]:
        """The value of every choice, by its key."""
        sections = {f"{name}.name": getattr(self, name) for name in CHOSEN if name != "privacy"}
        chosen = {key: DEFAULTS[key] if entry is None else entry.name for key, entry in sections.items()}
        return chosen | {"algorithm": self.algorithm, "privacy.mode": self.privacy.mode}

    def items(self) -> dict[str, Value]:
        """All keys that have an effect, with their values as a user would type them."""
        choices, found = self.choices, {}
        for declared in applying(choices):
            section = declared.section
            attribute = "method" if section == self.algorithm else section
            owner = getattr(self, attribute) if section else self
            found[declared.name] = choices.get(declared.name) or declared.key.value_in(owner)
        return found


def configured(values: Mapping[str, Value]) -> Config:
    """The configuration with these values for keys that have an effect, and defaults for all other keys.

    Raises SettingError for a value of the wrong type or outside its range.
    """
    choices = {key: values.get(key, DEFAULTS[key]) for key in CHOICES}
    chosen: dict[str, dict[str, Value]] = {}
    for name, value in values.items():
        declared = CATALOGUE[name]
        if name not in CHOICES:
            chosen.setdefault(declared.section, {})[declared.leaf] = declared.key.checked(value, name)
    top = {
        key.path[0]: chosen.get("", {}).get(key.name, key.default) for key in TOP if key.name not in CHOICES
    }
    plain = {name: build(entry, chosen.get(name, {})) for name, entry in PLAIN.items()}
    entries = {name: _entry(name, choices, chosen.get(name, {})) for name in CHOSEN}
    if CATALOGUE["topology.name"].missing(choices):
        del entries["topology"]
    method = _method(str(choices["algorithm"]), chosen, entries["privacy"])
    return Config(method=method, **top, **plain, **entries)  # type: ignore[arg-type]


def _entry(section: str, choices: Mapping[str, Value], values: Mapping[str, Value]) -> Any:
    (key,) = (key for key in CHOICES if key.startswith(f"{section}."))
    entry = CHOSEN[section][kind_of(choices[key])]
    return build(entry, values, **{key.rpartition(".")[2]: choices[key]})


def _method(name: str, chosen: Mapping[str, Mapping[str, Value]], privacy: Any) -> Any:
    bound = {key: value for key, value in chosen.get("privacy", {}).items() if key == "sensitivity"}
    return build(ALGORITHMS[name], chosen.get(name, {}), privacy=privacy.mode, **bound)


def check(config: Config, stored: bool = False) -> None:
    """Check the rules that concern several settings and need no data; SettingError if one is violated.

    stored: the settings are those of a run that was begun, whose tables may since have been moved or joined by others.
    """
    config.objective.check()
    if config.precision == "single":
        _check_single(config)
    _check_weighting(config.clients.weighting, config.method)
    _ = config.schedule
    _check_evaluation(config.evaluation, config.privacy, config.rounds)
    require(
        not config.evaluation.survival_curve or config.objective.name in SURVIVAL,
        "evaluation.survival-curve needs times of events as labels: set objective.name to "
        f"{' or '.join(SURVIVAL)}, or leave it empty; got {config.objective.name}",
    )
    if config.objective.name == STRATIFIED_COX:
        _check_whole_sites(config)
    if config.evaluation.standard_errors:
        check_standard_errors(config.objective, config.regulariser.name, config.privacy.mode)
    if isinstance(config.data, OwnData):
        _check_own(config, config.data)
    if isinstance(config.privacy, Gradient):
        _check_trust(config, config.privacy)
    if isinstance(config.data, TableData) and not stored:
        _check_tables(config, config.data)


def _check_whole_sites(config: Config) -> None:
    """Raise SettingError for settings that an objective over all rows of a site does not allow."""
    require(
        isinstance(config.privacy, NoPrivacy) and not config.local.batch_size,
        f"{NOT_SEPARABLE}: set privacy.mode to none and local.batch-size to 0, or train discrete-cox; got "
        f"{config.privacy.mode} and {config.local.batch_size}",
    )
    require(
        not config.evaluation.reference and config.algorithm != "ssca-constrained",
        f"objective '{STRATIFIED_COX}' is not a mean over all rows: set evaluation.reference to false, and choose "
        f"another algorithm than ssca-constrained; got {config.algorithm}",
    )


def _check_single(config: Config) -> None:
    """Raise SettingError for settings that a run in single precision does not allow."""
    require(
        isinstance(config.privacy, NoPrivacy),
        "precision must be double in a private run, whose guarantee rests on bounds on the rounding errors of doubles; "
        f"got single with privacy.mode {config.privacy.mode}",
    )
    require(
        not isinstance(config.objective, TorchObjective),
        "precision must be double with a PyTorch module, which computes in a type of its own: convert the module by "
        "module.float(); got single",
    )
    require(
        config.objective.name != COUNTING,
        f"precision must be double with objective {COUNTING}, whose labels hold a count and an offset; got single",
    )
    require(
        config.rounds < _MOST_SINGLE_ROUNDS,
        f"precision must be double with 2^24 rounds or more, which single precision cannot count; got single with "
        f"{config.rounds} rounds",
    )


def _check_evaluation(evaluation: Evaluation, privacy: NoPrivacy | Private, rounds: int) -> None:
    """Raise SettingError for an evaluation at the clients that no budget pays for, or a budget without one."""
    share = privacy.evaluation_share
    require(
        not evaluation.held_out or isinstance(privacy, NoPrivacy | Gradient),
        "evaluation.held-out must be 0 with privacy.mode = as-published, which has no budget for an evaluation at the "
        f"clients; got {evaluation.held_out:g}",
    )
    require(
        not evaluation.held_out or isinstance(privacy, NoPrivacy) or share > 0,
        "evaluation.held-out needs privacy.evaluation-share above 0 in a private run, the part of the budget that the "
        f"evaluation may spend; got {evaluation.held_out:g} and {share:g}",
    )
    require(
        not share or evaluation.held_out > 0,
        "privacy.evaluation-share needs evaluation.held-out above 0, the part of every client's rows that it evaluates "
        f"on; got {share:g} and {evaluation.held_out:g}",
    )
    require(
        share > 0 or not (evaluation.release_every or evaluation.loss_bound),
        "evaluation.release-every and evaluation.loss-bound belong to a private run with privacy.evaluation-share; got "
        f"{evaluation.release_every} and {evaluation.loss_bound:g} without it",
    )
    require(
        not evaluation.bins or evaluation.held_out > 0,
        "evaluation.bins needs evaluation.held-out above 0, the part of every client's rows whose scores it counts; "
        f"got {evaluation.bins} and {evaluation.held_out:g}",
    )
    require(
        not evaluation.errors or (evaluation.held_out > 0 and isinstance(privacy, NoPrivacy)),
        "evaluation.errors needs evaluation.held-out above 0, the part of every client's rows on which they are made, "
        "and a run without privacy, because these sums are exact",
    )
    require(
        evaluation.release_every <= rounds,
        f"evaluation.release-every must be at most the number of rounds, {rounds}; got {evaluation.release_every}",
    )


def _check_tables(config: Config, data: TableData) -> None:
    """Raise SettingError for settings that a run on tables does not allow."""
    require(
        bool(data.files and data.schema),
        f"data {TABLES} needs data.files, such as site-*.csv, and data.schema, a file that `twinflower schema FILES` "
        "drafts",
    )
    sites, partition, count = data.num_sites, config.partition, config.clients.count
    require(
        not sites or partition == replace(PARTITIONERS["iid"](), name="iid"),
        f"the rows of {sites} {'sites' if data.site_column else 'tables'} are divided already, one "
        f"{'site' if data.site_column else 'table'} for each client: leave partition out; got {partition.name}",
    )
    require(
        not sites or count in (0, sites),
        f"clients.count must be {sites}, the number of {_whose(data)}; got {count}",
    )


def _whose(data: TableData) -> str:
    """What makes a client of a run on tables."""
    return f"sites in column '{data.site_column}'" if data.site_column else "files that data.files matches"


def _check_weighting(weighting: str, method: Any) -> None:
    """Raise SettingError for a weighting of F that the algorithm does not support."""
    own = method.weightings
    means = {"clients": "the mean of all clients' means", "rows": "the mean over all rows"}
    require(
        weighting in ("auto", *own),
        f"clients.weighting must be {own[0]} with {method.name}, whose theory is for {means[own[0]]}; got "
        f"'{weighting}'",
    )


def _check_trust(config: Config, privacy: Gradient) -> None:
    """Raise SettingError for settings that privacy.trust = "sum" does not allow, or that only it allows."""
    sums = privacy.trust == "sum"
    require(
        sums == bool(privacy.honest_sites) and (sums or not privacy.masks),
        "privacy.honest-sites and privacy.masks belong to privacy.trust = sum, which needs honest-sites, the number of "
        f"clients whose noise no attacker knows; got {privacy.honest_sites} and {privacy.masks} with {privacy.trust}",
    )
    require(
        not sums or config.sampled == config.clients.count,
        "privacy.trust = sum needs all clients in every round, because the mean over some of them is no function of "
        f"earlier sums: set clients.per-round to 0; got {config.clients.per_round} of {config.clients.count}",
    )
    require(
        not (sums and config.server.max_norm),
        "privacy.trust = sum cannot limit the norm of a single message, which nobody sees: set server.max-norm to 0; "
        f"got {config.server.max_norm:g}",
    )
    require(
        privacy.epsilon > 0 or not privacy.tune_share,
        "privacy.tune-share is a share of the budget privacy.epsilon, which it needs; got "
        f"{privacy.tune_share:g} with privacy.epsilon {privacy.epsilon:g}",
    )
    require(
        not (sums and privacy.tune_share),
        "privacy.trust = sum has no accounting for tuning: set privacy.tune-share to 0; got "
        f"{privacy.tune_share:g}",
    )
    require(
        not sums or privacy.conversion == "exact",
        f"privacy.trust = sum is accounted for exactly; set privacy.conversion to exact; got {privacy.conversion}",
    )


def _check_own(config: Config, data: OwnData) -> None:
    """Raise SettingError if a run with data.name = own lacks what must be public: sizes, columns and classes."""
    partition = config.partition
    require(
        isinstance(partition, Sizes) and not partition.samples_per_client,
        f"the rows of data {OWN} are divided already: set partition.name to sizes, list the rows of every site in "
        f"partition.sizes, and set samples-per-client to 0; got {partition.name} and {partition.samples_per_client}",
    )
    sizes, count = config.sizes, config.clients.count
    by_schema = bool(data.schema or data.schema_digest)
    require(
        not (by_schema and (data.num_features or data.num_classes)),
        "data.schema says how many features and classes there are: leave data.num-features and data.num-classes out",
    )
    require(
        (data.num_features > 0 or by_schema) and bool(sizes),
        f"data {OWN} needs data.num-features or data.schema, and partition.sizes (rows of every site)",
    )
    require(
        by_schema or data.row_scaling == EACH,
        f"data.row-scaling = {data.row_scaling} divides rows by the largest norm that a schema allows: set "
        f"data.schema, or leave it at {EACH}",
    )
    require(
        bool(data.file or config.evaluation.held_out),
        f"data {OWN} needs rows to evaluate on: data.file, for the server (a node has its own in its node config), or "
        "evaluation.held-out, the part of every site's rows that it evaluates on",
    )
    require(
        bool(data.file) or not (config.evaluation.reference or isinstance(config.method, Constrained)),
        f"evaluation.reference and the bounds of {config.algorithm} are computed on rows of the server: set data.file",
    )
    require(min(sizes) > 0, f"partition.sizes must be above 0; got {sizes}")
    require(len(sizes) == count or not count, f"partition.sizes must name {count} sites; got {len(sizes)}")
