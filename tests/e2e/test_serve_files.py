"""The files of a session over HTTP: transfers, folders as archives, ranges, and what code and clients do to get out of the workspace."""
import contextlib
import io
import os
import socket
import tarfile
import threading
import time

import pytest

import serving
import support

PYTHON = "/usr/bin/python3"
UPLOAD_MIB = int(os.environ.get("WORKCELL_TEST_UPLOAD_MIB", "60"))  # of test_constant_memory
ALICE, BOB, READER = "t0ken-of-alice", "t0ken-of-bob", "t0ken-of-the-reader"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving.shared("--executor", "subprocess", "--base", tmp_path_factory.mktemp("base"), "--max-file", "%dM" % max(64, UPLOAD_MIB)) as made:
        yield made


@pytest.fixture
def layered(tmp_path_factory):
    """Sandboxes that work in layers over a common folder."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "kept.txt").write_text("real")
    made = serving.Server("--executor", "sandbox", "--workspace-mode", "cow", "--base", tmp_path_factory.mktemp("base"), python=PYTHON,
                          cwd=str(folder))
    made.folder = folder
    yield made
    made.close()


@pytest.fixture
def files(server):
    session = server.session()
    yield "/v1/sessions/%s/files" % session
    server.ask("DELETE", "/v1/sessions/" + session)


def of(files):
    """The session of these files."""
    return files.split("/")[3]


def run(server, files, code):
    answer = server.execute(code, session=of(files))
    assert answer["error"] is None, answer
    return answer["value"]


def archive(*entries, data=b"x"):
    """A tar archive of (name, {member of TarInfo: value}) or names of files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for entry in entries:
            name, more = entry if isinstance(entry, tuple) else (entry, {})
            info = tarfile.TarInfo(name)
            for key, value in more.items():
                setattr(info, key, value)
            if info.isreg():
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return out.getvalue()


def unpacked(body):
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        return {member.name: (tar.extractfile(member).read() if member.isreg() else member.linkname if member.issym() else None)
                for member in tar}


# ---- files ----

def test_a_file_goes_both_ways(server, files):
    data = os.urandom(700_000)
    answer = server.ask("PUT", files + "/a/b/data.bin", data)
    assert answer.status == 201 and answer.json == {"path": "a/b/data.bin", "bytes": len(data)}, answer
    assert run(server, files, "d = open('a/b/data.bin', 'rb').read(); len(d)") == len(data)
    answer = server.ask("GET", files + "/a/b/data.bin")
    assert answer.status == 200 and answer.body == data
    assert answer.headers["Content-Type"] == "application/octet-stream" and answer.headers["Content-Disposition"] == "attachment"
    assert server.ask("PUT", files + "/a/b/data.bin", b"").status == 201
    assert server.ask("GET", files + "/a/b/data.bin").body == b""
    run(server, files, "open('made by code', 'w').write('ü')")
    assert server.ask("GET", files + "/made%20by%20code").body == "ü".encode()
    assert server.ask("DELETE", files + "/made%20by%20code").status == 204
    assert server.ask("GET", files + "/made%20by%20code").code == "not_found"


def test_modes(server, files):
    server.ask("PUT", files + "/tool?mode=755", b"#!/bin/sh\n")
    assert server.ask("GET", files + "/tool?format=json").json["mode"] == "755"
    server.ask("PUT", files + "/tool", b"#!/bin/sh\necho")
    assert server.ask("GET", files + "/tool?format=json").json["mode"] == "755"
    for bad in ("7777", "8", "-1", "abc", "4755"):
        assert server.ask("PUT", files + "/tool?mode=" + bad, b"x").code == "invalid"


def test_lists(server, files):
    run(server, files, "import os; os.mkdir('sub'); open('sub/f', 'w').write('12'); os.symlink('/etc', 'out'); os.mkfifo('pipe')")
    answer = server.ask("GET", files)
    found = {each["name"]: each for each in answer.json["entries"]}
    assert {name: each["type"] for name, each in found.items()} == {"sub": "folder", "out": "link", "pipe": "fifo"}
    assert found["out"]["target"] == "/etc" and answer.json["path"] == "" and answer.json["truncated"] is False
    assert server.ask("GET", files + "/sub").json["entries"][0]["size"] == 2
    assert server.ask("GET", files + "/out?format=json").json["target"] == "/etc"
    assert server.ask("GET", files + "?path=sub/f").body == b"12"
    run(server, files, "open('diff', 'w').write('a file')")  # GET files/diff is another route
    assert server.ask("GET", files + "?path=diff").body == b"a file"
    run(server, files, "for i in range(10001): open('sub/%05d' % i, 'w').close()")
    listed = server.ask("GET", files + "/sub").json
    assert len(listed["entries"]) == 10000 and listed["truncated"] is True


