"""The facts about the rows of a run that go with its estimates (`twinflower.models.facts`): which rows belong to whom,
what counts as the event, or as the positive class, and how far the estimates are from the optimum."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from twinflower.arrays import Array, Index, Mask
from twinflower.data.columns import CLIPPED, Classes, Label, Marks, Number, Survival
from twinflower.data.dataset import ARRAYS, OWN
from twinflower.data.partition import Partition, describe, held_out_rows
from twinflower.data.schema import Schema
from twinflower.data.sets import TableData
from twinflower.data.sites import OwnData
from twinflower.errors import DataError
from twinflower.known_objectives import COUNTING, SURVIVAL
from twinflower.models.facts import Clipped, Facts
from twinflower.models.inference import farthest
from twinflower.models.information import MOST_PARAMETERS, Information
from twinflower.models.inputs import Inputs
from twinflower.problems.discrete_cox import DiscreteCox
from twinflower.problems.interfaces import Batch
from twinflower.problems.losses import Squared, unpacked
from twinflower.problems.objectives import LinearModel, LinearObjective
from twinflower.queries.information import LIKELIHOODS
from twinflower.survival_labels import unsigned

from ..settings import Config
from .setup import PreparedRun

_FLAT = 1e-100  # curvature below which there is no information
_SPARE = "left over where whole groups are held out (privacy.group-size)"


def known(setup: PreparedRun) -> Facts:
    """What is known of the rows of a run.

    Numbers of rows are public in every run. Events and clipped values, of rows with a weight above 0, are counted only
    without privacy, and only where the rows are here; for columns with private ranges there are bounds from what the
    sites have released.
    """
    facts = Facts(int(setup.partition.sizes.sum()), _events(setup), _dropped(setup))
    schema = setup.dataset.schema
    if schema is None:
        return facts
    marks = _marks(setup)
    counts = None if marks is None else counted(schema.marked, marks)
    if counts and _within_first_interval(setup, schema.label):
        counts.pop(schema.label.column, None)
    return _with_clipped(setup, facts, [*_numbers(schema), *schema.limits], counts)._replace(
        clipped_rows=_of_terms(schema, marks)
    )


def _within_first_interval(setup: PreparedRun, label: Label) -> bool:
    """Whether times that are moved up to their range stay in the first interval of a model of intervals."""
    objective = setup.objective
    if not (isinstance(label, Survival) and isinstance(objective, DiscreteCox)):
        return False
    return bool(label.times.low <= objective.loss.ends[0])


def _marks(setup: PreparedRun) -> Marks | None:
    """The marks (rows, columns) of the rows that are trained on; None if they must not be counted, or are not here."""
    marks = setup.dataset.marks
    return marks[_observed(setup)] if marks is not None and setup.may_count else None


def _observed(setup: PreparedRun) -> Index:
    """The numbers of the rows that are trained on with a weight above 0."""
    rows, weights = setup.partition.rows, setup.dataset.row_weights
    return rows if weights is None else rows[weights[rows] > 0]


def of_fit(
    setup: PreparedRun, X: Any, inputs: Inputs, outside: Mapping[str, Mask], weights: Array | None
) -> Facts:
    """What is known of the rows X, an array or columns by name, of an estimator's run.

    outside: which rows' y and weights were clipped to their range. weights (rows,): None for none; rows of weight 0 are
    not counted.
    """
    facts, schema = known(setup), inputs.schema
    if setup.plan:
        return _with_clipped(setup, facts, [*(_numbers(schema) if schema else inputs.names), *outside], None)
    marks, kept = inputs.marks(X), slice(None) if weights is None else weights > 0
    counts = counted(inputs.names, marks[kept])
    counts |= {name: Clipped(int(rows[kept].sum()), len(rows[kept])) for name, rows in outside.items()}
    facts = _with_clipped(setup, facts, (), counts)
    return facts._replace(clipped_rows=_of_terms(schema, marks[kept])) if schema else facts


def _numbers(schema: Schema) -> list[str]:
    """The names of the columns of numbers."""
    return [column.name for column in schema.columns if isinstance(column, Number)]


def _with_clipped(
    setup: PreparedRun, facts: Facts, limited: Sequence[str], counts: Mapping[str, Clipped] | None
) -> Facts:
    """The facts with how many values were clipped, by column.

    limited: the columns with a range. counts: their clipped values; None if nobody may count them, or the rows are
    elsewhere.
    """
    rows, private = int(setup.partition.sizes.sum()), setup.plan is not None
    released = {name: Clipped(values, rows, private) for name, values in setup.outside.items()}
    clipped = {**dict.fromkeys(limited if counts is None else ()), **released, **(counts or {})}
    return facts._replace(
        clipped={name: count for name, count in clipped.items() if count is None or count.values}
    )


def _of_terms(schema: Schema, marks: Marks | None) -> dict[str, Clipped | None]:
    """In how many rows a term has a clipped value; without marks only those of categories are known to have none."""
    counts: dict[str, Clipped | None] = {}
    for term in schema.terms:
        columns = [place for place, column in enumerate(schema.columns) if column.name in term.columns]
        if marks is not None:
            clipped = (marks[:, columns] == CLIPPED).any(1)
            counts[term.name] = Clipped(int(clipped.sum()), len(marks))
        elif any(isinstance(schema.columns[place], Number) for place in columns):
            counts[term.name] = None
    return counts


def counted(names: Sequence[str], marks: Marks) -> dict[str, Clipped]:
    """How many values are clipped, by column, given the marks (rows, columns) of these columns."""
    counts = zip(names, (marks == CLIPPED).sum(0).tolist(), strict=True)
    return {name: Clipped(values, len(marks)) for name, values in counts if values}


def _dropped(setup: PreparedRun) -> dict[str, int]:
    """The rows on which the run does not train, by reason."""
    data, held = setup.dataset, len(setup.held.rows) if setup.held else 0
    here = setup.config.data.name != OWN
    rows = len(data.labels) if here else sum(setup.config.sizes)
    left = rows - int(setup.partition.sizes.sum()) - held
    found = {
        _why_tested(setup): len(data.test_labels) if _why_tested(setup) else 0,
        "held out at the sites (evaluation.held-out)": held,
        "left out by the partition" if here else _SPARE: left,
    }
    return {reason: number for reason, number in found.items() if number}


def _why_tested(setup: PreparedRun) -> str:
    """Why test rows are not trained on; empty if they are, or are no part of the data."""
    data = setup.config.data
    if isinstance(data, TableData):
        return "" if data.test_file else "held out for the test (data.test-fraction)"
    return "" if data.name in (OWN, ARRAYS) else "test rows of the data set"


def _events(setup: PreparedRun) -> int | None:
    """The rows with the event, a count above 0, or another class than the first; None if they are not counted."""
    name, data = setup.config.objective.name, setup.dataset
    if not setup.may_count:
        return None
    labels = data.labels[_observed(setup)].astype(np.float64)
    if name in SURVIVAL:
        times, events = unsigned(labels)
        last = setup.objective.loss.ends[-1] if isinstance(setup.objective, DiscreteCox) else np.inf
        return int(events[times <= last].sum())
    if name == COUNTING:
        return int((unpacked(labels)[0] > 0).sum())
    return int(np.count_nonzero(labels)) if data.num_classes else None


def outcome(setup: PreparedRun) -> str:
    """Such as "event: DECEASED (172 of 300)"; empty for labels of another kind.

    The rows are all that the run has for training and tests; they are left out of private runs, and where only the
    sites have them.
    """
    label = setup.dataset.schema.label if setup.dataset.schema else None
    if isinstance(label, Survival):
        return f"event: {' or '.join(label.happened)}{_share(setup)}"
    if isinstance(label, Classes) and len(label.names) == 2:
        return f"positive class: {label.names[1]}{_share(setup)}"
    return ""


def _share(setup: PreparedRun) -> str:
    data = setup.dataset
    if not (setup.may_count and setup.central.has_rows):
        return ""
    tested = np.zeros(0) if getattr(setup.config.data, "test_file", "") else data.test_labels
    labels = np.concatenate([data.labels, tested])
    happened = labels == 1 if data.num_classes else unsigned(labels)[1]
    return f" ({int(happened.sum()):,} of {len(labels):,})"


def distance(setup: PreparedRun, x: Array) -> float | None:
    """The distance of x (d,) from the minimiser of F + h in standard errors: the largest of all linear combinations of
    its entries, by one step of Newton's method. None in a private run, for a model without a likelihood or with more
    than `MOST_PARAMETERS` entries.

    The step is for the gradient mapping L (x - prox(x - F'(x) / L)) in place of F', which is 0 at the minimiser.
    """
    model, chosen = setup.objective, setup.config.objective
    weighted = isinstance(chosen, LinearObjective) and chosen.class_weights
    if setup.plan or weighted or chosen.name not in LIKELIHOODS or not isinstance(model, LinearModel):
        return None
    if model.d > MOST_PARAMETERS:
        return None
    x = x.astype(np.float64)
    sites = [setup.shards.rows(client) for client in range(setup.config.clients.count)]
    sums = Information.together(Information.of(model, x, rows, False) for rows in sites)
    steepest = max(float(np.linalg.eigvalsh(sums.matrix)[-1]) / sums.rows, _FLAT)
    mapped = x - setup.regulariser.prox(x - setup.central.gradient(x) / steepest, 1 / steepest)
    return farthest(sums._replace(gradient=sums.rows * steepest * mapped), isinstance(model.loss, Squared))


# --- which rows belong to whom


def all_rows(setup: PreparedRun, number: int) -> Batch:
    """A client's rows, including those that it holds out."""
    held = setup.held.of(number) if setup.held else setup.partition.of(number)[:0]
    return setup.dataset.batch(np.sort(np.concatenate([setup.partition.of(number), held])))


def described(setup: PreparedRun) -> str:
    """A short description of the partition, with the data set's note."""
    data, here = setup.dataset, setup.config.data.name != OWN
    text = describe(setup.partition, data.labels, data.num_classes) if here else ""
    return "\n".join(filter(None, (text, known(setup).sentence, data.note)))


def at_site(setup: PreparedRun, number: int) -> PreparedRun:
    """The same run at the node of client `number`, whose data-file holds this client's rows.

    Raises DataError if the number of rows differs from partition.sizes.
    """
    data = setup.config.data
    if not isinstance(data, OwnData):
        return setup
    rows, said = len(setup.dataset.labels), setup.config.sizes[number]
    if rows != said:
        raise DataError(
            f"partition.sizes says {said} rows for client {number}; {data.file} has {rows}",
            "its number of rows is not that in partition.sizes",
        )
    return replace(setup, site=number) if setup.held is None else _split_at_site(setup, number, setup.held)


def _split_at_site(setup: PreparedRun, number: int, held: Partition) -> PreparedRun:
    """`at_site` for a run with held-out rows; the partitions number the rows of all sites one after the other."""
    before, data = sum(setup.config.sizes[:number]), setup.dataset
    parts = (setup.partition.of(number) - before, held.of(number) - before)
    if data.groups is not None:
        parts = _whole_groups(setup.config, number, data.groups)
    training, own_held = (data.batch(rows) for rows in parts)
    dataset = replace(
        data,
        features=training.features,
        labels=training.labels,
        row_weights=training.row_weights,
        groups=training.groups,
        marks=None if data.marks is None else data.marks[parts[0]],
    )
    return replace(setup, site=number, dataset=dataset, own_held=own_held._replace(row_weights=None))


def _whole_groups(config: Config, client: int, groups: Index) -> tuple[Index, Index]:
    """A site's rows to train on and to evaluate on, no group in both; DataError for a group above group-size."""
    most, largest = config.privacy.group_size, int(np.bincount(groups).max())
    if not largest <= most:
        raise DataError(
            f"the data-file has {largest} rows of one group, and privacy.group-size is {most}: raise it, or leave "
            "rows out",
            "the numbers of rows of a person in its table do not fit the run's group-size",
        )
    return held_out_rows(len(groups), config.evaluation.held_out, config.seed, client, groups, most)
