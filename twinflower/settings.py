"""Settings are declared once, as dataclass fields with a meaning, a unit and a range.

    @dataclass(frozen=True)
    class FedPDM:
        rho: Annotated[float, Setting("penalty of the augmented Lagrangian", above(0))] = 0.05

Users set such a field by its name, here `rho`, with `-` in place of `_`. Its type and range are checked wherever the
value comes from, and the settings reference is generated from the declaration. Users cannot set a field without a
`Setting`. A field that is itself a dataclass with settings is a component; its settings count as the owner's.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from math import inf, isfinite
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from .decimals import decimals
from .errors import SettingError

Value = bool | int | float | str
T = TypeVar("T")

_FEW = 40  # names that an error message lists
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_KINDS: Mapping[type, Any] = {bool: bool, int: Integral, float: Real, str: str}


@dataclass(frozen=True)
class Rule:
    """A condition on a value, as text for messages and as a predicate.

    words: the allowed values, if there are few. remedies: what to write in place of some values that are not allowed.
    """

    text: str
    holds: Callable[[Any], bool]
    words: tuple[str, ...] = ()
    remedies: Mapping[str, str] | None = None

    def hint(self, value: Any) -> str:
        """What a user may have meant by a value that is not allowed, for an error message; often empty."""
        remedy = (self.remedies or {}).get(value)
        return f"; {remedy}" if remedy else alike(value, self.words)


def at_least(low: float) -> Rule:
    """The rule low <= value < infinity."""
    return Rule(f"at least {low:g}", lambda v: low <= v < inf)


def above(low: float) -> Rule:
    """The rule low < value < infinity."""
    return Rule(f"above {low:g}", lambda v: low < v < inf)


def between(low: float, high: float, text: str = "") -> Rule:
    """The rule low <= value <= high; `text` replaces the default description."""
    return Rule(text or f"from {low:g} to {high:g}", lambda v: low <= v <= high)


def one_of(
    words: Iterable[str], kind: Callable[[Any], str] = str, remedies: Mapping[str, str] | None = None
) -> Rule:
    """The rule that the value is one of these strings, or of one of these kinds; remedies: as in `Rule`."""
    known = tuple(words)
    return Rule(f"one of {', '.join(known)}", lambda v: kind(v) in known, known, remedies)


SMALLEST, LARGEST = 1e-100, 1e100


def moderate(value: float) -> bool:
    """Whether a number is 0 or from 1e-100 to 1e100 in size.

    Products of a few such numbers neither vanish nor overflow in floats. Where they did, whether an error occurs could
    depend on a record, so every number that a server can set is checked.
    """
    return not value or SMALLEST <= abs(value) <= LARGEST


def point_of(text: str) -> list[float] | None:
    """The numbers (d,) of a text such as "0.5, 0, -1.25"; None for any other text."""
    try:
        numbers = decimals(text.split(","))
    except ValueError:
        return None
    return list(numbers) if all(map(moderate, numbers)) else None


POINT = Rule(
    f"numbers, each 0 or from {SMALLEST:g} to {LARGEST:g} in size, separated by commas",
    lambda text: not text or point_of(text) is not None,
)
ANY = Rule("", lambda v: True)
SHARE = Rule("above 0 and at most 1", lambda v: 0 < v <= 1)
FRACTION = Rule("from 0 to below 1", lambda v: 0 <= v < 1)
PROBABILITY = Rule("above 0 and below 1", lambda v: 0 < v < 1)


@dataclass(frozen=True)
class Setting:
    """The meaning, range and unit of a field.

    An integer must be below 2^bits. numbers: whether the field is text that holds a comma-separated list of numbers.
    needs: the name of another setting without which this one has no effect.
    """

    meaning: str
    rule: Rule = ANY
    unit: str = ""
    bits: int = 48
    numbers: bool = False
    needs: str = ""


@dataclass(frozen=True)
class Key:
    """A setting of a class: the attribute path to it, its type, its default and its declaration."""

    path: tuple[str, ...]
    kind: type
    default: Value
    setting: Setting

    @property
    def name(self) -> str:
        """The name that users write: kebab case, without the section."""
        return kebab(self.path[-1])

    @property
    def range(self) -> str:
        """The rule as text, for the settings reference."""
        return self.setting.rule.text or {bool: "true or false", str: "text"}.get(self.kind, "any")

    def value_in(self, owner: object) -> Value:
        """The value of this setting in an instance of the class."""
        for attribute in self.path:
            owner = getattr(owner, attribute)
        return owner  # type: ignore[return-value]

    def checked(self, value: Any, name: str = "") -> Value:
        """The value converted to the setting's type; SettingError for a wrong type or a value out of range."""
        name = name or self.name
        value = typed(name, value, self.kind, self.setting.numbers)
        self.check(value, name)
        return value  # type: ignore[no-any-return]

    def check(self, value: Any, name: str = "") -> None:
        """SettingError for a value of another type, or out of range; `name` replaces the setting's name in it."""
        name, rule = name or self.name, self.setting.rule
        if not isinstance(value, _KINDS[self.kind]) or (isinstance(value, bool) and self.kind is not bool):
            raise SettingError(f"{name} must be {_WORDS[self.kind]}; got {value!r}")
        if self.kind is float and not isfinite(value):
            raise SettingError(f"{name} must be finite; got {value!r}")
        if not rule.holds(value):  # a hint takes longer than all other checks
            raise SettingError(f"{name} must be {rule.text}; got {value!r}{rule.hint(value)}")
        if self.kind is float and not moderate(value):
            raise SettingError(f"{name} must be 0 or from {SMALLEST:g} to {LARGEST:g} in size; got {value!r}")
        if self.kind is int and value >= 2**self.setting.bits:
            raise SettingError(f"{name} must be below 2^{self.setting.bits}; got {value!r}")


