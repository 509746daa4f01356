"""A real deployment on this machine: a SuperLink, SuperNodes in processes of their own, and `flwr run` on them.

Everything lives in a temporary folder, on free ports, and ends with the context. With `secure` all connections are TLS
under a certificate authority made for the occasion, and only nodes whose public keys were registered are let in.
"""

import ipaddress
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGKILL
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from twinflower.data.partition import Sizes
from twinflower.data.sets import Data, OwnData, TableData
from twinflower.data.tables import table_files
from twinflower.errors import require

from ..identity import make_key
from ..record import to_toml
from ..settings import Config, Value
from ..setup import Setup, prepare
from .engine import (
    CONNECTION,
    Engine,
    Tell,
    command_of,
    furnish,
    silent,
    start_superlink,
    write_connection,
)
from .processes import Tail, free_ports, place_of_its_own

_PEM = serialization.Encoding.PEM
_LOOK_FOR_MESSAGES = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}  # seconds; Flower's default is 1


@dataclass(frozen=True)
class Deployment(Engine):
    """A running SuperLink at `port`, and the SuperNodes that were started, by their number."""

    simulated: bool = False
    port: int = 0
    secure: bool = False
    nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_node(
        self, number: int, count: int, settings: Mapping[str, Value] | None = None, key: str = ""
    ) -> None:
        """A SuperNode that holds partition `number` of `count`; settings go into its node config.

        key: name of its private key, `node-NUMBER-key` by default, in a secure deployment.
        """
        config: dict[str, Value] = {"partition-id": number, "num-partitions": count, **(settings or {})}
        words = " ".join(to_toml(config).replace(" = ", "=").split("\n"))
        home, name = self.home / f"node-{number}", _name(number)
        home.mkdir(exist_ok=True)
        command = [command_of("flower-supernode"), "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--port", str(free_ports(1)[0]), "--node-config", words.strip()]
        command += self._credentials(key or f"node-{number}-key")
        self.watched[name] = Tail(self.place.log(name))
        self.nodes[number] = self.place.start(name, command, {"FLWR_HOME": str(home)})

    def _credentials(self, key: str) -> list[str]:
        if not self.secure:
            return ["--insecure"]
        keys = self.home / key
        return ["--root-certificates", str(self.home / "ca.crt"), "--auth-supernode-private-key", str(keys)]

    def register(self, number: int) -> None:
        """Make the node's keys and let the SuperLink know the public one."""
        public = make_node_key(self.home / f"node-{number}-key")
        self.flwr("supernode", "register", str(public), CONNECTION)

    def kill_node(self, number: int) -> None:
        """SIGKILL to the node and its children, as a power cut would."""
        with suppress(ProcessLookupError):
            os.killpg(self.nodes[number].pid, SIGKILL)
        self.nodes.pop(number).wait()

    def log_of(self, number: int) -> str:
        """What a node has written."""
        return self.place.log(_name(number)).read_text(errors="replace")

    def heard(self, line: str) -> str:
        """As for every process, and that the node has connected."""
        return "connected" if _CONNECTED in line else super().heard(line)


_CONNECTED = "SuperNode ID: "  # in a node's log


def _name(number: int) -> str:
    return f"node-{number}"


@contextmanager
def deployment(secure: bool = False, logs: Path | None = None, tell: Tell = silent) -> Iterator[Deployment]:
    """Start a SuperLink; end it, its nodes, and everything they started, on leaving.

    logs: folder of the log files; by default they end with the rest.
    """
    with place_of_its_own(logs) as place:
        furnish(place)
        place.environment |= _LOOK_FOR_MESSAGES
        (port,) = free_ports(1)
        tell(f"starting a SuperLink on port {port}; logs: {place.logs}")
        words = _secured(place.home) if secure else ["--insecure"]
        trust = f'root-certificates = "{place.home / "ca.crt"}"\n' if secure else "insecure = true\n"
        write_connection(place.home, f'address = "127.0.0.1:{port}"\n{trust}')
        start_superlink(place, port, [*words, "--disable-runtime-dependency-installation"])
        yield Deployment(place, tell=tell, port=port, secure=secure)


