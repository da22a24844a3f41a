"""The second family, and the defects that its reference records (section 8.3, D1 to D17): ours has none of them."""
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import BUILD, DEADLINE, HERE, ROOT, run

import workcell
from workcell import (ApprovalGoneError, ApprovalRequest, CodeExecutionChunk, CodeExecutionError, CodeExecutionResult,
                      CodeExecutor, generate_mcp_sources)

sys.path.insert(0, os.path.join(ROOT, "tests"))
import spaces  # noqa: E402

BRAVE = {"command": sys.executable, "args": [os.path.join(HERE, "brave.py")]}


def executor(tmp_path, **options):
    # A busy machine may be slow to let an interrupted kernel come to its end.
    return CodeExecutor(**{"images_dir": tmp_path / "images", "grace": 30, **options})


async def collect(stream):
    return [item async for item in stream]


def test_constructor(tmp_path):
    made = CodeExecutor(approval_timeout=10, kernel_env={"A": "b"})
    assert (made.approval_timeout, made.kernel_env, made.images_dir) == (10, {"A": "b"}, Path("images"))
    assert CodeExecutor().approval_timeout == 60.0 and CodeExecutor().approve_tool_calls
    with pytest.raises(ValueError, match="require_shell_escape=True requires approve_shell_cmds=True"):
        CodeExecutor(require_shell_escape=True)
    with pytest.raises(FileNotFoundError):
        run(CodeExecutor(working_dir=tmp_path / "none").start())
    with pytest.raises(asyncio.TimeoutError, match="not started within"):
        run(CodeExecutor(kernel_init_timeout=1e-6).start())
    with pytest.raises(ValueError, match="not a valid environment variable"):
        run(CodeExecutor(kernel_env={"A=B": "c"}).start())


def test_text_is_output_displays_and_the_value(tmp_path):
    async def main():
        async with executor(tmp_path) as made:
            assert await made.execute("") == CodeExecutionResult(None, [])
            assert await made.execute("x = 1") == CodeExecutionResult(None, [])
            assert (await made.execute("print()")).text == ""
            assert (await made.execute("print('a'); 2")).text == "a\n2"
            assert (await made.execute("print('  indented')")).text == "  indented"
            items = await collect(made.stream("print('a'); 2", chunks=True))
            assert "".join(item.text for item in items[:-1]) == "a\n2\n" and isinstance(items[0], CodeExecutionChunk)
            with pytest.raises(CodeExecutionError, match="^ZeroDivisionError: division by zero\n"):
                await made.execute("1/0")

    run(main())


def test_working_dir_is_restored(tmp_path):
    async def main():
        async with executor(tmp_path, working_dir=tmp_path) as made:
            assert "cwd reset to" in (await made.execute("import os; os.chdir('/')")).text
            assert (await made.execute("print(os.getcwd())")).text == str(tmp_path)

    run(main())


def test_seed_and_later_meaning_of_the_timeout(tmp_path):
    """The seed counts approval waits; `approval_stops_clock` does not."""
    def slow(n: int) -> int:
        return n

    async def main(stops):
        async with executor(tmp_path, tools=[slow], approval_stops_clock=stops, grace=0.5) as made:
            result = None
            async for item in made.stream("tools.slow(n=1)", timeout=0.3):
                if isinstance(item, ApprovalRequest):
                    await asyncio.sleep(0.6)
                    try:
                        await item.accept()
                    except ApprovalGoneError:
                        assert not stops
                else:
                    result = item
            return result.text

    assert run(main(True)) == "1"
    with pytest.raises(asyncio.TimeoutError, match="0.30s"):
        run(main(False))


def test_d1_no_output_is_lost(tmp_path):
    async def main():
        async with executor(tmp_path) as made:
            for i in range(300):
                assert (await made.execute("print(%d)" % i)).text == str(i)

    run(main())


def test_d2_cancel_ends_a_cell_that_follows_another(tmp_path):
    async def main():
        async with executor(tmp_path) as made:
            for _ in range(3):
                await made.execute("x = 1")
                cell = asyncio.ensure_future(made.execute("while True: pass"))
                await asyncio.sleep(0.05)
                made.cancel()
                assert await cell == CodeExecutionResult(None, [])
            assert (await made.execute("x")).text == "1"
            made.cancel()  # nothing runs
            assert (await made.execute("2")).text == "2"

    run(main())


