"""Turn a user's settings into a validated configuration, from files, the command line, or Flower's run config.

A key is written with its section, `fedpdm.rho`. In a curve and on the command line `rho` is enough if only one
effective key has this name. Settings come in layers, of which later ones take precedence: an experiment's [run], its
[[curve]], `--set`. A setting that belongs to a choice which the run does not make is refused, unless a later layer
changed that choice. Settings are written as TOML here, too.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from twinflower.decimals import decimal, whole
from twinflower.errors import SettingError
from twinflower.settings import Value, kebab, nearest

from .catalogue import CATALOGUE, CHOICES, DEFAULTS, MAIN_JOB, SECTIONS, Declared, applying
from .config import Config, configured

Raw = Mapping[str, Any]
# Names that other programs use, and what comes nearest here
ELSEWHERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "learning-rate", "stepsize"), ("step-size",)),
    **dict.fromkeys(("epochs", "local-epochs", "local-steps"), ("local.max-steps",)),
    **dict.fromkeys(("num-clients", "num-sites", "num-supernodes"), ("clients.count",)),
    **dict.fromkeys(("fraction-fit", "fraction-train", "participation"), ("clients.per-round",)),
    **dict.fromkeys(("sigma", "noise"), ("privacy.noise-multiplier", "privacy.epsilon")),
    **dict.fromkeys(("model", "loss"), ("objective.name",)),
    "sparsity": ("regulariser.weight", "uplink-ratio"),
    "dataset": ("data.name",),
    "penalty": ("regulariser.name",),
    "num-rounds": ("rounds",),
}
_BY_LEAF: dict[str, list[Declared]] = {}
for _declared in CATALOGUE.values():
    _BY_LEAF.setdefault(_declared.leaf, []).append(_declared)


@dataclass
class Merged:
    """The merged settings of several layers.

    values: the settings that have an effect. idle: for each layer, the keys without effect, each with the reason.
    """

    values: dict[str, Value] = field(default_factory=dict)
    idle: list[dict[str, str]] = field(default_factory=list)


def parse(*layers: Raw) -> Config:
    """The configuration from layers of settings, whose keys may be written with or without their section.

    Raises SettingError for an unknown key (suggesting the closest known one), a wrong type, a violated rule, or a
    setting of an entry that was not chosen.
    """
    merged = merge(layers)
    refuse_idle(merged.idle)
    return configured(merged.values)


def refuse_idle(layers: Iterable[Mapping[str, str]]) -> None:
    """SettingError for the first setting without effect, if there is one in these layers (`Merged.idle`)."""
    for reason in chain.from_iterable(idle.values() for idle in layers):
        raise SettingError(reason)


def merge(layers: Sequence[Raw], tables: int = 0) -> Merged:
    """Merge the layers; later ones take precedence. In the first `tables` layers keys must have their section.

    A setting that had an effect until a later layer changed a choice is dropped. One that never had an effect is idle.
    """
    flat = [flatten(layer) for layer in layers]
    so_far = [chosen(flat[: n + 1]) for n in range(len(flat))]
    merged = Merged()
    for place, layer in enumerate(flat):
        idle: dict[str, str] = {}
        words: dict[str, str] = {}  # those of this layer, by the setting that they mean
        for word, value in layer.items():
            counts = [_counting(word, choices, place >= tables) for choices in so_far[place:]]
            declared, reason = counts[-1]
            if declared is not None:
                if (other := words.setdefault(declared.name, word)) != word:
                    raise SettingError(f"{other} and {word} are the same setting: leave one of them out")
                merged.values[declared.name] = value
            elif all(before is None for before, _ in counts):
                idle[word] = reason
        merged.idle.append(idle)
    return merged


def flatten(raw: Raw, section: str = "") -> dict[str, Any]:
    """The settings of nested tables as one flat dictionary, with dotted keys in kebab case.

    SettingError for a key that is written in two ways.
    """
    found: dict[str, Any] = {}
    for key, value in raw.items():
        name = f"{section}.{kebab(key)}" if section else kebab(key)
        new = flatten(value, name) if isinstance(value, Mapping) else {name: value}
        for twice in found.keys() & new.keys():
            raise SettingError(
                f"'{twice}' is written in two ways, with {found[twice]} and {new[twice]}: leave one of them out"
            )
        found |= new
    return found


def chosen(layers: Iterable[Raw]) -> dict[str, Value]:
    """The choices made by these flat layers, by key, with defaults; SettingError for an unknown entry."""
    choices = {key: DEFAULTS[key] for key in CHOICES}
    for layer in layers:
        choices |= {key: CATALOGUE[key].key.checked(layer[key], key) for key in CHOICES if key in layer}
    return choices


def resolve(word: str, choices: Mapping[str, Value]) -> Declared:
    """The key meant by a word with these choices; SettingError if no such key has an effect."""
    declared, reason = _counting(kebab(word), choices, bare=True)
    if declared is None:
        raise SettingError(reason)
    return declared


def _counting(word: str, choices: Mapping[str, Value], bare: bool) -> tuple[Declared | None, str]:
    """The effective key meant by a word with these choices, or None and the reason why there is none.

    Raises SettingError if the word is not a key or is ambiguous.
    """
    known = _meant(word, bare)
    counting = [declared for declared in known if declared.missing(choices) is None]
    names = ", ".join(declared.name for declared in counting)
    if not len(counting) < 2:
        raise SettingError(f"'{word}' could be {names}: write it with its section")
    return (counting[0], "") if counting else (None, unselected(known, choices))


def _meant(word: str, bare: bool) -> list[Declared]:
    """The keys that a word could mean, regardless of the choices; SettingError if there are none."""
    if word in CATALOGUE:
        return [CATALOGUE[word]]
    known = _BY_LEAF.get(word, [])
    if not known or not bare:
        raise SettingError(_unknown(word, known))
    return known


def unselected(keys: Sequence[Declared], choices: Mapping[str, Value]) -> str:
    """An error message: why these keys with the same name have no effect with these choices, and what to do."""
    first = keys[0]
    choice = first.missing(choices)
    assert choice is not None
    owners = dict.fromkeys(owner for declared in keys for owner in declared.owners.get(choice, ()))
    name = first.name if len(keys) == 1 else first.leaf
    return (
        f"{name} is a setting of {choice} {listed(list(owners))}, and this run has {choice} {choices[choice]}: choose "
        f"{'it' if len(owners) == 1 else 'one of them'}, or leave {name} out"
    )


def listed(words: Sequence[str], last: str = "or") -> str:
    """The words, at least one, with commas between them and another word before the last."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def _unknown(word: str, without_section: Sequence[Declared]) -> str:
    """An error message for a word that is not a key, with a suggestion."""
    if without_section:
        places = [declared.name for declared in without_section]
        return f"'{word}' is not a key: write {listed(places[:3])}{', ...' if len(places) > 3 else ''}"
    section, dot, leaf = word.rpartition(".")
    if section.partition(".")[0] == "run":
        return f"'{word}' is not a key: leave out the first part, as in {word.removeprefix('run.')}"
    if word and word in SECTIONS:
        return f"'{word}' is a section: write {word}.KEY = VALUE, or a table [{word}]"
    if dot and section not in SECTIONS:
        return f"there is no section '{section}'; {nearest(section, filter(None, SECTIONS))}"
    known = [declared for declared in CATALOGUE.values() if declared.section == section or not dot]
    names = [
        name for declared in known for name in ([declared.name] if dot else [declared.leaf, declared.name])
    ]
    similar = [f"'{name}'" for own in ELSEWHERE.get(leaf, ()) if (name := f"{section}{dot}{own}") in names]
    hint = f"did you mean {listed(similar)}?" if similar else nearest(word, names)
    return f"'{word}' is not a setting; {hint}"


