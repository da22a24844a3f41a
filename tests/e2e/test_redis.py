"""Storage in Redis from the command line: every command takes it, the store commands, workspaces, TLS, secrets."""
import json
import signal
import socket
import subprocess

import pytest

import serving
import spaces
import support

ADD = '"""Adds up."""\nasync def run(a: int, b: int = 2):\n    return a + b\n'


def run(*words, status=0, **options):
    done = support.workcell(*words, **options)
    assert done.status == status, (words, done)
    return done.out


@pytest.fixture
def url(redis, tmp_path):
    return redis.url(tmp_path.name)


@pytest.fixture
def base(tmp_path):
    return spaces.write_files(tmp_path / "base", {
        "workflows/add.py": ADD, "workflows/two.py": "def run():\n    return 2\n", "requirements.txt": "six==1.16\nattrs\n",
        "tools/say.yaml": "name: say\ndescription: Speaks\ncommand: echo\nschema: {positional: [{name: text, type: string}]}\n"
                          "recipes: {it: {}}\n", "artifacts/data/a.bin": b"\x00\xff" * 10})


def test_every_command(redis, url, tmp_path):
    source = tmp_path / "add.py"
    source.write_text(ADD)
    run("workflows", "add", "add", source, "--description", "Sums", "--storage", url)
    assert "Sums" in run("workflows", "list", "--storage", url)
    assert run("workflows", "run", "add", "a=40", "--storage", url).strip() == "42"
    assert json.loads(run("workflows", "search", "sums", "--storage", url, "--json"))[0]["name"] == "add"
    run("run", "--redis", redis.url(), "--prefix", tmp_path.name, "-e", "artifacts.save('x/y', b'bytes', description='d')")
    assert json.loads(run("artifacts", "list", "--storage", url, "--json"))[0]["path"] == tmp_path.name + ":artifacts:x/y"
    assert redis.ask("GET", tmp_path.name + ":artifacts:x/y") == b"bytes"
    redis.ask("SADD", tmp_path.name + ":deps", "six==1.16")
    assert run("deps", "list", "--storage", url).split() == ["six==1.16"]
    assert run("run", "--storage", url, "-e", "deps.list()").strip() == "['six==1.16']"
    run("workflows", "rm", "add", "--storage", url)
    assert run("workflows", "list", "--storage", url) == ""


def test_push_list_pull_diff(redis, url, base, tmp_path):
    flags = ["--target", url, "--type", "all"]
    dry = run("store", "push", "--source", base, *flags, "--dry-run")
    assert "  Added: add\n" in dry and "Would have pushed 2 workflows" in dry
    assert redis.ask("KEYS", tmp_path.name + ":*") == []
    pushed = run("store", "push", "--source", base, *flags)
    for line in ("  Added: add\n  Added: two\n\nPushed 2 workflows to redis+unix://%s\n" % redis.socket, "  Added: say\n",
                 "Pushed 2 deps", "  Added: data/a.bin\n"):
        assert line in pushed, pushed
    assert json.loads(redis.ask("HGET", tmp_path.name + ":tools:__tools__", "say"))["command"] == "echo"
    assert ", 2 unchanged" in run("store", "push", "--source", base, *flags)
    listed = run("store", "list", *flags)
    assert "  add: Adds up.\n  two: \n\n2 workflows in " in listed and "  attrs\n  six==1.16\n" in listed, listed
    copy = tmp_path / "copy"
    pulled = run("store", "pull", *flags, "--dest", copy)
    assert "  add -> %s/workflows/add.py\n" % copy in pulled and "Pulled 2 workflows to %s\n" % copy in pulled
    assert (copy / "workflows/add.py").read_text() == ADD
    assert (copy / "artifacts/data/a.bin").read_bytes() == b"\x00\xff" * 10
    assert (copy / "requirements.txt").read_text() == "attrs\nsix==1.16\n"
    assert run("tools", "call", "say.it", "text=hi", "--base", copy).strip() == "hi"

    assert set(run("store", "diff", "--source", copy, *flags).splitlines()) == {
        "  = add", "  = two", "  = say", "  = attrs", "  = six", "  = data/a.bin"}
    run("run", "--storage", url, "-e", "workflows.create('agents', 'def run(): pass')\nworkflows.delete('two')\n"
        "artifacts.save('data/a.bin', b'\\x00\\xfe' * 10)")
    (copy / "workflows/add.py").write_text(ADD + "# edited\n")
    spaces.write_files(copy, {"requirements.txt": "six\n", "tools/say.yaml": "name: say\ncommand: printf\n"})
    assert run("store", "diff", "--source", copy, *flags).splitlines() == [
        "  ~ add (modified)", "  + agents (agent-created)", "  - two (removed from store)", "  ~ say (modified)",
        "  + attrs (agent-created)", "  ~ six (modified)", "  ~ data/a.bin (modified)"]
    run("store", "push", "--source", copy, *flags, "--clear")
    assert not set("+-~") & {line[2] for line in run("store", "diff", "--source", copy, *flags).splitlines()}
    assert run("deps", "list", "--storage", url).split() == ["six"]
    rows = [json.loads(line) for line in run("store", "list", "--target", url, "--json").splitlines()]
    assert [row["name"] for row in rows] == ["add", "two"] and rows[0]["type"] == "workflows"


