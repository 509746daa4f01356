"""The path over the weights of a penalty: models and errors against scikit-learn and a direct loop, and the choice."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import LASSO
from site_files import two_classes
from sklearn.linear_model import ElasticNet, LogisticRegression, enet_path
from typer.testing import CliRunner

from twinflower.algorithms.newton_path import PathPoint, choices
from twinflower.errors import SettingError
from twinflower.known_objectives import make_model
from twinflower.models.trained import load
from twinflower.problems.central import minimise
from twinflower.problems.regularisers import L1, on_part
from twinflower.simulation import cli
from twinflower.simulation.results.reading import read_config, read_path
from twinflower.simulation.runs.ended import entry_names
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.settings import parse
from twinflower.simulation.settings.reader import to_tables
from twinflower.simulation.tuning.penalty_path import Plan, free_intercept, path
from twinflower.simulation.tuning.validation import folds

KEYS = {
    "algorithm": "fedavg", "rounds": 120, "local.batch-size": 0, "local.max-steps": 1, "fedavg.step-size": 5.0,
    "data.name": "linear", "data.bias": False, "clients.count": 3, "clients.weighting": "rows",
    "objective.name": "least-squares", "regulariser.name": "l1",
}  # fmt: skip
AFFINE = {"data.bias": True, "data.row-norm": 0.0, "fedavg.step-size": 0.1, "rounds": 2000}
NET = {"regulariser.name": "elastic-net", "regulariser.l1": 0.03, "regulariser.l2": 0.01}
PRIVATE = {
    "algorithm": "isrl-dp", "rounds": 12, "data.name": "breast-cancer", "clients.count": 3,
    "objective.name": "logistic", "regulariser.name": "l1", "privacy.mode": "gradient",
    "privacy.epsilon": 8.0, "privacy.tune-share": 0.5,
}  # fmt: skip
SHORT = Plan(weights=5, ratio=0.05, folds=3)


def silent(_):
    """Print nothing."""


def optimum(setup, weight):
    """argmin F + weight ||x||_1 (d,) over the pooled rows of a fold."""
    return minimise(setup.objective, L1(weight), setup.central._training, setup.start)


@pytest.mark.parametrize(("net", "exact"), [({}, 1e-6), (NET, 1e-6), ({"algorithm": "newton"}, 1e-10)])
def test_the_path_is_that_of_scikit_learn_on_pooled_rows(net, exact):
    config = parse(KEYS, net)
    points = path(config, SHORT, silent)
    ratio = 0.75 if net == NET else 1.0
    weights = np.array([own.weight for own in points])
    rows = prepare(config).central._training
    _, known, *_ = enet_path(
        np.asfortranarray(rows.features), rows.labels, l1_ratio=ratio, alphas=weights / ratio, tol=1e-14,
        max_iter=100_000,
    )  # fmt: skip
    assert_allclose([own.x for own in points], known.T, atol=exact)
    assert len({np.count_nonzero(own.x) for own in points}) > 2


@pytest.mark.parametrize("ratio", [1.0, 0.75])
def test_with_a_free_intercept_the_path_is_that_of_scikit_learn(ratio):
    config = free_intercept(parse(KEYS | AFFINE | (NET if ratio < 1 else {})), silent)
    points = path(config, SHORT._replace(weights=3), silent)
    rows = prepare(config).central._training
    for own in points:
        known = ElasticNet(alpha=own.weight / ratio, l1_ratio=ratio, tol=1e-14, max_iter=100_000)
        known.fit(rows.features[:, :-1], rows.labels)
        assert_allclose(own.x, [*known.coef_, known.intercept_], atol=1e-6)
    assert points[0].x[-1] and not points[0].x[:-1].any()
    below, *_ = path(config, SHORT._replace(weights=2, largest=points[0].weight * 0.9999), silent)
    assert np.count_nonzero(below.x[:-1]) == 1


def test_with_a_free_intercept_a_logistic_path_is_that_of_scikit_learn(tmp_path):
    rounds = {"rounds": 1500, "fedavg.step-size": 8.0, "clients.weighting": "rows", "regulariser.name": "l1"}
    config = free_intercept(parse(two_classes(tmp_path) | rounds), silent)
    points = path(config, SHORT._replace(weights=4, ratio=0.1), silent)
    rows = prepare(config).central._training
    one = rows.features[0, -1]  # the column of ones, scaled as all are
    share = rows.labels.mean()
    assert_allclose(points[0].x * one, [0, 0, np.log(share / (1 - share))], atol=1e-6)
    for own in points[1:]:
        inverse = 1 / (len(rows.labels) * own.weight)
        known = LogisticRegression(**LASSO, C=inverse, solver="saga", tol=1e-12, max_iter=100_000)
        known.fit(rows.features[:, :-1], rows.labels)
        assert_allclose(own.x * [1.0, 1.0, one], [*known.coef_[0], *known.intercept_], atol=1e-6)


def test_the_baseline_of_survival_is_free_too():
    model = make_model("discrete-cox", 3, 0, intervals="1, 2")
    h = on_part(L1(1.0), model.columns(True))
    assert_array_equal(h.prox(np.full(5, 0.5), 1.0), [0, 0, 0.5, 0.5, 0.5])
    matrix = on_part(L1(1.0), make_model("softmax", 3, 2).columns(True))
    assert_array_equal(matrix.prox(np.full(6, 0.5), 1.0), [0, 0, 0.5, 0, 0, 0.5])
    assert_allclose(matrix.prox(np.full(6, 0.5), np.linspace(0, 0.5, 6)), [0.5, 0.4, 0.5, 0.2, 0.1, 0.5])


@pytest.mark.parametrize(
    "keys",
    [
        {"data.name": "digits", "objective.name": "swish-network", "objective.hidden-units": 4},
        {"regulariser.name": "selected", "regulariser.entries": "0"},
    ],
)
def test_what_has_no_intercept_to_leave_free(keys):
    with pytest.raises(SettingError, match="regulariser.intercept = false needs a linear model") as refused:
        prepare(parse(KEYS | keys | {"regulariser.intercept": False}))
    assert "\n" not in str(refused.value)


def test_the_first_weight_is_the_smallest_at_which_the_model_is_zero():
    config = parse(KEYS)
    first, *_ = path(config, SHORT._replace(weights=2), silent)
    assert not first.x.any()
    below, *_ = path(config, SHORT._replace(weights=2, largest=first.weight * 0.9999), silent)
    assert np.count_nonzero(below.x) == 1


def test_errors_and_choice_are_those_of_a_direct_loop_over_weights_and_folds():
    setup = prepare(parse(KEYS))
    points = path(setup.config, SHORT, silent)
    found = np.array([
        [
            float(setup.objective.value(optimum(fold, own.weight), rows))
            for fold, rows in folds(setup, SHORT.folds)
        ]
        for own in points
    ])  # fmt: skip
    errors, spreads = found.mean(1), found.std(1, ddof=1) / np.sqrt(SHORT.folds)
    assert_allclose([own.error for own in points], errors, rtol=1e-6)
    assert_allclose([own.std_error for own in points], spreads, rtol=1e-5)
    best = int(errors.argmin())
    assert choices(points) == (best, int(np.flatnonzero(errors <= errors[best] + spreads[best])[0]))


def test_every_row_is_in_one_fold_and_trained_on_in_the_others():
    setup = prepare(parse(KEYS))
    divided = folds(setup, 4)
    together = np.sort(np.concatenate([rows.labels for _, rows in divided]))
    assert_array_equal(together, np.sort(setup.dataset.labels))
    for own, rows in divided:
        kept = np.concatenate([own.shards.rows(client).labels for client in range(3)])
        assert_array_equal(np.sort(np.concatenate([kept, rows.labels])), together)


def test_the_simplest_choice_is_the_largest_weight_within_one_standard_error():
    errors = [(0.4, 9.0, 0.0), (0.3, 1.4, 0.1), (0.2, 1.0, 0.5), (0.1, 1.1, 0.1)]
    points = [PathPoint(*own, 10, np.zeros(1)) for own in errors]
    assert choices(points) == (2, 1)
    points[2] = points[2]._replace(rounds=5)  # stopped earlier, so not compared
    assert choices(points) == (3, 3)


def test_a_private_path_is_a_charged_tuning_over_public_weights():
    config = parse(PRIVATE)
    plan = Plan(weights=4, ratio=0.1, largest=0.01, folds=4)
    said = []
    points = path(config, plan, said.append)
    assert any(line.startswith("tuning in total: mu^2") for line in said)
    assert_allclose([own.weight for own in points], np.geomspace(0.01, 0.001, 4))
    assert sorted(own.rounds for own in points)[-2:] == [12, 12]
    assert all(own.std_error > 0 and not own.x.size for own in points)
    with pytest.raises(SettingError, match="set --largest"):
        path(config, plan._replace(largest=0.0), silent)
    with pytest.raises(SettingError, match="set privacy.tune-share"):
        path(config.put({"privacy.tune-share": 0.0}), plan, silent)


@pytest.mark.parametrize(
    ("keys", "plan", "sentence"),
    [
        ({}, {"weights": 1}, "--weights must be at least 2; got 1"),
        ({}, {"ratio": 1.0}, "--ratio must be between 0 and 1; got 1"),
        ({}, {"folds": 1}, "--folds must be at least 2; got 1"),
        ({}, {"largest": -1.0}, "--largest must be at least 0; got -1"),
        ({}, {"folds": 5000}, "5000 folds need 5000 rows, or groups of a group column, at every client"),
        ({"regulariser.name": "box"}, {}, "a path needs regulariser.name l1, or elastic-net"),
        (
            {"data.name": "digits", "objective.name": "swish-network", "objective.hidden-units": 4},
            {},
            "a path needs a linear model, .* 'swish-network'",
        ),
    ],
)
def test_what_has_no_path_is_refused(keys, plan, sentence):
    with pytest.raises(SettingError, match=sentence):
        path(parse(KEYS | keys), SHORT._replace(**plan), silent)


def test_the_command_trains_with_the_choice_and_draws_it(tmp_path):
    file = tmp_path / "lasso.toml"
    file.write_text(to_tables(KEYS | {"rounds": 2}))  # far from converged, so the start matters
    command = [
        "path",
        str(file),
        "--weights",
        "3",
        "--folds",
        "2",
        "--choose",
        "1se",
        "--out",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = read_path(tmp_path / "out")
    (chosen,) = (own for own in rows if "1se" in own["choice"])
    assert read_config(tmp_path / "out").config.regulariser.weight == float(chosen["weight"])
    assert int(chosen["nonzeros"]) == np.count_nonzero([float(chosen[f"x{place}"]) for place in range(8)])
    model = load(tmp_path / "out").x
    assert_allclose(model, [float(chosen[f"x{place}"]) for place in range(8)], rtol=1e-9)
    report = (tmp_path / "out" / "report.html").read_text()
    assert "Choice of the penalty" in report
    assert "Model by weight of the penalty" in report


def test_every_entry_of_a_model_has_a_name():
    for keys in (
        {},
        {"data.name": "digits", "objective.name": "softmax"},
        {"data.name": "breast-cancer", "objective.name": "logistic"},
    ):
        setup = prepare(parse(KEYS | keys))
        names = entry_names(setup)
        assert len(names) == len(set(names)) == setup.objective.d


def stop(*_, **__):
    """Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("checkpoints", [0, 5])
