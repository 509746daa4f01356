"""The app as it is published, run in an environment where Flower installs its dependencies.

`python -m pytest -m deployment -n 0 tests/test_published.py` needs a package index, about two minutes.
"""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from twinflower.simulation.runtimes.flower import (
    CONNECTION,
    configure_flower_env,
    start_superlink,
    write_connection,
)
from twinflower.simulation.runtimes.processes import free_ports, temporary_workspace

ROOT = Path(__file__).resolve().parent.parent


def command(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def bundle(folder):
    """The unpacked bundle of the published app."""
    published, app = folder / "published" / "twinflower", folder / "twinflower"
    command(
        sys.executable, ROOT / ".ci" / "publish.py", published, "https://example.org", "https://example.org"
    )
    command(Path(sys.executable).parent / "flwr", "build", "--app", published, cwd=folder)
    (path,) = folder.glob("*.fab")
    zipfile.ZipFile(path).extractall(app)
    return app


@pytest.mark.deployment
def test_flower_installs_what_the_bundle_needs(tmp_path):
    """Nothing but Flower is installed; scikit-learn, which the default run needs, comes with the run."""
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / "bin"
    command(scripts / "pip", "install", "--quiet", "flwr[simulation]==1.42.0", "uv")
    assert subprocess.run([scripts / "python", "-c", "import sklearn"], capture_output=True).returncode
    app = bundle(tmp_path)
    with temporary_workspace() as place:
        configure_flower_env(place)
        del place.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]
        place.environment |= {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": ""}
        for name in ("PYTHONPATH", "PYTHONHOME"):
            place.environment.pop(name, None)
        port, control = free_ports(2)
        write_connection(place.home, f'address = "127.0.0.1:{port}"\ninsecure = true\n')
        words = ["--insecure", "--simulation", "--isolation", "subprocess"]
        start_superlink(place, port, [*words, "--control-api-address", f"127.0.0.1:{control}"], scripts)
        nodes = ["--federation-config", "num-supernodes=2 client-resources-num-cpus=1"]
        config = ["--run-config", f"rounds=2 output.dir='{tmp_path / 'run'}'"]
        ask = {"env": place.environment, "cwd": place.home}
        output = command(scripts / "flwr", "run", app, CONNECTION, "--stream", *nodes, *config, **ask)
        listing = json.loads(command(scripts / "flwr", "ls", CONNECTION, "--format", "json", **ask))
    assert listing["runs"][0]["status"] == "finished:completed", output[-3000:]
    assert "scikit-learn==" in output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["finished"]
