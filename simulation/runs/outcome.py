"""What a run counts as the event, or as the positive class, so that nobody takes one for the other."""

import numpy as np

from twinflower.data.columns import Classes, Survival
from twinflower.data.sets import OWN
from twinflower.survival_labels import unsigned

from .setup import PreparedRun


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
