"""Declared messages: the layout of an inbox, an upload or a stored state, from which its serialisation is derived.

A `Layout` names a NamedTuple and declares its fields in the order in which they are sent. From this it derives packing,
strict unpacking (only arrays that packing could have written are accepted), the number of bits, and the shapes of
stored state. d is the number of entries of the model, and dtype the floating-point type of the run's numbers: that of
its starting point.

    Layout(Inbox, SparseVector("x0", "kept", TopK(0.5)), Count("heard"))
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..arrays import DOUBLE
from ..errors import ReplyError
from ..sparsifiers import Code, RandK, TopK, kept_entries, scatter, value_bits
from ..wire import checked, expect_arrays

Arrays = list[NDArray[Any]]
Shape = tuple[int, ...]
_ALL = np.empty(0, dtype=np.int64)  # the indices of a vector that is sent completely
_NO_SEED = np.zeros((), dtype=np.uint64)


class Field(ABC):
    """The declaration of one field of a NamedTuple, or of two fields that are sent together."""

    names: tuple[str, ...]

    @abstractmethod
    def pack(self, *values: Any, d: int) -> Arrays:
        """The wire arrays of one client's values, given one value for each name."""

    @abstractmethod
    def unpack(self, arrays: Arrays, d: int, request: Any, dtype: DTypeLike) -> Sequence[Any]:
        """The values. Raises ReplyError for anything that `pack` would not have written. request: for an upload, the
        unpacked inbox that it replies to."""

    @abstractmethod
    def bits(self, d: int, dtype: DTypeLike) -> int:
        """Number of bits sent, before padding to whole bytes."""

    def arrays(self, d: int) -> int:
        """Number of wire arrays."""
        return 1

    def entries(self, d: int) -> int:
        """The communication cost in entries of 32 bits, as the papers count it."""
        return 0

    def shapes(self, d: int) -> Sequence[Shape]:
        """The shape of each stored value."""
        raise NotImplementedError(f"{type(self).__name__} fields are sent, not stored")


class Point(Field):
    """A vector of per_entry * d + extra finite floats; by default one for every entry of the model.

    kind: the type of its entries; None for the run's floating-point type.
    """

    def __init__(self, name: str, per_entry: int = 1, extra: int = 0, kind: DTypeLike | None = None) -> None:
        self.names, self.per_entry, self.extra, self.kind = (name,), per_entry, extra, kind

    def pack(self, *values: Any, d: int) -> Arrays:
        """The array itself."""
        return list(values)

    def unpack(self, arrays: Arrays, d: int, request: Any, dtype: DTypeLike) -> Sequence[Any]:
        """A finite array of the declared length and type."""
        return [checked(self.names[0], arrays[0], (self.entries(d),), self.kind or dtype)]

    def bits(self, d: int, dtype: DTypeLike) -> int:
        """64 bits per number, 32 for floats in single precision."""
        return self.entries(d) * value_bits(self.kind or dtype)

    def entries(self, d: int) -> int:
        """The length of the vector."""
        return self.per_entry * d + self.extra

    def shapes(self, d: int) -> Sequence[Shape]:
        """The shape of the vector."""
        return [(self.entries(d),)]


class MaskedInts(Point):
    """A vector of size(d) integers modulo 2^64."""

    def __init__(self, name: str, size: Callable[[int], int]) -> None:
        super().__init__(name, kind=np.uint64)
        self.size = size

    def entries(self, d: int) -> int:
        """The length of the vector."""
        return self.size(d)


class Count(Field):
    """A whole number in [least, most].

    kind: its type; None for a number that appears in floating-point formulas, which has the run's floating-point type
    and is below 2^24 in single precision.
    """

    def __init__(
        self, name: str, least: int = 0, most: float = 2**63 - 1, kind: DTypeLike | None = np.int64
    ) -> None:
        self.names, self.least, self.most, self.kind = (name,), least, most, kind

    def pack(self, *values: Any, d: int) -> Arrays:
        """One 0-d array."""
        return [np.asarray(value) for value in values]

    def unpack(self, arrays: Arrays, d: int, request: Any, dtype: DTypeLike) -> Sequence[Any]:
        """The number, checked to be finite and in the declared range."""
        scalar = checked(self.names[0], arrays[0], (), self.kind or dtype)
        if not self.fits(scalar.item()):
            raise ReplyError(f"{self.names[0]} must be {self.rule}, got {scalar}")
        return [scalar]

    def fits(self, value: float) -> bool:
        """Whether a finite number is one of these."""
        return self.least <= value <= self.most and value == int(value)

    @property
    def rule(self) -> str:
        """What the number must be, for an error message."""
        return f"a whole number from {self.least} to {self.most}"

    def bits(self, d: int, dtype: DTypeLike) -> int:
        """64 bits, 32 for a float in single precision."""
        return value_bits(self.kind or dtype)

    def shapes(self, d: int) -> Sequence[Shape]:
        """The shape of a scalar."""
        return [()]


class Amount(Count):
    """A finite float from 0 to most."""

    def __init__(self, name: str, most: float = math.inf) -> None:
        super().__init__(name, most=most, kind=None)

    def fits(self, value: float) -> bool:
        """Whether it is in the range."""
        return 0 <= value <= self.most

    @property
    def rule(self) -> str:
        """See `Count.rule`."""
        return "at least 0" if self.most == math.inf else f"from 0 to {self.most:g}"


