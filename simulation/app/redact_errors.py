"""What the server learns of an error at a deployed site: a sentence that depends only on the run and the site's policy,
one of a few fixed ones, or in a run without privacy that counts of the rows are too small (`WithheldError`). The
details are in the site's own log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import ERROR

from flwr.app import Context, Error, Message
from flwr.common import log

from twinflower.errors import DataError, DiskError, ReplyError, SettingError, TwinflowerError, WithheldError
from twinflower.flower_messages import RAISED
from twinflower.privacy.charges import LedgerError

from ..runtimes.flower_internals import date_log
from ..settings import parse_run_config
from .site import read_site, simulated

_LOG = "the site's own log says why"
_DETAILS = "the site's own log has the details"
_WITHHELD: dict[type[Exception], str] = {
    LedgerError: f"this site's ledger cannot vouch for what was spent; {_LOG}",
    DiskError: f"this site cannot write its state-dir; {_LOG}",
    ReplyError: f"this site did not accept the request; {_LOG}",
    Exception: f"this site cannot answer; {_LOG}",
}


class Refusal(SettingError):
    """The reason why a site does not take part in a run, as a sentence that the server may see."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turn errors in this block into a `Refusal`, which the server may see.

    Use it only for code that depends on nothing but the run's settings and the site's policy.
    """
    try:
        yield
    except TwinflowerError as error:
        raise Refusal(str(error)) from None


def discreet(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A Flower mod: for any error at a deployed site, the server receives a `Refusal` or a fixed sentence.

    In a simulation errors are passed on unchanged.
    """
    if simulated(context.node_config):
        return call_next(message, context)
    date_log()
    try:
        return call_next(message, context)
    except Exception as error:  # noqa: BLE001  of any type: its text may quote a file
        _note(error)
        return Message(Error(RAISED, sentence(error, _may_say_why(context))), reply_to=message)


def _may_say_why(context: Context) -> bool:
    """Whether the server may receive the reason of a DataError: the run has no privacy, and the site accepts this."""
    try:
        allowed = not read_site(context.node_config).promises
        return allowed and parse_run_config(context.run_config).privacy.mode == "none"
    except Exception:  # noqa: BLE001  then nobody knows whether it may
        return False


def _note(error: Exception) -> None:
    """Write the error to the site's own log: a Twinflower error as one sentence, any other with its traceback."""
    if isinstance(error, TwinflowerError):
        log(ERROR, "twinflower: %s", error)
    else:
        log(ERROR, "twinflower: a request could not be answered", exc_info=error)


def sentence(error: Exception, why: bool = False) -> str:
    """The sentence that the server receives for an error; why: with the reason of a DataError."""
    if isinstance(error, Refusal | WithheldError):
        return str(error)
    if why and isinstance(error, DataError):
        return f"this site cannot take part, because {error.reason}; {_DETAILS}"
    return next(text for kind, text in _WITHHELD.items() if isinstance(error, kind))
