"""Apps whose clients are functions: with our strategies, ours with them, and ours with Flower's strategies."""

import ast
import importlib
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedProx
from numpy.testing import assert_allclose, assert_array_equal
from plug_in_driver import OneProcess
from problems import RARE, VARIANTS, small

from twinflower import algorithms, strategies
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.layout import Entries, SparseVector
from twinflower.clients import ContextLedger, client_app
from twinflower.clients.functions import FunctionFormat, NamedParts
from twinflower.clients.records import record_of
from twinflower.errors import RunError, SettingError
from twinflower.privacy import gdp_mu
from twinflower.privacy.ledger import read_ledger
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.losses import Logistic
from twinflower.problems.objectives import LinearModel
from twinflower.problems.regularisers import L1
from twinflower.rounds import Problem, rounds
from twinflower.simulation.runs.client_factory import guard_of
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import strategy_of
from twinflower.strategies.messages import short

ROUNDS = 3
ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "functions"


def app_of(setup, **keys):
    """Our client of a run, as an app of functions."""

    def guard(context):
        return guard_of(setup, int(context.node_config["partition-id"]), ContextLedger(context.state), "1")

    return client_app(
        setup.algorithm,
        setup.objective,
        lambda context: setup.shards.rows(int(context.node_config["partition-id"])),
        setup.start,
        guard if setup.plan else None,
        schedule=setup.schedule,
        seed=setup.config.seed,
        **keys,
    )


def whole(variant):
    """Whether a variant sends whole vectors, and does not hide them in sums."""
    setup = small(variant)
    fields = [*setup.algorithm.inbox.fields, *setup.algorithm.upload.fields]
    thin = [f for f in fields if isinstance(f, Entries | SparseVector) and f.sparsifier.ratio != 1]
    return not thin and not setup.sums and setup.config.algorithm != "newton-path"


def halves(vector):
    """A model in two parts, one of them a matrix."""
    k = len(vector) // 4 * 2
    return record_of([vector[:k].reshape(2, -1), vector[k:]])


FUNCTIONS = [name for name in VARIANTS if name not in RARE and whole(name)]


@pytest.mark.parametrize("variant", FUNCTIONS)
def test_our_client_as_functions_has_the_same_bits_as_the_numpy_client(variant):
    """Model and statistics, the model in two parts on the way; all rounds of the cohort, private ones included."""
    setup = small(variant)
    plain, through = strategy_of(setup), strategy_of(setup)
    one = plain.start(InProcessGrid(setup), record_of([setup.start]), setup.config.rounds)
    nodes = over(app_of(setup), setup)
    two = through.start(nodes, nodes.flat, setup.config.rounds)
    (x,), (y,) = (result.arrays.to_numpy_ndarrays() for result in (one, two))
    assert_array_equal(x, y)
    assert np.any(x != setup.start)
    one, other = ([repr(r._replace(seconds=0.0)) for r in s.rounds] for s in (plain, through))
    assert one == other
    named = nodes.named(two.arrays)
    assert_array_equal(np.concatenate([part.ravel() for part in named.to_numpy_ndarrays()]), x)


def over(app, setup):
    """The grid of a run whose nodes have this app."""
    grid = OneProcess(app, setup.config.clients.count, {})
    return strategies.AppFunctions(grid, setup.algorithm, halves(setup.start))


def test_every_algorithm_is_tested():
    tested = {VARIANTS[name]["algorithm"] for name in FUNCTIONS}
    compressed = {VARIANTS[name]["algorithm"] for name in VARIANTS} - tested
    assert compressed == {"bsdp-fedpdm", "soteriafl", "fedsgm", "newton-path"} & compressed


# ------------------------------------------------------------------------- functions of somebody else

RHO, STEP, ROWS, NODES = 0.5, 0.3, 12, 4
SHAPES = {"weight": (2, 2), "bias": (1,)}


def rows_of(node):
    """The rows of a node: f(x) = |A x - b|^2 / (2 m)."""
    draw = np.random.default_rng(node)
    return draw.normal(size=(ROWS, 5)), draw.normal(size=ROWS)


def one_step(x0, dual, node):
    """Li 2024, (8) to (10), with one step on all rows: the new dual, and what is sent."""
    a, b = rows_of(node)
    x = x0 - STEP * (a.T @ (a @ x0 - b) / ROWS - dual)
    dual = dual + RHO * (x0 - x)
    return dual, x - dual / RHO


