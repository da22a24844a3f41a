"""Commands of a session: ``session.commands``, of local sessions, of sandboxes and of those of a server."""
import asyncio
import os
import signal
import sys

import pytest
from conftest import run

import workcell
import workcell.sync
from workcell import ContainerConfig, ContainerExecutor, SandboxConfig, SandboxExecutor, SubprocessConfig, SubprocessExecutor

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tests"))
import serving  # noqa: E402


@pytest.fixture(scope="module")
def server():
    with serving.shared("--executor", "subprocess") as made:
        yield made


def remote(server):
    return ContainerExecutor(ContainerConfig(remote_url="http://127.0.0.1:%d" % server.port, auth_token=serving.TOKEN))


@pytest.fixture(params=["local", "sandbox", "remote"])
def executor(request, tmp_path):
    if request.param == "remote":
        return remote(request.getfixturevalue("server"))
    if request.param == "sandbox":
        (tmp_path / "box").mkdir()
        return SandboxExecutor(SandboxConfig(cwd=tmp_path / "box"))
    (tmp_path / "work").mkdir()
    return SubprocessExecutor(SubprocessConfig(cwd=tmp_path / "work"))


def test_run(executor):
    async def main():
        async with workcell.Session(executor=executor) as session:
            run_command = session.commands.run
            result = await run_command("echo out; echo err >&2; exit 3")
            assert (result.exit_code, result.stdout, result.stderr, result.reason) == (3, "out\n", "err\n", None)
            assert (await run_command(["printf", "%s|", "a b", "$x", "ü"])).stdout == "a b|$x|ü|"
            assert (await run_command("echo $WHO; pwd", env={"WHO": "me=you"}, cwd="/")).stdout == "me=you\n/\n"
            await session.run("open('made', 'w').write('by code')")
            assert (await run_command(["cat", "made"])).stdout == "by code"
            with pytest.raises(FileNotFoundError):
                await run_command(["no-such-program"])
            with pytest.raises(workcell.WorkcellError) as failure:
                await run_command(["true"], cwd="no/folder")
            assert failure.value.code == "invalid"
            late = await run_command("echo begun; sleep 60", timeout=0.3)
            assert (late.exit_code, late.stdout, late.reason) == (137, "begun\n", "timeout")
            assert (await run_command("kill -TERM $$")).exit_code == 128 + signal.SIGTERM

    run(main())


def test_input_and_output_of_some_size(executor):
    data = bytes(range(256)) * 12_000  # 3 MB: more than waits for a command, and not UTF-8

    async def main():
        async with workcell.Session(executor=executor) as session:
            result = await session.commands.run("sleep 0.2; md5sum; seq 300000", stdin=data)
            import hashlib
            first, _, rest = result.stdout.partition("\n")
            assert first.split()[0] == hashlib.md5(data).hexdigest() and rest == "".join("%d\n" % n for n in range(1, 300_001))
            cut = await session.commands.run("seq 1000", max_bytes=10)
            assert (cut.stdout, cut.truncated) == ("1\n2\n3\n4\n5\n", True)
            # It ends without reading.
            assert (await session.commands.run("exit 4", stdin=data)).exit_code == 4

    run(main())


def test_start_stream_write_signal(executor):
    async def main():
        async with workcell.Session(executor=executor) as session:
            command = await session.commands.start("while read line; do echo got $line; done; echo over", stdin=True, tag="mine")
            assert [(each.id, each.state, each.tag) for each in await session.commands.list()] == [(command.id, "running", "mine")]
            seen, positions = "", [0]
            await command.write("one\n")
            async for chunk in command.output():
                seen += chunk.text
                positions.append(chunk.position)
                if seen == "got one\n":
                    await command.write(b"two\n")
                    await command.close_stdin()
            assert seen == "got one\ngot two\nover\n" and positions == sorted(positions)
            again = await (await session.commands.get(command.id)).wait()
            assert (again.stdout, again.exit_code) == (seen, 0)
            assert [chunk.text async for chunk in command.output(position=8)] == ["got two\nover\n"]
            with pytest.raises(workcell.WorkcellError) as failure:
                await command.write("late")
            assert failure.value.code == "closed"
            loop = await session.commands.start("trap 'echo term; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
            async for chunk in loop.output():
                if "ready" in chunk.text:
                    await loop.signal("TERM")
            assert (await loop.wait()).exit_code == 5
            sleeper = await session.commands.start(["sleep", "60"])
            await sleeper.kill()
            ended = await sleeper.wait()
            assert (ended.exit_code, ended.reason) == (137, "killed")
            await sleeper.remove()
            with pytest.raises(workcell.WorkcellError) as failure:
                await sleeper.info()
            assert failure.value.code == "not_found"
            with pytest.raises(ValueError, match="not a signal"):
                await command.signal("NONSENSE")

    run(main())


def test_a_terminal(executor):
    with workcell.sync.Session(executor=executor) as session:
        command = session.commands.start("stty size; read x; stty size; echo $x", tty=(11, 22))
        seen = ""
        for chunk in command.output():
            assert chunk.stream == "pty"
            seen += chunk.text
            if "11 22" in seen and "\n" in seen and "hello" not in seen:
                command.resize(33, 44)
                command.write("hello\n")
        assert "33 44" in seen and seen.count("hello") == 2
        with pytest.raises(workcell.WorkcellError, match="rows and cols"):
            command.resize(0, 1)


def test_the_sync_form(executor):
    pieces = []
    with workcell.sync.Session(executor=executor) as session:
        result = session.commands.run("cat; echo more >&2", stdin="ü" * 40_000, on_stdout=pieces.append)
        assert (result.exit_code, result.stderr) == (0, "more\n") and "".join(pieces) == result.stdout == "ü" * 40_000
        command = session.commands.start(["sleep", "60"])
        session.reset()
        ended = command.wait()
        assert (ended.exit_code, ended.reason) == (137, "session")
        assert session.commands.run(["true"]).exit_code == 0


def test_a_cancelled_caller_ends_its_command(executor):
    async def main():
        async with workcell.Session(executor=executor) as session:
            task = asyncio.ensure_future(session.commands.run("echo $$; sleep 60", on_stdout=lambda text: begun.set()))
            begun = asyncio.Event()
            await asyncio.wait_for(begun.wait(), 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [each for each in await session.commands.list() if each.state == "running"] == []

    run(main())


def test_a_broken_connection_is_made_again(server):
    proxy = serving.Proxy(server.port, cut_after=150_000)
    try:
        with workcell.sync.Session(executor=remote(proxy)) as session:
            # Less than the 1 MiB that the server keeps while nobody reads.
            said = session.commands.run("seq 120000").stdout
            assert (said == "".join("%d\n" % n for n in range(1, 120_001))) is True  # a diff of these texts would take a minute
            assert proxy.cuts >= 3
    finally:
        proxy.close()


def test_commands_end_with_the_session_of_their_server(server):
    with workcell.sync.Session(executor=remote(server)) as session:
        many = [session.commands.start("echo %d; sleep 60" % n) for n in range(20)]
        assert [next(each.output()).text for each in many] == ["%d\n" % n for n in range(20)]
        there = [each for each in server.ask("GET", "/v1/sessions").json["sessions"]]
        for each in there:
            server.ask("DELETE", "/v1/sessions/" + each["session_id"])
        assert {(each.wait().exit_code, each.info().reason) for each in many} == {(137, "session")}
