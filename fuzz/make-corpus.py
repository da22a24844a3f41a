#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets to corpus/TARGET/: one of each thing that the format knows."""

import io
import json
import os
import struct
import tarfile

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def write(target, name, data):
    folder = os.path.join(HERE, target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def frame(kind, ident=1, structure=b"", raw=b"", pos=0, version=1):
    return struct.pack("<BBBBIIIQ", 0x57, version, kind, 0, ident, len(structure), len(raw), pos) + structure + raw


def frames():
    for kind in (1, 2, 3, 4, 65, 66, 67, 68, 69, 70):
        yield "type-%d" % kind, b"\x05\x00" + frame(kind, kind, b"{}", b"raw")
    ready, result = frame(65, 0, b'{"python":"3.11.2"}'), frame(66, 7, b'{"v":1,"r":1}', b"22", 64)
    yield "several", b"\x20\x00" + frame(70) + ready + result
    yield "split-in-payload", b"\x1a\x00" + frame(66, 1, b"{}", b"0123456789")
    yield "version", b"\x00\x00" + frame(66, version=2)
    yield "type", b"\x00\x00" + frame(200)
    yield "too-big", b"\x00\x00" + struct.pack("<BBBBIIIQ", 0x57, 1, 66, 0, 1, 0xFFFFFFFF, 0, 0)
    yield "truncated", b"\x03\x00" + frame(67, 1, b"{}", b"abcdef")[:-3]
    yield "noise", b"\x01\x00noise"


JSON = {
    "null": b"null",
    "number": b"-1234567890123456789012345678901234567890.5e-10",
    "string": '"a\\n\\u00e9\\ud83d\\ude00é😀"'.encode(),
    "list": b'[1, 2.5, "x", [], {}, [[]]]',
    "object": b'{"a": {"b": [true, false, null]}, "c": ""}',
    "deep": b"[" * 512 + b"0" + b"]" * 512,
    "too-deep": b"[" * 513 + b"]" * 513,
    "surrogate": b'"\\ud800"',
    "newline": b"[1,\n2]",
    "nan": b"NaN",
    "nul-key": b'{"\\u0000": 1}',
    "overflow": b"1e999",
}


def calls():
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"message": "é\n"}}}
    error = {"jsonrpc": "2.0", "id": "a", "error": {"code": -32601, "message": "Method not found", "data": [1]}}
    for name, value in {
        "request": request,
        "notification": {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 0.5}},
        "result": {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": "hi"}], "isError": False}},
        "error": error,
        "unreadable": {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}},
        "batch": [request, error, 1],
        "both": {"jsonrpc": "2.0", "id": 1, "result": 1, "error": {"code": 1, "message": "m"}},
        "large-number": {"jsonrpc": "2.0", "id": 1, "result": 2**80},
        "empty-batch": [],
    }.items():
        yield name, b"\x10\x00\x01" + json.dumps(value).encode()
    yield "lines", b"\x30\x00\x01" + b"\r\n".join(json.dumps(v).encode() for v in (request, error)) + b"\n\n{}\n"
    yield "long-line", b"\x05\x00\x00" + b"x" * 300 + b"\nshort\n"
    yield "deep", b"\x00\x00\x00" + b"[" * 600


TOOL_LISTS = {
    "plain": [{"name": "a", "description": "d", "inputSchema": {
        "type": "object", "properties": {"x": {"type": "string", "default": "y"}, "my-field": {"type": ["integer", "null"]}},
        "required": ["x", "gone"]}}],
    "unions": [{"name": "u", "inputSchema": {"properties": {
        "a": {"anyOf": [{"type": "number"}, {"type": "null"}]}, "b": {"oneOf": [{}, {"type": 1}]}, "c": {"$ref": "#/x"},
        "d": {"enum": [1, None, "x"]}, "class": {"type": "array"}}, "additionalProperties": {}}}],
    "names": [{"name": n} for n in ("a-b", "a_b", "a.b", "1", "_", "__x", "list", "import", "\u00e9", "a\nb", "")],
    "odd": [1, None, {}, {"name": 1}, {"name": "x", "inputSchema": []}, {"name": "y", "inputSchema": {"properties": []}}],
    "answers": {"a": [1, {"b": None}], "my_field": 3, "x": "\u0000"},
}


