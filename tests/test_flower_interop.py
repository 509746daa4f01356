"""Flower's own strategies with our clients, our strategies with foreign clients, and partitioners of flwr-datasets."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg as Legacy
from flwr.serverapp.strategy import FedAvg
from numpy.testing import assert_allclose, assert_array_equal
from plug_in_driver import OneProcess
from problems import VARIANTS, small

from twinflower import strategies
from twinflower.clients import for_flower_strategies
from twinflower.clients.records import record_of
from twinflower.data.flower_datasets import divide_with
from twinflower.errors import RunError, SettingError
from twinflower.models.evaluation import evaluate as at_site
from twinflower.models.evaluation import pooled
from twinflower.simulation.app import client_app
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import strategy_of

NO_PROX = {"regulariser__name": "none", "clients__per_round": 0}


def nodes(setup):
    """A grid whose nodes run our clients as in an app of Flower."""

    def client_fn(context):
        return client_of(setup, int(context.node_config["partition-id"]), context).to_client()

    app = ClientApp(client_fn, mods=[for_flower_strategies])
    return OneProcess(app, setup.config.clients.count, {})


def flowers(setup, rounds=5, evaluated=0.0, **keys):
    """A run of Flower's FedAvg over our clients."""
    strategy = FedAvg(
        fraction_evaluate=evaluated, min_train_nodes=8, min_evaluate_nodes=8 if evaluated else 0, **keys
    )
    return strategy.start(nodes(setup), ArrayRecord({"x": record_of([setup.start])["0"]}), rounds)


# ------------------------------------------------------------------------------------- Flower's strategies


@pytest.mark.parametrize("keys", [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": 0.5}])
def test_flowers_fedavg_with_our_clients_is_our_fedavg_weighted_by_rows(keys):
    by_rows = {"clients__weighting": "rows", "partition__name": "dirichlet"} | keys
    setup = small("fedavg-group", **NO_PROX, **by_rows)
    ours = strategy_of(setup).start(InProcessGrid(setup), record_of([setup.start]), 5)
    (x,), (y,) = (result.arrays.to_numpy_ndarrays() for result in (ours, flowers(setup)))
    assert len(set(setup.partition.sizes)) > 1
    assert np.any(x)
    assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def test_names_of_records_are_the_servers_own():
    setup = small("fedavg-group", **NO_PROX)
    named = flowers(setup, arrayrecord_key="weights", configrecord_key="settings")
    assert_allclose(*(r.arrays["x"].numpy() for r in (named, flowers(setup))), rtol=1e-9, atol=1e-12)


def test_flowers_evaluation_is_on_the_held_out_rows():
    setup = small("fedavg-group", **NO_PROX, evaluation__held_out=0.25)
    result = flowers(setup, evaluated=1.0)
    (x,) = result.arrays.to_numpy_ndarrays()
    known = pooled([at_site(setup.objective, x, setup.held_rows(i)) for i in range(8)])
    told = result.evaluate_metrics_clientapp[5]
    assert told["accuracy"] == pytest.approx(known["held_out_accuracy"])
    assert told["loss"] == pytest.approx(known["held_out_loss"])


def test_flowers_legacy_fedavg_is_the_same():
    """Its requests have the names that a NumPyClient knows, and say by their config that it averages."""
    setup = small("fedavg-group", **NO_PROX)
    legacy = Legacy(on_fit_config_fn=lambda round_: {"round": round_, "model-only": True})
    apart = InProcessGrid(setup)
    everyone = [client_of(setup, i, apart.context(i + 1)).to_client() for i in range(8)]
    model = ndarrays_to_parameters([setup.start])
    for round_ in range(1, 6):
        request = FitIns(model, legacy.on_fit_config_fn(round_))
        model, _ = legacy.aggregate_fit(round_, [(None, one.fit(request)) for one in everyone], [])
    (x,) = parameters_to_ndarrays(model)
    assert_allclose(x, flowers(setup).arrays["x"].numpy(), rtol=1e-9, atol=1e-12)


def ask(setup, message_type="train", arrays=None, config=None):
    """The reply of client 0 to a request of one of Flower's strategies."""
    grid = nodes(setup)
    model = record_of([setup.start]) if arrays is None else arrays
    content = {"arrays": model, "config": ConfigRecord(config or {"server-round": 1})}
    (reply,) = grid.send_and_receive([Message(RecordDict(content), 1, message_type)])
    return reply


REFUSED = [name for name in VARIANTS if not small(name).method.averages_models]


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_whose_server_does_more_than_average_is_refused_in_one_sentence(name):
    setup = small(name)
    assert "does more than average models" in ask(setup).error.reason
    assert not nodes(setup).contexts[1].state


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"regulariser__name": "l1"}, "takes no prox"),
        ({"uplink_ratio": 0.5}, "whole models"),
        ({"downlink_ratio": 0.5}, "whole models"),
    ],
)
def test_settings_whose_server_does_more_are_refused(keys, words):
    assert words in ask(small("fedavg-group", **(NO_PROX | keys))).error.reason


