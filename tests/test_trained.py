"""Trained models that predict: what a run leaves, what comes back from the file, and scikit-learn's view of it."""

import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import expit, softmax
from test_sites import PRIVATE, SCHEMA, table
from typer.testing import CliRunner

import twinflower
from twinflower.arrays import Array
from twinflower.data.schema_file import parse_schema, read_schema
from twinflower.data.sets import load_dataset
from twinflower.data.tables import read_rows
from twinflower.errors import DataError, SettingError
from twinflower.models.inputs import Inputs
from twinflower.models.model import TrainedModel
from twinflower.models.trained import load, trained
from twinflower.problems.interfaces import Batch
from twinflower.simulation import cli
from twinflower.simulation.results.files import write_text
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.settings import parse

THREE = SCHEMA.replace('classes = { no = ["n"], yes = ["y"] }', "classes = [1, 2, 3]")
NUMBER = SCHEMA.replace('classes = { no = ["n"], yes = ["y"] }', "range = [-10, 30]")


def point(d: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=d)


def some(objective: str, text: str = SCHEMA, **inputs) -> TrainedModel:
    """A model with random weights on tables of a schema."""
    schema = parse_schema(text)
    both = Inputs(len(schema.features), schema, **inputs)
    outputs = {"logistic": 1, "least-squares": 1, "huber": 1, "absolute": 1}.get(
        objective, schema.num_classes
    )
    columns = len(schema.features) + both.bias
    hidden = 3 if "network" in objective else 0
    d = hidden * (columns + outputs) if hidden else outputs * columns
    names = getattr(schema.label, "names", ())
    return trained(
        point(d),
        objective,
        both,
        form={"hidden_units": hidden} if hidden else {},
        classes=names,
        origin={"seed": 1},
    )


CASES = [
    ("logistic", SCHEMA), ("softmax", SCHEMA), ("softmax", THREE), ("least-squares", NUMBER), ("huber", NUMBER),
    ("absolute", NUMBER),
]  # fmt: skip
ROWS = {"age": [20, 75, 50, 33.5], "pain": ["none", "severe", "", "mild"]}


@pytest.mark.parametrize(
    "inputs",
    [
        {}, {"row_norm": 1.0}, {"bias": False}, {"bias": False, "row_norm": 0.5},
        {"row_norm": 1.0, "row_scaling": "all"}, {"bias": False, "row_norm": 0.5, "row_scaling": "all"},
    ],
)  # fmt: skip
@pytest.mark.parametrize(("objective", "text"), CASES)
def test_scikit_learn_predicts_the_same(objective, text, inputs):
    model = some(objective, text, **inputs)
    rows = {name: list(np.tile(cells, 50)) for name, cells in ROWS.items()}
    rows["age"] = list(np.random.default_rng(1).uniform(10, 90, 200))
    theirs = model.to_sklearn()
    again = pickle.loads(pickle.dumps(theirs))
    if hasattr(model, "classes_"):
        np.testing.assert_array_equal(theirs.predict(rows), model.predict(rows))
        np.testing.assert_allclose(again.predict_proba(rows), model.predict_proba(rows), rtol=0, atol=1e-12)
        np.testing.assert_allclose(theirs.decision_function(rows), model.decision_function(rows), atol=1e-12)
        np.testing.assert_array_equal(theirs.classes_, model.classes_)
    else:
        np.testing.assert_allclose(again.predict(rows), model.predict(rows), rtol=0, atol=1e-12)
    names = theirs[:-1].get_feature_names_out()
    assert list(names[: model.inputs.num_features]) == list(model.get_feature_names_out())


@pytest.mark.parametrize(
    ("objective", "text"), [*CASES, ("rowwise-logistic", THREE), ("swish-network", THREE)]
)
def test_a_saved_model_comes_back_whole(tmp_path, objective, text):
    model = some(objective, text, row_norm=2.0)
    model.save(tmp_path / "model.npz")
    again = twinflower.load(tmp_path / "model.npz")
    assert type(again) is type(model)
    assert again.document() == model.document()
    np.testing.assert_array_equal(again.predict(ROWS), model.predict(ROWS))
    assert again.origin == {"seed": 1}


