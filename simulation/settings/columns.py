"""The columns of clients.csv, and of metrics.csv, by which experiment files say what figures show."""

from twinflower.algorithms import ALGORITHMS
from twinflower.models.evaluation import OWN_MODEL
from twinflower.queries import QUERIES

COLUMNS = (
    "round",
    "objective",
    "test_accuracy",
    "nonzeros",
    "uplink_bits",
    "downlink_bits",
    "paper_uplink_bits",
    "local_steps",
    "stopped",
    "participants",
    "rejected",
    "seconds",
)
CLIENT_COLUMNS = ("client", "rows", "asked", "used", "mu", "mu_alone")
PATH_COLUMNS = ("weight", "error", "std_error", "rounds", "nonzeros", "choice")
SITE_COLUMNS = tuple(name for query in QUERIES for name in query.reported.known_columns)
POINT_COLUMNS = ("consensus", "distance", "optimality", "node_error", "suboptimality")
EXTRA_COLUMNS = (
    *POINT_COLUMNS,
    "support_f1",
    OWN_MODEL,
    *SITE_COLUMNS,
    *dict.fromkeys(name for kind in ALGORITHMS.values() for name in kind.server_columns + kind.model_columns),
)
GAP = "gap"  # of figures only: the objective above the lowest in the panel (`simulation.report.series`)
CURVE = "curve"  # of figures only: x is the curve itself, in a dot plot (`simulation.report.dots`)
SIGNED_COLUMNS = {
    "excess",
    "test_accuracy",
    "held_out_accuracy",
    OWN_MODEL,
}  # these can be negative: the accuracy of a regression is R^2