def flat(record):
    return np.concatenate([array.numpy().ravel() for array in record.values()])


def in_parts(vector, shapes=SHAPES):
    record, first = ArrayRecord(), 0
    for name, shape in shapes.items():
        record[name] = record_of([vector[first : first + math.prod(shape)].reshape(shape)])["0"]
        first += math.prod(shape)
    return record


def their_app(shapes=SHAPES, metrics=None, dtype=float, **evaluated):
    """FedPDM's client by somebody who has nothing of ours."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        x0 = flat(message.content["arrays"])
        state = context.state.setdefault("dual", ArrayRecord([np.zeros(5)]))
        dual, y = one_step(x0, state["0"].numpy(), context.node_id)
        context.state["dual"] = ArrayRecord([dual])
        content = {"arrays": in_parts(y.astype(dtype), shapes)}
        content["metrics"] = MetricRecord(
            {"num-examples": ROWS, "train_loss": 1.0} if metrics is None else metrics
        )
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        a, b = rows_of(context.node_id)
        loss = float(np.mean((a @ flat(message.content["arrays"]) - b) ** 2) / 2)
        found = {"eval_loss": loss, "eval_acc": 0.5, "num-examples": ROWS} | evaluated
        return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)

    return app


def train_theirs(app, algorithm=None, rounds=4, evaluation=None, **keys):
    """Our FedPDM over their nodes; the grid and the result."""
    algorithm = algorithm or algorithms.FedPDM(rho=RHO, step_size=STEP)
    nodes = strategies.AppFunctions(OneProcess(app, NODES, {}), algorithm, in_parts(np.zeros(5)), **keys)
    strategy = strategies.STRATEGIES[algorithm.name](algorithm, node_timeout=1.0, evaluation=evaluation)
    return nodes, strategy, strategy.start(nodes, nodes.flat, rounds)


def test_their_functions_run_fedpdm_as_the_paper_says():
    """Against a loop from the paper: x0 is the mean of what is sent; every node keeps its dual."""
    nodes, _, result = train_theirs(their_app())
    x0, duals = np.zeros(5), np.zeros((NODES, 5))
    for _ in range(4):
        steps = [one_step(x0, duals[i], i + 1) for i in range(NODES)]
        duals, x0 = np.array([dual for dual, _ in steps]), np.mean([y for _, y in steps], 0)
    assert_allclose(flat(nodes.named(result.arrays)), x0, rtol=1e-12)
    assert {name: array.numpy().shape for name, array in nodes.named(result.arrays).items()} == SHAPES


def test_their_evaluation_is_weighted_by_rows():
    evaluation = strategies.SiteEvaluation(lambda round_: round_ == 4)
    nodes, _, result = train_theirs(their_app(), evaluation=evaluation)
    x = flat(nodes.named(result.arrays))
    losses = [np.mean((a @ x - b) ** 2) / 2 for a, b in map(rows_of, range(1, NODES + 1))]
    found = result.evaluate_metrics_clientapp[4]
    assert found["held_out_loss"] == pytest.approx(np.mean(losses))
    assert found["held_out_accuracy"] == 0.5


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (
            their_app({"weight": (2, 2), "offset": (1,)}),
            "the array 'bias' is missing; there are weight, offset",
        ),
        (
            their_app({"weight": (4,), "bias": (1,)}),
            "'weight' must be float64 of shape (2, 2); got float64 of shape (4,)",
        ),
        (their_app(dtype=np.float32), "'weight' must be float64 of shape (2, 2); got float32"),
        (their_app(metrics={"round": 7}), "the reply belongs to round 7, not 1"),
    ],
)
def test_a_reply_of_another_form_is_refused_in_a_sentence(app, words, caplog):
    with pytest.raises(RunError, match="none of the 4 replies could be used") as caught:
        train_theirs(app)
    assert words in str(caught.value)


def test_a_number_that_the_algorithm_needs_belongs_to_the_metrics():
    """FedAvg weighs its prox by the number of local steps."""
    algorithm = algorithms.FedAvg(step_size=STEP)
    with pytest.raises(RunError, match="the number 'steps' is missing; it belongs to the metrics of a reply"):
        train_theirs(their_app(), algorithm)
    _, strategy, _ = train_theirs(their_app(metrics={"steps": 2}), algorithm)
    assert strategy.rounds[-1].accepted == NODES


@pytest.mark.parametrize("other", [{"more_loss": 1.0}, {"eval_acc": math.nan}])
def test_a_bad_evaluation_is_left_out(other, caplog):
    evaluation = strategies.SiteEvaluation(lambda round_: round_ == 1)
    train_theirs(their_app(**other), rounds=1, evaluation=evaluation)
    assert ("one number whose name ends in loss" in caplog.text) == ("more_loss" in other)


def test_nodes_are_numbered_and_waited_for():
    """An app without `@app.query()`: in the order of the nodes' ids, and as many as the server wants."""
    _, strategy, _ = train_theirs(their_app(), rounds=1)
    assert strategy.roster.nodes == {i: i + 1 for i in range(NODES)}
    with pytest.raises(RunError, match="nobody holds partition 4"):
        train_theirs(their_app(), num_clients=5)


