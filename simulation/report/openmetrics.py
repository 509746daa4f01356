"""A site's ledgers as metrics for Prometheus, in the text format that its node exporter collects from files."""

import math

from twinflower.errors import SettingError
from twinflower.privacy import gdp_epsilon
from twinflower.privacy.charges import total_cost
from twinflower.privacy.ledger import Book


def of_books(books: list[tuple[str, Book]]) -> str:
    """The metrics of ledgers, each (name, content): epsilon of the lifetime budget, spent and left for one more run,
    the number of runs and of releases, and when the last one was charged, in seconds since the epoch.

    Raises SettingError if prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest
    except ImportError:
        raise SettingError(
            "metrics for Prometheus need prometheus-client: pip install 'twinflower[monitoring]'"
        ) from None
    registry = CollectorRegistry()
    gauges = {
        name: Gauge(f"twinflower_ledger_{name}", about, ["ledger", "data"], registry=registry)
        for name, about in _ABOUT.items()
    }
    for ledger, book in books:
        for name, value in _values(book).items():
            gauges[name].labels(ledger, book.data[:12]).set(value)
    return generate_latest(registry).decode()


_ABOUT = {
    "lifetime_epsilon": "epsilon of the lifetime budget, at its delta",
    "spent_epsilon": "epsilon of all releases so far together",
    "left_epsilon": "epsilon that one more run may plan",
    "runs": "runs that were charged",
    "releases": "releases that were charged",
    "last_release_timestamp_seconds": "when the last release was charged, 0 for never",
}


def _values(book: Book) -> dict[str, float]:
    """The value of each metric."""
    return {
        "lifetime_epsilon": book.epsilon,
        "spent_epsilon": gdp_epsilon(math.sqrt(total_cost(book.charges)), book.delta),
        "left_epsilon": gdp_epsilon(math.sqrt(book.left), book.delta),
        "runs": len({charge.run for charge in book.charges}),
        "releases": len(book.charges),
        "last_release_timestamp_seconds": max((charge.time for charge in book.charges), default=0.0),
    }
