"""Evaluation at the sites: which rows are held out, that they never enter training, and the weighted metrics."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from grids import over_the_wire, with_content
from numpy.testing import assert_allclose, assert_array_equal
from problems import VARIANTS, one_of_each, small
from site_files import three_sites
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from twinflower.clients.records import record_of
from twinflower.data.partition import Partition, hold_out
from twinflower.errors import ReplyError, SettingError
from twinflower.models.evaluation import (
    COLUMNS,
    ERROR_COLUMNS,
    Errors,
    Evaluation,
    error_columns,
    evaluate,
    pooled,
)
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective
from twinflower.simulation.report.messages import row_line
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy, strategy_of
from twinflower.simulation.settings import parse
from twinflower.strategies import SiteEvaluation

HELD = {"evaluation__held_out": 0.3}
PUBLIC = [
    name
    for name, keys in VARIANTS.items()
    if keys.get("privacy.mode", "none") == "none" and keys.get("data.name") != "breast-cancer"
]


def held(name="fedpdm", **keys):
    return small(name, **HELD, **keys)


def at_sites(result):
    """The sites' columns of all rows of metrics.csv."""
    return [[row[column] for column in COLUMNS] for row in result.rows]


# ------------------------------------------------------------------------------------- which rows


SIZES = np.array([1, 2, 3, 10, 500])
FULL = Partition(np.random.default_rng(0).permutation(600)[: SIZES.sum()], np.cumsum([0, *SIZES]))


@pytest.mark.parametrize(("share", "sizes"), [(0.3, [0, 1, 1, 3, 150]), (0.001, [0, 1, 1, 1, 1])])
def test_every_row_is_trained_on_or_held_out(share, sizes):
    training, held_out = hold_out(FULL, share, seed=3)
    assert_array_equal(held_out.sizes, sizes)
    for client in range(len(SIZES)):
        mine = FULL.of(client)
        assert sorted([*training.of(client), *held_out.of(client)]) == sorted(mine)
        assert_array_equal(training.of(client), [row for row in mine if row in set(training.of(client))])


def test_almost_everything_held_out_leaves_a_row_to_train_on():
    assert_array_equal(hold_out(FULL, 0.999, seed=0)[0].sizes, 1)


def test_a_sites_split_depends_on_its_size_the_seed_and_its_number_only():
    alone = [np.arange(7), np.arange(500)]
    two = Partition(np.concatenate(alone), np.array([0, 7, 507]))
    others = Partition(np.concatenate([np.arange(90), np.arange(500)]), np.array([0, 90, 590]))
    (_, one), (_, other), (_, reseeded) = (
        hold_out(two, 0.2, 5),
        hold_out(others, 0.2, 5),
        hold_out(two, 0.2, 6),
    )
    assert_array_equal(one.of(1), other.of(1))
    assert set(one.of(1)) != set(reseeded.of(1))


# ------------------------------------------------------------------------------------- never trained on


def planted(setup):
    """The same run, whose held-out rows are other rows, with other labels."""
    features, labels = setup.dataset.features.copy(), setup.dataset.labels.copy()
    features[setup.held.rows] = np.random.default_rng(1).normal(
        size=(len(setup.held.rows), features.shape[1])
    )
    labels[setup.held.rows] = (labels[setup.held.rows] + 1) % 10
    return replace(setup, dataset=replace(setup.dataset, features=features, labels=labels))


@pytest.mark.parametrize("name", one_of_each(PUBLIC))
def test_whatever_the_held_out_rows_are_the_model_is_the_same_to_the_bit(name):
    setup = held(name, rounds=3)
    for train in (inprocess.train, lambda setup: cohort.train([setup])[0]):
        clean, other = train(setup), train(planted(setup))
        assert not clean.failure
        assert_array_equal(clean.model, other.model)
        assert [row["objective"] for row in clean.rows] == [row["objective"] for row in other.rows]
        assert at_sites(clean)[1:] != at_sites(other)[1:]


def test_without_held_out_rows_nothing_changes():
    """The same rows as before, and no columns of the sites."""
    setup = small("fedpdm")
    assert setup.held is None and setup.held_rows(0) is None
    assert not set(COLUMNS) & inprocess.train(setup).rows[-1].keys()


# ------------------------------------------------------------------------------------- the metrics


def test_the_metrics_are_those_of_all_held_out_rows_together():
    setup = held("ssca")  # sites of unequal sizes
    result = inprocess.train(setup)
    together = Batch(setup.dataset.features[setup.held.rows], setup.dataset.labels[setup.held.rows])
    right = setup.objective.predict(result.model, together.features) == together.labels
    last = result.rows[-1]
    assert last["held_out_rows"] == len(setup.held.rows)
    assert last["held_out_accuracy"] == pytest.approx(right.mean(), rel=1e-12)
    assert last["held_out_loss"] == pytest.approx(
        float(setup.objective.value(result.model, together)), rel=1e-12
    )
    assert {column: result.summary()[column] for column in COLUMNS} == {
        column: last[column] for column in COLUMNS
    }


