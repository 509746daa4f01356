"""Table 1: what the rows of the sites are like, exact, withheld by a site's policy, and with noise."""

import csv
import json
import math
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from cuts import cut_off
from grids import Deployed, over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from pages import command
from problems import query
from site_files import three_sites

from twinflower.data.columns import Range
from twinflower.errors import SettingError
from twinflower.models.differences import with_differences
from twinflower.models.summaries import Layout, Summaries, Variable
from twinflower.queries.first import COUNTS_ROUND
from twinflower.queries.table_one import TableOneAnswers
from twinflower.simulation.report.present import report_run
from twinflower.simulation.report.sections.table_one import rounded
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.client_factory import guard_of
from twinflower.simulation.runs.forecast import forecast
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.strategies.messages import properties_request

SCHEMA = """
[label]
column = "ill"
classes = ["no", "yes"]
[columns]
age = { range = [20, 90] }
crp = { range = [0, 50], missing = "zero" }
dose = { range = [0, 8], missing = "indicator" }
stage = { categories = ["I", "II", "III"], missing = "zero" }
arm = { categories = ["drug", "placebo"] }
"""
SIZES = (150, 200, 250)
BIN = {"age": 70 / 200, "crp": 50 / 200, "dose": 8 / 200}
KEYS = {
    "algorithm": "fedavg", "fedavg.step-size": 1.0, "local.max-steps": 1, "rounds": 2, "objective.name": "logistic",
    "data.row-scaling": "all", "evaluation.table-one": True,
}  # fmt: skip
PRIVATE = {"algorithm": "fedpdm", "fedavg.step-size": None, "local.max-steps": None, "fedpdm.step-size": 0.1}
PRIVATE |= {"privacy.mode": "public-state", "privacy.epsilon": 8.0}


def patients(seed, rows):
    draw = np.random.default_rng(seed)
    gone = draw.random((3, rows)) < 0.1
    frame = pd.DataFrame(
        {
            "age": np.clip(draw.normal(60, 12, rows), 20, 90).round(1),
            "crp": np.where(gone[0], np.nan, np.minimum(draw.exponential(8, rows), 50).round(2)),
            "dose": np.where(gone[1], np.nan, draw.uniform(0, 8, rows).round(3)),
            "stage": np.where(gone[2], "NA", draw.choice(["I", "II", "III"], rows, p=[0.6, 0.3, 0.1])),
            "arm": draw.choice(["drug", "placebo"], rows),
            "ill": draw.choice(["no", "yes"], rows),
        }
    )
    return frame.to_csv(index=False)


@pytest.fixture
def keys(tmp_path):
    return three_sites(tmp_path, SCHEMA, patients, (*SIZES, 50)) | KEYS


def run(keys, **changes):
    keys = keys | {key.replace("_", "-"): value for key, value in changes.items()}
    return prepare(parse({key: value for key, value in keys.items() if value is not None}))


def tables(folder):
    """The pooled rows and those of every site, by the name of the client."""
    found = {str(site): pd.read_csv(folder / f"site-{site}.csv") for site in range(len(SIZES))}
    return {"all": pd.concat(found.values())} | found


