"""The environment of `workcell serve`: every name that the session server of existing deployments reads (docs/server.md)."""
import json
import os
import re

import pytest

import serving
import spaces
import support

TOKEN = serving.TOKEN
ECHO = {"name": "echo", "type": "cli", "command": "echo", "description": "Says \U0001f600.",
        "schema": {"positional": [{"name": "text", "type": "string"}]}, "recipes": {"say": {}}}
# Every name, and the test that sees what it does; a name that is not here is documented nowhere.
FILE_NAMES = {"WORKFLOWS_PATH", "SKILLS_PATH", "ARTIFACTS_PATH", "DEPS_PATH", "STORAGE_BASE_PATH", "TOOLS_PATH", "TOOLS_CONFIG", "CONTAINER_DEPS",
              "DEFAULT_TIMEOUT", "MAX_EXECUTION_TIME", "HOST", "PORT", "ALLOW_RUNTIME_DEPS", "CONTAINER_AUTH_TOKEN"}
REDIS_NAMES = {"ARTIFACT_BACKEND", "REDIS_URL", "STORAGE_PREFIX", "REDIS_TOOLS_PREFIX", "REDIS_WORKFLOWS_PREFIX", "REDIS_SKILLS_PREFIX",
               "REDIS_ARTIFACTS_PREFIX", "REDIS_DEPS_PREFIX", "CONTAINER_AUTH_DISABLED"}


def check(**env):
    env.setdefault("CONTAINER_AUTH_TOKEN", "secret")
    return support.workcell("serve", "--check-config", env=support.host_environment(**env))


