"""Folders, lines and searches in the files of a session, as cells: without a process for each.

As in ``_shell`` everything happens where the session's code runs, with its rights, and what comes back is checked.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from ..errors import WorkcellError
from . import _shell
from ._common import Steps, literal

_LS = '''
def _workcell_ls(path):
    import os
    found = []
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name)[:10000]:
        found.append((os.path.join(path, entry.name), entry.is_dir(follow_symlinks=False)))
    return found
_workcell_ls(%s)'''

_LINES = '''
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


def listing(path: str) -> "Steps[List[Tuple[str, bool]]]":
    """What is in a folder: (path, whether it is a folder)."""
    return _rows(_shell.check((yield _LS % literal(path))), str, bool)


def lines(path: str, offset: int, limit: int, size: int) -> "Steps[Tuple[bytes, int, int, bool]]":
    """Lines of a file, of at most `size` bytes: their bytes, how many the file has, how many these are, and whether there were too many bytes."""
    data, total, count, cut = _shell.checked((yield _LINES % _arguments(path, offset, limit, size)), bytes, int, int, bool)
    return data, total, count, cut


def grep(root: str, pattern: bytes, names: Optional[str], most: int, hidden: Sequence[str]) -> "Steps[Tuple[List[Tuple[str, int, str]], bool]]":
    """Lines with a text in files whose names fit, outside of hidden folders: (path, number, line), and whether there are more."""
    found, more = _shell.checked((yield _FIND % _arguments(root, pattern, names, most, tuple(hidden))), list, bool)
    return _rows(found, str, int, str), more


def glob(root: str, names: str, most: int) -> "Steps[Tuple[List[Tuple[str, bool, int, float]], bool]]":
    """Files and folders whose names fit: (path, whether it is a folder, bytes, time of the last change), and whether there are more."""
    if not root.startswith("/"):
        root = str(_shell.check((yield "__import__('os').path.abspath(%s)" % literal(root))))
    found, more = _shell.checked((yield _FIND % _arguments(root, None, names, most, ())), list, bool)
    return _rows(found, str, bool, int, float), more


def _arguments(*given: Any) -> str:
    return ", ".join(map(literal, given))


def _rows(found: Any, *kinds: type) -> Any:
    """A list of tuples of these types."""
    if not isinstance(found, list) or not all(isinstance(each, tuple) and [type(part) for part in each] == list(kinds) for each in found):
        raise WorkcellError("the session did not answer with what was asked for")
    return found
