"""A SuperNode that runs only the apps that its administrator has allowed, by the hashes of their bundles.

A SuperNode runs the code that the server ships. With a list of hashes in a file it refuses every other bundle before
anything of it is unpacked or imported, and installs no packages for an app. The file is read for every run.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from logging import ERROR
from pathlib import Path

from flwr.common import log

from twinflower.errors import DataError, SettingError, require

from ..runtimes import flower_internals

_LINE = re.compile(r"([0-9a-f]{64})\s+(.*)")


def read_allowed(file: Path) -> dict[str, str]:
    """The names of the allowed bundles by their SHA-256, empty if there is no file; DataError for another file."""
    try:
        lines = file.expanduser().read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the list of allowed apps {file} cannot be read: {error}") from None
    matches = [_LINE.fullmatch(line.strip()) for line in lines if line.strip() and not line.startswith("#")]
    if None in matches:
        raise DataError(
            f"{file} is no list of allowed apps: each line is a SHA-256 in hexadecimal and a name"
        )
    return {match[1]: match[2] for match in matches if match}


def allow(app: Path, file: Path) -> str:
    """Add an app to the list: a bundle, or a folder of which `flwr run` would send one; return its line.

    Raises SettingError for what is no app, and DataError for a list that cannot be read or written.
    """
    try:
        bundle = flower_internals.build_bundle(app) if app.is_dir() else app.read_bytes()
        name = flower_internals.bundle_name(bundle)
    except Exception as error:  # noqa: BLE001  Flower raises errors of the libraries that it uses
        raise SettingError(f"{app} is no Flower app and no bundle of one: {error}") from None
    digest, known = hashlib.sha256(bundle).hexdigest(), read_allowed(file)
    line = f"{digest}  {name}"
    if digest not in known:
        try:
            file.expanduser().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with file.expanduser().open("a", encoding="utf-8") as out:
                out.write(f"{line}\n")
        except OSError as error:
            raise DataError(f"the list of allowed apps {file} cannot be written: {error.strerror}") from None
    return line


def refusal(bundle: bytes, file: Path) -> str:
    """Why the node does not run this bundle, as a sentence for its server; empty if it does."""
    digest = hashlib.sha256(bundle).hexdigest()
    try:
        allowed: Mapping[str, str] = read_allowed(file)
    except DataError as error:
        log(ERROR, "twinflower: %s", error)
        allowed = {}
    if digest in allowed:
        return ""
    log(ERROR, "twinflower: the bundle %s is refused: it is not in %s", digest, file)
    return f"this node runs only apps that its administrator has allowed; the bundle {digest} is none of them"


def run_node(words: Sequence[str], file: Path) -> None:
    """Run a SuperNode that runs only the apps in the list; words: options of `flower-supernode`.

    Raises SettingError for options that would let other code in, and DataError for a list that cannot be read.
    """
    options = flower_internals.supernode_options(words)
    require(
        options["trusted_entities"] is None,
        "the list of allowed apps takes the place of trusted entities: leave out --trusted-entities",
    )
    require(
        not options["runtime_dependency_install"],
        "a node that runs only what was installed installs nothing for an app: leave out "
        "--allow-runtime-dependency-installation",
    )
    require(bool(read_allowed(file)), f"{file} allows no app: add one with `twinflower node allow APP`")
    try:
        flower_internals.restrict_bundles(lambda bundle: refusal(bundle, file))
    except RuntimeError as error:
        raise SettingError(f"{error}: install Flower 1.41 or 1.42") from None
    flower_internals.date_log()
    flower_internals.run_supernode(words)
