"""Audits of a single run with canaries: the bound of the paper, and faults that one run shows."""

import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.testing import assert_allclose
from scipy import optimize, special, stats
from typer.testing import CliRunner

from twinflower import audit
from twinflower.errors import SettingError
from twinflower.privacy import gdp_epsilon, gdp_mu
from twinflower.privacy.lower_bounds import Guesses, contradicts, epsilon_of_one_run, guessed, mu_of_one_run
from twinflower.simulation import cli
from twinflower.simulation.audit.cases import OneRun


def likeliest(found, epsilon, delta):
    """The largest P[K >= c] for (epsilon, delta)-DP, by linear programming over the probabilities of K = 0, ..., r:
    the mean over canaries of P[guess right, K >= t] <= e^epsilon P[guess wrong, K >= t - 1] + delta, and of the
    complements."""
    c, r, m = found
    k, rows, limits = np.arange(r + 1), [], []
    for t in range(1, r + 1):
        right, wrong = k * (k >= t) / m, (r - k) * (k >= t - 1) / m
        rows += [right - math.exp(epsilon) * wrong, right - math.exp(-epsilon) * wrong]
        limits += [delta, 1 - math.exp(-epsilon) * (1 - delta)]
    solved = optimize.linprog(-1.0 * (k >= c), rows, limits, [np.ones(r + 1)], [1.0])
    return -solved.fun


