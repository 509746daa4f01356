"""The charges of a run's releases: what each costs, and what they cost together."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..errors import TwinflowerError
from ..problems.turns import Span
from .accountant import Budget
from .participation import Visit, worst_cost


class LedgerError(TwinflowerError):
    """The ledger is unusable, so what was spent is not known and nothing may be released."""


class ChargedBefore(LedgerError):
    """The round of this run has already been charged, and its reply is no longer stored."""


class BudgetSpent(TwinflowerError):
    """The cost of the release exceeds what is left of a budget."""


@dataclass(frozen=True)
class Charge:
    """The charge of one round: `touched` Gaussian releases of this sensitivity and sigma, at a total cost in mu^2.

    run, config: identities of the run and of its settings. time: seconds since the epoch. alone: in a run with sums,
    the cost against all other parties together, whereas `cost` relies on the noise of other honest sites; otherwise
    None. round: -t for an evaluation on held-out rows after round t, and the round after the last one for what
    intervals follow from. split: identifies the division of the rows into
    those that are trained on and those that are held out, if what is protected lies in one part only (`total_cost`);
    otherwise empty. flower_run: the id of Flower's run in which a deployed site was charged; otherwise empty.
    span: the batches of a round that goes on in a permutation of the rows, so that a record is in few such rounds.

    The ledger finds lines by their first two fields: run and round stay first, in this order.
    """

    run: str
    round: int
    sensitivity: float
    sigma: float
    touched: int
    cost: float
    config: str = ""
    time: float = field(default_factory=time.time)
    alone: float | None = None
    split: str = ""
    flower_run: str = ""
    span: Span | None = None

    def __post_init__(self) -> None:
        if self.span is not None:  # read from a file it is a list
            object.__setattr__(self, "span", Span(*self.span))

    @property
    def adds_up(self) -> bool:
        """Whether the charge increases the total cost of a run by its own cost, whatever was charged before."""
        return not self.split and self.span is None

    @property
    def release(self) -> str:
        """What was released, as text."""
        return f"the evaluation after round {-self.round}" if self.round < 0 else f"round {self.round}"

    @property
    def cost_alone(self) -> float:
        """The cost in mu^2 against all other parties together, that is, the server and all other sites."""
        return self.cost if self.alone is None else self.alone


def total_cost(
    charges: Iterable[Charge], cost: Callable[[Charge], float] = lambda charge: charge.cost
) -> float:
    """The cost of these charges together, in mu^2; `cost` gives that of a single charge.

    Costs add up, with two exceptions. Within a run, training and evaluation with the same split concern different
    records, and a record pays the larger of the two sums. In another run, or with another split, a record may lie in
    the other part, so these are added. And a record is in one batch of each permutation of the rows, so rounds of the
    same run and settings that go on in one permutation cost what the worst batch costs (`participation`).
    """
    parts: dict[tuple[str, str], tuple[list[Charge], list[Charge]]] = {}
    for charge in charges:
        key = (charge.run, charge.split) if charge.split else ("", "")
        held_out = bool(charge.split) and charge.round < 0
        parts.setdefault(key, ([], []))[held_out].append(charge)
    return math.fsum(max(_sum(trained, cost), _sum(evaluated, cost)) for trained, evaluated in parts.values())


def _sum(charges: Iterable[Charge], cost: Callable[[Charge], float]) -> float:
    """The cost of charges about the same rows."""
    alone: list[float] = []
    going_on: dict[tuple[str, str], list[Visit]] = {}
    for charge in charges:
        if charge.span is None:
            alone.append(cost(charge))
        else:
            visit = Visit(charge.span, (charge.sensitivity / charge.sigma) ** 2, charge.touched)
            going_on.setdefault((charge.run, charge.config), []).append(visit)
    return math.fsum([*alone, *map(worst_cost, going_on.values())])


def added_cost(charge: Charge, before: list[Charge]) -> float:
    """By how much a charge increases the total cost of a run with these charges before."""
    if charge.adds_up:
        return charge.cost
    return max(0.0, total_cost([*before, charge]) - total_cost(before))


class Ledger(Protocol):
    """Storage for the charges of one site."""

    def charge(self, charge: Charge, budget: Budget) -> None:
        """Record the charge permanently, before anything is released.

        budget: the run's budget; a permanent ledger also has a lifetime budget of its own. Raises BudgetSpent if the
        charge exceeds either budget, and ChargedBefore for a (run, round) that was already charged: its reply is no
        longer stored, and noise must not be drawn twice for one charge.
        """

    def charges(self) -> list[Charge]:
        """Return all charges so far, in order."""

    def check_plan(self, run: str, config: str, budget: Budget) -> float:
        """Return what a run with these settings still has to charge of its plan, in mu^2, 0 if it has none.

        Raises BudgetSpent if the lifetime budget of a permanent ledger does not cover it, and LedgerError.
        """

    def release(self, run: str) -> float:
        """End what a permanent ledger has reserved for a run, and return it, in mu^2."""


def check_charge(charge: Charge, entries: list[Charge], budget: Budget) -> None:
    """Raise ChargedBefore if the round was already charged, or BudgetSpent if it exceeds the run's budget."""
    mine = [entry for entry in entries if entry.run == charge.run]
    known = any(entry.round == charge.round for entry in mine)
    check_cost(charge, known, budget, total_cost(mine), added_cost(charge, mine))


def check_cost(charge: Charge, known: bool, budget: Budget, spent: float, cost: float) -> None:
    """The same, given whether the round is known, what the run has spent, and what the charge adds to it."""
    if known:
        raise ChargedBefore(f"{charge.release} of this run was charged before, and its reply is gone")
    if not replace(budget, spent=budget.spent + spent).fits(cost):
        raise BudgetSpent("the run's privacy budget is spent")
