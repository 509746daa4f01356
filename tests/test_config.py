"""Keys, types and rules of a run's settings, and the same run from every door."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from flwr.common.config import flatten_dict, parse_config_args
from hypothesis import given
from hypothesis import strategies as st
from problems import VARIANTS, run_config, small

from twinflower.algorithms import ALGORITHMS
from twinflower.errors import SettingError
from twinflower.settings import Setting, above, build, changed, check_settings, kebab, settings_of, snake
from twinflower.simulation.experiment_files import title_of
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.settings import check, parse, parse_run_config, parse_text, reference
from twinflower.simulation.settings.catalogue import (
    CATALOGUE,
    CHOICES,
    CHOSEN,
    DEFAULTS,
    MAIN_JOB,
    Declared,
    keys_of,
)
from twinflower.simulation.settings.experiment import read_experiment
from twinflower.simulation.settings.reader import to_tables, to_toml, toml_lines

ROOT = Path(__file__).parent.parent


def app_config():
    """pyproject.toml's, as Flower hands it over."""
    return flatten_dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])


# --- declarations ---


@dataclass(frozen=True)
class Part:
    size: Annotated[float, Setting("a size", above(0))] = 0.5
    hidden: int = 3

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Whole:
    big_number: Annotated[int, Setting("a number", above(1))] = 2
    part: Part = Part(size=0.25)
    other: float = 1.0

    def __post_init__(self) -> None:
        check_settings(self)


def test_fields_with_a_setting_are_keys_also_those_of_components():
    keys = settings_of(Whole)
    assert {name: key.default for name, key in keys.items()} == {"big-number": 2, "size": 0.25}
    assert build(Whole, {"size": 3.0}, other=2.0) == Whole(2, Part(3.0), 2.0)
    assert changed(Whole(7, Part(9.0, 4)), {"size": 1.0}) == Whole(7, Part(1.0, 4))
    assert keys["size"].value_in(Whole()) == 0.25
    with pytest.raises(SettingError, match="big-number must be above 1; got 1"):
        build(Whole, {"big-number": 1})
    with pytest.raises(SettingError, match=r"size must be above 0; got -1.0"):
        changed(Whole(), {"size": -1.0})


def test_defaults_are_in_their_ranges_and_what_is_shared_is_the_same_everywhere():
    for declared in CATALOGUE.values():
        assert declared.key.checked(declared.key.default, declared.name) == declared.key.default
    for entries in CHOSEN.values():
        for name in {key for entry in entries.values() for key in settings_of(entry)}:
            own = [settings_of(entry)[name] for entry in entries.values() if name in settings_of(entry)]
            assert all(
                (k.kind, k.default, k.setting) == (own[0].kind, own[0].default, own[0].setting) for k in own
            )


def test_every_key_says_what_it_means():
    assert all(declared.key.setting.meaning for declared in CATALOGUE.values())
    assert all(kebab(snake(name)) == name and "_" not in name for name in CATALOGUE)


# --- files that follow from the declarations ---


def test_pyproject_and_the_reference_are_in_step(tmp_path):
    remedy = "run python -m twinflower.simulation.settings.reference"
    assert (ROOT / "docs" / "settings.md").read_text() == reference.document(), remedy
    assert reference.app_config() in (ROOT / "pyproject.toml").read_text(), remedy
    assert app_config() == DEFAULTS | MAIN_JOB
    (tmp_path / "docs").mkdir()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text().replace("rounds = 30", ""))
    reference.write(tmp_path)
    assert (tmp_path / "pyproject.toml").read_text() == (ROOT / "pyproject.toml").read_text()


def test_the_reference_has_every_key_once():
    rows = [row[0] for table in reference.tables().values() for row in table]
    assert sorted(rows) == sorted(CATALOGUE)
    ((name, table),) = reference.tables("privacy").items()
    assert (name, [row[0] for row in table]) == ("privacy", [d.name for d in keys_of("privacy")])
    assert reference.tables("run")["run"][0][0] == "algorithm"
    with pytest.raises(
        SettingError, match="no section and no setting is called 'privcy'; did you mean 'privacy'?"
    ):
        reference.tables("privcy")


