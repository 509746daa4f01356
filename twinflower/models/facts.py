"""The facts that belong to every table of estimates: the rows behind it, and how near the maximum it is.

`Facts` is made where a model is trained and stored with the model; `inferred` adds the distance. Every output shows it:
screen and report by `Facts.lines`, JSON by `Facts.document`, CSV by `Facts.columns`, Python as
`inference.Estimates.facts`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

CONVERGED = 0.1
"""Standard errors between an estimate and the maximum of the likelihood, up to which a model counts as converged."""
_UNKNOWN = "not known"


class Clipped(NamedTuple):
    """How many of `rows` values of a column were moved to an end of its range; at_most: `values` is only a bound, as in
    a private run."""

    values: int
    rows: int
    at_most: bool = False

    def __str__(self) -> str:
        share = f" ({self.values / self.rows:.1%})" if self.rows else ""
        return f"{'at most ' if self.at_most else ''}{self.values:,} of {self.rows:,}{share}"


class Facts(NamedTuple):
    """What a reader of estimates must know; None is what is not known.

    rows: those that were trained on. events: of these, the rows with the event, a count above 0, or another class than
    the first; None for a regression, in a private run, and where the rows are only at the sites. dropped: rows that
    belong to the data and were not trained on, by reason. clipped: values outside of the range of a column, by its
    name, without columns in which there is none; None, also for one column, if they were not counted.
    distance: between the estimates and the maximum of the likelihood, the largest in standard errors. converged:
    whether that is at most `CONVERGED` and every estimate that the data determine exists. log_likelihood: of all rows,
    of counts against a perfect fit (minus half the deviance). parameters: how many of the model's the data determine.
    clipped_rows: the rows in which a value of a term's columns was clipped, by the term's name, like `clipped`.
    """

    rows: int | None = None
    events: int | None = None
    dropped: Mapping[str, int] = {}
    clipped: Mapping[str, Clipped | None] | None = None
    distance: float | None = None
    converged: bool | None = None
    log_likelihood: float | None = None
    parameters: int | None = None
    clipped_rows: Mapping[str, Clipped | None] = {}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Facts":
        """Inverse of `document`; a field that is not there is not known."""
        known = {name: document[name] for name in cls._fields if name in document}
        for field in _COUNTS:
            if known.get(field) is not None:
                known[field] = {name: pair and Clipped(*pair) for name, pair in known[field].items()}
        return cls(**known)

    @property
    def document(self) -> dict[str, Any]:
        """The facts as a JSON-compatible dictionary."""
        counts = {field: _listed(getattr(self, field)) for field in _COUNTS}
        return self._asdict() | {"dropped": dict(self.dropped)} | counts

    def columns(self, column: str) -> dict[str, Any]:
        """The facts as cells beside an estimate of a column, or a term; all but the clipped values are the same in
        every row."""
        clipped = (
            None if self.clipped is None else {**self.clipped, **self.clipped_rows}.get(column, Clipped(0, 0))
        )
        return {
            "rows": self.rows,
            "events": self.events,
            "rows_dropped": sum(self.dropped.values()),
            "why_dropped": _reasons(self.dropped),
            "values_clipped": clipped and clipped.values,
            "distance_in_std_errors": self.distance,
            "converged": self.converged,
            "log_likelihood": self.log_likelihood,
            "parameters": self.parameters,
        }

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The facts as pairs of a name and a text."""
        return [
            ("rows", _counted(self.rows)),
            ("events", _counted(self.events)),
            ("rows not trained on", _reasons(self.dropped) or "none"),
            ("values clipped to their range", self._clipped),
            ("distance from the maximum", self._distance),
            ("converged", {None: _UNKNOWN, True: "yes", False: "no"}[self.converged]),
            ("log likelihood", self._likelihood),
        ]

    @property
    def sentence(self) -> str:
        """How many rows were trained on, how many were not, and why; empty if that is not known."""
        others = f"; not trained on: {_reasons(self.dropped)}" if self.dropped else ""
        return "" if self.rows is None else f"{self.rows:,} rows are trained on{others}"

    @property
    def _clipped(self) -> str:
        if self.clipped is None:
            return "not counted"
        texts = [f"{column}: {counts}" for column, counts in self.clipped.items() if counts]
        unknown = [column for column, counts in self.clipped.items() if counts is None]
        return "; ".join([*texts, *[f"not counted: {', '.join(unknown)}"] * bool(unknown)]) or "none"

    @property
    def _likelihood(self) -> str:
        if self.log_likelihood is None or self.parameters is None:
            return _UNKNOWN
        aic = 2 * (self.parameters - self.log_likelihood)
        return f"{self.log_likelihood:.2f} with {self.parameters} parameters (AIC {aic:.2f})"

    @property
    def _distance(self) -> str:
        return _UNKNOWN if self.distance is None else f"{self.distance:.2g} standard errors"


_COUNTS = ("clipped", "clipped_rows")


def _listed(counts: Mapping[str, Clipped | None] | None) -> dict[str, list[Any] | None] | None:
    return None if counts is None else {name: count and list(count) for name, count in counts.items()}


def _counted(count: int | None) -> str:
    return _UNKNOWN if count is None else f"{count:,}"


def _reasons(dropped: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} {reason}" for reason, count in dropped.items())


UNKNOWN = Facts()
