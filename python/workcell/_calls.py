"""Calls of functions of the host: what came of them, as text for code, and the cells that wait for them."""

from __future__ import annotations

import contextvars
from typing import Any, Callable, Optional, Tuple

from .errors import WorkcellError


def outcome(fn: Callable[[], Any]) -> Tuple[Any, Optional[BaseException]]:
    """(value, None) or (None, what was raised).

    A thread cannot hand every exception to a task: the future of a thread that raised StopIteration never ends (before Python 3.12).
    """
    try:
        return fn(), None
    except BaseException as error:
        return None, error


def text_of(error: BaseException) -> str:
    """The text of any exception, also of one that has none."""
    try:
        text = str(error)
    except BaseException as second:
        text = "its text cannot be shown: str() raised %s" % type(second).__name__
    return text.encode("utf-8", "replace").decode("utf-8")


def told(error: BaseException) -> str:
    """An exception for the code that made the call."""
    return "%s: %s" % (type(error).__name__, text_of(error))


class Waiting:
    """A cell that waits for a call. It is known in the context of the function that answers, and of tasks and threads that it starts."""

    def __init__(self, session_id: str, tool: str) -> None:
        self.session_id, self.tool, self.going = session_id, tool, True
        _waiting.set(self)

    def end(self) -> None:
        """The call is answered."""
        self.going = False


_waiting: "contextvars.ContextVar[Optional[Waiting]]" = contextvars.ContextVar("workcell_waiting", default=None)


def inside(context: contextvars.Context) -> contextvars.Context:
    """A copy of a context for what a function of the host does there: the cell that waits for the function stays known."""
    made = context.copy()
    made.run(_waiting.set, _waiting.get())
    return made


def check_not_waiting(session_id: str) -> None:
    """Raises where a function would wait for a cell that comes after the one that waits for this function."""
    found = _waiting.get()
    if found is not None and found.going and found.session_id == session_id:
        raise WorkcellError("the tool %s cannot run code in the session whose code has called it: that code waits for the tool; use a fork, another "
                            "session, or a task that starts after the tool has returned" % found.tool)
