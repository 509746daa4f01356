"""Sections of a report: all renderers show all of a section, know no subject, and add no number to it."""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pages import command
from site_files import three_sites
from test_survival import SCHEMA, patients

from twinflower.queries import QUERIES
from twinflower.simulation.report import charts, console, document, present, sections
from twinflower.simulation.report.charts import chart
from twinflower.simulation.report.document import Page, Section, Table, html, markdown
from twinflower.simulation.report.present import SECTIONS, page
from twinflower.simulation.report.sections.results import facts, spread
from twinflower.simulation.report.series import Series
from twinflower.simulation.report.study import StoredRun, Study
from twinflower.simulation.results.names import ANSWERS
from twinflower.simulation.results.reading import digests, read_plan
from twinflower.simulation.settings.reader import to_tables

CURVES = """
seeds = [0, 1]
[run]
rounds = 3
[run.clients]
count = 4
[run.privacy]
mode = "public-state"
epsilon = 4.0
[[curve]]
label = "dense"
[[curve]]
label = "sparse"
regulariser.weight = 0.01
"""
TRAINED = {
    "algorithm": "fedavg", "rounds": 3, "local.max-steps": 1, "fedavg.step-size": 0.4, "data.row-scaling": "all",
    "clients.weighting": "rows", "evaluation.held-out": 0.4, "evaluation.bins": 20,
}  # fmt: skip
TIMES = TRAINED | {
    "objective.name": "discrete-cox", "objective.intervals": "4 x 500", "evaluation.survival-curve": "4 x 500",
    "evaluation.auc-times": "500, 1500",
}  # fmt: skip
CLASSES = TRAINED | {"objective.name": "logistic", "evaluation.standard-errors": True}
ILL = """
ignore = ["days", "died"]
[label]
column = "frail"
classes = ["no", "yes"]
[columns]
age = { range = [20, 80] }
"""
NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """An experiment, a comparison, and runs of times and of classes, alone."""
    folder = tmp_path_factory.mktemp("sections")

    def run(name, text):
        (folder / f"{name}.toml").write_text(text)
        assert command("run", folder / f"{name}.toml", "--out", folder / name) == 0
        return folder / name

    def tables(name, schema, keys):
        (folder / f"{name}-sites").mkdir()
        keys = three_sites(folder / f"{name}-sites", schema, patients, (80, 120, 60, 100)) | keys
        return run(name, to_tables({f"run.{key}": value for key, value in keys.items()}))

    curves, times, classes = (
        run("curves", CURVES),
        tables("times", SCHEMA, TIMES),
        tables("classes", ILL, CLASSES),
    )
    return {
        "experiment": Study.of_experiment(read_plan(curves), curves),
        "comparison": Study.of_folders([curves, times]),
        "times": Study.of_run(times),
        "classes": Study.of_run(classes),
    }


def texts_of(section) -> Iterator[str]:
    """All that a section says, but for its charts."""
    yield from (section.title, *section.paragraphs, *section.points)
    for table in section.tables:
        yield from (table.title, table.remark, *table.headings)
        for row in table.rows:
            yield from row
    for part in (*section.parts, *section.folded):
        yield from texts_of(part)


def charts_of(section):
    return [*section.charts, *(one for part in (*section.parts, *section.folded) for one in charts_of(part))]


class Visible(HTMLParser):
    """The text of a page as a reader gets it, and the descriptions of its charts; ticks and legends left out."""

    def __init__(self, text):
        super().__init__()
        self.seen, self.skip = [], 0
        self.feed(text[text.index("<body>") : text.index("<script>")])

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.seen.append(attributes.get("aria-label", ""))
        hidden = attributes.get("class", "").split(" ")[0] in ("tick", "bound", "scale", "legend")
        self.skip += bool(self.skip or hidden) if tag not in ("path", "br") else 0

    def handle_endtag(self, tag):
        self.skip -= bool(self.skip)

    def handle_data(self, data):
        if not self.skip:
            self.seen.append(data)


def rendered(section, capsys):
    """The section by each renderer, as text on one line without markup."""
    screen = " ".join(Visible(html(Page("", "", "", [], [], [section], ""))).seen)
    plain = re.sub(r"\\(.)", r"\1", markdown("", [section])).replace("|", " ")
    capsys.readouterr()
    console.show(section)
    terminal = re.sub("[\u2500-\u257f]", " ", capsys.readouterr().out)
    found = {"HTML": screen.replace("\u00b1", "+-"), "Markdown": plain, "terminal": terminal}
    return {name: " ".join(text.split()) for name, text in found.items()}


@pytest.fixture
def wide(monkeypatch):
    """A terminal on which no cell is broken."""
    from rich.console import Console

    monkeypatch.setattr(console, "console", lambda: Console(width=5000))


