"""Private Newton against gradient methods at the same privacy: excess loss and accuracy by epsilon.

    python benchmarks/private_newton.py DATA [--seeds 10] [--problem adult ...] [--epsilon 1 4 8]

DATA has the folder adult/. The four heart hospitals are in examples/hospitals. The other tables are drawn: four numbers
and four categories at four hospitals, with 13 parameters. Excess loss is that of the mean over all training rows above
its least value, and accuracy that on test rows. The other methods take one step on all rows in each round. Each has the
best of equally many settings (GRIDS), the one with the least excess loss over TUNING further seeds, a choice that no
guarantee covers and that favours them; --untuned leaves them out. A number at an end of its grid is marked with *.
Newton's method has its default settings and 3 rounds.
"""

import argparse
import itertools
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from twinflower.errors import RunError
from twinflower.simulation.runs.setup import PreparedRun, prepare
from twinflower.simulation.runtimes.cohort import train
from twinflower.simulation.settings import parse

SITES = Path(__file__).resolve().parent.parent / "examples" / "hospitals"
DELTA, TUNING, FIRST = 1e-5, 2, 100
COMMON = {
    "objective.name": "logistic", "regulariser.name": "none", "clients.weighting": "rows", "clients.per-round": 0,
    "local.batch-size": 0, "privacy.mode": "gradient", "privacy.delta": DELTA,
}  # fmt: skip
NEWTON = {"algorithm": "newton", "rounds": 3}
ROUNDS, MODELS = (3, 10, 30, 100, 300), ("last", "tail-mean")
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)  # of a step, with that of momentum after it
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "fedavg": {"server-momentum": (0.0, 0.9)},
    "fedpdm": {"pace": (0.1, 0.25)},  # rho * step-size; with .5 it is FedAvg without momentum
}


class Found(NamedTuple):
    """The mean excess loss and accuracy over seeds, and their standard errors."""

    excess: float
    error: float
    accuracy: float
    accuracy_error: float


def drawn(folder: Path, rows: int) -> dict[str, Any]:
    """The settings of a table of so many rows at four hospitals, which is written into the folder."""
    draw, home = np.random.default_rng(rows), folder / str(rows)
    home.mkdir()
    numbers = np.clip(draw.normal(0.1, 0.4, (rows, 4)), -1, 1)
    flags = (draw.random((rows, 4)) < (0.5, 0.4, 0.3, 0.1)).astype(int)
    scores = numbers @ (1.5, -1.0, 0.5, 0.0) + flags @ (0.8, -0.8, 0.4, 1.0) - 0.5
    table = np.column_stack([numbers, flags, draw.random(rows) < 1 / (1 + np.exp(-scores))])
    names = [*"abcd", *"pqrs", "y"]
    for site, part in enumerate(np.array_split(table, 4)):
        np.savetxt(home / f"{site}.csv", part, "%g", ",", header=",".join(names), comments="")
    kinds = ["range = [-1, 1]"] * 4 + ['categories = ["0", "1"]'] * 4
    columns = "".join(f"{name} = {{ {kind} }}\n" for name, kind in zip(names, kinds, strict=False))
    schema = '[label]\ncolumn = "y"\nclasses = { no = ["0"], yes = ["1"] }\n[columns]\n' + columns
    (home / "schema.toml").write_text(schema)
    return {
        "data.name": "tables",
        "data.files": str(home / "*.csv"),
        "data.schema": str(home / "schema.toml"),
    }


