"""workcell.integrations.openai_agents_sandbox: the SDK's sandbox agents, with a model that replays answers, and its session protocol."""
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("agents")
from agents import ModelResponse, Runner, Usage  # noqa: E402
from agents.run import RunConfig  # noqa: E402
from agents.run_config import SandboxRunConfig  # noqa: E402
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent  # noqa: E402
from agents.sandbox.entries import File  # noqa: E402
from agents.sandbox.errors import ExecTimeoutError, SandboxError, WorkspaceReadNotFoundError  # noqa: E402
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText  # noqa: E402

from conftest import run  # noqa: E402
from test_openai_agents import Replay  # noqa: E402
from workcell.integrations.openai_agents_sandbox import WorkcellSandboxClient, WorkcellSandboxOptions  # noqa: E402


class Calls(Replay):
    """Asks for tools by name."""

    async def get_response(self, system_instructions, input, *rest, **options):
        self.inputs.append(input)
        if self.codes:
            name, arguments = self.codes.pop(0)
            output = ResponseFunctionToolCall(type="function_call", call_id="call_%d" % len(self.codes), name=name, arguments=json.dumps(arguments))
        else:
            output = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed",
                                           content=[ResponseOutputText(type="output_text", text="done", annotations=[])])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)


def test_agent():
    async def main():
        client = WorkcellSandboxClient()
        model = Calls(("exec_command", {"cmd": "cat notes/a.txt; id -u; pwd; ls /root /etc/shadow"}),
                      ("exec_command", {"cmd": "echo more >> notes/a.txt; wc -l notes/a.txt"}))
        agent = SandboxAgent(name="a", model=model, default_manifest=Manifest(entries={"notes/a.txt": File(content=b"one\n")}))
        result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=SandboxRunConfig(client=client)))
        seen = [each["output"] for each in model.inputs[-1] if isinstance(each, dict) and each.get("type") == "function_call_output"]
        await client.close()
        return result.final_output, seen

    final, seen = run(main())
    assert final == "done" and "one" in seen[0] and "2 notes/a.txt" in seen[1], seen
    assert "shadow" in seen[0] and "root:" not in seen[0]


def sandbox(**options):
    """(client, session) that is started."""
    async def make():
        client = WorkcellSandboxClient(**options)
        session = await client.create(options=None)
        await session.start()
        return client, session

    return make()


def test_session_protocol():
    async def main():
        client, session = await sandbox()
        assert await session.running()
        done = await session.exec("echo out; echo err >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 3)
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 30", timeout=0.3)
        big = os.urandom(3 << 20)
        await session.write(Path("x/big"), io.BytesIO(big))
        assert (await session.read(Path("x/big"))).read() == big
        assert (await session.exec("wc -c < x/big")).stdout.strip() == b"%d" % len(big)
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read(Path("nothing"))
        assert {each.path.rpartition("/")[2] for each in await session.ls(Path("x"))} == {"big"}
        await session.mkdir(Path("y/z"), parents=True)
        await session.rm(Path("x"), recursive=True)
        assert (await session.exec("ls")).stdout == b"y\n"
        root = session._inner.state.manifest.root
        await client.delete(session)
        assert not os.path.exists(root) and not await session.running()

    run(main())


def test_what_leads_out_of_the_workspace(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("top secret")

    async def main():
        client, session = await sandbox()
        await session.exec("ln -s %s link; ln -s / root; mkfifo pipe" % secret)
        for path in ("link", "root%s" % secret, str(secret), "../../etc/passwd", "/etc/passwd", "pipe"):
            with pytest.raises((SandboxError, OSError)):
                await session.read(Path(path))
        for path in (str(secret), "/etc/owned", "../owned"):
            with pytest.raises((SandboxError, OSError)):
                await session.write(Path(path), io.BytesIO(b"owned"))
        with pytest.raises((SandboxError, OSError, ValueError)):
            await session.write(Path("root%s" % secret), io.BytesIO(b"owned"))
        assert secret.read_text() == "top secret"
        # Links go into a snapshot as links, and what they lead to does not.
        archive = (await session.persist_workspace()).read()
        assert b"top secret" not in archive
        evil = io.BytesIO()
        with tarfile.open(fileobj=evil, mode="w") as tar:
            member = tarfile.TarInfo("../../evil")
            tar.addfile(member, io.BytesIO(b""))
        evil.seek(0)
        with pytest.raises(SandboxError):
            await session.hydrate_workspace(evil)
        await client.close()

    run(main())


def test_snapshots_and_resume(tmp_path):
    async def main():
        client = WorkcellSandboxClient()
        session = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path / "snapshots"), options=WorkcellSandboxOptions(timeout=20))
        await session.start()
        await session.write(Path("kept.txt"), io.BytesIO(b"kept"))
        await session._inner.session.run("x = 41")
        payload = client.serialize_session_state(session.state)
        # The same client still has the session, with its variables.
        again = await client.resume(client.deserialize_session_state(dict(payload)))
        await again.start()
        assert (await again._inner.session.run("x + 1")).value == 42
        await session.stop()
        await client.delete(session)
        # Another one makes a new session from the snapshot.
        other = WorkcellSandboxClient()
        resumed = await other.resume(other.deserialize_session_state(json.loads(json.dumps(payload))))
        await resumed.start()
        assert (await resumed.exec("cat kept.txt")).stdout == b"kept"
        assert resumed._inner.state.manifest.root != payload["manifest"]["root"]
        await other.close()

    run(main())


def test_fork_and_rewind():
    async def main():
        client, session = await sandbox()
        inner = session._inner
        await session.write(Path("a.txt"), io.BytesIO(b"1"))
        await inner.session.run("x = 1")
        fork = await client.fork(session)
        await fork.start()
        await fork.write(Path("a.txt"), io.BytesIO(b"2"))
        await fork._inner.session.run("x = 2")
        assert (await session.exec("cat a.txt")).stdout == b"1" and (await fork.exec("cat a.txt")).stdout == b"2"
        assert (await inner.session.run("x")).value == 1 and (await fork._inner.session.run("x")).value == 2
        await inner.checkpoint("before")
        await session.exec("rm a.txt")
        await inner.rewind("before")
        assert (await session.exec("cat a.txt")).stdout == b"1"
        await client.close()

    run(main())


def test_refusals():
    with pytest.raises(ValueError, match="without isolation"):
        WorkcellSandboxClient(executor="inprocess")

    async def main():
        client = WorkcellSandboxClient()
        session = await client.create(manifest=Manifest(users=[{"name": "eve"}]), options=None)
        with pytest.raises(Exception, match="one user"):
            await session.start()
        session = await client.create(options=None)
        await session.start()
        with pytest.raises(ValueError, match="one user"):
            await session._inner.read(Path("x"), user="root")
        await client.close()

    run(main())
