"""The portable form of a session: its variables as objects, for another build, executor or machine type.

Why a pickler of our own and not cloudpickle's: this package needs nothing from the environment it runs in, and a session must be readable in an
environment with another version of a library, or without it. The standard pickle does nearly all of it; added are what the code of a
session defines itself (functions with their source, classes, enumerations, dataclasses), modules by name and version, and open files.

Each variable is tried alone first: one that cannot be carried is named and does not lose the others. Those that can are written together, so
that what they share stays shared. The file:

    MAGIC, the size of the head (8 bytes), the head (JSON), the pickle, its buffers

Reading it runs code that the file names, as unpickling does: only a kernel that is confined for its session reads one, never the host.
"""

import builtins
import functools
import importlib
import importlib.util
import io
import linecache
import marshal
import os
import pickle
import struct
import sys
import types
import weakref
from json import dumps, loads

from .carry import PORTABLE as MAGIC

VERSION = 1
MAX_LEFT = 200      # variables that are named
MAX_TEXT = 100
MAX_HEAD = 64 << 20
HEAP_TYPE, IMMUTABLE_TYPE = 1 << 9, 1 << 8
SETTINGS = "settings of modules: patches, logging, warnings and the like"
ENDS = ("_abc_impl", "__weakref__", "__dict__", "_abc_registry", "_abc_cache", "_abc_negative_cache", "_abc_negative_cache_version")
OPENED = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)
EXTRA = ("__doc__", "__dict__", "__kwdefaults__", "__annotations__", "__module__")


def same_python(head):
    return head["magic"] == importlib.util.MAGIC_NUMBER.hex()


# -- finding things by name

def is_importable(obj, name):
    """Whether another process finds this very object as module.name."""
    module = getattr(obj, "__module__", None)
    if type(module) is not str or type(name) is not str or module == "__main__" or "<locals>" in name:
        return False
    found = sys.modules.get(module)
    if found is None or is_made(found):
        return False
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        return False
    return found is obj


def is_made(module):
    """A module that the code has made itself."""
    return getattr(module, "__spec__", None) is None and module.__name__ not in sys.builtin_module_names


def version_of(module):
    version = getattr(module, "__version__", None)
    return version if type(version) is str else None


# -- writing

own_folders = ()  # of the sandbox alone


class NotCarried(Exception):
    pass


class Nothing:
    """A file that keeps nothing, for a trial."""

    def write(self, data):
        return len(data)


