"""The sections of a run's configuration that the application declares itself. The sections are:

algorithm, rounds, seed, start-scale, start-point, precision    top-level settings
[data] [partition] [objective] [regulariser] [topology] [privacy]    the chosen entry of a registry, with its settings
[clients] [local] [evaluation] [server] [output]  settings that every run has
[fedpdm], ...                                     one section for each algorithm, with its settings
"""

from dataclasses import dataclass
from typing import Annotated, Any

from twinflower.errors import SettingError, require
from twinflower.privacy.correlated import NOISES
from twinflower.privacy.release import SENSITIVITIES
from twinflower.privacy.unit import KINDS, ONE_RECORD, Unit
from twinflower.queries import QuerySettings, QueryShares
from twinflower.randomness import FIRST_ROUNDS
from twinflower.settings import (
    FRACTION,
    PROBABILITY,
    Rule,
    Setting,
    above,
    at_least,
    between,
    one_of,
    settings_of,
    snake,
)

_BUDGET = Rule("from 1e-6 to 1e9, or 0 (not given)", lambda v: not v or 1e-6 <= v <= 1e9)
WEIGHTINGS = ("auto", "clients", "rows")
TRUSTS = ("local", "sum")


@dataclass(frozen=True)
class Clients:
    """The section [clients]: the number of clients and how they are sampled."""

    count: Annotated[
        int,
        Setting(
            "number of clients N; 0: as many as Flower has nodes, 10 without Flower", at_least(0), "clients"
        ),
    ] = 0
    per_round: Annotated[int, Setting("clients asked in a round, K; 0: all", at_least(0), "clients")] = 0
    first_round: Annotated[
        str, Setting("whether the first round asks a sample, too, or all clients", one_of(FIRST_ROUNDS))
    ] = "sampled"
    weighting: Annotated[
        str,
        Setting(
            "F is the mean over clients, or over all rows; auto: what the algorithm minimises",
            one_of(WEIGHTINGS),
        ),
    ] = "auto"

    @property
    def sampled(self) -> int:
        """The number K of clients sampled per round; first-round can make round 1 sample all of them."""
        return self.per_round or self.count

    def check(self, method: Any) -> None:
        """Raise SettingError for a weighting of F that the algorithm does not support."""
        known = method.weightings
        means = {"clients": "the mean of all clients' means", "rows": "the mean over all rows"}
        if self.weighting not in ("auto", *known):
            raise SettingError(
                f"clients.weighting must be {known[0]} with {method.name}, whose theory is for {means[known[0]]}; got "
                f"'{self.weighting}'"
            )


@dataclass(frozen=True)
class Local:
    """The section [local]: the work of a client in a round."""

    batch_size: Annotated[
        int, Setting("rows in a step, at most in a fixed order; 0: all", at_least(0), "rows")
    ] = 0
    max_steps: Annotated[
        int, Setting("steps in a round; 0: an epoch less one", between(0, 10_000), "steps")
    ] = 2
    fresh_batches: Annotated[
        bool,
        Setting(
            "shuffle the rows anew for every round, or for every epoch if a record is charged once per epoch; false: "
            "keep one order"
        ),
    ] = True

    def check(self, method: Any) -> None:
        """Raise SettingError for batches with an algorithm that needs all rows in every round."""
        if method.needs_whole_batches and self.batch_size:
            raise SettingError(
                f"{method.name} needs all rows of a client in every round: set local.batch-size to 0; got "
                f"{self.batch_size}"
            )


class _Plain:
    """The values of settings that a section [privacy] does not have."""

    conversion = "exact"
    noise = "independent"
    trust = "local"
    honest_sites = 0
    lost_sites = 0
    masks = False
    group_size = 0
    tune_share = 0.0
    shares = QueryShares(**dict.fromkeys(map(snake, settings_of(QueryShares)), 0.0))

    @property
    def unit(self) -> Unit:
        """What the guarantee of a private run protects."""
        return ONE_RECORD

    @property
    def exact_sums(self) -> bool:
        """Whether the server sees only sums over all clients, and these without noise."""
        return False

    @property
    def charges_batches(self) -> bool:
        """Whether a record is charged for the rounds that it is in, and not for every round."""
        return False

    def check(self, clients: Clients, max_norm: float) -> None:
        """Raise SettingError for settings that do not suit each other or these; here there are none."""


