"""A sandbox for deepagents: shell commands and files of a Workcell session.

::

    from deepagents import create_deep_agent
    from workcell.integrations.deepagents import WorkcellSandbox

    with WorkcellSandbox() as backend:
        agent = create_deep_agent(model=model, backend=backend)
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any, List, Optional, Tuple

from deepagents.backends.protocol import (EditResult, ExecuteResponse, FileDownloadResponse, FileUploadResponse, LsResult, WriteResult)
from deepagents.backends.sandbox import BaseSandbox

from .._session import ExecutorLike
from ..errors import WorkcellError
from ..sync import Session
from . import _shell
from ._common import literal, open_sync, printable

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

_EDIT = '''
def _workcell_edit(path, old, new, everywhere):
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    found = text.count(old)
    if found == 0 or found > 1 and not everywhere:
        return found, False
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text.replace(old, new))
    return found, True
_workcell_edit(%s)'''


class WorkcellSandbox(BaseSandbox):
    """A ``SandboxBackendProtocol`` whose commands and files are those of a Workcell session.

    Listing, reading whole files, writing and editing are cells of the session, which take less than a millisecond; the rest is deepagents'
    own, by commands.

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

    def close(self) -> None:
        """Ends the session, unless it was given."""
        self._close()

    def __enter__(self) -> "WorkcellSandbox":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

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
        """Writes files."""
        return [FileUploadResponse(path, self._write(path, data)) for path, data in files]

    def download_files(self, paths: List[str]) -> List[FileDownloadResponse]:
        """Reads files."""
        return [self._download(path) for path in paths]

    def ls(self, path: str) -> LsResult:
        """Lists a folder."""
        try:
            found = _shell.check(self.session.run(_LS % literal(path), self.timeout))
            entries: Any = [{"path": printable(str(each[0])), "is_dir": bool(each[1])} for each in found]
            return LsResult(entries=entries)
        except (OSError, WorkcellError, TypeError, IndexError) as error:
            return LsResult(error="Error listing %s: %s" % (path, printable(str(error))))

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
            arguments = ", ".join(map(literal, (file_path, old_string, new_string, bool(replace_all))))
            found, done = _shell.check(self.session.run(_EDIT % arguments, self.timeout))
        except (OSError, WorkcellError, TypeError, ValueError) as error:
            kind = _KINDS.get(getattr(error, "kind", ""), printable(str(error)))
            return EditResult(error="Error: File '%s': %s" % (file_path, kind))
        if done is True and type(found) is int:
            return EditResult(path=file_path, occurrences=found)
        if not found:
            return EditResult(error="Error: String not found in file: '%s'" % old_string)
        return EditResult(error="Error: String '%s' appears multiple times. Use replace_all=True to replace all occurrences." % old_string)

    def _write(self, path: str, data: bytes) -> Optional[str]:
        if "\0" in path or not path:
            return "invalid_path"
        try:
            for cell in _shell.write(path, data):
                _shell.check(self.session.run(cell, self.timeout))
        except _shell.FileError as error:
            return _KINDS.get(error.kind, printable(str(error)))
        except WorkcellError as error:
            return printable(str(error))
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        reading = _shell.Reading(path)
        try:
            while reading.more:
                reading.add(self.session.run(reading.cell(), self.timeout))
        except _shell.FileError as error:
            return FileDownloadResponse(path, None, _KINDS.get(error.kind, printable(str(error))))
        except WorkcellError as error:
            return FileDownloadResponse(path, None, printable(str(error)))
        return FileDownloadResponse(path, reading.data, None)


__all__ = ["WorkcellSandbox"]
