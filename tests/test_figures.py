"""Facts about figures: scales, bounds, colours, legends, bands, and what is written on them."""

import colorsys
import csv
import itertools
import json

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from PIL import Image
from problems import small
from scipy.stats import ttest_1samp

from twinflower.algorithms import ALGORITHMS
from twinflower.errors import SettingError
from twinflower.simulation.report import figures, plot_style
from twinflower.simulation.report.dots import interval
from twinflower.simulation.report.figures import compose_experiment, compose_run, draw_experiment
from twinflower.simulation.report.labels import words
from twinflower.simulation.report.plot_style import COLOURS, marked, styles
from twinflower.simulation.report.series import by_round, runs_of, series, spread
from twinflower.simulation.results.folder import run_folder
from twinflower.simulation.results.reading import SUMMARY_KEYS
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse
from twinflower.simulation.settings.columns import COLUMNS, EXTRA_COLUMNS
from twinflower.simulation.settings.experiment import experiment_text, read_experiment
from twinflower.simulation.settings.reader import to_tables


def hue(colour):
    """The hue of a colour in [0, 1), the same for all its shades."""
    return colorsys.rgb_to_hsv(*to_rgb(colour))[0]


def write_rows(folder, rounds, /, finished=True, **columns):
    """A run folder with these columns, each of len(rounds) values."""
    folder.mkdir(parents=True)
    columns = {"round": rounds, **columns}
    full = {name: columns.get(name, np.ones(len(rounds))) for name in {*COLUMNS, *columns}}
    with (folder / "metrics.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(full)
        table.writerows(zip(*full.values(), strict=True))
    if finished:
        (folder / "model.npz").touch()


def plan_of(tmp_path, text):
    (tmp_path / "plan.toml").write_text(text)
    return read_experiment(tmp_path / "plan.toml")


def drawn(tmp_path, text, value=lambda curve, seed: np.array([1.0, 0.5, 0.25]), rounds=(0, 10, 20)):
    """The figure of an experiment whose columns y (and x) all have the values value(curve, seed)."""
    plan, out = plan_of(tmp_path, text), tmp_path / "out"
    for nth, curve in enumerate(plan.curves):
        for seed in plan.seeds:
            values = value(nth, seed)
            own = dict.fromkeys({plan.x, *plan.y} - {"round"}, values)
            write_rows(run_folder(plan, out, curve, seed), list(rounds)[: len(values)], **own)
    return compose_experiment(plan, out)


def experiment(algorithms, head="seeds = [0, 1]", run="", panels=("",), keys=""):
    """An experiment with a curve of each algorithm in each panel."""
    curves = [
        f'[[curve]]\nlabel = "{name} {nth}"\npanel = "{panel}"\nalgorithm = "{name}"\n{keys}'
        for panel in panels
        for nth, name in enumerate(algorithms)
    ]
    return f'{head}\n[run]\nregulariser.name = "none"\nrounds = 20\n{run}\n' + "\n".join(curves)


@pytest.mark.parametrize("nothing", [0.0, np.nan])
def test_a_log_axis_without_a_positive_value_is_linear(tmp_path, nothing):
    """As with only the star, which has no error of its nodes."""
    text = experiment(["fedavg"], 'seeds = [0]\ny = ["distance"]\nlog-axes = ["distance"]')
    figure = drawn(tmp_path, text, lambda curve, seed: np.full(3, nothing))
    figure.savefig(tmp_path / "figure.png")
    assert [ax.get_yscale() for ax in figure.axes] == ["linear"]


def legends(figure):
    return [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]


def texts(figure):
    return [text.get_text() for legend in legends(figure) for text in legend.get_texts()]


def horizontal(ax):
    """Heights of the lines across the whole of a panel."""
    return [line.get_ydata()[0] for line in ax.lines if list(line.get_xdata()) == [0, 1]]


def vertical(ax):
    return [line.get_xdata()[0] for line in ax.lines if list(line.get_ydata()) == [0, 1]]


def curves_of(ax):
    return [line for line in ax.lines if len(line.get_xdata()) > 2]


@pytest.mark.parametrize(
    ("head", "scales"),
    [
        ('y = ["node_error", "test_accuracy"]', ["linear log", "linear linear"]),
        ('y = ["objective"]\nlog-axes = ["objective"]', ["linear log"]),
        ('y = ["distance"]\nlog-axes = []', ["linear linear"]),
        ('x = "uplink_bits"\ny = ["optimality"]\nlog-axes = ["uplink_bits"]', ["log linear"]),
    ],
)
def test_errors_and_named_columns_have_log_axes(tmp_path, head, scales):
    figure = drawn(tmp_path, experiment(["fedavg"], "seeds = [0, 1]\n" + head))
    assert [f"{ax.get_xscale()} {ax.get_yscale()}" for ax in figure.axes] == scales


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ('["cost"]', "log-axes must be among x and y, here round, excess; got 'cost'"),
        ('["excess"]', "log-axes: 'excess' can be negative and has no logarithm"),
        ('"excess"', "y and log-axes lists of columns"),
        ("[[1]]", r"log-axes must be among x and y, here round, excess; got '\[1\]'"),
    ],
)
def test_log_axes_are_checked(tmp_path, axes, sentence):
    with pytest.raises(SettingError, match=sentence):
        plan_of(tmp_path, experiment(["ssca"], f'y = ["excess"]\nlog-axes = {axes}'))


