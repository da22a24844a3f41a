"""pretty(obj): the text IPython shows for a value.

The layout is Oppen's: text and possible breaks are buffered until the line is known to fit; when it does not
fit, the outermost group that still has a break in the buffer is broken, and all its breaks become newlines.
The printers below decide what the text is.  Both follow IPython.lib.pretty to the byte, which the tests check
against the real one.

Objects may define _repr_pretty_(p, cycle); `p` is the Printer.
"""

import re
import sys
import types

MAX_WIDTH = 79
MAX_SEQ = 1000

# Text of a float.  %precision replaces it; None means repr().
float_text = None

_SCALARS = frozenset((int, str, float, bool, type(None), bytes))


def pretty(obj, max_width=MAX_WIDTH):
    if float_text is None:
        if type(obj) in _SCALARS:
            return repr(obj)
        if type(obj) in _PLAIN_CONTAINERS and _is_plain(obj, [0]):
            text = repr(obj)
            if len(text) <= max_width:
                return text
    p = Printer(max_width)
    p.pretty(obj)
    p.flush()
    return "".join(p.out)


_PLAIN_CONTAINERS = frozenset((list, tuple, dict))
_PLAIN_NODES = 40  # more never fit on a line


def _is_plain(obj, seen):
    """True when repr(obj) and pretty(obj) agree as long as the text fits on one line."""
    seen[0] += len(obj) + 1
    if seen[0] > _PLAIN_NODES:
        return False
    for item in obj:
        if type(item) not in _SCALARS and not (type(item) in _PLAIN_CONTAINERS and _is_plain(item, seen)):
            return False
    if type(obj) is dict:
        for item in obj.values():
            if type(item) not in _SCALARS and not (type(item) in _PLAIN_CONTAINERS and _is_plain(item, seen)):
                return False
    return True


class _Group:
    __slots__ = ("depth", "pending", "broken")

    def __init__(self, depth):
        self.depth = depth
        self.pending = 0  # breaks of this group still in the buffer
        self.broken = False


class _Break:
    __slots__ = ("sep", "indentation", "group")

    def __init__(self, sep, indentation, group):
        self.sep = sep
        self.indentation = indentation
        self.group = group


class _Scope:
    """What `with p.group(...)` and `with p.indent(...)` use."""
    __slots__ = ("enter", "leave")

    def __init__(self, enter, leave):
        self.enter = enter
        self.leave = leave

    def __enter__(self):
        self.enter[0](*self.enter[1:])

    def __exit__(self, *exc):
        self.leave[0](*self.leave[1:])
        return False


class Printer:
    verbose = False

    def __init__(self, max_width=MAX_WIDTH, newline="\n", max_seq_length=MAX_SEQ):
        self.max_width = max_width
        self.newline = newline
        self.max_seq_length = max_seq_length
        self.indentation = 0
        self.stack = []         # ids of the objects being printed
        self.out = []           # pieces that are final
        self.output_width = 0   # column reached by `out`
        self.buffer = []        # str and _Break, not final yet; `first` is the index of the oldest
        self.first = 0
        self.buffer_width = 0
        root = _Group(0)
        self.groups = [root]    # open groups, innermost last
        self.levels = [[root]]  # by depth: groups that may still be broken

    # -- what _repr_pretty_ methods call

    def text(self, obj):
        width = len(obj)
        if self.first < len(self.buffer):
            self.buffer.append(obj)
            self.buffer_width += width
            if self.output_width + self.buffer_width > self.max_width:
                self._fit()
        else:
            self.out.append(obj)
            self.output_width += width

    def breakable(self, sep=" "):
        group = self.groups[-1]
        if group.broken:
            self.flush()
            self._newline(self.indentation)
        else:
            group.pending += 1
            self.buffer.append(_Break(sep, self.indentation, group))
            self.buffer_width += len(sep)
            if self.output_width + self.buffer_width > self.max_width:
                self._fit()

    def break_(self):
        group = self._outermost()
        if group:
            self._break(group)
        self.flush()
        self._newline(self.indentation)

    def begin_group(self, indent=0, open=""):
        if open:
            self.text(open)
        depth = len(self.groups)
        group = _Group(depth)
        self.groups.append(group)
        if depth == len(self.levels):
            self.levels.append([])
        self.levels[depth].append(group)
        self.indentation += indent

    def end_group(self, dedent=0, close=""):
        self.indentation -= dedent
        group = self.groups.pop()
        if not group.pending:
            self._forget(group)
        if close:
            self.text(close)

    def group(self, indent=0, open="", close=""):
        return _Scope((self.begin_group, indent, open), (self.end_group, indent, close))

    def indent(self, indent):
        return _Scope((self._shift, indent), (self._shift, -indent))

    def flush(self):
        while self.first < len(self.buffer):
            self._emit()
        self.buffer.clear()
        self.first = 0
        self.buffer_width = 0

    def pretty(self, obj):
        kind = type(obj)
        if kind in _SCALARS and (kind is not float or float_text is None):
            text = repr(obj)
            # The two groups around a scalar matter only to a line that must be broken.
            width = self.output_width + self.buffer_width + len(text)
            if width <= self.max_width or self.first == len(self.buffer):
                self.text(text)
                return
        cycle = id(obj) in self.stack
        self.stack.append(id(obj))
        self.begin_group()
        try:
            _printer_of(obj)(obj, self, cycle)
        finally:
            self.end_group()
            self.stack.pop()

    # -- layout

    def _shift(self, indent):
        self.indentation += indent

    def _newline(self, indentation):
        self.out.append(self.newline)
        self.out.append(" " * indentation)
        self.output_width = indentation
        self.buffer_width = 0

    def _fit(self):
        while self.output_width + self.buffer_width > self.max_width:
            group = self._outermost()
            if not group:
                return
            self._break(group)

    def _outermost(self):
        """The group to break next.  Groups around it count as broken from here on."""
        for level in self.levels:
            last = len(level) - 1
            for i in range(last, -1, -1):
                group = level[i]
                if group.pending:
                    # IPython counts from the other end here and so drops the wrong sibling, which then
                    # never breaks.  It shows in the layout of dicts with long keys, hence it is kept.
                    del level[last - i]
                    group.broken = True
                    return group
            for group in level:
                group.broken = True
            level.clear()
        return None

    def _break(self, group):
        while group.pending:
            self._emit()
        while self.first < len(self.buffer) and type(self.buffer[self.first]) is not _Break:
            self._emit()
        if self.first > 256:
            del self.buffer[:self.first]
            self.first = 0

    def _emit(self):
        item = self.buffer[self.first]
        self.first += 1
        if type(item) is not _Break:
            self.out.append(item)
            self.output_width += len(item)
            self.buffer_width -= len(item)
            return
        group = item.group
        group.pending -= 1
        self.buffer_width -= len(item.sep)
        if group.broken:
            self.out.append(self.newline)
            self.out.append(" " * item.indentation)
            self.output_width = item.indentation
        else:
            if not group.pending:
                self._forget(group)
            self.out.append(item.sep)
            self.output_width += len(item.sep)

    def _forget(self, group):
        level = self.levels[group.depth]
        if group in level:
            level.remove(group)

    # -- for printers of sequences

    def _enumerate(self, items):
        limit = self.max_seq_length
        for i, item in enumerate(items):
            if limit and i >= limit:
                self.text(",")
                self.breakable()
                self.text("...")
                return
            yield i, item


