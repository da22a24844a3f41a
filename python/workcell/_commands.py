"""Programs that run where a session's code does: ``session.commands``. The library keeps their output until it is read, within limits."""

from __future__ import annotations

import asyncio
import codecs
import functools
import json
import os
import signal as signals
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from . import _native
from ._workspace import _call
from .errors import from_native

if TYPE_CHECKING:
    from ._core import Core
    from .session import Session
    from .sync import Session as SyncSession

T = TypeVar("T")
Program = Union[str, Sequence[str]]
#: Of a stream of a command that ``run()`` keeps.
MAX_OUTPUT_BYTES = 16 << 20
_WAIT_MS = 500  # a read that nobody waits for any more ends then
_FEED_MS = 20   # the same while input waits for a command that does not read
_PIECE = 256 << 10


@dataclass
class CommandChunk:
    """A piece of a command's output."""

    #: ``stdout``, ``stderr``, or ``pty`` of a command with a terminal.
    stream: str
    data: bytes
    #: The position after it, for :meth:`Command.output`.
    position: int
    #: Bytes before it that are no longer kept.
    dropped: int = 0

    @property
    def text(self) -> str:
        """The data as UTF-8; a character may be cut at its end."""
        return self.data.decode("utf-8", "replace")


@dataclass
class CommandInfo:
    """A command that runs, or ended in the last minutes."""

    id: str
    #: As the session sees it.
    pid: int
    argv: List[str]
    cwd: Optional[str]
    tag: Optional[str]
    #: ``running`` or ``ended``.
    state: str
    #: Of one that has ended: its status, or 128 and the signal.
    exit_code: Optional[int]
    signal: Optional[int]
    #: Why its end was not its own: ``timeout``, ``killed``, ``session``; or None.
    reason: Optional[str]


@dataclass
class CommandResult:
    """A command that has ended."""

    id: str
    #: Its status, or 128 and the signal that ended it.
    exit_code: int
    stdout: str
    stderr: str
    #: Why its end was not its own: ``timeout``, ``killed``, ``session``; or None.
    reason: Optional[str] = None
    #: Output is missing: there was more than is kept.
    truncated: bool = False


def _info(found: Mapping[str, Any]) -> CommandInfo:
    return CommandInfo(found["command_id"], found["pid"], found["argv"], found["cwd"], found["tag"], found["state"], found["exit_code"],
                       found["signal"], found["reason"])


def _plain(function: Callable[..., T], *args: Any) -> T:
    try:
        return function(*args)
    except _native.NativeError as error:
        raise from_native(error) from None


def start(core: "Core", program: Program, cwd: Optional[Union[str, "os.PathLike[str]"]], env: Optional[Mapping[str, str]],
          timeout: Optional[float], stdin: bool, tty: Union[bool, Tuple[int, int]], tag: Optional[str], drops: bool) -> str:
    options: Dict[str, Any] = {"want_stdin": int(stdin), "drops": int(drops)}
    if isinstance(program, str):
        options["line"] = program
    else:
        options["argv"] = [os.fspath(word) for word in program]
    if cwd is not None:
        options["cwd"] = os.fspath(cwd)
    if env:
        options["env"] = ["%s=%s" % pair for pair in env.items()]
    if timeout is not None:
        if timeout <= 0:
            raise ValueError("timeout must be greater than 0, not %r" % timeout)
        options["timeout_ms"] = max(1, int(timeout * 1000))
    if tty:
        options["tty"] = 1
        if not isinstance(tty, bool):
            options["rows"], options["cols"] = tty
    if tag is not None:
        options["tag"] = tag
    return str(_call(core.need_session().command_start, options))


def describe(core: "Core", id: str) -> CommandInfo:
    return _info(json.loads(_plain(core.need_session().command_describe, id)))


def list_all(core: "Core") -> List[CommandInfo]:
    return [_info(each) for each in json.loads(_plain(core.need_session().command_describe, None))]


def write(core: "Core", id: str, data: Union[str, bytes, bytearray, memoryview]) -> None:
    _plain(core.need_session().command_write, id, data.encode("utf-8") if isinstance(data, str) else bytes(data))


def close_stdin(core: "Core", id: str) -> None:
    _plain(core.need_session().command_close_stdin, id)


