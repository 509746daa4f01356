"""What the client app of a node reports to the command that started the node; nothing, if none did."""

from collections.abc import Callable

from flwr.app import Context, Message

from twinflower.flower_messages import KINDS, PROPERTIES, request_record

from ..runtimes.progress import Report, node, report, report_warnings


def rehearsed(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """A Flower mod: report warnings and errors, and when the node has been asked for its partition and knows it."""
    if not node():
        return call_next(message, context)
    report_warnings()
    reply = call_next(message, context)
    if _asks_for_partition(message) and not reply.has_error():
        report(Report(f"{node()}: connected"))
    return reply


def _asks_for_partition(message: Message) -> bool:
    """Whether a server meets the node; in a run of sums it asks once more, and names the session."""
    kind = KINDS.get(message.metadata.message_type)
    return kind == PROPERTIES and not message.content.get(request_record(PROPERTIES, "config"))
