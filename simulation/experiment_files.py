"""The files of experiments: their content, and their titles. `settings.experiment` says what they mean."""

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from twinflower.errors import SettingError, cause


def load_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; SettingError if it cannot be read."""
    try:
        return tomllib.loads(_text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} is not valid TOML: {error}") from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"cannot read the experiment file {path}: {cause(error)}{_meant(path)}") from None


def _meant(path: Path) -> str:
    """For a run's folder, or for the name of an experiment or nearly its name: the file, or where it would be."""
    known = {own.stem: own for own in shipped()}
    stored = [path / "experiment.toml", path / "config.toml"]
    files = [*stored, Path(f"{path}.toml"), *(known[name] for name in get_close_matches(path.stem, known, 1))]
    elsewhere = "; the experiments that come with Twinflower are in the folder experiments of its source"
    return next(
        (f"; did you mean {file}?" for file in files if file.is_file()), "" if path.suffix else elsewhere
    )


def shipped() -> list[Path]:
    """The experiments that come with Twinflower: those in the working folder's `experiments`, or else beside the source
    that is running; a wheel has none."""
    folders = Path("experiments"), Path(__file__).resolve().parents[1] / "experiments"
    return next((files for folder in folders if (files := sorted(folder.glob("*.toml")))), [])


def title_of(path: Path) -> str:
    """The title of an experiment file, whose settings are not looked at.

    It stands before the first table. Only that part is parsed, or the whole file if the part is cut within a value.
    """
    head, *_ = re.split(r"^\[", _text_of(path), maxsplit=1, flags=re.M)
    try:
        return title_in(path, tomllib.loads(head))
    except tomllib.TOMLDecodeError:
        return title_in(path, load_toml(path))


def title_in(path: Path, raw: Mapping[str, Any]) -> str:
    """The title in the content of an experiment file; the name of a file without one."""
    return str(raw.get("title", path.stem))
