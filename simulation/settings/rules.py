"""The rules that concern several settings of a run."""

from dataclasses import replace
from typing import Any

from twinflower.data.features import EACH
from twinflower.data.partitioners import PARTITIONERS, Sizes
from twinflower.data.sets import OWN, TABLES, OwnData, TableData
from twinflower.errors import SettingError, require
from twinflower.known_objectives import COUNTING, SURVIVAL, TorchObjective
from twinflower.problems.stratified_cox import NOT_SEPARABLE, STRATIFIED_COX

from .config import Config
from .inference import check_standard_errors
from .sections import Evaluation, Gradient, NoPrivacy, Private


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
    if config.evaluation.survival_curve and config.objective.name not in SURVIVAL:
        raise SettingError(
            "evaluation.survival-curve needs times of events as labels: set objective.name to "
            f"{' or '.join(SURVIVAL)}, or leave it empty; got {config.objective.name}"
        )
    survival = config.objective.name in SURVIVAL
    if bool(config.evaluation.auc_times) != (survival and config.evaluation.bins > 0):
        raise SettingError(
            "evaluation.auc-times and evaluation.bins belong together for a survival model, and evaluation.auc-times "
            f"to no other: set both or neither; got '{config.evaluation.auc_times}' and {config.evaluation.bins} with "
            f"objective {config.objective.name}"
        )
    if config.objective.name == STRATIFIED_COX:
        _check_whole_sites(config)
    if config.method.needs_whole_batches and config.local.batch_size:
        raise SettingError(
            f"{config.algorithm} needs all rows of a client in every round: set local.batch-size to 0; got "
            f"{config.local.batch_size}"
        )
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
    if not (isinstance(config.privacy, NoPrivacy) and not config.local.batch_size):
        raise SettingError(
            f"{NOT_SEPARABLE}: set privacy.mode to none and local.batch-size to 0, or train discrete-cox; got "
            f"{config.privacy.mode} and {config.local.batch_size}"
        )
    if config.evaluation.reference or config.method.constrained:
        raise SettingError(
            f"objective '{STRATIFIED_COX}' is not a mean over all rows: set evaluation.reference to false, and choose "
            f"a method without bounds on losses; got {config.algorithm}"
        )


def _check_single(config: Config) -> None:
    """Raise SettingError for settings that a run in single precision does not allow."""
    if not isinstance(config.privacy, NoPrivacy):
        raise SettingError(
            "precision must be double in a private run, whose guarantee rests on bounds on the rounding errors of "
            f"doubles; got single with privacy.mode {config.privacy.mode}"
        )
    require(
        not isinstance(config.objective, TorchObjective),
        "precision must be double with a PyTorch module, which computes in a type of its own: convert the module by "
        "module.float(); got single",
    )
    if config.objective.name == COUNTING:
        raise SettingError(
            f"precision must be double with objective {COUNTING}, whose labels hold a count and an offset; got single"
        )


def _check_evaluation(evaluation: Evaluation, privacy: NoPrivacy | Private, rounds: int) -> None:
    """Raise SettingError for an evaluation at the clients that no budget pays for, or a budget without one."""
    share = privacy.evaluation_share
    if evaluation.held_out and not isinstance(privacy, NoPrivacy | Gradient):
        raise SettingError(
            "evaluation.held-out must be 0 with privacy.mode = as-published, which has no budget for an evaluation "
            f"at the clients; got {evaluation.held_out:g}"
        )
    if evaluation.held_out and not isinstance(privacy, NoPrivacy) and not share > 0:
        raise SettingError(
            "evaluation.held-out needs privacy.evaluation-share above 0 in a private run, the part of the budget "
            f"that the evaluation may spend; got {evaluation.held_out:g} and {share:g}"
        )
    if share and not evaluation.held_out > 0:
        raise SettingError(
            "privacy.evaluation-share needs evaluation.held-out above 0, the part of every client's rows that it "
            f"evaluates on; got {share:g} and {evaluation.held_out:g}"
        )
    if not share > 0 and (evaluation.release_every or evaluation.loss_bound):
        raise SettingError(
            "evaluation.release-every and evaluation.loss-bound belong to a private run with "
            f"privacy.evaluation-share; got {evaluation.release_every} and {evaluation.loss_bound:g} without it"
        )
    if evaluation.bins and not evaluation.held_out > 0:
        raise SettingError(
            "evaluation.bins needs evaluation.held-out above 0, the part of every client's rows whose scores it "
            f"counts; got {evaluation.bins} and {evaluation.held_out:g}"
        )
    require(
        not evaluation.errors or (evaluation.held_out > 0 and isinstance(privacy, NoPrivacy)),
        "evaluation.errors needs evaluation.held-out above 0, the part of every client's rows on which they are made, "
        "and a run without privacy, because these sums are exact",
    )
    if not evaluation.release_every <= rounds:
        raise SettingError(
            f"evaluation.release-every must be at most the number of rounds, {rounds}; got {evaluation.release_every}"
        )


