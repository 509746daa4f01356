"""Private ranges: counts with a proven sensitivity and cost, ranges that follow them, and runs that use both."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from cuts import cut_off, equal
from flwr.app import Context, RecordDict
from grids import over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from problems import run_config
from scipy.integrate import quad
from scipy.stats import norm
from site_files import three_sites
from sklearn.datasets import load_breast_cancer

import twinflower
from twinflower.data.columns import Range
from twinflower.data.drafts import draft, read_tables
from twinflower.data.ranges import (
    RESOLUTIONS,
    Bins,
    Unscaled,
    pack_ranges,
    unpack_ranges,
)
from twinflower.data.schema_file import parse_schema, to_toml
from twinflower.errors import DataError, ReplyError, SettingError
from twinflower.privacy.audit import replay
from twinflower.privacy.charges import BudgetSpent
from twinflower.privacy.ledger import read_ledger
from twinflower.privacy.plan import COUNTS
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Batch
from twinflower.simulation.app import client_app
from twinflower.simulation.app.site import read_site
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.advice import outlook
from twinflower.simulation.runs.client_factory import client_of, guard_of
from twinflower.simulation.runs.forecast import forecast, noise_rows
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.rehearsal import at_sites, deployment
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.simulation.tuning.validation import held_out
from twinflower.strategies.questions import expect_session

PRIVATE = {"privacy.mode": "public-state", "privacy.epsilon": 8.0}
SCHEMA = """
[label]
column = "ill"
classes = ["no", "yes"]
[columns]
area = { range = "private", missing = "indicator" }
sex = { categories = ["f", "m"] }
share = { range = "private" }
age = { range = [20, 80] }
"""
CELLS = (0.0, -0.0, math.nan, 1.0, -1.0, 3.7e-9, -2.5, 1e-300, 1e100, -1e100, 2.0**40, 63.0)


def table(seed, rows):
    draw = np.random.default_rng(seed)
    lines = ["area,sex,share,age,ill"]
    for _ in range(rows):
        area, share = math.exp(draw.normal(7, 0.5)), 0.1 + 0.02 * draw.normal()
        ill = "yes" if (area - 1100) / 550 + (share - 0.1) / 0.02 + 0.5 * draw.normal() > 0 else "no"
        shown = "" if draw.random() < 0.1 else f"{area:.4f}"
        lines.append(f"{shown},{draw.choice(['f', 'm'])},{share:.5f},{draw.integers(20, 81)},{ill}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def sites(tmp_path):
    """Three sites' files, rows to test on, and the keys of a run on them."""
    return three_sites(tmp_path, SCHEMA, table, (150, 200, 180, 200)) | {
        "objective.name": "logistic",
        "rounds": 10,
    }


# ------------------------------------------------------------------------------------------ the counts


def sensitivity(columns, records=1):
    """A record that is replaced leaves one bin of every column and enters another."""
    return records * math.sqrt(2 * columns)


@pytest.mark.parametrize("per_octave", RESOLUTIONS)
def test_replacing_a_record_moves_the_counts_by_at_most_their_sensitivity(per_octave):
    grid, draw = Bins(per_octave), np.random.default_rng(0)
    values = draw.choice(CELLS, (20, 3)) * draw.choice([1.0, 1.5, 40.0], (20, 3))
    before, moves = grid.counts(values), []
    for _ in range(200):
        other = values.copy()
        other[draw.integers(20)] = draw.choice(CELLS, 3)
        moves.append(np.linalg.norm(grid.counts(other) - before))
    assert max(moves) == pytest.approx(sensitivity(3))  # reached, and never exceeded
    assert (before.sum(1) == 20).all()  # every value is in exactly one bin


def test_replacing_several_records_moves_the_counts_by_their_sum_at_most():
    grid, values = Bins(), np.full((20, 3), 5.0)
    other = values.copy()
    other[:4] = -70.0
    assert np.linalg.norm(grid.counts(other) - grid.counts(values)) == pytest.approx(sensitivity(3, 4))


