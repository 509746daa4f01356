"""Run pytest as it would run on other processors: once for each of OpenBLAS's kernels, with NumPy's loops to match.

    python .ci/kernels.py tests/test_oracles.py ...

A processor decides which kernels OpenBLAS takes and which loops NumPy takes, and so how sums are rounded. Here an
environment variable decides. Kernels that this processor cannot run (an illegal instruction would end the tests), and
those that this build of OpenBLAS does not have, are skipped, and the last lines say so.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NEEDS = {"Haswell": ("AVX2", "FMA3"), "SkylakeX": ("AVX512_SKX",), "Zen": ("AVX2", "FMA3")}

_PROBE = """
import json, numpy, scipy.linalg, threadpoolctl
from numpy._core import _multiarray_umath as umath
pools = [pool for pool in threadpoolctl.threadpool_info() if pool["internal_api"] == "openblas"]
kernels = sorted({pool["architecture"] for pool in pools})
has = [name for name, there in umath.__cpu_features__.items() if there]
print(json.dumps({"kernels": kernels, "has": has, "loops": umath.__cpu_dispatch__}))
"""


class Machine(NamedTuple):
    """What NumPy and SciPy use in a new process: OpenBLAS's kernels, the processor's features, NumPy's extra loops."""

    kernels: list[str]
    has: list[str]
    loops: list[str]


def probe(environment: Mapping[str, str]) -> Machine:
    """The machine as a process with these variables sees it."""
    command = [sys.executable, "-c", _PROBE]
    done = subprocess.run(
        command, env={**os.environ, **environment}, check=True, capture_output=True, text=True
    )
    return Machine(**json.loads(done.stdout))


def reason_to_skip(name: str, machine: Machine) -> str:
    """Why the kernels cannot be asked for, "" if they can."""
    missing = [feature for feature in NEEDS[name] if feature not in machine.has]
    if missing:
        return f"this processor has no {', '.join(missing)}"
    return "" if machine.kernels else "NumPy and SciPy do not use OpenBLAS here"


def variables(name: str, machine: Machine) -> dict[str, str]:
    """The environment of a processor that takes these kernels: without AVX-512, NumPy has no loops for it."""
    wide = [loop for loop in machine.loops if loop.startswith("AVX512") or loop == "X86_V4"]
    chosen = {"OPENBLAS_CORETYPE": name}
    if not any(feature.startswith("AVX512") for feature in NEEDS[name]):
        chosen["NPY_DISABLE_CPU_FEATURES"] = " ".join(loop for loop in wide if loop in machine.has)
    return chosen


def main(arguments: Sequence[str]) -> int:
    """Run pytest under all kernels; 1 if it failed under any."""
    machine, outcomes, tested = probe({}), {}, {}
    for name in NEEDS:
        reason = reason_to_skip(name, machine)
        chosen = {} if reason else variables(name, machine)
        kernels = [] if reason else probe(chosen).kernels
        if reason or str(kernels) in tested:
            outcomes[name] = (
                f"skipped: {reason or f'OpenBLAS takes the kernels of {tested[str(kernels)]} for it'}"
            )
            continue
        tested[str(kernels)] = name
        print(f"== {' '.join(f'{key}={value!r}' for key, value in chosen.items())}", flush=True)
        command = [sys.executable, "-m", "pytest", *arguments]
        failed = subprocess.run(command, env={**os.environ, **chosen}).returncode
        outcomes[name] = "failed" if failed else f"passed ({', '.join(kernels)})"
    for name, outcome in outcomes.items():
        print(f"kernels of {name}: {outcome}", flush=True)
    return int("failed" in outcomes.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
