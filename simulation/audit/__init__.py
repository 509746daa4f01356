"""Audits of Flower apps: does an app keep the privacy that it promises?

A `Case` says what is audited: a mechanism (`client` for a ClientApp, `server` for a Strategy) under some server
messages, pairs of neighbouring data sets, and the claim. `run` runs the mechanism many times on both data sets of the
pair and under the messages that tell most, and returns a `Report` with three numbers: what is claimed, what the
declared noise really guarantees, and what an attack demonstrably achieved.
"""

from .cases import Case, Claim
from .client_case import client_case
from .command import demonstrate, load
from .data import messages, pairs
from .declared import GaussianRelease, certified, of_fixed_clipping, of_history, of_local_dp_mod
from .loaders import loader_of_rows, rows_of_loader
from .recorder import Mechanism, Request, Update, client, numpy_request, request, server
from .report import Report, run
from .session import Effort
from .transcript import Outcome
from .twinflower_case import setup_case, twinflower_case

__all__ = [
    "Case",
    "Claim",
    "Effort",
    "GaussianRelease",
    "Mechanism",
    "Outcome",
    "Report",
    "Request",
    "Update",
    "certified",
    "client",
    "client_case",
    "demonstrate",
    "load",
    "loader_of_rows",
    "messages",
    "numpy_request",
    "of_fixed_clipping",
    "of_history",
    "of_local_dp_mod",
    "pairs",
    "request",
    "rows_of_loader",
    "run",
    "server",
    "setup_case",
    "twinflower_case",
]
