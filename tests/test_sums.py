"""Sums as all that the server sees: noise in whole numbers, the grid, what a sum costs, and which methods qualify."""

import math
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from problems import method, methods_of, random_shards
from scipy import stats

from twinflower.algorithms import (
    ALGORITHMS,
    SSCA,
    ConstrainedSSCA,
    FedAvg,
    FedDualAvg,
    FedDyn,
    FedPDM,
    LDPPrimalDual,
    ProxSkip,
    Scaffold,
)
from twinflower.algorithms.algorithm import RunInfo
from twinflower.errors import RunError, SettingError
from twinflower.privacy import gdp_epsilon, gdp_mu
from twinflower.privacy.accountant import log_delta
from twinflower.privacy.audit import neighbours
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1
from twinflower.rounds import Problem, rounds
from twinflower.sums import discrete
from twinflower.sums.audit import replay_sums
from twinflower.sums.discrete import discrete_gaussian, secret_words, seeded_words
from twinflower.sums.grid import SHARE_BITS, Grid, SumNoise, add
from twinflower.sums.noise import (
    SHARE,
    SimulatedSums,
    Sums,
    convolution_loss,
    noise_for,
    round_mu,
    spread,
    sum_epsilon,
)
from twinflower.sums.summed import Summed, weights_of
from twinflower.work import LocalWork

SIZES = (30, 41, 25, 40, 33)
ROUNDS = 40
H = L1(0.02)
ERROR = 1e-9  # of a statistical test with a fixed seed


# --- discrete Gaussian noise ---