@pytest.mark.parametrize("axes", ['["objective", "round"]', "[]"])
def test_log_axes_are_stored_with_the_results(tmp_path, axes):
    plan = plan_of(tmp_path, experiment(["fedavg"], f'y = ["distance", "objective"]\nlog-axes = {axes}'))
    (tmp_path / "again.toml").write_text(experiment_text(plan))
    assert read_experiment(tmp_path / "again.toml").log_axes == plan.log_axes == json.loads(axes)


def test_a_gap_is_the_objective_above_the_lowest_of_the_panel_under_the_same_seed(tmp_path):
    """Seed 1 has another division of the rows, and so another optimum."""
    plan = plan_of(
        tmp_path, experiment(["fedavg", "fedprox"], 'seeds = [0, 1]\ny = ["gap"]', panels=("A", "B"))
    )
    lows = [[0.5, 2.0], [0.2, 2.5], [7.0, 7.0], [7.0, 7.0]]  # of the curves, under seed 0 and 1
    for curve, low in zip(plan.curves, lows, strict=True):
        for seed in plan.seeds:
            write_rows(
                run_folder(plan, tmp_path, curve, seed),
                [0, 10, 20],
                objective=np.array([9, 0, 1]) + low[seed],
            )
    one, other = (
        series(plan, runs_of(plan, tmp_path, [c for c in plan.curves if c.panel == panel]), "gap")
        for panel in "AB"
    )
    np.testing.assert_allclose(one[0].centre, [9.15, 0.15, 1.15])
    np.testing.assert_allclose(one[1].centre, [9.25, 0.25, 1.25])
    np.testing.assert_allclose(other[0].centre, [9, 0, 1])
    assert plan.log_axes == ["gap"]
    axes = compose_experiment(plan, tmp_path).axes[1]
    assert "above the lowest" in axes.get_ylabel()
    assert axes.get_yscale() == "log"
    for curve, zero in zip(curves_of(axes), axes.texts, strict=True):  # 0 has no place on a log axis
        np.testing.assert_allclose(curve.get_ydata(), [9, 0, 1])
        assert (zero.get_text(), zero.xy) == ("0", (10, 0))


def test_the_name_of_a_line_that_ends_at_zero_stands_at_the_bottom_of_a_log_axis(tmp_path):
    methods = ["fedavg", "fedprox", "scaffold", "feddyn", "isrl-dp", "fedpdm"]
    text = experiment(methods, 'seeds = [0]\ny = ["distance"]\nlog-axes = ["distance"]')
    axes = drawn(tmp_path, text, lambda nth, _: np.array([1.0, 0.5, 0.25 * nth])).axes[0]
    heights = {label.get_text(): label.xyann[1] for label in axes.texts}
    assert min(heights, key=heights.get) == "fedavg 0" and heights["fedavg 0"] == 0


def test_a_band_that_ends_at_zero_reaches_the_bottom_of_a_log_axis(tmp_path):
    """Without the lower end, matplotlib would join the points on either side of it."""
    values = np.array([[4.0, 0.0, 2.0], [4.0, 3.0, 2.0], [4.0, 9.0, 2.0]])
    text = experiment(["fedavg"], 'seeds = [0, 1, 2]\ny = ["consensus"]')
    ax = drawn(tmp_path, text, lambda _, seed: values[seed]).axes[0]
    (band,) = ax.collections[0].get_paths()
    assert {(x, y) for x, y in band.vertices if x == 10} >= {(10.0, 1.0)}
    assert band.vertices[:, 1].min() == 1.0


def test_narrow_log_axes_have_plain_numbers(tmp_path):
    figure = drawn(tmp_path, experiment(["ssca"], 'y = ["squared_norm"]\nlog-axes = ["squared_norm"]'))
    ticks = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert {"0.2", "0.5", "1"} <= set(ticks)


@pytest.mark.parametrize(("low", "high"), [(0.8, 2.3), (0.84, 1.1), (1.1, 2.4), (0.4, 3.0), (0.55, 0.7)])
def test_a_log_axis_over_less_than_a_decade_has_at_least_three_numbers(tmp_path, low, high):
    head = 'seeds = [0]\ny = ["objective"]\nlog-axes = ["objective"]'
    figure = drawn(tmp_path, experiment(["fedavg"], head), lambda *_: np.array([high, low, low]))
    figure.canvas.draw()
    ax = figure.axes[0]
    bottom, top = ax.get_ylim()
    shown = [t for t in ax.get_yticklabels() if t.get_text() and bottom <= t.get_position()[1] <= top]
    assert len(shown) >= 3