def test_tools_from_the_storage(redis, url, base, tmp_path):
    """Only where it was asked for; what a new session finds is what is there then."""
    say = ["run", "--storage", url, "-e", "tools.say.it(text='hi').strip()"]
    run("store", "push", "--source", base, "--target", url, "--type", "tools")
    assert "Unknown tool: say" in support.workcell(*say).err
    flags = ["--storage", url, "--tools-from-storage"]
    assert run(*say, "--tools-from-storage").strip() == "'hi'"
    assert run("tools", "call", "say.it", "text=hi", *flags).strip() == "hi"
    server = serving.Server("--executor", "subprocess", *flags, pool=0)
    first = server.session()
    assert [tool["name"] for tool in server.ask("GET", "/api/tools").json] == ["say"]
    key = tmp_path.name + ":tools:__tools__"
    redis.ask("HSET", key, "more", json.dumps({"name": "more", "command": "printf", "recipes": {"it": {"preset": {"text": "\U0001f600"}}},
                                              "schema": {"positional": [{"name": "text", "type": "string"}]}}))
    redis.ask("HDEL", key, "say")
    assert server.execute("[tool['name'] for tool in tools.list()]", session=first)["value"] == ["say"]
    assert server.execute("[tool['name'] for tool in tools.list()] + [tools.more.it()]")["value"] == ["more", "\U0001f600"]
    # Those of a workspace are the same; the folder's come first.
    session = server.session(body={"workspace_id": "w"})
    assert server.execute("[tool['name'] for tool in tools.list()]", session=session)["value"] == ["more"]
    server.close()
    other = spaces.write_files(tmp_path / "other", {"more.yaml": "name: more\ncommand: echo\ndescription: The folder's.\nrecipes: {it: {}}\n"})
    listed = run("tools", "list", "--tools", other, *flags, "--json")
    assert [tool["description"] for tool in json.loads(listed)] == ["The folder's."], listed