STREAMS = {
    "message": b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n',
    "fields": b"event: endpoint\nid: 1\nretry: 250\ndata: /messages?x=1\n\n",
    "lines": b"data: a\ndata:b\ndata\n\ndata: c\n\n",
    "crlf": b"data: a\r\n\r\ndata: b\r\rid\r\n\r\n",
    "mark": b"\xef\xbb\xbfdata: a\n\n",
    "half-mark": b"\xef\xbbdata: a\n\ndata: b\n\n",
    "comments": b": keep alive\n\nunknown: x\nid: \0\ndata: \0\n\n",
    "large": b"data: " + b"x" * 2100 + b"\n\n",
    "retry": b"retry: 99999999999999999999\nretry: x\ndata:\n\n",
}


def record(kind, payload):
    return struct.pack("<II", len(payload), kind) + payload + b"\0" * (-len(payload) % 8)


def rings():
    records = record(1, b"hello\n") + record(2, b"err") + record(3, struct.pack("<QQ", 5, 6)) + record(1, b"")
    for name, tail in (("start", 0), ("end-of-ring", 256 * 1024 - 16), ("end-of-numbers", 2**64 - 16)):
        yield name, struct.pack("<QQQ", tail, 0, 0) + records
    yield "upto", struct.pack("<QQQ", 0, len(records), 16) + records
    yield "bad-head", struct.pack("<QQQ", 64, 32, 2**63) + records
    yield "bad-type", struct.pack("<QQQ", 0, 0, 0) + record(4, b"x")
    yield "bad-size", struct.pack("<QQQ", 0, 0, 0) + struct.pack("<II", 0x10000, 1)
    yield "large", struct.pack("<QQQ", 0, 0, 0) + record(1, b"x" * 4000)


def answers():
    def seed(kind, head, raw=b""):
        structure = json.dumps(head).encode() if head is not None else b""
        return struct.pack("<BH", kind, len(structure)) + structure + raw

    error = {"type": "ValueError", "message": "m", "traceback": "t", "code": "interrupted"}
    yield "empty", seed(0, None)
    yield "value", seed(0, {"v": 1, "r": 1}, b"22")
    yield "mime", seed(0, {"v": 2, "r": 3, "mime": [["text/html", 4], ["image/png", 2]]}, b"[]abc<b/>\x89P")
    yield "json-part", seed(0, {"r": 1, "mime": [["application/json", 7]]}, b'x{"a":1}')
    yield "error", seed(0, {"error": error})
    yield "display", seed(1, {"mime": [["text/plain", 2], ["image/svg+xml", 3]], "metadata": {}}, b"hi<s>")
    yield "too-little", seed(0, {"v": 9}, b"1")
    yield "too-much", seed(1, {"mime": []}, b"x")
    yield "not-utf8", seed(0, {"r": 1}, b"\xff")


def outputs():
    def seed(cap, *writes):
        return struct.pack("<H", cap - 8) + b"".join(writes)

    def piece(text):
        return bytes([len(text)]) + text

    yield "below", seed(100, piece(b"short"))
    yield "at", seed(100, piece(b"x" * 100))
    yield "one-past", seed(100, piece(b"x" * 101))
    yield "odd", seed(101, piece(b"abc" * 34), piece(b"d"))
    yield "far-past", seed(1024, piece(b"head"), b"\xffm", piece(b"tail"))
    yield "characters", seed(50, *[piece("é€😀".encode()) for _ in range(20)])
    yield "bytes", seed(64, *[piece(bytes(range(120, 240))) for _ in range(3)])


