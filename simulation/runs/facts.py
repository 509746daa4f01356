"""The facts about the rows of a run that go with its estimates (`twinflower.models.facts`), and what counts as the
event, or as the positive class, so that nobody takes one for the other."""

from collections.abc import Mapping

import numpy as np

from twinflower.data.columns import CLIPPED, Classes, Marks, Number, Survival
from twinflower.data.dataset import ARRAYS, OWN
from twinflower.data.schema import Schema
from twinflower.data.sets import TableData
from twinflower.known_objectives import COUNTING, SURVIVAL
from twinflower.models.facts import Clipped, Facts
from twinflower.problems.losses import unpacked
from twinflower.survival_labels import unsigned

from .setup import PreparedRun

_SPARE = "left over where whole groups are held out (privacy.group-size)"


def known(setup: PreparedRun) -> Facts:
    """What is known of the rows of a run.

    Numbers of rows are public in every run. Events and clipped values are counted only without privacy, and only where
    the rows are here; for columns with private ranges there are bounds from what the sites have released.
    """
    return Facts(int(setup.partition.sizes.sum()), _events(setup), _dropped(setup), _clipped(setup))


def _clipped(setup: PreparedRun) -> Mapping[str, Clipped | None] | None:
    data, rows = setup.dataset, int(setup.partition.sizes.sum())
    if data.schema is None:
        return None
    found: dict[str, Clipped | None] = {
        name: Clipped(values, rows, at_most=setup.plan is not None) for name, values in setup.outside.items()
    }
    if setup.plan or setup.config.data.name == OWN or data.marks is None:
        found |= {
            own.name: None for own in data.schema.columns if isinstance(own, Number) and own.name not in found
        }
    else:
        found |= counted(data.schema, data.marks[setup.partition.rows])
    return {name: own for name, own in found.items() if own is None or own.values}


def counted(schema: Schema, marks: Marks) -> dict[str, Clipped]:
    """How many values are clipped, by column, given the marks (rows, columns)."""
    counts = zip(schema.names, (marks == CLIPPED).sum(0).tolist(), strict=True)
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
    if setup.plan or setup.config.data.name == OWN:
        return None
    labels = data.labels[setup.partition.rows].astype(np.float64)
    if name in SURVIVAL:
        return int(unsigned(labels)[1].sum())
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
    if setup.plan or data.name == OWN or not setup.central.has_rows:
        return ""
    tested = np.zeros(0) if getattr(setup.config.data, "test_file", "") else data.test_labels
    labels = np.concatenate([data.labels, tested])
    happened = labels == 1 if data.num_classes else unsigned(labels)[1]
    return f" ({int(happened.sum()):,} of {len(labels):,})"