def probabilities(deviation: float, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The whole numbers up to most and their probabilities, by the definition."""
    n = np.arange(-most, most + 1)
    weights = np.exp(-(n**2) / (2 * deviation**2))
    return n, weights / weights.sum()


@pytest.mark.parametrize("bits", [0, 1, 3, 5])
def test_every_number_comes_as_often_as_it_should(bits):
    """Pearson's chi-square over all numbers that are expected at least 20 times, and the rest."""
    count = 200_000
    drawn = discrete_gaussian(count, bits, seeded_words(3, bits, 1))
    n, p = probabilities(2.0**bits, 40 * 2**bits)
    often = p * count >= 20
    observed = np.array([(drawn == k).sum() for k in n[often]])
    observed = np.append(observed, count - observed.sum())
    expected = count * np.append(p[often], 1 - p[often].sum())
    assert stats.chisquare(observed, expected).pvalue > ERROR


@pytest.mark.parametrize("bits", [0, 2])
def test_comparisons_that_floats_cannot_decide_follow_the_same_law(bits, monkeypatch):
    """With a margin of 1 every comparison is made with exact numbers and more random bits. With a table of two powers
    of exp(-1), many numbers exceed it."""
    monkeypatch.setattr(discrete, "_MARGIN", 1.0)
    monkeypatch.setattr(discrete, "_POWERS", discrete._POWERS[-2:])
    count = 3000
    drawn = discrete_gaussian(count, bits, seeded_words(4, bits, 1))
    n, p = probabilities(2.0**bits, 40 * 2**bits)
    often = p * count >= 20
    observed = np.array([(drawn == k).sum() for k in n[often]])
    observed, expected = (
        np.append(observed, count - observed.sum()),
        count * np.append(p[often], 1 - p[often].sum()),
    )
    assert stats.chisquare(observed, expected).pvalue > ERROR


def test_floats_are_further_from_undecided_than_their_errors():
    """The margin is at least 100 times the largest error of exp(-g) in floating point, over candidates of all sizes."""
    rng = np.random.default_rng(2)
    block, rest = rng.integers(0, 30, 300), rng.integers(0, 2**31, 300)
    near = np.exp(-discrete._exponent(block.astype(float), rest * 2.0**-31))
    exact = [
        discrete._exponent(Fraction(int(k)), Fraction(int(r), 2**31))
        for k, r in zip(block, rest, strict=True)
    ]
    with localcontext(prec=50):
        right = [(Decimal(-g.numerator) / g.denominator).exp() for g in exact]
        worst = max(abs(Decimal(float(p)) - q) for p, q in zip(near, right, strict=True))
    assert worst < discrete._MARGIN / 100


def test_a_word_that_begins_like_a_power_is_decided_by_more_bits():
    """The first 64 bits of exp(-2): whether there are one or two successes before the first failure."""
    for following, blocks in ((0, 2), (2**64 - 1, 1)):
        words = iter([discrete._POWERS[-2:-1], np.array([following], np.uint64)])
        assert discrete._blocks(1, lambda count, words=words: next(words)) == blocks


@pytest.mark.parametrize(("more", "below"), [(-(2**50), True), (2**50, False)])
def test_more_bits_decide_a_comparison(more, below):
    """The first 64 bits of exp(-1), followed by bits below or above those of exp(-1)."""
    with localcontext(prec=60):
        first, following = divmod(int(Decimal(-1).exp() * 2**128), 2**64)
    words = iter([following + more])
    assert discrete._below(first, Fraction(1), lambda count: np.array([next(words)], np.uint64)) == below


def test_fine_noise_is_normal_in_variance_and_tails():
    """With a deviation of 2^30 the law is normal to 1e-9: variance by chi-square, all quantiles by Kolmogorov and
    Smirnov, numbers beyond 3 deviations by the binomial law; and the last bit is fair."""
    count = 300_000
    z = discrete_gaussian(count, 30, seeded_words(5, 0, 1)) / 2.0**30
    assert ERROR < stats.chi2.sf((z**2).sum(), count) < 1 - ERROR
    assert stats.kstest(z, "norm").pvalue > ERROR
    far = stats.binomtest(int((abs(z) > 3).sum()), count, 2 * stats.norm.sf(3))
    odd = stats.binomtest(int((discrete_gaussian(count, 30, seeded_words(6, 0, 1)) & 1).sum()), count, 0.5)
    assert min(far.pvalue, odd.pvalue) > ERROR


def test_the_noise_of_several_sites_adds_up():
    """The sum of h sites has h times the variance, and is normal."""
    count, honest = 50_000, 4
    total = sum(discrete_gaussian(count, 30, seeded_words(7, site, 1)) for site in range(honest)) / 2.0**30
    statistic = (total**2).sum() / honest
    assert ERROR < stats.chi2.sf(statistic, count) < 1 - ERROR
    assert stats.kstest(total / math.sqrt(honest), "norm").pvalue > ERROR


def test_secret_noise_is_never_the_same():
    """Keys come from the operating system."""
    a, b = (discrete_gaussian(1000, 30, secret_words()) for _ in range(2))
    assert not np.array_equal(a, b)


def test_bits_of_the_deviation_are_limited():
    """Beyond 31 squares leave 64 bits."""
    with pytest.raises(ValueError, match="from 0 to 31"):
        discrete_gaussian(1, 32, secret_words())


# --- the grid ---


def test_masked_sums_are_the_same_to_the_bit():
    """Masks that cancel modulo 2^64 leave the sum as it is."""
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 2**64, (7, 50), dtype=np.uint64)
    masks = rng.integers(0, 2**64, (7, 50), dtype=np.uint64)
    masks[-1] -= add(masks)
    np.testing.assert_array_equal(add(cells + masks), add(cells))


@pytest.mark.parametrize("sites", [2, 100, 1000])
def test_the_largest_sum_does_not_wrap_around(sites):
    """All sites at the end of the range, with noise of 40 deviations each."""
    grid = Grid(1e-6, sites)
    value = np.array([1e300, -1e300])
    noise = 40 * 2**SHARE_BITS * np.array([1, -1])
    cells = (grid.encode(value) + noise).view(np.uint64)
    total = add(np.broadcast_to(cells, (sites, 2)))
    assert sites * (grid.most + 40 * 2**SHARE_BITS) < 2**63
    np.testing.assert_allclose(grid.mean(total), np.sign(value) * grid.reach, rtol=1e-3)


