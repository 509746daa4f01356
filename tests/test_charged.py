"""Tuning that is charged: what it costs, what it releases, when it ends, and what it refuses."""

import math
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from numpy.testing import assert_allclose
from scipy.stats import chi2

from twinflower.errors import SettingError
from twinflower.privacy import Budget, gdp_epsilon, gdp_mu, total_mu
from twinflower.privacy.charges import Charge
from twinflower.privacy.unit import ONE_RECORD, Unit
from twinflower.problems.interfaces import Batch
from twinflower.queries.held_out_question import correct
from twinflower.simulation.runs.client_factory import ledger_of
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.runtimes.cohort import Cohort
from twinflower.simulation.settings.experiment import read_experiment
from twinflower.simulation.tuning.charged import (
    Accuracy,
    Charged,
    Stage,
    cost_of,
    cost_of_one,
    plan_of,
    score_releases,
    stages,
)
from twinflower.simulation.tuning.grid import read_tuning
from twinflower.simulation.tuning.search import tune
from twinflower.simulation.tuning.validation import split

STEPS = [0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 4.0]
FILE = f"""
title = "Ten candidates"
seeds = [0]
[tune]
seeds = [100]
by = "accuracy"
[grid]
step-size = {STEPS}
[run]
algorithm = "fedavg"
rounds = 12
clients.count = 4
local.max-steps = 1
local.batch-size = 0
regulariser.name = "none"
[run.privacy]
mode = "public-state"
epsilon = 2.0
tune-share = 0.3
[[curve]]
label = "avg"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ten.toml"
    path.write_text(FILE)
    return path


def charged(file, overrides=None, share=0.2):
    """The charged tuning of the only curve of a file."""
    tuning = read_tuning(file, overrides)
    curve = tuning.raw["curve"][0]
    points = [(str(p), tuning.config(curve, p)) for p in tuning.points(curve)]
    return Charged.of(points, share, 100)


# --------------------------------------------------------------------------------------- the cost


@pytest.mark.parametrize("overrides", [{}, {"clients.per-round": 2}, {"privacy.mode": "gradient"}])
def test_ten_candidates_and_the_final_run_cost_what_an_independent_computation_says(file, overrides):
    """The deviations that are really used, and the sensitivities 2 eta C / m and 2 C / m of one full-batch step."""
    plan = charged(file, overrides)
    clients, ends = plan.total.config.clients.count, plan.candidates[0].ends(10)
    trained, counted = np.zeros(clients), np.zeros(clients)
    for place, (stage, first) in enumerate(zip(plan.halving, [0, *ends], strict=False)):
        for own in plan.candidates[: stage.candidates]:
            for t in range(first + 1, ends[place] + 1):
                asked = own.setup.config.asked(t)
                sigma = np.ravel(Cohort([own.setup])._noise()(t, asked).sigma)
                eta = 1.0 if overrides.get("privacy.mode") else own.setup.config.method.step_size
                rows = own.setup.partition.sizes[asked]
                trained[asked] += (2 * eta * math.sqrt(2) / rows / sigma) ** 2
            counted += 1 / plan.counted.sigmas(plan.scores[place].multiplier) ** 2
    whole = gdp_mu(2.0, 1e-4) ** 2
    assert_allclose(counted, 0.3 * whole)
    if overrides.get("clients.per-round"):
        assert (trained <= 0.3 * whole * (1 + 1e-9)).all()
    else:
        assert_allclose(trained, 0.3 * whole)
    final = plan_of(plan.total)
    assert_allclose(final.mu_limit**2, 0.7 * whole)
    assert_allclose(gdp_epsilon(math.sqrt(final.mu_limit**2 + counted.max()), 1e-4), 2.0)


def test_what_is_charged_is_the_plan_and_the_final_run_states_the_total(file, monkeypatch):
    """The ledgers of all clients hold the tuning's share, and the tuned run's guarantee is the total."""
    plan, said = charged(file), []
    ledgers = plan._ledgers()
    monkeypatch.setattr(Charged, "_ledgers", lambda self: ledgers)
    plan.run(said.append)
    assert len(said) == 10 + 5 + 3 + 2
    for ledger in ledgers:
        assert_allclose(math.fsum(c.cost for c in ledger.charges()), plan_of(plan.total).mu_tuning ** 2)
    (result,) = cohort.train([prepare(read_experiment(file).curves[0].config)])
    told = result.privacy()
    assert_allclose(told["epsilon"], 2.0)
    assert_allclose(told["mu_tuning"] ** 2, 0.3 * gdp_mu(2.0, 1e-4) ** 2)
    assert "all its messages together, those of the tuning before the run included, are" in told["guarantee"]
    spent = total_mu([1.0] * 12, result.setup.plan.multipliers[0])
    assert_allclose(math.hypot(spent, told["mu_tuning"]), told["mu"])


def test_halving_ends_with_two_candidates_that_train_to_the_end():
    assert stages(10) == [Stage(10, 0.125), Stage(5, 0.25), Stage(3, 0.5), Stage(2, 1.0)]
    assert stages(2) == [Stage(2, 1.0)]
    assert stages(1) == [Stage(1, 1.0)]


@pytest.mark.parametrize(("unit", "times"), [(ONE_RECORD, 1), (Unit("group", 3), 2), (Unit("site"), 2)])
def test_a_group_pays_for_training_and_counting(unit, times):
    halving, fractions = stages(4), [0.5, 0.5]
    one = cost_of_one(halving, fractions, 1.0)
    scores = score_releases(one, fractions, unit, np.arange(3))
    trained = math.fsum(s.candidates * f * one / unit.parts for s, f in zip(halving, fractions, strict=True))
    counted = math.fsum(s.candidates / own.multiplier**2 for s, own in zip(halving, scores, strict=True))
    assert_allclose([trained, counted], 1.0 / times)
    assert_allclose(
        math.fsum(s.candidates * cost_of(own) for s, own in zip(halving, scores, strict=True)), 1.0
    )


# ----------------------------------------------------------------------------------- the releases


def test_a_record_is_trained_on_or_counted_and_never_both(file):
    plan = charged(file)
    for client, counted in enumerate(plan.counted.rows):
        whole = {tuple(row) for row in plan.total.shards.rows(client).features}
        seen = {tuple(row) for row in counted.features}
        for own in plan.candidates:
            trained = {tuple(row) for row in own.setup.shards.rows(client).features}
            assert not trained & seen
            assert trained | seen == whole


def test_a_replaced_counted_record_changes_a_count_by_at_most_one_and_no_model(file):
    setup = prepare(read_experiment(file).curves[0].config)
    kept, rows = split(setup, 0.2)
    draw = np.random.default_rng(0)
    for _ in range(20):
        x = draw.normal(size=setup.objective.d)
        labels = rows[0].labels.copy()
        labels[draw.integers(len(labels))] = draw.integers(10)
        moved = correct(setup.objective, x, rows[0]) - correct(
            setup.objective, x, Batch(rows[0].features, labels)
        )
        assert abs(moved[0]) <= 1
    planted = setup.dataset.features.copy()
    number = next(i for i, row in enumerate(planted) if (row == rows[0].features[0]).all())
    planted[number] *= -1.0
    other, _ = split(replace(setup, dataset=replace(setup.dataset, features=planted)), 0.2)
    for client in range(4):
        assert (kept.shards.rows(client).features == other.shards.rows(client).features).all()


def test_the_noise_of_counts_is_fresh_and_as_large_as_planned(file):
    plan = charged(file)
    ledgers = plan._ledgers()
    drawn = np.array(
        [plan._charge(own, 0, number, ledgers) for number, own in enumerate(plan.candidates, 1)]
    )[..., 0]
    sigma = plan.counted.sigmas(plan.scores[0].multiplier)
    assert len(np.unique(drawn)) == drawn.size
    assert 1e-6 < chi2.sf(((drawn / sigma) ** 2).sum(), drawn.size) < 1 - 1e-6


def test_candidates_have_noise_of_their_own(file):
    """Equal noise would cancel in the difference of two candidates."""
    first, second = (own.setup for own in charged(file).candidates[:2])
    asked, zero = np.arange(4), np.zeros((4, 50))
    a, b = (Cohort([s])._noise()(1, asked)(zero) for s in (first, second))
    assert not np.isclose(a[:, 0] / b[:, 0], a[0, 0] / b[0, 0]).all()
    assert (first.partition.rows == second.partition.rows).all()


def test_an_accuracy_is_the_share_of_all_rows_with_the_noise_of_all_clients():
    told = Accuracy.of(np.array([3.0, 5.0]), np.array([3.0, 4.0]), np.array([10, 30]))
    assert told == Accuracy(0.2, 0.125)


# ------------------------------------------------------------------------------ when it ends early


def test_a_short_budget_ends_the_tuning_with_the_best_so_far(file, tmp_path):
    """The client's ledger has room for all but the last charge of the plan."""
    plan = charged(file, {"output.state-dir": str(tmp_path / "state")})
    ledger = ledger_of(plan.total, 2, Context(0, 2, {}, RecordDict(), {}))
    most = gdp_mu(2.0, 1e-4) ** 2
    early = most - math.fsum(map(cost_of, plan.releases)) + 0.5 * cost_of(plan.scores[-1])
    ledger.charge(Charge("earlier run", 1, 1.0, 1.0, 1, early), Budget(most))
    said: list[str] = []
    ranked = plan.run(said.append)
    assert "not trained, because the lifetime budget epsilon 2, delta 0.0001 is spent" in said[-1]
    assert said[-1].endswith("; the tuning ends with the best so far")
    assert len(said) == 20
    reached = sorted(own.reached for own in ranked)
    assert (ranked[0].reached, reached[-2]) == (12, 6)
    assert math.fsum(c.cost for c in ledger.charges()) <= most


