"""Experiments as data: a TOML file with one [run] table and, for a figure, [[curve]] tables over it.

    title = "..."            what the figure shows
    source = "Li 2024, Fig. 2"   the source of the figure
    claim = "..."            what the paper claims
    verdict = "..."          what we found
    seeds = [0, 1, 2]
    x = "round"              column of metrics.csv; or "curve": a dot plot of the last rows, a line per curve
    y = ["test_accuracy"]    columns of metrics.csv, with one row of panels each; or "gap", the objective minus the
                             lowest that any curve of the panel reached in any round under the same seed
    log-axes = ["cost"]      columns of x and y with a log axis; default: the errors (`POINT_COLUMNS`, gap) among y
    centre = "median"        show the median and the range of the seeds; default: "mean", and the standard deviation
    [run]                    top-level settings, such as rounds
    [run.data]               settings of a section; docs/settings.md lists them all
    [[curve]]                label, optionally panel, and the settings that differ, such as fedpdm.rho = 0.1

A section of [run] applies to the curves that make the choice it belongs to: [run.fedavg] to algorithm = "fedavg".

With `ends = true` each run is shown as one point, its last row, and x may also be a key of its configuration. Curves
with the same `line` in a panel are joined. `sweep = {rounds = [100, 200]}` in a curve makes one curve for each value,
or combination of values of several keys, all on one line.

[grid], [tune], [scores] and the `grid` of a curve belong to `simulation.tuning.grid` and do not affect a run. In
curves, sweeps and grids, keys may be written without their section, as on the command line.
A file without a [run] table holds the settings of one run, with a table for each section, such as the config.toml of a
run folder or a run config for Flower. One with a few settings of no section must have [run].
"""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from twinflower.errors import SettingError, require
from twinflower.settings import Value, alike, kebab, snake

from ..experiment_files import load_toml, title_in
from .catalogue import SECTIONS
from .columns import COLUMNS, CURVE, EXTRA_COLUMNS, GAP, POINT_COLUMNS, SIGNED_COLUMNS
from .config import INCIDENTAL, Config, configured
from .reader import Merged, counting_words, flatten, merge, refuse_idle, shown, to_toml
from .rules import check

_TUNING = {"grid", "tune", "scores"}  # `tune` reads and writes them
_HEAD = {
    "title",
    "source",
    "claim",
    "verdict",
    "seeds",
    "x",
    "y",
    "log-axes",
    "centre",
    "ends",
    "run",
    "curve",
} | _TUNING
_TABLES = ("run", "curve", *(f"run.{section}" for section in SECTIONS if section))
CURVE_WORDS = {"label", "panel", "line", "sweep", "grid"}  # keys of a curve that are not settings
CENTRES = ("mean", "median")
_Y = ["objective", "test_accuracy"]


@dataclass(frozen=True)
class Curve:
    """A configuration, run with all seeds: one line of a figure, or with `ends = true` one point of `line`."""

    label: str
    panel: str
    config: Config
    line: str = ""

    @property
    def name(self) -> str:
        """The panel and the label."""
        return ": ".join(filter(None, (self.panel, self.label)))

    @property
    def slug(self) -> str:
        """The panel and the label as a folder name."""
        return re.sub(r"[^\w.]+", "-", f"{self.panel} {self.label}".lower()).strip("-.") or "run"


@dataclass(frozen=True)
class Experiment:
    """A validated experiment file."""

    name: str
    title: str
    curves: list[Curve]
    seeds: list[int]
    x: str = "round"
    y: list[str] = field(default_factory=_Y.copy)
    source: str = ""
    claim: str = ""
    verdict: str = ""
    ends: bool = False
    log_axes: list[str] = field(default_factory=list)
    centre: str = "mean"

    @property
    def digest(self) -> str:
        """A hash of what the figure shows, 16 hexadecimal digits: curves, seeds and axes, but no words.

        Settings with their default values do not count, so a setting that is new in the program changes no digest.
        """
        axes = [self.seeds, self.x, self.y, self.ends, self.log_axes, self.centre]
        curves = [[curve.panel, curve.line, curve.label, curve.config.unusual] for curve in self.curves]
        return hashlib.sha256(json.dumps([axes, curves], sort_keys=True).encode()).hexdigest()[:16]

    @property
    def panels(self) -> dict[str, list[Curve]]:
        """The curves of every panel, by its title."""
        found: dict[str, list[Curve]] = {}
        for curve in self.curves:
            found.setdefault(curve.panel, []).append(curve)
        return found

    @property
    def single(self) -> bool:
        """Whether there is only one curve and one seed, so that the experiment's folder is the run folder."""
        return len(self.curves) == len(self.seeds) == 1


