"""A private client's evaluation of models on its held-out rows: what it charges, releases and stores."""

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.common import log

from twinflower.arrays import Array
from twinflower.errors import ReplyError
from twinflower.models.evaluation import NO_BINS, Released
from twinflower.models.score_bins import ScoreBins
from twinflower.privacy.charges import BudgetSpent
from twinflower.privacy.counts import summed
from twinflower.privacy.guard import Guard
from twinflower.privacy.release import Release, Rounding
from twinflower.problems.interfaces import Batch, Objective
from twinflower.work import Noise

from .store import CompletedRound, StateStore


@dataclass(frozen=True)
class PrivateEvaluation:
    """How a private client evaluates models.

    guard: charges an evaluation and gives its noise (`Guard.counting`). release: of a count. bound: of a clipped loss,
    0 for counts of correct predictions. rounds: the planned ones; any other is refused. Empty: all are accepted, until
    the budget of the run is spent. bins: those of the score (`twinflower.models.score_bins`), by default none;
    a request says where they lie.
    """

    guard: Guard
    release: Release
    bound: float = 0.0
    rounds: Collection[int] = ()
    bins: ScoreBins = NO_BINS

    def reply(
        self,
        objective: Objective,
        x: Array,
        rows: Batch,
        round_: int,
        session: str,
        store: StateStore,
        bins: ScoreBins = NO_BINS,
    ) -> tuple[float, int, dict[str, Any]]:
        """Charge, compute and store the noisy sum over the rows, once for each round; return what a client replies.

        bins: where those of the score lie. A repeated request gets the stored number. Raises ReplyError for a second
        model in one round, for a round that is not planned, and if the budget is spent.
        """
        assert bins.shape == self.bins.shape
        if self.rounds and round_ not in self.rounds:
            raise ReplyError(f"no evaluation is planned after round {round_}")
        digest = hashlib.sha256(x.tobytes() + repr(bins).encode() * bool(bins.number)).hexdigest()
        done = store.at(session, round_)
        if done is None:
            with store.reserved(session, round_, 8 * (1 + math.prod(self.bins.shape))):
                noise = self._open(len(rows.labels), round_, session)
            values = noise(summed(objective, x, rows, self.bound, bins))
            done = CompletedRound({"values": values}, {"round": round_, "session": session, "model": digest})
            store.save(session, done, 0)
        if done.metrics["model"] != digest:
            raise ReplyError(f"another model was evaluated after round {round_}, and only one is")
        return self._reply(done.arrays["values"], len(rows.labels), round_, bins)

    def _open(self, rows: int, round_: int, session: str) -> Noise:
        """Charge the evaluation and return its noise, before anything private is computed."""
        if self.guard.secret:
            own = self.bins
            largest = rows * (own.histograms + own.weight) if own.number else rows
            self.guard.check_size(self.release, 1, Rounding(largest, 0.0), [])
        try:
            return self.guard.open(self.release, -round_, session)
        except BudgetSpent as spent:
            log(WARNING, "the evaluation after round %s is refused: %s", round_, spent)
            raise ReplyError(f"the evaluation after round {round_} is refused: {spent}") from None

    def _reply(
        self, values: Array, rows: int, round_: int, bins: ScoreBins
    ) -> tuple[float, int, dict[str, Any]]:
        """The loss (clipped, or the share of wrong predictions), the number of rows, and the metrics."""
        found = Released.of(values, rows, self.guard.noise_multiplier * self.release.spread, bins)
        share = found.value / rows
        loss, accuracy = (self.bound * share, float("nan")) if self.bound else (1 - share, share)
        metrics = {"round": round_, "value": found.value, "sigma": found.sigma, "accuracy": accuracy}
        return loss, rows, metrics | ({"scores": packed(values[1:])} if bins.number else {})


def packed(array: Array) -> bytes:
    """An array for the metrics of a reply, as little-endian doubles."""
    return array.astype("<f8").tobytes()
