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
FIGURES = {  # run, beginning of the title, which of the charts with this title, and the title here
    "clinicians-hospitals": [
        ("hospitals/runs/open", "ROC curve", 0, "ROC curve: true positive rate"),
        ("hospitals/runs/open", "Calibration", 0, "Calibration: observed fraction"),
    ],
    "clinicians-survival": [
        ("survival/runs/curves", CURVES, 0, f"All regions: {CURVES.lower()}"),
        ("survival/runs/curves", CURVES, -1, f"By region: {CURVES.lower()}"),
    ],
    "clinicians-brca": [
        ("survival/runs/brca/curves", CURVES, 0, f"Without privacy: {CURVES.lower()}"),
        ("survival/runs/brca/epsilon-4", CURVES, 0, f"At epsilon 4: {CURVES.lower()}"),
    ],
}
SIZE = 1000, 560  # of the window, which holds two charts
SCALE = 1.5
BROWSER = "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-quic"


def page(folder: Path, charts: list[tuple[str, str, int, str]]) -> str:
    """A page with these charts only, in the style of the reports."""
    texts = [(folder / run / "report.html").read_text(encoding="utf-8") for run, *_ in charts]
    cut = [chart(text, *which) for text, (_, *which) in zip(texts, charts, strict=True)]
    head = texts[0].split("<body")[0]
    return (
        f'{head}<body><main style="padding: 0 1.5rem"><div class="charts">{"".join(cut)}</div></main></body>'
    )


def chart(text: str, title: str, nth: int, heading: str) -> str:
    """One of the charts of a report whose titles begin so, with another title, and files named without .csv."""
    found = re.findall(r'<figure class="chart">.*?</figure>', text, re.DOTALL)
    one = [one for one in found if f"<figcaption>{title}" in one][nth]
    one = re.sub(r"(<figcaption>)[^<]*", rf"\g<1>{heading}", one)
    return re.sub(r"\d+: ([\w-]+)\.csv", r"\1", one)


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