def send_signal(core: "Core", id: str, number: Union[int, str]) -> None:
    if isinstance(number, str):
        name = number.upper() if number.upper().startswith("SIG") else "SIG" + number.upper()
        if name not in signals.Signals.__members__:
            raise ValueError("%r is not a signal" % number)
        number = signals.Signals[name]
    _plain(core.need_session().command_signal, id, int(number))


def resize(core: "Core", id: str, rows: int, cols: int) -> None:
    _plain(core.need_session().command_resize, id, rows, cols)


def remove(core: "Core", id: str) -> None:
    _plain(core.need_session().command_drop, id)


class Reading:
    """Reads the output of a command from a position on, one piece at a time; blocking."""

    def __init__(self, core: "Core", id: str, position: int, tty: bool = False, data: bytes = b"") -> None:
        self.core, self.id, self.position, self.tty = core, id, position, tty
        self.input: Optional[memoryview] = memoryview(data) if data else None
        self.exit_code: Optional[int] = None

    def _feed(self) -> None:
        """Writes as much of the input as the command has room for, and then ends it."""
        session = self.core.need_session()
        while self.input is not None:
            try:
                session.command_write(self.id, bytes(self.input[:_PIECE]))
                self.input = self.input[_PIECE:]
                if not len(self.input):
                    self.input = None
                    session.command_close_stdin(self.id)
            except _native.NativeError as error:
                if error.args[1] == "limit":
                    return  # it does not read for now
                self.input = None  # it has ended: its output says the rest

    def step(self) -> Optional[CommandChunk]:
        """The next piece; None: nothing has come yet, or it has ended (``exit_code`` is set)."""
        self._feed()
        wait = _FEED_MS if self.input is not None else _WAIT_MS
        is_stderr, data, position, dropped, ended, code = _plain(self.core.need_session().command_read, self.id, self.position, wait)
        if ended:
            self.exit_code = code
        if not data:
            return None
        self.position = position
        return CommandChunk("pty" if self.tty else "stderr" if is_stderr else "stdout", data, position, dropped)


class Collected:
    """Keeps what a command writes, within a limit, and passes it on."""

    def __init__(self, max_bytes: int, on_stdout: Optional[Callable[[str], Any]], on_stderr: Optional[Callable[[str], Any]]) -> None:
        self.max_bytes = max_bytes
        self.kept = {"stdout": bytearray(), "stderr": bytearray()}
        self.handlers = {"stdout": on_stdout, "stderr": on_stderr}
        self.decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self.kept}
        self.truncated = False

    def add(self, chunk: CommandChunk) -> None:
        name = "stderr" if chunk.stream == "stderr" else "stdout"
        kept, handler = self.kept[name], self.handlers[name]
        room = self.max_bytes - len(kept)
        kept += chunk.data[:room]
        self.truncated = self.truncated or len(chunk.data) > room or chunk.dropped > 0
        if handler is not None:
            text = self.decoders[name].decode(chunk.data)
            if text:
                handler(text)

    def result(self, reading: Reading, reason: Optional[str]) -> CommandResult:
        out, err = (bytes(self.kept[name]).decode("utf-8", "replace") for name in ("stdout", "stderr"))
        code = reading.exit_code
        return CommandResult(reading.id, code if code is not None else -1, out, err, reason, self.truncated)


def _as_bytes(data: Union[str, bytes, None]) -> bytes:
    return data.encode("utf-8") if isinstance(data, str) else data or b""


_threads: Optional[ThreadPoolExecutor] = None
_lock = threading.Lock()


async def _in_thread(fn: Callable[..., T], *args: Any) -> T:
    """Readers of many commands wait at once: they have threads of their own."""
    global _threads
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(128, "workcell-commands")
    return await asyncio.get_running_loop().run_in_executor(_threads, functools.partial(fn, *args))


