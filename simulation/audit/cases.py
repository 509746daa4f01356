"""What is audited: a mechanism with the privacy it claims, and how such a case is made of a ClientApp."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from twinflower.arrays import Array
from twinflower.errors import SettingError
from twinflower.flower_messages import FIT, reply_record
from twinflower.privacy.accountant import gdp_mu

from .data import AS_GIVEN, Rows, mixed, pairs, relabelled, server_messages
from .declared import ANY, RELATIONS, GaussianRelease
from .recorder import Arrays, Mechanism, client, numpy_request, request
from .transcript import Outcome, Transcript

Loss = Callable[[Arrays, Rows], Array]
"""The losses (n,) of a model at n records."""

_PREFIXES = "arrays/", f"{reply_record(FIT, 'parameters')}/"  # of the places of a reply's model
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
class OneRun:
    """How a case is audited in one run: its rows, the mechanism whose server always sends `model`, the losses, and the
    column of labels, if there is one."""

    mechanism: Mechanism
    model: Arrays
    rows: Rows
    loss: Loss
    label: str = ""

    def canaries(self, number: int, draws: np.random.Generator) -> tuple[Rows, Rows]:
        """So many rows that mix the entries of the rows, and what replaces each: the same with another label, which
        moves gradients most, or if there is none another mixture."""
        heads, known = mixed(self.rows, number, draws), self.rows.get(self.label, np.empty(0))
        if len(np.unique(known)) < 2:
            return heads, mixed(self.rows, number, draws)
        return heads, relabelled(heads, known, self.label, draws)

    def scores(self, canaries: Rows, run: Transcript) -> Array:
        """How much better the replies fit each canary than what the server sent: its loss (m,) falls if it was there.
        A round whose reply has no model counts as 0."""
        models = [found for outcome in run if (found := _model_of(outcome, self.model)) is not None]
        before = self.loss(self.model, canaries)
        gains = [before - self.loss(model, canaries) for model in models]
        return np.nan_to_num(np.sum([np.zeros(len(before)), *gains], axis=0))


def _model_of(outcome: Outcome, like: Arrays) -> Arrays | None:
    """The model in a reply in the shapes of another; None if there is none."""
    found = {
        place.removeprefix(prefix): numbers
        for place, numbers in outcome.values.items()
        for prefix in _PREFIXES
        if place.startswith(prefix)
    }
    named: Mapping[str, NDArray[Any]] = (
        like if isinstance(like, Mapping) else {str(place): array for place, array in enumerate(like)}
    )
    if any(name not in found or found[name].size != array.size for name, array in named.items()):
        return None
    arrays = {name: found[name].reshape(array.shape) for name, array in named.items()}
    return arrays if isinstance(like, Mapping) else list(arrays.values())


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


def client_case(
    name: str,
    app: Callable[[Any, int], ClientApp],
    model: Arrays,
    rows: Rows,
    claim: Claim,
    rounds: int = 1,
    declared: Sequence[GaussianRelease] = (),
    *,
    label: str = "label",
    config: Mapping[str, Any] | None = None,
    numpy_client: bool = False,
    only: Iterable[str] = (),
    public: Iterable[str] = (),
    loss: Loss | None = None,
    about: str = "",
) -> Case:
    """The case of an app that trains a model on rows.

    app(rows, seed): the ClientApp of a client that holds these rows, in the form of `rows`. model: the arrays of a
    model, of which the server sends extreme versions. rows, label: see `pairs`. claim: its relation is that of the data
    sets. config: of every request. numpy_client: whether the app has a NumPyClient. only: names of `server_messages` to
    send, by default all. loss(model, rows): the losses (n,) of a model of the form of `model` at rows, for audits of
    a single run (`attack.attack_once`). The rest: see `Case`.
    """
    make = numpy_request if numpy_client else request
    plans = server_messages(model, rounds, config, make)
    return Case(
        name,
        {how: client(app, plans[how]) for how in list(only) or plans},
        pairs(rows, label, claim.relation),
        claim,
        declared,
        frozenset(public),
        about,
        loss and OneRun(client(app, plans[AS_GIVEN]), model, rows, loss, label),
    )
