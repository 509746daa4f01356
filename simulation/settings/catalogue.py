"""The catalogue of all settings, made from their declarations: each key with its section and the choices it belongs to.

A choice is a key whose value selects an entry of a registry: `algorithm`, `data.name`, `partition.name`, ... The other
keys of an entry have an effect only if the entry is selected.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from twinflower.algorithms import ALGORITHMS
from twinflower.arrays import PRECISIONS
from twinflower.data.partitioners import PARTITIONERS
from twinflower.data.sets import SOURCES
from twinflower.known_objectives import OBJECTIVES, TORCH
from twinflower.problems.penalties import REGULARISERS
from twinflower.problems.topologies import TOPOLOGIES
from twinflower.settings import POINT, Key, Setting, Value, at_least, between, one_of, settings_of

from .sections import PRIVACY, Clients, Evaluation, Local, Output, Server

Choices = Mapping[str, Value]

NETWORKED = tuple(name for name, method in ALGORITHMS.items() if method.networked)
STEPPING = tuple(name for name, method in ALGORITHMS.items() if method.takes_local_steps)
_FURTHER: dict[str, dict[str, tuple[str, ...]]] = {  # keys that also depend on a choice in another section
    "local.max-steps": {"algorithm": STEPPING},
    "privacy.sensitivity": {"algorithm": STEPPING},
    "regulariser.parameters": {"objective.name": (TORCH,)},
}
CHOSEN: dict[str, Mapping[str, type[Any]]] = {  # sections whose keys depend on a registry entry
    "data": SOURCES,
    "partition": PARTITIONERS,
    "objective": OBJECTIVES,
    "regulariser": REGULARISERS,
    "privacy": PRIVACY,
    "topology": TOPOLOGIES,
}
PLAIN: dict[str, type[Any]] = {
    "clients": Clients, "local": Local, "evaluation": Evaluation, "server": Server, "output": Output,
}  # fmt: skip
ABOUT = {
    "": "The run",
    "data": "The rows to train and test on",
    "clients": "Who takes part",
    "partition": "Which rows belong to which client",
    "objective": "The smooth part f_i of the problem",
    "regulariser": "The non-smooth part h of the problem",
    "local": "What a client does in a round",
    "privacy": "What protects the clients' records",
    "topology": "The graph of a networked method",
    "evaluation": "What is measured",
    "server": "How the server treats nodes and their replies",
    "output": "Where results are written",
}
_CHOICE = {  # the key that selects the entry, its default, and its meaning
    "data": ("name", "digits", "data set"),
    "partition": ("name", "iid", "how the rows are divided among the clients"),
    "objective": (
        "name",
        "softmax",
        "loss of a linear model, a network with one hidden layer and softmax loss, or a model of survival",
    ),
    "regulariser": ("name", "l1", "h: a penalty, or a set that the model must be in"),
    "privacy": (
        "mode",
        "none",
        "where noise enters: what local steps release, every gradient, or as published",
    ),
    "topology": ("name", "erdos-renyi", "who is whose neighbour"),
}
_REMEDIES = {"regulariser": {"l2": "a ridge penalty is the setting objective.l2"}}
TOP = (
    Key(
        ("algorithm",), str, "fedpdm",
        Setting("algorithm to run", one_of(ALGORITHMS)),
    ),
    Key(("rounds",), int, 30, Setting("communication rounds T", between(1, 100_000), "rounds")),
    Key(("seed",), int, 0, Setting("seed of the run's random numbers", at_least(0), bits=64)),
    Key(
        ("start_scale",), float, 0.0,
        Setting("standard deviation of a normal starting point; 0: the objective's own start", at_least(0)),
    ),
    Key(
        ("start_point",), str, "",
        Setting(
            "the entries of the starting point, separated by commas; empty: by start-scale", POINT, numbers=True
        ),
    ),
    Key(
        ("precision",), str, "double",
        Setting("numbers of 64 bits, or of 32 bits, which a private run refuses", one_of(PRECISIONS)),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Declared:
    """A key and its owners: for each choice it depends on, the values with which it has an effect.

    The key has an effect only if all these choices have one of their values.
    """

    name: str
    key: Key
    owners: Mapping[str, tuple[str, ...]]

    @cached_property
    def section(self) -> str:
        """The part before the last dot, empty for a top-level key."""
        return self.name.rpartition(".")[0]

    @cached_property
    def leaf(self) -> str:
        """The part after the last dot."""
        return self.name.rpartition(".")[2]

    def missing(self, choices: Choices) -> str | None:
        """The first choice that makes this key ineffective; None if the key has an effect."""
        return next((c for c, entries in self.owners.items() if kind_of(choices[c]) not in entries), None)


def kind_of(value: Value) -> str:
    """The registry's name for the value of a choice, such as libsvm:FILE for libsvm:a9a."""
    word, colon, _ = str(value).partition(":")
    return {"libsvm:": "libsvm:FILE", "file:": "file:PATH", "torch:": TORCH}.get(word + colon, str(value))


def _algorithm_sections() -> Iterable[Declared]:
    for name, method in ALGORITHMS.items():
        for leaf, key in settings_of(method).items():
            yield Declared(f"{name}.{leaf}", key, {"algorithm": (name,)})


def _plain_section(section: str) -> Iterable[Declared]:
    for leaf, key in settings_of(PLAIN[section]).items():
        name = f"{section}.{leaf}"
        yield Declared(name, key, _FURTHER.get(name, {}))


def _chosen_section(section: str) -> Iterable[Declared]:
    entries = CHOSEN[section]
    leaf, default, meaning = _CHOICE[section]
    graph = {"algorithm": NETWORKED} if section == "topology" else {}
    rule = one_of(entries, kind_of, _REMEDIES.get(section))
    yield Declared(f"{section}.{leaf}", Key((leaf,), str, default, Setting(meaning, rule)), graph)
    for own in dict.fromkeys(key for entry in entries.values() for key in settings_of(entry)):
        having = {
            name: settings_of(entry)[own] for name, entry in entries.items() if own in settings_of(entry)
        }
        owners = graph | ({f"{section}.{leaf}": tuple(having)} if len(having) < len(entries) else {})
        name = f"{section}.{own}"
        yield Declared(name, next(iter(having.values())), owners | _FURTHER.get(name, {}))


def _all() -> Iterable[Declared]:
    yield from (Declared(key.name, key, {}) for key in TOP)
    for section in filter(None, ABOUT):
        yield from _plain_section(section) if section in PLAIN else _chosen_section(section)
    yield from _algorithm_sections()


CHOICES = ("algorithm", *(f"{section}.{choice[0]}" for section, choice in _CHOICE.items()))
CATALOGUE: dict[str, Declared] = {declared.name: declared for declared in _all()}
SECTIONS = (*ABOUT, *ALGORITHMS)
DEFAULTS: dict[str, Value] = {name: declared.key.default for name, declared in CATALOGUE.items()}
# The settings in which `flwr run .` without overrides differs from the defaults: it is a private run
MAIN_JOB: dict[str, Value] = {"privacy.mode": "public-state", "privacy.epsilon": 8.0}


def keys_of(section: str) -> list[Declared]:
    """The keys of a section, in the order of the catalogue."""
    return [declared for declared in CATALOGUE.values() if declared.section == section]


def applying(choices: Choices) -> list[Declared]:
    """The keys that have an effect with these choices."""
    return list(_applying(tuple(choices.items())))


@lru_cache
def _applying(choices: tuple[tuple[str, Value], ...]) -> tuple[Declared, ...]:
    known = dict(choices)
    return tuple(declared for declared in CATALOGUE.values() if declared.missing(known) is None)
