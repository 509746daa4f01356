"""What a user should know before a run: forecasts, properties of the graph, and warnings."""

import math

import numpy as np

from twinflower.algorithms.local import LocalMethod
from twinflower.arrays import Labels
from twinflower.data.sets import OWN, Data
from twinflower.known_objectives import SURVIVAL
from twinflower.privacy.plan import Plan
from twinflower.problems.batches import Workload
from twinflower.problems.discrete_cox import DiscreteCox
from twinflower.problems.penalties import L1AndL2, L1Norm, L1NormInBox
from twinflower.problems.regularisers import Ball, Box, OnPart, Support, Zero
from twinflower.problems.stratified_cox import STRATIFIED_COX
from twinflower.problems.topologies import spectrum
from twinflower.sums.plan import SumPlan
from twinflower.survival_labels import unsigned

from ..settings import Config
from .privacy import large_delta
from .setup import PreparedRun

_MUCH = 2.0  # times the noise of a mean over all rows


def outlook(setup: PreparedRun) -> list[tuple[str, str]]:
    """The method's forecast for its private run as (name, text) rows, and warnings.

    With `evaluation.reference = true` the forecast uses the actual distance between the start and the optimum.
    """
    if setup.plan is None:
        return []
    advice = _uncoupled(setup, setup.plan) + _small_sites(setup, setup.plan)
    advice += [text for query in setup.queries for text in query.advice()]
    if setup.plan.provable:
        advice += large_delta(setup.plan.delta, setup.partition.sizes.tolist(), setup.plan.unit)
    return _expected(setup, setup.plan) + [("warning", text) for text in advice]


def _expected(setup: PreparedRun, plan: Plan) -> list[tuple[str, str]]:
    away = (
        float(((setup.central.optimum - setup.start) ** 2).sum())
        if setup.config.evaluation.reference
        else None
    )
    workload = setup.schedule.workload(int(setup.partition.sizes.min()))
    return setup.method.forecast(plan.bounds, float(plan.multipliers.max()), workload, setup.start, away)


def warned(setup: PreparedRun) -> list[str]:
    """The warnings of `outlook`."""
    return [text for key, text in outlook(setup) if key == "warning"]


def graph(setup: PreparedRun) -> list[tuple[str, str]]:
    """Properties of the graph as (name, value) rows."""
    if not setup.neighbours:
        return []
    found = spectrum(setup.neighbours)._asdict()
    return [(name.replace("_", " "), f"{value:.4g}") for name, value in found.items()]


def warnings(setup: PreparedRun) -> list[str]:
    """Warnings about settings that are allowed but probably not intended."""
    return [
        *_flat_start(setup),
        *_doubled(setup),
        *_scaled_columns(setup),
        *_one_class(setup),
        *_no_events(setup),
        *_unfinished(setup),
        *_people(setup),
        *_random_strata(setup),
        *setup.method.beyond_theory(),
        *warned(setup),
    ]


def _flat_start(setup: PreparedRun) -> list[str]:
    """A warning if the penalty is strong enough to make x = 0 stationary and the run starts there."""
    key, weight = l1_weight(setup.config)
    at_zero = setup.config.regulariser.intercept and not setup.start.any() and setup.central.has_rows
    slope = setup.central.slope_at_zero if weight and at_zero else 0.0
    if not weight >= slope > 0:
        return []
    size = "" if setup.plan else f", {slope:.3g}"  # an exact function of the records
    return [
        f"{key} = {weight:g} is no less than the largest slope at 0{size}: so x = 0 is stationary and the model may "
        "stay exactly zero"
    ]


def _doubled(setup: PreparedRun) -> list[str]:
    """A warning if the method counts h twice, which matters unless h is an indicator."""
    h = setup.regulariser
    inner = h.inner if isinstance(h, OnPart) else h
    if not setup.method.doubles_regulariser or isinstance(inner, Zero | Box | Ball | Support):
        return []
    return [
        f"{setup.method.name} applies the regulariser at the clients and at the server, so the run ends near "
        "the optimum for twice its weight: halve the weight to compare with other methods"
    ]


def _scaled_columns(setup: PreparedRun) -> list[str]:
    """A warning if columns are scaled by statistics of the data, which the privacy guarantee does not cover."""
    data = setup.config.data
    scaled = "standardise" if isinstance(data, Data) and data.standardise else f"data {data.name}"
    if setup.plan is None or not setup.plan.provable or not setup.dataset.standardised:
        return []
    return [f"{scaled} divides columns by statistics of all rows, which the guarantee does not cover"]


def _one_class(setup: PreparedRun) -> list[str]:
    """A warning if all rows have the same class; the rows of deployed sites are not known here."""
    data = setup.dataset
    if setup.config.data.name == OWN or not data.num_classes or len(np.unique(data.labels)) > 1:
        return []
    return [
        f"all rows to train on have the class {data.class_names[data.labels[0]]!r}, so there is nothing to "
        "learn: check the label's column"
    ]


