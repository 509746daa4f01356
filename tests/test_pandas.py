"""Data frames as pandas makes them: its own missing values and types, dates, durations and categoricals."""

import numpy as np
import pytest

from twinflower import FederatedClassifier, FederatedCoxRegressor
from twinflower.data.schema_file import parse_schema
from twinflower.errors import DataError, SettingError, TwinflowerError
from twinflower.models.inputs import Inputs
from twinflower.models.trained import trained

pd = pytest.importorskip("pandas")

SCHEMA = """
[label]
column = "ill"
classes = ["no", "yes"]
[columns]
age = { range = [20, 90] }
sex = { categories = ["f", "m"], missing = "indicator" }
chol = { range = [100, 300], missing = "indicator" }
stage = { categories = ["1", "2"], missing = "zero" }
"""
PLAIN = pd.DataFrame(
    {"age": [30, 40, 50, 60], "sex": ["f", "m", None, "f"], "chol": [120.0, np.nan, 250.0, 200.0],
     "stage": [1.0, 2.0, np.nan, 1.0]}
)  # fmt: skip


@pytest.fixture(scope="module")
def model():
    inputs = Inputs(8, parse_schema(SCHEMA))
    return trained(np.linspace(-1, 1, 18), "softmax", inputs, classes=("no", "yes"))


FORMS = {
    "convert_dtypes": lambda: PLAIN.convert_dtypes(),
    "NA in objects": lambda: PLAIN.astype(object).where(PLAIN.notna(), pd.NA),
    "categoricals": lambda: PLAIN.assign(
        sex=PLAIN.sex.astype("category"), stage=PLAIN.stage.astype("category")
    ),
    "nullable floats": lambda: PLAIN.assign(chol=PLAIN.chol.astype("Float64"), age=PLAIN.age.astype("UInt8")),
    "pyarrow": lambda: PLAIN.convert_dtypes(dtype_backend="pyarrow"),
    "NaT": lambda: PLAIN.astype(object).where(PLAIN.notna(), pd.NaT),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_frame_means_the_same_in_every_type_of_pandas(model, form):
    if form == "pyarrow":
        pytest.importorskip("pyarrow")
    np.testing.assert_array_equal(model.predict_proba(FORMS[form]()), model.predict_proba(PLAIN))


@pytest.mark.parametrize(
    "values",
    [pd.to_timedelta([1, 2, 3, 4], unit="D"), pd.to_datetime(["2020-01-01"] * 4),
     list(pd.to_timedelta([1, 2, 3, 4], unit="h")), np.array([1, 2, 3, 4], "timedelta64[s]"),
     [np.timedelta64(1, "D")] * 4],
)  # fmt: skip
def test_dates_and_durations_are_no_numbers(model, values):
    with pytest.raises(
        DataError, match="column 'chol': .* is not a number; convert dates and durations to numbers"
    ):
        model.predict(PLAIN.assign(chol=values))
    y = np.array(["no", "yes", "no", "yes"])
    with pytest.raises(TwinflowerError, match="is not a number|do not hold numbers"):
        FederatedClassifier(ranges={"age": (20, 90), "stay": (0, 9)}).fit(
            PLAIN[["age"]].assign(stay=values), y
        )


X = np.random.default_rng(0).normal(size=(40, 2))
DAYS = np.linspace(10, 400, 40)


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_durations_are_no_times_of_events(unit):
    times = np.round(DAYS).astype("timedelta64[D]").astype(f"timedelta64[{unit}]")
    y = np.array([(True, own) for own in times], dtype=[("event", "?"), ("time", times.dtype)])
    with pytest.raises(
        SettingError, match="durations or dates: convert them to numbers in the unit of intervals"
    ):
        FederatedCoxRegressor(intervals="100, 200, 400").fit(X, y)


@pytest.mark.parametrize("factor", [1 / 365.25, 1 / 4000, 24.0, 86400.0])
def test_times_in_another_unit_than_the_intervals_are_a_question(factor):
    y = np.column_stack([np.ones(40), (DAYS + 100) * factor])
    with pytest.raises(SettingError, match="are both in the same unit"):
        FederatedCoxRegressor(intervals="100, 200, 400").fit(X, y)


def test_times_in_the_unit_of_the_intervals_are_fitted():
    fitted = FederatedCoxRegressor(intervals="100, 200, 400", rounds=2).fit(
        X, np.column_stack([np.ones(40), DAYS])
    )
    assert np.isfinite(fitted.predict(X)).all()