def test_folders(server, files):
    assert server.ask("PUT", files + "/x/y?format=folder").status == 201
    assert server.ask("PUT", files + "/x/y?format=folder").status == 201
    server.ask("PUT", files + "/x/y/f", b"1")
    assert server.ask("PUT", files + "/x/y/f?format=folder").code == "exists"
    assert server.ask("PUT", files + "/x/y", b"1").code == "exists"
    assert server.ask("DELETE", files + "/x").code == "exists"
    assert server.ask("DELETE", files + "/x?recursive=true").status == 204
    assert server.ask("DELETE", files + "/x?recursive=true").code == "not_found"
    assert server.ask("DELETE", files + "/.?recursive=true").code == "invalid"
    assert server.ask("GET", files).status == 200


@pytest.mark.parametrize("asked, status, first, last", [
    ("bytes=0-0", 206, 0, 0), ("bytes=5-", 206, 5, 99), ("bytes=-10", 206, 90, 99), ("bytes=-1000", 206, 0, 99),
    ("bytes=90-1000", 206, 90, 99), ("bytes=100-", 416, 0, 0), ("bytes=-0", 416, 0, 0), ("bytes=9-5", 200, 0, 99),
    ("bytes=0-1,5-6", 200, 0, 99), ("bytes=99999999999999999999-", 200, 0, 99), ("bytes=18446744073709551615-18446744073709551616", 200, 0, 99),
    ("bytes=999999999999999999-999999999999999999", 416, 0, 0), ("lines=1-2", 200, 0, 99), ("bytes=", 200, 0, 99), ("bytes=-", 200, 0, 99)])
def test_ranges(server, shared_file, asked, status, first, last):
    answer = server.ask("GET", shared_file, headers={"Range": asked})
    assert answer.status == status, answer
    if status == 416:
        assert answer.headers["Content-Range"] == "bytes */100" and answer.code == "invalid"
    else:
        assert answer.body == bytes(range(first, last + 1))
    if status == 206:
        assert answer.headers["Content-Range"] == "bytes %d-%d/100" % (first, last)


@pytest.fixture(scope="module")
def shared_file(server):
    path = "/v1/sessions/%s/files/hundred" % server.session()
    assert server.ask("PUT", path, bytes(range(100))).status == 201
    yield path
    server.ask("DELETE", path.rsplit("/files", 1)[0])


def test_a_range_of_another_file_is_all_of_it(server, shared_file):
    tag = server.ask("GET", shared_file).headers["ETag"]
    for given, status in ((tag, 206), ('"other"', 200)):
        assert server.ask("GET", shared_file, headers={"Range": "bytes=0-1", "If-Range": given}).status == status


# ---- archives ----

def test_folders_as_archives(server, files):
    long_name = "n" * 120
    body = archive(("d/", {"type": tarfile.DIRTYPE}), "./d/one", "d/deep/two", "d/" + long_name,
                   ("d/link", {"type": tarfile.SYMTYPE, "linkname": "one"}))
    assert server.ask("PUT", files + "/into?format=tar", body).status == 201
    assert run(server, files, "import os; [sorted(os.listdir('into/d')), os.readlink('into/d/link'), open('into/d/deep/two').read()]") == [
        sorted(["one", "deep", long_name, "link"]), "one", "x"]
    for path, prefix in (("/into?format=tar", ""), ("?format=tar", "into/")):
        answer = server.ask("GET", files + path)
        assert answer.headers["Content-Type"] == "application/x-tar"
        found = unpacked(answer.body)
        assert found[prefix + "d/one"] == b"x" and found[prefix + "d/link"] == "one" and found[prefix + "d/" + long_name] == b"x"
    assert server.ask("PUT", files + "?format=tar", archive("root")).status == 201
    assert server.ask("GET", files + "/root").body == b"x"
    # What one session packed another unpacks.
    assert server.ask("PUT", files + "/again?format=tar", server.ask("GET", files + "/into?format=tar").body).status == 201
    assert server.ask("GET", files + "/again/d/deep/two").body == b"x"


