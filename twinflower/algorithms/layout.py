"""Declared messages: what the fields of an inbox, an upload or a stored state are, and all that follows from it.

A `Layout` names a NamedTuple and declares its fields in the order in which they cross the wire. Packing, strict
unpacking (nothing is accepted that packing would not have written), the number of bits and the shapes of stored state
follow. d is the number of entries of the model.

    Layout(Inbox, Thinned("x0", "kept", TopK(0.5)), Count("heard"), Seed("seed"))
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ReplyError
from ..sparsifiers import VALUE_BITS, Code, RandK, TopK, kept_entries, scatter
from ..wire import checked, expect_arrays

Arrays = list[NDArray[Any]]
Shape = tuple[int, ...]
_ALL = np.empty(0, dtype=np.int64)  # the indices of a vector that is sent whole
_NO_SEED = np.zeros((), dtype=np.uint64)


class Field(ABC):
    """The declaration of one field of a NamedTuple, or of two that cross the wire together."""

    names: tuple[str, ...]

    @abstractmethod
    def pack(self, *values: Any, d: int) -> Arrays:
        """Wire arrays of one client's values, one value for each name."""

    @abstractmethod
    def unpack(self, arrays: Arrays, d: int, request: Any) -> Sequence[Any]:
        """The values; ReplyError for anything that `pack` would not have written. request: what an
        upload answers, unpacked."""

    @abstractmethod
    def bits(self, d: int) -> int:
        """Bits on the wire, before they are filled up to bytes."""

    def arrays(self, d: int) -> int:
        """Number of wire arrays."""
        return 1

    def entries(self, d: int) -> int:
        """Numbers that the papers count, at 32 bits each."""
        return 0

    def shapes(self, d: int) -> Sequence[Shape]:
        """Shape of each stored value."""
        raise NotImplementedError(f"{type(self).__name__} fields are sent, not stored")


class Point(Field):
    """per_entry * d + extra finite numbers: by default one for every entry of the model."""

    def __init__(self, name: str, per_entry: int = 1, extra: int = 0) -> None:
        self.names, self.per_entry, self.extra = (name,), per_entry, extra

    def pack(self, *values: Any, d: int) -> Arrays:
        """The array."""
        return list(values)

    def unpack(self, arrays: Arrays, d: int, request: Any) -> Sequence[Any]:
        """A finite array of this length."""
        return [checked(self.names[0], arrays[0], (self.entries(d),))]

    def bits(self, d: int) -> int:
        """64 for each number."""
        return self.entries(d) * VALUE_BITS

    def entries(self, d: int) -> int:
        """All of them."""
        return self.per_entry * d + self.extra

    def shapes(self, d: int) -> Sequence[Shape]:
        """One vector."""
        return [(self.entries(d),)]


class Cells(Field):
    """d whole numbers modulo 2^64."""

    def __init__(self, name: str) -> None:
        self.names = (name,)

    def pack(self, *values: Any, d: int) -> Arrays:
        """The array."""
        return list(values)

    def unpack(self, arrays: Arrays, d: int, request: Any) -> Sequence[Any]:
        """The array (d,) of uint64."""
        return [checked(self.names[0], arrays[0], (d,), np.uint64)]

    def bits(self, d: int) -> int:
        """64 for each."""
        return d * VALUE_BITS

    def entries(self, d: int) -> int:
        """All of them."""
        return d


class Count(Field):
    """A whole number in [least, most]."""

    dtype: ClassVar[type] = np.int64

    def __init__(self, name: str, least: int = 0, most: int = 2**63 - 1) -> None:
        self.names, self.least, self.most = (name,), least, most

    def pack(self, *values: Any, d: int) -> Arrays:
        """A 0-d array."""
        return [np.asarray(value) for value in values]

    def unpack(self, arrays: Arrays, d: int, request: Any) -> Sequence[Any]:
        """A number in the range."""
        number = checked(self.names[0], arrays[0], (), self.dtype)
        if not (self.least <= number <= self.most and number == np.floor(number)):
            raise ReplyError(
                f"{self.names[0]} must be a whole number from {self.least} to {self.most}, got {number}"
            )
        return [number]

    def bits(self, d: int) -> int:
        """64."""
        return VALUE_BITS

    def shapes(self, d: int) -> Sequence[Shape]:
        """One number."""
        return [()]


class FloatCount(Count):
    """A `Count` that takes part in floating-point formulas and is held as one."""

    dtype = np.float64


class Seed(Count):
    """A public 64-bit seed."""

    dtype = np.uint64

    def __init__(self, name: str) -> None:
        super().__init__(name, most=2**64 - 1)


