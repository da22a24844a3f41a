"""JSON that code in a session chose: read in bounded time, whatever the program set for its own numbers."""

from __future__ import annotations

import json
from typing import Any

MAX_DIGITS = 4300
"""Of an int, as CPython's own limit is by default: reading digits takes quadratic time."""


def _read_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("an int of %d digits, more than %d" % (len(text), MAX_DIGITS))
    return int(text)


def loads(text: str) -> Any:
    """As json.loads(); ValueError where an int has too many digits."""
    return json.loads(text) if len(text) <= MAX_DIGITS else json.loads(text, parse_int=_read_int)
