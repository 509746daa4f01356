"""What `mkdocs build` needs besides its configuration: the package as imported, and links that stay on the site."""

import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# A link to a file of the project that the site does not hold.
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./[^)]+\)")


def on_startup(**_: Any) -> None:
    """Lay `twinflower` out as it is imported, with its parts inside, so that the API pages show its true names."""
    package = ROOT / "build" / "api" / "twinflower"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "twinflower", package)
    for name in ("strategies", "clients", "simulation"):
        shutil.copytree(ROOT / name, package / name)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files outside docs/ instead of linking to them."""
    return OUTSIDE.sub(r"`\1`", markdown)