@pytest.mark.parametrize("body, code", [
    (archive("/etc/workcell-escape"), "invalid"), (archive("../escape"), "invalid"), (archive("a/../../escape"), "invalid"),
    (archive(("h", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})), "invalid"),
    (archive(("c", {"type": tarfile.CHRTYPE})), "invalid"), (archive(("b", {"type": tarfile.BLKTYPE})), "invalid"),
    (archive(("p", {"type": tarfile.FIFOTYPE})), "invalid"),
    (archive(("l", {"type": tarfile.SYMTYPE, "linkname": ".."}), "l/escape"), "forbidden"),
    (archive(("l", {"type": tarfile.SYMTYPE, "linkname": "/tmp"}), "l/escape"), "forbidden"),
    (archive("a")[:700], "invalid"), (archive("a")[:512], "invalid"), (b"", "invalid"), (b"not a tar archive" * 100, "invalid"),
    (b"\x1f\x8b" + bytes(2000), "invalid"),
])
def test_hostile_archives(server, files, body, code, tmp_path):
    answer = server.ask("PUT", files + "/to?format=tar", body)
    assert answer.status >= 400 and answer.code == code, answer
    folder = run(server, files, "import os; os.getcwd()")
    assert not os.path.exists(os.path.join(os.path.dirname(folder), "escape")) and not os.path.exists("/tmp/escape")
    assert not [name for name in os.listdir(folder) if name.startswith(".workcell")]


def header(name, size, kind=b"0"):
    """A head with a size of its own choice."""
    info = tarfile.TarInfo(name)
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT)[:512])
    block[124:136] = size
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("body, code", [
    (header("huge", b"77777777777\0"), "limit"), (header("huge", b"\x80" + b"\xff" * 11), "invalid"),
    (header("negative", b"\xff" * 12), "invalid"), (header("words", b"abcdefghijk\0"), "invalid"),
    (header("long", b"00077777777\0", b"L"), "limit"), (header("pax", b"00077777777\0", b"x"), "limit"),
    (header("dir", b"00000001000\0", b"5"), "invalid")])
def test_heads_that_lie(server, files, body, code):
    answer = server.ask("PUT", files + "?format=tar", body + bytes(1024))
    assert answer.status >= 400 and answer.code == code, answer


# ---- ways out ----

@pytest.mark.parametrize("path", ["/../x", "/%2e%2e/x", "/a/..%2f..%2fx", "//etc/passwd", "/%2fetc/passwd", "/" + "n" * 256])
def test_paths_that_lead_out(server, files, path):
    for method in ("GET", "PUT", "DELETE"):
        answer = server.ask(method, files + path, b"x" if method == "PUT" else None)
        assert answer.status == 400 and answer.code == "invalid", (method, answer)


def test_links_are_not_followed(server, files):
    run(server, files, "import os; os.symlink('/etc', 'dir'); os.symlink('/etc/passwd', 'file'); os.symlink('..', 'up')")
    for path in ("/dir/passwd", "/file", "/up/x", "/dir/new"):
        answer = server.ask("GET", files + path)
        assert answer.status == 403 and answer.code == "forbidden", answer
    for path in ("/dir/new", "/up/new"):
        assert server.ask("PUT", files + path, b"x").code == "forbidden"
        assert server.ask("DELETE", files + path).code == "forbidden"
        assert server.ask("GET", files + path.rsplit("/", 1)[0] + "?format=tar").status >= 400
    assert server.ask("PUT", files + "/file", b"mine").status == 201  # replaces the link
    assert run(server, files, "[os.path.islink('file'), open('file').read()]") == [False, "mine"]
    assert unpacked(server.ask("GET", files + "?format=tar").body)["dir"] == "/etc"


def test_pipes_and_devices_are_not_opened(server, files):
    run(server, files, "import os, socket; os.mkfifo('pipe'); s = socket.socket(socket.AF_UNIX); s.bind('sock')")
    begun = time.monotonic()
    for name in ("pipe", "sock"):
        assert server.ask("GET", files + "/" + name).code == "invalid"
    assert unpacked(server.ask("GET", files + "?format=tar").body) == {}
    assert server.ask("PUT", files + "/pipe", b"x").status == 201  # a file in its place
    assert time.monotonic() - begun < 10
    assert server.ask("DELETE", files + "/sock").status == 204


