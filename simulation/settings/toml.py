"""Settings in TOML syntax."""

import json
from collections.abc import Mapping
from typing import Any


def to_toml(values: Mapping[str, Any]) -> str:
    """Settings as TOML, one per line, with dotted keys for sections."""
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())


def to_tables(values: Mapping[str, Any]) -> str:
    """Settings as TOML, with a table for each section."""
    tables: dict[str, dict[str, Any]] = {"": {}}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        tables.setdefault(section, {})[key] = value
    return "\n".join((f"[{name}]\n" if name else "") + to_toml(table) for name, table in tables.items())


def toml_value(value: Any) -> str:
    """A value in TOML syntax."""
    if isinstance(value, float):
        return repr(value)  # valid TOML for inf and nan, too
    text = json.dumps(value, ensure_ascii=False)  # TOML has no surrogate pairs
    return text.replace("\x7f", "\\u007f")
