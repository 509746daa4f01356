"""The exact accountant for Flower's own strategies, against Flower's accountant and an independent one."""

import json
from itertools import product

import pytest
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import (
    GaussianPrivacyEvent,
    Grid,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.differential_privacy import clip_inputs_inplace
from flwr.supercore.task_identity import TaskIdentity
from numpy import array, nan, zeros

from twinflower.strategies import GaussianAccountant

DELTA = 1e-4


def config(max_epsilon=None, sampling=SamplingMethod.NO_AMPLIFICATION, population=10):
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    return PrivacyConfig(DELTA, population, relation, sampling, max_epsilon)


def event(multiplier, population=10):
    return GaussianPrivacyEvent(multiplier, sample_size=4, population_size=population)


def composed(kind, *releases):
    accountant = kind(config())
    for multiplier, count in releases:
        accountant.compose(event(multiplier), count)
    return accountant


def test_flowers_accountant_says_8_62_where_7_92_is_exact():
    assert round(composed(RdpAccountant, (3.0, 30)).get_epsilon(DELTA), 2) == 8.62
    assert round(composed(GaussianAccountant, (3.0, 30)).get_epsilon(DELTA), 2) == 7.92


@pytest.mark.parametrize(("multiplier", "count"), list(product((1.0, 3.0, 20.0), (1, 30))))
def test_it_agrees_with_the_privacy_loss_distribution(multiplier, count):
    """dp-accounting rounds privacy losses up to a grid, so it is above the exact epsilon by at most a little."""
    oracle = PLDAccountant(value_discretization_interval=1e-3)
    oracle.compose(GaussianDpEvent(multiplier), count)
    exact, bound = (
        composed(GaussianAccountant, (multiplier, count)).get_epsilon(DELTA),
        oracle.get_epsilon(DELTA),
    )
    assert exact <= bound * (1 + 1e-6)
    assert exact == pytest.approx(bound, rel=1e-2)


def test_it_is_never_above_flowers():
    for multiplier, count in product((0.5, 2.0, 8.0), (1, 10, 1000)):
        ours, flowers = (composed(kind, (multiplier, count)) for kind in (GaussianAccountant, RdpAccountant))
        for delta in (1e-9, 1e-5, 1e-2):
            assert ours.get_epsilon(delta) <= flowers.get_epsilon(delta)
        for epsilon in (0.1, 1.0, 10.0):
            assert ours.get_delta(epsilon) <= flowers.get_delta(epsilon)


def test_delta_inverts_epsilon_and_releases_add_up_in_any_order():
    one, other = (
        composed(GaussianAccountant, *p) for p in ([(2.0, 3), (5.0, 4)], [(5.0, 4), (2.0, 1), (2.0, 2)])
    )
    assert one.get_epsilon(DELTA) == pytest.approx(other.get_epsilon(DELTA), rel=1e-12)
    assert one.get_delta(one.get_epsilon(DELTA)) == pytest.approx(DELTA, rel=1e-9)
    assert (one.num_releases, one.get_privacy_spent().num_releases) == (7, 7)
    assert GaussianAccountant(config()).get_epsilon(DELTA) == 0 == GaussianAccountant(config()).get_delta(1.0)


def test_a_state_passes_through_json_and_a_foreign_one_changes_nothing():
    saved, restored = composed(GaussianAccountant, (2.0, 3), (5.0, 4)), GaussianAccountant(config())
    state = json.loads(json.dumps(saved.state_dict()))
    restored.load_state_dict(state)
    assert restored.get_privacy_spent() == saved.get_privacy_spent()
    foreign = composed(RdpAccountant, (2.0, 3)).state_dict()
    damaged = state | {"compositions": [{"event": {"noise_multiplier": -1.0}, "count": 1}]}
    for bad in ({}, foreign, damaged, GaussianAccountant(config(population=11)).state_dict()):
        with pytest.raises(ValueError, match="the state"):
            restored.load_state_dict(bad)
        assert restored.get_privacy_spent() == saved.get_privacy_spent()


def test_what_it_cannot_account_for_is_refused():
    with pytest.raises(ValueError, match="no-amplification; got poisson"):
        GaussianAccountant(config(sampling=SamplingMethod.POISSON))
    accountant = GaussianAccountant(config())
    for bad in (lambda: accountant.compose(event(1.0, 11)), lambda: accountant.compose(event(1.0), 0)):
        with pytest.raises(ValueError, match="must be"):
            bad()
    with pytest.raises(ValueError, match="max_epsilon"):
        accountant.would_exceed(event(1.0))
    assert accountant.num_releases == 0


class FourNodes(Grid):
    """A grid whose nodes add 1 to what they receive."""

    run = set_run = create_message = push_messages = pull_messages = None

    def __init__(self):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
        self.app = ClientApp()
        self.app.train()(self.train)

    @staticmethod
    def train(message, context):
        model = message.content["arrays"].to_numpy_ndarrays()[0] + 1.0
        content = {"arrays": ArrayRecord({"x": Array(model)}), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    def get_node_ids(self):
        return [1, 2, 3, 4]

    def send_and_receive(self, messages, *, timeout=None):
        return [self._answer(message) for message in messages]

    def _answer(self, message):
        message.metadata.__dict__["_message_id"] = "1"
        return self.app(message, Context(1, message.metadata.dst_node_id, {}, RecordDict(), {}))


def test_flowers_strategy_ends_when_the_exact_budget_is_spent():
    """It accepts the accountant and makes exactly the rounds that fit into max_epsilon: by Rényi, fewer."""
    afforded = {}
    for kind in (RdpAccountant, GaussianAccountant):
        accountant: PrivacyAccountant = kind(config(max_epsilon=8.0, population=4))
        strategy = DifferentialPrivacyServerSideFixedClipping(
            FedAvg(fraction_evaluate=0.0, min_train_nodes=4), 3.0, 1.0, 4, accountant=accountant
        )
        with pytest.raises(PrivacyBudgetExhausted):
            strategy.start(FourNodes(), ArrayRecord({"x": Array(zeros(3))}), num_rounds=60)
        afforded[kind] = accountant.num_releases
    assert accountant.get_epsilon(DELTA) <= 8.0 and accountant.would_exceed(event(3.0, 4))
    assert afforded == {RdpAccountant: 26, GaussianAccountant: 30}


def test_flowers_clipping_needs_finite_updates_that_are_not_zero():
    """What docs/flower-interop.md says about Flower 1.41; if this fails, Flower has changed, and the page must."""
    update = [array([100.0, nan])]
    clip_inputs_inplace(update, 1.0)
    assert update[0][0] == 100.0
    with pytest.raises(ZeroDivisionError):
        clip_inputs_inplace([zeros(2)], 1.0)
