"""Tables of sites, in which sites with equal numbers share a row."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

Site = Mapping[str, float | None]  # a row of clients.csv
_MOST_RANGES = 4  # of site numbers in one cell


def grouped(sites: Sequence[Site], columns: Sequence[str]) -> list[tuple[tuple[float, ...], list[Site]]]:
    """The sites by their values of these columns (0 for a missing one), the largest values first."""

    def values(site: Site) -> tuple[float, ...]:
        return tuple(site.get(name) or 0.0 for name in columns)

    found = sorted(sites, key=values, reverse=True)
    return [(key, list(group)) for key, group in groupby(found, key=values)]


def named(sites: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The numbers of some sites, and the range of their numbers of records, as text."""
    records = [int(site["rows"]) for site in sites]
    return ranges(sorted(int(site["client"]) for site in sites)), between(min(records), max(records))


def between(low: int, high: int) -> str:
    """A range of counts as text."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, such as "0 to 3, 7"; after some ranges only how many more there are."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    parts = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:_MOST_RANGES]]
    more = sum(map(len, runs[_MOST_RANGES:]))
    return ", ".join(parts) + (f" and {more} more" if more else "")
