"""Whether a private client answers with numbers, an error or a refusal never depends on a record.

No budget pays for what a server could learn from that.
Clients with a site's guard get the same requests on data sets that differ in one record, with the same noise. Their
replies may differ in the values of released numbers, by no more than their sensitivity, and in nothing else that a
server sees: the kind of the reply, its shapes, its metrics, its text, and the charges in the ledger.
"""

from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from grids import Deployed
from problems import SMALL, VARIANTS, one_of_each, small

from twinflower.clients import CLIENTS, SumClient
from twinflower.clients.records import record_of
from twinflower.data.columns import Range
from twinflower.data.ranges import pack_ranges
from twinflower.errors import ReplyError, SettingError
from twinflower.privacy.ledger import FileLedger
from twinflower.privacy.mechanism import seeded
from twinflower.privacy.plan import EVALUATION
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import LinearModel
from twinflower.queries.held_out_question import HeldOutQuestion
from twinflower.queries.model_question import SiteAnswer
from twinflower.simulation.runs.client_factory import client_of, store_of
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.settings import parse
from twinflower.strategies.messages import properties_request
from twinflower.sums.discrete import seeded_words

PRIVATE = [
    name for name, keys in VARIANTS.items() if keys.get("privacy.mode", "as-published") != "as-published"
]
ROWS, ROUNDS, CONFIGS = 10, 3, 50
SIZES = (0.0, 5e-324, 1e-310, 1e-100, 1e-60, 1e-20, 1.0, 1e20, 1e60, 1e99, 1e100, 1e200, 3e306, 2e307)
POINTS = (0.0, 5e-324, 1e-100, 1.0, 1e8, 1e60, 1e99, 1e100, 1e101, 1e155, 1e308)
VALUES = (0.0, 5e-324, 1.0, -1e50, 1e99, 1e155, -1e308, np.inf, np.nan)  # of a record
TASKS = (
    {},
    {"objective.name": "swish-network", "objective.clip-norm": 1.0},
    {"data.name": "linear", "objective.name": "huber"},
    {"data.name": "linear", "objective.name": "least-squares", "objective.clip-norm": 1.0},
    {"data.name": "linear", "objective.name": "absolute", "data.row-norm": 0.0, "objective.clip-norm": 2.0},
)


# ---------------------------------------------------------------------------------------- what a server sees


class Watched:
    """An algorithm whose clients must have charged a round before they compute it, and whose first noisy value of every
    round is written down, with how far one record may move it."""

    def __init__(self, algorithm, bounds, schedule, charged):
        self.algorithm, self.charged, self.first = algorithm, charged, []
        self.release = algorithm.release(bounds, schedule.workload(ROWS), 1)
        self.update = type(algorithm).client_update

    def __call__(self, algorithm, state, inbox, work):
        assert work.round in self.charged()
        values = []

        def noise(value, *more, **keys):
            noisy = work.noise(value, *more, **keys)
            values.append((noisy.copy(), float(np.max(keys.get("shrink", 1.0)))))
            return noisy

        try:
            return self.update(algorithm, state, inbox, work._replace(noise=noise))
        finally:
            self.first.append(values[0] if values else None)


def at_a_site(setup, rows, folder, objective=None):
    """A client as deployed sites have it, but for its noise, which is the same in every call."""
    plan = setup.plan
    guard = plan.guard(0, FileLedger(folder / "0.ledger", "data", 1e9, 1e-4), run="1")
    noise = (
        {"words": partial(seeded_words, 0, 0)}
        if setup.sums
        else {"draws": lambda round_: seeded(0, 0, round_)}
    )
    plenty = replace(guard.budget, mu_max_squared=1e3 * guard.budget.mu_max_squared)  # planned for other rows
    guard = replace(guard, row_norm=setup.row_norm, budget=plenty, **noise)
    kind = SumClient if setup.sums else CLIENTS[setup.config.algorithm]
    return kind(
        Context(1, 1, {}, RecordDict(), {}), setup.algorithm, objective or setup.objective, rows, setup.start, 0,
        setup.config.clients.count, setup.schedule, guard=guard, store=store_of(setup, 0, str(folder / "states")),
    )  # fmt: skip


