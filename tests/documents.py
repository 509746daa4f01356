"""Commands that stand in the documents, to be run as they are."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def documented(program, server="localhost"):
    """The lines of docs/deployment.md on TLS that call a program, for a server of this name."""
    section = (ROOT / "docs" / "deployment.md").read_text().split("## TLS and registered nodes")[1]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1]
    lines = [line for line in block.splitlines() if line.startswith(program)]
    assert lines
    return "\n".join(lines).replace("SERVER", server)


def run_documented(program, folder):
    """Run these lines in a folder."""
    script = f"set -euo pipefail\n{documented(program)}"
    subprocess.run(["bash", "-c", script], cwd=folder, check=True, capture_output=True, text=True)


def cells(text):
    """The blocks of code in a text, in order: the language and the lines of each."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def tables(text):
    """The rows of cells of every table in a text, without the headings, by its first heading."""
    found = {}
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        heading, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines())
        found[heading[0]] = rows
    return found
