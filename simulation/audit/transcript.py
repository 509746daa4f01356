"""What an observer sees of a reply, as numbers and as everything else."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import Message, RecordDict

from twinflower.arrays import Array
from twinflower.wire import from_npy


class Outcome(NamedTuple):
    """One reply.

    form: place -> text, all but the values of numbers: the kind of the reply, names, types and shapes of arrays, texts,
    the type and text of an error. values: place -> the numbers of an array or a metric, flat; those that are not finite
    are 0 here, and `form` has a digest of which they are. A place is "record/key".
    """

    form: Mapping[str, str]
    values: Mapping[str, Array]

    def without(self, places: frozenset[str]) -> "Outcome":
        """The same without what is at these places."""
        return Outcome(
            {place: text for place, text in self.form.items() if place not in places},
            {place: numbers for place, numbers in self.values.items() if place not in places},
        )


Transcript = Sequence[Outcome]
"""The outcomes of all rounds of a run."""


def same(first: Transcript, second: Transcript) -> bool:
    """Whether two runs show the same."""
    return len(first) == len(second) and all(
        a.form == b.form
        and a.values.keys() == b.values.keys()
        and all(np.array_equal(a.values[place], b.values[place]) for place in a.values)
        for a, b in zip(first, second, strict=True)
    )


def of_message(message: Message) -> Outcome:
    """The outcome of a reply."""
    if message.has_error():
        return Outcome({"kind": "error", "error": f"{message.error.code}: {message.error.reason}"}, {})
    return of_records(message.content)


def of_exception(error: Exception) -> Outcome:
    """The outcome of an exception, in the words in which Flower's SuperNode passes it on to the server."""
    return Outcome({"kind": "error", "error": f"{type(error)}:<'{error}'>"}, {})


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
    if isinstance(entry, FlowerArray) and not entry.data:
        # how Flower encodes that a NumPyClient sends no arrays
        return "no array", np.empty(0)
    array = from_npy(entry.data) if isinstance(entry, FlowerArray) else np.asarray(entry)
    if array.dtype.kind == "u":
        array = array.view(array.dtype.str.replace("u", "i"))
    finite = np.isfinite(array)
    if finite.all():
        return f"{array.dtype} {array.shape}", array.astype(float).ravel()
    which = np.where(finite, 0, np.where(np.isnan(array), 1, np.sign(array) + 3)).astype(np.uint8)
    form = f"{array.dtype} {array.shape}, not all finite: {sha256(which.tobytes()).hexdigest()[:12]}"
    return form, np.where(finite, array, 0).astype(float).ravel()


def _is_text(entry: Any) -> bool:
    first = entry[0] if isinstance(entry, list) and entry else entry
    return isinstance(first, str | bytes)