def test_of_a_folder_with_several_runs_one_has_to_be_named(tmp_path):
    for seed in (0, 1):
        (tmp_path / f"seed-{seed}").mkdir()
        some("softmax", THREE).save(tmp_path / f"seed-{seed}" / "model.npz")
    with pytest.raises(DataError, match="holds several runs: name one of them, such as .*seed-0"):
        twinflower.load(tmp_path)
    assert twinflower.load(tmp_path / "seed-1").origin == {"seed": 1}


def test_an_output_through_a_link_or_into_a_pipe_leaves_both_what_they_are(tmp_path):
    link, pipe = tmp_path / "link.csv", tmp_path / "pipe"
    link.symlink_to(tmp_path / "file.csv")
    write_text(link, "rows")
    assert link.is_symlink() and (tmp_path / "file.csv").read_text() == "rows"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "rows")
        assert pipe.is_fifo() and os.read(reader, 9) == b"rows"
    finally:
        os.close(reader)


def test_predictions_are_what_the_formulas_say():
    model = some("softmax", THREE)
    features = model.inputs.features(ROWS)
    np.testing.assert_array_equal(features[:, -1], 1)
    scores = features @ model.x.reshape(3, -1).T
    np.testing.assert_allclose(model.predict_proba(ROWS), softmax(scores, 1), rtol=1e-12)
    np.testing.assert_array_equal(model.predict(ROWS), np.array([1, 2, 3])[scores.argmax(1)])
    np.testing.assert_allclose(features[:, :-1] @ model.coef_.T + model.intercept_, scores, rtol=1e-12)
    two = some("softmax")
    margin = two.inputs.features(ROWS) @ np.diff(two.x.reshape(2, -1), axis=0)[0]
    np.testing.assert_allclose(two.decision_function(ROWS), margin, rtol=1e-12)
    np.testing.assert_allclose(two.predict_proba(ROWS)[:, 1], expit(margin), rtol=1e-12)
    assert list(two.predict(ROWS)) == [["no", "yes"][int(own > 0)] for own in margin]
    number = some("least-squares", NUMBER)
    np.testing.assert_allclose(number.predict(ROWS), 10 + 20 * number.scores(ROWS)[:, 0], rtol=1e-12)
    plain = number.inputs.features(ROWS)[:, :-1]
    np.testing.assert_allclose(plain @ number.coef_ + number.intercept_, number.predict(ROWS), rtol=1e-12)


def test_rows_come_in_many_forms(tmp_path):
    model = some("logistic")
    (tmp_path / "rows.csv").write_text("pain,age\nnone,20\nsevere,75\n,50\nmild,33.5\n")
    expected = model.predict_proba(ROWS)
    lists = list(map(list, zip(*ROWS.values(), strict=True)))
    for rows in (tmp_path / "rows.csv", str(tmp_path / "rows.csv"), lists, np.array(lists, dtype=object)):
        np.testing.assert_array_equal(model.predict_proba(rows), expected)
    pandas = pytest.importorskip("pandas")
    np.testing.assert_array_equal(model.predict_proba(pandas.DataFrame(ROWS)), expected)


