"""Who is protected: one record, a group of records of one person, or all records of a client.

Neighbouring data sets of a client differ by the replacement of up to `Unit.size` of its records. If one record moves a
release by at most Delta, k records move it by at most k Delta, given everything that was released before: replace them
one by one. So releases that are together mu-GDP for one record are (k mu)-GDP for k records, which is exact for
Gaussian mechanisms (Dong, Roth and Su, "Gaussian differential privacy", JRSS B 2022, on group privacy). Where a
release is bounded as a whole, it moves by no more than twice that bound, which is less than k Delta for large k;
`release` uses the smaller of the two.

The number of a client's records is public and, with a group column, also which of them belong to the same person: the
neighbours differ in what a person's records hold, not in whose records they are.
"""

import math
from dataclasses import dataclass

from ..errors import SettingError

RECORD, GROUP, SITE = KINDS = ("record", "group", "site")


@dataclass(frozen=True)
class Unit:
    """What a guarantee protects. kind: one of KINDS. size: the number k of records of a group, 0 for other kinds.

    Raises SettingError for a group without a size, and for a size without a group.
    """

    kind: str = RECORD
    size: int = 0

    def __post_init__(self) -> None:
        if (self.kind == GROUP) != (self.size > 0):
            raise SettingError(
                "group-size, how many records of one person are protected together, belongs to protects = group, which "
                f"needs it; got {self.size} with protects = {self.kind}"
            )

    @property
    def rows(self) -> int:
        """The number of rows that are protected together, 0 for all rows of a client (`LocalSchedule.group`)."""
        return {RECORD: 1, GROUP: self.size, SITE: 0}[self.kind]

    @property
    def parts(self) -> int:
        """In how many parts of a client's rows, trained on and held out, it can be: 1 for a record, else 2."""
        return 1 if self.rows == 1 else 2

    def covers(self, other: "Unit") -> bool:
        """Whether a guarantee for this unit is one for the other unit, too."""
        return (self.rows or math.inf) >= (other.rows or math.inf)

    @property
    def records(self) -> str:
        """The protected records as a noun phrase, such as "up to 5 of its records"."""
        return {
            RECORD: "one of its records",
            GROUP: f"up to {self.size} of its records",
            SITE: "all its records",
        }[self.kind]

    @property
    def setting(self) -> str:
        """The settings that choose this unit, as a user would write them."""
        return f"protects = {self.kind}" + (f" with group-size = {self.size}" if self.size else "")

    @property
    def target(self) -> str:
        """What an attacker has candidates for, such as "a record"."""
        return {RECORD: "a record", GROUP: f"{self.size} of its records", SITE: "all its records"}[self.kind]

    @property
    def given(self) -> str:
        """What an attacker detects, such as "a given record"."""
        return {
            RECORD: "a given record",
            GROUP: f"{self.size} given records",
            SITE: "a given set of all its records",
        }[self.kind]


ONE_RECORD = Unit()