@pytest.mark.parametrize("kind", ["experiment", "comparison", "times", "classes"])
def test_every_section_is_shown_whole_by_every_renderer_with_its_own_numbers_only(
    studies, kind, capsys, wide
):
    parts = [part for section in SECTIONS for part in section(studies[kind])]
    assert len(parts) >= 6
    for part in parts:
        said = [" ".join(text.split()) for text in texts_of(part)]
        drawn = [text for one in charts_of(part) for text in (one.description, one.remark)]
        numbers = {number for text in (*said, *drawn) for number in NUMBER.findall(text)}
        numbers |= {
            number for one in charts_of(part) for line in one.lines for number in NUMBER.findall(line.final)
        }
        numbers |= {tick.text for one in charts_of(part) for row in one.counts for tick in row}
        for name, shown in rendered(part, capsys).items():
            kept = [text for text in said if name != "terminal" or text != "-"]
            missing = [text for text in (*kept, *drawn) if " ".join(text.split()) not in shown]
            headings = {heading for table in tables_of(part) for heading in table.headings}
            assert not set(missing) - (headings if name == "terminal" else set()), (part.title, name)
            assert set(NUMBER.findall(shown)) <= numbers, (part.title, name)


def tables_of(section):
    return [*section.tables, *(one for part in (*section.parts, *section.folded) for one in tables_of(part))]


def test_a_renderer_shows_a_subject_that_it_has_never_heard_of(capsys, wide):
    line = Series("tide", "", *(np.array([1.0, 2.0]),) * 4)
    tides = Table(
        ("port", "low", "high"),
        [("Brest", "0.25", "0.75")],
        "by the moon",
        title="tides",
        bars=[(0.25, 0.75)],
    )
    section = Section(
        "Sea", ["wet"], ["salt"], [chart("height", "hour", [line], remark="spring")], [tides],
        [Section("Shore", ["sand"])], [Section("Depth", points=["dark"])],
    )  # fmt: skip
    for shown in rendered(section, capsys).values():
        assert all(text in shown for text in texts_of(section))
        assert "height by hour, at the end: tide 2" in shown and "spring" in shown


def test_renderers_import_no_subject():
    """They know texts, tables and charts: of this package nothing but each other, arrays and the points of a line."""
    for module in (charts, console, document):
        names = [
            node
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.ImportFrom)
        ]
        inside = {node.module for node in names if node.level or node.module.startswith("twinflower")}
        assert inside <= {"twinflower.arrays", "charts", "document", "series"}, module


def test_every_table_and_every_array_of_a_run_has_its_digest(studies):
    """Those of all questions among them, whose files no list outside of the questions names."""
    for kind in ("times", "classes"):
        folder = studies[kind].runs[0].folder
        written = {
            path.name for path in folder.iterdir() if path.suffix in (".csv", ".npz", ".jsonl", ".json")
        }
        assert written == {name for name, _ in digests(folder)} - {"config.toml"}
        assert written & set(ANSWERS)


def test_what_no_file_holds_is_no_number(studies):
    """A run in which nothing was measured, as one that failed before its first evaluation."""
    run = StoredRun(studies["classes"].runs[0].folder)
    kept = {"algorithm", "rounds", "parameters", "seed", "runtime"}
    measured = {key for key, value in run.summary.items() if isinstance(value, int | float)} - kept
    absent = run.summary | dict.fromkeys(measured)
    run.__dict__["summary"] = absent | {
        "regression": False,
        "survival": False,
        "facts": None,
        "standardised": False,
    }
    shown = {fact.name: fact.value for fact in facts(run)}
    assert not any(NUMBER.search(value) for value in shown.values()), json.dumps(shown)


def test_seeds_that_differ_by_rounding_have_no_deviation():
    assert spread([{"x": 0.1 + 0.2}, {"x": 0.3}], "x", ".3g") == "0.3 +- 0"
    assert spread([{"x": 0.1}, {"x": 0.3}], "x", ".3g") == f"0.2 +- {np.std([0.1, 0.3], ddof=1):.3g}"


def test_a_comparison_of_one_run_has_its_curves(studies):
    """The same section draws a run alone and among others: the same points under another name."""
    alone = studies["times"]
    both = Study.of_folders([alone.runs[0].folder])
    (first,), (second,) = (
        [part for part in page(study).sections if part.title == "Curves"] for study in (alone, both)
    )
    assert [one.lines[0].y for one in first.charts] == [one.lines[0].y for one in second.charts]


def test_a_question_brings_its_section_in_a_module_of_its_name(tmp_path, monkeypatch):
    """No list of sections is edited for it."""
    modules = {file.stem for file in Path(sections.__file__).parent.glob("*.py")}
    shown = [query.name for query in QUERIES if query.name in modules]
    assert {"survival", "evaluation"} <= set(shown) < {section.__name__ for section in SECTIONS}
    (tmp_path / "tides.py").write_text("def tides(study):\n    return ['high']\n")
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path)])
    monkeypatch.setattr(present, "QUERIES", (*QUERIES, SimpleNamespace(name="tides")))
    *known, new = present._of_questions()
    assert [section.__name__ for section in known] == shown
    assert new(None) == ["high"]
    monkeypatch.delitem(sys.modules, f"{sections.__name__}.tides")
