"""workcell.integrations.anthropic_tools: the memory as the SDK's own keeps it, result blocks that the SDK's types take, and what leads out."""
import json
import os
import random
import re

import pytest

pytest.importorskip("anthropic")
from anthropic import types  # noqa: E402
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool, ToolError  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402

from conftest import run  # noqa: E402
from workcell import SandboxConfig, SandboxExecutor, Session  # noqa: E402
from workcell.integrations.anthropic_tools import (CODE_EXECUTION, MAX_FILE, MemoryTool, ToolInputError, code_execution, runnable_memory,  # noqa: E402
                                                   tool_results)


def sandbox(path):
    path.mkdir()
    return Session(None, SandboxExecutor(SandboxConfig(cwd=str(path))))


def commands(count):
    """Random commands about few names, so that most of them meet something."""
    rng = random.Random(5)
    paths = ["/memories", "/memories/a", "/memories/b.txt", "/memories/d", "/memories/d/x", "/memories/d/e/y", "/etc/passwd", "/memories/../a"]
    texts = ["one\ntwo\n", "two", "two\ntwo", "", "ä\r\nb", "x" * 50]
    for _ in range(count):
        path, text = rng.choice(paths), rng.choice(texts)
        yield rng.choice([
            {"command": "view", "path": path}, {"command": "view", "path": path, "view_range": [rng.randint(0, 3), rng.choice([-1, 1, 2])]},
            {"command": "create", "path": path, "file_text": text}, {"command": "str_replace", "path": path, "old_str": text or "q", "new_str": "new"},
            {"command": "insert", "path": path, "insert_line": rng.randint(-1, 3), "insert_text": text}, {"command": "delete", "path": path},
            {"command": "rename", "old_path": path, "new_path": rng.choice(paths)}])


def without_sizes(text):
    return re.sub(r"(?m)^[\d.]+[BKMG]\t", "", text)


def test_memory_does_what_the_sdks_own_does(tmp_path):
    theirs = BetaLocalFilesystemMemoryTool(str(tmp_path / "theirs"))

    async def main():
        done = 0
        async with sandbox(tmp_path / "ours") as session:
            memory = MemoryTool(session)
            await memory.call({"command": "view", "path": "/memories"})
            for command in commands(400):
                try:
                    if command["command"] == "rename":  # theirs makes folders for what it then does not find
                        assert theirs._validate_path(command["old_path"]).exists()
                    wanted = theirs.call(dict(command))
                except Exception:
                    wanted = None
                try:
                    got = await memory.call(command)
                except ToolInputError:
                    got = None
                assert (wanted is None) == (got is None), (command, wanted, got)
                if wanted is not None:
                    done += 1
                    if "\r" not in str(wanted):  # ours comes without control characters
                        assert without_sizes(got) == without_sizes(str(wanted)), command
        return done

    assert run(main()) >= 50


