"""The privacy holes that were closed in version 0.2.0, planted again, for `twinflower audit examples/audit/holes.py`.

The advisories are in SECURITY.md. Each hole has a case with the fault and one, "right: ...", without it.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Context, RecordDict
from mutants import Patches, mutant

from twinflower import audit
from twinflower import settings as limits
from twinflower.algorithms import bounded_losses
from twinflower.clients import SumClient
from twinflower.clients.store import ContextLedger, ContextStore
from twinflower.clients.sums import Masks
from twinflower.errors import ReplyError, SettingError
from twinflower.norms import norms
from twinflower.privacy import gdp_mu
from twinflower.privacy.audit import neighbours
from twinflower.privacy.guard import Guard
from twinflower.privacy.mechanism import GRID_BITS, GaussianNoise
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import LinearModel
from twinflower.simulation.audit.transcript import Outcome, Transcript
from twinflower.simulation.runs.setup import PreparedRun, prepare
from twinflower.simulation.settings import parse
from twinflower.sums import masks
from twinflower.sums.discrete import seeded_words

RUN = {
    "data.name": "breast-cancer",
    "objective.name": "logistic",
    "clients.count": 4,
    "rounds": 2,
    "privacy.epsilon": 8.0,
    "step-size": 0.4,
}


def both(case: audit.Case, fault: Patches) -> Iterator[audit.Case]:
    """A case as it is now, and with the code before the fix."""
    yield replace(case, name=f"right: {case.name}, closed")
    yield mutant(case, case.name, fault)


# ------------------------------------------------------------------------------- TF-2026-1: masks not of the pair


def mirrored(setup: PreparedRun) -> audit.Mechanism:
    """Site 1 of three in a round; site 2 has announced the session key of site 0 as its own."""
    sites = masks.simulated(3, 0)
    _, x = setup.start, np.zeros_like(setup.start)
    x[0] = 1e3
    server = setup.algorithm.init_server(x, 3, np.array(0, np.uint64))
    inbox = setup.algorithm.inbox.pack(setup.algorithm.broadcast(server, 1, np.array(0)), setup.objective.d)

    def run(data: Batch, seed: int) -> Transcript:
        """What one client sends in a round of sums."""
        context = Context(1, 1, {}, RecordDict(), {})
        guard = setup.plan.guard(1, ContextLedger(context.state), run="s", row_norm=setup.row_norm)
        own = Masks(sites[1], ContextStore(context.state), "settings")
        client = SumClient(
            context, setup.algorithm, setup.objective, data, setup.start, 1, 3, setup.schedule,
            guard=replace(guard, words=partial(seeded_words, seed, 1)), masks=own,
        )  # fmt: skip
        key = X25519PrivateKey.generate()
        mirror = SimpleNamespace(public_key=key.public_key)
        announced = client.get_properties({"session": "s"})["announcement"]
        roster = masks.roster_of(
            [sites[0].announce("s", "settings", key), announced, sites[2].announce("s", "settings", mirror)]
        )
        (cells,), *_ = client.fit(inbox, {"round": 1, "session": "s", "roster": roster})
        return [
            Outcome(
                {"kind": "cells", "cells": "int64"},
                {"cells": cells.view(np.int64) * float(setup.sums.widths[0])},
            )
        ]

    return run


def masks_case() -> Iterator[audit.Case]:
    """Three sites, two honest ones assumed, against the server together with site 2."""
    keys = {
        "algorithm": "fedpdm",
        "rho": 0.5,
        "privacy.mode": "public-state",
        "local.max-steps": 1,
        "rounds": 1,
    }
    sums = {"privacy.trust": "sum", "privacy.honest-sites": 2, "clients.count": 3, "privacy.epsilon": 4.0}
    setup = prepare(parse(RUN | keys | sums))
    rows = len(setup.shards.rows(1).labels)
    pair = neighbours(rows, setup.dataset.features.shape[1], setup.row_norm)
    case = audit.Case(
        "masks that do not depend on the pair",
        {"a far model, and a mirrored key": mirrored(setup)},
        {"one of many saturated rows reversed": pair},
        audit.Claim(4.0, 1e-4),
        [audit.GaussianRelease(gdp_mu(4.0, 1e-4), 1.0)],
        about="TF-2026-1",
    )

    def key(secret: bytes, agreed: bytes) -> bytes:
        return derived(secret, agreed[:-8])

    derived = masks._key
    return both(case, {(masks, "_key"): key})


# ------------------------------------------------------------------------- TF-2026-2: a bound on rows as an oracle

TINY = 8 * 5e-324


def check_rows(self: Guard, rows: Batch) -> Batch:
    longest = float(norms(rows.features).max())
    if longest > self.row_norm * (1 + 1e-9):
        raise SettingError("rows must have norm at most the public bound; one here is longer: scale the rows")
    return rows


def rows_case() -> Iterator[audit.Case]:
    """Rows that were scaled to a subnormal norm, where scaling rounds some of them up."""
    setup = prepare(
        parse(
            RUN, {"algorithm": "fedpdm", "rho": 0.5, "privacy.mode": "public-state", "privacy.epsilon": 4.0}
        )
    )
    own = setup.shards.rows(0)
    rows = np.zeros_like(own.features)
    rows[:, 0] = TINY
    other = rows.copy()
    other[0, :3] = TINY / np.sqrt(3)
    pair = {"two directions of the first row": (Batch(rows, own.labels), Batch(other, own.labels))}
    case = audit.setup_case(
        "rows longer than a subnormal bound are refused", setup, about="TF-2026-2", pairs=pair
    )
    tiny: Patches = {(PreparedRun, "row_norm"): property(lambda self: TINY)}
    return both(mutant(case, case.name, tiny), tiny | {(Guard, "admitted"): check_rows})


# ------------------------------------------------------------- TF-2026-3: an overflow in the second of two huge steps


def old_noise(self: GaussianNoise, value: np.ndarray, draw: int = 0, shrink: Any = 1.0) -> np.ndarray:
    """The noise as it was added before the fix."""
    noisy = value + self.sigma * shrink * self.draws(draw, value.shape)
    cell = np.exp2(np.floor(np.log2(self.sigma * shrink)) - GRID_BITS)
    cells = np.round(noisy / cell)
    if not (np.abs(cells) <= 2.0**48).all():
        raise ReplyError("the noisy value is too large for its noise: lower step-size")
    return cells * cell


OLD_NOISE: Patches = {(GaussianNoise, "__call__"): old_noise}


def overflow_case() -> Iterator[audit.Case]:
    """A step after which products exceed what floats hold; settings above 1e100 are refused now."""
    keys = {
        "algorithm": "fedavg", "data.name": "digits", "objective.name": "softmax", "privacy.mode": "gradient",
        "local.max-steps": 2, "data.row-norm": 100.0, "privacy.epsilon": 0.5, "rounds": 1,
    }  # fmt: skip
    setup = prepare(parse(RUN | keys))
    own = setup.shards.rows(0)
    release = setup.algorithm.release(setup.plan.bounds, setup.schedule.workload(len(own.labels)), 1)
    with patch.object(limits, "moderate", lambda number: True):
        step_size = 3e307 / (setup.plan.multipliers[0] * release.spread)
        setup = replace(setup, algorithm=replace(setup.algorithm, step_size=step_size))
    rows = np.zeros_like(own.features)
    other = rows.copy()
    other[0, 0] = 100.0
    pair = {"rows of zeros, and one other": (Batch(rows, own.labels), Batch(other, own.labels))}
    case = audit.setup_case("a huge step overflows for some records", setup, about="TF-2026-3", pairs=pair)
    return both(case, OLD_NOISE | {(Guard, "check_size"): lambda *_: None})


# ------------------------------------------------------------------------------ TF-2026-4: losses that are not numbers


class Fragile(LinearModel):
    """A custom loss that is not a number for one kind of record."""

    def losses(self, x: np.ndarray, rows: Batch) -> np.ndarray:
        return np.where(rows.features[..., 0] > 0.9, np.nan, super().losses(x, rows))


def losses_case() -> Iterator[audit.Case]:
    """Constrained SSCA with a custom loss."""
    keys = {
        "algorithm": "ssca-constrained", "constraints": "cost <= 1.5", "regulariser.name": "none", "curvature": 1.0,
        "privacy.mode": "gradient", "privacy.epsilon": 4.0, "loss-clip": 5.0, "penalties": "10, 1e4",
    }  # fmt: skip
    setup = prepare(parse({key: value for key, value in RUN.items() if key != "step-size"} | keys))
    parts = {field.name: getattr(setup.objective, field.name) for field in fields(LinearModel)}
    setup = replace(setup, objective=Fragile(**parts))
    own = setup.shards.rows(0)
    other = own.features.copy()
    other[0] = np.eye(1, other.shape[1])[0]
    pair = {"its first row, and one without a loss": (own, Batch(other, own.labels))}
    case = audit.setup_case("a loss that is not a number", setup, about="TF-2026-4", pairs=pair)
    return both(case, OLD_NOISE | {(bounded_losses, "within"): np.clip})


def cases() -> list[audit.Case]:
    """All holes."""
    groups = masks_case, rows_case, overflow_case, losses_case
    return [case for group in groups for case in group()]
