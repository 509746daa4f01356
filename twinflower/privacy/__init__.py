"""Privacy: what releases cost and how much noise a promise needs; under replacement of one record.

Here are the curve between mu and (epsilon, delta), and a budget that fills up. `plan` plans a run's noise, `guard`
charges and adds it, `ledger` keeps what was spent, and `audit` replays a client to see that it releases what it says.
"""

from .accountant import Budget, best_guess, detection, gdp_epsilon, gdp_mu, total_mu

__all__ = ["Budget", "best_guess", "detection", "gdp_epsilon", "gdp_mu", "total_mu"]
