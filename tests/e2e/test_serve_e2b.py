"""E2B's own clients, unmodified, against `workcell serve --e2b`, and what hostile ones send."""
import gzip
import io
import json
import os
import time
import zlib

import pytest

import serving
import support

e2b = pytest.importorskip("e2b", reason="scripts/test-requirements.txt has it")
from e2b import CommandExitException, FileNotFoundException, InvalidArgumentException, SandboxNotRunningException  # noqa: E402
from e2b import SandboxQuery, SandboxState, TimeoutException  # noqa: E402
from e2b.exceptions import AuthenticationException, NotFoundException, SandboxException, SandboxNotFoundException  # noqa: E402
from e2b_code_interpreter import Sandbox  # noqa: E402

PYTHON = "/usr/bin/python3"
# Long ones: they work from an address that has failed with others.
ALICE, BOB, READER, ALL, SMALL, TINY = ("t0ken-of-%s-%s" % (name, "x" * 40) for name in ("alice", "bob", "reader", "all", "small", "tiny"))
TOKENS = """tokens:
  - {name: all, token: %s, scopes: [run, read, admin, approve]}
  - {name: alice, token: %s, scopes: [run, read]}
  - {name: bob, token: %s}
  - {name: reader, token: %s, scopes: [read]}
  - {name: tests, token: t0ken-of-the-tests}
  - {name: small, token: %s, quota: {disk: 1000000}}
  - {name: tiny, token: %s, quota: {disk: 1000000}}
""" % (ALL, ALICE, BOB, READER, SMALL, TINY)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    # Commands are login shells: what the profile of this machine's user does is not part of the tests.
    with serving.shared("--executor", "subprocess", "--e2b", "--audit", audit, "--env", "HOME=%s" % tmp_path_factory.mktemp("home"), python=PYTHON,
                        tokens=TOKENS) as made:
        made.audit = audit
        yield made


def options_for(server):
    url = "http://127.0.0.1:%d" % server.port
    return {"api_key": ALICE, "api_url": url, "sandbox_url": url}


@pytest.fixture(scope="module")
def options(server):
    return options_for(server)


@pytest.fixture(scope="module")
def sandbox(options):
    made = Sandbox.create(timeout=600, envs={"OWN": "v"}, metadata={"who": "shared", "x": "1 & 2"}, **options)
    yield made
    made.kill()


@pytest.fixture
def fresh(options):
    made = Sandbox.create(**options)
    yield made
    made.kill()


