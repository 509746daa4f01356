"""MR-MTL: the models at which it ends, its releases, and the clients' own models."""

import csv
from html import unescape

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import central_optimum, convex_problem, last, run, small
from site_files import some_patients, two_classes
from tracking import FEATURES, FULL, ROWS, seeded_noise
from typer.testing import CliRunner

from twinflower import load
from twinflower.algorithms import MRMTL, FedAvg, FedProx
from twinflower.algorithms.algorithm import RunInfo
from twinflower.errors import DataError, SettingError
from twinflower.models.evaluation import OWN_MODEL, evaluate
from twinflower.privacy.audit import neighbours, replay
from twinflower.privacy.plan import EVALUATION
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO
from twinflower.simulation import cli
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse

N, K = 6, 2
SIZES = (5, 9, 12, 3, 7, 20)
EQUAL, BY_ROWS = np.full(N, 1 / N), np.array(SIZES) / sum(SIZES)


def info_of(shares):
    """The run's information with which clients have these weights."""
    return RunInfo(N, sizes=SIZES if shares is BY_ROWS else ())


# ------------------------------------------------------------------------------------- the methods that it is


def test_without_a_pull_every_client_trains_alone():
    shards, objective = convex_problem()
    together = last(run(MRMTL(mean_pull=0.0, step_size=0.5), shards, objective, FULL, 10))
    for i in range(N):
        rows = shards.rows(i)
        alone = Shards.of([(rows.features, rows.labels)])
        end = last(run(FedAvg(step_size=0.5), alone, objective, FULL, 10))
        assert_allclose(together.server.models[i], end.server.x0, rtol=0, atol=1e-14)


def test_the_first_round_is_fedprox():
    """All models start at their mean."""
    shards, objective = convex_problem()
    mine = last(run(MRMTL(mean_pull=0.7, step_size=0.5), shards, objective, FULL, 1))
    other = last(run(FedProx(mu=0.7, step_size=0.5), shards, objective, FULL, 1))
    assert_array_equal(mine.uploads.y, other.uploads.y)


# ------------------------------------------------------------------------------------------- where it ends


def least_squares(seed=0):
    """Clients with unequal numbers of rows and different models, their Hessians A_i (N, d, d), and their A_i^T y."""
    rng, d = np.random.default_rng(seed), 3
    rows = [rng.normal(size=(m, d)) for m in SIZES]
    labels = [own @ rng.normal(size=d) + 0.1 * rng.normal(size=len(own)) for own in rows]
    hessians = np.array([own.T @ own / len(own) for own in rows])
    right = np.array([own.T @ y / len(own) for own, y in zip(rows, labels, strict=True)])
    problem = Shards.of(list(zip(rows, labels, strict=True)))
    return problem, make_objective("least-squares", d, 0), hessians, right


def optimum(hessians, right, pull, shares):
    """The models (N, d) that solve (A_i + lambda) w_i - lambda sum_j p_j w_j = A_i^T y_i."""
    d = right.shape[1]
    system = -pull * np.kron(np.tile(shares, (N, 1)), np.eye(d))
    for i, own in enumerate(hessians):
        system[i * d : (i + 1) * d, i * d : (i + 1) * d] += own + pull * np.eye(d)
    return np.linalg.solve(system, right.ravel()).reshape(N, d)


