"""Which rows of a run belong to whom: to train on, to evaluate on, and at a deployed site."""

from dataclasses import replace

import numpy as np

from twinflower.arrays import Index
from twinflower.data.dataset import OWN
from twinflower.data.partition import Partition, describe, held_out_rows
from twinflower.data.sites import OwnData
from twinflower.errors import DataError
from twinflower.problems.interfaces import Batch

from ..settings import Config
from .facts import known
from .setup import PreparedRun


def all_rows(setup: PreparedRun, number: int) -> Batch:
    """A client's rows, including those that it holds out."""
    held = setup.held.of(number) if setup.held else setup.partition.of(number)[:0]
    return setup.dataset.batch(np.sort(np.concatenate([setup.partition.of(number), held])))


def described(setup: PreparedRun) -> str:
    """A short description of the partition, with the data set's note."""
    data, here = setup.dataset, setup.config.data.name != OWN
    text = describe(setup.partition, data.labels, data.num_classes) if here else ""
    return "\n".join(filter(None, (text, known(setup).sentence, data.note)))


def at_site(setup: PreparedRun, number: int) -> PreparedRun:
    """The same run at the node of client `number`, whose data-file holds this client's rows.

    Raises DataError if the number of rows differs from partition.sizes.
    """
    data = setup.config.data
    if not isinstance(data, OwnData):
        return setup
    rows, said = len(setup.dataset.labels), setup.config.sizes[number]
    if rows != said:
        raise DataError(
            f"partition.sizes says {said} rows for client {number}; {data.file} has {rows}",
            "its number of rows is not that in partition.sizes",
        )
    return replace(setup, site=number) if setup.held is None else _split_at_site(setup, number, setup.held)


def _split_at_site(setup: PreparedRun, number: int, held: Partition) -> PreparedRun:
    """`at_site` for a run with held-out rows; the partitions number the rows of all sites one after the other."""
    before, data = sum(setup.config.sizes[:number]), setup.dataset
    parts = (setup.partition.of(number) - before, held.of(number) - before)
    if data.groups is not None:
        parts = _whole_groups(setup.config, number, data.groups)
    training, own_held = (data.batch(rows) for rows in parts)
    dataset = replace(
        data,
        features=training.features,
        labels=training.labels,
        row_weights=training.row_weights,
        groups=training.groups,
        marks=None if data.marks is None else data.marks[parts[0]],
    )
    return replace(setup, site=number, dataset=dataset, own_held=own_held._replace(row_weights=None))


def _whole_groups(config: Config, client: int, groups: Index) -> tuple[Index, Index]:
    """A site's rows to train on and to evaluate on, no group in both; DataError for a group above group-size."""
    most, largest = config.privacy.group_size, int(np.bincount(groups).max())
    if not largest <= most:
        raise DataError(
            f"the data-file has {largest} rows of one group, and privacy.group-size is {most}: raise it, or leave "
            "rows out",
            "the numbers of rows of a person in its table do not fit the run's group-size",
        )
    return held_out_rows(len(groups), config.evaluation.held_out, config.seed, client, groups, most)
