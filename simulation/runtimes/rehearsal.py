"""Rehearse a deployment on this machine: one run with a SuperNode for each client, after which all processes end."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from twinflower.data.partitioners import Sizes
from twinflower.data.sets import Data, OwnData, TableData
from twinflower.data.sites import schema_to_read
from twinflower.data.tables import read_rows, table_files
from twinflower.errors import RunError, require

from ..results import names
from ..runs.identity import make_key
from ..runs.setup import PreparedRun, prepare
from ..settings import DEFAULT_CLIENTS, Config, Value
from ..settings.experiment import Experiment
from .deployment import Deployment, deployment, node_name
from .engine import Say, from_here, silent
from .observer import Observer


def run(plan: Experiment, folder: Path, observer: Observer, secure: bool = False) -> list[str]:
    """Rehearse the only run of an experiment; return an error message if it failed.

    secure: use TLS and admit only registered nodes.
    """
    require(plan.single, "deploy takes one curve and one seed")
    config = plan.curves[0].config.with_clients(DEFAULT_CLIENTS)
    try:
        rehearse(config, folder, secure, observer.line)
        return []
    except RunError as error:
        return [str(error)]


def rehearse(config: Config, folder: Path, secure: bool = False, say: Say = silent) -> None:
    """Run a configuration once on SuperNodes; progress is reported through `say`.

    Every node keeps its state and ledger in its own folder, which is removed after the rehearsal, and has a lifetime
    budget just above the run's plan. Logs stay in the run folder. Raises RunError unless Flower reports
    finished:completed.
    """
    setup = prepare(config)
    config, files = at_sites(setup) if isinstance(config.data, TableData) else (config, [])
    own = node_config(prepare(config))
    with deployment(secure, _empty(folder.absolute() / names.LOGS), say) as running:
        identities = exchange_keys(running.home, setup) if setup.sums else {}
        for number in range(config.clients.count):
            state = {"state-dir": str(running.home / f"node-{number}" / "state")}
            of_site = (files[number] if files else {}) | identities.get(number, {})
            _start(running, number, config.clients.count, own | state | of_site)
        running.run(config, folder)
        say("ending all processes")


def node_config(setup: PreparedRun) -> dict[str, Value]:
    """The node config shared by all nodes, without partition, state-dir and table."""
    own: dict[str, Value] = {}
    config, plan = setup.config, setup.plan
    if plan:
        own = {"lifetime-epsilon": 1.001 * plan.epsilon_limit, "lifetime-delta": plan.delta}
        own |= {"protects": plan.unit.kind, "group-size": plan.unit.size}
    else:
        own = {key: value for query in setup.queries for key, value in query.allowing.items()}
        own |= {"newton-rows": 1, "newton-rows-per-parameter": 1.0} if setup.method.sends_sums else {}
    if isinstance(config.data, Data) and config.data.dir:
        own["data-dir"] = str(Path(config.data.dir).absolute())
    return own


def at_sites(setup: PreparedRun) -> tuple[Config, list[dict[str, Value]]]:
    """Convert a run on tables into a run with data.name = own; also return the entries of each node's config.

    Without data.test-file the nodes hold out the rows to evaluate on. Raises SettingError unless there is one table per
    node, and one of the two.
    """
    config, data = setup.config, cast(TableData, setup.config.data)
    require(
        bool(setup.dataset.sites and not data.site_column),
        "deploy needs one table for each node",
    )
    require(
        bool(data.test_file or config.evaluation.held_out),
        "deploy needs rows to evaluate on: data.test-file, a table that no site trains on, for the server, or "
        "evaluation.held-out, the part of every table that its node evaluates on",
    )
    own = OwnData(
        file=from_here(data.test_file) if data.test_file else "", schema=from_here(data.schema),
        schema_digest=data.schema_digest, range_share=data.range_share, bias=data.bias, row_norm=data.row_norm,
        row_scaling=data.row_scaling,
    )  # fmt: skip
    sizes = Sizes("sizes", sizes=", ".join(map(str, _rows_of_tables(setup, data))))
    allowed: dict[str, Value] = {} if setup.plan else {"allow-non-private": True}
    nodes = [
        {"data-file": str(file.absolute()), "schema": own.schema, **allowed}
        for file in table_files(data.files)
    ]
    return replace(config, data=own, partition=sizes), nodes


def _rows_of_tables(setup: PreparedRun, data: TableData) -> Sequence[int]:
    """The number of rows of every table; those of a simulation leave out its test rows."""
    if data.test_file:
        return setup.dataset.sites
    schema = schema_to_read(data)
    return [len(read_rows(file, schema)[1]) for file in table_files(data.files)]


def exchange_keys(home: Path, setup: PreparedRun) -> dict[int, dict[str, Value]]:
    """Create the identity keys of all nodes and the peers file with their public keys; return the entries of each
    node's config, by number."""
    sites = range(setup.config.clients.count)
    keys = {number: home / f"identity-{number}.pem" for number in sites}
    peers = home / "peers.txt"
    peers.write_text(
        "".join(f"{number} {make_key(path)}\n" for number, path in keys.items()), encoding="utf-8"
    )
    honest = setup.sums.honest if setup.sums else 1
    return {
        number: {"identity-key": str(path), "peers-file": str(peers), "max-honest": honest}
        for number, path in keys.items()
    }


def _empty(logs: Path) -> Path:
    """Create the folder for logs and delete those of an earlier attempt."""
    logs.mkdir(parents=True, exist_ok=True)
    for log in logs.glob("*.log"):
        log.unlink()
    return logs


def _start(running: Deployment, number: int, count: int, own: Mapping[str, Value]) -> None:
    """Start a node that must keep running until the rehearsal ends."""
    if running.secure:
        running.register(number)
    running.start_node(number, count, own)
    running.place.running[node_name(number)] = running.nodes[number]
    running.say(f"{node_name(number)}: {'registered, ' if running.secure else ''}started")
    running.look()
