"""The files of a session that a container has, through the server outside of it."""
import io
import os
import tarfile

import containers
import serving


def run(server, session, code):
    answer = server.execute(code, session=session)
    assert answer["error"] is None, answer
    return answer["value"]


def archived(*names):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 4
            tar.addfile(info, io.BytesIO(b"data"))
    return out.getvalue()


def test_files_of_a_session():
    proxy = serving.Server(*containers.FLAGS, tokens=serving.TOKENS)
    session = proxy.session()
    files = "/v1/sessions/%s/files" % session
    data = os.urandom(3_000_000)
    assert proxy.ask("PUT", files + "/a/f", data).json == {"path": "a/f", "bytes": len(data)}
    assert run(proxy, session, "import os; os.path.getsize('a/f')") == len(data)
    assert proxy.ask("GET", files + "/a/f").body == data
    answer = proxy.ask("GET", files + "/a/f", headers={"Range": "bytes=100-199"})
    assert answer.status == 206 and answer.body == data[100:200]
    assert [each["name"] for each in proxy.ask("GET", files).json["entries"]] == ["a"]
    assert proxy.ask("GET", files + "/a?format=json").json["entries"][0]["size"] == len(data)
    assert proxy.ask("PUT", files + "/in?format=tar", archived("x/y", "z")).status == 201
    body = proxy.ask("GET", files + "/in?format=tar").body
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert sorted(tar.getnames()) == ["x", "x/y", "z"]
    assert proxy.ask("PUT", files + "/m?format=folder").status == 201
    assert proxy.ask("DELETE", files + "/in?recursive=true").status == 204
    run(proxy, session, "os.symlink('/etc', 'l')")
    for method, path, status in (("GET", "/l/passwd", 403), ("GET", "/l", 403), ("PUT", "/l/x", 403), ("GET", "/none", 404),
                                 ("DELETE", "/a", 409), ("PUT", "/../x", 400), ("GET", "/none?format=tar", 404)):
        answer = proxy.ask(method, files + path, b"x" if method == "PUT" else None)
        assert answer.status == status, (method, path, answer)
    assert proxy.ask("PUT", files + "/empty", b"").status == 201 and proxy.ask("GET", files + "/empty").body == b""
    proxy.close()