def test_a_tuning_that_is_repeated_counts_once_and_another_one_is_charged_again(file, tmp_path):
    keys = {"output.state-dir": str(tmp_path / "state")}
    plans = [charged(file, keys), charged(file, keys), charged(file, keys, share=0.3)]
    for plan in plans:
        plan.run(lambda line: None)
    spent = math.fsum(c.cost for c in plans[0]._ledgers()[0].charges())
    assert_allclose(spent, 2 * math.fsum(map(cost_of, plans[0].releases)))


# ------------------------------------------------------------------------------- the command's words


def test_the_plan_is_printed_before_anything_runs_and_the_file_keeps_its_share(file, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(Charged, "run", lambda self, say: said.append("it runs") or self.candidates)
    with pytest.raises(SettingError, match="no point"):
        tune(read_tuning(file), say=said.append)
    assert [line.split(":")[1].strip() for line in said[:6]] == [
        "stage 1", "stage 2", "stage 3", "stage 4", "tuning in total", "final run",
    ]  # fmt: skip
    assert "10 candidates, rounds 1 to 2, noise multiplier" in said[0]
    assert said[5].endswith("with tuning epsilon 2 at delta 0.0001")
    assert said[6] == "it runs"


def test_the_best_candidate_is_written_and_the_tuned_run_costs_the_total(file, tmp_path):
    text = tune(read_tuning(file, {"rounds": 9}), say=lambda line: None)
    (tmp_path / "tuned.toml").write_text(text)
    (curve,) = read_experiment(tmp_path / "tuned.toml").curves
    assert curve.config.method.step_size in STEPS
    assert_allclose(prepare(curve.config).plan.epsilon_limit, 2.0)
    assert len(tomllib.loads(text)["scores"]["avg"]) == 10


def test_points_that_do_not_go_together_are_left_out_before_anything_is_charged(file):
    file.write_text(FILE.replace('"fedavg"', '"fedprox"').replace("4.0]", "4.0]\nmu = [0.7]"))
    said: list[str] = []
    tune(read_tuning(file), say=said.append)
    assert "step-size = 3.0, mu = 0.7: left out (mu * step-size must be" in said[0]
    assert "step-size = 4.0, mu = 0.7: left out" in said[1]
    assert "stage 1: 8 candidates" in said[2]


def test_tuning_on_public_rows_is_free_and_says_so(file):
    file.write_text(FILE.replace("tune-share = 0.3", "").replace("[0.01, 0.03,", "[1.0]#"))
    said: list[str] = []
    tune(read_tuning(file), say=said.append)
    assert said[0] == (
        "avg: free, because the data set digits is published; the guarantee does not cover the choice"
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            'by = "accuracy"',
            'by = "objective"',
            r"set \[tune\] by = 'accuracy' and one seed; got 'objective'",
        ),
        ("seeds = [100]", "seeds = [100, 101]", r"and one seed; got 'accuracy' and \[100, 101\]"),
        ('by = "accuracy"', 'by = "accuracy"\npublic = true', "tune-share = 0.3 charges the candidates, and"),
        ("tune-share = 0.3", "tune-share = 1.0", "tune-share must be from 0 to below 1; got 1.0"),
        ("epsilon = 2.0", "noise-multiplier = 2.0", "a share of the budget privacy.epsilon, which it needs"),
        (
            "tune-share",
            'trust = "sum"\nhonest-sites = 2\ntune-share',
            "trust = sum has no accounting for tuning",
        ),
        (
            '"public-state"',
            '"as-published"',
            "tune-share is a setting of privacy.mode public-state or gradient",
        ),
        ("rounds = 12", "rounds = 4", "10 candidates are halved in 4 stages, .* needs more than 4 rounds"),
        (
            "step-size = ",
            "privacy.delta = [1e-5, 1e-4]\n#",
            "leave data, clients, partition, privacy and evaluation out",
        ),
        ('"fedavg"', '"fedavg"\ndata.name = "linear"\nobjective.name = "huber"', "so it needs classes"),
    ],
)
def test_what_cannot_be_charged_is_refused_in_one_sentence_before_anything_is_spent(
    file, old, new, why, monkeypatch
):
    monkeypatch.setattr(Charged, "run", lambda *_: pytest.fail("it ran"))
    file.write_text(FILE.replace(old, new))
    with pytest.raises(SettingError, match=why) as refused:
        tune(read_tuning(file), say=lambda line: None)
    assert "\n" not in str(refused.value)