def _labels_of_survival(setup: PreparedRun) -> list[Labels]:
    """Every client's labels in a run of survival; empty in a private run, which says nothing about labels, and where
    they are not known."""
    if not setup.may_count or setup.config.objective.name not in SURVIVAL or not setup.central.has_rows:
        return []
    return [setup.shards.rows(client).labels for client in range(setup.config.clients.count)]


def _unfinished(setup: PreparedRun) -> list[str]:
    """A warning if nobody completes an interval, so that all who are at risk in it have the event."""
    known, objective = _labels_of_survival(setup), setup.objective
    if not known or not isinstance(objective, DiscreteCox):
        return []
    at_risk, events = objective.loss.histories(np.concatenate(known))
    unfinished = ~(at_risk & ~events).any(0)
    return [
        f"nobody was observed without the event until {end:g}, so the baseline before that cannot be "
        "estimated: choose objective.intervals that end earlier"
        for end in objective.loss.ends[unfinished][:1]
    ]


def _no_events(setup: PreparedRun) -> list[str]:
    """A warning if nobody, or nobody at some clients, had the event."""
    known = _labels_of_survival(setup)
    without = [client for client, labels in enumerate(known) if not unsigned(labels)[1].any()]
    if known and len(without) == len(known):
        return ["everybody is censored, so the model cannot be estimated: check the column of the event"]
    named = ", ".join(map(str, without))
    return [f"nobody had the event at client {named}: check the column of the event"] * bool(without)


def _random_strata(setup: PreparedRun) -> list[str]:
    """A warning if strata are random parts of one table."""
    config, data = setup.config, setup.dataset
    stratified = config.objective.name == STRATIFIED_COX or config.evaluation.survival_by
    if not stratified or data.schema is None or data.sites or data.name == OWN or config.clients.count == 1:
        return []
    return [
        f"the strata, or sites, are {config.clients.count} random parts of one table: set clients.count = 1 "
        "for a single one, or data.site-column to the column that names the sites"
    ]


def _people(setup: PreparedRun) -> list[str]:
    """A warning if a person may have several rows, and the guarantee is for one of them."""
    schema = setup.dataset.schema
    if setup.plan is None or schema is None or not schema.group or setup.plan.unit.rows != 1:
        return []
    return [
        f"the schema has a group column, '{schema.group}', and the guarantee protects single records: set "
        "privacy.protects = group and privacy.group-size"
    ]


def l1_weight(config: Config) -> tuple[str, float]:
    """The key and the weight of an l1 penalty, which has a kink at 0 in every entry; no key and 0 for other ones."""
    h = config.regulariser
    if isinstance(h, L1AndL2):
        return "regulariser.l1", h.l1
    return ("regulariser.weight", h.weight) if isinstance(h, L1Norm | L1NormInBox) else ("", 0.0)


def _uncoupled(setup: PreparedRun, plan: Plan) -> list[str]:
    """Advice for a run with several local steps whose sensitivity comes from the norm bound; empty if none applies."""
    method, workloads = setup.method, setup.schedule.workloads(setup.partition.sizes)
    if plan.mode != "public-state" or not isinstance(method, LocalMethod) or method.sensitivity != "coupled":
        return []
    workload = max(workloads, key=lambda workload: workload.steps)
    if workload.steps == 1 or math.isfinite(plan.bounds.curvature):
        return []
    now, one = (method.release(plan.bounds, p, 1).sensitivity for p in (workload, workload._replace(steps=1)))
    return [
        "this loss has no public curvature (a network, a kink, or clipped slopes of several scores), so the bound that "
        f"falls with the number of rows holds for one local step only: local.max-steps = 1 has sensitivity {one:.3g} "
        f"instead of {now:.3g}"
    ]


def _small_sites(setup: PreparedRun, plan: Plan) -> list[str]:
    """Advice for a run whose mean over the clients has much more noise than a mean over all rows would have, because of
    clients with few rows; empty if none applies.

    A client's noise is proportional to 1 / its number of rows. The mean over the clients gives it the same weight as
    any other; in the mean over all rows its weight is proportional to that number.
    """
    method, sizes = setup.method, setup.partition.sizes
    if method.info.sizes or not isinstance(method, LocalMethod):
        return []
    spreads = np.array([_spread(plan, method, workload) for workload in setup.schedule.workloads(sizes)])
    if isinstance(plan, SumPlan):  # all sites have the noise of the one whose records move the sum most
        noise, by_rows = spreads.max(), (sizes / sizes.mean() * spreads).max()
    else:
        sigmas = plan.multipliers * spreads
        noise, by_rows = np.linalg.norm(sigmas), np.linalg.norm(sizes / sizes.mean() * sigmas)
    if noise < _MUCH * by_rows:
        return []
    number = int(spreads.argmax())
    return [
        f"client {number} has {sizes[number]} rows, so few that the mean over the clients has {noise / by_rows:.2g} "
        "times the noise of a mean over all rows: set clients.weighting = rows, or leave small clients out"
    ]


def _spread(plan: Plan, method: LocalMethod, workload: Workload) -> float:
    """The standard deviation of the noise in a round's end point, up to a factor that all clients share."""
    noises = workload.steps if plan.mode == "gradient" else 1
    return method.release(plan.bounds, workload, 1).spread * math.sqrt(noises)
