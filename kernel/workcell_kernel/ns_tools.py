"""``tools``: the functions of the host that code can call.

    tools.list()  tools.search("fetch")  tools.curl.get(url="...")  tools.curl(...)  tools["my-tool"]["list"](...)

The host checks arguments and knows the tools; nothing here decides from memory. A name found once makes no more round
trips than its calls; an unknown one asks again, whatever shows a signature asks first, and a call of what is gone fails
in the words of an unknown name.
"""

import keyword
from json import dumps, loads

from . import calltext
from .ns_errors import CodeModeError, ToolCallError, ToolNotFoundError
from .rpc import encode_after
from .values import FoundTool, Listing, ToolRecord, recorded

try:
    from _workcell import Caller  # calls _call() for what is not plain
except ImportError:
    class Caller:
        __slots__ = ("_head", "_link", "_quick")

        def __call__(self, /, *args, **kwargs):
            return self._call(args, kwargs)

_TYPES = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict",
    "null": "None",
}
_ANNOTATIONS = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}


def type_text(parameter):
    kind = parameter.get("type") or "str"
    if isinstance(kind, list):
        return " | ".join(_TYPES.get(k, str(k)) for k in kind)
    return _TYPES.get(kind, str(kind))


def written(each):
    """The name of a callable or a parameter as code can write it."""
    return each.get("alias") or each.get("name") or ""


def fragment(parameter, brief=False):
    """One parameter as a signature shows it; briefly without ``| None``."""
    text = "%s: %s" % (written(parameter), type_text(parameter))
    if parameter.get("required"):
        return text
    if parameter.get("default") is not None:
        return "%s = %r" % (text, parameter["default"])
    return text + (" = None" if brief else " | None = None")


def in_order(parameters):
    """Required ones first, otherwise as defined."""
    return sorted(parameters or (), key=lambda parameter: not parameter.get("required"))


def signature_text(name, parameters, brief=False):
    return "%s(%s)" % (name, ", ".join(fragment(each, brief) for each in in_order(parameters)))


def listed(result, kind):
    """The tools of an answer of the host."""
    return Listing(kind(recorded(each)) for each in (result["tools"] if isinstance(result, dict) else result))


