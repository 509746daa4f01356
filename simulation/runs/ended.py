"""Why a run ended before its last planned round, in the names of the model's entries."""

from twinflower.algorithms.algorithm import Stop
from twinflower.models.coefficients import BASELINE, INTERCEPT
from twinflower.problems.discrete_cox import DiscreteCox

from .setup import PreparedRun

_MOST_NAMES = 10


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
