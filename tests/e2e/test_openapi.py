"""Tools from OpenAPI documents (`type: openapi`), against a server of this test."""
import base64
import contextlib
import email
import email.policy
import http.server
import json
import os
import threading
import urllib.parse

import pytest

import support
from support import PYTHON, workcell

PETS = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "{scheme}://127.0.0.1:{port}/v1/", "description": "here",
                 "variables": {"scheme": {"default": "http", "enum": ["http", "https"]}, "port": {"default": "1"}}},
                {"url": "/relative", "description": "same host"}],
    "paths": {
        "/pets/{pet-id}": {
            "parameters": [{"$ref": "#/components/parameters/Id"}, {"name": "trace", "in": "query", "schema": {"type": "string"}}],
            "get": {"operationId": "pets/get-one", "summary": "One pet", "tags": ["pets"], "parameters": [
                {"name": "X-Wish", "in": "header", "schema": {"type": "string"}},
                {"name": "Authorization", "in": "header", "schema": {"type": "string"}, "required": True},
                {"name": "session", "in": "cookie", "schema": {"type": "string"}},
                {"name": "filter", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
                {"name": "fields", "in": "query", "schema": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}},
                {"name": "limit", "in": "query", "schema": {"type": "integer", "default": 10}}]},
            "delete": {"tags": ["admin"]},
        },
        "/pets": {"post": {"operationId": "create", "tags": ["pets"], "requestBody": {"required": True, "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}}},
        "/forms": {"post": {"operationId": "form", "requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": {
            "type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array"}, "owner": {"type": "object"}}}}}}}},
        "/whole": {"put": {"operationId": "whole", "requestBody": {"required": True, "content": {"application/json": {"schema": {
            "type": "array", "items": {"type": "integer"}}}}}}},
        "/raw": {"post": {"operationId": "raw", "requestBody": {"required": True, "content": {"application/octet-stream": {}}}}},
        "/upload": {"post": {"operationId": "upload", "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": {
            "type": "object", "required": ["file"], "properties": {
                "file": {"type": "string", "format": "binary", "description": "The picture"}, "title": {"type": "string"}, "size": {"type": "integer"},
                "more": {"type": "array", "items": {"type": "string", "format": "binary"}}, "tags": {"type": "array", "items": {"type": "string"}},
                "about": {"type": "object"}}}}}}}},
    },
    "components": {
        "parameters": {"Id": {"name": "pet-id", "in": "path", "required": True, "schema": {"type": "integer"}}},
        "schemas": {"Pet": {"type": "object", "required": ["name"], "properties": {
            "id": {"type": "integer", "readOnly": True}, "name": {"type": "string"}, "kind": {"type": "string", "enum": ["cat", "dog"]},
            "parent": {"$ref": "#/components/schemas/Pet"}, "friends": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}}}}},
        "securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "api_key"}, "head": {"type": "apiKey", "in": "header", "name": "X-Key"},
                            "login": {"type": "http", "scheme": "basic"}, "token": {"type": "http", "scheme": "bearer"},
                            "odd": {"type": "mutualTLS"}},
    },
}


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode("latin-1")
        parts = urllib.parse.urlsplit(self.path)
        if parts.path == "/openapi.json":
            self.server.fetched.append(parts.path)
            return self.reply(200, json.dumps(PETS))
        if parts.path == "/described":  # a document whose server is the query
            return self.reply(200, json.dumps({**document({"/a": {"get": {"operationId": "ask"}}}), "servers": [json.loads(urllib.parse.unquote(parts.query))]}))
        if parts.path == "/moved.json":
            self.send_response(302)
            self.send_header("Location", "/openapi.json")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if parts.path.startswith("/v1/pets/13"):
            self.send_response(302)
            self.send_header("Location", "http://localhost:%d/stolen" % self.server.server_port)  # another host, as far as URLs go
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        if parts.path.startswith("/v1/pets/404"):
            return self.reply(404, '{"message": "no such pet"}')
        self.server.seen.append((self.command, parts.path))
        return self.reply(200, json.dumps({"method": self.command, "path": parts.path, "query": urllib.parse.parse_qsl(parts.query),
                                           "body": body, "headers": {name.lower(): value for name, value in self.headers.items()}}))

    def reply(self, status, text):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serving_with(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.seen, server.fetched = [], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def server():
    with serving_with(Handler) as made:
        yield made


@pytest.fixture
def tools(tmp_path, server):
    """Writes a definition and its document; returns the flags."""
    def make(document=None, name="pets", **keys):
        folder = tmp_path / "tools"
        (folder / "documents").mkdir(parents=True, exist_ok=True)
        if not isinstance(document, str):
            (folder / "documents" / "pets.json").write_text(json.dumps(document or PETS))
            document = "documents/pets.json"
        keys.setdefault("variables", {"port": str(server.server_port)})
        (folder / (name + ".yaml")).write_text(json.dumps({"name": name, "type": "openapi", "document": document, **keys}))
        return ["--tools", folder]
    return make


def call(flags, code, **env):
    done = workcell("run", "--json", "--python", PYTHON, *flags, "-e", code, env=support.host_environment(**env))
    result = json.loads(done.out)
    assert result["error"] is None, result["error"]
    return result["value"]


def fail(flags, code, **env):
    return json.loads(workcell("run", "--json", "--python", PYTHON, *flags, "-e", code, env=support.host_environment(**env)).out)["error"]


class Forgetful(Handler):
    """Keeps its connections; the second request on one is read, and then the connection ends without an answer."""
    protocol_version = "HTTP/1.1"
    requests = 0

    def answer(self):
        self.requests += 1
        if self.requests == 1:
            return super().answer()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, "lost"))
        self.close_connection = True
        return None

    do_GET = do_POST = do_PUT = do_DELETE = answer


