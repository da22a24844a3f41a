"""A sandbox for deepagents: shell commands and files of a Workcell session.

::

    from deepagents import create_deep_agent
    from workcell.integrations.deepagents import WorkcellSandbox

    with WorkcellSandbox() as backend:
        agent = create_deep_agent(model=model, backend=backend)
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, List, Optional, Tuple

from deepagents.backends.protocol import (BackendProtocol, EditResult, ExecuteResponse, FileDownloadResponse, FileUploadResponse, GlobResult, GrepResult, LsResult,
                                          ReadResult, WriteResult)
from deepagents.backends.sandbox import BaseSandbox
from deepagents.backends.utils import _get_backend_read_file_type

from .._session import ExecutorLike
from ..errors import WorkcellError
from ..sync import Session
from ..types import ExecutionResult
from . import _shell
from ._common import Closing, drive, literal, open_sync, printable

#: Bytes of one read, and files or lines of one search.
MAX_READ, MAX_FOUND = 400 << 10, 5000
_KINDS = {"FileNotFoundError": "file_not_found", "PermissionError": "permission_denied", "IsADirectoryError": "is_directory",
          "NotADirectoryError": "invalid_path", "ValueError": "invalid_path"}

_LS = '''
def _workcell_ls(path):
    import os
    found = []
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name)[:10000]:
        found.append((os.path.join(path, entry.name), entry.is_dir(follow_symlinks=False)))
    return found
_workcell_ls(%s)'''

_READ = '''
def _workcell_lines(path, offset, limit, size):
    import os, stat
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise IsADirectoryError(21, "Is a directory") if stat.S_ISDIR(os.fstat(fd).st_mode) else PermissionError(13, "Not a regular file")
        kept, total, used, cut = [], 0, 0, False
        for line in file:
            if offset <= total < offset + limit and not cut:
                used += len(line)
                cut = used > size
                if not cut:
                    kept.append(line)
            total += 1
    return b"".join(kept), total, len(kept), cut
_workcell_lines(%s)'''

_FIND = '''
def _workcell_find(root, pattern, names, most, hidden):
    """Files below root, with a text in them or a name that fits: at most `most`, and whether there are more."""
    import fnmatch, os, re, stat, time
    def expression(glob, out):
        at = 0
        while at < len(glob):
            if (at == 0 or glob[at - 1] == "/") and glob[at] in "*?[":
                out += r"(?!\\.)"  # a name with a dot at its start is meant only by a pattern with one
            if glob.startswith("**/", at):
                out, at = out + r"(?:(?!\\.)[^/]+/)*", at + 3
            elif glob.startswith("**", at):
                out, at = out + ".*", at + 2
            elif glob[at] == "*":
                out, at = out + "[^/]*", at + 1
            elif glob[at] == "?":
                out, at = out + "[^/]", at + 1
            elif glob[at] == "[" and "]" in glob[at + 2:]:
                end = glob.index("]", at + 2)
                inside = glob[at + 1:end].replace("\\\\", "\\\\\\\\")
                out, at = out + "[" + ("^" + inside[1:] if inside[0] in "!^" else inside) + "]", end + 1
            else:
                out, at = out + re.escape(glob[at]), at + 1
        return re.compile(out + r"\\Z", re.S)
    fits = expression(names.lstrip("/"), "" if "/" in names else "(?:[^/]+/)*") if names else None
    found, late, end = [], False, time.monotonic() + 20
    def look(path, below):
        if fits is not None and not fits.match(below):
            return
        if pattern is None:
            info = os.lstat(path)
            found.append((path, stat.S_ISDIR(info.st_mode), info.st_size, info.st_mtime))
            return
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            for number, line in enumerate(file, 1):
                if number == 1 and b"\\0" in line:
                    return
                if pattern in line:
                    found.append((path, number, line.rstrip(b"\\n")[:2000].decode("utf-8", "replace")))
                    if len(found) > most:
                        return
    if os.path.isfile(root):
        look(root, os.path.basename(root))
    elif not os.path.isdir(root):
        raise FileNotFoundError(2, "No such file or directory")
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(each for each in folders if each not in hidden)
        for name in sorted(files + (folders if pattern is None else [])):
            path = os.path.join(folder, name)
            look(path, os.path.relpath(path, root))
            late = time.monotonic() > end
            if late or len(found) > most:
                return found[:most], True
    return found, late
_workcell_find(%s)'''


class WorkcellSandbox(Closing, BaseSandbox):
    """A ``SandboxBackendProtocol`` whose commands and files are those of a Workcell session.

    Listing, reading, writing, editing, grep and glob are cells of the session, without a process for each; the rest is deepagents' own, by
    commands.

    Args:
        session: a session of yours, which stays open; None: a new one, which :meth:`close` ends.
        executor: of the new session; None: ``sandbox``, with an empty folder as its workspace.
        timeout: seconds of a command that has no timeout of its own; None: the executor's default.
        max_output: bytes of a command's output.
        options: of the new session: ``policy``, ``gate``, ``audit``.
    """

    def __init__(self, session: Optional[Session] = None, *, executor: ExecutorLike = None, timeout: Optional[float] = None,
                 max_output: int = 1 << 20, **options: Any) -> None:
        self.session, self._close = open_sync(session, executor, options)
        self.timeout, self.max_output = timeout, min(max_output, _shell.PIECE)
        self.session.start()

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session.session_id

    # The protocol's own, by the methods below in a thread, and not by commands.
    als, aread, awrite, aedit = BackendProtocol.als, BackendProtocol.aread, BackendProtocol.awrite, BackendProtocol.aedit
    agrep, aglob = BackendProtocol.agrep, BackendProtocol.aglob

    def execute(self, command: str, *, timeout: Optional[int] = None) -> ExecuteResponse:
        """Runs a shell command."""
        seconds = float(timeout) if timeout else self.timeout
        try:
            cell = _shell.command("exec 2>&1\n" + command, seconds=seconds, limit=self.max_output)
            done = _shell.done(self.session.run(cell, None if seconds is None else seconds + 5))
        except WorkcellError as error:
            return ExecuteResponse("Error: %s" % printable(str(error)), 1, False)
        output = printable((done.stdout + done.stderr).decode("utf-8", "replace"))
        if done.late:
            return ExecuteResponse(output + "\nthe command was stopped after its time", 124, done.cut)
        return ExecuteResponse(output, done.status, done.cut)

    def upload_files(self, files: List[Tuple[str, bytes]]) -> List[FileUploadResponse]:
        """Writes files; their paths are absolute."""
        return [FileUploadResponse(path, self._write(path, data) if path.startswith("/") else "invalid_path") for path, data in files]

    def download_files(self, paths: List[str]) -> List[FileDownloadResponse]:
        """Reads files; their paths are absolute."""
        return [self._download(path) if path.startswith("/") else FileDownloadResponse(path, None, "invalid_path") for path in paths]

    def ls(self, path: str) -> LsResult:
        """Lists a folder."""
        try:
            found = _shell.check(self._run(_LS % literal(path)))
            entries: Any = [{"path": printable(str(each[0])), "is_dir": bool(each[1])} for each in found]
            return LsResult(entries=entries)
        except (OSError, WorkcellError, TypeError, IndexError) as error:
            return LsResult(error="Error listing %s: %s" % (path, printable(str(error))))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Reads lines of a file; a binary file as base64."""
        offset = max(0, offset)
        if limit <= 0 or _get_backend_read_file_type(file_path) != "text":
            return super().read(file_path, offset, limit)
        try:
            data, total, count, cut = _shell.checked(self._run(_READ % _arguments(file_path, offset, limit, MAX_READ)), bytes, int, int, bool)
        except (OSError, WorkcellError) as error:
            return ReadResult(error="File '%s': %s" % (file_path, _kind(error)))
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return super().read(file_path, offset, limit)
        if total == 0 or cut or offset >= total:  # the framework's own words about these
            return super().read(file_path, offset, limit)
        after = offset + count
        file_data: Any = {"content": text.replace("\r\n", "\n").removesuffix("\n"), "encoding": "utf-8"}
        return ReadResult(file_data=file_data, total_lines=total, start_line=offset + 1, end_line=after, next_offset=after if after < total else None)

    def grep(self, pattern: str, path: Optional[str] = None, glob: Optional[str] = None, *, max_count: Optional[int] = None) -> GrepResult:
        """Searches files for a text."""
        try:
            found, more = self._find(path or ".", pattern.encode("utf-8", "surrogatepass"), glob, MAX_FOUND if max_count is None else min(max_count, MAX_FOUND),
                                     tuple(self.grep_exclude_dirs))
            matches: Any = [{"path": printable(str(each[0])), "line": int(each[1]), "text": printable(str(each[2]))} for each in found]
        except (OSError, WorkcellError, TypeError, ValueError, IndexError) as error:
            return GrepResult(error="Error searching %s: %s" % (path or ".", printable(str(error))))
        return GrepResult(matches=matches, truncated=more)

    def glob(self, pattern: str, path: Optional[str] = None) -> GlobResult:
        """Finds files by their names."""
        root = path or "."
        try:
            if root == "." or not root.startswith("/"):
                root = str(_shell.check(self._run("__import__('os').path.abspath(%s)" % literal(root))))
            found, more = self._find(root, None, pattern, MAX_FOUND, ())
            matches: Any = [{"path": printable(str(each[0])), "is_dir": bool(each[1]), "size": int(each[2]),
                             "modified_at": datetime.fromtimestamp(float(each[3]), timezone.utc).isoformat()} for each in found if not each[1]]
        except (OSError, OverflowError, WorkcellError, TypeError, ValueError, IndexError) as error:
            return GlobResult(error="Error searching %s: %s" % (root, printable(str(error))))
        return GlobResult(matches=matches, truncated=more)

    def _find(self, *given: Any) -> Any:
        return _shell.check(self._run(_FIND % _arguments(*given)))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Writes a file, also over one that exists."""
        error = self._write(file_path, content.encode("utf-8", "surrogatepass"))
        return WriteResult(path=file_path) if error is None else WriteResult(error="Error writing %s: %s" % (file_path, error))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:  # noqa: FBT001, FBT002
        """Replaces a text in a file."""
        if not old_string:
            return EditResult(error="Error: the text to replace is empty")
        if len(old_string) + len(new_string) > _shell.PIECE:
            return EditResult(error="Error: the texts have more than %d characters" % _shell.PIECE)
        try:
            found, _, done = drive(self._run, _shell.edit(file_path, old_string, new_string, bool(replace_all)))
        except (OSError, WorkcellError) as error:
            return EditResult(error="Error: File '%s': %s" % (file_path, _kind(error)))
        if done:
            return EditResult(path=file_path, occurrences=found)
        if not found:
            return EditResult(error="Error: String not found in file: '%s'" % old_string)
        return EditResult(error="Error: String '%s' appears multiple times. Use replace_all=True to replace all occurrences." % old_string)

    def _run(self, cell: str) -> ExecutionResult:
        return self.session.run(cell, self.timeout)

    def _write(self, path: str, data: bytes) -> Optional[str]:
        if "\0" in path or not path:
            return "invalid_path"
        try:
            drive(self._run, _shell.write(path, data))
        except (OSError, WorkcellError) as error:
            return _kind(error)
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            return FileDownloadResponse(path, drive(self._run, _shell.read(path)), None)
        except (OSError, WorkcellError) as error:
            return FileDownloadResponse(path, None, _kind(error))


def _arguments(*given: Any) -> str:
    return ", ".join(map(literal, given))


def _kind(error: Exception) -> Any:
    """As the protocol names it, or a text."""
    return _KINDS.get(getattr(error, "kind", ""), printable(str(error)))


__all__ = ["WorkcellSandbox"]
