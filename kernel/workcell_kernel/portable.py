"""Values that JSON cannot represent, in a form that another Python can read: for hosts that request it.

Nothing is pickled: the host must be able to read what hostile code sends.
"""

import sys

PREFIX = "application/vnd.workcell.value."
MAX_BYTES = 64 * 1024 * 1024
MAX_LITERAL = 8 * 1024 * 1024
MAX_DEPTH = 100

_SCALARS = frozenset((int, float, complex, str, bytes, bool, type(None)))
_CONTAINERS = frozenset((list, tuple, set, frozenset, dict))
# Types of modules that the code may have imported, whose repr() is a call of them with plain arguments.
_CALLS = {"datetime": ("datetime", "date", "time", "timedelta"), "decimal": ("Decimal",), "uuid": ("UUID",)}


def _is_call(value):
    if type(value) is bytearray:
        return True
    module = type(value).__module__
    found = sys.modules.get(module)
    return found is not None and any(type(value) is getattr(found, name, None) for name in _CALLS.get(module, ()))


def _literal(value, depth):
    """Whether repr() represents the value exactly."""
    if type(value) in _SCALARS or _is_call(value):
        return True
    if type(value) not in _CONTAINERS or depth > MAX_DEPTH:
        return False
    if type(value) is dict and not all(_literal(key, depth + 1) for key in value):
        return False
    return all(_literal(each, depth + 1) for each in (value.values() if type(value) is dict else value))


def _array(value):
    import io

    import numpy

    if value.nbytes > MAX_BYTES or value.dtype.hasobject:
        return None
    buffer = io.BytesIO()
    numpy.save(buffer, value, allow_pickle=False)
    return PREFIX + "npy", buffer.getvalue()


def _of_ours(value):
    """(kind, data) of what calls of the namespaces give, or None."""
    from .ns_artifacts import ArtifactMeta
    from .ns_deps import SyncResult

    if type(value) is SyncResult:
        return "sync", value._asdict()
    if type(value) is ArtifactMeta:
        return "artifact", dict(value)
    if type(value) is list and value and all(type(each) is ArtifactMeta for each in value):
        return "artifacts", list(map(dict, value))
    return None


def part(value):
    """(MIME type, bytes), or None where there is no such form; whatever goes wrong, the value's repr is there."""
    try:
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if isinstance(value, numpy.ndarray):
                return _array(value)
            if isinstance(value, numpy.generic):
                value = value.item()
        pandas = sys.modules.get("pandas")
        if pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series)):
            from .ns_artifacts import table_to_bytes

            used = value.memory_usage()
            if (used if isinstance(used, int) else used.sum()) > MAX_BYTES:
                return None
            kind, data = table_to_bytes(value, pandas)
            return PREFIX + kind, bytes(data)
        ours = _of_ours(value) if type(value) not in _SCALARS else None
        if ours is not None:
            from json import dumps

            data = dumps(ours[1]).encode("utf-8")
            return (PREFIX + ours[0], data) if len(data) <= MAX_LITERAL else None
        if _literal(value, 0):
            from .values import any_digits

            with any_digits():
                data = repr(value).encode("utf-8")
            return (PREFIX + "literal", data) if len(data) <= MAX_LITERAL else None
    except Exception:
        return None
    return None
