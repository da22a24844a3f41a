"""The layer over a session's workspace: what its code changed, and what was committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional


@dataclass
class FileChange:
    """One file, folder or link that the code changed."""

    #: Relative to the workspace; bytes that are not UTF-8, control characters and backslashes are written as ``\\xNN``.
    path: str
    #: ``added``, ``changed``, ``deleted``, ``type`` (it is another kind of file now) or ``mode`` (only its permissions).
    change: str
    #: ``file``, ``folder``, ``link``, ``fifo``, ``socket`` or ``device``.
    type: str
    size: Optional[int] = None
    old_size: Optional[int] = None
    old_type: Optional[str] = None
    mode: Optional[str] = None
    old_mode: Optional[str] = None
    #: Of a link.
    target: Optional[str] = None
    #: A unified diff; None: it is not a text, or too long.
    diff: Optional[str] = None
    binary: bool = False
    #: Other programs run such a file, or read it as settings: :meth:`Session.commit` must name it.
    protected: bool = False
    #: The real file was changed too.
    conflict: bool = False
    unreadable: bool = False
    too_deep: bool = False


@dataclass
class Diff:
    """What the code changed."""

    #: ``overlay`` or ``copy``.
    form: str
    files: List[FileChange]
    #: There are more changes, or more texts, than it has.
    truncated: bool = False

    @property
    def text(self) -> str:
        """All unified diffs."""
        return "".join(each.diff for each in self.files if each.diff)


@dataclass
class Commit:
    """What was written to the real workspace."""

    committed: List[str]
    #: Left out, because other programs would run them; name them to commit them.
    protected: List[str] = field(default_factory=list)
    #: Left out, by path, and why.
    skipped: Dict[str, str] = field(default_factory=dict)


def diff_of(found: Dict[str, Any]) -> Diff:
    known = FileChange.__dataclass_fields__
    return Diff(found["form"], [FileChange(**{key: value for key, value in each.items() if key in known}) for each in found["files"]],
                found["truncated"])


def commit_of(found: Dict[str, Any]) -> Commit:
    return Commit(found["committed"], found["protected"], {each["path"]: each["reason"] for each in found["skipped"]})
