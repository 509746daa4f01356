"""The ledgers of simulated clients: in Flower's context or in memory for the duration of a run, or on disk."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from flwr.app import ConfigRecord, RecordDict

from twinflower.privacy import Budget
from twinflower.privacy.ledger import (
    Charge,
    ChargedBefore,
    FileLedger,
    added_cost,
    check_charge,
    check_cost,
)

_RECORD = "twinflower.ledger"


@dataclass(frozen=True)
class ContextLedger:
    """Charges as lines of JSON in `context.state`; see `twinflower.privacy.ledger.Ledger`."""

    state: RecordDict

    def charge(self, charge: Charge, budget: Budget) -> None:
        """Record a charge, or raise BudgetSpent or LedgerError."""
        check_charge(charge, self.charges(), budget)
        self.state[_RECORD] = ConfigRecord({"charges": [*self._lines(), json.dumps(vars(charge))]})

    def charges(self) -> list[Charge]:
        """All charges so far."""
        return [Charge(**json.loads(line)) for line in self._lines()]

    def _lines(self) -> list[str]:
        if _RECORD not in self.state:
            return []
        return cast(list[str], cast(ConfigRecord, self.state[_RECORD])["charges"])


class MemoryLedger:
    """Charges in memory; see `twinflower.privacy.ledger.Ledger`.

    Without held-out rows, a charge takes the same time however many came before it.
    """

    def __init__(self) -> None:
        self._runs: dict[str, dict[int, Charge]] = {}
        self._spent: dict[str, float] = {}

    def charge(self, charge: Charge, budget: Budget) -> None:
        """Record a charge, or raise BudgetSpent or ChargedBefore."""
        mine, spent = self._runs.setdefault(charge.run, {}), self._spent.get(charge.run, 0.0)
        cost = added_cost(charge, list(mine.values())) if charge.split else charge.cost
        check_cost(charge, charge.round in mine, budget, spent, cost)
        mine[charge.round], self._spent[charge.run] = charge, spent + cost

    def charges(self) -> list[Charge]:
        """All charges so far."""
        return [charge for mine in self._runs.values() for charge in mine.values()]


@dataclass(frozen=True)
class SeededLedger:
    """A `FileLedger` for seeded noise, which may charge the same round twice but counts it once.

    If the process is killed after a charge and before the reply was stored, repeating the round gives the same values,
    so it costs nothing more. This ledger must never be used with secret noise.
    """

    file: FileLedger

    def charge(self, charge: Charge, budget: Budget) -> None:
        """Record a charge unless it is already recorded; may raise BudgetSpent or LedgerError."""
        with suppress(ChargedBefore):
            self.file.charge(charge, budget)

    def charges(self) -> list[Charge]:
        """All charges so far."""
        return self.file.charges()
