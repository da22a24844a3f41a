"""The part of pydantic that the generated modules of MCP tools need, for environments without pydantic.

The classes here have the constructor, the attributes, the validation and the messages of pydantic v2 for the types that
``workcell gen mcp`` writes: str, int, float, bool, None, Any, List, Dict, Tuple, Union, Literal, enums, models, dates,
times, UUIDs and IP addresses, with the limits that Field() knows. Conversions are those of pydantic's default ("lax")
mode, and a Union takes the member that fits best, as pydantic's does.

A validator is a function of (value, state) that returns the value to keep or raises _Invalid. The state carries what a
Union needs to choose: how exact the match was, and how many fields of models were set.
"""

import json
import math
import sys
import typing
from collections import deque
from collections.abc import Mapping
from copy import deepcopy

from .mcpscalars import EXACT, LAX, SCALARS, STRICT, _Invalid, enum_validator, invalid, jsonable, words

MISSING = type("MISSING", (), {"__repr__": lambda self: "PydanticUndefined", "__bool__": lambda self: False})()
FIELD_LIMITS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length")


class _State:
    __slots__ = ("exact", "fields")

    def __init__(self):
        self.exact, self.fields = EXACT, None

    def floor(self, exactness):
        if exactness < self.exact:
            self.exact = exactness


class ValidationError(ValueError):
    """The data does not fit the model. ``errors()`` lists what is wrong and where."""

    def __init__(self, title, lines):
        super().__init__(title, lines)
        self.title, self._lines = title, lines

    def error_count(self):
        return len(self._lines)

    def errors(self, *, include_url=True, include_context=True, include_input=True):
        kept = []
        for kind, loc, message, value in self._lines:
            line = {"type": kind, "loc": loc, "msg": message}
            if include_input:
                line["input"] = value
            kept.append(line)
        return kept

    def json(self, *, indent=None, **options):
        lines = [dict(line, loc=list(line["loc"]), input=jsonable(line["input"])) for line in self.errors()]
        return json.dumps(lines, indent=indent, default=repr)

    def __str__(self):
        count = len(self._lines)
        lines = ["%d validation error%s for %s" % (count, "" if count == 1 else "s", self.title)]
        for kind, loc, message, value in self._lines:
            if loc:
                lines.append(".".join(map(str, loc)))
            shown = repr(value)
            if len(shown) > 50:
                shown = shown[:25] + "..." + shown[-24:]
            lines.append("  %s [type=%s, input_value=%s, input_type=%s]" % (message, kind, shown, type(value).__name__))
        return "\n".join(lines)

    __repr__ = __str__


class FieldInfo:
    """What Field() says of a field, or of a part of its type."""

    def __init__(self, default=MISSING, default_factory=None, alias=None, validate_default=None, description=None,
                 title=None, limits=()):
        self.default, self.default_factory, self.alias = default, default_factory, alias
        self.validate_default, self.description, self.title = validate_default, description, title
        self.limits = dict(limits)
        self.annotation, self.metadata = None, []

    def is_required(self):
        return self.default is MISSING and self.default_factory is None

    def get_default(self, *, call_default_factory=False, **options):
        if self.default_factory is not None:
            return self.default_factory() if call_default_factory else None
        return smart_copy(self.default)

    def __repr__(self):
        return "FieldInfo(annotation=%s, required=%s)" % (getattr(self.annotation, "__name__", self.annotation),
                                                          self.is_required())


def Field(default=MISSING, *, default_factory=None, alias=None, validate_default=None, description=None, title=None,
          **limits):
    """As pydantic.Field(), with the options that generated modules use."""
    unknown = [name for name in limits if name not in FIELD_LIMITS]
    if unknown:
        raise TypeError("Field() does not support the option %r" % unknown[0])
    return FieldInfo(default, default_factory, alias, validate_default, description, title, limits)


def smart_copy(value):
    """A default of one's own: nobody changes it for the next instance."""
    return value if isinstance(value, (str, int, float, bool, type(None))) else deepcopy(value)


# ---- validators of types