def _safe_getattr(obj, name, default=None):
    try:
        return getattr(obj, name, default)
    except Exception:
        return default


def _printer_of(obj):
    if obj is True or obj is False or obj is None or obj is Ellipsis or obj is NotImplemented:
        return _print_repr
    cls = _safe_getattr(obj, "__class__") or type(obj)
    for c in cls.__mro__:
        printer = _printers.get(c)
        if printer is None:
            printer = _printers_by_name.get((_safe_getattr(c, "__module__"), _safe_getattr(c, "__name__")))
        if printer is not None:
            return printer
        if "_repr_pretty_" in c.__dict__:
            method = c._repr_pretty_
            if callable(method):
                return method
        if c is not object and "__repr__" in c.__dict__ and callable(_safe_getattr(c, "__repr__")):
            return _print_repr
    return _print_default


# -- printers

def _print_repr(obj, p, cycle):
    lines = repr(obj).splitlines()
    with p.group():
        for i, line in enumerate(lines):
            if i:
                p.break_()
            p.text(line)


def _print_float(obj, p, cycle):
    if float_text is None:
        _print_repr(obj, p, cycle)
    else:
        p.text(float_text(obj))


def _print_default(obj, p, cycle):
    cls = _safe_getattr(obj, "__class__") or type(obj)
    if _safe_getattr(cls, "__repr__") is not object.__repr__:
        _print_repr(obj, p, cycle)
        return
    p.begin_group(1, "<")
    p.pretty(cls)
    p.text(" at 0x%x" % id(obj))
    if cycle:
        p.text(" ...")
    p.end_group(1, ">")


def _print_items(p, items):
    for i, item in p._enumerate(items):
        if i:
            p.text(",")
            p.breakable()
        p.pretty(item)


def _sequence(start, end):
    def printer(obj, p, cycle):
        if cycle:
            p.text(start + "..." + end)
            return
        p.begin_group(len(start), start)
        _print_items(p, obj)
        if len(obj) == 1 and isinstance(obj, tuple):
            p.text(",")
        p.end_group(len(start), end)
    return printer


def _set(start, end):
    def printer(obj, p, cycle):
        if cycle:
            p.text(start + "..." + end)
        elif not len(obj):
            p.text(type(obj).__name__ + "()")
        else:
            p.begin_group(len(start), start)
            _print_items(p, obj if p.max_seq_length and len(obj) >= p.max_seq_length else _sorted(obj))
            p.end_group(len(start), end)
    return printer


def _sorted(items):
    items = list(items)
    try:
        return sorted(items)
    except Exception:
        try:
            return sorted(items, key=str)
        except Exception:
            return items