def test_a_word_finds_the_keys_whose_name_or_meaning_holds_it():
    found = {row[0]: row[1] for rows in reference.tables("momentum").values() for row in rows}
    assert "fedavg.server-momentum" in found
    assert all("momentum" in f"{key} {meaning}".lower() for key, meaning in found.items())
    everything = [row for rows in reference.tables().values() for row in rows]
    assert len(found) == sum("momentum" in f"{key} {meaning}".lower() for key, meaning, *_ in everything)


# --- the same run from every door ---


def test_a_word_of_other_programs_finds_what_it_is_here():
    assert {
        row[0].rpartition(".")[2] for rows in reference.tables("learning-rate").values() for row in rows
    } >= {"step-size"}
    assert [row[0] for row in reference.tables("sparsity")["regulariser"]] == ["regulariser.weight"]


def test_pyproject_and_the_main_experiment_are_the_same_run():
    (curve,) = read_experiment(ROOT / "experiments" / "digits.toml").curves
    assert parse_run_config(app_config()).with_clients(10) == curve.config
    assert parse({**MAIN_JOB, "clients.count": 10}) == curve.config


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_run_config_serves_every_algorithm(algorithm):
    config = parse_run_config(app_config() | {"algorithm": algorithm, "privacy.mode": "none"})
    assert config == parse({"algorithm": algorithm})
    items = config.items()
    assert all(
        items[f"{algorithm}.{name}"] == key.default
        for name, key in settings_of(ALGORITHMS[algorithm]).items()
    )


@given(st.sampled_from(sorted(VARIANTS)), st.integers(1, 9), st.floats(1e-6, 1e6), st.text())
def test_a_stored_config_is_the_same_run(variant, rounds, norm, path):
    path = "".join(c for c in path if c.isprintable())
    config = small(variant).config.put({"rounds": rounds, "data.row-norm": norm, "output.dir": path})
    for text in (to_tables(config.items()), to_toml(config.items())):
        assert parse(tomllib.loads(text)) == config
        assert parse(tomllib.loads(text)).digest == config.digest
    assert parse_run_config(app_config() | config.items()) == config


@pytest.mark.parametrize("text", ["", "a\nb", '"""\n\\ and \\n"', "\t\r\n\x7f\0", "\n\n\U0001f33b"])
def test_a_text_keeps_its_lines_in_toml(text):
    written = toml_lines(text)
    assert tomllib.loads(f"key = {written}") == {"key": text}
    assert written.count("\n") == text.count("\n") + 1


def test_what_flower_reads_on_its_command_line(tmp_path):
    words = parse_config_args(["rounds=3 fedpdm.rho=0.1 data.name='linear'"])
    assert words.keys() <= app_config().keys()  # or flwr run refuses them
    assert parse_run_config(app_config() | words).method.rho == 0.1
    (tmp_path / "run.toml").write_text(to_tables({"rounds": 3, "privacy.epsilon": 2.0}))
    assert parse_config_args([str(tmp_path / "run.toml")]) == {"rounds": 3, "privacy.epsilon": 2.0}


# --- keys ---


def test_keys_stand_with_their_section_or_bare():
    bare = {"batch_size": 7, "step-size": 0.3, "rho": 2, "count": 4}
    dotted = {"local.batch-size": 7, "fedpdm.step-size": 0.3, "fedpdm.rho": 2.0, "clients.count": 4}
    tables = {"local": {"batch-size": 7}, "fedpdm": {"step_size": 0.3, "rho": 2.0}, "clients": {"count": 4}}
    assert parse(bare) == parse(dotted) == parse(tables)
    assert type(parse(bare).method.rho) is float


@pytest.mark.parametrize(
    "key, text",
    [
        ("step-sise", "'step-sise' is not a setting; did you mean 'step-size'?"),
        ("Rho", "'Rho' is not a setting; did you mean 'rho'?"),
        ("fedpdm.rh", "'fedpdm.rh' is not a setting; did you mean 'fedpdm.rho'?"),
        ("fedpd.rho", "there is no section 'fedpd'; did you mean 'fedpdm'?"),
        (
            "name",
            "'name' could be data.name, partition.name, objective.name, regulariser.name: write it with its",
        ),
        ("l2", "'l2' could be objective.l2, regulariser.l2: write it with its section"),
        ("clients", "'clients' is a section: write clients.KEY = VALUE, or a table [clients]"),
        ("", "'' is not a setting; `twinflower settings` lists them all"),
    ],
)
def test_an_unknown_key_gets_a_hint(key, text):
    with pytest.raises(SettingError) as error:
        parse({key: 1, "regulariser.name": "elastic-net"})
    assert str(error.value).startswith(text)


