"""All weights of a penalty and all folds in the rounds of one run: optima, errors, messages, and what a site allows."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from numpy.testing import assert_allclose, assert_array_equal
from problems import LASSO
from site_files import two_classes
from sklearn.linear_model import LogisticRegression, enet_path

from twinflower.algorithms.newton_path import choices
from twinflower.errors import ReplyError, SettingError
from twinflower.privacy.exact_rounds import ExactRounds
from twinflower.problems.interfaces import Batch
from twinflower.problems.regularisers import L1, on_part
from twinflower.simulation.app import client_app
from twinflower.simulation.app.site import Site
from twinflower.simulation.results.reading import read_path
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse
from twinflower.simulation.tuning.validation import folds

KEYS = {
    "algorithm": "newton-path", "rounds": 30, "data.name": "linear",
    "clients.count": 3, "clients.weighting": "rows", "objective.name": "least-squares", "regulariser.name": "l1",
    "regulariser.intercept": False, "newton-path.weights": 5, "newton-path.ratio": 0.05, "newton-path.folds": 3,
}  # fmt: skip
CLASSES = {"data.name": "breast-cancer", "objective.name": "logistic", "data.row-norm": 0.0}
FEW = {"newton_rows_per_parameter": 2.0}
PENALISED = {"objective.l2": 0.02, "data.bias": False, "regulariser.intercept": True}


def run(keys):
    """A run on arrays, and its path."""
    (ended,) = cohort.train([prepare(parse(KEYS | keys))])
    assert not ended.failure
    return ended, ended.path


@pytest.mark.parametrize("keys", [{}, PENALISED, CLASSES, CLASSES | PENALISED])
def test_errors_are_those_of_a_direct_loop_over_weights_and_folds(keys):
    """Each fold's model is that of a run of newton on the other rows, and its error is the mean loss on the fold."""
    ended, points = run(keys)
    setup = prepare(
        parse({k: v for k, v in (KEYS | keys).items() if "path." not in k} | {"algorithm": "newton"})
    )
    for own in points[:: len(points) - 1]:
        part = setup.regulariser
        h = L1(own.weight) if isinstance(part, L1) else on_part(L1(own.weight), setup.objective.columns(True))
        losses = []
        for fold, rows in folds(setup, 3):
            method = replace(fold.method, regulariser=h, tolerance=1e-14)
            (direct,) = cohort.train([replace(fold, algorithm=method)])
            losses.append(float(np.mean(setup.objective.losses(direct.model, rows))))
        assert_allclose(own.error, np.mean(losses), rtol=1e-9)
        assert_allclose(own.std_error, np.std(losses, ddof=1) / np.sqrt(3), rtol=1e-7)
    assert ended.round == 1 if "objective.name" not in keys else ended.round <= 12


def test_a_path_of_least_squares_takes_one_round_and_is_that_of_scikit_learn():
    ended, points = run({"data.bias": False, "regulariser.intercept": True})
    rows = ended.setup.central._training
    features, weights = np.asfortranarray(rows.features), [own.weight for own in points]
    _, known, *_ = enet_path(features, rows.labels, l1_ratio=1.0, alphas=weights, tol=1e-16, max_iter=10**6)
    assert_allclose([own.x for own in points], known.T, atol=1e-8)
    assert ended.round == 1 and ended.early == "converged after 1 round"


def test_a_logistic_path_is_that_of_scikit_learn(tmp_path):
    keys = {
        name: value for name, value in two_classes(tmp_path).items() if name[:5] not in ("fedav", "local")
    }
    own = {name: value for name, value in KEYS.items() if name.startswith(("newton-path.", "regulariser."))}
    (ended,) = cohort.train([prepare(parse(keys | own | {"algorithm": "newton-path", "rounds": 30}))])
    rows = ended.setup.central._training
    one = rows.features[0, -1]
    for point in ended.path[1:]:
        inverse = 1 / (len(rows.labels) * point.weight)
        known = LogisticRegression(**LASSO, C=inverse, solver="saga", tol=1e-14, max_iter=1_000_000)
        known.fit(rows.features[:, :-1], rows.labels)
        assert_allclose(point.x * [1.0, 1.0, one], [*known.coef_[0], *known.intercept_], atol=1e-8)
    assert not ended.path[0].x[:-1].any() and ended.path[1].x[:-1].any()
    assert ended.round <= 12


@pytest.mark.parametrize("choose", ["min", "1se"])
def test_arrays_and_messages_agree_and_the_model_is_that_of_the_chosen_weight(choose, tmp_path):
    setup = prepare(parse(KEYS | CLASSES | {"newton-path.choose": choose}))
    arrays, messages = cohort.train([setup])[0], inprocess.train(setup)
    assert arrays.early == messages.early == f"converged after {arrays.round} rounds"
    for one, other in zip(arrays.path, messages.path, strict=True):
        assert one[:4] == other[:4]
        assert_array_equal(one.x, other.x)
    assert_array_equal(arrays.model, arrays.path[choices(arrays.path)[choose == "1se"]].x)
    (row,) = (row for row in read_path(write_run(messages, tmp_path)) if choose in row["choice"])
    assert int(row["nonzeros"]) == np.count_nonzero(messages.model)