def test_csv_is_read_as_the_schema_of_the_model_says(tmp_path):
    plain = some("logistic")
    german = some("logistic", 'delimiter = ";"\ndecimal = ","\n' + SCHEMA)
    german.save(tmp_path / "model.npz")
    (tmp_path / "rows.csv").write_text("pain;age\nnone;20\nsevere;75,0\n;50\nmild;33,5\n")
    again = twinflower.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.predict_proba(tmp_path / "rows.csv"), plain.predict_proba(ROWS))
    with pytest.raises(
        DataError, match="separated by semicolons: change the table, because the schema of a model"
    ):
        plain.predict(tmp_path / "rows.csv")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ('pain,age\nnone,"2,5"\n', "column 'age': '2,5' is not a number: change the table"),
        ("pain,age\nnone,\n", "column 'age': the value is missing: change the table"),
        ("pain,age,ward\nnone,2,3\n", "has a column 'ward' that the schema does not know: change the table"),
    ],
)
def test_no_advice_about_the_schema_of_a_model(tmp_path, rows, sentence):
    """It cannot be changed."""
    (tmp_path / "rows.csv").write_text(rows)
    with pytest.raises(DataError, match=f"{sentence}, because the schema of a model is fixed$"):
        some("logistic").predict(tmp_path / "rows.csv")
    labelled = "".join(f"{line},{own}\n" for line, own in zip(rows.splitlines(), ["ill", "y"], strict=True))
    (tmp_path / "labelled.csv").write_text(labelled)
    with pytest.raises(DataError, match=f"{sentence}, because the schema of a model is fixed$"):
        some("logistic").score(tmp_path / "labelled.csv")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            {"age": [20], "Pain": ["none"]},
            r"no column 'pain', which the model's schema names; did you mean 'Pain'\?",
        ),
        ({"age": [20]}, "the rows have no column 'pain'"),
        ({"age": [20], "pain": ["awful"]}, "row 1: column 'pain': 'awful' is not one of the categories"),
        ([[1, 2, 3]], r"rows must have shape \(rows, 2\); got \(1, 3\)"),
        ([20, "none"], r"rows must have shape \(rows, 2\)"),
        ("absent.csv", "absent.csv cannot be read"),
    ],
)
def test_rows_that_do_not_fit_are_one_sentence(rows, sentence):
    with pytest.raises(DataError, match=sentence):
        some("logistic").predict(rows)


def test_what_a_model_cannot_do_it_says():
    with pytest.raises(SettingError, match="the scores of objective rowwise-logistic are no probabilities"):
        some("rowwise-logistic", THREE).predict_proba(ROWS)
    for objective, sentence in (("sigmoid-network", "scikit-learn has no model like a sigmoid-network"),):
        model = some(objective, THREE)
        np.testing.assert_allclose(model.predict_proba(ROWS).sum(1), 1, rtol=1e-12)
        with pytest.raises(SettingError, match=sentence):
            model.to_sklearn()
        assert not hasattr(model, "coef_")
    with pytest.raises(SettingError, match="no model like objective rowwise-logistic"):
        some("rowwise-logistic", THREE).to_sklearn()


# ---------------------------------------------------------------------------------------------- runs


def run(keys, folder):
    result = cohort.train([prepare(parse(keys))])[0]
    write_run(result, folder)
    return result, twinflower.load(folder)


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({"data.name": "digits", "data.row-norm": 0.0, "step-size": 0.01}, {}),
        ({"data.name": "digits", "objective.name": "sigmoid-network"}, {}),
        ({"data.name": "breast-cancer", "data.bias": False, "data.standardise": True}, {}),
        ({"data.name": "linear", "objective.name": "huber"}, {}),
    ],
    ids=["digits", "network", "standardised", "regression"],
)
def test_a_run_on_a_known_data_set_leaves_a_model_that_predicts(tmp_path, keys, options):
    result, model = run({"rounds": 2, "regulariser.name": "none"} | keys, tmp_path / "run")
    name = str(keys["data.name"])
    raw = load_dataset(name)
    rows = np.asarray(raw.test_features)[:, : model.inputs.num_features]
    if name == "breast-cancer":  # as its file has them, before the loader scales them
        centre, spread = raw.scaling
        rows = rows * spread + centre
    assert model.score(rows, raw.test_labels) == pytest.approx(result.rows[-1]["test_accuracy"], abs=1e-9)
    setup = result.setup
    np.testing.assert_allclose(model.inputs.features(rows), setup.dataset.test_features, atol=1e-12)