class Constant(Field):
    """A field that is not sent, because both sides know its value."""

    def __init__(self, name: str, value: NDArray[Any]) -> None:
        self.names, self.value = (name,), value

    def arrays(self, d: int) -> int:
        """0, as nothing is sent."""
        return 0

    def pack(self, *values: Any, d: int) -> Arrays:
        """No arrays."""
        return []

    def unpack(self, arrays: Arrays, d: int, request: Any, dtype: DTypeLike) -> Sequence[Any]:
        """The known value."""
        return [self.value]

    def bits(self, d: int, dtype: DTypeLike) -> int:
        """0, as nothing is sent."""
        return 0

    def shapes(self, d: int) -> Sequence[Shape]:
        """The shape of the known value."""
        return [self.value.shape]


class Entries(Field):
    """k entries of a vector (d,) and their indices (k,), or (0,) if all entries are sent."""

    def __init__(self, name: str, indices: str, sparsifier: TopK | RandK) -> None:
        self.names, self.sparsifier = (name, indices), sparsifier

    @property
    def _whole(self) -> bool:
        return self.sparsifier.ratio == 1

    def arrays(self, d: int) -> int:
        """1 for the values, and for top-k 1 for their packed indices unless all entries are sent."""
        return self.sparsifier.arrays(d)

    def pack(self, *values: Any, d: int) -> Arrays:
        """The values, and for top-k the packed indices unless all entries are sent."""
        entries, indices = values
        return self.sparsifier.pack(Code(indices, entries), d)

    def unpack(self, arrays: Arrays, d: int, request: Any, dtype: DTypeLike) -> Sequence[Any]:
        """The values and their indices; for rand-k the indices are derived from the seed of the request."""
        if self._whole:
            return [checked(self.names[0], arrays[0], (d,), dtype), _ALL]
        seed = request.seed if isinstance(self.sparsifier, RandK) else _NO_SEED
        indices, entries = self.sparsifier.unpack(arrays, d, seed, dtype)
        return [entries, indices]

    def bits(self, d: int, dtype: DTypeLike) -> int:
        """Bits of the values and indices."""
        return self.sparsifier.bits(d, dtype)

    def entries(self, d: int) -> int:
        """k, the number of entries sent."""
        return kept_entries(self.sparsifier.ratio, d)


class SparseVector(Entries):
    """A vector (d,) reduced to its largest entries, and the indices of these (k,), or (0,) if all entries are kept."""

    def pack(self, *values: Any, d: int) -> Arrays:
        """The values that are kept, and the packed indices unless all are."""
        x, kept = values
        return super().pack(x if self._whole else x[kept], kept, d=d)

    def unpack(self, arrays: Arrays, d: int, request: Any, dtype: DTypeLike) -> Sequence[Any]:
        """The zero-padded vector (d,) and the indices of its kept entries."""
        entries, indices = super().unpack(arrays, d, request, dtype)
        return [entries if self._whole else scatter(Code(indices, entries), d)[0], indices]

    def bits(self, d: int, dtype: DTypeLike) -> int:
        """Bits of the values and indices. Raises SettingError if the downlink ratio leaves no entry."""
        kept_entries(self.sparsifier.ratio, d, "downlink-ratio")
        return super().bits(d, dtype)


class Layout:
    """The declarations of a NamedTuple's fields, in the order in which they are sent."""

    def __init__(self, kind: type, *fields: Field) -> None:
        self.kind, self.fields = kind, fields
        self._names = [name for field in fields for name in field.names]
        self._counts: dict[int, list[int]] = {}
        self._shapes: dict[int, dict[str, Shape]] = {}

    def pack(self, message: Any, d: int) -> Arrays:
        """The wire arrays of one client's message."""
        arrays: Arrays = []
        for field in self.fields:
            arrays += field.pack(*[getattr(message, name) for name in field.names], d=d)
        return arrays

    def unpack(
        self, arrays: Sequence[NDArray[Any]], d: int, request: Any = None, dtype: DTypeLike = DOUBLE
    ) -> Any:
        """Invert `pack`. Raises ReplyError for anything that `pack` would not have written.

        request: for an upload, the inbox that it replies to.
        """
        counts = self._counts.get(d) or self._counts.setdefault(d, [f.arrays(d) for f in self.fields])
        expect_arrays(arrays, sum(counts))
        values: list[Any] = []
        first = 0
        for field, count in zip(self.fields, counts, strict=True):
            values += field.unpack(list(arrays[first : first + count]), d, request, dtype)
            first += count
        return self.kind(**dict(zip(self._names, values, strict=True)))

    def shapes(self, d: int) -> dict[str, Shape]:
        """The shapes of one client's stored values, by name."""
        if d not in self._shapes:
            shapes = [shape for field in self.fields for shape in field.shapes(d)]
            self._shapes[d] = dict(zip(self._names, shapes, strict=True))
        return self._shapes[d]

    def bits(self, d: int, dtype: DTypeLike = DOUBLE) -> int:
        """Number of bits sent."""
        return sum(f.bits(d, dtype) for f in self.fields)

    def paper_bits(self, d: int) -> int:
        """Number of bits as the papers count them: 32 for every entry, and none for indices."""
        return 32 * sum(f.entries(d) for f in self.fields)


class Nothing(NamedTuple):
    """The empty state of a client that keeps nothing."""


NOTHING = Layout(Nothing)
