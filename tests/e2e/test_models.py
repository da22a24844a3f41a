"""`workcell models`, and --embeddings builtin without a model; with the real one: tests/model (stage `model` of soak)."""
import contextlib
import hashlib
import http.server
import json
import os
import threading

import pytest

import spaces
import support


@pytest.fixture
def home(tmp_path):
    return support.host_environment(XDG_DATA_HOME=str(tmp_path / "data"))


@pytest.fixture
def parts(tmp_path):
    return spaces.write_files(tmp_path / "parts", {"x-q.onnx": "model", "x-tokenizer.json": "{}", "libonnxruntime.so.1.2": "library", "README": "no"})


def models(home, *args, **options):
    return support.workcell("models", *args, env=home, **options)


def test_install_list_remove(home, parts, tmp_path):
    digest = hashlib.sha256(b"model").hexdigest()
    done = models(home, "install", parts, "--sha256", digest.upper())
    assert done.status == 0 and digest in done.out, done
    folder = tmp_path / "data" / "workcell" / "models" / "bge-small-en-v1.5"
    assert sorted(os.listdir(folder)) == ["libonnxruntime.so", "model.onnx", "tokenizer.json"]
    assert oct(os.stat(folder).st_mode & 0o777) == "0o700" and os.stat(folder / "model.onnx").st_mode & 0o077 == 0
    assert models(home, "list", "--json").objects[0] == [{"name": "bge-small-en-v1.5", "bytes": 14}]
    # Again, from single files: it is replaced, and nothing else stays.
    (tmp_path / "parts" / "x-q.onnx").write_text("newer")
    done = models(home, "install", os.path.join(parts, "x-q.onnx"), os.path.join(parts, "x-tokenizer.json"), "--json")
    assert [each["file"] for each in done.objects[0]] == ["model.onnx", "tokenizer.json"]
    assert (folder / "model.onnx").read_text() == "newer" and os.listdir(folder.parent) == ["bge-small-en-v1.5"]
    assert models(home, "remove", "bge-small-en-v1.5").status == 0 and os.listdir(folder.parent) == []
    assert models(home, "remove", "bge-small-en-v1.5").status == 1


def test_what_is_not_installed(home, parts, tmp_path):
    def refused(*args):
        done = models(home, "install", *args, "--json")
        assert done.status != 0 and not os.listdir(tmp_path / "data" / "workcell" / "models"), done
        return done.objects[0]["error"]["message"] if done.objects else done.err
    assert "the SHA-256 of the model is" in refused(parts, "--sha256", "0" * 64)
    assert "no file for model.onnx" in refused(os.path.join(parts, "x-tokenizer.json"))
    assert "two files for model.onnx" in refused(parts, os.path.join(parts, "x-q.onnx"))
    assert "not a part of a model" in refused(os.path.join(parts, "README"))
    assert "cannot open" in refused(tmp_path / "none")
    for name in ("../x", "a/b", ".hidden", "", "x" * 65):
        assert "not a name for a model" in refused(parts, "--name", name)
    os.unlink(os.path.join(parts, "x-q.onnx"))
    os.symlink("/etc/passwd", os.path.join(parts, "x-q.onnx"))
    assert "cannot open" in refused(parts)
    os.unlink(os.path.join(parts, "x-q.onnx"))
    os.mkfifo(os.path.join(parts, "x-q.onnx"))
    assert "is not a file" in refused(parts)


def test_without_a_model_words_are_searched_and_it_is_said_once(home, tmp_path):
    base = spaces.write_files(tmp_path / "base", {"workflows/weather.py": '"""The weather of a city."""\n\n\ndef run(x: str):\n    return x\n'})
    done = support.workcell("workflows", "search", "weather", "--json", "--base", base, "--embeddings", "builtin", env=home)
    assert done.status == 0 and [(hit["name"], hit["ranking"]) for hit in done.objects[0]] == [("weather", "words")], done
    code = "for i in range(3): workflows.search('weather %d' % i)"
    done = support.workcell("run", "--base", base, "--embeddings", "builtin", "-e", code, env=home)
    assert done.status == 0 and done.err.count("no model in") == 1, done