def test_memory_does_not_lead_out(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("top secret")

    async def main():
        async with sandbox(tmp_path / "work") as session:
            memory = MemoryTool(session)
            await session.run("import os; os.makedirs('memories/d'); os.symlink(%r, 'memories/link'); os.symlink('/', 'memories/root'); os.mkfifo('memories/pipe')"
                              % str(secret))
            for path in ("/memories/link", "/memories/root%s" % secret, "/memories/../secret", "/memories/d/../../x", "/etc/passwd", "/memoriesx",
                         "memories/a", "/memories/pipe", "/memories/a\0b"):
                for command in ({"command": "view", "path": path}, {"command": "str_replace", "path": path, "old_str": "top", "new_str": "no"},
                                {"command": "insert", "path": path, "insert_line": 0, "insert_text": "x"}):
                    with pytest.raises(ToolInputError):
                        await memory.call(command)
            for path in ("/memories/root/tmp/x", "/memories/link", "/memories/../x", "/memories/link/x"):
                with pytest.raises(ToolInputError):
                    await memory.call({"command": "create", "path": path, "file_text": "owned"})
            with pytest.raises(ToolInputError):
                await memory.call({"command": "rename", "old_path": "/memories/d", "new_path": "/memories/root/d"})
            with pytest.raises(ToolInputError, match="inside"):
                await memory.call({"command": "rename", "old_path": "/memories/d", "new_path": "/memories/d/e"})
            for wrong in ({}, {"command": []}, {"command": "view"}, {"command": "view", "path": 5}, {"command": "create", "path": "/memories/y"},
                          {"command": "create", "path": "/memories/big", "file_text": "x" * (MAX_FILE + 1)}):
                with pytest.raises((ToolInputError, TypeError)):
                    await memory.call(wrong)
            assert "secret" not in await memory.call({"command": "view", "path": "/memories"})
            # Deleting a link removes the link.
            await memory.call({"command": "delete", "path": "/memories/link"})
        assert secret.read_text() == "top secret" and not os.path.exists("/tmp/x")

    run(main())


def test_runnable_memory(tmp_path):
    async def main():
        async with sandbox(tmp_path / "work") as session:
            tool = runnable_memory(session)
            assert tool.to_dict() == MemoryTool.definition
            assert "created" in await tool.call({"command": "create", "path": "/memories/a", "file_text": "x\n"})
            with pytest.raises(ToolError, match="already exists"):
                await tool.call({"command": "create", "path": "/memories/a", "file_text": "x"})

    run(main())


def test_results_have_the_shapes_of_the_api(tmp_path):
    blocks = TypeAdapter(types.BashCodeExecutionToolResultBlock | types.TextEditorCodeExecutionToolResultBlock | types.CodeExecutionToolResultBlock)

    async def main():
        async with sandbox(tmp_path / "work") as session:
            calls = [("bash_code_execution", {"command": "echo out; echo err >&2; exit 3"}), ("bash_code_execution", {"command": 5}),
                     ("text_editor_code_execution", {"command": "create", "path": "d/a.py", "file_text": "one\ntwo\nthree\n"}),
                     ("text_editor_code_execution", {"command": "view", "path": "d/a.py", "view_range": [2, 3]}),
                     ("text_editor_code_execution", {"command": "str_replace", "path": "d/a.py", "old_str": "two", "new_str": "2\n3"}),
                     ("text_editor_code_execution", {"command": "view", "path": "missing"}),
                     ("text_editor_code_execution", {"command": "str_replace", "path": "d/a.py", "old_str": "zzz", "new_str": ""}),
                     ("code_execution", {"code": "print('x')\n6 * 7"}), ("code_execution", {"code": "1 / 0"})]
            content = [{"type": "server_tool_use", "id": "srv_%d" % number, "name": name, "input": given} for number, (name, given) in enumerate(calls)]
            found = await tool_results(session, [{"type": "text", "text": "hm"}, *content], timeout=20)
            for each in found:
                blocks.validate_python(each)
            return [each["content"] for each in found]

    found = run(main())
    assert found[0]["stdout"] == "out\n" and found[0]["stderr"] == "err\n" and found[0]["return_code"] == 3
    assert found[1]["error_code"] == "invalid_tool_input" and found[2] == {"type": "text_editor_code_execution_create_result", "is_file_update": False}
    assert found[3]["content"] == "two\nthree" and found[3]["start_line"] == 2 and found[3]["total_lines"] == 4
    assert found[4]["lines"] == ["-two", "+2", "+3"] and found[4]["new_lines"] == 2
    assert found[5]["error_code"] == "file_not_found" and found[6]["error_code"] == "invalid_tool_input"
    assert found[7]["stdout"] == "x\n42\n" and found[7]["return_code"] == 0 and "ZeroDivisionError" in found[8]["stderr"]


def test_client_tools(tmp_path):
    async def main():
        async with sandbox(tmp_path / "work") as session:
            memory = MemoryTool(session)
            found = await tool_results(session, [
                {"type": "tool_use", "id": "1", "name": "bash_code_execution", "input": {"command": "printf '\\033[2Jred'"}},
                {"type": "tool_use", "id": "2", "name": "memory", "input": {"command": "view", "path": "/etc"}},
                {"type": "tool_use", "id": "3", "name": "run_code", "input": {"code": "6 * 7"}}], memory=memory)
            late = await code_execution(session, "bash_code_execution", {"command": "sleep 30"}, 0.3)
            return found, late

    found, late = run(main())
    assert json.loads(found[0]["content"])["stdout"] == "red" and found[1]["is_error"] and found[2]["content"] == "42"
    assert late["error_code"] == "execution_time_exceeded"
    assert [each["name"] for each in CODE_EXECUTION] == ["bash_code_execution", "text_editor_code_execution"]
