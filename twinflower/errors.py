"""Errors whose message is one sentence that the user can act on.

The command line and the server app catch these errors and print them without a traceback. Any other exception that
reaches the user is a bug in Twinflower.
"""


class TwinflowerError(Exception):
    """Base class of all errors whose message is written for the user."""


class SettingError(TwinflowerError, ValueError):
    """A setting violates its rule; the message gives the name, the rule, the value and a remedy."""


class DataError(TwinflowerError, ValueError):
    """A data file is missing or malformed; the message gives the file and what was expected."""


class ReplyError(TwinflowerError, ValueError):
    """A client's reply, or a server's request, does not have the expected content."""


class RunError(TwinflowerError, RuntimeError):
    """A run cannot continue: no usable replies, too few nodes, or a diverging model."""


def require(condition: bool, text: str) -> None:
    """Raise `SettingError(text)` unless the condition holds."""
    if not condition:
        raise SettingError(text)
