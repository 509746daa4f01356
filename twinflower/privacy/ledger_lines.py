"""The lines of a ledger file, as bytes: what a line says, and whether all of them are as they were written.

The first line names the data and the lifetime budget. Every further line is a charge, or the end of a reservation. Both
state what every run has reserved after it, so that the last line alone says it. Lines of version 0.2 have
no reservations.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .charges import Charge

CHECKSUM = 16  # hexadecimal digits at the start of a line, followed by a space
_TORN = re.compile(rb"[0-9a-f]{0,16}|[0-9a-f]{16} (\{[ -~]*)?")  # matches every incomplete line
_ANY = b'{"run": '


def line(before: bytes, content: object) -> bytes:
    """Encode the content as a line to append to a file whose bytes so far are `before`."""
    return _sealed(before, json.dumps(content).encode())


def _sealed(before: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(before)
    digest.update(body)
    return digest.hexdigest()[:CHECKSUM].encode() + b" " + body + b"\n"


def in_order(book: bytes) -> bool:
    """Whether complete lines (possibly none) are unchanged: the checksum of the last one covers all of them."""
    last = _last_line(book)
    return not book or book[last:] == _sealed(book[:last], book[last + CHECKSUM + 1 : -1])


def torn(book: bytes, tail: bytes) -> bool:
    """Whether a crash while appending to `book` can leave `tail`; a complete line with a damaged end does not count."""
    ends = [found.end() for found in re.finditer(rb"}", tail[:-1])]
    return bool(_TORN.fullmatch(tail)) and not any(in_order(book + tail[:end] + b"\n") for end in ends)


def header(book: bytes) -> dict[str, Any]:
    """The content of the first line."""
    return dict(json.loads(book[CHECKSUM : book.index(b"\n")]))


def charges_in(book: bytes, run: str | None = None) -> list[Charge]:
    """All charges, or those of one run, in order."""
    start = _ANY if run is None else start_of(run)
    bodies = (text[CHECKSUM + 1 :] for text in book.split(b"\n")[1:-1])
    return [_charge(body) for body in bodies if body.startswith(start)]


def _charge(body: bytes) -> Charge:
    entry = json.loads(body)
    names = {f.name for f in fields(Charge)}
    return Charge(**{name: entry[name] for name in names & entry.keys()})


def start_of(run: str, round_: int | None = None) -> bytes:
    """The first bytes of the body of a charge of this run, and round.

    They cannot occur anywhere else, because JSON escapes quotation marks inside strings, and reservations are a list.
    """
    first = {"run": run} if round_ is None else {"run": run, "round": round_}
    return json.dumps(first)[:-1].encode() + b", "


def last_charge(book: bytes, start: bytes = _ANY) -> dict[str, Any]:
    """The latest charge, with its sums, whose body begins with `start`; empty if there is none."""
    place = book.rfind(start)
    return dict(json.loads(book[place : book.index(b"\n", place)])) if place >= 0 else {}


def _last_line(book: bytes) -> int:
    return book.rfind(b"\n", 0, -1) + 1


def reserved_in(book: bytes) -> dict[str, float]:
    """What each run has reserved for what it still has to charge, in mu^2."""
    return dict(json.loads(book[_last_line(book) + CHECKSUM :]).get("reserved", ())) if book else {}


def reservations(reserved: Mapping[str, float]) -> dict[str, object]:
    """The field of a line that `reserved_in` reads."""
    return {"reserved": list(reserved.items())} if reserved else {}