def test_bins_are_as_the_grid_says():
    grid = Bins(2)
    assert grid.count == 2 * 140 + 2
    for value, place in ((0.0, 140), (math.nan, 281), (1.0, 201), (-1.0, 79), (1e100, 280), (-1e100, 0)):
        assert grid.counts(np.array([[value]]))[0].argmax() == place
    inside = np.sqrt(grid.edges[1:] * grid.edges[:-1])
    assert_array_equal(grid.counts(np.stack([inside, -inside], 1))[0, 141:-1], 1.0)
    assert_array_equal(grid.counts(np.stack([inside, -inside], 1))[1, :140], 1.0)


# ------------------------------------------------------------------------------------------ the ranges


def distributions():
    draw = np.random.default_rng(1)
    normal = draw.normal(size=4000)
    return {
        "centred": normal,
        "far from zero": 20 + normal,
        "negative": -7 + normal,
        "skewed": np.exp(normal),
        "uniform": draw.uniform(3, 11, 4000),
        "two values": draw.choice([0.0, 5.0], 4000),
        "mostly zero": np.where(draw.random(4000) < 0.9, 0.0, 100 + 10 * normal),
        "half missing": np.where(draw.random(4000) < 0.5, math.nan, 4 + normal),
    }


@pytest.mark.parametrize("per_octave", RESOLUTIONS)
@pytest.mark.parametrize("name", distributions())
def test_a_range_holds_the_bulk_of_a_column_and_little_else(name, per_octave):
    grid, values = Bins(per_octave), distributions()[name]
    (found,) = grid.find_ranges(grid.counts(values[:, None]), len(values), 0.0)
    held = values[~np.isnan(values)]
    assert np.mean(found.excludes(held)) <= 0.01
    spread = np.quantile(held, 0.995) - np.quantile(held, 0.005)
    coarse = np.abs(held).max() * (2 ** (1 / per_octave) - 1)  # a bin cannot be divided
    assert found.high - found.low < 1.5 * spread + 2 * coarse


@pytest.mark.parametrize("name", distributions())
def test_a_range_clips_a_hundredth_and_twenty_deviations_of_the_noise_at_most(name):
    grid, values, draw = Bins(8), distributions()[name], np.random.default_rng(6)
    counts, sigma = grid.counts(values[:, None]), len(values) / 2000
    held = values[~np.isnan(values)]
    for _ in range(10):
        (found,) = grid.find_ranges(counts + sigma * draw.normal(size=counts.shape), len(values), sigma)
        assert np.sum(found.excludes(held)) < 0.01 * len(held) + 20 * sigma


@pytest.mark.parametrize("name", distributions())
def test_without_privacy_a_range_holds_every_value(name):
    grid, values = Bins(8), distributions()[name]
    (found,) = grid.holding_ranges(grid.counts(values[:, None]))
    assert not found.excludes(values).any()
    assert found.high - found.low <= 2 ** (1 / 8) * 2 * np.nanmax(np.abs(values))


@pytest.mark.parametrize("own", [Range(-1.0, 4.0), Range(0.0, 1.5), Range(0.3, 2.0)])
def test_the_bound_on_values_outside_of_a_range_holds_for_19_of_20_noises(own):
    """The bins that a range divides count as outside, which only raises the bound."""
    grid, values, draw = Bins(4), distributions()["skewed"], np.random.default_rng(7)
    counts, outside = grid.counts(values[:, None]), own.excludes(values).sum()
    noisy = counts + 5.0 * draw.normal(size=(400, grid.count))
    bounds = grid.outside(noisy, len(values), 5.0, [own] * 400)
    assert np.mean(np.array(bounds) >= outside) > 0.95 - 3 * np.sqrt(0.05 * 0.95 / 400)
    assert grid.outside(counts, len(values), 0.0, [Range(0.0, 64.0)]) == [0]


@pytest.mark.parametrize("name", distributions())
def test_ranges_scale_and_turn_with_the_unit_of_a_column(name):
    """Multiplied by a power of two, or by -1, the values are in other bins of the same form."""
    grid, values = Bins(1), distributions()[name][:, None]
    (found,) = grid.find_ranges(grid.counts(values), len(values), 0.0)
    (larger,) = grid.find_ranges(grid.counts(1024 * values), len(values), 0.0)
    assert larger == Range(1024 * found.low, 1024 * found.high)
    if name != "centred":  # whose two sides are equally likely, so that a tie decides
        (turned,) = grid.find_ranges(grid.counts(-values), len(values), 0.0)
        assert_allclose((turned.low, turned.high), (-found.high, -found.low), rtol=1e-12)