def test_settings_of_the_server_that_a_client_would_ignore_are_refused():
    """Flower's FedProx would otherwise be FedAvg."""
    for algorithm, words in (("fedavg", "use a FedProx client"), ("fedprox", "fedprox with mu = 0.1")):
        setup = small("fedavg-group", algorithm=algorithm, **NO_PROX)
        reply = ask(setup, config={"server-round": 1, "proximal-mu": 0.5})
        assert "the server sends proximal-mu = 0.5" in reply.error.reason and words in reply.error.reason
        assert (
            "which this client does not read" in ask(setup, config={"server-round": 1, "lr": 1}).error.reason
        )


def test_requests_that_make_no_sense_are_refused():
    setup = small("fedavg-group", **NO_PROX)
    two = record_of([setup.start, setup.start])
    assert "one flat array" in ask(setup, arrays=two).error.reason
    assert "must have shape" in ask(setup, arrays=record_of([setup.start[1:]])).error.reason
    assert "carry its round" in ask(setup, config={"epochs": 3}).error.reason
    assert "holds out no rows" in ask(setup, "evaluate").error.reason


def test_a_private_client_is_charged_and_says_when_its_budget_is_spent():
    """The same noisy models as with our own strategy; beyond the plan there is an error in place of a model."""
    setup = small("fedavg-group", **NO_PROX, privacy__mode="gradient", noise_multiplier=0.5)
    ours = strategy_of(setup).start(InProcessGrid(setup), record_of([setup.start]), 5)
    result = flowers(setup, rounds=5)
    (x,), (y,) = (r.arrays.to_numpy_ndarrays() for r in (ours, result))
    weights = setup.partition.sizes
    assert np.ptp(weights) <= 1  # so the two means nearly agree
    assert_allclose(x, y, atol=2 / weights.min() * np.abs(x).max())
    assert np.abs(x - y).max() < np.abs(x).max() / 10
    with_one_more = flowers(setup, rounds=6)
    assert_allclose(with_one_more.arrays["x"].numpy(), y, rtol=1e-9, atol=1e-12)


def test_our_own_client_app_understands_flowers_strategies():
    setup = small("fedavg-group", **NO_PROX)
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 8}, RecordDict(), setup.config.items())
    content = {"arrays": record_of([setup.start]), "config": ConfigRecord({"server-round": 1})}
    reply = client_app.app(Message(RecordDict(content), 1, "train"), context)
    assert list(reply.content["arrays"]) == ["0"]
    assert reply.content["metrics"]["num-examples"] == setup.partition.sizes[0]


# ------------------------------------------------------------------------------------- Flower's mods


def test_the_document_says_where_flowers_mods_are():
    text = (Path(__file__).parent.parent / "docs" / "flower-interop.md").read_text()
    known = ("flwr.client.mod", ("secagg_mod", "secaggplus_mod")), ("flwr.clientapp.mod", ("LocalDpMod",))
    for place, names in known:
        assert all(hasattr(importlib.import_module(place), name) for name in names)
        assert f"{' and '.join(f'`{name}`' for name in names)} " in text and f"from `{place}`" in text


def with_mods(setup, *mods):
    """A grid whose nodes run our clients behind these mods."""

    def client_fn(context):
        return client_of(setup, int(context.node_config["partition-id"]), context).to_client()

    return OneProcess(ClientApp(client_fn, mods=list(mods)), setup.config.clients.count, {})


PRIVATE = NO_PROX | {"privacy__mode": "gradient", "noise_multiplier": 0.5}


@pytest.mark.parametrize("others", [[], [for_flower_strategies]])
@pytest.mark.parametrize(
    ("mod", "words"),
    [
        (
            secaggplus_mod,
            "uses Flower's secagg_mod or secaggplus_mod, .* leave the mod out, and set privacy.trust",
        ),
        (secagg_mod, "uses Flower's secagg_mod or secaggplus_mod"),
        (
            LocalDpMod(1.0, 1.0, 1.0, 1e-5),
            "uses Flower's LocalDpMod, .* leave the mod out, and set privacy.mode",
        ),
    ],
)
def test_our_strategies_refuse_flowers_mods_before_anything_is_released(mod, words, others):
    setup = small("fedavg-group", **PRIVATE)
    grid = with_mods(setup, mod, *others)
    with pytest.raises(RunError, match=words):
        strategy_of(setup).start(grid, record_of([setup.start]), 2)
    assert all(set(context.state) <= {"secaggplus_state"} for context in grid.contexts.values())


def flowers_behind(setup, *mods):
    """The model of 5 rounds of Flower's FedAvg over our clients behind these mods; None if nobody replied."""
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=8)
    result = strategy.start(with_mods(setup, *mods), ArrayRecord({"x": record_of([setup.start])["0"]}), 5)
    return result.arrays["x"].numpy() if result.arrays else None


