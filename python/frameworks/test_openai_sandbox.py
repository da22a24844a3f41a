"""workcell.integrations.openai_agents_sandbox: the SDK's sandbox agents, with a model that replays answers, and its session protocol."""
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("agents")
from agents import ModelResponse, Runner, RunState, Usage  # noqa: E402
from agents.run import RunConfig  # noqa: E402
from agents.run_config import SandboxRunConfig  # noqa: E402
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent  # noqa: E402
from agents.sandbox.entries import File  # noqa: E402
from agents.sandbox.errors import ExecTimeoutError, SandboxError, WorkspaceReadNotFoundError  # noqa: E402
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText  # noqa: E402

from conftest import run  # noqa: E402
from test_openai_agents import Replay  # noqa: E402
from workcell import ConflictError, SandboxConfig, WakeError  # noqa: E402
from workcell.errors import EngineError, InvalidError  # noqa: E402
from workcell.integrations.openai_agents_sandbox import WorkcellSandboxClient, WorkcellSandboxOptions, WorkcellSandboxSession  # noqa: E402


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


def resumed_by(client, payload):
    """The session of a state that comes from outside, started."""
    async def make():
        session = await client.resume(client.deserialize_session_state(json.loads(json.dumps(payload))))
        await session.start()
        return session

    return make()


@pytest.fixture
def hydrations(monkeypatch):
    """The archives that workspaces were filled from."""
    seen = []
    real = WorkcellSandboxSession.hydrate_workspace
    monkeypatch.setattr(WorkcellSandboxSession, "hydrate_workspace", lambda self, data: (seen.append(self), real(self, data))[1])
    return seen


def test_saved_sessions_are_resumed_with_their_memory(tmp_path, hydrations):
    saved = tmp_path / "saved"
    snapshots = LocalSnapshotSpec(base_path=tmp_path / "snapshots")

    async def main():
        client = WorkcellSandboxClient(saved=saved)
        session = await client.create(snapshot=snapshots, options=None)
        root = Path(session.state.manifest.root)
        async with session:
            await session.write(Path("kept.txt"), io.BytesIO(b"kept"))
            await session._inner.session.run("squares = (n * n for n in range(9)); next(squares); next(squares)")
            # A session that was persisted goes on: its next use wakes it.
            await session.stop()
            assert (await session._inner.session.run("next(squares)")).value == 4 and (await session.exec("cat kept.txt")).stdout == b"kept"
        await client.delete(session)
        assert not root.exists()
        payload = client.serialize_session_state(session.state)
        # In another client, and more than once: the memory and the files are as they were, and no archive is unpacked over them.
        for number, square in ((1, 9), (2, 16)):
            other = WorkcellSandboxClient(saved=saved)
            again = await resumed_by(other, payload)
            assert (await again._inner.session.run("next(squares)")).value == square
            assert (await again.exec("cat kept.txt")).stdout == b"kept" and not hydrations
            assert Path(again.state.manifest.root) == root and root.stat().st_mode & 0o777 == 0o700
            if number == 1:
                with pytest.raises(ConflictError):  # it is awake there
                    await resumed_by(WorkcellSandboxClient(saved=saved), payload)
            await again.stop()
            payload = other.serialize_session_state(again.state)
            await other.close()

    run(main())