@pytest.mark.parametrize("values", [np.zeros(50), np.full(50, math.nan)])
def test_a_column_without_magnitudes_has_the_range_of_the_unit(values):
    grid = Bins()
    counts = grid.counts(values[:, None])
    assert grid.find_ranges(counts, 50, 0.0) == grid.holding_ranges(counts) == (Range(-1.0, 1.0),)


@pytest.mark.parametrize("sigma", [1e-3, 10.0, 1e4])
def test_ranges_of_nothing_but_noise_are_ranges(sigma):
    draw = np.random.default_rng(5)
    found = Bins().find_ranges(sigma * draw.normal(size=(2000, Bins().count)), 30, sigma)
    assert unpack_ranges(pack_ranges(found), 2000) == found


def test_noise_rarely_hides_a_column():
    """Where the noise is a twentieth of the rows, wrong ranges are rare: 1,000 columns of 1,000 rows each."""
    grid, draw = Bins(), np.random.default_rng(2)
    counts = grid.counts(14 + 3.5 * draw.normal(size=(1000, 1000)))
    found = grid.find_ranges(counts + 50 * draw.normal(size=counts.shape), 1000, 50.0)
    wrong = [not (own.low <= 14 <= own.high and own.high - own.low < 40) for own in found]
    assert sum(wrong) < 20


def test_the_grid_is_finer_where_there_is_less_noise():
    assert [Bins.for_noise(share).per_octave for share in (0.0, 0.017, 0.024, 0.034, 0.05, 9.0)] == [
        8,
        8,
        4,
        2,
        1,
        1,
    ]


def test_ranges_travel_exactly_and_are_validated():
    own = (Range(-0.1, 1e100), Range(1 / 3, 2 / 3))
    assert unpack_ranges(pack_ranges(own), 2) == own
    good = pack_ranges(own)
    for bad in (None, "x", good[:-1], good * 2):
        with pytest.raises(ReplyError, match="a request must carry the ranges of 2 columns"):
            unpack_ranges(bad, 2)
    for low, high in ((1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.inf), (0.0, 2e100), (0.0, 5e-324)):
        with pytest.raises(ReplyError, match="must be finite, each with low < high"):
            unpack_ranges(pack_ranges([own[0], Range(low, high)]), 2)


# ------------------------------------------------------------------------------------------ the schema


def test_a_schema_with_private_ranges():
    schema = parse_schema(SCHEMA)
    assert schema.private == ("area", "share")
    assert [schema.features[place] for place in schema.private_indices] == ["area", "share"]
    assert parse_schema(to_toml(schema)) == schema
    cells = {"area": ["7", ""], "sex": ["f", "m"], "share": ["-3", "0.5"], "age": ["50", "80"]}
    raw = schema.encode(cells)
    assert_array_equal(raw, [[7, 0, 1, 0, -3, 0], [math.nan, 1, 0, 1, 0.5, 1]])
    found = [Range(5.0, 9.0), Range(-1.0, 0.0)]
    rows = Unscaled(schema, raw, raw, lambda features: features)
    closed = schema.with_ranges(found)
    assert closed.private == ()
    assert_array_equal(rows.scaled(found)[0], closed.encode(cells))
    with pytest.raises(DataError, match="column 'share': the value is missing: give"):
        schema.encode(cells | {"share": ["1", "NA"]})


def test_what_a_schema_refuses():
    with pytest.raises(DataError, match="the range of a label must be public"):
        parse_schema('[label]\ncolumn = "y"\nrange = "private"\n[columns]\nx = { range = [0, 1] }')
    with pytest.raises(DataError, match=r"range must be \[low, high\].*got 'unknown'"):
        parse_schema(SCHEMA.replace('"private", missing', '"unknown", missing'))


