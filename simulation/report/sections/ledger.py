"""The section on the ledgers in a site's folder for its operators: the privacy spent, by run, and what remains."""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from twinflower.errors import SettingError
from twinflower.privacy import best_guess, gdp_epsilon
from twinflower.privacy.charges import Charge, total_cost
from twinflower.privacy.ledger import Book, read_ledger

from ..document import Section, Table

HEADINGS = ("data", "protects", "lifetime", "spent", "best guess", "left for a run", "runs", "ledger")
RUN_HEADINGS = (
    "data",
    "run",
    "releases",
    "epsilon",
    "against all others",
    "reserved",
    "first charge",
    "last charge",
    "Flower run",
)


def read_books(folder: Path) -> list[tuple[str, Book]]:
    """Each ledger in the folder with a charge as (name, content); SettingError if there is none, LedgerError if one is
    damaged."""
    if not folder.is_dir():
        raise SettingError(f"{folder} is not a folder: give the state-dir of a node, or its ~/.twinflower")
    books = [(path.name, book) for path in sorted(folder.glob("*.ledger")) if (book := read_ledger(path))]
    if not books:
        raise SettingError(f"{folder} holds no ledger: give the state-dir of a node, or its ~/.twinflower")
    return books


class Limit(NamedTuple):
    """The largest mu^2 that a node's policy lets one run plan, and the settings that say so."""

    most: float = math.inf
    settings: str = ""


def ledgers(books: list[tuple[str, Book]], policies: Mapping[str, Limit] = MappingProxyType({})) -> Section:
    """All that the ledgers say; policies: see `accounts`."""
    tables = [Table(HEADINGS, accounts(books, policies)), Table(RUN_HEADINGS, list(runs(books)))]
    return Section("", points=list(doubles(books)), tables=tables)


def lifetime(books: list[tuple[str, Book]]) -> Section:
    """The part of a site's privacy statement on its ledgers."""
    return Section("The lifetime budget of a site", tables=[Table(HEADINGS, accounts(books))])


def accounts(
    books: list[tuple[str, Book]], policies: Mapping[str, Limit] = MappingProxyType({})
) -> list[tuple[str, ...]]:
    """A row under HEADINGS for each ledger. policies: by the name of a ledger, what its node lets one run plan, if
    that is known.

    The best guess is the success rate of an optimal attacker on what the ledger protects, given what was spent (chance
    is 50%). Epsilons do not add up: the remaining epsilon is what one more run may plan.
    """
    return [
        (
            _data(book),
            book.unit.target,
            f"epsilon {book.epsilon:g}, delta {book.delta:g}",
            _epsilon(book.charges, book.delta),
            f"{best_guess(_mu(book.charges)):.1%}",
            allowance(book.left, policies.get(name, Limit()), book.delta),
            str(len(_runs(book.charges))),
            name,
        )
        for name, book in books
    ]


def runs(books: list[tuple[str, Book]]) -> Iterator[tuple[str, ...]]:
    """A row under RUN_HEADINGS for each run, in the order of the first charges.

    "Against all others" is, for a run in which the server sees only sums, the epsilon against the server and all other
    sites together; the first epsilon of such a run relies on the noise of other sites. "Reserved" is the epsilon of
    what a run may still charge. A run that was resumed has several runs of Flower.
    """
    for _, book in books:
        for run, charges in _runs(book.charges).items():
            times = [charge.time for charge in charges]
            alone = gdp_epsilon(math.sqrt(total_cost(charges, lambda charge: charge.cost_alone)), book.delta)
            held = book.reserved.get(run)
            reserved = f"{gdp_epsilon(math.sqrt(held), book.delta):.4g}" if held else "-"
            cells = (
                _epsilon(charges, book.delta),
                f"{alone:.4g}",
                reserved,
                _date(min(times)),
                _date(max(times)),
            )
            flower = sorted({charge.flower_run for charge in charges} - {""})
            yield _data(book), run, str(len(charges)), *cells, ", ".join(flower) or "-"


def doubles(books: list[tuple[str, Book]]) -> Iterator[str]:
    """A sentence for each set of rows that has several ledgers."""
    of_data: dict[str, list[str]] = {}
    for name, book in books:
        of_data.setdefault(book.data, []).append(name)
    for names in of_data.values():
        if len(names) > 1:
            yield (
                f"{' and '.join(names)} have the same rows: what was spent is the sum, and a site whose data-file has "
                "more than one ledger releases nothing"
            )


def _runs(charges: list[Charge]) -> dict[str, list[Charge]]:
    order = {run: place for place, run in reversed(list(enumerate(charge.run for charge in charges)))}
    together = sorted(charges, key=lambda charge: order[charge.run])
    return {run: list(group) for run, group in groupby(together, key=lambda charge: charge.run)}


def allowance(left: float, limit: Limit, delta: float) -> str:
    """The epsilon at delta that one more run may plan, with the reason if it is not what is left of the budget.

    left: of the lifetime budget, in mu^2.
    """
    lifetime = f"{gdp_epsilon(math.sqrt(left), delta):.4g}"
    if limit.most >= left:
        return lifetime
    return f"{gdp_epsilon(math.sqrt(limit.most), delta):.4g} ({limit.settings}; the budget leaves {lifetime})"


def _data(book: Book) -> str:
    """The name of the data set; a site's own rows are identified by the beginning of their fingerprint."""
    return book.data if " " in book.data else book.data[:12]


def _epsilon(charges: list[Charge], delta: float) -> str:
    return f"{gdp_epsilon(_mu(charges), delta):.4g}"


def _mu(charges: list[Charge]) -> float:
    return math.sqrt(total_cost(charges))


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
