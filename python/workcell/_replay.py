"""Running a recording of a session again."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, NamedTuple, Optional

from . import _native
from ._engine import default_engine
from ._session import absolute
from .execution.configs import PathLike
from .errors import from_native


class Difference(NamedTuple):
    """The first difference between a recording and its replay."""

    cell: int
    what: str
    line: int
    expected: str
    actual: str


class Replay(NamedTuple):
    """What a replay came to."""

    same: bool
    cells: int
    same_cells: int
    whole: bool
    difference: Optional[Difference]


def replay(recording: PathLike, *, executor: Optional[str] = None, python: Optional[PathLike] = None,
           cwd: Optional[PathLike] = None) -> Replay:
    """Runs the cells of a recording (``Session(record=...)``) again in a new session, with calls of the code answered from the recording, and
    compares. Blocks until it is done, or until the first difference.

    Args:
        executor: ``"subprocess"`` or ``"sandbox"``; None: as recorded.
        python: the interpreter; None: this one.
        cwd: the working directory; None: the current one.
    """
    options: Dict[str, Any] = {"replay": absolute(recording), "executor": executor, "cwd": absolute(cwd),
                               "python": absolute_link(python) or sys.executable or None}
    try:
        answer = json.loads(_native.replay(default_engine().native, {name: value for name, value in options.items() if value is not None}))
    except _native.NativeError as error:
        raise from_native(error) from None
    found = answer["difference"]
    return Replay(answer["same"], answer["cells"], answer["same_cells"], answer["whole"],
                  None if found is None else Difference(found["cell"], found["what"], found["line"], found["expected"], found["actual"]))


def absolute_link(path: Optional[PathLike]) -> Optional[str]:
    """An interpreter of a venv is a link, which must stay one."""
    return None if path is None else os.path.abspath(os.path.expanduser(path))