def test_a_value_comes_back_to_half_a_cell():
    """Encoding rounds to the nearest cell, of either sign."""
    grid, value = Grid(1e-3, 1), np.random.default_rng(1).normal(size=200)
    back = grid.mean(grid.encode(value).view(np.uint64))
    assert abs(back - value).max() <= 0.5e-3 * (1 + 1e-9)


def test_values_beyond_the_range_are_refused_when_planned():
    """The check names what would not fit."""
    with pytest.raises(SettingError, match="lower epsilon"):
        Grid(1e-20, 10).check(1.0)
    Grid(1e-9, 10).check(1.0)


# --- what a sum costs ---


@pytest.mark.parametrize("deviation", [1.0, 1.3, 2.0, 5.0, 20.0])
def test_discrete_and_normal_noise_are_never_more_than_one_apart(deviation):
    """Step (1) of the proof in `accounting`: P(x <= k) <= P(n <= k) <= P(x <= k + 1)."""
    n, p = probabilities(deviation, int(40 * deviation))
    below = np.cumsum(p)
    rounding = 1e-14
    assert (stats.norm.cdf(n / deviation) <= below + rounding).all()
    assert (below <= stats.norm.cdf((n + 1) / deviation) + rounding).all()


def exact_delta(deviation: float, move: int, releases: int, epsilon: float) -> float:
    """delta of so many discrete releases of one number, from the law of the sum of their noise."""
    _, p = probabilities(deviation, int(15 * deviation))
    law = p
    for _ in range(releases - 1):
        law = np.convolve(law, p)
    n = np.arange(len(law)) - len(law) // 2
    ratio = (releases * move**2 - 2 * n * move) / (2 * deviation**2)
    return float((law * np.maximum(0, -np.expm1(epsilon - ratio))).sum())


@pytest.mark.parametrize(("deviation", "move", "releases"), [(1, 1, 1), (2, 1, 4), (4, 3, 5), (8, 2, 20)])
def test_discrete_noise_keeps_what_the_formula_promises(deviation, move, releases):
    """(*) of `accounting` bounds the exact delta, which the plain Gaussian formula does not."""
    price = round_mu(np.zeros(1), 1, deviation)[0] / (2 / deviation)
    mu = math.sqrt(releases) * move / deviation * price
    epsilons = [1e-3, 0.1, 0.5, 1.0, 2.0, 4.0]
    exact = [exact_delta(deviation, move, releases, epsilon) for epsilon in epsilons]
    assert all(e <= np.exp(log_delta(mu, epsilon)) for e, epsilon in zip(exact, epsilons, strict=True))
    if deviation == 1:
        assert exact[1] > np.exp(log_delta(move / deviation, 0.1))


def test_sums_of_discrete_noise_are_as_close_to_discrete_noise_as_stated():
    """tau bounds the logarithm of the ratio of probabilities; at a deviation of 1 it is large enough to be seen."""
    _, p = probabilities(1.0, 12)
    total = np.convolve(p, p)
    _, wanted = probabilities(math.sqrt(2), 24)
    ratio = abs(np.log(total[12:37] / wanted[12:37])).max()
    assert 0.01 * convolution_loss(2, 1, share=1.0) < ratio <= convolution_loss(2, 1, share=1.0)
    assert convolution_loss(1000, 10**9) == 0.0


def test_the_two_numbers_of_a_plan():
    """Against the server and N - h sites the target, exactly; against everybody else mu is sqrt(h) as large."""
    moves = np.full((30, 10), 0.01)
    mu = gdp_mu(2.0, 1e-4)
    z = noise_for(mu, moves, np.ones(30), 650, honest=5)
    plan = Sums(moves, np.ones(30), 650, 5, z)
    assert plan.mu == pytest.approx(np.full(10, mu), rel=1e-12)
    assert gdp_epsilon(plan.mu.max(), 1e-4) == pytest.approx(2.0, rel=1e-9)
    assert plan.mu_alone == pytest.approx(math.sqrt(5) * plan.mu, rel=1e-6)
    assert gdp_epsilon(plan.mu_alone.max(), 1e-4) == pytest.approx(
        gdp_epsilon(math.sqrt(5) * mu, 1e-4), rel=1e-6
    )
    central = math.sqrt(30) / mu  # the noise multiplier of a trusted server
    assert 0 < z / central - 1 < 1e-6  # rounding and discrete noise cost less than a millionth


