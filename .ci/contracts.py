"""Check the import contracts in pyproject.toml with import-linter.

    python .ci/contracts.py

In a checkout `twinflower.strategies`, `.clients` and `.simulation` stand beside `twinflower`, where import-linter does
not find them. So it runs in a temporary folder in which links put them where a wheel has them.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("strategies", "clients", "simulation")


def tree(folder: Path) -> None:
    """Make the package as a wheel has it, of links, and the file with the contracts."""
    package = folder / "twinflower"
    package.mkdir()
    for part in [*(ROOT / "twinflower").iterdir(), *(ROOT / name for name in PARTS)]:
        (package / part.name).symlink_to(part)
    (folder / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")


def check(folder: Path) -> int:
    """Check the package in this folder; the exit status of import-linter, 0 if all contracts hold."""
    command = [
        sys.executable,
        "-c",
        "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())",
    ]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([*command, "--no-cache"], cwd=folder, env=alone).returncode


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        tree(Path(temporary))
        sys.exit(check(Path(temporary)))