class Command:
    """A command of a session, while it runs and some minutes after."""

    def __init__(self, session: "Session", id: str, tty: bool = False) -> None:
        self._session = session
        self._tty = tty
        #: Its id in the session.
        self.id = id

    async def output(self, position: int = 0) -> AsyncIterator[CommandChunk]:
        """Its output from a position on, to its end. While it is read, the command waits for the reader."""
        reading = Reading(self._session._core, self.id, position, self._tty)
        while reading.exit_code is None:
            chunk = await _in_thread(reading.step)
            if chunk is not None:
                yield chunk

    async def wait(self, *, max_bytes: int = MAX_OUTPUT_BYTES) -> CommandResult:
        """Waits for its end; the result has its output from the beginning, as far as it is kept."""
        collected = Collected(max_bytes, None, None)
        reading = Reading(self._session._core, self.id, 0, self._tty)
        return await _finish(reading, collected)

    async def write(self, data: Union[str, bytes, bytearray, memoryview]) -> None:
        """To its stdin, which it has if it was started with ``stdin=True`` or a terminal. At most 1 MiB waits for a command that does not read."""
        await _in_thread(write, self._session._core, self.id, data)

    async def close_stdin(self) -> None:
        """Ends its stdin; at a terminal as ^D does."""
        await _in_thread(close_stdin, self._session._core, self.id)

    async def signal(self, number: Union[int, str]) -> None:
        """Sends a signal, by number or name, to its process group."""
        await _in_thread(send_signal, self._session._core, self.id, number)

    async def kill(self) -> None:
        """Ends it with all that it has started."""
        await self.signal(signals.SIGKILL)

    async def resize(self, rows: int, cols: int) -> None:
        """Changes the size of its terminal."""
        await _in_thread(resize, self._session._core, self.id, rows, cols)

    async def info(self) -> CommandInfo:
        """Describes it."""
        return await _in_thread(describe, self._session._core, self.id)

    async def remove(self) -> None:
        """Kills it if it runs, and forgets it."""
        await _in_thread(remove, self._session._core, self.id)


async def _finish(reading: Reading, collected: Collected) -> CommandResult:
    while reading.exit_code is None:
        chunk = await _in_thread(reading.step)
        if chunk is not None:
            collected.add(chunk)
    info = await _in_thread(describe, reading.core, reading.id)
    return collected.result(reading, info.reason)


class Commands:
    """Programs that run where a session's code does, as confined as that, also while a cell runs. They end with the session's kernel.

    ``program`` is a line for the shell, or a list of the program and its arguments. Raises :class:`FileNotFoundError` if there is no such
    program.
    """

    def __init__(self, session: "Session") -> None:
        self._session = session

    async def run(self, program: Program, *, cwd: Optional[Union[str, "os.PathLike[str]"]] = None, env: Optional[Mapping[str, str]] = None,
                  timeout: Optional[float] = None, stdin: Union[str, bytes, None] = None, max_bytes: int = MAX_OUTPUT_BYTES,
                  on_stdout: Optional[Callable[[str], Any]] = None, on_stderr: Optional[Callable[[str], Any]] = None) -> CommandResult:
        """Runs a command to its end.

        If the caller is cancelled, the command is killed.

        Args:
            cwd: as the code sees it, or relative to the workspace; None: the workspace.
            env: variables beside those of the session.
            timeout: seconds; then it is killed, and ``reason`` is ``timeout``.
            stdin: its input; None: none.
            max_bytes: of each stream that the result has; the rest is read and dropped.
            on_stdout: called with its output as it comes.
            on_stderr: the same.
        """
        await self._session.start()
        core, data = self._session._core, _as_bytes(stdin)
        id = await _in_thread(start, core, program, cwd, env, timeout, bool(data), False, None, False)
        try:
            return await _finish(Reading(core, id, 0, data=data), Collected(max_bytes, on_stdout, on_stderr))
        except BaseException:
            await asyncio.shield(_in_thread(_kill_quietly, core, id))
            raise

    async def start(self, program: Program, *, cwd: Optional[Union[str, "os.PathLike[str]"]] = None, env: Optional[Mapping[str, str]] = None,
                    timeout: Optional[float] = None, stdin: bool = False, tty: Union[bool, Tuple[int, int]] = False,
                    tag: Optional[str] = None) -> Command:
        """Starts a command, and returns when it runs.

        Args:
            stdin: it gets input by :meth:`Command.write`.
            tty: a terminal for its three streams, or its (rows, cols).
            tag: a name of your own for it.
        """
        await self._session.start()
        id = await _in_thread(start, self._session._core, program, cwd, env, timeout, stdin, tty, tag, True)
        return Command(self._session, id, bool(tty))

    async def list(self) -> List[CommandInfo]:
        """Those that run, and those that ended in the last minutes."""
        await self._session.start()
        return await _in_thread(list_all, self._session._core)

    async def get(self, id: str) -> Command:
        """A command that was started before, also by another client."""
        await self._session.start()
        await _in_thread(describe, self._session._core, id)
        return Command(self._session, id)


