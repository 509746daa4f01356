"""A real deployment on this machine: a SuperLink, SuperNodes in separate processes, and `flwr run` on them.

It uses a temporary folder and free ports, and everything is stopped and removed when the context exits. With `secure`
all connections use TLS with a temporary certificate authority, and only nodes with registered public keys may connect.
"""

import ipaddress
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..settings import Value
from ..settings.toml import to_toml
from . import progress, supernode
from .engine import (
    CONNECTION,
    Engine,
    Say,
    configure_flower_env,
    reports_in,
    silent,
    start_superlink,
    write_connection,
)
from .flower_internals import QUICK_NODES
from .processes import free_ports, temporary_workspace

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
        command = [sys.executable, "-P", "-m", supernode.__name__, "--superlink", f"127.0.0.1:{self.port}"]
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