class Writer(pickle.Pickler):
    def __init__(self, file, ns, buffers=None):
        super().__init__(file, protocol=5, buffer_callback=(lambda each: None) if buffers is None else buffers.append)
        self.ns = ns
        self.sources = {}
        self.modules = {}

    def persistent_id(self, obj):
        if obj is self.ns:
            return "variables"
        if obj is sys.modules.get("__main__"):
            return "main"
        return None

    def reducer_override(self, obj):
        kind = type(obj)
        if kind is types.FunctionType:
            return self.function(obj)
        if isinstance(obj, type):
            return self.define(obj)
        reduce = REDUCERS.get(kind)
        if reduce is not None:
            return reduce(self, obj)
        if kind.__module__ == "dataclasses" and kind.__name__ in ("_FIELD_BASE", "_MISSING_TYPE", "_KW_ONLY_TYPE"):
            return dataclass_mark(obj)
        module = sys.modules.get("ctypes")
        if module is not None and isinstance(obj, module._CFuncPtr):
            raise NotCarried("a function pointer")
        return NotImplemented

    def function(self, obj):
        if is_importable(obj, obj.__qualname__):
            self.module_of(obj)
            return NotImplemented
        code = obj.__code__
        self.keep_source(code)
        state = {name: getattr(obj, name) for name in EXTRA}
        ours = obj.__globals__ is self.ns
        return (make_function, (self.code_state(code), self.ns if ours else self.globals_of(obj), obj.__name__, obj.__qualname__,
                                tuple(obj.__closure__ or ())),
                (state, obj.__defaults__), None, None, set_function)

    def globals_of(self, obj):
        """Of a function that another one's exec() has made: the names that it uses."""
        names, codes = set(), [obj.__code__]
        while codes:
            code = codes.pop()
            names.update(code.co_names)
            codes += [each for each in code.co_consts if type(each) is types.CodeType]
        return {name: value for name, value in obj.__globals__.items() if name in names or name == "__name__"}

    def keep_source(self, code):
        if code.co_filename not in self.sources:
            self.sources[code.co_filename] = "".join(linecache.getlines(code.co_filename)) or None

    def code_state(self, code):
        return marshal.dumps(code), code.co_filename, code.co_name, code.co_firstlineno, code.co_freevars

    def define(self, cls):
        if is_importable(cls, cls.__qualname__):
            self.module_of(cls)
            return NotImplemented
        if cls.__module__ == "builtins":
            found = next((name for name, each in vars(types).items() if each is cls), None)
            if found is None and cls is not type(None):
                raise NotCarried("the type %s" % cls.__name__)
            return builtin_class, (found,)
        if not cls.__flags__ & HEAP_TYPE or cls.__flags__ & IMMUTABLE_TYPE:
            raise NotCarried("the type %s, which no module has by its name" % cls.__name__)
        enum = sys.modules.get("enum")
        members = dict(cls.__dict__)
        for name in ENDS:
            members.pop(name, None)
        if enum is not None and isinstance(cls, enum.EnumMeta):
            return self.define_enum(cls, members)
        slots = members.get("__slots__")
        if slots is not None:
            for name in (slots,) if isinstance(slots, str) else tuple(slots):
                members.pop(name, None)
                members.pop("_%s%s" % (cls.__name__.lstrip("_"), name), None)
        first = {"__slots__": slots} if slots is not None else {}
        if "_fields_" in members:  # ctypes
            first["_fields_"] = members.pop("_fields_")
            members = {name: value for name, value in members.items() if type(value).__name__ != "CField"}
        first["__module__"], first["__qualname__"] = cls.__module__, cls.__qualname__
        for name in ("__slots__", "__module__", "__qualname__"):
            members.pop(name, None)
        members.pop("__init_subclass__", None)
        return make_class, (type(cls), cls.__name__, cls.__bases__, first), members, None, None, set_class

    def define_enum(self, cls, members):
        values = {name: each.value for name, each in cls.__members__.items()}
        rest = {name: value for name, value in members.items()
                if type(value) in (types.FunctionType, property, classmethod, staticmethod) and not name.startswith(("_", "__")) and name not in values}
        return make_enum, (type(cls), cls.__name__, cls.__bases__, cls.__module__, cls.__qualname__, values), rest, None, None, set_class

    def module_of(self, obj):
        self.note(sys.modules.get(obj.__module__))

    def note(self, module):
        if module is not None:
            top = module.__name__.partition(".")[0]
            self.modules[top] = version_of(sys.modules.get(top, module))

    def module(self, obj):
        if is_made(obj):
            state = {name: value for name, value in vars(obj).items() if name not in ("__builtins__", "__loader__", "__spec__")}
            return make_module, (obj.__name__, sys.modules.get(obj.__name__) is obj), state, None, None, set_module
        if obj.__name__.partition(".")[0] == __package__:
            raise NotCarried("a module of the kernel")
        self.note(obj)
        return import_or_miss, (obj.__name__,)

    def cell(self, obj):
        try:
            return make_cell, (), obj.cell_contents, None, None, set_cell
        except ValueError:
            return make_cell, ()

    def file(self, obj):
        """An open file, by its name and position."""
        if obj.closed or not isinstance(getattr(obj, "name", None), str):
            raise NotCarried("a file without a name")
        path = os.path.realpath(obj.name)
        if any(path.startswith(place + "/") for place in own_folders):
            raise NotCarried("a file in %s, which ends with its sandbox" % os.path.dirname(path))
        obj.flush()
        mode = obj.mode
        encoding = (obj.encoding, obj.errors) if isinstance(obj, io.TextIOWrapper) else (None, None)
        return open_again, (os.path.abspath(obj.name), mode, obj.tell() if obj.seekable() else None, *encoding)

    def cached(self, obj):
        """functools.lru_cache: the function, with an empty cache."""
        if is_importable(obj, obj.__qualname__):
            return NotImplemented
        given = obj.cache_parameters()
        return make_cached, (obj.__wrapped__, given["maxsize"], given["typed"])

    def code(self, obj):
        self.keep_source(obj)
        return read_code, self.code_state(obj)


def dataclass_mark(obj):
    import dataclasses

    for name in ("MISSING", "KW_ONLY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR"):
        if getattr(dataclasses, name, None) is obj:
            return getattr, (dataclasses, name)
    return NotImplemented


REDUCERS = {
    types.ModuleType: Writer.module, types.CellType: Writer.cell, types.CodeType: Writer.code,
    types.MappingProxyType: lambda writer, obj: (types.MappingProxyType, (dict(obj),)),
    property: lambda writer, obj: (property, (obj.fget, obj.fset, obj.fdel, obj.__doc__)),
    classmethod: lambda writer, obj: (classmethod, (obj.__func__,)),
    staticmethod: lambda writer, obj: (staticmethod, (obj.__func__,)),
    memoryview: lambda writer, obj: (memoryview, (obj.obj,)) if obj.obj is not None and obj.nbytes == len(obj.obj) else NotImplemented,
    functools._lru_cache_wrapper: Writer.cached,
    weakref.ref: lambda writer, obj: (weakref.ref, (obj(),)) if obj() is not None else NotImplemented,
    struct.Struct: lambda writer, obj: (struct.Struct, (obj.format,)),
    **{kind: Writer.file for kind in OPENED},
}


