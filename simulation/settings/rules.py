"""The rules that concern several settings of a run."""

from dataclasses import replace
from typing import Any

from twinflower.data.features import EACH
from twinflower.data.partitioners import PARTITIONERS, Sizes
from twinflower.data.sets import OWN, TABLES, OwnData, TableData
from twinflower.errors import require
from twinflower.known_objectives import COUNTING, SURVIVAL, TorchObjective
from twinflower.problems.stratified_cox import NOT_SEPARABLE, STRATIFIED_COX

from .config import Config
from .inference import check_standard_errors
from .sections import Evaluation, Gradient, NoPrivacy, Private

_MOST_SINGLE_ROUNDS = 2**24


def check(config: Config, stored: bool = False) -> None:
    """Check the rules that concern several settings and need no data; SettingError if one is violated.

    stored: the settings are those of a run that was begun, whose tables may since have been moved or joined by others.
    """
    config.objective.check()
    if config.precision == "single":
        _check_single(config)
    _check_weighting(config.clients.weighting, config.method)
    _ = config.schedule
    _check_evaluation(config.evaluation, config.privacy, config.rounds)
    require(
        not config.evaluation.survival_curve or config.objective.name in SURVIVAL,
        "evaluation.survival-curve needs times of events as labels: set objective.name to "
        f"{' or '.join(SURVIVAL)}, or leave it empty; got {config.objective.name}",
    )
    survival = config.objective.name in SURVIVAL
    require(
        bool(config.evaluation.auc_times) == (survival and config.evaluation.bins > 0),
        "evaluation.auc-times and evaluation.bins belong together for a survival model, and evaluation.auc-times to no "
        f"other: set both or neither; got '{config.evaluation.auc_times}' and {config.evaluation.bins} with objective "
        f"{config.objective.name}",
    )
    if config.objective.name == STRATIFIED_COX:
        _check_whole_sites(config)
    if config.evaluation.standard_errors:
        check_standard_errors(config.objective, config.regulariser.name, config.privacy)
    if isinstance(config.data, OwnData):
        _check_own(config, config.data)
    if isinstance(config.privacy, Gradient):
        _check_trust(config, config.privacy)
    if isinstance(config.data, TableData) and not stored:
        _check_tables(config, config.data)


def _check_whole_sites(config: Config) -> None:
    """Raise SettingError for settings that an objective over all rows of a site does not allow."""
    require(
        isinstance(config.privacy, NoPrivacy) and not config.local.batch_size,
        f"{NOT_SEPARABLE}: set privacy.mode to none and local.batch-size to 0, or train discrete-cox; got "
        f"{config.privacy.mode} and {config.local.batch_size}",
    )
    require(
        not config.evaluation.reference and not config.method.constrained,
        f"objective '{STRATIFIED_COX}' is not a mean over all rows: set evaluation.reference to false, and choose "
        f"a method without bounds on losses; got {config.algorithm}",
    )


def _check_single(config: Config) -> None:
    """Raise SettingError for settings that a run in single precision does not allow."""
    require(
        isinstance(config.privacy, NoPrivacy),
        "precision must be double in a private run, whose guarantee rests on bounds on the rounding errors of doubles; "
        f"got single with privacy.mode {config.privacy.mode}",
    )
    require(
        not isinstance(config.objective, TorchObjective),
        "precision must be double with a PyTorch module, which computes in a type of its own: convert the module by "
        "module.float(); got single",
    )
    require(
        config.objective.name != COUNTING,
        f"precision must be double with objective {COUNTING}, whose labels hold a count and an offset; got single",
    )
    require(
        config.rounds < _MOST_SINGLE_ROUNDS,
        f"precision must be double with 2^24 rounds or more, which single precision cannot count; got single with "
        f"{config.rounds} rounds",
    )


def _check_evaluation(evaluation: Evaluation, privacy: NoPrivacy | Private, rounds: int) -> None:
    """Raise SettingError for an evaluation at the clients that no budget pays for, or a budget without one."""
    share = privacy.evaluation_share
    require(
        not evaluation.held_out or isinstance(privacy, NoPrivacy | Gradient),
        "evaluation.held-out must be 0 with privacy.mode = as-published, which has no budget for an evaluation at the "
        f"clients; got {evaluation.held_out:g}",
    )
    require(
        not evaluation.held_out or isinstance(privacy, NoPrivacy) or share > 0,
        "evaluation.held-out needs privacy.evaluation-share above 0 in a private run, the part of the budget that the "
        f"evaluation may spend; got {evaluation.held_out:g} and {share:g}",
    )
    require(
        not share or evaluation.held_out > 0,
        "privacy.evaluation-share needs evaluation.held-out above 0, the part of every client's rows that it evaluates "
        f"on; got {share:g} and {evaluation.held_out:g}",
    )
    require(
        share > 0 or not (evaluation.release_every or evaluation.loss_bound),
        "evaluation.release-every and evaluation.loss-bound belong to a private run with privacy.evaluation-share; got "
        f"{evaluation.release_every} and {evaluation.loss_bound:g} without it",
    )
    require(
        not evaluation.bins or evaluation.held_out > 0,
        "evaluation.bins needs evaluation.held-out above 0, the part of every client's rows whose scores it counts; "
        f"got {evaluation.bins} and {evaluation.held_out:g}",
    )
    require(
        not evaluation.errors or (evaluation.held_out > 0 and isinstance(privacy, NoPrivacy)),
        "evaluation.errors needs evaluation.held-out above 0, the part of every client's rows on which they are made, "
        "and a run without privacy, because these sums are exact",
    )
    require(
        evaluation.release_every <= rounds,
        f"evaluation.release-every must be at most the number of rounds, {rounds}; got {evaluation.release_every}",
    )


