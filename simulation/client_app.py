"""What `flwr run` loads on every node: the NumPyClient of the configured algorithm.

A simulated node gets its partition from Flower. A deployed node says `partition-id` and `num-partitions`
in its node config, and its `data-dir` there, if given, stands before the run's.
"""

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp
from threadpoolctl import threadpool_limits

from twinflower.errors import SettingError

from .config import parse_run_config
from .setup import prepare


def client_fn(context: Context) -> Client:
    """The client of this node."""
    threadpool_limits(1)  # the same last bits in every runtime
    node = context.node_config
    if "partition-id" not in node or "num-partitions" not in node:
        raise SettingError('a node needs --node-config "partition-id=I num-partitions=N"')
    raw = dict(context.run_config)
    if "data-dir" in node:
        raw["data-dir"] = node["data-dir"]
    setup = prepare(parse_run_config(raw).with_clients(int(node["num-partitions"])))
    return setup.client(int(node["partition-id"]), context).to_client()


app = ClientApp(client_fn)
