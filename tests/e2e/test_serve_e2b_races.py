"""Links that code in a sandbox swaps while E2B's clients ask for files, with one worker and through another one; and frames that lie."""
import json
import os
import struct
import time

import pytest

import serving
import support
from test_serve_e2b import ALICE, BOB, TOKENS

ROUNDS = 25


@pytest.fixture(scope="module", params=[1, 2])
def server(request, tmp_path_factory):
    # Code that may open any file of its user: only the server keeps clients from them.
    with serving.shared("--executor", "subprocess", "--e2b", "--workers", request.param, "--env", "HOME=%s" % tmp_path_factory.mktemp("home"),
                        python="/usr/bin/python3", tokens=TOKENS) as made:
        yield made


class Inside:
    """Requests to one sandbox, by a connection to another worker where there is one."""

    def __init__(self, server):
        self.server, self.connections = server, server.connect_to_each()
        made = server.ask("POST", "/sandboxes", {}, token=None, headers={"X-API-KEY": ALICE}, connection=self.connections[0]).json
        self.id, self.token = made["sandboxID"], made["envdAccessToken"]

    def ask(self, method, path, body=None, **headers):
        sent = {"E2b-Sandbox-Id": self.id, "X-Access-Token": self.token, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.server.ask(method, path, body, token=None, headers=sent, connection=self.connections[-1])

    def rpc(self, method, **body):
        return self.ask("POST", "/filesystem.Filesystem/" + method, body, Content_Type="application/json")

    def run(self, code):
        answer = self.ask("POST", "/execute", {"code": code})
        assert answer.status == 200 and b'"type":"error"' not in answer.body, answer

    def close(self):
        self.server.ask("DELETE", "/sandboxes/" + self.id, token=None, headers={"X-API-KEY": ALICE})
        for connection in self.connections:
            connection.close()


@pytest.fixture
def inside(server):
    made = Inside(server)
    yield made
    made.close()


def test_links_raced_against_files(inside, tmp_path):
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    (outside / "f").write_text("outside")
    inside.run("target = %r" % str(outside) + serving.RACE)
    seen, n, end = set(), 0, time.monotonic() + support.DEADLINE
    while n < ROUNDS or b"inside" not in seen or not {400, 403} & seen:  # it was met in both states
        assert time.monotonic() < end, seen
        n += 1
        answer = inside.ask("GET", "/files?path=race/f")
        seen.add(answer.body if answer.status == 200 else answer.status)
        inside.ask("POST", "/files?path=race/written", b"escaped", Content_Type="application/octet-stream")
        form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="race/form"\r\n\r\nescaped\r\n--b--\r\n'
        inside.ask("POST", "/files", form, Content_Type="multipart/form-data; boundary=b")
        listed = inside.rpc("ListDir", path="race", depth=3)
        assert b'"kept"' not in listed.body, listed
        assert b'"size":"7"' not in inside.rpc("Stat", path="race/f").body
        inside.rpc("MakeDir", path="race/made%d" % n)
        inside.rpc("Move", source="race/f", destination="race/moved")
        inside.rpc("Move", source="race/moved", destination="race/f")
        inside.rpc("Remove", path="race/kept")
        inside.rpc("CreateWatcher", path="race")
    inside.run("stop = True")
    assert seen <= {b"inside", 400, 403, 404, 409, 429, 503}, seen
    assert sorted(os.listdir(outside)) == ["f", "kept"] and (outside / "f").read_text() == "outside"


def message(size, flags=0, data=b"{}"):
    return struct.pack(">BI", flags, size) + data


@pytest.mark.parametrize("body", [
    b"", b"\0", message(2 ** 32 - 1), message(3), message(2, flags=1), message(2, flags=255), message(2) + b"x", message(2) + message(2),
    message(2, data=b"[]"), message(4, data=b"null"), message(3, data=b"\xff\xfe\xfd"), message(20, data=b'{"process": {"a":1}}'),
    message(len(b'{"process":' * 3000), data=b'{"process":' * 3000),
])
def test_frames_that_lie(inside, body):
    for path in ("/process.Process/Start", "/process.Process/Connect"):
        answer = inside.ask("POST", path, body, Content_Type="application/connect+json")
        if answer.status == 200:  # the error is in the last message of the stream
            flags, size = struct.unpack(">BI", answer.body[:5])
            assert flags == 2 and size == len(answer.body) - 5 and "error" in json.loads(answer.body[5:]), answer
        else:
            assert 400 <= answer.status < 500, answer
    assert inside.ask("GET", "/health").status == 204


@pytest.mark.parametrize("form", [
    b"", b"--b", b"--b\r\n\r\n", b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n',
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="../x"\r\n\r\nx\r\n--b--\r\n',
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="/etc/x"\r\n\r\nx\r\n--b--\r\n',
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a\0b"\r\n\r\nx\r\n--b--\r\n',
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="' + b"d/" * 5000 + b'x"\r\n\r\nx\r\n--b--\r\n',
])
def test_forms_that_lie(inside, form):
    answer = inside.ask("POST", "/files", form, Content_Type="multipart/form-data; boundary=b")
    assert 400 <= answer.status < 500, answer
    assert inside.rpc("ListDir", path="", depth=1).json.get("entries", []) == []


def test_nobody_elses_key_opens_it(server, inside):
    for key in (BOB, "0" * 64, ""):
        for path in ("/files?path=f", "/contexts", "/health"):
            answer = server.ask("GET", path, token=None, headers={"E2b-Sandbox-Id": inside.id, "X-Access-Token": key},
                                connection=inside.connections[-1])
            assert answer.status == 401, answer
