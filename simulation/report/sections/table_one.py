"""The section of a report on what the rows of the sites are like: Table 1 of an article."""

import csv
import math
from collections.abc import Mapping, Sequence

from twinflower.models.summaries import ALL, MISSING
from twinflower.queries.table_one import FILE

from ..document import Section, Table
from ..study import StoredRun, of_one_run
from .sites import label_of

_Lines = Mapping[tuple[str, str], Mapping[str, str]]  # of one column of the table, by column and category
_MOST_SITES = 8  # beside each other
_LEGEND = (
    "Numbers: mean (standard deviation), median [quartiles]. Categories: rows (percent of those that are not missing). "
    "Values outside of a range count as its end. Quartiles are interpolated in even bins of it (200, or 40 with "
    "privacy), so they can be off by the width of a bin, or of several that a site has merged, and have no more digits "
    f"than that. See also {FILE}."
)
_DIFFERENCE = "standardised difference"
_DIFFERENCES = (
    "The standardised difference of a number is that of its means in units of the groups' standard deviation, and of "
    "categories their Mahalanobis distance; of more than two groups it is the largest between any two."
)
_NOISY_DIFFERENCES = " In brackets: the noise in it (standard deviation). A difference of that size is noise."


@of_one_run
def table_one(run: StoredRun) -> list[Section]:
    """Table 1 of all sites, by group or by site, and by group at every site; nothing for a run without it."""
    path = run.folder / FILE
    if not path.exists():
        return []
    lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    groups, clients = (list(dict.fromkeys(line[key] for line in lines)) for key in ("group", "client"))
    names = {client: ALL if client == ALL else label_of(run, int(client)) for client in clients}
    tables = {pair: _lines(lines, *pair) for pair in ((c, g) for c in clients for g in groups)}
    if len(groups) == 1:
        shown = clients[: _MOST_SITES + 1]  # the first is of all sites
        whole = _table([names[client] for client in shown], [tables[client, ALL] for client in shown])
        return [Section("Table 1", _about(lines), tables=[whole])]
    by = {client: _table(groups, [tables[client, group] for group in groups], True) for client in clients}
    sites = {line["client"]: line["site"] or f"site {line['client']}" for line in lines}
    alone = ((client, table) for client, table in by.items() if client != ALL)
    folded = [Section(f"Table 1 at {sites[client]}", tables=[table]) for client, table in alone]
    return [Section("Table 1", _about(lines), tables=[by[ALL]], folded=folded[:_MOST_SITES])]


def _lines(lines: Sequence[Mapping[str, str]], client: str, group: str) -> _Lines:
    kept = (line for line in lines if line["client"] == client and line["group"] == group)
    return {(line["column"], line["category"]): line for line in kept}


def _about(lines: Sequence[Mapping[str, str]]) -> list[str]:
    noise, texts = max(float(line["noise"]) for line in lines), [_LEGEND]
    if any(line["group"] != ALL for line in lines):
        texts.append(_DIFFERENCES + _NOISY_DIFFERENCES * bool(noise))
    if noise:
        texts.append(
            f"A count has noise of up to {noise:.4g} (standard deviation), which can make it negative. A dash is a "
            "statistic that noise hides."
        )
    if any(line["rows"] != line["most_rows"] for line in lines):
        texts.append(
            "Sites have withheld counts of few rows: a to b is what the others allow, and a dash where that is nothing."
            " Numbers describe the n values that are not withheld."
        )
    sites = len({line["client"] for line in lines}) - 1
    if sites > _MOST_SITES:
        texts.append(f"{_MOST_SITES} of {sites} sites; the others are in {FILE}.")
    return texts


def _table(names: Sequence[str], columns: Sequence[_Lines], compared: bool = False) -> Table:
    """The lines of several groups beside each other; compared: with the differences between them."""
    rows, column = [], ""
    for key, line in columns[0].items():
        shown = _rows(*key, [lines[key] for lines in columns])
        cells = [_difference(line) if key[0] != column else "", *[""] * (len(shown) - 1)]
        column = key[0]
        rows += [(*row, *[cell] * compared) for row, cell in zip(shown, cells, strict=True)]
    return Table(("", *names, *[_DIFFERENCE] * compared), rows)


def _difference(line: Mapping[str, str]) -> str:
    value, noise = (float(line.get(key, "nan")) for key in ("difference", "difference_noise"))
    return "-" if value != value else f"{value:.2f} ({noise:.2g})" if noise else f"{value:.2f}"


def _rows(column: str, category: str, lines: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """The rows of a line: one for a count, two for a number."""
    if not column:
        return [("rows", *map(_count, lines))]
    if category:
        name = f"{column}, {MISSING}" if category == MISSING else f"{column}: {category}"
        return [(name, *map(_count, lines))]
    means = [_mean(line) for line in lines]
    middle = "median", "lower_quartile", "upper_quartile"
    quartiles = [_numbers("{} [{}, {}]", line, dict.fromkeys(middle, "bin_width")) for line in lines]
    return [(column, *means), ("", *quartiles)]


def _mean(line: Mapping[str, str]) -> str:
    """Mean and deviation, with the number of values that they rest on where others are withheld."""
    size = "" if line["rows"] == line["most_rows"] else f"; n = {float(line['rows']):,.0f}"
    return _numbers(f"{{}} ({{}}){size}", line, {"mean": "mean_noise", "deviation": "deviation_noise"})


def _count(line: Mapping[str, str]) -> str:
    low, high, percent = (float(line[key]) for key in ("rows", "most_rows", "percent"))
    if low != high:
        return f"{low:,.0f} to {high:,.0f}" if low else "-"
    hidden = " (-)" if float(line["noise"]) and line["category"] not in ("", MISSING) else ""
    return f"{low:z,.0f}" + (hidden if percent != percent else f" ({percent:z.1f}%)")


def _numbers(text: str, line: Mapping[str, str], errors: Mapping[str, str]) -> str:
    """The text with these values, by the names of their errors, with as many digits as these support."""
    values = [(float(line[key]), float(line[error])) for key, error in errors.items()]
    if values[0][0] != values[0][0]:
        return "-"
    return text.format(*("-" if value != value else rounded(value, error) for value, error in values))


def rounded(value: float, error: float) -> str:
    """The value with digits down to the power of ten that is at most the error; four digits if there is none."""
    if not error > 0:
        return f"{value:.4g}"
    places = -math.floor(math.log10(error))
    return f"{round(value, places):z.{max(places, 0)}f}"
