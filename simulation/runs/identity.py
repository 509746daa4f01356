"""A site's identity for runs in which the server sees only sums: its private key, and the public keys of the sites it
accepts."""

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from twinflower.errors import DataError, SettingError
from twinflower.sums.masks import Identity, Peers, public_bytes

_FORM = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def make_key(path: Path) -> str:
    """Write a new Ed25519 private key to a file that only its owner may read; return the public key in hexadecimal.

    Raises SettingError if the file exists, because the other sites do not accept a site with a new key.
    """
    key = Ed25519PrivateKey.generate()
    try:
        path.touch(mode=0o600, exist_ok=False)
        path.write_bytes(key.private_bytes(*_FORM))
    except FileExistsError:
        raise SettingError(f"{path} exists: keep the key that is in it, or name another file") from None
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}") from None
    return public_bytes(key).hex()


def read_identity(number: int, key: Path, peers: Path) -> Identity:
    """The identity of the site with this number, read from its key file and peers file; DataError for invalid files."""
    private = _read(key, "identity-key")
    try:
        own = serialization.load_pem_private_key(private, None)
    except (ValueError, TypeError):
        own = None
    if not isinstance(own, Ed25519PrivateKey):
        raise DataError(
            f"the identity-key {key} holds no Ed25519 key: make one with `twinflower identity FILE`"
        )
    try:
        known = Peers.read(_read(peers, "peers-file").decode())
    except UnicodeDecodeError:
        raise DataError(f"the peers-file {peers} is no text") from None
    return Identity(number, own, known)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise DataError(f"the {name} {path} cannot be read: {error.strerror}") from None
