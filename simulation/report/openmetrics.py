"""A site's ledgers and a server's run as metrics for Prometheus, in the text format that its node exporter reads."""

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from twinflower.errors import SettingError
from twinflower.privacy import gdp_epsilon
from twinflower.privacy.charges import total_cost
from twinflower.privacy.ledger import Book

from ..runs.run import Run

Values = Mapping[str, float]

_LEDGER = {
    "lifetime_epsilon": "epsilon of the lifetime budget, at its delta",
    "spent_epsilon": "epsilon of all releases so far together",
    "left_epsilon": "epsilon that one more run may plan",
    "runs": "runs that were charged",
    "releases": "releases that were charged",
    "last_release_timestamp_seconds": "when the last release was charged, 0 for never",
}
_RUN = {
    "running": "1 until the run has ended",
    "failed": "1 if the run has failed",
    "planned_rounds": "rounds of the whole run",
    "rounds": "rounds so far",
    "replies": "replies that were used",
    "rejected": "clients of a round without a reply that was used",
    "uplink_bits": "bits of the replies that were used",
    "downlink_bits": "bits of the requests",
    "seconds": "time since the start of the run, without interruptions",
    "last_round_seconds": "time from the requests of the last round to its model",
    "updated_timestamp_seconds": "when these numbers were written",
    "budget_epsilon": "epsilon of the client that may spend most in this run, at the run's delta",
    "spent_epsilon": "epsilon of the client that has spent most in this run",
    "left_epsilon": "epsilon of what this client has left in this run",
}


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
    samples = ({"ledger": name, "data": book.data[:12]} for name, book in books)
    return _text(
        "twinflower_ledger", _LEDGER, zip(samples, (_of_book(book) for _, book in books), strict=True)
    )


def of_run(name: str, run: Run) -> str:
    """The metrics of the run with this name, so far or at its end: rounds, replies, bits, seconds, and privacy.

    Raises SettingError if prometheus-client is not installed.
    """
    return _text("twinflower_run", _RUN, [({"run": name}, _of_rounds(run) | _of_privacy(run))])


def _text(prefix: str, about: Mapping[str, str], samples: Iterable[tuple[dict[str, str], Values]]) -> str:
    """The samples, each (labels, values by metric), as text."""
    library = require_prometheus()
    registry = library.CollectorRegistry()
    gauges: dict[str, Any] = {}
    for labels, values in samples:
        for name, value in values.items():
            if name not in gauges:
                gauges[name] = library.Gauge(f"{prefix}_{name}", about[name], list(labels), registry=registry)
            gauges[name].labels(*labels.values()).set(value)
    text: str = library.generate_latest(registry).decode()
    return text


def _of_book(book: Book) -> dict[str, float]:
    """The value of each metric of a ledger."""
    return {
        "lifetime_epsilon": book.epsilon,
        "spent_epsilon": gdp_epsilon(math.sqrt(total_cost(book.charges)), book.delta),
        "left_epsilon": gdp_epsilon(math.sqrt(book.left), book.delta),
        "runs": len({charge.run for charge in book.charges}),
        "releases": len(book.charges),
        "last_release_timestamp_seconds": max((charge.time for charge in book.charges), default=0.0),
    }


def _of_rounds(run: Run) -> dict[str, float]:
    """The value of each metric of a run, but for its privacy."""
    rounds = run.rounds
    return {
        "running": run.model is None and not run.failure,
        "failed": bool(run.failure),
        "planned_rounds": run.setup.config.rounds,
        "rounds": rounds[-1].round if rounds else 0,
        "replies": sum(done.accepted for done in rounds),
        "rejected": sum(len(done.rejected) for done in rounds),
        "uplink_bits": sum(done.uplink_bits for done in rounds),
        "downlink_bits": sum(done.downlink_bits for done in rounds),
        "seconds": run.seconds,
        "last_round_seconds": rounds[-1].seconds if rounds else 0.0,
        "updated_timestamp_seconds": time.time(),
    }


def _of_privacy(run: Run) -> dict[str, float]:
    """Epsilon planned, spent and left in a run; nothing for a run without a guarantee."""
    plan, found = run.setup.plan, run.privacy()
    if plan is None or not found or found["epsilon"] is None:
        return {}
    limit = math.hypot(plan.mu_limit, plan.mu_tuning)
    left = math.sqrt(max(limit**2 - found["mu"] ** 2, 0.0))
    return {
        "budget_epsilon": plan.epsilon_limit,
        "spent_epsilon": found["epsilon"],
        "left_epsilon": gdp_epsilon(left, plan.delta),
    }
