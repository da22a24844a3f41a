"""What belongs to one token is not there for another: every route of the document that names a session, a batch, a task, a command or a run."""
import re

import pytest

import serving

# Bodies that the routes take; the others take none or an empty object.
BODIES = {
    "runs": {"code": "1"}, "batch": {"runs": ["1"]}, "commands": {"line": "true"}, "stdin": {"text": "x"}, "signal": {"signal": "TERM"},
    "resize": {"rows": 1, "cols": 1}, "checkpoints": {"name": "p"}, "rewind": {"name": "p"}, "race": {"codes": ["1"]}, "{id}": {"accept": True},
    "{approval}": {"accept": True},
}


@pytest.fixture(scope="module")
def server():
    with serving.shared("--executor", "subprocess") as made:
        yield made


def made_of(schema, document):
    """A small value that a schema accepts: for routes that are not in the table above."""
    if "$ref" in schema:
        return made_of(document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], document)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: made_of(schema["properties"][name], document) for name in schema.get("required", ())}
    if kind == "array":
        return [made_of(schema.get("items", {"type": "string"}), document)]
    return {"string": "x", "integer": schema.get("minimum", 1), "number": 1, "boolean": True}.get(kind)


def routes(document):
    for path, methods in sorted(document["paths"].items()):
        for method in sorted(methods):
            names = re.findall(r"{(\w+)(?:\.\.\.)?}", path)
            if set(names) & {"session", "batch", "task"} and method in ("get", "post", "put", "delete"):
                yield method.upper(), path, names


def test_nothing_of_another_token_is_there(server):
    alice, bob = "t0ken-of-alice", "t0ken-of-bob"
    session = server.ask("POST", "/v1/sessions", {}, token=alice).json["session_id"]
    base = "/v1/sessions/" + session
    server.ask("POST", base + "/checkpoints", {"name": "p"}, token=alice)
    values = {
        "session": session, "point": "p", "name": "p",
        "run": str(server.ask("POST", base + "/runs", {"code": "x = 1"}, token=alice).json["run_id"]),
        "command": server.ask("POST", base + "/commands", {"line": "sleep 60"}, token=alice).json["command_id"],
        "batch": server.ask("POST", base + "/batch", {"runs": ["1"]}, token=alice).json["batch_id"],
        "task": server.ask("POST", base + "/checkpoints", {"name": "q"}, token=alice, headers={"Prefer": "respond-async"}).json["task_id"],
    }
    document = server.ask("GET", "/openapi.json", token=alice).json
    seen = 0
    for method, path, names in routes(document):
        at = re.sub(r"{(\w+)(?:\.\.\.)?}", lambda found: values.get(found[1], "1"), path)
        last = path.rsplit("/", 1)[1]
        content = document["paths"][path][method.lower()].get("requestBody", {}).get("content", {}).get("application/json")
        body = None if content is None else BODIES[last] if last in BODIES else made_of(content["schema"], document)
        query = "?path=f" if last == "files" else ""
        answer = server.ask(method, at + query, body, token=bob)
        assert answer.status in (403, 404), (method, path, answer)
        assert answer.code in ("not_found", "forbidden", "session_unknown", "session_expired"), (method, path, answer)
        seen += 1
    assert seen >= 25, seen
    # They are all still there for their owner.
    assert server.ask("GET", "%s/commands/%s" % (base, values["command"]), token=alice).json["state"] == "running"
    assert server.ask("GET", "/v1/batches/" + values["batch"], token=alice).status == 200
    assert server.ask("GET", "/v1/tasks/" + values["task"], token=alice).status == 200
    assert server.ask("GET", "/v1/tasks", token=bob).json["tasks"] == []
    assert server.ask("POST", base + "/runs", {"code": "x"}, token=alice).status == 202
    assert server.ask("GET", "/v1/sessions", token=bob).json["sessions"] == []
    server.ask("DELETE", base, token=alice)