def race(server, files, outside, **options):
    (outside / "f").write_text("outside")
    run(server, files, "target = %r" % str(outside) + serving.RACE)
    seen, turns, end = set(), 0, time.monotonic() + support.DEADLINE
    while turns < 150 or not {b"inside", "forbidden"} <= seen:  # it was met in both states
        assert time.monotonic() < end, seen
        turns += 1
        answer = server.ask("GET", files + "/race/f", **options)
        seen.add(answer.body if answer.status == 200 else answer.code)
        answer = server.ask("PUT", files + "/race/written", b"escaped", **options)
        assert answer.status == 201 or answer.code in ("forbidden", "not_found", "exists", "io", "busy"), answer
        answer = server.ask("GET", files + "?format=tar", **options)
        assert b"outside" not in answer.body
    run(server, files, "stop = True")
    assert seen <= {b"inside", "forbidden", "not_found", "busy"}, seen
    assert sorted(os.listdir(outside)) == ["f"] and (outside / "f").read_text() == "outside"


def test_links_raced_against_requests(server, files, tmp_path):
    race(server, files, tmp_path)


def test_links_raced_against_requests_of_another_worker(tmp_path):
    (tmp_path / "apart").mkdir()
    with serving.shared("--executor", "subprocess", "--workers", 2) as server:
        one, other = server.connect_to_each()
        session = server.session(connection=one)
        own = server.session(connection=other)
        assert own[:2] != session[:2]
        race(server, "/v1/sessions/%s/files" % session, tmp_path / "apart", connection=other)
        one.close()
        other.close()


def test_a_file_of_another_worker_that_is_cut_while_it_is_sent():
    """The answer breaks off; the session is still there."""
    with serving.shared("--executor", "subprocess", "--workers", 2) as server:
        one, other = server.connect_to_each()
        session = server.session(connection=one)
        assert server.session(connection=other)[:2] != session[:2]
        files = "/v1/sessions/%s/files" % session
        run(server, files, "import threading\ndef cut():\n    while not stop:\n        with open('f', 'w') as file: file.write('inside')\n"
                           "stop = False\nthreading.Thread(target=cut, daemon=True).start()")
        seen, end = set(), time.monotonic() + support.DEADLINE
        while (502, "closed") not in seen:
            assert time.monotonic() < end, seen
            answer = server.ask("GET", files + "/f", connection=other)
            seen.add((answer.status, answer.code if answer.status != 200 else answer.body))
        run(server, files, "stop = True")
        assert seen <= {(200, b"inside"), (200, b""), (404, "not_found"), (502, "closed")}, seen
        one.close()
        other.close()


def test_other_clients(server):
    session = server.session(token=ALICE)
    files = "/v1/sessions/%s/files" % session
    assert server.ask("PUT", files + "/f", b"secret", token=ALICE).status == 201
    for token, path, method, status in (
            (BOB, "/f", "GET", 404), (BOB, "", "GET", 404), (BOB, "/f", "PUT", 404), (BOB, "/f", "DELETE", 404), (BOB, "?format=tar", "GET", 404),
            (BOB, "?format=tar", "PUT", 404), (READER, "/f", "GET", 404), (READER, "/f", "PUT", 403), (READER, "/f", "DELETE", 403),
            (None, "/f", "GET", 401), (None, "/f", "PUT", 401), (None, "/f", "DELETE", 401), ("wrong", "/f", "GET", 401)):
        answer = server.ask(method, files + path, b"x" if method == "PUT" else None, token=token)
        assert answer.status == status, (token, path, method, answer)
    assert server.ask("GET", files + "/f").body == b"secret"  # the scope admin
    assert server.ask("GET", files + "/f", token=ALICE).body == b"secret"
    server.ask("DELETE", "/v1/sessions/" + session)
    assert server.ask("GET", files + "/f", token=ALICE).status == 410
    assert server.ask("PUT", files + "/f", b"x" * 2_000_000, token=ALICE).status == 410


# ---- sizes ----