@pytest.mark.parametrize("name", ["fedpdm", "zcdp-nfl", "ssca"])
def test_all_runtimes_report_the_same(name):
    """To the bit over the wire; up to rounding in the cohort."""
    setup = held(name)
    direct, wired = inprocess.train(setup), over_the_wire(setup)
    assert at_sites(direct) == at_sites(wired)
    assert len(at_sites(direct)) == setup.config.rounds + 1
    assert_allclose(at_sites(direct), at_sites(cohort.train([setup])[0]), rtol=1e-9)


def test_only_rounds_that_are_evaluated_ask_the_sites():
    class Counting(InProcessGrid):
        asked = 0

        def answer(self, message):
            self.asked += message.metadata.message_type == "evaluate"
            return super().answer(message)

    setup = held(evaluation__every=2)
    grid = Counting(setup)
    result = run_strategy(setup, grid, "inprocess")
    assert [row["round"] for row in result.rows] == [0, 2, 4, 5]
    assert grid.asked == 4 * 8


def test_flowers_result_holds_the_metrics():
    setup = held()
    strategy = strategy_of(setup, evaluation=SiteEvaluation(lambda round_: round_ != 2))
    result = strategy.start(InProcessGrid(setup), record_of([setup.start]), 3)
    assert sorted(result.evaluate_metrics_clientapp) == [1, 3]
    assert dict(result.evaluate_metrics_clientapp[3]) == strategy.evaluation.metrics


def test_a_resumed_run_reports_the_same(tmp_path):
    setup = held(output__checkpoint_every=1, output__state_dir=str(tmp_path / "state"))
    whole = run_strategy(setup, InProcessGrid(setup), "inprocess")
    checkpoints = Checkpoints(tmp_path, 1, setup.config)

    class Cut(InProcessGrid):
        def answer(self, message):
            if message.metadata.group_id == "3":
                raise KeyboardInterrupt
            return super().answer(message)

    with pytest.raises(KeyboardInterrupt):
        run_strategy(setup, Cut(setup), "inprocess", checkpoints=checkpoints)
    resumed = run_strategy(setup, InProcessGrid(setup), "inprocess", checkpoints=checkpoints)
    assert at_sites(resumed) == at_sites(whole)


def test_a_weighted_mean_by_hand():
    sites = [Evaluation(10, 1.0, 5.0), Evaluation(0, 0.0, 0.0), Evaluation(30, 3.0, 30.0)]
    assert pooled(sites) == {"held_out_loss": 2.5, "held_out_accuracy": 35 / 40, "held_out_rows": 40}
    assert np.isnan([pooled([])[column] for column in COLUMNS[:2]]).all()


def test_a_regression_reports_r_squared_where_the_labels_vary():
    objective = make_objective("least-squares", num_features=1, num_classes=0)
    features, labels = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 4.0])
    site = evaluate(objective, np.ones(1), Batch(features, labels))
    assert site.correct == pytest.approx(3 * (1 - 1 / np.sum((labels - labels.mean()) ** 2)))
    constant = evaluate(objective, np.ones(1), Batch(features, np.ones(3)))
    assert np.isnan(constant.correct)
    assert pooled([site, constant])["held_out_accuracy"] == pytest.approx(site.correct / 3)
    assert pooled([site, constant])["held_out_rows"] == 6


REGRESSION = """
version = 1
[label]
column = "y"
range = [-10, 30]
[columns]
a = { range = [-3, 3] }
"""


def some_numbers(seed, rows):
    draw = np.random.default_rng(seed)
    a = draw.normal(size=rows)
    lines = [f"{x:.4f},{5 + 4 * x + draw.normal():.4f}" for x in a]
    return "\n".join(["a,y", *lines, ""])


@pytest.fixture
def regression(tmp_path):
    keys = three_sites(tmp_path, REGRESSION, some_numbers, (40, 80, 60, 50))
    keys |= {"algorithm": "fedavg", "objective.name": "least-squares", "fedavg.step-size": 0.5, "rounds": 4}
    return keys | {"evaluation.held-out": 0.3, "evaluation.errors": True}


def test_a_regression_reports_errors_of_all_rows_together_in_units_of_the_label(regression):
    setup = prepare(parse(regression))
    direct, wired, arrays = inprocess.train(setup), over_the_wire(setup), cohort.train([setup])[0]
    rows = setup.held.rows
    predicted = 20 * setup.objective.predict(direct.model, setup.dataset.features[rows])
    observed = 20 * setup.dataset.labels[rows]
    known = r2_score(observed, predicted), mean_absolute_error(observed, predicted)
    known = *known, np.sqrt(mean_squared_error(observed, predicted))
    found = [[result.rows[-1][name] for name in ERROR_COLUMNS] for result in (direct, wired, arrays)]
    assert_allclose(found[0], known)
    assert found[0] == found[1]
    assert_allclose(found[0], found[2], rtol=1e-9)
    assert direct.summary()["held_out_rmse"] == found[0][2]
    assert f"RMSE {found[0][2]:.4g}" in row_line(direct.rows[-1], "R^2")


