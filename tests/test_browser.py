"""Reports in a real browser: no message on the console, curves that answer, and nothing wider than a phone."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pages import command

from twinflower.simulation.report.present import rewrite

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
)  # fmt: skip
pytestmark = [pytest.mark.browser, pytest.mark.skipif(not BROWSER, reason="needs Chromium")]
PLAN = """
title = "two curves"
seeds = [0, 1]
y = ["objective", "test_accuracy"]
[run]
rounds = 3
[run.privacy]
mode = "public-state"
epsilon = 4.0
[run.clients]
count = 5
[[curve]]
label = "a_rather_long_label_without_any_place_at_which_a_line_could_be_broken"
[[curve]]
label = "sparse"
regulariser.weight = 0.01
"""
READ = """<script>
document.body.append(Object.assign(document.createElement("output"), {id: "read", textContent: JSON.stringify((() => {
%s
})())}));
</script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The results of an experiment with two curves, in whose folders are the reports of its runs."""
    path = tmp_path_factory.mktemp("browser")
    (path / "plan.toml").write_text(PLAN)
    assert command("run", path / "plan.toml", "--out", path / "out") == 0
    return path / "out"


@pytest.fixture
def opened(tmp_path):
    """Open a page; returns its document after the scripts have run, and what was written to the console."""

    def browse(text, *flags):
        (tmp_path / "page.html").write_text(text)
        command = [BROWSER, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom"]
        done = subprocess.run(
            [*command, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=120
        )
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return browse


def reports(folder):
    return [folder / "report.html", *(rewrite(run) for run in sorted(folder.rglob("seed-0")))]


def reading(text, code):
    """The page with a script at its end that runs this code and puts the result into the page."""
    return text.replace("</body>", READ % code + "</body>")


def result(document):
    return json.loads(html.unescape(document.split('<output id="read">')[1].split("</output>")[0]))


def test_an_error_on_the_console_is_seen(opened):
    """Otherwise the next test could not fail."""
    assert opened("<!DOCTYPE html><script>undefined.planted</script>")[1]


def test_the_console_stays_empty_and_the_script_runs(opened, folder):
    for path in reports(folder):
        document, console = opened(path.read_text())
        assert console == []
        assert 'class="interactive"' in document


def test_values_appear_under_the_pointer_and_curves_can_be_hidden(opened, folder):
    """The last values are those of the legend; a curve is hidden in both charts; the arrow keys move the cursor."""
    code = """
    const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
    plot.dispatchEvent(new PointerEvent("pointermove", {clientX: box.right, clientY: box.top + 5}));
    const tip = () => [...plot.querySelectorAll(".tip div")].map((row) => row.textContent);
    const told = tip();
    document.querySelectorAll("button.key")[0].click();
    const shown = [...document.querySelectorAll("g.line")].map((line) => getComputedStyle(line).display !== "none");
    plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft"}));
    const last = [...document.querySelector(".legend").querySelectorAll("b")].map((one) => Number(one.textContent));
    return {told, shown, after: tip(), last};
    """
    seen = result(opened(reading((folder / "report.html").read_text(), code))[0])
    assert seen["told"][0] == "communication round 3"
    values = [float(re.search(r"[\d.]+$", row)[0]) for row in seen["told"][1:]]
    assert values == pytest.approx(seen["last"], rel=1e-4)
    assert seen["shown"] == [False, True, False, True]
    assert len(seen["after"]) == 2
    assert seen["after"][0] == "communication round 2"


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(opened, folder, width):
    """A frame has the width of a phone; a window cannot. All folded parts are open."""
    code = """
    const page = document.querySelector("iframe").contentDocument;
    for (const one of page.querySelectorAll("details")) one.open = true;
    const outside = (one) => one.getBoundingClientRect().right > WIDTH + 1;
    const wide = [...page.querySelectorAll("main *:not(path, g)")].filter(outside);
    return {width: page.documentElement.scrollWidth, wide: wide.map((one) => one.outerHTML.slice(0, 120))};
    """.replace("WIDTH", str(width))
    for path in reports(folder):
        style = f"border:0;width:{width}px;height:900px"
        text = f'<!DOCTYPE html><body><iframe srcdoc="{html.escape(path.read_text())}" style="{style}"></iframe></body>'
        waiting = reading(text, code).replace("<script>", "<script>addEventListener('load', () => {", 1)
        document, _ = opened(waiting.replace("\n</script>", "\n});</script>"))
        assert result(document) == {"width": width, "wide": []}


def test_a_report_is_complete_without_its_script(opened, folder):
    """The same text and the same curves, where scripts do not run."""
    text = (folder / "report.html").read_text()
    without = text.split("<script>")[0] + text.split("</script>")[-1]
    code = "return [document.querySelector('main').innerText, document.querySelectorAll('path.mean').length];"
    assert result(opened(reading(text, code))[0]) == result(opened(reading(without, code))[0])


def test_a_report_can_be_printed(folder, tmp_path):
    command = [
        BROWSER,
        *QUIET,
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--print-to-pdf={tmp_path / 'page.pdf'}",
    ]
    subprocess.run(
        [*command, (folder / "report.html").as_uri()], check=True, capture_output=True, timeout=120
    )
    assert Path(tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
