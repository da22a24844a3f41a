"""A value as JSON, if JSON can represent it exactly.

Exact means: a reader who turns the JSON back into Python has an equal value of the same types. So ints of any size,
finite floats, str, bool, None, lists, and dicts with str keys, of exactly these types; not tuples, not subclasses,
not nan or inf, not strings with lone surrogates.
"""

import json
import sys

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 200


class Record(dict):
    """JSON data from the host whose members are attributes too. A value of the code as the dict that it is."""

    __slots__ = ()

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __dir__(self):
        return list(dict.__dir__(self)) + list(self)

    def __copy__(self):
        return type(self)(self)


def recorded(value):
    """The same data with records instead of dicts."""
    if type(value) is dict:
        return Record({key: recorded(each) for key, each in value.items()})
    return [recorded(each) for each in value] if type(value) is list else value


_SCALARS = frozenset((int, float, str, bool, type(None)))
class Listing(list):
    """Descriptions of tools, which it shows as signatures: their whole data costs whoever reads it twenty times as much."""

    __slots__ = ()

    def __repr__(self):
        return "\n".join(each.brief() for each in self) if self else "[]"


class ToolRecord(Record):
    """A tool as listed: {name, description, tags, callables}."""

    __slots__ = ()

    def brief(self, most=None):
        """The signatures of its callables, a line each; of many those that a search found best come first."""
        from .ns_tools import signature_text, written

        name = self.get("name") or ""
        head = "tools.%s" % name if name.isidentifier() else "tools[%r]" % name
        callables = self.get("callables") or []
        lines = [signature_text("    ." + written(each), each.get("parameters"), True) for each in callables[:most]]
        if len(lines) < len(callables):
            lines.append("    # and %d more: %s.signature()" % (len(callables) - len(lines), head))
        note = self.get("problem") or self.get("description") or ""
        return "\n".join(["%s: %s" % (head, note.partition("\n")[0]) if note else head] + lines)

    __repr__ = brief


class FoundTool(ToolRecord):
    __slots__ = ()

    def brief(self, most=8):
        return ToolRecord.brief(self, most)

    __repr__ = brief


_DICTS = frozenset((dict, Record, ToolRecord, FoundTool))
_LISTS = frozenset((list, Listing))
_CONTAINERS = _DICTS | _LISTS
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_set_digits = getattr(sys, "set_int_max_str_digits", None)


def _exact(value, depth):
    if depth > MAX_DEPTH:
        return False
    if type(value) in _DICTS:
        if set(map(type, value)) - {str}:
            return False
        members = value.values()
    else:
        members = value
    kinds = set(map(type, members))
    if kinds <= _SCALARS:
        return True
    if not kinds <= _SCALARS | _CONTAINERS:
        return False
    return all(_exact(member, depth + 1) for member in members if type(member) in _CONTAINERS)


class any_digits:
    """Lifts the limit on the digits of an int for as long as our own code prints one."""

    def __enter__(self):
        if _set_digits:
            self.limit = sys.get_int_max_str_digits()
            _set_digits(0)

    def __exit__(self, *exc):
        if _set_digits:
            _set_digits(self.limit)


def encode(value):
    """JSON as bytes, or None when that would not be exact."""
    kind = type(value)
    if kind is int and -(1 << 63) < value < (1 << 63):
        return b"%d" % value
    if kind in _CONTAINERS:
        if not _exact(value, 0):
            return None
    elif kind not in _SCALARS:
        return None
    try:
        with any_digits():
            text = _dumps(value).encode()
    except (ValueError, RecursionError, MemoryError):
        return None  # nan, inf, a lone surrogate, a container that holds itself
    return text if len(text) <= MAX_BYTES else None