def read_experiment(
    path: Path, overrides: Mapping[str, Value] | None = None, seeds: list[int] | None = None,
    stored: bool = False,
) -> Experiment:  # fmt: skip
    """Read and validate an experiment file; overrides take precedence over the file in every curve.

    stored: whether the file is that of a run or an experiment that was begun, see `check`.
    Raises SettingError, naming the file, if it is missing or malformed or contains an invalid setting, and naming
    the override if the setting is valid without it.
    """
    raw, overrides = load_toml(path), overrides or {}
    _check_tables(path, raw)
    plan = partial(_planned, path, raw, seeds=seeds, stored=stored)
    try:
        return plan(overrides)
    except SettingError as error:
        raise SettingError(f"{_at_fault(path, plan, overrides)}: {error}") from None


def _at_fault(
    path: Path, plan: Callable[[Mapping[str, Value]], Experiment], overrides: Mapping[str, Value]
) -> str:
    """What an error is about: an override, or all of them, if the file is valid without; else the file."""
    for blamed in (*([word] for word in overrides), list(overrides)):
        with suppress(SettingError):
            plan({word: value for word, value in overrides.items() if word not in blamed})
            texts = {word: shown(overrides[word]).strip("'") for word in blamed}
            return " ".join(f"--set {word}={text}" for word, text in texts.items())
    return str(path)


def _planned(
    path: Path, raw: dict[str, Any], overrides: Mapping[str, Value], *, seeds: list[int] | None, stored: bool
) -> Experiment:
    """The experiment of a file with this content."""
    run = raw["run"] if "run" in raw else {k: v for k, v in raw.items() if k not in _HEAD}
    parts = [part for c in raw.get("curve", [{}]) for part in _swept(c)]
    said = [[run, settings_in(words), swept] for words, swept in parts]
    merged = [merge([*layers, overrides], tables=1) for layers in said]
    _check_idle(merged)
    curves = [_curve(words, one, stored) for (words, _), one in zip(parts, merged, strict=True)]
    given = seeds or ([curves[0].config.seed] if "seed" in overrides else None)
    plan = _assemble(path, raw, curves, given)
    return replace(plan, title=plan.title + _amendments(said, curves, overrides))


def _check_tables(path: Path, raw: dict[str, Any]) -> None:
    curves = raw.get("curve", [{}])
    if not (isinstance(curves, list) and curves and all(isinstance(c, dict) for c in curves)):
        raise SettingError(f"{path}: curves are written as [[curve]] tables, at least one")
    if not isinstance(raw.get("run", {}), dict):
        raise SettingError(f"{path}: run is written as a table, [run]")
    _check_places(path, raw)
    if not all(isinstance(raw.get(key, []), list) for key in ("seeds", "y", "log-axes")):
        raise SettingError(f"{path}: seeds must be a list such as [0, 1, 2], y and log-axes lists of columns")
    if not raw.keys() - _HEAD | raw.get("run", {}).keys() | set().union(*curves):
        raise SettingError(f"{path}: says nothing to run: write settings under [run]")


def _check_places(path: Path, raw: dict[str, Any]) -> None:
    """SettingError for settings at the top of a file that must stand in a table, and for tables that do not exist."""
    found = raw.keys() - _HEAD
    if {"label", "columns"} <= found:
        raise SettingError(f"{path} is a schema of tables: name it in an experiment's data.schema")
    foreign = sorted(key for key in found - {*SECTIONS} if isinstance(raw[key], dict))
    if foreign:
        raise SettingError(
            f"{path}: there is no table [{', '.join(foreign)}]: settings stand in [run], [run.SECTION] and [[curve]]"
            f"{alike(' '.join(foreign), _TABLES)}"
        )
    whole = "algorithm" in found or any(isinstance(raw[key], dict) for key in found)
    if found and (not (whole and not raw.keys() & {"run", "curve"})):
        raise SettingError(
            f"{path}: '{', '.join(sorted(found))}' must stand in the [run] table: write [run] above settings without a "
            "section, and [run.SECTION] in place of [SECTION]"
        )


def _swept(raw: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], dict[str, Any]]]:
    """The curve, or one copy for each combination of values of its sweep, with these values by their keys."""
    sweep = raw.get("sweep")
    if sweep is None:
        return [(raw, {})]
    line, rest = str(raw.get("label", "")), {k: v for k, v in raw.items() if k != "sweep"}
    curves: list[tuple[Mapping[str, Any], dict[str, Any]]] = []
    for point in combinations(sweep, "sweep"):
        label = ", ".join([*filter(None, [line]), *(f"{key} = {value}" for key, value in point.items())])
        curves.append((rest | {"label": label, "line": line}, point))
    return curves


def combinations(lists: Any, name: str) -> list[dict[str, Value]]:
    """All combinations of the values in a table of lists, by key.

    SettingError, which begins with the table's name, unless it has keys and each has a list of values.
    """
    known = flatten(lists) if isinstance(lists, Mapping) else {}
    if not (known and all(isinstance(values, list) and values for values in known.values())):
        raise SettingError(
            f"{name} must be keys with lists of values, such as {{rounds = [10, 20]}}; got {lists!r}"
        )
    return [dict(zip(known, values, strict=True)) for values in itertools.product(*known.values())]


