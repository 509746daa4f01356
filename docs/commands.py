"""The reference of the command line, docs/commands.md, made from the commands themselves: python docs/commands.py"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.main import get_command

from twinflower.simulation.cli import app

PAGE = Path(__file__).with_suffix(".md")
_HEAD = """\
# Command line

This page is made by `python docs/commands.py` from the commands; `twinflower COMMAND --help` prints the same texts. A
command refuses to overwrite a file that you name, unless `--force` is given. The exit status is 2 for invalid input, 1
if a run failed or a claim does not hold, and 128 plus the signal's number after a signal.
"""
_COMMON = """\
## Options of several commands

The usage line of each command names those of the following options that the command has.

| option | meaning |
|---|---|"""
_SEVERAL = 4  # commands with the same option, which is then described once


def document() -> str:
    """The text of docs/commands.md: the commands by group, and the arguments and options of each."""
    group = get_command(app)
    commands = {name: group.get_command(None, name) for name in group.commands}
    groups: dict[str, list[str]] = {}
    for info in app.registered_commands:
        name = info.name or info.callback.__name__
        groups.setdefault(info.rich_help_panel, []).append(name)
    parts = [_HEAD, "| | |\n|---|---|"]
    parts += [
        f"| {group} | {', '.join(f'[`{n}`](#{n})' for n in sorted(names))} |"
        for group, names in groups.items()
    ]
    rows = Counter(_row(param) for command in commands.values() for param in command.params)
    common = {
        row: rows[row]
        for row in rows
        if rows[row] >= _SEVERAL and row.startswith("| `--") and "--help" not in row
    }
    parts += ["\n" + _COMMON, *common]
    for group, names in groups.items():
        parts += [f"\n## {group}", *(_command(name, commands[name], common) for name in sorted(names))]
    return "\n".join(parts) + "\n"


def _command(name: str, command: Any, common: Mapping[str, int]) -> str:
    """A command with its usage and a table of its arguments and options, but for those in `common`."""
    shown = [param for param in command.params if param.name != "help"]
    arguments = [_placeholder(param) for param in shown if param.param_type_name == "argument"]
    rows = [_row(param) for param in shown if _row(param) not in common]
    usual = [f"[{_spelling(param)}]" for param in shown if _row(param) in common]
    options = ["[OPTIONS]"] * (len(rows) > len(arguments))
    usage = " ".join(["twinflower", name, *arguments, *options, *usual])
    head = ["", "| argument or option | meaning |\n|---|---|"] if rows else []
    return "\n".join([f"\n### {name}\n", " ".join(command.help.split()), f"\n`{usage}`", *head, *rows])


def _row(param: Any) -> str:
    return f"| `{_spelling(param)}` | {_meaning(param)} |"


def _placeholder(param: Any) -> str:
    text = param.name.upper() + "..." * (param.nargs == -1)
    return text if param.required else f"[{text}]"


def _spelling(param: Any) -> str:
    if param.param_type_name == "argument":
        return param.name.upper()
    value = "" if param.is_flag else f" {param.metavar or param.type.name.upper()}"
    return ", ".join(param.opts) + value


def _meaning(param: Any) -> str:
    shown = param.default not in (None, "", False, 0) and not param.required and "default" not in param.help
    default = f" (default: {param.default})" if shown else ""
    return param.help.replace("|", "\\|") + default


if __name__ == "__main__":
    PAGE.write_text(document(), encoding="utf-8")
