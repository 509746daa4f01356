"""The wheel that other apps install, and the documented plug-in example on it; and the app as it is published."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(wheel_file, tmp_path_factory):
    """The contents of the wheel, unpacked outside the project."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel_file).extractall(folder)
    return folder


def test_no_generic_name_enters_site_packages(wheel):
    tops = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"twinflower"}
    assert (wheel / "twinflower" / "strategies" / "methods.py").exists()
    assert (wheel / "twinflower" / "clients" / "methods.py").exists()


TEMPLATES = {path.name for path in (ROOT / "simulation" / "report" / "templates").glob("*.md")}


def test_the_wheel_brings_the_templates_of_reports(wheel):
    assert len(TEMPLATES) == 4
    assert {
        path.name for path in (wheel / "twinflower/simulation/report/templates").glob("*.md")
    } == TEMPLATES


def test_flowers_bundle_brings_the_templates_of_reports():
    """By Flower's own choice of files, which refuses kinds of files that it does not know."""
    from flwr.cli.build import get_filtered_fab_paths

    folders = ("twinflower", "strategies", "clients", "simulation")
    paths = [ROOT / "README.md", ROOT / "LICENSE", ROOT / "pyproject.toml"]
    paths += [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    files = {str(path.relative_to(ROOT)): path for path in paths}
    chosen = get_filtered_fab_paths(files, tomllib.loads((ROOT / "pyproject.toml").read_text()))
    assert {
        Path(path).name for path in chosen if "report/templates" in path and path.endswith(".md")
    } == TEMPLATES


def test_the_wheel_brings_the_command_line(wheel):
    done = subprocess.run(
        [sys.executable, "-m", "twinflower", "list"], cwd=wheel, capture_output=True, text=True
    )
    assert "fedpdm" in done.stdout, done.stderr
    assert "twinflower = twinflower.__main__:main" in next(wheel.parent.rglob("entry_points.txt")).read_text()


def test_the_wheel_makes_the_app_that_flower_runs(wheel, tmp_path):
    """It has the checkout's settings, and components that the wheel holds; no file of the checkout is asked for."""
    code = f"import pathlib, twinflower.simulation.runtimes.flower as e; e.own_app(pathlib.Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=wheel, check=True)
    made, ours = (
        tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
        for folder in (tmp_path / "app", ROOT)
    )
    for key in ("fab-include", "fab-format-version", "flwr-version-target"):
        assert ours.pop(key)
    assert made == ours
    flwr_command = Path(sys.executable).parent / "flwr"
    subprocess.run(
        [flwr_command, "build", "--app", tmp_path / "app"], cwd=tmp_path, check=True, capture_output=True
    )
    for place in made["components"].values():
        assert (wheel / place.split(":")[0].replace(".", "/")).with_suffix(".py").exists()


def test_the_documented_plug_in_example_runs(wheel):
    """Its client app answers, its server app is there, and all classes come from the wheel."""
    example = (ROOT / "docs" / "plug-in.md").read_text().split("```python\n")[1].split("```")[0]
    code = f"""
def my_rows(partition):
    import numpy as np
    rng = np.random.default_rng(partition)
    return rng.random((20, 65)) / 9, rng.integers(10, size=20)

{example}
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
content = RecordDict({{"fitins.parameters": ArrayRecord([start]), "fitins.config": ConfigRecord({{"round": 1}})}})
context = Context(1, 1, {{"partition-id": 0, "num-partitions": 2}}, RecordDict(), {{}})
reply = client_app(Message(content, 1, "train"), context)
print(reply.content["fitres.parameters"]["0"].numpy().shape, strategies.FedPDM.__module__)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=wheel, capture_output=True, text=True)
    assert done.stdout == "(650,) twinflower.strategies.methods\n", done.stderr


def test_the_published_app_is_a_bundle_of_format_1_whose_readme_shows_its_images(tmp_path):
    """`flwr build` checks what format 1 demands; a published app has no images and none of the other documents."""
    folder, pages, images = tmp_path / "twinflower", "https://example.org/blob", "https://example.org/raw/"
    publish = [sys.executable, ROOT / ".ci" / "publish.py", folder, pages, images]
    subprocess.run(publish, check=True)
    flwr = Path(sys.executable).parent / "flwr"
    subprocess.run([flwr, "build", "--app", folder], cwd=tmp_path, check=True, capture_output=True)
    (bundle,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(bundle) as fab:
        readme, names = fab.read("README.md").decode(), fab.namelist()
        app = tomllib.loads(fab.read("pyproject.toml").decode())["tool"]["flwr"]["app"]
    assert (app["fab-format-version"], "LICENSE" in names) == (1, True)
    targets = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", readme)
    assert ("!", "https://example.org/raw/docs/figures/hero.png") in targets
    assert ("", "https://example.org/blob/docs/guarantee.md") in targets
    assert all(target.startswith("https://") for _, target in targets)
    code = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    assert code.findall(readme) == code.findall((ROOT / "README.md").read_text())
