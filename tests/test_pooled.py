"""Exact secure sums: Newton's method whose server sees the sums over all rows, and nothing of a single client."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from flwr.app import Error, Message
from numpy.testing import assert_allclose, assert_array_equal
from problems import run
from test_newton import EXACT, KEYS, UNEQUAL, WHOLE, errors_of, logistic_rows, newton_keys, sites, trained
from test_sum_runs import uniform

from twinflower.algorithms import FedAvg, Newton
from twinflower.algorithms.algorithm import RunInfo
from twinflower.errors import RunError, SettingError
from twinflower.problems.losses import packed
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1
from twinflower.problems.stratified_cox import StratifiedCoxObjective
from twinflower.simulation.app import client_app
from twinflower.simulation.app.site import Site
from twinflower.simulation.runs.forecast import forecast
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse
from twinflower.sums.grid import add, negative, plus
from twinflower.sums.pooled import MOST, WORDS, Pooled, decode, encode
from twinflower.survival_labels import signed
from twinflower.wire import from_npy

SUM = {"trust": "sum"}
ALL = 1 << 64 * WORDS


def whole(cells):
    """Cells (3 n,) as whole numbers."""
    return [int.from_bytes(own.tobytes(), "little") for own in cells.astype("<u8").reshape(-1, WORDS)]


# ------------------------------------------------------------------------------------------- numbers of several words


@pytest.mark.parametrize("words", [1, 2, 3])
def test_words_add_up_with_their_carries(words):
    """As whole numbers modulo 2^(64 words) do, also where all words overflow."""
    draw, top = np.random.default_rng(words), 1 << 64 * words
    a, b = draw.integers(0, 2**64, (2, 300 * words), np.uint64)
    a[: 40 * words], b[: 20 * words] = 2**64 - 1, draw.integers(0, 2, 20 * words)

    def known(cells):
        return [int.from_bytes(own.tobytes(), "little") for own in cells.astype("<u8").reshape(-1, words)]

    assert known(plus(a, b, words)) == [(i + j) % top for i, j in zip(known(a), known(b), strict=True)]
    assert known(negative(a, words)) == [-i % top for i in known(a)]


def test_numbers_come_back():
    """To the last bit from 2^-44 on, else to one cell."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=4000) * 2.0 ** draw.uniform(-44, 84, 4000)
    values = np.concatenate([values[np.abs(values) > 2.0**-44], [0.0, 303.0, -1.0, math.nextafter(MOST, 0)]])
    assert_array_equal(decode(encode(values)), values)
    small = 2.0**-60 * draw.normal(size=100)
    assert np.abs(decode(encode(small)) - small).max() < 2.0**-96


def test_a_sum_is_that_of_whole_numbers():
    """Without any rounding, whatever the signs and sizes are."""
    draw = np.random.default_rng(1)
    values = draw.normal(size=(5, 200)) * 10.0 ** draw.integers(-9, 20, (5, 200))
    total = whole(add(encode(values), words=WORDS))
    exact = [sum(int(Fraction(v) * 2**96) for v in column) for column in values.T]
    assert total == [number % ALL for number in exact]
    assert_allclose(
        decode(add(encode(values), words=WORDS)), [float(Fraction(n, 2**96)) for n in exact], rtol=1e-15
    )


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_sums_of_a_thousand_sites_do_not_wrap_around(sign):
    most = sign * math.nextafter(MOST, 0)
    total = add(encode(np.full((1000, 1), most)), words=WORDS)
    assert_allclose(decode(total), [1000 * most], rtol=1e-15)


@pytest.mark.parametrize("value", [MOST, -MOST, np.inf, np.nan])
def test_numbers_outside_of_the_range_are_refused(value):
    with pytest.raises(RunError, match=r"must be finite and below 3\.9e\+25: give columns other units"):
        encode(np.array([1.0, value]))


# ---------------------------------------------------------------------------------------------- the same as the method


def through_sums(objective, rows, algorithm=None, number=30, start=None):
    """`trained` with the server that sees sums only."""
    algorithm = algorithm or Newton()
    algorithm = replace(algorithm, info=algorithm.info._replace(num_clients=len(UNEQUAL)))
    pooled = Pooled(algorithm, rows=sum(UNEQUAL))
    steps = list(run(pooled, sites(rows), objective, WHOLE, number, start=start))
    return algorithm, steps[-1].server.own, len(steps)


def weighted(rows):
    return rows._replace(row_weights=np.random.default_rng(5).uniform(0.2, 3.0, len(rows.labels)))


def counts(rows):
    draw = np.random.default_rng(2)
    scores = 0.2 * rows.features[:, 0] - 0.01 * rows.features[:, 1]
    return rows._replace(
        labels=packed(draw.poisson(np.exp(scores)).astype(float), draw.normal(size=len(scores)))
    )


def lifetimes(rows):
    draw = np.random.default_rng(3)
    return rows._replace(labels=signed(np.ceil(5 * draw.exponential(size=300)), draw.random(300) < 0.6))


