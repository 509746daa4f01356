"""Checkpoints of the server's side of a run. A resumed run is bit-identical to an uninterrupted one.

A checkpoint holds the algorithm's server state, the rounds and metrics so far, and what else the strategy needs. The
positions of the sampling and noise streams follow from the round. `folder` writes the files.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinflower.errors import require
from twinflower.strategies import Round
from twinflower.strategies.rounds import Snapshot

Leaves = list[NDArray[Any]]


class Checkpoint(NamedTuple):
    """The arrays of a checkpoint by name, and everything else as JSON-compatible values."""

    arrays: dict[str, NDArray[Any]]
    info: dict[str, Any]


# --- trees of NamedTuples of arrays


def flatten(tree: Any) -> Leaves:
    """The arrays of a state (nested NamedTuples) as a flat list, in the order of the fields."""
    return (
        [leaf for part in tree for leaf in flatten(part)] if isinstance(tree, tuple) else [np.asarray(tree)]
    )


def unflatten(template: Any, leaves: Sequence[NDArray[Any]]) -> Any:
    """Inverse of `flatten`, for a state with the structure of the template; SettingError if the number differs."""
    require(
        len(flatten(template)) == len(leaves),
        "the checkpoint was made for another algorithm or other settings",
    )
    return _filled(template, iter(leaves))


def _filled(template: Any, leaves: Iterator[NDArray[Any]]) -> Any:
    if not isinstance(template, tuple):
        return next(leaves)
    return type(template)(*(_filled(part, leaves) for part in template))


def named(prefix: str, leaves: Leaves) -> dict[str, NDArray[Any]]:
    """Leaves by name, prefix0, prefix1, ..., for `Checkpoint.arrays`."""
    return {f"{prefix}{place}": leaf for place, leaf in enumerate(leaves)}


def leaves_of(prefix: str, arrays: dict[str, NDArray[Any]]) -> Leaves:
    """Inverse of `named`."""
    count = sum(name.startswith(prefix) for name in arrays)
    return [arrays[f"{prefix}{place}"] for place in range(count)]


# --- a strategy's run


def of_strategy(snapshot: Snapshot, rows: list[dict[str, Any]]) -> Checkpoint:
    """The checkpoint of a strategy's snapshot and the metrics so far (rows of metrics.csv)."""
    info = {
        "round": snapshot.round,
        "session": snapshot.session,
        "rounds": [done._asdict() for done in snapshot.rounds],
        "born": list(snapshot.born.items()),
        "ranges": snapshot.ranges.hex(),
        "rows": rows,
    }
    return Checkpoint(named("server-", flatten(snapshot.server)), info)


def to_strategy(checkpoint: Checkpoint, server: Any) -> tuple[Snapshot, list[dict[str, Any]]]:
    """Inverse of `of_strategy`; server is any server state of the same algorithm, used as a template."""
    info = checkpoint.info
    require("session" in info, "the checkpoint is the cohort runtime's: resume the run on that")
    state = unflatten(server, leaves_of("server-", checkpoint.arrays))
    rounds = [to_round(done) for done in info["rounds"]]
    ranges = bytes.fromhex(info.get("ranges", ""))  # a checkpoint of an earlier version has none
    return Snapshot(info["round"], info["session"], state, rounds, dict(info["born"]), ranges), info["rows"]


def to_round(stored: dict[str, Any]) -> Round:
    """The round from its JSON form, in which keys are strings and tuples are lists."""
    rejected = {int(client): reason for client, reason in stored["rejected"].items()}
    return Round(**{**stored, "asked": tuple(stored["asked"]), "rejected": rejected})
