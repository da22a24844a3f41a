"""``workflows`` (also ``skills``): functions that outlive the session, kept by the host as plain source.

The host stores and searches; checking and running happen here, where the packages of the session are. Nothing of a
workflow runs before it is invoked, and each invocation starts from a fresh namespace.
"""

import sys
from _contextvars import ContextVar
from _thread import get_ident

from .awaits import drive, is_needed, soften
from .ns_errors import WorkflowError

MAX_DEPTH = 50
MAX_COMPILED = 64
RESERVED = frozenset(("list", "search", "get", "invoke", "create", "delete"))
INJECTED = ("tools", "workflows", "skills", "artifacts", "deps")

_chain = ContextVar("workflow_chain", default=())
_EXACT = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
_GENERIC = dict(_EXACT)
for _names, _type in ((("List", "Sequence", "MutableSequence", "Iterable", "Collection", "Tuple", "tuple", "Set", "set",
                        "FrozenSet", "frozenset"), "array"),
                      (("Dict", "Mapping", "MutableMapping", "OrderedDict", "DefaultDict", "TypedDict"), "object")):
    _GENERIC.update(dict.fromkeys(_names, _type))


# ---- reading a source, without running it

def check_name(name):
    if not isinstance(name, str):
        raise TypeError("the name of a workflow must be str, not %s" % type(name).__name__)
    if not name.isidentifier() or not name.isascii():
        raise ValueError("Invalid workflow name: %r (must be valid Python identifier)" % name)
    if name.startswith("_"):
        raise ValueError("Invalid workflow name: %r (must not start with an underscore)" % name)
    if name in RESERVED:
        raise ValueError("Reserved workflow name: %r" % name)


def parse(source, filename="<workflow>"):
    """The tree and the one top-level run() of a workflow; SyntaxError or ValueError says what is wrong."""
    import ast

    if not isinstance(source, str):
        raise TypeError("the source of a workflow must be str, not %s" % type(source).__name__)
    try:
        tree = compile(source, filename, "exec", ast.PyCF_ONLY_AST, True)
        compile(source, filename, "exec", 0, True)  # what only the compiler finds: return outside a function, ...
    except SyntaxError as exc:
        where = " (line %d)" % exc.lineno if exc.lineno else ""
        problem = SyntaxError("Syntax error in workflow code: %s%s" % (exc.msg, where))
    except (ValueError, RecursionError, MemoryError) as exc:
        problem = SyntaxError("Syntax error in workflow code: %s" % (exc or type(exc).__name__))
    else:
        return tree, find_run(tree)
    raise problem


def find_run(tree):
    import ast

    found = [node for node in tree.body
             if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == "run"]
    if not found:
        raise ValueError("Workflow must define a 'def run()' or 'async def run()' function at top level")
    if len({type(node) for node in found}) > 1:
        raise ValueError("Workflow must define either 'def run()' or 'async def run()', not both")
    return found[-1]


