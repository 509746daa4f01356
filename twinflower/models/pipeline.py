"""A trained model as a scikit-learn pipeline. Loading a model does not import this module, and so not scikit-learn."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline

from ..arrays import Array
from .inputs import Inputs


class Features(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A stateless transformer from raw rows to the features that the model was trained on.

    ones: whether to include the column of ones that the run appended, as the last feature.
    """

    def __init__(self, inputs: Inputs, ones: bool = False) -> None:
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


def classifier(inputs: Inputs, matrix: Array, classes: Any) -> Pipeline:
    """`Features` followed by a LogisticRegression with these weights (outputs, features), ones included."""
    ones = _keeps_ones(inputs)
    final = LogisticRegression(fit_intercept=not ones)
    final.coef_, final.intercept_ = _weights(inputs, matrix, ones)
    final.classes_, final.n_features_in_ = classes, final.coef_.shape[1]
    final.n_iter_ = np.array([0])
    return _pipeline(inputs, ones, final)


def regression(inputs: Inputs, matrix: Array, half: float, middle: float) -> Pipeline:
    """`Features` followed by a LinearRegression with these weights (1, features), ones included, for a label that was
    scaled to (label - middle) / half."""
    ones, final = _keeps_ones(inputs), LinearRegression()
    coef, intercept = _weights(inputs, matrix, ones)
    final.coef_, final.intercept_ = coef[0] * half, intercept[0] * half + middle
    final.n_features_in_ = coef.shape[1]
    return _pipeline(inputs, ones, final)


def _keeps_ones(inputs: Inputs) -> bool:
    """Whether the column of ones remains a feature: in a row divided by its own norm it is less than 1."""
    return inputs.bias and inputs.factor is None


def _weights(inputs: Inputs, matrix: Array, ones: bool) -> tuple[Array, Array]:
    """coef_ (outputs, features) and intercept_ (outputs,) for the output of `Features`."""
    if ones or not inputs.bias:
        return matrix, np.zeros(len(matrix))
    return matrix[:, :-1], matrix[:, -1] * (inputs.factor or 1.0)


def _pipeline(inputs: Inputs, ones: bool, final: Any) -> Pipeline:
    return Pipeline([("features", Features(inputs, ones)), ("model", final)])