def schemas():
    folder = os.path.join(HERE, os.pardir, os.pardir, "tests", "mcp", "schemas")
    for corpus in ("features", "hostile"):
        with open(os.path.join(folder, corpus + ".json"), encoding="utf-8") as file:
            for number, tool in enumerate(json.load(file)["tools"]):
                if isinstance(tool, dict) and tool.get("inputSchema") and (corpus == "features" or number < 20 or number > 70):
                    yield "%s-%d" % (corpus, number), json.dumps(tool["inputSchema"]).encode()
    yield "list", json.dumps({"tools": [{"name": "a-b", "inputSchema": {"type": "object"}}, {"name": "A_B"}, 5]}).encode()
    yield "soft", b'{"tools": [{"name": "\\ud800", "inputSchema": {"default": NaN, "minimum": 1e999, "const": 99999999999999999999}}]}'


MESSAGES = {
    "one": b"\0\0\0\0\2{}",
    "end": b"\0\0\0\0\0\2\0\0\0\2{}",
    "cut": b"\0\0\0\0\3{}",
    "large": b"\1\xff\xff\xff\xff",
    "bound": b"\0\0\0\1\0" + b"x" * 256 + b"\0\0\0\1\1" + b"x" * 257,
}

TEXTS = {
    "ascii": b"plain \"quoted\" \\ and\ttabs\n",
    "utf8": "é€😀\u2028\x7f".encode(),
    "controls": bytes(range(32)),
    "cut": "😀".encode()[:3] + b"A" + "€".encode()[:2],
    "overlong": b"\xc0\xaf\xe0\x80\xaf\xf0\x80\x80\xaf",
    "surrogates": b"\xed\xa0\x80\xed\xbf\xbf",
    "high": b"\xf4\x8f\xbf\xbf\xf4\x90\x80\x80\xff",
}

EMBEDDINGS = {
    "one": b'\0{"data":[{"index":0,"embedding":[0.1,-2e-3,3]}]}',
    "three": b'\2{"object":"list",\n"data":[{"embedding":[1,0],"index":2},{"embedding":[0,1],"index":0},'
             b'{"index":1,"embedding":[0,0]}],"model":"m","usage":{"total_tokens":9}}',
    "strings": b'\0{"a\\"}":["]",{}],"data":[{"embedding":[12345678901234567890123.5E-7]}]}',
    "count": b'\1{"data":[{"embedding":[1]}]}',
    "dimensions": b'\1{"data":[{"embedding":[1]},{"embedding":[1,2]}]}',
    "large": b'\0{"data":[{"embedding":[1e308,1e-308,-1E+39]}]}',
    "error": b'\0{"error":{"message":"no such model"}}',
}

POLICIES = {
    "all": b"preset: untrusted\nlevel: full\nworkspace: ro\nfilesystem: {read: [/a], write: [/b], hide: [/c]}\n"
           b"network: {allow: ['a.b:443', '*.c:*']}\nlimits: {memory: 1G, cpus: 1.5, pids: 9, files: 64, tmp: 1M}\nenv: {A: b}\n",
    "none": b"network: none\nlimits: {memory: none, wall_time: 3}\n",
    "bad": b"level: \n  - full\n",
}
PROXY = {
    "connect": b"CONNECT a.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\nrest",
    "v6": b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\n\r\n",
    "plain": b"GET http://a.org:80/x?y HTTP/1.0\r\n\r\n",
    "socks-name": b"\x05\x01\x00\x03\x05a.org\x01\xbb",
    "socks-v4": b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50",
    "socks-v6": b"\x05\x01\x00\x04" + bytes(16) + b"\x00\x50",
}