def test_a_draft_can_leave_the_ranges_of_the_data_out(tmp_path):
    (tmp_path / "site.csv").write_text(table(0, 50))
    own = draft(read_tables([tmp_path / "site.csv"]), "ill", private_ranges=True)
    assert own.private == ("area", "share", "age")
    assert draft(read_tables([tmp_path / "site.csv"]), "ill").private == ()


# ------------------------------------------------------------------------------------------- the plan


def loss_delta(mu, epsilon):
    """delta of mu-GDP by quadrature over the privacy loss, which is N(mu^2 / 2, mu^2)."""
    loss = norm(mu**2 / 2, mu)
    return quad(lambda x: loss.pdf(x) * -math.expm1(epsilon - x), epsilon, mu**2 / 2 + 12 * mu, epsabs=1e-12)[
        0
    ]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"data.range-share": 0.5},
        {"local.batch-size": 30, "local.max-steps": 7},
        {"clients.per-round": 2},
        {"algorithm": "ldp-primal-dual", "objective.l2": 0.1},
        {"algorithm": "ldp-primal-dual", "objective.l2": 0.1, "privacy.conversion": "zcdp"},
        {"privacy.epsilon": 0.0, "privacy.noise-multiplier": 4.0},
        {"privacy.protects": "group", "privacy.group-size": 3},
        {"privacy.protects": "site", "privacy.epsilon": 1000.0},
    ],
)
def test_counts_and_rounds_together_cost_what_the_plan_says(sites, keys):
    """From the sensitivities and the noise that is really used, added up release by release."""
    setup = prepare(parse(sites | PRIVATE | keys))
    plan, total = setup.plan, np.zeros(3)
    for client in range(3):
        workload = setup.schedule.workload(int(setup.partition.sizes[client]))
        moved = sensitivity(2, workload.replaced)
        counts = (moved / setup.first.sigma(client)) ** 2
        for round_ in range(1, setup.config.rounds + 1):
            if client in setup.config.asked(round_):
                release = setup.algorithm.release(plan.bounds, workload, round_)
                sigma = plan.multipliers[client] * release.spread
                total[client] += release.affected_releases * (release.sensitivity / sigma) ** 2
        total[client] += counts
        assert counts / total[client] == pytest.approx(setup.config.data.range_share)
        assert plan.least_multiplier(client) <= setup.first.sigma(client) / moved * (1 + 1e-12)
    assert_allclose(plan.mu, np.sqrt(total), rtol=1e-12)
    asked = [(round_, setup.config.asked(round_)) for round_ in range(1, setup.config.rounds + 1)]
    assert_allclose(plan.so_far(asked).mu, plan.mu, rtol=1e-12)
    mu = math.sqrt(total.max())
    assert loss_delta(mu, plan.epsilon_limit) == pytest.approx(1e-4, rel=1e-6)
    if not keys.keys() & {"privacy.epsilon", "privacy.conversion"}:
        assert plan.epsilon_limit == pytest.approx(8.0)


def test_what_has_no_private_ranges_costs_what_it_did(sites, tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA.replace('"private"', "[0, 1]"))
    one, other = (prepare(parse(sites | PRIVATE | {"data.range-share": own})) for own in (0.2, 0.7))
    assert one.plan.multipliers.tolist() == other.plan.multipliers.tolist()
    assert not one.plan.releases.of_kind(COUNTS)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"privacy.mode": "gradient", "algorithm": "isrl-dp", "trust": "sum", "honest-sites": 2},
            "trust = sum and",
        ),
        ({"privacy.mode": "as-published"}, "as-published have no plan for the counts"),
        (
            {"algorithm": "dp-nfl", "topology.name": "ring"},
            "no place for private ranges: give the schema's columns public ranges, or",
        ),
        ({"data.range-share": 1.0}, "data.range-share must be from 0.001 to 0.999; got 1"),
    ],
)
def test_runs_that_cannot_account_for_counts_are_refused(sites, change, sentence):
    with pytest.raises(SettingError, match=sentence):
        prepare(parse(sites | PRIVATE | change))


def test_rows_that_are_held_out_of_training_need_public_ranges(sites):
    with pytest.raises(
        SettingError, match="evaluation.held-out must be 0 with a schema that has private ranges"
    ):
        prepare(parse(sites | {"evaluation.held-out": 0.2}))
    with pytest.raises(SettingError, match="tuning on held-out rows needs a schema with public ranges"):
        held_out(prepare(parse(sites | PRIVATE)), 0.2)


