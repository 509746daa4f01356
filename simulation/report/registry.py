"""A draft of a run's entry for the registry of differential privacy deployments that OpenDP keeps.

Its fields are those of schemas/deployments-schema.yaml in github.com/opendp/deployments-registry-data, as of July 2026;
JSON is YAML, too. What only the curator knows is marked with TO_DO. The texts are those of the privacy statement.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from twinflower.errors import SettingError

from .document import Section
from .sections.privacy import TOTAL, statement
from .study import Case, rows_of

TO_DO = "TO DO by the curator: "
_UNITS = {"record": "record", "group": "group of {size} records of a site", "site": "all records of a site"}
_SEEDED = "Gaussian noise at every site, in this simulation from the seed among the settings."
_SECRET = (
    "Gaussian noise at every site, from ChaCha20 under keys that never leave the site, rounded to a grid.",
    "Floating-point errors: before each round a site bounds them by public numbers, and refuses the round if they "
    "could exceed 2^-21 of the noise's standard deviation.",
)
_CORRELATED = (
    "The noise of a step is partly taken back in later ones. For that a site keeps the seeds of its last steps, beside "
    "its ledger, until they are needed no more.",
)
_DISCRETE = (
    "Discrete Gaussian noise at every site, in whole numbers of cells, so that sums have no rounding errors."
)
_ALWAYS = (
    "Timing is not covered: how long a site needs for a round may depend on its records.",
    "The records stay at their sites, and each site has a ledger of what it has spent.",
    "Implemented in Python by Twinflower, on Flower.",
)
_ADAPTIVE = "All messages of a site are one adaptive composition of Gaussian mechanisms: "
_SQUARES = "squares of mu add up, over the rounds that one record can be in. "
_TOGETHER = "that of the rounds has the mu of how far one record can move all correlated steps together. "
_CONVERSION = (
    "(epsilon, delta) follows from the total mu by the exact conversion of Gaussian differential privacy."
)
_POST_PROCESSING = (
    "All that the server computes from the sites' messages: averages, proximal steps, duals and the model."
)


def entry(case: Case) -> dict[str, Any]:
    """The draft for a run; SettingError for one without a guarantee."""
    if case.privacy is None or case.privacy["mu"] is None:
        raise SettingError(
            "a run without a privacy guarantee has nothing to register: set privacy.mode and privacy.epsilon"
        )
    name = f"{case.config.algorithm} on {rows_of(case.config)}"
    parts = {
        "basic": _basic(case, name),
        "dp_variant": _variant(case),
        "privacy_loss": _loss(case),
        "deployment_model": _model(case),
        "accounting": {"post_processing": _POST_PROCESSING, "composition": _composition(case)},
        "implementation": _implementation(case),
        "administrative": {"registry_authors": [TO_DO + "who wrote this entry"]},
    }
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": parts}


def _basic(case: Case, name: str) -> dict[str, Any]:
    config = case.config
    return {
        "name": name,
        "data_curators": [TO_DO + "who publishes the model"],
        "description": f"A model ({config.objective.name}) that {config.clients.count} sites trained together in "
        f"{config.rounds} rounds with {config.algorithm}. " + TO_DO + "what it predicts, and from what",
        "intended_use": TO_DO + "what it is for",
        "data_product_type": "Machine learning model",
        "data_product_region": TO_DO + "where the records are from, and whose laws apply",
        "publication_date": datetime.now(UTC).date().isoformat(),
    }


def _variant(case: Case) -> dict[str, str]:
    return {
        "variant_name": "Approximate DP",
        "data_domain": TO_DO + "what a record is, and whose records are eligible",
        "unprotected_quantities": _texts(case, "What is not covered"),
    }


def _loss(case: Case) -> dict[str, Any]:
    assert case.privacy is not None
    unit = case.config.privacy.unit
    return {
        "privacy_unit": _UNITS[unit.kind].format(size=unit.size),
        "privacy_unit_details": "Adjacent data sets differ by replacement; how many records a site has is public. "
        + _texts(case, "What is protected"),
        "privacy_parameters": {key: case.privacy[key] for key in ("epsilon", "delta")},
        "privacy_parameters_details": f"{case.privacy['guarantee']}. {TOTAL}",
    }


def _model(case: Case) -> dict[str, str]:
    sums = case.config.privacy.trust == "sum"
    place = "each site adds a part of the noise, and the server sees only masked sums over the sites"
    return {
        "model_name": "Federated",
        "model_name_details": place if sums else "each site adds its noise before it sends anything",
        "actors": _texts(case, "Against whom"),
        "release_type": "One release",
        "release_type_details": "One model, and the messages of all rounds from which it was computed, which the "
        "guarantee covers together. " + TO_DO + "later releases from the same records",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _implementation(case: Case) -> dict[str, str]:
    assert case.privacy is not None
    multiplier = f"Largest noise multiplier of a round: {case.privacy['noise_multiplier']:.4g}."
    tuning = case.privacy.get("mu_tuning")
    tuned = f"The tuning of step sizes is charged: mu {tuning:.4g} of the total. " if tuning else ""
    return {
        "preprocessing_and_hyperparameter_tuning": tuned
        + TO_DO
        + "what was chosen by looking at the records without a charge, if anything",
        "mechanisms": _listed([*_noise(case), multiplier, *_ALWAYS]),
        "justification": TO_DO + "why this epsilon, this unit and this method",
    }


def _composition(case: Case) -> str:
    return _ADAPTIVE + (_TOGETHER if case.config.privacy.noise == "banded" else _SQUARES) + _CONVERSION


def _noise(case: Case) -> Sequence[str]:
    """How the noise is drawn."""
    if case.config.privacy.trust == "sum":
        return [_DISCRETE]
    if not (case.deployed or case.planned):
        return [_SEEDED]
    return [*_SECRET, *(_CORRELATED if case.config.privacy.noise == "banded" else ())]


def _texts(case: Case, title: str) -> str:
    """The text of a section of the statement."""
    section: Section = next(part for part in statement(case) if part.title == title)
    return "\n\n".join([*section.paragraphs, *([_listed(section.points)] if section.points else [])])


def _listed(points: Sequence[str]) -> str:
    return "\n".join(f"- {point}" for point in points)
