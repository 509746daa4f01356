"""Keys, types and rules of a run's configuration, and the same run from every door."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinflower.algorithms import ALGORITHMS
from twinflower.algorithms.page import settings_of
from twinflower.data.partition import PARTITIONERS
from twinflower.data.sets import DATASETS
from twinflower.errors import SettingError
from twinflower.networks import NETWORKS
from twinflower.regularisers import REGULARISERS
from twinflower.simulation.config import (
    OWN_KEYS,
    Config,
    all_settings,
    belongs_to,
    check,
    kebab,
    parse,
    parse_run_config,
    parse_text,
    snake,
)
from twinflower.simulation.experiment import read_experiment
from twinflower.simulation.record import to_toml
from twinflower.simulation.setup import prepare
from twinflower.topologies import TOPOLOGIES

ROOT = Path(__file__).parent.parent
COUNTS = st.integers(1, 2**40)
VALUES = {  # that every rule of Config allows
    bool: st.booleans(),
    int: COUNTS,
    float: st.floats(5e-324, 1e300),
    str: st.text(st.characters(exclude_categories=["Cs"])),
}


def run_config():
    """pyproject.toml's, as Flower hands it over."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


@st.composite
def configs(draw):
    """Any configuration with any algorithm, some of whose settings are left at their defaults."""
    algorithm = draw(st.sampled_from(sorted(ALGORITHMS)))
    own = {name: draw(VALUES[kind]) for name, kind in OWN_KEYS.items()} | {"algorithm": algorithm}
    own["num_clients"] = own["clients_per_round"] + draw(COUNTS)
    own["min_replies"] = (
        1 + min(own["min_replies"], own["clients_per_round"] - 1) if own["clients_per_round"] else 1
    )
    own["conversion"] = draw(st.sampled_from(["exact", "zcdp"]))
    own["clip"] = draw(st.sampled_from(["rows", "batch"]))
    own["first_round"] = draw(st.sampled_from(["sampled", "all"]))
    own["delta"] = draw(st.floats(1e-300, 0.999))
    own["row_norm"] = draw(st.floats(0, 1e100))
    for name in ("epsilon", "noise_multiplier"):
        own[name] = draw(st.just(0.0) | st.floats(1e-6, 1e9))
    kinds = settings_of(ALGORITHMS[algorithm])
    chosen = draw(st.sets(st.sampled_from(sorted(kinds))))
    return Config(**own, settings=tuple((name, draw(VALUES[kinds[name]])) for name in sorted(chosen)))


# --- the same run from every door ---


def test_pyproject_lists_every_key_once():
    assert run_config().keys() == {kebab(name) for name in (*OWN_KEYS, *all_settings())}
    assert OWN_KEYS.keys().isdisjoint(all_settings())


def test_algorithms_agree_on_what_a_shared_setting_is():
    for page in ALGORITHMS.values():
        assert settings_of(page).items() <= all_settings().items()


def test_pyproject_and_the_main_experiment_are_the_same_run():
    (curve,) = read_experiment(ROOT / "experiments" / "digits.toml").curves
    assert parse_run_config(run_config()).with_clients(10) == curve.config
    assert Config(settings=curve.config.settings, epsilon=8.0).with_clients(10) == curve.config


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_run_config_serves_every_algorithm(algorithm):
    config = parse_run_config(run_config() | {"algorithm": algorithm})
    assert config.algorithm == algorithm
    given = {snake(key): value for key, value in run_config().items() if value != ""}
    assert dict(config.settings) == {n: given[n] for n in settings_of(ALGORITHMS[algorithm]) if n in given}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_items_are_all_keys_and_their_defaults(algorithm):
    page = ALGORITHMS[algorithm]
    items = Config(algorithm).items()
    assert items.keys() == {kebab(name) for name in (*OWN_KEYS, *settings_of(page))}
    assert all(items[kebab(name)] == getattr(page(), name) for name in settings_of(page))
    assert all(items[kebab(name)] == getattr(Config(algorithm), name) for name in OWN_KEYS)