@pytest.mark.parametrize("args, words", [
    (["--embeddings", "builtin", "--embeddings-url", "http://x/"], "both say who computes vectors"),
    (["--embeddings", "/tmp/x"], "must be builtin, or the name of a model"), (["--embeddings", ".."], "must be builtin, or the name of a model"),
    (["--embeddings", "builtin", "--embeddings-model", "m"], "--embeddings-model needs --embeddings-url"),
])
def test_flags_that_do_not_fit(home, tmp_path, args, words):
    done = support.workcell("run", "--base", tmp_path / "base", *args, "-e", "1", env=home)
    assert done.status == 2 and words in done.err, done


def test_code_in_a_sandbox_cannot_write_the_model(home, tmp_path):
    """A folder of models that code could write to is refused: the library in it would run in the host's process."""
    env = {**home, "XDG_DATA_HOME": str(tmp_path / "work")}
    (tmp_path / "work").mkdir()
    done = support.workcell("run", "--executor", "sandbox", "--cwd", tmp_path / "work", "--base", tmp_path / "base", "--embeddings", "builtin",
                            "-e", "open('x', 'w').write('1')", "--json", env=env)
    assert done.status != 0 and "the embeddings model" in json.dumps(done.objects) + done.err, done


# ---- from URLs ---------------------------------------------------------------------------------------------


@pytest.fixture
def web():
    """A web server with the parts of a model, and answers that a bad one gives."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            path = self.path.partition("?")[0]
            if path.startswith("/to/"):
                self.send_response(302)
                self.send_header("Location", path[3:])
                self.end_headers()
            elif path.startswith("/again"):
                self.send_response(302)
                self.send_header("Location", "/again/x.onnx")
                self.end_headers()
            elif path in ("/x.onnx", "/tokenizer.json"):
                body = b"model" if path == "/x.onnx" else b"{}"
                self.send_response(200)
                self.send_header("Content-Length", str(len(body) + (100 if "short" in self.path else 0)))
                self.end_headers()
                self.wfile.write(body)
            elif path == "/huge-tokenizer.json":
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    for _ in range(20):
                        self.wfile.write(b"x" * 1024 * 1024)
            elif path == "/file/x.onnx":
                self.send_response(302)
                self.send_header("Location", "file:///etc/passwd")
                self.end_headers()
            else:
                self.send_error(404)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield "http://127.0.0.1:%d" % server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_from_urls(home, tmp_path, web):
    done = models(home, "install", web + "/to/x.onnx?download=true", web + "/tokenizer.json", "--sha256", hashlib.sha256(b"model").hexdigest(), "--json")
    assert done.status == 0, done
    assert [(each["file"], each["bytes"]) for each in done.objects[0]] == [("model.onnx", 5), ("tokenizer.json", 2)]
    folder = tmp_path / "data" / "workcell" / "models" / "bge-small-en-v1.5"
    assert (folder / "model.onnx").read_text() == "model" and os.stat(folder / "model.onnx").st_mode & 0o077 == 0


@pytest.mark.parametrize("paths, words", [
    (["/x.onnx", "/gone/tokenizer.json"], "status 404"), (["/again/x.onnx"], "redirects more than 5 times"),
    (["/x.onnx", "/huge-tokenizer.json"], "more than 16777216 bytes"), (["/file/x.onnx"], "not https"), (["/README"], "not a part of a model"),
    (["/x.onnx?short", "/tokenizer.json"], "x.onnx"), (["/x.onnx", "/to/x.onnx"], "two files for model.onnx")])
def test_urls_that_are_refused(home, tmp_path, web, paths, words):
    done = models(home, "install", *[web + path for path in paths], "--json")
    assert done.status != 0 and words in done.objects[0]["error"]["message"], done
    assert os.listdir(tmp_path / "data" / "workcell" / "models") == []
