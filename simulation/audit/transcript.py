"""What an observer sees of a reply, as numbers and as everything else."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import Message, RecordDict

from twinflower.arrays import Array
from twinflower.errors import cause
from twinflower.wire import from_npy


class Outcome(NamedTuple):
    """One reply.

    form: place -> text, all but the values of numbers: the kind of the reply, names, types and shapes of arrays, texts,
    the type and text of an error. values: place -> the numbers of an array or a metric, flat; those that are not finite
    are named in `form`, and 0 here. A place is "record/key".
    """

    form: Mapping[str, str]
    values: Mapping[str, Array]


Transcript = Sequence[Outcome]
"""The outcomes of all rounds of a run."""


def of_message(message: Message) -> Outcome:
    """The outcome of a reply."""
    if message.has_error():
        return Outcome({"kind": "error", "error": f"{message.error.code}: {message.error.reason}"}, {})
    return of_records(message.content)


def of_exception(error: Exception) -> Outcome:
    """The outcome of an exception, whose type and text Flower passes on to the server."""
    return Outcome({"kind": "error", "error": f"{type(error).__name__}: {cause(error)}"}, {})


def of_records(content: RecordDict) -> Outcome:
    """The outcome of a reply's records."""
    form, values = {"kind": " ".join(sorted(content)) or "empty"}, {}
    for name, record in content.items():
        for key, entry in record.items():
            place = f"{name}/{key}"
            if _is_text(entry):
                form[place] = repr(entry)
            else:
                form[place], values[place] = _numbers(entry)
    return Outcome(form, values)


def _numbers(entry: Any) -> tuple[str, Array]:
    """Type and shape of an array or a number, and its entries; whole numbers without sign as those with one, so that a
    small negative number stays small."""
    array = from_npy(entry.data) if isinstance(entry, FlowerArray) else np.asarray(entry)
    if array.dtype.kind == "u":
        array = array.view(array.dtype.str.replace("u", "i"))
    finite = np.isfinite(array)
    if finite.all():
        return f"{array.dtype} {array.shape}", array.astype(float).ravel()
    return f"{array.dtype} {array.shape}, not all finite", np.where(finite, array, 0).astype(float).ravel()


def _is_text(entry: Any) -> bool:
    first = entry[0] if isinstance(entry, list) and entry else entry
    return isinstance(first, str | bytes)
