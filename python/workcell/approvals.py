"""Approvals: requests that wait for an answer.

A request pauses the process that made it until it is answered. Answers take effect at once, in synchronous and in async
code: ``accept()`` and ``reject()`` may be awaited, and need not be.
"""

from __future__ import annotations

import asyncio
import collections.abc
import inspect
import json
import threading
from typing import (TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable, Dict, Generator, List, Mapping, Optional, Tuple,
                    Union)

from . import _native
from .errors import CodeModeError, from_native
from .types import shortened

if TYPE_CHECKING:
    from ._core import Core


class ApprovalGoneError(CodeModeError, RuntimeError):
    """The request is no longer pending: it was decided, has expired, or its cell has ended."""

    code = "not_found"


class _Done(collections.abc.Coroutine):  # type: ignore[type-arg]
    """Something that is done already. It may be awaited, made a task, or left alone."""

    def send(self, value: Any) -> Any:
        raise StopIteration

    def throw(self, *exc: Any) -> Any:
        error: Any = next(each for each in reversed(exc) if isinstance(each, (BaseException, type)))
        raise error

    def close(self) -> None:
        pass

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class ApprovalRequest:
    """A call that waits for an answer.

    Attributes:
        id: its number in the session.
        kind: ``tool``, ``shell``, ``install`` or ``workflow``.
        tool, callable: what is called; ``shell`` for shell commands.
        server_name, tool_name: the same by their names in ipybox.
        tool_args: the complete arguments: exactly what runs.
        reason: the policy's reason, or None.
    """

    __match_args__ = ("server_name", "tool_name", "tool_args")

    def __init__(self, server_name: str, tool_name: str, tool_args: Dict[str, Any],
                 respond: Optional[Callable[[bool], Awaitable[None]]] = None) -> None:
        self.server_name = server_name
        self.tool_name = tool_name
        self.tool_args = tool_args
        self.id = 0
        self.request_id = self.session_id = self.adapter = ""
        self.kind, self.tool, self.callable = "tool", server_name, tool_name
        self.reason: Optional[str] = None
        self.run_id = 0
        self._respond = respond
        self._late_is_fine = False  # an answer after the end of its cell does nothing: the cell's stream says how that ended
        self._core: Optional["Core"] = None
        self._decision: Optional[bool] = None
        self._callbacks: List[Callable[[bool], Any]] = []
        self._waiters: List[Tuple[asyncio.AbstractEventLoop, "asyncio.Future[bool]"]] = []
        self._lock = threading.Lock()

    @classmethod
    def _from_item(cls, core: "Core", item: Tuple[Any, ...]) -> "ApprovalRequest":
        number, request_id, kind, tool, called, adapter, session_id, args, _, reason, _ = item[3:14]
        server, name = (tool, called) if called else (adapter, tool)
        if kind == "shell":
            server, name = "workcell", tool
        request = cls(server, name, json.loads(args or "{}"))
        request.id, request.request_id, request.kind, request.tool, request.callable = number, request_id, kind, tool, called
        request.adapter, request.session_id, request.reason, request.run_id = adapter, session_id, reason, item[2]
        request._core = core
        return request

    @property
    def full_name(self) -> str:
        """``tool.callable``."""
        return "%s.%s" % (self.tool, self.callable) if self.callable else self.tool

    @property
    def args(self) -> Dict[str, Any]:
        """Another name of ``tool_args``."""
        return self.tool_args

    @property
    def decided(self) -> Optional[bool]:
        """True or False after the answer; None while it waits."""
        return self._decision

    def accept(self, args: Optional[Mapping[str, Any]] = None, *, always: bool = False) -> Awaitable[None]:
        """Lets it run; with ``args``, with these arguments instead; with ``always``, also every later call of the same callable."""
        return self._answer(True, None, args, always)

    def reject(self, reason: Optional[str] = None) -> Awaitable[None]:
        """The call fails with ApprovalRejectedError in the code."""
        return self._answer(False, reason, None, False)

    def _answer(self, accept: bool, reason: Optional[str], args: Optional[Mapping[str, Any]],
                always: bool) -> Awaitable[None]:
        with self._lock:
            if self._decision is not None:
                raise ApprovalGoneError("this request was already %s" % ("accepted" if self._decision else "rejected"))
            if self._core is not None:
                session = self._core.session
                if session is None:
                    if self._late_is_fine:
                        return _Done()
                    raise ApprovalGoneError("the session of this request is closed")
                try:
                    session.answer(self.id, accept, reason, None if args is None else json.dumps(dict(args)), always,
                                   self._core.spin_us())
                except _native.NativeError as error:
                    if error.args[1] in ("not_found", "closed"):
                        if self._late_is_fine:
                            return _Done()
                        raise ApprovalGoneError(str(error.args[0])) from None
                    raise from_native(error) from None
            self._decision = accept
            callbacks, self._callbacks = self._callbacks, []
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            loop.call_soon_threadsafe(_resolve, future, accept)
        for callback in callbacks:
            _call_back(callback, accept)
        return self._respond(accept) if self._respond is not None else _Done()

    async def response(self) -> bool:
        """Waits until the request is decided."""
        with self._lock:
            if self._decision is not None:
                return self._decision
            loop = asyncio.get_running_loop()
            future: "asyncio.Future[bool]" = loop.create_future()
            self._waiters.append((loop, future))
        return await future

    def on_decision(self, callback: Callable[[bool], Any]) -> None:
        """Calls the function once with the decision; at once if there is one."""
        with self._lock:
            if self._decision is None:
                self._callbacks.append(callback)
                return
        _call_back(callback, self._decision)

    def set_on_decision(self, callback: Callable[[], Any]) -> None:
        """The same for a function without parameters."""
        self.on_decision(lambda decision: callback())

    def __str__(self) -> str:
        return "%s.%s(%s)" % (self.server_name, self.tool_name,
                              ", ".join("%s=%r" % item for item in self.tool_args.items()))

    def __repr__(self) -> str:
        return "<ApprovalRequest %d: %s>" % (self.id, self)


