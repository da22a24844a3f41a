"""Commands and files of a session, for frameworks that want a machine with a shell.

Everything here is a cell: it happens where the session's code runs, with no more rights than that code has. What comes back is checked,
because code of the session may have changed anything that the cell uses.
"""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..errors import WorkcellError
from ..types import ExecutionResult
from ._common import Steps, cell_of, literal

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
    return cell_of("%s_workcell_command(%s)" % (_RUN, ", ".join(map(literal, (words, data, cwd, dict(env or {}), seconds, limit)))))


def done(result: ExecutionResult) -> Done:
    """What became of the command."""
    info = result.error_info
    if info is not None:
        if info.type in ("FileNotFoundError", "PermissionError", "NotADirectoryError"):
            return Done(127 if info.type == "FileNotFoundError" else 126, b"", info.message.encode("utf-8", "replace"), False, False)
        if info.code == "timeout":
            return Done(124, b"", info.message.encode("utf-8", "replace"), False, True)
        raise WorkcellError(result.error or "the command failed")
    status, *rest = checked(result, int, bytes, bytes, bool, bool)
    return Done(status if status >= 0 else 128 - status, *rest)


def check(result: ExecutionResult) -> Any:
    """The value of a cell that works on files; raises FileError."""
    if result.error_info is not None:
        raise FileError(result.error_info.type or result.error_info.code, result.error_info.message)
    return result.value


def checked(result: ExecutionResult, *kinds: type) -> Any:
    """The same for a tuple of values of these types."""
    value = check(result)
    if not isinstance(value, tuple) or [type(each) for each in value] != list(kinds):
        raise WorkcellError("the session did not answer with what was asked for")
    return value


# ---- files
#
# Each is a generator of cells, which is given their results: drive() and drive_async() run them.

def write(path: str, data: bytes) -> "Steps[bool]":
    """Writes a file, with the folders above it; whether there was one."""
    old = check((yield (
        "import os as _os\n_path = %s\n_old = _os.path.exists(_path)\n_os.makedirs(_os.path.dirname(_os.path.abspath(_path)), exist_ok=True)\n"
        "with open(_path, 'wb') as _file: _file.write(%s)\n_old" % (literal(path), literal(data[:PIECE])))))
    for at in range(PIECE, len(data), PIECE):
        check((yield "with open(%s, 'ab') as _file: _file.write(%s)" % (literal(path), literal(data[at:at + PIECE]))))
    return old is True


def read(path: str, limit: int = MAX_FILE) -> "Steps[bytes]":
    """Reads a file of at most `limit` bytes."""
    pieces: List[bytes] = []
    size = 0
    while True:
        piece, total = checked((yield (
            "import os as _os, stat as _stat\n_fd = _os.open(%s, _os.O_RDONLY | _os.O_NONBLOCK)\nwith open(_fd, 'rb') as _file:\n"
            "    _info = _os.fstat(_fd)\n    if _stat.S_ISDIR(_info.st_mode): raise IsADirectoryError(21, 'Is a directory')\n"
            "    if not _stat.S_ISREG(_info.st_mode): raise PermissionError(13, 'Not a regular file')\n"
            "    _file.seek(%d)\n    _piece = _file.read(%d), _info.st_size\n_piece" % (literal(path), size, PIECE))), bytes, int)
        pieces.append(piece)
        size += len(piece)
        # Code may make the file longer all the time.
        if max(total, size) > limit:
            raise FileError("FileTooLarge", "the file has %d bytes; at most %d can be read" % (max(total, size), limit))
        if len(piece) < PIECE or size >= total:
            return b"".join(pieces)


_EDIT = '''
def _workcell_edit(path, old, new, everywhere):
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    found, line = text.count(old), text.count("\\n", 0, max(0, text.find(old))) + 1
    if found == 0 or found > 1 and not everywhere:
        return found, line, False
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text.replace(old, new))
    return found, line, True
_workcell_edit(%s)'''


def edit(path: str, old: str, new: str, everywhere: bool = False) -> "Steps[Tuple[int, int, bool]]":
    """Replaces a text in a file where it is once, or everywhere: how often it is there, the line of the first, and whether it was replaced."""
    found, line, done = checked((yield _EDIT % ", ".join(map(literal, (path, old, new, everywhere)))), int, int, bool)
    return found, line, done
