"""Cells on their way: awaited, streamed, or waited for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import Any, AsyncGenerator, Callable, Deque, Generator, Iterator, List, Optional, Tuple, Union

from . import _engine, _native, _telemetry
from ._calls import check_not_waiting
from ._core import SPIN_US, RUN_MASK, STREAM_MASK, Core, milliseconds
from ._engine import Channel, Item, channel_of_loop, channel_of_thread, next_token
from ._signals import only_ctrl_c, run_watched
from .errors import from_native
from .events import ApprovalEvent, Decoder, Event, ResultEvent
from .types import ExecutionResult

_MAIN = threading.main_thread().ident
# After a cell that took less than this, the thread stays with the next one for a moment instead of being woken by its end. It
# is held up when that one takes long, and only then: at the first output, call or question it goes on. Shorter than the
# scheduler's tick it could not be without setting a timer for each cell, which costs more than the cell.
_QUICK_MS = 1.0
#: Seconds between two looks whether the loop of the host's functions still runs, for cells that another loop waits for.
_HOME_S = 0.1
# Outcomes that say that the library failed, not the code: they are raised.
_OUTCOMES = frozenset(("exception", "timeout", "interrupted", "kernel_died", "rejected", "limit_exceeded"))


def _result(core: Core, native: _native.Result) -> ExecutionResult:
    result = ExecutionResult(native=native, session_id=core.id)
    core.quick = native.duration_ms < _QUICK_MS
    info = result.error_info
    if info is not None and info.code not in _OUTCOMES:
        raise from_native(_native.NativeError(info.message, info.code, 0, 0))
    return result


def _start(core: Core, code: str, timeout: Optional[float], channel: Channel, mask: int, traceparent: Optional[str] = None
           ) -> Tuple[int, Union[int, _native.Result]]:
    """(token, run's number), or instead of a number what came of it: it was over within a moment.

    On the channel's thread, so that the token's handler may be added afterwards.
    """
    check_not_waiting(core.id)
    token = next_token()
    spin_us = SPIN_US if core.quick and not channel.handlers else 0
    try:
        return token, core.need_session().start(code, 0 if timeout is None else milliseconds(timeout), channel.port, token,
                                                mask, spin_us, traceparent)
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


def _channel(core: Core) -> Channel:
    """The channel of the running loop, which is nearly always the one of the session's last cell."""
    loop = asyncio.get_running_loop()
    channel = core.channel
    if channel is None or channel.loop is not loop:
        core.check_home(loop)
        core.channel = channel = channel_of_loop(loop)
    return channel


class Cell:
    """A cell whose events a task awaits: ``while cell.is_going(): item = await cell.take()``, and ``end()`` at last."""

    def __init__(self, core: Core, channel: Channel, token: int, started: Union[int, _native.Result]) -> None:
        self.core, self.channel = core, channel
        self.loop = asyncio.get_running_loop()
        self.items: Deque[Item] = deque()
        self.ended = False  # the result has come
        self.cancelled = False
        self.waiter: Optional["asyncio.Future[None]"] = None
        channel.handlers[token] = self.handle
        if isinstance(started, int):
            self.id = started
            channel.pump()
            if core.home.loop is not self.loop:
                self._watch_home()
        else:
            self.id = 0
            self.handle((token, _engine.RESULT, 0, started, 0))

    @classmethod
    def start(cls, core: Core, code: str, timeout: Optional[float], mask: int, traceparent: Optional[str] = None) -> "Cell":
        """On the running loop. ``mask``: which events are wanted."""
        channel = _channel(core)
        return cls(core, channel, *_start(core, code, timeout, channel, mask, traceparent))

    def _watch_home(self) -> None:
        """The loop where functions of the host run may end before this cell, whose calls would wait for it."""
        if not self.ended and not self.core._background:
            self.core.check_home(self.loop)
            if self.core.home.loop is not self.loop:
                self.loop.call_later(_HOME_S, self._watch_home)

    def handle(self, item: Item) -> None:
        self.items.append(item)
        if item[1] == _engine.RESULT:
            self.ended = True
            del self.channel.handlers[item[0]]
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def is_going(self) -> bool:
        """Whether there is something to take, or something will come."""
        return bool(self.items) or not self.ended

    async def take(self) -> Item:
        """The next item; the last is the result."""
        if not self.items:
            # What came while the task was at work, or stayed with a call that it had approved, needs no turn of the loop.
            self.channel.pump()
        if not self.items:
            self.waiter = self.loop.create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        elif self.channel.is_due():
            await asyncio.sleep(0)
        return self.items.popleft()

    def cancel(self) -> None:
        """Interrupts it; it goes on to its end."""
        self.cancelled = True
        if not self.ended:
            cancel_run(self.core, self.id)

    async def end(self) -> None:
        """Interrupts it and waits for its end."""
        self.cancel()
        while self.is_going():
            item = await self.take()
            if item[1] == _engine.APPROVAL_ENDED:
                self.core.handle_approval(item)


async def run_async(core: Core, code: str, timeout: Optional[float]) -> ExecutionResult:
    """One cell; when the task is cancelled the cell is interrupted and waited for, then CancelledError goes on."""
    if (recorder := _telemetry.recorder(core, code)) is not None:
        return await _run_recorded(core, code, timeout, recorder)
    channel = _channel(core)
    token, started = _start(core, code, timeout, channel, RUN_MASK)
    if not isinstance(started, int):
        # Where all cells are over at once, other tasks would never have their turn.
        if channel.is_due():
            await asyncio.sleep(0)
        return _result(core, started)
    cell = Cell(core, channel, token, started)
    try:
        while True:
            item = await cell.take()
            if item[1] == _engine.RESULT:
                return _result(core, item[3])
            core.handle_approval(item)
    except asyncio.CancelledError:
        await cell.end()
        raise


async def _run_recorded(core: Core, code: str, timeout: Optional[float], recorder: _telemetry.Recorder) -> ExecutionResult:
    """The same with spans: they need the events of calls."""
    events = _stream_async(core, code, timeout, recorder)
    try:
        async for event in events:
            if isinstance(event, ResultEvent):
                return event.result
    finally:
        await events.aclose()
    raise AssertionError("a run must end with its result")


def stream_async(core: Core, code: str, timeout: Optional[float]) -> AsyncGenerator[Event, None]:
    """The events of one cell. Leaving the generator early interrupts the cell and waits for its end."""
    return _stream_async(core, code, timeout, None)


async def _stream_async(core: Core, code: str, timeout: Optional[float], recorder: Optional[_telemetry.Recorder]
                        ) -> AsyncGenerator[Event, None]:
    recorder = recorder or _telemetry.recorder(core, code)
    cell: Optional[Cell] = None
    decoder = Decoder()
    try:
        cell = Cell.start(core, code, timeout, STREAM_MASK, recorder.traceparent() if recorder else None)
        while cell.is_going():
            for event in events_of(core, decoder, await cell.take()):
                if recorder is not None:
                    recorder.take(event)
                yield event
    finally:
        if recorder is not None:
            recorder.end()
        if cell is not None:
            await cell.end()


def events_of(core: Core, decoder: Decoder, item: Item) -> List[Event]:
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
        raise AssertionError("a run must end with its result")
    if (recorder := _telemetry.recorder(core, code)) is not None:
        with contextlib.closing(_stream_sync(core, code, timeout, recorder)) as events:
            for event in events:
                if isinstance(event, ResultEvent):
                    return event.result
        raise AssertionError("a run must end with its result")
    if core.policy.native is None:
        # Nobody has to be asked, and no signal handler has to run on this thread meanwhile: the short way.
        check_not_waiting(core.id)
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
    for item in _wait_for_items(core, code, timeout, RUN_MASK):
        if item[1] == _engine.RESULT:
            return _result(core, item[3])
        core.handle_approval(item)
    raise AssertionError("a run must end with its result")


def _wait_for_items(core: Core, code: str, timeout: Optional[float], mask: int, traceparent: Optional[str] = None) -> Iterator[Item]:
    """The items of one cell, the last is the result; the same rules as for stream_async()."""
    channel = channel_of_thread()
    token, started = _start(core, code, timeout, channel, mask, traceparent)
    if not isinstance(started, int):
        yield (token, _engine.RESULT, 0, started, 0)
        return
    items: Deque[Item] = deque()
    channel.handlers[token] = items.append
    ended = False
    try:
        while not ended:
            while not items:
                channel.port.wait()
                channel.pump()
            item = items.popleft()
            ended = item[1] == _engine.RESULT
            yield item
    finally:
        if not ended:
            cancel_run(core, started)
            while not any(item[1] == _engine.RESULT for item in items):
                channel.port.wait()
                channel.pump()
        del channel.handlers[token]


def stream_sync(core: Core, code: str, timeout: Optional[float]) -> Iterator[Event]:
    """The events of one cell; the same rules as for stream_async()."""
    return _stream_sync(core, code, timeout, None)


def _stream_sync(core: Core, code: str, timeout: Optional[float], recorder: Optional[_telemetry.Recorder]) -> Generator[Event, None, None]:
    decoder, recorder = Decoder(), recorder or _telemetry.recorder(core, code)
    try:
        for item in _wait_for_items(core, code, timeout, STREAM_MASK, recorder.traceparent() if recorder else None):
            for event in events_of(core, decoder, item):
                if recorder is not None:
                    recorder.take(event)
                yield event
    finally:
        if recorder is not None:
            recorder.end()
