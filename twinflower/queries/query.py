"""The contract of a question that a run asks its sites besides the rounds.

Questions about the rows alone are asked and released together before round 1 (`Histogram`, `first`), those about a
model after rounds (`ModelQuery`). Each is one module, which says

    of             whether and how a run asks it
    check_settings, check, share        which runs cannot, and what part of the privacy budget it takes
    squared_move   how far the replacement of one record can move the answer, which decides the noise
    check_policy   what a site's policy asks of an answer without noise
    `Histogram.part`, `ModelQuestion`   what a site computes, with and without noise, and how the server reads it
    columns, files, summarised, stored  what becomes of the answers in metrics.csv, other files, and checkpoints
    planned, noise_rows, advice         what `twinflower privacy` says beforehand

and is registered in `QUERIES`, through which all others go.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from ..arrays import Array, Index
from ..data.dataset import Dataset
from ..data.partition import Partition
from ..errors import SettingError
from ..models.inputs import Inputs
from ..privacy.guard import Guard
from ..privacy.mechanism import Draws, GaussianNoise
from ..privacy.plan import Plan, Target
from ..privacy.release import Release
from ..problems.batches import LocalSchedule, Shards
from ..problems.interfaces import Batch, Model
from ..settings import Rule

FRACTION_OF_BUDGET = Rule("from 0.001 to 0.999", lambda v: 0.001 <= v <= 0.999), "fraction of the budget"
"""Rule and unit of a setting for the part of the privacy budget that answers take."""
EVERY_ROUND = range(2**48)
Table = tuple[
    str, Sequence[str], Iterable[Mapping[str, Any]]
]  # the name of a CSV file, its columns and its rows


class Run(Protocol):
    """What questions need to know about a prepared run (`simulation.runs.setup.PreparedRun`)."""

    config: Any
    dataset: Dataset
    partition: Partition
    held: Partition | None
    objective: Model
    schedule: LocalSchedule
    start: Array
    plan: Plan | None
    answers: Mapping[str, Any]

    algorithm: Any

    @property
    def method(self) -> Any:
        """The algorithm without a wrapper."""

    @property
    def shards(self) -> Shards:
        """All clients' rows."""

    @property
    def inputs(self) -> Inputs:
        """The transformation from columns to features."""

    @property
    def reference_rows(self) -> Array:
        """Public rows."""

    @property
    def row_norm(self) -> float:
        """The public bound on the norm of a row."""

    @property
    def first(self) -> Any:
        """What is asked before round 1 (`first.First`), None for nothing."""

    def rows_of(self, client: int) -> Index:
        """The numbers of a client's rows in the data set."""

    def held_rows(self, client: int) -> Batch | None:
        """The rows that a client holds out."""


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


class Part(Protocol):
    """What one site counts of its rows before round 1."""

    @property
    def histograms(self) -> int:
        """In how many histograms every row is counted once."""

    @property
    def entries(self) -> int:
        """The number of counts."""

    @property
    def scales(self) -> bool:
        """Whether the rows change with what follows from all counts."""

    def counts(self) -> Array:
        """The counts of all cells, (entries,)."""

    def features(self, agreed: object) -> Array | None:
        """The rows as they are trained on, given what follows from all counts; None for rows that are as they were."""