class Absent(Field):
    """A field that does not cross the wire: both sides know its value."""

    def __init__(self, name: str, value: NDArray[Any]) -> None:
        self.names, self.value = (name,), value

    def arrays(self, d: int) -> int:
        """None."""
        return 0

    def pack(self, *values: Any, d: int) -> Arrays:
        """Nothing."""
        return []

    def unpack(self, arrays: Arrays, d: int, request: Any) -> Sequence[Any]:
        """The value."""
        return [self.value]

    def bits(self, d: int) -> int:
        """0."""
        return 0

    def shapes(self, d: int) -> Sequence[Shape]:
        """As the value."""
        return [self.value.shape]


class Thinned(Field):
    """A vector (d,) reduced to its largest entries, and which they are (k,), or (0,) if all."""

    def __init__(self, name: str, kept: str, sparsifier: TopK) -> None:
        self.names, self.sparsifier = (name, kept), sparsifier

    def arrays(self, d: int) -> int:
        """Values, and their packed places unless all are there."""
        return self.sparsifier.arrays(d)

    def pack(self, *values: Any, d: int) -> Arrays:
        """See `arrays`."""
        x, kept = values
        return [x] if self.sparsifier.ratio == 1 else self.sparsifier.pack(Code(kept, x[kept]), d)

    def unpack(self, arrays: Arrays, d: int, request: Any) -> Sequence[Any]:
        """The zero-padded vector and the places."""
        if self.sparsifier.ratio == 1:
            return [checked(self.names[0], arrays[0], (d,)), _ALL]
        code = self.sparsifier.unpack(arrays, d, _NO_SEED)
        return [scatter(code, d)[0], code.indices]

    def bits(self, d: int) -> int:
        """Of the values and the places; SettingError where no entry is left."""
        kept_entries(self.sparsifier.ratio, d, "downlink-ratio")
        return self.sparsifier.bits(d)

    def entries(self, d: int) -> int:
        """k, the number of entries kept."""
        return kept_entries(self.sparsifier.ratio, d)


class Entries(Field):
    """k entries of a vector (d,), and which they are (k,), or (0,) if all were sent."""

    def __init__(self, name: str, indices: str, sparsifier: TopK | RandK) -> None:
        self.names, self.sparsifier = (name, indices), sparsifier

    @property
    def _whole(self) -> bool:
        return self.sparsifier.ratio == 1

    def arrays(self, d: int) -> int:
        """Values, and for top-k their packed places."""
        return 1 if self._whole else self.sparsifier.arrays(d)

    def pack(self, *values: Any, d: int) -> Arrays:
        """See `arrays`."""
        entries, indices = values
        return [entries] if self._whole else self.sparsifier.pack(Code(indices, entries), d)

    def unpack(self, arrays: Arrays, d: int, request: Any) -> Sequence[Any]:
        """The values and the places; rand-k derives these from the seed of the request."""
        if self._whole:
            return [checked(self.names[0], arrays[0], (d,)), _ALL]
        seed = request.seed if isinstance(self.sparsifier, RandK) else _NO_SEED
        indices, entries = self.sparsifier.unpack(arrays, d, seed)
        return [entries, indices]

    def bits(self, d: int) -> int:
        """Of the values and the places."""
        return d * VALUE_BITS if self._whole else self.sparsifier.bits(d)

    def entries(self, d: int) -> int:
        """k, the number of entries sent."""
        return kept_entries(self.sparsifier.ratio, d)


class Layout:
    """The declarations of a NamedTuple's fields, in the order of the wire."""

    def __init__(self, kind: type, *fields: Field) -> None:
        self.kind, self.fields = kind, fields

    def pack(self, message: Any, d: int) -> Arrays:
        """Wire arrays of one client's message."""
        parts = (f.pack(*(getattr(message, name) for name in f.names), d=d) for f in self.fields)
        return [array for part in parts for array in part]

    def unpack(self, arrays: Sequence[NDArray[Any]], d: int, request: Any = None) -> Any:
        """Inverse of `pack`; ReplyError for anything that it would not have written.

        request: for an upload, the inbox that it answers.
        """
        counts = [f.arrays(d) for f in self.fields]
        expect_arrays(arrays, sum(counts))
        values: dict[str, Any] = {}
        for field, count in zip(self.fields, counts, strict=True):
            own, arrays = list(arrays[:count]), arrays[count:]
            values |= zip(field.names, field.unpack(own, d, request), strict=True)
        return self.kind(**values)

    def shapes(self, d: int) -> dict[str, Shape]:
        """Shapes of one client's stored values by name."""
        return {n: s for f in self.fields for n, s in zip(f.names, f.shapes(d), strict=True)}

    def bits(self, d: int) -> int:
        """Bits on the wire."""
        return sum(f.bits(d) for f in self.fields)

    def paper_bits(self, d: int) -> int:
        """Bits as the papers count them: 32 for every entry, places free."""
        return 32 * sum(f.entries(d) for f in self.fields)
