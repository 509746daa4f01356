"""A trained model as a scikit-learn pipeline. Loading a model does not import this module, and so not scikit-learn."""

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline

from .arrays import Array
from .errors import require

if TYPE_CHECKING:
    from .trained import Inputs, TrainedModel


class Features(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A stateless transformer from raw rows to the features that the model was trained on.

    ones: whether to include the column of ones that the run appended, as the last feature.
    """

    def __init__(self, inputs: "Inputs", ones: bool = False) -> None:
        self.inputs = inputs
        self.ones = ones

    def fit(self, X: Any, y: Any = None) -> "Features":
        """Return self; there is nothing to fit."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: Any) -> Array:
        """The features (rows, features) of the rows X."""
        whole = self.inputs.features(X)
        return whole if self.ones or not self.inputs.bias else whole[:, :-1]

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the features (features,); input_features is ignored."""
        names = (*self.inputs.feature_names, *(("ones",) if self.ones else ()))
        return np.array(names, dtype=object)


def pipeline_of(model: "TrainedModel") -> Pipeline:
    """`Features` followed by a LogisticRegression or LinearRegression with the model's weights.

    Raises SettingError if scikit-learn has no such model.
    """
    inputs = model.inputs
    ones = inputs.bias and inputs.row_norm > 0  # in rows scaled down to row_norm, that column is less than 1
    final = _classifier(model, ones) if hasattr(model, "classes_") else _regression(model, ones)
    return Pipeline([("features", Features(inputs, ones)), ("model", final)])


def _weights(model: "TrainedModel", ones: bool) -> tuple[Array, Array]:
    """coef_ (outputs, features) and intercept_ (outputs,) for the output of `Features`."""
    matrix, features = model._matrix, model.inputs.num_features
    if ones:
        return matrix, np.zeros(len(matrix))
    return matrix[:, :features], matrix[:, -1] if model.inputs.bias else np.zeros(len(matrix))


def _classifier(model: Any, ones: bool) -> LogisticRegression:
    require(
        model.objective in ("softmax", "logistic"),
        f"scikit-learn has no model like objective {model.objective}: train with softmax or logistic",
    )
    final = LogisticRegression(fit_intercept=not ones)
    final.coef_, final.intercept_ = _weights(model, ones)
    final.classes_, final.n_features_in_ = model.classes_, final.coef_.shape[1]
    final.n_iter_ = np.array([0])
    return final


def _regression(model: Any, ones: bool) -> LinearRegression:
    coef, intercept = _weights(model, ones)
    final = LinearRegression()
    final.coef_, final.intercept_ = coef[0] * model.half, intercept[0] * model.half + model.middle
    final.n_features_in_ = coef.shape[1]
    return final
