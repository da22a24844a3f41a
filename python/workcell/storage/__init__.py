"""Where workflows, artifacts and deps are kept."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional, Protocol, Union, runtime_checkable
from urllib.parse import parse_qsl, quote, urlencode

from .._engine import default_engine
from ..artifacts import ArtifactStore
from ..deps import DepsNamespace, DepsStore
from ..workflows import WorkflowLibrary, WorkflowStore

if TYPE_CHECKING:
    from .._core import SpaceHandle

_WORKSPACE = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True)
class FileStorageAccess:
    """The paths of a file storage."""

    workflows_path: Path
    artifacts_path: Path
    vectors_path: Optional[Path] = None
    root_path: Optional[Path] = None

    @property
    def skills_path(self) -> Path:
        """The older name of ``workflows_path``."""
        return self.workflows_path


@dataclass(frozen=True)
class RedisStorageAccess:
    """The prefixes of a Redis storage."""

    redis_url: str
    workflows_prefix: str
    artifacts_prefix: str
    vectors_prefix: Optional[str] = None
    root_prefix: Optional[str] = None

    @property
    def skills_prefix(self) -> str:
        """The older name of ``workflows_prefix``."""
        return self.workflows_prefix


StorageAccess = Union[FileStorageAccess, RedisStorageAccess]


@runtime_checkable
class StorageBackend(Protocol):
    """The interface of a storage."""

    @property
    def workspace_id(self) -> Optional[str]:
        """The workspace; None: the storage itself."""
        ...

    def space_options(self) -> Dict[str, Any]:
        """The storage as options of the library: ``{"storage": "/folder or URL", "workspace_id": ...}``."""
        ...

    def get_workflow_library(self) -> WorkflowLibrary:
        """Its workflows."""
        ...

    def get_artifact_store(self) -> ArtifactStore:
        """Its artifacts."""
        ...

    def get_serializable_access(self) -> StorageAccess:
        """Its paths or prefixes, as data."""
        ...


def check_workspace_id(workspace_id: Optional[str]) -> Optional[str]:
    """ValueError unless it is a workspace's name."""
    if workspace_id is not None and not _WORKSPACE.fullmatch(workspace_id):
        raise ValueError("workspace_id must be 1-128 characters using only ASCII letters, digits, underscores, or hyphens")
    return workspace_id


class _Storage:
    """What both have in common: a space of their own, for when no session is there."""

    def __init__(self, workspace_id: Optional[str]) -> None:
        self._workspace_id = check_workspace_id(workspace_id)
        self._lock = threading.Lock()
        self._space: Optional["SpaceHandle"] = None
        self._pid = 0

    @property
    def workspace_id(self) -> Optional[str]:
        """The workspace; None: the storage itself."""
        return self._workspace_id

    def space_options(self) -> Dict[str, Any]:
        """The storage as options of the library."""
        raise NotImplementedError

    def space(self) -> "SpaceHandle":
        """A space of the library on this storage, without tools."""
        from .._core import SpaceHandle

        with self._lock:
            if self._space is None or self._pid != os.getpid():
                self._space = SpaceHandle(default_engine(), self.space_options())
                self._pid = os.getpid()
            return self._space

    def close(self) -> None:
        """Closes the storage; the data stays."""
        with self._lock:
            space, self._space = self._space, None
        if space is not None:
            space.close()

    def get_workflow_library(self) -> WorkflowLibrary:
        """Its workflows."""
        return WorkflowLibrary(store=self.get_workflow_store())

    def get_workflow_store(self) -> WorkflowStore:
        """The same."""
        return WorkflowStore(self)

    get_skill_library, get_skill_store = get_workflow_library, get_workflow_store

    def get_deps(self) -> DepsNamespace:
        """Its packages."""
        return DepsNamespace(DepsStore(self))

    def get_vector_store(self) -> None:
        """None: vectors are kept by the library (docs/workflows.md)."""
        return None


