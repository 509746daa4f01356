"""Trained models for prediction: `load(run_folder)` returns one, and its `to_sklearn` converts it to a pipeline.

    model = twinflower.load("runs/hospitals")
    model.predict_proba("new-patients.csv")

A file model.npz holds the point `x` (d,) and a JSON text, `description`, with everything needed to turn rows into
predictions: the objective, the schema of the tables or the scaling of the columns, whether a column of ones is added,
the limit on row norms, the classes, and the origin of the model. It contains no pickled objects, so files from others
can be opened safely. What sites sent for standard errors (`Information`, `Released`) is in a file information.npz
beside it, so that whoever gets the model does not get exact sums about the sites' rows.

`model` has what is common to all models.
"""

import io
import json
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from ..concordance import concordance
from ..data.columns import Survival, Target
from ..data.files import read_bytes
from ..errors import DataError, SettingError, TwinflowerError, cause, require
from ..known_objectives import COUNTING, PROBABILISTIC
from ..problems.discrete_cox import DISCRETE_COX, IntervalHazards
from ..problems.interfaces import Batch
from ..problems.losses import probabilities
from ..problems.networks import NETWORKS
from ..problems.objectives import LOSSES, score_of
from ..problems.stratified_cox import STRATIFIED_COX
from ..survival_labels import unsigned
from .coefficients import BASELINE, Coefficient, table
from .discrimination import log_odds
from .facts import Facts
from .information import Information
from .inputs import Inputs
from .model import VERSION, TrainedModel, labelled
from .released import Released

_INFORMATION = "information.npz"
_PROBABLE = ("softmax", "logistic")
_FORMS: dict[
    str, dict[str, Callable[[Any], Any]]
] = {  # the settings in a file with a model of each objective
    **{name: {} for name in LOSSES},
    **{name: {"hidden_units": int} for name in NETWORKS},
    DISCRETE_COX: {"intervals": str, "link": str},
    STRATIFIED_COX: {"ties": str},
}


