"""Saved sessions, and the variables of a session: what their methods answer."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional


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


def hibernated(answer: Dict[str, Any]) -> Hibernated:
    left = [NotCarried(each["kind"], each["name"], list(each["variables"])) for each in answer["not_carried"]]
    return Hibernated(answer["session_id"], answer["bytes"], answer["stored_bytes"], answer["cells"], left, answer.get("form", "image"))
