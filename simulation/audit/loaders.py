"""Rows of PyTorch loaders. PyTorch is imported when it is needed."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .data import Rows


def rows_of_loader(loader: Iterable[Sequence[Any]], names: Sequence[str] = ("x", "label")) -> Rows:
    """All batches of a loader as columns with these names; a batch is a sequence of tensors with one first axis."""
    batches = [[np.asarray(part) for part in batch] for batch in loader]
    return dict(zip(names, map(np.concatenate, zip(*batches, strict=True)), strict=True))


def loader_of_rows(rows: Rows, batch_size: int = 32, shuffle: bool = False) -> Any:
    """A DataLoader over the columns of rows, in their order, as tensors."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    columns = [torch.as_tensor(column) for column in rows.values()]
    return DataLoader(TensorDataset(*columns), batch_size=batch_size, shuffle=shuffle)
