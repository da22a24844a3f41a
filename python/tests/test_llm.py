"""``llm``: a model of the host for code; its budget, its gate, its end, and code that means harm."""

from __future__ import annotations

import asyncio
import functools
import threading
import time

import pytest
from conftest import run

from workcell import AuditLog, ConfigurationError, ContainerExecutor, LlmAnswer, LlmBudget, LlmRequest, Session
from workcell.sync import Session as SyncSession


def on_loop(test):
    @functools.wraps(test)
    def call(**given):
        run(test(**given))

    return call


def echo(request: LlmRequest) -> LlmAnswer:
    return LlmAnswer("<%s>" % request.text, tokens=10, cost=0.5)


@pytest.mark.parametrize("executor", ["subprocess", "sandbox", "inprocess", "deno"])
@on_loop
async def test_query_batch_and_usage(executor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Session(None, executor, llm=echo) as session:
        result = await session.run("llm.query('Sum up', context={'a': [1]}), llm.batch(['x', {'prompt': 'y', 'context': 'c'}]), "
                                   "await llm.query_async('z'), await llm.batch_async(['1', '2']), llm.usage()")
        assert result.error is None, result.error
        first, both, later, async_both, usage = result.value
        assert first == '<Sum up\n\n{"a": [1]}>'
        assert both == ["<x>", "<y\n\nc>"] and later == "<z>" and async_both == ["<1>", "<2>"]
        assert usage == {"calls": 6, "tokens": 60, "cost": 3.0, "left": {"calls": None, "tokens": None, "cost": None}}
        assert (await session.llm_usage()).tokens == 60


def test_sync_session_and_no_llm():
    with SyncSession(None, "subprocess", llm=echo, llm_budget={"calls": 2}) as session:
        assert session.run("llm.query('a')").value == "<a>"
        assert session.llm_usage().calls_left == 1
    with SyncSession(None, "subprocess") as session:
        result = session.run("llm.query('a')")
        assert result.error_info.type == "LlmError" and "no llm" in result.error_info.message


def test_refused_where_it_cannot_work():
    with pytest.raises(TypeError, match="llm_budget"):
        Session(None, llm_budget={"calls": 1})
    with pytest.raises(TypeError, match="function"):
        Session(None, llm="gpt")
    with pytest.raises(ValueError, match="calls"):
        Session(None, llm=echo, llm_budget={"calls": -1})
    with pytest.raises(ConfigurationError, match="llm"):
        SyncSession(None, ContainerExecutor(remote_url="http://127.0.0.1:1", auth_token="x"), llm=echo).start()
    for bad in (LlmBudget(concurrency=0), LlmBudget(concurrency=65), LlmBudget(cost=float("nan"))):
        with pytest.raises(ConfigurationError):
            SyncSession(None, "subprocess", llm=echo, llm_budget=bad).start()


@on_loop
async def test_arguments_of_code_are_checked():
    async with Session(None, "subprocess", llm=echo) as session:
        for code, words in (("llm.query(1)", "must be a str"), ("llm.query('')", "empty"), ("llm.batch('abc')", "a list"),
                            ("llm.query('a', context=object())", "JSON"), ("llm.batch([{'context': 1}])", "must be a str")):
            assert words in (await session.run(code)).error_info.message
        assert (await session.llm_usage()).calls == 0
        # Without our namespace: the host checks too.
        wrong = "from workcell_kernel import namespaces; namespaces.channel().call('llm.query', %s)"
        for args in ("{}", "{'prompt': ''}", "{'prompt': 5}", "{'prompt': 'a', 'options': 1}"):
            assert (await session.run(wrong % args)).error is not None, args
        assert (await session.llm_usage()).calls == 0


@on_loop
async def test_answers_arrive_side_by_side_and_bounded():
    running, most, order = 0, 0, []

    async def model(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        order.append(request.prompt)
        return request.prompt

    async with Session(None, "subprocess", llm=model, llm_budget=LlmBudget(concurrency=4)) as session:
        result = await session.run("llm.batch([str(i) for i in range(100)])")
        assert result.value == [str(i) for i in range(100)]
        assert most == 4 and len(order) == 100


@on_loop
async def test_batch_with_failures():
    def model(request):
        if request.prompt == "bad":
            raise ValueError("the model said no")
        return request.prompt

    async with Session(None, "subprocess", llm=model) as session:
        result = await session.run("[str(x) for x in llm.batch(['a', 'bad', 'c'], return_exceptions=True)]")
        assert result.value == ["a", "ValueError: the model said no", "c"]
        result = await session.run("llm.batch(['a', 'bad', 'c'] * 100)")
        assert result.error_info.type == "LlmError" and "the model said no" in result.error_info.message
        assert (await session.run("llm.query('after')")).value == "after"


@pytest.mark.parametrize("executor", ["subprocess", "sandbox", "inprocess"])
@on_loop
async def test_calls_of_threads_do_not_exceed_the_budget(executor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []

    async def model(request):
        asked.append(request)
        await asyncio.sleep(0.005)
        return LlmAnswer("x", tokens=1)

    async with Session(None, executor, llm=model, llm_budget=LlmBudget(calls=20)) as session:
        code = ("import threading\nwrong = []\n"
                "def ask():\n    for i in range(10):\n        try: llm.query('a')\n        except LlmBudgetError as e: wrong.append(e.code)\n"
                "threads = [threading.Thread(target=ask) for _ in range(8)]\n"
                "[t.start() for t in threads]; [t.join() for t in threads]\nlen(wrong), set(wrong)")
        result = await session.run(code)
        assert result.value == (60, {"limit"}) or result.value == [60, ["limit"]], result
        assert len(asked) == 20 and asked[-1].calls_left is not None
        assert (await session.llm_usage()).calls == 20


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
@on_loop
async def test_children_and_forks_share_the_budget(executor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Session(None, executor, llm=echo, llm_budget=LlmBudget(calls=3), allow_fork=4) as session:
        code = ("children = [sessions.fork() for _ in range(4)]\n"
                "[(c.run('llm.query(\"a\")').error or {}).get('type') for c in children]")
        assert sorted(map(str, (await session.run(code)).value)) == ["LlmBudgetError", "None", "None", "None"]
        fork = await session.fork()
        try:
            assert (await fork.run("llm.query('b')")).error_info.type == "LlmBudgetError"
        finally:
            await fork.close()
        assert (await session.run("llm.query('c')")).error_info.type == "LlmBudgetError"


@on_loop
async def test_reserved_tokens_are_never_exceeded():
    async def model(request):
        await asyncio.sleep(0.005)
        return LlmAnswer("x", tokens=100, cost=1.0)

    budget = LlmBudget(tokens=1000, call_tokens=100, concurrency=8)
    async with Session(None, "subprocess", llm=model, llm_budget=budget) as session:
        result = await session.run("sum(isinstance(x, str) for x in llm.batch(['a'] * 40, return_exceptions=True))")
        assert result.value == 10
        usage = await session.llm_usage()
        assert usage.tokens == 1000 and usage.tokens_left == 0 and usage.calls == 10
    async with Session(None, "subprocess", llm=model, llm_budget=LlmBudget(cost=4.5, call_cost=1.0)) as session:
        assert (await session.run("sum(isinstance(x, str) for x in llm.batch(['a'] * 9, return_exceptions=True))")).value == 4
        assert (await session.llm_usage()).cost_left == 0.5


@on_loop
async def test_an_interrupt_cancels_and_what_was_asked_stays_counted():
    asked, prompts, cancelled = asyncio.Event(), [], []

    async def model(request):
        prompts.append(request.prompt)
        if len(prompts) == 2:  # as many as may run
            asked.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(request.prompt)
            raise
        return "late"

    async with Session(None, "subprocess", llm=model, llm_budget=LlmBudget(calls=3, concurrency=2)) as session:
        running = asyncio.ensure_future(session.run("x = 5\nllm.batch(['a', 'b', 'c', 'd'])"))
        await asked.wait()
        await session.interrupt()
        assert (await running).error_info.type == "KeyboardInterrupt"
        deadline = time.monotonic() + 5
        while len(cancelled) < 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert sorted(cancelled) == ["a", "b"]  # those that waited were never asked
        assert (await session.llm_usage()).calls == 2
        timed = await session.run("llm.query('e')", 0.2)
        assert timed.error_info.code == "timeout" and (await session.llm_usage()).calls == 3
        assert (await session.run("x")).value == 5
        assert (await session.run("llm.query('f')")).error_info.type == "LlmBudgetError"


@on_loop
async def test_a_cancelled_query_holds_its_place_until_the_host_is_done():
    """Code that cancels cannot make the host work on more queries than it wants to."""
    release, running, most = threading.Event(), 0, 0

    def model(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        release.wait(20)
        running -= 1
        return LlmAnswer("x", tokens=7)

    async with Session(None, "subprocess", llm=model, llm_budget=LlmBudget(concurrency=1)) as session:
        for _ in range(3):
            assert (await session.run("llm.query('a')", 0.2)).error_info.code == "timeout"
        assert most == 1 and (await session.llm_usage()).calls == 1
        release.set()
        assert (await session.run("llm.query('b')")).value == "x"


@on_loop
async def test_close_while_queries_run():
    started = asyncio.Event()

    async def model(request):
        started.set()
        await asyncio.sleep(60)
        return ""

    session = Session(None, "subprocess", llm=model)
    await session.start()
    running = asyncio.ensure_future(session.run("llm.batch(['a'] * 20)"))
    await started.wait()
    await asyncio.wait_for(session.close(), 20)
    with pytest.raises(Exception):
        (await running).raise_for_error()


@on_loop
async def test_prompts_at_and_past_the_limit():
    seen = []

    def model(request):
        seen.append(len(request.prompt))
        return "ok"

    async with Session(None, "subprocess", llm=model) as session:
        fits = (4 << 20) - 200
        assert (await session.run("llm.query('a' * %d)" % fits)).value == "ok"
        result = await session.run("llm.query('a' * %d)" % (4 << 20))
        assert result.error_info.type == "LlmError" and "4 MiB" in result.error_info.message
        result = await session.run("try: llm.query('a', context='b' * (4 << 20))\nexcept LlmError as e: code = e.code\ncode")
        assert result.value == "limit"
        assert seen == [fits] and (await session.llm_usage()).calls == 1


@pytest.mark.parametrize("answer, words", [
    (None, "must return a str"), ({"text": "x"}, "must return a str"), (b"x", "must return a str"),
    (LlmAnswer("x", tokens=-1), "invalid number"), (LlmAnswer("x", cost=-0.1), "invalid number"), (LlmAnswer("x", cost=float("nan")), "answer"),
    (LlmAnswer("x", tokens=1.5), "invalid number"), (LlmAnswer("x", tokens="9"), "invalid number"), (LlmAnswer("x" * (9 << 20)), "8 MiB")])
@on_loop
async def test_wrong_answers_of_the_host(answer, words):
    async with Session(None, "subprocess", llm=lambda request: answer, llm_budget=LlmBudget(tokens=50, call_tokens=10)) as session:
        result = await session.run("llm.query('a')")
        assert words in result.error_info.message
        usage = await session.llm_usage()
        assert usage.calls == 1 and usage.tokens == 10  # as much as it may have used


@on_loop
async def test_answers_are_data():
    hostile = "\x00\x1b[2J'); __import__('os')._exit(1) # {\"error\": 1}\u202e"
    async with Session(None, "subprocess", llm=lambda request: hostile) as session:
        result = await session.run("a = llm.query('q'); type(a).__name__, a.encode().hex()")
        assert list(result.value) == ["str", hostile.encode().hex()]


@on_loop
async def test_huge_numbers_do_not_wrap():
    async with Session(None, "subprocess", llm=lambda request: LlmAnswer("x", tokens=2 ** 63 - 1), llm_budget=LlmBudget(tokens=2 ** 62)) as session:
        assert (await session.run("llm.query('a')")).value == "x"
        assert (await session.run("llm.query('a')")).error_info.type == "LlmBudgetError"


@on_loop
async def test_gate_approval_and_audit(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    async with Session(None, "subprocess", llm=echo, policy="deny", gate=["llm"], audit=log) as session:
        assert (await session.run("llm.query('a')")).error_info.type == "ApprovalRejectedError"
        assert (await session.llm_usage()).calls == 0

    asked = []

    def decide(request):
        asked.append((request.kind, request.tool, request.callable, request.args["prompt"]))
        return "allow" if request.args["prompt"] == "good" else "deny"

    async with Session(None, "subprocess", llm=echo, policy=decide, gate=["llm"]) as session:
        assert (await session.run("llm.query('good')")).value == "<good>"
        assert (await session.run("llm.query('bad')")).error_info.type == "ApprovalRejectedError"
    assert asked == [("llm", "llm", "query", "good"), ("llm", "llm", "query", "bad")]
    assert '"llm"' in (tmp_path / "audit.jsonl").read_text()


@on_loop
async def test_policy_without_rules_decides_on_llm_too():
    async with Session(None, "subprocess", llm=echo, policy="deny") as session:
        assert (await session.run("llm.query('a')")).error_info.type == "ApprovalRejectedError"
