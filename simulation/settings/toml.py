"""Settings in TOML syntax."""

import json
from collections.abc import Mapping
from typing import Any

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
