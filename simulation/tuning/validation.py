"""Rows of every client that are kept from training, on which `twinflower tune` scores its candidates."""

from collections.abc import Sequence
from dataclasses import replace

from twinflower.arrays import Index
from twinflower.data.partition import Partition, parted
from twinflower.errors import require
from twinflower.privacy.plan import EVALUATION
from twinflower.problems.batches import Shards
from twinflower.problems.interfaces import Batch
from twinflower.randomness import stream
from twinflower.sums.plan import SumPlan

from ..runs.central import weighted
from ..runs.method import through_sums, with_sizes
from ..runs.setup import PreparedRun, fold_numbers


def held_out(setup: PreparedRun, share: float) -> tuple[PreparedRun, Batch]:
    """Hold out a share of every client's training rows; return the remaining set-up and these rows, weighted as in F.

    The rows are drawn from (seed, "split", client). A client with at least two rows keeps at least one and holds out at
    least one; rows of one group stay together. The original test rows are removed: the set-up's test rows are the
    held-out ones.
    """
    return _held(setup, *_parts(setup, share))


def folds(setup: PreparedRun, count: int) -> list[tuple[PreparedRun, Batch]]:
    """For each of `count` folds (`fold_numbers`), the set-up on the other rows, and the fold's rows as in F."""
    numbers = fold_numbers(setup, count)
    rows = [setup.partition.of(client) for client in range(setup.partition.num_clients)]
    return [
        _held(setup, [r[numbers[r] != fold] for r in rows], [r[numbers[r] == fold] for r in rows])
        for fold in range(count)
    ]


def _held(setup: PreparedRun, kept: Sequence[Index], given: Sequence[Index]) -> tuple[PreparedRun, Batch]:
    """The set-up on the kept rows, and the given ones, weighted as in F."""
    data, given_rows = setup.dataset, Partition.grouped([rows for rows in given if len(rows)])
    shards = Shards.grouped(data.features, data.labels, given_rows.rows, given_rows.offsets, data.row_weights)
    held = weighted(shards, setup.by_rows)
    return _on(setup, kept, held), held


def split(setup: PreparedRun, share: float) -> tuple[PreparedRun, list[Batch]]:
    """Hold out the same rows as `held_out`; return the remaining set-up and every client's held-out rows."""
    kept, given = _parts(setup, share)
    data = setup.dataset
    tested = Batch(data.test_features, data.test_labels)
    return _on(setup, kept, tested), [Batch(data.features[rows], data.labels[rows]) for rows in given]


def _parts(setup: PreparedRun, share: float) -> tuple[list[Index], list[Index]]:
    """The numbers of the rows that every client keeps, and of those that it holds out."""
    require(
        setup.dataset.unscaled is None,
        "tuning on held-out rows needs a schema with public ranges; private ones are found anew in every run",
    )
    kept, given, groups = [], [], setup.dataset.groups
    for client in range(setup.partition.num_clients):
        rows = stream(setup.config.seed, "split", client, 1).permutation(setup.partition.of(client))
        size = min(max(1, round(share * len(rows))), len(rows) - 1)
        others, first = parted(rows, size, None if groups is None else groups[rows])
        kept.append(others)
        given.append(first)
    return kept, given


def _on(setup: PreparedRun, kept: Sequence[Index], held: Batch) -> PreparedRun:
    """The set-up on the kept rows, tested on the held-out ones, its algorithm and plan adjusted to the clients'
    numbers of rows."""
    data = replace(setup.dataset, test_features=held.features, test_labels=held.labels)
    partition = Partition.grouped(kept)
    sizes, plan = partition.sizes, setup.plan
    method = with_sizes(setup.method, sizes if setup.by_rows else ())
    if isinstance(plan, SumPlan):
        plan = plan.resized(method, setup.schedule, sizes)
    plan = replace(plan, releases=plan.releases.without(EVALUATION)) if plan else None
    algorithm = through_sums(method, setup.config.privacy.trust, plan, setup.schedule, sizes)
    return replace(setup, dataset=data, partition=partition, algorithm=algorithm, plan=plan, held=None)