def test_a_path_and_a_refit_that_are_interrupted_say_what_is_kept_and_how_to_go_on(
    checkpoints, tmp_path, monkeypatch
):
    file, folder = tmp_path / "lasso.toml", tmp_path / "run"
    file.write_text(to_tables(KEYS | AFFINE | {"rounds": 10, "output.checkpoint-every": checkpoints}))
    command = ["path", str(file), "--weights", "3", "--folds", "2", "--out", str(folder)]
    with monkeypatch.context() as patch:
        patch.setattr("twinflower.simulation.tuning.penalty_path.path", stop)
        ended = CliRunner().invoke(cli.app, command)
    assert ended.exit_code == 130 and not folder.exists()
    assert (
        ended.stderr
        == "error: interrupted; nothing is kept of a path that has not ended: give the command again\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr("twinflower.simulation.running.run", stop)
        ended = CliRunner().invoke(cli.app, command)
    how = (
        f"twinflower run --resume {folder}"
        if checkpoints
        else f"twinflower run {file} --set regulariser.weight="
    )
    assert ended.exit_code == 130 and how in ended.stderr
    assert f"the path is in {folder / 'path.csv'}" in ended.stderr and ended.stderr.count("\n") == 1
    CliRunner().invoke(cli.app, [*command[:-1], str(tmp_path / "done")])
    monkeypatch.setattr("twinflower.simulation.running.run", stop)
    ended = CliRunner().invoke(cli.app, ["refit", str(tmp_path / "done"), "--out", str(tmp_path / "again")])
    how = (
        f"twinflower run --resume {tmp_path / 'again'}"
        if checkpoints
        else "the same command and another --out"
    )
    assert ended.exit_code == 130 and how in ended.stderr
    assert ended.stderr.endswith(f"{tmp_path / 'done'} stays as it was\n")


@pytest.mark.parametrize(
    "keys",
    [
        {"objective.name": "absolute"},
        {"objective.nonconvex": 0.1},
        {"objective.clip": "batch", "objective.clip-norm": 0.5},
    ],
)
def test_an_intercept_that_cannot_be_found_alone_is_penalised(keys):
    config = free_intercept(parse(KEYS | keys | {"data.bias": True, "rounds": 3}), silent)
    assert config.regulariser.intercept and len(path(config, SHORT, silent)) == 5


@pytest.mark.slow  # it is looked for in vain for seconds
def test_a_baseline_without_an_optimum_is_penalised_with_a_word(tmp_path):
    """Nobody has the event in the second interval, so its hazard alone is lowest at minus infinity."""
    rows = "\n".join(f"{x},{0.5 + 2 * (x % 2)},{x % 2}" for x in range(20))
    (tmp_path / "site.csv").write_text(f"a,t,e\n{rows}\n")
    (tmp_path / "schema.toml").write_text(
        'version = 1\n[label]\ncolumn = "t"\ntimes = [0.1, 3]\nevent = "e"\n[columns]\na = { range = [0, 20] }\n'
    )
    keys = {
        "data.name": "tables",
        "data.files": str(tmp_path / "site.csv"),
        "data.schema": str(tmp_path / "schema.toml"),
        "objective.name": "discrete-cox",
        "objective.intervals": "1, 2, 3",
        "clients.count": 1,
    }
    said = []
    assert free_intercept(parse(keys), said.append).regulariser.intercept
    assert len(said) == 1 and "by itself it has no optimum" in said[0]


def test_a_private_path_has_a_free_intercept():
    config = free_intercept(parse(PRIVATE), silent)
    assert not config.regulariser.intercept
    assert len(path(config, Plan(weights=3, ratio=0.1, largest=0.01, folds=4), silent)) == 3


@pytest.mark.parametrize("text", ["1, 2", "1e200", "nan", "1,,2"])
def test_a_starting_point_that_does_not_fit_the_model_is_refused(text):
    with pytest.raises(SettingError, match=r"start-point must .*; got"):
        prepare(parse(KEYS | {"start-point": text}))
