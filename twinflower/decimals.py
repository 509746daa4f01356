"""Numbers in texts from outside: tables, settings, and files of a site.

A number is what tables write, [sign] digits [. digits] [e [sign] digits] with the digits 0 to 9 and blanks around it.
Python's own `float` and `int` also read 18_24 as 1824, digits of other scripts, infinity and nan, which are texts here.
"""

import re
from collections.abc import Sequence

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_CODE = re.compile(r"[0-9]+[eE][0-9]+")


def decimal(text: str) -> float:
    """The number that the text is; infinity if it is too large for a double. ValueError for any other text."""
    if not _DECIMAL.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a decimal number")
    return float(text)


def decimals(texts: Sequence[str]) -> list[float]:
    """`decimal` of every text, as fast as `float` for most; ValueError if one is not a number."""
    joined = "".join(texts)
    if joined.isascii() and not any(mark in joined for mark in "_nN"):  # else float reads more than decimal
        return list(map(float, texts))
    return list(map(decimal, texts))


def whole(text: str) -> int:
    """The whole number that the text is, without a point or an exponent; ValueError for any other text."""
    if not _WHOLE.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def is_decimal(text: str) -> bool:
    """Whether the text is a number."""
    return bool(_DECIMAL.fullmatch(text.strip()))


def may_be_code(text: str) -> bool:
    """Whether a number could as well be a code, such as 1e5 for ward E5; programs write this number 1e+05 or 1.0e5."""
    return bool(_CODE.fullmatch(text.strip()))
