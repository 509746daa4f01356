"""Commands in the documents, run as they stand."""

import re
import runpy
import socket
import ssl
import threading
import tomllib
from contextlib import chdir, suppress
from statistics import fmean, stdev

import pytest
from documents import ROOT, cells, run_documented, tables
from test_clinicians import follow, holds, rows_of
from typer.main import get_command

from twinflower.algorithms import ALGORITHMS
from twinflower.settings import settings_of
from twinflower.simulation.app.node_check import check_node
from twinflower.simulation.app.site import Site
from twinflower.simulation.cli import app
from twinflower.simulation.experiment_files import load_toml
from twinflower.simulation.settings import completed
from twinflower.simulation.settings.catalogue import SECTIONS

PAGES = sorted((ROOT / "docs").glob("*.md"))


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
        own
        for kind, own in cells(text)
        if kind == "toml" and ("lifetime-epsilon" in own or "data.name" in own)
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
        str(tmp_path / "node.toml"), dict(completed(load_toml(tmp_path / "run-config.toml"))), "0/3"
    )
    assert not wrong
    assert right[-1] == "run: the site takes part, and plans epsilon 6"
    assert any("a run may plan up to epsilon 8 (max-epsilon; the budget leaves 10)" in line for line in right)


def test_the_files_to_open_for_a_change_exist():
    rows = tables((ROOT / "CONTRIBUTING.md").read_text())["to change this"]
    files = [re.findall(r"`([a-z]+/[\w./]*)`", where) for _, where in rows]
    assert len(rows) >= 14 and sum(map(bool, files)) >= 14
    assert not [file for named in files for file in named if not (ROOT / file).exists()]


def test_the_table_of_the_node_config_has_every_key():
    rows = tables((ROOT / "docs" / "deployment.md").read_text())["node config"]
    assert set(settings_of(Site)) <= set(re.findall(r"`([\w-]+)`", " ".join(key for key, _ in rows)))