def test_planned_epsilon_agrees_with_an_independent_accountant():
    """dp-accounting on the same sigma and sensitivity, by its privacy loss distribution (its excess is about 1e-4)."""
    pytest.importorskip("dp_accounting")
    from dp_accounting.pld import privacy_loss_distribution as pld

    moves = np.full((20, 4), 0.02)
    plan = Sums(moves, np.ones(20), 50, 2, noise_for(gdp_mu(1.0, 1e-5), moves, np.ones(20), 50, 2))
    for sigma, mu in ((plan.sigmas[0], plan.mu), (plan.sigmas[0] / math.sqrt(2), plan.mu_alone)):
        planned = gdp_epsilon(mu.max(), 1e-5)
        one = pld.from_gaussian_mechanism(float(sigma / 0.02), value_discretization_interval=1e-4)
        assert one.self_compose(20).get_epsilon_for_delta(1e-5) == pytest.approx(planned, rel=2e-3)


def test_the_range_of_small_noise_is_part_of_the_number():
    """With a share of few cells, rounding and discreteness show: the plan stays a promise and asks for more noise."""
    moves, few = np.full((10, 3), 1.0), 64.0
    mu = 1.0
    z = noise_for(mu, moves, np.ones(10), 100, honest=2, share=few)
    cells = moves[:, 0] / (z / math.sqrt(2) / few)
    spent = math.sqrt((round_mu(cells, 100, spread(2, few)) ** 2).sum())
    assert spent == pytest.approx(mu, rel=1e-12)
    assert z > 1.5 * math.sqrt(10) / mu
    assert sum_epsilon(mu, 1e-4, 2, 1000, share=1.0) > sum_epsilon(mu, 1e-4, 2, 1000) == gdp_epsilon(mu, 1e-4)


# --- the methods ---


ONE, BATCH, EPOCH = LocalSchedule(0, 1), LocalSchedule(7, 1), LocalSchedule(10, 0)
WALKS = {"one step": ONE, "batch": BATCH, "epoch": EPOCH}
# What a method has of these replaces the settings of its first variant. `step_size` is 1 where a sum needs it.
COMMON = {"regulariser": H, "step_size": 0.5, "step_decay": 0.0, "uplink_ratio": 1.0, "allocation": "static"}
OPTIONS = {
    "plain": {"downlink_ratio": 1.0},
    "options": {"downlink_ratio": 0.5, "aggregation": "memory", "final_model": "tail-mean"},
}
SUMMED = methods_of("works_on_sums", without=("sends_sums",))  # see test_private_newton


@cache
def methods(weighted: bool = False) -> dict[str, tuple[Any, LocalSchedule]]:
    """Every method with every mode, schedule and option that is allowed."""
    common = COMMON | {"info": RunInfo(len(SIZES), ROUNDS, SIZES if weighted else ())}
    found = {}
    for name in SUMMED:
        for mode, walk, option in product(ALGORITHMS[name].modes[1:], WALKS, OPTIONS):
            own = {"step_size": 1.0} if name == "ldp-primal-dual" else {}
            with suppress(SettingError):
                algorithm = method(name, **common | OPTIONS[option] | own | {"privacy": mode})
                summed(algorithm, WALKS[walk])  # calls `check_sum`
                found[f"{name}, {mode}, {walk}, {option}"] = algorithm, WALKS[walk]
    return found


PLAIN = "fedpdm, public-state, one step, plain"


NO_SUMS = {"ssca-constrained", "fedsgm", "soteriafl", "mr-mtl"}


