"""What importing a part of the package brings along, and that no two modules need each other."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.util import module_from_spec, resolve_name, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"twinflower": "twinflower"} | {
    f: f"twinflower.{f}" for f in ("strategies", "clients", "simulation")
}


def loaded_by(code):
    """Modules that a fresh interpreter has after this code."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}\nprint(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    ["problems.objectives", "problems.networks", "problems.regularisers", "problems.batches", "work"],
)
def test_a_problem_loads_no_accountant(module):
    loaded = loaded_by(f"import twinflower.{module}")
    assert f"twinflower.{module}" in loaded
    assert not {
        name for name in loaded if name.startswith(("twinflower.privacy", "twinflower.algorithms", "flwr"))
    }


def test_numerics_know_nothing_of_flower():
    loaded = loaded_by(
        "import twinflower.data.sets, twinflower.rounds, twinflower.sums.plan; "
        "from twinflower.privacy import audit, mechanism, plan"
    )
    assert not {name for name in loaded if name.partition(".")[0] == "flwr"}


HEAVY = {"flwr", "grpc", "matplotlib", "networkx", "pandas", "pyarrow", "ray", "sklearn", "torch"}
HEAVY |= {"scipy.optimize", "scipy.sparse", "scipy.stats"}


def avoidable():
    """The slow ones, but for those that an older SciPy loads with its special functions, which everything needs."""
    return HEAVY - loaded_by("import scipy.special")


def test_the_package_alone_loads_next_to_nothing():
    assert not loaded_by("import twinflower") & (HEAVY | {"numpy", "scipy"})


def test_what_is_slow_to_import_waits_until_it_is_needed():
    loaded = loaded_by("import twinflower.simulation.settings, twinflower.privacy.plan, twinflower.rounds")
    assert not loaded & avoidable()


def after_command(*words):
    """Modules that a fresh interpreter has after this command, whose output is not looked at."""
    return loaded_by(
        f"import contextlib, io; sys.argv[1:] = {words!r}\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    from twinflower.__main__ import main; main()\n"
    )


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_help_loads_no_numerics(words):
    assert not after_command(*words) & (HEAVY | {"numpy", "scipy"})


def test_list_loads_neither_flower_nor_figures_nor_special_functions():
    assert not after_command("list") & (HEAVY | {"scipy.special", "cryptography", "filelock"})


def test_noise_for_a_budget_is_computed_without_what_is_slow():
    """A run's privacy, before it begins: the special functions, and no more of SciPy or `cryptography`."""
    loaded = loaded_by("from twinflower.privacy import gdp_mu, mechanism; gdp_mu(8.0, 1e-4)")
    assert "scipy.special" in loaded
    assert not loaded & (avoidable() | {"cryptography"})


FLOWER = {"flwr", "grpc", "ray"}


def test_arrays_their_privacy_and_their_models_need_no_flower(tmp_path):
    """A run on arrays from its plan to its report, what it would cost, and predictions of its model."""
    hospitals = ROOT / "examples" / "hospitals"
    paths = {"data.files": "sites/*.csv", "data.schema": "schema.toml"}
    places = [word for key, path in paths.items() for word in ("--set", f"{key}={hospitals / path}")]
    run = (str(hospitals / "hospitals.toml"), "--set", "rounds=1", *places)
    for words in (
        ("run", *run, "--runtime", "cohort", "--out", f"{tmp_path / 'run'}"),
        ("privacy", *run),
        ("predict", f"{tmp_path / 'run'}", str(hospitals / "new-patients.csv")),
    ):
        assert not after_command(*words) & FLOWER, words
    assert (tmp_path / "run" / "report.html").exists()
    assert FLOWER - {"ray"} <= after_command(
        "run", *run, "--runtime", "inprocess", "--out", f"{tmp_path / 'other'}"
    )


def test_a_node_loads_no_part_of_the_server_and_nothing_that_is_slow():
    loaded = loaded_by("import twinflower.simulation.app.client_app") - loaded_by("import flwr.clientapp")
    assert "twinflower.clients" in loaded
    assert not {name for name in loaded if name.startswith(("twinflower.strategies", "scipy"))}
    assert not loaded & HEAVY


def test_flower_loads_the_apps_without_what_they_need():
    """Flower's engine starts Ray after that."""
    loaded = loaded_by("import twinflower.simulation.app.entry") - loaded_by(
        "import flwr.clientapp, flwr.serverapp"
    )
    assert {name for name in loaded if name.startswith("twinflower.")} == {
        "twinflower.simulation", "twinflower.simulation.app", "twinflower.simulation.app.entry",
    }  # fmt: skip
    assert not {name for name in loaded if name.partition(".")[0] in HEAVY - {"flwr"}}


def modules():
    """Every module of the package by name, with its file and the package its relative imports begin at."""
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = (package, *path.relative_to(ROOT / folder).with_suffix("").parts)
            own = parts[:-1] if parts[-1] == "__init__" else parts
            yield ".".join(own), path, ".".join(parts[:-1])


def imported(tree, package, known):
    """Modules of the package that a module imports, also later, or for its annotations only."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names if alias.name in known)
        if isinstance(statement, ast.ImportFrom):
            origin = resolve_name("." * statement.level + (statement.module or ""), package)
            names = [f"{origin}.{alias.name}" for alias in statement.names]
            yield from (name if name in known else origin for name in names if origin in known)


def graph():
    """The modules that every module of the package imports, by name."""
    found = {name: (path, package) for name, path, package in modules()}
    return {
        name: set(imported(ast.parse(path.read_text()), package, found))
        for name, (path, package) in found.items()
    }


def test_no_module_needs_one_that_needs_it():
    needs = graph()
    assert "twinflower.problems.penalised" in needs["twinflower.problems.batches"]
    assert len(list(TopologicalSorter(needs).static_order())) == len(needs)  # CycleError names a cycle


@pytest.fixture(scope="module")
def contracts():
    """`.ci/contracts.py` as a module."""
    spec = spec_from_file_location("contracts", ROOT / ".ci" / "contracts.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_contracts_of_imports_hold(contracts, tmp_path):
    contracts.tree(tmp_path)
    assert contracts.check(tmp_path) == 0


@pytest.mark.parametrize(
    ("module", "statement", "broken"),
    [
        ("disk.py", "import flwr", "The mathematics does not import Flower"),
        ("disk.py", "from .simulation.settings import Config", "The rooms of twinflower"),
        ("new_room.py", "", "The rooms of twinflower"),
    ],
)
def test_an_import_that_a_contract_forbids_is_named(contracts, tmp_path, capfd, module, statement, broken):
    contracts.tree(tmp_path)
    path = tmp_path / "twinflower" / module
    text = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    path.write_text(f"{statement}\n{text}")
    assert contracts.check(tmp_path) == 1
    assert re.search(rf"{broken}[^\n]*\s.*?BROKEN", capfd.readouterr().out)