def _check_tables(config: Config, data: TableData) -> None:
    """Raise SettingError for settings that a run on tables does not allow."""
    require(
        bool(data.files and data.schema),
        f"data {TABLES} needs data.files, such as site-*.csv, and data.schema, a file that `twinflower schema FILES` "
        "drafts",
    )
    sites, partition, count = data.num_sites, config.partition, config.clients.count
    require(
        not sites or partition == replace(PARTITIONERS["iid"](), name="iid"),
        f"the rows of {sites} {'sites' if data.site_column else 'tables'} are divided already, one "
        f"{'site' if data.site_column else 'table'} for each client: leave partition out; got {partition.name}",
    )
    require(
        not sites or count in (0, sites),
        f"clients.count must be {sites}, the number of {_whose(data)}; got {count}",
    )


def _whose(data: TableData) -> str:
    """What makes a client of a run on tables."""
    return f"sites in column '{data.site_column}'" if data.site_column else "files that data.files matches"


def _check_weighting(weighting: str, method: Any) -> None:
    """Raise SettingError for a weighting of F that the algorithm does not support."""
    own = method.weightings
    means = {"clients": "the mean of all clients' means", "rows": "the mean over all rows"}
    require(
        weighting in ("auto", *own),
        f"clients.weighting must be {own[0]} with {method.name}, whose theory is for {means[own[0]]}; got "
        f"'{weighting}'",
    )


def _check_trust(config: Config, privacy: Gradient) -> None:
    """Raise SettingError for settings that privacy.trust = "sum" does not allow, or that only it allows."""
    sums = privacy.trust == "sum"
    require(
        sums == bool(privacy.honest_sites) and (sums or not privacy.masks),
        "privacy.honest-sites and privacy.masks belong to privacy.trust = sum, which needs honest-sites, the number of "
        f"clients whose noise no attacker knows; got {privacy.honest_sites} and {privacy.masks} with {privacy.trust}",
    )
    require(
        not sums or config.sampled == config.clients.count,
        "privacy.trust = sum needs all clients in every round, because the mean over some of them is no function of "
        f"earlier sums: set clients.per-round to 0; got {config.clients.per_round} of {config.clients.count}",
    )
    require(
        not (sums and config.server.max_norm),
        "privacy.trust = sum cannot limit the norm of a single message, which nobody sees: set server.max-norm to 0; "
        f"got {config.server.max_norm:g}",
    )
    require(
        privacy.epsilon > 0 or not privacy.tune_share,
        "privacy.tune-share is a share of the budget privacy.epsilon, which it needs; got "
        f"{privacy.tune_share:g} with privacy.epsilon {privacy.epsilon:g}",
    )
    require(
        not (sums and privacy.tune_share),
        "privacy.trust = sum has no accounting for tuning: set privacy.tune-share to 0; got "
        f"{privacy.tune_share:g}",
    )
    require(
        not sums or privacy.conversion == "exact",
        f"privacy.trust = sum is accounted for exactly; set privacy.conversion to exact; got {privacy.conversion}",
    )


def _check_own(config: Config, data: OwnData) -> None:
    """Raise SettingError if a run with data.name = own lacks what must be public: sizes, columns and classes."""
    partition = config.partition
    require(
        isinstance(partition, Sizes) and not partition.samples_per_client,
        f"the rows of data {OWN} are divided already: set partition.name to sizes, list the rows of every site in "
        f"partition.sizes, and set samples-per-client to 0; got {partition.name} and {partition.samples_per_client}",
    )
    sizes, count = config.sizes, config.clients.count
    by_schema = bool(data.schema or data.schema_digest)
    require(
        not (by_schema and (data.num_features or data.num_classes)),
        "data.schema says how many features and classes there are: leave data.num-features and data.num-classes out",
    )
    require(
        (data.num_features > 0 or by_schema) and bool(sizes),
        f"data {OWN} needs data.num-features or data.schema, and partition.sizes (rows of every site)",
    )
    require(
        by_schema or data.row_scaling == EACH,
        f"data.row-scaling = {data.row_scaling} divides rows by the largest norm that a schema allows: set "
        f"data.schema, or leave it at {EACH}",
    )
    require(
        bool(data.file or config.evaluation.held_out),
        f"data {OWN} needs rows to evaluate on: data.file, for the server (a node has its own in its node config), or "
        "evaluation.held-out, the part of every site's rows that it evaluates on",
    )
    require(
        bool(data.file) or not (config.evaluation.reference or config.method.constrained),
        f"evaluation.reference and the bounds of {config.algorithm} are computed on rows of the server: set data.file",
    )
    require(min(sizes) > 0, f"partition.sizes must be above 0; got {sizes}")
    require(len(sizes) == count or not count, f"partition.sizes must name {count} sites; got {len(sizes)}")
