"""The noise and the privacy cost of a private run before it starts: the tables of `twinflower privacy`."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

import numpy as np

from twinflower.algorithms.local import LocalMethod, path_length
from twinflower.algorithms.newton import has_information
from twinflower.arrays import Array, Index
from twinflower.models.information import MOST_PARAMETERS
from twinflower.privacy import best_guess, detection, gdp_epsilon
from twinflower.privacy.correlated import noise_in_sums
from twinflower.privacy.plan import Plan
from twinflower.privacy.release import Release
from twinflower.sums.noise import Sums
from twinflower.sums.plan import SumPlan

from ..settings import Config
from .advice import l1_weight, warned
from .method import derived_step
from .privacy import spent
from .setup import PreparedRun

NOISE_HEADINGS = ("release", "round", "client", "noise multiplier", "sensitivity", "weight", "sigma")
SUMMARY_HEADINGS = (
    "curve", "privacy", "noise multiplier", "sigma, first", "smallest", "largest", "epsilon", "best guess",
)  # fmt: skip
_MOST_NAMES = 3


class Used(NamedTuple):
    """The noise of one client's release in one round: sigma = multiplier * sensitivity / sqrt(weight)."""

    round: int
    client: int
    multiplier: float
    sensitivity: float
    weight: float
    sigma: float


def noise_used(setup: PreparedRun) -> dict[str, Used]:
    """Three releases of a private run: the "first" one, and those with the "smallest" and the "largest" sigma."""
    found: dict[str, Used] = {}
    for round_, clients, sigmas in _sigmas(setup):
        low, high = int(sigmas.argmin()), int(sigmas.argmax())
        found.setdefault("first", _used(setup, round_, int(clients[0])))
        if "smallest" not in found or sigmas[low] < found["smallest"].sigma:
            found["smallest"] = _used(setup, round_, int(clients[low]))
        if "largest" not in found or sigmas[high] > found["largest"].sigma:
            found["largest"] = _used(setup, round_, int(clients[high]))
    return found


def _sigmas(setup: PreparedRun) -> Iterator[tuple[int, Index, Array]]:
    """For every round: its number, the sampled clients (K,), and the sigmas of their releases (K,)."""
    plan = cast(Plan, setup.plan)
    sizes = setup.partition.sizes
    degrees = [len(near) for near in setup.neighbours] or np.zeros_like(sizes)
    _, examples, kind = np.unique(np.stack([sizes, degrees]), axis=1, return_index=True, return_inverse=True)
    for round_ in range(1, setup.config.rounds + 1):
        spreads = np.array([_spread(setup, int(client), round_) for client in examples])
        clients = setup.config.asked(round_)
        yield round_, clients, plan.multipliers[clients] * spreads[kind.ravel()[clients]]


def _spread(setup: PreparedRun, client: int, round_: int) -> float:
    """sigma / noise multiplier of a client's release, which depends on its number of rows and of neighbours."""
    return _release(setup, client, round_).spread * setup.algorithm.sensitivity_ratio(client, round_)


def _release(setup: PreparedRun, client: int, round_: int) -> Release:
    workload = setup.schedule.workload(int(setup.partition.sizes[client]))
    return setup.algorithm.release(cast(Plan, setup.plan).bounds, workload, round_)


def _used(setup: PreparedRun, round_: int, client: int) -> Used:
    release, ratio = _release(setup, client, round_), setup.algorithm.sensitivity_ratio(client, round_)
    multiplier = float(cast(Plan, setup.plan).multipliers[client])
    sigma = multiplier * release.spread * ratio
    return Used(round_, client, multiplier, release.sensitivity * ratio, release.weight, sigma)


def noise_rows(setup: PreparedRun) -> list[tuple[str, ...]]:
    """The table of `noise_used`, as rows under `NOISE_HEADINGS`, between what is released before them
    and afterwards."""
    first = setup.first.noise_rows() if setup.first else []
    rounds = [
        (name, str(used.round), str(used.client), *(f"{number:.6g}" for number in used[2:]))
        for name, used in noise_used(setup).items()
    ]
    return first + rounds + [row for query in setup.queries for row in query.noise_rows()]


