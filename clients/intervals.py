"""What a private client releases after the last round about the final model, from which intervals follow."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.common import log

from twinflower.arrays import Array
from twinflower.errors import ReplyError
from twinflower.models.released import Units, released_size
from twinflower.privacy.charges import BudgetSpent
from twinflower.privacy.guard import Guard
from twinflower.privacy.release import Release, Rounding
from twinflower.problems.interfaces import Batch
from twinflower.work import Noise

from .counts import packed
from .exact_answers import Reply
from .request import INFORMATION, RequestReader
from .store import CompletedRound, StateStore

_NONE = "this client sends no information matrix"


@dataclass(frozen=True)
class PrivateIntervals:
    """The release of a private client after the last round (`twinflower.models.released`).

    guard: charges it. release, units: of the sums. last: the number of the last round of the run; the release is
    charged, and its noise is addressed, as that of the round after it. store: where it is kept.
    """

    guard: Guard
    release: Release
    units: Units
    last: int
    store: StateStore

    def information(
        self, requests: RequestReader, objective: Any, x: Array, rows: Batch, config: Mapping[str, Any]
    ) -> Reply:
        """Charge, compute and store the noisy sums over the training rows at x (d,), once; return the reply.

        A repeated request gets the stored numbers. Raises ReplyError for another round than the last one, for a second
        model, and if the budget is spent.
        """
        round_, session = requests.evaluation(config)
        if round_ != self.last:
            raise ReplyError(f"{_NONE} after round {round_}")
        requests.bind(session)
        done = self._released(objective, x, rows, session)
        if done.metrics["model"] != _digest(x):
            raise ReplyError(f"{_NONE} for a second model")
        return 0.0, len(rows.labels), {"round": round_, INFORMATION: packed(done.arrays["values"])}

    def _released(self, objective: Any, x: Array, rows: Batch, session: str) -> CompletedRound:
        """What was released in this session, perhaps before for another model."""
        place = self.last + 1
        done = self.store.at(session, place)
        if done is None:
            with self.store.reserved(session, place, 8 * released_size(len(x))):
                noise = self._open(x, len(rows.labels), session)
            values = noise(self.units.released(objective, x, rows))
            done = CompletedRound(
                {"values": values}, {"round": place, "session": session, "model": _digest(x)}
            )
            self.store.save(session, done, 0)
        return done

    def _open(self, x: Array, rows: int, session: str) -> Noise:
        """Charge the release and return its noise, before anything private is computed."""
        if self.guard.secret:
            self.guard.check_size(self.release, 1, Rounding(float(rows), 0.0), [x])
        try:
            return self.guard.open(self.release, self.last + 1, session)
        except BudgetSpent as spent:
            log(WARNING, "the release for intervals is refused: %s", spent)
            raise ReplyError(f"{_NONE}: {spent}") from None


def _digest(x: Array) -> str:
    return hashlib.sha256(x.tobytes()).hexdigest()