def test_models_and_algorithms_that_do_not_fit_are_refused():
    grid, fedpdm = OneProcess(their_app(), NODES, {}), algorithms.FedPDM()
    mixed = ArrayRecord([np.zeros(2), np.zeros(1, dtype=np.int64)])
    for bad in (mixed, ArrayRecord()):
        with pytest.raises(SettingError, match="must all be float32, or all float64"):
            strategies.AppFunctions(grid, fedpdm, bad)
    with pytest.raises(SettingError, match="set uplink-ratio and downlink-ratio to 1"):
        strategies.AppFunctions(grid, algorithms.FedPDM(uplink_ratio=0.5), in_parts(np.zeros(5)))


def test_further_vectors_have_names_of_their_own():
    """SCAFFOLD's request: the model, and the control variate under its own prefix."""
    layout, parts = algorithms.Scaffold().inbox, NamedParts.of(in_parts(np.zeros(5)))
    form = FunctionFormat(layout, parts)
    arrays = [np.arange(5.0), np.array(3), np.arange(5.0, 10.0)]
    vectors = [a for a in arrays if a.ndim]
    packed = [vectors.pop(0) if field.names[0] != "heard" else arrays[1] for field in layout.fields[:3]]
    record, numbers = form.write(packed)
    assert numbers == {"heard": 3}
    first = layout.fields[0].names[0] == "control"
    assert list(record) == ["weight", "bias"] + [f"{'x0' if first else 'control'}.{name}" for name in SHAPES]
    for one, other in zip(form.read(record, numbers), packed, strict=True):
        assert_array_equal(one, other)


# ------------------------------------------------------------------------- Flower's strategies with our functions


def test_flowers_fedavg_with_our_functions_is_our_fedavg_weighted_by_rows():
    keys = {"regulariser__name": "none", "clients__per_round": 0, "clients__weighting": "rows"}
    setup = small("fedavg-group", algorithm="fedavg", partition__name="dirichlet", **keys)
    ours = strategy_of(setup).start(InProcessGrid(setup), record_of([setup.start]), ROUNDS)
    grid = OneProcess(app_of(setup), setup.config.clients.count, {})
    theirs = FedAvg(fraction_evaluate=0.0, min_train_nodes=8).start(grid, halves(setup.start), ROUNDS)
    (x,) = ours.arrays.to_numpy_ndarrays()
    assert_allclose(flat(theirs.arrays), x, rtol=1e-9, atol=1e-12)


def reply_to(setup, config, kind="train", **keys):
    grid = OneProcess(app_of(setup, **keys), setup.config.clients.count, {})
    content = RecordDict({"arrays": halves(setup.start), "config": ConfigRecord(config)})
    (reply,) = grid.send_and_receive([Message(content, 1, kind)])
    return reply


@pytest.mark.parametrize(
    ("algorithm", "config", "words"),
    [
        ("fedavg", {"lr": 0.1}, "the server's config has lr, which this client does not read"),
        ("fedavg", {"proximal-mu": 0.5}, "use a FedProx client with the same mu"),
        (
            "fedprox",
            {"proximal-mu": 0.5},
            "sends proximal-mu = 0.5, and this client is one of fedprox with mu = 0.1",
        ),
        ("fedpdm", {}, "does more than average models"),
    ],
)
def test_what_our_client_would_ignore_is_refused(algorithm, config, words):
    setup = small("fedavg-group", algorithm=algorithm, regulariser__name="none", clients__per_round=0)
    reply = reply_to(setup, {"server-round": 1} | config)
    assert words in reply.error.reason


