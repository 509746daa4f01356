"""Survival curves from counts over a grid: the estimates of the times themselves, and intervals that include noise."""

import itertools

import numpy as np
import pytest
from lifelines import KaplanMeierFitter, NelsonAalenFitter
from lifelines.utils import survival_table_from_events
from numpy.testing import assert_allclose, assert_array_equal
from statsmodels.duration.survfunc import SurvfuncRight

from twinflower.concordance import brier, concordance, integrated_brier
from twinflower.errors import SettingError
from twinflower.models.survival import SurvivalTable, TimeGrid
from twinflower.survival_labels import signed


def persons(seed=0, number=400, step=1.0, censoring=900.0):
    """Times on a grid with this step, and whether the event happened then."""
    draw = np.random.default_rng(seed)
    event, end = (np.ceil(draw.exponential(mean, number) / step) * step for mean in (700.0, censoring))
    return np.minimum(event, end), event <= end


def table(times, events, edges=None, sigma=0.0, seed=0, actuarial=False):
    grid = TimeGrid(tuple(np.unique(times) if edges is None else edges))
    counts = grid.counts(signed(times, events))
    noise = sigma * np.random.default_rng(seed).normal(size=grid.cells)
    return SurvivalTable(counts + noise, np.array(grid.edges), len(times), sigma, actuarial)


# ------------------------------------------------------------------------------------- without noise


@pytest.mark.parametrize("step", [1.0, 30.0])
def test_a_grid_of_all_times_gives_the_estimates_of_statsmodels(step):
    times, events = persons(step=step)
    found, known = table(times, events).curve(), SurvfuncRight(times, events)
    at = np.searchsorted(found.time, known.surv_times)
    assert_allclose(found.survival[at], known.surv_prob, rtol=0, atol=1e-12)
    assert_allclose(found.at_risk[at], known.n_risk)
    assert_allclose(found.events[at], known.n_events)
    alive = known.surv_prob > 0
    assert_allclose(found.deviation[at][alive], known.surv_prob_se[alive], rtol=0, atol=1e-12)


