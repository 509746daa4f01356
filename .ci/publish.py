"""Copy the app as it is published on Flower Hub: the files of the bundle, with absolute addresses in README.md.

    python .ci/publish.py FOLDER PAGES IMAGES && flwr app publish FOLDER

A published app holds text files only, so images and other documents need an address elsewhere. PAGES is the address of
the project's files as pages, IMAGES that of the files themselves; FOLDER is created and must be named like the app.
"""

import re
import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TARGET = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")  # of an image (!) or a link


def absolute(markdown: str, pages: str, images: str) -> str:
    """The text with absolute targets of all images and links."""

    def target(found: re.Match[str]) -> str:
        mark, text, path = found.groups()
        return f"{mark}[{text}]({(images if mark else pages).rstrip('/')}/{path})"

    return _TARGET.sub(target, markdown)


def main(folder: str, pages: str, images: str) -> None:
    """Write the app into a new folder."""
    app, patterns = Path(folder), tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    for pattern in patterns["fab-include"]:
        for path in ROOT.glob(pattern.lstrip("/")):
            copy = app / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    readme = app / "README.md"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), pages, images), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