@pytest.mark.parametrize("shares", [EQUAL, BY_ROWS], ids=["clients", "rows"])
@pytest.mark.parametrize(("k", "steps", "lost"), [(N, 1, 0.0), (N, 7, 0.0), (K, 3, 0.0), (K, 3, 0.3)])
def test_it_ends_at_the_solution_of_a_linear_system(shares, k, steps, lost):
    """For any number of local steps, whoever takes part, and whatever is lost."""
    shards, objective, hessians, right = least_squares()
    algorithm = MRMTL(mean_pull=0.5, step_size=0.2, info=info_of(shares))
    gone = np.random.default_rng(3).random((1001, N)) < lost
    end = last(run(
        algorithm, shards, objective, LocalSchedule(0, steps), 1000, k, lost=lambda t, who: gone[t, who]
    ))  # fmt: skip
    best = optimum(hessians, right, 0.5, shares)
    assert_allclose(algorithm.client_models(end.server), best, rtol=0, atol=1e-9)
    assert_allclose(shares @ (np.einsum("nij,nj->ni", hessians, best) - right), 0, atol=1e-12)
    assert np.linalg.norm(best - shares @ best, axis=-1).min() > 0.05


def test_as_lambda_grows_the_models_tend_to_the_pooled_optimum():
    """At the rate 1/lambda, as (1) says: w_i - wbar = -grad f_i(w_i) / lambda."""
    shards, objective = convex_problem()
    best = central_optimum(objective, ZERO, shards.everyone())

    def distance(pull):
        algorithm = MRMTL(mean_pull=pull, step_size=0.5 / pull)
        end = last(run(algorithm, shards, objective, LocalSchedule(0, 4), 800))
        return np.linalg.norm(end.server.models - best, axis=-1).max()

    far, near = distance(2.0), distance(8.0)
    assert 0.01 < near < far
    assert_allclose(far / near, 4.0, rtol=0.2)


def test_no_round_increases_the_objective_whoever_takes_part():
    shards, objective = convex_problem()
    algorithm, pull = MRMTL(mean_pull=3.0, step_size=0.1), 3.0

    def value(models):
        losses = [float(objective.value(w, shards.rows(i))) for i, w in enumerate(models)]
        return np.mean(losses) + pull / 2 * ((models - models.mean(0)) ** 2).sum(-1).mean()

    steps = run(algorithm, shards, objective, FULL, 60, K, start=np.full(objective.d, 2.0))
    values = np.array([value(at.server.models) for at in steps])
    assert (np.diff(values) <= 1e-12).all()
    assert values[-1] < 0.8 * values[0]


@pytest.mark.parametrize("tail", [0.3, 1.0])
def test_with_a_tail_mean_every_model_is_a_mean_over_the_last_rounds(tail):
    shards, objective = convex_problem()
    keys = {"mean_pull": 0.7, "step_size": 0.5, "privacy": "public-state"}
    algorithm = MRMTL(final_model="tail-mean", tail=tail, info=RunInfo(N, 10), **keys)
    steps = list(run(algorithm, shards, objective, FULL, 10, K, noise=seeded_noise))
    count = round(10 * tail)
    expected = np.mean([at.server.models for at in steps[-count:]], 0)
    assert_allclose(algorithm.client_models(steps[-1].server), expected, rtol=0, atol=1e-14)
    assert_allclose(algorithm.model(steps[-1].server), expected.mean(0), rtol=0, atol=1e-14)


# --------------------------------------------------------------------------------------------------- privacy


PRIVATE = [
    {"privacy": "public-state"},
    {"privacy": "public-state", "sensitivity": "norm"},
    {"privacy": "public-state", "step_decay": 0.5, "downlink_ratio": 0.5},
    {"privacy": "gradient"},
]


def moves(algorithm, schedule=FULL):
    """How far a record moves each release, given all before; the mean of the models is somewhere else every round."""
    objective, (data, other) = make_objective("logistic", FEATURES, 2), neighbours(ROWS, FEATURES, 0.7)
    server = algorithm.init_server(np.zeros(FEATURES), 1, np.array(0, np.uint64))
    means = [server._replace(x0=1e3 * t * np.eye(FEATURES)[0]) for t in range(8)]
    inboxes = [algorithm.broadcast(at, t, np.array(0)) for t, at in enumerate(means, 1)]
    return replay(algorithm, objective, data, other, schedule, objective.bounds(0.7), inboxes)