@pytest.mark.parametrize("page", ["experiments-ssca", "experiments-networked"])
def test_every_figure_of_a_paper_has_its_command(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    figures = re.findall(r"\(figures/([\w-]+)\.png\)", text)
    assert figures and all(f"{name}.toml" in text for name in figures)


def test_the_release_has_one_number_and_one_date():
    """In pyproject.toml, CITATION.cff, the changelog and the wheel that an example names."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text()
    heading = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    day = re.search(r"date-released: (\S+)", citation)[1]
    assert f"version: {version}\n" in citation and heading == f"{version} ({day})"
    wheels = re.findall(r"twinflower-([\d.]+)-py3", (ROOT / "examples" / "meters" / "README.md").read_text())
    assert set(wheels) == {version}


def test_no_page_and_no_message_installs_twinflower_from_an_index():
    """There is no such release: the extras are those of a checkout."""
    pages = (ROOT / "README.md", *PAGES, *ROOT.glob("examples/*/README.md"))
    sources = (
        path for name in ("twinflower", "simulation", "clients") for path in (ROOT / name).rglob("*.py")
    )
    wrong = re.compile(r"pip install [^\n`]*\btwinflower(?!-\d)(?!\.git)\b")
    assert not [path.name for path in (*pages, *sources) if wrong.search(path.read_text())]


def test_the_time_of_the_comparisons_is_the_sum_of_its_parts():
    """benchmarks.md has the minutes of each part; the page on the comparisons has their sum."""
    parts = re.findall(
        r"^\| (.+?) \| (\d+):(\d\d) \|", (ROOT / "docs" / "benchmarks.md").read_text(), re.MULTILINE
    )
    seconds = {name: 60 * int(minutes) + int(rest) for name, minutes, rest in parts}
    total = seconds.pop("all")
    assert sum(seconds.values()) == pytest.approx(total, abs=len(seconds) / 2)
    methods = sum(value for name, value in seconds.items() if name.startswith("methods, "))
    stated = re.search(r"(\d+):(\d\d) minutes", (ROOT / "docs" / "experiments-compared.md").read_text())
    assert 60 * int(stated[1]) + int(stated[2]) == methods


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_are_written_in_one_form(page):
    """With their section before the key, below [run]: the form of --set, --run-config and the reference."""
    blocks = "\n".join(body for kind, body in cells(page.read_text()) if kind == "toml")
    assert not re.findall(rf"^\[(?:run\.)?({'|'.join(filter(None, SECTIONS))})\]", blocks, re.MULTILINE)


def test_the_reference_of_the_command_line_is_current():
    page = runpy.run_path(str(ROOT / "docs" / "commands.py"))
    assert page["PAGE"].read_text() == page["document"](), "run python docs/commands.py"


def test_every_argument_and_option_has_help():
    group = get_command(app)
    commands = [group.get_command(None, name) for name in group.commands]
    assert not [f"{c.name} {p.name}" for c in commands for p in c.params if not p.help]


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory):
    """The folder in which the commands of the tutorial have run; what it says they print is checked on the way."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    blocks = cells((ROOT / "docs" / "tutorial.md").read_text())
    with chdir(folder):
        follow([(kind, body) for kind, body in blocks if kind in ("toml", "sh", "text")])
        for kind, body in blocks:
            if kind == "python":
                exec(body, {})
    return folder


def test_the_tutorial_ends_with_the_reports_and_the_figure_that_it_promises(tutorial):
    written = ("runs/first/report.html", "comparison.html", "runs/mine/figure.png", "runs/mine/report.html")
    assert all((tutorial / name).exists() for name in written)


def test_the_table_of_the_tutorial_is_what_its_experiment_finds(tutorial):
    for epsilon, *told in tables((ROOT / "docs" / "tutorial.md").read_text())["epsilon"]:
        for method, (accuracy, nonzeros) in zip(("fedpdm", "fedavg"), (told[:2], told[2:]), strict=True):
            folder = tutorial / "runs" / "mine" / f"{method}-epsilon-{epsilon}"
            lasts = [rows_of(folder / f"seed-{seed}" / "metrics.csv")[-1] for seed in range(10)]
            scores = [float(row["test_accuracy"]) for row in lasts]
            holds(accuracy.replace("±", " "), fmean(scores), stdev(scores))
            holds(nonzeros, fmean(float(row["nonzeros"]) for row in lasts))


def test_the_readme_has_the_accuracies_of_the_four_hospitals():
    """In the caption of its picture; the table of the example is their source."""
    of = {
        row[0]: float(row[1].split()[0])
        for row in tables((ROOT / "examples/hospitals/README.md").read_text())[""]
    }
    readme = " ".join((ROOT / "README.md").read_text().split())
    pooled = of["pooled: logistic regression on all rows together"]
    assert (
        f"({of['federated']:.3f}) is as accurate as one fitted to the pooled table ({pooled:.3f})" in readme
    )
    costs = [of["federated"] - of[f"federated, epsilon {epsilon}"] for epsilon in (8, 1)]
    assert f"Epsilon 8 costs {costs[0]:.3f} and epsilon 1 costs {costs[1]:.2f}" in readme
    assert f"alone also reaches {of['each alone']:.3f}" in readme
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_readme_counts_the_methods():
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert (
        re.findall(r"has (?:all )?(\d+)(?: federated methods|\. `twinflower list`)", readme)
        == [f"{len(ALGORITHMS)}"] * 2
    )


def test_a_figure_on_the_site_has_its_text_as_a_caption_unless_it_has_one():
    pytest.importorskip("mkdocs")
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    figure = '<p><img alt="FedPDM falls" src="../figures/a.png" /></p>'
    captioned = f"{figure}\n<p><em>FedPDM falls.</em></p>"
    assert hooks["on_page_content"](f"{figure}\n<p>text</p>") == f"{captioned}\n<p>text</p>"
    assert hooks["on_page_content"](captioned) == captioned


def test_every_picture_is_described():
    """The alternative text says what is seen, in words, and is not the name of the file."""
    pages = (ROOT / "README.md", *PAGES, *ROOT.glob("examples/*/README.md"))
    found = [image for page in pages for image in re.findall(r"!\[([^\]]*)\]\(", page.read_text())]
    assert found and not [text for text in found if len(text.split()) < 6]