def test_a_file_wants_sections_and_names_them(tmp_path):
    owners = [f"{name}.rho" for name, algorithm in ALGORITHMS.items() if "rho" in settings_of(algorithm)]
    advice = f"'rho' is not a key: write {', '.join(owners[:2])} or {owners[2]}, ..."
    with pytest.raises(SettingError, match=advice):
        read_experiment(written(tmp_path, "[run]\nrho = 0.1\n"))
    with pytest.raises(SettingError, match="'epsilon' is not a key: write privacy.epsilon"):
        read_experiment(written(tmp_path, "[run]\nepsilon = 0.1\n"))
    with pytest.raises(SettingError, match=r"there is no table \[fedpd\]"):
        read_experiment(written(tmp_path, "[fedpd]\nrho = 0.1\n"))


# --- types ---


@pytest.mark.parametrize(
    "key, value, word",
    [
        ("rounds", 3.0, "a whole number"),
        ("rounds", True, "a whole number"),
        ("rounds", "3", "a whole number"),
        ("data.bias", 1, "true or false"),
        ("data.bias", "true", "true or false"),
        ("data.row-norm", "1", "a number"),
        ("data.row-norm", True, "a number"),
        ("data.row-norm", math.nan, "a number"),
        ("fedpdm.rho", "big", "a number"),
        ("fedpdm.rho", math.nan, "a number"),
        ("data.name", 3, "text"),
        ("output.dir", False, "text"),
        ("output.dir", [], "text"),
        ("fedpdm.local-start", 1, "text"),
    ],
)
def test_types_are_checked(key, value, word):
    for door in (parse, parse_run_config):
        with pytest.raises(SettingError) as error:
            door({key: value})
        assert str(error.value).startswith(f"{key} must be {word}; got {value!r}")


@pytest.mark.parametrize("typed", ["bias=True", "bias='true'", "bias=FALSE"])
def test_a_switch_says_what_to_type(typed):
    key, value = parse_text(typed)
    value = value if "'" in typed else str(value)
    with pytest.raises(SettingError) as error:
        parse({key: value})
    word = str(value).lower()
    assert str(error.value) == f"data.bias must be true or false; got {value!r}: write data.bias = {word}"
    assert parse(dict([parse_text(f"bias={word}")])).data.bias is (word == "true")


@pytest.mark.parametrize(
    "keys, name",
    [
        ({"algorithm": "ssca-constrained", "penalties": 5}, "ssca-constrained.penalties"),
        (
            {"algorithm": "ldp-primal-dual", "allocation": "shares", "shares": "5, 6"},
            "ldp-primal-dual.shares",
        ),
        ({"partition.name": "sizes", "sizes": 5}, "partition.sizes"),
    ],
)
def test_a_list_of_one_number_is_a_list(keys, name):
    assert parse(keys | {"regulariser.name": "none"}).items()[name].startswith("5")


def test_a_whole_number_is_a_number():
    config = parse({"row-norm": 2, "rho": 3})
    assert type(config.data.row_norm) is float and type(config.method.rho) is float
    assert config == parse({"row-norm": 2.0, "rho": 3.0})


@pytest.mark.parametrize(
    "assignment, key, value",
    [
        ("rounds=3", "rounds", 3),
        ("fedpdm.rho=3.0", "fedpdm.rho", 3.0),
        ("rho = 1e-3 ", "rho", 1e-3),
        ("seed=-1", "seed", -1),
        ("bias=true", "bias", True),
        ("bias=false", "bias", False),
        ("bias=True", "bias", "True"),  # as TOML, which then has no such value
        ("data.name=mnist", "data.name", "mnist"),
        ('data.name="mnist"', "data.name", "mnist"),
        ("output.dir='3'", "output.dir", "3"),
        ("output.dir=", "output.dir", ""),
        ("output.dir=a=b", "output.dir", "a=b"),
        ("sizes=3, 4", "sizes", "3, 4"),
    ],
)
def test_assignments_are_read_as_toml_or_as_text(assignment, key, value):
    read = parse_text(assignment)
    assert read == (key, value) and type(read[1]) is type(value)