@pytest.mark.parametrize("pull", [0.0, 0.8])
@pytest.mark.parametrize("schedule", [LocalSchedule(0, 1), LocalSchedule(0, 5), LocalSchedule(2, 7)])
@pytest.mark.parametrize("settings", PRIVATE)
def test_given_what_was_released_a_record_moves_the_next_release_by_its_sensitivity_at_most(
    settings, schedule, pull
):
    found = moves(MRMTL(mean_pull=pull, step_size=1.0, **settings), schedule)
    assert all(move.same_state and move.same_message for move in found)
    ratio = max(move.moved / move.sensitivity for move in found)
    assert 1e-3 < ratio <= 1 + 1e-9


def test_one_full_step_reaches_its_sensitivity():
    found = moves(MRMTL(mean_pull=0.8, step_size=1.0, privacy="public-state"), LocalSchedule(0, 1))
    assert max(move.moved / move.sensitivity for move in found) >= 0.99


class KeepsWithoutNoise(MRMTL):
    """A planted fault: the client continues from its model before the noise."""

    def client_update(self, state, inbox, work):
        quiet, *_ = super().client_update(state, inbox, work._replace(noise=lambda value, *_, **__: value))
        _, upload, report = super().client_update(state, inbox, work)
        return quiet, upload, report


@pytest.mark.parametrize("privacy", ["public-state", "gradient"])
def test_a_model_kept_without_noise_is_caught_by_replay(privacy):
    found = moves(KeepsWithoutNoise(mean_pull=0.8, step_size=1.0, privacy=privacy))
    assert not all(move.same_state for move in found)


# -------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"mean_pull": -1.0}, "mean-pull must be at least 0; got -1"),
        ({"mean_pull": 8.0}, "mean-pull \\* step-size must be below 2"),
        ({"regulariser": L1(0.1)}, "mr-mtl has no regulariser; got L1: set regulariser.name to none"),
        ({"uplink_ratio": 0.5}, "mr-mtl needs uplink-ratio 1, .* got 0.5"),
    ],
)
def test_settings_that_make_no_sense(keys, words):
    with pytest.raises(SettingError, match=words):
        MRMTL(**keys)


def test_sums_are_refused():
    keys = {"trust": "sum", "honest_sites": 4, "clients__per_round": 0, "local__max_steps": 1}
    with pytest.raises(
        SettingError, match=r"mr-mtl has no form with trust sum: .* choose privacy.trust local"
    ):
        small("mr-mtl-private", **keys)


def test_standard_errors_are_refused(tmp_path):
    keys = two_classes(tmp_path) | {"algorithm": "mr-mtl", "evaluation.standard-errors": True}
    keys = {key: value for key, value in keys.items() if not key.startswith("fedavg")}
    with pytest.raises(SettingError, match="needs a method that fits one model to all sites; got mr-mtl"):
        prepare(parse(keys))


# ------------------------------------------------------------------------------------ the clients' own models

HELD = {"evaluation__held_out": 0.3}
OWN = {"algorithm": "mr-mtl", "mr-mtl.step-size": 2.0, "evaluation.held-out": 0.3}


def patients(folder, **keys):
    """A run of three sites on disk with a model for each."""
    own = {key: value for key, value in two_classes(folder).items() if not key.startswith("fedavg")}
    return prepare(parse(own | OWN | keys))


def own_scores(result):
    """The score of each client's own model on the rows that it holds out, and how many these are."""
    found = [
        evaluate(result.setup.objective, own, result.setup.held_rows(i))
        for i, own in enumerate(result.points)
    ]
    return np.array([site.correct / site.rows for site in found]), np.array([site.rows for site in found])