@pytest.mark.parametrize("step", [1.0, 30.0])
def test_a_grid_of_all_times_gives_the_estimates_of_lifelines(step):
    times, events = persons(3, step=step)
    found = table(times, events).curve()
    survival = KaplanMeierFitter().fit(times, events).survival_function_["KM_estimate"]
    hazard = (
        NelsonAalenFitter(nelson_aalen_smoothing=False).fit(times, events).cumulative_hazard_["NA_estimate"]
    )
    for own, known in ((found.survival, survival), (found.hazard, hazard)):
        assert_array_equal(found.time, known.index[1:])  # the first is 0
        assert_allclose(own, known.iloc[1:], rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_the_interval_of_the_median_is_that_of_statsmodels():
    """Which inverts the intervals of the curve that are symmetric in log(-log S)."""
    for seed in range(5):
        times, events = persons(seed)
        found, known = table(times, events).curve().median(), SurvfuncRight(times, events)
        ends = known.quantile_ci(0.5, method="cloglog")
        assert tuple(found) == pytest.approx((known.quantile(0.5), *map(float, ends)))


def test_nelson_aalen_is_its_sum():
    times, events = persons(number=80, step=30.0)
    found, hazard, variance = table(times, events).curve(), 0.0, 0.0
    for place, time in enumerate(found.time):
        at_risk = (times >= time).sum()
        died = (events & (times == time)).sum()
        hazard, variance = hazard + died / at_risk, variance + died / at_risk**2
        assert found.hazard[place] == pytest.approx(hazard)
        assert found.hazard_deviation[place] == pytest.approx(np.sqrt(variance))


def life_table(times, events, edges):
    """(n_k, d_k, c_k) of each interval, person by person, and what follows: S and Greenwood's deviation."""
    left, share, variance, found = len(times), 1.0, 0.0, []
    for begin, end in zip((0.0, *edges), edges, strict=False):
        inside = (times > begin) & (times <= end)
        died, censored = (inside & events).sum(), (inside & ~events).sum()
        exposed = left - censored / 2
        share *= 1 - died / exposed
        variance += died / (exposed * (exposed - died))
        left -= died + censored
        found.append((share, share * np.sqrt(variance)))
    return np.array(found).T


@pytest.mark.parametrize("seed", range(3))
def test_the_actuarial_estimate_is_that_of_the_life_table(seed):
    times, events = persons(seed, step=1.0, censoring=500.0)
    edges = (100.0, 300.0, 400.0, 800.0)
    found = table(times, events, edges, actuarial=True).curve()
    share, deviation = life_table(times, events, edges)
    assert_allclose(found.survival, share, rtol=1e-12)
    assert_allclose(found.deviation, deviation, rtol=1e-12)


def test_the_life_table_of_lifelines_counts_the_same():
    times, events = persons(1, step=1.0, censoring=500.0)
    edges = (100.0, 300.0, 400.0, 800.0)
    known = survival_table_from_events(times, events, intervals=[0.0, *edges])
    found = table(times, events, edges, actuarial=True).curve()
    inside = known.iloc[: len(edges)]
    assert_array_equal(found.events, inside["observed"])
    assert_array_equal(found.censored, inside["censored"])
    assert_array_equal(found.at_risk, inside["at_risk"])
    assert_allclose(
        found.survival, (1 - inside["observed"] / (inside["at_risk"] - inside["censored"] / 2)).cumprod()
    )


def test_where_nobody_is_censored_within_an_interval_both_estimates_are_the_same():
    times, events = persons(step=30.0)
    kept = events | (times > 600.0)
    pair = [
        table(times[kept], events[kept], (30.0, 300.0, 600.0), actuarial=own).curve() for own in (False, True)
    ]
    for one, other in zip(*pair, strict=True):
        assert_array_equal(one, other)


def within(number, draw, censoring):
    """Exponential times that are no edges, of mean 1, and uniform censoring."""
    event, end = draw.exponential(1.0, number), draw.uniform(0, censoring, number)
    return np.minimum(event, end), event <= end


def covered(runs, number, sigma, actuarial, seed=0, censoring=2.5):
    """The shares (T,) of the known intervals that hold the truth, and how many are known."""
    draw, edges = np.random.default_rng(seed), np.array([0.5, 1.0, 1.5])
    truth, known, holds = np.exp(-edges), 0, 0
    for one in range(runs):
        times, events = within(number, draw, censoring)
        found = table(times, events, edges, sigma, one, actuarial).curve()
        known = known + ~np.isnan(found.survival)
        holds = holds + ((found.low <= truth) & (truth <= found.high))
    return holds / known, known


def test_intervals_of_the_actuarial_estimate_cover_where_those_of_kaplan_meier_do_not():
    shares, known = covered(300, 1000, 0.0, actuarial=True)
    assert (shares >= 0.93 - 4 * np.sqrt(0.93 * 0.07 / known)).all()
    assert covered(300, 1000, 0.0, actuarial=False)[0].max() < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.0, 1.0, 5.0])
def test_intervals_of_the_actuarial_estimate_cover_with_noise_too(sigma):
    shares, known = covered(2000, 600, sigma, actuarial=True, seed=1)
    assert (shares >= 0.94 - 4 * np.sqrt(0.94 * 0.06 / known)).all()


def test_sites_together_are_the_pooled_persons():
    times, events = persons()
    edges, site = np.linspace(100.0, 1500.0, 9), np.arange(400) % 3
    parts = [table(times[site == own], events[site == own], edges) for own in range(3)]
    whole = SurvivalTable.together(parts)
    assert_array_equal(whole.cells, table(times, events, edges).cells)
    assert whole.rows == 400