def seen(ask):
    """All that a server learns from an answer besides the values of released numbers."""
    try:
        arrays, rows, metrics = ask()
    except (ReplyError, SettingError) as error:  # any other is a mistake of ours
        return type(error).__name__, str(error)
    return [(array.shape, array.dtype.str) for array in arrays], rows, dict(metrics)


def numbers(answer):
    """Whether an answer holds arrays."""
    return isinstance(answer[0], list) and bool(answer[0])


def transcript(setup, rows, requests, folder, objective=None):
    """What a server sees in all rounds, with the charges of each, and the first noisy value of every round."""
    folder.mkdir()
    ledger = FileLedger(folder / "0.ledger", "data", 1e9, 1e-4)

    def charged():
        return [charge.round for charge in ledger.charges()]

    watched, found = Watched(setup.algorithm, setup.plan.bounds, setup.schedule, charged), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(setup.algorithm), "client_update", lambda *arguments: watched(*arguments))
        for round_, arrays in enumerate(requests, 1):
            before = charged()
            answer = seen(
                lambda r=round_, a=arrays: at_a_site(setup, rows, folder, objective).fit(a, {"round": r})
            )
            found.append((answer, charged()))
            assert numbers(answer) or "not finite" in str(answer) or charged() == before
    charges = [replace(charge, time=0.0) for charge in ledger.charges()]
    return (found, charges), watched


def same_but_for_values(setup, pair, requests, folder, objective=None):
    """What a server sees of both data sets, which must be the same; the values of round 1 may differ by their
    sensitivity, and by the cells of a grid."""
    (one, first), (other, second) = (
        transcript(setup, rows, requests, folder / str(place), objective) for place, rows in enumerate(pair)
    )
    assert one == other
    if first.first and first.first[0]:
        (x, shrink), (y, _) = first.first[0], second.first[0]
        if setup.sums:
            x, y = (a.view(np.int64) * setup.sums.widths[0] for a in (x, y))
            shrink *= setup.plan.counts[0]
        moved, cells = np.linalg.norm(x - y), np.sqrt(x.size) * 2.0**-19
        sigma = 1.0 if setup.sums else setup.plan.multipliers[0] * first.release.spread * shrink
        assert moved <= shrink * first.release.sensitivity * (1 + 1e-6) + cells * sigma
    return one[0]


# ------------------------------------------------------------------------------------------- the whole class


def accepted(*settings):
    """The run with these settings; None if they are refused, before data are opened."""
    try:
        return prepare(parse(SMALL, *settings))
    except SettingError:
        return None


@dataclass
class Trial:
    """A run with extreme settings, hostile requests, and two data sets that differ in one record."""

    setup: object
    rows: Batch
    neighbour: Batch
    requests: list

    @classmethod
    def drawn(cls, variant, seed):
        """One of many; None for a task that the variant does not take."""
        draw = np.random.default_rng([seed, *variant.encode()])
        task = TASKS[draw.integers(len(TASKS))] if draw.random() < 0.6 else {}
        known = (
            {key: v for key, v in VARIANTS[variant].items() if key != "data.name"}
            if task
            else VARIANTS[variant]
        )
        keys = {"local.max-steps": int(draw.choice([1, 2, 5, 40]))} if draw.random() < 0.5 else {}
        keys |= {"clients.per-round": 0}
        if draw.random() < 0.3 and "trust" not in known:
            keys |= {"privacy.protects": "group", "privacy.group-size": 2}
        setup = accepted(known, task, keys)
        if setup is None:
            return None
        names = [
            k for k, v in setup.config.items().items() if type(v) is float and not k.startswith("server.")
        ]
        for name in draw.choice(names, int(draw.integers(0, 5)), replace=False):
            odd = keys | {str(name): float(draw.choice(SIZES))}
            if found := accepted(known, task, odd):
                setup, keys = found, odd
        return cls(setup, *neighbouring(draw, setup), [hostile(draw, setup, t) for t in range(1, ROUNDS + 1)])


