"""Files of a session by the command line; audit records, quotas, and servers that lie."""
import http.server
import io
import json
import os
import tarfile
import threading

import pytest

import serving
import support

ALICE, BOB = "t0ken-of-alice", "t0ken-of-bob"
ESC = "e\x1b[31mvil\x07"
TOKENS = serving.TOKENS + "  - {name: small, token: t0ken-of-the-small, quota: {disk: 1000000}}\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    with serving.shared("--executor", "subprocess", "--base", folder, "--audit", folder / "audit.jsonl", tokens=TOKENS) as made:
        made.audit = folder / "audit.jsonl"
        yield made


def cli(server, *words, token=serving.TOKEN, status=0, **options):
    port = server if isinstance(server, int) else server.port
    env = support.host_environment(WORKCELL_REMOTE_URL="http://127.0.0.1:%d" % port, WORKCELL_SERVE_TOKEN=token)
    done = support.workcell("files", *words, env=env, **options)
    assert done.status == status, done
    return done


def run(server, session, code):
    answer = server.execute(code, session=session)
    assert answer["error"] is None, answer
    return answer["value"]


# ---- the command line ----

def test_files_there_and_back(server, tmp_path):
    session = server.session()
    (tmp_path / "in").write_bytes(bytes(range(256)) * 4096)
    cli(server, "put", session[:8], tmp_path / "in", "a/b c%+/ü")
    assert run(server, session, "import os; [os.path.getsize('a/b c%+/ü'), open('a/b c%+/ü', 'rb').read() == bytes(range(256)) * 4096]") == [1 << 20, True]
    cli(server, "get", session, "a/b c%+/ü", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
    assert cli(server, "get", session, "a/b c%+/ü", "-").raw_out == (tmp_path / "in").read_bytes()
    cli(server, "put", session, "-", "from-stdin", "--mode", "755", stdin=b"text\n")
    assert run(server, session, "[open('from-stdin').read(), oct(os.stat('from-stdin').st_mode & 0o777)]") == ["text\n", "0o755"]
    cli(server, "get", session, "from-stdin", cwd=tmp_path)
    assert os.stat(tmp_path / "from-stdin").st_mode & 0o111
    assert json.loads(cli(server, "put", session, tmp_path / "in", "x", "--json").out) == {"path": "x", "bytes": 1 << 20}
    cli(server, "mkdir", session, "new/folder")
    rows = cli(server, "ls", session).out
    assert "new/" in rows and "from-stdin" in rows and "1 MiB" in rows
    assert json.loads(cli(server, "ls", session, "new", "--json").out)["entries"][0]["name"] == "folder"
    assert "not empty" in cli(server, "rm", session, "new", status=1).err
    assert json.loads(cli(server, "rm", "-r", session, "new", "x", "--json").out) == ["new", "x"]
    assert run(server, session, "sorted(os.listdir())") == ["a", "from-stdin"]


def test_folders_there_and_back(server, tmp_path):
    session = server.session()
    source = tmp_path / "source"
    (source / "sub" / "deep").mkdir(parents=True)
    (source / "sub" / "deep" / "f").write_text("deep")
    (source / "run.sh").write_text("#!")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("sub/deep/f")
    cli(server, "put", session, source, "in")
    assert run(server, session, "import os; [open('in/link').read(), os.access('in/run.sh', os.X_OK)]") == ["deep", True]
    run(server, session, "os.symlink('/etc/passwd', 'in/out'); os.symlink('../../x', 'in/up'); os.symlink('../run.sh', 'in/sub/fine')")
    done = cli(server, "get", session, "in", tmp_path / "back")
    assert "2 links" in done.err
    back = tmp_path / "back"
    assert sorted(os.listdir(back)) == ["link", "run.sh", "sub"] and (back / "link").read_text() == "deep"
    assert os.access(back / "run.sh", os.X_OK) and os.readlink(back / "sub" / "fine") == "../run.sh"
    body = cli(server, "get", session, "in", "-").raw_out
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert tar.extractfile("sub/deep/f").read() == b"deep"


def test_what_fails(server, tmp_path):
    session = server.session(token=ALICE)
    for words, status, said in (
            (["get", session, "missing", "-"], 1, "does not exist"), (["get", session, "../x", "-"], 2, ".."),
            (["put", session, str(tmp_path / "missing"), "x"], 1, "cannot open"), (["ls", "0000"], 1, "no session"),
            (["ls"], 2, "usage"), (["frob", session], 2, "give one of"), (["put", session, "-", "x", "--mode", "abc"], 2, "octal"),
            (["get", session, ""], 2, "give the name")):
        done = cli(server, *words, token=ALICE, status=status, stdin=b"")
        assert said in done.err, done
    cli(server, "ls", session, token=BOB, status=1)
    cli(server, "put", session, "-", "f", token=BOB, status=1, stdin=b"x")
    assert server.ask("GET", "/v1/sessions/%s/files" % session, token=ALICE).json["entries"] == []
    # A download that fails leaves nothing, and keeps the file that was there.
    (tmp_path / "kept").write_text("old")
    run(server, session, "import os; os.mkfifo('pipe')")
    cli(server, "get", session, "pipe", tmp_path / "kept", token=ALICE, status=2)
    assert sorted(os.listdir(tmp_path)) == ["kept"] and (tmp_path / "kept").read_text() == "old"


def test_names_with_escapes(server):
    session = server.session()
    run(server, session, "open(%r, 'w').close(); import os; os.symlink(%r, 'link'); open(b'\\xff\\xfe', 'w').close()" % (ESC, ESC))
    shown = cli(server, "ls", session).out
    assert "\x1b" not in shown and "\x07" not in shown and "vil" in shown
    assert "\x1b" not in cli(server, "get", session, ESC + "2", "-", status=1).err


# ---- servers that lie ----

class Liar(http.server.BaseHTTPRequestHandler):
    """A session server with one session, whose answer to a download is the test's."""

    archive, kind, size = b"", "folder", 0

    def log_message(self, *args):
        pass

    def do_GET(self):
        if "format=json" in self.path:
            body = json.dumps({"path": "x", "type": self.kind, "size": self.size, "mode": "644", "mtime": 1e300, "entries": []}).encode()
        elif "/files" in self.path:
            body = self.archive
        else:
            body = json.dumps({"sessions": [{"session_id": "a" * 32}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + self.more))
        self.end_headers()
        self.wfile.write(body)

    more = 0


@pytest.fixture(scope="module")
def liar():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def archived(*entries):
    """A tar archive of (name, {member of TarInfo: value})."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, more in entries:
            info = tarfile.TarInfo(name)
            for key, value in more.items():
                setattr(info, key, value)
            info.size = 4 if info.isreg() else 0
            tar.addfile(info, io.BytesIO(b"evil") if info.isreg() else None)
    return out.getvalue()


LINK = {"type": tarfile.SYMTYPE}


@pytest.mark.parametrize("entries, status", [
    ([("../evil", {})], 2), ([("/evil", {})], 2), ([("a/../../evil", {})], 2),
    ([("l", {**LINK, "linkname": ".."}), ("l/evil", {})], 0), ([("l", {**LINK, "linkname": "/tmp"}), ("l/evil", {})], 0),
    ([("d/l", {**LINK, "linkname": "../d2/../.."}), ("d/l/evil", {})], 0), ([("l", {**LINK, "linkname": "in"}), ("l/evil", {})], 1),
    ([("h", {"type": tarfile.LNKTYPE, "linkname": "../outside"})], 2), ([("dev", {"type": tarfile.CHRTYPE})], 2),
    ([("fifo", {"type": tarfile.FIFOTYPE})], 2), ([("e\x1b[31m/../../evil", {})], 2)])
def test_an_archive_that_leads_out(liar, tmp_path, entries, status):
    (tmp_path / "outside").write_text("mine")
    target = tmp_path / "in"
    target.mkdir()
    Liar.archive, Liar.kind = archived(*entries), "folder"
    done = cli(liar, "get", "aaaa", "x", target, status=status)
    assert "\x1b" not in done.err
    assert sorted(os.listdir(tmp_path)) == ["in", "outside"] and (tmp_path / "outside").read_text() == "mine"
    assert not os.path.exists("/tmp/evil") and not any(
        os.path.realpath(os.path.join(place, name)).startswith(str(target)) is False for place, _, names in os.walk(target) for name in names)


def test_links_of_the_target_are_not_followed(liar, tmp_path):
    """The folder that is unpacked to has a link that leads out, of an earlier download or of somebody else."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "sub").symlink_to("../out")
    (tmp_path / "in" / "file").symlink_to("../out/file")
    Liar.archive, Liar.kind = archived(("file", {}), ("sub/evil", {})), "folder"
    assert "link" in cli(liar, "get", "aaaa", "x", tmp_path / "in", status=1).err
    assert os.listdir(tmp_path / "out") == [] and (tmp_path / "in" / "file").read_text() == "evil"


@pytest.mark.parametrize("archive", [b"", os.urandom(5000), archived(("f", {}))[:700]])
def test_an_archive_that_is_damaged(liar, tmp_path, archive):
    Liar.archive, Liar.kind = archive, "folder"
    cli(liar, "get", "aaaa", "x", tmp_path / "in", status=2)


def test_an_answer_that_is_cut_off(liar, tmp_path):
    Liar.archive, Liar.kind, Liar.size, Liar.more = b"half", "file", 1 << 62, 100
    try:
        cli(liar, "get", "aaaa", "x", tmp_path / "f", status=125)
        assert os.listdir(tmp_path) == []
        Liar.archive, Liar.kind = archived(("f", {})), "folder"
        cli(liar, "get", "aaaa", "x", tmp_path / "in", status=125)
    finally:
        Liar.more, Liar.size = 0, 0


# ---- records and quotas ----

def records(server):
    return [each for each in map(json.loads, server.audit.read_text().splitlines()) if each["kind"] == "files"]


def test_changes_are_recorded(server):
    session = server.session(token=ALICE)
    files = "/v1/sessions/%s/files" % session
    for method, path, body in (("PUT", "/f", b"12345"), ("PUT", "/t?format=tar", archived(("x", {}))), ("PUT", "/m?format=folder", None),
                               ("DELETE", "/f", None), ("DELETE", "/none", None), ("GET", "", None), ("PUT", "/t", b"x")):
        server.ask(method, files + path, body, token=ALICE)
    def mine():
        return [each for each in records(server) if each["session"] == session]
    support.wait_until(lambda: len(mine()) == 6, lambda: str(mine()))
    assert [(each["callable"], each["args"]["path"], each["outcome"]) for each in mine()] == [
        ("put", "f", "ok"), ("unpack", "t", "ok"), ("make_folder", "m", "ok"), ("remove", "f", "ok"), ("remove", "none", "error"),
        ("put", "t", "error")]
    assert mine()[0]["args"]["bytes"] == 5 and {each["principal"] for each in mine()} == {"http"} and mine()[0]["client"] == "alice"


def test_an_upload_whose_client_goes_is_recorded(server):
    session = server.session(token=ALICE)
    body = archived(*[("f%d" % i, {}) for i in range(600)])
    connection = server.connect()
    connection.putrequest("PUT", "/v1/sessions/%s/files/in?format=tar" % session)
    connection.putheader("Authorization", "Bearer " + ALICE)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    connection.send(body[:300_000])
    support.wait_until(lambda: server.ask("GET", "/v1/sessions/%s/files/in" % session, token=ALICE).status == 200, "it has begun")
    connection.close()
    support.wait_until(lambda: [each["outcome"] for each in records(server) if each["session"] == session] == ["cancelled"], server.text)


def test_uploads_count_for_the_disk_quota(server):
    small = "t0ken-of-the-small"
    sessions = [server.session(token=small) for _ in range(2)]
    def put(i, name, size):
        return server.ask("PUT", "/v1/sessions/%s/files/%s" % (sessions[i], name), bytes(size), token=small)
    assert put(0, "a", 600_000).status == 201
    answer = put(1, "b", 600_000)  # of another session, before anything was measured
    assert answer.status in (413, 429), answer
    assert server.ask("GET", "/v1/sessions/%s/files" % sessions[1], token=small).json["entries"] == []
    assert server.ask("DELETE", "/v1/sessions/%s/files/a" % sessions[0], token=small).status == 204
    support.wait_until(lambda: put(1, "b", 600_000).status == 201, server.text)
    for session in sessions:
        server.ask("DELETE", "/v1/sessions/" + session, token=small)
