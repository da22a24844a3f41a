"""Approvals, policies in Python and in YAML, the audit log."""
import asyncio
import json

import pytest
from conftest import run

import workcell
import workcell.sync
from workcell import ApprovalEvent, ApprovalGoneError, ApprovalRequest, Policy, Session


def add_tool(session):
    @session.tool
    def send(to: str, text: str = "hello") -> str:
        return "%s to %s" % (text, to)


def test_requests_in_a_stream(storage):
    async def main():
        async with Session(storage, policy="ask") as session:
            add_tool(session)
            requests = []
            async for event in session.stream("tools.send(to='a')"):
                if isinstance(event, ApprovalEvent):
                    request = event.request
                    requests.append(request)
                    assert request.tool_args == {"to": "a", "text": "hello"} and session.approvals.pending == [request]
                    await request.accept()
                    with pytest.raises(ApprovalGoneError, match="already accepted"):
                        request.reject()
            assert event.result.value == "hello to a" and len(requests) == 1 and requests[0].decided is True
            assert len(session.approvals) == 0

    run(main())


def test_a_handler_decides_edits_and_refuses(storage):
    async def main():
        async with Session(storage, policy="ask", gate=["tools", "shell"]) as session:
            add_tool(session)

            @session.approvals.handler
            async def ask(request):
                await asyncio.sleep(0)
                if request.kind == "shell":
                    return workcell.Rejection("no shell here")
                if request.args["to"] == "x":
                    await request.accept({"to": "everybody"})
                    return None
                return request.args["to"] == "a"

            assert (await session.run("tools.send(to='a')")).value == "hello to a"
            assert (await session.run("tools.send(to='x')")).value == "hello to everybody"
            result = await session.run("tools.send(to='b')")
            assert result.error_info.code == "rejected" and result.error_info.type == "ApprovalRejectedError"
            assert "no shell here" in (await session.run("!echo hi")).error
            caught = await session.run("try:\n    tools.send(to='b')\nexcept ApprovalRejectedError:\n    'caught'")
            assert caught.is_ok

    run(main())


def test_a_handler_that_fails_has_refused(storage):
    async def main():
        async with Session(storage, policy="ask") as session:
            add_tool(session)

            @session.approvals.handler
            def broken(request):
                raise RuntimeError("bug")

            assert "handler failed" in (await session.run("tools.send(to='a')")).error

    run(main())


@pytest.mark.parametrize("answer", [None, "yes", {"to": "x"}, 1, 0, "allow"])
def test_a_handler_answers_true_false_or_a_rejection(storage, answer, caplog):
    """A forgotten return, a text that means one thing or the other: an error, and nothing is called."""
    async def main():
        async with Session(storage, policy="ask") as session:
            add_tool(session)
            session.approvals.handler(lambda request: answer)
            result = await session.run("tools.send(to='a')")
            assert result.error_info.code == "rejected" and "must return True, False or a Rejection" in result.error
            assert "must return True, False or a Rejection" in caplog.text

    run(main())


def test_a_policy_that_is_a_function(storage):
    async def main():
        answers = {"a": "allow", "b": "deny", "c": "ask", "d": workcell.Rejection("not d"), "e": "perhaps"}
        async with Session(storage, policy=lambda request: answers[request.args["to"]]) as session:
            add_tool(session)
            session.approvals.handler(lambda request: True)
            values = [(await session.run("tools.send(to=%r)" % to)).value for to in "ac"]
            assert values == ["hello to a", "hello to c"]
            errors = [(await session.run("tools.send(to=%r)" % to)).error for to in "bde"]
            assert "not d" in errors[1] and "must return 'allow', 'ask', 'deny'" in errors[2] and all(errors)

    run(main())


def test_answers_may_be_awaited_made_tasks_or_left_alone(storage):
    async def main():
        async with Session(storage, policy="ask") as session:
            add_tool(session)
            loop = asyncio.get_running_loop()
            for answer in (lambda r: r.accept(), lambda r: asyncio.create_task(r.accept()), lambda r: asyncio.ensure_future(r.accept()),
                           lambda r: asyncio.run_coroutine_threadsafe(r.accept(), loop)):
                async for event in session.stream("tools.send(to='a')"):
                    if event.type == "approval":
                        answer(event.request)
                assert event.result.value == "hello to a"

    run(main())


