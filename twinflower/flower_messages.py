"""The format of Flower's messages to and from a NumPyClient, which Flower does not document.

Server and clients need it. It imports nothing of Flower; tests/test_flower_internals.py compares each part with the
installed Flower. What the runtimes need beyond Flower's documentation is in simulation/runtimes/flower_internals.py.
"""

import re

FIT, EVALUATE, PROPERTIES = "fit", "evaluate", "getproperties"

KINDS = {"train": FIT, "evaluate": EVALUATE, "get_properties": PROPERTIES}
"""Message types, and how the names of their records begin."""

BEGINS, ENDS = "begins", "ends"
"""Keys in the config of a PROPERTIES request of ours: the session that a server begins, or has ended."""

NO_ARRAYS = "_empty"
"""The name of the placeholder in a record without arrays."""

RAISED = 2
"""The code of an error reply for an exception in a client."""

PLACES = "partition-id", "num-partitions"
"""Which client a node is, and of how many: keys of its node config and of its properties, and of requests to a node
whose config has no such keys."""

SITE = "site"
"""A key of the same: the name of a node, by which the server numbers it if it has no partition."""

SITE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""What a name must be."""

GONE = 5
"""The code of the error reply that Flower makes for a node that has left."""

_RAISED = re.compile(
    r"^((?:[A-Za-z_]\w*\.)*)([A-Z]\w*): (\S.*)$", re.MULTILINE
)  # the last line of a traceback
_EXCEPTION = re.compile(r"<class '(?:\w+\.)*(\w+)'>:<'(.*?)(?:'>)?$")


def request_record(kind: str, part: str) -> str:
    """The name of a request's record: its config, or of FIT and EVALUATE the parameters."""
    return f"{kind}ins.{part}"


def reply_record(kind: str, part: str) -> str:
    """The name of a reply's record: its status; of FIT parameters, num_examples and metrics; of EVALUATE loss,
    num_examples and metrics; of PROPERTIES properties."""
    return f"{kind}res.{part}"


def readable(reason: str) -> str:
    """The reason of an error reply, with an exception as "TypeOfError: its text"; it may be cut off at the end.

    Of a traceback, as Flower's engine sends it, the last error of ours, else the last that is not Flower's or Ray's.
    """
    raised = [match for match in _RAISED.finditer(reason) if not match[1].startswith(("flwr.", "ray."))]
    if raised:
        cause = next((match for match in reversed(raised) if match[1].startswith("twinflower.")), raised[-1])
        return f"{cause[2]}: {cause[3]}"
    match = _EXCEPTION.match(" ".join(reason.split()))
    return f"{match[1]}: {match[2]}" if match else reason
