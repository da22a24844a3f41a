"""The base of the modules that ``workcell gen mcp`` writes: model classes and the connection to the server.

    from mcptools.everything.echo import Params, run
    run(Params(message="hello"))

The classes are pydantic's where the environment has pydantic v2, and those of mcpstandin.py where it has not; the choice
is made when this module is first imported. A call travels as any call of ``tools`` does, so policy, approval and audit
are the same. Nothing here knows a server: what is special to one stands in the generated modules, as data.
"""

import enum
import re
import typing
from json import dumps, loads

from . import calltext, mcpscalars, mcpstandin, namespaces
from .ns_errors import ToolCallError, ToolNotFoundError
from .ns_parts import ToolBytes, ToolParts, as_text
from .ns_tools import Caller, aim, value_of
from .rpc import encode_after

try:
    import pydantic
    from pydantic import ConfigDict, Field, RootModel as _RootModel, ValidationError
except ImportError:  # none, or a version before 2
    pydantic = None

if pydantic is None:
    BaseModel, RootModel = mcpstandin.BaseModel, mcpstandin.RootModel
    Field, ValidationError = mcpstandin.Field, mcpstandin.ValidationError
    _FOREIGN = ()
else:
    _T = typing.TypeVar("_T")
    _FOREIGN = pydantic.BaseModel

    class BaseModel(pydantic.BaseModel):
        # A property that is not a Python identifier goes by both names in the constructor.
        model_config = ConfigDict(populate_by_name=True, protected_namespaces=())

    class RootModel(_RootModel[_T], typing.Generic[_T]):
        pass


EXACT = 2**53  # whole numbers up to here are the same as float


class StrEnum(str, enum.Enum):
    """Members are texts in every way: compared, printed, sent."""

    __str__ = str.__str__
    __format__ = str.__format__


class IntEnum(int, enum.Enum):
    __str__ = int.__repr__
    __format__ = int.__format__


class _Nullable:
    """Marks an optional field for which None is a value: one that was given is sent."""

    def __repr__(self):
        return "Nullable"


Nullable = _Nullable()


# ---- limits that neither pydantic's Field() nor ours has

class _Check:
    """Stands in Annotated[]; check() raises ValueError."""

    def __get_pydantic_core_schema__(self, source, handler):
        from pydantic_core import core_schema

        def validate(value):
            self.check(value)
            return value

        return core_schema.no_info_after_validator_function(validate, handler(source))


class Pattern(_Check):
    """A regular expression of JSON Schema. One that Python does not understand is left to the server."""

    def __init__(self, pattern):
        self.pattern = pattern
        try:
            self.compiled = re.compile(re.sub(r"\(\?<(?=[A-Za-z_])", "(?P<", pattern))
        except (re.error, OverflowError, RecursionError):
            self.compiled = None

    def check(self, value):
        if self.compiled is not None and not self.compiled.search(value):
            raise ValueError("it should match the pattern %r" % self.pattern)


class Unique(_Check):
    """No two items are equal, as JSON sees it."""

    def check(self, value):
        seen = set()
        for item in value:
            key = _key(item)
            if key in seen:
                raise ValueError("its items should be unique")
            seen.add(key)


class OneOf(_Check):
    """One of these values and nothing else."""

    def __init__(self, *values):
        self.values = values
        self.keys = frozenset(map(_key, values))

    def check(self, value):
        if _key(value) not in self.keys:
            raise ValueError("it should be %s" % mcpscalars.words(map(repr, self.values)))


def _key(value):
    """Equal for values that are equal in JSON: 1 and 1.0 are, 1 and true are not."""
    value = plain(value)
    if isinstance(value, dict):
        return dict, frozenset((name, _key(member)) for name, member in value.items())
    if isinstance(value, list):
        return list, tuple(map(_key, value))
    return (bool if isinstance(value, bool) else type(None) if value is None else str if isinstance(value, str) else int,
            value)


# ---- what travels

_AS_IT_IS = frozenset((str, int, bool, type(None)))


def plain(value):
    """A value as JSON has it. Properties go by the names that the server gave them.

    An optional field that is None is left out, unless None was given for a field that may be null.
    """
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, RootModel):
        return plain(value.root)
    if isinstance(value, BaseModel):
        return _object(value)
    if isinstance(value, dict):
        return {mcpscalars.jsonable(name): plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(member) for member in value]
    if _FOREIGN and isinstance(value, _FOREIGN):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT:
        return int(value)  # "number" means 3 as well as 3.5, and not every server reads 3.0 as 3
    return mcpscalars.jsonable(value)


