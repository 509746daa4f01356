"""The ClientApp that `flwr run` loads on every node: the NumPyClient of the configured algorithm.

A simulated node runs on the user's machine: Flower assigns its partition, and the run's paths are the user's own. A
deployed node is a `site`: its paths and its policy come from its node config. Whatever the server requests, a private
run at a site has secret noise and a ledger on disk, and the server sees errors only as fixed sentences. The node config
alone determines the ledger: one for the data-file, or one for all known data sets. How a run scales or divides the
rows makes no difference.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from logging import WARNING
from math import inf
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, UserConfig
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.common import log

from twinflower.algorithms.fedpdm import FedPDM
from twinflower.clients import AlgorithmClient, for_flower_strategies, numbered
from twinflower.clients.mods import share_bytes
from twinflower.data.files import stream_bytes
from twinflower.data.schema_file import read_schema
from twinflower.data.sets import OWN, Data
from twinflower.data.tables import check_groups
from twinflower.disk import TRIED, try_folder
from twinflower.errors import DiskError, SettingError, cause, require
from twinflower.flower_messages import BEGINS, KINDS, PLACES, PROPERTIES, request_record
from twinflower.privacy.exact_rounds import ExactRounds
from twinflower.privacy.guard import Guard, Policy
from twinflower.privacy.ledger import FileLedger, fingerprint
from twinflower.queries.exact_sums import check_exact_sums
from twinflower.queries.held_out import split
from twinflower.sums.masks import Identity

from ..runs.client_factory import client_of
from ..runs.facts import at_site, counted
from ..runs.identity import read_identity
from ..runs.setup import PreparedRun, prepare_node
from ..runtimes.computing import compute_only, keep_all
from ..runtimes.progress import Report, node, report, report_warnings
from ..settings import parse_run_config
from .redact_errors import discreet, refusing
from .site import Site, read_site, simulated


def client_fn(context: Context) -> Client:
    """The client of this node."""
    compute_only()
    client = (_simulated_client if simulated(context.node_config) else _site_client)(context)
    compute_only()  # the data or the model may have loaded another library
    return client.to_client()


def _simulated_client(context: Context) -> AlgorithmClient:
    number, count = (int(context.node_config[key]) for key in PLACES)
    setup = _simulated_setup(tuple(context.run_config.items()), count)
    return client_of(setup, number, context, shared=True)


@lru_cache(maxsize=2)  # a process of the engine serves many nodes, and gets every message by itself
def _simulated_setup(run_config: tuple[tuple[str, Any], ...], count: int) -> PreparedRun:
    """The run of simulated nodes, given the items of the run config and the number of nodes."""
    config = parse_run_config(dict(run_config)).with_clients(count)
    if config.clients.count != count:
        raise SettingError(f"clients.count is {config.clients.count}, but there are {count} nodes")
    require(
        config.data.name != OWN or bool(config.items()["data.file"]),
        "the rows of data own are at deployed nodes; simulated ones need data.file",
    )
    setup = prepare_node(config)
    keep_all()
    return setup


def _site_client(context: Context) -> AlgorithmClient:
    site = read_site(context.node_config)
    setup = site_setup(site, context.run_config)
    guard = site_guard(setup, site, str(context.run_id))
    identity = identity_of(site) if setup.pooled else None
    shared = guard is None  # a guard looks at all rows
    counted = exact_rounds_of(setup, site)
    return client_of(
        setup, site.partition_id, context, guard, site.state_dir, identity, shared, site, counted
    )


def site_setup(site: Site, run_config: UserConfig) -> PreparedRun:
    """The run at a deployed site, with its own rows; `Refusal` for a run that the site takes no part in."""
    with refusing():
        config = site.config(run_config)
    check_people(site)
    return at_site(prepare_node(config), site.partition_id)


def clipped_at(site: Site, setup: PreparedRun) -> str:
    """For the site's own eyes: how many values are outside of their public range; empty if none is."""
    if not setup.dataset.schema or setup.dataset.marks is None:
        return ""
    clipped = counted(setup.dataset.schema.marked, setup.dataset.marks)
    text = "; ".join(f"{column}: {own}" for column, own in clipped.items())
    return text and f"values clipped to their range in {site.schema}: {text}"


@lru_cache(maxsize=2)  # a file that changes later no longer fits its ledger
def check_people(site: Site) -> None:
    """Raise DataError if a person has more rows in the data-file than the site protects together.

    The limit is the site's own: if it were the run's, a server could ask for one limit after the other.
    """
    if site.unit.size and site.schema:
        check_groups(site.data_file, read_schema(site.schema), site.unit.size)


def identity_of(site: Site) -> Identity:
    """The site's identity from its own key and peers file, never that of a simulation."""
    identity = read_identity(site.partition_id, Path(site.identity_key), Path(site.peers_file))
    if len(identity.peers.keys) != site.num_partitions:
        raise SettingError(
            f"the peers-file names {len(identity.peers.keys)} sites; the node config says {site.num_partitions}"
        )
    return identity


def site_guard(setup: PreparedRun, site: Site, run: str) -> Guard | None:
    """The guard of a deployed site under its own policy, None without privacy; nothing in it comes from a message.

    Raises Refusal for a run that the policy does not allow.
    """
    with refusing():
        _check_policy(setup, site)
    plan = setup.plan
    if plan is None:
        return None
    # The server numbers a named site. In one run under two numbers its batches are of two permutations.
    config = f"{setup.config.result_digest} {site.partition_id}" if site.site else setup.config.result_digest
    return plan.guard(
        site.partition_id, ledger_of_site(site), run=run, config=config,
        row_norm=setup.row_norm, split=split(setup, site.partition_id),
    )  # fmt: skip


