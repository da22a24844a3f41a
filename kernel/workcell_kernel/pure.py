"""Whether a cell changes nothing, told from its source and from the types of what it names, before it runs.

Used with undo: the state before a cell that changes nothing is also the state after it, and needs no point of its own. A wrong "nothing" would
lose a state that a person wants back, so everything that is not known to be harmless counts as a change: every attribute, every call but a few
builtins, every object whose methods may be somebody's code. The history of results (``_``, ``Out``) is not counted.
"""

import ast
import builtins
import sys

MAX_SOURCE = 2000
MAX_ITEMS = 1000
MAX_SEEN = 100
SCALARS = frozenset((int, float, complex, bool, str, bytes, type(None), range))
CONTAINERS = frozenset((list, tuple, set, frozenset, dict))
CALLS = frozenset(("abs", "all", "any", "bool", "divmod", "float", "hash", "int", "isinstance", "len", "max", "min", "print", "range", "repr",
                   "round", "sorted", "str", "sum", "type"))
KEYWORDS = frozenset(("sep", "end", "reverse", "default", "ndigits"))
HARMLESS = (ast.Module, ast.Expr, ast.Pass, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.BinOp, ast.UnaryOp, ast.BoolOp,
            ast.Compare, ast.IfExp, ast.Subscript, ast.Slice, ast.JoinedStr, ast.FormattedValue, ast.Load, ast.operator, ast.unaryop,
            ast.boolop, ast.cmpop)

seen = {}  # source -> needs_of() it: agents and loops repeat themselves


def is_plain(value):
    """Its methods are the interpreter's own, and so are those of what it holds."""
    kind = type(value)
    if kind in SCALARS:
        return True
    if kind in CONTAINERS and len(value) <= MAX_ITEMS:
        items = list(value.values()) + list(value) if kind is dict else value
        return all(type(item) in SCALARS for item in items)
    numpy = sys.modules.get("numpy")
    return numpy is not None and kind is getattr(numpy, "ndarray", None) and value.dtype.kind in "biufcSU"


def needs(node, plain, builtin):
    """Whether it changes nothing, provided that the names that are added to plain lead to plain values, and those in builtin to builtins."""
    if isinstance(node, ast.Name):
        plain.add(node.id)
        return isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Call):
        if not (isinstance(node.func, ast.Name) and node.func.id in CALLS and all(word.arg in KEYWORDS for word in node.keywords)):
            return False
        builtin.add(node.func.id)
        return all(needs(part, plain, builtin) for part in [*node.args, *(word.value for word in node.keywords)])
    return isinstance(node, HARMLESS) and all(needs(part, plain, builtin) for part in ast.iter_child_nodes(node))


def needs_of(source):
    """(names of plain values, names of builtins), or None: it may change something."""
    plain, builtin = set(), set()
    try:
        return (tuple(plain), tuple(builtin)) if needs(ast.parse(source), plain, builtin) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # a magic, or no Python at all


def is_builtin(name, namespace):
    return name not in namespace and getattr(builtins, name, None).__class__ in (type, type(len))


def changes_nothing(source, namespace):
    if source is None or len(source) > MAX_SOURCE:
        return source is None
    if source in seen:
        needed = seen[source]
    else:
        if len(seen) >= MAX_SEEN:
            seen.clear()
        needed = seen[source] = needs_of(source)
    return needed is not None and (all(name in namespace and is_plain(namespace[name]) for name in needed[0])
                                   and all(is_builtin(name, namespace) for name in needed[1]))