def _mapping(start, end):
    def printer(obj, p, cycle):
        if cycle:
            p.text("{...}")
            return
        p.begin_group(len(start), start)
        for i, key in p._enumerate(obj.keys()):
            if i:
                p.text(",")
                p.breakable()
            p.pretty(key)
            p.text(": ")
            p.pretty(obj[key])
        p.end_group(len(start), end)
    return printer


def _print_super(obj, p, cycle):
    p.begin_group(8, "<super: ")
    p.pretty(obj.__thisclass__)
    p.text(",")
    p.breakable()
    p.pretty(obj.__self__)
    p.end_group(8, ">")


class _Raw:
    """Text that prints as itself."""

    def __init__(self, value):
        self.value = value

    def _repr_pretty_(self, p, cycle):
        p.text(self.value)


class _Call:
    """name(args, key=value): a call that wraps after its opening parenthesis."""

    def __init__(self, name, args=(), kwargs=()):
        self.name = name
        self.args = args
        self.kwargs = kwargs  # a dict or ()

    def _repr_pretty_(self, p, cycle):
        indent = len(self.name) + 1
        p.begin_group(indent, self.name + "(")
        first = True
        for arg in self.args:
            if not first:
                p.text(",")
                p.breakable()
            first = False
            p.pretty(arg)
        for key in self.kwargs:
            if not first:
                p.text(",")
                p.breakable()
            first = False
            p.begin_group(len(key) + 1, key + "=")
            p.pretty(self.kwargs[key])
            p.end_group(len(key) + 1)
        p.end_group(indent, ")")


def _call(args):
    """Printer for containers shown as ClassName(*args(obj)); args may return (args, kwargs)."""
    def printer(obj, p, cycle):
        name = obj.__class__.__name__
        if cycle:
            p.pretty(_Call(name, (_Raw("..."),)))
        else:
            p.pretty(_Call(name, *args(obj)))
    return printer


_RE_FLAGS = ("IGNORECASE", "LOCALE", "MULTILINE", "DOTALL", "UNICODE", "VERBOSE", "DEBUG")


def _print_pattern(obj, p, cycle):
    args = [_Raw("r" + repr(obj.pattern).replace("\\\\", "\\"))]
    if obj.flags:
        args.append(_Raw("|".join("re." + flag for flag in _RE_FLAGS if obj.flags & getattr(re, flag))))
    p.pretty(_Call("re.compile", args))


def _print_namespace(obj, p, cycle):
    p.pretty(_Call("namespace", (_Raw("..."),)) if cycle else _Call("namespace", (), obj.__dict__))


_HOME_MODULES = (None, "__builtin__", "builtins", "exceptions")


def _print_type(obj, p, cycle):
    for meta in type(obj).__mro__:
        if "__repr__" in meta.__dict__:
            if meta is not type:
                _print_repr(obj, p, cycle)
                return
            break
    name = _safe_getattr(obj, "__qualname__")
    if not isinstance(name, str):
        name = obj.__name__
        if not isinstance(name, str):
            name = "<unknown type>"
    module = _safe_getattr(obj, "__module__")
    p.text(name if module in _HOME_MODULES else module + "." + name)


def _signature(obj):
    from inspect import signature
    if sys.version_info >= (3, 14):
        from annotationlib import Format
        return str(signature(obj, annotation_format=Format.FORWARDREF))
    return str(signature(obj))


def _print_function(obj, p, cycle):
    name = _safe_getattr(obj, "__qualname__", obj.__name__)
    module = obj.__module__
    if module and module not in _HOME_MODULES:
        name = module + "." + name
    try:
        name += _signature(obj)
    except (ValueError, TypeError):
        pass
    p.text("<function %s>" % name)


def _print_exception(obj, p, cycle):
    cls = obj.__class__
    name = getattr(cls, "__qualname__", cls.__name__)
    if cls.__module__ not in ("exceptions", "builtins"):
        name = cls.__module__ + "." + name
    p.pretty(_Call(name, getattr(obj, "args", ())))


_printers = {
    int: _print_repr,
    float: _print_float,
    str: _print_repr,
    tuple: _sequence("(", ")"),
    list: _sequence("[", "]"),
    dict: _mapping("{", "}"),
    set: _set("{", "}"),
    frozenset: _set("frozenset({", "})"),
    super: _print_super,
    re.Pattern: _print_pattern,
    type: _print_type,
    types.FunctionType: _print_function,
    types.BuiltinFunctionType: _print_function,
    types.SimpleNamespace: _print_namespace,
    types.MappingProxyType: _mapping("mappingproxy({", "})"),
    BaseException: _print_exception,
}

# By name, so that nothing needs to be imported to know them.
_printers_by_name = {
    ("os", "_Environ"): _mapping("environ{", "}"),
    ("collections", "defaultdict"): _call(lambda d: ((d.default_factory, dict(d)),)),
    ("collections", "OrderedDict"): _call(lambda d: ((list(d.items()),) if len(d) else (),)),
    ("collections", "Counter"): _call(lambda d: ((dict(d.most_common()),) if len(d) else (),)),
    ("collections", "deque"): _call(lambda d: ((list(d),), {} if d.maxlen is None else {"maxlen": d.maxlen})),
    ("collections", "UserList"): _call(lambda d: ((d.data,),)),
}
