"""An audit of one run: many records are included by coins of their own, and an attack guesses the coins.

For apps whose training takes too long to be repeated a thousand times. See `twinflower.privacy.lower_bounds`.
"""

from collections.abc import Callable

import numpy as np

from twinflower.arrays import Mask
from twinflower.errors import SettingError
from twinflower.privacy.evidence import Evidence
from twinflower.privacy.lower_bounds import best_guesses

from .attack import Attack, Candidate
from .cases import Case
from .data import AS_GIVEN, Rows, either, joined, mixed, taken
from .recorder import recording
from .session import Effort, Seeds, Session, silence, unreported


def attack_once(case: Case, effort: Effort, progress: Callable[[str], object] = unreported) -> Attack:
    """Guess which canaries a run held; once more, in another run, if that contradicts the claim. Raises SettingError
    for a case without losses."""
    if case.one_run is None:
        raise SettingError(
            f"{case.name}: --canaries needs the losses of the model: pass loss=... to audit.client_case"
        )
    session = Session(case, effort, Seeds(effort.seed), progress)
    errors: list[str] = []

    def count(seeds: range) -> list[Evidence]:
        progress(f"one run with {effort.canaries} canaries")
        return [_guessed(case, effort, seeds.start, errors)]

    with recording(), silence(), np.errstate(all="ignore"):
        found = session.twice(count, 1)
    chosen = Candidate(AS_GIVEN, f"all rows, and canaries by {effort.canaries} coins", 0.0)
    return Attack(found, chosen, [chosen], errors=max(errors))


def _guessed(case: Case, effort: Effort, seed: int, errors: list[str]) -> Evidence:
    """What the guesses of one run show."""
    assert case.one_run
    draws = np.random.default_rng([seed, 1])
    coins = draws.random(effort.canaries) < 0.5
    heads, tails = (mixed(case.one_run.rows, effort.canaries, draws) for _ in range(2))
    run = case.one_run.mechanism(_with_canaries(case, heads, tails, coins), seed)
    scores = case.one_run.scores(heads, run)
    if case.claim.relation == "replace":
        scores = scores - case.one_run.scores(tails, run)
    errors.append("" if np.ptp(scores) else "no reply has a model in which the canaries could be seen")
    epsilon, best = best_guesses(scores, coins, case.claim.delta, 1 - effort.confidence)
    how = f"{best.correct} of {best.guesses} guesses right about {best.canaries} canaries in one run"
    return Evidence(how, epsilon)


def _with_canaries(case: Case, heads: Rows, tails: Rows, coins: Mask) -> Rows:
    """The rows, and canaries: those of heads; under replacement, another in the place of each of tails."""
    assert case.one_run
    replacing = case.claim.relation == "replace"
    return joined(case.one_run.rows, either(coins, heads, tails) if replacing else taken(heads, coins))