def test_many_wait_and_are_answered_in_any_order(storage):
    async def main():
        async with Session(storage, policy="ask") as session:
            add_tool(session)
            code = ("import asyncio\nawait asyncio.gather(*(tools.send.call_async(to=name) for name in 'abc'), "
                    "return_exceptions=True)")
            cell = asyncio.ensure_future(session.run(code))
            async for _ in session.approvals:
                if len(session.approvals) == 3:
                    break
            by_name = {request.args["to"]: request for request in session.approvals.pending}
            decided = asyncio.ensure_future(by_name["a"].response())
            by_name["c"].accept()
            by_name["b"].reject("not b")
            by_name["a"].accept(always=True)
            assert await decided is True
            result = await cell
            assert "hello to a" in result.repr and "not b" in result.repr
            assert (await session.run("tools.send(to='again')")).is_ok

    run(main())


def test_unanswered_is_rejected_and_the_clock_may_stand_still(storage):
    async def main():
        async with Session(storage, policy="ask", approval_timeout=0.1) as session:
            add_tool(session)
            result = await session.run("tools.send(to='a')")
            assert result.error_info.type == "ApprovalTimeoutError"
        async with Session(storage, policy="ask", approval_stops_clock=True) as session:
            add_tool(session)
            cell = asyncio.ensure_future(session.run("tools.send(to='a')", timeout=0.2))
            while not len(session.approvals):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.4)
            assert session.approvals.accept_all() == 1
            assert (await cell).value == "hello to a"

    run(main())


def test_a_policy_is_a_function_or_a_file(storage, tmp_path):
    async def main():
        asked = []

        def policy(request):
            asked.append(request.full_name)
            return "allow" if request.args["to"] == "a" else "deny"

        async with Session(storage, policy=policy) as session:
            add_tool(session)
            assert (await session.run("tools.send(to='a')")).is_ok
            assert (await session.run("tools.send(to='b')")).error_info.code == "rejected"
            assert asked == ["send", "send"]
        path = tmp_path / "policy.yaml"
        path.write_text("default: deny\nrules:\n  - {decision: allow, tool: send, args: {to: 'a*'}, name: friends}\n")
        async with Session(storage, policy=path) as session:
            add_tool(session)
            assert (await session.run("tools.send(to='ann')")).is_ok
            assert not (await session.run("tools.send(to='bob')")).is_ok
        rules = Policy.load(path)
        assert rules.decide("send", {"to": "abc"}).name == "friends" and rules.decide("rm").decision == "deny"
        bad = tmp_path / "bad.yaml"
        bad.write_text("default: perhaps\n")
        with pytest.raises(ValueError, match="bad.yaml:1"):
            Policy.load(bad)
        assert workcell.check_policy(bad)[0]["line"] == 1

    run(main())


def test_the_audit_log(storage, tmp_path):
    async def main():
        with workcell.AuditLog(tmp_path / "audit.jsonl", sync="always") as audit:
            async with Session(storage, audit=audit) as session:
                add_tool(session)
                await session.run("tools.send(to='a')")
        record = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[0])
        assert record["tool"] == "send" and record["args"]["to"] == "a"

    run(main())


def test_requests_by_themselves():
    async def main():
        answers = []

        async def respond(accepted):
            answers.append(accepted)

        request = ApprovalRequest("server", "tool", {"name": "test"}, respond)
        heard = []
        request.on_decision(heard.append)
        assert str(request) == "server.tool(name='test')"
        await request.accept()
        request.on_decision(heard.append)
        request.set_on_decision(lambda: heard.append("called"))
        assert answers == [True] and heard == [True, True, "called"] and await request.response() is True

    run(main())


def test_sync_sessions_ask_too(storage):
    with workcell.sync.Session(storage, policy="ask") as session:
        add_tool(session)
        for event in session.stream("tools.send(to='a')"):
            if isinstance(event, ApprovalEvent):
                event.request.accept()
        assert event.result.value == "hello to a"
        session.approvals.handler(lambda request: request.args["to"] == "b")
        assert session.run("tools.send(to='b')").is_ok
        assert session.run("tools.send(to='c')").error_info.code == "rejected"
