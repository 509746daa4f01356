"""The command `twinflower audit`: load cases, audit them, and write what was found."""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from twinflower.errors import SettingError, cause

from ..report.console import say
from ..results.files import require_free, write_text
from .cases import Case
from .recorder import recording
from .report import NOT_TRIED, Report, as_html, audit_case
from .session import Effort

_DEFAULT = "cases"
JSON, PAGE = ("audit.json", "audit.html")
_EVERY = 10.0  # seconds between two lines of progress


def load(target: str) -> list[Case]:
    """The cases that "PATH.py:NAME" or "MODULE:NAME" names; NAME is a Case, a sequence of cases, or a function that
    returns either, by default `cases`. Raises SettingError if there is none."""
    place, name = _parts(target)
    module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    if name not in vars(module):
        raise SettingError(f"{place} has no {name}: name a Case, or a function that returns cases")
    found = vars(module)[name]
    return _checked(target, found() if callable(found) else found)


def _checked(target: str, found: Any) -> list[Case]:
    """One case or several as a list."""
    cases = [found] if isinstance(found, Case) else list(found) if isinstance(found, Iterable) else [found]
    if not cases:
        raise SettingError(f"{target} is empty: it must have at least one Case")
    for case in cases:
        if not isinstance(case, Case):
            raise SettingError(f"{target} must be a Case, or a sequence of cases; got {type(case).__name__}")
    names = [case.name for case in cases]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingError(
            f"{target} has more than one case of the name {twice[:1]}: give them different names"
        )
    return cases


def _parts(target: str) -> tuple[str, str]:
    place, colon, name = target.rpartition(":")
    return (place, name) if colon and name.isidentifier() else (target, _DEFAULT)


def _from_file(path: Path) -> ModuleType:
    """The file as a module. Its name is a digest of path and content, so that only an edited file is run again."""
    if not path.exists():
        raise SettingError(f"there is no file {path}")
    if not path.is_file():
        raise SettingError(f"{path} is no file")
    path = path.absolute()
    name = f"twinflower_audit_{sha256(bytes(path) + path.read_bytes()).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec and spec.loader
        sys.path.insert(0, str(path.parent))  # its neighbours, which it may import
        module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # a user's file may raise anything
            raise SettingError(f"{path} cannot be run: {type(error).__name__}: {cause(error)}") from error
        sys.modules[name] = module
    return sys.modules[name]


def _from_name(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    if "/" in name or Path(name).is_dir():
        raise SettingError(f"{name} is no file with cases: name a file FILE.py, or a module")
    try:
        return import_module(name)
    except ImportError as error:
        raise SettingError(f"{name} cannot be imported: {cause(error)}") from None


def run_all(target: str, names: Sequence[str], out: Path | None, effort: Effort, force: bool = False) -> bool:
    """Audit the cases of a target, print the reports, and write audit.json and audit.html to the folder `out`.

    names: of the cases to audit; empty for all. Returns whether all claims hold as far as the attacks show. Raises
    SettingError if they do, but of a case nothing was audited.
    """
    if out:
        _check_folder(out, force)
    known = {case.name: case for case in load(target)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingError(f"{target} has no case {unknown[:1]}; its cases are {', '.join(known)}")
    reports = []
    for case in [known[name] for name in names] or list(known.values()):
        reports.append(audit_case(case, effort, target, _Progress(case.name)))
        say(reports[-1].text())
    say("Not tried:", *(f"- {text}" for text in NOT_TRIED))
    if out:
        _write(reports, out, target)
    holds = not any(report.alarms for report in reports)
    void = [f"{report.case.name}: {report.attack.void}" for report in reports if report.attack.void]
    if holds and void:
        raise SettingError(f"nothing was audited of {void[:1]}: see above")
    return holds


def _check_folder(out: Path, force: bool) -> None:
    """Raise SettingError if the folder cannot be made, before hours of work."""
    made = next(part for part in (out, *out.parents) if part.exists())
    if not made.is_dir():
        raise SettingError(f"--out must be a folder, and {made} is a file")
    if not os.access(made, os.W_OK):
        raise SettingError(f"--out must be a folder to write in, and {made} is not")
    for name in (JSON, PAGE):
        require_free(out / name, force)


class _Progress:
    """Tells now and then on standard error what an audit is doing."""

    def __init__(self, name: str) -> None:
        self._name, self._stream, self._next = name, sys.stderr, time.monotonic() + _EVERY

    def __call__(self, doing: str) -> None:
        if time.monotonic() >= self._next:
            print(f"{self._name}: {doing}", file=self._stream, flush=True)
            self._next = time.monotonic() + _EVERY


def _write(reports: list[Report], out: Path, target: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / JSON, f"[{','.join(report.json() for report in reports)}]\n")
    write_text(out / PAGE, as_html(reports, target))
    say(f"report: {out / PAGE}")


def demonstrate(target: str, name: str, messages: str, pair: str, seeds: Sequence[int] = (0, 1)) -> None:
    """Print what both data sets of a pair release under these messages; the same seeds are used for both."""
    (case,) = [case for case in load(target) if case.name == name]
    with recording():
        for which, data in zip(("first", "second"), case.pairs[pair], strict=True):
            for seed in seeds:
                _show(f"{which} data set, seed {seed}", case.mechanisms[messages](data, seed))


def _show(title: str, run_: Sequence[Any]) -> None:
    say(title)
    for round_, outcome in enumerate(run_, 1):
        say(*(f"  round {round_}: {place} = {text}" for place, text in outcome.form.items()))
        say(*(f"  round {round_}: {place} values {values}" for place, values in outcome.values.items()))