def _object(model):
    values, given, sent = model.__dict__, model.model_fields_set, {}
    for name, info in type(model).model_fields.items():
        if name not in values:
            continue  # model_construct() may leave out what it likes
        value = values[name]
        if value is None and not info.is_required() and (name not in given or Nullable not in info.metadata):
            continue
        sent[name if info.alias is None else info.alias] = plain(value)
    for name, value in (model.model_extra or {}).items():
        sent[name] = plain(value)
    return sent


class _Tool(Caller):
    """One tool of a server on a channel: called with its arguments by name it takes the short way of every call."""

    __slots__ = ("_channel",)

    def __init__(self, channel, path):
        self._channel = channel
        aim(self, channel, path)

    def _call(self, _, arguments):
        return value_of(*self._channel.call("tools.call", data=encode_after(self._head, arguments, calltext.TAIL)))

    def _settle(self, frame):
        return value_of(*self._channel.result_of(frame))

    async def call_async(self, arguments):
        return value_of(*await self._channel.call_async("tools.call", data=encode_after(self._head, arguments, calltext.TAIL)))


class Client:
    """Calls the tools of one MCP server, by the names that the server gave them."""

    def __init__(self, server):
        self.server = server
        self._tools = {}

    def __repr__(self):
        return "Client(%r)" % self.server

    def run(self, tool, params, result, learned=False):
        """Calls and waits; ``result`` is the class of the answer, which the server declares, or which was learned from its answers."""
        return self._result(tool, self._call(tool, params), result, learned)

    async def run_async(self, tool, params, result, learned=False):
        return self._result(tool, await self._call_async(tool, params), result, learned)

    def run_text(self, tool, params):
        """The same for a tool that does not say what it answers: always text."""
        return _text(self._call(tool, params))

    async def run_text_async(self, tool, params):
        return _text(await self._call_async(tool, params))

    def _call(self, tool, params):
        arguments = self._arguments(tool, params)
        try:
            return self._tool(tool)(**arguments)
        except ToolNotFoundError as exc:
            self._advise(exc)
            raise

    async def _call_async(self, tool, params):
        arguments = self._arguments(tool, params)
        try:
            return await self._tool(tool).call_async(arguments)
        except ToolNotFoundError as exc:
            self._advise(exc)
            raise

    def _advise(self, exc):
        """Modules are generated once and used often: in a session that was not told of their server, say so."""
        if str(exc).startswith("Tool '%s' not found" % self.server):
            exc.args = ("%s. This module calls the MCP server %r, which the session must know: a tool of type mcp in its folder of tools, "
                        "or mcp_servers= in Python" % (exc, self.server), *exc.args[1:])

    def _arguments(self, tool, params):
        if not isinstance(params, (BaseModel, RootModel)):
            raise TypeError("%s.%s takes its Params, not %s" % (self.server, tool, type(params).__name__))
        arguments = plain(params)
        if not isinstance(arguments, dict):
            raise TypeError("%s.%s takes an object, not %s" % (self.server, tool, type(arguments).__name__))
        return arguments

    def _tool(self, tool):
        channel, found = namespaces.channel(), self._tools.get(tool)
        if channel is None:
            raise RuntimeError("the tools of the MCP server %r can be called in a Workcell session that has this server "
                               "among its tools, and this program is not such a session: run the code with `workcell run`" % self.server)
        if found is None or found._channel is not channel:
            found = self._tools[tool] = _Tool(channel, "%s.%s" % (self.server, tool))
        return found

    def _result(self, tool, value, result, learned):
        if isinstance(value, ToolParts) and value.structured is not None:
            value = value.structured
        try:
            return result.model_validate(value)
        except ValidationError as exc:
            problem = exc
        if isinstance(value, str):
            # A server that answers in text alone often puts the JSON there.
            try:
                return result.model_validate(loads(value))
            except ValidationError as exc:
                problem = exc
            except ValueError:
                problem = "text instead of the declared structured content: %.1000s" % value
        text = ("Tool '%s.%s' returned an answer of another shape than before; run `workcell gen mcp` again: %s" if learned else
                "Tool '%s.%s' returned an answer that its output schema does not allow: %s")
        failure = ToolCallError(text % (self.server, tool, problem), "tools", "call", "ToolCallError", "protocol")
        failure.data = value  # the tool has run: what it said is not lost
        raise failure


def _text(value):
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, (ToolBytes, ToolParts)):
        return as_text(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    return dumps(value, ensure_ascii=False)


__all__ = ["BaseModel", "Client", "Field", "IntEnum", "Nullable", "OneOf", "Pattern", "RootModel", "StrEnum", "Unique",
           "ValidationError"]
