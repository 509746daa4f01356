"""No release of any private variant moves by more than its sensitivity on rows that attain every bound.

A random search does not find such rows: all are identical, of full norm and of the largest weight, and their labels are
balanced, so at 0 the curvature of the logistic loss is the bound. One record is replaced by its antipode or gets the
other label. Weights of classes are such a factor, too.
"""

from dataclasses import replace

import numpy as np
import pytest
from problems import VARIANTS, small

from twinflower.algorithms import ALGORITHMS
from twinflower.errors import SettingError
from twinflower.known_objectives import make_model, with_weights
from twinflower.privacy.audit import replay
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import LinearModel
from twinflower.sums.audit import replay_sums

HEAVIEST, ROWS, ROUNDS = 30.0, 100, 3
PRIVATE = [
    name for name, keys in VARIANTS.items() if keys.get("privacy.mode") in ("public-state", "gradient")
]
BOUNDED = [name for name in PRIVATE if ALGORITHMS[VARIANTS[name]["algorithm"]].constrained]
THROUGH_SUMS = [name for name in PRIVATE if VARIANTS[name].get("trust") == "sum"]
KINDS = ("rows", "classes")


def logistic(variant):
    """The variant with a logistic loss."""
    return small(variant, objective__name="logistic", data__name="breast-cancer", data__row_norm=1.0)


def heavy(kind, d):
    """A logistic loss of d features with weights of this kind."""
    if kind == "classes":
        return make_model("logistic", d, 2, l2=0.01, class_weights=f"{HEAVIEST},{HEAVIEST}")
    return with_weights(make_model("logistic", d, 2, l2=0.01), "logistic", HEAVIEST)


def pairs(kind, d):
    """The rows, and their two neighbours."""
    features, labels = np.zeros((ROWS, d)), np.arange(ROWS) % 2
    features[:, 0] = 1.0
    antipode, other = features.copy(), labels.copy()
    antipode[0] *= -1
    other[0] = 1 - other[0]
    rows = Batch(features, labels, row_weights=np.full(ROWS, HEAVIEST) if kind == "rows" else None)
    return rows, [rows._replace(features=antipode), rows._replace(labels=other)]


def inboxes(algorithm, d):
    """The messages to client 0 in the first rounds, at the start 0, of a server that counts every reply."""
    clients = len(algorithm.info.neighbours) or 1
    server = algorithm.init_server(np.zeros(d), clients, np.array(0, np.uint64))
    for round_ in range(1, ROUNDS + 1):
        if "heard" in server._fields:
            server = server._replace(heard=np.full_like(server.heard, round_ - 1))
        yield algorithm.broadcast(server, round_, np.array(0))


def moves(variant, kind):
    """The moves of all releases, with the variant's batches, and over several steps on all rows or in one such step."""
    setup = logistic(variant)
    objective, algorithm = heavy(kind, setup.objective.d), setup.method
    (rows, neighbours), bounds = pairs(kind, objective.d), objective.bounds(1.0)
    algorithm.check(objective)
    local = algorithm.takes_local_steps and variant not in THROUGH_SUMS
    schedules = [setup.schedule, LocalSchedule(0, 4)] if local else [LocalSchedule(0, 1)]
    for schedule in schedules:
        for other in neighbours:
            if variant in THROUGH_SUMS:
                yield from replay_sums(algorithm, objective, [rows] * 3, other, schedule, bounds, ROUNDS)
            else:
                asked = list(inboxes(algorithm, objective.d))
                yield from replay(algorithm, objective, rows, other, schedule, bounds, asked)


def most(variant, kind):
    """The largest move in units of its sensitivity."""
    return max(move.moved / move.sensitivity for move in moves(variant, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", [name for name in PRIVATE if name not in BOUNDED])
def test_no_release_moves_by_more_than_its_sensitivity(variant, kind):
    assert 0.01 < most(variant, kind) <= 1 + 1e-9


@pytest.mark.parametrize("variant", BOUNDED)
def test_methods_with_bounded_losses_refuse_weights_of_rows(variant):
    with pytest.raises(SettingError, match="bounds mean losses, which rows with weights would change"):
        small(variant).method.check(replace(heavy("rows", 65), l2=0.0))


@pytest.mark.parametrize("variant", [name for name in PRIVATE if name not in BOUNDED])
def test_bounds_without_the_weight_are_caught(variant, monkeypatch):
    monkeypatch.setattr(LinearModel, "_most", 1.0)
    assert most(variant, "rows") > 1


@pytest.mark.parametrize("variant", ["p-admm-private", "fedpdm-private"])
def test_a_curvature_without_the_weight_is_caught(variant, monkeypatch):
    right = LinearModel.curvature
    monkeypatch.setattr(LinearModel, "curvature", lambda self, longest: right(self, longest) / HEAVIEST)
    assert most(variant, "rows") > 1