@given(configs())
def test_a_stored_config_is_the_same_run(config):
    again = parse(tomllib.loads(to_toml(config.items())))
    assert again.items() == config.items()
    assert replace(again, settings=()) == replace(config, settings=())
    assert dict(again.settings).items() >= dict(config.settings).items()
    assert parse_run_config(config.items()).items() == config.items() | defaults_of_empty_texts(config)


def defaults_of_empty_texts(config):
    """An empty text in Flower's run config means the default."""
    defaults = Config(config.algorithm).items()
    return {key: defaults[key] for key, value in config.items().items() if value == ""}


# --- keys ---


def test_kebab_and_snake_are_inverse_on_all_keys():
    for name in (*OWN_KEYS, *all_settings()):
        assert snake(kebab(name)) == name and "_" not in kebab(name)


def test_keys_are_understood_with_either_stroke():
    assert parse({"batch-size": 7, "step-size": 0.3}) == parse({"batch_size": 7, "step_size": 0.3})
    config = parse({"step-size": 0.3, "rho": 2, "num-clients": 4})  # in any order
    assert config == Config(num_clients=4, settings=(("rho", 2.0), ("step_size", 0.3)))


@pytest.mark.parametrize(
    "key, text",
    [
        ("step-sise", "'step-sise' is not a setting of fedpdm; did you mean 'step-size'?"),
        ("Rho", "'Rho' is not a setting of fedpdm; did you mean 'rho'?"),
        ("batchsize", "'batchsize' is not a setting of fedpdm; did you mean 'batch-size'?"),
        ("mu", "'mu' is not a setting of fedpdm, but of fedprox"),
        ("settings", "'settings' is not a setting of fedpdm; "),
        ("name", "'name' is not a setting of fedpdm; "),
        ("", "'' is not a setting of fedpdm; known keys: "),
    ],
)
def test_an_unknown_key_gets_a_hint(key, text):
    for door in (parse, parse_run_config) if key != "mu" else (parse,):
        with pytest.raises(SettingError) as error:
            door({key: 1})
        assert str(error.value).startswith(text)


def test_run_config_passes_over_empty_texts():
    raw = {"algorithm": "", "mu": "", "rho": "", "out": "", "rounds": 3}
    assert parse_run_config(raw) == Config(rounds=3)


def test_the_run_config_refuses_what_was_set_for_another_algorithm():
    """It lists every key, so only a value that is not the main job's can have been set."""
    main = run_config()
    assert parse_run_config(main | {"algorithm": "fedavg"}).algorithm == "fedavg"
    for key, value, algorithm in [("mu", 0.5, "fedpdm"), ("rho", 0.1, "fedavg"), ("degree", 4.0, "fedpdm")]:
        with pytest.raises(SettingError, match=f"'{key}' is not a setting of {algorithm}, but of "):
            parse_run_config(main | {"algorithm": algorithm, key: value})


# --- types ---


@pytest.mark.parametrize(
    "key, value, word",
    [
        ("rounds", 3.0, "a whole number"),
        ("rounds", True, "a whole number"),
        ("rounds", "3", "a whole number"),
        ("bias", 1, "true or false"),
        ("bias", "true", "true or false"),
        ("row-norm", "1", "a number"),
        ("row-norm", True, "a number"),
        ("row-norm", math.nan, "a number"),
        ("rho", "big", "a number"),
        ("rho", math.nan, "a number"),
        ("dataset", 3, "text"),
        ("out", False, "text"),
        ("out", [], "text"),
        ("local-start", 1, "text"),
    ],
)
def test_types_are_checked(key, value, word):
    with pytest.raises(SettingError) as error:
        parse({key: value})
    assert str(error.value).startswith(f"{key} must be {word}; got {value!r}")


