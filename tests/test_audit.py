"""Audits of Flower apps: bounds that are right as often as they say, attacks that find planted faults."""

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from numpy.testing import assert_allclose
from scipy import stats
from typer.testing import CliRunner

from twinflower import audit
from twinflower.errors import SettingError
from twinflower.privacy import gdp_epsilon, gdp_mu
from twinflower.privacy.distinguish import LinearScore
from twinflower.privacy.evidence import Runs, of_all
from twinflower.privacy.lower_bounds import (
    Counts,
    clopper_pearson,
    epsilon_of_one_run,
    epsilon_of_rates,
    mu_of_means,
    mu_of_rates,
    mu_of_shift,
)
from twinflower.simulation import cli
from twinflower.simulation.audit import Outcome
from twinflower.simulation.audit.recorder import recording

GALLERY = Path(__file__).resolve().parent.parent / "examples" / "audit" / "gallery.py"
QUICK = audit.Effort(trying=30, learning=90, counting=400, certain=40)
ALPHA, REPEATS = 0.1, 2000
MOST = stats.binom.isf(1e-6, REPEATS, ALPHA)  # exceedances of a bound in so many repetitions


@cache
def gallery():
    return {case.name: case for case in audit.load(str(GALLERY))}


# ---------------------------------------------------------------------------------------------------- bounds