def test_the_plan_shows_the_counts(sites):
    setup = prepare(parse(sites | PRIVATE))
    told = dict(forecast(setup))
    assert told["private ranges"].startswith("of 2 columns, for 0.2 of the budget; a total count of 530 rows")
    assert "the counts before round 1 included, are 1.841-GDP" in told["guarantee"]
    assert noise_rows(setup)[0][:2] == ("counts for ranges", "0")
    assert not [text for key, text in outlook(setup) if "private ranges" in text]
    noisy = prepare(parse(sites | PRIVATE | {"privacy.epsilon": 0.1}))
    assert "many ranges will be wrong" in dict(outlook(noisy))["warning"]


# ------------------------------------------------------------------------------------------- the audit


def adversaries(schema, rows=40):
    """Two tables that differ in one record, whose every number is far from the others."""
    draw = np.random.default_rng(3)
    cells = {
        "area": [*np.exp(draw.normal(7, 0.5, rows - 1)), 1e90],
        "sex": [*draw.choice(["f", "m"], rows - 1), "f"],
        "share": [*draw.normal(0.1, 0.02, rows - 1), -1e90],
        "age": [*draw.uniform(20, 80, rows - 1), 20],
    }
    other = {name: own.copy() for name, own in cells.items()}
    for name, value in (("area", -1e90), ("sex", "m"), ("share", 1e90), ("age", 80)):
        other[name][-1] = value
    return [
        schema.encode({name: np.array(own, dtype=object) for name, own in t.items()}) for t in (cells, other)
    ]


def audited(sites, choose):
    """The moves of a private client's rounds; choose(raw) gives the ranges of the rows of either table."""
    setup = prepare(parse(sites | PRIVATE))
    finish, schema = setup.dataset.unscaled.finish, setup.dataset.unscaled.schema
    raws = adversaries(schema)
    labels = np.arange(len(raws[0])) % 2
    batches = [Batch(Unscaled(schema, raw, raw, finish).scaled(choose(raw))[0], labels) for raw in raws]
    draw, start = (
        np.random.default_rng(4),
        setup.algorithm.init_server(setup.start, 3, np.array(0, np.uint64)),
    )
    inbox = setup.algorithm.broadcast(start, 1, np.array(0))
    inboxes = [
        inbox._replace(**{n: 3 * draw.normal(size=a.shape) for n, a in inbox._asdict().items()})
        for _ in range(4)
    ]
    bounds = setup.objective.bounds(setup.config.data.row_norm)
    return replay(setup.algorithm, setup.objective, *batches, LocalSchedule(0, 2), bounds, inboxes)


@pytest.mark.parametrize("width", [1e-6, 1.0, 1e4])
def test_with_released_ranges_a_record_moves_a_round_by_its_sensitivity_at_most(sites, width):
    """Whatever the ranges are: a server chooses them, and the same for both tables."""
    given = [Range(-width, 2 * width), Range(0.0, width)]
    for move in audited(sites, lambda raw: given):
        assert move.agrees
        assert move.moved <= move.sensitivity * (1 + 1e-12)


def test_ranges_from_the_data_without_noise_are_caught(sites):
    def exact(raw):
        values = raw[:, parse_schema(SCHEMA).private_indices]
        return [
            Range(float(low), float(high)) for low, high in zip(values.min(0), values.max(0), strict=True)
        ]

    assert any(move.moved > 2 * move.sensitivity for move in audited(sites, exact))


def test_the_noise_of_the_counts_is_as_large_as_planned(sites):
    """Chi-square at 5e-10, pooled over the counts of all clients."""
    setup = prepare(parse(sites | PRIVATE))
    released = []
    for client in range(3):
        counts = setup.first.counts_of(client)
        guard = guard_of(setup, client, Free(), "run")
        noisy = guard.open(counts.release, 0, "run")(counts.counts())
        released.append((noisy - counts.parts[0].counts()) / setup.first.sigma(client))
    squares, size = float(np.sum(np.square(released))), np.size(released)
    assert abs(squares - size) < 6.2 * math.sqrt(2 * size)


