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
SCALARS = frozenset((int, float, complex, bool, str, bytes, type(None), range))
CONTAINERS = frozenset((list, tuple, set, frozenset, dict))
CALLS = frozenset(("abs", "all", "any", "bool", "divmod", "float", "hash", "int", "isinstance", "len", "max", "min", "print", "range", "repr",
                   "round", "sorted", "str", "sum", "type"))
KEYWORDS = frozenset(("sep", "end", "reverse", "default", "ndigits"))
HARMLESS = (ast.Module, ast.Expr, ast.Pass, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.BinOp, ast.UnaryOp, ast.BoolOp,
            ast.Compare, ast.IfExp, ast.Subscript, ast.Slice, ast.JoinedStr, ast.FormattedValue, ast.Load, ast.operator, ast.unaryop,
            ast.boolop, ast.cmpop)


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


def is_builtin(node, namespace):
    return (isinstance(node, ast.Name) and node.id in CALLS and node.id not in namespace
            and getattr(builtins, node.id, None).__class__ in (type, type(len)))


def is_harmless(node, namespace):
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Load) and node.id in namespace and is_plain(namespace[node.id])
    if isinstance(node, ast.Call):
        return (is_builtin(node.func, namespace) and all(word.arg in KEYWORDS for word in node.keywords)
                and all(is_harmless(part, namespace) for part in [*node.args, *(word.value for word in node.keywords)]))
    return isinstance(node, HARMLESS) and all(is_harmless(part, namespace) for part in ast.iter_child_nodes(node))


def changes_nothing(source, namespace):
    if source is None or len(source) > MAX_SOURCE:
        return source is None
    try:
        return is_harmless(ast.parse(source), namespace)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # a magic, or no Python at all