@pytest.mark.parametrize("assignment", ["rounds", "=3", " =3", ""])
def test_what_assigns_nothing_is_refused(assignment):
    with pytest.raises(SettingError, match=f"--set takes key=value; got '{assignment}'"):
        parse_text(assignment)


# --- settings of something that was not chosen ---


def other_value(declared):
    """A value in its range that is not the default."""
    key = declared.key
    candidates = {bool: [not key.default], int: [3, 4], float: [0.25, 0.75, 1e-4], str: ["x", "1, 2"]}[
        key.kind
    ]
    words = key.setting.rule.text.removeprefix("one of ").split(", ")
    for value in [*candidates, *words]:
        if value != key.default and (key.kind is not str or value in words or not key.setting.rule.text):
            return value
    raise AssertionError(declared.name)


@pytest.mark.parametrize("name", [name for name, declared in CATALOGUE.items() if declared.owners])
def test_a_setting_of_what_was_not_chosen_names_it_at_every_door(name, tmp_path):
    """Each key with a choice that it does not belong to: in a dict, in a file, and in Flower's table of defaults."""
    declared = CATALOGUE[name]
    choice, owners = next(iter(declared.owners.items()))
    entries = CHOSEN[choice.split(".")[0]] if choice != "algorithm" else ALGORITHMS
    elsewhere = next((entry for entry in entries if entry not in owners), None)
    assert elsewhere is not None
    keys = {choice: elsewhere, name: other_value(declared)}
    sentence = rf"{name} is a setting of {choice} .*{owners[-1]}, and this run has {choice} {elsewhere}"
    with pytest.raises(SettingError, match=sentence):
        parse(keys)
    with pytest.raises(SettingError, match=sentence):
        read_experiment(written(tmp_path, "[run]\n" + to_toml(keys)))
    with pytest.raises(SettingError, match=sentence):
        parse_run_config(app_config() | {"privacy.mode": "none"} | keys)
    untouched = app_config() | {"privacy.mode": "none", choice: elsewhere}
    if elsewhere not in ("labels", "sizes", "mixed", "as-published"):
        assert parse_run_config(untouched) == parse({choice: elsewhere})


def test_rows_of_their_own_are_not_divided():
    keys = {
        "data.name": "own",
        "num-features": 2,
        "num-classes": 2,
        "partition.name": "sizes",
        "sizes": "3,4",
        "data.file": "rows.npz",
    }
    check(parse(keys))
    divided = {key: value for key, value in keys.items() if "sizes" not in (key, value)}
    for other in (keys | {"samples-per-client": 2}, divided):
        with pytest.raises(
            SettingError, match="the rows of data own are divided already: set partition.name to sizes"
        ):
            check(parse(other))


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


LABELS = '[run.partition]\nname = "labels"\nlabels-per-client = 4\n[run.fedpdm]\nrho = 0.1\n'


def test_a_later_choice_drops_what_belonged_to_the_earlier(tmp_path):
    path = written(
        tmp_path, LABELS + '[[curve]]\nlabel = "a"\n[[curve]]\nlabel = "b"\npartition.name = "one-class"\n'
    )
    first, second = (curve.config for curve in read_experiment(path).curves)
    assert (first.partition.labels_per_client, second.partition.name) == (4, "one-class")
    over = read_experiment(path, {"partition.name": "iid", "algorithm": "fedavg"}).curves
    assert [curve.config for curve in over] == 2 * [parse({"algorithm": "fedavg"})]
    with pytest.raises(
        SettingError, match=r"partition.labels-per-client is a setting of partition.name labels"
    ):
        read_experiment(path, {"partition.name": "iid", "labels-per-client": 3})


def test_a_section_of_run_counts_for_the_curves_that_choose_it(tmp_path):
    text = "[run.fedavg]\nstep-size = 0.1\n[run.fedprox]\nmu = 0.3\n"
    curves = '[[curve]]\nalgorithm = "fedavg"\n[[curve]]\nalgorithm = "fedprox"\n'
    avg, prox = (curve.config.method for curve in read_experiment(written(tmp_path, text + curves)).curves)
    assert (avg.step_size, prox.step_size, prox.mu) == (0.1, 0.4, 0.3)
    with pytest.raises(
        SettingError, match=r"fedprox.mu is a setting of algorithm fedprox, and this run has algorithm f"
    ):
        read_experiment(written(tmp_path, text + '[[curve]]\nalgorithm = "fedavg"\n'))
    own = written(tmp_path, text + curves.replace('"fedavg"\n', '"fedavg"\nfedprox.mu = 0.2\n'))
    with pytest.raises(SettingError, match=f"{own}: fedprox.mu is a setting of algorithm fedprox"):
        read_experiment(own)


