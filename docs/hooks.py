"""What `mkdocs build` needs besides its configuration: the package as imported, and the files outside docs/ that pages
link to: documents become pages of the site, and all other files are copied to it."""

import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    **{
        f"examples/{name}/README.md": f"examples/{name}.md"
        for name in ("hospitals", "meters", "torch-app", "containers")
    },
}
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s:]+)(#[^)\s]*)?\)")
_FIGURE = re.compile(
    r'<p>((?:<img alt="[^"]*" src="[^"]*figures/[^"]*" />\s*)+)</p>(?!\s*<p><em>(?!Paper|Found|Verdict))'
)
_ALT = re.compile(r'alt="([^"]*)"')
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def on_startup(**_: Any) -> None:
    """Lay `twinflower` out as it is imported, with its parts inside, so that the API pages show its true names."""
    package = ROOT / "build" / "api" / "twinflower"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "twinflower", package)
    for name in ("strategies", "clients", "simulation"):
        shutil.copytree(ROOT / name, package / name)


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages outside docs/, and the other files outside docs/ that any page links to."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    linked: set[str] = set()
    for file in list(files.documentation_pages()):
        _rewritten(file.content_string, file.src_uri, linked)
    for path in sorted(linked):
        files.append(File.generated(config, f"source/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of docs/ to their places on the site."""
    return _rewritten(markdown, page.file.src_uri, set())


def on_page_content(html: str, **_: Any) -> str:
    """Show what a figure shows, its alternative text, as a caption below it, unless a caption in italics follows."""
    return _FIGURE.sub(
        lambda found: f"{found[0]}\n<p><em>{'. '.join(_ALT.findall(found[1]))}.</em></p>", html
    )


def _rewritten(markdown: str, page: str, linked: set[str]) -> str:
    """The text of a page with its links on the site; `linked` gets the files to copy."""
    origins = {place: path for path, place in PAGES.items()}
    origin = posixpath.dirname(origins.get(page, f"docs/{page}"))

    def place(found: re.Match[str]) -> str:
        """The link with its place on the site."""
        path = posixpath.normpath(posixpath.join(origin, found[2]))
        readme = f"{path}/README.md"
        if (ROOT / path).is_dir() and readme not in PAGES:
            return found[0] if path.startswith("docs") else f"`{path}`"
        target = PAGES.get(path) or PAGES.get(readme)
        if target is None and path.startswith("docs/"):
            target = path.removeprefix("docs/")
        if target is None:
            if not (ROOT / path).is_file():
                return found[0]  # mkdocs names the broken link
            linked.add(path)
            target = f"source/{path}"
        return f"{found[1]}{posixpath.relpath(target, posixpath.dirname(page))}{found[3] or ''})"

    parts, end = [], 0
    for block in _FENCE.finditer(markdown):
        parts += [_LINK.sub(place, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, _LINK.sub(place, markdown[end:])])
