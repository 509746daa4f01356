"""The file of a schema: `read_schema` validates it, `to_toml` writes it. What it says: see `schema`."""

import json
import math
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import DataError, expect
from ..problems.losses import FARTHEST
from ..settings import LARGEST, alike, moderate, nearest
from .cells import as_text
from .columns import (
    CENSORED,
    HAPPENED,
    LIMIT,
    LIMITS,
    MISSING,
    REFUSE,
    Category,
    Classes,
    Column,
    Counts,
    Label,
    Number,
    Range,
    Survival,
    Target,
    Weight,
)
from .csv_tables import DECIMALS, DELIMITERS, Dialect
from .schema import MISSING_TEXTS, ONE_ROW, PRIVATE, VERSION, Scale, Schema
from .tables import numeric_columns
from .terms import parse_terms
from .words import events, is_start

_KINDS = ("classes", "range", "counts", "times")
_FURTHER = {
    "counts": ("exposure", "exposure-range"),
    "times": ("event", "event-values", "censored-values", ONE_ROW),
}
_MOST_COUNT = 2**16
DRAFT = "# A draft, made from all values of"  # how the file of a draft begins
_KEYS = (
    "version", "label", "columns", "sites", "ignore", "group", "weight", "weight-range", "missing-values", "terms",
    *Dialect._fields,
)  # fmt: skip


def read_schema(path: str | Path) -> Schema:
    """Read a schema file; DataError with the file and the position for an invalid one."""
    return parse_schema(_text(path), str(Path(path).expanduser()))


def _text(path: str | Path) -> str:
    file = Path(path).expanduser()
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"schema {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"schema {file} must be UTF-8 text; byte {error.start} is not") from None


def draft_warning(path: str | Path) -> str:
    """A warning for private runs if the schema in this file is a draft, else empty; DataError if it cannot be read."""
    if not _text(path).startswith(DRAFT):
        return ""
    return (
        f"warning: {path} is a draft: its ranges and categories were read off the data, and the guarantee does not "
        "cover them. Replace them by public knowledge, then delete its first comment"
    )


def parse_schema(text: str, source: str = "") -> Schema:
    """Parse the text of a schema; `source` is its name in error messages."""
    where = f"schema {source}".rstrip()
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where} is not TOML: {error}") from None
    try:
        return make_schema(document, source)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def make_schema(document: Mapping[str, Any], source: str = "") -> Schema:
    """The schema of a nested dictionary with the structure of a schema's file; DataError for an invalid one."""
    _check_keys("", document, _KEYS)
    version, group = document.get("version", VERSION), document.get("group", "")
    if version != VERSION:
        raise DataError(f"version must be {VERSION}; got {version!r}")
    tables = document.get("columns", {})
    expect(isinstance(tables, dict) and bool(tables), "needs a table [columns] with at least one column")
    columns = tuple(_column(name, table) for name, table in tables.items())
    label = _label(document.get("label"))
    ignored = _texts("ignore", document.get("ignore", []))
    missing = _texts("missing-values", document.get("missing-values", list(MISSING_TEXTS)))
    if not isinstance(group, str):
        raise DataError(f"group must be the name of a column; got {group!r}")
    schema = Schema(columns, label, ignored, missing, source, group, _dialect(document), _weight(document))
    sites = _sites(document.get("sites", {}), numeric_columns(schema))
    schema = replace(schema, sites=sites, terms=parse_terms(document.get("terms", []), columns))
    others = filter(None, [group, document.get("weight")])
    used = [*schema.names, *label.encoders, *others, *ignored]
    _check_distinct("columns, label, ignore, group and weight", used)
    _check_distinct("names of features", schema.features)
    _check_persons(schema)
    return schema


def _check_persons(schema: Schema) -> None:
    """DataError if a survival label counts intervals of time as persons, or if its columns look so and it does not say
    that it does not."""
    label, names = schema.label, [*(column.name for column in schema.columns), *schema.ignore]
    starts = [name for name in names if is_start(name)]
    if not isinstance(label, Survival) or label.one_row or (label.one_row is None and not starts):
        return
    seems = f", and column '{starts[0]}' looks like the start of an interval" if starts else ""
    raise DataError(
        f"label: every row must be another person, followed from time 0{seems}: merge the rows of each person (a later "
        f"entry is not modelled), and write {ONE_ROW} = true"
    )


def _weight(document: Mapping[str, Any]) -> Weight | None:
    if "weight" not in document and "weight-range" not in document:
        return None
    expect("weight" in document and "weight-range" in document, "weight and weight-range belong together")
    column, limits = document["weight"], document["weight-range"]
    if not (isinstance(column, str) and bool(column)):
        raise DataError(f"weight must be the name of a column; got {column!r}")
    expect(limits != PRIVATE, "weight-range must be public, [low, high]; it has no counts")
    range_ = _range("weight-range", limits)
    if not range_.low >= 0:
        raise DataError(f"weight-range must be within 0 and {LARGEST:g}; got {limits!r}")
    return Weight(column, range_)