def problems(data: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """The settings of each problem's data."""
    adult = {
        "data.name": "adult",
        "data.dir": str(data / "adult"),
        "data.row-norm": 1.0,
        "partition.name": "iid",
    }
    hospitals = {"data.name": "tables", "data.files": str(SITES / "sites" / "*.csv")}
    return {
        "adult": adult | {"clients.count": 10, "partition.samples-per-client": 3256},
        "adult, a tenth": adult | {"clients.count": 10, "partition.samples-per-client": 325},
        "hospitals": hospitals | {"data.schema": str(SITES / "schema.toml")},
        **{f"{rows} rows": drawn(folder, rows) for rows in (1_000, 4_000, 16_000, 64_000)},
    }


def trained(keys: dict[str, Any], seed: int) -> tuple[PreparedRun, np.ndarray]:
    """A run and its model."""
    every = {"evaluation.every": keys["rounds"], "evaluation.early": 0}
    setup = prepare(parse(COMMON | keys | every | {"seed": seed}))
    return setup, train([setup])[0].x


def scores(keys: dict[str, Any], seeds: range) -> Found:
    """What runs with these settings reach; an infinite excess for those that diverge."""
    found = []
    for seed in seeds:
        try:
            setup, x = trained(keys, seed)
        except RunError:
            return Found(np.inf, 0.0, 0.0, 0.0)
        reached, least = setup.central.evaluate(x), setup.central.evaluate(optimum(keys, seed))
        found.append((reached["objective"] - least["objective"], reached["test_accuracy"]))
    means, errors = np.mean(found, 0), np.std(found, 0, ddof=1) / np.sqrt(len(found))
    return Found(means[0], errors[0], means[1], errors[1])


_KNOWN: dict[tuple[Any, ...], np.ndarray] = {}


def optimum(keys: dict[str, Any], seed: int) -> np.ndarray:
    """The optimum of the training rows, by Newton's method without privacy."""
    data = {key: value for key, value in keys.items() if key.startswith(("data.", "partition.", "clients."))}
    key = (*sorted(data.items()), seed)
    if key not in _KNOWN:
        plain = {name: value for name, value in COMMON.items() if not name.startswith("privacy.")}
        setup = prepare(parse(plain | data | {"algorithm": "newton", "rounds": 30, "seed": seed}))
        _KNOWN[key] = train([setup])[0].x
    return _KNOWN[key]


def candidates(method: str) -> list[dict[str, Any]]:
    """The points of a method's grid."""
    grid = {"rounds": ROUNDS, "length": LENGTHS, "final-model": MODELS} | GRIDS[method]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def settings(method: str, point: dict[str, Any]) -> dict[str, Any]:
    """The settings of a point: FedPDM's penalty rho is 1 / length, and its step-size the pace times the length."""
    own = {key: value for key, value in point.items() if key not in ("rounds", "length", "pace")}
    own["step-size"] = point["length"] * point.get("pace", 1 - point.get("server-momentum", 0.0))
    own |= {"rho": 1 / point["length"]} if method == "fedpdm" else {}
    keys = {f"{method}.{key}": value for key, value in own.items()}
    return {"algorithm": method, "rounds": point["rounds"], "local.max-steps": 1} | keys


def tuned(method: str, keys: dict[str, Any]) -> dict[str, Any]:
    """The point of the method's grid with the least excess loss."""
    seeds = range(FIRST, FIRST + TUNING)
    return min(candidates(method), key=lambda own: scores(keys | settings(method, own), seeds).excess)


def shown(point: dict[str, Any]) -> str:
    """A point in words."""
    ends = {"rounds": (ROUNDS[0], ROUNDS[-1]), "length": (LENGTHS[0], LENGTHS[-1])}
    return ", ".join(f"{key} {value}" + "*" * (value in ends.get(key, ())) for key, value in point.items())


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0, 8.0])
    parser.add_argument("--problem", nargs="+")
    parser.add_argument("--untuned", action="store_true", help="without the other methods")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        compare(given, problems(given.data, Path(folder)))


def compare(given: argparse.Namespace, known: dict[str, dict[str, Any]]) -> None:
    """Print a line for each problem and epsilon."""
    for name, epsilon in itertools.product(given.problem or known, given.epsilon):
        keys = known[name] | {"privacy.epsilon": epsilon}
        seeds = range(given.seeds)
        show(name, epsilon, "newton", scores(keys | NEWTON, seeds))
        for method in () if given.untuned else GRIDS:
            point = tuned(method, keys)
            show(name, epsilon, f"{method} ({shown(point)})", scores(keys | settings(method, point), seeds))


def show(name: str, epsilon: float, method: str, found: Found) -> None:
    """Print a line."""
    print(
        f"{name}, epsilon {epsilon:g}, {method}: excess {found.excess:.5f} +- {found.error:.5f}, "
        f"accuracy {found.accuracy:.4f} +- {found.accuracy_error:.4f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
