"""The ledgers of simulated clients: in Flower's context, as long as the run lives, or on the disk."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import cast

from flwr.app import ConfigRecord, RecordDict

from twinflower.privacy import Budget
from twinflower.privacy.ledger import Charge, ChargedBefore, FileLedger, check_charge

_RECORD = "twinflower.ledger"


@dataclass(frozen=True)
class ContextLedger:
    """Charges as lines of JSON in `context.state`; see `twinflower.privacy.ledger.Ledger`."""

    state: RecordDict

    def charge(self, charge: Charge, budget: Budget) -> None:
        """Record a charge, or raise BudgetSpent or LedgerError."""
        check_charge(charge, self.charges(), budget)
        self.state[_RECORD] = ConfigRecord({"charges": [*self._lines(), json.dumps(asdict(charge))]})

    def charges(self) -> list[Charge]:
        """All charges so far."""
        return [Charge(**json.loads(line)) for line in self._lines()]

    def _lines(self) -> list[str]:
        if _RECORD not in self.state:
            return []
        return cast(list[str], cast(ConfigRecord, self.state[_RECORD])["charges"])


@dataclass(frozen=True)
class SeededLedger:
    """A `FileLedger` for noise that follows from the seed: a round that was charged, and then killed before its reply
    was kept, comes out the same again and costs nothing more. Never for secret noise.
    """

    file: FileLedger

    def charge(self, charge: Charge, budget: Budget) -> None:
        """Record a charge once, or raise BudgetSpent or LedgerError."""
        with suppress(ChargedBefore):
            self.file.charge(charge, budget)

    def charges(self) -> list[Charge]:
        """All charges so far."""
        return self.file.charges()
