"""The sections on what results were made from: the columns of the tables, the settings, the versions and the files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from twinflower.data.columns import Category, Classes, Column, Label, Range, Survival, Target
from twinflower.data.sets import OwnData, TableData

from ...results.reading import digest, digests, flat, read_environment
from ...results.writing import environment
from ...settings import Config, Value
from ...settings.catalogue import DEFAULTS
from ..document import Section, Table
from ..study import StoredRun, Study

_MOST_NAMES = 40  # of categories in one cell
_FIRST_SEED = "Ranges that noisy counts gave are those of the first seed."
_CHECK = "The command twinflower privacy config.toml computes the planned cost from the settings again."
_VERSIONS, _DIGESTS = ("made with", ""), ("SHA-256 of", "")


def shared(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The texts of (name, text) pairs, with the names of each."""
    found: dict[str, list[str]] = {}
    for name, text in pairs:
        found.setdefault(text, []).append(name)
    return found


# --- columns


def columns(study: Study) -> list[Section]:
    """What the columns of tables mean, once for all curves with the same ones."""
    found: list[Section] = []
    for curve in study.curves:
        first, *others = [_columns(run, curve.config.data) for run in curve.runs] or [[]]
        note = [_FIRST_SEED] if any(other != first for other in others) else []
        own = [section._replace(points=[*section.points, *note]) for section in first]
        found += [section for section in own if section not in found]
    return found


def _columns(run: StoredRun, data: Any) -> list[Section]:
    """What the columns mean, if the run has a model of tables."""
    if not (isinstance(data, TableData | OwnData) and run.model and (schema := run.model.inputs.schema)):
        return []
    label, outcome = schema.label, run.model.origin.get("outcome", "")
    texts = [f"Files: {data.files}"] if isinstance(data, TableData) else []
    texts.append(f"Predicted: {label.column}, {_kind(label)}{f'; {outcome}' if outcome else ''}")
    if schema.weight:
        texts.append(f"Weights of the rows: {schema.weight.column}, {_span(schema.weight.range)}")
    if schema.terms:
        texts.append(f"Terms: {', '.join(term.text for term in schema.terms)}")
    rows = [(own.name, _content(own), own.missing) for own in schema.columns]
    return [Section("Columns", points=texts, tables=[Table(("column", "values", "missing values"), rows)])]


def _kind(label: Label) -> str:
    if isinstance(label, Classes):
        return f"classes {_listed(label.names)}"
    if isinstance(label, Target):
        return _span(label.range)
    if isinstance(label, Survival):
        return f"a time of {_span(label.times)}, until the event in column {label.event} or censoring"
    exposed = f" per unit of {label.exposure}, {_span(label.exposures)}" if label.exposure else ""
    return f"a count of at most {label.most}{exposed}"


def _content(column: Column) -> str:
    return _listed(column.categories) if isinstance(column, Category) else _span(column.range)


def _span(own: Range | None) -> str:
    return "a number" if own is None else f"{own.low:.6g} to {own.high:.6g}"


def _listed(words: Sequence[object]) -> str:
    return ", ".join(map(str, words[:_MOST_NAMES])) + (" ..." if len(words) > _MOST_NAMES else "")


# --- settings


def settings(study: Study) -> list[Section]:
    """The settings of each curve, and those that all share, first those that are not at their default."""
    items = [curve.config.items() for curve in study.curves]
    common = {key: value for key, value in items[0].items() if all(value == own.get(key) for own in items)}
    changed = [
        (key, f"{value}", f"{DEFAULTS[key]}") for key, value in common.items() if value != DEFAULTS.get(key)
    ]
    every = [(key, f"{value}") for key, value in common.items() if value != ""]
    tables = [*_differences(study, items), Table(("setting", "value", "default"), changed)]
    everything = Section("All settings", tables=[Table(("setting", "value"), every)])
    return [Section("Settings", list(_derived(study)), tables=tables, folded=[everything])]


def _derived(study: Study) -> Iterator[str]:
    """The step sizes that followed from the noise of the runs."""
    for curve in study.curves:
        steps = sorted({f"{told['step_size']:.4g}" for told in curve.summaries if told.get("step_size")})
        if steps:
            of = f" of {curve.name}" if curve.name else ""
            yield f"The step size of the first round{of} followed from the noise: {' or '.join(steps)}."


def _differences(study: Study, items: Sequence[Mapping[str, Value]]) -> list[Table]:
    """The settings of each curve in which it differs from others; empty if none does."""
    values: dict[str, list[Value]] = {}
    for key, value in (pair for own in items for pair in own.items()):
        values.setdefault(key, []).append(value)

    def differs(key: str, value: Value) -> bool:
        """Whether other curves have another value, or none and this one is not the default."""
        missing = len(values[key]) < len(items)
        return len({*values[key]}) > 1 or (missing and value != DEFAULTS[key])

    own = [", ".join(f"{key} = {mine[key]}" for key in mine if differs(key, mine[key])) for mine in items]
    rows = [(curve.name, text) for curve, text in zip(study.curves, own, strict=True)]
    return [Table(("curve", "its own settings"), rows)] if any(own) else []


# --- versions and files


def evidence(study: Study) -> list[Section]:
    """Versions, and the digests of settings and files, of every run."""
    if study.run:
        return [proofs(study.run.folder, study.run.config)]
    files = [Table(_DIGESTS, digests(study.folder), codes=True)] if study.plan else []
    versions = [Table(_VERSIONS, read_environment(run.folder)) for run in study.runs[:1]]
    rows = [
        (f"{curve.name}, seed {run.summary['seed']}: {name}", sha)
        for curve in study.curves
        for run in curve.runs
        for name, sha in digests(run.folder)
    ]
    each = Section("Files of the runs", tables=[Table(_DIGESTS, rows, codes=True)])
    tables, folded = [*versions, *files], [each] if rows else []
    return [Section("Versions and digests", tables=tables, folded=folded)] if tables else []


def proofs(path: Path, config: Config) -> Section:
    """By what one run, or a plan by the file of its settings, can be checked: versions, and digests of settings and
    files."""
    inside = path.is_dir()
    versions = read_environment(path) if inside else flat(environment())
    files = digests(path) if inside else [(path.name, digest(path))]
    rows = [("the settings", config.result_digest), *files]
    tables = [Table(_VERSIONS, versions), Table(_DIGESTS, rows, codes=True)]
    return Section("Versions and digests", [_CHECK], tables=tables)