def ask(server, method, path, body=None, token=None, sandbox=None, **headers):
    """A request as one of E2B's clients sends it, by hand."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        sent["X-API-KEY"] = token
    if sandbox:
        sent["E2b-Sandbox-Id"] = sandbox
    return server.ask(method, path, body, token=None, headers=sent)


# ---- the control plane ----

def test_a_sandbox_is_listed_described_and_killed(options):
    made = Sandbox.create(timeout=77, metadata={"k": "ü=&"}, **options)
    info = made.get_info()
    assert (info.sandbox_id, info.metadata, info.state) == (made.sandbox_id, {"k": "ü=&"}, SandboxState.RUNNING)
    assert 70 < (info.end_at - info.started_at).total_seconds() <= 78
    assert [one.sandbox_id for one in Sandbox.list(query=SandboxQuery(metadata={"k": "ü=&"}), **options).next_items()] == [made.sandbox_id]
    assert Sandbox.list(query=SandboxQuery(metadata={"k": "other"}), **options).next_items() == []
    assert made.is_running() is True
    assert made.kill() is True and made.kill() is False and made.is_running() is False
    with pytest.raises(SandboxNotRunningException):
        made.files.read("x")
    with pytest.raises(SandboxNotFoundException):
        Sandbox.get_info(made.sandbox_id, **options)


def test_lists_have_pages(options):
    made = [Sandbox.create(metadata={"pages": "1"}, **options) for _ in range(3)]
    pages = Sandbox.list(query=SandboxQuery(metadata={"pages": "1"}), limit=2, **options)
    seen = [one.sandbox_id for one in pages.next_items()]
    assert len(seen) == 2 and pages.has_next
    seen += [one.sandbox_id for one in pages.next_items()]
    assert not pages.has_next and sorted(seen) == sorted(one.sandbox_id for one in made)
    for one in made:
        one.kill()


def test_a_timeout_ends_a_sandbox_or_pauses_it(options):
    ends, pauses = Sandbox.create(timeout=300, **options), Sandbox.create(timeout=300, lifecycle={"on_timeout": "pause"}, **options)
    pauses.run_code("kept = 5")
    ends.set_timeout(0)
    pauses.set_timeout(0)
    support.wait_until(lambda: not ends.is_running() and not pauses.is_running(), lambda: "they still run")
    with pytest.raises(SandboxNotFoundException):
        ends.connect()
    assert pauses.get_info().state == SandboxState.PAUSED
    pauses.connect(timeout=60)
    assert pauses.run_code("kept").text == "5"
    pauses.kill()


def test_a_paused_sandbox_keeps_its_state(fresh, options):
    fresh.run_code("x = 41")
    fresh.files.write("kept.txt", "k")
    assert fresh.pause() is True and fresh.pause() is False
    assert fresh.is_running() is False
    with pytest.raises(SandboxNotRunningException):
        fresh.files.list(".")
    again = Sandbox.connect(fresh.sandbox_id, **options)
    assert (again.run_code("x + 1").text, again.files.read("kept.txt")) == ("42", "k")


def test_forks_go_on_from_the_same_state(fresh):
    fresh.run_code("x = 1")
    first, second = fresh.fork(count=2)
    first.run_code("x = 2")
    assert [one.run_code("x").text for one in (fresh, first, second)] == ["1", "2", "1"]
    assert len({one.sandbox_id for one in (fresh, first, second)}) == 3
    first.kill()
    second.kill()


def test_what_has_no_meaning_here_is_refused(options, server):
    with pytest.raises(SandboxException, match="404: template"):
        Sandbox.create(template="somebodys", **options)
    with pytest.raises(SandboxException, match="mcp is not supported"):
        Sandbox.create(template="base", mcp={"x": {}}, **options)
    with pytest.raises(SandboxException, match="cannot control the network"):
        Sandbox.create(allow_internet_access=False, **options)
    with pytest.raises(SandboxException, match="from 0 to 86400"):
        Sandbox.create(timeout=86401, **options)
    for method, path in [("GET", "/templates/x"), ("POST", "/v3/templates/x"), ("POST", "/volumes")]:
        answer = ask(server, method, path, {} if method == "POST" else None, token=ALICE)
        assert answer.status == 400 and "there are no" in answer.json["message"], path


def test_in_the_executor_sandbox():
    made = serving.Server("--executor", "sandbox", "--e2b", "--network", "none", python=PYTHON, tokens=TOKENS)
    with Sandbox.create(allow_internet_access=False, envs={"OWN": "v"}, **options_for(made)) as confined:
        confined.files.write("in.txt", "from outside")
        assert confined.run_code("open('out.txt', 'w').write(open('in.txt').read().upper())\nimport os\nos.environ['OWN']").text == "v"
        assert confined.files.read("out.txt") == "FROM OUTSIDE"
        assert confined.run_code("open(%r)" % __file__).error.name == "FileNotFoundError"
    made.close()


@pytest.mark.parametrize("domain", ["", ".test", "-x.test", "a..b", "a b", "a/b", "a@b", "a:", "a:0x1", "a:65536", "a:1:2", "x" * 201])
def test_domains_that_no_host_can_have_are_refused(domain):
    done = support.workcell("serve", "--e2b", "--e2b-domain", domain, "--auth-disabled", "--listen", "127.0.0.1:0")
    assert done.status == 2 and "invalid" in done.err and "domain" in done.err, done


def test_the_domain_of_sandboxes_is_named():
    made = serving.Server("--executor", "subprocess", "--e2b", "--e2b-domain", "cells.test:8443", python=PYTHON, tokens=TOKENS)
    with Sandbox.create(**options_for(made)) as sandbox:
        assert sandbox.sandbox_domain == "cells.test:8443"
        assert sandbox.get_host(80) == "80-%s.cells.test:8443" % sandbox.sandbox_id
    made.close()


# ---- code ----

def test_results_output_and_errors(sandbox):
    done = sandbox.run_code("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'text'")
    assert (done.text, done.logs.stdout, done.logs.stderr, done.error) == ("text", ["out\n"], ["err\n"], None)
    failed = sandbox.run_code("1/0").error
    assert (failed.name, failed.value) == ("ZeroDivisionError", "division by zero") and "1/0" in failed.traceback
    assert sandbox.run_code("pass").results == []
    counts = [sandbox.run_code("1").execution_count for _ in range(2)]
    assert counts[1] == counts[0] + 1


def test_all_forms_of_a_result(sandbox):
    code = """