def test_tools_in_the_storage_are_anybodys_words(redis, url, tmp_path):
    key = tmp_path.name + ":tools:__tools__"
    good = {"name": "good", "command": "echo", "recipes": {"it": {}}}
    for name, value in {
            "good": json.dumps(good), "text": "not JSON", "list": "[1]", "empty": "", "two": '{"name": "two", "name": "three", "command": "x"}',
            "named": json.dumps(dict(good, name="good")), "deep": "[" * 100000, "nested": json.dumps(dict(good, name="nested", schema=[[[[[]]]]])),
            "unknown": json.dumps(dict(good, name="unknown", shell="rm")), "bytes": b"\xff\xfe", "large": b'{"name": "' + b"x" * 9000000 + b'"}',
            "big": json.dumps({"name": "big", "command": "x" * 2000000}), "a/../b": json.dumps(dict(good, name="a/../b")),
            "n" * 200: json.dumps(good), b"\xff\x00": "{}"}.items():
        redis.ask("HSET", key, name, value)
    flags = ["--storage", url, "--tools-from-storage"]
    assert [tool["name"] for tool in json.loads(run("tools", "list", *flags, "--json"))] == ["good"]
    done = support.workcell("tools", "check", *flags)
    assert done.status == 1, done
    for name in ("text", "list", "empty", "two", "named", "deep", "nested", "unknown", "bytes", "large", "big", "a/../b"):
        assert "/%s/%s:1: " % (tmp_path.name, name) in done.out + done.err, (name, done)
    assert run("run", *flags, "-e", "len(tools.list())").strip() == "1"
    redis.ask("SET", tmp_path.name + "x:tools:__tools__", "a text")
    wrong = support.workcell("tools", "list", "--storage", redis.url(tmp_path.name + "x"), "--tools-from-storage")
    assert wrong.status in (support.EXIT["io"], support.EXIT["protocol"]) and "tools from the storage" in wrong.err, wrong
    for words, code in ((["--base", tmp_path], "invalid"), ([], "invalid")):
        done = support.workcell("run", *words, "--tools-from-storage", "-e", "1")
        assert done.status == support.EXIT[code], done


def test_store_refuses(redis, url, base, tmp_path):
    for words, expected in [
            (["push"], "--target"), (["push", "--target", url], "--source"), (["pull", "--target", url], "--dest"),
            (["push", "--source", base, "--target", url, "--type", "all that"], "--type"), (["what"], "usage"),
            (["diff", "--source", base, "--target", url, "--clear"], "push or pull"),
            (["push", "--source", url, "--target", url], "--target"), (["push", "--source", base, "--target", "/x"], "redis://"),
            (["list", "--target", "env:NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE")]:
        done = support.workcell("store", *words)
        assert done.status == support.EXIT["invalid"] and expected in done.err, done
    missing = support.workcell("store", "push", "--source", tmp_path / "no", "--target", url)
    assert missing.status == support.EXIT["not_found"] and not (tmp_path / "no").exists(), missing
    spaces.write_files(base, {"workflows/bad.py": "def run(:"})
    done = support.workcell("store", "push", "--source", base, "--target", url)
    assert done.status == 0 and "'bad' is skipped" in done.err and "1 skipped" in done.out


def test_workspaces(drive, storage):
    """Sessions of one id share; others, and the one without, do not see it; deps are everybody's."""
    one, again, other, none = (drive(*storage, *(["--workspace", name] if name else [])) for name in ("w1", "w1", "w-2", None))
    one.value("workflows.create('shared', 'def run(): return 1', 'Counts zebras')\nartifacts.save('a', 'in w1')\nNone")
    assert again.value("[artifacts.load('a'), workflows.shared(), len(workflows.search('zebra'))]") == ["in w1", 1, 1]
    for driver in (other, none):
        assert driver.value("[artifacts.list(), workflows.list(), workflows.search('zebra')]") == [[], [], []]
    none.value("artifacts.save('a', 'nobody')\nNone")
    assert one.value("artifacts.load('a')") == "in w1"
    for bad in ("", "a/b", "..", "x" * 129, "a b", "\u00e9"):
        done = support.workcell("run", *storage, "--workspace", bad, "-e", "1")
        assert done.status == support.EXIT["invalid"], done


def test_down_says_where(tmp_path):
    done = support.workcell("workflows", "list", "--storage", "redis://bob:s3cret@127.0.0.1:1/0")
    assert done.status == support.EXIT["io"]
    assert "127.0.0.1:1" in done.err and "is it running there?" in done.err and "s3cret" not in done.err


def test_a_session_survives_a_restart_and_a_secret_stays_one(drive, tmp_path):
    server = spaces.Redis("--appendonly", "yes", "--requirepass", "s3cret")
    url = "redis+unix://:s3cret@%s" % server.socket
    try:
        driver = drive("--storage", "env:STORE", env=dict(support.host_environment(), STORE=url))
        driver.value("artifacts.save('a', 'kept')\nNone")
        assert "s3cret" not in " ".join(driver.argv)
        assert driver.value("repr([artifacts.path, artifacts.list(), dir(artifacts)])").count("s3cret") == 0
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        problem = spaces.error(driver, "artifacts.load('a')")
        assert problem["type"] == "ArtifactError" and server.socket in problem["message"], problem
        assert "s3cret" not in json.dumps(problem)
        server.process = subprocess.Popen(server.process.args, stdout=subprocess.DEVNULL, executable=server.program())
        support.wait_until(lambda: driver.run("artifacts.load('a')")["value"] == "kept", "it is there again")
        assert "s3cret" not in driver.stderr_text()
        driver.close()
    finally:
        server.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_tls(tmp_path):
    key, cert = tmp_path / "key", tmp_path / "cert"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
                    "-out", cert, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                   check=True, stderr=subprocess.DEVNULL)
    port = free_port()
    server = spaces.Redis("--tls-port", str(port), "--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-ca-cert-file",
                          str(cert), "--tls-auth-clients", "no")
    try:
        trusted = "rediss://localhost:%d?ssl_ca_certs=%s" % (port, cert)
        run("run", "--storage", trusted, "-e", "artifacts.save('big', b'x' * 20_000_000)\nassert len(artifacts.load('big')) == 20_000_000")
        assert server.ask("TYPE", "py_code_mode:artifacts:big") == b"hash"
        server.ask("ACL", "SETUSER", "bob", "on", ">s3cret", "~*", "+@all")
        assert run("artifacts", "list", "--storage", trusted.replace("//", "//bob:s3cret@", 1)) != ""
        for other, words in [(trusted.replace("//", "//bob:wrong@", 1), "refuses the user or password"),
                             ("rediss://localhost:%d" % port, "not trusted"),
                             ("rediss://127.0.0.1:%d?ssl_ca_certs=%s" % (port, cert), "not trusted"),
                             ("redis://localhost:%d" % port, "Redis at")]:
            done = support.workcell("workflows", "list", "--storage", other)
            assert done.status in (support.EXIT["io"], support.EXIT["protocol"]) and words in done.err, done
        assert run("artifacts", "list", "--storage", "rediss://127.0.0.1:%d?ssl_cert_reqs=none" % port) != ""
    finally:
        server.close()


