"""The rows of a run: loaded, divided among its clients, and held out for evaluation."""

import os
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from twinflower.data.dataset import OWN, Dataset
from twinflower.data.partition import Partition, divide, hold_out
from twinflower.data.sets import ArrayData, Data, TableData
from twinflower.data.sites import OwnData, load_own, load_own_table, schema_to_read
from twinflower.data.tables import check_groups, table_files
from twinflower.errors import SettingError, require

from ..settings import Config


def load_rows(config: Config, deferred: bool) -> Dataset:
    """The data set of a run; deferred: its rows are computed when they are first used. Raises DataError."""
    if isinstance(config.data, OwnData):
        data = _own_dataset(config, config.data)
    else:
        data = _dataset(config.data, config.dtype, deferred)
    if data.schema:
        _check_people(config)
    return data


@lru_cache(maxsize=2)
def _dataset(data: Data | TableData | ArrayData, dtype: np.dtype[Any], deferred: bool) -> Dataset:
    return data.load(os.environ.get("TWINFLOWER_DATA", ""), dtype, deferred)


def _own_dataset(config: Config, data: OwnData) -> Dataset:
    """The rows of this process's data-file: a node trains on them, the server evaluates on them."""
    if data.schema:
        loaded = load_own_table(data)
    else:
        rows = load_own(
            data.file, data.num_features, data.num_classes, bias=data.bias, row_norm=data.row_norm
        )
        loaded = Dataset(OWN, *rows, *rows, data.num_classes)
    sites, others = config.clients.count, len(loaded.labels)
    where = f"the server evaluates on {others} others" if others else "the server has none to evaluate on"
    return replace(loaded, note=f"{sites} sites with rows of their own; {where}")


def _check_people(config: Config) -> None:
    """DataError if a table has more rows of a person than privacy.group-size; deployed sites have their own limits."""
    if isinstance(config.data, TableData) and config.privacy.unit.size:
        for file in table_files(config.data.files):
            check_groups(file, schema_to_read(config.data), config.privacy.unit.size)


def divided(config: Config, data: Dataset) -> tuple[Partition, Partition | None]:
    """The rows on which each client trains, and those that it holds out for evaluation, None for none."""
    division = _divide(config, data)
    if not config.evaluation.held_out:
        return division, None
    _check_held_out(config, data)
    groups = None if config.data.name == OWN else data.groups  # there every site knows those of its own rows
    most = config.privacy.group_size if data.groups is not None else 0
    division, held = hold_out(division, config.evaluation.held_out, config.seed, groups, most)
    require(len(held.rows) > 0, "evaluation.held-out needs a client with two rows; here every one has one")
    return division, held


def _divide(config: Config, data: Dataset) -> Partition:
    own = config.data.name == OWN
    if own or data.sites:
        offsets = np.cumsum([0, *(config.sizes if own else data.sites)])
        return Partition(np.arange(offsets[-1]), offsets)
    return divide(
        data.labels, config.clients.count, config.partition, config.seed, data.num_classes, data.groups
    )


def _check_held_out(config: Config, data: Dataset) -> None:
    """Raise SettingError for data on which clients cannot evaluate models."""
    share = config.evaluation.held_out
    if data.standardised:
        raise SettingError(
            f"evaluation.held-out must be 0 with data {config.data.name} whose columns or targets are divided by "
            f"statistics of all rows, the held-out ones included; got {share:g}"
        )
    if data.unscaled is not None:
        raise SettingError(
            "evaluation.held-out must be 0 with a schema that has private ranges, by which sites scale only the rows "
            f"that they train on; got {share:g}"
        )
    require(
        config.data.name != OWN or data.groups is None or config.privacy.group_size > 0,
        "evaluation.held-out with a schema that has a group column needs privacy.group-size (and with privacy "
        "privacy.protects = group), the most rows of one group, from which the server knows how many rows a site holds "
        "out",
    )