_GroupSize = Annotated[
    int,
    Setting(
        "with protects group, the number of records of one person that are protected together; without privacy, the "
        "most records that a person has at a site, so that the server knows how many rows a site holds out",
        at_least(0),
        "records",
    ),
]


_Trust = Annotated[
    str,
    Setting(
        "local: a client trusts nobody and adds all noise itself; sum: the server sees only sums over clients",
        one_of(TRUSTS),
    ),
]
_Masks = Annotated[
    bool, Setting("with trust sum, masks in a simulation, too; deployed sites always have them")
]


def _check_sums(clients: Clients, max_norm: float) -> None:
    """Raise SettingError for settings that no run with privacy.trust = "sum" allows."""
    if clients.sampled != clients.count:
        raise SettingError(
            "privacy.trust = sum needs all clients in every round, because the mean over some of them is no "
            f"function of earlier sums: set clients.per-round to 0; got {clients.per_round} of {clients.count}"
        )
    if max_norm:
        raise SettingError(
            "privacy.trust = sum cannot limit the norm of a single message, which nobody sees: set server.max-norm "
            f"to 0; got {max_norm:g}"
        )


@dataclass(frozen=True)
class NoPrivacy(_Plain):
    """No privacy: messages are exact functions of the data; with trust sum, the server sees their sums only."""

    mode: str = "none"
    trust: _Trust = "local"
    masks: _Masks = False
    group_size: _GroupSize = 0

    @property
    def exact_sums(self) -> bool:
        """See `_Plain`."""
        return self.trust == "sum"

    def check(self, clients: Clients, max_norm: float) -> None:
        """Raise SettingError for settings that do not suit privacy.trust."""
        require(
            self.trust == "sum" or not self.masks,
            "privacy.masks belongs to privacy.trust = sum: set it, or leave privacy.masks out",
        )
        if self.trust == "sum":
            _check_sums(clients, max_norm)


@dataclass(frozen=True)
class Private(_Plain):
    """Settings of all private runs: either a total epsilon at delta for each client, or a noise multiplier."""

    mode: str = "gradient"
    epsilon: Annotated[
        float, Setting("budget of each client for the whole run; 0: noise-multiplier decides", _BUDGET)
    ] = 0.0
    delta: Annotated[float, Setting("probability with which the guarantee may fail", PROBABILITY)] = 1e-4
    noise_multiplier: Annotated[
        float, Setting("standard deviation of the noise; 0: epsilon decides", _BUDGET, "sensitivities")
    ] = 0.0


@dataclass(frozen=True)
class Gradient(Private):
    """Noise is added to every gradient."""

    conversion: Annotated[
        str,
        Setting(
            "how epsilon becomes noise: exactly, or as Zhang 2023 and Gauthier 2023 do",
            one_of(("exact", "zcdp")),
        ),
    ] = "exact"
    trust: _Trust = "local"
    honest_sites: Annotated[
        int,
        Setting(
            "with trust sum, clients that add noise no attacker knows, each one itself included",
            at_least(0),
            "clients",
        ),
    ] = 0
    lost_sites: Annotated[
        int,
        Setting(
            "with trust sum, clients that may be missing in a round; below half of honest-sites",
            at_least(0),
            "clients",
        ),
    ] = 0
    masks: _Masks = False
    protects: Annotated[
        str,
        Setting(
            "what the guarantee protects: a record, a group of records of one person, or all of a client's",
            one_of(KINDS),
        ),
    ] = "record"
    group_size: _GroupSize = 0
    noise: Annotated[
        str,
        Setting(
            "noise of the steps: independent, or (banded) correlated over batches in a fixed order",
            one_of(NOISES),
        ),
    ] = "independent"

    tune_share: Annotated[
        float,
        Setting(
            "part that `twinflower tune` spends",
            FRACTION,
            "fraction of the budget",
        ),
    ] = 0.0
    shares: QueryShares = QueryShares()  # noqa: RUF009  frozen

    @property
    def charges_batches(self) -> bool:
        """See `_Plain`; the noise of sums is planned for records that are in every round."""
        return self.trust == "local"

    @property
    def unit(self) -> Unit:
        """What the guarantee protects; SettingError if protects and group-size contradict each other."""
        return Unit(self.protects, self.group_size)

    def check(self, clients: Clients, max_norm: float) -> None:
        """Raise SettingError for settings that privacy.trust = "sum" does not allow, or that only it allows."""
        sums = self.trust == "sum"
        if sums and not self.honest_sites:
            raise SettingError(
                "privacy.trust = sum needs privacy.honest-sites, the number of clients whose noise no attacker "
                f"knows (1 to {clients.count}), such as {clients.count}"
            )
        if not sums and (self.honest_sites or self.lost_sites or self.masks):
            raise SettingError(
                "privacy.honest-sites, privacy.lost-sites and privacy.masks belong to privacy.trust = sum: set it, or "
                "leave them out"
            )
        if sums:
            _check_sums(clients, max_norm)
        if not self.epsilon > 0 and self.tune_share:
            raise SettingError(
                "privacy.tune-share is a share of the budget privacy.epsilon, which it needs; got "
                f"{self.tune_share:g} with privacy.epsilon {self.epsilon:g}"
            )
        if sums and self.tune_share:
            raise SettingError(
                "privacy.trust = sum has no accounting for tuning: set privacy.tune-share to 0; got "
                f"{self.tune_share:g}"
            )
        if sums and self.noise != "independent":
            raise SettingError(
                "privacy.trust = sum draws noise for every sum anew: set privacy.noise to independent; got "
                f"{self.noise}"
            )
        if sums and self.conversion != "exact":
            raise SettingError(
                f"privacy.trust = sum is accounted for exactly; set privacy.conversion to exact; got {self.conversion}"
            )


