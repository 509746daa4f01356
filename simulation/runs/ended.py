"""Why a run ended before its last planned round, in the names of the model's entries, which clients it left out,
and whether its objective went down."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from twinflower.algorithms.algorithm import Stop
from twinflower.arrays import Array, Index
from twinflower.errors import RunError
from twinflower.models.coefficients import BASELINE, INTERCEPT
from twinflower.problems.discrete_cox import DiscreteCox
from twinflower.rounds import Round, who

from .setup import PreparedRun

_MOST_NAMES = 10
_RISE = 10.0  # without noise, an objective this many times its start at the end is worth a warning
_FAR = 100.0  # an objective this many times its start is taken as divergence


def entry_names(setup: PreparedRun) -> list[str]:
    """A name (d,) for every entry of a linear model, of a feature, with its class if there are scores of several."""
    inputs, classes = setup.inputs, setup.dataset.class_names
    own = [*inputs.feature_names, *([INTERCEPT] if inputs.bias else [])]
    if isinstance(setup.objective, DiscreteCox):
        return own + [f"{BASELINE} to {end:g}" for end in setup.objective.loss.ends.tolist()]
    if setup.objective.d == len(own):
        return own
    return [f"{name} ({label})" for label in classes for name in own]


def ended(setup: PreparedRun, stop: Stop | None, rounds: int) -> str:
    """Such as "converged after 5 rounds"; empty for a run that went on to its last planned round."""
    if stop is None:
        return ""
    after = f"after {rounds} round{'s' * (rounds != 1)}"
    if not stop.entries:
        return f"{stop.reason} {after}"
    names = [entry_names(setup)[entry] for entry in stop.entries]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"stopped {after}: {stop.reason.format(entries=', '.join(names[:_MOST_NAMES]) + more)}"


# --- in which rounds its clients took part


_MOST_NAMED = 5  # clients in one warning, or with a warning each


def asked_and_lost(rounds: Sequence[Round], num_clients: int) -> tuple[Index, Index]:
    """In how many rounds each client (N,) was asked to train, and in how many of them its reply was not used."""
    asked, lost = (done.asked for done in rounds), (done.rejected for done in rounds)
    return _times(asked, num_clients), _times(lost, num_clients)


def left_out(rounds: Sequence[Round], sizes: Index, deployed: bool, sites: Sequence[str] = ()) -> list[str]:
    """Warnings about clients without whose rows the model was trained, at deployed sites also about single rounds.

    sizes (N,): their public numbers of rows. sites: their names, if they have some.
    """
    asked, lost = asked_and_lost(rounds, len(sizes))
    some = np.flatnonzero((lost > 0) & (lost < asked)) if deployed else ()
    texts = [
        f"{who(int(client), sites)} was left out of {lost[client]} of {asked[client]} rounds"
        for client in some
    ]
    never = np.flatnonzero((asked > 0) & (lost == asked))
    if len(never):
        share = sizes[never].sum() / sizes.sum()
        texts.append(
            f"no reply of {_named(never, sites)} was used: the model is without {share:.0%} of the rows"
        )
    return texts[-_MOST_NAMED:]


def unreleased(clients: Sequence[int], session: str, sites: Sequence[str] = ()) -> list[str]:
    """A warning about clients that may have reserved budget for a run that has ended, and did not hear of the end."""
    if not clients:
        return []
    return [
        f"{_named(clients, sites)} did not hear that the run has ended, and may keep the budget that it "
        f"reserved; to give that up, at the site: twinflower ledger STATE-DIR --give-up {session}"
    ]


def _named(clients: Sequence[int] | Index, sites: Sequence[str]) -> str:
    """These clients, in a message."""
    names = [str(sites[client] if sites else client) for client in clients[:_MOST_NAMED]]
    kind = f"{'site' if sites else 'client'}{'s' * (len(clients) > 1)}"
    return f"{kind} {', '.join(names)}{', ...' if len(clients) > _MOST_NAMED else ''}"


def _times(clients: Iterable[Iterable[int]], num_clients: int) -> Index:
    """How often each client (N,) is in these groups."""
    numbers = np.fromiter((client for group in clients for client in group), dtype=np.int64)
    return np.bincount(numbers, minlength=num_clients)


def check_progress(setup: PreparedRun, row: dict[str, Any], x: Array, rows: list[dict[str, Any]]) -> None:
    """RunError if the run diverges: x or the objective is not finite, or, without noise, far above its start."""
    outside = np.isposinf(row["objective"]) and np.isposinf(
        setup.regulariser.value(x)
    )  # x violates the constraint that h encodes: no divergence
    finite = np.isfinite(row["objective"]) or outside or not setup.central.has_rows
    if not (np.isfinite(x).all() and finite):
        raise RunError(f"the run diverged: not finite in round {row['round']}; lower step-size")
    first = rows[0]["objective"] if rows else np.inf
    if setup.plan is None and not outside and row["objective"] > _FAR * max(first, 1.0):
        raise RunError(
            f"the run diverged: the objective is {row['objective']:.3g} in round {row['round']} and began at "
            f"{first:.3g}; lower step-size"
        )


def risen(rows: list[dict[str, Any]], private: bool) -> list[str]:
    """A warning if the final objective is more than `_RISE` times the first, in a private run if it is above it."""
    first, last = (rows[place]["objective"] if rows else 0.0 for place in (0, -1))
    if private and 0 < first < last < np.inf:
        return [
            f"the objective ends above its start ({first:.3g} before round 1, {last:.3g} after "
            f"{rows[-1]['round']} rounds): use more rows, a larger epsilon, fewer rounds or smaller steps"
        ]
    if not 0 < _RISE * first < last < np.inf:
        return []
    return [f"the objective rose from {first:.3g} to {last:.3g}: lower step-size"]
