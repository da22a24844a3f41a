"""The audit log: a line of JSON for every call that passed the gate (docs/audit.md)."""

from __future__ import annotations

import os
from typing import Any, Dict, Literal, Optional, Sequence, Union

from . import _native
from ._engine import Engine, default_engine
from .errors import from_native

_SYNC = {"never": 0, "interval": 1, "always": 2}


class AuditLog:
    """A log that any number of sessions write to.

    Args:
        path: the file, made with mode 0600 if missing.
        max_bytes: rotated before it gets larger; 0: never.
        keep: how many rotated files.
        sync: ``never``, ``interval`` or ``always``.
        redact: further names of arguments whose values are not written.
        fail_closed: calls are refused while the log cannot be written.
    """

    close_order = 2

    def __init__(self, path: Union[str, "os.PathLike[str]"], *, max_bytes: int = 64 << 20, keep: int = 5,
                 sync: Literal["never", "interval", "always"] = "interval", sync_ms: int = 1000, redact: Optional[Sequence[str]] = None,
                 fail_closed: bool = True, engine: Optional[Engine] = None) -> None:
        if sync not in _SYNC:
            raise ValueError("sync must be never, interval or always, not %r" % sync)
        options: Dict[str, Any] = {"path": os.fspath(path), "max_bytes": max_bytes, "keep": keep, "sync": _SYNC[sync],
                                   "sync_ms": sync_ms, "fail_closed": int(fail_closed)}
        if redact is not None:
            options["redact"] = list(redact)
        self.engine = engine or default_engine()
        try:
            self.native = _native.Audit(self.engine.native, options)
        except _native.NativeError as error:
            raise from_native(error) from None
        self.engine.owned.add(self)

    def close(self) -> None:
        """Writes the waiting records. Sessions that use it must have been closed."""
        self.close_native()

    def close_native(self) -> None:
        """As :meth:`close`; called by the engine."""
        self.native.close()

    def __enter__(self) -> "AuditLog":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


__all__ = ["AuditLog"]
