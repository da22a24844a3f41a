"""The events of ``session.stream(code)``, in order; the last one is a :class:`ResultEvent`."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from . import _engine
from .approvals import ApprovalRequest
from .types import ExecutionResult


class Event:
    """The base of all events."""

    type = ""

    def __repr__(self) -> str:
        return "%s(%s)" % (type(self).__name__, ", ".join("%s=%r" % item for item in vars(self).items()))


class Chunk(Event):
    """A piece of output, as it was written."""

    type = "chunk"

    def __init__(self, stream: str, text: str) -> None:
        self.stream = stream  #: "stdout" or "stderr"
        self.text = text


class Display(Event):
    """``display(object)``: its representations."""

    type = "display"

    def __init__(self, mime: Dict[str, bytes]) -> None:
        self.mime = mime

    @property
    def text(self) -> str:
        return self.mime.get("text/plain", b"").decode("utf-8", "replace")


class ImageEvent(Event):
    """A picture was written to ``images_dir``; or was not, and ``problem`` says why."""

    type = "image"

    def __init__(self, path: Optional[Path], index: int, problem: Optional[str]) -> None:
        self.path, self.index, self.problem = path, index, problem


class CallEvent(Event):
    """The code makes a call: a tool, a shell command, an install, a new workflow."""

    type = "call"

    def __init__(self, fields: Tuple[Any, ...]) -> None:
        (self.id, self.request_id, self.kind, self.tool, self.callable, self.adapter, self.session_id, args) = fields[:8]
        self.args: Dict[str, Any] = json.loads(args or "{}")

    @property
    def full_name(self) -> str:
        return "%s.%s" % (self.tool, self.callable) if self.callable else str(self.tool)


class CallStarted(CallEvent):
    """It begins."""

    type = "call_started"


class CallEnded(CallEvent):
    """A call has ended: ``outcome`` is ok, error, denied, rejected, expired or cancelled."""

    type = "call_ended"

    def __init__(self, fields: Tuple[Any, ...]) -> None:
        super().__init__(fields)
        self.outcome, self.error, self.duration_ms = fields[8:11]


class ApprovalEvent(Event):
    """A call needs an approval: answer ``request``."""

    type = "approval"

    def __init__(self, request: ApprovalRequest) -> None:
        self.request = request


class ApprovalEnded(CallEvent):
    """A request is no longer pending: accepted, edited, rejected, expired or cancelled."""

    type = "approval_ended"

    def __init__(self, fields: Tuple[Any, ...]) -> None:
        super().__init__(fields)
        self.decision, self.reason = fields[8:10]


class KernelDied(Event):
    """The kernel died between two cells; the next one runs on a fresh kernel."""

    type = "kernel_died"

    def __init__(self, message: str) -> None:
        self.message = message


class ResultEvent(Event):
    """The end."""

    type = "result"

    def __init__(self, result: ExecutionResult, lost_bytes: int = 0) -> None:
        self.result = result
        self.lost_bytes = lost_bytes  #: output that a reader who did not keep up has not seen; the result has it


class Decoder:
    """Items of a port as events. Output is bytes there, and a character may come in two pieces."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {1: make("replace"), 2: make("replace")}

    def events(self, item: Tuple[Any, ...]) -> List[Event]:
        """All but the result; item: (token, type, run id, ...)."""
        kind = item[1]
        if kind == _engine.CHUNK:
            text = self._decoders[item[3]].decode(item[4])
            return [Chunk("stdout" if item[3] == 1 else "stderr", text)] if text else []
        if kind == _engine.DISPLAY:
            return [Display({item[i]: item[i + 1] for i in range(3, len(item), 2)})]
        if kind == _engine.CALL_STARTED:
            return [CallStarted(item[3:])]
        if kind == _engine.CALL_ENDED:
            return [CallEnded(item[3:])]
        if kind == _engine.APPROVAL_ENDED:
            return [ApprovalEnded(item[3:])]
        if kind == _engine.IMAGE:
            return [ImageEvent(Path(item[3]) if item[3] else None, item[4], item[5])]
        if kind == _engine.KERNEL_DIED:
            return [KernelDied(item[3])]
        return []

    def rest(self) -> List[Event]:
        """What is left of a character that was cut off."""
        left = [(name, self._decoders[n].decode(b"", True)) for n, name in ((1, "stdout"), (2, "stderr"))]
        return [Chunk(name, text) for name, text in left if text]


__all__ = ["Event", "Chunk", "Display", "ImageEvent", "CallEvent", "CallStarted", "CallEnded", "ApprovalEvent",
           "ApprovalEnded", "KernelDied", "ResultEvent"]