def clients():
    """What clients of `workcell mcp` send: lines after a 0, headers after a 1."""
    def lines(*messages):
        return b"\0" + b"\n".join(json.dumps(dict(message, jsonrpc="2.0")).encode() for message in messages) + b"\n"

    hello = {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-03-26", "capabilities": {"elicitation": {}}}}
    call = {"id": 2, "method": "tools/call", "params": {"name": "execute_ipython_cell", "arguments": {"code": "1", "timeout": 5},
                                                        "_meta": {"progressToken": "t"}}}
    yield "call", lines(hello, {"method": "notifications/initialized"}, {"id": "l", "method": "tools/list"}, call)
    yield "wrong", lines(hello, dict(call, params={"name": "save_artifact", "arguments": {"name": "", "data": 1, "x": None}}))
    yield "level", lines(hello, {"id": 3, "method": "logging/setLevel", "params": {"level": "debug"}}, {"id": 4, "method": "ping"})
    yield "answers", lines(hello, {"id": 1, "result": {"action": "accept", "content": {"decision": "accept"}}},
                           {"id": 2, "error": {"code": -1, "message": "no"}})
    yield "cancel", lines(hello, {"method": "notifications/cancelled", "params": {"requestId": 2}})
    yield "batch", lines(hello) + json.dumps([dict(call, jsonrpc="2.0"), {"jsonrpc": "2.0", "id": 9, "method": "ping"}, 5]).encode()
    yield "access", b"\1Bearer token\0localhost:80\0http://localhost:80\x002025-11-25\0/mcp\x003-17"
    yield "refused", b"\1bearer other\0evil.example\0https://evil.example\0\x01\0/\x00-1-2"


def archives():
    """Tar archives of each format, with names that need more than one head."""
    found = {}
    for name, form in (("pax", tarfile.PAX_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("ustar", tarfile.USTAR_FORMAT)):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as tar:
            for path, kind, data in (("d", tarfile.DIRTYPE, b""), ("d/f", tarfile.REGTYPE, b"text"), ("l", tarfile.SYMTYPE, b""),
                                     ("n" * 90 + "/" + "m" * (90 if form == tarfile.USTAR_FORMAT else 200), tarfile.REGTYPE, b"")):
                info = tarfile.TarInfo(path)
                info.type, info.size, info.linkname = kind, len(data), "d/f" if kind == tarfile.SYMTYPE else ""
                tar.addfile(info, io.BytesIO(data))
        found[name] = out.getvalue().rstrip(b"\0") + bytes(1024)
    return found


def openapi():
    """Documents, and arguments of calls behind a NUL."""
    item = {"parameters": [{"$ref": "#/components/parameters/Id"}], "get": {"operationId": "a/b", "parameters": [
        {"name": "q", "in": "query", "schema": {"type": ["array", "null"], "items": {"enum": ["x"]}}}, {"name": "c", "in": "cookie"}]},
        "post": {"requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": {"$ref": "#/components/schemas/A"}}}}}}
    whole = {"openapi": "3.1.0", "servers": [{"url": "https://{h}/v1", "variables": {"h": {"default": "host"}}}], "paths": {"/a/{i-d}": item},
             "components": {"parameters": {"Id": {"name": "i-d", "in": "path"}},
                            "schemas": {"A": {"type": "object", "properties": {"a": {"$ref": "#/components/schemas/A"}}}},
                            "securitySchemes": {"k": {"type": "apiKey", "in": "query", "name": "k"}}}}
    yield "whole", json.dumps(whole).encode() + b'\0{"i_d": "..", "q": ["x"], "a": {"b": [1]}}'
    yield "loop", b'{"openapi":"3.0.0","paths":{"/":{"$ref":"#/paths/~1"}}}'
    yield "swagger", b'{"swagger":"2.0"}'
    members = {"title": {"type": "string"}, "file": {"type": "string", "format": "binary"},
               "files": {"type": "array", "items": {"type": "string", "contentMediaType": "image/png"}}}
    upload = {"openapi": "3.1.0", "paths": {"/files": {"post": {"operationId": "upload", "requestBody": {"content": {
        "multipart/form-data": {"schema": {"type": "object", "properties": members}}}}}}}}
    given = {"title": "a\r\nX: y", "file": {"content": "text", "filename": "a\"\r\n.txt", "type": "text/plain"},
             "files": [{"base64": "AAEC"}, {"content": "--", "type": "image/png"}]}
    yield "multipart", json.dumps(upload).encode() + b"\0" + json.dumps(given).encode()
    given = {"title": {"a": [1]}, "file": {"base64": ""}, "files": ["x", None, True, [1]]}
    yield "members", json.dumps(upload).encode() + b"\0" + json.dumps(given).encode()
    refers = {"openapi": "3.0.3", "paths": {"/a": {"$ref": "./parts/a.json#/item"}, "/b": {"$ref": "parts/../b.json"}}}
    item = {"get": {"operationId": "a", "parameters": [{"$ref": "../b.json#/parameter"}, {"$ref": "#/own"}]}}
    other = {"item": item, "own": {"name": "o", "in": "query", "schema": {"$ref": "https://host/c.json#/s"}}, "s": {"type": "string"}}
    yield "documents", json.dumps(refers).encode() + b'\0{"q": "1", "o": "x"}\0' + json.dumps(other).encode()
    back = {"item": {"get": {"parameters": []}}, "parameter": {"name": "q", "in": "query", "schema": {"$ref": "/openapi.json#/x"}}}
    yield "circle", json.dumps(refers).encode() + b'\0{"q": "1"}\0' + json.dumps(other).encode() + b"\0" + json.dumps(back).encode()
    yield "outside", b'{"openapi":"3.0.0","paths":{"/":{"$ref":"a/../../x.json"}}}\0{}\0{}'