def test_every_released_sum_is_counted_once(tmp_path):
    """A sum is one of all rows, or of those without a fold, at one point: least squares need one of each."""

    def given(keys):
        setup, counts = prepare(parse(KEYS | keys)), {}

        class Counting(inprocess.InProcessGrid):
            def new_client(self, node, context):
                client = super().new_client(node, context)
                client.exact_rounds = counts[node] = ExactRounds(tmp_path / f"{node}{len(keys)}", 10**6, "")
                return client

        ended = inprocess.run_strategy(setup, Counting(setup), "inprocess")
        assert not ended.failure
        return ended, {count.given for count in counts.values()}

    assert given({})[1] == {3 + 1}
    ended, counts = given(CLASSES)
    most = 5 * (3 + 1) * ended.round
    (count,) = counts
    assert 5 * (3 + 1) < count < most  # those of solved problems, and of equal points, are not counted again


def test_a_site_that_has_given_its_answers_gives_none_of_a_request(tmp_path):
    setup = prepare(parse(KEYS))
    counted = ExactRounds(tmp_path / "answers.count", 3, "")
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}), exact_rounds=counted)
    points = np.tile(setup.start, 5 * 4)
    with pytest.raises(Exception, match="given 0 of newton-rounds = 3 answers .* asks for 4 more"):
        client.fit([points], {"round": 1, "session": "s"})
    assert counted.given == 0


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"newton_rows": 5}, "about 3 folds of its rows: its node config has newton-folds = none"),
        ({"newton_rows": 5, "newton_folds": 4}, "about 3 folds of its rows: .* newton-folds = 4"),
        (
            {"newton_rows": 5, "newton_folds": 3},
            "for a fold of fewer than 93 rows, 3 for each of 31 parameters",
        ),
        (FEW | {"newton_rows": 35, "newton_folds": 3}, "for a fold: a category or class has fewer rows"),
        (FEW | {"newton_rows": 5, "newton_folds": 3}, ""),
    ],
)
def test_a_site_allows_its_folds_what_it_allows_all_its_rows(policy, why):
    setup, site = prepare(parse(KEYS | CLASSES | {"clients.count": 2})), Site(0, 2, **policy)
    if not why:
        client_app._check_policy(setup, site)
        return
    with pytest.raises(SettingError, match=why):
        client_app._check_policy(setup, site)


def test_differences_of_sums_at_a_point_are_sums_over_folds():
    """What the site's check of each fold rests on."""
    setup = prepare(parse(KEYS))
    rows = setup.shards.rows(0)
    points = np.tile(setup.start + 0.1, 5 * 4)
    sums = setup.method._answered(setup.objective, points, rows).reshape(20, -1)
    for fold in range(3):
        inside = Batch(rows.features[rows.folds == fold], rows.labels[rows.folds == fold])
        difference = sums[0] - sums[1 + fold]
        assert difference[0] == len(inside.labels)
        assert_allclose(difference[1], setup.objective.losses(setup.start + 0.1, inside).sum(), rtol=1e-9)
        assert_allclose(sums[1 + fold, -1], difference[1], rtol=1e-9)


def test_folds_are_of_equal_sizes_and_the_same_whatever_the_servers_seed_is():
    setup = prepare(parse(KEYS))
    other = replace(setup, config=replace(setup.config, seed=setup.config.seed + 1))
    assert_array_equal(setup.shards.folds, other.shards.folds)
    for client in range(3):
        sizes = np.bincount(setup.shards.rows(client).folds)
        assert len(sizes) == 3 and np.ptp(sizes) <= 1


def test_a_reply_without_rows_is_refused():
    setup = prepare(parse(KEYS))
    size = setup.method.upload.bits(setup.objective.d) // 64
    with pytest.raises(ReplyError, match="sums must be those of at least one row"):
        setup.method.upload.unpack([np.zeros(size)], setup.objective.d)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"regulariser.name": "box"}, "a path needs regulariser.name l1, or elastic-net"),
        ({"newton-path.weights": 10**6}, "newton-path sends at most"),
        ({"newton-path.folds": 2000}, "2000 folds need 2000 rows"),
        ({"objective.name": "absolute"}, "newton needs the second derivatives"),
    ],
)
def test_what_has_no_path_is_refused(keys, why):
    with pytest.raises(SettingError, match=why):
        _ = prepare(parse(KEYS | keys)).shards