class Free:
    """A ledger that notes every charge."""

    def __init__(self):
        self.noted = []

    def charge(self, charge, budget):
        assert budget.fits(charge.cost)
        self.noted.append(charge)


# ------------------------------------------------------------------------------------------ the runs


@pytest.mark.parametrize("privacy", [{}, PRIVATE])
def test_messages_and_arrays_agree_to_the_bit(sites, privacy):
    setup = prepare(parse(sites | privacy))
    own = cohort.train([setup])[0]
    for train in (inprocess.train, over_the_wire):
        other = train(setup)
        assert other.setup.ranges == own.setup.ranges
        assert_allclose(other.model, own.model, rtol=1e-9, atol=1e-12)
    assert own.rows[-1]["test_accuracy"] > 0.7
    assert own.summary()["private_ranges"].keys() == {"area", "share"}


def test_every_seed_has_ranges_of_its_own(sites):
    config = parse(sites | PRIVATE)
    setups = [prepare(replace(config, seed=seed)) for seed in (0, 1)]
    together = cohort.train(setups)
    assert together[0].setup.ranges != together[1].setup.ranges
    for setup, result in zip(setups, together, strict=True):
        assert_array_equal(cohort.train([setup])[0].model, result.model)


def test_a_model_predicts_with_the_ranges_of_its_run(sites, tmp_path):
    result = inprocess.train(prepare(parse(sites | PRIVATE)))
    write_run(result, tmp_path / "run")
    model = twinflower.load(tmp_path / "run")
    assert model.inputs.schema.private == ()
    assert model.score(tmp_path / "test.csv") == result.rows[-1]["test_accuracy"]
    pipeline = model.to_sklearn()
    assert pipeline is not None


@pytest.mark.parametrize("privacy", [{}, PRIVATE])
def test_a_run_that_was_cut_off_keeps_its_ranges(sites, tmp_path, privacy):
    setup = prepare(parse(sites | privacy | {"output.checkpoint-every": 2, "rounds": 5}))
    whole = setup.with_state_dir(tmp_path / "whole")
    expected = inprocess.train(whole, checkpoints=Checkpoints(tmp_path / "whole", 2))
    for number, after in ((5, True), (10, False)):
        folder = tmp_path / f"{number}"
        mine = setup.with_state_dir(folder)
        assert cut_off(mine, folder, number, after, 2)
        result = inprocess.train(mine, checkpoints=Checkpoints(folder, 2))
        equal(result, expected)
        assert result.setup.ranges == expected.setup.ranges


class Deaf(InProcessGrid):
    """A grid on which some nodes never answer a request for counts."""

    deaf = ()

    def send_and_receive(self, messages, *, timeout=None):
        heard = [m for m in messages if m.metadata.dst_node_id not in self.deaf or m.metadata.group_id != "0"]
        return super().send_and_receive(heard, timeout=timeout)


def test_who_sends_no_counts_is_left_out(sites, monkeypatch):
    setup = prepare(parse(sites | PRIVATE))
    monkeypatch.setattr(Deaf, "deaf", (2,))
    result = run_strategy(setup, Deaf(setup), "inprocess")
    assert not result.failure
    counts = np.stack([setup.first._noisy(client) for client in (0, 2)])
    expected = setup.first.queries[0].ranges(counts, np.array([0, 2]))
    assert [own for _, own in result.setup.ranges] == list(expected)
    monkeypatch.setattr(Deaf, "deaf", (1, 2, 3))
    assert (
        "0 clients sent counts before round 1, and 1 are needed"
        in run_strategy(setup, Deaf(setup), "inprocess").failure
    )


def first_client(setup):
    return client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}))


def test_requests_that_a_client_with_private_ranges_refuses(sites):
    setup = prepare(parse(sites | PRIVATE))
    client = first_client(setup)
    with pytest.raises(ReplyError, match="a request must carry the ranges of 2 columns"):
        client.fit([setup.start], {"round": 1})
    first = client.fit([], {"round": 0})
    again = client.fit([], {"round": 0})
    assert_array_equal(first[0], again[0])
    good = {"round": 1, "ranges": pack_ranges([Range(0.0, 1.0), Range(0.0, 1.0)])}
    client.fit([setup.start], good)
    with pytest.raises(ReplyError, match="round 0 is asked after it was settled"):
        client.fit([], {"round": 0})
    assert [charge.round for charge in client.guard.ledger.charges()] == [0, 1]


