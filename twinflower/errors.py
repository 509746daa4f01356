"""What goes wrong in a user's hands, each with one sentence they can act on.

Everything here is caught at the outermost door (command line, server app) and printed without a
traceback; anything else that escapes is a defect of ours.
"""


class TwinflowerError(Exception):
    """Base of every error whose text is meant for the user."""


class SettingError(TwinflowerError, ValueError):
    """A setting breaks its rule; the text gives name, rule, value and remedy."""


class DataError(TwinflowerError, ValueError):
    """A data file is missing or is not what it should be; the text names file and expectation."""


class ReplyError(TwinflowerError, ValueError):
    """A client's reply (or a server's request) does not have the promised content."""


class RunError(TwinflowerError, RuntimeError):
    """A run cannot go on: no usable replies, too few nodes, or a diverging model."""


def require(condition: bool, text: str) -> None:
    """Raise `SettingError(text)` unless the condition holds."""
    if not condition:
        raise SettingError(text)
