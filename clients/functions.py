"""The format of messages to and from apps whose clients are functions, `@app.train()` and `@app.evaluate()`.

Flower's own strategies and templates use records named "arrays" (the model, under the names of its parts), "config" and
"metrics". A message of ours is a list of arrays, declared by the algorithm's `Layout`: vectors of the model's length,
which become arrays under the names of the model's parts, and single numbers, which become entries of the config or of
the metrics under the name of their field.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from twinflower.algorithms.layout import Constant, Count, Entries, Field, Layout, SparseVector
from twinflower.errors import ReplyError, SettingError
from twinflower.wire import from_npy

from .records import encode

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
"""The names of the records."""


@dataclass(frozen=True)
class NamedParts:
    """The parts of a model, by name: their shapes, and the floating-point type of all.

    Raises SettingError for a model without parts, or whose parts are not all of one floating-point type.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, model: ArrayRecord) -> "NamedParts":
        """The parts of this model."""
        arrays = {name: from_npy(array.data) for name, array in model.items()}
        types = sorted({str(array.dtype) for array in arrays.values()})
        if types not in (["float32"], ["float64"]):
            raise SettingError(
                "a model's parts must all be float32, or all float64; got "
                f"{', '.join(types) or 'no part'}: leave counters and other buffers out of the record"
            )
        return cls({name: array.shape for name, array in arrays.items()}, np.dtype(types[0]))

    @classmethod
    def leading(cls, message: ArrayRecord, d: int) -> "NamedParts":
        """The parts of the model of d entries with which this message begins; ReplyError if it does not."""
        shapes, dtype = {}, np.dtype(np.float64)
        for name, array in message.items():
            part = from_npy(array.data)
            shapes[name], dtype = part.shape, part.dtype
            if (parts := cls(shapes, dtype)).d >= d:
                break
        if not shapes or parts.d != d:
            raise ReplyError(
                f"a request must hold the model, {d} numbers; got arrays of shapes {list(shapes.values())}"
            )
        return parts

    @property
    def d(self) -> int:
        """The number of entries of the model."""
        return sum(map(math.prod, self.shapes.values()))

    def split(self, vector: NDArray[Any], prefix: str = "") -> ArrayRecord:
        """The vector (d,) in parts, under the names of the model's with this prefix."""
        record, first = ArrayRecord(), 0
        for name, shape in self.shapes.items():
            record[prefix + name] = encode(vector[first : first + math.prod(shape)].reshape(shape))
            first += math.prod(shape)
        return record

    def joined(self, record: Mapping[str, Any], prefix: str = "") -> NDArray[Any]:
        """The vector (d,) of these parts; ReplyError if one is missing or has another shape or type."""
        return np.concatenate([self._part(record, prefix, name).ravel() for name in self.shapes])

    def _part(self, record: Mapping[str, Any], prefix: str, name: str) -> NDArray[Any]:
        if prefix + name not in record:
            raise ReplyError(
                f"the array '{prefix + name}' is missing; there are {', '.join(record) or 'none'}"
            )
        part = from_npy(record[prefix + name].data)
        if part.shape != self.shapes[name] or part.dtype != self.dtype:
            raise ReplyError(
                f"the array '{prefix + name}' must be {self.dtype} of shape {self.shapes[name]}; got {part.dtype} of "
                f"shape {part.shape}"
            )
        return part


@dataclass(frozen=True)
class FunctionFormat:
    """One kind of message, an algorithm's inbox or upload, as records of functions.

    parts: of the model. The first vector has the names of the parts; those of a further one begin with the name of its
    field and a point. Raises SettingError for a layout with compressed vectors, which have no parts.
    """

    layout: Layout
    parts: NamedParts

    def __post_init__(self) -> None:
        for field in self.layout.fields:
            if isinstance(field, Entries | SparseVector) and field.sparsifier.ratio != 1:
                raise SettingError(
                    "clients that are functions send whole vectors: set uplink-ratio and downlink-ratio to 1"
                )

    @property
    def _fields(self) -> list[tuple[Field, str]]:
        """The fields that are sent, and the prefix of each."""
        sent = [field for field in self.layout.fields if not isinstance(field, Constant)]
        vectors = [field for field in sent if not isinstance(field, Count)]
        return [(field, "" if field in vectors[:1] else f"{field.names[0]}.") for field in sent]

    def write(self, arrays: Sequence[NDArray[Any]]) -> tuple[ArrayRecord, dict[str, Any]]:
        """The named arrays and the numbers of a packed message."""
        record, numbers = ArrayRecord(), dict[str, Any]()
        for (field, prefix), array in zip(self._fields, arrays, strict=True):
            if isinstance(field, Count):
                numbers[field.names[0]] = array.item()
            elif array.shape == (self.parts.d,):
                record.update(self.parts.split(array, prefix))
            else:
                record[field.names[0]] = encode(array)
        return record, numbers

    def read(self, record: Mapping[str, Any], numbers: Mapping[str, Any]) -> list[NDArray[Any]]:
        """The packed message; ReplyError if a part or a number is missing or has another form."""
        return [self._read(field, prefix, record, numbers) for field, prefix in self._fields]

    def _read(
        self, field: Field, prefix: str, record: Mapping[str, Any], numbers: Mapping[str, Any]
    ) -> NDArray[Any]:
        name, length = field.names[0], field.entries(self.parts.d)
        if isinstance(field, Count):
            return self._number(name, field, numbers.get(name))
        if length == self.parts.d:
            return self.parts.joined(record, prefix)
        return NamedParts({name: (length,)}, self.parts.dtype).joined(record)

    def _number(self, name: str, field: Count, value: object) -> NDArray[Any]:
        if type(value) not in (int, float):
            raise ReplyError(f"the number '{name}' is missing; it belongs to the {METRICS} of a reply")
        return np.asarray(value, field.kind or self.parts.dtype)