def test_a_bare_word_on_the_command_line_is_each_curves_own(tmp_path):
    curves = '[[curve]]\nalgorithm = "fedavg"\n[[curve]]\nalgorithm = "fedprox"\nfedprox.step-size = 0.3\n'
    path = written(tmp_path, curves)
    assert [c.config.method.step_size for c in read_experiment(path, {"step-size": 0.2}).curves] == [0.2, 0.2]
    assert [c.config.method.step_size for c in read_experiment(path, {"fedavg.step-size": 0.2}).curves] == [
        0.2,
        0.3,
    ]


def test_a_bare_word_of_a_curve_is_its_own(tmp_path):
    """As on the command line; [run], which is for curves of several methods, wants sections."""
    text = "[[curve]]\nlabel = 'a'\nprivacy.mode = 'gradient'\nepsilon = 0.1\nstep-size = 0.2\n"
    (curve,) = read_experiment(written(tmp_path, text)).curves
    assert curve.config == parse({"privacy.mode": "gradient", "epsilon": 0.1, "fedpdm.step-size": 0.2})
    with pytest.raises(SettingError, match=r"privacy\.epsilon and epsilon are the same setting: leave one"):
        read_experiment(written(tmp_path, text + "privacy.epsilon = 0.3\n"))
    with pytest.raises(SettingError, match=r"privacy\.epsilon and epsilon are the same setting: leave one"):
        parse({"privacy.mode": "gradient", "privacy.epsilon": 1.0, "epsilon": 1.0})


@pytest.mark.parametrize("key", ["l2", "objective.l2"])
def test_keys_of_a_sweep_are_bare_or_not(tmp_path, key):
    path = written(tmp_path, f"[[curve]]\nlabel = 'a'\nsweep = {{{key} = [0.1, 0.2]}}\n")
    curves = read_experiment(path).curves
    assert [curve.config.objective.l2 for curve in curves] == [0.1, 0.2]
    assert [curve.label for curve in curves] == [f"a, {key} = 0.1", f"a, {key} = 0.2"]


def test_a_sweep_of_two_keys_has_all_combinations_on_one_line(tmp_path):
    path = written(tmp_path, "[[curve]]\nlabel = 'a'\nsweep = {l2 = [0.1, 0.2], rounds = [3, 4]}\n")
    curves = read_experiment(path).curves
    points = [(curve.config.objective.l2, curve.config.rounds) for curve in curves]
    assert points == [(0.1, 3), (0.1, 4), (0.2, 3), (0.2, 4)]
    assert {curve.line for curve in curves} == {"a"}
    assert curves[0].label == "a, l2 = 0.1, rounds = 3"


@pytest.mark.parametrize("lists", ["{}", "{l2 = []}", "{l2 = 0.1}", "[0.1]", "{rounds = [3], l2 = 0.1}"])
def test_a_sweep_is_keys_with_lists(tmp_path, lists):
    with pytest.raises(SettingError, match="sweep must be keys with lists of values, such as .*; got "):
        read_experiment(written(tmp_path, f"[[curve]]\nsweep = {lists}\n"))


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.stem)
def test_every_experiment_says_only_what_counts(path):
    assert read_experiment(path).curves


# --- rules ---