def test_methods_that_sum_up_are_tested_unless_they_refuse_to():
    """One that no mode and schedule allows has a `check_sum` of its own."""
    tested = {(algorithm.name, algorithm.privacy) for algorithm, _ in methods().values()}
    modes = {(name, mode) for name in SUMMED for mode in ALGORITHMS[name].modes[1:]}
    refused = {(name, mode) for name, mode in modes if mode == "as-published" or name in NO_SUMS}
    assert tested == modes - refused - {("fedmid", "gradient")}  # there its prox would follow the noise


def summed(algorithm: Any, schedule: LocalSchedule, widths: tuple[float, ...] = ()) -> Summed:
    """The method through sums; methods of one gradient take one step."""
    steps = tuple(schedule.steps(np.array(SIZES)).tolist()) if algorithm.takes_local_steps else (1,)
    return Summed(algorithm, steps, widths)


def problem() -> Problem:
    shards = random_shards(list(SIZES), features=8, classes=2)
    objective = make_objective("logistic", num_features=8, num_classes=2)
    return Problem(objective, shards, np.random.default_rng(9).normal(size=objective.d))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", methods())
def test_sums_are_enough_to_run_the_method(name, weighted):
    """Without noise the server that sees sums has the iterates of the method itself, whose clients keep their duals: to
    rounding, and to that of a grid of 2^-40."""
    algorithm, schedule = methods(weighted)[name]
    if weighted and "rows" not in algorithm.weightings:
        pytest.skip("has no weights")
    width = 2.0**-40
    through_sums = summed(algorithm, schedule, (width,) * ROUNDS)

    def silent(round_: int, clients: np.ndarray) -> SumNoise:
        weights = weights_of(algorithm, clients)[:, None]
        return SumNoise(
            Grid(width, len(SIZES)), weights, [lambda count: np.zeros(count, np.int64)] * len(clients)
        )

    own = [algorithm.model(at.server) for at in rounds(algorithm, problem(), schedule, ROUNDS)]
    seen = [
        through_sums.model(at.server)
        for at in rounds(through_sums, problem(), schedule, ROUNDS, noise=silent)
    ]
    np.testing.assert_allclose(seen, own, atol=1e-10)
    assert np.ptp(own, axis=0).max() > 0.05  # it moves


@pytest.mark.parametrize("name", [name for name in methods() if name.endswith("one step, plain")])
def test_noise_of_sums_has_the_planned_deviation(name):
    """The mean of what the server learns differs from the one without noise by the planned sigma of all N sites."""
    algorithm, schedule = methods()[name]
    pb = problem()
    bounds = pb.objective.bounds(3.0)
    plan = Sums.of(algorithm, bounds, schedule, SIZES, ROUNDS, pb.objective.d, honest=3, mu=0.5)
    sums = summed(algorithm, schedule, plan.widths)
    noise = SimulatedSums(sums, plan, seed=4)
    everyone = np.arange(len(SIZES))
    values = np.zeros((len(SIZES), 4000))
    sigma = plan.sigmas[0] * math.sqrt(len(SIZES) / 3) / len(SIZES)
    mean = plan.grid(1).mean(add(noise(1, everyone)(values)))
    assert ERROR < stats.chi2.sf((mean**2).sum() / sigma**2, mean.size) < 1 - ERROR


@pytest.mark.parametrize("batch", [0, 4])
def test_one_clients_numbers_are_a_slice_of_the_cohorts(batch):
    """Stacked or alone, with noise, to the bit."""
    algorithm, _ = methods()[PLAIN]
    schedule, pb = LocalSchedule(batch, 1), problem()
    plan = Sums.of(
        algorithm, pb.objective.bounds(3.0), schedule, SIZES, ROUNDS, pb.objective.d, honest=5, mu=1.0
    )
    sums = summed(algorithm, schedule, plan.widths)
    noise = SimulatedSums(sums, plan)
    all_of_them = next(iter(rounds(sums, pb, schedule, 1, noise=noise))).uploads.cells
    two = [rounds(sums, pb, schedule, 1, lambda t, i=i: np.array([i]), noise=noise) for i in (0, 3)]
    for i, alone in zip((0, 3), two, strict=True):
        with pytest.raises(SettingError, match="needs all 5 clients"):
            next(iter(alone))
        inbox = sums.broadcast(sums.init_server(pb.start, 5, np.uint64(0)), 1, np.array([i]))
        work = _work(pb, schedule, i, noise)
        np.testing.assert_array_equal(sums.client_update(None, inbox, work)[1].cells[0], all_of_them[i])