@dataclass(frozen=True)
class PublicState(Gradient):
    """Noise is added to the result of the local steps."""

    mode: str = "public-state"
    sensitivity: Annotated[
        str, Setting("bound on one record's influence over several local steps", one_of(SENSITIVITIES))
    ] = "coupled"


@dataclass(frozen=True)
class AsPublished(Private):
    """The noise of Li 2023 and Li 2024 exactly as published."""

    mode: str = "as-published"
    c0: Annotated[float, Setting("constant c_0 of the published moments accountant", above(0))] = 1.0


PRIVACY: dict[str, type[NoPrivacy] | type[Private]] = {
    entry.mode: entry for entry in (NoPrivacy, PublicState, Gradient, AsPublished)
}


@dataclass(frozen=True)
class _Metrics:
    every: Annotated[
        int, Setting("rounds from one evaluation of the model to the next", at_least(1), "rounds")
    ] = 1
    early: Annotated[int, Setting("up to this round, every round is evaluated", at_least(0), "rounds")] = 0
    reference: Annotated[bool, Setting("compare with the optimum of all rows together")] = False


@dataclass(frozen=True)
class Evaluation(QuerySettings, _Metrics):
    """The section [evaluation]: when and what to evaluate during a run, and what to ask its sites."""


@dataclass(frozen=True)
class Server:
    """The section [server]: how the server treats nodes and their replies."""

    node_timeout: Annotated[
        float, Setting("how long to wait for nodes to appear, or to come back", above(0), "seconds")
    ] = 120.0
    round_timeout: Annotated[
        float, Setting("how long to wait for the replies of a round", above(0), "seconds")
    ] = 3600.0
    min_replies: Annotated[
        int, Setting("a round with fewer replies does not count", at_least(1), "replies")
    ] = 1
    void_rounds: Annotated[
        int, Setting("rounds in a row that may fail before the run stops; 0: none", at_least(0), "rounds")
    ] = 0
    max_norm: Annotated[float, Setting("a longer reply is left out; 0: any length", at_least(0))] = 0.0


@dataclass(frozen=True)
class Output:
    """The section [output]: where results are written, and what is stored to resume a run."""

    dir: Annotated[str, Setting("new folder for the results; empty: runs/NAME", unit="path")] = ""
    state_dir: Annotated[
        str, Setting("folder of the clients' states and ledgers; empty: none, or in dir", unit="path")
    ] = ""
    checkpoint_every: Annotated[
        int, Setting("rounds between checkpoints; 0: no checkpoints", at_least(0), "rounds")
    ] = 0
    resume_from: Annotated[
        str, Setting("folder of an interrupted run to resume; empty: a new run", unit="path")
    ] = ""
    tracker: Annotated[
        str, Setting("mlflow, or MODULE:FUNCTION that gets the folder of every ended run; empty: none")
    ] = ""
    openmetrics: Annotated[
        str,
        Setting(
            "file for Prometheus that a server on Flower writes after each round; empty: none", unit="path"
        ),
    ] = ""