def test_saved_sessions_that_cannot_be_woken(tmp_path, hydrations):
    saved = tmp_path / "saved"

    async def kept(snapshot):
        client = WorkcellSandboxClient(saved=saved)
        session = await client.create(snapshot=snapshot, options=None)
        async with session:
            await session.write(Path("kept.txt"), io.BytesIO(b"kept"))
            await session._inner.session.run("x = 1")
        await client.delete(session)
        return client.serialize_session_state(session.state)

    async def main():
        with_files, without = await kept(LocalSnapshotSpec(base_path=tmp_path / "snapshots")), await kept(None)
        stranger = WorkcellSandboxClient()
        # Without the memory the snapshot's files are there, in a new folder.
        for payload in ({**with_files, "saved": "0" * 32}, {**with_files, "saved": without["saved"]}):
            client = WorkcellSandboxClient(saved=saved)
            session = await resumed_by(client, payload)
            assert (await session.exec("cat kept.txt")).stdout == b"kept" and "NameError" in (await session._inner.session.run("x")).error
            assert session.state.manifest.root != payload["manifest"]["root"]
            await client.close()
        assert (await (await resumed_by(stranger, with_files)).exec("cat kept.txt")).stdout == b"kept"
        assert len(hydrations) == 3
        # Without a snapshot there would be nothing: that is not done silently.
        for client, payload, kind in ((stranger, without, ValueError), (WorkcellSandboxClient(saved=saved), {**without, "saved": "0" * 32}, EngineError),
                                      (WorkcellSandboxClient(saved=saved), {**with_files, "saved": "../../etc"}, InvalidError),
                                      (WorkcellSandboxClient(saved=saved), {**without, "saved": with_files["saved"]}, WakeError)):
            with pytest.raises(kind):
                await resumed_by(client, payload)
        # A state cannot say where it is woken, and a link in the folder's place is not followed.
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        client = WorkcellSandboxClient(saved=saved)
        with pytest.raises(WakeError):
            await resumed_by(client, {**without, "manifest": {**without["manifest"], "root": str(elsewhere)}})
        os.symlink(elsewhere, without["manifest"]["root"])
        try:
            with pytest.raises(FileExistsError):
                await resumed_by(client, without)
        finally:
            os.unlink(without["manifest"]["root"])
        session = await resumed_by(client, without)
        assert (await session._inner.session.run("x")).value == 1
        await client.close(), await stranger.close()
        assert elsewhere.is_dir()

    run(main(), 120)


def test_forks_and_given_folders_are_saved_as_well(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()

    async def main():
        client = WorkcellSandboxClient(saved=tmp_path / "saved")
        session = await client.create(options=None)
        async with session:
            await session._inner.session.run("x = 1")
            fork = await client.fork(session)
            async with fork:
                await fork.write(Path("a.txt"), io.BytesIO(b"2"))
                await fork._inner.session.run("x = 2")
        payloads = [client.serialize_session_state(each.state) for each in (session, fork)]
        await client.close()
        other = WorkcellSandboxClient(saved=tmp_path / "saved")
        first, second = [await resumed_by(other, payload) for payload in payloads]
        assert [(await each._inner.session.run("x")).value for each in (first, second)] == [1, 2]
        assert (await first.exec("ls")).stdout == b"" and (await second.exec("cat a.txt")).stdout == b"2"
        await other.close()
        rw = WorkcellSandboxClient(saved=tmp_path / "saved", executor=SandboxConfig(workspace_mode="rw"))
        given = await rw.create(manifest=Manifest(root=str(folder)), options=None)
        async with given:
            await given.write(Path("b.txt"), io.BytesIO(b"3"))
            await given._inner.session.run("x = 3")
        await rw.delete(given)
        again = await resumed_by(rw, rw.serialize_session_state(given.state))
        assert (await again._inner.session.run("x, open('b.txt').read()")).value == (3, "3")
        await rw.close()
        assert (folder / "b.txt").read_bytes() == b"3"

    run(main(), 120)


def test_a_run_goes_on_in_another_process_with_its_memory(tmp_path):
    """The runner persists and deletes the session at the end of a run; what it keeps of it is the state."""
    async def main():
        def config(**more):
            return RunConfig(sandbox=SandboxRunConfig(client=WorkcellSandboxClient(saved=tmp_path / "saved"),
                                                      snapshot=LocalSnapshotSpec(base_path=tmp_path / "snapshots"), **more))

        agent = SandboxAgent(name="a", model=Calls(("exec_command", {"cmd": "echo one > notes.txt; mkdir -p /tmp/deep; echo two > /tmp/deep/b"})))
        first = await Runner.run(agent, "go", run_config=config())
        text = first.to_state().to_string()
        model = Calls(("exec_command", {"cmd": "cat notes.txt /tmp/deep/b"}))
        agent = SandboxAgent(name="a", model=model)
        state = await RunState.from_string(agent, text)
        client = WorkcellSandboxClient(saved=tmp_path / "saved")
        kept = client.deserialize_session_state(dict(state._sandbox["session_state"]))
        await Runner.run(agent, "and now", run_config=config(session_state=kept))
        return [each["output"] for each in model.inputs[-1] if isinstance(each, dict) and each.get("type") == "function_call_output"]

    seen = run(main(), 120)
    assert "one\ntwo" in seen[-1], seen  # /tmp is no part of the workspace: only the memory has it


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
