"""Your method on the tasks of flamby.py, in a table beside ours and FLamby's.

    python benchmarks/yours.py --data-dir DIR --results FILE --method PACKAGE.MODULE:FUNCTION
    python benchmarks/yours.py --data-dir DIR --results FILE --flower PACKAGE.MODULE:FUNCTION
    python benchmarks/yours.py --data-dir DIR --results FILE --algorithm NAME [--set KEY=VALUE]

FILE, which can be checked in, has the score of every training; one that is there is not computed again. PACKAGE.MODULE
is found in the folder of the call, too.

FUNCTION(task, epsilon, seed) makes a method for one training, or returns None where it has none: `task.measure` is
"accuracy" or "concordance index", `task.sites` the number of sites, and epsilon infinity without privacy. X (rows,
features) is in [-1, 1]. In Fed-TCGA-BRCA, y is the time of an event, or minus the time of censoring. That the method
keeps epsilon, at delta 1e-4 for the replacement of a patient, is its author's word.

--method: fit(X, y, sites=...) returns a model with predict(X); sites (rows,) has the site of each row.

--flower: a Flower app, as an object with `strategy`, one of flwr.serverapp.strategy; `rounds`; `start(features)`, the
arrays before the first round; `client(X, y)`, a NumPyClient with the rows of a site; and `predict(arrays, X)`. The
sites train in this process, one after the other, through Flower's own ClientApp and messages. A request to evaluate is
answered with an error, which strategies ignore.

--algorithm: the NAME of one of our algorithms, or of an entry point `twinflower.algorithms` of an installed package, or
PACKAGE.MODULE:CLASS; with our estimators' defaults and the settings of --set, such as --set fedprox.mu=0.3.
"""

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from plug_in_driver import OneProcess

from twinflower.algorithms import ALGORITHMS
from twinflower.algorithms.algorithm import check_class
from twinflower.errors import TwinflowerError, require

# flamby, like the catalogue of settings that it imports, knows the algorithms that were registered before.


def imported(word: str) -> Any:
    """What PACKAGE.MODULE:NAME names."""
    module, _, name = word.partition(":")
    sys.path.insert(0, "")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SystemExit(f"{word} cannot be imported: {error}") from None


# ------------------------------------------------------------------------------------------------------- algorithms


def registered(word: str) -> str:
    """The name of an algorithm, which is added to the registry if it is not ours."""
    if word in ALGORITHMS:
        return word
    kind = check_class(imported(word) if ":" in word else installed(word))
    require(kind.name not in ALGORITHMS, f"{word}: there is an algorithm '{kind.name}' already")
    ALGORITHMS[kind.name] = kind
    return kind.name


def installed(name: str) -> Any:
    """The class of an entry point `twinflower.algorithms`."""
    found = entry_points(group="twinflower.algorithms")
    known = [*ALGORITHMS, *found.names]
    require(name in found.names, f"there is no algorithm '{name}'; known are {', '.join(known)}")
    return found[name].load()


def of_algorithm(name: str, settings: Mapping[str, Any]) -> Any:
    """The methods of an algorithm: one for each kind of trust that it has."""
    import flamby

    kind, words = ALGORITHMS[name], ", ".join(f"{key}={value}" for key, value in settings.items())
    mode = next((mode for mode in ("public-state", "gradient") if mode in kind.modes), "")
    title = kind.__name__ + (f" ({words})" if words else "")

    def of(trust: str) -> Callable[..., Any]:
        make = flamby.ours(name, trust, {"privacy.mode": mode} | dict(settings))
        return lambda task, epsilon, seed: make(task, epsilon, seed) if mode or epsilon == math.inf else None

    trusts = flamby.TRUSTS if runs_on_sums(kind, mode) else (flamby.LOCAL,)
    return {(title, trust): of(trust) for trust in trusts}


def runs_on_sums(kind: Any, mode: str) -> bool:
    """Whether a private run of the algorithm may show the server nothing but sums."""
    try:
        if kind.works_on_sums:
            kind(privacy=mode).check_sum(1)
            return True
    except TwinflowerError:
        pass
    return False


# ------------------------------------------------------------------------------------------------------ Flower apps


class OnFlower:
    """A Flower app as a method of the benchmark."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def fit(self, X: Any, y: Any, sites: Any) -> "OnFlower":
        """Run the strategy over the sites."""
        clients = [self.app.client(X[sites == site], y[sites == site]) for site in np.unique(sites)]
        grid = Nodes(client_app(clients), len(clients), {})
        strategy = deepcopy(
            self.app.strategy
        )  # it may keep something, such as a momentum, from another training
        end = strategy.start(grid, ArrayRecord(self.app.start(X.shape[1])), self.app.rounds)
        self.arrays = end.arrays.to_numpy_ndarrays()
        return self

    def predict(self, X: Any) -> Any:
        """The predictions of the final arrays."""
        return np.asarray(self.app.predict(self.arrays, X))


class Nodes(OneProcess):
    """A client that fails while it trains ends the benchmark: Flower's strategies would go on without it."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if reply.has_error() and message.metadata.message_type == "train":
            raise SystemExit(f"a client failed: {reply.error.reason}")
        return reply


def client_app(clients: list[NumPyClient]) -> ClientApp:
    """An app whose node i trains client i, with the records of the strategies of flwr.serverapp."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        """The reply of the node's client to a model."""
        ((name, arrays),) = message.content.array_records.items()
        (config,) = message.content.config_records.values()
        client = clients[context.node_config["partition-id"]]
        trained, rows, metrics = client.fit(arrays.to_numpy_ndarrays(), dict(config))
        content = {name: ArrayRecord(trained), "metrics": MetricRecord({"num-examples": rows, **metrics})}
        return Message(RecordDict(content), reply_to=message)

    return app


def of_flower(word: str) -> Callable[..., Any]:
    """The method that a function for --flower makes."""
    make = imported(word)
    logging.getLogger("flwr").setLevel(logging.ERROR)

    def method(task: Any, epsilon: float, seed: int) -> OnFlower | None:
        app = make(task, epsilon, seed)
        return None if app is None else OnFlower(app)

    return method


# ------------------------------------------------------------------------------------------------------ the command


def methods(given: argparse.Namespace) -> Any:
    """The methods that the arguments name, as in flamby.py."""
    if given.algorithm:
        name = registered(given.algorithm)  # before the next import
        from twinflower.simulation.settings import parse_text

        return of_algorithm(name, dict(map(parse_text, given.set or [])))
    import flamby

    word = given.method or given.flower
    return {(word, flamby.LOCAL): imported(word) if given.method else of_flower(word)}


def main() -> None:
    """Complete the results, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with heart/ and flamby/")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds, and of repeated splits")
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--method", metavar="PACKAGE.MODULE:FUNCTION")
    kinds.add_argument("--flower", metavar="PACKAGE.MODULE:FUNCTION")
    kinds.add_argument("--algorithm", metavar="NAME")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of --algorithm")
    given = parser.parse_args()
    if given.set and not given.algorithm:
        parser.error("--set is for --algorithm: a function of your own makes its settings")
    try:
        own = methods(given)
        import flamby

        flamby.complete(given.results, own, given.data_dir, given.seeds)
    except TwinflowerError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{error.strerror}: {error.filename}")
    print(*flamby.tables(flamby.stored(flamby.STORE) | flamby.stored(given.results)), sep="\n")


if __name__ == "__main__":
    main()