def _check_tables(config: Config, data: TableData) -> None:
    """Raise SettingError for settings that a run on tables does not allow."""
    if not (data.files and data.schema):
        raise SettingError(
            f"data {TABLES} needs data.files, such as site-*.csv, and data.schema, a file that `twinflower schema "
            "FILES` drafts"
        )
    sites, partition, count = data.num_sites, config.partition, config.clients.count
    if sites and partition != replace(PARTITIONERS["iid"](), name="iid"):
        raise SettingError(
            f"the rows of {sites} {'sites' if data.site_column else 'tables'} are divided already, one "
            f"{'site' if data.site_column else 'table'} for each client: leave partition out; got {partition.name}"
        )
    if sites and count not in (0, sites):
        raise SettingError(f"clients.count must be {sites}, the number of {_whose(data)}; got {count}")


def _whose(data: TableData) -> str:
    """What makes a client of a run on tables."""
    return f"sites in column '{data.site_column}'" if data.site_column else "files that data.files matches"


def _check_weighting(weighting: str, method: Any) -> None:
    """Raise SettingError for a weighting of F that the algorithm does not support."""
    own = method.weightings
    means = {"clients": "the mean of all clients' means", "rows": "the mean over all rows"}
    if weighting not in ("auto", *own):
        raise SettingError(
            f"clients.weighting must be {own[0]} with {method.name}, whose theory is for {means[own[0]]}; got "
            f"'{weighting}'"
        )


def _check_trust(config: Config, privacy: Gradient) -> None:
    """Raise SettingError for settings that privacy.trust = "sum" does not allow, or that only it allows."""
    sums = privacy.trust == "sum"
    if sums and not privacy.honest_sites:
        raise SettingError(
            "privacy.trust = sum needs privacy.honest-sites, the number of clients whose noise no attacker knows (1 to "
            f"{config.clients.count}), such as {config.clients.count}"
        )
    if not sums and (privacy.honest_sites or privacy.masks):
        raise SettingError(
            "privacy.honest-sites and privacy.masks belong to privacy.trust = sum: set it, or leave them out"
        )
    if sums and config.sampled != config.clients.count:
        raise SettingError(
            "privacy.trust = sum needs all clients in every round, because the mean over some of them is no function "
            f"of earlier sums: set clients.per-round to 0; got {config.clients.per_round} of {config.clients.count}"
        )
    if sums and config.server.max_norm:
        raise SettingError(
            "privacy.trust = sum cannot limit the norm of a single message, which nobody sees: set server.max-norm "
            f"to 0; got {config.server.max_norm:g}"
        )
    if not privacy.epsilon > 0 and privacy.tune_share:
        raise SettingError(
            "privacy.tune-share is a share of the budget privacy.epsilon, which it needs; got "
            f"{privacy.tune_share:g} with privacy.epsilon {privacy.epsilon:g}"
        )
    if sums and privacy.tune_share:
        raise SettingError(
            "privacy.trust = sum has no accounting for tuning: set privacy.tune-share to 0; got "
            f"{privacy.tune_share:g}"
        )
    if sums and privacy.conversion != "exact":
        raise SettingError(
            f"privacy.trust = sum is accounted for exactly; set privacy.conversion to exact; got {privacy.conversion}"
        )


def _check_own(config: Config, data: OwnData) -> None:
    """Raise SettingError if a run with data.name = own lacks what must be public: sizes, columns and classes."""
    partition = config.partition
    if not (isinstance(partition, Sizes) and not partition.samples_per_client):
        raise SettingError(
            f"the rows of data {OWN} are divided already: set partition.name to sizes, list the rows of every site in "
            f"partition.sizes, and set samples-per-client to 0; got {partition.name} and {partition.samples_per_client}"
        )
    sizes, count = config.sizes, config.clients.count
    by_schema = bool(data.schema or data.schema_digest)
    require(
        not (by_schema and (data.num_features or data.num_classes)),
        "data.schema says how many features and classes there are: leave data.num-features and data.num-classes out",
    )
    if not ((data.num_features > 0 or by_schema) and bool(sizes)):
        raise SettingError(
            f"data {OWN} needs data.num-features or data.schema, and partition.sizes (rows of every site)"
        )
    if not by_schema and data.row_scaling != EACH:
        raise SettingError(
            f"data.row-scaling = {data.row_scaling} divides rows by the largest norm that a schema allows: set "
            f"data.schema, or leave it at {EACH}"
        )
    if not data.file and not config.evaluation.held_out:
        raise SettingError(
            f"data {OWN} needs rows to evaluate on: data.file, for the server (a node has its own in its node "
            "config), or evaluation.held-out, the part of every site's rows that it evaluates on"
        )
    if not data.file and (config.evaluation.reference or config.method.constrained):
        raise SettingError(
            f"evaluation.reference and the bounds of {config.algorithm} are computed on rows of the server: set "
            "data.file"
        )
    if not min(sizes) > 0:
        raise SettingError(f"partition.sizes must be above 0; got {sizes}")
    if len(sizes) != count and count:
        raise SettingError(f"partition.sizes must name {count} sites; got {len(sizes)}")