def test_a_value_of_zero_leaves_a_gap_on_a_log_axis(tmp_path):
    figure = drawn(tmp_path, experiment(["fedavg"], 'y = ["consensus"]'), lambda *_: np.array([0, 0.5, 0.1]))
    low, high = figure.axes[0].get_ylim()
    assert 0.05 < low < 0.1 < 0.5 < high < 1


def test_constrained_runs_have_a_line_at_every_bound(tmp_path):
    head = 'seeds = [0, 1]\ny = ["cost", "objective", "excess", "test_accuracy"]'
    keys = 'ssca-constrained.constraints = "cost <= 0.4, class 3 <= 0.9"'
    figure = drawn(tmp_path, experiment(["ssca-constrained"], head, keys=keys))
    assert [horizontal(ax) for ax in figure.axes] == [[0.4], [0.4], [0.0], []]
    assert texts(figure) == ["ssca-constrained 0", "bound U = 0.4", "bound"]


def test_unconstrained_runs_have_none(tmp_path):
    figure = drawn(tmp_path, experiment(["ssca"], 'y = ["cost", "objective"]'))
    assert [horizontal(ax) for ax in figure.axes] == [[], []]


def test_bounds_on_the_horizontal_axis_are_vertical_lines(tmp_path):
    keys = 'sweep = {constraints = ["cost <= 0.7", "cost <= 0.3"]}'
    head = 'seeds = [0, 1]\nx = "cost"\ny = ["squared_norm"]\nends = true'
    figure = drawn(tmp_path, experiment(["ssca-constrained"], head, keys=keys))
    assert vertical(figure.axes[0]) == [0.3, 0.7]
    assert texts(figure) == ["ssca-constrained 0", "bound U = 0.3, 0.7"]


def write_single(folder, **keys):
    write_rows(folder, [0, 1, 2], cost=[0.9, 0.6, 0.5], excess=[0.4, 0.1, 0.0])
    (folder / "config.toml").write_text(to_tables({"regulariser.name": "none", "seed": 7, **keys}))
    told = dict.fromkeys(SUMMARY_KEYS, 1)
    told |= {
        "algorithm": keys["algorithm"],
        "dataset": "digits",
        "seed": 7,
        "finished": True,
        "privacy.mode": None,
    }
    (folder / "summary.json").write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("constraints", "label", "height"),
    [
        ("cost <= 0.5", "training cost (mean loss)", 0.5),
        ("class 1 <= 0.5", "largest cost above its bound", 0),
    ],
)
def test_the_figure_of_one_constrained_run(tmp_path, constraints, label, height):
    write_single(
        tmp_path / "run", **{"algorithm": "ssca-constrained", "ssca-constrained.constraints": constraints}
    )
    figure = compose_run(tmp_path / "run")
    assert figure.axes[-1].get_ylabel() == label
    assert horizontal(figure.axes[-1]) == [height]
    assert figure.get_suptitle() == "ssca-constrained on digits, one seed (7)"


def test_a_run_has_its_methods_colour(tmp_path):
    write_single(tmp_path / "run", algorithm="scaffold")
    axes = compose_run(tmp_path / "run").axes
    assert [len(axes), {curves_of(ax)[0].get_color() for ax in axes}] == [3, {to_rgb(COLOURS["scaffold"])}]


def test_every_method_has_a_colour_of_its_own():
    hues = sorted((hue(colour), name) for name, colour in COLOURS.items())
    gaps = list(itertools.pairwise([*hues, (hues[0][0] + 1, hues[0][1])]))
    _, middle = max((b - a, (a + b) / 2 % 1) for (a, _), (b, _) in gaps)
    free = f"{to_hex(colorsys.hls_to_rgb(middle, 0.4, 0.6))} is far from all others"
    missing = ALGORITHMS.keys() - COLOURS.keys()
    assert not missing, f"give {', '.join(missing)} a colour in simulation/report/plot_style.py: {free}"
    assert COLOURS.keys() <= ALGORITHMS.keys()
    for (a, one), (b, other) in gaps:
        assert b - a > 0.02, f"{one} and {other} are less than a fiftieth of the colour circle apart; {free}"


def test_a_method_has_the_same_colour_in_every_figure(tmp_path):
    """Alone in one figure, fourth of five in another, and one of two in a third."""
    others = ["fedavg", "fedprox", "feddyn"]
    figures = [["scaffold"], [*others, "scaffold", "isrl-dp"], ["scaffold", "fedpdm", "scaffold"]]
    seen = []
    for number, names in enumerate(figures):
        (tmp_path / str(number)).mkdir()
        ax = drawn(tmp_path / str(number), experiment(names)).axes[0]
        seen += [line.get_color() for line in curves_of(ax) if line.get_label().startswith("scaffold")]
    assert len(seen) == 4
    assert seen[0] == seen[1] == to_rgb(COLOURS["scaffold"])
    np.testing.assert_allclose([hue(colour) for colour in seen], hue(COLOURS["scaffold"]), atol=1e-9)


