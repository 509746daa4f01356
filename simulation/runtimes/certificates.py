"""Certificates and node keys for a deployment on this machine, valid for a day."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PEM = serialization.Encoding.PEM


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
