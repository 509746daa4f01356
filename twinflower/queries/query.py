"""The contract of a question that a run asks its sites besides the rounds.

Questions about the rows alone are asked and released together before round 1 (`Histogram`, `first`), those about a
model after rounds (`ModelQuery`). Each is one module, which says

    asked_by, of   whether and how a run asks it
    check_settings, check               which runs cannot
    share_key, charged                  what part of the privacy budget it takes
    squared_move   how far the replacement of one record can move the answer, which decides the noise
    check_policy   what a site's policy asks of an answer without noise
    `Histogram.part`, `ModelQuestion`   what a site computes, with and without noise, and how the server reads it
    reported       what becomes of the answers in metrics.csv, other files, reports and checkpoints (`Answers`)
    planned, noise_rows, advice         what `twinflower privacy` says beforehand

and declares, as dataclasses, its settings of [evaluation], its share as one of [privacy], and the keys by which a
site's node config allows exact answers. `twinflower.queries` lists the questions and these dataclasses; all others go
through that.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from ..arrays import Array, Index
from ..data.dataset import Dataset
from ..data.partition import Partition
from ..models.inputs import Inputs
from ..privacy.guard import Guard
from ..privacy.mechanism import Draws, GaussianNoise
from ..privacy.plan import Plan
from ..privacy.target import Target
from ..problems.batches import LocalSchedule, Shards
from ..problems.interfaces import Batch, Model
from ..settings import Rule
from .model_question import ModelQuestion, SiteAnswer

FRACTION_OF_BUDGET = Rule("from 0.001 to 0.999", lambda v: 0.001 <= v <= 0.999), "fraction of the budget"
"""Rule and unit of a setting for the part of the privacy budget that answers take."""
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

    def own(self, server: Any) -> Any:
        """The server state of that, given the state of `algorithm`."""

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


class Part(ABC):
    """What one site counts of its rows before round 1."""

    scales: ClassVar[bool] = False
    """Whether the rows change with what follows from all counts."""

    @property
    def histograms(self) -> int:
        """In how many histograms every row is counted once."""
        return 1

    @abstractmethod
    def counts(self) -> Array:
        """The counts of all cells, (entries,)."""

    def features(self, agreed: object) -> Array | None:
        """The rows as they are trained on, given what follows from all counts; None for rows that are as they were."""
        return None


class Answers:
    """What a run keeps and shows of the answers to a question; by default it keeps the last ones, and shows nothing."""

    known_columns: ClassVar[Sequence[str]] = ()
    """All columns of metrics.csv that follow from the answers in any run, and that summary.json repeats."""
    known_files: ClassVar[Sequence[str]] = ()
    """The files that `files` and `arrays` write in any run; a report lists their digests."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def row(self, found: Any) -> dict[str, float]:
        """The columns of metrics.csv after a round; found: its answers, None for none."""
        return {}

    def kept(self, before: Any, found: Any) -> Any:
        """What is kept of earlier answers and those of this round."""
        return found

    def files(self, found: Any) -> Iterator[Table]:
        """The tables that a run's folder holds of the answers."""
        return iter(())

    @classmethod
    def read(cls, rows: Sequence[Mapping[str, str]]) -> Any:
        """What a report shows of the rows of the table in `files`, empty without rows; KeyError or ValueError for rows
        that no run has written."""
        return rows

    def arrays(self, found: Any) -> Mapping[str, Any]:
        """What the run's file of arrays, `name`.npz, holds of the answers besides the model x; empty for no file."""
        return {}

    def site(self, client: int) -> tuple[str, str]:
        """The columns "client" and "site" of a file, the number of a client and its name, empty without names."""
        names = self.run.dataset.site_names
        return f"{client}", names[client] if names else ""

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


class SentCounts(NamedTuple):
    """The counts that a client has sent, its number of rows, and the standard deviation of the noise."""

    counts: list[float]
    rows: int
    sigma: float


class CountAnswers(Answers):
    """The counts of every client (`SentCounts`)."""

    @classmethod
    def restored(cls, stored: Any) -> dict[int, SentCounts]:
        """See `Answers`."""
        return {int(client): SentCounts(*sent) for client, sent in stored.items()}


class SiteQuery(ABC):
    """A question of a run; the module docstring says what it holds."""

    name: ClassVar[str]
    reported: ClassVar[type[Answers]] = Answers
    asked_by: ClassVar[str] = ""
    """The setting by which a run asks it, if there is one."""
    share_key: ClassVar[str] = ""
    """The setting of its share of the privacy budget, if it has one and that adds to those of other questions."""
    follows: ClassVar[str]
    otherwise: ClassVar[str]
    """What the answers give, and how a run does without."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """The question of this run; None if it does not ask it, by default without its setting `asked_by`."""
        return cls(run) if run.config.items().get(cls.asked_by) else None

    @classmethod  # noqa: B027
    def check_settings(cls, config: Any) -> None:
        """Raise SettingError for settings of a run that contradict each other, whether or not it asks this."""

    @property
    def share(self) -> float:
        """The share of the privacy budget for the answers, 0 in a run without the setting."""
        return self.run.config.items().get(self.share_key, 0.0)  # type: ignore[no-any-return]

    def charged(self, plan: Plan, target: Target) -> Plan:
        """The plan with what the question costs besides its `share`."""
        return plan

    def check(self) -> None:  # noqa: B027
        """Raise SettingError if this run cannot ask the question."""

    def check_policy(self, site: Any, client: int) -> None:  # noqa: B027
        """Raise SettingError unless the policy of a site, with the keys of `policy`, allows answers without noise."""

    @property
    def asks_sites(self) -> bool:
        """Whether every site answers with a message of its own, besides those of the rounds."""
        return True

    @cached_property
    def answers(self) -> Answers:
        """What becomes of the answers in this run."""
        return self.reported(self.run)

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
    def part(self, client: int, site: Any = None) -> Part:
        """What a client counts; site: the policy of a deployed site, by which it may withhold counts without noise."""

    def found(self, counts: Array, clients: Index) -> Any:
        """What follows from the counts (K, entries) of these clients (K,); by default the counts of each client."""
        sizes, sigma = self.run.partition.sizes, self.run.first.sigma
        return {
            int(client): SentCounts(own.tolist(), int(sizes[client]), sigma(int(client)))
            for client, own in zip(clients, counts, strict=True)
        }

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