def _work(pb: Problem, schedule: LocalSchedule, client: int, noise: Any) -> LocalWork:
    clients = np.array([client])
    return LocalWork(pb.objective, schedule.batches(pb.shards, clients, 0, 1), noise(1, clients), 1)


def test_an_update_that_is_not_finite_ends_the_run():
    """Its cells are the public range, and the model that the server computes is not finite."""
    algorithm, schedule = methods()["fedavg, public-state, epoch, plain"]
    pb = problem()._replace(start=np.full(8, 1e308))
    sums = summed(algorithm, schedule, (1.0,) * ROUNDS)
    plan = Sums(np.ones((ROUNDS, 5)), np.ones(ROUNDS), 8, 5, 1.0)
    pb.shards.features[:] *= 1e200
    with np.errstate(all="ignore"), pytest.raises(RunError, match="diverged"):
        list(rounds(sums, pb, schedule, ROUNDS, noise=SimulatedSums(sums, plan)))


# --- the theorem: one record moves the next sum by no more than its sensitivity, given equal sums so far ---


def replayed(algorithm: Any, schedule: LocalSchedule, start: float = 0.0) -> float:
    """The largest ratio of a sum's move to its sensitivity over 40 rounds, four sites of 20 rows."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(3, 20, 6))
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    data, neighbour = neighbours(20, 6, 1.0)
    sites = [data, *(Batch(rows, rng.integers(0, 2, 20)) for rows in features)]
    objective = make_objective("logistic", num_features=6, num_classes=2)
    point = start * np.eye(6)[0]
    moves = replay_sums(
        algorithm,
        objective,
        sites,
        neighbour,
        schedule,
        objective.bounds(1.0),
        ROUNDS,
        noise_multiplier=3.0,
        start=point,
    )
    assert len(moves) == ROUNDS
    return max(move.moved / move.sensitivity for move in moves)


@pytest.mark.parametrize("name", methods())
def test_no_record_moves_a_sum_by_more_than_its_sensitivity(name):
    """The method as written, with duals that differ between both runs. From a start at which all slopes are saturated
    the first sum moves by the whole sensitivity."""
    algorithm, schedule = methods()[name]
    algorithm = replace(algorithm, info=RunInfo(4, ROUNDS))
    assert replayed(algorithm, schedule) <= 1 + 1e-9
    sees_all = schedule is ONE or (schedule is EPOCH and algorithm.takes_local_steps)
    if sees_all:  # a single batch need not hold the record
        assert 0.9 < replayed(algorithm, schedule, start=1e3) <= 1 + 1e-9


@pytest.mark.parametrize("name", methods())
def test_sensitivities_are_those_of_the_theorem(name):
    """D_i = 2 eta C / b, or 2 C / b with noise on gradients, of a site with 30 rows in every round (docs/sums.md). A
    record is in one batch of a pass over the rows, so several local steps count once; s / n = 1 for Zhang 2023. Later
    steps of FedDualAvg can add to it (`feddualavg`)."""
    algorithm, schedule = methods()[name]
    if isinstance(algorithm, FedDualAvg):
        schedule = replace(schedule, max_local_steps=1)
    bounds = make_objective("logistic", num_features=8, num_classes=2).bounds(3.0)
    factor = 2 if algorithm.privacy == "gradient" else 2 * algorithm.step_size
    rows = schedule.batch_size or 30
    for round_ in (1, 7, ROUNDS):
        moved = algorithm.release(bounds, schedule.workload(30), round_).sensitivity
        assert moved == pytest.approx(factor * bounds.gradient / rows, rel=1e-12)


def planted() -> dict[str, tuple[Any, LocalSchedule]]:
    """Methods that are not allowed."""
    common: dict[str, Any] = {"step_size": 1.5, "privacy": "public-state", "info": RunInfo(4, ROUNDS)}
    return {
        "fedpdm, three steps": (FedPDM(H, rho=0.5, **common), LocalSchedule(0, 3)),
        "fedpdm, warm start": (FedPDM(H, rho=0.5, local_start="warm", **common), LocalSchedule(0, 1)),
        "feddyn, three steps": (FedDyn(H, alpha=0.5, **common), LocalSchedule(0, 3)),
        "scaffold, three steps": (Scaffold(H, **common), LocalSchedule(0, 3)),
        "proxskip": (
            ProxSkip(H, RunInfo(4, ROUNDS), step_size=1.5, privacy="public-state"),
            LocalSchedule(0, 8),
        ),
        "ldp-primal-dual, gamma 1/2": (
            LDPPrimalDual(H, RunInfo(4, ROUNDS), 0.5, allocation="static", privacy="public-state"),
            LocalSchedule(0, 1),
        ),
    }


@pytest.mark.parametrize("name", planted())
def test_what_is_not_allowed_is_caught_and_refused(name):
    """Private state that bends a site's path moves later sums by more than the sensitivity of a release: the replay
    sees it, and the door is shut."""
    algorithm, schedule = planted()[name]
    assert replayed(algorithm, schedule) > 1.2
    with pytest.raises(SettingError, match="trust sum"):
        Summed(algorithm, (schedule.max_local_steps,))


@pytest.mark.parametrize(
    ("algorithm", "steps", "why"),
    [
        (FedPDM(H, privacy="public-state", uplink_ratio=0.5), 1, "uplink-ratio 1"),
        (FedPDM(H, privacy="as-published"), 1, "public-state, or gradient"),
        (FedPDM(H), 1, "public-state, or gradient"),
        (FedAvg(H, privacy="gradient"), 3, "with 3 steps"),
        (FedPDM(H, privacy="public-state"), 5, "one local step"),
        (ConstrainedSSCA(privacy="gradient", loss_clip=1.0), 1, "use ssca"),
        (SSCA(H), 1, "privacy gradient"),
    ],
)
def test_refusals_say_why(algorithm, steps, why):
    """In one sentence."""
    with pytest.raises(SettingError, match=why) as refusal:
        Summed(algorithm, (steps,))
    assert "\n" not in str(refusal.value)


def test_plans_name_what_they_cannot_do():
    """Counts of sites, and of honest ones."""
    algorithm, schedule = methods()[PLAIN]
    bounds = make_objective("logistic", num_features=8, num_classes=2).bounds(1.0)
    for sizes, honest, why in (
        ((30,), 1, "2 to 1000 clients"),
        (SIZES, 6, "from 1 to"),
        (SIZES, 0, "from 1 to"),
    ):
        with pytest.raises(SettingError, match=why):
            Sums.of(algorithm, bounds, schedule, sizes, ROUNDS, 8, honest, mu=1.0)


def test_a_smaller_site_pays_more_and_the_largest_move_sets_the_noise():
    """All sites add the same noise; the one with the fewest rows spends the target, and the others less."""
    algorithm, schedule = methods()[PLAIN]
    bounds = make_objective("logistic", num_features=8, num_classes=2).bounds(1.0)
    plan = Sums.of(algorithm, bounds, schedule, SIZES, ROUNDS, 8, honest=3, mu=1.0)
    assert plan.mu.max() == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(plan.mu, 25 / np.array(SIZES), rtol=1e-6)
    assert SHARE == 2.0**SHARE_BITS


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300, -np.inf])
def test_a_value_that_is_no_number_has_the_cells_of_the_range(value):
    """NaN has no cell of its own, and what a processor makes of it is not the same everywhere."""
    grid = Grid(0.5, 3)
    end = -grid.most if value < 0 else grid.most
    assert grid.encode(np.array([value, 1.0])).tolist() == [end, 2]