def test_what_may_have_been_done_is_not_sent_again(tools):
    """libcurl sends a request once more when a connection that it had kept ends before the answer."""
    with serving_with(Forgetful) as server:
        flags = tools(variables={"port": str(server.server_port)})
        error = fail(flags, "tools.pets.create(name='a'); tools.pets.create(name='b')")
        assert "not sent again, because it may have been carried out" in error["message"], error
        assert server.seen == [("POST", "/v1/pets"), ("POST", "lost")]
        server.seen.clear()
        call(flags, "tools.pets.whole(body=[1]); tools.pets.whole(body=[2])['body']")
        assert server.seen == [("PUT", "/v1/whole"), ("PUT", "lost"), ("PUT", "/v1/whole")]


def problem(flags):
    done = workcell("tools", "list", *flags)
    return done.out + done.err


def test_each_place_of_an_argument(tools):
    flags = tools()
    code = ("tools.pets.pets_get_one(pet_id=5, X_Wish='please', session='a; b=c', fields=['a', 'b'], filter={'kind': 'cat'}, trace='t')")
    seen = call(flags, code)
    assert (seen["method"], seen["path"]) == ("GET", "/v1/pets/5")
    assert sorted(map(tuple, seen["query"])) == [("fields", "a"), ("fields", "b"), ("filter[kind]", "cat"), ("trace", "t")]
    assert seen["headers"]["x-wish"] == "please" and seen["headers"]["cookie"] == "session=a%3B%20b%3Dc"
    assert "authorization" not in seen["headers"]
    seen = call(flags, "tools.pets.create(name='Tom', kind='cat', parent={'name': 'Ma'})")
    assert json.loads(seen["body"]) == {"name": "Tom", "kind": "cat", "parent": {"name": "Ma"}} and seen["path"] == "/v1/pets"
    seen = call(flags, "tools.pets.form(name='a b', tags=['x', 'y'], owner={'id': 1, 'deep': {'er': True}})")
    assert seen["headers"]["content-type"] == "application/x-www-form-urlencoded"
    assert urllib.parse.parse_qsl(seen["body"]) == [("name", "a b"), ("tags[0]", "x"), ("tags[1]", "y"), ("owner[id]", "1"), ("owner[deep][er]", "true")]
    assert json.loads(call(flags, "tools.pets.whole(body=[1, 2])")["body"]) == [1, 2]
    assert call(flags, "tools.pets.delete_pets_pet_id(pet_id=7)")["method"] == "DELETE"


