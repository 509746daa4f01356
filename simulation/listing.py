"""What `twinflower list` prints: the named values of settings, and the experiments."""

from collections.abc import Iterable

from twinflower.algorithms import ALGORITHMS
from twinflower.data.partitioners import PARTITIONERS
from twinflower.data.sets import DATASETS
from twinflower.known_objectives import OBJECTIVES
from twinflower.problems.penalties import REGULARISERS
from twinflower.problems.topologies import TOPOLOGIES
from twinflower.sparsifiers import SPARSIFIERS

from .experiment_files import shipped, title_of
from .report.console import say, titled
from .runtimes import RUNTIMES

_CHOICES: dict[str, Iterable[str]] = {
    "partition.name": PARTITIONERS, "objective.name": OBJECTIVES, "regulariser.name": REGULARISERS,
    "privacy.mode": dict.fromkeys(mode for method in ALGORITHMS.values() for mode in method.modes),
    "topology.name": TOPOLOGIES, "uplink": SPARSIFIERS, "runtime": RUNTIMES,
}  # fmt: skip


def show() -> None:
    """Print all of it."""
    titled("algorithms", [(name, algorithm.title) for name, algorithm in ALGORITHMS.items()])
    titled("data sets", [(name, entry[0]) for name, entry in DATASETS.items()])
    if files := shipped():
        titled("experiments", [(str(path), title_of(path)) for path in files])
    else:
        say("experiments: none here; they are in the folder experiments of Twinflower's source")
    titled("choices of", [(key, ", ".join(known)) for key, known in _CHOICES.items()])