def settings_of(owner: type[Any]) -> Mapping[str, Key]:
    """All settings of a dataclass, including those of its components, by the names that users write."""
    return _settings_of(owner)  # type: ignore[arg-type]  # classes are hashable


@lru_cache
def _settings_of(owner: type[Any]) -> dict[str, Key]:
    hints = get_type_hints(owner, include_extras=True)
    found: dict[str, Key] = {}
    for field in fields(owner):
        found |= _keys(field, hints[field.name])
    return found


def _keys(field: Field[Any], hint: Any) -> dict[str, Key]:
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        kind = next(iter(get_args(kind)), kind)  # int for int | None
        declared = [note for note in notes if isinstance(note, Setting)]
        return (
            {kebab(field.name): Key((field.name,), kind, cast(Value, field.default), declared[0])}
            if declared
            else {}
        )
    if not (isinstance(hint, type) and is_dataclass(hint)) or field.default is MISSING:
        return {}
    parts = settings_of(hint).items()
    return {
        name: Key((field.name, *key.path), key.kind, key.value_in(field.default), key.setting)
        for name, key in parts
    }


def check_settings(owner: Any) -> None:
    """SettingError unless all settings of an instance are in range; call it in `__post_init__`."""
    for key in settings_of(type(owner)).values():
        if len(key.path) == 1:  # components check their own settings
            key.check(key.value_in(owner))


def build(owner: type[T], values: Mapping[str, Any], **others: Any) -> T:
    """An instance with these settings, by the names that users write; `others` are fields that are not settings."""
    whole = {field.name: field.default for field in fields(owner)}  # type: ignore[arg-type]
    return owner(**_arguments(owner, values, whole), **others)


def changed(owner: T, values: Mapping[str, Any]) -> T:
    """A copy of the instance with these settings changed, by the names that users write."""
    whole = {field.name: getattr(owner, field.name) for field in fields(owner)}  # type: ignore[arg-type]
    return replace(owner, **_arguments(type(owner), values, whole))  # type: ignore[type-var]


def _arguments(owner: type, values: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments for these settings; a component is the one in `whole` with its own settings changed."""
    direct: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, *rest = settings_of(owner)[name].path
        if rest:
            parts.setdefault(first, {})[name] = value
        else:
            direct[first] = value
    return direct | {first: changed(whole[first], own) for first, own in parts.items()}


def make(entries: Mapping[str, type[T]], kind: str, name: str, settings: Mapping[str, Any]) -> T:
    """Build the registry entry called `name` with these settings (keys in snake case).

    SettingError for an unknown name or setting; the message lists the valid names or the closest setting.
    """
    check_choice(kind, name, entries)
    entry = entries[name]
    known = settings_of(entry)
    for field in map(kebab, settings):
        if field not in known:
            raise SettingError(f"{kind} {name} has no setting '{field}'; {nearest(field, known)}")
    return build(entry, {kebab(field): value for field, value in settings.items()}, name=name)


def check_choice(key: str, value: str, known: Iterable[str]) -> None:
    """SettingError, with the closest known name, unless the value is one of the known names."""
    words = list(known)
    if value not in words:
        raise SettingError(f"{key} must be one of {', '.join(words)}; got '{value}'{alike(value, words)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for an error message: the known name closest in spelling, or else all known names if they are few."""
    words = sorted(set(known))
    if near := alike(word, words):
        return near.removeprefix("; ")
    if len(words) > _FEW:
        return "`twinflower settings` lists them all"
    return f"known: {', '.join(words)}" if words else "it has none"


def alike(word: Any, known: Iterable[str]) -> str:
    """The known name closest in spelling as a question after a semicolon; empty if none is close.

    Capitals do not count, unless names differ by nothing else.
    """
    words = list(known)
    folded = {name.casefold(): name for name in words}
    near = difflib.get_close_matches(str(word), words, 1) or [
        folded[name] for name in difflib.get_close_matches(str(word).casefold(), folded, 1)
    ]
    return f"; did you mean '{near[0]}'?" if near else ""


def kebab(name: str) -> str:
    """Convert step_size to step-size."""
    return name.replace("_", "-")


def snake(key: str) -> str:
    """Convert step-size to step_size."""
    return key.replace("-", "_")


def typed(name: str, value: Any, kind: type, numbers: bool = False) -> Any:
    """The value as this type; SettingError for any other. Integers become floats where `kind` is float.

    numbers: accept a single number where the text is a list of numbers.
    """
    if numbers and type(value) in (int, float):
        value = str(value)
    if kind is float and type(value) is int and abs(value) < 2**1000:
        value = float(value)
    if type(value) is not kind or value != value:
        raise SettingError(f"{name} must be {_WORDS[kind]}; got {value!r}{_remedy(name, value, kind)}")
    return value


def _remedy(name: str, value: Any, kind: type) -> str:
    """A hint for a boolean written as text: the line to write instead; otherwise empty."""
    word = str(value).lower()
    return f": write {name} = {word}" if kind is bool and word in ("true", "false") else ""
