"""A question about a model that sites answer after rounds, as the server and a site see it: what it asks, what answers
with and without noise are, and how they travel."""

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from ..arrays import Array
from ..errors import SettingError
from ..privacy.guard import Guard
from ..privacy.release import Release
from ..problems.interfaces import Batch

EVERY_ROUND = range(2**48)


class Sent(NamedTuple):
    """What a site sends about a model: a loss, a number of rows, and metrics, which hold arrays as `wire.packed`."""

    loss: Any
    rows: Any
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class ModelQuestion(ABC):
    """A question about a model x (d,), as sites and server see it.

    name: of the question, by which a request names it, unless it is that of `default`. store: where a site
    keeps what it released. what: what it is, in messages; absent: why a site
    does not answer. of_held_out: whether it is about rows that are held out, or
    about those trained on. rounds: after which it is asked.
    """

    name: ClassVar[str]
    store: ClassVar[str]
    what: ClassVar[str]
    absent: ClassVar[str]
    default: ClassVar[bool] = False
    of_held_out: ClassVar[bool] = False

    rounds: Container[int] = EVERY_ROUND

    # --- the server

    def at(self, x: Array) -> Self:
        """The question as it is asked about this model."""
        return self

    @property
    def fields(self) -> Mapping[str, Any]:
        """What a request holds besides the round and the session."""
        return {} if self.default else {self.name: True}

    @abstractmethod
    def read(self, client: int, sent: Sent, private: bool) -> Any:
        """What a client sent; ReplyError for what no site would send. private: whether it has noise."""

    @abstractmethod
    def found(self, answers: Mapping[int, Any], private: bool) -> Any:
        """What follows from the answers of these clients, in ascending order."""

    def metrics(self, found: Any) -> Mapping[str, float]:
        """The metrics of a round in what was found."""
        return {}

    # --- a site

    def as_asked(self, config: Mapping[str, Any]) -> Self:
        """The question as a request asks it; ReplyError for an invalid request."""
        return self

    def asked_about(self, x: Array) -> bytes:
        """What is asked, which is the same for all requests of one round."""
        return x.tobytes()

    def check(self, objective: Any) -> None:  # noqa: B027  most have an answer
        """Raise ReplyError if a site with this objective has no answer."""

    @abstractmethod
    def exact(self, objective: Any, x: Array, rows: Batch) -> Any:
        """The answer without noise."""

    @abstractmethod
    def packed(self, answer: Any) -> tuple[float, dict[str, Any]]:
        """The loss and the metrics of a reply with an answer without noise."""

    @abstractmethod
    def released(self, objective: Any, x: Array, rows: Batch) -> Array:
        """The numbers of an answer with noise, before the noise."""

    @abstractmethod
    def noisy(self, values: Array, rows: int, sigma: float) -> Any:
        """The answer that these numbers are, with noise of this deviation."""

    @abstractmethod
    def packed_noisy(self, values: Array, rows: int, sigma: float) -> tuple[float, dict[str, Any]]:
        """The loss and the metrics of a reply with these numbers."""

    @abstractmethod
    def size(self, d: int) -> int:
        """How many numbers `released` has for a model of d entries."""

    def largest(self, rows: int) -> float:
        """A bound on the norm of `released`."""
        return float(rows)

    def known(self, x: Array) -> list[Array]:
        """Public arrays whose size limits the rounding errors in `released`."""
        return [x]

    def charged_as(self, round_: int) -> int:
        """The round under which the ledger charges the release after this round, and by which its noise is drawn."""
        return round_ + 1

    def stored_as(self, round_: int) -> int:
        """The round under which a site stores the release after this round."""
        return round_ + 1


@dataclass(frozen=True)
class SiteAnswer:
    """How one site answers a question: without noise, or with a guard, which charges the release of one round and whose
    noise multiplier is that of this release."""

    question: ModelQuestion
    guard: Guard | None = None
    release: Release | None = None

    def __post_init__(self) -> None:
        if (self.guard is None) != (self.release is None):
            raise SettingError("a SiteAnswer has a guard and a release, or neither")

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise, 0 without noise."""
        return self.guard.noise_multiplier * self.release.spread if self.guard and self.release else 0.0