def test_where_the_curve_is_one_zero_or_unknown():
    grid = (10.0, 20.0, 30.0, 40.0)
    found = table(np.array([15.0, 25.0, 25.0]), np.array([False, True, True]), grid).curve()
    assert_array_equal(found.survival, [1.0, 1.0, 0.0, 0.0])
    assert found.high[0] == 1.0
    assert 0 < found.low[0] < 1  # three persons say little
    assert found.high[2] > 0.5
    censored = table(np.array([5.0, 15.0]), np.array([False, False]), grid).curve()
    assert_array_equal(censored.survival, [1.0, 1.0, np.nan, np.nan])
    assert censored.median().value == np.inf
    assert np.isnan(table(np.array([]), np.array([], bool), grid).curve().survival).all()


@pytest.mark.parametrize(
    "edges", [(), (0.0, 1.0), (2.0, 1.0), (1.0, 1.0), (1.0, np.nan), (np.inf,), tuple(range(1, 1002))]
)
def test_what_is_no_grid(edges):
    with pytest.raises(SettingError, match="edges of a survival curve must be 1 to 1000 ascending numbers"):
        TimeGrid(edges)


# ------------------------------------------------------------------------------------------ with noise


def test_replacing_a_person_moves_the_counts_by_at_most_sqrt_2():
    grid, draw = TimeGrid((10.0, 20.0, 30.0)), np.random.default_rng(0)
    values = np.array([5.0, -5.0, 10.0, -10.0, 25.0, -30.0, 99.0, -99.0, 0.0, np.nan, np.inf, -np.inf])
    labels, moves = draw.choice(values, 20), []
    before = grid.counts(labels)
    assert before.sum() == 20  # everybody is in one cell
    for value in values:
        other = labels.copy()
        other[draw.integers(20)] = value
        moves.append(np.linalg.norm(grid.counts(other) - before))
    assert max(moves) == pytest.approx(np.sqrt(2))


@pytest.mark.parametrize("actuarial", [False, True])
def test_the_noise_is_in_the_deviations(actuarial):
    """At a fixed set of persons, the deviation over many draws of the noise is what is added to the sampling's."""
    times, events = persons(number=2000, step=150.0)
    edges = np.arange(150.0, 1501.0, 150.0)
    exact = table(times, events, edges, actuarial=actuarial).curve()
    draws = [table(times, events, edges, 3.0, seed, actuarial).curve() for seed in range(600)]
    for own in ("survival", "hazard"):
        name = "deviation" if own == "survival" else "hazard_deviation"
        added = np.mean([getattr(draw, name) ** 2 for draw in draws], 0) - getattr(exact, name) ** 2
        raw = np.var([getattr(draw, own) for draw in draws], axis=0)
        assert_allclose(added, raw, rtol=5 * np.sqrt(2 / 600))


def test_a_noisy_curve_falls_from_1_to_0_and_ends_where_noise_is_all_there_is():
    times, events = persons(step=50.0, censoring=300.0)
    found = table(times, events, np.arange(50.0, 2001.0, 50.0), 5.0).curve()
    known = ~np.isnan(found.survival)
    assert 0 < known.sum() < 40
    assert known[: known.sum()].all()
    assert (np.diff(found.survival[known]) <= 0).all()
    assert (found.low[known] <= found.survival[known]).all()
    assert (found.survival[known] <= found.high[known]).all()
    assert np.isnan(table(times, events, (100.0, 200.0), 1e4).curve().survival).all()


def test_whole_times_are_compared_with_edges_that_are_not_whole():
    assert_array_equal(TimeGrid((1.5, 2.5)).counts(np.array([1, 2, -2])), [1, 1, 0, 1, 0])


def test_intervals_do_not_change_after_the_last_person():
    found = table(
        np.array([15.0, 25.0, 25.0]), np.array([False, True, True]), (10.0, 20.0, 30.0, 40.0, 50.0)
    ).curve()
    assert_array_equal(found.survival, [1, 1, 0, 0, 0])
    assert found.high[2] < 1
    for ends in (found.low, found.high):
        assert_array_equal(ends[3:], ends[2])


