"""Saved sessions, and the variables of a session: what their methods answer."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from . import _native
from ._session import saved_place
from .errors import from_native
from .execution.configs import PathLike


class Variable(NamedTuple):
    """A variable of a session, as its kernel describes it without running code of the session."""

    name: str
    type: str
    size: Optional[int]
    preview: str


def variables_of(answer: Dict[str, Any]) -> List[Variable]:
    return [Variable(each["name"], each["type"], each["size"], each["preview"]) for each in answer["variables"]]


class NotCarried(NamedTuple):
    """A thing outside of a session's memory, which ended when the session was saved."""

    kind: str
    name: str
    variables: List[str]


class Hibernated(NamedTuple):
    """A session that was saved."""

    session_id: str
    bytes: int
    stored_bytes: int
    cells: int
    not_carried: List[NotCarried]
    form: str = "image"
    points: Sequence[str] = ()


def hibernated(answer: Dict[str, Any]) -> Hibernated:
    left = [NotCarried(each["kind"], each["name"], list(each["variables"])) for each in answer["not_carried"]]
    return Hibernated(answer["session_id"], answer["bytes"], answer["stored_bytes"], answer["cells"], left, answer.get("form", "image"),
                      list(answer.get("points", ())))


class SavedSession(NamedTuple):
    """A session of a place of saved sessions. saved_ms: since 1970."""

    session_id: str
    saved_ms: int
    cells: int
    executor: str
    form: str
    workspace: str
    bytes: int
    awake: bool


def saved_sessions(saved: PathLike, *, saved_key: Optional[str] = None, page: int = 100) -> Iterator[SavedSession]:
    """The sessions that were saved in a folder or at the URL of Redis, the latest first. They are read in pages, as they are asked for."""
    place, after = str(saved_place(saved)), None
    while True:
        try:
            answer = json.loads(_native.saved_page(place, "", saved_key, after, page))
        except _native.NativeError as error:
            raise from_native(error) from None
        for each in answer["sessions"]:
            yield SavedSession(*(each[name] for name in SavedSession._fields))
        after = answer["next"]
        if after is None:
            return


def remove_saved(session_id: str, saved: PathLike, *, saved_key: Optional[str] = None) -> None:
    """Removes a saved session. One that is awake is left alone (ConflictError)."""
    try:
        _native.saved_remove(str(saved_place(saved)), "", saved_key, session_id)
    except _native.NativeError as error:
        raise from_native(error) from None
