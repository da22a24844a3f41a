"""pretty() against the real IPython where there is one, and against fixed text everywhere."""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import os
import pathlib
import random
import re
import sys
import types

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "kernel")))

from workcell_kernel import pretty as pretty_module  # noqa: E402
from workcell_kernel.pretty import pretty  # noqa: E402

try:
    from IPython.lib.pretty import pretty as theirs
    import IPython

    # Printers were added and layouts corrected over the years; this is the series that we follow.
    if int(IPython.__version__.split(".")[0]) < 9:
        theirs = None
except ImportError:
    theirs = None


class Plain:
    pass


class Lines:
    def __init__(self, n=3):
        self.n = n

    def __repr__(self):
        return "\n".join("line %d of Lines" % i for i in range(self.n))


class Empty:
    def __repr__(self):
        return ""


class Pretty:
    def __init__(self, *items):
        self.items = items

    def _repr_pretty_(self, p, cycle):
        if cycle:
            p.text("Pretty(...)")
            return
        with p.group(7, "Pretty(", ")"):
            for i, item in enumerate(self.items):
                if i:
                    p.text(",")
                    p.breakable()
                p.pretty(item)


class Tree:
    def __init__(self, *kids):
        self.kids = kids

    def _repr_pretty_(self, p, cycle):
        p.begin_group(2, "Tree:")
        for kid in self.kids:
            p.break_()
            p.pretty(kid)
        with p.indent(4):
            p.breakable("")
            p.text("end")
        p.end_group(2)


class ReprOfBase(Lines):
    pass


class PrettyChild(Pretty):
    def __repr__(self):
        return "PrettyChild"


class Meta(type):
    def __repr__(cls):
        return "M<%s>" % cls.__name__


class WithMeta(metaclass=Meta):
    pass


class NoModule:
    pass


NoModule.__module__ = None


class ListChild(list):
    pass


class ListOwnRepr(list):
    def __repr__(self):
        return "own"


class DictChild(dict):
    pass


class IntChild(int):
    pass


class BadGetattr:
    def __getattr__(self, name):
        raise RuntimeError(name)


class AllGetattr:
    def __getattr__(self, name):
        return name


class Liar:
    @property
    def __class__(self):
        return dict


