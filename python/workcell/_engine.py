"""The engine of this process, and the way from its thread into Python.

A :class:`Channel` is a port of the library with functions by number. Attached to an event loop, the loop watches the
port's descriptor and calls the functions; the engine's thread itself never runs Python.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
import os
import re
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple, Union

from . import _native
from .errors import ExecutorUnavailableError, SessionClosedError, from_native

log = logging.getLogger("workcell")
Item = Tuple[Any, ...]
next_token = itertools.count(1).__next__
#: Seconds that tasks whose cells are all over at once may keep an event loop.
_TURN = 0.001

# enum cell_event_type, and the port's own types.
CHUNK, DISPLAY, RESULT, KERNEL_DIED, CALL_STARTED, CALL_ENDED, APPROVAL, APPROVAL_ENDED, IMAGE = range(1, 10)
POINT_LOST, BRANCH = 12, 13
Size = Union[str, int]
TOOL_CALL, BEFORE, AFTER, TOOL_EVENT, LOG = range(20, 25)


def mask_of(*types: int) -> int:
    """The bits of event types, for the library."""
    return sum(1 << each for each in types)


class Channel:
    """A port and the functions that its items are for."""

    def __init__(self) -> None:
        self.port = _native.Port()
        self.handlers: Dict[int, Callable[[Item], None]] = {}
        self._loop: Optional[weakref.ReferenceType[asyncio.AbstractEventLoop]] = None
        self._turned = 0.0
        self.lock = threading.Lock()  # of those who look whether its loop still runs

    def is_due(self) -> bool:
        """Whether tasks that did not have to wait have kept the loop long enough; then the measurement starts again."""
        now = time.monotonic()
        if now - self._turned < _TURN:
            return False
        self._turned = now
        return True

    def add(self, handler: Callable[[Item], None]) -> int:
        token = next_token()
        self.handlers[token] = handler
        return token

    @property
    def loop(self) -> Optional[asyncio.AbstractEventLoop]:
        return self._loop() if self._loop is not None else None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop's thread. A loop that is closed has let go of us, and another one may take over; one that has stopped does so if it goes on."""
        before, self._loop = self.loop, weakref.ref(loop)
        if before is not None and before is not loop:
            self._leave(before)
        loop.add_reader(self.port.fileno(), self.pump)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        port = self.port  # the descriptor lives as long as the loop watches it
        try:
            loop.call_soon_threadsafe(lambda: loop.remove_reader(port.fileno()))
        except RuntimeError:
            pass  # it is closed

    def pump(self) -> None:
        for item in self.port.take():
            handler = self.handlers.get(item[0])
            if handler is None:
                continue  # its owner is gone; calls that come with it are failed by their own end
            try:
                handler(item)
            except Exception:
                log.exception("a handler of Workcell's events failed")

    def close(self) -> None:
        """Any thread. What comes later is refused."""
        loop, self._loop = self.loop, None
        self.port.close()
        self.handlers.clear()
        if loop is None or loop.is_closed():
            return
        if _running_loop() is loop:
            loop.remove_reader(self.port.fileno())
        else:
            self._leave(loop)


def _running_loop() -> Optional[asyncio.AbstractEventLoop]:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_of_loops: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Channel]" = weakref.WeakKeyDictionary()
_of_threads = threading.local()


def channel_of_loop(loop: asyncio.AbstractEventLoop) -> Channel:
    """The channel of the running loop, for cells that are awaited on it."""
    channel = _of_loops.get(loop)
    if channel is None:
        channel = Channel()
        channel.attach(loop)
        _of_loops[loop] = channel
    return channel


def channel_of_thread() -> Channel:
    """The channel of a thread without a loop: it waits for its items itself."""
    channel: Optional[Channel] = getattr(_of_threads, "channel", None)
    if channel is None or _of_threads.pid != os.getpid():
        channel = _of_threads.channel = Channel()
        _of_threads.pid = os.getpid()
    return channel


_tool_threads: Optional[ThreadPoolExecutor] = None
#: More than a session lets run at once. Not the loop's own pool: there are the threads that wait for calls of the host.
_TOOL_THREADS = 256


def tool_threads() -> ThreadPoolExecutor:
    """Threads for plain functions of the host that are tools."""
    global _tool_threads
    with _default_lock:
        if _tool_threads is None:
            _tool_threads = ThreadPoolExecutor(_TOOL_THREADS, "workcell-tool")
        return _tool_threads


class Background:
    """A thread with an event loop, for functions of the host when the program itself has no loop."""

    _lock = threading.Lock()
    _one: Optional["Background"] = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="workcell-host", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    @classmethod
    def get(cls) -> "Background":
        with cls._lock:
            if cls._one is None or cls._one.pid != os.getpid():
                cls._one = cls()
            return cls._one

    @classmethod
    def stop(cls) -> None:
        one, cls._one = cls._one, None
        if one is not None and one.pid == os.getpid() and one.thread.is_alive():
            one.loop.call_soon_threadsafe(one.loop.stop)
            one.thread.join(5)

    def call(self, fn: Callable[[], Any]) -> Any:
        """Runs a function on the loop's thread and waits."""
        done = threading.Event()
        outcome: List[Any] = []

        def work() -> None:
            try:
                outcome.append((True, fn()))
            except BaseException as error:  # handed to the caller
                outcome.append((False, error))
            done.set()

        self.loop.call_soon_threadsafe(work)
        done.wait()
        good, value = outcome[0]
        if not good:
            raise value
        return value


