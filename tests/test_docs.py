"""Commands in the documents, run as they stand."""

import re
import socket
import ssl
import threading
from contextlib import suppress

import pytest
from documents import ROOT, cells, run_documented

from twinflower.simulation.app.node_check import check_node
from twinflower.simulation.settings import completed
from twinflower.simulation.settings.experiment import load_toml


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    run_documented("openssl", folder)
    return folder


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_documented_certificate_serves_users_and_the_superlinks_own_processes(certificates, host):
    with serving(certificates) as port:
        assert handshake(certificates, host, port) == b"hello"


def test_the_documented_certificate_vouches_for_no_other_name(certificates):
    with serving(certificates) as port, pytest.raises(ssl.SSLCertVerificationError):
        handshake(certificates, "elsewhere.example", port)


class serving:
    """A TLS server with server.pem and server.key on a free port of this machine."""

    def __init__(self, folder):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "server.pem", folder / "server.key")

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._answer, daemon=True).start()
        return self.listener.getsockname()[1]

    def _answer(self):
        with suppress(OSError):
            connection, _ = self.listener.accept()
            with self.context.wrap_socket(connection, server_side=True) as channel:
                channel.sendall(b"hello")

    def __exit__(self, *_):
        self.listener.close()


def handshake(folder, host, port):
    """What the server says to a client that trusts ca.crt and looks for this host, as strictly as Python can."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname=host) as channel,
    ):
        return channel.recv(5)


def test_the_documented_node_config_and_run_config_belong_together(tmp_path):
    """They are those of three of the four hospitals of the example; only their paths are others here."""
    text = (ROOT / "docs" / "deployment.md").read_text()
    node, run = (
        own for kind, own in cells(text) if kind == "toml" and ("num-partitions" in own or "[data]" in own)
    )
    hospitals = ROOT / "examples" / "hospitals"
    places = {
        "/data/patients.csv": hospitals / "sites" / "cleveland.csv",
        "/data/schema.toml": hospitals / "schema.toml",
        "/var/lib": tmp_path,
    }
    for name, content in (("node.toml", node), ("run-config.toml", run)):
        for old, new in places.items():
            content = content.replace(old, str(new))
        (tmp_path / name).write_text(content)
    right, wrong = check_node(
        str(tmp_path / "node.toml"), dict(completed(load_toml(tmp_path / "run-config.toml")))
    )
    assert not wrong
    assert right[-1] == "run: the site takes part, and plans epsilon 6"
    assert any("a run may plan up to epsilon 8 (max-epsilon; the budget leaves 10)" in line for line in right)


@pytest.mark.parametrize("page", ["experiments-ssca", "experiments-networked"])
def test_every_figure_of_a_paper_has_its_command(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    figures = re.findall(r"\(figures/([\w-]+)\.png\)", text)
    assert figures and all(f"{name}.toml" in text for name in figures)