@pytest.mark.parametrize("variant", ["mr-mtl", "mr-mtl-rows"])
def test_clients_evaluate_their_own_models(variant):
    """The same numbers on arrays, stacked over seeds, and in messages."""
    setups = [small(variant, seed=s, **HELD) for s in (1, 2)]
    results = [inprocess.train(setups[0]), *cohort.train(setups)]
    for result in results:
        scores, rows = own_scores(result)
        end = result.rows[-1]
        assert end[OWN_MODEL] == pytest.approx(scores.mean(), rel=1e-12)
        assert end["held_out_accuracy"] == pytest.approx(np.average(scores, weights=rows), rel=1e-12)
        assert_allclose(list(result.answers["evaluation"].by_site.values()), scores)
        trained = [
            result.setup.objective.score(w, result.setup.shards.rows(i)) for i, w in enumerate(result.points)
        ]
        assert_allclose(result.summary()["site_scores"], trained)
    assert_allclose(results[0].points, results[1].points, rtol=0, atol=1e-14)
    for columns in zip(*([row[OWN_MODEL] for row in result.rows] for result in results[:2]), strict=True):
        assert_allclose(*columns, rtol=1e-12)
    shared = evaluate(setups[0].objective, results[0].model, setups[0].held_rows(0))
    assert shared.correct != results[0].answers["evaluation"].by_site[0] * shared.rows


def test_a_private_client_releases_the_count_of_its_own_model():
    """For the price at which it would evaluate a shared one."""
    keys = HELD | {"privacy__evaluation_share": 0.4, "epsilon": 3000.0}
    setup, other = small("mr-mtl-private", **keys), small("fedprox", **keys, privacy__mode="public-state")
    results = [inprocess.train(setup), *cohort.train([setup])]
    scores, rows = own_scores(results[0])
    assert_allclose(setup.plan.cost(EVALUATION), other.plan.cost(EVALUATION))
    for result in results:
        assert OWN_MODEL not in result.rows[-1]
        found = result.rows[-1]["held_out_accuracy"]
        assert found == pytest.approx(np.average(scores, weights=rows), abs=5e-3)
    shared = [
        evaluate(setup.objective, results[0].model, setup.held_rows(i)).correct for i in range(len(rows))
    ]
    assert abs(found - sum(shared) / rows.sum()) > 0.02


def test_a_run_leaves_a_model_for_every_site_behind(tmp_path):
    result = inprocess.train(patients(tmp_path))
    folder, table = write_run(result, tmp_path / "run"), tmp_path / "new.csv"
    table.write_text(some_patients(5, 30))
    for site in (None, 0, 2):
        x = result.model if site is None else result.points[site]
        words = [] if site is None else ["--site", str(site)]
        out = tmp_path / f"{site}.csv"
        done = CliRunner().invoke(cli.app, ["predict", str(folder), str(table), *words, "--out", str(out)])
        assert done.exit_code == 0, done.output
        with out.open() as file:
            found = [float(row["probability of 1"]) for row in csv.DictReader(file)]
        assert_array_equal(load(folder, site).x, x)
        assert_allclose(found, load(folder, site).predict_proba(table)[:, 1])
    assert np.abs(np.array(found) - load(folder).predict_proba(table)[:, 1]).max() > 1e-3
    done = CliRunner().invoke(cli.app, ["predict", str(folder), str(table), "--site", "2", "--evaluate"])
    assert done.exit_code == 0, done.output
    with pytest.raises(DataError, match="has models of the sites 0 to 2; got site 3"):
        load(folder, 3)


def test_a_run_with_one_model_says_so(tmp_path):
    folder = write_run(inprocess.train(prepare(parse(two_classes(tmp_path)))), tmp_path / "run")
    with pytest.raises(DataError, match="has one model for all sites: leave out the site"):
        load(folder, 0)


def test_the_report_says_whose_models_the_scores_are(tmp_path):
    result = inprocess.train(patients(tmp_path))
    text = unescape(report_run(write_run(result, tmp_path / "run")).read_text())
    assert (
        "The site's own model on the rows that each site trained on, and on those that it holds out." in text
    )
    for score in own_scores(result)[0]:
        assert f"{score:.4f}" in text