def lines(folder):
    """The lines of a run's table by client, group, column and category, all but texts as numbers."""
    with (folder / "table-one.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    texts = ("client", "site", "group", "column", "category")
    places = {tuple(row[key] for key in ("client", "group", "column", "category")): row for row in rows}
    return {
        place: {key: float(value) for key, value in row.items() if key not in texts}
        for place, row in places.items()
    }


# ------------------------------------------------------------------------------------- without noise


@pytest.mark.parametrize("by", ["", "arm", "stage", "ill"])
def test_the_table_is_that_of_pandas(by, keys, tmp_path):
    folder = write_run(inprocess.train(run(keys, **{"evaluation.table-one-by": by})), tmp_path / "run")
    found = lines(folder)
    for client, whole in tables(tmp_path).items():
        groups = {"all": whole}
        if by:
            groups |= dict(iter(whole.fillna({by: "missing"}).groupby(by)))
        for group, frame in groups.items():
            check(found, (client, group), frame.drop(columns=by or []))
    assert len({client for client, *_ in found}) == 4


def check(found, place, frame):
    assert found[*place, "", ""]["rows"] == len(frame)
    for name, column in frame.items():
        if name in BIN:
            own = found[*place, name, ""]
            assert own["rows"] == column.count()
            assert_allclose([own["mean"], own["deviation"]], [column.mean(), column.std()], rtol=1e-9)
            assert_allclose(
                [own["lower_quartile"], own["median"], own["upper_quartile"]], column.quantile([0.25, 0.5, 0.75]),
                rtol=0, atol=2 * BIN[name] + 3 * (column.max() - column.min()) / len(column),
            )  # fmt: skip
        else:
            shares = column.value_counts(normalize=True)
            for category, count in column.value_counts().items():
                own = found[*place, name, category]
                assert own["rows"] == own["most_rows"] == count
                assert own["percent"] == pytest.approx(100 * shares[category])
        if (*place, name, "missing") in found:
            assert found[*place, name, "missing"]["rows"] == column.isna().sum()


def test_quartiles_are_interpolated_within_the_bin_that_holds_them():
    """Equal numbers in one bin give that bin, whatever is empty below it; a gap gives its middle."""
    layout = Layout((Variable("a", range=Range(0.0, 10.0), bins=10),))

    def quartiles(values):
        scaled = (np.array(values)[:, None] - 5) / 5
        _, line = Summaries.of(layout, layout.counted(scaled, np.zeros(len(values))), len(values)).lines()
        return line.lower_quartile, line.median, line.upper_quartile

    assert quartiles([4.5] * 8) == pytest.approx((4.25, 4.5, 4.75))
    assert quartiles([1.5] * 4 + [8.5] * 4) == pytest.approx((1.5, 5.0, 8.5))
    values = np.random.default_rng(0).uniform(0, 10, 100_000)
    assert_allclose(quartiles(values), np.quantile(values, [0.25, 0.5, 0.75]), atol=0.1)


def test_quartiles_have_the_digits_that_a_bin_supports():
    for value, error, text in (
        (54.234, 0.35, "54.2"),
        (137.52, 1.75, "138"),
        (12345.6, 160, "12300"),
        (0.8125, 0.04, "0.81"),
    ):
        assert rounded(value, error) == text
        assert abs(float(text) - value) <= error / 2
    assert rounded(137.52, 0) == "137.5"


@pytest.mark.parametrize("by", ["arm", "stage"])
def test_standardised_differences_are_those_of_the_pooled_rows(by, keys, tmp_path):
    """Numbers by their means and deviations, two categories by their shares, more by Mahalanobis's distance."""
    folder = write_run(inprocess.train(run(keys, **{"evaluation.table-one-by": by})), tmp_path / "run")
    found, whole = lines(folder), tables(tmp_path)["all"].dropna(subset=[by])
    pairs = list(combinations([group for _, group in whole.groupby(by)], 2))
    for name in {"age", "crp", "dose"}:
        known = [
            abs(a[name].mean() - b[name].mean()) / np.sqrt((a[name].var() + b[name].var()) / 2)
            for a, b in pairs
        ]
        assert found["all", "all", name, ""]["difference"] == pytest.approx(max(known), rel=1e-8)
    first, second = ({"drug", "placebo"}, "arm") if by == "stage" else ({"I", "II", "III"}, "stage")
    known = []
    for pair in pairs:
        p, q = (group[second].value_counts(normalize=True)[sorted(first)[1:]].to_numpy() for group in pair)
        spread = sum(np.diag(r) - np.outer(r, r) for r in (p, q)) / 2
        known.append(np.sqrt((p - q) @ np.linalg.solve(spread, p - q)))
    for category in first:
        assert found["all", "all", second, category]["difference"] == pytest.approx(max(known), rel=1e-8)
    assert np.isnan(found["all", whole[by].iloc[0], "age", ""]["difference"])
    assert command("table-one", folder) == 0


def test_groups_without_a_common_category_have_no_standardised_difference():
    """The covariance has no inverse in the direction of the difference, which is infinite and not 0."""
    for shared, unknown in ((False, True), (True, False)):
        layout = Layout((Variable("sex", ("m", "f")),), Variable("arm", ("a", "b")))
        sexes, arms = np.repeat([0.0, 1.0], 50), np.repeat([0.0, 1.0], 50)
        sexes[-1] = 0.0 if shared else 1.0
        counted = Summaries.of(layout, layout.counted(sexes[:, None], arms), 100)
        (line, *_) = [line for line in with_differences(counted) if line.group == "all" and line.column]
        assert math.isnan(line.difference) == unknown


def noisy_tables(layout, exact, rows, sigma, draws):
    """What a function of a place (group, column, category) and a field finds in so many noisy tables, (draws,)."""
    draw = np.random.default_rng(1)
    tables = [
        with_differences(Summaries.of(layout, exact + draw.normal(0, sigma, len(exact)), rows, sigma))
        for _ in range(draws)
    ]
    places = {(line.group, line.column, line.category): at for at, line in enumerate(tables[0])}
    return lambda name, *place: np.array([getattr(table[places[place]], name) for table in tables])


def test_the_stated_noise_of_means_and_deviations_and_their_differences_is_their_spread():
    """With a mean near the end of its range, where the noise in the number of rows matters."""
    rows, sigma, draws = 4000, 0.3, 700
    layout = Layout((Variable("a", range=Range(0.0, 10.0), bins=5),), Variable("arm", ("s", "t")))
    arm, values = (np.arange(rows) % 3 == 0).astype(float), np.random.default_rng(0).normal(0.9, 0.1, rows)
    exact = layout.counted(np.clip(values, -1, 1)[:, None], arm)
    drawn = noisy_tables(layout, exact, rows, sigma, draws)
    for group, name in product(("all", "s", "t"), ("mean", "deviation")):
        stated = drawn(f"{name}_noise", group, "a", "").mean()
        assert drawn(name, group, "a", "").std() == pytest.approx(stated, rel=4 / np.sqrt(2 * draws))
    apart = drawn("mean", "s", "a", "") - drawn("mean", "t", "a", "")
    spread = np.sqrt((drawn("deviation", "s", "a", "") ** 2 + drawn("deviation", "t", "a", "") ** 2) / 2)
    stated = (drawn("difference_noise", "all", "a", "") * spread).mean()
    assert apart.std() == pytest.approx(stated, rel=4 / np.sqrt(2 * draws))
    alone = np.sqrt(sum(drawn("mean_noise", group, "a", "").mean() ** 2 for group in ("s", "t")))
    assert stated > 1.1 * alone  # the noise in the rows of the groups is shared


def test_the_stated_noise_of_the_difference_of_two_categories_is_its_spread():
    """Where nothing else differs, the mean square; one category is called like missing values, which there are not."""
    rows, sigma, draws = 33 * 120, 1.0, 3000
    layout = Layout((Variable("b", ("x", "missing")),), Variable("arm", ("s", "t")))
    arm, b = (np.arange(rows) % 3 == 0).astype(float), (np.arange(rows) // 3 % 40 == 0).astype(float)
    drawn = noisy_tables(layout, layout.counted(b[:, None], arm), rows, sigma, draws)
    squares = drawn("difference", "all", "b", "missing") ** 2
    stated = (drawn("difference_noise", "all", "b", "missing") ** 2).mean()
    assert squares.mean() == pytest.approx(stated, abs=4 * squares.std() / np.sqrt(draws))


def test_the_noise_of_a_difference_is_its_spread():
    """Over 400 draws: the deviation of a number's difference, and the mean square of one that is only noise."""
    draw, sigma, rows = np.random.default_rng(0), 8.0, 4000
    layout = Layout(
        (Variable("a", range=Range(-1.0, 1.0), bins=10), Variable("b", ("x", "y", "z"), may_miss=True)),
        Variable("arm", ("drug", "placebo")),
    )
    arm = np.arange(rows) % 2
    values = np.column_stack([np.clip(draw.normal(0.1 * arm, 0.3), -1, 1), np.arange(rows) // 2 % 4])
    exact = layout.counted(np.where(values == 3, np.nan, values), arm.astype(float))
    found = []
    for _ in range(400):
        noisy = Summaries.of(layout, exact + draw.normal(0, sigma, len(exact)), rows, sigma)
        found.append([line for line in with_differences(noisy) if line.group == "all" and line.column])
    number, category = (np.array([[f[k].difference, f[k].difference_noise] for f in found]) for k in (0, 1))
    assert number[:, 0].std() == pytest.approx(number[:, 1].mean(), rel=4 / np.sqrt(2 * 400))
    squares = category[:, 0] ** 2
    assert squares.mean() == pytest.approx((category[:, 1] ** 2).mean(), abs=4 * squares.std() / 20)


def test_times_and_counts_are_described_too(tmp_path):
    schema = (
        '[label]\ncolumn = "days"\nevent = "died"\ntimes = [1, 3000]\n[columns]\nage = { range = [20, 80] }\n'
    )

    def persons(seed, rows):
        draw = np.random.default_rng(seed)
        columns = draw.integers(20, 81, rows), draw.integers(1, 3000, rows), draw.integers(0, 2, rows)
        return pd.DataFrame(np.column_stack(columns), columns=["age", "days", "died"]).to_csv(index=False)

    keys = three_sites(tmp_path, schema, persons, (*SIZES, 50)) | KEYS
    keys |= {
        "objective.name": "discrete-cox",
        "objective.intervals": "3 x 1000",
        "evaluation.table-one-by": "died",
    }
    found, whole = lines(write_run(inprocess.train(run(keys)), tmp_path / "run")), tables(tmp_path)["all"]
    for group, event in (("censored", 0), ("event", 1)):
        own = whole[whole.died == event]
        assert found["all", group, "", ""]["rows"] == len(own)
        assert found["all", group, "days", ""]["mean"] == pytest.approx(own.days.mean())


# ------------------------------------------------------------------------------------------ the runs


@pytest.mark.parametrize("changes", [{}, PRIVATE])
def test_messages_and_arrays_find_the_same(changes, keys, tmp_path):
    setup = run(keys | changes)
    (arrays,) = cohort.train([setup])
    for train in (inprocess.train, over_the_wire):
        assert train(setup).setup.answers["table_one"] == arrays.setup.answers["table_one"]
    found = arrays.setup.answers["table_one"]
    assert TableOneAnswers.restored(json.loads(json.dumps(TableOneAnswers.stored(found)))) == found


def test_a_run_that_was_cut_off_keeps_its_table(keys, tmp_path):
    setup = run(keys | {"output.checkpoint-every": 1, "rounds": 3})
    expected = inprocess.train(setup).setup.answers["table_one"]
    mine = setup.with_state_dir(tmp_path / "state")
    assert cut_off(mine, tmp_path / "state", 7, True, 1)
    found = inprocess.train(mine, checkpoints=Checkpoints(tmp_path / "state", 1))
    assert found.setup.answers["table_one"] == expected


@pytest.mark.parametrize("changes", [{}, {"evaluation.table-one-by": "arm"}, PRIVATE])
def test_the_report_and_the_command_show_it(changes, keys, tmp_path, capsys):
    folder = write_run(inprocess.train(run(keys | changes)), tmp_path / "run")
    assert command("table-one", folder) == 0
    shown, page = capsys.readouterr().out, report_run(folder).read_text(encoding="utf-8")
    for text in ("stage: II", "dose, missing", "mean (standard deviation), median [quartiles]"):
        assert text in shown and text in page
    whole = tables(tmp_path)["all"]
    mean = f"{whole.age.mean():.4g} ({whole.age.std():.4g})"
    assert (mean in page) == (mean in shown) == ("privacy.mode" not in changes)
    assert ("has noise of up to" in page) == ("privacy.mode" in changes)
    bare = write_run(inprocess.train(run(keys | {"evaluation.table-one": False})), tmp_path / "bare")
    assert command("table-one", bare) == 2
    assert "has no Table 1: train with evaluation.table-one = true" in capsys.readouterr().err
    assert "Table 1" not in report_run(bare).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"evaluation.table-one": False, "evaluation.table-one-by": "arm"},
            "table-one-by needs evaluation.table-one",
        ),
        ({"evaluation.table-one-by": "age"}, r"a column of categories \(ill, stage, arm\); got 'age'"),
        ({"data.row-scaling": "each"}, "table-one needs rows that are not divided by their own norms"),
        (PRIVATE | {"privacy.table-one-share": 1.0}, "table-one-share must be from 0.001 to 0.999"),
        (
            PRIVATE | {"privacy.tune-share": 0.1},
            "share and Table 1 share no budget, .* 0, or set evaluation.table-one to false$",
        ),
    ],
)
def test_what_is_refused(changes, sentence, keys):
    with pytest.raises(SettingError, match=sentence):
        run(keys | changes)


