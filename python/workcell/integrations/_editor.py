"""What editors of Anthropic's tools have in common: arguments that a model wrote, ranges of lines, and a text that is replaced once."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence, Tuple

_WIDTH = 6


class ToolInputError(ValueError):
    """What the model asked for cannot be done; the text is for the model."""


def text_of(given: Mapping[str, Any], name: str) -> str:
    """An argument that must be a string."""
    value = given.get(name)
    if not isinstance(value, str):
        raise ToolInputError("the argument %s must be a string" % name)
    return value


def lines_of(content: str, wanted: Any, least: int = 0) -> Tuple[List[str], int, int]:
    """The lines of a ``view_range``, or all: the lines, at least so many; the number of the first; how many there are in all."""
    lines = content.split("\n")
    first, last = 1, len(lines)
    if isinstance(wanted, list) and len(wanted) == 2 and all(type(each) is int for each in wanted):
        first = max(1, min(wanted[0], len(lines) + 1 - least))
        last = len(lines) if wanted[1] == -1 else max(first - 1 + least, wanted[1])
    return lines[first - 1:last], first, len(lines)


def numbered(lines: Sequence[str], first: int) -> str:
    """Lines with their numbers."""
    return "\n".join("%s\t%s" % (str(number).rjust(_WIDTH), line) for number, line in enumerate(lines, first))


def replaced(content: str, old: str, new: str, path: str) -> "tuple[str, int]":
    """The content with one text replaced, and the number of its line."""
    if not old:
        raise ToolInputError("old_str is empty")
    count = content.count(old)
    if count == 0:
        raise ToolInputError("No replacement was performed, old_str `%s` did not appear verbatim in %s." % (old, path))
    if count > 1:
        lines, at = [], content.find(old)
        while at >= 0:
            lines.append(str(content.count("\n", 0, at) + 1))
            at = content.find(old, at + 1)
        raise ToolInputError("No replacement was performed. Multiple occurrences of old_str `%s` in lines: %s. Please ensure it is unique"
                             % (old, ", ".join(lines)))
    return content.replace(old, new), content.count("\n", 0, content.find(old)) + 1
