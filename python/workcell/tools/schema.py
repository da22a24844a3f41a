"""A function of the host as a tool: its signature, types and docstring become the schema."""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import inspect
import json
import re
import sys
import types
import typing
import uuid
from pathlib import PurePath
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

_SIMPLE: Dict[Any, Dict[str, Any]] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, list: {"type": "array"}, dict: {"type": "object"}, tuple: {"type": "array"},
    set: {"type": "array"}, frozenset: {"type": "array"}, bytes: {"type": "string", "contentEncoding": "base64"}, Any: {},
    inspect.Parameter.empty: {},
    datetime.datetime: {"type": "string", "format": "date-time"}, datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"}, datetime.timedelta: {"type": "number", "description": "seconds"},
    uuid.UUID: {"type": "string", "format": "uuid"}, decimal.Decimal: {"type": "number"},
}
_UNION_TYPES: Tuple[Any, ...] = (Union,) + ((types.UnionType,) if sys.version_info >= (3, 10) else ())


def schema_of(annotation: Any, depth: int = 0) -> Dict[str, Any]:
    """The JSON Schema of a type; ``{}``, which allows everything, if no schema fits."""
    if depth > 20:
        return {}
    try:
        if annotation in _SIMPLE:
            return dict(_SIMPLE[annotation])
    except TypeError:
        pass  # cannot be hashed
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is not None and hasattr(annotation, "__metadata__"):  # Annotated
        found = schema_of(args[0], depth + 1)
        texts = [each for each in annotation.__metadata__ if isinstance(each, str)]
        return dict(found, description=texts[0]) if texts else found
    if origin in _UNION_TYPES:
        return _union(args, depth)
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin in (list, set, frozenset, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Set):
        return {"type": "array", "items": schema_of(args[0], depth + 1)} if args else {"type": "array"}
    if origin is tuple:
        return {"type": "array"}
    if origin in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
        return {"type": "object", "additionalProperties": schema_of(args[1], depth + 1)} if len(args) == 2 else {"type": "object"}
    if inspect.isclass(annotation):
        return _class_schema(annotation, depth)
    return schema_of(annotation.__supertype__, depth + 1) if hasattr(annotation, "__supertype__") else {}  # NewType


def _union(args: Tuple[Any, ...], depth: int) -> Dict[str, Any]:
    rest = [each for each in args if each is not type(None)]
    if len(rest) == 1:
        inner = schema_of(rest[0], depth + 1)
        if len(rest) == len(args):
            return inner
        return {"anyOf": [inner, {"type": "null"}]} if inner else {}
    return {"anyOf": [schema_of(each, depth + 1) for each in args]}


def _class_schema(cls: type, depth: int) -> Dict[str, Any]:
    if issubclass(cls, enum.Enum):
        return {"enum": [each.value for each in cls]}
    model: Any = getattr(cls, "model_json_schema", None)  # pydantic
    if model is not None:
        schema: Dict[str, Any] = model()
        return dict(schema)
    if issubclass(cls, PurePath):
        return {"type": "string"}
    if dataclasses.is_dataclass(cls):
        hints = _hints(cls)
        fields = dataclasses.fields(cls)
        required = [each.name for each in fields
                    if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING]
        return {"type": "object", "properties": {each.name: schema_of(hints.get(each.name, Any), depth + 1)
                                                 for each in fields}, "required": required}
    if _is_named_tuple(cls):
        return {"type": ["object", "array"]}
    required_keys = getattr(cls, "__required_keys__", None)  # TypedDict
    if required_keys is not None:
        return {"type": "object", "properties": {name: schema_of(hint, depth + 1) for name, hint in _hints(cls).items()},
                "required": sorted(required_keys)}
    return {}


def _is_named_tuple(cls: Any) -> bool:
    return inspect.isclass(cls) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def _hints(of: Any) -> Dict[str, Any]:
    """Types by name. Annotations that are texts may name what only the function's surroundings know."""
    try:
        return typing.get_type_hints(of, include_extras=True)
    except (NameError, TypeError, AttributeError):
        pass
    inner = inspect.unwrap(of)
    names = {**_names_around(), **getattr(inner, "__globals__", {})}
    for name, cell in zip(getattr(getattr(inner, "__code__", None), "co_freevars", ()), getattr(inner, "__closure__", None) or ()):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            pass  # not assigned yet
    found = {}
    for name, annotation in getattr(inner, "__annotations__", {}).items():
        try:
            holder = type("Holder", (), {"__annotations__": {name: annotation}})
            found.update(typing.get_type_hints(holder, names, names, include_extras=True))
        except (NameError, TypeError, AttributeError):
            pass  # a name that is not there at run time: a parameter without a type
    return found


