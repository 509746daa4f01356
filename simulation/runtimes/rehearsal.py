"""Rehearse a deployment on this machine: one run with a SuperLink, and a SuperNode for each client in its own process.

It uses a temporary folder and free ports, and everything is stopped and removed at the end. With `secure` all
connections use TLS with a temporary certificate authority, and only nodes with registered public keys may connect.
"""

import ipaddress
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from twinflower.data.partitioners import Sizes
from twinflower.data.sets import Data, OwnData, TableData
from twinflower.data.sites import schema_to_read
from twinflower.data.tables import read_rows, table_files
from twinflower.errors import RunError, require
from twinflower.queries.exact_sums import allowing

from ..results import names
from ..runs.identity import make_key
from ..runs.setup import PreparedRun, prepare
from ..settings import Config, Value
from ..settings.experiment import Experiment
from ..settings.reader import to_toml
from . import progress
from .flower import (
    CONNECTION,
    FLOWER_COMMAND,
    Engine,
    Say,
    configure_flower_env,
    from_here,
    reports_in,
    silent,
    start_superlink,
    write_connection,
)
from .flower_internals import QUICK_NODES
from .processes import free_ports, temporary_workspace
from .progress import Observer

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Deployment(Engine):
    """A running SuperLink at `port`, and the SuperNodes started so far, by number."""

    simulated: bool = False
    secure: bool = False
    nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_node(
        self, number: int, count: int, settings: Mapping[str, Value] | None = None, key: str = ""
    ) -> None:
        """Start a SuperNode that holds partition `number` of `count`; settings are added to its node config.

        key: in a secure deployment, the name of its private key, by default `node-NUMBER-key`.
        """
        config: dict[str, Value] = {"partition-id": number, "num-partitions": count, **(settings or {})}
        words = " ".join(to_toml(config).replace(" = ", "=").split("\n"))
        home, name = self.home / f"node-{number}", node_name(number)
        home.mkdir(exist_ok=True)
        command = [*FLOWER_COMMAND, "supernode", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--port", str(free_ports(1)[0]), "--node-config", words.strip()]
        command += self._credentials(key or f"node-{number}-key")
        self.nodes[number] = self.place.start(name, command, {"FLWR_HOME": str(home), progress.NODE: name})

    def _credentials(self, key: str) -> list[str]:
        if not self.secure:
            return ["--insecure"]
        keys = self.home / key
        return ["--root-certificates", str(self.home / "ca.crt"), "--auth-supernode-private-key", str(keys)]

    def register(self, number: int) -> None:
        """Create the node's key pair and register its public key with the SuperLink."""
        public = make_node_key(self.home / f"node-{number}-key")
        self.flwr("supernode", "register", str(public), CONNECTION)


def node_name(number: int) -> str:
    """The name of a node's process and of its log."""
    return f"node-{number}"


@contextmanager
def deployment(secure: bool = False, logs: Path | None = None, say: Say = silent) -> Iterator[Deployment]:
    """Start a SuperLink; on exit, stop it, its nodes, and everything they started.

    logs: folder of the log files; by default they are removed with the temporary folder.
    """
    with temporary_workspace(logs) as place:
        configure_flower_env(place)
        place.environment |= QUICK_NODES
        (port,) = free_ports(1)
        say(f"starting a SuperLink on port {port}; logs: {place.logs}")
        words = _secured(place.home) if secure else ["--insecure"]
        trust = f'root-certificates = "{place.home / "ca.crt"}"\n' if secure else "insecure = true\n"
        write_connection(place.home, f'address = "127.0.0.1:{port}"\n{trust}')
        start_superlink(place, port, [*words, "--disable-runtime-dependency-installation"])
        yield Deployment(place, port, reports_in(place), say=say, secure=secure)


def _secured(home: Path) -> list[str]:
    make_certificates(home)
    files = {"--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key", "--ssl-ca-certfile": "ca.crt"}
    return [word for option, name in files.items() for word in (option, str(home / name))] + [
        "--enable-supernode-auth"
    ]


# --- certificates and node keys, valid for a day


def make_certificates(home: Path) -> None:
    """Write ca.crt, server.pem and server.key for localhost, valid for one day."""
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    usage = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    root = (
        _certificate("twinflower loopback CA", "twinflower loopback CA", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .sign(authority, hashes.SHA384())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = (
        _certificate("localhost", "twinflower loopback CA", server)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority, hashes.SHA384())
    )
    (home / "ca.crt").write_bytes(root.public_bytes(_PEM))
    (home / "server.pem").write_bytes(leaf.public_bytes(_PEM))
    plain = (_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write_secret(home / "server.key", server.private_bytes(*plain))


def _certificate(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
    )


def make_node_key(path: Path) -> Path:
    """Write a SuperNode's private key to `path`; return the path of its public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = (_PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    _write_secret(path, key.private_bytes(*private))
    public = path.with_name(f"{path.name}.pub")
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public.write_bytes(key.public_key().public_bytes(*form) + b"\n")
    return public


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def run(plan: Experiment, folder: Path, observer: Observer, secure: bool = False) -> list[str]:
    """Rehearse the only run of an experiment; return an error message if it failed.

    secure: use TLS and admit only registered nodes.
    """
    config = plan.curves[0].config.with_clients()
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
        identities = exchange_keys(running.home, setup) if setup.pooled else {}
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
        if setup.method.sends_sums:
            own |= {**allowing(setup.objective, "newton-rows"), "newton-rows-per-parameter": 1.0}
        folds = setup.method.num_folds
        own |= {"newton-folds": folds, "newton-rounds": 10**6} if folds else {}
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
        bool(data.test_file or config.evaluation.held_out or config.privacy.exact_sums),
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