def test_a_private_range_is_refused(keys, tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA.replace("[0, 50]", '"private"'))
    with pytest.raises(SettingError, match="table-one needs public ranges: give column 'crp' one"):
        run(keys)


@pytest.mark.parametrize(
    ("column", "categories", "by", "name"),
    [
        ('["I", "II", "III"]', '{ I = ["I"], II = ["II"], missing = ["III"] }', "", "missing"),
        ('["I", "II", "III"]', '{ I = ["I"], II = ["II"], missing = ["III"] }', "stage", "missing"),
        ('["drug", "placebo"]', '{ all = ["drug"], placebo = ["placebo"] }', "arm", "all"),
        ('["no", "yes"]', '{ no = ["no"], all = ["yes"] }', "ill", "all"),
    ],
)
def test_a_category_with_the_name_of_other_rows_is_refused(column, categories, by, name, keys, tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA.replace(column, categories))
    with pytest.raises(
        SettingError, match=f"evaluation.table-one cannot count category '{name}' of .*rename it"
    ):
        run(keys, **{"evaluation.table-one-by": by})


@pytest.mark.parametrize("by", ["", "arm"])
def test_the_report_says_how_many_sites_it_leaves_out(by, tmp_path):
    keys = three_sites(tmp_path, SCHEMA, patients, (*[30] * 11, 50)) | KEYS
    folder = write_run(inprocess.train(run(keys, **{"evaluation.table-one-by": by})), tmp_path / "run")
    page = report_run(folder).read_text(encoding="utf-8")
    assert "8 of 11 sites; the others are in table-one.csv" in page
    last, left_out = ("Table 1 at site-6" in page, "Table 1 at site-7" in page)  # after site-10, by name
    assert last == bool(by) and not left_out


