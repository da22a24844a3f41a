"""The variables of a session: names, types, sizes and short previews.

Nothing of the session's code runs: no ``repr``, no property, no ``__len__`` of its classes. Values of the interpreter's own types are shown;
of others the type alone, and of numpy's arrays what their C fields say.
"""

import sys
from json import dumps

from .ns_errors import EXPORTED

MAX_VARIABLES = 1000
MAX_PREVIEW = 120
MAX_ITEMS = 8
MAX_NAME = 200
MAX_BITS = 512

_NAME, _MODULE = type.__dict__["__name__"].__get__, type.__dict__["__module__"].__get__
_FLAGS = type.__dict__["__flags__"].__get__
_HEAP_TYPE = 1 << 9
_CONTAINERS = ((list, "[]"), (tuple, "()"), (set, "{}"), (frozenset, "{}"), (dict, "{}"))
_SIMPLE = (bool, float, complex, type(None))
_KEYS = (str, int, bytes, bool, type(None))
_FUNCTIONS = (type(lambda: 0), type(len))


def is_one_of(cls, classes):
    """By identity: a metaclass may have an __eq__ or a __hash__ of the session's."""
    return any(cls is each for each in classes)


def brackets_of(cls):
    return next((brackets for each, brackets in _CONTAINERS if cls is each), None)


def answer(ns):
    """JSON: {"variables": [{"name", "type", "size", "preview"}], "more"}, in the order in which they were made."""
    found = [(name, value) for name, value in list(ns.items()) if type(name) is str and is_shown(name, value)]
    listed = [describe(name, value) for name, value in found[:MAX_VARIABLES]]
    return dumps({"variables": listed, "more": max(len(found) - MAX_VARIABLES, 0)}).encode()


def is_shown(name, value):
    """Not names of ours, nor those that Python and IPython keep for themselves."""
    if name.startswith("_") or name in ("In", "Out", "exit", "quit", "get_ipython"):
        return False
    owner = module_of(type(value))
    if is_one_of(type(value), _FUNCTIONS):
        owner = value.__module__ if type(value.__module__) is str else ""
    return owner.partition(".")[0] != __package__ and EXPORTED.get(name) is not value


def describe(name, value):
    return {"name": name[:MAX_NAME], "type": type_name(type(value)), "size": size_of(value), "preview": preview(value)}


def module_of(cls):
    try:
        module = _MODULE(cls)
    except AttributeError:
        return ""
    return module if type(module) is str else ""


def type_name(cls):
    module, name = module_of(cls), _NAME(cls)
    return (name if module in ("builtins", "__main__", "") else "%s.%s" % (module, name))[:MAX_NAME]


def is_array(value):
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is getattr(numpy, "ndarray", None) and not _FLAGS(type(value)) & _HEAP_TYPE


def size_of(value):
    """Bytes of the value itself, without what it refers to."""
    cls = type(value)
    if is_array(value):
        return cls.nbytes.__get__(value)
    try:
        return (object if _FLAGS(cls) & _HEAP_TYPE else cls).__sizeof__(value)
    except Exception:
        return None


def preview(value):
    if is_array(value):
        cls = type(value)
        return "%s %s" % (cls.dtype.__get__(value).str, cls.shape.__get__(value))
    return cut(plain(value, MAX_ITEMS)) or ""


def cut(text):
    return text if len(text) <= MAX_PREVIEW else text[:MAX_PREVIEW - 1] + "\u2026"


def plain(value, items):
    """items: of a container; 0: containers are not looked into."""
    cls = type(value)
    if is_one_of(cls, _SIMPLE):
        return repr(value)
    if cls is int:
        return repr(value) if value.bit_length() <= MAX_BITS else "int of %d bits" % value.bit_length()
    if cls is str or cls is bytes:
        return repr(value[:MAX_PREVIEW])
    brackets = brackets_of(cls)
    if brackets and items:
        return inside(value, brackets, items)
    if brackets:
        return "%s of %d" % (_NAME(cls), len(value))
    return "<%s>" % type_name(cls) if items != MAX_ITEMS else ""


def inside(value, brackets, items):
    shown, total = [], len(value)
    for each in value:
        if len(shown) == items:
            shown.append("\u2026 (%d)" % total)
            break
        if type(value) is dict:
            shown.append("%s: %s" % (plain(each, 0), plain(value[each], 0) if is_one_of(type(each), _KEYS) else "\u2026"))
        else:
            shown.append(plain(each, 0))
    return brackets[0] + ", ".join(shown) + brackets[1]
