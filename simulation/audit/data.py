"""Neighbouring data sets, and server messages that move what a client sends."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinflower.arrays import Mask
from twinflower.errors import SettingError, require
from twinflower.privacy.accountant import check_count

from .recorder import Arrays, Request, request

Rows = Mapping[str, NDArray[Any]]
"""Columns of a table, such as {"image": (n, 8, 8), "label": (n,)}; arrays with a common first axis."""

AS_GIVEN = "the model as given"  # among the messages
_FAR = 1e3  # the size of an extreme row or model
_TILT = 0.03  # the cosine of the angle between a far model and a row across it


def pairs(rows: Rows, label: str = "label", relation: str = "replace") -> dict[str, tuple[Rows, Rows]]:
    """Neighbours of these rows, by name. label: the column of labels; empty if there is none. relation: "replace", or
    "add or remove", one record.

    A guarantee holds for all data sets of every size, so the list has data sets of a single record, too, in which it
    counts most.
    """
    require(relation in ("replace", "add or remove"), "relation must be 'replace' or 'add or remove'")
    for name, column in rows.items():
        if not (isinstance(column, np.ndarray) and column.ndim > 0):
            raise SettingError(
                f"rows must be columns, NumPy arrays with one entry per record; {name!r} is a {type(column).__name__}"
            )
    sizes = {len(column) for column in rows.values()}
    if not (len(sizes) == 1 and min(sizes) > 1):
        raise SettingError(f"rows must be columns of one length above 1; got {sizes}")
    if label not in {"", *rows}:
        raise SettingError(
            f'label must be the column of labels, or "" if there is none; got {label!r}, and columns {", ".join(rows)}'
        )
    found = _removed(rows, label) if relation == "add or remove" else _replaced(rows, label)
    different = _without_duplicates(found)
    require(
        bool(different),
        "the rows have no column of numbers whose first entry can be changed: pass your own pairs",
    )
    return different


def _without_duplicates(found: Mapping[str, tuple[Rows, Rows]]) -> dict[str, tuple[Rows, Rows]]:
    """The pairs of two different data sets, each once."""
    kept: dict[str, tuple[Rows, Rows]] = {}
    for name, pair in found.items():
        if not _equal(*pair) and not any(all(map(_equal, pair, other)) for other in kept.values()):
            kept[name] = pair
    return kept


def _equal(one: Rows, other: Rows) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def _removed(rows: Rows, label: str) -> dict[str, tuple[Rows, Rows]]:
    """Data sets, and the same without one row: an ordinary one, or one far from or opposite to those that stay."""
    single = taken(rows, [0])
    found = {
        "the first row removed": (rows, taken(rows, slice(1, None))),
        "one of two equal rows removed": (taken(rows, [0, 0]), single),
        "one of two rows removed": (taken(rows, [0, -1]), single),
    }
    bases = {"all rows": rows, "the first row alone": single, "rows of one class": _of_one_class(rows, label)}
    for text, base in bases.items():
        for how, changed in _changed(base, rows, label).items():
            found[f"added to {text}: the first one {how}"] = joined(taken(changed, [0]), base), base
    for text, one, other in _both_across(single, label):
        found[f"added to a row {text}: its opposite"] = joined(one, other), other
    return found


def _replaced(rows: Rows, label: str) -> dict[str, tuple[Rows, Rows]]:
    """Data sets, and the same with another first row."""
    found: dict[str, tuple[Rows, Rows]] = {}
    single, twins = taken(rows, [0]), taken(rows, [0, 0])
    for text, base in (("the first row", rows), ("the only row", single)):
        found |= {f"{text} {how}": (base, changed) for how, changed in _changed(base, rows, label).items()}
    for text, base in (
        ("one of two equal rows", twins),
        ("one of many rows of one class", _of_one_class(rows, label)),
    ):
        for how, changed in _changed(base, rows, label).items():
            if label in rows and changed[label][0] != changed[label][1]:  # one class against two
                found[f"{text} {how}"] = base, changed
    for text, one, other in _both_across(single, label):
        found[f"the only row {text}"] = one, other
    return found


def _of_one_class(rows: Rows, label: str) -> Rows:
    """The rows, all with the label of the first: weights by the frequencies of labels give a row with another one the
    weight of all others together."""
    return {**rows, label: np.full_like(rows[label], rows[label][0])} if label in rows else rows


def _both_across(single: Rows, label: str) -> Iterator[tuple[str, Rows, Rows]]:
    """Two opposite rows across a far model, that it classifies rightly and wrongly."""
    for sign, text in ((-1, "against it"), (1, "for it")):
        one, other = (_with_first(single, _across(single, label, sign, side)) for side in (-1, 1))
        yield f"across a far model, {text}", one, other


def _across(rows: Rows, label: str, sign: int, side: int) -> dict[str, NDArray[Any]]:
    """A row of the length of the first one, nearly orthogonal to a model of equal entries.

    It leans by _TILT to or against the model, so that a far model classifies it with certainty; `side` is the sign of
    the rest. Of both sides a misclassifying model has nearly opposite gradients of full length.
    """
    found = {}
    for name in _features(rows, label):
        if rows[name].dtype.kind != "f":
            continue
        first = rows[name][0]
        along = np.ones(first.size)
        rest = np.where(np.arange(first.size) % 2, -1.0, 1.0)
        rest -= rest.mean()
        parts = (sign * _TILT, along), (side * np.sqrt(1 - _TILT**2), rest)
        row = sum(size * part / max(float(np.linalg.norm(part)), 1e-9) for size, part in parts)
        found[name] = (np.linalg.norm(first) * row).reshape(first.shape)
    return found


def _features(rows: Rows, label: str) -> list[str]:
    """The columns of numbers."""
    return [name for name, column in rows.items() if name != label and column.dtype.kind in "biuf"]


def _times(factor: float, first: NDArray[Any], column: NDArray[Any]) -> NDArray[Any]:
    """The first entry of a column times a factor. Whole numbers, which may be codes, stay in the range of the column:
    -1 mirrors them in it, as 255 - x for bytes."""
    if column.dtype.kind == "f":
        return factor * first
    low, high = float(column.min()), float(column.max())
    moved = low + high - first.astype(float) if factor == -1 else factor * first.astype(float)
    return np.clip(moved, low, high).astype(column.dtype)


def _changed(base: Rows, rows: Rows, label: str) -> dict[str, Rows]:
    """Data sets with another first row."""
    found: dict[str, Rows] = {
        text: _with_first(
            base, {name: _times(factor, base[name][0], rows[name]) for name in _features(base, label)}
        )
        for text, factor in (("negated", -1.0), ("at zero", 0.0), (f"times {-_FAR:g}", -_FAR))
    }
    others = np.unique(rows[label][rows[label] != base[label][0]]) if label in rows else np.empty(0)
    if len(others):
        found["with another label"] = _with_first(base, {label: others[-1]})
        found["negated, with another label"] = _with_first(found["negated"], {label: others[-1]})
    return found


def taken(rows: Rows, places: Any) -> Rows:
    """The rows at these places."""
    return {name: column[places] for name, column in rows.items()}


def mixed(rows: Rows, number: int, draws: np.random.Generator) -> Rows:
    """So many new rows, of which every entry is drawn from those at its place in the column."""

    def drawn(column: NDArray[Any]) -> NDArray[Any]:
        flat = column.reshape(len(column), -1)
        new = flat[draws.integers(len(flat), size=(number, flat.shape[1])), np.arange(flat.shape[1])]
        return new.reshape(number, *column.shape[1:])

    return {name: drawn(column) for name, column in rows.items()}


def relabelled(canaries: Rows, known: NDArray[Any], label: str, draws: np.random.Generator) -> Rows:
    """The canaries, each with another of the known labels, at least two."""
    values = np.unique(known)
    others = np.searchsorted(values, canaries[label]) + draws.integers(1, len(values), len(canaries[label]))
    return {**canaries, label: values[others % len(values)]}


def either(coins: Mask, heads: Rows, tails: Rows) -> Rows:
    """Of every pair of rows the one that its coin (m,) decides."""
    return {
        name: np.where(coins.reshape(-1, *[1] * (column.ndim - 1)), column, tails[name])
        for name, column in heads.items()
    }


def joined(first: Rows, second: Rows) -> Rows:
    """The rows of both."""
    return {name: np.concatenate([first[name], second[name]]) for name in first}


def _with_first(rows: Rows, values: Mapping[str, Any]) -> Rows:
    """The rows with other values in the first one."""
    changed = {name: column.copy() for name, column in rows.items()}
    for name, value in values.items():
        changed[name][0] = value
    return changed


def server_messages(
    model: Arrays,
    rounds: int,
    config: Mapping[str, Any] | None = None,
    make: Callable[[Arrays, Mapping[str, Any]], Request] = request,
    round_key: str = "server-round",
) -> dict[str, list[Request]]:
    """What a server may send in `rounds` rounds, by name: the model as it is, at extreme points, at points that change
    from round to round, and with NaN. make: `request` or `numpy_request`. round_key: of the round's number in the
    config; empty for none."""
    check_count("rounds", rounds)

    def sent(point: Callable[..., NDArray[Any]]) -> list[Request]:
        numbered = [{round_key: t} if round_key else {} for t in range(1, rounds + 1)]
        return [
            make(_mapped(model, partial(point, round_=t)), dict(config or {}) | number)
            for t, number in enumerate(numbered, 1)
        ]

    draws = np.random.default_rng(0)
    return {
        AS_GIVEN: sent(lambda a, round_: a),
        "a far model": sent(lambda a, round_: np.full_like(a, _FAR)),
        "far models of both signs in turn": sent(lambda a, round_: np.full_like(a, _FAR * (-1) ** round_)),
        "random models": sent(lambda a, round_: draws.normal(size=a.shape).astype(a.dtype)),
        "a model of NaN": sent(lambda a, round_: np.full_like(a, np.nan)),
    }


def _mapped(model: Arrays, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Arrays:
    """The model with a function applied to its arrays of real numbers."""

    def one(array: NDArray[Any]) -> NDArray[Any]:
        return function(array) if array.dtype.kind == "f" else array

    if isinstance(model, Mapping):
        return {name: one(array) for name, array in model.items()}
    return [one(array) for array in model]


# ---------------------------------------------- rows of PyTorch loaders; PyTorch is imported when it is needed


def rows_of_loader(loader: Iterable[Sequence[Any]], names: Sequence[str] = ("x", "label")) -> Rows:
    """All batches of a loader as columns with these names; a batch is a sequence of tensors with one first axis."""
    batches = [[np.asarray(part) for part in batch] for batch in loader]
    return dict(zip(names, map(np.concatenate, zip(*batches, strict=True)), strict=True))


def loader_of_rows(rows: Rows, batch_size: int = 32, shuffle: bool = False) -> Any:
    """A DataLoader over the columns of rows, in their order, as tensors."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    columns = [torch.as_tensor(column) for column in rows.values()]
    return DataLoader(TensorDataset(*columns), batch_size=batch_size, shuffle=shuffle)
