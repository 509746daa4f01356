"""Reports read as a reader sees them, by the parser of the standard library, and the command line that writes them."""

import sys
from html.parser import HTMLParser

from twinflower.simulation import cli

VOID = {"meta", "link", "br", "path"}


class Page(HTMLParser):
    """The text of a report, its tables, facts, lines of charts, and every element with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.text, self.elements, self.facts, self.lines, self.tables = [], [], {}, {}, []
        self._open, self._chart = [], ""
        self.feed(text)
        self.close()
        self.text = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.elements.append((tag, found))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "figcaption":
            self._chart = ""
        if tag == "g":
            x, y = ([float(word) for word in found[key].split()] for key in ("data-x", "data-y"))
            self.lines[self._chart.strip(), found["data-label"]] = x, y

    def handle_endtag(self, tag):
        if tag in self._open:
            assert self._open.pop() == tag, f"{tag} is closed within another element"

    def handle_data(self, data):
        inside = set(self._open)
        if inside & {"style", "script"}:
            return
        self.text.append(data)
        if "figcaption" in inside and "b" not in inside:
            self._chart += data
        if inside & {"td", "th"}:
            self.tables[-1][-1][-1] += data
        if "dt" in inside:
            self.facts[data] = ""
        if "dd" in inside and "small" not in inside:
            self.facts[list(self.facts)[-1]] += data.strip()

    def table(self, heading):
        """The rows below the headings of the first table whose first heading is this one."""
        return next(rows[1:] for rows in self.tables if rows[0][0] == heading)


def command(*words):
    """Run the command line; returns its exit status."""
    before, sys.argv = sys.argv, ["twinflower", *map(str, words)]
    try:
        cli.main()
        return 0
    except SystemExit as end:
        return end.code or 0
    finally:
        sys.argv = before
