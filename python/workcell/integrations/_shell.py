"""Commands and files of a session, for frameworks that want a machine with a shell.

Everything here is a cell: it happens where the session's code runs, with no more rights than that code has. What comes back is checked,
because code of the session may have changed anything that the cell uses.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Union

from ..errors import WorkcellError
from ..types import ExecutionResult
from ._common import literal

#: Bytes of a file, or of a command's output, in one cell: a value may have 8 MiB as text, where a byte can take four characters.
PIECE = 1 << 20
#: Of a file in all.
MAX_FILE = 100 << 20

_RUN = '''
def _workcell_command(args, data, cwd, env, seconds, limit):
    import os, signal, subprocess, threading
    full = dict(os.environ, **env) if env else None
    given = subprocess.PIPE if data else subprocess.DEVNULL
    if isinstance(data, str):  # a file that was written for this command
        given = open(data, "rb")
        os.unlink(data)
        data = None
    process = subprocess.Popen(args, shell=isinstance(args, str), stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=full,
                               start_new_session=True)
    kept, cut = [bytearray(), bytearray()], []
    def read(file, into):
        while True:
            piece = file.read1(65536)
            if not piece:
                return
            if len(into) < limit:
                into.extend(piece[:limit - len(into)])
            else:
                cut.append(1)
                del cut[1:]
    def write():
        try:
            process.stdin.write(data)
            process.stdin.close()
        except OSError:
            pass
    threads = [threading.Thread(target=read, args=each) for each in ((process.stdout, kept[0]), (process.stderr, kept[1]))]
    threads += [threading.Thread(target=write)] if data else []
    for thread in threads:
        thread.daemon = True
        thread.start()
    late = False
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        if late or process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for thread in threads:
        thread.join(1)  # a process that was left behind may hold the pipe
    return process.returncode, bytes(kept[0]), bytes(kept[1]), bool(cut), late
'''


class Done(NamedTuple):
    """A command that has ended; ``late``: it was stopped after its time."""

    status: int
    stdout: bytes
    stderr: bytes
    cut: bool
    late: bool


class FileError(OSError):
    """A file operation failed in the session; ``kind`` is the name of the exception there."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def command(args: Union[str, Sequence[str]], data: Union[bytes, str] = b"", cwd: Optional[str] = None, env: Optional[Mapping[str, str]] = None,
            seconds: Optional[float] = None, limit: int = PIECE) -> str:
    """The cell that runs a command: a text for the shell, or words; data: its input, or the file that has it and is removed."""
    words = args if isinstance(args, str) else [str(each) for each in args]
    return "%s_workcell_command(%s)" % (_RUN, ", ".join(map(literal, (words, data, cwd, dict(env or {}), seconds, limit))))


def done(result: ExecutionResult) -> Done:
    """What became of the command."""
    info = result.error_info
    if info is not None:
        if info.type in ("FileNotFoundError", "PermissionError", "NotADirectoryError"):
            return Done(127 if info.type == "FileNotFoundError" else 126, b"", info.message.encode("utf-8", "replace"), False, False)
        if info.code == "timeout":
            return Done(124, b"", info.message.encode("utf-8", "replace"), False, True)
        raise WorkcellError(result.error or "the command failed")
    value = result.value
    if not isinstance(value, tuple) or [type(each) for each in value] != [int, bytes, bytes, bool, bool]:
        raise WorkcellError("the session did not answer with what a command did")
    status, *rest = value
    return Done(status if status >= 0 else 128 - status, *rest)


def write(path: str, data: bytes) -> Iterator[str]:
    """Cells that write a file, with the folders above it."""
    yield ("import os as _os\n_path = %s\n_os.makedirs(_os.path.dirname(_os.path.abspath(_path)), exist_ok=True)\nopen(_path, 'wb').write(%s)\nNone"
           % (literal(path), literal(data[:PIECE])))
    for at in range(PIECE, len(data), PIECE):
        yield "open(%s, 'ab').write(%s)\nNone" % (literal(path), literal(data[at:at + PIECE]))


def check(result: ExecutionResult) -> Any:
    """The value of a cell that works on files; raises FileError."""
    if result.error_info is not None:
        raise FileError(result.error_info.type or result.error_info.code, result.error_info.message)
    return result.value


def read_piece(path: str, at: int) -> str:
    """A cell whose value is a piece of a file and the file's size."""
    return ("import os as _os, stat as _stat\n_fd = _os.open(%s, _os.O_RDONLY | _os.O_NONBLOCK)\nwith open(_fd, 'rb') as _file:\n"
            "    _info = _os.fstat(_fd)\n    if _stat.S_ISDIR(_info.st_mode): raise IsADirectoryError(21, 'Is a directory')\n"
            "    if not _stat.S_ISREG(_info.st_mode): raise PermissionError(13, 'Not a regular file')\n"
            "    _file.seek(%d)\n    _piece = _file.read(%d), _info.st_size\n_piece" % (literal(path), at, PIECE))


def piece_of(result: ExecutionResult) -> "tuple[bytes, int]":
    """What read_piece() gave."""
    value = check(result)
    if not isinstance(value, tuple) or [type(each) for each in value] != [bytes, int]:
        raise WorkcellError("the session did not answer with a file's content")
    if value[1] > MAX_FILE:
        raise FileError("FileTooLarge", "the file has %d bytes; at most %d can be read" % (value[1], MAX_FILE))
    return value[0], value[1]


class Reading:
    """A file that is read piece by piece: ``while reading.more: reading.add(run(reading.cell()))``."""

    def __init__(self, path: str) -> None:
        self.path, self.size, self.more = path, 0, True
        self.pieces: List[bytes] = []

    def cell(self) -> str:
        """The next cell."""
        return read_piece(self.path, self.size)

    def add(self, result: ExecutionResult) -> None:
        """Takes its result."""
        piece, size = piece_of(result)
        self.pieces.append(piece)
        self.size += len(piece)
        # Code may make the file longer all the time.
        self.more = len(piece) == PIECE and self.size < min(size, MAX_FILE)

    @property
    def data(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces)