def _kill_quietly(core: "Core", id: str) -> None:
    try:
        core.need_session().command_drop(id)
    except Exception:  # the session is closed, or it has ended: the caller has the first error
        pass


class SyncCommand:
    """As :class:`Command`, with methods that block."""

    def __init__(self, session: "SyncSession", id: str, tty: bool = False) -> None:
        self._session = session
        self._tty = tty
        #: Its id in the session.
        self.id = id

    def output(self, position: int = 0) -> Iterator[CommandChunk]:
        """Its output from a position on, to its end; see :meth:`Command.output`."""
        reading = Reading(self._session._need(), self.id, position, self._tty)
        while reading.exit_code is None:
            chunk = reading.step()
            if chunk is not None:
                yield chunk

    def wait(self, *, max_bytes: int = MAX_OUTPUT_BYTES) -> CommandResult:
        """Waits for its end; see :meth:`Command.wait`."""
        return _finish_sync(Reading(self._session._need(), self.id, 0, self._tty), Collected(max_bytes, None, None))

    def write(self, data: Union[str, bytes, bytearray, memoryview]) -> None:
        """To its stdin; see :meth:`Command.write`."""
        write(self._session._need(), self.id, data)

    def close_stdin(self) -> None:
        """Ends its stdin; at a terminal as ^D does."""
        close_stdin(self._session._need(), self.id)

    def signal(self, number: Union[int, str]) -> None:
        """Sends a signal, by number or name, to its process group."""
        send_signal(self._session._need(), self.id, number)

    def kill(self) -> None:
        """Ends it with all that it has started."""
        self.signal(signals.SIGKILL)

    def resize(self, rows: int, cols: int) -> None:
        """Changes the size of its terminal."""
        resize(self._session._need(), self.id, rows, cols)

    def info(self) -> CommandInfo:
        """Describes it."""
        return describe(self._session._need(), self.id)

    def remove(self) -> None:
        """Kills it if it runs, and forgets it."""
        remove(self._session._need(), self.id)


def _finish_sync(reading: Reading, collected: Collected) -> CommandResult:
    while reading.exit_code is None:
        chunk = reading.step()
        if chunk is not None:
            collected.add(chunk)
    return collected.result(reading, describe(reading.core, reading.id).reason)


class SyncCommands:
    """As :class:`Commands`, with methods that block."""

    def __init__(self, session: "SyncSession") -> None:
        self._session = session

    def run(self, program: Program, *, cwd: Optional[Union[str, "os.PathLike[str]"]] = None, env: Optional[Mapping[str, str]] = None,
            timeout: Optional[float] = None, stdin: Union[str, bytes, None] = None, max_bytes: int = MAX_OUTPUT_BYTES,
            on_stdout: Optional[Callable[[str], Any]] = None, on_stderr: Optional[Callable[[str], Any]] = None) -> CommandResult:
        """Runs a command to its end; see :meth:`Commands.run`."""
        core, data = self._session._need(), _as_bytes(stdin)
        id = start(core, program, cwd, env, timeout, bool(data), False, None, False)
        try:
            return _finish_sync(Reading(core, id, 0, data=data), Collected(max_bytes, on_stdout, on_stderr))
        except BaseException:
            _kill_quietly(core, id)
            raise

    def start(self, program: Program, *, cwd: Optional[Union[str, "os.PathLike[str]"]] = None, env: Optional[Mapping[str, str]] = None,
              timeout: Optional[float] = None, stdin: bool = False, tty: Union[bool, Tuple[int, int]] = False,
              tag: Optional[str] = None) -> SyncCommand:
        """Starts a command, and returns when it runs; see :meth:`Commands.start`."""
        return SyncCommand(self._session, start(self._session._need(), program, cwd, env, timeout, stdin, tty, tag, True), bool(tty))

    def list(self) -> List[CommandInfo]:
        """Those that run, and those that ended in the last minutes."""
        return list_all(self._session._need())

    def get(self, id: str) -> SyncCommand:
        """A command that was started before."""
        describe(self._session._need(), id)
        return SyncCommand(self._session, id)