def test_the_table_has_every_name():
    with open(os.path.join(support.ROOT, "docs", "server.md"), encoding="utf-8") as file:
        rows = [line for line in file if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([A-Z][A-Z_]+)`", row.split("|")[1])}
    assert FILE_NAMES | REDIS_NAMES <= named, (FILE_NAMES | REDIS_NAMES) - named


def test_files(tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("wc-one", "wc-two", "wc-three"):
        spaces.make_wheel(wheels, name, "1.0", "x = 1\n")
    base, tools = tmp_path / "base", tmp_path / "tools"
    spaces.write_files(tools, {"echo.yaml": json.dumps(ECHO, ensure_ascii=False)})
    adder = {"name": "adder", "command": support.PYTHON, "args": [os.path.join(support.ROOT, "bench", "mcp_server.py")], "timeout": 30}
    (tmp_path / "tools.yaml").write_text(json.dumps({"python_deps": ["wc-three"], "mcp_servers": [adder], "tools": []}))
    env = {"WORKFLOWS_PATH": base / "workflows", "SKILLS_PATH": base / "skills", "ARTIFACTS_PATH": "%s/artifacts/" % base,
           "DEPS_PATH": base / "deps", "STORAGE_BASE_PATH": base, "TOOLS_PATH": tools, "TOOLS_CONFIG": tmp_path / "tools.yaml",
           "CONTAINER_DEPS": "wc-one>=0.5,<2, wc-two", "DEFAULT_TIMEOUT": "0.5", "MAX_EXECUTION_TIME": "3", "HOST": "127.0.0.2", "PORT": "0",
           "ALLOW_RUNTIME_DEPS": "no", "CONTAINER_AUTH_TOKEN": TOKEN}
    assert set(env) == FILE_NAMES
    server = serving.Server("--executor", "subprocess", "--wheel-dir", wheels, listen=None, tokens=None, pool=0,
                            env={**{k: str(v) for k, v in env.items()}, "XDG_CACHE_HOME": str(tmp_path / "cache"),
                                 "PATH": os.pathsep.join([os.path.dirname(support.PYTHON), os.environ["PATH"]])}.items())
    assert server.address == "127.0.0.2"
    assert "warning: TOOLS_CONFIG has keys other than mcp_servers and python_deps" in server.text()
    info = server.ask("GET", "/info").json
    assert info["artifacts_path"] == "%s/artifacts" % base and info["tools"] == [
        {"name": "adder", "description": "add: Adds two numbers.; pid: The server's process."}, {"name": "echo", "description": "Says \U0001f600."}]
    for workspace in (None, "w"):  # MCP servers are everybody's, as tools are
        session = server.session(body={"workspace_id": workspace})
        assert server.ask("POST", "/execute", {"code": "tools.adder.add(a=1, b=2)", "timeout": 3}, session=session).json["value"] == "3"
    assert sorted(server.ask("GET", "/api/deps").json) == ["wc-one>=0.5,<2", "wc-three", "wc-two"]
    found = server.ask("POST", "/execute", {"code": "import wc_one, wc_two, wc_three; wc_one.x", "timeout": 3}).json
    assert found["value"] == 1, found
    assert server.ask("POST", "/api/deps/add", {"package": "wc-one"}).code == "disabled"
    assert server.execute("while True: pass")["error_code"] == "timeout"  # DEFAULT_TIMEOUT
    long = server.ask("POST", "/execute", {"code": "import time; time.sleep(30)", "timeout": 20}).json
    assert long["error_code"] == "timeout" and long["execution_time_ms"] < 20000  # MAX_EXECUTION_TIME
    server.close()


def test_redis(redis, tmp_path):
    root = tmp_path.name
    redis.ask("HSET", "their:__tools__", "echo", json.dumps(ECHO))  # \ud83d\ude00, as Python writes it
    env = {"ARTIFACT_BACKEND": "redis", "REDIS_URL": redis.url(), "STORAGE_PREFIX": root, "REDIS_TOOLS_PREFIX": "their",
           "REDIS_WORKFLOWS_PREFIX": root + ":workflows", "REDIS_SKILLS_PREFIX": root + ":skills", "REDIS_ARTIFACTS_PREFIX": root + ":artifacts",
           "REDIS_DEPS_PREFIX": root, "CONTAINER_AUTH_DISABLED": "true"}
    assert set(env) == REDIS_NAMES
    server = serving.Server("--executor", "subprocess", tokens=None, pool=0, env={**env, "WORKFLOWS_PATH": "/app/workflows"}.items())
    assert "warning: WORKFLOWS_PATH has no effect: the storage is in Redis" in server.text()
    assert server.execute("artifacts.save('a', 'x'); tools.echo.say(text='hi').strip()", token=None)["value"] == "hi"
    assert redis.ask("GET", root + ":artifacts:a") == b"x"
    info = server.ask("GET", "/info", token=None).json
    assert info["artifacts_path"] == root + ":artifacts" and info["tools"][0]["description"] == "Says \U0001f600."
    session = server.session(token=None, body={"workspace_id": "w"})
    assert server.ask("GET", "/info", session=session, token=None).json["artifacts_path"] == root + ":ws:w:artifacts"
    server.close()


@pytest.mark.parametrize("env, words", [
    ({"WORKFLOWS_PATH": "/app/workflows", "ARTIFACTS_PATH": "/workspace/artifacts"}, "belong to different storages"),
    ({"WORKFLOWS_PATH": "/app/flows"}, "expected STORAGE/workflows"),
    ({"STORAGE_BASE_PATH": "/data", "DEPS_PATH": "/workspace/deps"}, "belong to different storages"),
    ({"ARTIFACT_BACKEND": "s3"}, "file or redis"),
    ({"ARTIFACT_BACKEND": "redis"}, "REDIS_URL"),
    ({"REDIS_URL": "redis://h", "REDIS_WORKFLOWS_PREFIX": "workflows"}, "expected STORAGE:workflows"),
    ({"REDIS_URL": "redis://h", "REDIS_WORKFLOWS_PREFIX": "a:workflows", "REDIS_ARTIFACTS_PREFIX": "b:artifacts"}, "belong to different storages"),
    ({"REDIS_URL": "redis://h", "STORAGE_PREFIX": "a", "REDIS_DEPS_PREFIX": "b:deps"}, "belong to different storages"),
    ({"TOOLS_CONFIG": "/no/such/file"}, "/no/such/file"),
    ({"CONTAINER_AUTH_TOKEN": " "}, "the token is empty"),
    ({"PORT": "many"}, "many"), ({"HOST": "0.0.0.0", "CONTAINER_AUTH_TOKEN": "", "CONTAINER_AUTH_DISABLED": "true"}, "other machines"),
])
def test_what_cannot_be_is_refused(env, words):
    done = check(**env)
    assert done.status != 0 and words in done.error_message, done


@pytest.mark.parametrize("config, words", [
    ("mcp_servers: 1", "mcp_servers must be a list"),
    ("mcp_servers: [{command: x}]", "tools.yaml:1: an MCP server must be a mapping"),
    ("mcp_servers: [x]", "tools.yaml:1: an MCP server must be a mapping"),
    ("mcp_servers: &a [*a]", "anchors and aliases are not supported"),
    ("mcp_servers:\n- &a {name: x, env: *a}", "tools.yaml:2: YAML anchors"),
    ("mcp_servers:\n- {name: x, command: y}\n- {name: x, url: z}", "tools.yaml:3: duplicate MCP server 'x'"),
    ("mcp_servers: {x: {}}", "MCP server 'x' of TOOLS_CONFIG"),
    ("mcp_servers: {x: {command: y, color: red}}", "unknown key 'color'"),
    ("mcp_servers: {x: {command: y, timeout: soon}}", "'timeout' must be a number"),
    ("python_deps: a", "python_deps must be a list"),
    ("[]", "TOOLS_CONFIG must be a mapping"),
])
def test_a_bad_tools_config_is_refused(config, words, tmp_path):
    (tmp_path / "tools.yaml").write_text(config)
    done = check(TOOLS_CONFIG=str(tmp_path / "tools.yaml"))
    assert done.status != 0 and words in done.error_message, done


def test_what_does_nothing_is_said():
    done = check(STORAGE_PREFIX="p", REDIS_TOOLS_PREFIX="t", REDIS_DEPS_PREFIX="p:deps")
    assert done.status == 0, done
    for name in ("STORAGE_PREFIX", "REDIS_TOOLS_PREFIX", "REDIS_DEPS_PREFIX"):
        assert "warning: %s has no effect" % name in done.err