# ---------------------------------------------------------------------------------- a site's policy

SOME = Layout(
    (
        Variable("a", range=Range(0.0, 1.0), bins=20, may_miss=True),
        Variable("b", ("x", "y", "z"), may_miss=True),
        Variable("c", range=Range(0.0, 1.0), bins=7),
    ),
    Variable("by", ("u", "v", "w"), may_miss=True),
)


def drawn(draw, rows):
    """Values and groups of rows, of which some cells are empty, small and large."""
    groups = draw.choice([0.0, 1.0, 2.0, np.nan], rows, p=draw.dirichlet(np.ones(4) / 2))
    a, c = draw.beta(0.3, 0.3, (2, rows)) * 2 - 1
    gone = draw.random(rows) < draw.choice([0.0, 0.05, 0.9])
    b = draw.choice([0.0, 1.0, 2.0, np.nan], rows, p=draw.dirichlet(np.ones(4) / 2))
    return np.column_stack([np.where(gone, np.nan, a), b, c]), groups


@pytest.mark.parametrize("least", [2, 5, 10])
def test_no_count_of_fewer_rows_leaves_a_site_and_none_follows_from_the_others(least):
    draw, withheld = np.random.default_rng(least), 0
    for _ in range(400):
        rows = int(draw.integers(least, 60))
        values, groups = drawn(draw, rows)
        sent = SOME.counted(values, groups, least)
        sizes, blocks = sent[:4], sent[4:].reshape(4, SOME.block)
        exact = SOME.counted(values, groups)
        for own, known in [(sizes, exact[:4]), *((block[23:27], None) for block in blocks)]:
            hidden = own < 0
            withheld += hidden.sum()
            assert ((own >= least) | (own == 0) | hidden).all()
            assert len(set(own[hidden])) <= 1
            if known is not None and hidden.any():  # two or more cells, whose sum is no small cell
                assert known[hidden].sum() >= least
                assert (known[hidden] > 0).sum() >= min(2, (known > 0).sum())
            if known is not None:
                assert_array_equal(own[~hidden], known[~hidden])
        for size, block in zip(sizes, blocks, strict=True):
            a, missing, c = block[:20], block[20], block[27:34]
            assert missing >= least or missing <= 0
            for bins in (a, c):
                assert bins.sum() == 0 or bins.sum() >= least - 1e-9
                full = np.flatnonzero(bins)
                runs = (
                    np.split(bins[full], np.flatnonzero(~np.isclose(np.diff(bins[full]), 0)) + 1)
                    if len(full)
                    else []
                )
                assert all(part.sum() >= least - 1e-9 for part in runs)
            if size < 0:
                assert not a.any() and not c.any() and not block[[21, 22, 34, 35]].any()
            elif missing < 0 and a.any():  # as many missing or left out as the site says
                assert missing == -least and a.sum() == pytest.approx(size - least)
    assert withheld > 400