class TrainedClassifier(TrainedModel):
    """A trained model for classification."""

    def _pipeline(self) -> Any:
        from .pipeline import classifier  # scikit-learn is slow to import

        if self.objective not in _PROBABLE:
            raise SettingError(
                f"scikit-learn has no model like objective {self.objective}: train with softmax or logistic"
            )
        return classifier(self.inputs, self._matrix, self.classes_)

    def _table(self) -> list[Coefficient]:
        """The coefficients of every class but the first."""
        if self.objective not in _PROBABLE:
            raise SettingError(
                f"coefficients are those of objective {' or '.join(_PROBABLE)}; got {self.objective}"
            )
        matrix = self._matrix
        rows = matrix[1:] - matrix[:1] if len(matrix) > 1 else matrix
        against, *others = map(str, self.classes)
        tables = [
            table(self.inputs, weights, name, against, "odds")
            for name, weights in zip(others, rows, strict=True)
        ]
        return [row for part in tables for row in part]

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes (classes,), in the order of the columns of `predict_proba`."""
        return np.array(self.classes)

    @property
    def _matrix(self) -> Array:
        matrix = super()._matrix
        return matrix[1:] - matrix[:1] if len(matrix) == 2 else matrix

    def decision_function(self, rows: Any) -> Array:
        """Scores (rows, classes); for two classes (rows,), positive for the second class."""
        scores = self.scores(rows)
        return log_odds(scores) if len(self.classes) == 2 else scores

    def class_indices(self, rows: Any) -> NDArray[Any]:
        """Indices of the predicted classes in `classes_`, (rows,)."""
        return self._model.loss.predict(self.scores(rows))  # type: ignore[no-any-return]

    def predict(self, rows: Any) -> NDArray[Any]:
        """Predicted classes (rows,)."""
        return self.classes_[self.class_indices(rows)]  # type: ignore[no-any-return]

    def predict_proba(self, rows: Any) -> Array:
        """Class probabilities (rows, classes); SettingError for a loss that does not define probabilities."""
        if self.objective not in PROBABILISTIC:
            raise SettingError(
                f"the scores of objective {self.objective} are no probabilities: train with softmax or logistic"
            )
        return probabilities(self.scores(rows))

    def score(self, rows: Any, labels: Any = None) -> float:
        """Accuracy: the fraction of rows predicted correctly. For a table file, the labels are read from the file."""
        if labels is None:
            features, codes = labelled(self, rows)
            return float(np.mean(self._model.predict(self.x, features) == codes))
        return float(np.mean(self.predict(rows) == np.asarray(labels)))


class TrainedRegressor(TrainedModel):
    """A trained model for regression."""

    @property
    def residuals(self) -> bool:
        """See `TrainedModel.residuals`."""
        return self.objective != COUNTING

    def _pipeline(self) -> Any:
        from .pipeline import regression  # scikit-learn is slow to import

        require(
            self.objective != COUNTING,
            "scikit-learn's Poisson regression has no offset and no scaling like this model's: use predict of this "
            "object",
        )
        return regression(self.inputs, self._matrix, self.half, self.middle)

    def _table(self) -> list[Coefficient]:
        """The coefficients in units of the label, of counts the logarithms of their rates."""
        if self.objective == COUNTING:
            schema = self.inputs.schema
            column = schema.label.column if schema else "count"
            return table(self.inputs, self._matrix[0], column, effect="rate")
        coefficients = table(self.inputs, self._matrix[0] * self.half)
        return [coefficients[0]._replace(estimate=coefficients[0].estimate + self.middle), *coefficients[1:]]

    @property
    def coef_(self) -> Array:
        """Weights of the features (features,)."""
        return super().coef_[0] * self.half

    @property
    def intercept_(self) -> Any:
        """Weight of the column of ones."""
        return super().intercept_[0] * self.half + self.middle

    def predict(self, rows: Any) -> Array:
        """Predicted values (rows,); of counts the expected ones at an exposure of 1."""
        return self.middle + self.half * self._model.loss.predict(self.scores(rows))

    def score(self, rows: Any, labels: Any = None) -> float:
        """R^2. For a table file, the labels are read from the file and clipped to their range, as in the run."""
        if labels is None:
            features, numbers = labelled(self, rows)
            return float(self._model.score(self.x, Batch(features, numbers)))
        return float(score_of(self.predict(rows), Batch(np.empty(0), np.asarray(labels, float)), False))


# ------------------------------------------------------------------------------------------- survival


class RiskModel(TrainedModel):
    """A trained model of survival: the discrete-time Cox model (`problems.discrete_cox`), or Cox's model stratified by
    site (`problems.stratified_cox`), which has no baseline."""

    @property
    def coef_(self) -> Array:
        """Weights of the features (features,): logarithms of ratios of hazards, or of their odds with link logit."""
        return super().coef_[0]

    @abstractmethod
    def predict(self, rows: Any) -> Array:
        """Risk scores (rows,), higher for an earlier event."""

    def score(self, rows: Any, labels: Any = None) -> float:
        """The concordance index. labels (rows,): signed times; for a table file they are read from the file. Rows of a
        model without a baseline must be of one site: between sites its risks are not comparable."""
        if labels is None:
            features, labels = labelled(self, rows)
            return float(self._model.score(self.x, Batch(features, labels)))
        return concordance(self.predict(rows), *unsigned(np.asarray(labels, float))).share

    def _pipeline(self) -> Any:
        raise SettingError("scikit-learn has no models of survival: use predict of this object")

    @property
    def _event(self) -> str:
        """The name of the event."""
        label = self.inputs.schema.label if self.inputs.schema else None
        return label.event if isinstance(label, Survival) else "event"


class TrainedRisk(RiskModel):
    """A trained model of the hazard ratios of persons of one site; their baseline is not known."""

    def predict(self, rows: Any) -> Array:
        """Risk scores (rows,): logarithms of hazard ratios, whose differences mean something within one site."""
        return self.scores(rows)[:, 0]  # type: ignore[no-any-return]

    def columns(self, rows: Any) -> tuple[list[str], Sequence[Sequence[Any]]]:
        """Column names and rows of a table of predictions: risks."""
        return ["risk"], self.predict(rows)[:, None].tolist()

    def _table(self) -> list[Coefficient]:
        """The coefficients; there is no intercept, because the baseline is not known."""
        return table(self.inputs, self._matrix[0], self._event, effect="hazard")[1:]


class TrainedSurvival(RiskModel):
    """A trained model of the time until an event."""

    @property
    def hazards(self) -> IntervalHazards:
        """How hazards follow from scores."""
        return self._model.loss  # type: ignore[no-any-return]

    @property
    def times(self) -> Array:
        """The ends of the intervals (T,), in the unit of the times."""
        return self.hazards.ends

    @property
    def _matrix(self) -> Array:
        return self.x[None, : self._model.num_features]

    @property
    def intercept_(self) -> Array:
        """The scores of the intervals of a row whose features are 0, (T,)."""
        return super().intercept_ + self.x[self._model.num_features :]

    def predict(self, rows: Any) -> Array:
        """Risk scores (rows,): the logarithm of the hazard in the first interval, or of its odds with link logit. Their
        differences between rows are the same in all intervals."""
        return self.hazards.predict(self.scores(rows))

    def predict_survival(self, rows: Any) -> Array:
        """The probabilities (rows, T) that the event has not happened by the end of each interval."""
        return self.hazards.survival(self.scores(rows))

    def columns(self, rows: Any) -> tuple[list[str], Sequence[Sequence[Any]]]:
        """Column names and rows of a table of predictions: risks, and probabilities of survival."""
        names = ["risk", *(f"survival to {end:g}" for end in self.times)]
        return names, np.column_stack([self.predict(rows), self.predict_survival(rows)]).tolist()

    def _table(self) -> list[Coefficient]:
        """The coefficients, after the baseline of every interval, which includes the weight of the column of ones."""
        level, *terms = table(self.inputs, self._matrix[0], self._event, effect=self.hazards.link.ratio)
        alphas = self.x[self._model.num_features :].astype(np.float64)
        baseline = [_baseline(level, end, alpha) for end, alpha in zip(self.times, alphas, strict=True)]
        return [*baseline, *terms]


def _baseline(level: Coefficient, end: float, alpha: float) -> Coefficient:
    """The row of the interval up to `end`, given that of the intercept."""
    estimate = level.estimate + float(alpha)
    return level._replace(
        column=BASELINE, term=f"to {end:g}", estimate=estimate, ratio=float(np.exp(estimate)),
        selected=level.selected or bool(alpha),
    )  # fmt: skip


Trained = TrainedClassifier | TrainedRegressor | TrainedSurvival | TrainedRisk


# --------------------------------------------------------------------------------------------- loading


def trained(x: Array, objective: str, inputs: Inputs, **others: Any) -> Trained:
    """A trained model of the kind that the objective needs; the schema gives the range of a numeric label."""
    if objective == DISCRETE_COX:
        return TrainedSurvival(x, objective, inputs, **others)
    if objective == STRATIFIED_COX:
        return TrainedRisk(x, objective, inputs, **others)
    classifies = objective in NETWORKS or LOSSES[objective].classifies
    label = inputs.schema.label if inputs.schema else None
    if isinstance(label, Target):
        others = {"middle": label.range.middle, "half": label.range.half} | others
    return (TrainedClassifier if classifies else TrainedRegressor)(x, objective, inputs, **others)


def load(path: str | Path, site: int | None = None) -> Trained:
    """Load the model from a run folder or a file model.npz; DataError if there is none that can predict.

    site: the number of the client whose own model to load, of a run that gave every client one.
    """
    file = Path(path).expanduser()
    runs = sorted(saved.parent for saved in file.rglob("model.npz")) if file.is_dir() else []
    if runs and file not in runs:
        raise DataError(f"{file} holds several runs: name one of them, such as {runs[0]}")
    file = file / "model.npz" if file.is_dir() else file
    if not file.exists():
        raise DataError(f"no run folder or model.npz at '{path}'")
    content = read_bytes(file)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if "description" not in arrays:
                raise DataError(
                    f"{file} does not say how to predict: a PyTorch module is in model.pt beside it, for torch.load"
                )
            x, text = _point(arrays, site, file), str(arrays["description"])
        known = _information(file.with_name(_INFORMATION), x)
        return _described(x if x.dtype == np.float32 else x.astype(np.float64), json.loads(text), known)
    except (ValueError, KeyError, TypeError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        if isinstance(error, TwinflowerError) and str(error).startswith(str(file)):
            raise
        raise DataError(f"{file} is not a model of this version of Twinflower ({cause(error)})") from None


def _point(arrays: Mapping[str, Any], site: int | None, file: Path) -> Array:
    """The point (d,) in a file: that for everybody, or a site's own."""
    if site is None:
        return arrays["x"]  # type: ignore[no-any-return]
    if "points" not in arrays:
        raise DataError(f"{file} has one model for all sites: leave out the site")
    points = arrays["points"]
    if not 0 <= site < len(points):
        raise DataError(f"{file} has models of the sites 0 to {len(points) - 1}; got site {site}")
    return points[site]  # type: ignore[no-any-return]


