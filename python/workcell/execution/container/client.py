"""A client of session servers (docs/server.md), with the names of py-code-mode.

:class:`workcell.ContainerExecutor` with a ``remote_url`` opens a session there with all methods of sessions; this is the plain HTTP API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import quote, urlencode

from ..._remote import INSTALL_SECONDS, RemoteSpace
from ...artifacts.tables import from_bytes, to_bytes
from ...errors import EngineError, SessionExpiredError
from ..executors import in_thread

#: Past a cell's own timeout, for the way there and back.
_MORE_SECONDS = 30.0


@dataclass
class ExecuteResult:
    """The result of a cell."""

    value: Any
    stdout: str
    error: Optional[str]
    execution_time_ms: float
    session_id: str

    @property
    def is_ok(self) -> bool:
        """Whether it ended without an error."""
        return self.error is None


@dataclass
class HealthResult:
    """The state of the server."""

    status: str
    uptime_seconds: float


@dataclass
class InfoResult:
    """Tools, workflows and artifacts of the server."""

    tools: List[Dict[str, Any]]
    workflows: List[Dict[str, Any]]
    artifacts_path: str

    @property
    def skills(self) -> List[Dict[str, Any]]:
        """The older name."""
        return self.workflows


@dataclass
class ResetResult:
    """A session that has ended."""

    status: str
    session_id: str


class _Requests(RemoteSpace):
    """Requests with the client's session."""

    client: "SessionClient"

    def _bound(self, anew: bool = False) -> Optional[str]:
        return self.client.session_id