def test_flowers_fedprox_with_our_fedprox_client_of_the_same_mu():
    setup = small("fedavg-group", algorithm="fedprox", mu=0.5, regulariser__name="none", clients__per_round=0)
    grid = OneProcess(app_of(setup), setup.config.clients.count, {})
    strategy = FedProx(fraction_evaluate=0.0, min_train_nodes=8, proximal_mu=0.5)
    assert np.any(flat(strategy.start(grid, halves(setup.start), 1).arrays))


def test_private_functions_charge_and_refuse():
    """A second round of a budget for one is refused in a sentence; an evaluation is, too."""
    setup = small("fedpdm-private", rounds=1, local__batch_size=0)  # every record is in every round
    grid = OneProcess(app_of(setup), setup.config.clients.count, {})
    nodes = strategies.AppFunctions(grid, setup.algorithm, halves(setup.start))
    strategy = strategies.FedPDM(setup.algorithm, node_timeout=1.0)
    result = strategy.start(nodes, nodes.flat, 1)
    assert strategy.rounds[-1].accepted == len(strategy.rounds[-1].asked) > 0
    more = list(strategy.configure_train(2, result.arrays, ConfigRecord(), nodes))
    for reply in nodes.send_and_receive(more):
        assert "the privacy budget is spent" in reply.error.reason
    reply = reply_to(setup, {"round": 1}, "evaluate")
    assert "a private client is evaluated as a NumPyClient" in reply.error.reason


def test_an_app_of_the_other_kind_is_named_in_a_sentence():
    """A strategy without AppFunctions meets functions, and one with it a NumPyClient; Flower says which message types
    it does not know, in the engine at the end of a long traceback."""
    setup = small("fedavg-group", clients__per_round=0)
    strategy = strategies.FedAvg(setup.algorithm, node_timeout=0.1)
    functions = OneProcess(app_of(setup), setup.config.clients.count, {})
    with pytest.raises(RunError, match="its app's clients are functions, such as @app.train"):
        strategy.start(functions, record_of([setup.start]), 1)
    grid = InProcessGrid(setup)
    nodes = strategies.AppFunctions(grid, setup.algorithm, halves(setup.start))
    with pytest.raises(RunError, match="its app has a NumPyClient: leave out AppFunctions"):
        strategy.start(nodes, nodes.flat, 1)
    ray = (
        "ray::ClientAppActor.run() (pid=1)\n" + "  File x\n" * 99 + "ValueError: Invalid message type: query"
    )
    assert short(ray) == "its app has a NumPyClient: leave out AppFunctions around the grid"


@pytest.mark.parametrize("query", [True, False])
def test_an_app_without_a_query_function_need_not_be_asked_for_one(query):
    """On Flower's engine every node that is asked logs a traceback; the numbers are the same."""
    setup = small("fedavg-group", clients__per_round=0)
    asked = []

    class Watched(OneProcess):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            asked.extend(message.metadata.message_type for message in messages)
            return super().send_and_receive(messages, timeout=timeout)

    app = app_of(setup)
    del app._registered_funcs["query.default"]
    grid = Watched(app, setup.config.clients.count, {})
    nodes = strategies.AppFunctions(grid, setup.algorithm, halves(setup.start), query=query)
    strategies.FedAvg(setup.algorithm).start(nodes, nodes.flat, 1)
    assert asked.count("query") == query * setup.config.clients.count
    assert asked.count("train") == setup.config.clients.count


# ------------------------------------------------------------------------- a page's client with a ledger


def page_client(tmp_path):
    """The app of docs/plug-in.md that charges a FileLedger by itself, and its ledger."""
    blocks = (ROOT / "docs" / "plug-in.md").read_text().split("```python\n")[1:]
    (code,) = (text for text in (block.split("```")[0] for block in blocks) if "FileLedger(" in text)
    rng, ledger = np.random.default_rng(0), tmp_path / "site" / "rows.ledger"
    rows = rng.normal(size=(200, 3)), rng.normal(size=200)
    names = {"my_rows": lambda partition: rows}
    exec(code.replace("/var/lib/my-site/rows.ledger", str(ledger)), names)
    return names, rows, ledger


