"""Cut the charts of docs/clinicians.md out of the reports of its runs, with Chromium.

    python docs/clinicians.py FOLDER

FOLDER is the folder examples in which the commands of the page have run.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

CURVES = "Fraction without the event"  # of all sites, by group, and by site
FIGURES = {  # run, beginning of the title, and which of the charts with this title
    "clinicians-hospitals": [
        ("hospitals/runs/open", "ROC curve", 0),
        ("hospitals/runs/open", "Calibration", 0),
    ],
    "clinicians-survival": [("survival/runs/curves", CURVES, 0), ("survival/runs/curves", CURVES, 2)],
    "clinicians-brca": [
        ("survival/runs/brca/curves", CURVES, 0),
        ("survival/runs/brca/epsilon-4", CURVES, 0),
    ],
}
SIZE = 1000, 560  # of the window, which holds two charts
SCALE = 1.5
BROWSER = "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-quic"


def page(folder: Path, charts: list[tuple[str, str, int]]) -> str:
    """A page with these charts only, in the style of the reports."""
    texts = [(folder / run / "report.html").read_text(encoding="utf-8") for run, *_ in charts]
    cut = [chart(text, *which) for text, (_, *which) in zip(texts, charts, strict=True)]
    head = texts[0].split("<body")[0]
    return (
        f'{head}<body><main style="padding: 0 1.5rem"><div class="charts">{"".join(cut)}</div></main></body>'
    )


def chart(text: str, title: str, nth: int) -> str:
    """One of the charts of a report whose titles begin so."""
    found = re.findall(r'<figure class="chart">.*?</figure>', text, re.DOTALL)
    return [one for one in found if f"<figcaption>{title}" in one][nth]


def draw(text: str, path: Path) -> None:
    """Write the picture of a page, without its empty lower part."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "page.html"
        place.write_text(text, encoding="utf-8")
        size = f"--window-size={SIZE[0]},{SIZE[1]}", f"--force-device-scale-factor={SCALE}"
        shot = f"--screenshot={path}", f"--user-data-dir={folder}/profile"
        subprocess.run([*BROWSER, *size, *shot, place.as_uri()], check=True, capture_output=True, timeout=120)
    with Image.open(path) as picture:
        plain = picture.convert("RGB")
        empty = Image.new("RGB", plain.size, plain.getpixel((0, 0)))
        height = min(plain.height, ImageChops.difference(plain, empty).getbbox()[3] + 20)
        cut = plain.crop((0, 0, plain.width, height))
        cut.convert("P", palette=Image.Palette.ADAPTIVE).save(path, optimize=True)


if __name__ == "__main__":
    for name, charts in FIGURES.items():
        draw(page(Path(sys.argv[1]), charts), Path(__file__).parent / "figures" / f"{name}.png")
