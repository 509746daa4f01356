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