def test_arguments_are_checked_and_described(tools):
    flags = tools()
    assert "pet_id" in fail(flags, "tools.pets.pets_get_one()")["message"]
    assert "kind" in fail(flags, "tools.pets.create(name='x', kind='fish')")["message"]
    assert fail(flags, "tools.pets.pets_get_one(pet_id='..')")["type"] == "ToolCallError"
    error = fail(flags, "tools.pets.pets_get_one(pet_id=404)")
    assert "HTTP 404" in error["message"] and "no such pet" in error["message"]
    shown = workcell("tools", "show", "pets", *flags).out
    assert "create" in shown and ".raw" not in shown and "1 operations cannot be called" in shown
    text = json.dumps(call(flags, "[[each.name, each.description] for each in tools.pets.list()]"))
    assert "One pet" in text


@pytest.mark.parametrize("auth, secret, check", [
    ({"key": "${K}"}, "s3cret&x=", lambda seen: ["api_key", "s3cret&x="] in seen["query"]),
    ({"head": "${K}"}, "s3cret", lambda seen: seen["headers"]["x-key"] == "s3cret"),
    ({"login": "me:${K}"}, "s3cret", lambda seen: seen["headers"]["authorization"] == "Basic " + base64.b64encode(b"me:s3cret").decode()),
    ({"token": "${K}"}, "s3cret", lambda seen: seen["headers"]["authorization"] == "Bearer s3cret"),
])
def test_authentication_from_the_environment(tools, server, auth, secret, check):
    flags = tools(auth=auth)
    assert check(call(flags, "tools.pets.pets_get_one(pet_id=1)", K=secret))
    assert "K" in fail(flags, "tools.pets.pets_get_one(pet_id=1)")["message"]  # it is not set
    server.seen.clear()
    error = fail(flags, "tools.pets.pets_get_one(pet_id=13)", K=secret)  # a redirect to another host gets nothing
    assert "another host" in error["message"] and secret not in json.dumps(error) and server.seen == []


def test_server_and_filters(tools, server):
    url = "http://127.0.0.1:%d/other" % server.server_port
    assert call(tools(server=url), "tools.pets.pets_get_one(pet_id=1)")["path"] == "/other/pets/1"
    document = "http://127.0.0.1:%d/openapi.json" % server.server_port
    assert call(tools(document, server="same host"), "tools.pets.pets_get_one(pet_id=1)")["path"] == "/relative/pets/1"

    def names(**keys):
        return sorted(call(tools(**keys), "[each.name for each in tools.pets.list()]"))

    assert names(include={"tags": ["p*"]}) == ["create", "pets_get_one"]
    assert names(include={"operations": ["DELETE *", "form"]}) == ["delete_pets_pet_id", "form"]
    assert names(exclude={"tags": ["admin", "pets"], "operations": ["form", "upload"]}) == ["whole"]


@pytest.mark.parametrize("document, keys, words", [
    ({"swagger": "2.0"}, {}, "Swagger 2"), ({**PETS, "openapi": "4.0.0"}, {}, "expected 3.0 or 3.1"), ([1], {}, "neither JSON nor YAML|openapi is"),
    ("nowhere.json", {}, "nowhere.json"), (PETS, {"auth": {"none": "x"}}, "it has: key head login token odd"), (PETS, {"auth": {"odd": "x"}}, "not supported"),
    (PETS, {"include": {"tags": ["no"]}}, "no operation is chosen"), (PETS, {"server": "ftp://x"}, "not an http:// or https:// URL"),
    (PETS, {"variables": {"scheme": "gopher"}}, "does not allow"), (PETS, {"oops": 1}, "oops"), ("http://127.0.0.1:1/", {}, "connect"),
    ({**PETS, "servers": []}, {}, "set server"), ({**PETS, "paths": {"/a": {"get": {"parameters": [{"$ref": "#/paths/~1a/get/parameters/0"}]}}}}, {}, "can be called"),
])
def test_documents_that_are_refused(tools, document, keys, words):
    text = problem(tools(document, **keys))
    assert any(word in text for word in words.split("|")), text


