"""What an observer sees of a reply, as numbers and as everything else."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from twinflower.arrays import Array
from twinflower.errors import cause


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
        return Outcome({"reply": "error", "error": f"{message.error.code}: {message.error.reason}"}, {})
    return of_records(message.content)


def of_exception(error: Exception) -> Outcome:
    """The outcome of an exception, whose type and text Flower passes on to the server."""
    return Outcome({"reply": "error", "error": f"{type(error).__name__}: {cause(error)}"}, {})


def of_records(content: RecordDict) -> Outcome:
    """The outcome of a reply's records."""
    form, values = {"reply": " ".join(sorted(content)) or "empty"}, {}
    for place, entry in _numbers(content):
        finite = np.isfinite(entry)
        form[place] = f"{entry.dtype} {entry.shape}{'' if finite.all() else ', not all finite'}"
        values[place] = np.where(finite, entry, 0).astype(float).ravel()
    for name, record in content.config_records.items():
        form |= {f"{name}/{key}": repr(entry) for key, entry in record.items() if _is_text(entry)}
    return Outcome(form, values)


def _numbers(content: RecordDict) -> Iterator[tuple[str, NDArray[Any]]]:
    """All numbers of a reply by place."""
    for name, arrays in content.array_records.items():
        yield from ((f"{name}/{key}", _signed(array.numpy())) for key, array in arrays.items())
    for name, metrics in content.metric_records.items():
        yield from ((f"{name}/{key}", np.asarray(entry)) for key, entry in metrics.items())
    for name, config in content.config_records.items():
        yield from (
            (f"{name}/{key}", np.asarray(entry)) for key, entry in config.items() if not _is_text(entry)
        )


def _is_text(entry: Any) -> bool:
    first = entry[0] if isinstance(entry, list) and entry else entry
    return isinstance(first, str | bytes)


def _signed(array: NDArray[Any]) -> NDArray[Any]:
    """Integers without sign as integers with one, so that a small negative number stays small."""
    return array.view(array.dtype.str.replace("u", "i")) if array.dtype.kind == "u" else array