def test_flowers_local_dp_works_outside_of_our_mod_only():
    """Without noise and with room for every update it changes nothing; noise comes on top of a private client's."""
    wide, noisy = LocalDpMod(100.0, 0.0, 1.0, 1e-5), LocalDpMod(100.0, 0.01, 1.0, 1e-5)
    for keys in (NO_PROX, PRIVATE):
        setup = small("fedavg-group", **keys)
        plain = flowers(setup).arrays["x"].numpy()
        assert_allclose(flowers_behind(setup, wide, for_flower_strategies), plain, rtol=1e-9, atol=1e-12)
        assert 1e-3 < np.abs(flowers_behind(setup, noisy, for_flower_strategies) - plain).max() < 1
        assert flowers_behind(setup, for_flower_strategies, noisy) is None


@pytest.mark.parametrize(
    "mods", [(secaggplus_mod, for_flower_strategies), (for_flower_strategies, secaggplus_mod)]
)
def test_flowers_secure_aggregation_is_not_for_its_message_strategies(mods):
    setup = small("fedavg-group", **PRIVATE)
    assert flowers_behind(setup, *mods) is None
    (reply, *_) = with_mods(setup, *mods).send_and_receive(
        [
            Message(
                RecordDict({"arrays": record_of([setup.start]), "config": ConfigRecord({"server-round": 1})}),
                1,
                "train",
            )
        ]
    )
    assert "secaggplus_configs" in reply.error.reason


# ------------------------------------------------------------------------------------- foreign clients


class Foreign(NumPyClient):
    """A client of somebody else's."""

    def fit(self, parameters, config):
        return parameters, 10, {}


class Located(Foreign):
    """One that reports its partition."""

    def __init__(self, context):
        self.places = {key: context.node_config[key] for key in ("partition-id", "num-partitions")}

    def get_properties(self, config):
        return self.places


def message_app():
    app = ClientApp()

    @app.train()
    def train(message, context):
        raise AssertionError("it must be refused before it trains")

    return app


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (
            ClientApp(lambda context: Foreign().to_client()),
            "did not report its partition: it does not run a Twinflower",
        ),
        (message_app(), "nodes cannot take part.*: its app's clients are functions, such as @app.train"),
        (
            ClientApp(lambda context: Located(context).to_client()),
            "round 1: none of the 2 replies could be used",
        ),
    ],
)
def test_our_strategies_refuse_foreign_clients_in_one_sentence(app, words):
    setup = small("fedavg-group", **NO_PROX)
    strategy = strategies.FedAvg(replace(setup.algorithm), node_timeout=1.0)
    with pytest.raises(RunError, match=words) as caught:
        strategy.start(OneProcess(app, 2, {}), record_of([setup.start]), 3)
    assert "\n" not in str(caught.value)
    assert not np.any(strategy.server.x0 if strategy.server else 0)


# ------------------------------------------------------------------------------------- flwr-datasets


LABELS = np.random.default_rng(0).integers(0, 10, 500)


def test_partitioners_of_flwr_datasets():
    """Every row has one client, and the labels are divided as the partitioner says."""
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    iid = divide_with(partitioner.IidPartitioner(4), LABELS)
    assert sorted(iid.rows) == list(range(500))
    assert_array_equal(iid.sizes, 125)
    natural = divide_with(partitioner.NaturalIdPartitioner("class"), LABELS, "class")
    assert natural.num_clients == 10
    assert all(len(set(LABELS[natural.of(i)])) == 1 for i in range(10))
    used = partitioner.IidPartitioner(4)
    divide_with(used, LABELS)
    with pytest.raises(SettingError, match="must be new"):
        divide_with(used, LABELS)


def test_a_vertical_partitioner_is_refused():
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    with pytest.raises(SettingError, match="divides columns"):
        divide_with(partitioner.VerticalEvenPartitioner(2), LABELS)


class Fixed:
    """A partitioner with these partitions, which takes any data set."""

    def __init__(self, parts):
        self.parts, self.num_partitions, self.dataset = parts, len(parts), None

    def is_dataset_assigned(self):
        return self.dataset is not None

    def load_partition(self, number):
        return self.dataset.select(self.parts[number])


def test_partitions_that_are_none_are_refused():
    pytest.importorskip("datasets")
    assert divide_with(Fixed([[2, 0], [4]]), LABELS).of(0).tolist() == [2, 0]
    with pytest.raises(SettingError, match="client 1 without rows"):
        divide_with(Fixed([[0], []]), LABELS)
    with pytest.raises(SettingError, match="a row to two clients"):
        divide_with(Fixed([[0, 1], [1]]), LABELS)


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SettingError, match="pip install flwr-datasets"):
        divide_with(Fixed([[0]]), LABELS)