def test_tables_are_not_tuned_on_for_free_unless_their_rows_are_public(file, tmp_path):
    schema = '[label]\ncolumn = "ill"\nclasses = ["n", "y"]\n[columns]\nage = { range = [0, 9] }\n'
    (tmp_path / "schema.toml").write_text(schema)
    (tmp_path / "rows.csv").write_text("age,ill\n" + "3,n\n7,y\n" * 40)
    free = FILE.replace("tune-share = 0.3", "").replace("[0.01, 0.03,", "[1.0]#")
    keys = {
        "data.name": "tables",
        "data.files": tmp_path / "rows.csv",
        "data.schema": tmp_path / "schema.toml",
    }
    lines = "\n".join(f'{key} = "{value}"' for key, value in keys.items())
    free = free.replace("rounds = 12", f"rounds = 12\n{lines}")
    file.write_text(free)
    with pytest.raises(SettingError, match="costs privacy: set privacy.tune-share, the part of the budget"):
        read_tuning(file)
    file.write_text(free.replace("[tune]", "[tune]\npublic = true"))
    said: list[str] = []
    text = tune(read_tuning(file), say=said.append)
    assert said[0].startswith("avg: free, because [tune] public = true says so;")
    assert tomllib.loads(text)["tune"]["public"] is True


def test_a_run_with_private_ranges_has_no_share_for_tuning(file, tmp_path):
    schema = '[label]\ncolumn = "ill"\nclasses = ["n", "y"]\n[columns]\nage = { range = "private" }\n'
    (tmp_path / "schema.toml").write_text(schema)
    (tmp_path / "rows.csv").write_text("age,ill\n" + "3,n\n7,y\n" * 40)
    keys = {
        "data.name": "tables",
        "data.files": tmp_path / "rows.csv",
        "data.schema": tmp_path / "schema.toml",
    }
    overrides = {key: str(value) for key, value in keys.items()}
    with pytest.raises(
        SettingError,
        match="privacy.tune-share and private ranges share no budget",
    ):
        prepare(read_experiment(file, overrides).curves[0].config)
