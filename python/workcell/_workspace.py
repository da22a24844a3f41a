"""Files of a session's workspace for its host: ``session.files``. Transfers go through descriptors, so a file is never in memory as a whole."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, Type, Union

from . import _native
from .errors import from_native
from .execution.executors import in_thread

if TYPE_CHECKING:
    from ._core import Core
    from .session import Session
    from .sync import Session as SyncSession

PathLike = Union[str, "os.PathLike[str]"]
_ERRORS: Dict[str, Tuple[Type[OSError], int]] = {
    "not_found": (FileNotFoundError, errno.ENOENT), "forbidden": (PermissionError, errno.EACCES), "exists": (FileExistsError, errno.EEXIST)}


@dataclass
class FileInfo:
    """A file, a folder or a link of a workspace."""

    #: Below the workspace.
    path: str
    #: ``file``, ``folder``, ``link``, ``fifo``, ``socket`` or ``device``.
    type: str
    size: int
    #: Permissions.
    mode: int
    #: Of the last change, in seconds since 1970.
    mtime: float
    #: Where a link points.
    target: Optional[str] = None


def _call(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except _native.NativeError as error:
        message, word = str(error.args[0]), str(error.args[1])
        if word in _ERRORS:
            kind, number = _ERRORS[word]
            raise kind(number, message) from None
        raise from_native(error) from None


def _info(found: Dict[str, Any], path: str) -> FileInfo:
    return FileInfo(path, found["type"], found["size"], int(found["mode"], 8), found["mtime"], found.get("target"))


def _beside(pump: Callable[[int], Any], other: Callable[[int], Any], pump_writes: bool) -> Tuple[Any, Any]:
    """Runs pump with one end of a pipe, and other with its other end on another thread; raises what failed first."""
    ends = os.pipe()
    ours, theirs = (ends[1], ends[0]) if pump_writes else (ends[0], ends[1])
    outcome: Dict[str, Any] = {}

    def main() -> None:
        try:
            outcome["value"] = other(theirs)
        except BaseException as error:  # for the caller's thread
            outcome["error"] = error
        finally:
            os.close(theirs)

    thread = threading.Thread(target=main, name="workcell-files")
    thread.start()
    try:
        try:
            value = pump(ours)
        finally:
            os.close(ours)
            thread.join()
    except Exception as error:
        there = outcome.get("error")
        # A failure at one end is one at the other too.
        broken = getattr(error, "errno", None) == errno.EPIPE or "Broken pipe" in str(error)
        if there is not None and (broken or not pump_writes) and "Broken pipe" not in str(there):
            raise there from None
        raise
    if "error" in outcome:
        raise outcome["error"]
    return value, outcome["value"]


def describe(core: "Core", path: str) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads(_call(core.need_session().file_describe, path))
    return found


def stat(core: "Core", path: str) -> FileInfo:
    return _info(describe(core, path), path)


def entries(core: "Core", path: str) -> List[FileInfo]:
    found = describe(core, path)
    if found["type"] != "folder":
        raise NotADirectoryError(errno.ENOTDIR, "%r is not a folder" % path)
    return [_info(each, path.rstrip("/") + "/" + each["name"] if path.strip("/.") else each["name"]) for each in found["entries"]]


def read(core: "Core", path: str, offset: int, size: int) -> bytes:
    with os.fdopen(os.memfd_create("workcell-file"), "rb") as file:
        _call(core.need_session().file_get, path, {"offset": offset, "max_bytes": size}, file.fileno())
        file.seek(0)
        return file.read()


def write(core: "Core", path: str, data: Union[str, bytes, bytearray, memoryview], mode: int) -> int:
    payload = data.encode("utf-8") if isinstance(data, str) else data
    with os.fdopen(os.memfd_create("workcell-file"), "w+b") as file:
        file.write(payload)
        file.flush()
        file.seek(0)
        return int(_call(core.need_session().file_put, path, {"mode": mode}, file.fileno()))


def upload(core: "Core", source: PathLike, path: str) -> int:
    session, source = core.need_session(), os.fspath(source)
    if os.path.isdir(source):
        sent, _ = _beside(lambda fd: _call(session.file_put, path, {"tar": 1}, fd), lambda fd: _call(_native.folder_pack, source, fd), False)
        return int(sent)
    with open(source, "rb") as file:
        return int(_call(session.file_put, path, {"mode": os.fstat(file.fileno()).st_mode & 0o777}, file.fileno()))


def download(core: "Core", path: str, target: PathLike) -> int:
    session, target = core.need_session(), os.fspath(target)
    found = describe(core, path)
    if found["type"] == "folder":
        os.makedirs(target, exist_ok=True)
        got, _ = _beside(lambda fd: _call(session.file_get, path, {"tar": 1}, fd), lambda fd: _call(_native.folder_unpack, target, fd), True)
        return int(got)
    if os.path.isdir(target):
        target = os.path.join(target, os.path.basename(path.rstrip("/")))
    fd, temporary = tempfile.mkstemp(prefix=os.path.basename(target) + ".", dir=os.path.dirname(target) or ".")
    try:
        with os.fdopen(fd, "wb"):
            got = _call(session.file_get, path, {}, fd)
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(fd, (0o666 | int(found["mode"], 8) & 0o111) & ~mask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return int(got)


def make_folder(core: "Core", path: str) -> None:
    _call(core.need_session().file_make_folder, path)


def remove(core: "Core", path: str, recursive: bool) -> None:
    _call(core.need_session().file_remove, path, recursive)


class Files:
    """The files of a session's workspace, as its code sees them, also while a cell runs. Paths are relative to the workspace.

    Links are never followed. Raises :class:`FileNotFoundError`, :class:`PermissionError` (also for a path that leads through a link) and
    :class:`FileExistsError`.
    """

    def __init__(self, session: "Session") -> None:
        self._session = session

    async def _do(self, function: Callable[..., Any], path: PathLike, *args: Any) -> Any:
        await self._session.start()
        return await in_thread(function, self._session._core, os.fspath(path), *args)

    async def read(self, path: PathLike, *, offset: int = 0, size: int = -1) -> bytes:
        """A file's bytes, from ``offset`` on, at most ``size`` of them; -1: all."""
        data: bytes = await self._do(read, path, offset, size)
        return data

    async def write(self, path: PathLike, data: Union[str, bytes, bytearray, memoryview], *, mode: int = 0) -> int:
        """Makes or replaces a file at once, and makes the folders that lead to it; text is written as UTF-8. Returns its size.

        Args:
            mode: permissions, as ``0o755``; 0: those of the file it replaces, else ``0o644``.
        """
        return int(await self._do(write, path, data, mode))

    async def list(self, path: PathLike = "") -> List[FileInfo]:
        """What is in a folder, sorted by name; at most 10,000 entries."""
        found: List[FileInfo] = await self._do(entries, path)
        return found

    async def stat(self, path: PathLike) -> FileInfo:
        """Describes a file, a folder or a link."""
        found: FileInfo = await self._do(stat, path)
        return found

    async def mkdir(self, path: PathLike) -> None:
        """Makes a folder and those that lead to it; one that exists is fine."""
        await self._do(make_folder, path)

    async def remove(self, path: PathLike, *, recursive: bool = False) -> None:
        """Removes a file, a link or an empty folder; ``recursive``: any folder."""
        await self._do(remove, path, recursive)

    async def upload(self, source: PathLike, path: PathLike) -> int:
        """Sends a file, or a folder with everything in it, of this machine. Returns the bytes that were sent."""
        await self._session.start()
        return int(await in_thread(upload, self._session._core, source, os.fspath(path)))

    async def download(self, path: PathLike, target: PathLike) -> int:
        """Fetches a file, or a folder with everything in it, to this machine. Returns the bytes that were received.

        A file appears when all of it is there. Nothing is written outside of a folder, and links that point out of it are left out.
        """
        return int(await self._do(download, path, target))


