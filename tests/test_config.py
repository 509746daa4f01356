"""Keys, types and rules of a run's configuration, and the same run from every door."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.config import (
    OWN_KEYS,
    Config,
    all_settings,
    kebab,
    parse,
    parse_run_config,
    parse_text,
    snake,
)
from simulation.experiment import read_experiment
from simulation.record import to_toml
from simulation.setup import prepare
from twinflower.algorithms import ALGORITHMS
from twinflower.algorithms.page import settings_of
from twinflower.errors import SettingError

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


def test_run_config_passes_over_other_algorithms_keys_and_empty_texts():
    raw = {"algorithm": "", "mu": "nonsense", "alpha": 7, "rho": "", "out": "", "rounds": 3}
    assert parse_run_config(raw) == Config(rounds=3)


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
    assert str(error.value) == f"{key} must be {word}; got {value!r}"


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