def sent(server, head, *pieces, wait=0.0):
    """What comes back for a request that is sent piece by piece."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), timeout=support.DEADLINE)) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(("%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n" % (head, serving.TOKEN)).encode())
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(wait)
        data = b""
        with contextlib.suppress(OSError):
            while not data.endswith(b"}") and (piece := sock.recv(65536)):
                data += piece
        return data


def test_too_large(server, files):
    answer = sent(server, "PUT %s/f" % files, b"Content-Length: 70000000\r\n\r\n", b"x" * 100)
    assert b" 413 " in answer.split(b"\r\n")[0] and b'"limit"' in answer, answer
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    answer = sent(server, "PUT %s/f" % files, b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 66)
    assert b" 413 " in answer.split(b"\r\n")[0] and b'"limit"' in answer, answer[:200]
    assert server.ask("GET", files + "/f").status == 404
    support.wait_until(lambda: server.ask("GET", files).json["entries"] == [], "nothing is left of it")


def test_a_body_that_stops(server, files):
    """Less than announced, and the client hangs up: nothing appears."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port))) as sock:
        sock.sendall(("PUT %s/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000000\r\n\r\n" % (
            files, serving.TOKEN)).encode() + bytes(400_000))
        support.wait_until(lambda: server.ask("GET", files).json["entries"], "it has begun")
    support.wait_until(lambda: server.ask("GET", files).json["entries"] == [], "it is gone")


