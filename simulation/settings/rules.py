"""The rules that concern several sections; those that concern one section and values of others stand with it."""

from dataclasses import replace

from twinflower.data.features import EACH
from twinflower.data.partitioners import PARTITIONERS, Sizes
from twinflower.data.sets import OWN, TABLES, OwnData, TableData
from twinflower.errors import SettingError, require
from twinflower.known_objectives import COUNTING, TorchObjective
from twinflower.problems.stratified_cox import NOT_SEPARABLE, STRATIFIED_COX
from twinflower.queries import QUERIES

from .config import Config
from .sections import NoPrivacy


def check(config: Config, stored: bool = False) -> None:
    """Check the rules that concern several settings and need no data; SettingError if one is violated.

    stored: the settings are those of a run that was begun, whose tables may since have been moved or joined by others.
    """
    config.objective.check()
    if config.precision == "single":
        _check_single(config)
    config.clients.check(config.method)
    _ = config.schedule
    if config.objective.name == STRATIFIED_COX:
        _check_whole_sites(config)
    config.local.check(config.method)
    for query in QUERIES:
        query.check_settings(config)
    if isinstance(config.data, OwnData):
        _check_own(config, config.data)
    config.privacy.check(config.clients, config.server.max_norm)
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
    if not (data.file or config.evaluation.held_out or config.privacy.exact_sums):
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