def test_d3_a_dead_kernel_is_said_and_the_next_one_is_guarded(tmp_path):
    async def main():
        async with executor(tmp_path, approve_shell_cmds=True, require_shell_escape=True) as made:
            for code in ("import os; os._exit(1)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"):
                with pytest.raises(CodeExecutionError) as caught:
                    await made.execute(code)
                assert caught.value.code == "kernel_died"
                items = await collect_and_accept(made.stream("!echo hi"))
                assert [type(item) for item in items] == [ApprovalRequest, CodeExecutionResult]
                with pytest.raises(CodeExecutionError, match="ShellEscape|not allowed"):
                    await made.execute("import subprocess; subprocess.run(['true'])")

    run(main())


async def collect_and_accept(stream):
    items = []
    async for item in stream:
        items.append(item)
        if isinstance(item, ApprovalRequest):
            await item.accept()
    return items


def test_d4_shell_approval_does_not_depend_on_that_of_tools(tmp_path):
    def one() -> int:
        return 1

    async def main():
        async with executor(tmp_path, approve_tool_calls=False, approve_shell_cmds=True, tools=[one]) as made:
            items = await collect_and_accept(made.stream("print(tools.one())\n!echo hi"))
            request, result = items
            assert (request.server_name, request.tool_name, request.tool_args) == ("workcell", "shell", {"cmd": "echo hi"})
            assert result.text == "1\nhi"

    run(main())


def test_d5_deciding_twice_harms_nobody(tmp_path):
    async def main():
        async with executor(tmp_path, approve_shell_cmds=True) as made:
            requests = []
            async for item in made.stream("!echo hi"):
                if isinstance(item, ApprovalRequest):
                    requests.append(item)
                    await item.accept()
                    with pytest.raises(ApprovalGoneError):
                        await item.reject()
            with pytest.raises(ApprovalGoneError):
                await requests[0].accept()
            assert (await made.execute("!echo again")).text == "again"
            with pytest.raises(workcell.ApprovalRejectedError, match="^ApprovalRejectedError: "):
                async for item in made.stream("!echo no"):
                    if isinstance(item, ApprovalRequest):
                        await item.reject()

    run(main())


def test_d6_there_is_nothing_to_connect_to(tmp_path):
    """No server, no port, no token: the code has its one socket, and approvals do not come that way."""
    code = ("import os\nprint(sorted(k for k in os.environ if 'SERVER' in k or 'PORT' in k or 'TOKEN' in k))\n"
            "inodes = {os.readlink('/proc/self/fd/' + fd) for fd in os.listdir('/proc/self/fd')"
            " if os.path.exists('/proc/self/fd/' + fd)}\n"
            "print(sum('socket:' in each for each in inodes))")

    async def main():
        async with executor(tmp_path, approve_shell_cmds=True) as made:
            names, sockets = (await made.execute(code)).text.splitlines()
            assert names == "[]" and int(sockets) <= 2, sockets

    run(main())


def test_d7_leaving_a_stream_ends_its_cell(tmp_path):
    async def main():
        async with executor(tmp_path, approve_shell_cmds=True, approval_timeout=None) as made:
            await made.execute("x = 1")
            for code, wanted in (("print('go')\nwhile True: pass", CodeExecutionChunk), ("!echo hi", ApprovalRequest)):
                stream = made.stream(code, chunks=True, timeout=None)
                async for item in stream:
                    if isinstance(item, wanted):
                        break
                await stream.aclose()
                assert (await made.execute("x")).text == "1"

    run(main())


def test_d8_timeouts_hold_whatever_becomes_of_approvals(tmp_path):
    async def main():
        async with executor(tmp_path, approve_shell_cmds=True, approval_timeout=0.1, approval_stops_clock=True,
                            grace=0.5) as made:
            code = "import time\ntry:\n    x = !echo hi\nexcept ApprovalTimeoutError:\n    print('expired')\ntime.sleep(60)"
            with pytest.raises(asyncio.TimeoutError):
                await collect(made.stream(code, timeout=0.4))

    run(main())


def test_d9_bursts_and_large_values(tmp_path):
    async def main():
        async with executor(tmp_path) as made:
            text = (await made.execute("for i in range(100): print('x' * 49_999)")).text
            assert len(text) == 100 * 50000 - 1
            items = await collect(made.stream("display('y' * 12_000_000); 1", chunks=True))
            assert isinstance(items[-1], CodeExecutionResult)
            assert (await made.execute("2")).text == "2"

    run(main())


