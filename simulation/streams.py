"""Standard output and error where the terminal, or the file behind it, is not UTF-8."""

import sys
from io import TextIOWrapper


def lose_nothing() -> None:
    """Have both write letters that their encoding lacks as escapes such as \\u0394, so that names stay different."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
