"""What is audited."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from twinflower.errors import require
from twinflower.privacy.accountant import check_probability, gdp_mu

from .declared import GaussianRelease
from .recorder import Mechanism


class Claim(NamedTuple):
    """(epsilon, delta)-DP of everything that a mechanism releases in all its rounds; delta is above 0."""

    epsilon: float
    delta: float

    @property
    def mu(self) -> float:
        """The mu of Gaussian differential privacy that is equivalent for a Gaussian mechanism; 0 for epsilon 0."""
        return gdp_mu(self.epsilon, self.delta) if self.epsilon > 0 else 0.0


@dataclass(frozen=True)
class Case:
    """A mechanism with the privacy it claims.

    mechanisms: the mechanism, by the name of what the server sends; the audit finds out what tells most. pairs: data
    sets that are neighbours under the claim, by name. declared: the Gaussian releases that the app's settings amount
    to, over all rounds; empty if they are not known. public: places, as in `Outcome`, whose values are public by the
    claim, such as the number of rows under replacement. about: what the app says, and where.
    """

    name: str
    mechanisms: Mapping[str, Mechanism]
    pairs: Mapping[str, tuple[Any, Any]]
    claim: Claim
    declared: Sequence[GaussianRelease] = ()
    public: frozenset[str] = field(default_factory=frozenset)
    about: str = ""

    def __post_init__(self) -> None:
        require(bool(self.mechanisms), f"{self.name}: mechanisms must have at least one entry")
        require(bool(self.pairs), f"{self.name}: pairs must have at least one entry")
        require(
            self.claim.epsilon >= 0,
            f"{self.name}: the claimed epsilon must be from 0; got {self.claim.epsilon}",
        )
        check_probability(f"{self.name}: the claimed delta", self.claim.delta)