@pytest.mark.parametrize("name", ["huber", "absolute"])
def test_other_regressions_report_errors_too_and_private_ones_refuse(regression, name):
    result = inprocess.train(prepare(parse(regression | {"objective.name": name})))
    assert result.rows[-1]["held_out_rmse"] > 0
    private = {"privacy.mode": "gradient", "privacy.epsilon": 8.0, "privacy.evaluation-share": 0.5}
    private |= {"evaluation.loss-bound": 1.0, "objective.clip-norm": 1.0, "objective.name": name}
    with pytest.raises(SettingError, match=r"evaluation.errors needs .* a run without privacy"):
        prepare(parse(regression | private))


def test_without_the_setting_no_sums_of_errors_are_sent(regression):
    setup = prepare(parse(regression | {"evaluation.errors": False}))
    assert not set(ERROR_COLUMNS) & inprocess.train(setup).rows[-1].keys()
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}))
    assert "errors" not in client.evaluate([setup.start], {"round": 1})[2]


def test_labels_that_do_not_vary_have_no_r_squared():
    site = Evaluation(2, 0.0, 0.0, errors=Errors.of(np.array([1.0, 2.0]), np.array([3.0, 3.0])))
    found = error_columns([site, site])
    assert np.isnan(found["held_out_r2"])
    assert (found["held_out_mae"], found["held_out_rmse"]) == (1.5, np.sqrt(2.5))
    assert error_columns([site, Evaluation(2, 0.0, 0.0)]) == {} == error_columns([])


@pytest.mark.parametrize("errors", [b"", b"\xff" * 32, np.full(4, -1.0).tobytes(), 3])
def test_a_site_with_other_sums_of_errors_is_left_out(regression, errors):
    class Spoilt(InProcessGrid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            wrong = [r.metadata.message_type == "evaluate" and r.metadata.src_node_id == 3 for r in replies]
            return [spoilt(errors=errors)(r) if bad else r for r, bad in zip(replies, wrong, strict=True)]

    setup = prepare(parse(regression))
    result = run_strategy(setup, Spoilt(setup), "inprocess")
    assert result.rows[-1]["held_out_rows"] == setup.held.sizes[:2].sum()


# ------------------------------------------------------------------------------------- faults and refusals


def spoilt(**metrics):
    """A fault: the reply's evaluation with other numbers."""

    def fault(reply):
        content = RecordDict(dict(reply.content.items()))
        for name, value in metrics.items():
            record = f"evaluateres.{'metrics' if name in ('correct', 'round', 'errors') else name}"
            content[record] = type(content[record])({**content[record], name: value})
        return with_content(reply, content)

    return fault


FAULTS = {
    "nan loss": spoilt(loss=float("nan")),
    "more correct than rows": spoilt(correct=1e9),
    "infinitely wrong": spoilt(correct=-np.inf),
    "whole number": spoilt(correct=1),
    "no rows": spoilt(num_examples=-5),
    "another round": spoilt(round=77),
    "nothing": lambda reply: with_content(reply, RecordDict()),
    "silence": lambda reply: None,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_site_that_reports_nonsense_is_left_out_of_the_metrics_only(fault, caplog):
    class Spoilt(InProcessGrid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            wrong = [r.metadata.message_type == "evaluate" and r.metadata.src_node_id == 3 for r in replies]
            return [r for r in (fault(r) if bad else r for r, bad in zip(replies, wrong, strict=True)) if r]

    setup = held()
    good, bad = inprocess.train(setup), run_strategy(setup, Spoilt(setup), "inprocess")
    assert_array_equal(good.model, bad.model)
    others = [evaluate(setup.objective, good.model, setup.held_rows(i)) for i in range(8) if i != 2]
    assert bad.rows[-1]["held_out_loss"] == pooled(others)["held_out_loss"]
    assert bad.rows[-1]["held_out_rows"] == good.rows[-1]["held_out_rows"] - setup.held.sizes[2]


def client(setup):
    return client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}))


def test_a_client_checks_what_it_evaluates_and_keeps_only_what_it_was_asked():
    setup = held()
    mine = client(setup)
    loss, rows, metrics = mine.evaluate([setup.start], {"round": 4})
    assert (type(loss), rows, metrics["round"]) == (float, setup.held.sizes[0], 4)
    assert set(mine.context.state) == {"twinflower.session", "twinflower.answered-evaluation"}
    for bad, words in (
        ([], "one array; got 0"),
        ([setup.start[1:]], "must have shape"),
        ([setup.start * np.nan], "finite"),
    ):
        with pytest.raises(ReplyError, match=words):
            mine.evaluate(bad, {"round": 4})
    with pytest.raises(ReplyError, match="holds out no rows"):
        client(small("fedpdm")).evaluate([setup.start], {"round": 4})


def test_columns_scaled_by_statistics_of_all_rows_are_refused():
    with pytest.raises(SettingError, match="divided by statistics of all rows"):
        prepare(
            parse({"data.name": "breast-cancer", "objective.name": "logistic", "evaluation.held-out": 0.2})
        )


def test_the_share_is_checked():
    with pytest.raises(SettingError, match=r"from 0 \(none\) to below 1; got 1"):
        parse({"evaluation.held-out": 1.0})