def test_curves_of_one_method_differ_in_shade_line_and_marker():
    looks = styles(["fedpdm"] * 8)
    assert len({look["color"] for look in looks}) == len({look["marker"] for look in looks}) == 8
    assert all(a["linestyle"] != b["linestyle"] for a, b in itertools.pairwise(looks))
    np.testing.assert_allclose([hue(look["color"]) for look in looks], hue(COLOURS["fedpdm"]), atol=1e-9)


def test_a_curve_below_an_equal_one_shows_at_its_edges_and_by_its_markers(tmp_path):
    values, rounds = np.linspace(1, 0.5, 21), range(21)
    figure = drawn(tmp_path, experiment(["fedpdm", "fedavg", "fedprox"]), lambda *_: values, rounds)
    lines = curves_of(figure.axes[0])
    assert lines[0].get_linewidth() > lines[1].get_linewidth() > lines[2].get_linewidth()
    markers = [set(line.get_markevery()) for line in lines]
    for nth, own in enumerate(markers):
        assert own - set().union(*markers[:nth], *markers[nth + 1 :])


@pytest.mark.parametrize("points", [1, 2, 7, 8, 9, 100, 101])
@pytest.mark.parametrize("total", [1, 3, 10])
def test_every_curve_has_a_marker(points, total):
    for nth in range(total):
        found = marked(np.arange(float(points)), nth, total)
        assert 1 <= len(found) <= 8
        assert set(found) <= set(range(points))


def test_markers_spread_over_the_axis_where_early_rounds_are_dense():
    rounds = np.array([*range(101), *range(200, 1001, 100)], dtype=float)
    assert max(np.diff(rounds[marked(rounds, 0, 1)])) <= 200


MANY = list(ALGORITHMS)[:8]
LAYOUTS = {
    "one panel": experiment(["fedpdm"]),
    "many curves": experiment(MANY[:5], 'seeds = [0, 1]\ny = ["objective"]'),
    "panels alike": experiment(MANY[:5], panels=("A", "B", "C")),
    "panels that differ": experiment(MANY[:5], panels=("A",))
    + '\n[[curve]]\npanel = "B"\nlabel = "a long name of a curve that has a panel to itself, with all of its settings"',
    "three panels that differ": experiment(MANY[:5], panels=("A",))
    + "".join(f'\n[[curve]]\npanel = "{name}"\nlabel = "of {name} only"' for name in "BC"),
    "ends": experiment(
        ["zcdp-nfl", "dp-nfl"], 'seeds = [0, 1]\nx = "rounds"\ny = ["node_error"]\nends = true'
    ),
}


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
def test_no_legend_covers_a_panel(tmp_path, text):
    figure = drawn(tmp_path, text)
    figure.canvas.draw()
    algorithm, shown = figure.bbox, legends(figure)
    assert shown
    for legend in shown:
        box = legend.get_window_extent()
        assert (
            algorithm.x0 <= box.x0 < box.x1 <= algorithm.x1
            and algorithm.y0 <= box.y0 < box.y1 <= algorithm.y1
        )
        for ax in figure.axes:
            parts = [ax.get_window_extent(), ax.xaxis.label.get_window_extent(), ax.title.get_window_extent()]
            assert not any(box.overlaps(part) for part in parts if part.height)


def test_a_long_note_on_bands_stays_inside_a_narrow_figure(tmp_path):
    text = experiment(["fedavg"], 'seeds = [0, 1, 2]\ny = ["distance"]')
    figure = drawn(tmp_path, text, lambda _, seed: np.full(3, SKEWED[seed]))
    figure.canvas.draw()
    (legend,) = legends(figure)
    box = legend.get_window_extent()
    assert "\n" in legend.get_title().get_text()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


@pytest.mark.parametrize(("panels", "rows"), [("AB", 2), ("ABC", 4), ("ABCD", 4), ("ABCDE", 6)])
def test_two_panels_are_side_by_side_and_the_others_below(tmp_path, panels, rows):
    """A figure of four panels in a line cannot be read at the width of a page."""
    figure = drawn(tmp_path, experiment(["fedavg"], 'seeds = [0]\ny = ["cost", "objective"]', panels=panels))
    figure.canvas.draw()
    assert len(figure.axes) == 2 * len(panels)
    boxes = {ax.get_title() or ax.get_ylabel(): ax.get_window_extent() for ax in figure.axes}
    assert [name for name in boxes if len(name) == 1] == list(panels)
    assert boxes["A"].y0 == pytest.approx(boxes["B"].y0)
    assert len({round(ax.get_window_extent().y0) for ax in figure.axes}) == rows
    assert len({round(ax.get_window_extent().x0) for ax in figure.axes}) == 2
    for one, other in itertools.combinations(figure.axes, 2):
        assert not one.get_window_extent().overlaps(other.get_window_extent())


