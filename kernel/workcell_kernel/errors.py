"""Exceptions as text: the agent's mistake in its own lines, without colour codes.

Frames of the kernel are dropped. Runs of frames inside libraries are folded into one line, unless nothing else
would be left: an agent can change its own code, not pandas.
"""

import os
import sys
import traceback

from . import limits

MAX_MESSAGE = 64 * 1024
MAX_TRACEBACK = 256 * 1024

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _library_dirs():
    found = {os.path.dirname(os.__file__)}
    found.update(p for p in sys.path if p.endswith(("site-packages", "dist-packages")))
    return tuple(os.path.join(os.path.abspath(p), "") for p in found)


_LIBRARIES = _library_dirs()


def add_library(folder):
    """Also folds the frames of modules in this folder from now on."""
    global _LIBRARIES
    folder = os.path.join(os.path.abspath(folder), "")
    if folder not in _LIBRARIES:
        _LIBRARIES += (folder,)


def is_library(filename):
    """Whether this file is library code, which an agent cannot change."""
    return filename.startswith(_LIBRARIES) or filename.startswith("<frozen ")


def _module_of(filename):
    best = max((d for d in _LIBRARIES if filename.startswith(d)), key=len, default="")
    return filename[len(best):].split(os.sep)[0].replace(".py", "") or filename


class _Stack(traceback.StackSummary):
    """Formats itself with library frames folded."""

    def format(self, **kwargs):
        lines = []
        group, library = [], False
        frames = [f for f in self if not f.filename.startswith(_OURS)]
        fold = any(not is_library(f.filename) for f in frames)
        while fold and is_library(frames[0].filename):
            del frames[0]  # what ran the agent's code (asyncio, IPython), not what it called

        def flush():
            if group and library:
                names = list(dict.fromkeys(_module_of(f.filename) for f in group))
                count = "1 frame" if len(group) == 1 else "%d frames" % len(group)
                lines.append("  [%s in %s]\n" % (count, ", ".join(names)))
            elif group:
                lines.extend(traceback.StackSummary.format(traceback.StackSummary.from_list(group), **kwargs))
            group.clear()

        for frame in frames:
            if (fold and is_library(frame.filename)) != library:
                flush()
                library = not library
            group.append(frame)
        flush()
        return lines


def _narrow(report, seen):
    """Gives a TracebackException and all those it is chained to our way of formatting the stack."""
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    if report.stack is not None:
        report.stack = _Stack(report.stack)
    _narrow(report.__cause__, seen)
    _narrow(report.__context__, seen)
    for inner in getattr(report, "exceptions", None) or ():
        _narrow(inner, seen)


def _cut(text, limit):
    if len(text) <= limit:
        return text
    half = limit // 2
    return "%s\n[... %d characters left out ...]\n%s" % (text[:half], len(text) - 2 * half, text[-half:])


def _clean(text):
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def describe(exc):
    """The exception as the ``error`` of a result."""
    try:
        message = str(exc)
    except BaseException:
        message = "<exception str() failed>"
    name = type(exc).__name__
    try:
        report = traceback.TracebackException(type(exc), exc, exc.__traceback__)
        _narrow(report, set())
        text = "".join(report.format()).rstrip("\n")
    except BaseException as problem:
        text = "%s: %s\n[the traceback could not be formatted: %s]" % (name, message, type(problem).__name__)
    if isinstance(exc, SyntaxError) and text.startswith("Traceback"):
        # The stack of a syntax error in a cell is ours alone, so there is nothing under the heading.
        head, _, rest = text.partition("\n")
        if rest.startswith('  File "<cell') and exc.__traceback__ is None:
            text = rest
    error = {
        "type": name,
        "message": _clean(_cut(message, MAX_MESSAGE)),
        "traceback": _clean(_cut(text, MAX_TRACEBACK)),
        "code": "interrupted" if isinstance(exc, KeyboardInterrupt) else "exception",
    }
    limit = limits.of(exc)
    if limit:
        error["limit"] = limit
        whose = "session" if limit["max"] == limits.limits[limit["name"]] else "run"
        reason = "the %s's limit on %s: %d of %d" % (whose, limit["name"], limit["used"], limit["max"])
        error["message"] = "%s (%s)" % (error["message"], reason) if error["message"] else reason
    return error
