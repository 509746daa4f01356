"""What the rounds of the `cohort` runtime leave behind: the record of each round, and checkpoints."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from twinflower.arrays import Array, Index
from twinflower.errors import SettingError, require
from twinflower.rounds import Outcome, Round

from ..results.checkpoint import (
    Checkpoint,
    flatten,
    leaves_of,
    named,
    score_records,
    to_round,
    to_scores,
    unflatten,
)
from ..results.record import Recorder


class Bits(NamedTuple):
    """The number of bits of one upload and of one inbox."""

    up: int
    down: int


def accounts(at: Outcome, bits: Bits, private: bool) -> list[Round]:
    """The record of the round (participants, bits, local steps) for each seed; the steps of a private run are NaN."""
    parts = (at.clients, at.counted, *_means(at, private))
    by_seed = [parts] if at.clients.ndim == 1 else zip(*parts, strict=True)
    return [_account(at.round, bits, *part) for part in by_seed]


def _means(at: Outcome, private: bool) -> tuple[Array, Array]:
    """The mean number of local steps, and the share of clients that stopped early, (...,); NaN if unknown."""
    if at.report is None or private:
        unknown = np.full(at.clients.shape[:-1], np.nan)
        return unknown, unknown
    return at.report.steps.mean(-1), at.report.fired.mean(-1)


def _account(round_: int, bits: Bits, clients: Index, counted: Index, steps: Array, fired: Array) -> Round:
    asked, accepted = tuple(clients.tolist()), len(counted)
    missing = {*asked}.difference(counted.tolist()) if accepted < len(asked) else ()
    lost = dict.fromkeys(sorted(missing), "its update is not finite")
    uplink, downlink = bits.up * accepted, bits.down * len(asked)
    return Round(round_, asked, accepted, lost, uplink, downlink, float(steps), float(fired))


def checkpoint(at: Outcome, seeds: Sequence[int], recorders: Sequence[Recorder]) -> Checkpoint:
    """The checkpoint after this round: everything that determines the following rounds, and the metrics so far."""
    visited, states = at.states.visited()
    arrays = named("server-", flatten(at.server)) | {"visited": visited}
    if states is not None:
        arrays |= named("state-", flatten(states))
    records = [
        {
            "rows": r.rows,
            "rounds": [done._asdict() for done in r.rounds],
            "scores": score_records(r.scores),
            "by_site": list(r.by_site.items()),
        }
        for r in recorders
    ]
    return Checkpoint(arrays, {"round": at.round, "seeds": list(seeds), "recorders": records})


def take_up(
    saved: Checkpoint, start: Outcome, template: Any, seeds: Sequence[int], recorders: Sequence[Recorder]
) -> Outcome:
    """The outcome stored in a checkpoint; the recorders continue after its rows.

    start: the state before the first round, which is changed in place. template: the initial state of one client.
    Raises SettingError if the checkpoint is of another runtime or has other seeds.
    """
    require("seeds" in saved.info, "the checkpoint is of another runtime than cohort: resume the run on that")
    if saved.info["seeds"] != list(seeds):
        raise SettingError(f"the checkpoint has the seeds {saved.info['seeds']}")
    if fields := leaves_of("state-", saved.arrays):
        start.states.restore(saved.arrays["visited"], unflatten(template, fields))
    for recorder, record in zip(recorders, saved.info["recorders"], strict=True):
        rounds, scores = map(to_round, record["rounds"]), to_scores(record["scores"])
        recorder.take_up(record["rows"], rounds, scores, dict(record["by_site"]))
    server = unflatten(start.server, leaves_of("server-", saved.arrays))
    return start._replace(round=int(saved.info["round"]), server=server)
