"""Errors whose message is one sentence that the user can act on.

The command line and the server app catch these errors and print them without a traceback. Any other exception that
reaches the user is a bug in Twinflower.
"""

from urllib.error import URLError

UNUSABLE = "one of its files cannot be used"


class TwinflowerError(Exception):
    """Base class of all errors whose message is written for the user."""


class SettingError(TwinflowerError, ValueError):
    """A setting violates its rule; the message gives the name, the rule, the value and a remedy."""


class DataError(TwinflowerError, ValueError):
    """A data file is missing or malformed; the message gives the file and what was expected.

    text: what is wrong. reason: the same in general words, without anything from the file and without its name.
    remedy: what to change in the schema or in the table; it follows the text in the message.
    """

    def __init__(self, text: str, reason: str = UNUSABLE, remedy: str = "") -> None:
        super().__init__(advised(text, remedy))
        self.text, self.reason, self.remedy = text, reason, remedy


class ReplyError(TwinflowerError, ValueError):
    """A client's reply, or a server's request, does not have the expected content."""


class WithheldError(ReplyError):
    """A site's policy keeps back an exact sum, in a run without privacy; the message may reach the server."""


class RunError(TwinflowerError, RuntimeError):
    """A run cannot continue: no usable replies, too few nodes, or a diverging model."""


class AbsentError(RunError):
    """A run cannot continue because clients are missing. With a checkpoint it can be resumed when they are back."""


class DiskError(TwinflowerError):
    """A file cannot be written, for example because the disk is full; the message gives the file and the cause."""


def advised(text: str, remedy: str) -> str:
    """A message of what is wrong and what to do, if there is something."""
    return f"{text}: {remedy}" if remedy else text


def cause(error: Exception) -> str:
    """The reason in an exception on one line, for use inside an error message."""
    if isinstance(error, URLError) and isinstance(error.reason, Exception):
        return cause(error.reason)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if "allow_pickle" in str(error):  # NumPy's advice to load such files unsafely
        return "it does not hold plain arrays"
    return " ".join(str(error).split()) or type(error).__name__


def require(condition: bool, text: str) -> None:
    """Raise `SettingError(text)` unless the condition holds.

    For a text without values: `if` and `raise` make one with values only when it is needed.
    """
    if not condition:
        raise SettingError(text)


def expect(condition: bool, text: str) -> None:
    """Raise `DataError(text)` unless the condition holds; for a text without values, as `require`."""
    if not condition:
        raise DataError(text)