def test_d10_large_arguments_with_approval(tmp_path):
    def size(text: str) -> int:
        return len(text)

    async def main():
        async with executor(tmp_path, tools=[size]) as made:
            assert (await made.execute("tools.size(text='x' * 2_000_000)")).text == "2000000"

    run(main())


def test_d11_a_dead_server_is_started_again_and_changed_parameters_count(tmp_path):
    async def main():
        async with executor(tmp_path, mcp_servers={"brave": BRAVE}) as made:
            assert (await made.execute("tools.brave.echo(text='hi')")).text == "'hi'"
            with pytest.raises(CodeExecutionError) as caught:
                await made.execute("tools.brave.die()")
            assert "ToolCallError" in str(caught.value) and len(str(caught.value).split("\n")[0]) > 30
            assert (await made.execute("tools.brave.echo(text='again')")).text == "'again'"
            made.register_mcp_server("brave", dict(BRAVE, env={"GREETING": "changed"}))
            assert (await made.execute("tools.brave.greet()")).text == "'changed'"
            pid = int((await made.execute("print(tools.brave.pid())")).text)
            await made.reset()
            assert not os.path.exists("/proc/%d" % pid)
            with pytest.raises(CodeExecutionError, match="no-such-program"):
                made.register_mcp_server("gone", {"command": "no-such-program"})
                await made.execute("tools.gone.x()")

    run(main())


