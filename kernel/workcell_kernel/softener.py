"""Rewriting the namespace calls of async code in a syntax tree: what and why is in awaits.py."""

import ast

from .awaits import NAMES, SETTLED, VALUED

_WORKFLOWS = frozenset(("workflows", "skills"))
#: Functions of asyncio that take coroutines.
_TAKERS = frozenset(("gather", "wait", "wait_for", "create_task", "ensure_future", "shield", "as_completed",
                     "run_coroutine_threadsafe"))
_COLLECT = frozenset(("append", "add"))
#: Expressions that hand on what is in them.
_CARRIERS = (ast.List, ast.Tuple, ast.Set, ast.Starred, ast.ListComp, ast.SetComp, ast.GeneratorExp)


def rewrite(tree):
    return _Softener(_awaited_names(tree)).visit(tree)


def _root(node):
    """The name that a chain of calls, attributes and subscripts begins with."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if type(node) is ast.Call else node.value
    return node.id if type(node) is ast.Name else None


def _last_name(node):
    return getattr(node, "attr", None) or getattr(node, "id", None)


def _awaited_names(tree):
    """Variables that hold coroutines: they are awaited, or handed to gather() and its like, further on."""
    found, loops = set(), []
    for node in ast.walk(tree):
        given = []
        if type(node) is ast.Await:
            given = [node.value]
        elif type(node) is ast.Call and _last_name(node.func) in _TAKERS:
            given = [each.value if type(each) is ast.Starred else each for each in node.args]
        elif isinstance(node, (ast.For, ast.comprehension)):
            loops.append(node)
        found.update(each.id for each in given if type(each) is ast.Name)
    found.update(each.iter.id for each in loops
                 if type(each.iter) is ast.Name and type(each.target) is ast.Name and each.target.id in found)
    return found


class _Softener(ast.NodeTransformer):
    """``taken``: somebody awaits what the node that is visited next gives."""

    taken = False

    def __init__(self, awaited):
        self.awaited = awaited

    def visit(self, node):
        taken = self.taken
        self.taken = taken and isinstance(node, _CARRIERS)
        how = getattr(self, "on_" + type(node).__name__, None)
        node = how(node, taken) if how is not None else self.generic_visit(node)
        self.taken = taken
        return node

    def inner(self, node, taken):
        self.taken = taken
        try:
            return self.visit(node)
        finally:
            self.taken = False

    def on_Await(self, node, taken):
        ours = type(node.value) is ast.Call and _root(node.value) in NAMES
        node.value = self.inner(node.value, True)
        if ours:
            node.value = _call(SETTLED, node.value)
        return node

    def on_Call(self, node, taken):
        ours = _root(node) in _WORKFLOWS
        func = node.func
        takes = _last_name(func) in _TAKERS or type(func) is ast.Attribute and func.attr in _COLLECT and self.holds(func.value)
        node.func = self.visit(func)
        node.args = [self.inner(each, takes) for each in node.args]
        node.keywords = [self.visit(each) for each in node.keywords]
        return _call(VALUED, node) if ours and not taken else node

    def on_IfExp(self, node, taken):
        node.test = self.visit(node.test)
        node.body, node.orelse = self.inner(node.body, taken), self.inner(node.orelse, taken)
        return node

    def on_Assign(self, node, taken):
        node.targets = [self.visit(each) for each in node.targets]
        node.value = self.inner(node.value, any(map(self.holds, node.targets)))
        return node

    def on_NamedExpr(self, node, taken):
        node.value = self.inner(node.value, self.holds(node.target))
        return node

    def holds(self, node):
        return type(node) is ast.Name and node.id in self.awaited


def _call(helper, node):
    return ast.copy_location(ast.Call(ast.copy_location(ast.Name(helper, ast.Load()), node), [node], []), node)