@pytest.mark.parametrize(("largest", "shared"), [(2.0, True), (4.0, False)])
@pytest.mark.parametrize("log", ["[]", '["objective"]'])
def test_panels_of_one_data_set_have_one_scale_unless_one_becomes_too_flat(tmp_path, largest, shared, log):
    text = experiment(["fedavg"], f'seeds = [0]\ny = ["objective"]\nlog-axes = {log}', panels="ABCD")
    text = text.replace('panel = "C"', 'panel = "C"\ndata.name = "adult"')
    top = [1.0, largest, 40.0, 1.0]
    figure = drawn(
        tmp_path,
        text,
        lambda nth, _: np.power(10, (0, 1, top[nth])) if log != "[]" else np.array([0, 1, top[nth]]),
    )
    limits = {ax.get_title(): ax.get_ylim() for ax in figure.axes}
    assert len({limits["A"], limits["B"], limits["D"]}) == (1 if shared else 2)
    assert limits["C"] not in (limits["A"], limits["B"])


def test_a_title_stays_inside_and_no_line_of_it_ends_at_an_equals_sign(tmp_path):
    title = "A figure whose title says at the end of its first line that r = 10, and more in the other"
    figure = drawn(tmp_path, f'title = "{title}"\n' + experiment(["fedavg"]))
    figure.canvas.draw()
    lines, box = figure._suptitle.get_text().splitlines(), figure._suptitle.get_window_extent()
    assert " ".join(" ".join(lines).split()) == title
    assert len(lines) == 2
    assert not any(line.endswith("=") for line in lines)
    assert figure.bbox.x0 < box.x0 < box.x1 < figure.bbox.x1


def test_a_picture_says_what_it_was_drawn_from(tmp_path):
    text = 'title = "T"\n' + experiment(["fedavg", "fedprox"], "seeds = [0]")
    drawn(tmp_path, text)
    plan = plan_of(tmp_path, text)
    with Image.open(draw_experiment(plan, tmp_path / "out")) as picture:
        assert (picture.text["Title"], picture.text["Digest"]) == ("T", plan.digest)
    (tmp_path / "again.toml").write_text(experiment_text(plan))
    same = [read_experiment(tmp_path / "again.toml"), plan_of(tmp_path, text.replace('"T"', '"U"'))]
    same.append(plan_of(tmp_path, text.replace("rounds = 20", "rounds = 20\nseed = 0\ndata.name = 'digits'")))
    assert {one.digest for one in same} == {plan.digest}
    changes = {"seeds = [0]": "seeds = [1]", "rounds = 20": "rounds = 21", "fedprox 1": "renamed"}
    others = [text.replace(*change) for change in changes.items()] + ['centre = "median"\n' + text]
    assert len({plan.digest, *(plan_of(tmp_path, other).digest for other in others)}) == 5


def test_panels_with_the_same_curves_share_a_legend(tmp_path):
    figure = drawn(tmp_path, LAYOUTS["panels alike"])
    assert len(legends(figure)) == 1
    assert len(texts(figure)) == 5


def test_panels_whose_curves_have_other_colours_have_legends_of_their_own(tmp_path):
    text = experiment(["fedavg"], panels=("A", "B")).replace('"fedavg 0"', '"one"')
    other = text[::-1].replace('"fedavg"'[::-1], '"fedprox"'[::-1], 1)[::-1]  # in panel B
    for folder, own, count in (("same", text, 1), ("other", other, 2)):
        (tmp_path / folder).mkdir()
        assert len(legends(drawn(tmp_path / folder, own))) == count


def test_they_share_it_also_where_bands_were_cut_in_one_panel_only(tmp_path):
    """Four legends of their own would not fit below four panels."""
    panels = ("A", "B", "C", "D")
    text = experiment(
        ["fedavg", "fedprox", "scaffold", "feddyn", "isrl-dp"], "seeds = [0, 1, 2]", panels=panels
    )
    text = text.replace("seeds = [0, 1, 2]", 'seeds = [0, 1, 2]\ny = ["distance"]')
    figure = drawn(tmp_path, text, lambda nth, seed: np.full(3, SKEWED[seed] if nth == 19 else 1.0))
    (legend,) = legends(figure)
    assert legend.get_title().get_text().endswith("where they would reach zero")
    assert len(legend.get_texts()) == 5


SKEWED = (0.01, 0.02, 3.0)  # mean 1.01, deviation 1.72


@pytest.mark.parametrize("column", ["distance", "objective", "squared_norm", "test_accuracy"])
def test_bands_and_bars_of_positive_quantities_stay_above_zero(tmp_path, column):
    assert np.mean(SKEWED) - np.std(SKEWED, ddof=1) < 0
    for ends in ("true", "false"):
        (tmp_path / ends).mkdir()
        text = experiment(["ssca"], f'seeds = [0, 1, 2]\ny = ["{column}"]\nends = {ends}')
        figure = drawn(tmp_path / ends, text, lambda _, seed: np.full(3, SKEWED[seed]))
        heights = np.concatenate(
            [p.vertices[:, 1] for c in figure.axes[0].collections for p in c.get_paths()]
        )
        np.testing.assert_allclose([heights.min(), heights.max()], [0.01, 1.01 + np.std(SKEWED, ddof=1)])
        title = " ".join(legends(figure)[0].get_title().get_text().split())
        assert (
            title
            == "mean and standard deviation over 3 seeds, bands end at the lowest seed where they would reach zero"
        )