def test_yaml(tools, tmp_path, server):
    flags = tools()
    (tmp_path / "tools" / "documents" / "pets.yaml").write_text(
        "openapi: 3.1.0\ninfo: {title: t, version: '1'}\nservers: [{url: 'http://127.0.0.1:%d'}]\npaths:\n  /a:\n    get:\n      parameters:\n"
        "        - {name: n, in: query, schema: {type: [integer, 'null']}}\n" % server.server_port)
    flags = tools("documents/pets.yaml")
    assert call(flags, "tools.pets.get_a(n=3)")["query"] == [["n", "3"]]


def test_more_operations_than_a_tool_can_have(tools):
    many = {**PETS, "paths": {"/p%d" % i: {"get": {}} for i in range(513)}}
    assert "more than 512 operations" in problem(tools(many))
    del many["paths"]["/p0"]
    assert call(tools(many), "len(tools.pets.list())") == 512


def parts_of(answer):
    """The parts of a multipart body as a parser of the standard library reads them: (name, file name, type, content)."""
    head = "Content-Type: %s\r\n\r\n" % answer["headers"]["content-type"]
    message = email.message_from_bytes(head.encode() + answer["body"].encode("latin-1"), policy=email.policy.HTTP)
    assert message.get_content_type() == "multipart/form-data" and not message.defects
    return [(part.get_param("name", header="content-disposition"), part.get_filename(), part["content-type"], part.get_payload(decode=True))
            for part in message.iter_parts()]


def test_multipart_bodies(tools):
    flags = tools()
    binary = bytes(range(256))
    answer = call(flags, "import base64\ntools.pets.upload(file={'filename': 'a.png', 'type': 'image/png', 'base64': base64.b64encode(bytes(range(256))).decode()},"
                         " title='Ein Bär', size=3, more=[{'content': 'one'}, {'content': 'two', 'filename': 'b.txt', 'type': 'text/plain'}], tags=['x', 'y'],"
                         " about={'deep': [1]})")
    assert sorted(parts_of(answer), key=repr) == sorted([
        ("file", "a.png", "image/png", binary), ("title", None, None, "Ein Bär".encode()), ("size", None, None, b"3"),
        ("more", "file", "application/octet-stream", b"one"), ("more", "b.txt", "text/plain", b"two"), ("tags", None, None, b"x"), ("tags", None, None, b"y"),
        ("about", None, "application/json", b'{"deep":[1]}')], key=repr)
    shown = call(flags, "tools.pets.upload.schema()")["input"]["properties"]["file"]
    assert shown["type"] == "object" and "The picture" in shown["description"] and "base64" in shown["description"]


def test_no_value_can_add_a_part(tools):
    """Names, types and contents of files that would like to end their part."""
    answer = call(tools(), "tools.pets.upload(file={'filename': 'a\"\\r\\nX-Evil: 1\\r\\n\\r\\n--', 'content': '--\\r\\nContent-Disposition: form-data; name=admin'}, title='\\r\\n--')")
    parts = parts_of(answer)
    assert sorted(each[0] for each in parts) == ["file", "title"]
    assert "X-Evil" not in answer["headers"] and "\r\nX-Evil" not in answer["body"] and "%0D%0AX-Evil" in answer["body"]


@pytest.mark.parametrize("file, words", [
    ("'text'", "file"), ("{'base64': '!'}", "base64 is not valid"), ("{'base64': '', 'content': ''}", "must be a file"),
    ("{'content': '', 'type': 'a/b\\r\\nX: y'}", "must be a file"), ("{'content': '', 'type': 'nothing'}", "must be a file"),
    ("{'content': '', 'filename': 7}", "must be a file")])