@pytest.mark.parametrize(
    "key, bad",
    [
        ("algorithm", "adam"),
        ("clients.count", -1),
        ("clients.per-round", -1),
        ("clients.first-round", "everybody"),
        ("objective.clip", "everything"),
        ("clients.weighting", "equal"),
        ("partition.samples-per-client", -1),
        ("seed", -1),
        ("seed", 2**64),
        ("rounds", 0),
        ("rounds", 2**48),
        ("evaluation.every", 0),
        ("server.node-timeout", 0.0),
        ("server.round-timeout", -5.0),
        ("data.row-norm", -1.0),
        ("data.row-norm", 1e200),
        ("start-scale", -0.5),
        ("start-scale", math.inf),
        ("local.batch-size", -1),
        ("local.max-steps", -1),
        ("local.max-steps", 0),  # with full batches
        ("data.name", "mnits"),
        ("partition.name", "alphabetical"),
        ("objective.name", "hinge"),
        ("objective.l2", -1.0),
        ("objective.nonconvex", -1.0),
        ("regulariser.name", "l3"),
        ("regulariser.weight", -1.0),
        ("privacy.mode", "maybe"),
        ("fedpdm.rho", 0.0),
        ("fedpdm.rho", -1.0),
        ("fedpdm.step-size", 0.0),
        ("fedpdm.step-decay", 1.5),
        ("fedpdm.stopping-tolerance", -1.0),
        ("fedpdm.aggregation", "median"),
        ("fedpdm.local-start", "cold"),
        ("fedpdm.final-model", "median"),
        ("fedpdm.tail", 0.0),
        ("fedpdm.tail", 1.5),
        ("fedpdm.unstable-steps", "maybe"),
    ],
)
def test_a_bad_value_is_refused_by_key_and_value(key, bad):
    with pytest.raises(SettingError, match=rf"^{key} must be ") as error:
        prepare(parse({key: bad}))
    assert str(bad) in str(error.value)


@pytest.mark.parametrize("key", ["epsilon", "noise-multiplier"])
@pytest.mark.parametrize("bad", [1e-300, 1e12, -1.0])
def test_targets_of_privacy_that_make_no_sense(key, bad):
    with pytest.raises(
        SettingError, match=rf"privacy.{key} must be from 1e-6 to 1e9, or 0 \(not given\); got {bad}"
    ):
        parse({"privacy.mode": "gradient", key: bad})


@pytest.mark.parametrize("sizes", ["3,x", "3;4", "3,,4", "3.5", " "])
def test_sizes_are_whole_numbers(sizes):
    with pytest.raises(
        SettingError, match=f"partition.sizes must be comma-separated whole numbers; got '{sizes}'"
    ):
        _ = parse({"partition.name": "sizes", "sizes": sizes}).sizes


def test_sizes_are_a_list_or_nothing():
    assert parse({}).sizes == []
    assert parse({"partition.name": "sizes", "sizes": "100, 200,3"}).sizes == [100, 200, 3]


def test_no_more_clients_a_round_than_there_are():
    text = "clients.per-round can be at most clients.count = 4; got 5"
    with pytest.raises(SettingError, match=text):
        parse({"count": 4, "per-round": 5})
    with pytest.raises(SettingError, match=text):
        parse({"per-round": 5}).with_clients(4)  # decided by the number of Flower's nodes
    assert parse({"per-round": 4}).with_clients(4).clients.sampled == 4


def test_open_counts_are_decided_later_and_given_ones_stay():
    assert parse({}).with_clients(7).clients.count == parse({}).with_clients(7).clients.sampled == 7
    assert parse({"count": 3}).with_clients(7).clients.count == 3


def test_every_choice_has_its_entries_as_its_range():
    for key in CHOICES:
        assert CATALOGUE[key].key.setting.rule.holds(DEFAULTS[key])
    assert run_config({"rho": 0.1})["fedpdm.rho"] == 0.1


def test_which_keys_have_an_effect_is_decided_once_for_equal_choices(monkeypatch):
    """An experiment asks for every run of a curve, and for its pages and figures."""
    asked, missing = [], Declared.missing
    monkeypatch.setattr(
        Declared, "missing", lambda self, choices: asked.append(self) or missing(self, choices)
    )
    first, again = (parse({"algorithm": "fedavg", "seed": seed}) for seed in (1, 2))
    known = first.items()
    asked.clear()
    assert again.items() == known | {"seed": 2}
    assert not asked


@pytest.mark.parametrize(
    "head",
    [
        'title = "t"\n[run]\n',
        'y = [\n[1],\n]\ntitle = "t"\n[run]\n',
        'claim = """\n[no table]\n"""\ntitle = "t"\n[[curve]]\n',
    ],
)
def test_a_title_is_found_before_the_first_table_wherever_a_line_begins_with_a_bracket(tmp_path, head):
    (tmp_path / "named.toml").write_text(head + 'title = "of a table"\n')
    assert title_of(tmp_path / "named.toml") == "t"


def test_a_title_is_read_without_what_follows_it(tmp_path):
    (tmp_path / "named.toml").write_text('title = "t"\n[run]\nthis is no TOML\n')
    assert title_of(tmp_path / "named.toml") == "t"
