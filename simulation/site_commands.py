"""The commands for a site's administrator; `cli` adds them to the command line."""

from pathlib import Path
from typing import Annotated

import typer

from twinflower.errors import require

from .commands import Force, output


def schema(
    files: Annotated[list[Path], typer.Argument(help="tables: CSV, Parquet or .npz")],
    label: Annotated[str, typer.Option(help="column of the label (default: the last)")] = "",
    event: Annotated[str, typer.Option(help="column of the event, if the label is the time until it")] = "",
    weight: Annotated[str, typer.Option(help="column of row weights")] = "",
    out: Annotated[Path | None, output("file to write the draft to (default: the screen)")] = None,
    private_ranges: Annotated[
        bool,
        typer.Option(
            "--private-ranges", help="draft range = private for numbers, in place of the range in the data"
        ),
    ] = False,
    check: Annotated[
        Path | None, typer.Option(help="check the tables against this schema, in place of drafting one")
    ] = None,
    force: Force = False,
) -> None:
    """Draft a schema from tables, or check tables against one (--check)."""
    from twinflower.data.draft_notes import drafted

    from .arguments import check_tables, deliver
    from .report.console import progress, say

    if check:
        require(
            not (label or event or weight or private_ranges) and out is None,
            "--check only validates an existing schema: leave out --label, --event, --weight, --out and "
            "--private-ranges",
        )
        check_tables(files, check)
        return
    progress(f"reading {', '.join(map(str, files))} and comparing the columns")
    text, notes = drafted(files, label, private_ranges, event, weight)
    deliver(text, out, "schema (it was made from the data, see its first lines)")
    say(*(notes if out else ()))


def identity(
    file: Annotated[Path, typer.Argument(help="new file for the private key; keep it secret")],
) -> None:
    """Create a site's key for secure aggregation, and print its public key for the peers file."""
    from .report.console import say
    from .runs.identity import make_key

    say(make_key(file.expanduser()))


def check_node(
    node_config: Annotated[
        str, typer.Argument(help="the --node-config of flower-supernode: KEY=VALUE pairs, or a TOML file")
    ],
    run_config: Annotated[
        Path | None,
        typer.Option(help="also check whether the node can take part in a run with this run config"),
    ] = None,
    number: Annotated[
        str,
        typer.Option(
            help="I/N: for a node without partition-id, its place in the order of the sites' names, from 0, and how "
            "many sites there are"
        ),
    ] = "",
    allowed: Annotated[
        Path | None, typer.Option(help="also show the apps that `twinflower node --allowed FILE` runs")
    ] = None,
) -> None:
    """Check a node's config, table, ledger and keys before it joins."""
    from .arguments import check_site

    check_site(node_config, run_config, number, allowed)


def node(
    words: Annotated[
        list[str],
        typer.Argument(
            help="options of flower-supernode; or allow APP, to allow an app: its folder, or a bundle (.fab)",
            metavar="[allow APP | OPTIONS]",
        ),
    ],
    allowed: Annotated[
        Path, typer.Option(help="the list of allowed apps", show_default="~/.twinflower/allowed-apps")
    ] = Path("~/.twinflower/allowed-apps"),
) -> None:
    """Run a SuperNode that refuses every app but those that were allowed, by the hashes of their bundles."""
    from .app.allowed_apps import allow, run_node
    from .report.console import say

    if words[0] == "allow":
        require(len(words) == 2, "allow takes one APP, the folder of an app or a bundle")
        say(f"allowed: {allow(Path(words[1]), allowed)}")
    else:
        run_node(words, allowed)


def ledger(
    folder: Annotated[
        Path, typer.Argument(help="folder of a node's ledgers: its state-dir, or ~/.twinflower")
    ],
    openmetrics: Annotated[
        Path | None, output("file to write metrics for Prometheus to, in place of the tables")
    ] = None,
    node_config: Annotated[
        str,
        typer.Option(
            help="the node's config, as for check-node: also shows what its max-epsilon lets a run plan"
        ),
    ] = "",
    give_up: Annotated[
        str,
        typer.Option(
            help="release what this run has reserved and will not charge, because it will not go on; in place of tables"
        ),
    ] = "",
    force: Force = False,
) -> None:
    """Show the privacy spent on a node's data, by run, and what remains of the lifetime budget."""
    from .arguments import release_run, show_ledgers

    require(not (node_config and openmetrics), "--node-config belongs to the tables: leave out --openmetrics")
    require(not (give_up and (node_config or openmetrics)), "--give-up takes no other option")
    if give_up:
        release_run(folder, give_up)
        return
    show_ledgers(folder, node_config, openmetrics)