def test_what_is_withheld_is_within_the_limits_that_are_shown():
    draw = np.random.default_rng(1)
    for _ in range(100):
        sites = [drawn(draw, 40) for _ in range(3)]
        shown, known = (
            Summaries.together([Summaries.of(SOME, SOME.counted(*own, least), 40) for own in sites])
            for least in (5, 1)
        )
        for line, truth in zip(shown.lines(), known.lines(), strict=True):
            assert line.rows <= truth.rows <= line.most_rows


def test_a_mean_says_on_how_many_rows_it_rests():
    """Without the groups that are withheld, also among all rows."""
    layout = Layout(
        (
            Variable("a", range=Range(-1.0, 1.0), bins=10, may_miss=True),
            Variable("b", range=Range(-1.0, 1.0), bins=10),
        ),
        Variable("by", ("u", "v", "w")),
    )
    groups = np.repeat([0.0, 1.0, 2.0], [150, 47, 3])
    sent = layout.counted(np.column_stack([groups / 2, groups / 2]), groups, 5)
    found = {(own.group, own.column, own.category): own for own in Summaries.of(layout, sent, 200).lines()}
    assert found["all", "", ""][3:5] == (200, 200)
    for name in "ab":
        assert found["all", name, ""][3:5] == (150, 200) and found["all", name, ""].mean == 0
        assert found["u", name, ""][3:5] == (150, 150) and found["v", name, ""][3:5] == (0, 50)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (
            {"table-rows": None},
            "describes no rows for evaluation.table-one: its node config has no table-rows",
        ),
        ({"table-rows": 151}, "it needs 151 rows, and the run has 150"),
        ({"table-rows": 1, "table-cell": 151}, "it needs 151 rows"),
        ({"table-rows": 150, "table-cell": 5}, ""),
    ],
)
def test_a_site_decides_whether_it_describes_its_rows(policy, why, keys):
    config, nodes = at_sites(run(keys))
    configs = [{key: value for key, value in (own | policy).items() if value is not None} for own in nodes]
    reply = Deployed(config.items(), *configs).answer(properties_request(1))
    assert (why in str(reply.error.reason)) if why else not reply.has_error()


