"""Spans of OpenTelemetry for cells, where the program has a span of its own: run, cell, calls, approvals.

Nothing is imported: without ``opentelemetry.trace`` in the program, or without a span that is recorded, a cell takes its usual way. The program's own
tracer provider sends the spans.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from typing import Any, ContextManager, Dict, Optional, Tuple

from .events import ApprovalEnded, ApprovalEvent, CallEnded, CallEvent, CallStarted, Event, ResultEvent

_MAX_CALLS = 64  # of a cell that are open at once; more are not recorded


def recorder(core: Any, code: str) -> Optional["Recorder"]:
    """For a cell that begins now; None: nobody records."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or not hasattr(trace, "get_current_span") or not trace.get_current_span().is_recording():
        return None
    return Recorder(trace, core, code)


def within_langchain() -> ContextManager[Any]:
    """Makes the span of LangChain's tool that runs now the current one. OpenInference records LangChain's spans without doing that."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    recorded: Any = sys.modules.get("openinference.instrumentation.langchain")
    if trace is None or recorded is None:
        return contextlib.nullcontext()
    span = recorded.get_current_span()
    if span is None:
        return contextlib.nullcontext()
    context: ContextManager[Any] = trace.use_span(span, record_exception=False, set_status_on_exception=False)
    return context


class Recorder:
    """One cell. ``take()`` each of its events, and ``end()`` in any case."""

    def __init__(self, trace: Any, core: Any, code: str) -> None:
        self._trace, self._core = trace, core
        self._tracer = trace.get_tracer("workcell")
        where = {"workcell.session.id": core.id}
        self._run = self._tracer.start_span("run", attributes=where)
        links = [trace.Link(core.cell_link)] if core.cell_link is not None else []
        self._cell = self._child(self._run, "cell", {**where, "workcell.code.sha256": hashlib.sha256(code.encode()).hexdigest()}, links=links)
        self._calls: Dict[int, Tuple[Any, int]] = {}  # spans, and since when the call may run
        self._approvals: Dict[int, Any] = {}

    def traceparent(self) -> str:
        """What the cell's calls pass on to other servers: the span of the cell."""
        context = self._cell.get_span_context()
        return "00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags & 1)

    def _child(self, parent: Any, name: str, attributes: Dict[str, Any], **options: Any) -> Any:
        return self._tracer.start_span(name, context=self._trace.set_span_in_context(parent), attributes=attributes, **options)

    def _fail(self, span: Any, words: Optional[str]) -> None:
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, words))

    def take(self, event: Event) -> None:
        if isinstance(event, CallStarted):
            if len(self._calls) < _MAX_CALLS:
                self._calls[event.id] = self._child(self._cell, event.kind, _about(event)), time.time_ns()
        elif isinstance(event, ApprovalEvent):
            if event.request.id in self._calls:
                self._approvals[event.request.id] = self._child(self._calls[event.request.id][0], "approval", {})
        elif isinstance(event, ApprovalEnded):
            span = self._approvals.pop(event.id, None)
            if span is not None:
                span.set_attribute("workcell.decision", event.decision)
                span.end()
                self._calls[event.id] = self._calls[event.id][0], time.time_ns() if event.decision in ("accepted", "edited") else 0
        elif isinstance(event, CallEnded):
            self._end_call(event)
        elif isinstance(event, ResultEvent):
            info = event.result.error_info
            if info is not None:
                self._cell.set_attribute("exception.type", info.type)
                self._fail(self._cell, info.code)
                self._fail(self._run, info.code)

    def _end_call(self, event: CallEnded) -> None:
        span, since = self._calls.pop(event.id, (None, 0))
        if span is None:
            return
        if event.adapter == "mcp" and event.kind == "tool" and since:
            self._child(span, "mcp", {"rpc.system": "jsonrpc", "rpc.method": "tools/call"}, kind=self._trace.SpanKind.CLIENT, start_time=since).end()
        if event.outcome != "ok":
            self._fail(span, event.outcome)
        span.end()

    def end(self) -> None:
        for span in [*self._approvals.values(), *(each for each, _ in self._calls.values()), self._cell, self._run]:
            span.end()
        self._core.cell_link, self._core.last_cell = None, self._cell.get_span_context()


def _about(event: CallEvent) -> Dict[str, Any]:
    found = {"workcell.call.kind": event.kind, "workcell.tool": event.tool, "workcell.callable": event.callable, "workcell.adapter": event.adapter,
             "workcell.request.id": event.request_id}
    return {name: value for name, value in found.items() if value}
