"""The files of examples/containers: they are valid, they name options that Flower has, and their commands work."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from twinflower.simulation.app.allowed_apps import allow
from twinflower.simulation.app.site import read_site
from twinflower.simulation.results.reading import read_summary
from twinflower.simulation.runtimes.flower import (
    CONNECTION,
    command_of,
    configure_flower_env,
    reports_in,
    write_connection,
)
from twinflower.simulation.runtimes.processes import free_ports, temporary_workspace
from twinflower.simulation.runtimes.rehearsal import Deployment, make_certificates, make_node_key

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "containers"
FILES = ["compose.yaml", "site.yaml"]
SITES = ["cleveland", "hungary", "long-beach", "switzerland"]


def read(name):
    return yaml.safe_load((FOLDER / name).read_text())


def command(service):
    role = service["build"]["args"]["ROLE"]
    return f"flower-{role}", service["command"]


def started(service):
    """The program of a service, and its words; the options after those of `twinflower node` are Flower's."""
    program, words = command(service)
    entry = service.get("entrypoint", [program])
    return [command_of(entry[0]), *entry[1:], *words]


def test_every_site_runs_allowed_apps_only():
    for name in FILES:
        for service in read(name)["services"].values():
            is_site = service["build"]["args"]["ROLE"] == "supernode"
            entry = ["twinflower", "node", "--allowed=/app/allowed-apps"]
            assert service.get("entrypoint") == (entry if is_site else None)


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_what_compose_specifies(name):
    """compose-spec.json: of github.com/compose-spec/compose-spec, Apache License 2.0."""
    schema = json.loads((ROOT / "tests" / "compose-spec.json").read_text())
    jsonschema.validate(read(name), schema)
    broken = read(name)
    next(iter(broken["services"].values()))["comand"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


def test_flower_knows_every_option_of_the_commands():
    services = [service for name in FILES for service in read(name)["services"].values()]
    commands = {command(service)[0]: set() for service in services}
    for service in services:
        program, words = command(service)
        commands[program] |= {word.partition("=")[0] for word in words}
    assert len(commands) == 2
    for program, options in commands.items():
        known = subprocess.run(
            [command_of(program), "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert options <= set(re.findall(r"--[a-z-]+", known))


@pytest.mark.parametrize("name", FILES)
def test_all_that_a_service_uses_is_declared(name):
    file = read(name)
    for service in file["services"].values():
        for kind in ("secrets", "configs"):
            used = [entry["source"] if isinstance(entry, dict) else entry for entry in service.get(kind, [])]
            assert set(used) <= file[kind].keys()
        named = [volume.split(":")[0] for volume in service["volumes"]]
        assert {volume for volume in named if "/" not in volume} <= file["volumes"].keys()


def test_every_service_polls_often():
    services = [service for name in FILES for service in read(name)["services"].values()]
    assert len(services) == 6
    for service in services:
        assert service["environment"] == {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}


def test_no_two_sites_share_a_volume_a_key_or_a_table():
    services = read("compose.yaml")["services"]
    assert [*services] == ["superlink", *SITES]
    for key in ("volumes", "secrets", "configs"):
        own = [{str(entry) for entry in services[site][key]} for site in SITES]
        shared = set.intersection(*own)
        assert all(len(entries - shared) == len(own[0] - shared) > 0 for entries in own)
        assert len(set.union(*own) - shared) == len(SITES) * len(own[0] - shared)


def test_the_node_configs_are_those_of_a_federation():
    sites = [read_site(config(number)) for number in range(len(SITES))]
    assert [site.partition_id for site in sites] == list(range(len(SITES)))
    assert {site.num_partitions for site in sites} == {len(SITES)}


def test_no_key_or_table_is_part_of_an_image():
    lines = [
        line for line in (FOLDER / "Dockerfile").read_text().splitlines() if line.startswith(("COPY", "ADD"))
    ]
    assert lines == ["COPY wheels/ /tmp/wheels/"]
    assert "secrets/" in (FOLDER / ".dockerignore").read_text() + (FOLDER / ".gitignore").read_text()


def config(number):
    """The node config of a site, with its schema where it is in the source."""
    text = (FOLDER / "nodes" / f"{number}.toml").read_text()
    return tomllib.loads(text) | {"schema": str(ROOT / "examples" / "hospitals" / "schema.toml")}


def translated(words, paths):
    """The words of a command with the paths of this machine in place of those in a container."""
    text = "\n".join(words)
    for inside, here in paths.items():
        text = text.replace(inside, str(here))
    return text.split("\n")


@pytest.mark.deployment
def test_the_commands_work_without_containers():
    """With TLS and registered nodes, each site with its own files; the run config is the one in the example."""
    services, hospitals = read("compose.yaml")["services"], ROOT / "examples" / "hospitals"
    with temporary_workspace() as place:
        configure_flower_env(place)
        home, (port,) = place.home, free_ports(1)
        make_certificates(home)
        server = {"/run/secrets": home, "/app/state": home, "0.0.0.0": "127.0.0.1", "8000": port}
        place.keep("superlink", translated(started(services["superlink"]), server))
        place.await_port(port)
        write_connection(home, f'address = "127.0.0.1:{port}"\nroot-certificates = "{home / "ca.crt"}"\n')
        running = Deployment(place, port, reports_in(place))
        for number, site in enumerate(SITES):
            own = home / site
            own.mkdir()
            running.flwr("supernode", "register", str(make_node_key(own / "node")), CONNECTION)
            table = {"data-file": str(hospitals / "sites" / f"{site}.csv"), "state-dir": str(own / "state")}
            lines = [f"{key} = {json.dumps(value)}" for key, value in (config(number) | table).items()]
            (own / "node.toml").write_text("\n".join(lines))
            paths = {"/run/secrets/ca.crt": home / "ca.crt", "/run/secrets": own, "/app": own}
            allow(ROOT, own / "allowed-apps")
            words = translated(started(services[site]), paths | {"superlink:8000": f"127.0.0.1:{port}"})
            words += ["--port", str(free_ports(1)[0])]
            place.start(site, words, {"FLWR_HOME": str(own)})
        run_config = home / "run-config.toml"
        example = re.sub(r"= 15\b", "= 2", (FOLDER / "run-config.toml").read_text())
        run_config.write_text("\n".join(translated([example], {"/data": hospitals})))
        running.flwr("run", str(ROOT), CONNECTION, "--stream", "--run-config", str(run_config))
        assert running.last_status() == "finished:completed"
        summary = read_summary(home / "runs" / "fedpdm-own")
        assert summary["finished"] and summary["rounds"] == 2 and summary["privacy"]["epsilon"] < 8.001
        ledgers = [[*(home / site / "state").glob("*.ledger")] for site in SITES]
        assert all(len(found) == 1 for found in ledgers)
        checked = subprocess.run(
            [sys.executable, "-m", "twinflower", "check-node", str(home / "cleveland" / "node.toml")],
            capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        assert checked.returncode == 0 and "a run may plan up to epsilon" in checked.stdout