def test_deployed_sites_withhold_by_their_own_policy(keys, tmp_path):
    """One that allows everything sends what it would send in a simulation."""
    setup = run(keys, **{"evaluation.table-one-by": "stage"})
    config, nodes = at_sites(setup)
    nodes = [own | {"table-rows": 1, "table-cell": cell} for own, cell in zip(nodes, (1, 1, 25), strict=True)]
    result = run_strategy(prepare(config), Deployed(config.items(), *nodes), "inprocess")
    deployed = result.setup.answers["table_one"]
    known = inprocess.train(setup).setup.answers["table_one"]
    assert [deployed[site] == known[site] for site in range(3)] == [True, True, False]
    assert min(deployed[2].counts) < 0
    folder = write_run(result, tmp_path / "run")
    ages = lines(folder)["all", "all", "age", ""]
    assert ages["rows"] < ages["most_rows"] == 600
    assert f"({ages['deviation']:.4g}); n = {ages['rows']:.0f}" in report_run(folder).read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_deployed_sites_describe_the_rows_that_they_train_on(held_out, keys):
    """With the missing values of these rows, also if others are held out."""
    setup = run(keys, **{"evaluation.held-out": held_out})
    config, nodes = at_sites(setup)
    nodes = [own | {"table-rows": 1, "table-cell": 1, "score-rows": 1} for own in nodes]
    deployed = run_strategy(prepare(config), Deployed(config.items(), *nodes), "inprocess")
    assert deployed.setup.answers["table_one"] == inprocess.train(setup).setup.answers["table_one"]


# ----------------------------------------------------------------------------------------- with noise


