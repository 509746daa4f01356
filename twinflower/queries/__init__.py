"""What sites answer besides rounds: one module for each question, and the registry.

A question declares the settings of a run that it needs, and the keys by which a site's node config allows its answers,
in its module. They are put together here, for `simulation.settings` and `simulation.app.site`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .exact_sums import SumsPolicy
from .first import First
from .held_out import HeldOut
from .held_out_settings import EvaluationShare, HeldOutSettings, RegressionSettings, ScorePolicy
from .information import IntervalShare, StandardErrors, StandardErrorSettings
from .model_question import ModelQuestion
from .query import Histogram, ModelQuery, SiteQuery
from .ranges import PrivateRanges
from .survival import CurveSettings, CurveShare, PersonsPolicy, SurvivalCurve
from .table_one import TableOne, TableOnePolicy, TableOneSettings, TableOneShare

QUERIES: tuple[type[SiteQuery], ...] = (PrivateRanges, SurvivalCurve, TableOne, StandardErrors, HeldOut)
"""All questions. Those before round 1 are counted in this order."""

# Their declarations. The fields of a dataclass begin with those of its last base.


@dataclass(frozen=True)
class QuerySettings(
    TableOneSettings, StandardErrorSettings, RegressionSettings, CurveSettings, HeldOutSettings
):
    """Settings of [evaluation]."""


@dataclass(frozen=True)
class QueryShares(TableOneShare, IntervalShare, CurveShare, EvaluationShare):
    """Settings of [privacy]: the parts of a budget that answers take."""


@dataclass(frozen=True)
class QueryPolicy(TableOnePolicy, PersonsPolicy, ScorePolicy, SumsPolicy):
    """Keys of a site's node config."""


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
