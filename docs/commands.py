"""The reference of the command line, docs/commands.md, made from the commands themselves: python docs/commands.py"""

from pathlib import Path
from typing import Any

from typer.main import get_command

from twinflower.simulation.cli import app

PAGE = Path(__file__).with_suffix(".md")
_HEAD = """\
# Command line

Made by `python docs/commands.py` from the commands; `twinflower COMMAND --help` prints the same. A command that writes
a file refuses one that exists, unless `--force` is given. The exit status is 2 for invalid input, 1 if a run failed
or a claim does not hold, and 128 + signal after a signal.
"""


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
    for group, names in groups.items():
        parts += [f"\n## {group}", *(_command(name, commands[name]) for name in sorted(names))]
    return "\n".join(parts) + "\n"


def _command(name: str, command: Any) -> str:
    shown = [param for param in command.params if param.name != "help"]
    arguments = [_placeholder(param) for param in shown if param.param_type_name == "argument"]
    usage = " ".join(
        ["twinflower", name, *arguments, "[OPTIONS]"[: 9 * (len(arguments) < len(shown))]]
    ).rstrip()
    rows = [f"| `{_spelling(param)}` | {_meaning(param)} |" for param in shown]
    about = " ".join(command.help.split())
    head = ["| argument or option | meaning |\n|---|---|"] if rows else []
    return "\n".join([f"\n### {name}\n", f"{about}\n", f"```text\n{usage}\n```\n", *head, *rows])


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
