"""What is audited."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from twinflower.errors import SettingError
from twinflower.privacy.accountant import gdp_mu

from .declared import ANY, RELATIONS, GaussianRelease
from .one_run import OneRun
from .recorder import Mechanism

_ROUNDING = 1e-6  # relative, up to which two epsilons are the same


class Claim(NamedTuple):
    """(epsilon, delta)-DP of everything that a mechanism releases in all its rounds; delta is from 0.

    relation: what neighbours are; see `RELATIONS`.
    """

    epsilon: float
    delta: float
    relation: str = "replace"

    @property
    def mu(self) -> float | None:
        """The mu of Gaussian differential privacy that is equivalent for a Gaussian mechanism; None for delta 0."""
        if not self.delta:
            return None
        return gdp_mu(self.epsilon, self.delta) if self.epsilon > 0 else 0.0

    def refuted_by(self, epsilon: float) -> bool:
        """Whether this epsilon is above the claimed one."""
        return epsilon > self.epsilon * (1 + _ROUNDING)


@dataclass(frozen=True)
class Case:
    """A mechanism with the privacy it claims.

    mechanisms: the mechanism, by the name of what the server sends; the audit finds out what reveals most. pairs: data
    sets that are neighbours under the claim, by name. declared: the Gaussian releases that the app's settings amount
    to, over all rounds, between neighbours of the claim; empty if they are not known, or if the noise is not Gaussian.
    public: places, as in `Outcome`, whose values are public by the claim, such as the number of rows under replacement.
    about: what the app says, and where. one_run: how it is audited in a single run; None if it cannot be.
    """

    name: str
    mechanisms: Mapping[str, Mechanism]
    pairs: Mapping[str, tuple[Any, Any]]
    claim: Claim
    declared: Sequence[GaussianRelease] = ()
    public: frozenset[str] = field(default_factory=frozenset)
    about: str = ""
    one_run: OneRun | None = None

    def __post_init__(self) -> None:
        if not self.mechanisms:
            raise SettingError(f"{self.name}: mechanisms must have at least one entry")
        if not self.pairs:
            raise SettingError(f"{self.name}: pairs must have at least one entry")
        if not 0 <= self.claim.epsilon < math.inf:
            raise SettingError(
                f"{self.name}: the claimed epsilon must be a number from 0; got {self.claim.epsilon}"
            )
        if not 0 <= self.claim.delta < 1:
            raise SettingError(
                f"{self.name}: the claimed delta must be from 0 to below 1; got {self.claim.delta}"
            )
        if not self.claim.delta > 0 and self.declared:
            raise SettingError(
                f"{self.name}: Gaussian noise has no finite epsilon at delta 0: claim a delta above 0"
            )
        self._check_relations()

    def _check_relations(self) -> None:
        claimed, given = self.claim.relation, {release.relation for release in self.declared}
        if claimed not in RELATIONS:
            raise SettingError(f"{self.name}: the relation must be one of {RELATIONS}; got {claimed!r}")
        if not given <= {claimed, ANY}:
            raise SettingError(
                f"{self.name}: the claim is for {claimed!r}, the declared releases for {sorted(given)}: both must have "
                "one relation between neighbours"
            )

    @property
    def gaussian(self) -> bool:
        """Whether what is released has Gaussian noise by declaration; with sampling, it is a mixture."""
        return bool(self.declared) and all(release.sampling == 1 for release in self.declared)