def jupyter():
    """Messages of Jupyter's, signed with the key of the target."""
    import hashlib
    import hmac

    head = b'{"msg_id":"a","msg_type":"status","session":"s"}'
    for name, body in (("idle", [head, b'{"msg_id":"p","session":"s"}', b"{}", b'{"execution_state":"idle"}']),
                       ("no-type", [b"{}", b"{}", b"{}", b"{}"]), ("no-json", [b"[]", b"{", b"", b"1"]),
                       ("deep", [head, b"{}", b"{}", b'{"data":' + b"[" * 50 + b"]" * 50 + b"}"])):
        signature = hmac.new(b"key", b"".join(body), hashlib.sha256).hexdigest().encode()
        parts = [b"topic", b"<IDS|MSG>", signature, *body, b"buffer"]
        yield name, b"".join(struct.pack("<H", len(part)) + part for part in parts)
        yield name + "-short", b"".join(struct.pack("<H", len(part)) + part for part in parts[:4])


REQUESTS = {
    "execute": b'POST /execute\n{"code": "1+1", "timeout": 0.5}',
    "session": b'POST /v1/sessions\n{"workspace_id": null}',
    "artifact": b"GET /api/artifacts/a/b%20c%C3%A9.bin\n",
    "answer": b'POST /v1/sessions/0123/approvals/7\n{"accept": true, "args": {}, "always": false}',
    "packages": b'POST /install_deps\n{"packages": ["six", "pandas>=2"]}',
    "escapes": b"DELETE /api/workflows/%zz%00%2f\n",
    "token": b"a-token-of-one-line\n",
    "tokens": b"tokens:\n- {name: a, token: long-enough, scopes: [run, read]}\n- {name: b, sha256: " + b"0f" * 32 + b", workspace: w}\n",
}

UV_LOCK = b"""version = 1
revision = 5
requires-python = "==3.11.*"

[[package]]
name = "rich"
version = "13.0"
source = { registry = "https://index.example/simple" }
dependencies = [
    { name = "six" },
]
sdist = { url = "https://x/rich.tar.gz", hash = "sha256:00", size = 1 }
wheels = [
    { url = "https://x/rich-13.0-py3-none-any.whl", hash = "sha256:aa", size = 12, upload-time = "2024-01-01T00:00:00Z" },
    { path = "/wheels/rich-13.0-py3-none-any.whl" },
    { url = "https://x/rich.whl" },
]

[[package]]
name = "wanted"
version = "0"
source = { virtual = "." }

[package.metadata]
requires-dist = [{ name = "rich" }]
"""