def cases():
    rows = logistic_rows()
    softmax = rows._replace(labels=np.random.default_rng(4).integers(0, 3, 300))
    logistic = make_objective("logistic", 4, 2)
    yield "weights, robust", replace(logistic, heaviest=3.0), weighted(rows), Newton(robust=True)
    yield "l1 and l2", make_objective("logistic", 4, 2, l2=0.1), rows, Newton(L1(0.02))
    yield "softmax", make_objective("softmax", 4, 3), softmax, Newton()
    yield "offsets", make_objective("poisson", 4, 0), counts(rows), Newton()
    yield "linear", make_objective("least-squares", 4, 0), rows, Newton(info=RunInfo(quadratic=True))
    for ties in ("breslow", "efron"):
        model, patients = StratifiedCoxObjective(ties=ties).build(3, 0), lifetimes(rows)
        yield f"stratified Cox, {ties}", model, patients._replace(features=rows.features[:, :3]), Newton()


CASES = {name: case for name, *case in cases()}


@pytest.mark.parametrize("name", CASES)
def test_sums_are_all_that_the_server_needs(name):
    """The same rounds, the same estimates and the same information, to the rounding of doubles."""
    objective, rows, algorithm = CASES[name]
    _, known, number = trained(objective, rows, algorithm)
    _, server, rounds = through_sums(objective, rows, algorithm)
    assert rounds == number
    assert_allclose(server.x, known.x, rtol=1e-10, atol=1e-12)
    scale = np.abs(known.sums).max()
    assert_allclose(server.sums, known.sums, rtol=1e-10, atol=1e-10 * scale)


def test_a_long_step_is_shortened_as_without_masks():
    """Losses of two rounds are compared: from a start far away, where steps are halved."""
    rows, objective = logistic_rows(), make_objective("logistic", 4, 2)
    start = np.array([3.0, 0.5, -0.1, 2.0])
    _, known, number = trained(objective, rows, start=start)
    algorithm, server, rounds = through_sums(objective, rows, start=start)
    assert rounds == number > 7
    assert_allclose(server.x, known.x, atol=1e-9)
    assert_allclose(errors_of(algorithm, server), errors_of(algorithm, known), rtol=1e-9)


# ------------------------------------------------------------------------------------------------ in every runtime


@pytest.mark.parametrize("masks", [False, True])
def test_a_run_is_that_without_masks(masks):
    """On arrays and by messages, with masks and without."""
    plain = cohort.train([prepare(parse(KEYS))])[0]
    setup = prepare(parse(KEYS | SUM | {"masks": masks}))
    arrays, messages = cohort.train([setup])[0], inprocess.train(setup)
    assert_array_equal(arrays.model, messages.model)
    assert_allclose(arrays.model, plain.model, rtol=1e-12)
    for result in (arrays, messages):
        assert result.early == plain.early == f"converged after {len(plain.rounds)} rounds"
        assert result.rows[-1]["decrement"] == pytest.approx(plain.rows[-1]["decrement"], rel=1e-6, abs=1e-12)
    assert arrays.rounds[-1].uplink_bits == WORDS * plain.rounds[-1].uplink_bits


def test_standard_errors_come_from_the_sums_of_the_last_round():
    keys = EXACT | {"objective.l2": 0.0, "clients.count": 2, "evaluation.standard-errors": True, "rounds": 4}
    plain = cohort.train([prepare(parse(keys))])[0].information
    for result in (
        cohort.train([prepare(parse(keys | SUM))])[0],
        inprocess.train(prepare(parse(keys | SUM))),
    ):
        assert_allclose(result.information.matrix, plain.matrix, rtol=1e-9, atol=1e-9 * plain.matrix.max())


def test_a_path_and_its_folds_are_those_without_masks():
    """And a client counts its answers in the same way."""
    keys = KEYS | {"algorithm": "newton-path", "objective.l2": 0.0, "regulariser.name": "l1"}
    keys |= {"newton-path.weights": 3, "newton-path.folds": 2, "evaluation.every": 100}
    setup = prepare(parse(keys | SUM))
    plain, pooled = (cohort.train([own])[0] for own in (prepare(parse(keys)), setup))
    assert len(pooled.rounds) == len(plain.rounds)
    assert_allclose([point.error for point in pooled.path], [point.error for point in plain.path], rtol=1e-9)
    assert_allclose(pooled.model, plain.model, rtol=1e-7, atol=1e-9)
    inbox = setup.algorithm.broadcast(pooled.server, 2, np.array(0))
    assert len(setup.algorithm.answers(inbox)) == 3 * (2 + 1)


class Listening(inprocess.InProcessGrid):
    """A grid that writes down what the server receives; a lost client's replies to this round do not arrive."""

    def __init__(self, setup, lost=None):
        super().__init__(setup)
        self.received, self.lost = [], lost

    def answer(self, message):
        if message.metadata.message_type != "train":
            return super().answer(message)
        node, round_ = message.metadata.dst_node_id, int(message.content["fitins.config"]["round"])
        if (node, round_) == self.lost:
            return Message(Error(1, "lost on the way"), reply_to=message)
        reply = super().answer(message)
        (array,) = reply.content["fitres.parameters"].values()
        self.received.append(from_npy(array.data))
        return reply


