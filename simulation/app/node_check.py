"""What a site's administrator can find out before a node joins: whether its config, files, ledger and keys are right.

Nothing is sent or charged, and no file remains. The sentences may quote the site's files, because only the site reads
them.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from twinflower.clients.mods import UNNAMED
from twinflower.data.checks import problems
from twinflower.data.schema_file import draft_warning, read_schema
from twinflower.errors import DataError, SettingError, TwinflowerError, require
from twinflower.flower_messages import PLACES, SITE
from twinflower.privacy import gdp_epsilon, gdp_mu
from twinflower.privacy.guard import Guard
from twinflower.privacy.ledger import FileLedger, read_ledger

from ..report.sections.ledger import Limit, allowance
from ..runtimes.flower_internals import node_config
from .allowed_apps import read_allowed
from .client_app import (
    check_folder,
    check_people,
    clipped_at,
    folder_of,
    identity_of,
    ledger_of_site,
    site_guard,
    site_setup,
)
from .site import Site, read_site

Check = Callable[[Site], Iterable[str]]
"""Finds out one thing about a site; yields what is right, and raises TwinflowerError for what is not."""


def check_node(
    text: str, run_config: dict[str, Any] | None = None, number: str = ""
) -> tuple[list[str], list[str]]:
    """What is right about a node, and what is not.

    text: as for `flower-supernode --node-config`, KEY=VALUE pairs or a TOML file. run_config: of a run that the node
    is to take part in, which is looked at if the rest is right. number: "I/N", the number that the server will give to
    a node without a partition, and of how many. Raises SettingError for a node config that cannot be read or is
    invalid.
    """
    node = _read(text)
    unknown = node.keys().isdisjoint(PLACES) and not number
    require(
        not unknown or run_config is None,
        "the server numbers this node, and what a run asks of it depends on its number: give it with --number I/N, "
        "I being its place in the order of the sites' names, from 0, and N their number",
    )
    site = _numbered_site(node, number)
    checks = (_config, _table, _people, _state, _budget, _unnumbered if unknown else _identity)
    right, wrong = _findings(site, *checks)
    if run_config is None or wrong:
        return right, wrong
    of_run, wrong = _findings(site, lambda site: _run(site, run_config))
    return right + of_run, wrong


def _numbered_site(node: dict[str, Any], number: str = "") -> Site:
    """The site with this node config; one that is numbered by the server as it would be with `number`, by default the
    only one."""
    if not node.keys().isdisjoint(PLACES):
        require(not number, f"the node config has a partition, so leave out --number {number}")
        return read_site(node)
    match = re.fullmatch(r"(\d+)/(\d+)", number or "0/1")
    if match is None:
        raise SettingError(f"--number is the number of the site and of all sites, such as 0/3; got {number}")
    return read_site({SITE: UNNAMED, **node, **dict(zip(PLACES, map(int, match.groups()), strict=True))})


def _findings(site: Site, *checks: Check) -> tuple[list[str], list[str]]:
    """What these checks find right, and what they find wrong."""
    right: list[str] = []
    wrong: list[str] = []
    for check in checks:
        try:
            right += check(site)
        except TwinflowerError as error:
            wrong.append(str(error))
    return right, wrong


def _read(text: str) -> dict[str, Any]:
    if "=" not in text and not Path(text).suffix:  # which Flower takes for an empty config
        raise SettingError(f"the node config takes KEY=VALUE pairs or the path of a TOML file; got '{text}'")
    try:
        return node_config(text)
    except OSError as error:
        raise SettingError(f"cannot read the node config {text}: {error.strerror}") from None
    except Exception as error:  # noqa: BLE001  Flower raises errors of the libraries that it uses
        raise SettingError(f"the node config is not valid: {error}") from None


def allowed_apps(file: Path) -> str:
    """What `twinflower node` runs with this list; DataError for a list that it does not accept."""
    allowed = read_allowed(file)
    if not allowed:
        raise DataError(f"{file} allows no app: add one with `twinflower node allow APP`")
    return f"apps: {file} allows {', '.join(f'{name} ({digest[:8]})' for digest, name in allowed.items())}"


def _config(site: Site) -> Iterator[str]:
    runs = (
        f"private runs only ({', '.join(site.promises)})"
        if site.promises
        else "runs with and without privacy"
    )
    who = f"site {site.site}" if site.site else f"partition {site.partition_id} of {site.num_partitions}"
    yield f"config: {who}; takes part in {runs}"


def _table(site: Site) -> Iterator[str]:
    """A table is compared with its schema; other files are read only for a run, which says what is in them."""
    if not site.data_file:
        return
    path = Path(site.data_file).expanduser()
    if not _has_rows(site):
        raise SettingError(f"data-file {path} is not a file that can be read")
    if site.schema:
        schema = read_schema(site.schema)
        found = problems(path, schema)
        if found:
            raise SettingError("; ".join(found))
        yield f"table: {path} fits its schema, whose digest is {site.schema_digest}"
        if warning := draft_warning(site.schema):
            yield warning
        if scales := schema.at(path).scales:
            yield f"units: {', '.join(scales)} {'is' if len(scales) == 1 else 'are'} converted, as sites says"


def _has_rows(site: Site) -> bool:
    """Whether the data-file, if the config names one, can be read; the ledger of its rows is named after them."""
    path = Path(site.data_file).expanduser()
    return not site.data_file or (path.is_file() and os.access(path, os.R_OK))


def _people(site: Site) -> Iterator[str]:
    if not _has_rows(site):
        return
    check_people(site)
    if site.unit.size and site.schema:
        yield f"people: no {site.schema_group} has more than {site.unit.size} rows"


def _state(site: Site) -> Iterator[str]:
    """The folder may be missing; then it must be possible to make it."""
    check_folder(site)
    if site.state_dir:
        yield f"state: {folder_of(site)}"
    else:
        yield "state: without state-dir, a restarted node begins with a new state, and ledgers are in ~/.twinflower"


def _budget(site: Site) -> Iterator[str]:
    if site.lifetime_epsilon is None or not _has_rows(site):
        return
    ledger = ledger_of_site(site)
    ledger.check_others()
    delta, spent = site.lifetime_delta, ""
    left = gdp_mu(site.lifetime_epsilon, delta) ** 2
    book = read_ledger(ledger.path) if ledger.path.exists() else None
    if book is None:
        state = "is empty" if ledger.path.exists() else "does not exist yet"
        spent = f"; nothing is spent, the ledger {ledger.path} {state}"
    else:
        ledger.charges()  # LedgerError for a ledger of other data, or of another lifetime budget
        left = book.left
        held = math.fsum(book.reserved.values())
        if held:
            runs = ", ".join(book.reserved)
            spent = (
                f"; epsilon {gdp_epsilon(math.sqrt(held), delta):.4g} is reserved for the rest of run {runs}"
            )
    limit = allowance(left, policy_limit(site), delta)
    yield f"budget: epsilon {site.lifetime_epsilon:g}, delta {delta:g}{spent}; a run may plan up to epsilon {limit}"


def policy_limit(site: Site) -> Limit:
    """What the node config lets one run plan, whatever is left of the lifetime budget; a run of sums may plan more than
    max-epsilon-alone allows for the others."""
    given = {
        "max-epsilon": site.max_epsilon,
        "max-epsilon-alone": site.max_epsilon_alone,
        "lifetime-epsilon at max-delta": None if site.max_epsilon else site.lifetime_epsilon,
    }
    return min(
        (Limit(gdp_mu(own, site.max_delta) ** 2, key) for key, own in given.items() if own), default=Limit()
    )


def ledger_and_policy(text: str) -> tuple[str, Limit]:
    """The name of the ledger of a node, and its `policy_limit`; text: as for `check_node`.

    Raises LedgerError if the node's rows have a ledger under another name in its folder, or if the ledger under theirs
    was made for other rows.
    """
    site = _numbered_site(_read(text))
    ledger = ledger_of_site(site)
    ledger.check_others()
    if ledger.path.exists():
        ledger.charges()
    return ledger.path.name, policy_limit(site)


def _unnumbered(site: Site) -> Iterator[str]:
    if site.identity_key:
        yield "identity: not checked, because the key belongs to a number: give it with --number I/N"


def _identity(site: Site) -> Iterator[str]:
    if site.identity_key:
        identity = identity_of(site)
        yield f"identity: site {site.partition_id} of the {len(identity.peers.keys)} in {site.peers_file}"


def _run(site: Site, run_config: dict[str, Any]) -> Iterator[str]:
    """Whether the site takes part in a run, and whether its budget suffices; of one that is resumed, for its rest."""
    setup = site_setup(site, run_config)
    if text := clipped_at(site, setup):
        yield text
    guard = site_guard(setup, site, "a run that is only checked")
    if guard is None:
        yield "run: the site takes part; it is without privacy"
        return
    session = _session_of(guard) if run_config.get("output.resume-from") else ""
    epsilon = gdp_epsilon(guard.check_plan(session) ** 0.5, site.lifetime_delta)
    what = f"goes on with run {session}, of which epsilon {epsilon:.4g} is left" if session else ""
    yield f"run: the site takes part, and {what or f'plans epsilon {epsilon:.4g}'}"


def _session_of(guard: Guard) -> str:
    """The latest run with these settings in the site's ledger; empty if there is none."""
    ledger = guard.ledger
    charges = ledger.charges() if isinstance(ledger, FileLedger) and ledger.path.exists() else []
    return next((charge.run for charge in reversed(charges) if charge.config == guard.config), "")