def _dialect(document: Mapping[str, Any]) -> Dialect:
    dialect = Dialect(**{key: document[key] for key in Dialect._fields if key in document})
    for key, value, known in zip(Dialect._fields, dialect, (DELIMITERS, DECIMALS), strict=True):
        if value not in tuple(known):
            raise DataError(f"{key} must be one of {' '.join(map(_toml, known))}; got {value!r}")
    return dialect


def _column(name: str, table: Any) -> Column:
    where = f"column '{name}'"
    if not isinstance(table, dict):
        raise DataError(f"{where} must be a table such as {{ range = [0, 1] }}; got {table!r}")
    written = ("unit", *LIMITS)
    _check_keys(where, table, ("range", "categories", "missing", *written))
    if not name == name.strip() != "":
        raise DataError(f"{where} must have a name without spaces around it")
    if ("range" in table) == ("categories" in table):
        raise DataError(f"{where} needs either range or categories")
    missing = table.get("missing", REFUSE)
    if missing not in MISSING:
        raise DataError(
            f"{where}: missing must be one of {', '.join(MISSING)}; got {missing!r}{alike(missing, MISSING)}"
        )
    unit, below, above = (table.get(key, "") for key in written)
    if not (isinstance(unit, str) and unit == unit.strip()):
        raise DataError(f"{where}: unit must be a text such as kg; got {unit!r}")
    for key, known in LIMITS.items():
        text = f"{where}: {key} must be one of {', '.join(known)}; got {table.get(key)!r}"
        expect(table.get(key, LIMIT) in known, text)
    if "range" in table:
        range_ = None if table["range"] == PRIVATE else _range(where, table["range"])
        return Number(name, range_, missing, unit, below, above)
    if any(key in table for key in written):
        raise DataError(f"{where}: {', '.join(written)} belong to a range")
    names, values = _named_values(where, "category", "categories", table["categories"])
    return Category(name, names, missing, values if isinstance(table["categories"], dict) else ())