def test_a_band_ends_where_every_seed_is_zero(tmp_path):
    """A log axis has no place for it: with its two points at 0 the rest of the band would be drawn askew."""
    gaps = np.array([1e-2, 1e-6, 0.0])
    text = experiment(["fedavg"], 'seeds = [0, 1, 2]\ny = ["distance"]\nlog-axes = ["distance"]')
    figure = drawn(tmp_path, text, lambda _, seed: gaps * (1 + seed))
    heights = [p.vertices[:, 1] for c in figure.axes[0].collections for p in c.get_paths()]
    assert heights and all((part > 0).all() for part in heights)


@pytest.mark.parametrize("column", ["excess", "objective"])
def test_the_spread_is_the_standard_deviation(column):
    values = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    mean, deviation = np.array([7 / 3, 5]), np.sqrt([(16 + 1 + 25) / 9 / 2, 0])
    *found, cut = spread(values, column)
    np.testing.assert_allclose(found, [mean, mean - deviation, mean + deviation])
    assert not cut


def test_the_spread_about_a_median_is_the_range_of_the_seeds(tmp_path):
    """Mean and deviation would say 1.01 -+ 1.72, where no seed is."""
    text = experiment(["fedavg"], 'seeds = [0, 1, 2]\ny = ["distance"]\ncentre = "median"')
    figure = drawn(tmp_path, text, lambda _, seed: np.full(3, SKEWED[seed]))
    (band,) = figure.axes[0].collections[0].get_paths()
    assert {*band.vertices[:, 1]} == {0.01, 3.0}
    assert {*curves_of(figure.axes[0])[0].get_ydata()} == {0.02}
    assert legends(figure)[0].get_title().get_text() == "median and range over 3 seeds"


@pytest.mark.parametrize(("centre", "place"), [("median", 0.31), ("mean", 9.61 / 3)])
def test_the_place_of_a_point_has_the_centre_of_its_height(centre, place):
    runs = [[{"round": 1.0, "cost": cost, "objective": 2 * cost}] for cost in (0.3, 0.31, 9.0)]
    line = by_round("a", parse({"rounds": 1}), runs, "cost", "objective", centre)
    np.testing.assert_allclose([*line.x, *line.centre], [place, 2 * place])


def test_an_unknown_centre_is_refused(tmp_path):
    with pytest.raises(SettingError, match="centre must be mean or median; got 'mode'"):
        plan_of(tmp_path, experiment(["fedavg"], 'seeds = [0]\ncentre = "mode"'))


def test_the_spread_of_signed_quantities_is_never_cut():
    mean, low, _, cut = spread(np.array([[SKEWED[0]], [SKEWED[1]], [SKEWED[2]]]), "excess")
    np.testing.assert_allclose(low, np.mean(SKEWED) - np.std(SKEWED, ddof=1))
    assert (mean > 0).all() and not cut


@pytest.mark.parametrize(
    ("seeds", "title"), [("[3]", "one seed"), ("[0, 1, 2]", "mean and standard deviation over 3 seeds")]
)
@pytest.mark.parametrize("ends", ["true", "false"])
def test_the_legend_says_what_bands_mean(tmp_path, seeds, title, ends):
    text = experiment(["fedavg", "fedprox"], f'seeds = {seeds}\ny = ["excess"]\nends = {ends}')
    figure = drawn(tmp_path, text, lambda _, seed: np.full(3, 1.0 + seed))
    assert legends(figure)[0].get_title().get_text() == title
    assert len(figure.axes[0].collections) == (0 if seeds == "[3]" else 2)


def test_curves_that_are_not_whole_say_so(tmp_path):
    plan, out = plan_of(tmp_path, experiment(["fedavg", "fedprox", "scaffold"], "seeds = [0, 1]")), tmp_path
    write_rows(run_folder(plan, out, plan.curves[0], 0), [0, 10, 20])
    for seed, rounds in enumerate([[0, 10, 20], [0, 10]]):
        write_rows(run_folder(plan, out, plan.curves[1], seed), rounds)
    figure = compose_experiment(plan, out)
    assert texts(figure) == [
        "fedavg 0, 1 of 2 seeds",
        "fedprox 1, ends at round 10 of 20",
        "scaffold 2, no result",
    ]


def test_a_panel_names_the_curves_that_have_no_values_in_it(tmp_path):
    text = experiment(
        ["zcdp-nfl", "isrl-dp"], 'seeds = [0, 1]\ny = ["objective", "node_error"]', panels=("A",)
    )
    plan = plan_of(tmp_path, text)
    for nth, curve in enumerate(plan.curves):
        for seed in plan.seeds:
            own = {} if nth else {"node_error": [1, 0.5, 0.2]}
            write_rows(run_folder(plan, tmp_path, curve, seed), [0, 10, 20], **own)
    titles = [ax.get_title() for ax in compose_experiment(plan, tmp_path).axes]
    assert titles == ["A", "not defined for isrl-dp 1"]


