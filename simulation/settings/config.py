"""The configuration of one run: a validated value with one attribute per section."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from twinflower.algorithms import ALGORITHMS
from twinflower.arrays import PRECISIONS, Index
from twinflower.data.partitioners import Method, Sizes
from twinflower.data.sets import ArrayData, Data, OwnData, TableData
from twinflower.errors import SettingError
from twinflower.known_objectives import TORCH, ObjectiveSettings
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.penalties import Penalty
from twinflower.problems.topologies import Topology
from twinflower.problems.turns import Turns
from twinflower.randomness import participants
from twinflower.settings import Value, build, changed

from .catalogue import CATALOGUE, CHOICES, CHOSEN, DEFAULTS, PLAIN, TOP, applying, kind_of
from .sections import Clients, Evaluation, Local, NoPrivacy, Output, Private, Server

FILES = ("data.files", "data.file", "data.test-file", "data.schema")  # their names say which rows there are
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
    start_point: str
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
        if clients.count and not self.server.min_replies <= clients.sampled:
            raise SettingError(
                f"server.min-replies can be at most the number of clients asked, {clients.sampled}; got "
                f"{self.server.min_replies}"
            )
        if clients.count and not clients.per_round <= clients.count:
            raise SettingError(
                f"clients.per-round can be at most clients.count = {clients.count}; got {clients.per_round}"
            )

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.method.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The floating-point type of rows, points, duals and messages."""
        return PRECISIONS[self.precision]

    def asked(self, round_: int) -> Index:
        """The clients sampled in a round, by the public sampling."""
        clients = self.clients
        return participants(self.seed, round_, clients.count, clients.sampled, clients.first_round)

    @property
    def schedule(self) -> LocalSchedule:
        """The local schedule of the clients, with one step per round for methods without local steps."""
        local, clients = self.local, self.clients
        return LocalSchedule(
            local.batch_size,
            local.max_steps if self.method.takes_local_steps else 1,
            local.fresh_batches,
            self.privacy.unit.rows,
            Turns(clients.count, clients.sampled, clients.first_round),
            anew=not self.privacy.charges_batches,
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

    def with_clients(self, count: int = DEFAULT_CLIENTS) -> "Config":
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
        return dict(self._items)

    @cached_property
    def _items(self) -> dict[str, Value]:
        choices, found = self.choices, {}
        for declared in applying(choices):
            section = declared.section
            attribute = "method" if section == self.algorithm else section
            owner = getattr(self, attribute) if section else self
            found[declared.name] = choices.get(declared.name) or declared.key.value_in(owner)
        return found


_UNTUNED: dict[str, Value] = {
    "fedavg.step-size": 0.0, "fedavg.server-momentum": 0.9, "objective.clip-norm": 1.0, "local.max-steps": 1,
    "clients.weighting": "rows",
}  # fmt: skip
"""Of FedAvg in a private run of a PyTorch module without a step size (docs/pytorch.md says why)."""


def _untuned(choices: Mapping[str, Value], values: Mapping[str, Value]) -> dict[str, Value]:
    """Defaults that these choices change."""
    private = choices["privacy.mode"] in ("gradient", "public-state") and values.get("privacy.trust") != "sum"
    module = kind_of(choices["objective.name"]) == TORCH and choices["algorithm"] == "fedavg"
    return dict(_UNTUNED) if private and module and "fedavg.step-size" not in values else {}


def configured(values: Mapping[str, Value]) -> Config:
    """The configuration with these values for keys that have an effect, and defaults for all other keys.

    Raises SettingError for a value of the wrong type or outside its range.
    """
    choices = {key: values.get(key, DEFAULTS[key]) for key in CHOICES}
    values = _untuned(choices, values) | dict(values)
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