def test_files_that_are_refused(tools, server, file, words):
    server.seen.clear()
    error = fail(tools(), "tools.pets.upload(file=%s)" % file)
    assert words in error["message"] and not server.seen, error


def document(paths, **more):
    return {"openapi": "3.0.3", "info": {"title": "t", "version": "1"}, "servers": [{"url": "http://127.0.0.1:{port}", "variables": {"port": {"default": "1"}}}],
            "paths": paths, **more}


def query(reference):
    return {"get": {"operationId": "ask", "parameters": [{"$ref": reference}]}}


def other(tmp_path, name, content):
    path = tmp_path / "tools" / "documents" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_references_to_other_files(tools, tmp_path):
    """Below the document's folder, also of another format and in circles; each is relative to the file that it is in."""
    other(tmp_path, "parts/parameters.json", {"n": {"name": "n", "in": "query", "schema": {"$ref": "../types/all.yaml#/small"}},
                                              "m": {"$ref": "#/n"}})
    other(tmp_path, "types/all.yaml", "small: {type: integer, enum: [1, 2]}\nback: {$ref: ../parts/parameters.json#/n}\n")
    other(tmp_path, "parts/path.json", {"get": {"operationId": "whole", "parameters": [{"$ref": "./parameters.json#/m"}]}})
    flags = tools(document({"/a": query("parts/parameters.json#/m"), "/b": {"$ref": "parts/path.json"}}))
    assert call(flags, "tools.pets.ask(n=2)")["query"] == [["n", "2"]]
    assert call(flags, "tools.pets.whole(n=1)")["query"] == [["n", "1"]]
    assert "must be one of" in fail(flags, "tools.pets.ask(n=3)")["message"]


@pytest.mark.parametrize("reference, words", [
    ("../../secret.json#/n", "leads out"), ("/etc/passwd#/n", "leads out"), ("file:///etc/passwd", "leads out"), ("parts/../../x.json", "leads out"),
    ("nowhere.json#/n", "nowhere.json"), ("broken.json", "it refers to broken.json"), ("many/0.json", "more than 64")])
def test_references_that_are_refused(tools, tmp_path, reference, words):
    other(tmp_path, "broken.json", "{")
    (tmp_path / "tools" / "secret.json").write_text(json.dumps({"n": {"name": "n", "in": "query"}}))
    for number in range(65):
        other(tmp_path, "many/%d.json" % number, {"$ref": "%d.json" % (number + 1)})
    assert words in problem(tools(document({"/a": query(reference)})))


def test_references_to_urls_are_followed_only_where_allowed(tools, server):
    here = "http://127.0.0.1:%d" % server.server_port
    pet = here + "/openapi.json#/components/parameters/Id"
    asked = document({"/a/{pet-id}": query(pet), "/b": {"get": {"operationId": "plain"}}})
    server.fetched.clear()
    for allowed in ([], [here[:-1] + "/"], [here], ["http://127.0.0.1/"], [here + "/open/"], [here + "/openapi"], ["file:///"]):
        flags = tools(asked, references=allowed)
        assert call(flags, "tools.pets.plain()")["path"] == "/b" and not server.fetched, allowed
    for allowed in ([here + "/"], [here + "/openapi.json"]):
        assert call(tools(asked, references=allowed), "tools.pets.ask(pet_id=3)")["path"] == "/a/3"
        assert "integer" in fail(tools(asked, references=allowed), "tools.pets.ask(pet_id='x')")["message"]
    assert server.fetched
    assert "references must be a list" in problem(tools(asked, references="all"))


# ---- hostile documents