class FileStorage(_Storage):
    """Plain files in a folder, made when missing: ``workflows/*.py``, ``artifacts/``, ``requirements.txt``."""

    def __init__(self, base_path: Union[str, "os.PathLike[str]"], workspace_id: Optional[str] = None) -> None:
        super().__init__(workspace_id)
        self.base_path = Path(base_path)
        self.base_path.mkdir(parents=True, exist_ok=True)

    @property
    def root(self) -> Path:
        """The folder; with a workspace, the workspace's folder."""
        base = self.base_path.resolve()
        return base / "workspaces" / self._workspace_id if self._workspace_id else base

    def space_options(self) -> Dict[str, Any]:
        """The storage as options of the library."""
        return {"storage": os.fspath(self.base_path.resolve()), "workspace_id": self._workspace_id}

    def get_artifact_store(self) -> ArtifactStore:
        """Its artifacts."""
        return ArtifactStore(self, os.fspath(self.root / "artifacts"))

    def get_serializable_access(self) -> FileStorageAccess:
        """Its paths, as data."""
        root = self.root
        return FileStorageAccess(root / "workflows", root / "artifacts", root / ".cache", self.base_path.resolve())

    def to_bootstrap_config(self) -> Dict[str, str]:
        """For :func:`workcell.bootstrap_namespaces`, in another process."""
        found = {"type": "file", "base_path": os.fspath(self.base_path)}
        if self._workspace_id:
            found["workspace_id"] = self._workspace_id
        return found

    def __repr__(self) -> str:
        return "FileStorage(%r)" % os.fspath(self.base_path)


class RedisStorage(_Storage):
    """A Redis server, with the key layout of py-code-mode.

    Give a ``url``, or a client of the package ``redis`` from which one can be made. It connects at its first use.
    """

    def __init__(self, url: Optional[str] = None, redis: Any = None, prefix: str = "py_code_mode",
                 workspace_id: Optional[str] = None) -> None:
        if url is not None and redis is not None:
            raise ValueError("Provide either 'url' or 'redis', not both")
        if url is None and redis is None:
            raise ValueError("Either 'url' or 'redis' must be provided")
        super().__init__(workspace_id)
        self.url = url if url is not None else _url_of_client(redis)
        if not self.url.startswith(("redis://", "rediss://", "redis+unix://", "unix://")):
            raise ValueError("the URL of a Redis server must begin with redis://, rediss:// or redis+unix://")
        self._client = redis
        self.prefix = prefix

    @property
    def client(self) -> Any:
        """A client of the package ``redis``: the given one, or one for the URL. Workcell itself does not use it."""
        if self._client is None:
            import redis  # type: ignore

            self._client = redis.from_url(self.url)
        return self._client

    def space_options(self) -> Dict[str, Any]:
        """The storage as options of the library."""
        # Not taken apart further: urlunsplit() would change redis+unix:///path, whose scheme it does not know.
        place, _, given = self.url.partition("#")[0].partition("?")
        query = [each for each in parse_qsl(given) if each[0] != "prefix"] + [("prefix", self.prefix)]
        return {"storage": place + "?" + urlencode(query, quote_via=quote), "workspace_id": self._workspace_id}

    @property
    def _scope(self) -> str:
        return "%s:ws:%s" % (self.prefix, self._workspace_id) if self._workspace_id else self.prefix

    def get_artifact_store(self) -> ArtifactStore:
        """Its artifacts."""
        return ArtifactStore(self, self._scope + ":artifacts")

    def get_serializable_access(self) -> RedisStorageAccess:
        """Its prefixes, as data."""
        return RedisStorageAccess(self.url, self._scope + ":workflows", self._scope + ":artifacts",
                                  self._scope + ":vectors", self.prefix)

    def to_bootstrap_config(self) -> Dict[str, str]:
        """For :func:`workcell.bootstrap_namespaces`, in another process."""
        found = {"type": "redis", "url": self.url, "prefix": self.prefix}
        if self._workspace_id:
            found["workspace_id"] = self._workspace_id
        return found

    def __repr__(self) -> str:
        return "RedisStorage(prefix=%r)" % self.prefix  # the URL may hold a password


def redis_storage(client: Any, prefix: str, *names: str) -> RedisStorage:
    """The storage that a store with the keys ``P:NAME`` is a part of."""
    for name in names:
        if prefix.endswith(":" + name):
            return RedisStorage(redis=client, prefix=prefix[:-len(name) - 1])
    raise ValueError("the prefix of this store must end with %s: it is a part of RedisStorage(prefix=...)"
                     % " or ".join("':%s'" % name for name in names))


def _url_of_client(client: Any) -> str:
    pool = client.connection_pool
    known = pool.connection_kwargs
    scheme = "rediss" if "SSL" in getattr(pool.connection_class, "__name__", "") else "redis"
    user, password = known.get("username"), known.get("password")
    account = ""
    if password is not None:
        account = "%s:%s@" % (quote(user or "", safe=""), quote(password, safe=""))
    if known.get("path"):
        return "unix://%s%s?db=%s" % (account, known["path"], known.get("db") or 0)
    return "%s://%s%s:%s/%s" % (scheme, account, known.get("host", "localhost"), known.get("port", 6379), known.get("db") or 0)


__all__ = ["StorageBackend", "FileStorage", "RedisStorage", "FileStorageAccess", "RedisStorageAccess", "StorageAccess"]
