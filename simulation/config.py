"""One run's configuration: every key a user may set, its default, and the check at the door.

The keys are the same in an experiment's TOML, on the command line (--set key=value) and in Flower's run
config (pyproject.toml, flwr run --run-config). Keys of the chosen algorithm (rho, step-size, ...) are the
fields of its page; all others are the fields of `Config`.
"""

import difflib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from math import isfinite
from operator import gt
from typing import Any

from twinflower.algorithms import ALGORITHMS, find_algorithm
from twinflower.algorithms.page import settings_of
from twinflower.arrays import Index
from twinflower.batches import Walk
from twinflower.data.sets import OWN, PUBLISHED_ROWS
from twinflower.errors import SettingError, require
from twinflower.networks import NETWORKS
from twinflower.randomness import FIRST_ROUNDS, participants

Value = bool | int | float | str

DEFAULT_CLIENTS = 10  # where num-clients is 0 and no Flower nodes say otherwise


@dataclass(frozen=True)
class Config:
    """Everything that decides the result of a run. The defaults are the main job, digits with 10
    clients, but for its epsilon.

    Counts of 0 mean: num_clients, as many as Flower has nodes (10 without Flower); clients_per_round, all;
    batch_size, full batches; max_local_steps, an epoch less one; samples_per_client, all there are;
    checkpoint_every, no checkpoints; max_norm, any. For the dataset own, num_features and num_classes (0:
    regression) are public, and data_file has the rows that the server evaluates on. first_round "all" asks all
    clients in the first round, and clients_per_round of them from the second on. weighting "clients" makes F the
    mean of the clients' own means, "rows" the mean over all rows, "" what the algorithm has by itself (clients;
    the SSCA methods rows). hidden_units are those of an objective that is a network. regulariser_parameters names
    the parameters of a PyTorch module that the regulariser sees ("" = all). Every evaluate_every-th round is
    evaluated, and every round up to evaluate_early. reference compares with the optimum of all rows together.
    clip_norm bounds the data gradient of every row, or with clip "batch" the mean gradient of a batch. settings
    holds the algorithm's own keys that were set. A private run (the algorithm's key `privacy`) has either a total
    epsilon at delta for each client, or a noise_multiplier; conversion "zcdp" turns epsilon into noise as Zhang 2023
    and Gauthier 2023 do, "exact" needs less.
    """

    algorithm: str = "fedpdm"
    settings: tuple[tuple[str, Value], ...] = ()

    dataset: str = "digits"
    data_dir: str = ""
    data_file: str = ""
    num_features: int = 0
    num_classes: int = 0
    download: bool = False
    bias: bool = True
    row_norm: float = 1.0
    standardise: bool = False

    num_clients: int = 0
    clients_per_round: int = 0
    first_round: str = "sampled"
    partition: str = "iid"
    labels_per_client: int = 0
    iid_rows: int = 0
    dirichlet_alpha: float = 0.0
    samples_per_client: int = 0
    client_sizes: str = ""

    objective: str = "softmax"
    weighting: str = ""
    l2: float = 0.0
    nonconvex: float = 0.0
    hidden_units: int = 0
    regulariser: str = "l1"
    regulariser_l1: float = 3e-3
    regulariser_l2: float = 0.0
    regulariser_bound: float = 1.0
    regulariser_radius: float = 1.0
    regulariser_parameters: str = ""

    rounds: int = 30
    seed: int = 0
    start_scale: float = 0.0
    batch_size: int = 0
    max_local_steps: int = 2
    fresh_batches: bool = True
    evaluate_every: int = 1
    evaluate_early: int = 0
    reference: bool = False

    epsilon: float = 0.0
    delta: float = 1e-4
    noise_multiplier: float = 0.0
    conversion: str = "exact"
    clip_norm: float = 0.0
    clip: str = "rows"
    published_c0: float = 1.0

    out: str = ""
    state_dir: str = ""
    checkpoint_every: int = 0
    resume_from: str = ""
    node_timeout: float = 120.0
    round_timeout: float = 3600.0
    min_replies: int = 1
    void_rounds: int = 0
    max_norm: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is float:
                self._require(field.name, "finite", isfinite)
            elif field.type is int:
                power = 64 if field.name == "seed" else 48
                self._require(field.name, f"below 2^{power}", partial(gt, 2**power))
        for rule, holds, names in _RULES:
            for name in names.split():
                self._require(name, rule, holds)
        require(
            not self.num_clients or self.min_replies <= self.sampled,
            f"min-replies can be at most the number of clients asked, {self.sampled}; got {self.min_replies}",
        )
        require(
            not self.num_clients or self.clients_per_round <= self.num_clients,
            f"clients-per-round can be at most num-clients = {self.num_clients}; got {self.clients_per_round}",
        )

    def _require(self, name: str, rule: str, holds: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        require(holds(value), f"{kebab(name)} must be {rule}; got {value!r}")

    @property
    def sampled(self) -> int:
        """Clients per round, K, from the second round on at least."""
        return self.clients_per_round or self.num_clients

    def asked(self, round_: int) -> Index:
        """The clients of a round, from the public sampling."""
        return participants(self.seed, round_, self.num_clients, self.sampled, self.first_round)

    @property
    def client_size_list(self) -> list[int] | None:
        """client-sizes "100, 200" as numbers; None if not given."""
        if not self.client_sizes:
            return None
        try:
            return [int(word) for word in self.client_sizes.split(",")]
        except ValueError:
            raise SettingError(
                f"client-sizes must be whole numbers with commas between; got '{self.client_sizes}'"
            ) from None

    @property
    def digest(self) -> str:
        """A short identity of the whole configuration."""
        return hashlib.sha256(repr(sorted(self.items().items())).encode()).hexdigest()[:16]

    def same_run(self, other: "Config") -> bool:
        """Whether both give the same result, wherever it is written and however long anybody waits."""
        return not self.changed(other.items())

    def changed(self, items: Mapping[str, Value]) -> list[str]:
        """Keys whose value differs from that in `items`, except those that do not matter for the result."""
        mine = self.items()
        return sorted(key for key in mine.keys() - INCIDENTAL if mine[key] != items.get(key))

    def with_clients(self, count: int) -> "Config":
        """The same run with num-clients decided, if it was left open."""
        return self if self.num_clients else replace(self, num_clients=count)

    def items(self) -> dict[str, Value]:
        """All keys, as a user would type them, the algorithm's included."""
        own = {kebab(f.name): getattr(self, f.name) for f in fields(self) if f.name != "settings"}
        page = find_algorithm(self.algorithm)
        defaults = {f.name: f.default for f in fields(page)}  # type: ignore[arg-type]
        chosen = dict(self.settings)
        return own | {kebab(n): chosen.get(n, defaults[n]) for n in settings_of(page)}


PATHS = ("data_dir", "data_file", "out", "state_dir", "resume_from")  # where a run finds or leaves files
INCIDENTAL = {"out", "state-dir", "data-dir", "data-file", "download", "checkpoint-every", "resume-from",
               "node-timeout", "round-timeout"}  # fmt: skip
# What a setting must be, in words and as a test, and the settings
_RULES: list[tuple[str, Callable[[Any], bool], str]] = [
    ("at least 0", lambda v: v >= 0,
     "num_clients clients_per_round samples_per_client seed labels_per_client iid_rows hidden_units num_features "
     "num_classes evaluate_early checkpoint_every void_rounds max_norm epsilon noise_multiplier clip_norm start_scale"),
    ("at least 1", lambda v: v >= 1, "rounds evaluate_every min_replies"),
    ("above 0", lambda v: v > 0, "node_timeout round_timeout published_c0"),
    ("in (0, 1)", lambda v: 0 < v < 1, "delta"),
    ("0 (none) or from 1e-6 to 1e9", lambda v: not v or 1e-6 <= v <= 1e9, "epsilon noise_multiplier"),
    ("from 0 (as they are) to 1e100", lambda v: 0 <= v <= 1e100, "row_norm"),
    ("rows or batch", lambda v: v in ("rows", "batch"), "clip"),
    ("sampled or all", lambda v: v in FIRST_ROUNDS, "first_round"),
    ("exact or zcdp", lambda v: v in ("exact", "zcdp"), "conversion"),
]  # fmt: skip
_LISTS = {"client-sizes", "penalties", "shares"}  # numbers with commas between
_RANDOM_GRAPHS = ("erdos-renyi", "regular", "small-world")
_LOCAL_STEPS = ("fedpdm", "bsdp-fedpdm", "fedavg", "fedprox", "scaffold", "feddyn", "proxskip")
# Settings, and the choices they belong to: without one of these they have no effect
_OWNERS: list[tuple[str, dict[str, tuple[str, ...]]]] = [
    ("num-features num-classes data-file", {"dataset": (OWN,)}),
    ("download", {"dataset": tuple(PUBLISHED_ROWS)}),
    ("client-sizes", {"partition": ("sizes",), "dataset": (OWN,)}),
    ("labels-per-client", {"partition": ("labels",)}),
    ("iid-rows", {"partition": ("mixed",)}),
    ("dirichlet-alpha", {"partition": ("dirichlet",)}),
    ("hidden-units", {"objective": tuple(NETWORKS)}),
    ("regulariser-l1", {"regulariser": ("l1", "l1-box", "elastic-net", "group-l1")}),
    ("regulariser-l2", {"regulariser": ("elastic-net",)}),
    ("regulariser-bound", {"regulariser": ("box", "l1-box")}),
    ("regulariser-radius", {"regulariser": ("ball",)}),
    ("regulariser-parameters", {"objective": ("torch",)}),
    ("max-local-steps", {"algorithm": _LOCAL_STEPS}),
    ("delta", {"privacy": ("public-state", "gradient", "as-published")}),
    ("conversion", {"privacy": ("public-state", "gradient")}),
    ("sensitivity", {"privacy": ("public-state",)}),
    ("tail", {"output": ("tail-mean",)}),
    ("published-c0", {"privacy": ("as-published",)}),
    ("degree graph-seed", {"topology": _RANDOM_GRAPHS}),
    ("rewiring", {"topology": ("small-world",)}),
]
_BELONGS_TO = {key: owners for keys, owners in _OWNERS for key in keys.split()}
_HARMLESS = {"max-local-steps": (1,)}  # what methods without local steps do anyway
# What pyproject.toml gives the settings of algorithms
_MAIN_JOB = {"rho": 0.05, "step-size": 0.4, "privacy": "public-state"}
OWN_KEYS: dict[str, Any] = {f.name: f.type for f in fields(Config) if f.name != "settings"}


def kebab(name: str) -> str:
    """step_size -> step-size."""
    return name.replace("_", "-")


def snake(key: str) -> str:
    """step-size -> step_size."""
    return key.replace("-", "_")


def parse(raw: Mapping[str, Any]) -> Config:
    """Config from keys as a user types them.

    Raises SettingError for an unknown key (naming the nearest), a wrong type, or a broken rule.
    """
    algorithm = raw.get("algorithm", Config.algorithm)
    page_keys = settings_of(find_algorithm(str(algorithm)))
    own: dict[str, Any] = {}
    settings: dict[str, Value] = {}
    for key, value in raw.items():
        name = snake(key)
        if name in OWN_KEYS:
            own[name] = typed(key, value, OWN_KEYS[name])
        elif name in page_keys:
            settings[name] = typed(key, value, page_keys[name])
        else:
            raise SettingError(_unknown(key, algorithm, [*OWN_KEYS, *page_keys]))
    return Config(**own, settings=tuple(sorted(settings.items())))


def check(config: Config) -> None:
    """Everything that can be checked without data: raises SettingError for settings that break a rule."""
    page: Any = find_algorithm(config.algorithm)
    page(**dict(config.settings))
    _check_weighting(config.weighting, page)
    _check_effects(config)
    Walk(config.batch_size, config.max_local_steps, config.fresh_batches)
    if config.dataset == OWN:
        _check_own(config)


def _check_weighting(weighting: str, page: Any) -> None:
    """SettingError for a word that means nothing, or an F that the algorithm does not minimise."""
    known, own = ("clients", "rows"), page.weightings
    require(
        weighting in ("", *known),
        f"weighting must be clients or rows (or empty: {own[0]}); got '{weighting}'",
    )
    means = {"clients": "the mean of all clients' means", "rows": "the mean over all rows"}
    require(
        weighting in ("", *own),
        f"weighting must be {own[0]} with {page.name}, whose theory is for {means[own[0]]}; got '{weighting}'",
    )


def has_effect(key: str, chosen: Mapping[str, Any]) -> bool:
    """Whether a setting does anything beside these choices; one that belongs to no choice made here always does."""
    owners = {name: values for name, values in belongs_to(key).items() if name in chosen}
    if not owners or chosen.get(key) in _HARMLESS.get(key, ()):
        return True
    return any(_choice(chosen.get(name)) in values for name, values in owners.items())


def belongs_to(key: str) -> dict[str, tuple[str, ...]]:
    """The choices without one of which a setting has no effect: values by key. None for most settings."""
    return _BELONGS_TO.get(key, {})


def _check_effects(config: Config) -> None:
    """SettingError for a setting that belongs to something this run has not chosen."""
    items, defaults = config.items(), Config(config.algorithm).items()
    for key, value in items.items():
        if value != defaults[key] and not has_effect(key, items):
            raise SettingError(_without_effect(key, items, defaults[key]))


def _without_effect(key: str, items: Mapping[str, Value], default: Value) -> str:
    owners = belongs_to(key)
    first = next(iter(owners))
    remedy = " or ".join(f"{name} to {' or '.join(values)}" for name, values in owners.items())
    return (
        f"{key} = {shown(items[key])} has no effect with {first} {items[first]}: set {remedy}, or {key} to "
        f"{shown(default)}, its default"
    )


def _choice(value: Any) -> str:
    """What was chosen, without its argument: libsvm of libsvm:FILE."""
    return str(value).partition(":")[0]


def shown(value: Value) -> str:
    """A value as a user types it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _check_own(config: Config) -> None:
    """What must be public when the rows are not."""
    require(
        config.partition in (Config.partition, "sizes") and not config.samples_per_client,
        "the rows of dataset own are divided already: set partition to iid and samples-per-client to 0; got "
        f"{config.partition} and {config.samples_per_client}",
    )
    require(
        bool(config.data_file) and config.num_features > 0 and bool(config.client_sizes),
        "dataset own needs num-features, client-sizes (rows of every site) and a data-file (for the server, rows to "
        "evaluate on; a node has its own in its node config)",
    )
    require(
        not config.standardise, "dataset own cannot be standardised: that would need statistics of all sites"
    )
    sizes = config.client_size_list or []
    require(min(sizes) > 0, f"client-sizes must be above 0; got {config.client_sizes}")
    count = config.num_clients
    require(len(sizes) == count or not count, f"client-sizes must name {count} sites; got {len(sizes)}")


def parse_run_config(raw: Mapping[str, Value]) -> Config:
    """Config from Flower's run config, which holds every key of every algorithm.

    An empty text means "the default". Keys of algorithms that were not chosen are passed over as long as they have the
    main job's value.
    """
    page_keys = settings_of(find_algorithm(str(raw.get("algorithm") or Config.algorithm)))
    foreign = {kebab(name) for name in all_settings().keys() - page_keys.keys()}
    untouched = {key for key in foreign if key in raw and raw[key] == _MAIN_JOB.get(key)}
    return parse({k: v for k, v in raw.items() if v != "" and k not in untouched})


def parse_text(assignment: str) -> tuple[str, Value]:
    """key=value from a command line, with the value read as TOML would, else as text."""
    key, equals, text = assignment.partition("=")
    require(bool(equals) and bool(key.strip()), f"--set takes key=value; got '{assignment}'")
    return key.strip(), _read(text.strip())


def all_settings() -> dict[str, type]:
    """The settings of all algorithms together."""
    return {name: kind for page in ALGORITHMS.values() for name, kind in settings_of(page).items()}


def _read(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")


def typed(key: str, value: Any, kind: type) -> Value:
    """The value of a key as this kind; SettingError for another."""
    if key in _LISTS and type(value) in (int, float):  # a list of one
        value = str(value)
    if kind is float and type(value) is int and abs(value) < 2**1000:
        value = float(value)
    word = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
    require(
        type(value) is kind and value == value,
        f"{key} must be {word}; got {value!r}{_hint(key, value, kind)}",
    )
    return value


def _hint(key: str, value: Any, kind: type) -> str:
    """What to type in place of True or "true"."""
    word = str(value).lower()
    return f": write {key} = {word}" if kind is bool and word in ("true", "false") else ""


def _unknown(key: str, algorithm: str, known: list[str]) -> str:
    names = sorted(map(kebab, known))
    owners = [name for name, page in ALGORITHMS.items() if snake(key) in settings_of(page)]
    if owners:
        return f"'{key}' is not a setting of {algorithm}, but of {', '.join(owners)}"
    near = difflib.get_close_matches(key, names, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(names)}"
    return f"'{key}' is not a setting of {algorithm}; {hint}"