class Rich:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "t", "text/html": "<b>", "text/markdown": "*m*", "image/svg+xml": "<svg/>", "image/png": b"\\x89PNG",
                "image/jpeg": b"\\xff\\xd8", "application/pdf": b"%PDF", "text/latex": "$x$", "application/json": {"a": [1, None]},
                "application/javascript": "1;", "application/x-own": "own"}
display(Rich())
Rich()
"""
    shown, value = sandbox.run_code(code).results
    assert (shown.is_main_result, value.is_main_result) == (False, True)
    for one in (shown, value):
        assert (one.text, one.html, one.markdown, one.svg, one.latex, one.javascript) == ("t", "<b>", "*m*", "<svg/>", "$x$", "1;")
        assert (one.png, one.jpeg, one.pdf) == ("iVBORw==", "/9g=", "JVBERg==") and one.json == {"a": [1, None]}
        assert one.extra == {"application/x-own": "own"}


def test_output_arrives_while_the_cell_runs(sandbox):
    """The cell goes on only when its first line has been seen."""
    seen = []

    def take(message):
        seen.append(message.line)
        sandbox.files.write("go", "1")

    done = sandbox.run_code("import os, time\nprint('one', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('two')",
                            on_stdout=take, timeout=60)
    assert done.error is None and seen == ["one\n", "two\n"]


def test_a_character_that_two_writes_split_stays_whole(sandbox):
    done = sandbox.run_code("import os, time\nos.write(1, b'\\xe2\\x82'); time.sleep(0.1); os.write(1, b'\\xac\\n'); os.write(1, b'\\xff')")
    assert "".join(done.logs.stdout) == "€\n\ufffd"


def test_variables_of_the_sandbox_and_of_one_cell(sandbox):
    get = "import os; (os.environ.get('OWN'), os.environ.get('ONE'), os.environ.get('E2B_SANDBOX'))"
    assert sandbox.run_code(get, envs={"ONE": "'\"\\ü\U0001f600", "OWN": "w"}).text == repr(("w", "'\"\\ü\U0001f600", "true"))
    assert sandbox.run_code(get).text == repr(("v", None, "true"))


def test_contexts_share_files_and_not_variables(sandbox):
    context = sandbox.create_code_context()
    try:
        sandbox.run_code("mine = 1; open('shared.txt', 'w').write('s')", context=context)
        assert sandbox.run_code("mine, open('shared.txt').read(), __import__('os').environ['OWN']", context=context).text == "(1, 's', 'v')"
        assert sandbox.run_code("mine").error.name == "NameError"
        sandbox.files.make_dir("sub")
        inner = sandbox.create_code_context(cwd="/home/user/sub")
        assert sandbox.run_code("__import__('os').getcwd()", context=inner).text.endswith("/sub")
        assert {one.id for one in sandbox.list_code_contexts()} >= {context.id, inner.id, sandbox.sandbox_id}
        sandbox.restart_code_context(context)
        assert sandbox.run_code("mine", context=context).error.name == "NameError"
        sandbox.remove_code_context(inner)
        with pytest.raises(NotFoundException):
            sandbox.run_code("1", context=inner)
        with pytest.raises(SandboxException, match="No such file"):
            sandbox.create_code_context(cwd="missing")
    finally:
        sandbox.remove_code_context(context)
    assert [one.id for one in sandbox.list_code_contexts()] == [sandbox.sandbox_id]


def test_languages(sandbox):
    assert sandbox.run_code("echo $((1+1)) $OWN", language="bash").logs.stdout == ["2 v\n"]
    with pytest.raises(SandboxException, match="use python or bash"):
        sandbox.run_code("1", language="r")


def test_a_client_that_leaves_interrupts_its_cell(fresh):
    with pytest.raises(Exception):
        fresh.run_code("import time\ntime.sleep(60)", timeout=0.5)
    started = time.monotonic()
    assert fresh.run_code("1").text == "1" and time.monotonic() - started < 10


# ---- files ----

def test_files_go_both_ways(sandbox):
    written = sandbox.files.write("a/b.txt", "hellö")
    assert (written.name, written.path) == ("b.txt", "/home/user/a/b.txt")
    assert sandbox.files.read("/home/user/a/b.txt") == "hellö" == sandbox.run_code("open('a/b.txt').read()").text
    data = os.urandom(3_000_000)
    sandbox.files.write("big", io.BytesIO(data))
    assert sandbox.files.read("big", format="bytes") == data and b"".join(sandbox.files.read("big", format="stream")) == data
    sandbox.files.write_files([{"path": "m/1", "data": "one"}, {"path": "m/2", "data": b"\0two"}, {"path": "m/empty", "data": b""}])
    assert [sandbox.files.read("m/" + name, format="bytes") for name in ("1", "2", "empty")] == [b"one", b"\0two", b""]


def test_uploads_may_be_compressed(sandbox):
    data = os.urandom(3_000_000)
    for given in (data, io.BytesIO(data), b"", "hell\u00f6"):
        assert sandbox.files.write("packed", given, gzip=True).path == "/home/user/packed"
        wanted = data if given is not data and isinstance(given, io.BytesIO) else given.encode() if isinstance(given, str) else given
        assert sandbox.files.read("packed", format="bytes", gzip=True) == wanted
    sandbox.files.write_files([{"path": "packed%d" % n, "data": "file %d" % n} for n in range(3)], gzip=True)
    assert [sandbox.files.read("packed%d" % n) for n in range(3)] == ["file %d" % n for n in range(3)]


ZIPPED = gzip.compress(b"text" * 100)


@pytest.mark.parametrize("body, outcome", [
    (ZIPPED + gzip.compress(b"") + gzip.compress(b"more"), b"text" * 100 + b"more"), (ZIPPED[:-1], "cut off"), (ZIPPED[:12], "cut off"),
    (b"\x1f", "cut off"), (b"", "cut off"), (ZIPPED + b"x", "cut off"), (ZIPPED + b"garbage", "not gzip"), (b"plain text", "not gzip"),
    (ZIPPED[:-8] + bytes(8), "not gzip"), (zlib.compress(b"zlib"), "not gzip"), (ZIPPED[:20] + b"\xff" * 20 + ZIPPED[40:], "not gzip"),
], ids=["members", "end", "middle", "head", "empty", "rest", "garbage", "plain", "sum", "zlib", "damaged"])
def test_compressed_uploads_that_lie(server, sandbox, body, outcome):
    sandbox.files.write("zipped", "before")
    answer = ask(server, "POST", "/files?path=zipped", body, sandbox=sandbox.sandbox_id, X_Access_Token=sandbox._envd_access_token,
                 Content_Type="application/octet-stream", Content_Encoding="GZip")
    if isinstance(outcome, bytes):
        assert answer.status == 200 and sandbox.files.read("zipped", format="bytes") == outcome
    else:
        assert answer.status == 400 and outcome in answer.json["message"], answer
        assert sandbox.files.read("zipped") == "before"
    assert sandbox.run_code("[name for name in __import__('os').listdir('.') if 'upload' in name]").text == "[]"


def test_a_small_upload_that_becomes_a_large_file_is_bounded(server, options):
    made = Sandbox.create(**dict(options, api_key=TINY))
    with pytest.raises(Exception, match="may have 1000000 bytes"):
        made.files.write("bomb", bytes(100_000_000), gzip=True)
    assert made.files.list(".") == []
    made.kill()


def test_uploads_that_could_not_be_kept_are_refused(server, sandbox):
    for encoding, form in (("br", False), ("gzip, gzip", False), ("gzip", True)):
        answer = ask(server, "POST", "/files?path=packed-otherwise", b"x", sandbox=sandbox.sandbox_id, X_Access_Token=sandbox._envd_access_token,
                     Content_Type="multipart/form-data; boundary=b" if form else "application/octet-stream", Content_Encoding=encoding)
        assert answer.status == 415, answer
    for way in ({"use_octet_stream": True}, {}):
        with pytest.raises(SandboxException, match="too long"):
            sandbox.files.write("described", "x", metadata={"k": "v" * 5000}, **way)
        with pytest.raises(SandboxException, match="too long"):
            sandbox.files.write("described", "x", metadata={"k" * 300: "v"}, **way)
        with pytest.raises(InvalidArgumentException, match="at most 64"):
            sandbox.files.write("described", "x", metadata={"k%d" % n: "v" for n in range(65)}, **way)
    assert not sandbox.files.exists("packed-otherwise") and not sandbox.files.exists("described")
    assert sandbox.run_code("[name for name in __import__('os').listdir('.') if 'upload' in name]").text == "[]"


@pytest.mark.parametrize("way", [{"use_octet_stream": True}, {}], ids=["bytes", "form"])
def test_files_have_metadata(sandbox, way):
    given = {"Author": "mish", "empty": "", "long": "v" * 1000}
    kept = {key.lower(): value for key, value in given.items()}
    assert sandbox.files.write("marked/a", "x", metadata=given, **way).metadata == kept
    assert [one.metadata for one in sandbox.files.list("marked") if one.name == "a"] == [kept] == [sandbox.files.get_info("marked/a").metadata]
    assert sandbox.files.rename("marked/a", "marked/b").metadata == kept
    assert sandbox.run_code("import os; {name: os.getxattr('marked/b', name) for name in os.listxattr('marked/b')}['user.e2b.author']").text == "b'mish'"
    assert sandbox.files.write("marked/b", "y", **way).metadata is None and sandbox.files.get_info("marked/b").metadata is None


def test_what_code_makes_of_metadata_is_bounded(sandbox):
    sandbox.run_code(r"""