@pytest.mark.parametrize("typed", ["bias=True", "bias='true'", "bias=FALSE"])
def test_a_switch_says_what_to_type(typed):
    key, value = parse_text(typed)
    value = value if "'" in typed else str(value)
    with pytest.raises(SettingError) as error:
        parse({key: value})
    word = str(value).lower()
    assert str(error.value) == f"bias must be true or false; got {value!r}: write bias = {word}"
    assert parse(dict([parse_text(f"bias={word}")])).bias is (word == "true")


@pytest.mark.parametrize(
    "algorithm, key",
    [("ssca-constrained", "penalties"), ("ldp-primal-dual", "shares"), ("fedpdm", "client-sizes")],
)
def test_a_list_of_one_number_is_a_list(algorithm, key):
    assert parse({"algorithm": algorithm, key: 5}).items()[key] == "5"


def test_a_whole_number_is_a_number():
    config = parse({"row-norm": 2, "rho": 3})
    assert type(config.row_norm) is float and type(dict(config.settings)["rho"]) is float
    assert config == parse({"row-norm": 2.0, "rho": 3.0})


@pytest.mark.parametrize(
    "assignment, key, value",
    [
        ("rounds=3", "rounds", 3),
        ("rho=3.0", "rho", 3.0),
        ("rho = 1e-3 ", "rho", 1e-3),
        ("seed=-1", "seed", -1),
        ("bias=true", "bias", True),
        ("bias=false", "bias", False),
        ("bias=True", "bias", "True"),  # as TOML, which then has no such value
        ("dataset=mnist", "dataset", "mnist"),
        ('dataset="mnist"', "dataset", "mnist"),
        ("out='3'", "out", "3"),
        ("out=", "out", ""),
        ("out=a=b", "out", "a=b"),
        ("client-sizes=3, 4", "client-sizes", "3, 4"),
    ],
)
def test_assignments_are_read_as_toml_or_as_text(assignment, key, value):
    read = parse_text(assignment)
    assert read == (key, value) and type(read[1]) is type(value)


@pytest.mark.parametrize("assignment", ["rounds", "=3", " =3", ""])
def test_what_assigns_nothing_is_refused(assignment):
    with pytest.raises(SettingError, match=f"--set takes key=value; got '{assignment}'"):
        parse_text(assignment)


# --- settings that belong to a choice ---