def test_replacing_a_row_moves_the_entries_by_their_sensitivity_at_most():
    """Which is attained, within a group and between two."""
    draw, most = np.random.default_rng(0), math.sqrt(SOME.squared_move)
    extremes = [-1.0, 1.0, np.nan, 0.0]
    values, groups = drawn(draw, 30)
    before, moves = SOME.counted(values, groups), []
    for _ in range(300):
        rows, own = values.copy(), groups.copy()
        rows[0] = draw.choice(extremes), draw.choice([0.0, 2.0, np.nan]), draw.choice(extremes[:2])
        own[0] = draw.choice([0.0, 1.0, np.nan])
        moves.append(SOME.counted(rows, own) - before)
    steps = [np.linalg.norm(one - other) for one in moves for other in moves]
    assert max(steps) == pytest.approx(most)


def test_a_number_moves_by_the_root_of_six_within_a_group_and_between_two():
    layout = Layout(SOME.variables[:1], SOME.by)
    ends = [(x, group) for x in np.append(np.linspace(-1, 1, 81), np.nan) for group in (0.0, 1.0)]
    sent = np.array([layout.counted(np.array([[x]]), np.array([group])) for x, group in ends])
    moved = ((sent[:, None] - sent[None]) ** 2).sum(-1)
    same = np.equal.outer(*([group for _, group in ends],) * 2)
    assert moved[same].max() == pytest.approx(6) and moved[~same].max() == pytest.approx(8)
    assert layout.squared_move == 8


@pytest.mark.parametrize("changes", [{}, {"privacy.protects": "group", "privacy.group-size": 3}])
def test_the_entries_attain_their_charge_and_never_exceed_it(changes, keys):
    """Replay: the worst move of the entries over the noise that a client adds is what its ledger is charged."""
    setup = run(keys | PRIVATE | {"evaluation.table-one-by": "arm"} | changes)
    part, replaced = setup.first.counts_of(0).parts[0], setup.config.privacy.unit.rows
    ledger = Noted()
    release = setup.first.release(0)
    noise = guard_of(setup, 0, ledger, "run").open(release, COUNTS_ROUND, "run")
    (charge,) = ledger.noted
    assert charge.cost == pytest.approx(0.1 * setup.plan.mu_limit**2)
    numeric, moves, sent = [not own.categories for own in part.layout.variables], [], []
    for end, arm in ((1.0, 0), (-1.0, 1), (np.nan, 0), (-1.0, 0), (0.3, 1)):
        values, groups = part.values.copy(), part.groups.copy()
        values[:replaced] = np.where(numeric, end, float(end != 1.0))
        groups[:replaced] = arm
        sent.append(part.layout.counted(values, groups))
    moves = [np.linalg.norm(one - other) / charge.sigma for one in sent for other in sent]
    assert 0.99 * charge.cost <= max(moves) ** 2 <= charge.cost * (1 + 1e-12)
    assert noise(np.zeros(40_000)).std() == pytest.approx(charge.sigma, rel=5 / math.sqrt(80_000))


class Noted:
    """A ledger that notes every charge."""

    def __init__(self):
        self.noted = []

    def charge(self, charge, budget):
        assert budget.fits(charge.cost)
        self.noted.append(charge)


def test_the_noise_in_a_mean_is_what_is_said(keys):
    """Over many draws of the noise, the deviation of the mean of a column is that of its line."""
    setup = run(keys | PRIVATE)
    asked, draw = query(setup, "table_one"), np.random.default_rng(0)
    exact, sigma = asked.part(2).counts(), 3.0
    noisy = [
        Summaries.of(asked.layout, exact + sigma * draw.normal(size=exact.shape), SIZES[2], sigma)
        for _ in range(400)
    ]
    ages = [next(line for line in own.lines() if line.column == "age") for own in noisy]
    assert np.std([line.mean for line in ages]) == pytest.approx(ages[0].mean_noise, rel=5 / math.sqrt(800))
    (truth,) = (line for line in Summaries.of(asked.layout, exact, SIZES[2]).lines() if line.column == "age")
    assert np.mean([line.mean for line in ages]) == pytest.approx(truth.mean, abs=5 * ages[0].mean_noise / 20)


