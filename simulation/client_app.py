"""What `flwr run` loads on every node: the NumPyClient of the configured algorithm.

A simulated node gets its partition from Flower. A deployed node says in its node config

    partition-id, num-partitions     which part of the data it holds
    data-dir                         where they are, instead of the run's
    data-file                        the site's own rows; such a node takes part in runs of the dataset own only
    state-dir                        where its ledgers are, absolute, default ~/.twinflower; if it is given, duals
                                     and replies are kept there, too, so that a restarted node goes on
    lifetime-epsilon, lifetime-delta what may ever be spent on its data; needed for private runs
    max-epsilon, max-delta           most that one run may plan
    min-noise-multiplier             least sigma / sensitivity

and a private run there has secret noise and a ledger on the disk, whatever the server asks. Which ledger follows from
the node config alone: one for the data-file, or one for all known data sets, however a run scales or divides them. A
node with lifetime-epsilon, max-epsilon or min-noise-multiplier refuses runs without privacy.
"""

import sys
from pathlib import Path

from flwr.app import Context
from flwr.app.user_config import UserConfig
from flwr.client import Client
from flwr.clientapp import ClientApp
from threadpoolctl import threadpool_limits

from twinflower.data.files import read_bytes
from twinflower.data.sets import OWN
from twinflower.errors import DataError, SettingError, require
from twinflower.privacy.guard import Guard, Policy
from twinflower.privacy.ledger import FileLedger, fingerprint
from twinflower.privacy.mechanism import secret

from .config import Config, parse_run_config
from .setup import Setup, prepare

_POLICY = ("lifetime-epsilon", "max-epsilon", "min-noise-multiplier")


def client_fn(context: Context) -> Client:
    """The client of this node."""
    threadpool_limits(1)  # the same last bits in every runtime
    node = context.node_config
    if "partition-id" not in node or "num-partitions" not in node:
        raise SettingError('a node needs --node-config "partition-id=I num-partitions=N"')
    raw = dict(context.run_config)
    raw |= {key: node[key] for key in ("data-dir", "data-file") if key in node}
    number, count = int(node["partition-id"]), int(node["num-partitions"])
    config = parse_run_config(raw).with_clients(count)
    require(config.num_clients == count, f"num-clients is {config.num_clients}, but there are {count} nodes")
    require(
        config.dataset != OWN or "data-file" in node,
        'a run of the dataset own needs --node-config "data-file=PATH" on every node',
    )
    require(
        config.dataset == OWN or "data-file" not in node,
        f"a node with a data-file takes part in runs of the dataset own only; got dataset {config.dataset}",
    )
    setup = _prepared(config, node).at_site(number)
    if simulated():
        return setup.client(number, context).to_client()
    guard = site_guard(setup, number, node, str(context.run_id))
    return setup.client(number, context, guard, str(node.get("state-dir", ""))).to_client()


def _prepared(config: Config, node: UserConfig) -> Setup:
    """`prepare`, without words on the files of a site that takes part in private runs only."""
    try:
        return prepare(config)
    except DataError as error:
        if not _promises(node):
            raise
        print(f"twinflower: {error}", file=sys.stderr, flush=True)
        raise DataError("the site's data do not fit the run's settings; its own log says why") from None


def _promises(node: UserConfig) -> list[str]:
    """Keys of the node config that allow private runs only."""
    return [key for key in _POLICY if key in node]


def simulated() -> bool:
    """Whether this process is a worker of Flower's simulation engine."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def site_guard(setup: Setup, number: int, node: UserConfig, run: str) -> Guard | None:
    """The privacy of a deployed site, under its own policy; nothing in it comes from a message."""
    if setup.plan is None:
        promised = _promises(node)
        require(
            not promised,
            f"this site takes part in private runs only ({', '.join(promised)}); the run has none",
        )
        return None
    lifetime = _number(node, "lifetime-epsilon", 0.0)
    require(
        lifetime > 0, 'a private run needs --node-config "lifetime-epsilon=E" with E above 0 on every node'
    )
    policy = Policy(
        _number(node, "min-noise-multiplier", 0.0), _number(node, "max-epsilon", lifetime),
        _number(node, "max-delta", 1e-4),
    )  # fmt: skip
    plan = setup.plan
    require(
        plan.mode != "as-published",
        "a site takes no part in runs as-published: their messages cost more than a ledger can be charged",
    )
    require(
        not setup.config.standardise,
        "a site takes no part in private runs that standardise columns: means and deviations are data",
    )
    policy.check(plan.least_multiplier(number), plan.budget)
    ledger = _ledger(node, number, lifetime)
    return Guard(
        plan.bounds, float(plan.multipliers[number]), plan.budget, ledger, lambda round_: secret,
        secret=True, run=run, config=setup.config.digest, row_norm=setup.row_norm,
    )  # fmt: skip


def _ledger(node: UserConfig, number: int, lifetime: float) -> FileLedger:
    """The ledger of the site's data; its name goes into errors, and so does not depend on what the data are."""
    folder = Path(str(node.get("state-dir") or Path.home() / ".twinflower")).expanduser()
    require(
        folder.is_absolute(),
        f"state-dir must be an absolute path, or a restart elsewhere begins anew; got {folder}",
    )
    name, data = f"node-{number}", f"known data sets, node {number}"
    if "data-file" in node:
        file = Path(str(node["data-file"])).expanduser().resolve()
        name, data = f"file-{fingerprint(bytes(file))[:16]}", fingerprint(read_bytes(file))
    return FileLedger(folder / f"{name}.ledger", data, lifetime, _number(node, "lifetime-delta", 1e-4))


def _number(node: UserConfig, key: str, default: float) -> float:
    value = node.get(key, default)
    require(isinstance(value, int | float), f"node config {key} must be a number; got {value!r}")
    return float(value)


app = ClientApp(client_fn)
