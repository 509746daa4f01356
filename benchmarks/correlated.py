"""Noise that is correlated over the steps (`privacy.noise = "banded"`) beside independent noise.

    python benchmarks/correlated.py                     # time and memory of a step
    python benchmarks/correlated.py --figure FILE.png   # what it does to the noise in a model

Time and memory: d = 100,000 numbers and bandwidth 8. The kinds of noise take turns, and times are the best in processor
time. A step is the gradient of a softmax regression with so many weights on a batch of 64 rows, with its noise. Memory
is what a client holds besides the vector that it returns.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from twinflower.arrays import Array
from twinflower.privacy.correlated import Draws, Window, best_bandwidth, inverse_root, squared_sensitivity
from twinflower.privacy.mechanism import GaussianNoise, by_step, keyed, secret, seeded
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective

D, CLASSES, ROWS, BANDWIDTH, STEPS = 100_000, 10, 64, 8, 60
BATCHES, EPOCHS = 10, 10


class Kind:
    """A kind of noise: next() returns that of the next step."""

    def __init__(self, draws: Callable[[int], Draws], grid: bool, window: Window | None = None) -> None:
        self.draws, self.grid, self.window, self.steps = draws, grid, window, count()
        self.milliseconds: list[float] = []

    def next(self, work: Callable[[], Array]) -> None:
        """Work and add the noise."""
        began = time.thread_time()
        GaussianNoise(0.3, self.draws(next(self.steps)), grid=self.grid)(work())
        self.milliseconds.append(1e3 * (time.thread_time() - began))

    @property
    def best(self) -> float:
        """Without the first steps, which fill the window."""
        return min(self.milliseconds[BANDWIDTH:])

    @property
    def held(self) -> float:
        """MiB."""
        return self.window.vectors.nbytes / 2**20 if self.window else 0.0


def correlated(innovations: Any, grid: bool) -> Kind:
    """Of bandwidth 8."""
    window = Window(BANDWIDTH)
    return Kind(lambda step: window.draws(step, innovations), grid, window)


def gradient() -> Callable[[], Array]:
    """That of a softmax regression with D weights."""
    draw = np.random.default_rng(0)
    objective = make_objective("softmax", D // CLASSES, CLASSES)
    batch = Batch(draw.normal(size=(ROWS, D // CLASSES)), draw.integers(CLASSES, size=ROWS))
    point = np.zeros(objective.d)
    return lambda: objective.grad(point, batch)


def cost() -> str:
    """The table of time and memory."""
    seeds = {step: step.to_bytes(32, "big") for step in range(STEPS)}
    pairs = {
        "seeded": (
            Kind(lambda step: seeded(0, 0, step + 1), False),
            correlated(by_step(partial(seeded, 0, 0), 1), False),
        ),
        "secret": (Kind(lambda step: secret, True), correlated(keyed(seeds, 1), True)),
    }
    lines = [
        "| noise | work | independent, ms | banded, ms | ratio | held, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for work, value in (("noise alone", partial(np.zeros, D)), ("a step", gradient())):
        for name, kinds in pairs.items():
            for kind in kinds:
                kind.steps, kind.milliseconds = count(), []
            for _ in range(STEPS):
                for kind in kinds:
                    kind.next(value)
            plain, banded = (kind.best for kind in kinds)
            lines.append(
                f"| {name} | {work} | {plain:.2f} | {banded:.2f} | {banded / plain:.2f} | {kinds[1].held:.1f} |"
            )
    return "\n".join(lines)


def errors(bandwidth: int) -> Array:
    """The standard deviation of the noise in the sum of the gradients so far, of every step, where the noise of all
    steps guarantees mu = 1 and a record moves a gradient by 1."""
    steps = BATCHES * EPOCHS
    record = (np.arange(steps) % BATCHES == 0).astype(float)
    weights = np.cumsum(np.pad(inverse_root(bandwidth), (0, steps - bandwidth)))
    return np.sqrt(squared_sensitivity(record[None], bandwidth) * np.cumsum(weights**2))  # type: ignore[no-any-return]


def draw(path: Path) -> None:
    """On the left the noise of a step and how later steps take it back, on the right the noise in the sums."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    best = best_bandwidth(BATCHES, BATCHES * EPOCHS)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.4), layout="constrained")
    left.axhline(0, color="black", linewidth=0.8)
    left.bar(range(best), inverse_root(best), color="#0b6e8a")
    left.set_xticks(range(best))
    left.set_xlabel("steps later")
    left.set_title("Noise that is added, then partly taken back", fontsize=10)
    left.set_ylabel("share of the noise of a step")
    for bandwidth, name, colour in (
        (1, "independent", "#5a5a5a"),
        (best, f"banded, bandwidth {best}", "#0b6e8a"),
    ):
        line = errors(bandwidth)
        right.plot(range(1, len(line) + 1), line, color=colour)
        right.annotate(
            name, (len(line), line[-1]), (-6, 4), textcoords="offset points", ha="right", color=colour
        )
    right.set_xlabel("step")
    right.set_ylabel("standard deviation")
    right.set_ylim(0, 36)
    right.set_title("Noise in the sum of all gradients so far", fontsize=10)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Measure, or draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", type=Path)
    figure = parser.parse_args().figure
    if figure:
        draw(figure)
    else:
        print(cost())


if __name__ == "__main__":
    main()