def test_a_schema_that_is_its_own_first_part(tools):
    """Each with itself, and two with each other: no walk over the schemas may go on for ever."""
    schemas = {"A": {"allOf": [{"$ref": "#/components/schemas/A"}]}, "B": {"allOf": [{"$ref": "#/components/schemas/C"}]},
               "C": {"allOf": [{"$ref": "#/components/schemas/B"}]}}
    parameters = [{"name": name.lower(), "in": "query", "schema": {"$ref": "#/components/schemas/" + name}} for name in schemas]
    flags = tools(document({"/a": {"get": {"operationId": "ask", "parameters": parameters}}}, components={"schemas": schemas}))
    assert call(flags, "tools.pets.ask(a='x', b='y')")["query"] == [["a", "x"], ["b", "y"]]


def test_lists_of_parameters_that_would_be_compared_for_hours(tools):
    many = [{"name": "", "in": "query"}] * 100_000
    flags = tools(document({"/a": {"parameters": many, "get": {"operationId": "ask", "parameters": many}}, "/b": {"get": {"operationId": "plain"}}}))
    assert call(flags, "tools.pets.plain()")["path"] == "/b"
    assert "1 operations cannot be called" in workcell("tools", "show", "pets", *flags).out


def test_a_server_that_is_described_as_another(tools, server):
    """The definition names a URL, and the document a server of its own with that URL as its description."""
    meant = "http://127.0.0.1:%d/meant" % server.server_port
    servers = [{"url": "http://127.0.0.1:%d/evil" % server.server_port, "description": meant}]
    flags = tools({**document({"/a": {"get": {"operationId": "ask"}}}), "servers": servers}, server=meant)
    assert call(flags, "tools.pets.ask()")["path"] == "/meant/a"


def test_a_fetched_document_cannot_choose_another_host(tools, server):
    """It would get what authenticates the tool, or reach servers inside the host's network."""
    server.seen.clear()
    elsewhere = "http://localhost:%d/openapi.json" % server.server_port  # its server is 127.0.0.1
    flags = tools(elsewhere, auth={"token": "${K}"})
    assert "names a server of another host" in problem(flags) and not server.seen
    for same in ("same host", "here"):
        chosen = tools(elsewhere, server=same)
        assert ("another host" in problem(chosen)) == (same == "here")
    there = "http://127.0.0.1:%d/v1" % server.server_port
    assert call(tools(elsewhere, server=there, auth={"token": "${K}"}), "tools.pets.pets_get_one(pet_id=1)", K="s")["headers"]["authorization"] == "Bearer s"


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "//localhost:%d/v1", "http://127.0.0.1:%d@localhost:%d", "http://127.0.0.1:%d\\@localhost/",
                                 "http://localhost:%d#@127.0.0.1:%d", "http://127.0.0.1:%d\t.localhost", "http://127.0.0.1{more}", "{whole}"])
def test_servers_that_only_look_like_the_documents_own(tools, server, url):
    port = str(server.server_port)
    described = {"url": url.replace("%d", port), "variables": {"more": {"default": "@localhost:" + port}, "whole": {"default": "http://localhost:" + port}}}
    text = problem(tools("http://127.0.0.1:%s/described?%s" % (port, urllib.parse.quote(json.dumps(described))), variables={}))
    assert "names a server of another host" in text or "is not an http:// or https:// URL" in text, text


