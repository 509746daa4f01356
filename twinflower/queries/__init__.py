"""What sites answer besides rounds: one module for each question, and the registry."""

from collections.abc import Mapping
from typing import Any

from .first import First
from .held_out import HeldOut
from .information import StandardErrors
from .query import Histogram, ModelQuery, ModelQuestion, SiteQuery
from .ranges import PrivateRanges
from .survival import SurvivalCurve

QUERIES: tuple[type[SiteQuery], ...] = (PrivateRanges, SurvivalCurve, StandardErrors, HeldOut)
"""All questions. Those before round 1 are counted in this order."""


def asked(run: Any) -> list[SiteQuery]:
    """The questions of a prepared run (`query.Run`)."""
    return [query for kind in QUERIES if (query := kind.of(run)) is not None]


def first_of(run: Any) -> First | None:
    """Those that are answered before round 1, None for none."""
    found = [query for query in run.queries if isinstance(query, Histogram)]
    return First(run, found) if found else None


def question_in(config: Mapping[str, Any]) -> type[ModelQuestion]:
    """The question about a model that a request names."""
    kinds = [query.kind for query in QUERIES if issubclass(query, ModelQuery)]
    named = [kind for kind in kinds if config.get(kind.name) is True]
    return (named or [kind for kind in kinds if kind.default])[0]
