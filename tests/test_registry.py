"""The draft of an entry for the registry of deployments: it has the registry's form, and its numbers are the run's."""

import json

import jsonschema
import pytest
from pages import command

from twinflower.simulation.report.registry import TO_DO, entry
from twinflower.simulation.report.sections.privacy import SEED, TOTAL
from twinflower.simulation.report.study import Case
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.settings import parse

TEXT, NUMBER = {"type": "string", "minLength": 1}, {"type": "number"}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}


def one_of(*words):
    return {"enum": list(words)}


def section(required=(), **fields):
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": fields,
    }


BASIC = {
    "name": TEXT, "data_curators": TEXTS, "intended_use": TEXT, "description": TEXT, "data_product_region": TEXT,
    "data_product_type": one_of(
        "Summary statistics", "Machine learning model", "Dataset", "Synthetic data", "Interactive API", "SQL queries"
    ),
    "publication_date": {"type": "string", "format": "date"},
}  # fmt: skip
SCHEMA = section(  # that of github.com/opendp/deployments-registry-data, July 2026, without its descriptions
    ["url_slug", "status", "tier", "deployment"],
    url_slug=TEXT,
    status=one_of("Draft", "Pending", "Approved"),
    tier=one_of(1, 2, 3),
    deployment=section(
        ["basic"],
        basic=section(BASIC, **BASIC),
        dp_variant=section(
            variant_name=one_of("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
            data_domain=TEXT,
            unprotected_quantities=TEXT,
        ),
        privacy_loss=section(
            privacy_unit=TEXT,
            privacy_unit_details=TEXT,
            privacy_parameters=section(epsilon=NUMBER, delta=NUMBER, rho=NUMBER),
            privacy_parameters_details=TEXT,
        ),
        deployment_model=section(
            model_name=one_of("Local", "Central", "Shuffle", "Federated", "Varies"),
            model_name_details=TEXT,
            actors=TEXT,
            release_type=one_of("One release", "Many releases"),
            release_type_details=TEXT,
            data_source_type=one_of("Static", "Dynamic"),
            access_type=one_of("Interactive", "Non-interactive"),
        ),
        accounting=section(post_processing=TEXT, composition=TEXT),
        implementation=section(
            preprocessing_and_hyperparameter_tuning=TEXT, mechanisms=TEXT, justification=TEXT
        ),
        administrative=section(["registry_authors"], sources=TEXT, notes=TEXT, registry_authors=TEXTS),
    ),
)
PRIVATE = {"clients.count": 5, "rounds": 4, "privacy.mode": "public-state", "privacy.epsilon": 2.0}
SUMS = {"privacy.trust": "sum", "privacy.honest-sites": 4, "local.max-steps": 1}


def case_of(settings):
    return Case.of_setup(prepare(parse(PRIVATE | settings)))


@pytest.mark.parametrize(
    "settings",
    [{}, SUMS, {"privacy.protects": "site"}, {"privacy.protects": "group", "privacy.group-size": 3}],
)
def test_an_entry_has_the_form_and_the_numbers(settings):
    case = case_of(settings)
    draft = json.loads(json.dumps(entry(case)))
    jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(draft)
    loss = draft["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {key: case.privacy[key] for key in ("epsilon", "delta")}
    assert loss["privacy_parameters_details"] == f"{case.privacy['guarantee']}. {TOTAL}"


def test_an_entry_says_how_the_noise_was_drawn_and_whom_it_protects():
    case = case_of({"privacy.protects": "group", "privacy.group-size": 3})
    planned = entry(case)["deployment"]
    done = entry(case._replace(planned=False))["deployment"]
    sums = entry(case_of(SUMS))["deployment"]
    assert "ChaCha20" in planned["implementation"]["mechanisms"]
    assert "from the seed" in done["implementation"]["mechanisms"]
    assert "ChaCha20" not in done["implementation"]["mechanisms"]
    assert SEED in done["dp_variant"]["unprotected_quantities"]
    assert "Discrete" in sums["implementation"]["mechanisms"]
    assert planned["privacy_loss"]["privacy_unit"] == "group of 3 records of a site"


def test_an_entry_says_how_correlated_noise_is_counted_and_kept():
    banded = {
        "privacy.mode": "gradient", "privacy.noise": "banded", "local.fresh-batches": False, "local.batch-size": 16,
        "local.max-steps": 1, "algorithm": "fedavg",
    }  # fmt: skip
    draft, plain = (entry(case_of(keys))["deployment"] for keys in (banded, {}))
    assert "all correlated steps together" in draft["accounting"]["composition"]
    assert "seeds of its last steps" in draft["implementation"]["mechanisms"]
    assert "correlated" not in plain["accounting"]["composition"] + plain["implementation"]["mechanisms"]


def test_the_command_writes_an_entry_and_refuses_a_run_without_a_guarantee(tmp_path, capsys):
    plan, out = tmp_path / "plan.toml", tmp_path / "entry.yaml"
    plan.write_text(
        '[run]\nrounds = 2\nclients.count = 2\nprivacy.mode = "public-state"\nprivacy.epsilon = 2.0\n'
    )
    assert command("privacy", plan, "--registry", "--out", out) == 0
    assert TO_DO in json.loads(out.read_text())["deployment"]["basic"]["intended_use"]
    capsys.readouterr()
    assert command("privacy", plan, "--registry", "--set", "privacy.mode=none") == 2
    assert "nothing to register" in capsys.readouterr().err
    assert command("privacy", plan, "--registry", "--statement") == 2
    assert "choose one" in capsys.readouterr().err
    assert command("privacy", plan, "--registry", "--ledger", tmp_path) == 2
    assert "--ledger belongs to --statement" in capsys.readouterr().err
