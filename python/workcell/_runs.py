"""Cells on their way: awaited, streamed, or waited for."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any, AsyncIterator, Callable, Deque, Iterator, List, Optional

from . import _engine, _native
from ._core import RUN_MASK, STREAM_MASK, Core, milliseconds
from ._engine import Channel, Item, channel_of_loop, channel_of_thread
from ._signals import only_ctrl_c, run_watched
from .errors import SessionClosedError, from_native
from .events import ApprovalEvent, Decoder, Event, ResultEvent
from .types import ExecutionResult

_MAIN = threading.main_thread().ident
# Outcomes that say that the library failed, not the code: they are raised.
_OUTCOMES = frozenset(("exception", "timeout", "interrupted", "kernel_died", "rejected", "limit_exceeded"))


def _result(core: Core, native: _native.Result) -> ExecutionResult:
    result = ExecutionResult(native=native, session_id=core.id)
    info = result.error_info
    if info is not None and info.code not in _OUTCOMES:
        raise from_native(_native.NativeError(info.message, info.code, 0, 0))
    return result


def _start(core: Core, code: str, timeout: Optional[float], port: _native.Port, token: int, mask: int) -> int:
    session = core.session
    if session is None:
        raise SessionClosedError("the session is closed")
    try:
        return session.start(code, 0 if timeout is None else milliseconds(timeout), port, token, mask)
    except _native.NativeError as error:
        raise from_native(error) from None


def cancel_run(core: Core, run_id: int) -> None:
    """The result follows within the session's grace."""
    session = core.session
    if session is None:
        return
    try:
        session.cancel(run_id)
    except _native.NativeError:
        pass  # closed meanwhile: that ends the run too


def _channel(core: Core, loop: asyncio.AbstractEventLoop) -> Channel:
    """The channel of the running loop, which is nearly always the one of the session's last cell."""
    channel = core.channel
    if channel is None or channel.loop is not loop:
        core.check_home(loop)
        core.channel = channel = channel_of_loop(loop)
    return channel


async def run_async(core: Core, code: str, timeout: Optional[float]) -> ExecutionResult:
    """One cell; when the task is cancelled the cell is interrupted and waited for, then CancelledError goes on."""
    loop = asyncio.get_running_loop()
    channel = _channel(core, loop)
    done: List[Any] = [loop.create_future()]

    def handle(item: Item) -> None:
        if item[1] != _engine.RESULT:
            core.handle_approval(item)
            return
        del channel.handlers[token]
        if not done[0].done():
            done[0].set_result(item[3])

    token = channel.add(handle)
    try:
        run_id = _start(core, code, timeout, channel.port, token, RUN_MASK)
    except BaseException:
        del channel.handlers[token]
        raise
    try:
        native = await done[0]
    except asyncio.CancelledError:
        done[0] = loop.create_future()
        if token in channel.handlers:
            cancel_run(core, run_id)
            await done[0]
        raise
    return _result(core, native)


async def stream_async(core: Core, code: str, timeout: Optional[float], mask: int = STREAM_MASK,
                       started: Optional[Callable[[int], Any]] = None) -> AsyncIterator[Event]:
    """The events of one cell. Leaving the generator early interrupts the cell and waits for its end.

    ``mask``: which of them; ``started`` is told the run's number.
    """
    loop = asyncio.get_running_loop()
    channel = _channel(core, loop)
    items: Deque[Item] = deque()
    decoder = Decoder()
    wake: List[Optional["asyncio.Future[None]"]] = [None]

    def handle(item: Item) -> None:
        items.append(item)
        if item[1] == _engine.RESULT:
            del channel.handlers[token]
        waiter = wake[0]
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def more() -> None:
        if not items:
            wake[0] = waiter = loop.create_future()
            try:
                await waiter
            finally:
                wake[0] = None

    token = channel.add(handle)
    try:
        run_id = _start(core, code, timeout, channel.port, token, mask)
    except BaseException:
        del channel.handlers[token]
        raise
    if started is not None:
        started(run_id)
    ended = False
    try:
        while not ended:
            await more()
            while items and not ended:
                item = items.popleft()
                if item[1] == _engine.RESULT:
                    ended = True
                for event in _events(core, decoder, item):
                    yield event
    finally:
        if not ended:
            cancel_run(core, run_id)
            while not any(item[1] == _engine.RESULT for item in items):
                items.clear()
                await more()


def _events(core: Core, decoder: Decoder, item: Item) -> List[Event]:
    if item[1] == _engine.RESULT:
        return [*decoder.rest(), ResultEvent(_result(core, item[3]), item[4])]
    if item[1] == _engine.APPROVAL:
        request = core.handle_approval(item)
        return [ApprovalEvent(request)] if request is not None else []
    if item[1] == _engine.APPROVAL_ENDED:
        core.handle_approval(item)
    return decoder.events(item)


def run_sync(core: Core, code: str, timeout: Optional[float],
             on_event: Optional[Callable[[Event], Any]] = None) -> ExecutionResult:
    """One cell; waits. Ctrl-C interrupts the cell, and then the caller."""
    if on_event is not None:
        for event in stream_sync(core, code, timeout):
            if isinstance(event, ResultEvent):
                return event.result
            on_event(event)
        raise AssertionError("a run ends with its result")
    if core.policy.native is None:
        # Nobody has to be asked, and no signal handler has to run on this thread meanwhile: the short way.
        timeout_ms = 0 if timeout is None else milliseconds(timeout)
        native: Optional[_native.Result] = None
        try:
            if threading.get_ident() != _MAIN:
                native = core.need_session().run(code, timeout_ms)
            elif only_ctrl_c():
                native = run_watched(core.need_session(), code, timeout_ms)
        except _native.NativeError as error:
            raise from_native(error) from None
        if native is not None:
            return _result(core, native)
    channel = channel_of_thread()
    found: List[Any] = []

    def handle(item: Item) -> None:
        if item[1] == _engine.RESULT:
            found.append(item[3])
        else:
            core.handle_approval(item)

    token = channel.add(handle)
    run_id = 0
    try:
        run_id = _start(core, code, timeout, channel.port, token, RUN_MASK)
        while not found:
            channel.port.wait()
            channel.pump()
    finally:
        if not found and run_id:
            cancel_run(core, run_id)
            while not found:
                channel.port.wait()
                channel.pump()
        del channel.handlers[token]
    return _result(core, found[0])


def stream_sync(core: Core, code: str, timeout: Optional[float]) -> Iterator[Event]:
    """The events of one cell; the same rules as for stream_async()."""
    channel = channel_of_thread()
    items: Deque[Item] = deque()
    decoder = Decoder()
    token = channel.add(items.append)
    ended = False
    run_id = 0
    try:
        run_id = _start(core, code, timeout, channel.port, token, STREAM_MASK)
        while not ended:
            if not items:
                channel.port.wait()
                channel.pump()
            while items and not ended:
                item = items.popleft()
                ended = item[1] == _engine.RESULT
                yield from _events(core, decoder, item)
    finally:
        if not ended and run_id:
            cancel_run(core, run_id)
            while not any(item[1] == _engine.RESULT for item in items):
                channel.port.wait()
                channel.pump()
        del channel.handlers[token]
