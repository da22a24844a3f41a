"""``await tools.x.y()`` where the call itself already waits.

Agents write namespace calls with and without ``await``; both mean the same. Python has no hook for awaiting a value that is
not awaitable, so the few awaits of such calls are rewritten in the syntax tree.
"""

import ast
import builtins

NAMES = frozenset(("tools", "workflows", "skills", "artifacts", "deps"))
_HELPER = "__workcell_settled__"


async def settled(value):
    return await value if hasattr(type(value), "__await__") else value


def _is_ours(node):
    """Whether this is a call below one of the namespaces."""
    if type(node) is not ast.Call:
        return False
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if type(node) is ast.Call else node.value
    return type(node) is ast.Name and node.id in NAMES


class _Softener(ast.NodeTransformer):
    def visit_Await(self, node):
        self.generic_visit(node)
        if _is_ours(node.value):
            name = ast.copy_location(ast.Name(_HELPER, ast.Load()), node.value)
            node.value = ast.copy_location(ast.Call(name, [node.value], []), node.value)
        return node


def soften(tree, source):
    """The tree with its awaits of namespace calls rewritten. Costs nothing without such awaits."""
    if "await" not in source or not any(name in source for name in NAMES):
        return tree
    setattr(builtins, _HELPER, settled)
    return _Softener().visit(tree)
