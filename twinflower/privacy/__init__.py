"""Differential privacy under replacement of one record: accounting, noise planning, and the ledger of what was spent.

This package exports the conversion between mu and (epsilon, delta), and the `Budget`. `plan` computes the noise of a
run, `guard` charges each round to the ledger and returns its noise, `ledger` records what was spent, and `audit`
replays a client to check that its releases have the sensitivity that its algorithm claims.
"""

from .accountant import Budget, best_guess, detection, gdp_epsilon, gdp_mu, total_mu