@pytest.mark.parametrize("by", [SOME.by, None])
def test_the_noise_of_every_line_is_what_is_said(by):
    """Over 1,000 draws, those of counts and means; the means are far from 0, where noise in their divisor counts."""
    draw, rows, sigma = np.random.default_rng(0), 8000, 3.0
    values, groups = drawn(draw, rows)
    values[:, [0, 2]], groups = 0.8 + values[:, [0, 2]] / 10, draw.integers(0, 4, rows).astype(float)
    layout = Layout(SOME.variables, by)
    exact = layout.counted(values, groups if by else np.zeros(rows))
    found = [
        list(Summaries.of(layout, exact + sigma * draw.normal(size=exact.shape), rows, sigma).lines())
        for _ in range(1000)
    ]
    for place, line in enumerate(found[0]):
        said = np.mean([[own[place].noise, own[place].mean_noise] for own in found], axis=0)
        seen = np.std([[own[place].rows, own[place].mean] for own in found], axis=0)
        assert_allclose(seen, said, rtol=5 / math.sqrt(2000), atol=1e-9)
        assert (line.group, *line[1:3]) != ("all", "", "") or said[0] == 0
    assert any(np.isfinite(line.mean_noise) for line in found[0])


def test_a_percentage_that_is_noise_is_not_shown():
    """In a group of 5 rows, of which a draw can leave one category with nearly all."""
    draw, sigma = np.random.default_rng(0), 90.0
    layout = Layout((Variable("sex", ("f", "m")),), Variable("by", ("few", "many")))
    exact = layout.counted(np.zeros((2005, 1)), np.repeat([0.0, 1.0], [5, 2000]))
    for _ in range(300):
        sent = exact + sigma * draw.normal(size=exact.shape)
        percents = [line for line in Summaries.of(layout, sent, 2005, sigma).lines() if line.category]
        assert all(math.isnan(line.percent) == (line.group == "few") for line in percents)


@pytest.mark.parametrize(
    ("percent", "shown"), [("-1.4", "-3 (-1.4%)"), ("104.5", "-3 (104.5%)"), ("nan", "-3 (-)")]
)
def test_the_report_shows_percentages_as_they_are(percent, shown, keys, tmp_path):
    folder = write_run(inprocess.train(run(keys | PRIVATE)), tmp_path / "run")
    rows = list(csv.DictReader((folder / "table-one.csv").read_text(encoding="utf-8").splitlines()))
    changed = {"rows": "-3.2", "most_rows": "-3.2", "percent": percent}
    with (folder / "table-one.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(row | changed if row["category"] == "II" else row for row in rows)
    assert shown in report_run(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("damage", ["client,site,group\n0,,all\n", "{}0,,all,,,many,1\n"])
def test_a_damaged_table_is_an_error_that_names_the_file(damage, keys, tmp_path, capsys):
    folder = write_run(inprocess.train(run(keys)), tmp_path / "run")
    path = folder / "table-one.csv"
    path.write_text(damage.format(path.read_text(encoding="utf-8").splitlines()[0] + "\n"))
    assert command("table-one", folder) == 2
    assert "table-one.csv is not the Table 1 of a run" in capsys.readouterr().err


def test_what_noise_hides_is_not_shown():
    draw = np.random.default_rng(0)
    values, groups = drawn(draw, 100)
    sent = SOME.counted(values, groups)
    for sigma in (1e-3, 1.0, 30.0, 1e4):
        found = Summaries.of(SOME, sent + sigma * draw.normal(size=sent.shape), 100, sigma)
        numbers = [line for line in found.lines() if line.column in ("a", "c") and not line.category]
        assert not all(np.isnan(line.mean) for line in numbers) or sigma >= 30
        assert all(0 <= line.median <= 1 or np.isnan(line.median) for line in numbers)
    assert all(np.isnan([line.mean, line.median]).all() for line in numbers)


def test_a_private_run_says_beforehand_what_it_releases(keys):
    told = dict(forecast(run(keys | PRIVATE)))
    assert told["Table 1"].startswith(
        "of 6 columns, for 0.1 of the budget; a total count of 600 rows has noise of"
    )
    assert "the counts before round 1 included" in told["guarantee"]


def test_the_noise_foretold_is_that_of_all_groups(keys, tmp_path):
    setup = run(keys | PRIVATE, **{"evaluation.table-one-by": "arm"})
    noise = setup.first.total_sigma * math.sqrt(2)
    assert dict(forecast(setup))["Table 1"].endswith(f"noise of {noise:.4g}")
    found = lines(write_run(inprocess.train(setup), tmp_path / "run"))
    assert max(own["noise"] for own in found.values()) == pytest.approx(
        noise * math.sqrt(40 / 41)
    )  # 40 of 41 bins
