"""What `.ci/run` relies on: the oldest versions that pyproject.toml allows, and kernels that a processor can run."""

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def kernels():
    """`.ci/kernels.py` as a module."""
    spec = importlib.util.spec_from_file_location("kernels", ROOT / ".ci" / "kernels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lower_bounds():
    """Name and lower bound of everything that an installation for development asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        wanted = Requirement(line)
        (bound,) = [part.version for part in wanted.specifier if part.operator == ">="]
        yield wanted.name, Version(bound)


def test_the_oldest_versions_are_those_of_pyproject():
    lines = (ROOT / ".ci" / "oldest.txt").read_text().splitlines()
    pinned = [re.fullmatch(r"([\w.-]+)==([\d.]+)", line) for line in lines if not line.startswith("#")]
    assert {found[1]: Version(found[2]) for found in pinned} == dict(lower_bounds())


AVX2 = ["AVX2", "FMA3", "X86_V3"]
AVX512 = [*AVX2, "AVX512F", "AVX512_SKX", "X86_V4", "AVX512_ICL"]
LOOPS = ["X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR"]


@pytest.mark.parametrize(
    ("has", "runnable"),
    [(AVX512, ["Haswell", "SkylakeX", "Zen"]), (AVX2, ["Haswell", "Zen"]), (["SSE2"], []), (["NEON"], [])],
)
def test_no_processor_is_asked_for_instructions_it_does_not_have(kernels, has, runnable):
    machine = kernels.Machine(["Haswell"], has, LOOPS)
    reasons = {name: kernels.reason_to_skip(name, machine) for name in kernels.NEEDS}
    assert [name for name, reason in reasons.items() if not reason] == runnable
    assert all("this processor has no" in reason for name, reason in reasons.items() if name not in runnable)


def test_another_blas_is_not_asked(kernels):
    assert "OpenBLAS" in kernels.reason_to_skip("Haswell", kernels.Machine([], AVX2, LOOPS))


def test_numpy_loops_match_the_kernels(kernels):
    machine = kernels.Machine(["SkylakeX"], AVX512, LOOPS)
    assert kernels.variables("SkylakeX", machine) == {"OPENBLAS_CORETYPE": "SkylakeX"}
    for name in ("Haswell", "Zen"):
        loops = {"OPENBLAS_CORETYPE": name, "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL"}
        assert kernels.variables(name, machine) == loops


def test_a_failure_under_one_kernel_fails_all_and_skips_are_told(kernels, monkeypatch, capsys):
    """On a processor with AVX2 only, with an OpenBLAS that has kernels for Haswell, and a test that fails there."""
    monkeypatch.setattr(kernels, "probe", lambda chosen: kernels.Machine(["Haswell"], AVX2, LOOPS))
    for status, outcome in ((0, "passed (Haswell)"), (1, "failed")):
        done = subprocess.CompletedProcess([], status)
        monkeypatch.setattr(kernels.subprocess, "run", lambda *_, done=done, **__: done)
        assert kernels.main(["tests"]) == status
        assert capsys.readouterr().out.splitlines()[1:] == [
            f"kernels of Haswell: {outcome}",
            "kernels of SkylakeX: skipped: this processor has no AVX512_SKX",
            "kernels of Zen: skipped: OpenBLAS takes the kernels of Haswell for it",
        ]


def test_this_machine_takes_the_kernels_it_is_asked_for(kernels, monkeypatch):
    for name in ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"):
        monkeypatch.delenv(name, raising=False)
    machine = kernels.probe({})
    if kernels.reason_to_skip("Haswell", machine):
        pytest.skip("no OpenBLAS, or a processor without AVX2")
    chosen = kernels.probe(kernels.variables("Haswell", machine))
    assert chosen.kernels == ["Haswell"]
    assert not [feature for feature in chosen.has if feature in ("X86_V4", "AVX512_SKX", "AVX512_ICL")]
