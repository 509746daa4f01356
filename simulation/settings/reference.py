"""The reference of all settings: `twinflower settings`, docs/settings.md, and the defaults in pyproject.toml.

All three are generated from the declarations. After changing a declaration, update the files of a checkout with

    python -m twinflower.simulation.settings.reference
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from twinflower.algorithms import ALGORITHMS
from twinflower.errors import SettingError
from twinflower.settings import Value, nearest

from .catalogue import ABOUT, DEFAULTS, MAIN_JOB, NETWORKED, SECTIONS, STEPPING, Declared, keys_of
from .reader import ELSEWHERE, toml_value

HEADINGS = ("key", "meaning", "unit", "range", "default", "only with")
_WORDS = {NETWORKED: "a networked method", STEPPING: "local steps"}
_APP_CONFIG = re.compile(r"^# Every key of `twinflower`.*?(?=^\[tool\.ruff\])", re.DOTALL | re.MULTILINE)
_COMMENT = """\
# Every key of `twinflower`, by section, with its default, but for the privacy of the main job. What they mean:
# `twinflower settings`. Made by python -m twinflower.simulation.settings.reference
"""
_METHODS = """\
## methods

A run has the section of its `algorithm`.
"""
_OWN = """\
### Keys of one method
"""
_SHARED = """\
### shared

Keys that several methods have, each in its own section: `fedpdm.step-size`, `fedavg.step-size` and so on.
"""
_INTRODUCTION = """\
# Settings