def signature_object(parameters):
    """The same as an inspect.Signature. What cannot be a Python name goes into ``**arguments``."""
    import inspect

    made, rest = [], parameters is None
    for parameter in in_order(parameters):
        name, kind = str(written(parameter)), type_text(parameter)
        if not name.isidentifier() or keyword.iskeyword(name):
            rest = True
            continue
        default = inspect.Parameter.empty if parameter.get("required") else parameter.get("default")
        made.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default,
                                      annotation=_ANNOTATIONS.get(kind, kind)))
    if rest:
        made.append(inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(made)


def doc_text(head, description, parameters):
    lines = [head, "", description or "", ""]
    if parameters:
        lines.append("Parameters (by keyword):")
        for parameter in in_order(parameters):
            words = parameter.get("description") or ""
            lines.append("    %s%s" % (fragment(parameter), "  " + words if words else ""))
    return "\n".join(lines).rstrip()


def private(name):
    return AttributeError("names that start with an underscore are not tools: %r" % name)


def aim(caller, channel, path):
    """Makes it the caller of what goes by this name, by the shortest way that the channel has."""
    # A call as it travels, up to its arguments: the same every time.
    caller._head = calltext.HEAD + dumps(path).encode() + calltext.MIDDLE
    caller._quick = getattr(channel, "is_quick", False)
    caller._link = getattr(channel, "direct", None)


def value_of(result, raw):
    """What a tool answered. Text and JSON of a tool travel raw, so that nothing is escaped on the way."""
    kind = result.get("raw")
    if kind is None:
        return result["value"]
    if kind == "bytes":
        return raw or b""
    if kind == "parts":
        from .ns_parts import from_parts

        return from_parts(result["parts"], raw or b"")
    text = raw.decode("utf-8", "replace") if raw else ""
    return loads(text) if kind == "json" else text


class _Named:
    """Things by name, as attributes. One that was found once stands in ``__dict__``: asked for again it costs no call."""

    __slots__ = ("__dict__",)

    def __getattr__(self, name):
        if name[:1] == "_":
            return self._special(name)
        found = self.__dict__[name] = self[name]
        return found

    def __setattr__(self, name, value):
        if name[:1] != "_":
            raise AttributeError("only the host can define tools: %r cannot be set" % name)
        object.__setattr__(self, name, value)

    def _special(self, name):
        raise private(name)


class _Call(Caller):
    """What a tool and one of its callables have in common: they can be called."""

    __slots__ = ()

    def _bind(self, space):
        self._space = space
        aim(self, space._channel, self._path())

    def _call(self, args, kwargs):
        if args:
            raise self._positional()
        try:
            data = encode_after(self._head, kwargs, calltext.TAIL)
            result, raw = self._space._channel.call("tools.call", data=data)
        except (CodeModeError, TypeError) as exc:
            failure = self._explain(exc)
        else:
            return value_of(result, raw)
        raise failure

    def _settle(self, frame):
        """What came of a call that took the short way: an answer that only needs a closer look, or an error."""
        try:
            result, raw = self._space._channel.result_of(frame)
        except (CodeModeError, TypeError) as exc:
            failure = self._explain(exc)
        else:
            return value_of(result, raw)
        raise failure

    def call_sync(self, /, *args, **kwargs):
        """Calls the tool and waits, like a plain call."""
        return self(*args, **kwargs)

    async def call_async(self, /, *args, **kwargs):
        """Calls the tool; other tasks go on meanwhile, and many calls may be under way at once."""
        if args:
            raise self._positional()
        try:
            data = encode_after(self._head, kwargs, calltext.TAIL)
            result, raw = await self._space._channel.call_async("tools.call", data=data)
        except (CodeModeError, TypeError) as exc:
            failure = self._explain(exc)
        else:
            return value_of(result, raw)
        raise failure

    def _positional(self):
        return TypeError("tools.%s() takes keyword arguments only: %s" % (self._path(), self._usage()))

    def _explain(self, exc):
        """The exception to raise instead: one that says what is expected."""
        if isinstance(exc, ToolNotFoundError) or getattr(exc, "code", None) == "not_found":
            try:
                self._space._refresh(self._path().partition(".")[0])
                self._specification()
            except AttributeError as unknown:
                return unknown.with_traceback(None)
            return exc
        wrong_arguments = isinstance(exc, (TypeError, ValueError))
        if wrong_arguments and not isinstance(exc, CodeModeError):
            return TypeError("tools.%s(): %s\nSignature: %s" % (self._path(), exc, self._usage()))
        if wrong_arguments or exc.code == "invalid":
            usage = self._usage()
            if usage and usage not in str(exc):
                exc.args = ("%s\nSignature: %s" % (exc, usage),) + exc.args[1:]
        return exc

    def _usage(self):
        try:
            self._space._refresh(self._path().partition(".")[0])
            return self._signature_with(self._path())
        except Exception:
            return self._path() + "(...)"

    def __repr__(self):
        try:
            self._space._refresh(self._path().partition(".")[0])
            return self._text()
        except Exception:  # no host to ask: a forked child, a session that ends
            return "<tools.%s>" % self._path()

    def __eq__(self, other):
        return type(other) is type(self) and other._path() == self._path() and other._space is self._space

    def __hash__(self):
        return hash(self._path())


class Callable(_Call):
    """One callable of a tool: ``tools.curl.get``."""

    __slots__ = ("_space", "_tool", "_name")

    def __init__(self, space, tool, name):
        self._tool, self._name = tool, name  # the name as the host has it
        self._bind(space)

    def signature(self):
        """``get(url: str, ...)``"""
        self._space._refresh(self._tool)
        return self._signature_with(written(self._specification()))

    def describe(self):
        """What each parameter means: {name: description}."""
        self._space._refresh(self._tool)
        return {written(p): p.get("description") or "" for p in self._specification().get("parameters") or ()}

    def schema(self):
        """JSON Schemas of its arguments and of its result: {"input": {...}, "output": {...} or None}.

        Where an MCP server declares no output, but its answers had one shape, {"learned": {...}} has the schema of that.
        """
        self._space._refresh(self._tool)
        return self._space._schemas(self._tool, self._specification())

    def __getattr__(self, name):
        if name == "__signature__":
            self._space._refresh(self._tool)
            return signature_object(self._specification().get("parameters") or ())
        if name in ("__name__", "__qualname__"):
            return self._name if name == "__name__" else "tools." + self._path()
        raise AttributeError("tools.%s has no attribute %r" % (self._path(), name))

    @property
    def __doc__(self):
        try:
            self._space._refresh(self._tool)
            specification = self._specification()
        except Exception:
            return None
        head = self._signature_with("tools.%s.%s" % (self._tool, written(specification)))
        return doc_text(head, specification.get("description"),
                        specification.get("parameters"))

    def __dir__(self):
        return ["call_async", "call_sync", "describe", "schema", "signature", "__call__", "__doc__", "__name__"]

    def _path(self):
        return "%s.%s" % (self._tool, self._name)

    def _specification(self):
        return self._space._callable(self._tool, self._name)

    def _signature_with(self, name):
        specification = self._specification()
        text = signature_text(name, specification.get("parameters"))
        return "%s -> %s" % (text, specification["result"]) if specification.get("result") else text

    def _text(self):
        specification = self._specification()
        text = self._signature_with("%s.%s" % (self._tool, written(specification)))
        return "%s: %s" % (text, specification["description"]) if specification.get("description") else text


class Tool(_Call, _Named):
    """One tool: ``tools.curl``. Its callables are attributes, and items where the name is not a Python name."""

    __slots__ = ("_space", "_name", "_callables")

    def __init__(self, space, name):
        self._name, self._callables = name, {}
        self._bind(space)

    def _known(self):
        """Its callables. A server that has none, for a reason, says it: an empty list would look like an answer."""
        self._space._refresh(self._name)
        tool = self._specification()
        if tool.get("problem") and not tool.get("callables"):
            raise ToolCallError("Tool '%s' failed: %s" % (self._name, tool["problem"]), "tools", "list")
        return tool.get("callables") or []

    def list(self):
        """The tool's callables: [{name, description, parameters}]."""
        # A copy: what the caller does with it must not change what we know.
        return recorded(self._known())

    def describe(self):
        """What each callable does: {name: description}."""
        return {c.get("name"): c.get("description") or "" for c in self._known()}

    def signature(self):
        """The signatures of all callables, a line each."""
        self._known()
        return self._signature_with("")

    def _special(self, name):
        if name == "__signature__":
            self._space._refresh(self._name)
            return signature_object(self._own_parameters())
        if name in ("__name__", "__qualname__"):
            return self._name if name == "__name__" else "tools." + self._name
        raise private(name)

    def __getitem__(self, name):
        space = self._space
        made = self._callables.get(name)
        if made is None:
            known = space._callable(self._name, name)["name"]
            made = self._callables.setdefault(known, Callable(space, self._name, known))
            self._callables[name] = made
        return made

    @property
    def __doc__(self):
        try:
            self._space._refresh(self._name)
            specification = self._specification()
            lines = ["tools.%s: %s" % (self._name, specification.get("description") or ""), ""]
            lines += self._lines(self._name + ".")
        except Exception:
            return None
        return "\n".join(lines)

    def __dir__(self):
        names = ["call_async", "call_sync", "describe", "list", "signature", "__call__", "__doc__", "__name__"]
        try:
            self._space._refresh(self._name)
            names += filter(str.isidentifier, map(written, self._specification()["callables"]))
        except Exception:
            names += list(self._callables)
        return sorted(set(names))

    def _own_parameters(self):
        """Of the callable that a plain call stands for, when there is one: the one named like the tool."""
        for each in self._specification().get("callables") or ():
            if each.get("name") == self._name:
                return each.get("parameters") or ()
        return None

    def _path(self):
        return self._name

    def _specification(self):
        return self._space._tool(self._name)

    def _lines(self, prefix):
        return [signature_text(prefix + written(c), c.get("parameters"))
                + (": %s" % c["description"] if c.get("description") else "")
                for c in self._specification().get("callables") or ()]

    def _signature_with(self, name):
        prefix = name + "." if name else ""
        return "\n".join(signature_text(prefix + written(c), c.get("parameters"))
                         for c in self._specification().get("callables") or ())

    def _text(self):
        specification = self._specification()
        lines = ["tools.%s: %s" % (self._name, specification.get("description") or "")]
        return "\n    ".join(lines + self._lines(self._name + "."))


class ToolsNamespace(_Named):
    """The tools that the host offers.

    tools.list()                    all tools: [{name, description, tags, callables}]
    tools.search(query, limit=5)    those that fit best
    tools.curl                      one tool; tools.curl.list() shows its callables
    tools.curl.get(url="...")       calls one
    await tools.curl.get.call_async(url="...")   the same in async code
    """

    __slots__ = ("_channel", "_tools", "_proxies", "_generation")

    def __init__(self, channel):
        self._channel = channel
        self._tools = {}       # name: the tool as listed
        self._proxies = {}     # name: Tool
        self._generation = None

    def list(self):
        """Lists the available tools, as dicts with attributes: name, description, tags, callables."""
        return listed(self._channel.call("tools.list")[0], ToolRecord)

    def search(self, query, limit=5):
        """Searches tools by a description of the task, best match first; of each tool the best callables first."""
        return listed(self._channel.call("tools.search", {"query": query, "limit": limit})[0], FoundTool)

    def __getitem__(self, name):
        proxy = self._proxies.get(name)
        if proxy is None:
            self._tool(name)
            proxy = self._proxies.setdefault(name, Tool(self, name))
        return proxy

    def __dir__(self):
        names = ["list", "search"]
        try:
            self._refresh()
        except Exception:
            pass  # completion shows what is known
        return names + sorted(name for name in self._tools if name.isidentifier())

    def __repr__(self):
        try:
            self._refresh()
        except Exception:
            pass
        return "<tools: %s>" % (", ".join(sorted(self._tools)) or "none")

    # -- what is known

    def _schemas(self, tool, specification):
        """Those of an MCP server's tool are the server's own words; others are made from the parameters."""
        try:
            known = self._channel.call("tools.schema", {"name": tool})[0]["tools"]
        except CodeModeError:
            known = ()
        for each in known:
            if each.get("name") == specification.get("name"):
                schemas = {"input": each.get("inputSchema") or {"type": "object"}, "output": each.get("outputSchema")}
                if each.get("learnedSchema"):
                    schemas["learned"] = each["learnedSchema"]
                return schemas
        parameters = specification.get("parameters") or ()
        properties = {written(p): {key: p[key] for key in ("type", "description", "default", "enum") if p.get(key) is not None}
                      for p in parameters}
        return {"input": {"type": "object", "properties": properties, "required": [written(p) for p in parameters if p.get("required")]},
                "output": None}

    def _refresh(self, name=None):
        """Asks for the tools, unless the host says that they are the ones we know.

        A server that has not said yet what it has is waited for only when it is the one that is meant.
        """
        args = {"await": [] if name is None else [name]}
        if self._generation is not None:
            args["generation"] = self._generation
        result = self._channel.call("tools.list", args)[0]
        tools = result
        if isinstance(result, dict):
            tools, self._generation = result.get("tools"), result.get("generation")
        if tools is not None:
            self._tools = {tool["name"]: tool for tool in tools}
            for name in list(self._proxies):
                if name not in self._tools:
                    del self._proxies[name]
                    self.__dict__.pop(name, None)
                else:
                    callables = self._tools[name].get("callables") or ()
                    known = {word for c in callables for word in (c["name"], c.get("alias"))}
                    proxy = self._proxies[name]
                    for gone in [each for each in proxy._callables if each not in known]:
                        del proxy._callables[gone]
                        proxy.__dict__.pop(gone, None)

    def _tool(self, name):
        tool = self._tools.get(name)
        if tool is None:
            self._refresh(name)
            tool = self._tools.get(name)
        if tool is None:
            raise AttributeError("Unknown tool: %s. Available: %s" % (name, ", ".join(sorted(self._tools)) or "none"))
        return tool

    def _callable(self, tool_name, name):
        for attempt in range(2):
            tool = self._tool(tool_name)
            callables = tool.get("callables") or ()
            for key in ("name", "alias"):
                for each in callables:
                    if each.get(key) == name:
                        return each
            if not attempt:
                self._refresh(tool_name)
        if tool.get("problem"):
            raise ToolCallError("Tool '%s' failed: %s" % (tool_name, tool["problem"]), "tools", "list")
        known = ", ".join(sorted(map(written, callables))) or "none"
        raise AttributeError("Unknown callable: %s.%s. Available: %s" % (tool_name, name, known))