def _check_policy(setup: PreparedRun, site: Site) -> None:
    """Raise SettingError for a plan that violates the site's policy or that no ledger can account for."""
    plan, data = setup.plan, setup.config.data
    site.check_privacy(plan is not None)
    if setup.pooled:
        site.check_sums(setup.sums.honest if setup.sums else 0, setup.algorithm.most_absent)
    if plan is None:
        if setup.method.sends_sums:
            remedy = "choose another algorithm, such as fedavg"
            check_exact_sums(setup, site, site.partition_id, "newton-rows", remedy)
        for query in setup.queries:
            query.check_policy(site, site.partition_id)
        return
    site.check_unit(plan.unit)
    lifetime = site.lifetime_epsilon
    if lifetime is None:
        raise SettingError(
            'a private run needs --node-config "lifetime-epsilon=E" with E above 0 on every node'
        )
    require(
        plan.mode != "as-published",
        "a site takes no part in as-published runs: their messages cost more than a ledger can be charged",
    )
    require(
        not (isinstance(data, Data) and data.standardise),
        "a site takes no part in private runs that standardise columns: means and deviations are data",
    )
    require(
        not isinstance(setup.method, FedPDM) or setup.method.unstable_steps == "refuse",
        "a site takes no part in private runs with unstable-steps = allow: diverging numbers drown the noise",
    )
    policy = Policy(
        site.min_noise_multiplier or 0.0,
        site.max_epsilon or lifetime,
        site.max_delta,
        site.max_epsilon_alone or inf,
    )
    policy.check(plan.least_multiplier(site.partition_id), plan.budget, plan.mu_limit_alone)


def exact_rounds_of(setup: PreparedRun, site: Site) -> ExactRounds | None:
    """The count of a site's exact answers about its rows, beside its ledger; None for a run without such answers."""
    if setup.plan or not setup.method.sends_sums:
        return None
    ledger = ledger_of_site(site)
    name = fingerprint([ledger.data.encode()])[:16]
    path = ledger.path.with_name(f"answers-{name}.count")
    return ExactRounds(path, site.newton_rounds, setup.config.result_digest)


def ledger_of_site(site: Site) -> FileLedger:
    """The ledger of the site's data, in its state-dir or ~/.twinflower.

    A data-file has the ledger of its path as the node config gives it, with links not followed: the target of a link
    changes when new rows are mounted there, and the ledger then notices that these are others.
    """
    name, data = f"node-{site.name}", f"known data sets, node {site.name}"
    if site.data_file:
        file = Path(os.path.abspath(Path(site.data_file).expanduser()))
        name, data = f"file-{fingerprint([bytes(file)])[:16]}", fingerprint(stream_bytes(file))
    path, budget = folder_of(site) / f"{name}.ledger", (site.lifetime_epsilon or 0.0, site.lifetime_delta)
    return FileLedger(path, data, *budget, unit=site.unit, sole=bool(site.data_file))


def folder_of(site: Site) -> Path:
    """The folder of the site's ledgers and, with a state-dir, of its states."""
    return Path(site.state_dir or Path.home() / ".twinflower").expanduser()


def check_folder(site: Site) -> None:
    """Raise DiskError if the site cannot write in its folder; a site without state-dir and ledger writes nothing."""
    if not (site.state_dir or site.lifetime_epsilon):
        return
    folder = folder_of(site)
    try:
        try_folder(folder)
    except OSError as error:
        name = "state-dir" if site.state_dir else "without a state-dir, the folder of ledgers"
        raise DiskError(
            f"{name} {folder} cannot be written ({cause(error)}): it must be a folder, or one that can be made, in "
            f"which this user may write, on a disk with {TRIED // 1024} KiB of free space"
        ) from None


def beginning(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """A Flower mod for the first message of a run: a site whose disk is full refuses, before the others have paid.

    The site's own log, which nobody else reads, says how many values are clipped: here, and not in the process of every
    message.
    """
    begins = BEGINS in message.content.get(request_record(PROPERTIES, "config"), {})
    if simulated(context.node_config) or not begins:
        return call_next(message, context)
    site = read_site(context.node_config)
    check_folder(site)
    reply = call_next(message, context)
    if text := clipped_at(site, site_setup(site, context.run_config)):
        log(WARNING, "twinflower: %s", text)
    return reply


def rehearsed(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """A Flower mod: report to the command that started the node, if one did, warnings and errors, and when the node has
    been asked for its partition and knows it."""
    if not node():
        return call_next(message, context)
    report_warnings()
    reply = call_next(message, context)
    if _asks_for_partition(message) and not reply.has_error():
        report(Report(f"{node()}: connected"))
    return reply


def _asks_for_partition(message: Message) -> bool:
    """Whether a server meets the node. It asks once more in a run of sums, and at the end of some runs."""
    kind, asked = KINDS.get(message.metadata.message_type), request_record(PROPERTIES, "config")
    return kind == PROPERTIES and message.content.get(asked, {}).keys() <= {BEGINS}


app = ClientApp(
    client_fn, mods=[rehearsed, numbered, for_flower_strategies, discreet, beginning, share_bytes]
)
