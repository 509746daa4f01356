"""One BLAS thread, no waiting for disks, and Hypothesis without deadlines: CI machines stall."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # where it is set, tables would be as narrow
# fsync is for a loss of power, which no test brings about; tests of its order put their own in its place
os.fsync = lambda descriptor: None

from hypothesis import settings  # noqa: E402
from problems import RARE  # noqa: E402

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items):
    """The tests of rare variants are slow ones, which the default run leaves out."""
    for item in items:
        if hasattr(item, "callspec") and not RARE.isdisjoint(filter(is_text, item.callspec.params.values())):
            item.add_marker(pytest.mark.slow)


def is_text(value):
    return isinstance(value, str)


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory):
    """The wheel of this project."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path