def test_mcp_keeps_where_others_do(redis):
    call = [{"jsonrpc": "2.0", "id": 1, "method": "initialize",
             "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
                "name": "create_workflow", "arguments": {"name": "m", "source": ADD, "description": "d"}}}]
    with subprocess.Popen([support.BIN, "mcp", "--redis", redis.url()], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        # The end of the input ends what is under way.
        server.stdin.write("".join(json.dumps(each) + "\n" for each in call).encode())
        server.stdin.flush()
        # Besides answers there are notices that lists have changed.
        answer = next(each for each in map(json.loads, iter(server.stdout.readline, b"")) if each.get("id") == 2)
        server.stdin.close()
        assert server.wait(support.DEADLINE) == 0
    assert not answer["result"].get("isError"), answer
    assert redis.ask("HEXISTS", "py-code-mode:workflows:__workflows__", "m") == 1


def test_a_session_server_without_its_redis_says_503(tmp_path):
    redis = spaces.Redis()
    server = serving.Server("--executor", "subprocess", "--storage", "redis+unix://%s" % redis.socket, pool=0)
    assert server.ask("PUT", "/api/artifacts/a", b"1").status == 200
    redis.close()
    for method, path in (("GET", "/api/artifacts/a"), ("PUT", "/api/artifacts/b"), ("GET", "/info"), ("GET", "/api/deps")):
        answer = server.ask(method, path, b"2" if method == "PUT" else None)
        assert answer.status == 503 and answer.code == "storage_unavailable", answer
    assert server.execute("1")["value"] == 1
    server.close()