def parse_run_config(raw: Mapping[str, Value]) -> Config:
    """The configuration from Flower's run config, which always holds every key of every section.

    Keys of entries that were not chosen are ignored if they have their default value. Otherwise the user has set them,
    and a SettingError is raised.
    """
    flat = flatten(raw)
    choices = chosen([flat])
    values = {}
    for word, value in flat.items():
        declared, reason = _counting(word, choices, bare=False)
        if declared is not None:
            values[word] = value
        elif value not in (DEFAULTS[word], MAIN_JOB.get(word)):
            raise SettingError(f"{reason}, which is {shown(DEFAULTS[word])} by default")
    return configured(values)


def completed(raw: Raw) -> Raw:
    """A run config as Flower completes it: with the app's defaults for the keys that it does not name."""
    return {**DEFAULTS, **MAIN_JOB, **flatten(raw)}


def parse_text(assignment: str) -> tuple[str, Value]:
    """Split key=value from a command line; the value of a setting that is no text is read as a Boolean or a number if
    possible."""
    key, equals, text = assignment.partition("=")
    if not (bool(equals) and bool(key.strip())):
        raise SettingError(f"--set takes key=value; got '{assignment}'")
    word = kebab(key.strip())
    kinds = {own.key.kind for own in CATALOGUE.values() if word in (own.name, own.leaf)}
    return key.strip(), _read(text.strip(), kinds == {str})


def _read(text: str, as_it_is: bool) -> Value:
    if as_it_is:
        return text.strip("'\"")
    if text in ("true", "false"):
        return text == "true"
    for kind in (whole, decimal):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")


def shown(value: Value) -> str:
    """A value as a user would type it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def counting_words(choices: Mapping[str, Value]) -> dict[str, str]:
    """The effective keys with these choices, by full name and, if it is unambiguous, by name without section."""
    names = [declared.name for declared in applying(choices)]
    leaves = [name.rpartition(".")[2] for name in names]
    bare = {leaf: name for leaf, name in zip(leaves, names, strict=True) if leaves.count(leaf) == 1}
    return bare | dict(zip(names, names, strict=True))


# --- settings as TOML


_encoded = json.JSONEncoder(ensure_ascii=False).encode  # TOML has no surrogate pairs


def to_toml(values: Mapping[str, Any]) -> str:
    """Settings as TOML, one per line, with dotted keys for sections."""
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())


def to_tables(values: Mapping[str, Any]) -> str:
    """Settings as TOML, with a table for each section."""
    tables: dict[str, dict[str, Any]] = {"": {}}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        tables.setdefault(section, {})[key] = value
    texts = ((f"[{name}]\n" if name else "") + to_toml(table) for name, table in tables.items() if table)
    return "\n".join(texts)


def toml_value(value: Any) -> str:
    """A value in TOML syntax, on one line; a mapping becomes an inline table."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml_value(own)}" for key, own in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # valid TOML for inf and nan, too
    return _encoded(value).replace("\x7f", "\\u007f")


def toml_lines(text: str) -> str:
    """A text in TOML syntax, with its line breaks as they are."""
    return '"""\n' + "\n".join(toml_value(line)[1:-1] for line in text.split("\n")) + '"""'