def forecast(setup: PreparedRun) -> list[tuple[str, str]]:
    """A run's privacy as (name, value) rows: participation, rows and local steps, the cost, and the guarantee."""
    plan = setup.plan
    if plan is None:
        return [("guarantee", _SUMS_ONLY if setup.config.privacy.exact_sums else _NO_NOISE)]
    sizes = setup.partition.sizes
    workloads = setup.schedule.workloads([sizes.min(), sizes.max()])
    rows = [
        ("mode", plan.mode),
        ("what is protected", f"{plan.unit.records}, for each client"),
        ("rounds a client takes part in", _between(plan.releases.rounds_in)),
        ("rows of a client", _between(sizes)),
        (
            "local steps x rows, smallest and largest client",
            "; ".join(f"{p.steps} x {p.rows}" for p in workloads),
        ),
        (f"releases of a round that {plan.unit.target} can touch", _between(plan.participation.affected)),
        ("cost of all rounds, in releases", _between(plan.units)),
        *_correlated(plan),
        (f"bound on a {_bounded(setup.config)}'s gradient", f"{plan.bounds.gradient:.4g}"),
        ("noise multiplier of a client", _between(plan.multipliers)),
        *_step(setup),
    ]
    if plan.mu_tuning:
        share = plan.mu_tuning**2 / (plan.mu_tuning**2 + plan.mu_limit**2)
        rows.append(("spent by tuning before the run", f"{share:.3g} of the budget in mu^2"))
    if setup.neighbours:
        rows.append(("neighbours of a client", _between(np.array([len(near) for near in setup.neighbours]))))
    rows += (
        [row for query in setup.queries for row in query.planned()] + beside_l1(setup) + _newton(setup, plan)
    )
    return rows + (_shared(plan) if isinstance(plan, SumPlan) else []) + _cost(plan)


def _step(setup: PreparedRun) -> list[tuple[str, str]]:
    """The step size, if it follows from the noise."""
    step = derived_step(setup.config, setup.method)
    return [("step size, from the noise (fedavg.step-size = 0)", f"{step:.6g}")] if step else []


def _correlated(plan: Plan) -> list[tuple[str, str]]:
    """The bandwidth of noise that is correlated over steps, and what it gains."""
    widths = plan.participation.bandwidths
    if widths is None:
        return []
    each = zip(widths.tolist(), plan.participation.workloads, plan.releases.rounds_in.tolist(), strict=True)
    runs = {(p, load.per_epoch, max(1, int(n) * load.steps)) for p, load, n in each}
    parts = [noise_in_sums(*run) / noise_in_sums(1, *run[1:]) for run in runs]
    return [
        ("bandwidth of the noise, in steps", _between(widths)),
        ("noise in sums of gradients, beside independent noise of the same cost", _between(np.array(parts))),
    ]


def _newton(setup: PreparedRun, plan: Plan) -> list[tuple[str, str]]:
    """How Newton's method did beside tuned gradients at sites as large as the smallest, if the objective has both."""
    objective = setup.objective
    if not (plan.provable and has_information(objective) and objective.d <= MOST_PARAMETERS):
        return []
    return [("Newton's method beside gradients", _MEASURED[bool(setup.partition.sizes.min() >= _MANY_ROWS)])]


def beside_l1(setup: PreparedRun) -> list[tuple[str, str]]:
    """The noise of a mean gradient beside the weight of l1, as (name, text) rows; none without both, or with sums."""
    (_, weight), noise = l1_weight(setup.config), mean_gradient_noise(setup)
    if not (weight and noise):
        return []
    sigma0 = noise / math.sqrt(setup.config.rounds)
    return [
        ("weight of l1", f"{weight:.4g}"),
        ("noise of the mean gradient, all rounds (sigma0) and one round", f"{sigma0:.4g}, {noise:.4g}"),
        ("what that means", _WINDOW),
    ]


def mean_gradient_noise(setup: PreparedRun) -> float:
    """The standard deviation, in an entry, of the noise that the sites of the first round leave in the mean of their
    gradients; with several local steps, of these steps' mean. 0 for methods without such a mean, for sums, and for
    noise that is correlated over steps."""
    plan, method = setup.plan, setup.method
    if (
        plan is None
        or plan.participation.bandwidths is not None
        or not plan.provable
        or isinstance(plan, SumPlan)
        or not isinstance(method, LocalMethod)
    ):
        return 0.0
    sizes, clients = setup.partition.sizes, setup.config.asked(1)
    workloads = setup.schedule.workloads(sizes[clients])
    moved = np.array([method.release(plan.bounds, workload, 1).sensitivity for workload in workloads])
    steps = np.array([workload.steps for workload in workloads])
    units = (
        np.sqrt(steps) if method.privacy == "gradient" else path_length(method.step(1), method.pull, steps)
    )
    shares = sizes[clients] if setup.by_rows else np.ones(len(clients))
    noise = plan.multipliers[clients] * moved / units * shares / shares.sum()
    return float(np.sqrt(np.sum(noise**2)))


def _shared(plan: SumPlan) -> list[tuple[str, str]]:
    """The trust assumption of a run in which the server sees only sums, its second epsilon, and that of a lost site."""
    sums, alone = plan.sums, gdp_epsilon(plan.mu_limit_alone, plan.delta)
    return [
        ("trust", f"sums over {sums.sites} clients, at least {sums.honest} of them honest{_absent(sums)}"),
        ("epsilon in total, against everybody else", f"{alone:.6g} at delta {plan.delta:g}"),
        ("if a client is lost for good", _without_it(plan)),
    ]


