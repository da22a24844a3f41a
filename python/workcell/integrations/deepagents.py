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
from . import _search, _shell
from ._common import Closing, drive, open_sync, printable

#: Bytes of one read, and files or lines of one search.
MAX_READ, MAX_FOUND = 400 << 10, 5000
_KINDS = {"FileNotFoundError": "file_not_found", "PermissionError": "permission_denied", "IsADirectoryError": "is_directory",
          "NotADirectoryError": "invalid_path", "ValueError": "invalid_path"}


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
            found = drive(self._run, _search.listing(path))
        except (OSError, WorkcellError) as error:
            return LsResult(error="Error listing %s: %s" % (path, printable(str(error))))
        return LsResult(entries=[{"path": printable(name), "is_dir": is_dir} for name, is_dir in found])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Reads lines of a file; a binary file as base64."""
        offset = max(0, offset)
        if limit <= 0 or _get_backend_read_file_type(file_path) != "text":
            return super().read(file_path, offset, limit)
        try:
            data, total, count, cut = drive(self._run, _search.lines(file_path, offset, limit, MAX_READ))
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
        most = MAX_FOUND if max_count is None else min(max_count, MAX_FOUND)
        try:
            found, more = drive(self._run, _search.grep(path or ".", pattern.encode("utf-8", "surrogatepass"), glob, most, tuple(self.grep_exclude_dirs)))
        except (OSError, WorkcellError) as error:
            return GrepResult(error="Error searching %s: %s" % (path or ".", printable(str(error))))
        return GrepResult(matches=[{"path": printable(name), "line": line, "text": printable(text)} for name, line, text in found], truncated=more)

    def glob(self, pattern: str, path: Optional[str] = None) -> GlobResult:
        """Finds files by their names."""
        try:
            found, more = drive(self._run, _search.glob(path or ".", pattern, MAX_FOUND))
            matches: Any = [{"path": printable(name), "is_dir": is_dir, "size": size, "modified_at": datetime.fromtimestamp(when, timezone.utc).isoformat()}
                            for name, is_dir, size, when in found if not is_dir]
        except (OSError, OverflowError, WorkcellError, ValueError) as error:
            return GlobResult(error="Error searching %s: %s" % (path or ".", printable(str(error))))
        return GlobResult(matches=matches, truncated=more)

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


def _kind(error: Exception) -> Any:
    """As the protocol names it, or a text."""
    return _KINDS.get(getattr(error, "kind", ""), printable(str(error)))


__all__ = ["WorkcellSandbox"]
