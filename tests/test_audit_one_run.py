"""Audits of a single run with canaries: the bound of the paper, and faults that one run shows."""

import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.testing import assert_allclose
from scipy import stats
from typer.testing import CliRunner

from twinflower import audit
from twinflower.errors import SettingError
from twinflower.privacy import gdp_epsilon, gdp_mu
from twinflower.privacy.lower_bounds import Guesses, _chance, best_guesses, epsilon_of_one_run, guessed
from twinflower.simulation import cli


def chance(m, r, v, epsilon, delta):
    """Steinke et al. 2023, Theorem 5.2, term by term: the probability of v right guesses or more."""
    q = 1 / (1 + math.exp(-epsilon))
    steps = [sum(stats.binom.pmf(range(v - i, v), r, q)) / i for i in range(1, v + 1)]
    return stats.binom.sf(v - 1, r, q) + 2 * m * delta * max(steps)


@pytest.mark.parametrize(
    ("m", "r", "v", "delta"),
    [(100, 60, 50, 1e-5), (50, 50, 50, 1e-4), (200, 20, 19, 0.0), (90, 80, 70, 2e-3)],
)
def test_the_bound_solves_the_papers_inequality(m, r, v, delta):
    bound = epsilon_of_one_run(Guesses(v, r, m), delta, 0.05)
    assert bound > 0.3
    assert_allclose(chance(m, r, v, bound, delta), 0.05, rtol=1e-4)


def test_half_of_the_guesses_right_shows_nothing():
    assert epsilon_of_one_run(Guesses(0, 10, 10), 1e-5, 0.05) == 0
    assert epsilon_of_one_run(Guesses(50, 100, 100), 1e-5, 0.05) == 0


def test_the_most_extreme_scores_are_guessed():
    coins = np.array([True, False, True, False])
    assert guessed(np.array([3.0, 0.0, 2.0, 1.0]), coins, 2) == (2, 2, 4)
    assert guessed(np.array([3.0, 2.0, 0.0, 1.0]), coins, 2) == (1, 2, 4)
    assert guessed(np.array([3.0, 2.0, 0.0, 1.0]), coins, 4) == (2, 4, 4)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_the_bound_exceeds_the_truth_as_rarely_as_it_says(mu):
    """Every coin moves a number of its own by mu deviations of its noise: as many coins as there are, mu-GDP."""
    rng, m, repeats, delta, alpha = np.random.default_rng(0), 80, 300, 1e-3, 0.8
    truth, exceeded, bound = gdp_epsilon(mu, delta), 0, 0.0
    for repeat in range(repeats):
        coins = rng.random(m) < 0.5
        scores = mu * coins + rng.normal(size=m)
        tried = [guessed(scores, coins, m // part) for part in (1, 2, 4, 8)]
        exceeded += any(_chance(one, truth, delta) < alpha / 4 for one in tried)
        bound = bound if repeat else best_guesses(scores, coins, delta, alpha)[0]
    assert exceeded <= stats.binom.isf(1e-6, repeats, alpha)
    assert 0 < bound < truth


# -------------------------------------------------------------------------------------------------- apps

SIZE = 1000  # of rows and of the model: canaries are nearly orthogonal
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
        made, noise = ClientApp(), sigma * np.random.default_rng(seed).normal(size=SHAPE)

        @made.train()
        def train(message, context):
            (model,) = message.content["arrays"].to_numpy_ndarrays()
            x = rows["x"] / np.linalg.norm(rows["x"], axis=1, keepdims=True)
            margins = rows["label"] * (x @ model.ravel())
            slopes = (rows["label"] / (1 + np.exp(margins)))[:, None] * x
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