def test_a_run_without_private_ranges_counts_nothing(sites, tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA.replace('"private"', "[0, 1]"))
    with pytest.raises(ReplyError, match="a whole number from 1; got 0"):
        first_client(prepare(parse(sites | PRIVATE))).fit([], {"round": 0})


# ------------------------------------------------------------------------------------------ deployment


class Nodes(InProcessGrid):
    """Every node goes through the app's own client_fn with a node config of its own."""

    def __init__(self, setup, nodes):
        super().__init__(setup)
        self.nodes = nodes

    def client(self, node):
        if node not in self._clients:
            context = self.context(node)
            context.node_config |= self.nodes[node - 1]
            context.run_config = run_config(self.setup.config.items())
            self._clients[node] = client_app.client_fn(context).numpy_client
        return self._clients[node]


def test_nodes_with_tables_of_their_own_agree_on_the_same_ranges(sites):
    setup = prepare(parse(sites))
    config, nodes = at_sites(setup)
    deployed = prepare(config)
    result = run_strategy(deployed, Nodes(deployed, nodes), "inprocess")
    own = inprocess.train(setup)
    assert result.setup.ranges == own.setup.ranges
    assert_array_equal(result.model, own.model)


def test_a_site_charges_its_counts_to_its_ledger(sites, tmp_path):
    setup = prepare(parse(sites | PRIVATE))
    config, nodes = at_sites(setup)
    deployed = prepare(config)
    policy = [{"lifetime-epsilon": 8.01, "state-dir": str(tmp_path / f"{number}")} for number in range(3)]
    result = run_strategy(
        deployed, Nodes(deployed, [own | node for own, node in zip(policy, nodes, strict=True)]), "deployment"
    )
    assert not result.failure
    assert result.rows[-1]["test_accuracy"] > 0.7
    site = read_site({"partition-id": 0, "num-partitions": 3} | policy[0] | nodes[0])
    guard = client_app.site_guard(setup, site, "2")
    charges = guard.ledger.charges()
    assert [charge.round for charge in charges] == list(range(11))
    assert charges[0].sensitivity == sensitivity(2)
    assert charges[0].cost / sum(charge.cost for charge in charges) == pytest.approx(0.2)
    assert sum(charge.cost for charge in charges) == pytest.approx(setup.plan.mu_limit**2)
    with pytest.raises(BudgetSpent, match="it does not begin, and nothing is spent"):
        guard.open(setup.first.release(0), 0, "2")


@pytest.mark.deployment
def test_real_nodes_agree_on_ranges(sites, tmp_path):
    """Without privacy the ranges and the model of the in-process run, to the bit; with privacy every node charges its
    counts to its ledger as round 0, and the ranges hold most values: .88 and .91 of them, with a deviation of .02 and
    .03, over 200 seeds in one process."""
    exact, private = (prepare(parse(sites | {"rounds": 2} | keys)) for keys in ({}, PRIVATE))
    own = inprocess.train(exact)
    for setup, name in ((exact, "open"), (private, "private")):
        config, nodes = at_sites(setup)
        policy = {"lifetime-epsilon": 8.01} if setup.plan else {}
        with deployment() as running:
            for number, node in enumerate(nodes):
                state = {"state-dir": str(tmp_path / f"{name}-{number}")}
                running.start_node(number, 3, node | policy | state)
            running.run(config, tmp_path / name)
    assert_array_equal(np.load(tmp_path / "open" / "model.npz")["x"], own.model)
    told, known = (
        json.loads((tmp_path / name / "summary.json").read_text())["private_ranges"]
        for name in ("private", "open")
    )
    assert known == own.summary()["private_ranges"]
    tables = [csv.DictReader(path.open()) for path in tmp_path.glob("site-*.csv")]
    rows = [row for table in tables for row in table]
    for column, (low, high) in known.items():
        values = np.array([float(row[column]) for row in rows if row[column]])
        assert low <= values.min() and values.max() <= high
        assert 0.75 < np.mean((values >= told[column][0]) & (values <= told[column][1])) < 1
    for number in range(3):
        (book,) = (read_ledger(path) for path in (tmp_path / f"private-{number}").glob("*.ledger"))
        assert [charge.round for charge in book.charges] == [0, 1, 2]
        assert book.charges[0].sensitivity == sensitivity(2)
        assert sum(charge.cost for charge in book.charges) == pytest.approx(private.plan.mu_limit**2)


