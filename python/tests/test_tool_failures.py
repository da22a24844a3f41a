"""Functions of the host that fail in odd ways, or that turn to the session that waits for them: the cell goes on, and so does the program."""
import asyncio
import sys

import pytest
from conftest import run

from workcell import Session
from workcell.sync import Session as SyncSession


class Mute(Exception):
    def __str__(self):
        raise ValueError


def stops():
    return next(iter([]))


def leaves():
    sys.exit(3)


def interrupts():
    raise KeyboardInterrupt


def generator_ends():
    raise GeneratorExit


def cancels():
    raise asyncio.CancelledError


def is_mute():
    raise Mute


def cannot_be_encoded():
    raise ValueError("a\udc80b")


def returns_what_cannot_be_encoded():
    return "a\udc80b"


def returns_itself():
    found = []
    found.append(found)
    return found


def returns_an_object():
    return object()


def is_deep():
    found = []
    for _ in range(100_000):
        found = [found]
    return found


async def leaves_while_awaited():
    await asyncio.sleep(0)
    sys.exit(3)


async def stops_while_awaited():
    return next(iter([]))


def fine():
    return 5


#: function: what the code is told
ODD = {stops: "StopIteration", leaves: "SystemExit: 3", interrupts: "KeyboardInterrupt", generator_ends: "GeneratorExit", cancels: "CancelledError",
       is_mute: "Mute: its text cannot be shown", cannot_be_encoded: "ValueError: a?b", returns_what_cannot_be_encoded: "UnicodeEncodeError",
       returns_itself: "ValueError", returns_an_object: "TypeError", is_deep: "RecursionError", leaves_while_awaited: "SystemExit: 3",
       stops_while_awaited: "StopIteration"}


@pytest.fixture(autouse=True)
def unlogged(caplog):
    """A report of a test goes from process to process as UTF-8, which these logs are not."""
    caplog.set_level("CRITICAL", logger="workcell")


@pytest.fixture(scope="module")
def session():
    with SyncSession(None, tools=[*ODD, fine]) as made:
        yield made


@pytest.mark.parametrize("fn", ODD, ids=lambda fn: fn.__name__)
def test_every_call_is_answered(session, fn):
    result = session.run("try: tools.%s()\nexcept ToolCallError as error: print(error)\ntools.fine()" % fn.__name__, 60)
    assert result.error is None and ODD[fn] in result.stdout and result.value == 5


def test_names_that_would_be_hidden():
    with SyncSession(None, tools=[fine]) as session:
        for name in ("list", "search"):
            with pytest.raises(ValueError, match="tools.%s.. is reserved" % name):
                session.tool(fine, name=name)
        for name in ("list", "describe", "import"):
            session.tool(lambda name=name: name, name="shop." + name)
        result = session.run("[tools.shop.list_(), tools.shop.describe_(), tools.shop.import_(), len(tools.shop.list())]", 60)
        assert result.value == ["list", "describe", "import", 3], result


class Sly(dict):
    def items(self):
        raise RuntimeError("no items")


def circle():
    made = {}
    made["itself"] = made
    return made


def giver(value):
    return lambda: value


ODD_VALUES = {"sly": Sly(a=1), "circle": circle(), "number": float("nan"), "half": "\ud800", "halves": ["\ud800"], "bytes": b"\xff", "object": object()}


def test_results_that_are_no_json(session):
    """Also arguments that show another value than they hold: what is checked is what arrives."""
    for name, value in ODD_VALUES.items():
        session.tool(giver(value), name="odd." + name)
    session.tool(lambda n, s: [n, s], name="odd.echo")
    result = session.run("said = []\nfor name in %r:\n  try: said.append(repr(tools.odd[name]()))\n  except ToolCallError: said.append('refused')\n"
                         "n = type('N', (int,), {'__str__': lambda self: '7, \"s\": 8', '__repr__': lambda self: '{}'})(5)\n"
                         "s = type('S', (str,), {'__str__': lambda self: '\"', 'encode': lambda self, *given: b'no'})('a')\n"
                         "said + tools.odd.echo(n=n, s=s) + [tools.fine()]" % list(ODD_VALUES), 60)
    assert result.value == ["refused"] * len(ODD_VALUES) + [5, "a", 5], result


def test_functions_of_a_loop_do_not_end_it():
    async def main():
        async with Session(None, tools=[*ODD, fine]) as session:
            found = []
            for fn in ODD:
                if fn is not cancels and fn is not interrupts:
                    found.append((fn, await session.run("try: tools.%s()\nexcept ToolCallError as error: print(error)\ntools.fine()" % fn.__name__, 60)))
            return found

    for fn, result in run(main(), 120):
        assert result.error is None and ODD[fn] in result.stdout and result.value == 5


def test_an_llm_that_fails_oddly():
    for fn in (stops, leaves, is_mute):
        with SyncSession(None, llm=lambda request, fn=fn: fn()) as session:
            result = session.run("try: llm.query('x')\nexcept Exception as error: print(error)\n7", 60)
            assert result.error is None and ODD[fn] in result.stdout and result.value == 7


def test_a_tool_that_runs_code_in_the_session_that_waits_for_it():
    def nested():
        return sync.run("1").value

    with SyncSession(None, tools=[nested]) as sync:
        assert "cannot run code in the session whose code has called it" in sync.run("tools.nested()", 60).error
        with sync.fork() as other:  # another session may
            sync.tool(lambda: other.run("41 + 1").value, name="elsewhere")
            assert sync.run("tools.elsewhere()", 60).value == 42
        assert sync.run("2", 60).value == 2

    async def main():
        later = []

        async def nested():
            return (await session.run("1")).value

        async def scheduled():
            async def work():
                await gone.wait()
                return (await session.run("40 + 1")).value

            later.append(asyncio.ensure_future(work()))
            return "soon"

        async with Session(None, tools=[nested, scheduled]) as session:
            gone = asyncio.Event()
            assert "cannot run code in the session whose code has called it" in (await session.run("tools.nested()", 60)).error
            assert (await session.run("tools.scheduled()", 60)).value == "soon"
            gone.set()
            return await later[0]

    assert run(main()) == 41
