"""The parameters of the scikit-learn estimators: a grid search may vary single settings of a run, but none from which
the guarantee of a private fit follows."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from twinflower.algorithms import ALGORITHMS, FedPDM, Newton
from twinflower.data.columns import MISSING
from twinflower.data.dataset import Dataset
from twinflower.data.features import ROW_SCALINGS
from twinflower.errors import SettingError
from twinflower.models.information import MOST_PARAMETERS
from twinflower.queries.information import LIKELIHOODS
from twinflower.settings import PROBABILITY, Key, Setting, at_least, between, check_choice, kebab

from .estimator_inputs import plain
from .settings import Config, parse

_PREFIX = "settings__"
_NUMBERS = {
    "epsilon": (float, between(1e-6, 1e9, "from 1e-6 to 1e9, or None for a fit without privacy")),
    "delta": (float, PROBABILITY),
    "rounds": (int, at_least(1)),
    "row_norm": (float, at_least(0)),
    "num_sites": (int, at_least(1)),
    "group_size": (int, at_least(1)),
    "verbose": (int, at_least(0)),
}
_OF_NEWTON = ("objective", "regulariser", "evaluation", Newton.name)  # tables of settings that go with it
_NOT_CONVEX = ("objective.nonconvex", "objective.clip-norm")
_OPTIONAL = ("epsilon", "row_norm", "group_size")  # these may be None


class Nested(BaseEstimator):  # type: ignore[misc]
    """An estimator with a parameter `settings`, a dictionary, whose entries are parameters themselves.

    The setting "fedpdm.step-size" is the parameter settings__fedpdm__step_size.
    """

    settings: Mapping[str, Any] | None

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The parameters that are not at their defaults, with long arrays shortened."""
        with np.printoptions(threshold=8, edgeitems=1):
            return super().__repr__(N_CHAR_MAX)  # type: ignore[no-any-return]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _more_tags(self) -> dict[str, Any]:  # of scikit-learn 1.5
        return {"X_types": ["2darray", "sparse"]}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; deep: also those in `settings`, such as settings__fedpdm__rho."""
        own: dict[str, Any] = super().get_params(deep=False)
        if deep and isinstance(self.settings, Mapping):
            own |= {f"{_PREFIX}{_nested(key)}": value for key, value in self.settings.items()}
        return own

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name; settings__fedpdm__rho=0.1 sets "fedpdm.rho" in `settings` and keeps the others."""
        nested = {key: params.pop(key) for key in list(params) if key.startswith(_PREFIX)}
        super().set_params(**params)
        if nested:
            changed = {_nested(key.removeprefix(_PREFIX)): value for key, value in nested.items()}
            kept = {key: own for key, own in (self.settings or {}).items() if _nested(key) not in changed}
            self.settings = kept | {kebab(key.replace("__", ".")): own for key, own in changed.items()}
        return self


def _nested(key: str) -> str:
    """A setting's name within the name of a parameter: fedpdm__step_size for fedpdm.step-size."""
    return key.replace(".", "__").replace("-", "_")


def check_parameters(given: Any) -> None:
    """SettingError, with the parameter's own name, for an estimator with a parameter out of its range."""
    for name, (kind, rule) in _NUMBERS.items():
        value = plain(getattr(given, name))
        if value is not None or name not in _OPTIONAL:
            Key((name,), kind, 0, Setting("", rule)).checked(int(value) if value is True else value, name)
    check_choice("row_scaling", given.row_scaling, ROW_SCALINGS)
    check_choice("missing", given.missing, MISSING)
    if not isinstance(given.terms, list | tuple | None):
        raise SettingError(f'terms must be a list of texts such as ["age:sex", "age^2"]; got {given.terms!r}')
    categories = given.categories
    if categories is not None and not isinstance(categories, Mapping):
        raise SettingError(
            f"categories must be a dictionary, {{column: [value, ...]}}; got {type(categories).__name__}"
        )
    for column, values in (categories or {}).items():
        if isinstance(values, str):
            raise SettingError(
                f"categories of column {column!r} must be a list of values; got the text {values!r}"
            )


class Size(NamedTuple):
    """A bound on rows a with weights w, from which step sizes follow.

    weight: the largest mean weight of a site, or the largest weight of a row. squares: the largest eigenvalue of the
    mean of w a a^T over the rows of a site, divided by `weight`; or that of a a^T for every row.
    """

    squares: float
    weight: float

    @classmethod
    def of(cls, data: Dataset) -> "Size":
        """The bound for all sites of this data set."""
        roots = np.ones(len(data.labels)) if data.row_weights is None else np.sqrt(data.row_weights)
        cuts = np.cumsum(data.sites)[:-1]
        weight = max(float(np.mean(part**2)) for part in np.split(roots, cuts))
        parts = np.split(np.asarray(data.features) * roots[:, None], cuts)
        squares = max(float(np.linalg.norm(part, 2)) ** 2 / len(part) for part in parts)
        return cls(max(1e-12, squares / weight), weight)


def default_algorithm(objective: str, settings: Mapping[str, Any], private: bool, entries: int) -> str:
    """The algorithm of a fit that names none: Newton's method if it has all that is asked for, on a model with this
    number of entries; else that of which `settings` has a key, or FedPDM."""
    tables = [key.partition(".")[0] for key in settings]
    exact = all(table in _OF_NEWTON for table in tables) and not any(key in settings for key in _NOT_CONVEX)
    if exact and not private and objective in LIKELIHOODS and entries <= MOST_PARAMETERS:
        return Newton.name
    return next((table for table in tables if table in ALGORITHMS), FedPDM.name)


def mode_of(algorithm: str) -> str:
    """Where the noise of a private fit enters: "public-state", or what the algorithm has in its place."""
    modes = ALGORITHMS[algorithm].modes if algorithm in ALGORITHMS else ()
    return "gradient" if "gradient" in modes and "public-state" not in modes else "public-state"


def run_config(keys: Mapping[str, Any], settings: Mapping[str, Any]) -> Config:
    """The configuration of a fit. keys: what follows from the estimator's own parameters. settings: its further ones.

    SettingError for further ones that change the privacy of the fit or how rows are scaled: the noise follows from
    epsilon, delta and the norms of the rows, for which the estimator has parameters.
    """
    if not isinstance(settings, Mapping):
        raise SettingError(f"settings must be a dictionary; got {type(settings).__name__}")
    config = parse(keys, plain(dict(settings)))
    used, own = config.items(), {"data.bias": True, "privacy.mode": "none"}
    own |= {key: value for key, value in keys.items() if key.startswith(("data.", "privacy."))}
    if "none" not in (own["privacy.mode"], used["privacy.mode"]):
        own["privacy.mode"] = used["privacy.mode"]  # another place for the noise, at the same epsilon
    changed = [key for key, value in own.items() if used.get(key) != value]
    if changed:
        raise SettingError(
            f"settings must not change {changed[0]}: give the estimator its own parameters, such as "
            "epsilon, delta, row_norm and row_scaling"
        )
    return config