def test_end_points_are_of_finished_runs_only(tmp_path):
    head = 'seeds = [0, 1]\nx = "rounds"\ny = ["cost"]\nends = true'
    text = experiment(["ssca", "fedavg"], head, keys="sweep = {rounds = [20, 40]}")
    plan, out = plan_of(tmp_path, text), tmp_path
    write_rows(run_folder(plan, out, plan.curves[0], 0), [0, 20], cost=[1, 2])
    write_rows(run_folder(plan, out, plan.curves[0], 1), [0, 20], cost=[1, 4])
    write_rows(run_folder(plan, out, plan.curves[1], 0), [0, 40], cost=[1, 5])
    write_rows(run_folder(plan, out, plan.curves[1], 1), [0, 10], cost=[1, 9], finished=False)
    figure = compose_experiment(plan, out)
    line, empty = figure.axes[0].containers
    np.testing.assert_allclose(line.lines[0].get_xydata(), [[20, 3], [40, 5]])
    assert len(empty.lines[0].get_xydata()) == 0
    assert texts(figure) == ["ssca 0, 1 of 2 seeds", "fedavg 1, no result"]


def test_a_line_without_a_place_on_the_axis_is_a_level(tmp_path):
    """A run without privacy has no epsilon."""
    text = experiment(["fedpdm"], 'seeds = [0, 1]\nx = "epsilon"\ny = ["test_accuracy"]\nends = true')
    text += '\nprivacy.mode = "public-state"\nlocal.batch-size = 0\nsweep = {epsilon = [1.0, 2.0]}'
    text += '\n[[curve]]\nlabel = "no noise"\nalgorithm = "fedpdm"\n'
    plan = plan_of(tmp_path, text)
    for nth, curve in enumerate(plan.curves):
        for seed in plan.seeds:
            write_rows(run_folder(plan, tmp_path, curve, seed), [0, 20], test_accuracy=[0, (nth + seed) / 4])
    figure = compose_experiment(plan, tmp_path)
    (line,) = figure.axes[0].containers
    np.testing.assert_allclose(line.lines[0].get_xydata(), [[1, 0.125], [2, 0.375]])
    assert horizontal(figure.axes[0]) == [0.625]
    assert texts(figure) == ["fedpdm 0", "no noise"]


def test_axes_are_labelled_in_words_with_units(tmp_path):
    text = experiment(["fedavg"], 'x = "uplink_bits"\ny = ["test_accuracy"]')
    figure = drawn(tmp_path, text, lambda *_: np.array([0.0, 1e7, 2e7]))
    ax = figure.axes[0]
    assert ax.get_xlabel() == "sent by all clients so far"
    assert "20 Mbit" in [tick.get_text() for tick in ax.get_xticklabels()]
    assert ax.get_ylabel() == "test accuracy"


def test_every_column_has_words():
    config = small("fedpdm").config
    assert not [column for column in (*COLUMNS, *EXTRA_COLUMNS) if "_" in words(column, config)]


def test_the_accuracy_of_a_regression_is_called_r_squared():
    assert words(
        "test_accuracy", small("fedavg", objective__name="huber", data__name="diabetes").config
    ).startswith("R^2")


@pytest.mark.parametrize(
    ("early", "every", "evaluated"),
    [(0, 4, [0, 4, 8, 9]), (3, 4, [0, 1, 2, 3, 4, 8, 9]), (1, 100, [0, 1, 9]), (50, 3, list(range(10)))],
)
@pytest.mark.parametrize(
    "run", [inprocess.train, lambda setup: cohort.train([setup])[0]], ids=["inprocess", "cohort"]
)
def test_early_rounds_are_evaluated_and_change_nothing(run, early, every, evaluated):
    setup = small("fedpdm", rounds=9, evaluation__every=every, evaluation__early=early)
    dense, result = run(small("fedpdm", rounds=9)), run(setup)
    assert [row["round"] for row in result.rows] == evaluated
    np.testing.assert_array_equal(result.model, dense.model)
    same = ("round", "objective", "test_accuracy", "nonzeros", "uplink_bits", "downlink_bits", "participants")
    for row in result.rows:
        assert [row[key] for key in same] == [dense.rows[row["round"]][key] for key in same]


@pytest.mark.parametrize("heights", [[0.5] * 8, [0.0, 0.0, 1.0, 1.0], [0.1, 0.5, 0.9]])
def test_names_beside_lines_do_not_touch_and_stay_beside_the_panel(heights):
    placed = np.array(figures._apart(heights))
    assert (
        (np.diff(placed) >= figures._APART - 1e-12).all() and placed.min() >= -1e-12 and placed.max() <= 1.0
    )
    if min(np.diff(heights), default=1.0) > figures._APART:
        assert placed.tolist() == heights