class SiteQuery(ABC):
    """A question of a run; the module docstring says what it holds."""

    name: ClassVar[str]
    known_columns: ClassVar[Sequence[str]] = ()
    """All columns of metrics.csv that the answers of any run have, and that summary.json repeats."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @classmethod
    @abstractmethod
    def of(cls, run: Run) -> Self | None:
        """The question of this run; None if it does not ask it."""

    @classmethod  # noqa: B027
    def check_settings(cls, config: Any) -> None:
        """Raise SettingError for settings of a run that contradict each other, whether or not it asks this."""

    @property
    def share(self) -> float:
        """The share of the privacy budget for the answers."""
        return 0.0

    def charged(self, plan: Plan, target: Target) -> Plan:
        """The plan with what the question costs besides its `share`."""
        return plan

    def check(self) -> None:  # noqa: B027
        """Raise SettingError if this run cannot ask the question."""

    def check_policy(self, site: Any, client: int) -> None:  # noqa: B027
        """Raise SettingError unless the policy of a site, with the keys of `policy`, allows answers without noise."""

    @property
    def allowing(self) -> Mapping[str, Any]:
        """The entries of a node config that allow what this run asks."""
        return {}

    def planned(self) -> list[tuple[str, str]]:
        """What a private run releases, as rows of `twinflower privacy`."""
        return []

    def noise_rows(self) -> list[tuple[str, ...]]:
        """The release with most noise: its name, round, client, multiplier, sensitivity, weight and sigma."""
        return []

    def advice(self) -> list[str]:
        """Warnings about the noise of a private run."""
        return []

    @property
    def columns(self) -> Sequence[str]:
        """The columns of metrics.csv that follow from the answers."""
        return ()

    def row(self, found: Any) -> dict[str, float]:
        """The values of `columns`; found: the answers of the round, None for none."""
        return {}

    def kept(self, before: Any, found: Any) -> Any:
        """What is kept of earlier answers and those of this round."""
        return found

    def files(self, found: Any) -> Iterator[Table]:
        """The tables that a run's folder holds of the answers."""
        return iter(())

    def arrays(self, found: Any) -> Mapping[str, Any]:
        """What the run's file of arrays, `name`.npz, holds of the answers besides the model x; empty for no file."""
        return {}

    @classmethod
    def summarised(cls, found: Any) -> dict[str, Any]:
        """The entries of summary.json that follow from the answers, or from None."""
        return {}

    @classmethod
    def stored(cls, found: Any) -> Any:
        """The answers as values of JSON, for a checkpoint."""
        return found

    @classmethod
    def restored(cls, stored: Any) -> Any:
        """Inverse of `stored`."""
        return stored


class Histogram(SiteQuery):
    """A question that is answered before round 1, by counts in which every record is once per histogram."""

    @property
    @abstractmethod
    def squared_move(self) -> int:
        """The squared distance by which the replacement of one record can move the counts."""

    @property
    @abstractmethod
    def entries(self) -> int:
        """The number of counts of a client."""

    @property
    @abstractmethod
    def what(self) -> str:
        """What is counted, in the table of noise."""

    @abstractmethod
    def part(self, client: int) -> Part:
        """What a client counts."""

    @abstractmethod
    def found(self, counts: Array, clients: Index) -> Any:
        """What follows from the counts (K, entries) of these clients (K,)."""

    def applied(self, run: Any, found: Any) -> Any:
        """The run as it goes on with what was found."""
        return run

    def content(self, counts: Array, clients: Index) -> bytes:
        """What every further request carries of this, from which `Part.features` follow; empty for nothing, as of all
        questions but one."""
        return b""


class ModelQuery(SiteQuery):
    """A question about models, which sites answer after rounds."""

    kind: ClassVar[type[ModelQuestion]]
    question: ModelQuestion

    @abstractmethod
    def answer(self, client: int, guard: Guard | None, site: Any = None) -> SiteAnswer | None:
        """How a client answers; None if it does not. site: the policy of a deployed site."""

    def asks(self, client: int) -> bool:
        """Whether a client has rows to answer about."""
        return True

    @abstractmethod
    def sigma(self, client: int) -> float:
        """The standard deviation of the noise in a client's answer, 0 without privacy."""

    @abstractmethod
    def draws(self, client: int, round_: int) -> Draws:
        """The draws of a client's noise after a round of a simulation."""

    def of_rounds(self, server: Any) -> Any:
        """What the messages of the last round say already, given the server's state; None for most methods."""
        return None

    def simulated(self, x: Array, round_: int, personal: Array | None = None) -> Any:
        """What clients find in a simulation, with the noise that they would draw; None for a round that is not asked
        about.

        personal (N, d): the clients' own models, which they evaluate in place of x (d,).
        """
        if round_ not in self.question.rounds:
            return None
        asked = self.question.at(x)
        answers = {
            client: self._simulated(asked, client, x if personal is None else personal[client], round_)
            for client in range(self.run.config.clients.count)
            if self.asks(client)
        }
        return asked.found(answers, self.run.plan is not None)

    def _simulated(self, asked: ModelQuestion, client: int, x: Array, round_: int) -> Any:
        run = self.run
        rows = run.held_rows(client) if asked.of_held_out else run.shards.rows(client)
        assert rows is not None
        if run.plan is None:
            return asked.exact(run.objective, x, rows)
        sigma = self.sigma(client)
        noise = GaussianNoise(sigma, self.draws(client, round_))
        return asked.noisy(noise(asked.released(run.objective, x, rows)), len(rows.labels), sigma)