def averaged(app, rounds, run):
    """Flower's FedAvg over one node, for so many rounds of a run; the arrays of the model."""
    grid = OneProcess(app, 1, {})
    for context in grid.contexts.values():
        context.run_id = run
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    return strategy.start(grid, record_of([np.zeros(3)]), rounds).arrays


def test_the_pages_client_with_a_ledger_charges_what_it_says(tmp_path):
    """Whole run: epsilon 6. A second one does not fit into the lifetime of 8 and costs nothing."""
    names, (features, labels), path = page_client(tmp_path)
    x = flat(averaged(names["app"], 30, 1))
    book = read_ledger(path)
    assert [charge.round for charge in book.charges] == list(range(1, 31)) and not book.reserved
    assert_allclose(sum(charge.cost for charge in book.charges), gdp_mu(6.0, 1e-4) ** 2)
    sigma = names["NOISE"] * 2 / len(labels)
    exact = np.zeros(3)
    for _ in range(30):
        grads = (features @ exact - labels)[:, None] * features
        exact -= 0.1 * (grads / np.maximum(np.linalg.norm(grads, axis=1, keepdims=True), 1)).mean(0)
    assert 0 < np.linalg.norm(x - exact) < 6 * 0.1 * sigma * math.sqrt(30 * 3)
    assert not averaged(names["app"], 2, 2)
    assert read_ledger(path).charges == book.charges


# ------------------------------------------------------------------------- the example's two apps


def drive(folder, app, out):
    """One of the two apps of examples/functions in one process, for 30 rounds; the model that it stores."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    project = folder / "pyproject.toml"
    project.write_text(re.sub(r'= "\w+\.(\w+_app):app"', rf'= "{app}.\1:app"', project.read_text()))
    command = [
        sys.executable,
        str(ROOT / "tests" / "plug_in_driver.py"),
        "4",
        f"out={str(out)!r}",
    ]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(out)


def lines_of_code(path):
    """How many lines of a file are neither blank nor part of a comment or a docstring."""
    text = path.read_text()
    owners = [own for own in ast.walk(ast.parse(text)) if isinstance(own, ast.Module | ast.FunctionDef)]
    documented = {
        line
        for own in owners
        if ast.get_docstring(own)
        for line in range(own.body[0].lineno, own.body[0].end_lineno + 1)
    }
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and n not in documented for n, line in lines)


def test_the_page_says_how_long_the_two_apps_are():
    counted = [
        sum(lines_of_code(EXAMPLE / app / f"{side}_app.py") for side in ("client", "server"))
        for app in ("own_client", "our_client")
    ]
    text = (ROOT / "docs" / "plug-in.md").read_text()
    assert re.search(
        r"are (\d+) lines of code\s+in the first and (\d+) in the second", text
    ).groups() == tuple(map(str, counted))


def in_arrays(algorithm, bias):
    """The same run on arrays: the model after 30 rounds of 4 full local steps at each of the 4 sites."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        load = importlib.import_module("own_client.task").load
    finally:
        sys.path.remove(str(EXAMPLE))
    sites = [load(i, 4) for i in range(4)]
    shards = Shards.of([(np.c_[a, np.ones((len(a), bias))], (b > 0).astype(int)) for a, b in sites])
    objective = LinearModel(Logistic(), 1, 30 + bias)
    problem = Problem(objective, shards, np.zeros(objective.d))
    *_, last = rounds(algorithm, problem, LocalSchedule(0, max_local_steps=4), 30)
    return algorithm.model(last.server)


def test_the_examples_own_client_is_fedpdm(tmp_path):
    x = drive(tmp_path / "app", "own_client", tmp_path / "x.npy")
    same = in_arrays(algorithms.FedPDM(regulariser=L1(0.005), rho=0.5, step_size=1.0), bias=1)
    assert_allclose(x, same, atol=1e-10)
    assert 0 < np.count_nonzero(x) < 31


def test_the_examples_fedavg_is_our_fedavg(tmp_path):
    x = drive(tmp_path / "app", "our_client", tmp_path / "x.npy")
    info = RunInfo(4, 30, sizes=(143, 142, 142, 142))
    assert_allclose(x, in_arrays(algorithms.FedAvg(step_size=1.0, info=info), bias=0), atol=1e-10)
