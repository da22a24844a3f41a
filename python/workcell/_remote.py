"""The storage, tools and packages of a session server, over its HTTP API (docs/server.md), in the shape of a space."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple
from urllib.parse import quote, urlencode, urlsplit

from ._core import SpaceHandle, part_value
from .errors import ConfigurationError, EngineError, ServerError, from_operation

#: Seconds for an answer; installing and tools take longer.
ANSWER_SECONDS, INSTALL_SECONDS = 60.0, 900.0
#: More than this is not read.
MAX_ANSWER_BYTES = 1 << 30
PIECE_BYTES = 1 << 18
_TYPE = "_data_type"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self.socket_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.socket_path)


class _Answer:
    def __init__(self, status: int, kind: str, body: bytes) -> None:
        self.status, self.kind, self.body = status, kind.partition(";")[0].strip(), body

    def json(self) -> Any:
        try:
            return json.loads(self.body or b"null")
        except ValueError:
            raise EngineError("the server's answer is not JSON (status %d)" % self.status) from None

    def error(self) -> Tuple[str, str]:
        """(message, word)"""
        try:
            found = json.loads(self.body)
            detail, word = found["detail"], found.get("code") or "invalid"
        except (ValueError, KeyError, TypeError, AttributeError):
            return "the server answered with status %d" % self.status, "protocol"
        if isinstance(detail, list):
            detail = "; ".join(str(each.get("msg", each)) if isinstance(each, dict) else str(each) for each in detail)
        return str(detail), str(word)


def _read(response: http.client.HTTPResponse) -> bytes:
    """In pieces: Python 3.9 makes a buffer of as many bytes as it is asked to read at most."""
    pieces: List[bytes] = []
    size = 0
    while True:
        piece = response.read(PIECE_BYTES)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise ServerError("the server's answer is larger than %d bytes" % MAX_ANSWER_BYTES)


class RemoteSpace(SpaceHandle):
    """What the facades of a remote session ask. With a workspace, requests name a session of the server that is bound to it."""

    def __init__(self, url: str, token: Optional[str], workspace: Optional[str], ca: Optional[str] = None) -> None:
        self._url, self._token, self._workspace = url, token, workspace
        self._tls = ssl.create_default_context(cafile=ca) if url.startswith("https:") else None
        self._session: Optional[str] = None
        self._lock = threading.Lock()

    @property
    def native(self) -> Any:  # type: ignore[override]
        raise ConfigurationError("tools and middlewares of a remote session belong to the server and cannot be added here")

    # -- requests

    def _connect(self, timeout: float) -> Tuple[http.client.HTTPConnection, str]:
        if self._url.startswith("unix:"):
            return _UnixConnection(self._url[5:], timeout), ""
        parts = urlsplit(self._url)
        if parts.hostname is None:
            raise ConfigurationError("the URL of the server has no host")
        made: http.client.HTTPConnection
        if self._tls is not None:
            made = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=self._tls)
        else:
            made = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        return made, parts.path.rstrip("/")

    def _request(self, method: str, path: str, body: Optional[bytes] = None, kind: str = "application/json",
                 session: Optional[str] = None, timeout: float = ANSWER_SECONDS) -> _Answer:
        headers = {"Connection": "close"}
        if self._token is not None:
            headers["Authorization"] = "Bearer " + self._token
        if session is not None:
            headers["X-Session-ID"] = session
        if body is not None:
            headers["Content-Type"] = kind
        connection, prefix = self._connect(timeout)
        try:
            connection.request(method, prefix + path, body=body, headers=headers)
            response = connection.getresponse()
            return _Answer(response.status, response.getheader("Content-Type") or "", _read(response))
        except (OSError, http.client.HTTPException) as error:
            raise ServerError("the request to the server failed: %s" % (str(error) or type(error).__name__)) from None
        finally:
            connection.close()

    def _bound(self, anew: bool = False) -> Optional[str]:
        """The id of the server's session for the workspace, or None."""
        if self._workspace is None:
            return None
        with self._lock:
            if self._session is None or anew:
                body = json.dumps({"workspace_id": self._workspace}).encode()
                answer = self._request("POST", "/v1/sessions", body)
                if answer.status != 201:
                    raise from_operation(Exception(*answer.error()), "sessions.open", {})
                self._session = str(answer.json()["session_id"])
            return self._session

    def ask(self, operation: str, args: Mapping[str, Any], method: str, path: str, body: Any = None,
            raw: Optional[bytes] = None, timeout: float = ANSWER_SECONDS) -> _Answer:
        """One request; errors are those of the operation. A session that has expired meanwhile is opened again."""
        data, kind = (raw, "application/octet-stream") if raw is not None else (
            None if body is None else json.dumps(body).encode(), "application/json")
        answer = self._request(method, path, data, kind, self._bound(), timeout)
        if self._workspace is not None and answer.status == 400 and answer.error()[0] == "Invalid session ID":
            answer = self._request(method, path, data, kind, self._bound(anew=True), timeout)
        if not 200 <= answer.status < 300:
            raise from_operation(Exception(*answer.error()), operation, args)
        return answer

    # -- operations

    def call_raw(self, method: str, raw: Optional[bytes], args: Dict[str, Any]) -> Tuple[Any, Optional[bytes]]:
        operation = _OPERATIONS.get(method)
        if operation is None:
            raise ConfigurationError("a session server does not offer %s" % method)
        return operation(self, method, args), None

    def call_tool(self, name: str, args: Mapping[str, Any]) -> Any:
        """In a session of the server: as code there would, with its policy."""
        answer = self.ask("tools.call", {"name": name}, "POST", "/api/tools/%s/call" % quote(name, safe=""),
                          body={"args": dict(args)}, timeout=INSTALL_SECONDS).json()
        if not answer.get("parts"):
            return answer["value"]
        found = [part_value(part["type"], part["text"].encode() if "text" in part else base64.b64decode(part["data"]))
                 for part in answer["parts"]]
        return found[0] if len(found) == 1 else found

    def save_artifact(self, name: str, kind: str, data: bytes, description: str, metadata: Mapping[str, Any]) -> Any:
        query = {"type": kind, "description": description, "metadata": json.dumps(dict(metadata))}
        path = "/api/artifacts/%s?%s" % (quote(name), urlencode(query, quote_via=quote))
        return self.ask("artifacts.save", {"name": name}, "PUT", path, raw=data).json()

    def load_artifact(self, name: str) -> Tuple[str, bytes]:
        answer = self.ask("artifacts.load", {"name": name}, "GET", "/api/artifacts/" + quote(name))
        if answer.kind == "application/json":  # a text comes quoted, and JSON is JSON
            value = answer.json()
            return ("text", value.encode("utf-8")) if isinstance(value, str) else ("json", answer.body)
        # Bytes, or a table in bytes: the listing knows.
        known = [each for each in self.call("artifacts.list") if each["name"] == name]
        return (str(known[0]["metadata"].get(_TYPE) or "bytes") if known else "bytes"), answer.body

    def close_native(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            try:
                self._request("DELETE", "/v1/sessions/" + session, timeout=5.0)
            except ServerError:
                pass  # a server that cannot be reached ends it when it has been idle


Operation = Callable[[RemoteSpace, str, Dict[str, Any]], Any]


def _get(path: str) -> Operation:
    return lambda space, method, args: space.ask(method, args, "GET", path + ("?" + urlencode(args) if args else "")).json()


def _post(path: str, timeout: float = ANSWER_SECONDS) -> Operation:
    return lambda space, method, args: space.ask(method, args, "POST", path, body=args, timeout=timeout).json()


def _workflow(found: Mapping[str, Any]) -> Dict[str, Any]:
    """The server tells of each parameter its description, or its type."""
    parameters = [{"name": name, "description": about} for name, about in (found.get("params") or {}).items()]
    return {**found, "parameters": parameters}


def _workflows(path: str) -> Operation:
    get = _get(path)

    def listed(space: RemoteSpace, method: str, args: Dict[str, Any]) -> List[Dict[str, Any]]:
        return [_workflow(each) for each in get(space, method, args)]

    return listed


def _get_workflow(space: RemoteSpace, method: str, args: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    from .errors import WorkflowNotFoundError

    try:
        return _workflow(space.ask(method, args, "GET", "/api/workflows/" + quote(args["name"], safe="")).json())
    except WorkflowNotFoundError:
        return None


def _create_workflow(space: RemoteSpace, method: str, args: Dict[str, Any]) -> Dict[str, Any]:
    body = {name: args[name] for name in ("name", "source", "description")}
    return _workflow(space.ask(method, args, "POST", "/api/workflows", body=body).json())


def _delete_workflow(space: RemoteSpace, method: str, args: Dict[str, Any]) -> bool:
    from .errors import WorkflowNotFoundError

    try:
        space.ask(method, args, "DELETE", "/api/workflows/" + quote(args["name"], safe=""))
    except WorkflowNotFoundError:
        return False
    return True


def _delete_artifact(space: RemoteSpace, method: str, args: Dict[str, Any]) -> None:
    from .errors import ArtifactNotFoundError

    try:
        space.ask(method, args, "DELETE", "/api/artifacts/" + quote(args["name"]))
    except ArtifactNotFoundError:
        pass  # one that is not there is fine


def _remove_dep(space: RemoteSpace, method: str, args: Dict[str, Any]) -> bool:
    return bool(space.ask(method, args, "POST", "/api/deps/remove", body=args, timeout=INSTALL_SECONDS).json()["removed"])


def _sync_deps(space: RemoteSpace, method: str, args: Dict[str, Any]) -> Any:
    return space.ask(method, args, "POST", "/api/deps/sync", timeout=INSTALL_SECONDS).json()


_OPERATIONS: Dict[str, Operation] = {
    "tools.list": _get("/api/tools"), "tools.search": _get("/api/tools/search"),
    "workflows.list": _workflows("/api/workflows"), "workflows.search": _workflows("/api/workflows/search"),
    "workflows.get": _get_workflow, "workflows.create": _create_workflow, "workflows.delete": _delete_workflow,
    "artifacts.list": _get("/api/artifacts"), "artifacts.delete": _delete_artifact,
    "deps.list": _get("/api/deps"), "deps.add": _post("/api/deps/add", INSTALL_SECONDS), "deps.remove": _remove_dep,
    "deps.sync": _sync_deps,
}
