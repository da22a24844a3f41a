"""A host for test_namespaces.py: it keeps tools, workflows, artifacts and deps in dicts.  Needs no pytest."""

import json

import fake_workcell  # noqa: F401  puts the kernel on the path
from workcell_kernel import ns_artifacts


def parameter(name, kind="string", required=False, default=None, description=""):
    return {"name": name, "type": kind, "required": required, "default": default, "description": description}


def curl():
    return {
        "name": "curl", "description": "Fetches URLs", "tags": ["net"],
        "callables": [
            {"name": "get", "description": "Fetch a page", "parameters": [
                parameter("timeout", "integer", default=5), parameter("url", required=True, description="where from"),
                parameter("header", "array"), parameter("max-time", "number")]},
            {"name": "list", "description": "A callable with a taken name", "parameters": []},
        ],
    }


class Backend:
    """A host that keeps everything in dicts. Wrong requests answer with an error, as a real one does."""

    def __init__(self):
        self.tools = {"curl": curl(), "my-tool": {"name": "my-tool", "description": "", "tags": [], "callables": [
            {"name": "my-tool", "description": "", "parameters": [parameter("x", "integer", required=True)]}]}}
        self.generation = None  # a number: the host tells it
        self.workflows = {}
        self.artifacts = {}
        self.handles = {}
        self.bulk = None  # memory that is shared with the kernel
        self.deps = []
        self.site = self.bin = None
        self.methods = []
        self.most_handles = 0

    def __call__(self, host, ident, method, args, raw):
        self.methods.append(method)
        try:
            result = getattr(self, method.replace(".", "_"))(args, raw)
        except Failure as failure:
            host.fail(ident, **dict({"namespace": method.split(".")[0], "operation": method.split(".")[1]},
                                    **failure.error))
            return
        raw = None
        if isinstance(result, tuple):
            result, raw = result
        host.reply(ident, result, raw)

    # tools

    def change_tools(self, **tools):
        self.tools.update(tools)
        self.tools = {name: tool for name, tool in self.tools.items() if tool}
        if self.generation is not None:
            self.generation += 1

    def tools_list(self, args, raw):
        if self.generation is None:
            return list(self.tools.values())
        if args.get("generation") == self.generation:
            return {"generation": self.generation}
        return {"generation": self.generation, "tools": list(self.tools.values())}

    def tools_search(self, args, raw):
        found = [tool for tool in self.tools.values() if args["query"] in json.dumps(tool)]
        return found[:args["limit"]]

    def tools_call(self, args, raw):
        assert set(args) == {"name", "args"}
        name, _, callable_name = args["name"].partition(".")
        tool = self.tools.get(name)
        if tool is None:
            raise Failure(type="ToolNotFoundError", message="Tool %r not found" % name, code="not_found")
        if callable_name and callable_name not in [c["name"] for c in tool["callables"]]:
            raise Failure(type="ToolCallError", message="Tool %r failed: Recipe not found" % name, code="not_found")
        given = args["args"]
        if "bad" in given:
            raise Failure(type="ToolCallError", code="invalid",
                          message="Tool 'curl' failed: Unknown argument 'bad'. Known: url, timeout")
        kind = given.get("want")
        if kind == "fail":
            raise Failure(type="ToolCallError", code="io", message="Tool 'curl' failed: exit 7")
        answers = {"bytes": b"\0\1", "text": "é\n".encode(), "json": b"[1, 2]", "empty": b""}
        if kind in answers:
            return {"raw": "text" if kind == "empty" else kind}, answers[kind]
        return {"value": {"name": args["name"], "args": given}}

    # workflows

    def workflows_list(self, args, raw):
        return [{k: v for k, v in w.items() if k != "source"} for w in self.workflows.values()]

    def workflows_search(self, args, raw):
        return [w for w in self.workflows_list(args, raw) if args["query"] in w["name"]][:args["limit"]]

    def workflows_get(self, args, raw):
        return self.workflows.get(args["name"])

    def workflows_create(self, args, raw):
        if args["name"] in self.workflows and not args["overwrite"]:
            raise Failure(type="ValueError", code="invalid", message="Workflow already exists: %s" % args["name"])
        self.workflows[args["name"]] = {k: args[k] for k in ("name", "source", "description", "parameters")}
        return {k: args[k] for k in ("name", "description", "parameters")}

    def workflows_delete(self, args, raw):
        return self.workflows.pop(args["name"], None) is not None

    # artifacts

    def meta(self, name):
        kind, data, description, metadata = self.artifacts[name]
        return {"name": name, "path": "/a/" + name, "description": description, "created_at": "2025-01-01T00:00:00+00:00",
                "metadata": dict(metadata, _data_type=kind)}

    def found(self, args):
        if ".." in args["name"]:
            raise Failure(type="ValueError", message="Path traversal attempt detected: %r" % args["name"])
        if args["name"] not in self.artifacts:
            raise Failure(type="ArtifactNotFoundError", code="not_found", message="Artifact %r not found" % args["name"])
        return self.artifacts[args["name"]]

    def artifacts_save_begin(self, args, raw):
        handle = args["key"]
        self.handles[handle] = (args, bytearray())
        self.most_handles = max(self.most_handles, len(self.handles))
        return {"handle": handle}

    def artifacts_save_chunk(self, args, raw):
        if "at" in args:
            assert raw is None
            raw = bytes(self.bulk[args["at"]:args["at"] + args["size"]])
        assert len(raw) <= ns_artifacts.CHUNK
        if raw.startswith(b"FULL"):
            raise Failure(type="OSError", message="No space left on device")
        self.handles[args["handle"]][1].extend(raw)

    def artifacts_save_commit(self, args, raw):
        begun, data = self.handles.pop(args["handle"])
        assert begun.get("size") in (None, len(data))
        self.artifacts[begun["name"]] = (begun["type"], bytes(data), begun["description"], begun["metadata"])
        return self.meta(begun["name"])

    def artifacts_save_abort(self, args, raw):
        self.handles.pop(args["key"], None)

    def artifacts_load_open(self, args, raw):
        kind, data, _, metadata = self.found(args)
        handle = args["key"]
        self.handles[handle] = data
        return {"handle": handle, "size": len(data), "type": kind, "metadata": metadata}

    def artifacts_load_chunk(self, args, raw):
        data = self.handles[args["handle"]][args["offset"]:args["offset"] + args["size"]]
        if "at" in args:
            self.bulk[args["at"]:args["at"] + len(data)] = data
            return len(data)
        return len(data), data

    def artifacts_load_close(self, args, raw):
        self.handles.pop(args["key"], None)  # there may have been no answer to load_open

    def artifacts_get(self, args, raw):
        return self.meta(args["name"]) if args["name"] in self.artifacts else None

    def artifacts_list(self, args, raw):
        return [self.meta(name) for name in self.artifacts]

    def artifacts_exists(self, args, raw):
        return args["name"] in self.artifacts

    def artifacts_delete(self, args, raw):
        self.artifacts.pop(args["name"], None)

    def artifacts_path(self, args, raw):
        return "/a"

    # deps

    def deps_add(self, args, raw):
        if args["package"] == "no":
            raise Failure(type="RuntimeDepsDisabledError", code="deps_disabled",
                          message="Runtime dependency installation is disabled. Dependencies must be pre-configured "
                                  "before session start.")
        if args["package"] == "broken":
            raise Failure(type="DepsError", message="No matching distribution found for broken")
        self.deps.append(args["package"])
        return {"installed": [args["package"]], "already_present": [], "failed": [], "site": self.site,
                "bin": self.bin}

    def deps_sync(self, args, raw):
        return {"installed": [], "already_present": self.deps, "failed": []}

    def deps_remove(self, args, raw):
        known = args["package"] in self.deps
        if known:
            self.deps.remove(args["package"])
        return known

    def deps_list(self, args, raw):
        return self.deps


class Failure(Exception):
    def __init__(self, **error):
        super().__init__(error)
        self.error = error