import os
os.makedirs("marks", exist_ok=True)
for n in range(3):
    open("marks/%d" % n, "w").close()
os.setxattr("marks/0", "user.e2b.own", b"1")
os.setxattr("marks/0", "user.other", b"2")
os.setxattr("marks/0", "user.e2b.binary", b"\xff\0")
os.setxattr("marks/0", b"user.e2b.\xff", b"3")
os.symlink("0", "marks/link")
os.mkfifo("marks/pipe")
os.mkdir("marks/folder")
os.setxattr("marks/folder", "user.e2b.folder", b"5")
""")
    assert {one.name: one.metadata for one in sandbox.files.list("marks")} == {
        "0": {"own": "1"}, "1": None, "2": None, "link": None, "pipe": None, "folder": None}
    assert sandbox.files.get_info("marks/link").metadata is None


def test_folders(sandbox):
    assert sandbox.files.make_dir("f/g") is True and sandbox.files.make_dir("f/g") is False
    sandbox.files.write("f/g/x", "123")
    listed = {one.path: (one.type.value, one.size > 0) for one in sandbox.files.list("f", depth=2)}
    assert listed == {"/home/user/f/g": ("dir", True), "/home/user/f/g/x": ("file", True)}
    assert sandbox.files.rename("f/g/x", "f/y").path == "/home/user/f/y"
    info = sandbox.files.get_info("f/y")
    assert (info.name, info.size, info.permissions) == ("y", 3, "-rw-r--r--")
    assert sandbox.files.exists("f/y") and not sandbox.files.exists("f/g/x")
    sandbox.files.remove("f")
    sandbox.files.remove("f")
    assert not sandbox.files.exists("f")
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("f/y")
    with pytest.raises(InvalidArgumentException, match="directory"):
        sandbox.files.make_dir("folder") and sandbox.files.read("folder")


def test_signed_urls_are_for_one_file_and_one_operation(sandbox, server):
    sandbox.files.write("signed.txt", "s")

    def tail(url):
        return url[url.index("/files"):]

    get, put = tail(sandbox.download_url("signed.txt", use_signature_expiration=60)), tail(sandbox.upload_url("other.txt"))
    assert server.ask("GET", get, token=None).body == b"s"
    form = b'--border\r\nContent-Disposition: form-data; name="file"; filename="other.txt"\r\n\r\nnew\r\n--border--\r\n'
    assert server.ask("POST", put, form, token=None, headers={"Content-Type": "multipart/form-data; boundary=border"}).status == 200
    assert sandbox.files.read("other.txt") == "new"
    expired = tail(sandbox.download_url("signed.txt", use_signature_expiration=-5))
    for wrong in (put, get.replace("signed.txt", "other.txt"), get[:-1], get.replace("v1_", "v1_A"), expired, "/files?path=signed.txt"):
        assert server.ask("GET", wrong, token=None).status == 401, wrong


def test_signed_urls_find_the_worker_of_their_sandbox():
    """No word of such a URL says whose it is."""
    server = serving.Server("--executor", "subprocess", "--e2b", "--workers", 2, python=PYTHON, tokens=TOKENS)
    connections = server.connect_to_each()
    made = [server.ask("POST", "/sandboxes", {"templateID": "base"}, token=None, headers={"X-API-Key": ALICE}, connection=connection)
            for connection in connections * 2]
    sandboxes = [Sandbox.connect(each.json["sandboxID"], **options_for(server)) for each in made]
    assert len({sandbox.sandbox_id[:2] for sandbox in sandboxes}) == 2

    def ask(method, url, connection, body=None):
        return server.ask(method, url[url.index("/files"):], body, token=None, connection=connection,
                          headers={"Content-Type": "application/octet-stream"} if body else ())

    for n, sandbox in enumerate(sandboxes):
        for connection in connections:
            answer = ask("POST", sandbox.upload_url("f"), connection, b"%d" % n)
            assert answer.status == 200, answer
            assert ask("GET", sandbox.download_url("f", use_signature_expiration=60), connection).body == b"%d" % n
            assert ask("GET", sandbox.upload_url("f"), connection).status == 401
            assert ask("GET", sandbox.download_url("f", use_signature_expiration=-5), connection).status == 401
    gone, paused = sandboxes[0], next(each for each in sandboxes if each.sandbox_id[:2] != sandboxes[0].sandbox_id[:2])
    urls = {each: each.download_url("f") for each in sandboxes}
    gone.kill()
    paused.pause()
    for connection in connections:
        assert ask("GET", urls[gone], connection).status == 401
        assert ask("GET", urls[paused], connection).status in (401, 502)  # nothing answers for it until it is resumed
        for n, sandbox in enumerate(sandboxes):
            if sandbox not in (gone, paused):
                assert ask("GET", urls[sandbox], connection).body == b"%d" % n
    for connection in connections:
        connection.close()
    server.close()


# /tmp is the machine's with this executor.
@pytest.mark.parametrize("path", ["/etc/passwd", "/tmp/x", "../../etc/passwd", "/home/user/../x", "/home/user2/x", "/proc/self/environ", "~root/x"])
def test_paths_stay_in_the_sandbox(sandbox, path):
    for reach in (sandbox.files.read, sandbox.files.list, sandbox.files.remove, sandbox.files.make_dir, lambda p: sandbox.files.write(p, "x"),
                  lambda p: sandbox.files.rename(p, "stolen")):
        if path == "~root/x":
            break  # a name like another: below the folder
        with pytest.raises((FileNotFoundException, NotFoundException, InvalidArgumentException)):
            reach(path)


def test_links_out_of_the_sandbox_are_not_followed(sandbox, tmp_path):
    (tmp_path / "secret").write_text("secret")
    sandbox.run_code("import os\nos.symlink(%r, 'link'); os.symlink(%r, 'file')" % (str(tmp_path), str(tmp_path / "secret")))
    for path in ("link/secret", "file"):
        with pytest.raises(SandboxException):
            sandbox.files.read(path)
    with pytest.raises(SandboxException):
        sandbox.files.write("link/new", "x")
    with pytest.raises(SandboxException):
        sandbox.files.rename("big" if sandbox.files.exists("big") else "a", "link/moved")
    assert os.listdir(tmp_path) == ["secret"]


# ---- commands ----

def test_commands_have_output_and_a_status(sandbox):
    done = sandbox.commands.run("echo out; echo err >&2; echo $OWN $ONE; pwd", envs={"ONE": "1"})
    assert (done.exit_code, done.stderr) == (0, "err\n") and done.stdout.startswith("out\nv 1\n")
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo x; exit 3")
    assert (failed.value.exit_code, failed.value.stdout) == (3, "x\n")
    sandbox.files.make_dir("cmd")
    assert sandbox.commands.run("pwd", cwd="/home/user/cmd").stdout.endswith("/cmd\n")
    sandbox.commands.run("echo from > made.txt")
    assert sandbox.files.read("made.txt") == "from\n"
    assert len(sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3000000


def test_changes_of_files_are_recorded_and_counted(server, options):
    made = Sandbox.create(**dict(options, api_key=SMALL))
    made.files.write("one", "1")
    made.files.write_files([{"path": "two", "data": "22"}, {"path": "three", "data": "333"}])
    made.files.make_dir("folder")
    made.files.rename("one", "folder/one")
    made.files.remove("folder")
    with pytest.raises(InvalidArgumentException):
        made.files.write("../out", "x")

    def seen():
        records = [json.loads(line) for line in server.audit.read_text().splitlines()]
        return [(r["callable"], r["args"]["path"], r["args"].get("bytes")) for r in records if r["kind"] == "files" and r["session"] == made.sandbox_id]

    wanted = [("put", "one", 1), ("put", "two", 2), ("put", "three", 3), ("make_folder", "folder", None), ("move", "folder/one", None),
              ("remove", "folder", None)]
    support.wait_until(lambda: seen() == wanted, "records of all changes")
    made.files.write_files([{"path": "large", "data": b"x" * 900_000}, {"path": "larger", "data": b"x" * 900_000}])
    with pytest.raises(Exception, match="too many bytes"):
        made.files.write_files([{"path": "a", "data": "1"}, {"path": "b", "data": "2"}])
    made.kill()


def test_output_of_a_command_comes_as_it_is_written(sandbox):
    """The command goes on only when its first line has been seen."""
    seen = []

    def take(text):
        seen.append(text)
        sandbox.files.write("went", "1")

    sandbox.commands.run("echo one; while ! [ -e went ]; do sleep 0.01; done; echo two", on_stdout=take, timeout=60)
    assert "".join(seen) == "one\ntwo\n"


def test_commands_in_the_background_take_input(sandbox):
    handle = sandbox.commands.run("while read line; do echo got $line; done; exit 4", background=True, stdin=True)
    assert handle.pid in [one.pid for one in sandbox.commands.list()]
    sandbox.commands.send_stdin(handle.pid, "a\n")
    sandbox.commands.send_stdin(handle.pid, "b\n")
    sandbox.commands.close_stdin(handle.pid)
    with pytest.raises(CommandExitException) as ended:
        handle.wait()
    assert (ended.value.stdout, ended.value.exit_code) == ("got a\ngot b\n", 4)
    assert handle.pid not in [one.pid for one in sandbox.commands.list()]


def test_commands_are_killed_and_connected_to(sandbox):
    handle = sandbox.commands.run("echo before; read x; echo after", background=True, stdin=True)
    next(iter(handle))
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "\n")
    assert again.wait().stdout == "after\n"
    handle = sandbox.commands.run("sleep 100", background=True)
    assert handle.kill() is True
    with pytest.raises(CommandExitException):
        handle.wait()
    assert sandbox.commands.kill(handle.pid) is False
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999999)
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 100", timeout=0.3)


def test_a_terminal(sandbox):
    seen = []
    handle = sandbox.pty.create(e2b.PtySize(rows=11, cols=33), envs={"PS1": "$ "})
    sandbox.pty.send_stdin(handle.pid, b"stty size; echo $TERM; exit 5\n")
    with pytest.raises(CommandExitException) as ended:
        handle.wait(on_pty=seen.append)
    assert ended.value.exit_code == 5 and b"11 33" in b"".join(seen) and b"xterm-256color" in b"".join(seen)


@pytest.mark.parametrize("body", [b"", b"{}", b"\0\0\0\0", b"\0\0\0\0\2{", b"\0\0\0\0\2{}{}", b"\1\0\0\0\2{}", b"\2\0\0\0\2{}", b"\0\xff\xff\xff\xff{}",
                                  b"\0\0\0\0\2[]", b"\0\0\0\0\2{}", b'\0\0\0\0\x18{"process":{"cmd":"a\\u0000"}}'])
def test_hostile_messages_are_refused(server, sandbox, body):
    answer = server.ask("POST", "/process.Process/Start", body, token=None,
                        headers={"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": sandbox._envd_access_token,
                                 "Content-Type": "application/connect+json"})
    assert answer.status == 200 and answer.body[0] == 2 and int.from_bytes(answer.body[1:5], "big") == len(answer.body) - 5
    assert json.loads(answer.body[5:])["error"]["code"] == "invalid_argument"


# ---- other clients ----

ROUTES = [("GET", "/sandboxes/{}"), ("DELETE", "/sandboxes/{}"), ("POST", "/sandboxes/{}/timeout"), ("POST", "/sandboxes/{}/refreshes"),
          ("POST", "/sandboxes/{}/pause"), ("POST", "/sandboxes/{}/resume"), ("POST", "/sandboxes/{}/connect"),
          ("POST", "/v2/sandboxes/{}/connect"), ("POST", "/sandboxes/{}/fork"), ("GET", "/sandboxes/{}/metrics")]


def test_another_token_finds_no_sandbox(server, sandbox):
    for method, path in ROUTES:
        answer = ask(server, method, path.format(sandbox.sandbox_id), {} if method == "POST" else None, token=BOB)
        assert answer.status == 404, (method, path, answer)
    assert sandbox.sandbox_id not in ask(server, "GET", "/v2/sandboxes", token=BOB).body.decode()
    assert sandbox.is_running()


def test_a_reader_changes_nothing_and_gets_no_token(server, options):
    for method, path in ROUTES:
        if method != "GET":
            assert ask(server, method, path.format("0" * 32), {}, token=READER).status == 403, path
    assert ask(server, "POST", "/v2/sandboxes", {}, token=READER).status == 403
    assert ask(server, "GET", "/v2/sandboxes", token="wrong-token-of-nobody").status == 401
    with pytest.raises(AuthenticationException):
        Sandbox.create(**dict(options, api_key="wrong-token-of-nobody"))


INSIDE = [("GET", "/health"), ("POST", "/execute"), ("GET", "/contexts"), ("POST", "/contexts"), ("DELETE", "/contexts/x"),
          ("POST", "/contexts/x/restart"), ("GET", "/files?path=a"), ("POST", "/files?path=a"), ("POST", "/filesystem.Filesystem/Stat"),
          ("POST", "/filesystem.Filesystem/Remove"), ("POST", "/process.Process/List"), ("POST", "/process.Process/SendSignal")]


def test_a_sandbox_needs_its_own_token(server, sandbox, fresh):
    other = fresh._envd_access_token
    for method, path in INSIDE:
        body = {"path": "a", "code": "1"} if method == "POST" else None
        for sent in ({}, {"X_Access_Token": other}, {"X_API_KEY": ALICE}, {"E2B_Traffic_Access_Token": "x"}):
            answer = ask(server, method, path, body, sandbox=sandbox.sandbox_id, **sent)
            assert answer.status in (401, 429), (method, path, sent, answer)
        answer = ask(server, method, path, body, sandbox="0" * 32, X_Access_Token=other)
        # Nobody has it.  One of several workers cannot know that of an id that another could have, and checks the token first.
        assert answer.status in ((502,) if server.workers == 1 else (401, 429, 502)), (method, path, answer)
    # A context of another sandbox.
    answer = ask(server, "POST", "/execute", {"code": "1", "context_id": sandbox.sandbox_id}, sandbox=fresh.sandbox_id, X_Access_Token=other)
    assert answer.status == 404
    # The control plane does not take it.
    assert ask(server, "DELETE", "/sandboxes/" + sandbox.sandbox_id, sandbox=fresh.sandbox_id, X_Access_Token=other).status in (401, 429)
    assert sandbox.is_running()


def test_a_host_name_addresses_a_sandbox(server, sandbox):
    answer = server.ask("POST", "/execute", {"code": "6*7"}, token=None,
                        headers={"Host": "49999-%s.example.test" % sandbox.sandbox_id, "X-Access-Token": sandbox._envd_access_token})
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert {"type": "result", "is_main_result": True, "text": "42"} in lines


@pytest.mark.parametrize("path", ["/", "/execute", "/sandboxes"])
def test_ports_of_programs_are_refused_with_the_reason(server, sandbox, path):
    host, given = "3000-%s.example.test" % sandbox.sandbox_id, {"X-Access-Token": sandbox._envd_access_token}
    answer = server.ask("POST", path, {"code": "6*7"}, token=None, headers={"Host": host, **given})
    assert answer.status == 502 and "ports of a sandbox" in answer.json["message"], answer


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"{}", b'{"code":1}', b'{"code":"1","env_vars":[]}', b'{"code":"1","env_vars":{"a=":"b"}}',
                                  b'{"code":"1","env_vars":{"a":1}}', b'{"code":"\xff"}', b'{"code":"1","code":"2"}'])
def test_bodies_that_are_not_cells_are_refused(server, sandbox, body):
    answer = server.ask("POST", "/execute", body, token=None,
                        headers={"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": sandbox._envd_access_token})
    assert answer.status == 400 and answer.json["code"] == 400


def test_without_the_flag_nothing_of_it_is_there():
    with serving.shared("--executor", "subprocess", python=PYTHON, tokens=TOKENS) as plain:
        for method, path in [("POST", "/v2/sandboxes"), ("GET", "/sandboxes/x"), ("GET", "/files?path=x")]:
            assert plain.ask(method, path, {} if method == "POST" else None, token=ALICE).status == 404