@pytest.mark.slow
@pytest.mark.parametrize("mu", [np.inf, 2.0, 1.0, 0.5])
@pytest.mark.parametrize(("number", "intervals"), [(200, 5), (400, 20), (2000, 20)])
def test_intervals_cover_as_often_as_they_say(mu, number, intervals):
    """1,000 data sets; at edges that nearly every curve reaches, on average over them, and at the end of each curve."""
    edges = np.linspace(0.0, 1500.0, intervals + 1)[1:]
    sigma, truth = np.sqrt(2) / mu, np.exp(-edges / 700.0)
    known, covered, ends = *np.zeros((2, intervals)), []
    for seed in range(1000):
        found = table(*persons(seed, number, edges[0], 1200.0), edges, sigma, seed + 10**6).curve()
        own, holds = ~np.isnan(found.survival), (found.low <= truth) & (truth <= found.high)
        known, covered = known + own, covered + holds
        ends.extend(holds[own][-1:])
    assert np.mean(ends) >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / len(ends))
    often = known > 900
    shares = covered[often] / known[often]
    assert often.any()
    assert shares.min() >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / 1000)
    assert 0.94 <= shares.mean() <= 0.98


# ---------------------------------------------------------------------------------------- concordance


def slowly(risk, times, events):
    """Harrell's C over all pairs, with the ties of lifelines and scikit-survival."""
    right = pairs = 0.0
    for i, j in itertools.permutations(range(len(risk)), 2):
        if events[i] and (times[i] < times[j] or (times[i] == times[j] and not events[j])):
            pairs += 1
            right += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
    return right / pairs


@pytest.mark.parametrize("block", [1, 2**22])
def test_concordance_is_the_share_of_pairs_in_order(monkeypatch, block):
    monkeypatch.setattr("twinflower.concordance._BLOCK", block)
    times, events = persons(number=60, step=100.0)
    risk = np.random.default_rng(2).integers(0, 8, 60).astype(float)
    assert concordance(risk, times, events).share == pytest.approx(slowly(risk, times, events))
    assert concordance(-times, times, np.ones(60, bool)).share == 1.0
    assert np.isnan(concordance(risk, times, np.zeros(60, bool)).share)


# --------------------------------------------------------------------------------------- Brier score


def graf(survival, at, times, events):
    """The score at one time, person by person."""
    total = 0.0
    for s, time, event in zip(survival, times, events, strict=True):
        if event and time <= at:
            total += s**2 / uncensored(times, events, time, before=True)
        elif time > at:
            total += (1 - s) ** 2 / uncensored(times, events, at)
    return total / len(times)


def uncensored(times, events, until, before=False):
    share = 1.0
    for time in np.unique(times[~events]):
        if time < until or (time == until and not before):
            share *= (
                1 - ((times == time) & ~events).sum() / ((times > time) | ((times == time) & ~events)).sum()
            )
    return share


def test_the_brier_score_is_its_definition():
    times, events = persons(number=60, step=100.0)
    at = np.array([100.0, 350.0, 400.0, 800.0])
    survival = np.random.default_rng(0).random((60, 4))
    expected = [graf(own, time, times, events) for own, time in zip(survival.T, at, strict=True)]
    assert_allclose(brier(survival, at, times, events), expected, rtol=1e-12)
    beyond = np.column_stack([survival, survival[:, 0]]), np.append(at, 1e6), times, events
    assert np.isnan(brier(*beyond)[-1])  # nobody is observed then
    steps = (np.array(expected[1:]) + expected[:-1]) / 2 * np.diff(at)
    assert integrated_brier(*beyond) == pytest.approx(steps.sum() / 700)


def test_without_censoring_it_is_the_mean_square():
    times = np.array([1.0, 2.0, 3.0, 4.0])
    survival = np.array([[0.2], [0.4], [0.7], [0.9]])
    found = brier(survival, np.array([2.0]), times, np.ones(4, bool))
    assert found[0] == pytest.approx((0.2**2 + 0.4**2 + 0.3**2 + 0.1**2) / 4)