@pytest.mark.parametrize("private", [False, True])
def test_a_run_on_tables_leaves_a_model_that_reads_tables(tmp_path, private):
    for number in range(2):
        (tmp_path / f"site-{number}.csv").write_text(table(number, 60))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "test.csv").write_text(table(9, 100))
    keys = {
        "data.name": "tables", "data.files": str(tmp_path / "site-*.csv"), "objective.name": "logistic",
        "data.schema": str(tmp_path / "schema.toml"), "data.test-file": str(tmp_path / "test.csv"),
    }  # fmt: skip
    result, model = run(keys | {"regulariser.name": "none"} | (PRIVATE if private else {}), tmp_path / "run")
    assert model.score(tmp_path / "test.csv") == result.rows[-1]["test_accuracy"]
    _, labels = read_rows(tmp_path / "test.csv", read_schema(tmp_path / "schema.toml"))
    names = np.array(["no", "yes"])[labels]
    assert model.score(tmp_path / "test.csv", names) == result.rows[-1]["test_accuracy"]
    assert list(model.feature_names_in_) == ["age", "pain"]
    assert model.origin["run"] == result.setup.config.digest
    assert ("(4, 0.0001)-DP" in model.origin["privacy"]) == private
    rows = Batch(result.setup.dataset.test_features, labels)
    np.testing.assert_array_equal(
        model.scores(tmp_path / "test.csv"), result.setup.objective.scores(model.x, rows[0])
    )

    shown = CliRunner().invoke(cli.app, ["predict", str(tmp_path / "run"), str(tmp_path / "test.csv")]).output
    lines = [line.split(",") for line in shown.splitlines()]
    assert lines[0] == ["prediction", "probability of no", "probability of yes"]
    assert [line[0] for line in lines[1:]] == list(model.predict(tmp_path / "test.csv"))
    told = np.array([line[1:] for line in lines[1:]], dtype=float)
    np.testing.assert_array_equal(told, model.predict_proba(tmp_path / "test.csv"))
    out = tmp_path / "predictions.csv"
    CliRunner().invoke(
        cli.app, ["predict", str(tmp_path / "run"), str(tmp_path / "test.csv"), "--out", str(out)]
    )
    assert out.read_text() == shown


# ----------------------------------------------------------------------------------------- bad files


def damaged(tmp_path, **changes):
    model = some("logistic")
    arrays = model.arrays()
    document = model.document()
    for key, value in changes.items():
        if key in arrays:
            arrays[key] = value
        else:
            document[key] = value
            import json

            arrays["description"] = np.array(json.dumps(document))
    np.savez(tmp_path / "model.npz", **arrays)
    return tmp_path


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 99},
        {"objective": "torch:/evil.py:Net"},
        {"objective": "softmin"},
        {"classes": ["one"]},
        {"inputs": {}},
        {"inputs": 3},
        {"x": np.zeros(3)},
        {"x": np.full(7, np.nan)},
        {"x": np.array(["a"])},
        {"description": np.array("{")},
        {"description": np.array("[]")},
        {"middle": "x"},
    ],
    ids=lambda changes: str(next(iter(changes.items())))[:30],
)
def test_a_damaged_model_is_one_sentence(tmp_path, changes):
    with pytest.raises(DataError, match=r"model.npz is not a model of this version of Twinflower \(.+\)$"):
        twinflower.load(damaged(tmp_path, **changes))


def test_files_that_are_no_models(tmp_path):
    np.savez(tmp_path / "model.npz", x=np.zeros(3))
    with pytest.raises(
        DataError, match="does not say how to predict: a PyTorch module is in model.pt beside it"
    ):
        twinflower.load(tmp_path)
    np.savez(tmp_path / "model.npz", x=np.zeros(3), description=np.array([{}], dtype=object))
    with pytest.raises(
        DataError, match="is not a model of this version of Twinflower"
    ):  # a pickle is not opened
        twinflower.load(tmp_path)
    (tmp_path / "model.npz").write_bytes(b"PK\x03\x04nothing")
    with pytest.raises(DataError, match="is not a model of this version of Twinflower"):
        twinflower.load(tmp_path)
    with pytest.raises(DataError, match=r"no run folder or model.npz at .*absent.npz"):
        twinflower.load(tmp_path / "absent.npz")


def test_the_package_and_a_loaded_model_are_light():
    text = (
        "import sys, twinflower; assert not [m for m in sys.modules if m.startswith(('numpy', 'twinflower.'))]; "
        "twinflower.load; assert not {'flwr', 'sklearn', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", text], check=True)
    assert "load" in dir(twinflower)
    with pytest.raises(AttributeError, match="module 'twinflower' has no attribute 'lod'"):
        _ = twinflower.lod


def test_a_missing_model_is_named_by_what_was_given(tmp_path):
    """Also a folder without one."""
    for path in (tmp_path / "nothere", tmp_path):
        with pytest.raises(DataError, match=re.escape(f"no run folder or model.npz at '{path}'")):
            load(path)