def compile_type(kind):
    """The validator of a type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _annotated(compile_type(args[0]), args[1:])
    if kind is typing.Any or isinstance(kind, typing.TypeVar):
        return _any
    if kind is None or kind is type(None):
        return _none
    if origin is typing.Union:
        return _union(args)
    if origin is typing.Literal:
        return _literal(args)
    if kind in (list, typing.List) or origin is list:
        return _list(compile_type(args[0]) if args and args[0] is not typing.Any else lambda value, state: value)
    if kind in (dict, typing.Dict) or origin is dict:
        return _dict(*map(compile_type, args or (typing.Any, typing.Any)))
    if origin is tuple:
        return _tuple([compile_type(each) for each in args])
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind._validate
    made = enum_validator(kind)
    if made is None:
        raise TypeError("the type %r cannot be validated" % (kind,))
    return made


def tag(kind):
    """How a member of a Union is called in the location of an error."""
    if typing.get_origin(kind) is typing.Annotated:
        return tag(typing.get_args(kind)[0])
    if typing.get_origin(kind) is typing.Literal:
        return "literal[%s]" % ",".join(map(repr, typing.get_args(kind)))
    if kind is type(None):
        return "none"
    origin = typing.get_origin(kind) or kind
    name = getattr(origin, "__name__", None) or str(origin)
    args = typing.get_args(kind)
    return "%s[%s]" % (name, ",".join(map(tag, args))) if args else "any" if kind is typing.Any else name


def _any(value, state):
    state.floor(STRICT)  # a type that knows the value is preferred
    return value


def _none(value, state):
    if value is not None:
        raise invalid("none_required", "Input should be None", value)
    return None


def _union(kinds):
    inner = [kind for kind in kinds if kind is not type(None)]
    if len(inner) < len(kinds):
        choose = compile_type(inner[0]) if len(inner) == 1 else _choice(inner)
        return lambda value, state: None if value is None else choose(value, state)
    return _choice(inner)


def _choice(kinds):
    """The member that fits best: most fields of a model set, then the most exact, then the first."""
    members = [(tag(kind), compile_type(kind)) for kind in kinds]

    def validate(value, state):
        best, lines = None, []
        for name, member in members:
            own = _State()
            try:
                kept = member(value, own)
            except _Invalid as exc:
                lines += exc.within(name)
                continue
            if own.exact == EXACT and own.fields is None:
                return kept
            if best is None or _is_better(own, best[1]):
                best = kept, own
        if best is None:
            raise _Invalid(lines)
        kept, own = best
        state.floor(own.exact)
        if own.fields is not None:
            state.fields = (state.fields or 0) + own.fields
        return kept

    return validate


def _is_better(new, old):
    if new.fields is not None and old.fields is not None and new.fields != old.fields:
        return new.fields > old.fields
    return new.exact > old.exact


def _literal(expected):
    by_value = {value: value for value in reversed(expected)}
    shown = words(map(repr, expected))

    def validate(value, state):
        try:
            return by_value[value]
        except (KeyError, TypeError):
            raise invalid("literal_error", "Input should be %s" % shown, value) from None

    return validate


def is_list_like(value):
    return not isinstance(value, (str, bytes, bytearray, Mapping)) and (
        isinstance(value, (tuple, set, frozenset, deque, range)) or hasattr(type(value), "__next__")
        or isinstance(value, (type({}.keys()), type({}.values()), type({}.items()))))


def _items(values, validators, state):
    """Validates each; ``validators`` gives one for each index."""
    kept, lines = [], []
    for index, value in enumerate(values):
        try:
            kept.append(validators(index)(value, state))
        except _Invalid as exc:
            lines += exc.within(index)
    if lines:
        raise _Invalid(lines)
    return kept


def _list(item):
    def validate(value, state):
        if not isinstance(value, list):
            if not is_list_like(value):
                raise invalid("list_type", "Input should be a valid list", value)
            state.floor(LAX)
        return _items(value, lambda index: item, state)

    return validate


def _tuple(members):
    def validate(value, state):
        if not isinstance(value, tuple):
            if not isinstance(value, list) and not is_list_like(value):
                raise invalid("tuple_type", "Input should be a valid tuple", value)
            state.floor(LAX)
        values = tuple(value)
        if len(values) > len(members):
            raise invalid("too_long", "Tuple should have at most %s after validation, not %d"
                          % (count(len(members), "item"), len(values)), value)
        lines = []
        try:
            kept = _items(values, members.__getitem__, state)
        except _Invalid as exc:
            lines = exc.lines
        lines = lines + [("missing", (index,), "Field required", value) for index in range(len(values), len(members))]
        if lines:
            raise _Invalid(lines)
        return tuple(kept)

    return validate


def _dict(key, item):
    def validate(value, state):
        if not isinstance(value, dict):
            if not isinstance(value, Mapping):
                raise invalid("dict_type", "Input should be a valid dictionary", value)
            state.floor(LAX)
        kept, lines = {}, []
        for name, member in value.items():
            try:
                new = key(name, state)
            except _Invalid as exc:
                lines += [(kind, (name, "[key]") + loc, message, bad) for kind, loc, message, bad in exc.lines]
                new = None
            try:
                kept[new] = item(member, state)
            except _Invalid as exc:
                lines += exc.within(name)
        if lines:
            raise _Invalid(lines)
        return kept

    return validate


# ---- limits

def count(number, noun):
    return "%d %s%s" % (number, noun, "" if number == 1 else "s")


def number_text(number):
    return "%d" % number if isinstance(number, float) and number.is_integer() and abs(number) < 1e15 else str(number)


_COMPARE = {
    "ge": (lambda value, limit: value >= limit, "greater_than_equal", "greater than or equal to"),
    "gt": (lambda value, limit: value > limit, "greater_than", "greater than"),
    "le": (lambda value, limit: value <= limit, "less_than_equal", "less than or equal to"),
    "lt": (lambda value, limit: value < limit, "less_than", "less than"),
}


def is_multiple(value, factor):
    if isinstance(value, int) and isinstance(factor, int):
        return value % factor == 0
    times = value / factor
    if not abs(times) <= 1e300:
        return True  # infinity, NaN: as pydantic sees it
    rest = abs(math.floor(times + 0.5) * factor - value)
    return rest == 0 or rest < abs(value) * sys.float_info.epsilon


def check_limits(limits, value):
    for name, limit in limits.items():
        if name in _COMPARE:
            fits, kind, text = _COMPARE[name]
            if not fits(value, limit):
                raise invalid(kind, "Input should be %s %s" % (text, number_text(limit)), value)
        elif name == "multiple_of":
            if not is_multiple(value, limit):
                raise invalid("multiple_of", "Input should be a multiple of %s" % number_text(limit), value)
        else:
            check_length(name, limit, value)


def check_length(name, limit, value):
    size = len(value)
    if size >= limit if name == "min_length" else size <= limit:
        return
    least = "least" if name == "min_length" else "most"
    if isinstance(value, str):
        raise invalid("string_too_%s" % ("short" if least == "least" else "long"),
                      "String should have at %s %s" % (least, count(limit, "character")), value)
    noun = {list: "List", dict: "Dictionary", tuple: "Tuple"}.get(type(value), "Value")
    raise invalid("too_%s" % ("short" if least == "least" else "long"),
                  "%s should have at %s %s after validation, not %d" % (noun, least, count(limit, "item"), size), value)


def _annotated(inner, notes):
    limits = {}
    checks = []
    for note in notes:
        if isinstance(note, FieldInfo):
            limits.update(note.limits)
        elif hasattr(note, "check"):
            checks.append(note.check)
    if not limits and not checks:
        return inner

    def validate(value, state):
        kept = inner(value, state)
        if limits:
            check_limits(limits, kept)
        for check in checks:
            try:
                check(kept)
            except ValueError as exc:
                raise invalid("value_error", "Value error, %s" % exc, value) from None
        return kept

    return validate


# ---- models

def own_annotations(cls):
    if sys.version_info >= (3, 10):
        return cls.__annotations__
    return cls.__dict__.get("__annotations__", {})


class _Meta(type):
    """Fields are looked at when they are first needed: by then the classes that they name are there."""

    @property
    def model_fields(cls):
        return cls._compiled()[0]


class BaseModel(metaclass=_Meta):
    """Stands in for pydantic.BaseModel."""

    __slots__ = ("__dict__", "_set", "_extra")
    _extra_mode = "ignore"
    _defaults = {}
    _cache = None

    def __init_subclass__(cls, extra=None, **options):
        super().__init_subclass__(**options)
        cls._cache = None
        if extra is not None:
            cls._extra_mode = extra
        found = dict(cls._defaults)
        for name in own_annotations(cls):
            found.pop(name, None)
            if name in cls.__dict__:
                found[name] = cls.__dict__[name]
                delattr(cls, name)
        cls._defaults = found

    @classmethod
    def _compiled(cls):
        """({name: FieldInfo}, [(name, alias, validator, FieldInfo)])"""
        if cls._cache is None:
            fields, plan = {}, []
            for name, kind in typing.get_type_hints(cls, include_extras=True).items():
                info = _field_info(kind, cls._defaults.get(name, MISSING))
                fields[name] = info
                plan.append((name, name if info.alias is None else info.alias, compile_type(kind), info))
            cls._cache = fields, plan
        return cls._cache

    def __init__(self, /, **data):
        _fill(self, _run(type(self), type(self)._fields_from, data))

    @classmethod
    def _validate(cls, value, state):
        """The validator of this class as the type of a field."""
        if isinstance(value, cls):
            state.fields = (state.fields or 0) + len(value._set)
            return value
        if not isinstance(value, Mapping):
            raise invalid("model_type", "Input should be a valid dictionary or instance of %s" % cls.__name__, value)
        state.floor(STRICT if isinstance(value, dict) else LAX)
        made = cls.__new__(cls)
        _fill(made, cls._fields_from(value, state))
        return made

    @classmethod
    def _fields_from(cls, data, state):
        """(values, names of those that were given, what no field has)"""
        values, given, used, lines = {}, set(), set(), []
        for name, alias, validate, info in cls._compiled()[1]:
            key = alias if alias in data else name
            if key in data:
                used.add(key)
                given.add(name)
                value = data[key]
            elif info.is_required():
                lines.append(("missing", (alias,), "Field required", data))
                continue
            else:
                value = info.get_default(call_default_factory=True)
                if not info.validate_default:
                    values[name] = value
                    continue
            try:
                values[name] = validate(value, state)
            except _Invalid as exc:
                lines += exc.within(alias)
        extra = cls._extras(data, used, lines)
        if lines:
            raise _Invalid(lines)
        state.fields = (state.fields or 0) + len(given)
        if extra:
            given.update(extra)
        return values, given, extra

    @classmethod
    def _extras(cls, data, used, lines):
        if cls._extra_mode == "ignore":
            return None
        extra = {}
        for key in data:
            if key in used:
                continue
            if not isinstance(key, str):
                lines.append(("invalid_key", (key,), "Keys should be strings", key))
            elif cls._extra_mode == "forbid":
                lines.append(("extra_forbidden", (key,), "Extra inputs are not permitted", data[key]))
            else:
                extra[key] = data[key]
        return extra if cls._extra_mode == "allow" else None

    # -- made in other ways

    @classmethod
    def model_validate(cls, obj, **options):
        return _run(cls, cls._validate, obj)

    @classmethod
    def model_validate_json(cls, json_data, **options):
        try:
            data = json.loads(json_data)
        except ValueError as exc:
            raise ValidationError(cls.__name__, [("json_invalid", (), "Invalid JSON: %s" % exc, json_data)]) from None
        return cls.model_validate(data)

    @classmethod
    def model_construct(cls, _fields_set=None, **values):
        made = cls.__new__(cls)
        kept, given = {}, set()
        for name, alias, validate, info in cls._compiled()[1]:
            key = alias if alias in values else name
            if key in values:
                kept[name] = values.pop(key)
                given.add(name)
            elif not info.is_required():
                kept[name] = info.get_default(call_default_factory=True)
        extra = dict(values) if cls._extra_mode == "allow" else None
        _fill(made, (kept, given if _fields_set is None else set(_fields_set), extra))
        return made

    @classmethod
    def model_rebuild(cls, **options):
        """Nothing to do: a class is looked at when it is first used."""

    def model_copy(self, *, update=None, deep=False):
        made = self.__deepcopy__() if deep else self.__copy__()
        for name, value in (update or {}).items():
            if name in type(self).model_fields or made._extra is None:
                made.__dict__[name] = value
            else:
                made._extra[name] = value
            made._set.add(name)
        return made

    def __copy__(self):
        made = type(self).__new__(type(self))
        _fill(made, (dict(self.__dict__), set(self._set), dict(self._extra) if self._extra is not None else None))
        return made

    def __deepcopy__(self, memo=None):
        made = type(self).__new__(type(self))
        _fill(made, deepcopy((self.__dict__, self._set, self._extra), memo))
        return made

    def __getstate__(self):
        return self.__dict__, self._set, self._extra

    def __setstate__(self, state):
        _fill(self, state)

    # -- attributes

    @property
    def model_fields_set(self):
        return self._set

    @property
    def model_extra(self):
        return self._extra

    def __getattr__(self, name):
        if name not in ("_set", "_extra"):
            extra = self._extra
            if extra is not None and name in extra:
                return extra[name]
        raise AttributeError("%r object has no attribute %r" % (type(self).__name__, name))

    def __setattr__(self, name, value):
        if name in type(self).model_fields:
            self.__dict__[name] = value
            self._set.add(name)
        elif self._extra is not None and not name.startswith("_"):
            self._extra[name] = value
        else:
            raise ValueError('"%s" object has no field "%s"' % (type(self).__name__, name))

    def __iter__(self):
        yield from self.__dict__.items()
        yield from (self._extra or {}).items()

    def __eq__(self, other):
        if not isinstance(other, BaseModel):
            return NotImplemented
        return (type(self) is type(other) and self.__dict__ == other.__dict__
                and (self._extra or {}) == (other._extra or {}))

    __hash__ = None

    def __repr__(self):
        return "%s(%s)" % (type(self).__name__, ", ".join("%s=%r" % pair for pair in self))

    def __str__(self):
        return " ".join("%s=%r" % pair for pair in self)

    # -- as plain data

    def model_dump(self, *, mode="python", include=None, exclude=None, by_alias=False, exclude_unset=False,
                   exclude_defaults=False, exclude_none=False, **options):
        how = dict(mode=mode, by_alias=bool(by_alias), exclude_unset=exclude_unset, exclude_defaults=exclude_defaults,
                   exclude_none=exclude_none)
        return self._dump(how, include, exclude)

    def _dump(self, how, include=None, exclude=None):
        dumped, fields = {}, type(self).model_fields
        for name, value in self:
            info = fields.get(name)
            if (include is not None and name not in include) or (exclude is not None and name in exclude):
                continue
            if (how["exclude_none"] and value is None) or (how["exclude_unset"] and name not in self._set):
                continue
            if how["exclude_defaults"] and info is not None and not info.is_required() and \
                    value == info.get_default(call_default_factory=True):
                continue
            key = info.alias if how["by_alias"] and info is not None and info.alias is not None else name
            dumped[key] = plain(value, how)
        return dumped

    def model_dump_json(self, *, indent=None, **options):
        separators = (",", ":") if indent is None else None
        return json.dumps(finite(self.model_dump(mode="json", **options)), indent=indent, separators=separators,
                          ensure_ascii=False)


class RootModel(BaseModel):
    """Stands in for pydantic.RootModel: a model of one value that is not an object."""

    __slots__ = ()

    def __class_getitem__(cls, kind):
        return cls

    def __init__(self, /, root=MISSING, **data):
        if data:
            if root is not MISSING:
                raise ValueError('"RootModel.__init__" accepts either a single positional argument or arbitrary keyword '
                                 "arguments")
            root = data
        _fill(self, _run(type(self), type(self)._root_from, root))

    @classmethod
    def _root_from(cls, value, state):
        ((_, _, validate, info),) = cls._compiled()[1]
        if value is MISSING:
            if info.is_required():
                raise invalid("missing", "Field required", {})
            return {"root": info.get_default(call_default_factory=True)}, set(), None
        return {"root": validate(value, state)}, {"root"}, None

    @classmethod
    def _validate(cls, value, state):
        if isinstance(value, cls):
            return value
        state.floor(STRICT)
        made = cls.__new__(cls)
        _fill(made, cls._root_from(value, state))
        return made

    def __str__(self):
        return repr(self)

    def _dump(self, how, include=None, exclude=None):
        return plain(self.root, how)


def _field_info(kind, default):
    """One FieldInfo of what stands in Annotated[] and of what is assigned."""
    info = FieldInfo()
    notes = typing.get_args(kind)[1:] if typing.get_origin(kind) is typing.Annotated else ()
    info.annotation = kind
    info.metadata = [note for note in notes if not isinstance(note, FieldInfo)]
    sources = [note for note in notes if isinstance(note, FieldInfo)]
    if isinstance(default, FieldInfo):
        sources.append(default)
    else:
        info.default = default
    for source in sources:
        for name in ("default", "default_factory", "alias", "validate_default", "description", "title"):
            value = getattr(source, name)
            if value is not None and value is not MISSING:
                setattr(info, name, value)
    return info


def _fill(model, parts):
    values, given, extra = parts
    object.__setattr__(model, "__dict__", values)
    object.__setattr__(model, "_set", given)
    object.__setattr__(model, "_extra", extra)


def _run(cls, validate, value):
    try:
        return validate(value, _State())
    except _Invalid as exc:
        lines = exc.lines
    except RecursionError:
        lines = [("recursion_loop", (), "Recursion error - cyclic reference detected", value)]
    raise ValidationError(cls.__name__, lines)


def finite(value):
    """NaN and infinity are null in JSON."""
    if isinstance(value, dict):
        return {name: finite(member) for name, member in value.items()}
    if isinstance(value, list):
        return [finite(member) for member in value]
    return None if isinstance(value, float) and value - value != 0 else value


def plain(value, how):
    """A value with the models in it as dicts; as JSON has it where ``how`` says so."""
    if isinstance(value, BaseModel):
        return value._dump(how)
    if isinstance(value, dict):
        return {plain(key, how): plain(member, how) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        dumped = [plain(member, how) for member in value]
        return tuple(dumped) if isinstance(value, tuple) and how["mode"] != "json" else dumped
    return jsonable(value) if how["mode"] == "json" else value