@pytest.mark.parametrize("panels", [("",), ("A", "B")], ids=["one panel", "two"])
@pytest.mark.parametrize(("count", "named"), [(5, 0), (6, 6), (8, 8)])
def test_many_lines_are_named_at_their_ends(tmp_path, panels, count, named):
    """Each once in every panel; up to five have a legend."""
    names = list(COLOURS)[:count]
    figure = drawn(tmp_path, experiment(names, 'seeds = [0]\ny = ["objective"]', panels=panels))
    for ax in figure.axes:
        found = [text.get_text() for text in ax.texts]
        assert sorted(found) == sorted(f"{name} {nth}" for nth, name in enumerate(names))[:named]
    assert len(texts(figure)) == (0 if named else count)


def test_names_stand_beside_the_lines_of_the_first_axes(tmp_path):
    """Where the quantity below ends in another order."""
    names, head = list(COLOURS)[:6], 'seeds = [0]\ny = ["objective", "nonzeros"]'
    plan, out = plan_of(tmp_path, experiment(names, head)), tmp_path / "out"
    for nth, curve in enumerate(plan.curves):
        write_rows(run_folder(plan, out, curve, 0), [0, 20], objective=[9, nth], nonzeros=[1, 6 - nth])
    ax = compose_experiment(plan, out).axes[0]
    heights = {text.get_text(): text.xy[1] for text in ax.texts}
    assert sorted(heights, key=heights.__getitem__) == [curve.label for curve in plan.curves]


def test_where_every_panel_has_a_method_of_its_own_colours_belong_to_the_curves(tmp_path):
    """And one legend explains them, in a free cell if there is one."""
    panels = [
        f'[[curve]]\npanel = "{name}"\nlabel = "{label}"\nalgorithm = "{name}"\nsweep = {{rounds = [20, 40]}}'
        for name in ("fedavg", "scaffold", "fedpdm") for label in ("noise", "sums")
    ]  # fmt: skip
    head = 'seeds = [0, 1]\nx = "rounds"\ny = ["cost"]\nends = true\n[run]\nregulariser.name = "none"\n'
    figure = drawn(tmp_path, head + "\n".join(panels))
    colours = [[bars.lines[0].get_color() for bars in ax.containers] for ax in figure.axes]
    assert colours == [list(plot_style.ROLES[:2])] * 3
    assert texts(figure) == ["noise", "sums"]
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert not any(box.overlaps(ax.get_window_extent()) for ax in figure.axes)


def test_bars_of_equal_lines_stand_beside_each_other(tmp_path):
    head = 'seeds = [0, 1]\nx = "rounds"\ny = ["cost"]\nends = true'
    text = experiment(["fedavg", "fedprox"], head, keys="sweep = {rounds = [20, 40]}")
    figure = drawn(tmp_path, text, lambda nth, seed: np.full(3, 1.0 + seed))
    figure.canvas.draw()
    bars = [container.lines[2][0] for container in figure.axes[0].containers]
    tops = [line.get_transform().transform(line.get_segments()[0][1]) for line in bars]
    assert tops[1][0] - tops[0][0] > 2
    assert all(figure.axes[0].get_window_extent().contains(*top) for top in tops)


def test_a_dot_plot_has_a_line_of_dots_for_every_curve(tmp_path):
    """Of runs that finished, with the mean, and with the scales of other panels of the same data."""
    text = experiment(
        ["fedavg", "fedprox", "scaffold"], 'seeds = [0, 1]\nx = "curve"\ny = ["cost"]', panels=("A", "B")
    )
    plan, out = plan_of(tmp_path, text), tmp_path
    for place, curve in enumerate(plan.curves):
        for seed in plan.seeds if place % 3 else [1]:
            finished = place != 5
            write_rows(run_folder(plan, out, curve, seed), [0, 20], finished, cost=[9, place + seed])
    figure = compose_experiment(plan, out)
    above, below = figure.axes
    assert [tick.get_text() for tick in below.get_yticklabels()] == [
        "fedavg 0, 1 of 2 seeds",
        "fedprox 1",
        "scaffold 2, no model",
    ]
    seeds = [line.get_xdata().tolist() for line in above.lines if line.get_marker() == "o"]
    assert seeds == [[1], [1, 2], [2, 3]]
    assert [bars.lines[0].get_xydata().tolist() for bars in above.containers] == [
        [[1, 0]],
        [[1.5, 1]],
        [[2.5, 2]],
    ]
    assert above.get_xlim() == below.get_xlim()
    assert above.containers[2].lines[0].get_color() == COLOURS["scaffold"]


def test_a_dot_plot_has_no_gap_which_needs_all_rounds(tmp_path):
    with pytest.raises(SettingError, match="y = gap needs the rounds: with x = curve give objective"):
        plan_of(tmp_path, experiment(["fedavg"], 'seeds = [0]\nx = "curve"\ny = ["gap"]'))


def test_the_interval_of_a_mean_is_that_of_students_t():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    mean, *ends = interval(values)
    np.testing.assert_allclose(ends, ttest_1samp(values, 0.0).confidence_interval(0.95))
    assert mean == 4.0
    assert interval(values, "median") == (3.0, 1.0, 9.0)
    assert interval(values[:1]) == (1.0, 1.0, 1.0)
