"""The events of ``session.stream(code)``, in order; the last one is a :class:`ResultEvent`."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional, Tuple, Union

from . import _engine
from .approvals import ApprovalRequest
from .types import ExecutionResult, shortened


class _Event:
    def __repr__(self) -> str:
        return "%s(%s)" % (type(self).__name__, ", ".join("%s=%s" % (name, shortened(repr(value))) for name, value in vars(self).items()))


class Chunk(_Event):
    """A piece of output, as it was written."""

    type: Literal["chunk"] = "chunk"

    def __init__(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        self.stream = stream  #: "stdout" or "stderr"
        self.text = text


class Display(_Event):
    """``display(object)``: its representations."""

    type: Literal["display"] = "display"

    def __init__(self, mime: Dict[str, bytes]) -> None:
        self.mime = mime

    @property
    def text(self) -> str:
        """Its plain text."""
        return self.mime.get("text/plain", b"").decode("utf-8", "replace")


class ImageEvent(_Event):
    """A picture was written to ``images_dir``; or was not, and ``problem`` says why."""

    type: Literal["image"] = "image"

    def __init__(self, path: Optional[Path], index: int, problem: Optional[str]) -> None:
        self.path, self.index, self.problem = path, index, problem


class CallEvent(_Event):
    """The code makes a call: a tool, a shell command, an install, a new workflow."""

    def __init__(self, fields: Tuple[Any, ...]) -> None:
        self.id: int = fields[0]
        self.request_id: str = fields[1]
        self.kind: Literal["tool", "shell", "install", "workflow"] = fields[2]
        self.tool: str = fields[3]
        self.callable: Optional[str] = fields[4]
        self.adapter: Optional[str] = fields[5]
        self.session_id: str = fields[6]
        self.args: Dict[str, Any] = json.loads(fields[7] or "{}")

    @property
    def full_name(self) -> str:
        """``tool.callable``, or the tool alone."""
        return "%s.%s" % (self.tool, self.callable) if self.callable else str(self.tool)


class CallStarted(CallEvent):
    """A call begins."""

    type: Literal["call_started"] = "call_started"


class CallEnded(CallEvent):
    """A call has ended: ``outcome`` is ok, error, denied, rejected, expired or cancelled."""

    type: Literal["call_ended"] = "call_ended"

    def __init__(self, fields: Tuple[Any, ...]) -> None:
        super().__init__(fields)
        self.outcome: Literal["ok", "error", "denied", "rejected", "expired", "cancelled"] = fields[8]
        self.error: Optional[str] = fields[9]
        self.duration_ms: float = fields[10]


class ApprovalEvent(_Event):
    """A call needs an approval: answer ``request``."""

    type: Literal["approval"] = "approval"

    def __init__(self, request: ApprovalRequest) -> None:
        self.request = request


class ApprovalEnded(CallEvent):
    """A request is no longer pending: accepted, edited, rejected, expired or cancelled."""

    type: Literal["approval_ended"] = "approval_ended"

    def __init__(self, fields: Tuple[Any, ...]) -> None:
        super().__init__(fields)
        self.decision: Literal["accepted", "edited", "rejected", "expired", "cancelled"] = fields[8]
        self.reason: Optional[str] = fields[9]


class KernelDied(_Event):
    """The kernel died between two cells; the next one runs on a fresh kernel."""

    type: Literal["kernel_died"] = "kernel_died"

    def __init__(self, message: str) -> None:
        self.message = message


class ResultEvent(_Event):
    """The end of the cell, with its result."""

    type: Literal["result"] = "result"

    def __init__(self, result: ExecutionResult, lost_bytes: int = 0) -> None:
        self.result = result
        self.lost_bytes = lost_bytes  #: output that a reader who did not keep up has not seen; the result has it


class BranchEvent(_Event):
    """A branch of a session, for ``Session(on_branch=...)``; not an event of a cell.

    ``kind`` says which other members are set: ``fork`` (``new_session_id``), ``point`` (``name``, ``cell``), ``rewind`` (``name`` or None,
    ``cell``, ``file_state``: whether files went back too), ``restored`` (``cell``), ``race`` (``n``, ``winner`` or None), ``dropped`` (a point over the budget: ``name``, ``bytes``,
    ``budget``), ``lost`` (the process of a point has ended: ``message``), ``commit`` and ``discard`` (``files``), ``child`` and ``child_ended`` (code
    has forked its session: ``new_session_id``, ``parent``), ``speculation`` (``state``: ``started``, ``kept``, ``dropped`` or ``declined``;
    ``call``: the number of the approval; ``reason`` of the last two; ``ran_ms``).
    """

    type: Literal["branch"] = "branch"

    def __init__(self, session: str, kind: str, *, session_id: Optional[str] = None, name: Optional[str] = None, cell: Optional[int] = None,
                 n: Optional[int] = None, winner: Optional[int] = None, bytes: Optional[int] = None,
                 budget: Optional[Literal["session", "engine"]] = None, message: Optional[str] = None,
                 files: Optional[List[Any]] = None, parent: Optional[str] = None,
                 file_state: Optional[Literal["included", "without_tmp", "not_included", "of_server"]] = None,
                 state: Optional[Literal["started", "kept", "dropped", "declined"]] = None, call: Optional[int] = None,
                 reason: Optional[str] = None, ran_ms: Optional[int] = None, **later: Any) -> None:
        self.session_id = session  #: the session that was branched
        self.kind = kind
        self.new_session_id = session_id
        self.name, self.cell = name, cell
        self.n, self.winner = n, winner
        self.bytes, self.budget = bytes, budget
        self.message, self.files = message, files
        self.parent = parent  #: the session whose code forked the child
        self.state, self.call, self.reason, self.ran_ms = state, call, reason, ran_ms
        self.file_state = file_state
        self.more = later  #: fields that this version of the package does not know


#: Every event of a cell: a type checker knows the class by ``event.type``.
Event = Union[Chunk, Display, ImageEvent, CallStarted, CallEnded, ApprovalEvent, ApprovalEnded, KernelDied, ResultEvent]


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
        out, err = (self._decoders[stream].decode(b"", True) for stream in (1, 2))
        return [*([Chunk("stdout", out)] if out else []), *([Chunk("stderr", err)] if err else [])]


__all__ = ["Event", "Chunk", "Display", "ImageEvent", "CallEvent", "CallStarted", "CallEnded", "ApprovalEvent",
           "ApprovalEnded", "KernelDied", "ResultEvent", "BranchEvent"]