def test_chunks_and_expect(server, files):
    answer = sent(server, "PUT %s/f" % files, b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n", b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n",
                  wait=0.02)
    assert b" 201 " in answer.split(b"\r\n")[0], answer
    assert server.ask("GET", files + "/f").body == b"abcde"
    answer = sent(server, "PUT %s/f" % files, b"Content-Length: 70000000\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
    assert b" 413 " in answer.split(b"\r\n")[0], answer


def test_constant_memory(server, files):
    """60 MiB up and down, or as many as the environment says; the server grows by less than 8 MiB."""
    def resident():
        with open("/proc/%d/status" % server.pid, encoding="utf-8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024
    server.ask("PUT", files + "/f", bytes(1 << 20))
    before = resident()
    with open("/proc/%d/clear_refs" % server.pid, "w", encoding="utf-8") as file:
        file.write("5")
    count = UPLOAD_MIB
    connection = server.connect()
    connection.putrequest("PUT", files + "/f")
    connection.putheader("Authorization", "Bearer " + serving.TOKEN)
    connection.putheader("Content-Length", str(count << 20))
    connection.endheaders()
    for _ in range(count):
        connection.send(bytes(1 << 20))
    assert connection.getresponse().status == 201
    connection.close()
    connection, response = server.open("GET", files + "/f")
    total = 0
    while piece := response.read(1 << 20):
        total += len(piece)
    connection.close()
    assert total == count << 20
    assert resident() - before < 8 << 20


def test_a_sparse_file_costs_nothing(server, files):
    run(server, files, "f = open('sparse', 'wb'); f.truncate(1 << 40); f.close()")
    assert server.ask("GET", files + "/sparse", headers={"Range": "bytes=-10"}).body == bytes(10)
    connection, response = server.open("GET", files + "?format=tar")
    assert response.read(100000)
    connection.close()
    assert server.ask("GET", files).status == 200


def test_a_file_that_shrinks_while_it_is_read(server, files):
    run(server, files, "open('f', 'wb').write(bytes(30_000_000))")
    connection, response = server.open("GET", files + "/f")
    response.read(1000)
    run(server, files, "import os; os.truncate('f', 10)")
    with pytest.raises(Exception):  # the connection ends before all bytes are there
        assert len(response.read()) == 30_000_000 - 1000
    connection.close()


def test_many_transfers(server, files):
    server.ask("PUT", files + "/f", bytes(20_000_000))
    opened = [server.open("GET", files + "/f") for _ in range(33)]
    statuses = sorted(response.status for _, response in opened)
    assert statuses[:32] == [200] * 32 and statuses[32] == 429, statuses
    for connection, _ in opened:
        connection.close()
    support.wait_until(lambda: server.ask("GET", files + "/f", headers={"Range": "bytes=0-1"}).status == 206, "they are gone")


def test_the_session_ends_during_an_upload(server):
    session = server.session()
    connection = server.connect()
    connection.putrequest("PUT", "/v1/sessions/%s/files/f" % session)
    connection.putheader("Authorization", "Bearer " + serving.TOKEN)
    connection.putheader("Content-Length", "600000")
    connection.endheaders()
    connection.send(bytes(300_000))
    assert server.ask("DELETE", "/v1/sessions/" + session).status == 204
    connection.send(bytes(300_000))
    assert connection.getresponse().status in (201, 404, 410, 500)
    connection.close()
    assert server.ask("GET", "/v1/sessions/" + session).status == 410


# ---- layers ----

def test_layers(layered):
    check_a_layer_is_what_is_seen_and_written(layered)
    check_a_layer_without_a_kernel(layered)
    check_while_a_cell_runs(layered)


def check_a_layer_is_what_is_seen_and_written(layered):
    files = "/v1/sessions/%s/files" % layered.session()
    assert layered.ask("GET", files + "/kept.txt").body == b"real"
    run(layered, files, "open('kept.txt', 'w').write('changed'); open('new', 'w').write('by code')")
    assert layered.ask("GET", files + "/kept.txt").body == b"changed"
    answer = layered.ask("PUT", files + "/sub/.git/config", b"by the client")
    assert answer.status == 201, answer
    assert run(layered, files, "open('sub/.git/config').read()") == "by the client"
    refused = layered.execute("open('sub/.git/config', 'a')", session=of(files))
    assert "PermissionError" in str(refused["error"]), refused
    assert run(layered, files, "import os; os.listdir('sub')") == [".git"]
    assert sorted(os.listdir(layered.folder)) == ["kept.txt"] and (layered.folder / "kept.txt").read_text() == "real"
    answer = layered.ask("POST", files + "/commit", {})
    assert "sub/.git/config" in answer.json["protected"] and "new" in answer.json["committed"], answer
    assert (layered.folder / "new").read_text() == "by code" and not (layered.folder / "sub" / ".git").exists()
    assert layered.ask("DELETE", files + "/new").status == 204
    assert run(layered, files, "os.path.exists('new')") is False
    (layered.folder / "new").unlink()
    (layered.folder / "kept.txt").write_text("real")
    layered.ask("DELETE", files.rsplit("/", 1)[0])


def check_a_layer_without_a_kernel(layered):
    """The merged files are a kernel's view: one is started where there is none."""
    files = "/v1/sessions/%s/files" % layered.session()
    layered.execute("open('mine', 'w').write('1'); import os; os._exit(3)", session=of(files))
    assert layered.ask("GET", files + "/mine").body == b"1"
    assert layered.ask("PUT", files + "/other", b"2").status == 201
    assert run(layered, files, "open('other').read()") == "2"
    layered.ask("DELETE", files.rsplit("/", 1)[0])


def check_while_a_cell_runs(layered):
    files = "/v1/sessions/%s/files" % layered.session()
    done = threading.Thread(target=run, args=(layered, files, "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"))
    done.start()
    assert layered.ask("PUT", files + "/go", b"").status == 201
    done.join(support.DEADLINE)
    assert not done.is_alive()
    layered.ask("DELETE", files.rsplit("/", 1)[0])


def test_protected_names_of_a_writable_workspace(tmp_path):
    folder = tmp_path / "real"
    (folder / ".git").mkdir(parents=True)
    server = serving.Server("--executor", "sandbox", "--workspace-mode", "rw", "--base", tmp_path / "base", python=PYTHON, cwd=str(folder))
    files = "/v1/sessions/%s/files" % server.session()
    assert server.ask("PUT", files + "/plain", b"x").status == 201
    for method, path, body in (("PUT", "/.git/hooks/pre-commit", b"x"), ("PUT", "/Makefile", b"x"), ("PUT", "/sub/.GIT/config", b"x"),
                               ("PUT", "/.git/new?format=folder", None), ("PUT", "/.git?format=tar", archive("config")),
                               ("PUT", "?format=tar", archive(".git/config")), ("DELETE", "/.git", None)):
        answer = server.ask(method, files + path, body)
        assert answer.status == 403 and answer.code == "forbidden", (path, answer)
    found = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    assert found == [str(folder / "plain")] and (folder / ".git").exists()
    server.close()


@pytest.mark.parametrize("mode, status, code", [("ro", 403, "forbidden"), ("none", 501, "unsupported")])
def test_workspaces_that_the_code_cannot_write(tmp_path, mode, status, code):
    folder = tmp_path / "real"
    folder.mkdir()
    (folder / "f").write_text("1")
    server = serving.Server("--executor", "sandbox", "--workspace-mode", mode, "--base", tmp_path / "base", python=PYTHON, cwd=str(folder))
    files = "/v1/sessions/%s/files" % server.session()
    for method in ("PUT", "DELETE"):
        answer = server.ask(method, files + "/f", b"x" if method == "PUT" else None)
        assert answer.status == status and answer.code == code, answer
    assert server.ask("GET", files + "/f").status == (200 if mode == "ro" else 501)
    assert (folder / "f").read_text() == "1"
    server.close()