class SyncFiles:
    """As :class:`Files`, with methods that block."""

    def __init__(self, session: "SyncSession") -> None:
        self._session = session

    def read(self, path: PathLike, *, offset: int = 0, size: int = -1) -> bytes:
        """A file's bytes, from ``offset`` on, at most ``size`` of them; -1: all."""
        return read(self._session._need(), os.fspath(path), offset, size)

    def write(self, path: PathLike, data: Union[str, bytes, bytearray, memoryview], *, mode: int = 0) -> int:
        """Makes or replaces a file at once; see :meth:`Files.write`."""
        return write(self._session._need(), os.fspath(path), data, mode)

    def list(self, path: PathLike = "") -> List[FileInfo]:
        """What is in a folder, sorted by name; at most 10,000 entries."""
        return entries(self._session._need(), os.fspath(path))

    def stat(self, path: PathLike) -> FileInfo:
        """Describes a file, a folder or a link."""
        return stat(self._session._need(), os.fspath(path))

    def mkdir(self, path: PathLike) -> None:
        """Makes a folder and those that lead to it; one that exists is fine."""
        make_folder(self._session._need(), os.fspath(path))

    def remove(self, path: PathLike, *, recursive: bool = False) -> None:
        """Removes a file, a link or an empty folder; ``recursive``: any folder."""
        remove(self._session._need(), os.fspath(path), recursive)

    def upload(self, source: PathLike, path: PathLike) -> int:
        """Sends a file or a folder of this machine; see :meth:`Files.upload`."""
        return upload(self._session._need(), source, os.fspath(path))

    def download(self, path: PathLike, target: PathLike) -> int:
        """Fetches a file or a folder to this machine; see :meth:`Files.download`."""
        return download(self._session._need(), os.fspath(path), target)