def test_a_document_is_a_file_or_an_answer_of_its_own_url(tools, server, tmp_path):
    """A pipe would be waited for without an end; an answer from elsewhere is not what the definition names."""
    server.fetched.clear()
    assert "HTTP 302" in problem(tools("http://127.0.0.1:%d/moved.json" % server.server_port)) and not server.fetched
    tools()
    os.mkfifo(tmp_path / "tools" / "documents" / "pipe.json")
    (tmp_path / "tools" / "documents" / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        assert "is not a regular file" in problem(tools("documents/%s.json" % name))


def test_paths_and_types_that_would_change_the_request(tools, server):
    """Each is left out or sent as what it is called: none names another host, adds a header or leaves its path."""
    here = server.server_port
    ask = {"get": {"operationId": "ask"}}
    flags = tools(document({"@localhost:%d/a" % here: ask, ".localhost/a": ask, "/a\r\nX-Evil: 1": ask, "/a?x=1": ask, "/a#x": ask, "/b": {"get": {"operationId": "plain"}},
                            "/c": {"post": {"operationId": "typed", "requestBody": {"content": {"application/json; a=\"\r\nX-Evil: 1\"": {"schema": {"type": "object"}}}}}},
                            "/d/.{id}": {"get": {"operationId": "hidden", "parameters": [{"name": "id", "in": "path", "required": True}]}},
                            "/e/{a}{b}": {"get": {"operationId": "two", "parameters": [{"name": name, "in": "path", "required": True} for name in "ab"]}},
                            "/f": {"get": {"operationId": "named", "parameters": [{"name": name, "in": "header"} for name in ("X-Evil: 1\r\nY", "X Y", "X")]}}}))
    names, typed, header = call(flags, "[[each.name for each in tools.pets.list()], tools.pets.typed()['headers'], list(tools.pets.named.schema()['input']['properties'])]")
    assert names == ["plain", "typed", "hidden", "two", "named"] and "x-evil" not in typed and header == ["X"]
    for code in ("tools.pets.hidden(id='.')", "tools.pets.two(a='.', b='.')", "tools.pets.two(a='', b='.')"):
        assert "must not be" in fail(flags, code)["message"]


def test_operations_named_like_what_every_tool_has(tools):
    """tools.pets.list() lists the operations, and one of that name is list_()."""
    names = ["list", "describe", "signature", "call_sync", "import", "class", "list_"]
    flags = tools(document({"/%s" % name: {"get": {"operationId": name}} for name in names}))
    shown = call(flags, "tools.pets.signature()").split("\n")
    assert shown == ["list_()", "describe_()", "signature_()", "call_sync_()", "import_()", "class_()", "list_2()"]
    assert call(flags, "[getattr(tools.pets, name[:-2])()['path'] for name in tools.pets.signature().split('\\n')]") == ["/" + name for name in names]


def test_headers_of_the_tool_and_of_the_connection_are_no_arguments(tools):
    """Also with underscores, which are sent as hyphens."""
    names = ["Transfer_Encoding", "Transfer-Encoding", "Content_Length", "Connection", "Expect", "te", "X_Mine", "x-mine", "Cookie", "X-Free"]
    flags = tools(document({"/a": {"post": {"operationId": "ask", "parameters": [{"name": name, "in": "header"} for name in names]}}}),
                  headers={"X-Mine": "fixed"})
    assert list(call(flags, "tools.pets.ask.schema()")["input"]["properties"]) == ["X_Free"]
    seen = call(flags, "tools.pets.ask(X_Free='a')")["headers"]
    assert seen["x-mine"] == "fixed" and seen["x-free"] == "a" and "transfer-encoding" not in seen
    assert "control character" in fail(flags, "tools.pets.ask(X_Free='a\\r\\nX-Evil: 1')")["message"]


@pytest.mark.parametrize("value", ["..", ".", "%2e%2e", "../admin", "..%2fadmin", "a/../../admin", "a?x=1", "a#b", "..\\\\admin", "\\r\\nX: y"])
def test_a_path_argument_stays_one_segment(tools, server, value):
    flags = tools(document({"/pets/{id}/x": {"get": {"operationId": "ask", "parameters": [{"name": "id", "in": "path", "required": True}]}},
                            "/%2E./admin": {"get": {"operationId": "up"}}}))
    server.seen.clear()
    made = json.loads(workcell("run", "--json", "--python", PYTHON, *flags, "-e", "tools.pets.ask(id='%s')" % value).out)
    if made["error"] is None:
        path = made["value"]["path"]
        assert path.startswith("/pets/") and path.endswith("/x") and path.count("/") == 3 and made["value"]["query"] == []
    else:
        assert value in ("..", ".") and "must not be" in made["error"]["message"] and not server.seen
    assert value != ".." or "must not be" in fail(flags, "tools.pets.up()")["message"]