class ExecutorInfo(NamedTuple):
    """Whether an executor works on this machine."""

    name: str
    isolation: str
    available: bool
    reason: str
    advice: str


def bytes_of(name: str, size: Size) -> int:
    """``"512m"`` as a number of bytes."""
    found = re.fullmatch(r"(\d+)([KMGT]?)(?:I?B)?", str(size).strip().upper())
    if not found or isinstance(size, bool):
        raise ValueError('%s must be a number of bytes, or text like "512m" or "2g"; 0 for no limit; not %r' % (name, size))
    return int(found[1]) << 10 * " KMGT".index(found[2] or " ")


class Engine:
    """Owns the library's thread, its spawner and the warm Python processes.

    One engine serves any number of sessions. Without one of your own, :func:`default_engine` is used.

    Args:
        pool_size: number of idle kernels to keep ready for each interpreter.
        spill_dir: the folder for output that is longer than a result keeps.
        start_timeout: seconds within which an interpreter must be ready.
        cache_dir: holds Deno, Pyodide and their snapshots; None: ``~/.cache/workcell``.
        points_memory: what the points of all sessions may take, in bytes or like ``"2g"``; beyond it the oldest are dropped; 0: no limit.
    """

    def __init__(self, *, pool_size: int = 2, spill_dir: Optional[str] = None, start_timeout: float = 60.0,
                 cache_dir: Union[str, "os.PathLike[str]", None] = None, points_memory: Size = 0) -> None:
        options: Dict[str, Any] = {"points_bytes": bytes_of("points_memory", points_memory), "pool_size": pool_size, "start_timeout_ms": int(start_timeout * 1000)}
        if spill_dir is not None:
            options["spill_dir"] = os.fspath(spill_dir)
        if cache_dir is not None:
            options["cache_dir"] = os.path.abspath(os.path.expanduser(os.fspath(cache_dir)))
        self.pid = os.getpid()
        try:
            self.native = _native.Engine(options, None, 0)
        except _native.NativeError as error:
            raise from_native(error) from None
        self.owned: "weakref.WeakSet[Any]" = weakref.WeakSet()  # what must be closed first
        self._lock = threading.Lock()
        self._closed = False
        self._usable: Set[str] = set()
        _engines.add(self)

    def executors(self) -> List[ExecutorInfo]:
        """All executors that this build knows, and whether they work here."""
        try:
            return [ExecutorInfo(*row) for row in self.native.executors()]
        except _native.NativeError as error:
            raise from_native(error) from None

    def require(self, name: str) -> None:
        """Raises ExecutorUnavailableError, with the library's reason and advice, unless the executor works here."""
        if name in self._usable:
            return
        rows = {row.name: row for row in self.executors()}
        row = rows.get(name)
        if row is None:
            raise ExecutorUnavailableError("this build of Workcell has no executor %r; it has: %s"
                                           % (name, ", ".join(sorted(rows))))
        if not row.available:
            raise ExecutorUnavailableError("the executor %r does not work here: %s. %s" % (name, row.reason, row.advice))
        self._usable.add(name)  # the library looks again when it opens a session

    def prewarm(self, python: Optional[str] = None, preload: str = "") -> Tuple[str, str, str, int, float]:
        """Starts an interpreter ahead of its first session: (python, version, IPython's version, pid, ms)."""
        import sys

        try:
            return self.native.prewarm(python or sys.executable, preload or None)
        except _native.NativeError as error:
            raise from_native(error) from None

    def close(self) -> None:
        """Ends all sessions and processes of this engine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self.pid == os.getpid():
            for each in sorted(list(self.owned), key=lambda one: int(one.close_order)):
                each.close_native()
            self.native.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()
_default: Optional[Engine] = None
_default_lock = threading.Lock()


def default_engine() -> Engine:
    """The engine of this process, made at its first use; a forked child gets one of its own."""
    global _default
    with _default_lock:
        if _default is None or _default.pid != os.getpid() or _default._closed:
            if _exiting:
                raise SessionClosedError("the interpreter is ending")
            _default = Engine()
        return _default


_exiting = False


def _close_all() -> None:
    global _exiting
    _exiting = True
    for engine in list(_engines):
        engine.close()
    Background.stop()


def _after_fork() -> None:
    """In a child: threads and loops of the parent are not here, and locks may be held for ever."""
    global _default, _default_lock, _of_threads, _tool_threads
    _default = _tool_threads = None
    _default_lock = threading.Lock()
    _of_threads = threading.local()
    _of_loops.clear()
    Background._lock = threading.Lock()
    Background._one = None


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
