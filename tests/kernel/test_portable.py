"""portable.part(): values that JSON cannot say, for hosts in Python."""

import ast
import datetime
import decimal
import io
import os
import sys

import pytest

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "kernel")))

from workcell_kernel import portable  # noqa: E402


@pytest.mark.parametrize("value", [(1, 2), {1, 2}, set(), b"\x00", 1 + 2j, {1: (b"x", None)}, [("a", {2: 3})], 10 ** 5000])
def test_literals_are_exact(value):
    mime, data = portable.part(value)
    assert mime == "application/vnd.workcell.value.literal"
    with portable.sys.modules["workcell_kernel.values"].any_digits():
        back = ast.literal_eval(data.decode())
    assert back == value and type(back) is type(value)


class Later(datetime.date):
    pass


class Liar(tuple):
    def __repr__(self):
        return "(1, 2)"


def test_what_is_no_literal_is_left_alone():
    deep = ()
    for _ in range(200):
        deep = (deep,)
    looped = []
    looped.append(looped)
    for value in (object(), Liar(), (Liar(),), lambda: None, deep, ("x" * portable.MAX_LITERAL,), looped, Later(2020, 1, 1)):
        assert portable.part(value) is None


def test_calls_with_plain_arguments():
    for value in (frozenset((1,)), bytearray(b"x"), datetime.datetime(2020, 1, 2), datetime.timedelta(1), decimal.Decimal("1.5")):
        mime, data = portable.part([value])
        assert mime.endswith(".literal") and data.decode() == repr([value])


def test_arrays_and_tables():
    numpy = pytest.importorskip("numpy")
    pandas = pytest.importorskip("pandas")
    mime, data = portable.part(numpy.arange(6).reshape(2, 3))
    assert mime.endswith(".npy") and numpy.load(io.BytesIO(data), allow_pickle=False).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert portable.part(numpy.float64(1.5))[1] == b"1.5"
    assert portable.part(numpy.array([object()])) is None
    mime, data = portable.part(pandas.DataFrame({"a": [1, 2]}))
    assert ".dataframe." in mime and data
    assert ".series." in portable.part(pandas.Series([1.5]))[0]
    assert portable.part(pandas.DataFrame({"a": [1 + 2j]})) is None or ".parquet" in portable.part(
        pandas.DataFrame({"a": [1 + 2j]}))[0]
