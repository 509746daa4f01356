"""The older composition theorems, of releases with guarantees (epsilon_t, delta_t) each: oracles for noise plans."""

import math

import numpy as np


def basic_composition(epsilons, deltas):
    """(sum epsilon_t, sum delta_t)."""
    return float(np.sum(epsilons)), float(np.sum(deltas))


def advanced_composition(epsilons, deltas, slack):
    """(sqrt(2 ln(1/slack) sum epsilon_t^2) + sum epsilon_t (e^epsilon_t - 1), slack + sum delta_t).

    Dwork and Roth 2014, Theorem 3.20, for equal releases; for unequal ones Kairouz, Oh and Viswanath,
    "The composition theorem for differential privacy", 2015, Theorem 3.5, which is a little smaller.
    """
    spread = math.sqrt(-2 * math.log(slack) * np.sum(np.square(epsilons)))
    return spread + float(np.sum(epsilons * np.expm1(epsilons))), slack + float(np.sum(deltas))