def _names_around() -> Dict[str, Any]:
    """Local names where the tool is defined: of the first frame outside of this package."""
    frame = sys._getframe(1)
    package = __name__.partition(".")[0]
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == package:
        frame = frame.f_back  # type: ignore[assignment]
    return dict(frame.f_locals) if frame is not None else {}


def doc_parts(doc: Optional[str]) -> Tuple[str, Dict[str, str]]:
    """(description, {parameter: description}) of a docstring: Google's, NumPy's and Sphinx's ways of writing one."""
    if not doc:
        return "", {}
    lines = inspect.cleandoc(doc).split("\n")
    about: List[str] = []
    params: Dict[str, str] = {}
    section = ""
    name = ""
    for i, line in enumerate(lines):
        sphinx = re.match(r":param (?:\w+ )?(\w+):\s*(.*)", line)
        heading = re.match(r"(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?):?\s*$", line)
        if sphinx:
            section, name = "args", sphinx.group(1)
            params[name] = sphinx.group(2).strip()
        elif line.startswith(":"):
            section = "other"
        elif heading and (line.endswith(":") or (i + 1 < len(lines) and set(lines[i + 1].strip()) == {"-"})):
            section = "args" if heading.group(1) in ("Args", "Arguments", "Parameters") else "other"
            name = ""
        elif section == "args":
            google = re.match(r"\s{1,8}\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)", line)
            numpy = re.match(r"(\w+)\s*:\s*\S+", line)
            if google and (not name or len(line) - len(line.lstrip()) <= 4):
                name = google.group(1)
                params[name] = google.group(2).strip()
            elif numpy:
                name = numpy.group(1)
                params[name] = ""
            elif name and line.strip() and set(line.strip()) != {"-"}:
                params[name] = (params[name] + " " + line.strip()).strip()
        elif not section:
            about.append(line)
    return "\n".join(about).strip(), params


def parameters_of(fn: Callable[..., Any]) -> Dict[str, Any]:
    """The JSON Schema of a function's parameters."""
    signature = inspect.signature(fn)
    hints = _hints(fn)
    _, described = doc_parts(fn.__doc__)
    properties: Dict[str, Any] = {}
    required: List[str] = []
    found: Dict[str, Any] = {"type": "object", "properties": properties}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL or parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError("a tool takes keyword arguments only: %s() must not have the parameter %s"
                            % (getattr(fn, "__name__", "it"), parameter))
        if parameter.kind is parameter.VAR_KEYWORD:
            found["additionalProperties"] = True
            continue
        schema = schema_of(hints.get(name, parameter.annotation if not isinstance(parameter.annotation, str) else Any))
        if name in described and "description" not in schema:
            schema["description"] = described[name]
        if parameter.default is parameter.empty:
            required.append(name)
        elif parameter.default is not None:
            try:
                schema["default"] = json.loads(dumps(parameter.default))
            except (TypeError, ValueError):
                pass  # the function has its default; the schema cannot say it
        properties[name] = schema
    if required:
        found["required"] = required
    return found


# ---- answers


def jsonable(value: Any) -> Any:
    """For json.dumps: what is not JSON by itself."""
    for name in ("model_dump", "to_dict", "_asdict"):
        method = getattr(value, name, None)
        if callable(method) and not inspect.isclass(value):
            return method(mode="json") if name == "model_dump" else method()
    if dataclasses.is_dataclass(value) and not inspect.isclass(value):
        return dataclasses.asdict(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset, collections.abc.ValuesView, collections.abc.KeysView)):
        return list(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, (uuid.UUID, PurePath, decimal.Decimal)):
        return str(value)
    tolist: Any = getattr(value, "tolist", None)  # numpy
    if tolist is not None:
        return tolist()
    raise TypeError("a tool must return JSON data or text, not %s" % type(value).__name__)


def dumps(value: Any) -> str:
    """Exact JSON; raises TypeError or ValueError if the value has no JSON form."""
    return json.dumps(value, default=jsonable, allow_nan=False)


# ---- arguments


