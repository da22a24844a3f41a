"""Artifacts as bytes and back: the same code as in sessions."""

from __future__ import annotations

import io
from typing import Any, Tuple

from .. import _json
from .._kernel import kernel_module


def to_bytes(value: Any) -> Tuple[str, bytes]:
    """(type, bytes) of a value; TypeError with advice where it has no portable form."""
    kind, data = kernel_module("ns_artifacts").to_bytes(value)
    return str(kind), bytes(data)


def from_bytes(kind: str, data: bytes) -> Any:
    """The value of what was saved. Code may have saved it: an int of too many digits is a ValueError."""
    if kind == "json":
        return _json.loads(data.decode("utf-8"))
    return kernel_module("ns_artifacts").from_bytes(kind, data)


def table_from_bytes(kind: str, data: bytes) -> Any:
    """A DataFrame or Series; ImportError without pandas."""
    import pandas  # type: ignore  # noqa: F401

    return kernel_module("ns_artifacts").table_from_bytes(kind, io.BytesIO(data))