OPTIONS = {
    "session": {"executor": "sandbox", "env": {"A": "b"}, "timeout_ms": -1, "restore_cwd": True, "trusted": ["/usr"], "policy": "ask", "space": {}},
    "space": {"storage": "x", "installer_env": {"K": ""}, "cache_venv": False, "install_timeout_ms": 1},
    "container": {"image": "x", "deps": ["a", "b"], "memory_limit": 1 << 40, "auth_disabled": True},
    "engine": {"pool_size": 3, "zygote_forks": None, "lib_dir": "/x"},
    "audit": {"path": "x", "keep": 2, "redact": ["a.b"], "sync": "always"},
    "answer": {"accept": True, "reason": "x", "args": {}, "always": False},
    "wrong": {"executor": 1, "env": ["A=b"], "pool_size": 1 << 40, "cwd": "a\0b"},
}

POOL = {"pool": "workcell", "port": 8080, "memory": 1 << 29, "cpu": 50000, "runtime_class": "gvisor"}
POD = {
    "metadata": {"name": "pool-1", "namespace": "agents", "uid": "0f-1", "resourceVersion": "7", "labels": {"workcell.state": "idle"}},
    "spec": {
        "automountServiceAccountToken": False, "nodeName": "node-1", "hostUsers": False, "runtimeClassName": "gvisor",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, "appArmorProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "server", "image": "i", "resources": {"limits": {"memory": "512Mi", "cpu": "500m"}},
                        "volumeMounts": [{"name": "run", "mountPath": "/run"}],
                        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}}],
        "volumes": [{"name": "run", "emptyDir": {}}, {"name": "all", "projected": {"sources": [{"serviceAccountToken": {}}]}}]},
    "status": {"phase": "Running", "podIP": "10.1.2.3", "conditions": [{"type": "Ready", "status": "True"}],
               "containerStatuses": [{"restartCount": 0, "state": {"running": {}}}]}}


def pods():
    """The options of a pool and a pod, in a line each."""
    def seed(options, **change):
        return json.dumps(options).encode() + b"\n" + json.dumps({**POD, **change}).encode()

    yield "idle", seed({})
    yield "limits", seed(POOL)
    yield "ended", seed({}, status={"phase": "Failed", "reason": "Evicted"})
    yield "killed", seed({}, status={"phase": "Running", "podIP": "fd00::1", "containerStatuses": [
        {"restartCount": 1, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]})
    yield "secret", seed({}, spec={**POD["spec"], "volumes": [{"name": "run", "secret": {}}], "hostNetwork": True, "ephemeralContainers": [{}]})
    yield "quantity", b"1.5Gi"


for target, seeds in (
    ("pod", pods()), ("json_options", ((name, json.dumps(value).encode()) for name, value in OPTIONS.items())),
    ("uvlock", (("whole", UV_LOCK), ("other", b"version = 2\n"))), ("frame", frames()), ("json_check", JSON.items()), ("ring", rings()), ("answer", answers()), ("output", outputs()),
    ("text", TEXTS.items()), ("jsonrpc", calls()), ("embeddings", EMBEDDINGS.items()), ("gen", schemas()),
    ("json_find", ((name, data) for name, data in JSON.items() if name != "deep")),
    ("mcp_tools", ((name, json.dumps(value).encode()) for name, value in TOOL_LISTS.items())),
    ("connect", ((name, b"\x01\x00" + text) for name, text in MESSAGES.items())),
    ("sse", ((name, b"\x09\x00" + text) for name, text in STREAMS.items())),
    ("tar", ((name, b"\x40\x02" + text) for name, text in archives().items())),
    ("sandbox_policy", POLICIES.items()), ("egress", PROXY.items()), ("mcp_server", clients()),
    ("wordpiece", {"words": b"The there, caf\xc3\xa9.", "lines": b"[CLS]\n[SEP]\n[UNK]\na\n"}.items()),
    ("mcp_uri", {"plain": b"app://x\0app://x", "two": b"app://{a}/x/{+b}\0app://1/x/2%2F3/4", "ours": b"a:{v}\0reports/q 3.csv"}.items()),
    ("jupyter", jupyter()), ("request", REQUESTS.items()), ("openapi", openapi()),
):
    for name, data in seeds:
        write(target, name, data)