class Color(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Bits(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Data:
    x: int
    y: list


Point = collections.namedtuple("Point", "x y")


class MyError(Exception):
    pass


class Outer:
    class Inner:
        def method(self):
            return super()

        @classmethod
        def of(cls):
            pass

        @staticmethod
        def st(a, *, b: int = 3):
            pass


def function(a, b=(1, 2), *args, c: "int" = None, **kw) -> str:
    pass


def values():
    loop = [1, 2]
    loop.append(loop)
    loop_dict = {"a": 1}
    loop_dict["self"] = [loop_dict]
    loop_tuple = ([],)
    loop_tuple[0].append(loop_tuple)
    loop_ns = types.SimpleNamespace(a=1)
    loop_ns.me = loop_ns
    loop_deque = collections.deque([1])
    loop_deque.append(loop_deque)
    loop_default = collections.defaultdict(list)
    loop_default["x"].append(loop_default)
    loop_pretty = Pretty(1)
    loop_pretty.items = (loop_pretty, 2)
    words = ["word%d" % i for i in range(40)]
    yield from (
        0,
        -1,
        10**30,
        True,
        None,
        Ellipsis,
        NotImplemented,
        1.5,
        float("nan"),
        float("inf"),
        -0.0,
        1j,
        "a",
        "it's",
        "two\nlines",
        "x" * 200,
        b"bytes",
        b"x" * 100,
        bytearray(b"ab"),
        memoryview(b"x").tobytes(),
        range(3),
        slice(1, 2),
        (),
        (1,),
        (1, 2),
        [],
        [1],
        [[]],
        {},
        {1: 2},
        set(),
        {1},
        {3, 1, 2},
        {"b", "a"},
        {1, "a", (2,)},
        frozenset(),
        frozenset({2, 1}),
        {frozenset({1}), frozenset()},
        words,
        tuple(words),
        dict.fromkeys(words),
        set(words),
        frozenset(words),
        {w: words[:12] for w in words[:3]},
        [words, words],
        {"k": {"k": {"k": words}}},
        [[list(range(30))] * 3] * 3,
        {tuple(range(30)): 1},
        {tuple(words[:14]): words[:14]},
        {tuple(words[:14]): "v" * 90},
        {"k" * 90: words[:14], 2: 3},
        {(1, 2): ["v" * 76], 3: 4},
        {(1, 2, 3): {(4, 5, 6): ["w" * 70, "x" * 70]}},
        {"a": "x" * 74},
        {"a": "x" * 75},
        ["x" * 75],
        ["x" * 76],
        ["x" * 73, 1],
        ["x" * 72, 1],
        ["x" * 71, 1],
        ((1,) * 30, (2,) * 30),
        list(range(999)),
        list(range(1000)),
        list(range(1001)),
        set(range(1000)),
        set(range(2000)),
        dict.fromkeys(range(1500)),
        tuple(range(3000)),
        collections.deque(range(1200)),
        loop,
        loop_dict,
        loop_tuple,
        loop_ns,
        loop_deque,
        loop_default,
        loop_pretty,
        [loop_pretty],
        collections.deque(),
        collections.deque([1, 2]),
        collections.deque([1], maxlen=3),
        collections.deque(words),
        collections.OrderedDict(),
        collections.OrderedDict([("a", 1)]),
        collections.OrderedDict((w, w) for w in words),
        collections.defaultdict(int),
        collections.defaultdict(list, {"a": [1]}),
        collections.defaultdict(None, {1: 2}),
        collections.defaultdict(function),
        collections.Counter(),
        collections.Counter("abracadabra"),
        collections.Counter(words),
        collections.UserList([1, 2]),
        collections.UserDict(a=1),
        collections.ChainMap({1: 2}),
        types.SimpleNamespace(),
        types.SimpleNamespace(a=1, b="x" * 70, c=words[:3]),
        types.MappingProxyType({"a": 1}),
        types.MappingProxyType({}),
        dict(a=1).keys(),
        dict(a=1).items(),
        int,
        str,
        type,
        object,
        Plain,
        Outer.Inner,
        WithMeta,
        Color,
        collections.OrderedDict,
        type(None),
        NoModule,
        MyError,
        types.SimpleNamespace,
        Meta,
        [int, Plain],
        function,
        Plain.__init__,
        len,
        print,
        [].append,
        dict.get,
        "".join,
        Outer.Inner.method,
        Outer.Inner().method.__func__,
        Outer.Inner.st,
        lambda x: x,
        functools.partial(function, 1),
        functools.lru_cache(function),
        os.getcwd,
        max,
        (lambda x: (yield)),
        type.__call__,
        property(len),
        staticmethod(len),
        os,
        re,
        ValueError(),
        ValueError("x"),
        ValueError("x", 1),
        KeyError("k"),
        MyError("m" * 80, words[:4]),
        OSError(2, "no"),
        SystemExit(3),
        KeyboardInterrupt(),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        StopIteration(1),
        re.compile("a+"),
        re.compile(r'\s\\"', re.I | re.M),
        re.compile(b"x", re.X),
        re.compile("x" * 80, re.S),
        datetime.datetime(2024, 1, 2),
        datetime.timedelta(1),
        datetime.date(2024, 1, 2),
        decimal.Decimal("1.50"),
        pathlib.PurePosixPath("/a/b"),
        Color.RED,
        Number.ONE,
        Bits.A | Bits.B,
        Point(1, words[:12]),
        Data(1, [2]),
        Lines(),
        [Lines(), Lines()],
        {"key": Lines(), "k2": Lines(1)},
        [1, [Lines()], 2],
        {"a": words[:12], "b": Lines()},
        Lines(0),
        Empty(),
        [Empty(), Empty()],
        ReprOfBase(),
        Pretty(1, words[:20]),
        [Pretty(words[:5], Lines())],
        PrettyChild(1),
        Tree(),
        Tree(1, Tree(2, Lines()), words),
        [Tree(1), words[:20]],
        Pretty,
        ListChild([1, 2]),
        ListOwnRepr([1]),
        DictChild(a=1),
        IntChild(3),
        [IntChild(3)],
        ListChild(words),
        BadGetattr,
        AllGetattr,
        iter([]) and 1,
        (x for x in ()).__name__,
    )


UNSTABLE = (Plain, BadGetattr, AllGetattr)


def check(value, width=None):
    ours = pretty(value) if width is None else pretty(value, max_width=width)
    if theirs is not None:
        expected = theirs(value) if width is None else theirs(value, max_width=width)
        assert ours == expected, "%.200s\n--- ours\n%s\n--- IPython\n%s" % (repr(value), ours, expected)
    return ours


def test_values():
    for value in values():
        check(value)


def test_values_in_containers():
    all_values = list(values())
    for value in all_values:
        check([value])
        check({"some key": value, "other": [value, value]})
        check(("x" * 60, value, (value,)))


def test_widths():
    for value in values():
        for width in (10, 20, 40, 120):
            check(value, width)


def test_objects_with_addresses():
    for cls in UNSTABLE:
        obj = cls()
        check(obj)
        check([obj, obj])
    obj = Plain()
    assert pretty(obj) == "<%s.Plain at 0x%x>" % (__name__, id(obj))
    check(Outer.Inner().method)
    check(Outer.Inner().method())
    check(Outer.Inner.of)
    check(object())
    check(os.environ)
    check(iter([]))
    check(sys.stderr)
    check(sys.implementation)
    check(sys.version_info)
    check(sys.flags)
    check(re.match("a", "a"))


def test_lying_class():
    # IPython takes __class__ at its word and so do we: the object has no keys() and both fail alike.
    try:
        pretty(Liar())
    except AttributeError:
        pass
    else:
        raise AssertionError("expected AttributeError")


def random_value(rnd, depth):
    kind = rnd.randrange(12 if depth else 5)
    if kind == 0:
        return rnd.choice(("a", "bb", "c" * 10, "d" * 30, "e" * 60, ""))
    if kind == 1:
        return rnd.randrange(10 ** rnd.randrange(1, 12))
    if kind == 2:
        return rnd.choice((None, True, 1.5, Ellipsis, int, len))
    if kind == 3:
        return Lines(rnd.randrange(4))
    if kind == 4:
        return Empty()
    items = [random_value(rnd, depth - 1) for _ in range(rnd.randrange(6))]
    if kind in (5, 6):
        return items
    if kind == 7:
        return tuple(items)
    if kind in (8, 9):
        return {
            rnd.choice(("k%d" % i, ("t", i), ("long" * 12, i, ("u",) * 6), i)): item
            for i, item in enumerate(items)
        }
    if kind == 10:
        return Pretty(*items)
    return Tree(*items)


def test_random():
    rnd = random.Random(20240501)
    for _ in range(3000):
        check(random_value(rnd, 4), rnd.choice((None, 20, 50)))


def test_fixed_text():
    assert pretty({"a": [1, 2], "b": (3,)}) == "{'a': [1, 2], 'b': (3,)}"
    assert pretty({3, 1, 2}) == "{1, 2, 3}"
    assert pretty([int, collections.OrderedDict]) == "[int, collections.OrderedDict]"
    assert pretty(ValueError("x")) == "ValueError('x')"
    assert pretty(["x" * 50, "y" * 50]) == "['%s',\n '%s']" % ("x" * 50, "y" * 50)
    assert pretty({"k": Lines(2)}) == "{'k': line 0 of Lines\n line 1 of Lines}"
    assert pretty(collections.Counter("aab")) == "Counter({'a': 2, 'b': 1})"
    assert pretty(function).startswith("<function %s.function(a, b=(1, 2)" % __name__)
    loop = [1]
    loop.append(loop)
    assert pretty(loop) == "[1, [...]]"
    assert pretty(list(range(2000))).endswith(" 999,\n ...]")


def test_failing_repr_propagates():
    class Bad:
        def __repr__(self):
            raise ZeroDivisionError("no repr")

    for value in (Bad(), [Bad()], {"a": (1, Bad())}):
        try:
            pretty(value)
        except ZeroDivisionError:
            continue
        raise AssertionError("expected ZeroDivisionError")


def test_float_text():
    pretty_module.float_text = lambda x: "%.2f" % x
    try:
        assert pretty(1 / 3) == "0.33"
        assert pretty([1 / 3, 1]) == "[0.33, 1]"
    finally:
        pretty_module.float_text = None
    assert pretty([0.5]) == "[0.5]"


def main():
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)


if __name__ == "__main__":
    main()
