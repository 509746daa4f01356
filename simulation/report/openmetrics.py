"""A site's ledgers and a server's run as metrics for Prometheus, in the text format that its node exporter reads."""

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

from twinflower.errors import SettingError
from twinflower.privacy import gdp_epsilon
from twinflower.privacy.charges import total_cost
from twinflower.privacy.ledger import Book

from ..runs.run import Run

Metric = tuple[str, str, float]
"""A metric's name, what it is, and its value."""


def require_prometheus() -> Any:
    """The library prometheus_client; SettingError if it is not installed."""
    try:
        import prometheus_client
    except ImportError:
        raise SettingError(
            "metrics for Prometheus need prometheus-client: pip install prometheus-client"
        ) from None
    return prometheus_client


def of_books(books: list[tuple[str, Book]]) -> str:
    """The metrics of ledgers, each (name, content): epsilon of the lifetime budget, spent and left for one more run,
    the number of runs and of releases, and when the last one was charged, in seconds since the epoch.

    Raises SettingError if prometheus-client is not installed.
    """
    samples = (({"ledger": name, "data": book.data[:12]}, _of_book(book)) for name, book in books)
    return _text("twinflower_ledger", samples)


def of_run(name: str, run: Run) -> str:
    """The metrics of the run with this name, so far or at its end: rounds, replies, bits, seconds, and privacy.

    Raises SettingError if prometheus-client is not installed.
    """
    return _text("twinflower_run", [({"run": name}, [*_of_rounds(run), *_of_privacy(run)])])


def _text(prefix: str, samples: Iterable[tuple[dict[str, str], Iterable[Metric]]]) -> str:
    """The samples, each (labels, metrics), as text."""
    library = require_prometheus()
    registry = library.CollectorRegistry()
    gauges: dict[str, Any] = {}
    for labels, metrics in samples:
        for name, about, value in metrics:
            if name not in gauges:
                gauges[name] = library.Gauge(f"{prefix}_{name}", about, list(labels), registry=registry)
            gauges[name].labels(*labels.values()).set(value)
    text: str = library.generate_latest(registry).decode()
    return text


def _of_book(book: Book) -> Iterator[Metric]:
    """The metrics of a ledger."""
    spent = gdp_epsilon(math.sqrt(total_cost(book.charges)), book.delta)
    last = max((charge.time for charge in book.charges), default=0.0)
    yield "lifetime_epsilon", "epsilon of the lifetime budget, at its delta", book.epsilon
    yield "spent_epsilon", "epsilon of all releases so far together", spent
    yield "left_epsilon", "epsilon that one more run may plan", gdp_epsilon(math.sqrt(book.left), book.delta)
    yield "runs", "runs that were charged", len({charge.run for charge in book.charges})
    yield "releases", "releases that were charged", len(book.charges)
    yield "last_release_timestamp_seconds", "when the last release was charged, 0 for never", last


def _of_rounds(run: Run) -> Iterator[Metric]:
    """The metrics of a run, but for its privacy."""
    rounds, last = run.rounds, run.rounds[-1] if run.rounds else None
    rejected = sum(len(done.rejected) for done in rounds)
    yield "running", "1 until the run has ended", run.model is None and not run.failure
    yield "failed", "1 if the run has failed", bool(run.failure)
    yield "planned_rounds", "rounds of the whole run", run.setup.config.rounds
    yield "rounds", "rounds so far", last.round if last else 0
    yield "replies", "replies that were used", sum(done.accepted for done in rounds)
    yield "rejected", "clients of a round without a reply that was used", rejected
    yield "uplink_bits", "bits of the replies that were used", sum(done.uplink_bits for done in rounds)
    yield "downlink_bits", "bits of the requests", sum(done.downlink_bits for done in rounds)
    yield "seconds", "time since the start of the run, without interruptions", run.seconds
    duration = last.seconds if last else 0.0
    yield "last_round_seconds", "time from the requests of the last round to its model", duration
    yield "updated_timestamp_seconds", "when these numbers were written", time.time()


def _of_privacy(run: Run) -> Iterator[Metric]:
    """Epsilon planned, spent and left in a run; nothing for a run without a guarantee."""
    plan, found = run.setup.plan, run.privacy()
    if plan is None or not found or found["epsilon"] is None:
        return
    limit = math.hypot(plan.mu_limit, plan.mu_tuning)
    left = gdp_epsilon(math.sqrt(max(limit**2 - found["mu"] ** 2, 0.0)), plan.delta)
    most = "epsilon of the client that may spend most in this run, at the run's delta"
    yield "budget_epsilon", most, plan.epsilon_limit
    yield "spent_epsilon", "epsilon of the client that has spent most in this run", found["epsilon"]
    yield "left_epsilon", "epsilon of what this client has left in this run", left