def neighbouring(draw, setup):
    """Data sets that differ in a record, which is often extreme in the second one."""
    width, classes = setup.dataset.features.shape[1], setup.dataset.num_classes
    features = draw.normal(size=(ROWS, width))
    if draw.random() < 0.3:
        features[:] = features[0]
    features *= (setup.config.data.row_norm or 1.0) / np.linalg.norm(features, axis=1, keepdims=True)
    labels = draw.integers(classes, size=ROWS) if classes else draw.normal(size=ROWS)
    other, changed = features.copy(), labels.copy()
    extreme = draw.choice(VALUES, width) if draw.random() < 0.5 else np.full(width, draw.choice(VALUES))
    other[0] = extreme if draw.random() < 0.6 else -features[0]
    changed[0] = draw.integers(classes) if classes else draw.choice(VALUES)
    return Batch(features, labels), Batch(other, changed)


def hostile(draw, setup, round_):
    """A message of the right form with extreme points and amounts; rounds and degrees are in order."""
    algorithm, count = setup.algorithm, setup.config.clients.count
    server = algorithm.init_server(setup.start, count, np.array(0, np.uint64))
    inbox = algorithm.broadcast(server, round_, np.array(0))
    size = draw.choice(POINTS, p=[0.2, 0.05, 0.05, 0.3, *[0.4 / 7] * 7])

    def one(name, array):
        if name == "elapsed":
            return np.array(draw.choice(POINTS))
        if array.ndim == 0 or array.dtype.kind != "f":
            return array
        return (
            size * draw.choice([-1.0, 1.0], array.shape) * draw.choice([0.0, 1.0], array.shape, p=[0.1, 0.9])
        )

    return algorithm.inbox.pack(type(inbox)(*map(one, inbox._fields, inbox)), setup.objective.d)


