"""The ledgers of simulated clients: in Flower's context for the duration of a run, or on disk."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from flwr.app import ConfigRecord, RecordDict

from twinflower.privacy import Budget
from twinflower.privacy.charges import Charge, ChargedBefore, check_charge
from twinflower.privacy.ledger import FileLedger

_RECORD = "twinflower.ledger"


@dataclass(frozen=True)
class ContextLedger:
    """Charges as lines of JSON in `context.state`; see `twinflower.privacy.charges.Ledger`."""

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