def test_d12_ports_do_not_matter_and_starting_twice_is_fine(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        async def main():
            made = executor(tmp_path, tool_server_port=port, kernel_gateway_port=port)
            await made.start()
            await made.start()
            assert (await made.execute("1")).text == "1"
            await made.stop()
            await made.stop()
            await made.start()
            assert (await made.execute("2")).text == "2"
            await made.stop()
            with pytest.raises(workcell.SessionClosedError):
                await made.execute("3")

        run(main())


@pytest.mark.parametrize("code, shown", [
    ("x = [1, 2]; name = 'n'\n!echo {len(x)} $name", "echo 2 n"),
    ("!echo {name} {undefined}", None),
    ("def f():\n    y = 5\n    !echo {y}\nf()", "echo 5"),
])
def test_d13_what_is_shown_is_what_runs(tmp_path, code, shown):
    async def main():
        async with executor(tmp_path, approve_shell_cmds=True) as made:
            await made.execute("name = 'n'")
            request, result = await collect_and_accept(made.stream(code))
            assert shown is None or request.tool_args["cmd"] == shown
            assert result.text == request.tool_args["cmd"][len("echo "):].strip()

    run(main())


def test_d13_braces_are_not_touched(tmp_path):
    async def main():
        async with executor(tmp_path, approve_shell_cmds=True, working_dir=tmp_path) as made:
            (tmp_path / "f.txt").write_text("x")
            request, result = await collect_and_accept(made.stream(r"!find . -name f.txt -exec echo {} \;"))
            assert result.text == "./f.txt" and "{}" in request.tool_args["cmd"]

    run(main())


def test_d14_a_timeout_says_so(tmp_path):
    async def main():
        async with executor(tmp_path) as made:
            begin = time.monotonic()
            with pytest.raises(asyncio.TimeoutError, match="exceeded timeout of 0.20s"):
                await made.execute("x = 1\nwhile True: pass", timeout=0.2)
            assert time.monotonic() - begin < 30
            assert (await made.execute("x")).text == "1"

    run(main())


def test_d14_a_relative_root_and_a_venv_without_pip(tmp_path):
    """Of the MCP server that stands beside CodeExecutor: a file of variables is read when it is named, and what installs packages is not the code's pip."""
    root, wheels = tmp_path / "up" / "root", tmp_path / "wheels"
    root.mkdir(parents=True)
    wheels.mkdir()
    (root / ".env").write_text("KERNEL_ENV_MARK=not asked for\n")
    (root.parent / "named.env").write_text("KERNEL_ENV_MARK=found\n")
    spaces.make_wheel(str(wheels), "wc-alpha", source="value = 5")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    env = {"PATH": os.path.dirname(sys.executable) + ":/usr/bin:/bin", "HOME": str(tmp_path)}
    argv = [os.path.join(BUILD, "workcell"), "mcp", "--root", "root", "--env-file", "named.env", "--python", str(tmp_path / "bare/bin/python"), "--wheel-dir",
            str(wheels)]
    code = ("import os, importlib.util as find, wc_alpha\nprint(os.environ['MARK'], os.getcwd(), wc_alpha.value, "
            "find.find_spec('pip') is None)")
    calls = [("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}),
             ("tools/call", {"name": "install_package", "arguments": {"package_name": "wc-alpha"}}),
             ("tools/call", {"name": "run_code", "arguments": {"code": code}})]
    with subprocess.Popen(argv, cwd=root.parent, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          universal_newlines=True) as server:
        answers = []
        for number, (method, params) in enumerate(calls):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
            server.stdin.flush()
            answer = {}
            while answer.get("id") != number:
                answer = json.loads(server.stdout.readline())
            answers.append(answer["result"])
        server.stdin.close()
        server.wait(DEADLINE)
    assert not answers[1]["isError"], answers[1]
    assert ("found %s 5 True" % root) in answers[2]["content"][0]["text"], answers[2]


@pytest.mark.parametrize("async_api", [False, True])
def test_d15_generated_modules(tmp_path, monkeypatch, async_api):
    monkeypatch.chdir(tmp_path)

    async def main():
        made = await generate_mcp_sources("my-server", BRAVE, tmp_path / "mcptools", async_api)
        assert "my_tool" in made
        for bad in ("../up", "/abs", "a b"):
            with pytest.raises(ValueError):
                await generate_mcp_sources(bad, BRAVE, tmp_path / "mcptools")
        async with executor(tmp_path, approve_tool_calls=False) as one:
            call = "await run(p)" if async_api else "run(p)"
            result = await one.execute(
                "from mcptools.my_server.my_tool import Params, run\n"
                "p = Params(my_field=5, class_='c', int_=7, secret='s3cret', maybe=None)\nprint(%s)" % call)
            assert result.text == '{"class": "c", "int": 7, "maybe": null, "my-field": 5, "secret": "s3cret"}'

    run(main())


def test_d16_output_before_an_error_and_displays_apart(tmp_path):
    async def main():
        async with executor(tmp_path) as made:
            with pytest.raises(CodeExecutionError) as caught:
                await made.execute("print('before'); 1/0")
            assert caught.value.output == "before"
            assert (await made.execute("display(1); display(2)")).text == "1\n2"
            result = await made.session.run("import sys\nprint('o'); print('e', file=sys.stderr); print('o2')")
            assert (result.stdout, result.stderr, result.text) == ("o\no2\n", "e\n", "o\ne\no2\n")

    run(main())


@pytest.mark.parametrize("code", ["%%script bash\necho hi", "%sx echo hi", "x = !echo hi", "%%sh\necho hi"])
def test_d17_every_way_to_a_shell_asks(tmp_path, code):
    async def main():
        async with executor(tmp_path, approve_shell_cmds=True) as made:
            items = await collect_and_accept(made.stream(code))
            assert isinstance(items[0], ApprovalRequest) and items[0].kind == "shell"

    run(main())


@pytest.mark.parametrize("code", ["os.fork()", "os.system('true')", "subprocess.Popen(['true'])",
                                  "importlib.reload(subprocess).run(['true'])", "os.posix_spawn('/bin/true', ['true'], {})",
                                  "multiprocessing.get_context('fork').Process(target=print).start()"])
def test_d17_the_guard_covers_the_known_ways_around(tmp_path, code):
    async def main():
        async with executor(tmp_path, approve_shell_cmds=True, require_shell_escape=True) as made:
            with pytest.raises(CodeExecutionError, match="ShellEscapeError"):
                await made.execute("import os, subprocess, importlib, multiprocessing\n" + code)

    run(main())


def test_other_tasks_have_their_turn_between_calls_that_are_approved_at_once(tmp_path):
    async def main():
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        async with executor(tmp_path, mcp_servers={"brave": BRAVE}) as made:
            await made.execute("tools.brave.echo(text='hi')")
            calls, before, task = 0, 0, asyncio.ensure_future(count())
            async for item in made.stream("for i in range(400):\n    tools.brave.echo(text='hi')"):
                if isinstance(item, ApprovalRequest):
                    calls += 1
                    before = before or turns
                    item.accept()
            task.cancel()
            assert calls == 400 and turns - before >= 4

    run(main())


def test_sandbox(tmp_path):
    (tmp_path / "work").mkdir()

    async def main():
        async with executor(tmp_path, sandbox=True, working_dir=tmp_path / "work") as made:
            assert (await made.session.run("1")).isolation["executor"] == "sandbox"
            with pytest.raises(CodeExecutionError):
                await made.execute("open('/etc/shadow')")
            assert (await made.execute("open('f', 'w').write('x')")).text == "1"

    run(main())