@pytest.mark.parametrize(
    ("c", "r", "m", "delta"), [(9, 10, 12, 1e-3), (8, 8, 8, 0.0), (15, 20, 40, 0.01), (3, 4, 100, 1e-5)]
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_recursion_solves_the_linear_program(c, r, m, delta, epsilon):
    found = Guesses(c, r, m)

    def false_alarms(p):
        return max(0.0, (p - delta) * math.exp(-epsilon), 1 - delta - math.exp(epsilon) * (1 - p))

    limit = likeliest(found, epsilon, delta)
    assert 0 < limit < 1
    assert contradicts(found, false_alarms, limit * 1.0001)
    assert not contradicts(found, false_alarms, limit * 0.9999)


def test_without_delta_as_many_right_guesses_as_of_biased_coins_are_the_limit():
    """Every coin is guessed right with probability e^epsilon / (1 + e^epsilon) at most (Steinke et al. 2023)."""
    bound = epsilon_of_one_run(Guesses(40, 40, 40), 0.0, 0.05)
    assert_allclose((1 / (1 + math.exp(-bound))) ** 40, 0.05, rtol=1e-5)


def test_half_of_the_guesses_right_shows_nothing():
    for found in (Guesses(0, 10, 10), Guesses(50, 100, 100)):
        assert epsilon_of_one_run(found, 1e-5, 0.05) == mu_of_one_run(found, 0.05) == 0


def test_the_most_extreme_scores_are_guessed():
    coins = np.array([True, False, True, False])
    assert guessed(np.array([3.0, 0.0, 2.0, 1.0]), coins, 2) == (2, 2, 4)
    assert guessed(np.array([3.0, 2.0, 0.0, 1.0]), coins, 2) == (1, 2, 4)
    assert guessed(np.array([3.0, 2.0, 0.0, 1.0]), coins, 4) == (2, 4, 4)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_the_bound_exceeds_the_truth_as_rarely_as_it_says(mu):
    """Every coin moves a number of its own by mu deviations of its noise: as many coins as there are, mu-GDP."""
    rng, m, repeats, delta, alpha = np.random.default_rng(0), 80, 300, 1e-3, 0.8
    truth, exceeded = gdp_epsilon(mu, delta), np.zeros(2)

    def gaussian(p):
        return special.ndtr(special.ndtri(p) - mu)

    def any_noise(p):
        return max(0.0, (p - delta) * math.exp(-truth), 1 - delta - math.exp(truth) * (1 - p))

    for _ in range(repeats):
        coins = rng.random(m) < 0.5
        tried = [guessed(mu * coins + rng.normal(size=m), coins, m // part) for part in (1, 2, 4, 8)]
        exceeded += [
            any(contradicts(one, curve, alpha / 4) for one in tried) for curve in (gaussian, any_noise)
        ]
    assert max(exceeded) <= stats.binom.isf(1e-6, repeats, alpha)


def test_what_is_known_of_the_noise_shows_more():
    found = Guesses(75, 80, 80)
    assert gdp_epsilon(mu_of_one_run(found, 0.05), 1e-5) > 2 * epsilon_of_one_run(found, 1e-5, 0.05)


# -------------------------------------------------------------------------------------------------- apps

SIZE = 4000  # of rows and of the model: canaries are nearly orthogonal
DRAWS = np.random.default_rng(0)
HALF = DRAWS.normal(size=(10, SIZE))
ROWS = {"x": np.concatenate([HALF, -HALF]), "label": DRAWS.choice([-1.0, 1.0], 20)}  # entries of mean 0
SHAPE = SIZE // 2, 2


def loss(model, rows):
    (weights,) = model
    return np.logaddexp(0, -rows["label"] * (rows["x"] @ weights.ravel()))


def app_with(sigma):
    """A clipped sum of slopes with noise."""

    def app(rows, seed):
        made, draws = ClientApp(), np.random.default_rng(seed)

        @made.train()
        def train(message, context):
            (model,) = message.content["arrays"].to_numpy_ndarrays()
            x = rows["x"] / np.linalg.norm(rows["x"], axis=1, keepdims=True)
            margins = rows["label"] * (x @ model.ravel())
            slopes = (rows["label"] / (1 + np.exp(margins)))[:, None] * x
            noise = sigma * draws.normal(size=SHAPE)
            reply = ArrayRecord([model + slopes.sum(0).reshape(SHAPE) + noise])
            return Message(RecordDict({"arrays": reply}), reply_to=message)

        return made

    return app


def case(relation, factor, epsilon=1.0, rounds=2, **keys):
    """Slopes of length 1/2 at a model of zeros; noise that is right but for a factor."""
    moved = 0.5 * (1 + (relation == "replace")) * math.sqrt(rounds)
    app = app_with(factor * moved / gdp_mu(epsilon, 1e-5))
    claim = audit.Claim(epsilon, 1e-5, relation)
    return audit.client_case("one run", app, [np.zeros(SHAPE)], ROWS, claim, rounds, **{"loss": loss} | keys)


@pytest.mark.parametrize("relation", ["replace", "add or remove"])
def test_one_run_shows_noise_that_is_missing_and_accuses_no_right_app(relation):
    effort = audit.Effort(canaries=100)
    found, nothing = (audit.audit_case(case(relation, factor), effort) for factor in (0.01, 1.0))
    assert set(found.alarms) == {"attack"} and found.attack.epsilon > 1.2, found.text()
    assert "guesses right about 100 canaries in one run (the smaller of two counts)" in found.text()
    assert not nothing.alarms and not nothing.attack.void, nothing.text()
    assert "--canaries 100" in found.script and found.json()


def test_one_run_shows_that_most_of_declared_noise_is_missing():
    """Of undeclared noise the same guesses show it under an assumption only."""
    effort, declared = audit.Effort(canaries=1000), [audit.GaussianRelease(gdp_mu(2.0, 1e-5), 1.0)]
    found, right, unknown = (
        audit.audit_case(case("replace", factor, 2.0, declared=known), effort)
        for factor, known in ((0.3, declared), (1.0, declared), (0.35, []))
    )
    assert set(found.alarms) == {"attack"} and found.attack.mu > gdp_mu(2.0, 1e-5)
    assert not right.alarms and not unknown.alarms
    assert "if the noise is Gaussian, which the case does not declare, the claim does not" in unknown.text()


def test_a_canary_is_replaced_by_itself_with_another_label():
    draws, labels = np.random.default_rng(0), np.array([3, 5, 8])
    rows = {"x": np.arange(6.0).reshape(3, 2), "y": labels}
    heads, tails = OneRun(None, [], rows, None, "y").canaries(50, draws)
    assert np.array_equal(heads["x"], tails["x"])
    assert (heads["y"] != tails["y"]).all() and set(tails["y"]) == set(labels)
    heads, tails = OneRun(None, [], rows | {"y": np.full(3, 4)}, None, "y").canaries(50, draws)
    assert (heads["y"] == tails["y"]).all() and not np.array_equal(heads["x"], tails["x"])


def test_one_run_of_an_app_that_fails_is_an_audit_of_nothing():
    def failing(rows, seed):
        return ClientApp()

    claim = audit.Claim(1.0, 1e-5)
    silent = audit.client_case("silent", failing, [np.zeros(SHAPE)], ROWS, claim, loss=loss)
    assert "no reply has a model" in audit.audit_case(silent, audit.Effort(canaries=20)).attack.void


def test_one_run_needs_the_losses():
    with pytest.raises(SettingError, match="pass loss="):
        audit.audit_case(case("replace", 1.0, loss=None), audit.Effort(canaries=20))


def test_the_command_audits_one_run(tmp_path):
    (tmp_path / "one.py").write_text("from test_audit_one_run import case\ncases = case('replace', 0.01)\n")
    done = CliRunner().invoke(cli.app, ["audit", str(tmp_path / "one.py"), "--canaries", "100"])
    assert done.exit_code == 1 and "guesses right" in done.output