def rehearse(config: Config, folder: Path, secure: bool = False, tell: Tell = silent) -> None:
    """One run of a configuration on as many SuperNodes as it has clients; reports progress to `tell`.

    Every node keeps state and ledger in a folder of its own that ends with the rehearsal, and allows a lifetime budget
    just above what the run plans. Logs go to logs/ in the run's folder. Raises RunError unless Flower says
    finished:completed.
    """
    setup = prepare(config)
    config, files = at_sites(setup) if isinstance(config.data, TableData) else (config, [])
    own: dict[str, Value] = {}
    if setup.plan:
        own = {"lifetime-epsilon": 1.001 * setup.plan.epsilon_limit, "lifetime-delta": setup.plan.delta}
    if isinstance(config.data, Data) and config.data.dir:
        own["data-dir"] = str(Path(config.data.dir).absolute())
    with deployment(secure, _empty(folder.absolute() / "logs"), tell) as running:
        circle = acquainted(running.home, setup) if setup.sums else {}
        for number in range(config.clients.count):
            own["state-dir"] = str(running.home / f"node-{number}" / "state")
            of_site = (files[number] if files else {}) | circle.get(number, {})
            _start(running, number, config.clients.count, own | of_site)
        running.run(config, folder)
        tell("ending all processes")


def at_sites(setup: Setup) -> tuple[Config, list[dict[str, Value]]]:
    """A run on tables as one on rows that only the nodes have, and what the node config of each says of its table.

    SettingError where the rows are not divided by table already, or some would be held out of the nodes' tables.
    """
    config, data = setup.config, cast(TableData, setup.config.data)
    require(
        bool(setup.dataset.sites and data.test_file),
        "deploy needs one table for each node, and data.test-file, the rows that the server evaluates on",
    )
    own = OwnData(
        file=_from_here(data.test_file), schema=_from_here(data.schema), schema_digest=data.schema_digest,
        bias=data.bias, row_norm=data.row_norm,
    )  # fmt: skip
    sizes = Sizes("sizes", sizes=", ".join(map(str, setup.dataset.sites)))
    allowed: dict[str, Value] = {} if setup.plan else {"allow-non-private": True}
    nodes = [
        {"data-file": str(file.absolute()), "schema": own.schema, **allowed}
        for file in table_files(data.files)
    ]
    return replace(config, data=own, partition=sizes), nodes


def _from_here(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def acquainted(home: Path, setup: Setup) -> dict[int, dict[str, Value]]:
    """Identities for all nodes, and the file in which everybody's public key is; by number, what the node configs
    say."""
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
    """A folder for logs, without those of an earlier try."""
    logs.mkdir(parents=True, exist_ok=True)
    for log in logs.glob("*.log"):
        log.unlink()
    return logs


def _start(running: Deployment, number: int, count: int, own: Mapping[str, Value]) -> None:
    """Start a node that must not end before the rehearsal does."""
    if running.secure:
        running.register(number)
    running.start_node(number, count, own)
    running.place.running[_name(number)] = running.nodes[number]
    running.tell(f"{_name(number)}: {'registered, ' if running.secure else ''}started")
    running.look_at_nodes()


def _secured(home: Path) -> list[str]:
    make_certificates(home)
    files = {"--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key", "--ssl-ca-certfile": "ca.crt"}
    return [word for option, name in files.items() for word in (option, str(home / name))] + [
        "--enable-supernode-auth"
    ]


def make_certificates(home: Path) -> None:
    """ca.crt, server.pem and server.key for localhost, valid for a day."""
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
    """A SuperNode's private key at `path`; returns the file of the public one."""
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
