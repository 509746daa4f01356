"""Draw docs/figures/idea.png: two sites in two dimensions, FedAvg and FedPDM. Run `python docs/idea.py`."""

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from twinflower.algorithms import FedAvg, FedPDM
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import Zero
from twinflower.rounds import Problem, rounds

COLOURS = {"FedAvg": "#c44e1c", "FedPDM": "#0b6e8a"}
FEATURES = np.array([[[1.0, 0.2], [0.2, 0.4]], [[0.3, -0.2], [-0.2, 1.1]]])  # of each site's two rows
LABELS = np.array([[2.0, 0.5], [-0.2, 2.2]])
ROUNDS, STEPS, RATE = 60, 10, 0.5


def paths() -> dict[str, np.ndarray]:
    """The server's points of each method, (ROUNDS + 1, 2)."""
    objective = make_objective("least-squares", num_features=2, num_classes=0)
    shards = Shards.of(list(zip(FEATURES, LABELS, strict=True)))
    problem = Problem(objective, shards, start=np.zeros(objective.d))
    schedule = LocalSchedule(batch_size=0, max_local_steps=STEPS)
    methods = {
        "FedAvg": FedAvg(Zero(), step_size=RATE),
        "FedPDM": FedPDM(Zero(), rho=0.15, step_size=RATE),
    }
    return {
        name: np.array([problem.start, *(o.server.x0 for o in rounds(m, problem, schedule, ROUNDS))])
        for name, m in methods.items()
    }


def optimum() -> np.ndarray:
    """The minimiser of the mean loss."""
    return np.linalg.lstsq(FEATURES.reshape(-1, 2), LABELS.ravel(), rcond=None)[0]


def draw(path: Path) -> None:
    """Draw the paths over the contours of both losses, and the distances to the optimum."""
    best, found = optimum(), paths()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    x, y = np.meshgrid(np.linspace(-0.6, 3.4, 200), np.linspace(-0.6, 2.8, 200))
    points = np.stack([x, y], -1)
    for k, (shade, shift) in enumerate((("#999999", (6, -13)), ("#bbbbbb", (-62, 8)))):
        loss = ((points @ FEATURES[k].T - LABELS[k]) ** 2).mean(-1)
        left.contour(x, y, loss, levels=[0.02, 0.1, 0.25, 0.5], colors=shade, linewidths=0.8)
        own = np.linalg.solve(FEATURES[k], LABELS[k])
        left.plot(*own, "x", color=shade)
        left.annotate(
            f"best for site {k + 1}",
            own,
            xytext=shift,
            textcoords="offset points",
            fontsize=9,
            color="#666666",
        )
    left.plot(*best, "*", color="black", markersize=13, zorder=3)
    left.annotate("optimum", best, xytext=(9, 5), textcoords="offset points", fontsize=10)
    for name, line in found.items():
        left.plot(*line.T, ".-", color=COLOURS[name], markersize=4, linewidth=1.4)
        right.semilogy(np.linalg.norm(line - best, axis=1), color=COLOURS[name], linewidth=2)
        right.annotate(
            name,
            (ROUNDS, np.linalg.norm(line[-1] - best)),
            xytext=(5, 0),
            textcoords="offset points",
            color=COLOURS[name],
            va="center",
            annotation_clip=False,
        )
    left.set(title="the server's points, round by round", xlabel="first weight", ylabel="second weight")
    right.set(title="distance to the optimum", xlabel="communication round", xlim=(0, ROUNDS))
    for side in ("top", "right"):
        right.spines[side].set_visible(False)
    right.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    draw(Path(__file__).parent / "figures" / "idea.png")
    for name, line in paths().items():
        print(name, *line[-1].round(4), np.linalg.norm(line[-1] - optimum()))