def converter_of(fn: Callable[..., Any]) -> Callable[[Dict[str, Any]], Dict[str, Any]]:
    """A function that turns JSON arguments into what the annotations say: models, dataclasses, enums, tuples, dates."""
    wanted = {name: hint for name, hint in _hints(fn).items() if name != "return" and _needs_conversion(hint)}

    def convert(args: Dict[str, Any]) -> Dict[str, Any]:
        return {name: _convert(wanted[name], value, name) if name in wanted else value for name, value in args.items()}

    return convert if wanted else lambda args: args


_MADE = (enum.Enum, PurePath, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal, bytes, set, frozenset,
         tuple)
_CHECKED: Dict[Any, Any] = {int: int, str: str, bool: bool, float: (int, float)}
_MANY: Tuple[Any, ...] = (list, set, frozenset, tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Set)
_MAPS: Tuple[Any, ...] = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _plain(hint: Any) -> Any:
    """Without what says nothing about the value: Annotated, NewType."""
    while True:
        if hasattr(hint, "__metadata__"):
            hint = typing.get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        else:
            return hint


def _needs_conversion(hint: Any) -> bool:
    hint = _plain(hint)
    origin = typing.get_origin(hint)
    if origin in (set, frozenset, tuple):
        return True
    if origin in _UNION_TYPES or origin in _MANY or origin in _MAPS:
        return any(_needs_conversion(each) for each in typing.get_args(hint))
    return inspect.isclass(hint) and (hasattr(hint, "model_validate") or dataclasses.is_dataclass(hint) or issubclass(hint, _MADE))


def _convert(hint: Any, value: Any, where: str) -> Any:
    hint = _plain(hint)
    if value is None:
        return None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNION_TYPES:
        candidates = [each for each in args if _needs_conversion(each)]
        return _convert(candidates[0], value, where) if len(candidates) == 1 and not _fits_another(args, value) else value
    if origin in _MAPS:
        inner = args[1] if len(args) == 2 else Any
        return {key: _convert(inner, each, where) for key, each in value.items()} if isinstance(value, dict) else value
    if origin in _MANY:
        return _convert_many(origin, args, value, where)
    if not inspect.isclass(hint):
        return value
    validate: Any = getattr(hint, "model_validate", None)
    if validate is not None:
        return validate(value)
    if dataclasses.is_dataclass(hint) or _is_named_tuple(hint):
        return _convert_fields(hint, value, where)
    if hint in _CHECKED:  # inside of something: the outermost values were checked by the library
        if not isinstance(value, _CHECKED[hint]) or isinstance(value, bool) and hint is not bool:
            raise TypeError("%s: %s expected, not %s" % (where, hint.__name__, type(value).__name__))
        return value
    return _convert_scalar(hint, value) if issubclass(hint, _MADE) else value


def _fits_another(args: Tuple[Any, ...], value: Any) -> bool:
    """Of a union: is the value one of the plain types in it, as it came?"""
    return any(each in _CHECKED and isinstance(value, _CHECKED[each]) for each in map(_plain, args))


def _convert_many(origin: Any, args: Tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list):
        return value
    each_its_own = origin is tuple and args and not (len(args) == 2 and args[1] is Ellipsis)
    hints = args if each_its_own else args[:1] * len(value) or (Any,) * len(value)
    if len(hints) != len(value):
        raise TypeError("%s: %d values expected, not %d" % (where, len(hints), len(value)))
    found = [_convert(hint, each, where) for hint, each in zip(hints, value)]
    return origin(found) if origin in (set, frozenset, tuple) else found


def _convert_fields(cls: Any, value: Any, where: str) -> Any:
    hints = _hints(cls)
    if isinstance(value, list) and _is_named_tuple(cls):
        value = dict(zip(cls._fields, value))
    if not isinstance(value, dict):
        return value
    return cls(**{name: _convert(hints.get(name, Any), each, "%s.%s" % (where, name)) for name, each in value.items()})


def _convert_scalar(hint: Any, value: Any) -> Any:
    if issubclass(hint, bytes):
        return base64.b64decode(value, validate=True)
    if issubclass(hint, datetime.timedelta):
        return datetime.timedelta(seconds=value)
    if issubclass(hint, (datetime.date, datetime.time)):
        return hint.fromisoformat(value)
    return hint(str(value)) if issubclass(hint, decimal.Decimal) else hint(value)


__all__ = ["schema_of", "parameters_of", "doc_parts"]
