"""Which variables a cell added, changed and removed. Nothing of the session's code runs for it.

A variable has changed if it has another value, by identity, or if it is one of the interpreter's own containers and has another length. Other
changes inside of objects are not seen.
"""

from .variables import MAX_NAME, is_one_of, is_shown

MAX_NAMES = 100  # CELL_LIMIT_CHANGES
SIZED = (list, dict, set, bytearray)


def size_of(value):
    return len(value) if is_one_of(type(value), SIZED) else 0


def snapshot(ns):
    """{name: (value, length)}. It keeps the values: an address that is used again would look like the same object."""
    return {name: (value, size_of(value)) for name, value in ns.items() if type(name) is str and not name.startswith("_")}


def compare(before, ns):
    added, changed, removed = [], [], []
    for name, value in list(ns.items()):
        if type(name) is not str or name.startswith("_"):
            continue
        old = before.pop(name, None)
        if old is not None and old[0] is value and old[1] == size_of(value):
            continue
        if is_shown(name, value):
            (added if old is None else changed).append(name)
    removed += [name for name, (value, _) in before.items() if is_shown(name, value)]
    more = sum(max(len(each) - MAX_NAMES, 0) for each in (added, changed, removed))
    return {"added": cut(added), "changed": cut(changed), "removed": cut(removed), "more": more}


def cut(names):
    return [name[:MAX_NAME] for name in names[:MAX_NAMES]]