def reason_of(exc):
    text = str(exc).split("\n")[0][:MAX_TEXT]
    return text or type(exc).__name__


def choose(ns, shown):
    """({name: value} that can be carried, {name: reason} of the others)."""
    carried, left = {}, {}
    limit = sys.getrecursionlimit()
    for name, value in list(ns.items()):
        if type(name) is not str or not shown(name, value):
            continue
        try:
            Writer(Nothing(), ns).dump(value)
            carried[name] = value
        except KeyboardInterrupt:
            raise
        except BaseException as exc:
            left[name] = reason_of(exc)
        finally:
            sys.setrecursionlimit(limit)
    return carried, left


def settings():
    found = {"cwd": os.getcwd(), "env": dict(os.environ), "path": [each for each in sys.path if type(each) is str],
             "recursion": sys.getrecursionlimit()}
    decimal = sys.modules.get("decimal")
    if decimal is not None:
        context = decimal.getcontext()
        found["decimal"] = context.prec, context.rounding
    return found


def save(fd, ns, shown, history=("",), count=0, folders=()):
    """Writes the variables; returns what is left behind, as held.py lists it."""
    global own_folders
    own_folders = folders
    carried, left = choose(ns, shown)
    buffers, out = [], io.BytesIO()
    writer = Writer(out, ns, buffers)
    while True:
        try:
            writer.dump(carried)
            break
        except Exception as exc:  # what a reducer answers may differ from time to time
            name, _ = carried.popitem()
            left[name] = reason_of(exc)
            buffers, out = [], io.BytesIO()
            writer = Writer(out, ns, buffers)
    raws = [each.raw() for each in buffers]
    head = dumps({"version": VERSION, "python": list(sys.version_info[:3]), "magic": importlib.util.MAGIC_NUMBER.hex(),
                  "sources": writer.sources, "modules": writer.modules, "settings": settings(), "pickle": out.tell(), "count": count,
                  "history": [each for each in history if type(each) is str],
                  "buffers": [each.nbytes for each in raws]}).encode()
    at = 0
    for part in (MAGIC, len(head).to_bytes(8, "little"), head, out.getbuffer(), *raws):
        at = write_at(fd, part, at)
    listed = [["variable", "%s (%s)" % (name[:MAX_TEXT], reason), [name[:MAX_TEXT]]] for name, reason in list(left.items())[:MAX_LEFT]]
    if len(left) > MAX_LEFT:
        listed.append(["more", "%d other variables" % (len(left) - MAX_LEFT), []])
    return [*listed, ["modules", SETTINGS, []]]


def write_at(fd, data, at):
    view = memoryview(data).cast("B")
    while view:
        done = os.pwrite(fd, view[:1 << 26], at)
        view, at = view[done:], at + done
    return at


# -- reading, in a kernel that is confined for the session

class Missing:
    """In the place of something that this environment does not have."""

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        pass

    def __setitem__(self, key, value):
        pass

    def append(self, value):
        pass


class Reader(pickle.Unpickler):
    def __init__(self, file, buffers, ns):
        super().__init__(file, buffers=buffers)
        self.ns = ns

    def persistent_load(self, ident):
        return self.ns if ident == "variables" else sys.modules["__main__"]

    def find_class(self, module, name):
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError) as exc:
            missing.append(str(exc)[:MAX_TEXT])
            return Missing


class Finder(Writer):
    """Whether a value refers to something that is missing."""

    def reducer_override(self, obj):
        if obj is Missing or type(obj) is Missing:
            raise NotCarried
        return super().reducer_override(obj)


def is_whole(value, ns):
    try:
        Finder(Nothing(), ns).dump(value)
    except NotCarried:
        return False
    except Exception:
        pass  # for another reason
    return True


def import_or_miss(name):
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        missing.append(str(exc)[:MAX_TEXT])
        return Missing


reading = None  # the head of the file that is read
missing = []  # what was looked for in vain


def read_at(fd, size, at):
    parts = []
    while size:
        data = os.pread(fd, min(size, 1 << 26), at)
        if not data:
            raise ValueError("the file ends too early")
        parts.append(data)
        size, at = size - len(data), at + len(data)
    return b"".join(parts)


