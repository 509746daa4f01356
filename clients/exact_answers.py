"""What a client without a guard sends about its rows without noise: metrics, counts by bin, and information matrices.

Answers about many models of a server's choice add up to the rows themselves, also if each is only a mean loss. So every
answer goes through `RequestReader.once`: a client answers about one model after each round of a run, and sends an
information matrix only after the last round. The same request gets the same answer again. This bounds the number of
answers by that of the rounds, and not what a single one says. The server chooses the number of rounds and of runs, and
can ask without training; enough rounds still determine the held-out rows.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinflower.arrays import Array
from twinflower.errors import ReplyError, WithheldError
from twinflower.models.evaluation import NO_BINS, evaluate
from twinflower.models.information import Information
from twinflower.models.score_bins import Counted, ScoreBins
from twinflower.models.time_scores import TimeTable
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import LinearModel

from .counts import packed
from .request import INFORMATION, RequestReader

Reply = tuple[float, int, dict[str, Any]]


@dataclass(frozen=True)
class ExactAnswers:
    """Which sums a client sends without noise.

    bins: those in which it counts the scores of held-out rows (`twinflower.models.score_bins`), by default none.
    errors: whether it sends sums of a regression's errors on these rows. standard_errors: whether it sends the
    sums from which standard errors follow. rounds: the number of the last round of the run, by default not known; then
    no round is the last, and models are evaluated after any. least_cell: fewest persons in every count by risk and time
    that is not 0; a model for which there are fewer is not evaluated.
    """

    bins: ScoreBins = NO_BINS
    errors: bool = False
    standard_errors: bool = False
    rounds: int = sys.maxsize
    least_cell: int = 0

    def evaluation(
        self, requests: RequestReader, objective: Any, x: Array, rows: Batch, config: Mapping[str, Any], bins: ScoreBins
    ) -> Reply:  # fmt: skip
        """The reply to a request to evaluate the model x (d,) on held-out rows. ReplyError for another model or other
        bins in the same round, and for a round that the run does not have. WithheldError for counts of persons below
        `least_cell`."""
        asked = x.tobytes() + repr(bins).encode()
        round_ = requests.once("evaluation", config, asked, range(self.rounds + 1))
        count, loss, correct, scores, errors = evaluate(objective, x, rows, bins, self.errors)
        self._check_cells(scores)
        metrics: dict[str, Any] = {"round": round_, "correct": correct, "accuracy": correct / max(count, 1)}
        metrics |= {"scores": packed(scores.cells)} if scores else {}
        return loss, count, metrics | ({"errors": packed(np.array(errors))} if errors else {})

    def _check_cells(self, scores: Counted | None) -> None:
        cells = scores.cells if isinstance(scores, TimeTable) else np.empty(0)
        if cells[cells > 0].min(initial=np.inf) < self.least_cell:
            raise WithheldError(
                f"this site counts no persons for evaluation.auc-times unless there are {self.least_cell} or none in "
                "every bin of risks and interval, with the event and censored: choose fewer bins or times"
            )

    def information(
        self, requests: RequestReader, objective: Any, x: Array, rows: Batch, config: Mapping[str, Any]
    ) -> Reply:
        """The reply to a request for the sums over the training rows from which standard errors follow. ReplyError for
        a client that sends none, before the last round, and for another model after it."""
        if not self.standard_errors or not isinstance(objective, LinearModel):
            raise ReplyError("this client sends no information matrix")
        round_ = requests.once(INFORMATION, config, x.tobytes(), range(self.rounds, self.rounds + 1))
        sums = Information.of(objective, x, rows)
        return 0.0, len(rows.labels), {"round": round_, INFORMATION: packed(sums.packed)}


NOTHING = ExactAnswers()
"""No counts by bin and no information matrix."""