def _absent(sums: Sums) -> str:
    """How many clients may be missing, and what that costs; empty for none."""
    if not sums.lost:
        return ""
    return f", up to {sums.lost} missing in a round, so the noise of {sums.counted} counts"


def _without_it(plan: SumPlan) -> str:
    if plan.sums.lost:
        return f"the run goes on without it, as long as no more than {plan.sums.lost} are missing"
    if plan.sums.sites == 2:
        return "no sum is possible without it"
    epsilon, alone = plan.epsilons_after_a_loss
    return (
        f"a new run without it brings the total to epsilon {epsilon:.4g} at most, and to {alone:.4g} against everybody "
        "else"
    )


def _bounded(config: Config) -> str:
    """The unit whose gradient clip-norm bounds: a batch or a record."""
    return "batch" if config.objective.clip == "batch" else "record"


_MANY_ROWS = 1000
_BESIDE = (
    "times the excess loss of FedAvg tuned on the data, with 3 rounds and nothing to tune (docs/choose.md)"
)
_MEASURED = {
    True: f"in tables with 1,000 rows and more at a site it left .3 to 1.2 {_BESIDE}",
    False: f"in tables with fewer than 1,000 rows at a site it left .85 to 1.7 {_BESIDE}",
}
_WINDOW = (
    "methods that compare the weight with one round's mean gradient (FedAvg, with momentum after the prox, too) need a "
    "weight above the second number to keep zeros at zero; those that compare it with an averaged gradient (FedPDM, "
    "FedDyn, FedADMM, FedDualAvg, FedAvg with momentum-weight) one above the first (docs/when-duals-help.md)"
)
_NO_NOISE = "none: no noise is added, messages are exact functions of the data"
_SUMS_ONLY = (
    "none: no noise is added, and sums over all clients are exact functions of the data; masks hide the messages of "
    "single clients"
)


def _cost(plan: Plan) -> list[tuple[str, str]]:
    costs = spent(plan)
    rows = []
    if plan.claimed_epsilon is not None:
        rows.append(("epsilon the paper claims", f"{plan.claimed_epsilon:g} at delta {plan.delta:g}"))
    if plan.provable:
        mu = costs["mu"]
        rows += [
            ("mu of a client", _between(plan.mu)),
            ("epsilon in total, largest client", f"{costs['epsilon']:.6g} at delta {plan.delta:g}"),
            ("best attacker, from even odds", f"right in {best_guess(mu):.1%} of the cases"),
            ("best attacker, at 5% false alarms", f"detects {detection(mu):.1%}"),
        ]
    return [*rows, ("guarantee", costs["guarantee"])]


def _between(numbers: Array | Index) -> str:
    """The range of the numbers as text, "smallest to largest", or one number if they are equal."""
    low, high = f"{numbers.min():.6g}", f"{numbers.max():.6g}"
    return low if low == high else f"{low} to {high}"


def summary(curves: Iterable[tuple[str, PreparedRun]]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The curves as rows under `SUMMARY_HEADINGS`, and their remarks, each listed once with its curves' labels."""
    rows: list[tuple[str, ...]] = []
    owners: dict[str, list[str]] = {}
    for label, setup in curves:
        rows.append(_summary_row(label, setup))
        for text in _remarks(setup):
            owners.setdefault(text, []).append(label)
    return rows, [f"{_names(labels)}: {text}" for text, labels in owners.items()]


def _summary_row(label: str, setup: PreparedRun) -> tuple[str, ...]:
    plan = setup.plan
    if plan is None:
        return (label, "none", *["-"] * (len(SUMMARY_HEADINGS) - 2))
    used, costs = noise_used(setup), spent(plan)
    sigmas = [f"{used[name].sigma:.4g}" for name in ("first", "smallest", "largest")]
    cost = ["no guarantee", "-"]
    if plan.provable:
        cost = [f"{costs['epsilon']:.4g} (delta {plan.delta:g})", f"{costs['attacker_accuracy']:.1%}"]
    return (label, plan.mode, _between(plan.multipliers), *sigmas, *cost)


def _remarks(setup: PreparedRun) -> list[str]:
    """The caveat of the run's guarantee, its noise beside the weight of l1, and the warnings of its outlook."""
    caveat = [setup.plan.caveat] if setup.plan and setup.plan.caveat else []
    window = beside_l1(setup)
    beside = ["; ".join(f"{key} {text}" for key, text in window[:-1]), window[-1][1]] if window else []
    return [*caveat, *beside, *(f"warning: {text}" for text in warned(setup))]


def _names(labels: list[str]) -> str:
    more = len(labels) - _MOST_NAMES
    return ", ".join(labels) if more <= 0 else f"{', '.join(labels[:_MOST_NAMES])} and {more} more"