def load(fd, ns, tell):
    """Puts the variables into the namespace, and returns the head. tell(text): about variables that cannot be here."""
    global reading, missing
    missing = []
    at = len(MAGIC)
    size = int.from_bytes(read_at(fd, 8, at), "little")
    if size > MAX_HEAD:
        raise ValueError("its head is too large")
    head = reading = loads(read_at(fd, size, at + 8))
    if head["version"] != VERSION:
        raise ValueError("it has version %r of the portable form" % head["version"])
    at += 8 + size
    data = read_at(fd, head["pickle"], at)
    at += head["pickle"]
    buffers = []
    for size in head["buffers"]:
        buffers.append(bytearray(read_at(fd, size, at)))
        at += size
    put_settings(head["settings"])
    for name, source in head["sources"].items():
        if source is not None:
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    reader = Reader(io.BytesIO(data), buffers, ns)
    try:
        found = reader.load()
    except Exception as exc:
        raise ValueError("%s: %s; it was saved with %s" % (type(exc).__name__, exc, versions(head))) from None
    reading = None
    if missing:
        lost = [name for name, value in found.items() if not is_whole(value, ns)]
        for name in lost:
            del found[name]
        tell("[not carried: %s: %s; it was saved with %s]\n" % (", ".join(lost), "; ".join(dict.fromkeys(missing)), versions(head)))
    ns.update(found)
    return head


def versions(head):
    named = ["%s %s" % pair for pair in head["modules"].items() if pair[1]]
    return ", ".join(["Python %d.%d.%d" % tuple(head["python"]), *named[:20]])


def put_settings(given):
    os.environ.update(given["env"])
    sys.path.extend(each for each in given["path"] if each not in sys.path and not each.endswith("site-packages"))
    sys.setrecursionlimit(given["recursion"])
    try:
        os.chdir(given["cwd"])
    except OSError:
        pass  # it has the session's own
    if "decimal" in given:
        import decimal

        decimal.getcontext().prec, decimal.getcontext().rounding = given["decimal"]


def read_code(data, filename, name, line, free):
    if same_python(reading):
        return marshal.loads(data)
    source = reading["sources"].get(filename)
    if source is None:
        raise ValueError("%s has no source, and its code is of another Python" % name)
    codes = [compile(source, filename, "exec", dont_inherit=True)]
    while codes:
        code = codes.pop()
        if code.co_name == name and code.co_firstlineno == line and sorted(code.co_freevars) == sorted(free):
            return code
        codes += [each for each in code.co_consts if type(each) is types.CodeType]
    raise ValueError("%s is not in its source" % name)


def make_function(code, variables, name, qualname, closure):
    made = read_code(*code)
    variables.setdefault("__builtins__", builtins)
    by_name = dict(zip(code[4], closure))
    function = types.FunctionType(made, variables, name, None, tuple(by_name[each] for each in made.co_freevars) or None)
    function.__qualname__ = qualname
    return function


def set_function(function, state):
    extra, defaults = state
    function.__defaults__ = defaults
    for name, value in extra.items():
        if name == "__dict__":
            function.__dict__.update(value)
        else:
            setattr(function, name, value)


def make_cached(function, maxsize, typed):
    return functools.lru_cache(maxsize, typed)(function)


def make_cell():
    return types.CellType()


def set_cell(cell, value):
    cell.cell_contents = value


def builtin_class(name):
    return type(None) if name is None else getattr(types, name)


def make_class(meta, name, bases, first):
    return types.new_class(name, bases, {"metaclass": meta}, lambda members: members.update(first))


def set_class(cls, members):
    for name, value in members.items():
        try:
            type.__setattr__(cls, name, value)
        except AttributeError:
            pass  # made with the class, as descriptors of its slots are


def make_enum(meta, name, bases, module, qualname, values):
    members = meta.__prepare__(name, bases)
    for each, value in values.items():
        members[each] = value
    cls = meta.__new__(meta, name, bases, members)
    cls.__module__, cls.__qualname__ = module, qualname
    return cls


def make_module(name, known):
    module = types.ModuleType(name)
    if known:
        sys.modules[name] = module
    return module


def set_module(module, state):
    vars(module).update(state)


def open_again(path, mode, position, encoding, errors):
    """What was written stays: a file that had been opened to be written is not emptied again."""
    binary = "b" if "b" in mode else ""
    if "a" not in mode:
        mode = "r+" if "+" in mode or "w" in mode or "x" in mode else "r"
    try:
        file = open(path, mode.replace("b", "") + binary, encoding=encoding, errors=errors)
    except OSError as exc:
        missing.append(str(exc)[:MAX_TEXT])
        return Missing()
    if position is not None:
        file.seek(position)
    return file