def _information(file: Path, x: Array) -> Information | Released | None:
    """What the sites sent for the standard errors of the model x (d,), from this file beside the model if it is there;
    ValueError for a damaged file."""
    if not file.exists():
        return None
    with np.load(io.BytesIO(read_bytes(file)), allow_pickle=False) as arrays:
        if not np.array_equal(arrays["x"], x):
            return None
        if "information" in arrays:
            return Information.unpacked(arrays["information"].astype(np.float64), len(x))
        return Released.read(arrays, len(x))


def _described(x: Array, document: Mapping[str, Any], information: Information | Released | None) -> Trained:
    if document["version"] != VERSION:
        raise ValueError(f"its format is {document['version']}, and this version reads {VERSION}")
    if document["objective"] not in _FORMS:
        raise ValueError(f"objective {document['objective']}")
    form = {name: kind(document[name]) for name, kind in _FORMS[document["objective"]].items()}
    form |= {name: str(document[name]) for name in ("class_weights",) if name in document}
    model = trained(
        x, document["objective"], Inputs.of(document["inputs"]), form=form,
        classes=tuple(document["classes"]), middle=float(document["middle"]), half=float(document["half"]),
        origin=dict(document["origin"]), information=information,
        selected=tuple(map(int, document.get("selected", ()))), facts=Facts.of(document.get("facts", {})),
    )  # fmt: skip
    if model._model.d != len(x) or not np.isfinite(x).all():
        raise ValueError("x")
    return model


def predictions(model: Trained, rows: Any) -> tuple[list[str], Sequence[Sequence[Any]]]:
    """Column names and rows of a table of predictions, with probabilities if the model defines them."""
    if isinstance(model, TrainedSurvival | TrainedRisk):
        return model.columns(rows)
    names, columns = ["prediction"], [model.predict(rows).tolist()]
    if isinstance(model, TrainedClassifier) and model.objective in PROBABILISTIC:
        names += [f"probability of {name}" for name in model.classes]
        columns += model.predict_proba(rows).T.tolist()
    return names, list(zip(*columns, strict=True))