def _named_values(
    where: str, kind: str, kinds: str, given: Any
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Names, and the values of each, from a list of values or a table of lists."""
    if isinstance(given, dict):
        names, values = tuple(given), tuple(_values(f"{kind} '{name}'", v) for name, v in given.items())
        _check_distinct(f"values of {kinds}", [value for group in values for value in group])
        return names, values
    names = _values(f"{where}: {kinds}", given)
    return names, tuple((name,) for name in names)


def _sites(given: Any, numeric: Collection[str]) -> dict[str, dict[str, Scale]]:
    good = isinstance(given, dict) and all(isinstance(columns, dict) for columns in given.values())
    if not good:
        raise DataError(
            f'sites must be a table such as "site-2.csv" = {{ dose = {{ scale = 10 }} }}; got {given!r}'
        )
    for site, columns in given.items():
        for name in columns:
            if name not in numeric:
                raise DataError(f"sites: '{site}': '{name}' is no column of numbers{alike(name, numeric)}")
    return {
        site: {name: _scale(f"sites: '{site}': column '{name}'", unit) for name, unit in columns.items()}
        for site, columns in given.items()
    }


def _scale(where: str, given: Any) -> Scale:
    if not (isinstance(given, dict) and bool(given)):
        raise DataError(f"{where} must have scale, offset or both; got {given!r}")
    _check_keys(where, given, Scale._fields)
    good = all(type(value) in (int, float) and moderate(value) for value in given.values())
    if not good:
        raise DataError(
            f"{where}: scale and offset must be numbers, 0 or from 1e-100 to 1e100 in size; got {given!r}"
        )
    unit = Scale(**{key: float(value) for key, value in given.items()})
    if unit.scale == 0:
        raise DataError(f"{where}: scale must not be 0")
    return unit


def _label(table: Any) -> Label:
    expect(
        isinstance(table, dict),
        "needs a table [label] with column and one of classes, range, counts and times",
    )
    _check_keys("label", table, ("column", *_KINDS, *(key for keys in _FURTHER.values() for key in keys)))
    column = table.get("column")
    if not (isinstance(column, str) and bool(column)):
        raise DataError(f"label needs the name of its column; got {column!r}")
    if sum(kind in table for kind in _KINDS) != 1:
        raise DataError(f"label needs one of {', '.join(_KINDS)}")
    _check_distinct(
        "columns of the label", [column, *(table[key] for key in ("exposure", "event") if key in table)]
    )
    for kind, keys in _FURTHER.items():
        given = any(key in table for key in keys)
        if kind not in table and given:
            raise DataError(f"label: {', '.join(keys[:-1])} and {keys[-1]} belong to {kind}")
    if "classes" in table:
        return _classes(column, table["classes"])
    if "counts" in table:
        return _counts(column, table)
    if "times" in table:
        return _survival(column, table)
    expect(table["range"] != PRIVATE, "the range of a label must be public, [low, high]; it has no counts")
    return Target(column, _range("label", table["range"]))


def _survival(column: str, table: Mapping[str, Any]) -> Survival:
    event = table.get("event", "")
    if not (isinstance(event, str) and event != ""):
        raise DataError(
            f"label: times need event, the name of the column that says whether the event happened; got {event!r}"
        )
    expect(table["times"] != PRIVATE, "the times of a label must be public, [low, high]; they have no counts")
    times = _range("label: times", table["times"])
    if not times.low > 0:
        raise DataError(
            "label: times must be above 0, because shorter times, also 0, are moved to their lower end; got "
            f"{table['times']!r}"
        )
    if table.get("event-values") == []:
        raise DataError(
            f"label: event-values is empty: move the value of column '{event}' that means the event there from "
            "censored-values"
        )
    usual = "event-values" in table or events(event, [*HAPPENED, *CENSORED]) == (HAPPENED, CENSORED)
    if not usual:
        raise DataError(
            f"label: 1 may mean censored in column '{event}': write event-values and censored-values"
        )
    happened = _values("label: event-values", table.get("event-values", HAPPENED))
    others = [value for value in CENSORED if value not in happened]
    censored = _values("label: censored-values", table.get("censored-values", others))
    _check_distinct("event-values and censored-values", [*happened, *censored])
    one_row = table.get(ONE_ROW)
    if not (one_row is None or isinstance(one_row, bool)):
        raise DataError(f"label: {ONE_ROW} must be true or false; got {one_row!r}")
    return Survival(column, times, event, happened, censored, one_row)


def _counts(column: str, table: Mapping[str, Any]) -> Counts:
    most, exposure = table["counts"], table.get("exposure", "")
    if not (type(most) is int and 0 < most < _MOST_COUNT):
        raise DataError(
            f"label: counts must be the largest count, a whole number from 1 to {_MOST_COUNT - 1}; got {most!r}"
        )
    if not isinstance(exposure, str):
        raise DataError(f"label: exposure must be the name of a column; got {exposure!r}")
    expect(
        bool(exposure) == ("exposure-range" in table), "label: exposure and exposure-range belong together"
    )
    if not exposure:
        return Counts(column, most)
    exposures = _range("label: exposure-range", table["exposure-range"])
    good = exposures.low > 0 and max(-math.log(exposures.low), math.log(exposures.high)) < FARTHEST
    if not good:
        raise DataError(
            f"label: exposure-range must be within {math.exp(-FARTHEST):.1g} and {math.exp(FARTHEST):.1g}: count "
            "exposures in another unit"
        )
    return Counts(column, most, exposure, exposures)


def _classes(column: str, classes: Any) -> Classes:
    texts, values = _named_values("label", "class", "classes", classes)
    whole = isinstance(classes, list) and all(type(value) is int for value in classes)
    names: tuple[str | int, ...] = tuple(map(int, texts)) if whole else texts
    if not len(names) > 1:
        raise DataError(f"label needs at least two classes; got {len(names)}")
    return Classes(column, names, values)


def _range(where: str, given: Any) -> Range:
    good = isinstance(given, list) and len(given) == 2 and all(type(v) in (int, float) for v in given)
    low, high = map(float, given) if good else (0.0, 0.0)
    good = -LARGEST <= low < high <= LARGEST and Range(low, high).half > 0
    if not good:
        raise DataError(
            f"{where}: range must be [low, high], two finite numbers with low < high; got {given!r}"
            f"{alike(given, [PRIVATE])}"
        )
    return Range(low, high)


def _values(where: str, given: Any) -> tuple[str, ...]:
    good = isinstance(given, list) and bool(given) and all(isinstance(v, str | int | float) for v in given)
    if not good:
        raise DataError(f"{where} must be a list of texts or numbers; got {given!r}")
    texts = tuple(map(as_text, given))
    _check_distinct(where, texts)
    return texts


def _texts(where: str, given: Any) -> tuple[str, ...]:
    good = isinstance(given, list) and all(isinstance(value, str) for value in given)
    if not good:
        raise DataError(f"{where} must be a list of texts; got {given!r}")
    return tuple(given)


def _check_distinct(where: str, words: Sequence[str]) -> None:
    twice = [word for word, count in Counter(words).items() if count > 1]
    if twice:
        raise DataError(f"{where} must differ; '{twice[0]}' is there twice")


def _check_keys(where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    prefix = f"{where}: " if where else ""
    for key in table:
        if key not in known:
            raise DataError(f"{prefix}there is no key '{key}'; {nearest(key, known)}")


# ----------------------------------------------------------------------------------------- writing


def to_toml(schema: Schema) -> str:
    """The schema as the text of a TOML file."""
    document = schema.document()
    tables = {
        heading: document.pop(heading) for heading in ("label", "columns", "sites") if heading in document
    }
    lines = [f"{key} = {_toml(value)}" for key, value in document.items()]
    for heading, table in tables.items():
        lines += ["", f"[{heading}]", *(f"{_key(key)} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def to_line(entries: Mapping[str, Any]) -> str:
    """Entries of a schema as a line of TOML, such as glucose = { scale = 18.016 }."""
    return _toml(entries)[2:-2]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return (
        repr(value)
        if isinstance(value, float)
        else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    )


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _toml(name)