def test_what_one_client_sends_is_uniform_and_only_the_sum_of_all_says_something():
    """Each of the words, also the highest, which without masks are 0 or 2^64 - 1."""
    setup = prepare(parse(KEYS | SUM | {"masks": True}))
    grid = Listening(setup)
    result = inprocess.run_strategy(setup, grid, "inprocess")
    rounds = np.array(grid.received).reshape(len(result.rounds), 3, -1)
    for chosen in ([0], [1], [2], [0, 1], [0, 2], [1, 2]):
        words = np.array([add(messages[chosen], words=WORDS) for messages in rounds])
        assert all(uniform(words.reshape(-1, WORDS)[:, place]) for place in range(WORDS)), chosen
    totals = np.array([add(messages, words=WORDS) for messages in rounds])
    assert set(totals[:, WORDS - 1 :: WORDS].ravel().tolist()) <= {0, 2**64 - 1}


def test_a_lost_client_stops_the_run():
    setup = prepare(parse(KEYS | SUM | {"masks": True}))
    result = inprocess.run_strategy(setup, Listening(setup, lost=(2, 3)), "inprocess")
    assert "round 3" in result.failure
    assert "needs all clients" in result.failure
    assert result.model is None


def test_messages_that_do_not_add_up_stop_the_run():
    """Such as those of a client with another number of rows, or masks that do not cancel."""
    setup = prepare(parse(KEYS | SUM | {"masks": True}))

    class Odd(inprocess.InProcessGrid):
        def new_client(self, node, context):
            client = super().new_client(node, context)
            if node == 2:
                client._sealed = lambda reply, parameters, request: reply  # without its masks
            return client

    result = inprocess.run_strategy(setup, Odd(setup), "inprocess")
    assert "round 1: the clients' messages do not add up to sums over" in result.failure


def test_a_client_whose_sums_are_not_finite_stops_the_run_with_masks():
    setup = prepare(parse(KEYS | SUM | {"masks": True}))

    class Broken(inprocess.InProcessGrid):
        def new_client(self, node, context):
            client = super().new_client(node, context)
            if node == 2:
                client.shards.features[:] = np.inf
            return client

    result = inprocess.run_strategy(setup, Broken(setup), "inprocess")
    assert result.model is None
    assert "must be finite" in result.failure


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"algorithm": "fedavg"}, "without noise is for methods whose messages are sums over rows: set algo"),
        ({"clients.per-round": 2}, "privacy.trust = sum needs all clients in every round"),
        ({"server.max-norm": 2.0}, "cannot limit the norm of a single message"),
        ({"clients.count": 1}, "trust sum needs from 2 to 1000 clients"),
        ({"trust": "local", "masks": True}, "privacy.masks belongs to privacy.trust = sum"),
    ],
)  # fmt: skip
def test_what_is_refused(keys, sentence):
    with pytest.raises(SettingError, match=sentence) as refusal:
        prepare(parse(KEYS | SUM | keys))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"evaluation.held-out": 0.2},
            "no place for scores on held-out rows.*: set evaluation.held-out to 0",
        ),
        ({"evaluation.standard-errors": True}, ""),
    ],
)
def test_exact_answers_of_single_sites_are_refused(tmp_path, keys, sentence):
    """Only what the rounds hold anyway can be asked for."""
    config = parse(newton_keys(tmp_path, "logistic")[0] | {"evaluation.standard-errors": False} | SUM | keys)
    if not sentence:
        assert [query.name for query in prepare(config).queries] == ["information"]
        return
    with pytest.raises(SettingError, match=sentence):
        prepare(config)


def test_methods_without_sums_are_refused_by_hand():
    with pytest.raises(SettingError, match="got fedavg"):
        Pooled(FedAvg(info=RunInfo(3)), rows=10)


@pytest.mark.parametrize(
    ("policy", "keys", "why"),
    [
        (
            {"newton_rows": 5},
            SUM,
            "needs identity-key, peers-file and max-honest in every site's node config",
        ),
        ({"max_honest": 2}, SUM, "its node config has no newton-rows"),
        ({"newton_rows": 400, "max_honest": 2}, SUM, "of fewer than 400 rows"),
        ({"newton_rows": 5, "newton_trust": "sum"}, {}, "newton-trust = sum, so set privacy.trust to sum"),
        ({"newton_rows": 5, "newton_trust": "sum", "max_honest": 2}, SUM, ""),
        ({"newton_rows": 5, "max_honest": 2}, SUM, ""),
    ],
)
def test_the_policy_of_a_site_holds_for_its_own_rows(policy, keys, why):
    """All other sites together know what it sent; and a site may insist on sums."""
    setup, site = prepare(parse(EXACT | keys)), Site(0, 3, **policy)
    if not why:
        client_app._check_policy(setup, site)
        return
    with pytest.raises(SettingError, match=why):
        client_app._check_policy(setup, site)


def test_the_plan_says_that_nothing_is_guaranteed_and_what_is_hidden():
    (row,) = forecast(prepare(parse(KEYS | SUM)))
    assert "masks hide the messages of single clients" in row[1]