class SessionClient:
    """One session of a server. It is opened by the first cell, or by :meth:`init_session`."""

    def __init__(self, base_url: str = "http://localhost:8080", timeout: float = 30.0, auth_token: Optional[str] = None) -> None:
        self.base_url, self.timeout = base_url, timeout
        self.session_id: Optional[str] = None
        self._workspace: Any = _UNBOUND
        self._requests = _Requests(base_url, auth_token, None)
        self._requests.client = self

    async def __aenter__(self) -> "SessionClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session."""
        session, self.session_id = self.session_id, None
        if session is not None:
            self._requests._session = session
            await in_thread(self._requests.close)

    async def _ask(self, operation: str, method: str, path: str, body: Any = None, timeout: Optional[float] = None) -> Any:
        name = {"name": body.get("name", "")} if isinstance(body, Mapping) else {"name": path.rpartition("/")[2]}
        try:
            answer = await in_thread(self._requests.ask, operation, name, method, path, body,
                                     timeout=self.timeout if timeout is None else timeout)
        except EngineError as error:
            if str(error) == "Invalid session ID":
                raise SessionExpiredError("the server no longer knows the session: init_session() opens another") from None
            raise
        return answer.json()

    async def _session(self) -> None:
        """After a reset, one of the same workspace again."""
        if self.session_id is None and self._workspace is not _UNBOUND:
            await self.init_session(self._workspace)

    # -- cells

    async def init_session(self, workspace_id: Optional[str] = None) -> str:
        """Opens a session, in a workspace if one is named; returns its id."""
        self.session_id = None
        body = {} if workspace_id is None else {"workspace_id": workspace_id}
        self.session_id = str((await self._ask("sessions.open", "POST", "/sessions", body))["session_id"])
        self._workspace = workspace_id
        return self.session_id

    async def execute(self, code: str, timeout: Optional[float] = None) -> ExecuteResult:
        """Runs a cell. The request waits longer than the cell may take."""
        await self._session()
        body = {"code": code} if timeout is None else {"code": code, "timeout": timeout}
        found = await self._ask("sessions.execute", "POST", "/execute", body, max(self.timeout, timeout or 0) + _MORE_SECONDS)
        self.session_id = str(found["session_id"])
        return ExecuteResult(found["value"], found["stdout"], found["error"], found["execution_time_ms"], self.session_id)

    async def reset(self) -> ResetResult:
        """Ends the session; the next cell has a new one."""
        found = await self._ask("sessions.reset", "POST", "/reset", {})
        self.session_id = None
        return ResetResult(found["status"], found["session_id"])

    async def health(self) -> HealthResult:
        """Asks whether the server works; needs no token."""
        found = await self._ask("health", "GET", "/health")
        return HealthResult(found["status"], found["uptime_seconds"])

    async def info(self) -> InfoResult:
        """Tools, workflows, and where artifacts are."""
        await self._session()
        found = await self._ask("info", "GET", "/info")
        return InfoResult(found["tools"], found["workflows"], found["artifacts_path"])

    # -- tools, workflows, artifacts

    async def list_tools(self) -> List[Dict[str, Any]]:
        """As :meth:`workcell.Session.list_tools`."""
        return list(await self._ask("tools.list", "GET", "/api/tools"))

    async def search_tools(self, query: str, limit: int = 10) -> List[Dict[str, Any]]:
        """The entries that match, best match first."""
        return list(await self._ask("tools.search", "GET", "/api/tools/search?" + urlencode({"query": query, "limit": limit})))

    async def list_workflows(self) -> List[Dict[str, Any]]:
        """``[{name, description, params}]``"""
        await self._session()
        return list(await self._ask("workflows.list", "GET", "/api/workflows"))

    async def search_workflows(self, query: str, limit: int = 5) -> List[Dict[str, Any]]:
        """The entries that match, best match first."""
        await self._session()
        query = urlencode({"query": query, "limit": limit})
        return list(await self._ask("workflows.search", "GET", "/api/workflows/search?" + query))

    async def get_workflow(self, name: str) -> Optional[Dict[str, Any]]:
        """A workflow with its ``source``, or None if it does not exist."""
        from ...errors import WorkflowNotFoundError

        await self._session()
        try:
            found: Optional[Dict[str, Any]] = await self._ask("workflows.get", "GET", "/api/workflows/" + quote(name, safe=""))
        except WorkflowNotFoundError:
            return None
        return found

    async def create_workflow(self, name: str, source: str, description: str = "") -> Dict[str, Any]:
        """Stores a workflow; raises ValueError if it is not valid."""
        await self._session()
        body = {"name": name, "source": source, "description": description}
        return dict(await self._ask("workflows.create", "POST", "/api/workflows", body))

    async def delete_workflow(self, name: str) -> bool:
        """Deletes a workflow, and returns whether it existed."""
        await self._session()
        return bool(await self._ask("workflows.delete", "DELETE", "/api/workflows/" + quote(name, safe="")))

    list_skills, search_skills, get_skill = list_workflows, search_workflows, get_workflow
    create_skill, delete_skill = create_workflow, delete_workflow

    async def list_artifacts(self) -> List[Dict[str, Any]]:
        """``[{name, path, description, metadata, created_at}]``"""
        await self._session()
        return list(await self._ask("artifacts.list", "GET", "/api/artifacts"))

    async def load_artifact(self, name: str) -> Any:
        """Returns the data in its original type; raises ArtifactNotFoundError."""
        await self._session()
        return from_bytes(*await in_thread(self._requests.load_artifact, name))

    async def save_artifact(self, name: str, data: Any, description: str = "",
                            metadata: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Text, bytes, JSON data, a DataFrame."""
        await self._session()
        kind, payload = to_bytes(data)
        return dict(await in_thread(self._requests.save_artifact, name, kind, payload, description, metadata or {}))

    async def delete_artifact(self, name: str) -> None:
        """Raises ArtifactNotFoundError if it does not exist."""
        await self._session()
        await self._ask("artifacts.delete", "DELETE", "/api/artifacts/" + quote(name))

    # -- packages

    async def install_deps(self, packages: List[str]) -> Dict[str, Any]:
        """``{installed, already_present, removed, not_found, failed}``"""
        return dict(await self._ask("deps.add", "POST", "/install_deps", {"packages": packages}, INSTALL_SECONDS))

    async def uninstall_deps(self, packages: List[str]) -> Dict[str, Any]:
        """The same."""
        return dict(await self._ask("deps.remove", "POST", "/uninstall_deps", {"packages": packages}, INSTALL_SECONDS))

    async def api_list_deps(self) -> List[str]:
        """``["pandas>=2", ...]``"""
        return list(await self._ask("deps.list", "GET", "/api/deps"))

    async def api_add_dep(self, package: Union[str, Sequence[str]]) -> Dict[str, Any]:
        """``{installed, already_present, failed}``; a list is resolved together."""
        packages = package if isinstance(package, str) else list(package)
        return dict(await self._ask("deps.add", "POST", "/api/deps/add", {"package": packages}, INSTALL_SECONDS))

    async def api_remove_dep(self, package: str) -> Dict[str, Any]:
        """``{removed, not_found, failed, removed_from_config}``"""
        return dict(await self._ask("deps.remove", "POST", "/api/deps/remove", {"package": package}, INSTALL_SECONDS))

    async def api_sync_deps(self) -> Dict[str, Any]:
        """``{installed, already_present, failed}``"""
        return dict(await self._ask("deps.sync", "POST", "/api/deps/sync", timeout=INSTALL_SECONDS))


_UNBOUND = object()

__all__ = ["SessionClient", "ExecuteResult", "HealthResult", "InfoResult", "ResetResult"]