def _resolve(future: "asyncio.Future[bool]", decision: bool) -> None:
    if not future.done():
        future.set_result(decision)


def _call_back(callback: Callable[[bool], Any], decision: bool) -> None:
    from ._engine import log

    try:
        callback(decision)
    except Exception:
        log.exception("a callback of an approval failed")


class Rejection:
    """A handler's refusal with its reason, which the code gets: ``return Rejection("not on a Friday")``."""

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str):
            raise TypeError("the reason of a Rejection must be text, not %s" % type(reason).__name__)
        self.reason = reason

    def __repr__(self) -> str:
        return "Rejection(%r)" % self.reason


#: What a handler answers; one that has called ``request.accept()`` or ``request.reject()`` itself may return None.
Answer = Union[bool, Rejection, None]
Handler = Callable[[ApprovalRequest], Union[Answer, Awaitable[Answer]]]


class Approvals:
    """``session.approvals``: the pending requests, and who answers them.

    Answer requests one by one from ``pending``, or set a handler::

        @session.approvals.handler
        async def ask(request):
            return request.tool == "calculator"

    or iterate over them: ``async for request in session.approvals``.
    """

    def __init__(self) -> None:
        self._waiting: Dict[int, ApprovalRequest] = {}
        self._handler: Optional[Handler] = None
        self._readers: List[Tuple[asyncio.AbstractEventLoop, "asyncio.Queue[Optional[ApprovalRequest]]"]] = []

    @property
    def pending(self) -> List[ApprovalRequest]:
        """The pending requests, oldest first."""
        return [request for _, request in sorted(self._waiting.items()) if request.decided is None]

    def handler(self, fn: Handler) -> Handler:
        """Sets the function, sync or async, that is called with each request: it returns True, False or a :class:`Rejection`."""
        self._handler = fn
        return fn

    def accept_all(self) -> int:
        """Accepts all pending requests and returns their number."""
        return self._decide_all(lambda request: request.accept())

    def reject_all(self, reason: Optional[str] = None) -> int:
        """Rejects all pending requests and returns their number."""
        return self._decide_all(lambda request: request.reject(reason))

    def _decide_all(self, decide: Callable[[ApprovalRequest], Any]) -> int:
        count = 0
        for request in self.pending:
            try:
                decide(request)
                count += 1
            except ApprovalGoneError:
                continue  # it expired meanwhile
        return count

    def __len__(self) -> int:
        return len(self.pending)

    async def __aiter__(self) -> AsyncIterator[ApprovalRequest]:
        loop = asyncio.get_running_loop()
        queue: "asyncio.Queue[Optional[ApprovalRequest]]" = asyncio.Queue()
        entry = (loop, queue)
        self._readers.append(entry)
        try:
            for request in self.pending:
                yield request
            while True:
                request_or_end = await queue.get()
                if request_or_end is None:
                    return
                yield request_or_end
        finally:
            self._readers.remove(entry)

    # -- from the core

    def add(self, request: ApprovalRequest) -> None:
        """A request that waits; called by the session."""
        self._waiting[request.id] = request
        for loop, queue in list(self._readers):
            loop.call_soon_threadsafe(queue.put_nowait, request)

    def remove(self, number: int) -> None:
        """A request that no longer waits; called by the session."""
        self._waiting.pop(number, None)

    def end(self) -> None:
        """The session is closed; called by the session."""
        self._waiting.clear()
        for loop, queue in list(self._readers):
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, None)


def apply_answer(request: ApprovalRequest, answer: Any, policy: bool) -> None:
    """What a handler, or a policy that is a function, returned, as an answer; TypeError unless it is one."""
    if policy and isinstance(answer, str) and answer in ("allow", "ask", "deny"):
        if answer == "ask":
            return
        answer = answer == "allow"
    if not isinstance(answer, (bool, Rejection)):
        if answer is None and request.decided is not None:
            return
        raise TypeError("it must return %s, not %s" % (
            "'allow', 'ask', 'deny', True, False or a Rejection" if policy else
            "True, False or a Rejection (or answer by request.accept() or request.reject())", shortened(repr(answer))))
    if request.decided is not None:
        return
    try:
        if answer is True:
            request.accept()
        else:
            request.reject(answer.reason if isinstance(answer, Rejection) else None)
    except ApprovalGoneError:
        pass  # it expired, or somebody else was quicker


async def ask_handler(request: ApprovalRequest, policy: Optional[Handler], handler: Optional[Handler]) -> None:
    """Asks the policy's function, then the handler, until the request is decided. A function that fails has refused."""
    from ._engine import log

    for fn in (policy, handler):
        if fn is None or request.decided is not None:
            continue
        try:
            answer = fn(request)
            if inspect.isawaitable(answer):
                answer = await answer
            apply_answer(request, answer, fn is policy)
        except Exception as error:
            log.exception("an approval handler failed, so the request is rejected")
            apply_answer(request, Rejection("the host's approval handler failed: %s" % error), False)


__all__ = ["ApprovalRequest", "Approvals", "ApprovalGoneError", "Rejection"]
