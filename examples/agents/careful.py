"""A careful agent: untrusted code in the sandbox, a person (here: a rule) who agrees to calls, a middleware, an audit log."""

import asyncio
import json
import os
import tempfile

from scripted import ScriptedModel, converse

from workcell import AuditLog, Rejection, SandboxConfig, SandboxExecutor, Session

REPLIES = [
    "```python\ntools.mail.send(to='everybody@example.org', text='hello')\n```",
    "Then only to Ann.\n```python\ntools.mail.send(to='ann@example.org', text='hello')\n```",
    "Let me look around.\n```python\nopen('/etc/shadow').read()\n```",
    lambda messages: "Sent to Ann. The rest is closed to me: " + messages[-1]["content"].splitlines()[-1],
]


async def main():
    with tempfile.TemporaryDirectory() as folder:
        answer, sent, decisions = await send_with_care(folder)
    print(answer)
    print("mails:", sent)
    print("decisions:", decisions)
    return answer, sent, decisions


async def send_with_care(folder):
    os.mkdir(os.path.join(folder, "work"))
    sent = []

    async def sign(ctx, call_next):
        ctx.args["text"] += " -- sent by an agent"
        return await call_next(ctx)

    log = os.path.join(folder, "audit.jsonl")
    with AuditLog(log, sync="always") as audit:
        executor = SandboxExecutor(SandboxConfig(cwd=os.path.join(folder, "work"), network="none", memory_limit="512m"))
        async with Session.scratch(executor, policy="ask", audit=audit, middlewares=[sign]) as session:
            @session.tool(name="mail.send")
            def send(to: str, text: str) -> str:
                """Sends a mail."""
                sent.append((to, text))
                return "sent to " + to

            @session.approvals.handler
            async def person(request):
                return True if request.args["to"] == "ann@example.org" else Rejection("only to people you were asked to write to")

            async def run(code):
                result = await session.run(code, timeout=20)
                return result.error if result.error is not None else repr(result.value)

            answer = await converse(ScriptedModel(REPLIES), run, "Say hello to Ann.")
    with open(log, encoding="utf-8") as file:
        return answer, sent, [json.loads(line)["decision"] for line in file]


if __name__ == "__main__":
    asyncio.run(main())