def annotation_type(node):
    """The JSON type that an annotation stands for."""
    import ast

    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = compile(node.value, "<annotation>", "eval", ast.PyCF_ONLY_AST).body
        except (SyntaxError, ValueError):
            return "string"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [side for side in (node.left, node.right) if not (isinstance(side, ast.Constant) and side.value is None)]
        return annotation_type(sides[0]) if len(sides) == 1 else "string"
    if isinstance(node, ast.Subscript):
        inner = node.slice
        inner = getattr(inner, "value", inner) if type(inner).__name__ == "Index" else inner
        name = _last_name(node.value)
        if name in ("Optional", "Annotated"):
            return annotation_type(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
        if name == "Union":
            members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            members = [m for m in members if not (isinstance(m, ast.Constant) and m.value is None)]
            return annotation_type(members[0]) if len(members) == 1 else "string"
        if name == "Literal":
            members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            kinds = {type(m.value).__name__ for m in members if isinstance(m, ast.Constant)}
            return _EXACT.get(kinds.pop(), "string") if len(kinds) == 1 else "string"
        return _GENERIC.get(name, "string")
    return _GENERIC.get(_last_name(node), "string")


def _last_name(node):
    return getattr(node, "id", None) or getattr(node, "attr", None)


def default_value(node):
    """A literal's value where JSON has it exactly, else the expression as written."""
    import ast

    from .values import encode

    try:
        value = ast.literal_eval(node)
        if encode(value) is not None:
            return value
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    return ast.unparse(node)


def parameters_of(run):
    """[{name, type, description, required, default}] from the def line."""
    arguments = run.args
    if arguments.posonlyargs:
        raise ValueError("Workflow parameters are passed by keyword: run() cannot have positional-only parameters")
    plain = arguments.args
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    found = []
    for argument, default in list(zip(plain, defaults)) + list(zip(arguments.kwonlyargs, arguments.kw_defaults)):
        if argument.arg in INJECTED:
            raise ValueError("Workflow parameter %r is reserved: tools, workflows, artifacts and deps are available without "
                             "being passed" % argument.arg)
        found.append({
            "name": argument.arg,
            "type": annotation_type(argument.annotation),
            "description": "",
            "required": default is None,
            "default": None if default is None else default_value(default),
        })
    return found


def describe(source, filename="<workflow>"):
    """(description from the docstrings, parameters) of a source that is a valid workflow."""
    import ast

    tree, run = parse(source, filename)
    parameters = parameters_of(run)
    text = ast.get_docstring(tree) or ast.get_docstring(run) or ""
    return (text.strip().splitlines() or [""])[0].strip(), parameters


def signature(name, parameters):
    from .ns_tools import signature_text

    return signature_text(name, parameters)


# ---- running

_running = {}  # module name: the modules of that name whose workflow runs, oldest first


class _Entered:
    """While a workflow runs: it is on the chain, and its module can be found (dataclasses and pickle look there)."""

    def __init__(self, name, module):
        self.name, self.module = name, module

    def __enter__(self):
        self.token = _chain.set(_chain.get() + (self.name,))
        key = self.module.__name__
        _running.setdefault(key, []).append(self.module)
        sys.modules[key] = self.module

    def __exit__(self, *exc):
        _chain.reset(self.token)
        key = self.module.__name__
        others = _running[key]
        others.remove(self.module)
        if others:
            sys.modules[key] = others[-1]
        else:
            del _running[key]
            sys.modules.pop(key, None)


class Workflow:
    """One workflow, to be called with keyword arguments."""

    __slots__ = ("_space", "_record")

    def __init__(self, space, record):
        self._space, self._record = space, record

    def __call__(self, /, *args, **kwargs):
        if args:
            raise TypeError("workflows.%s() takes keyword arguments only: %s" % (self._record["name"], self._usage()))
        return self._space._invoke(self._record["name"], kwargs)

    def __getattr__(self, name):
        if name == "__signature__":
            from .ns_tools import signature_object

            return signature_object(self._record.get("parameters"))
        if name in ("__name__", "__qualname__"):
            return self._record["name"] if name == "__name__" else "workflows." + self._record["name"]
        raise AttributeError("workflows.%s has no attribute %r" % (self._record["name"], name))

    @property
    def __doc__(self):
        from .ns_tools import doc_text

        return doc_text("workflows." + self._usage(), self._record.get("description"), self._record.get("parameters"))

    def __dir__(self):
        return ["__call__", "__doc__", "__name__"]

    def _usage(self):
        return signature(self._record["name"], self._record.get("parameters"))

    def __repr__(self):
        words = self._record.get("description")
        return "workflows.%s%s" % (self._usage(), ": " + words if words else "")


class WorkflowsNamespace:
    """Functions kept beyond the session.

    workflows.create(name, source, description="", overwrite=False)   source defines def run(...) or async def run(...)
    workflows.list()   workflows.search(query, limit=5)   workflows.get(name)   workflows.delete(name)
    workflows.name(**arguments)   workflows.invoke(name, **arguments)
    """

    __slots__ = ("_channel", "_injected", "_run_coroutine", "_main", "_compiled")

    def __init__(self, channel, run_coroutine=None):
        self._channel = channel
        self._injected = {}
        self._run_coroutine = run_coroutine
        self._main = get_ident()
        self._compiled = {}

    def list(self):
        """Lists the stored workflows: [{name, description, params}]."""
        return [summary(each) for each in self._channel.call("workflows.list")[0]]

    def search(self, query, limit=5):
        """Searches workflows by a description of the task, best match first, as list() shows them."""
        return [summary(each) for each in self._channel.call("workflows.search", {"query": query, "limit": limit})[0]]

    def get(self, name):
        """Returns a workflow with its source, {name, description, source, params, parameters}, or None."""
        record = self._fetch(name)
        if record is None:
            return None
        found = {"name": record["name"], "description": record.get("description") or "", "source": record["source"]}
        found["params"] = params(record["parameters"])
        found["parameters"] = record["parameters"]
        return found

    def create(self, name, source, description="", overwrite=False):
        """Stores a workflow, which code calls as workflows.NAME(...). The source must define run(); it is read, not executed."""
        check_name(name)
        words, parameters = describe(source, "<workflow:%s>" % name)
        request = {"name": name, "source": source, "description": description or words, "parameters": parameters,
                   "overwrite": bool(overwrite)}
        result = self._channel.call("workflows.create", request)[0]
        return summary(result if isinstance(result, dict) else request)

    def delete(self, name):
        """Deletes a workflow, and returns whether it existed."""
        return bool(self._channel.call("workflows.delete", {"name": name})[0])

    def invoke(self, /, *args, **kwargs):
        """invoke(workflow_name, **arguments): runs it and returns what its run() returns."""
        if not args:
            for key in ("workflow_name", "skill_name"):
                if key in kwargs:
                    args = (kwargs.pop(key),)
                    break
        if len(args) != 1:
            raise TypeError("workflows.invoke(workflow_name, **arguments) takes one positional argument, %d given"
                            % len(args))
        return self._invoke(args[0], kwargs)

    def __getattr__(self, name):
        if name[:1] == "_":
            raise AttributeError("names that start with an underscore are not workflows: %r" % name)
        record = self._fetch(name)
        if record is None:
            raise AttributeError("Workflow not found: %s" % name)
        return Workflow(self, record)

    def __getitem__(self, name):
        record = self._fetch(name)
        if record is None:
            raise KeyError(name)
        return Workflow(self, record)

    def __dir__(self):
        names = sorted(RESERVED)
        try:
            names += [each["name"] for each in self._channel.call("workflows.list")[0]]
        except Exception:
            pass  # completion shows what is known
        return names

    def __repr__(self):
        try:
            count = len(self._channel.call("workflows.list")[0])
        except Exception:
            return "<workflows>"
        return "<workflows: %d>" % count

    # -- running

    def _fetch(self, name):
        if not isinstance(name, str):
            raise TypeError("the name of a workflow must be str, not %s" % type(name).__name__)
        record, raw = self._channel.call("workflows.get", {"name": name})
        if record is None:
            return None
        if raw is not None:
            record["source"] = raw.decode("utf-8")
        if record.get("parameters") is None:
            # Written by hand: the host does not read Python.
            try:
                record["parameters"] = describe(record["source"])[1]
            except (SyntaxError, ValueError):
                record["parameters"] = []
        return record

    def _invoke(self, name, kwargs):
        record = self._fetch(name)
        if record is None:
            raise ValueError("Workflow not found: %s" % name)
        if not record.get("source"):
            raise ValueError("Workflow has no source: %s" % name)
        chain = _chain.get()
        if len(chain) >= MAX_DEPTH:
            raise WorkflowError("workflows call each other more than %d deep: %s -> ... -> %s"
                                % (MAX_DEPTH, " -> ".join(chain[:3]), name), "workflows", "invoke", "RecursionError")
        from types import CoroutineType, ModuleType

        module = ModuleType("workflow:" + name)
        space = module.__dict__
        space.update(self._injected)
        entered = _Entered(name, module)
        with entered:
            exec(self._compile(name, record["source"]), space)
            result = self._start(name, space, kwargs)
        if not isinstance(result, CoroutineType):
            return result
        driven = drive(entered, result)
        if self._in_loop():
            return driven
        if get_ident() == self._main and self._run_coroutine is not None:
            return self._run_coroutine(driven)
        import asyncio

        return asyncio.run(driven)

    def _compile(self, name, source):
        import linecache

        filename = "<workflow:%s>" % name
        linecache.cache[filename] = (len(source), None, [line + "\n" for line in source.split("\n")], filename)
        code = self._compiled.get((name, source))
        if code is None:
            code = compile(source, filename, "exec", 0, True)
            if is_needed(source):
                import ast

                tree = soften(compile(source, filename, "exec", ast.PyCF_ONLY_AST, True), source)
                code = compile(tree, filename, "exec", 0, True)
            while len(self._compiled) >= MAX_COMPILED:
                self._compiled.pop(next(iter(self._compiled)), None)
            self._compiled[name, source] = code
        return code

    @staticmethod
    def _start(name, space, kwargs):
        run = space.get("run")
        if not callable(run):
            raise ValueError("Workflow %s must define a 'def run()' or 'async def run()' function at top level" % name)
        try:
            return run(**kwargs)
        except TypeError as exc:
            if exc.__traceback__.tb_next is not None:
                raise  # the workflow's own
            import inspect

            problem = TypeError("%s\nSignature: %s%s" % (str(exc).replace("run()", "workflows.%s()" % name, 1), name,
                                                         inspect.signature(run)))
        raise problem

    @staticmethod
    def _in_loop():
        asyncio = sys.modules.get("asyncio")
        if asyncio is None:
            return False
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True


def params(parameters):
    return {p["name"]: p.get("description") or p.get("type") or "string" for p in parameters or ()}


def summary(record):
    """A workflow as lists show it."""
    found = record.get("params")
    return {
        "name": record.get("name"),
        "description": record.get("description") or "",
        "params": params(record.get("parameters")) if found is None else found,
    }