@pytest.mark.parametrize("enough", [8, pytest.param(CONFIGS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", one_of_each(PRIVATE))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_record_decides_what_kind_of_answer_there_is(variant, enough, tmp_path):
    """Many settings, requests and records; enough are answered with numbers for the search to mean something."""
    trials = (Trial.drawn(variant, seed) for seed in range(CONFIGS))
    answered = 0
    longer = 0
    for number, trial in enumerate(filter(None, trials)):
        if answered >= enough and longer >= 2:
            break
        folder = tmp_path / str(number)
        folder.mkdir()
        found = same_but_for_values(trial.setup, (trial.rows, trial.neighbour), trial.requests, folder)
        rounds = sum(numbers(answer) for answer, _ in found)
        answered, longer = answered + (rounds > 0), longer + (rounds > 1)
    assert answered >= 5 and longer >= 2


MODELS = (0.0, 5e-324, 1.0, 1e50, 1e100, 1e155, 1.7e308)


@pytest.mark.parametrize("bound", [0.0, 1e-100, 1.0, 1e100])
def test_no_record_decides_what_an_evaluation_answers(bound, tmp_path):
    """On held-out rows, with hostile models, repeated requests, other models and rounds that are not planned."""
    keys = {"evaluation.held-out": 0.2, "privacy.evaluation-share": 0.5, "evaluation.release-every": 2}
    setup = small("fedpdm-private", **keys, **({"evaluation.loss-bound": bound} if bound else {}))
    planned, draw = setup.plan.releases.of_kind(EVALUATION), np.random.default_rng(0)
    for number, (size, value) in enumerate(product(MODELS, VALUES)):
        rows, other = neighbouring(draw, setup)
        other.features[0] = value
        x = size * draw.choice([-1.0, 1.0], setup.objective.d)
        answers = []
        for place, held_out in enumerate((rows, other)):
            ledger = FileLedger(tmp_path / f"{number}-{place}.ledger", "data", 1e9, 1e-4)
            guard = replace(setup.plan.guard(0, ledger, run="1", split="s"), draws=lambda r: seeded(0, 0, -r))
            question = HeldOutQuestion([own.round for own in planned], bound=bound)
            counting = guard.counting(planned[0].multiplier, guard.draws)
            private = [
                SiteAnswer(question, counting, question.release(len(held_out.labels), setup.plan.unit))
            ]
            client = CLIENTS["fedpdm"](
                Context(1, 1, {}, RecordDict(), {}), setup.algorithm, setup.objective, rows, setup.start, 0, 8,
                setup.schedule, guard=guard, held_out=held_out, answers=private,
            )  # fmt: skip
            asked = [(x, 2), (x, 2), (2 * x + 1, 2), (x, 3), (x, 4)]
            found = [heard(partial(client.evaluate, [m], {"round": r})) for m, r in asked]
            answers.append((found, [replace(charge, time=0.0) for charge in ledger.charges()]))
        assert [kind for kind, _ in answers[0][0]] == [kind for kind, _ in answers[1][0]]
        assert answers[0][1] == answers[1][1] and len(answers[0][1]) == 2
        pairs = zip(answers[0][0], answers[1][0], strict=True)
        assert all(abs(a - b) <= 1 + 1e-3 for (kind, a), (_, b) in pairs if kind == "number")


def heard(ask):
    """The kind of an evaluation's answer, and its noisy sum, or the text of an error."""
    try:
        _, rows, metrics = ask()
        return f"number of {rows}" if not np.isfinite(metrics["value"]) else "number", metrics["value"]
    except ReplyError as error:
        return str(error), 0.0


@pytest.mark.parametrize("half", [2e-100, 1e-3, 1.0, 1e50, 2e99])
def test_no_record_decides_what_a_client_with_private_ranges_answers(half, tmp_path):
    """Counts in round 0, hostile ranges after that; cells of any size a table may hold."""
    (tmp_path / "schema.toml").write_text(TABLE)
    cells = ["0", "5e-324", "1e-200", "3.5", "-1e50", "1e100", "-1e100", ""]
    kinds = []
    for number, (cell, other) in enumerate(product(cells, repeat=2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        rows = [f"{cell},{other},1", *(f"{0.1 * row},{-row},{row % 2}" for row in range(9))]
        for site in (0, 1):
            (folder / f"{site}.csv").write_text("\n".join(["a,b,y", *rows, ""]))
        keys = {
            "data.name": "tables",
            "data.files": str(folder / "*.csv"),
            "data.schema": str(tmp_path / "schema.toml"),
        }
        keys |= {"objective.name": "logistic", "rounds": 3, "privacy.mode": "public-state", "epsilon": 8.0}
        setup = prepare(parse(keys))
        ledger = FileLedger(folder / "0.ledger", "data", 1e9, 1e-4)
        guard = replace(
            setup.plan.guard(0, ledger, run="1", row_norm=setup.row_norm), draws=lambda r: seeded(0, 0, r)
        )
        client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}), guard)
        ranges = pack_ranges([Range(-half, half), Range(half, 4 * half)])
        asked = [([], {"round": 0}), *(([setup.start], {"round": r, "ranges": ranges}) for r in (1, 2))]
        found = [seen(partial(client.fit, *request)) for request in asked]
        kinds.append((found, [replace(charge, time=0.0) for charge in ledger.charges()]))
    assert all(kind == kinds[0] for kind in kinds)
    assert all(map(numbers, kinds[0][0]))


TABLE = """
version = 1
[label]
column = "y"
classes = [0, 1]
[columns]
a = { range = "private", missing = "zero" }
b = { range = "private", missing = "indicator" }
"""


# ----------------------------------------------------------------------------------- attacks that once worked


@pytest.mark.parametrize("step", [1e60, 1e99, 1e100, 3e306, 1e307, 2e307])
@pytest.mark.parametrize("variant", ["fedavg-subgradient", "scaffold-gradient"])
def test_a_huge_step_does_not_overflow_for_one_record_only(step, variant, tmp_path):
    """The gradients of the first step cancel out, or do not; the second one is taken at 1e306 times their mean."""
    try:
        setup = small(variant, step_size=step, local__max_steps=3)
    except SettingError as error:
        assert "step-size" in str(error)
        return
    features = np.zeros((ROWS, setup.dataset.features.shape[1]))
    features[:, 0] = np.where(np.arange(ROWS) % 2, 1.0, -1.0)
    other = features.copy()
    other[0] *= -1
    request = setup.algorithm.inbox.pack(
        setup.algorithm.broadcast(
            setup.algorithm.init_server(setup.start, 8, np.array(0, np.uint64)), 1, np.array(0)
        ),
        setup.objective.d,
    )
    pair = [Batch(rows, np.zeros(ROWS, int)) for rows in (features, other)]
    ((answer, charged),) = same_but_for_values(setup, pair, [request], tmp_path)
    assert numbers(answer) if step == 1e60 else "too large for the noise" in answer[1] and not charged


class Fragile(LinearModel):
    """A custom loss that is not a number for one kind of record."""

    def losses(self, x, rows):
        return np.where(rows.features[..., 0] > 0.9, np.nan, super().losses(x, rows))


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_that_is_not_a_number_is_its_bound(seed, tmp_path):
    setup = small("ssca-groups-private")
    objective = Fragile(**{field.name: getattr(setup.objective, field.name) for field in fields(LinearModel)})
    rows, _ = neighbouring(np.random.default_rng(seed), setup)
    other = rows.features.copy()
    other[0] = np.eye(other.shape[1])[0]
    pair = [Batch(features, rows.labels) for features in (rows.features, other)]
    ((answer, _),) = same_but_for_values(setup, pair, [[0 * setup.start]], tmp_path, objective)
    assert numbers(answer)


RUN = {
    "data.name": "own", "num-features": 2, "num-classes": 2, "clients.count": 2, "partition.name": "sizes",
    "partition.sizes": "3,3", "privacy.mode": "public-state", "epsilon": 8.0,
}  # fmt: skip


def asked(run, folder, rows):
    """What a deployed node with these rows answers to a question and to a request."""
    folder.mkdir(exist_ok=True)
    np.savez(folder / "rows.npz", features=rows, labels=np.array([0, 1, 0]))
    node = {
        "partition-id": 0, "num-partitions": 2, "data-file": str(folder / "rows.npz"), "num-features": 2,
        "num-classes": 2, "lifetime-epsilon": 9.0, "state-dir": str(folder / "state"),
    }  # fmt: skip
    grid = Deployed(RUN | run, node, {})  # first: without a grid, there are no messages
    request = {"fitins.parameters": record_of([np.zeros(6)]), "fitins.config": ConfigRecord({"round": 1})}
    replies = grid.send_and_receive([properties_request(1), Message(RecordDict(request), 1, "train")])
    return [reply.error.reason if reply.has_error() else shapes(reply) for reply in replies]


def shapes(reply):
    """The names and kinds of all records, and the sizes of arrays."""
    arrays = [record for record in reply.content.values() if isinstance(record, ArrayRecord)]
    return sorted(reply.content), [len(array.data) for record in arrays for array in record.values()]


@pytest.mark.parametrize(
    "bound", [0.0, 1e-100, 1e-99, 1.0, 1e100, *(k * 5e-324 for k in (1, 2, 3, 5, 8, 100)), 1e-308]
)
def test_no_bound_on_rows_tells_what_is_in_a_file(bound, tmp_path):
    """Before anything is charged: scaled to a subnormal norm, some rows are rounded up beyond it."""
    draw = np.random.default_rng(1)
    clip = {"objective.clip-norm": 1.0} if not bound else {}
    answers = []
    for place in range(12):
        rows = draw.normal(size=(3, 2))
        rows[0] = [(0.0, 0.0), (1e100, 1e100), (5e-324, 0.0), (3.0, 4.0)][place % 4]
        answers.append(asked({"data.row-norm": bound} | clip, tmp_path / str(place), rows))
    assert all(answer == answers[0] for answer in answers)
    assert isinstance(answers[0][1], tuple) == (bound in (0.0, 1e-99, 1.0))
