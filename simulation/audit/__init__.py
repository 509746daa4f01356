"""Audits of Flower apps: does an app keep the privacy that it promises?

A `Case` says what is audited: a mechanism (`client` for a ClientApp, `server` for a Strategy) under some server
messages, pairs of neighbouring data sets, and the claim. `audit_case` runs the mechanism many times on both data sets
of the pair and under the messages that reveal most, and returns a `Report` with three numbers: what is claimed, what
the declared noise really guarantees, and what an attack demonstrably achieved.
"""

from .cases import Case, Claim, client_case
from .command import demonstrate, load
from .data import loader_of_rows, pairs, rows_of_loader, server_messages
from .declared import GaussianRelease, certified, of_fixed_clipping, of_history, of_local_dp_mod
from .recorder import Mechanism, Request, Update, client, numpy_request, request, server
from .report import Report, audit_case
from .session import Effort
from .transcript import Outcome
from .twinflower_case import setup_case, twinflower_case