def test_a_site_s_policy_covers_its_counts(sites, tmp_path):
    """With nearly all of the budget for the counts, these have less noise than any round."""
    setup = prepare(parse(sites | PRIVATE | {"data.range-share": 0.9}))
    least = setup.first.sigma(0) / sensitivity(2)
    assert setup.plan.least_multiplier(0) == pytest.approx(least)
    node = {"partition-id": 0, "num-partitions": 3, "lifetime-epsilon": 9.0, "state-dir": str(tmp_path)}
    client_app.site_guard(setup, read_site(node | {"min-noise-multiplier": 0.99 * least}), "1")
    with pytest.raises(SettingError, match="this site's policy needs a noise-multiplier of at least"):
        client_app.site_guard(setup, read_site(node | {"min-noise-multiplier": 1.01 * least}), "1")


# ------------------------------------------------------------------------------------------ accuracy


def cancer(folder, sites):
    """scikit-learn's breast-cancer table, whose columns have scales from 1e-3 to 1e3, as files of some sites."""
    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.target))
    names = [name.replace(" ", "_") for name in data.feature_names]

    def write(name, rows):
        lines = [",".join([*names, "tumour"])]
        lines += [
            ",".join([*map(repr, map(float, data.data[i])), data.target_names[data.target[i]]]) for i in rows
        ]
        (folder / name).write_text("\n".join(lines) + "\n")

    for number, rows in enumerate(np.array_split(order[114:], sites)):
        write(f"cancer-{number}.csv", rows)
    write("test.csv", order[:114])
    schema = '[label]\ncolumn = "tumour"\nclasses = ["malignant", "benign"]\n[columns]\n'
    (folder / "cancer.toml").write_text(
        schema + "".join(f'{name} = {{ range = "private" }}\n' for name in names)
    )
    return {
        "data.name": "tables", "data.files": str(folder / "cancer-*.csv"), "data.schema": str(folder / "cancer.toml"),
        "data.test-file": str(folder / "test.csv"), "objective.name": "logistic", "regulariser.name": "none",
        "evaluation.every": 30,
    }  # fmt: skip


def test_private_ranges_are_as_good_as_standardised_columns_at_the_same_epsilon(tmp_path):
    config = parse(cancer(tmp_path, 4) | PRIVATE)
    setups = [prepare(replace(config, seed=seed)) for seed in range(10)]
    private = np.mean([cohort.train([own])[0].rows[-1]["test_accuracy"] for own in setups])
    unguarded = np.mean([standardised(own) for own in setups])
    raw = np.mean([standardised(own, scale=False) for own in setups])
    assert private > unguarded - 0.02
    assert raw < unguarded - 0.1


def standardised(setup, scale=True):
    """The accuracy of the same run with columns scaled by mean and deviation, and the whole budget for its rounds."""
    rows = setup.dataset.unscaled
    centre, spread = rows.rows.mean(0), rows.rows.std(0)
    parts = [(own - centre) / spread if scale else own for own in (rows.rows, rows.test_rows)]
    data = replace(
        setup.dataset, unscaled=None, features=rows.finish(parts[0]), test_features=rows.finish(parts[1])
    )
    whole = replace(
        setup.plan, multipliers=setup.plan.multipliers * math.sqrt(1 - setup.config.data.range_share)
    )
    return cohort.train([replace(setup, dataset=data, plan=whole)])[0].rows[-1]["test_accuracy"]


def test_counts_must_name_their_session():
    expect_session({"session": "mine"}, "mine")
    for metrics in ({}, {"session": "yours"}):
        with pytest.raises(ReplyError, match="the reply belongs to another run"):
            expect_session(metrics, "mine")