This page is made by `python -m twinflower.simulation.settings.reference` from the declarations in the code;
`twinflower settings [SECTION]` prints the same texts. Every run has the sections {sections}, and the section of its
[method](#methods).

**On the command line** a key is written with its section, `--set fedpdm.rho=0.1`. The last part alone, `--set rho=0.1`,
is enough if it is unambiguous among the keys that apply to the run.

**In an experiment file** the keys stand below `[run]`. Those of a `[[curve]]` override them and may
leave out their section, as on the command line:

```toml
[run]
rounds = 100
data.name = "mnist"
fedavg.step-size = 0.1

[[curve]]
label = "FedAvg"
algorithm = "fedavg"
fedavg.step-size = 0.3
```

**With Flower**, `flwr run . --run-config "rounds=10 fedpdm.rho=0.1"` changes the values of `[tool.flwr.app.config]` in
pyproject.toml: the defaults below, with {main_job}.

A setting that has no effect in the run is refused: `fedprox.mu` does nothing for FedPDM. An experiment file is refused
if it contains a setting of `[run]` that applies to none of the curves; `flwr run` refuses such a setting if its value
is not the default.
"""


def tables(section: str = "") -> dict[str, list[tuple[str, ...]]]:
    """The rows under `HEADINGS` for every section, or for one, or of all keys whose name or meaning holds this word, or
    the name here of what other programs call so.

    SettingError if there are none.
    """
    whole = {name or "run": [_row(declared) for declared in keys_of(name)] for name in SECTIONS}
    if not section:
        return whole
    if section in whole:
        return {section: whole[section]}
    words = ELSEWHERE.get(section, (section,))
    named = {
        name: [row for row in rows if any(_about(word, row) for word in words)]
        for name, rows in whole.items()
    }
    if not any(named.values()):
        raise SettingError(f"no section and no setting is called '{section}'; {nearest(section, whole)}")
    return {name: rows for name, rows in named.items() if rows}


def _about(word: str, row: tuple[str, ...]) -> bool:
    """Whether a row's key or meaning contains the word, which may be a key with its section."""
    key, meaning = row[0], row[1]
    return word.lower() in key or re.search(rf"\b{re.escape(word)}\b", meaning, re.IGNORECASE) is not None


def _row(declared: Declared) -> tuple[str, ...]:
    key = declared.key
    setting = key.setting
    default = toml_value(key.default)
    return declared.name, setting.meaning, setting.unit, key.range, default, _only_with(declared)


def _only_with(declared: Declared) -> str:
    """The choices that a key belongs to, without those that its section implies."""
    implied = "algorithm" if declared.section in (*ALGORITHMS, "topology") else ""
    owners = (entries for choice, entries in declared.owners.items() if choice != implied)
    return "; ".join(_WORDS.get(entries, ", ".join(entries)) for entries in owners)


def document() -> str:
    """The text of docs/settings.md: the sections that every run has, and the methods with their keys."""
    main_job = " and ".join(f"`{key} = {toml_value(value)}`" for key, value in MAIN_JOB.items())
    about = {name or "run": text for name, text in ABOUT.items()}
    listed = ", ".join(f"[{name}](#{name})" for name in about)
    rows, shared = tables(), _shared()
    parts = [_INTRODUCTION.format(sections=listed, main_job=main_job)]
    parts += [f"## {name}\n\n{text}.\n{_table(HEADINGS, _code(rows[name]))}" for name, text in about.items()]
    parts.append(_METHODS + _table(("method", "what it is", "shared keys"), _methods(shared)))
    alone = [row for name in ALGORITHMS for row in rows[name] if name not in shared.get(_about_key(row), {})]
    parts.append(_OWN + _table(HEADINGS[:5], (row[:5] for row in _code(alone))))
    parts.append(_SHARED + _table(("key", *HEADINGS[1:4], "default", "methods"), _shared_rows(shared)))
    return "\n".join(parts)


def _code(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    return ((f"`{row[0]}`", *row[1:4], f"`{row[4]}`", *row[5:]) for row in rows)


def _methods(shared: Mapping[tuple[str, ...], Mapping[str, str]]) -> Iterator[tuple[str, ...]]:
    for name, method in ALGORITHMS.items():
        leaves = sorted(key[0] for key, found in shared.items() if name in found)
        yield f'<a id="{name}"></a>`{name}`', method.title, ", ".join(f"`{leaf}`" for leaf in leaves)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _about_key(row: tuple[str, ...]) -> tuple[str, ...]:
    """A row without its section and its default."""
    return (row[0].rpartition(".")[2], *row[1:4], row[5])


def _shared() -> dict[tuple[str, ...], dict[str, str]]:
    """The keys that at least three methods have with one meaning, with the default of each method."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for name, rows in tables().items():
        for row in rows if name in ALGORITHMS else ():
            found.setdefault(_about_key(row), {})[name] = row[4]
    return {key: defaults for key, defaults in found.items() if len(defaults) > 2}


def _shared_rows(shared: Mapping[tuple[str, ...], Mapping[str, str]]) -> Iterator[tuple[str, ...]]:
    for (leaf, meaning, unit, range_, _), defaults in shared.items():
        usual = Counter(defaults.values()).most_common(1)[0][0]
        others = [f"; `{value}` for {name}" for name, value in defaults.items() if value != usual]
        yield f"`METHOD.{leaf}`", meaning, unit, range_, f"`{usual}`{''.join(others)}", ", ".join(defaults)


def app_config() -> str:
    """The part of pyproject.toml that holds the defaults of Flower's run config."""
    values: Mapping[str, Value] = {**DEFAULTS, **MAIN_JOB}
    parts = [_COMMENT.rstrip("\n")]
    for section in SECTIONS:
        lines = [f"{declared.leaf} = {toml_value(values[declared.name])}" for declared in keys_of(section)]
        parts += ["\n".join([f"[tool.flwr.app.config{f'.{section}' if section else ''}]", *lines]), ""]
    return "\n".join(parts)


def write(root: Path) -> None:
    """Update docs/settings.md and pyproject.toml in the root of a checkout."""
    (root / "docs" / "settings.md").write_text(document(), encoding="utf-8")
    project = root / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    project.write_text(_APP_CONFIG.sub(lambda found: app_config() + "\n", text), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[2])