IDLE = {  # the sentence, and what is needed for the setting to count
    "client-sizes = '900,537' has no effect with partition iid: set partition to sizes or dataset to own, or "
    "client-sizes to '', its default": ({"client-sizes": "900,537"}, {"partition": "sizes"}),
    "labels-per-client = 4 has no effect with partition iid: set partition to labels, or labels-per-client to 0, its "
    "default": ({"labels-per-client": 4}, {"partition": "labels"}),
    "iid-rows = 3 has no effect with partition labels": (
        {"iid-rows": 3, "partition": "labels"},
        {"partition": "mixed"},
    ),
    "dirichlet-alpha = 0.5 has no effect with partition iid": ({"dirichlet-alpha": 0.5}, {"partition": "dirichlet"}),
    "hidden-units = 9 has no effect with objective softmax": ({"hidden-units": 9}, {"objective": "swish-network"}),
    "regulariser-l1 = 0.1 has no effect with regulariser none": (
        {"regulariser-l1": 0.1, "regulariser": "none"},
        {"regulariser": "group-l1"},
    ),
    "regulariser-l2 = 0.1 has no effect with regulariser l1": (
        {"regulariser-l2": 0.1},
        {"regulariser": "elastic-net"},
    ),
    "regulariser-bound = 2.0 has no effect with regulariser l1": ({"regulariser-bound": 2}, {"regulariser": "box"}),
    "regulariser-radius = 2.0 has no effect with regulariser l1": ({"regulariser-radius": 2}, {"regulariser": "ball"}),
    "download = true has no effect with dataset digits: set dataset to mnist or adult, or download to false": (
        {"download": True},
        {"dataset": "mnist"},
    ),
    "num-features = 3 has no effect with dataset digits": ({"num-features": 3}, None),
    "num-classes = 3 has no effect with dataset digits": ({"num-classes": 3}, None),
    "data-file = 'rows.npz' has no effect with dataset digits": ({"data-file": "rows.npz"}, None),
    "tail = 0.3 has no effect with output last": ({"tail": 0.3}, None),
    "delta = 0.001 has no effect with privacy none": ({"delta": 0.001}, {"privacy": "gradient"}),
    "conversion = 'zcdp' has no effect with privacy none": ({"conversion": "zcdp"}, {"privacy": "gradient"}),
    "published-c0 = 2.0 has no effect with privacy public-state": (
        {"published-c0": 2, "privacy": "public-state"},
        {"privacy": "as-published"},
    ),
    "sensitivity = 'norm' has no effect with privacy gradient": (
        {"sensitivity": "norm", "privacy": "gradient"},
        {"privacy": "public-state"},
    ),
    "max-local-steps = 7 has no effect with algorithm ssca": (
        {"max-local-steps": 7, "algorithm": "ssca"},
        {"algorithm": "feddyn"},
    ),
    "degree = 4.0 has no effect with topology ring": (
        {"degree": 4, "algorithm": "zcdp-nfl", "topology": "ring"},
        {"topology": "regular"},
    ),
    "regulariser-parameters = 'weight' has no effect with objective softmax": (
        {"regulariser-parameters": "weight"},
        {"objective": "torch:model.py:net"},
    ),
    "graph-seed = 4 has no effect with topology star": (
        {"graph-seed": 4, "algorithm": "zcdp-nfl", "topology": "star"},
        {"topology": "erdos-renyi"},
    ),
    "rewiring = 0.2 has no effect with topology file:ring.txt": (
        {"rewiring": 0.2, "algorithm": "p-admm", "topology": "file:ring.txt"},
        {"topology": "small-world"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", IDLE)
def test_a_setting_that_would_do_nothing_is_refused(sentence):
    keys, remedy = IDLE[sentence]
    with pytest.raises(SettingError) as error:
        check(parse(keys))
    assert str(error.value).startswith(sentence)
    if remedy:
        check(parse(keys | remedy))


def test_the_table_of_choices_names_settings_and_choices_that_there_are():
    keys = {kebab(name) for name in (*OWN_KEYS, *all_settings())}
    assert {key for sentence in IDLE for key in [sentence.split(" = ")[0]]} == {
        k for k in keys if belongs_to(k)
    }
    known = {
        "dataset": DATASETS,
        "partition": PARTITIONERS,
        "regulariser": REGULARISERS,
        "topology": TOPOLOGIES,
    }
    known |= {
        "objective": [*NETWORKS, "torch"],
        "algorithm": ALGORITHMS,
        "privacy": ["public-state", "gradient", "as-published"],
        "output": ["last", "tail-mean"],
    }
    for owner, values in ((o, v) for key in keys for o, v in belongs_to(key).items()):
        assert set(values) <= set(known[owner])


@pytest.mark.parametrize("algorithm", ["ssca", "isrl-dp", "ldp-primal-dual", "p-admm"])
def test_one_local_step_may_be_said_where_there_is_never_more(algorithm):
    check(parse({"algorithm": algorithm, "max-local-steps": 1}))


def test_rows_of_their_own_are_not_divided():
    keys = {
        "dataset": "own",
        "num-features": 2,
        "num-classes": 2,
        "client-sizes": "3,4",
        "data-file": "rows.npz",
    }
    check(parse(keys))
    for extra in ({"partition": "contiguous"}, {"samples-per-client": 2}):
        with pytest.raises(
            SettingError, match="the rows of dataset own are divided already: set partition to iid"
        ):
            check(parse(keys | extra))


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_later_choice_drops_what_belonged_to_the_earlier(tmp_path):
    text = '[run]\npartition = "labels"\nlabels-per-client = 4\nrho = 0.1\n'
    path = written(
        tmp_path, text + '[[curve]]\nlabel = "a"\n[[curve]]\nlabel = "b"\npartition = "one-class"\n'
    )
    held = [curve.config.labels_per_client for curve in read_experiment(path).curves]
    assert held == [4, 0]
    over = read_experiment(path, {"partition": "iid", "algorithm": "fedavg"}).curves
    assert [curve.config for curve in over] == 2 * [Config("fedavg", partition="iid")]
    with pytest.raises(SettingError, match="labels-per-client = 3 has no effect with partition iid"):
        read_experiment(path, {"partition": "iid", "labels-per-client": 3})


def test_what_belongs_to_a_choice_nobody_made_is_refused_in_a_file(tmp_path):
    path = written(tmp_path, "[run]\nlabels-per-client = 4\n[[curve]]\nrounds = 3\n")
    with pytest.raises(SettingError, match=f"{path}: labels-per-client = 4 has no effect with partition iid"):
        read_experiment(path)


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.stem)
def test_every_experiment_says_only_what_counts(path):
    assert read_experiment(path).curves


# --- rules ---


@pytest.mark.parametrize(
    "key, bad",
    [
        ("algorithm", "adam"),
        ("num-clients", -1),
        ("clients-per-round", -1),
        ("first-round", "everybody"),
        ("clip", "everything"),
        ("weighting", "equal"),
        ("samples-per-client", -1),
        ("labels-per-client", -1),
        ("hidden-units", -4),
        ("seed", -1),
        ("rounds", 0),
        ("evaluate-every", 0),
        ("node-timeout", 0.0),
        ("round-timeout", -5.0),
        ("row-norm", -1.0),
        ("row-norm", 1e200),
        ("epsilon", 1e-300),
        ("epsilon", 1e12),
        ("noise-multiplier", 1e308),
        ("noise-multiplier", 1e-308),
        ("start-scale", -0.5),
        ("batch-size", -1),
        ("max-local-steps", -1),
        ("max-local-steps", 0),  # with full batches
        ("partition", "alphabetical"),
        ("objective", "hinge"),
        ("l2", -1.0),
        ("nonconvex", -1.0),
        ("regulariser", "l3"),
        ("regulariser-l1", -1.0),
        ("regulariser-l2", math.inf),
        ("regulariser-bound", 0.0),
        ("regulariser-radius", -1.0),
        ("rho", 0.0),
        ("rho", -1.0),
        ("step-size", 0.0),
        ("step-size", 50.0),  # times rho = 0.05
        ("step-decay", 1.5),
        ("stopping-tolerance", -1.0),
        ("aggregation", "median"),
        ("local-start", "cold"),
        ("output", "median"),
        ("tail", 0.0),
        ("tail", 1.5),
        ("unstable-steps", "maybe"),
    ],
)
def test_a_bad_value_is_refused_by_key_and_value(key, bad):
    with pytest.raises(SettingError, match=rf"\b{key}\b") as error:
        prepare(parse({key: bad}))
    assert str(bad) in str(error.value)


@pytest.mark.parametrize("sizes", ["3,x", "3;4", "3,,4", "3.5", " "])
def test_client_sizes_are_whole_numbers(sizes):
    with pytest.raises(SettingError, match=f"client-sizes must be whole numbers .* got '{sizes}'"):
        _ = parse({"client-sizes": sizes}).client_size_list


def test_client_sizes_are_a_list_or_nothing():
    assert Config().client_size_list is None
    assert Config(client_sizes="100, 200,3").client_size_list == [100, 200, 3]


def test_no_more_clients_a_round_than_there_are():
    text = "clients-per-round can be at most num-clients = 4; got 5"
    with pytest.raises(SettingError, match=text):
        parse({"num-clients": 4, "clients-per-round": 5})
    with pytest.raises(SettingError, match=text):
        parse({"clients-per-round": 5}).with_clients(4)  # decided by the number of Flower's nodes
    assert parse({"clients-per-round": 4}).with_clients(4).sampled == 4


def test_open_counts_are_decided_later_and_given_ones_stay():
    assert Config().with_clients(7).num_clients == Config().with_clients(7).sampled == 7
    assert Config(num_clients=3).with_clients(7).num_clients == 3
