"""What all commands share: where they write, how they end, the closest command to an unknown one, and words that a
shell completes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperGroup

from twinflower.errors import SettingError
from twinflower.settings import nearest

_GROUPS = {
    "Train": ("run", "tune", "path", "refit", "list", "settings", "graph"),
    "Results": ("figure", "report", "compare", "status", "predict", "coefficients", "table-one"),
    "Data": ("schema",),
    "Privacy": ("privacy", "audit", "ledger"),
    "Sites": ("deploy", "check-node", "identity", "node"),
}


class Commands(TyperGroup):
    """Refuses an unknown command in our words; some versions of typer and click suggest the same command twice."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See click. The help of arguments is read again: with click 8.4, typer 0.20 loses it."""
        command = super().get_command(ctx, cmd_name)
        if command and command.callback:
            declared = get_type_hints(unwrap(command.callback), include_extras=True)
            for parameter in command.params:
                if not parameter.help and parameter.name in declared:
                    parameter.help = declared[parameter.name].__metadata__[0].help
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click; SettingError for an unknown command, unless a shell completes the line."""
        known = self.list_commands(ctx)
        if not ctx.resilient_parsing and args[0] not in known:
            raise SettingError(f"there is no command '{args[0]}'; {nearest(args[0], known)}")
        return super().resolve_command(ctx, args)


def _free(ctx: typer.Context, path: Path | None) -> Path | None:
    from .results.files import require_free

    if path and not ctx.resilient_parsing:
        require_free(path, ctx.params["force"])
    return path


Force = Annotated[
    bool, typer.Option("--force", is_eager=True, help="overwrite the file to write, whatever it is")
]


def output(about: str) -> Any:
    """The option of a file that a command writes, which has a parameter `force: Force`, too: without --force the
    command ends, before it does anything, if `require_free` refuses the file."""
    return typer.Option(help=about, callback=_free)


def end(sentence: str, status: int) -> NoReturn:
    """End a command with an error and this exit status."""
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(status)


@contextmanager
def ended_by_signal(sentence: Callable[[], str]) -> Iterator[None]:
    """If a signal ends the block, end the command with this error and the exit status 128 + signal, 130 for SIGINT."""
    from .runtimes.processes import Interrupted

    try:
        yield
    except KeyboardInterrupt as signal:
        end(sentence(), signal.status if isinstance(signal, Interrupted) else 130)


def assignments(incomplete: str) -> list[str]:
    """The settings that begin with these letters, each with an equals sign, and with its values if they are few."""
    from .settings.catalogue import CATALOGUE

    name, equals, _ = incomplete.partition("=")
    if equals:
        words = CATALOGUE[name].key.setting.rule.words if name in CATALOGUE else ()
        found = [f"{name}={word}" for word in words]
    else:
        found = [f"{name}=" for name in CATALOGUE]
    return [text for text in found if text.startswith(incomplete)]


def sections(incomplete: str) -> list[str]:
    """The sections of the settings that begin with these letters."""
    from .settings.catalogue import SECTIONS

    return [name or "run" for name in SECTIONS if (name or "run").startswith(incomplete)]


def in_groups(app: typer.Typer) -> None:
    """Show the commands of an app in groups in its help."""
    for info in app.registered_commands:
        name = info.name or (info.callback.__name__ if info.callback else "")
        info.rich_help_panel = next((group for group, names in _GROUPS.items() if name in names), "More")


Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="override a setting (repeatable)", metavar="KEY=VALUE", autocompletion=assignments
    ),
]
Out = Annotated[str, typer.Option(help="new folder for the results (default: runs/NAME)")]
DataDir = Annotated[
    str, typer.Option(help="folder of data files (default: the environment variable TWINFLOWER_DATA)")
]