def _check_idle(merged: Sequence[Merged]) -> None:
    """Raise SettingError for a setting without effect.

    A curve's own setting must have an effect in that curve, one of [run] or the command line in at least one curve.
    """
    for own in merged:
        refuse_idle(own.idle[1:3])
    for layer in (0, -1):
        reasons = merged[0].idle[layer]
        everywhere = sorted(set(reasons).intersection(*(one.idle[layer] for one in merged)))
        refuse_idle([{word: reasons[word] for word in everywhere}])


def _curve(raw: Mapping[str, Any], merged: Merged, stored: bool) -> Curve:
    config = configured(merged.values)
    check(config, stored)
    label = str(raw.get("label", config.algorithm))
    return Curve(label, str(raw.get("panel", "")), config, str(raw.get("line", label)))


def settings_in(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a [[curve]] table, without its other keys (`CURVE_WORDS`)."""
    return {key: value for key, value in raw.items() if key not in CURVE_WORDS}


def _amendments(
    said: Sequence[Sequence[Mapping[str, Any]]], curves: Sequence[Curve], overrides: Mapping[str, Value]
) -> str:
    """The settings changed on the command line, as text that is appended to the title of the file."""
    before = [configured(merge(layers, tables=1).values).items() for layers in said] if overrides else []
    changes = []
    for word, value in overrides.items():
        names = [counting_words(curve.config.choices).get(kebab(word), "") for curve in curves]
        pairs = [(name, old.get(name)) for name, old in zip(names, before, strict=True) if name]
        if any(name not in INCIDENTAL | {"seed"} and old != value for name, old in pairs):
            changes.append(f"{kebab(word)} = {value}")
    return f" (with {', '.join(changes)})" if changes else ""


def _assemble(path: Path, raw: dict[str, Any], curves: list[Curve], seeds: list[int] | None) -> Experiment:
    seeds = seeds or raw.get("seeds") or [curves[0].config.seed]
    if not all(type(s) is int and s >= 0 for s in seeds):
        raise SettingError(f"seeds must be whole numbers from 0; got {seeds}")
    if len(set(seeds)) != len(seeds):
        raise SettingError(f"seeds must be distinct; got {seeds}")
    slugs = [curve.slug for curve in curves]
    require(len(set(slugs)) == len(slugs), "every curve needs a panel and label of its own")
    ends = raw.get("ends", False)
    if type(ends) is not bool:
        raise SettingError(f"ends must be true or false; got {ends!r}")
    x, *y = _columns(raw, counting_words(curves[0].config.choices) if ends else {})
    log_axes, centre = _log_axes(raw, [x, *y]), raw.get("centre", "mean")
    if centre not in CENTRES:
        raise SettingError(f"centre must be {' or '.join(CENTRES)}; got {centre!r}")
    texts = {key: str(raw[key]) for key in ("source", "claim", "verdict") if key in raw}
    return Experiment(
        path.stem, title_in(path, raw), curves, list(seeds), x, y, ends=ends, log_axes=log_axes, centre=centre, **texts
    )  # fmt: skip


def _columns(raw: Mapping[str, Any], keys: Mapping[str, str]) -> list[str]:
    """The columns x and y of the figure; keys: those of a configuration that x may be, too, by their spellings."""
    columns = [raw.get("x", "round"), *(raw.get("y") or _Y)]
    if columns[0] not in (*COLUMNS, *EXTRA_COLUMNS):
        columns[0] = keys.get(columns[0], columns[0])
    require(
        columns[0] != CURVE or GAP not in columns,
        f"y = {GAP} needs the rounds: with x = {CURVE} give objective",
    )
    for place, column in enumerate(columns):
        known = (*COLUMNS, *EXTRA_COLUMNS, *((GAP,) if place else (CURVE, *dict.fromkeys(keys.values()))))
        if column not in known:
            raise SettingError(f"x and y must be among {', '.join(known)}; got '{column}'")
    return columns


def _log_axes(raw: Mapping[str, Any], columns: list[str]) -> list[str]:
    """The columns of the figure that are drawn on a log axis."""
    chosen = raw.get("log-axes", [column for column in columns[1:] if column in (*POINT_COLUMNS, GAP)])
    possible = [column for column in columns if column not in SIGNED_COLUMNS]
    for column in chosen:
        if column not in columns:
            raise SettingError(f"log-axes must be among x and y, here {', '.join(columns)}; got '{column}'")
        if column not in possible:
            raise SettingError(f"log-axes: '{column}' can be negative and has no logarithm: leave it out")
    return list(chosen)


def experiment_text(experiment: Experiment) -> str:
    """The text of the experiment file as it was run, including overrides and seeds."""
    keys = ("title", "seeds", "x", "y", "ends", "log-axes", "centre")
    head = {key: getattr(experiment, snake(key)) for key in keys}
    texts = {key: getattr(experiment, key) for key in ("source", "claim", "verdict")}
    parts = [to_toml(head | {key: text for key, text in texts.items() if text})]
    for curve in experiment.curves:
        words = {"label": curve.label, "panel": curve.panel, "line": curve.line}
        parts.append("[[curve]]\n" + to_toml(words | curve.config.items()))
    return "\n".join(parts)
