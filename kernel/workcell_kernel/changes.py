"""Which variables a cell added, changed and removed. Nothing of the session's code runs for it.

A variable has changed if it has another value, by identity, or if it is one of the interpreter's own containers and has another length. Other
changes inside of objects are not seen.
"""

import _workcell

from .variables import MAX_NAME, is_one_of, is_shown

MAX_NAMES = 100  # CELL_LIMIT_CHANGES
SIZED = (list, dict, set, bytearray)


def size_of(value):
    return len(value) if is_one_of(type(value), SIZED) else 0


def list_names(ns):
    found = []
    for name, value in list(ns.items()):
        if type(name) is str and name and not name.startswith("_"):
            found += (name, value, size_of(value))
    return found


snapshot = getattr(_workcell, "names_before", list_names)  # not in Pyodide
differ = getattr(_workcell, "names_differ", lambda before, ns: None)


def compare(before, ns):
    added, changed, removed = [], [], []
    found = differ(before, ns)
    if found is None:
        found, removed = compare_all(before, ns)
    for name, value, was_there in zip(found[::3], found[1::3], found[2::3]):
        if is_shown(name, value):
            (changed if was_there else added).append(name)
    removed = [name for name, value in removed if is_shown(name, value)]
    more = sum(max(len(each) - MAX_NAMES, 0) for each in (added, changed, removed))
    return {"added": cut(added), "changed": cut(changed), "removed": cut(removed), "more": more}


def compare_all(before, ns):
    """In any order: [name, value, whether it was there, ...] of what differs, and [(name, value), ...] of what is gone."""
    old = {name: (value, length) for name, value, length in zip(before[::3], before[1::3], before[2::3])}
    found = []
    for name, value, length in zip(*[iter(list_names(ns))] * 3):
        was = old.pop(name, None)
        if was is None or was[0] is not value or was[1] != length:
            found += (name, value, was is not None)
    return found, [(name, value) for name, (value, _) in old.items()]


def cut(names):
    return [name[:MAX_NAME] for name in names[:MAX_NAMES]]
