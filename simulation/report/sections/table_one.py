"""The section of a report on what the rows of the sites are like: Table 1 of an article."""

import math
from collections.abc import Mapping, Sequence

from twinflower.models.summaries import ALL, MISSING, Line
from twinflower.queries.table_one import FILE, TableOne

from ...results.reading import read_answers
from ..document import Section, Table
from ..study import StoredRun, of_one_run
from .sites import label_of

_Lines = Mapping[tuple[str, str], Line]  # of one column of the table, by column and category
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
    found: list[tuple[str, str, Line]] = read_answers(run.folder, TableOne)
    if not found:
        return []
    groups = list(dict.fromkeys(line.group for *_, line in found))
    clients = list(dict.fromkeys(client for client, *_ in found))
    names = {client: ALL if client == ALL else label_of(run, int(client)) for client in clients}
    tables: dict[tuple[str, str], dict[tuple[str, str], Line]] = {(c, g): {} for c in clients for g in groups}
    for client, _, line in found:
        tables[client, line.group][line.column, line.category] = line
    about = _about([line for *_, line in found], len(clients) - 1)
    if len(groups) == 1:
        shown = clients[: _MOST_SITES + 1]  # the first is of all sites
        whole = _table([names[client] for client in shown], [tables[client, ALL] for client in shown])
        return [Section("Table 1", about, tables=[whole])]
    by = {client: _table(groups, [tables[client, group] for group in groups], True) for client in clients}
    sites = {client: site or f"site {client}" for client, site, _ in found}
    alone = ((client, table) for client, table in by.items() if client != ALL)
    folded = [Section(f"Table 1 at {sites[client]}", tables=[table]) for client, table in alone]
    return [Section("Table 1", about, tables=[by[ALL]], folded=folded[:_MOST_SITES])]


def _about(lines: Sequence[Line], sites: int) -> list[str]:
    noise, texts = max(line.noise for line in lines), [_LEGEND]
    if any(line.group != ALL for line in lines):
        texts.append(_DIFFERENCES + _NOISY_DIFFERENCES * bool(noise))
    if noise:
        texts.append(
            f"A count has noise of up to {noise:.4g} (standard deviation), which can make it negative. A dash is a "
            "statistic that noise hides."
        )
    if any(line.rows != line.most_rows for line in lines):
        texts.append(
            "Sites have withheld counts of few rows: a to b is what the others allow, and a dash where that is nothing."
            " Numbers describe the n values that are not withheld."
        )
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


def _difference(line: Line) -> str:
    value, noise = line.difference, line.difference_noise
    return "-" if math.isnan(value) else f"{value:.2f} ({noise:.2g})" if noise else f"{value:.2f}"


def _rows(column: str, category: str, lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """The rows of a line: one for a count, two for a number."""
    if not column:
        return [("rows", *map(_count, lines))]
    if category:
        name = f"{column}, {MISSING}" if category == MISSING else f"{column}: {category}"
        return [(name, *map(_count, lines))]
    return [(column, *map(_mean, lines)), ("", *map(_quartiles, lines))]


def _mean(line: Line) -> str:
    """Mean and deviation, with the number of values that they rest on where others are withheld."""
    size = "" if line.rows == line.most_rows else f"; n = {line.rows:,.0f}"
    return _numbers(
        f"{{}} ({{}}){size}", (line.mean, line.mean_noise), (line.deviation, line.deviation_noise)
    )


def _quartiles(line: Line) -> str:
    values = line.median, line.lower_quartile, line.upper_quartile
    return _numbers("{} [{}, {}]", *((value, line.bin_width) for value in values))


def _count(line: Line) -> str:
    low, high, percent = line.rows, line.most_rows, line.percent
    if low != high:
        return f"{low:,.0f} to {high:,.0f}" if low else "-"
    hidden = " (-)" if line.noise and line.category not in ("", MISSING) else ""
    return f"{low:z,.0f}" + (hidden if math.isnan(percent) else f" ({percent:z.1f}%)")


def _numbers(text: str, *values: tuple[float, float]) -> str:
    """The text with these values, each with its error, with as many digits as that supports."""
    if math.isnan(values[0][0]):
        return "-"
    return text.format(*("-" if math.isnan(value) else rounded(value, error) for value, error in values))


def rounded(value: float, error: float) -> str:
    """The value with digits down to the power of ten that is at most the error; four digits if there is none."""
    if not error > 0:
        return f"{value:.4g}"
    places = -math.floor(math.log10(error))
    return f"{round(value, places):z.{max(places, 0)}f}"
