"""What an audit of one run needs to know of an app: see `canaries`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinflower.arrays import Array
from twinflower.flower_messages import FIT, reply_record

from .data import Rows
from .recorder import Arrays, Mechanism
from .transcript import Outcome, Transcript

Loss = Callable[[Arrays, Rows], Array]
"""The losses (n,) of a model at n records."""

_PREFIXES = "arrays/", f"{reply_record(FIT, 'parameters')}/"  # of the places of a reply's model


@dataclass(frozen=True)
class OneRun:
    """How a case is audited in one run: its rows, the mechanism whose server always sends `model`, and the losses."""

    mechanism: Mechanism
    model: Arrays
    rows: Rows
    loss: Loss

    def scores(self, canaries: Rows, run: Transcript) -> Array:
        """How much better the replies fit each canary than what the server sent: its loss (m,) falls if it was there.
        A round whose reply has no model counts as 0."""
        models = [found for outcome in run if (found := _model_of(outcome, self.model)) is not None]
        before = self.loss(self.model, canaries)
        gains = [before - self.loss(model, canaries) for model in models]
        return np.nan_to_num(np.sum([np.zeros(len(before)), *gains], axis=0))


def _model_of(outcome: Outcome, like: Arrays) -> Arrays | None:
    """The model in a reply in the shapes of another; None if there is none."""
    found = {
        place.removeprefix(prefix): numbers
        for place, numbers in outcome.values.items()
        for prefix in _PREFIXES
        if place.startswith(prefix)
    }
    named: Mapping[str, NDArray[Any]] = (
        like if isinstance(like, Mapping) else {str(place): array for place, array in enumerate(like)}
    )
    if any(name not in found or found[name].size != array.size for name, array in named.items()):
        return None
    arrays = {name: found[name].reshape(array.shape) for name, array in named.items()}
    return arrays if isinstance(like, Mapping) else list(arrays.values())