def test_clopper_pearson_solves_its_definition():
    for k, n in ((0, 7), (3, 7), (7, 7), (40, 1000)):
        low, high = clopper_pearson(k, n, 0.03)
        assert_allclose(stats.binom.sf(k - 1, n, low), 0.03 if k else 1.0, rtol=1e-9)
        assert_allclose(stats.binom.cdf(k, n, high), 0.03 if k < n else 1.0, rtol=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_epsilon_of_rates_exceeds_the_truth_as_rarely_as_it_says(epsilon):
    """Randomised response, whose epsilon is attained by saying what it says."""
    rng, n, p = np.random.default_rng(0), 200, 1 / (1 + np.exp(-epsilon))
    hits, alarms = rng.binomial(n, p, REPEATS), rng.binomial(n, 1 - p, REPEATS)
    bounds = [epsilon_of_rates(Counts(h, n, a, n), 1e-12, ALPHA) for h, a in zip(hits, alarms, strict=True)]
    assert (np.array(bounds) > epsilon).sum() <= MOST
    assert np.mean(bounds) > 0.6 * epsilon - 0.3


@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_bounds_on_mu_exceed_the_truth_as_rarely_as_they_say(mu):
    rng, n = np.random.default_rng(1), 100
    found = np.empty((REPEATS // 2, 3))
    for row in found:
        first, second = rng.normal(size=(2, n))
        second += mu
        hits, alarms = int((second > mu / 2).sum()), int((first > mu / 2).sum())
        row[:] = (
            mu_of_shift(mu, first, ALPHA),
            mu_of_means(first, second, ALPHA),
            mu_of_rates(Counts(hits, n, alarms, n), ALPHA),
        )
    exceeded = (found > mu).sum(0)
    assert (exceeded <= stats.binom.isf(1e-6, REPEATS // 2, ALPHA)).all()
    exact = exceeded[: 2 if mu > 1 else 1]  # these two are exact, not conservative; a bound is never below 0
    assert (exact >= stats.binom.ppf(1e-6, REPEATS // 2, ALPHA)).all()
    assert found[:, 0].mean() > 0.85 * mu


@pytest.mark.parametrize("epsilon", [1.0, 2.5])
def test_a_single_run_with_canaries_bounds_epsilon(epsilon):
    """The best attack on randomised response of every canary's coin guesses rightly with odds e^epsilon."""
    rng, m = np.random.default_rng(2), 1000
    correct = rng.binomial(m, 1 / (1 + np.exp(-epsilon)), 100)
    bounds = np.array([epsilon_of_one_run(int(v), m, m, 1e-9, ALPHA) for v in correct])
    assert (bounds > epsilon).sum() <= stats.binom.isf(1e-6, 100, ALPHA)
    assert np.median(bounds) > 0.8 * epsilon
    assert epsilon_of_one_run(500, 1000, 1000, 1e-5, ALPHA) == 0
    assert epsilon_of_one_run(990, 1000, 1000, 1e-2, ALPHA) < epsilon_of_one_run(990, 1000, 1000, 1e-5, ALPHA)


def runs_of(values):
    return Runs(values, (values**2).sum(1, keepdims=True), ["same"] * len(values))


def test_all_bounds_together_exceed_the_truth_as_rarely_as_they_say():
    """Normal numbers in five rounds with known mu; learned and counted as in an audit."""
    rng, exceeded, repeats, delta = np.random.default_rng(3), 0, 60, 1e-5
    shift = np.full(5, 0.5)
    mu, rounds = float(np.linalg.norm(shift)), np.arange(1, 6)
    bounds = []
    for _ in range(repeats):
        learned, new = ((runs_of(noise), runs_of(noise + shift)) for noise in rng.normal(size=(2, 200, 5)))
        found = of_all(learned, new, rounds, delta, ALPHA)
        bounds.append(max(one.mu for one in found))
        exceeded += max(one.epsilon for one in found) > gdp_epsilon(mu, delta) * (1 + 1e-9)
    assert exceeded <= stats.binom.isf(1e-6, repeats, ALPHA)
    assert np.median(bounds) > 0.8 * mu


def test_numbers_that_share_their_noise_are_told_apart_without_it():
    rng = np.random.default_rng(4)
    first, second = rng.normal(size=(2, 200, 1)) * np.ones(6)
    score = LinearScore.learned(first, second + [1, 0, 0, 0, 0, 0])
    assert abs(score.weights[0]) > 100 * abs(score.weights.sum())


# ---------------------------------------------------------------------------------------- recording, static reading


class Counting(NumPyClient):
    """Counts its calls in Flower's context, and fails in the third."""

    def __init__(self, context):
        self.context = context

    def fit(self, parameters, config):
        calls = self.context.state.config_records.setdefault("calls", ConfigRecord({"n": 0}))
        calls["n"] += 1
        if calls["n"] == 3:
            raise ValueError("three is too many")
        return [parameters[0] * np.nan], 7, {"calls": calls["n"], "text": config["say"]}


def test_a_numpy_client_is_recorded_with_its_state_its_errors_and_what_is_not_finite():
    mechanism = audit.client(
        lambda rows, seed: ClientApp(lambda context: Counting(context).to_client()),
        [audit.numpy_request([np.ones(2)], {"say": "hello"})] * 3,
    )
    with recording():
        first, second, third = mechanism(None, 0)
    assert first.form["fitres.parameters/0"] == "float64 (2,), not all finite"
    assert first.form["fitres.metrics/text"] == "'hello'"
    assert [o.values["fitres.metrics/calls"].item() for o in (first, second)] == [1, 2]
    assert first.values["fitres.num_examples/num_examples"] == 7
    assert third.form == {"kind": "error", "error": "ValueError: three is too many"}


def test_an_app_of_functions_gets_flowers_records_and_seeded_generators():
    app = ClientApp()

    @app.train("mine")
    def train(message, context):
        noise = np.random.normal(size=2)  # noqa: NPY002
        content = {"arrays": ArrayRecord([noise]), "config": message.content["config"]}
        return Message(RecordDict(content), reply_to=message)

    mechanism = audit.client(
        lambda rows, seed: app, [audit.request([np.ones(2)], {"server-round": 1}, "train.mine")]
    )
    with recording():
        (first,), (same,), (other,) = (mechanism(None, seed) for seed in (0, 0, 1))
    assert first.values["config/server-round"] == 1
    assert_allclose(first.values["arrays/0"], same.values["arrays/0"], rtol=0)
    assert (first.values["arrays/0"] != other.values["arrays/0"]).all()


def test_pairs_differ_in_one_record_and_keep_their_types():
    images = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2)
    for rows in ({"image": images, "label": np.arange(3)}, {"x": images[:, 0] / 2.0, "label": np.arange(3)}):
        for name, (first, second) in audit.pairs(rows).items():
            for column in rows:
                assert first[column].dtype == second[column].dtype == rows[column].dtype
                assert first[column].shape == second[column].shape
                assert (first[column][1:] == second[column][1:]).all(), name
            assert any((first[column][0] != second[column][0]).any() for column in rows), name
        removed = audit.pairs(rows, relation="add or remove").values()
        assert all(len(first["label"]) == len(second["label"]) + 1 for first, second in removed)


def test_the_classical_rule_composed():
    """(8, 1e-4) in each of 30 rounds is about 87.6 in all."""
    from flwr.clientapp.mod import LocalDpMod

    releases = audit.of_local_dp_mod(LocalDpMod(1.0, 2.0, 8.0, 1e-4), 30)
    assert_allclose(audit.certified(releases, 1e-4).epsilon, 87.6, atol=0.1)


def test_weights_by_rows_understate_the_noise():
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 10)
    (release,) = audit.of_fixed_clipping(strategy, 1, [990, *[10] * 9])
    assert_allclose(release.sensitivity / release.sigma, 9.17, atol=0.01)


def test_sampled_releases_cost_less_than_all_and_more_than_none():
    pytest.importorskip("dp_accounting")
    sampled, whole = (audit.certified(audit.of_history([(1.0, q, 10)]), 1e-5) for q in (0.1, 1.0))
    assert 0 < sampled.epsilon < whole.epsilon
    assert_allclose(whole.epsilon, gdp_epsilon(math.sqrt(10), 1e-5))
    with pytest.raises(SettingError, match="not replaced"):
        audit.of_history([(1.0, 0.1, 10)], replaced=True)


# ------------------------------------------------------------------------------------------------- the gallery

SOON = ["sensitivity not tied to the clipping norm", "values without noise", "right: noisy sums of slopes"]


@pytest.mark.parametrize("name", SOON)
def test_a_case_is_judged_right(name):
    report = audit.run(gallery()[name], QUICK)
    assert bool(report.alarms) != name.startswith("right:"), report.text()


def misjudged(name):
    """The cases of a file in which an alarm is missing or false."""
    return [
        case.name for case in audit.load(str(GALLERY.with_name(name)))
        if bool(audit.run(case).alarms) == case.name.startswith("right:")
    ]  # fmt: skip


@pytest.mark.slow
def test_every_case_of_the_gallery_is_judged_right():
    assert not misjudged("gallery.py")


@pytest.mark.slow
def test_closed_holes_are_found_in_the_code_before_and_not_in_that_of_today():
    assert not misjudged("holes.py")


@pytest.mark.slow
def test_twenty_planted_faults_are_found_but_for_two():
    assert misjudged("mutants.py") == [
        "a key of the noise in the metrics: SCAFFOLD", "noise before the local steps: SCAFFOLD"
    ]  # fmt: skip


@pytest.mark.slow
def test_attacks_come_close_to_what_our_methods_spend():
    reports = [audit.run(case) for case in audit.load(f"{GALLERY.with_name('mutants.py')}:originals")]
    assert len(reports) == 8
    assert all(report.ratio > 0.9 and not report.alarms for report in reports)


def test_a_private_run_of_ours_keeps_its_claim():
    case = audit.twinflower_case(
        "ours",
        {"data.name": "breast-cancer", "objective.name": "logistic", "clients.count": 4, "rounds": 2},
        {"epsilon": 1.0, "privacy.mode": "public-state", "local.max-steps": 2, "step-size": 0.4, "rho": 0.5},
    )
    report = audit.run(case, QUICK)
    assert not report.alarms, report.text()
    assert_allclose(report.certified.mu, gdp_mu(1.0, 1e-4))
    assert report.ratio > 0.8


def test_two_numbers_that_share_their_noise_are_found_from_few_runs():
    """A draw of the noise in the metrics: the number that it is in has no noise beside it."""
    rng = np.random.default_rng(5)
    numbers, draws = rng.normal(size=(2, 40, 99)), rng.normal(size=(2, 40, 1))
    first, second = (
        np.concatenate([n[:, :7], s, n[:, 7:], s], axis=1) for n, s in zip(numbers, draws, strict=True)
    )
    second[:, 7] += 0.01
    score = LinearScore.of_shared_noise(first, second)
    assert set(np.flatnonzero(score.weights)) == {7, 100}
    assert (score(second) > score(first).max()).all()


def test_single_numbers_without_noise_are_leaks():
    def mechanism(data, seed):
        noise = np.random.default_rng(seed).normal(size=3)
        return [Outcome({"kind": "a"}, {"x": np.array([noise[0], data, noise[1], 7.0]), "y": noise[2:]})]

    case = audit.Case("one", {"m": mechanism}, {"p": (1.0, 2.0)}, audit.Claim(1.0, 1e-5))
    assert [tuple(leak) for leak in audit.run(case, QUICK).attack.leaks] == [(1, "x[1]", "1", "2")]


def test_texts_and_single_numbers_that_change_are_named():
    def mechanism(data, seed):
        noise = np.random.default_rng(seed).normal(size=2)
        return [Outcome({"kind": "a", "key": str(seed)}, {"x": noise, "seed": np.array([seed])})]

    case = audit.Case("keys", {"m": mechanism}, {"p": (0, 1)}, audit.Claim(1.0, 1e-5))
    report = audit.run(case, QUICK)
    assert not report.alarms
    assert report.attack.changing == ["key", "seed"]
    assert "seed changes from run to run" in report.text()


def test_more_numbers_than_are_used_as_they_are():
    def mechanism(data, seed):
        return [Outcome({"kind": "a"}, {"x": np.random.default_rng(seed).normal(size=1000) + data})]

    shift = np.zeros(1000)
    shift[5] = 2.0
    case = audit.Case("long", {"m": mechanism}, {"p": (0.0, shift)}, audit.Claim(1.0, 1e-5))
    assert 1.7 < audit.run(case, QUICK).attack.mu < 2.0


def test_the_app_of_the_guide():
    """What docs/audit.md shows: first an error, then too little noise."""
    page, app = (GALLERY.parents[2] / "docs" / "audit.md").read_text(), GALLERY.parent / "my_app"
    assert (app / "audit_me.py").read_text().partition("\n\n")[2] in page
    (case,) = audit.load(str(GALLERY.parent / "my_app" / "audit_me.py"))
    report = audit.run(case, QUICK)
    assert "ZeroDivisionError" in report.alarms[0]
    assert report.alarms[1] == "the declared noise guarantees epsilon 40.01, not the claimed 8"


def test_loaders_and_rows():
    torch = pytest.importorskip("torch")
    rows = {"x": np.arange(12.0).reshape(6, 2), "label": np.arange(6)}
    loader = audit.loader_of_rows(rows, batch_size=4)
    assert [len(labels) for _, labels in loader] == [4, 2]
    assert all(isinstance(part, torch.Tensor) for batch in loader for part in batch)
    for name, column in audit.rows_of_loader(loader).items():
        assert_allclose(column, rows[name], rtol=0)


# ------------------------------------------------------------------------------------------------- the command


def command(*words):
    return CliRunner().invoke(cli.app, ["audit", *map(str, words)])


def test_the_command_reports_and_exits_with_1_for_a_broken_claim(tmp_path):
    done = command(GALLERY, "--case", SOON[1], "--out", tmp_path)
    assert done.exit_code == 1
    assert "not private" in done.output and "demonstrate" in done.output
    (entry,) = json.loads((tmp_path / "audit.json").read_text())
    assert entry["attacked"] == {"epsilon": None, "mu": None, "unbounded": True} and not entry["holds"]
    assert "The claim does not hold." in (tmp_path / "audit.html").read_text()


FAIR = """
import numpy as np
from twinflower import audit

def mechanism(data, seed):
    return [audit.Outcome({"kind": "number"}, {"x": data + np.random.default_rng(seed).normal(size=1)})]

case = audit.Case("fair", {"m": mechanism}, {"p": (0.0, 1.0)}, audit.Claim(5.0, 1e-5))
"""


def test_the_command_exits_with_0_if_no_attack_exceeds_the_claim(tmp_path):
    (tmp_path / "mine.py").write_text(FAIR)
    done = command(f"{tmp_path / 'mine.py'}:case", "--runs", 100)
    assert done.exit_code == 0
    assert "not a proof of privacy" in done.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere.py"], "there is no file nowhere.py"),
        ([f"{GALLERY}:FAULTS"], "must be a Case"),
        ([f"{GALLERY}:nothing"], "has no nothing"),
        (["no.such.module:cases"], "cannot be imported"),
        ([GALLERY, "--case", "unknown"], "has no case"),
        ([GALLERY, "--runs", "3"], "counting must be at least 40"),
    ],
)
def test_a_users_mistake_is_one_sentence(words, sentence):
    done = command(*words)
    assert isinstance(done.exception, SettingError)
    assert sentence in str(done.exception)


BROKEN = """
from flwr.clientapp import ClientApp
import numpy as np
from twinflower import audit

rows = {"x": np.ones((3, 2)), "label": np.arange(3)}
claim = audit.Claim(1.0, 1e-5)
silent = audit.client_case("silent", lambda rows, seed: ClientApp(), [np.zeros(2)], rows, claim)
failing = audit.client_case("failing", lambda rows, seed: rows["z"], [np.zeros(2)], rows, claim)
wrong = audit.client_case("wrong", lambda rows, seed: 7, [np.zeros(2)], rows, claim)
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("silent", "every reply of ['silent'] is an error"),
        ("failing", "app(rows, seed) failed: KeyError"),
        ("wrong", "must return a ClientApp; got int"),
    ],
)
def test_an_audit_of_nothing_is_a_mistake_and_not_a_success(name, sentence, tmp_path):
    (tmp_path / "mine.py").write_text(BROKEN)
    done = command(f"{tmp_path / 'mine.py'}:{name}", "--runs", 40)
    assert isinstance(done.exception, SettingError)
    assert sentence in str(done.exception)


def test_what_was_found_can_be_seen_again(capsys):
    app = GALLERY.parent / "my_app" / "audit_me.py"
    exec(audit.run(audit.load(str(app))[0], QUICK, str(app)).script)
    shown = capsys.readouterr().out
    assert "first data set, seed 0" in shown and "arrays/0" in shown
