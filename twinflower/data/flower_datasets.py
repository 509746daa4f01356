"""An adapter for the partitioners of flwr-datasets (`pip install flwr-datasets`), which is not required otherwise."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SettingError, require
from .partition import Partition

_ROW = "twinflower-row"


def divide_with(partitioner: Any, labels: NDArray[Any], column: str = "label") -> Partition:
    """Divide the rows of labels (rows,) among the clients with a partitioner of flwr-datasets, partition i to client i.

    partitioner: one to which no data set has been assigned yet. column: the name under which it looks for the labels,
    its `partition_by`. Raises SettingError if flwr-datasets is missing, if a client gets no rows, or if the partitioner
    gives a row to two clients or divides columns instead of rows.
    """
    try:
        from datasets import Dataset
    except ImportError:
        raise SettingError(
            "partitioners of flwr-datasets need that package: pip install flwr-datasets"
        ) from None
    require(not partitioner.is_dataset_assigned(), "the partitioner must be new, without a data set")
    partitioner.dataset = Dataset.from_dict({column: labels, _ROW: np.arange(len(labels))})
    return _partition([partitioner.load_partition(i) for i in range(partitioner.num_partitions)])


def _partition(parts: list[Any]) -> Partition:
    """The partition with the rows of these data sets."""
    require(
        all(_ROW in part.column_names for part in parts), "the partitioner divides columns; rows are needed"
    )
    rows = [np.array(part[_ROW], dtype=np.int64) for part in parts]
    empty = [i for i, indices in enumerate(rows) if not len(indices)]
    if empty:
        raise SettingError(f"the partitioner leaves client {empty[0]} without rows")
    together = np.concatenate(rows)
    require(len(np.unique(together)) == len(together), "the partitioner gives a row to two clients")
    return Partition.grouped(rows)
