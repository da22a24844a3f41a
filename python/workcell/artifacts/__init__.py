"""Artifacts: named data that outlives sessions."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Union

from .._part import StoragePart, time_of
from ..errors import ArtifactNotFoundError
from .tables import from_bytes, to_bytes

_INTERNAL = "_data_type"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


@dataclass
class Artifact:
    """The description of an artifact."""

    name: str
    path: str
    description: str = ""
    metadata: Dict[str, Any] = field(default_factory=dict)
    created_at: datetime.datetime = field(default_factory=_now)

    def to_dict(self) -> Dict[str, Any]:
        """``{name, path, description, metadata, created_at}``, the time as ISO text."""
        return {"name": self.name, "path": self.path, "description": self.description, "metadata": dict(self.metadata),
                "created_at": self.created_at.isoformat()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Artifact":
        """The inverse of to_dict()."""
        return cls(data["name"], data.get("path") or "", data.get("description") or "", own_metadata(data),
                   time_of(data.get("created_at")))


def own_metadata(data: Mapping[str, Any]) -> Dict[str, Any]:
    """Without what is kept for ourselves."""
    return {key: value for key, value in (data.get("metadata") or {}).items() if key != _INTERNAL}


def artifact_dict(data: Mapping[str, Any]) -> Dict[str, Any]:
    """The shape of every listing of artifacts."""
    return {"name": data["name"], "path": data.get("path"), "description": data.get("description") or "",
            "metadata": own_metadata(data), "created_at": data.get("created_at"), "size": data.get("size")}


class ArtifactStore(StoragePart):
    """The artifacts of a storage, from the host. All methods block."""

    def __init__(self, storage: Any, path: str = "") -> None:
        super().__init__(storage)
        self.path = path

    def save(self, name: str, data: Any, description: str = "", metadata: Optional[Mapping[str, Any]] = None) -> Artifact:
        """Replaces an artifact of the same name."""
        kind, payload = to_bytes(data)
        return Artifact.from_dict(self._space().save_artifact(name, kind, payload, description, metadata or {}))

    def load(self, name: str) -> Any:
        """Returns the data in its original type; raises ArtifactNotFoundError."""
        return from_bytes(*self._space().load_artifact(name))

    def get(self, name: str) -> Optional[Artifact]:
        """The description of an artifact, or None if it does not exist."""
        found = self._space().call("artifacts.get", name=name)
        return None if found is None else Artifact.from_dict(found)

    def list(self) -> "List[Artifact]":
        """The descriptions of all artifacts."""
        return [Artifact.from_dict(each) for each in self._space().call("artifacts.list")]

    def exists(self, name: str) -> bool:
        """Whether an artifact has this name."""
        return bool(self._space().call("artifacts.exists", name=name))

    def delete(self, name: str) -> None:
        """Deletes an artifact; it does not have to exist."""
        self._space().call("artifacts.delete", name=name)


class FileArtifactStore(ArtifactStore):
    """The artifacts of a folder."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        from ..storage import FileStorage

        # A storage keeps its artifacts in artifacts/; a store that was given such a folder is that storage's.
        self.path_obj = Path(path)
        base = self.path_obj.parent if self.path_obj.name == "artifacts" else self.path_obj
        super().__init__(FileStorage(base), os.fspath(path))

    def register(self, name: str, description: str, metadata: Optional[Mapping[str, Any]] = None) -> Artifact:
        """Registers a file in the folder as an artifact: text if it is UTF-8, else bytes."""
        if ".." in Path(name).parts or os.path.isabs(name):
            raise ValueError("Path traversal attempt detected: %r" % name)
        try:
            data = (Path(self.storage.root) / "artifacts" / name).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            raise ArtifactNotFoundError(name) from None
        try:
            return self.save(name, data.decode("utf-8"), description, metadata)
        except UnicodeDecodeError:
            return self.save(name, data, description, metadata)


class RedisArtifactStore(ArtifactStore):
    """The artifacts of a Redis server; the prefix is ``P:artifacts`` for a storage with the prefix ``P``."""

    def __init__(self, redis: Any, prefix: str = "py_code_mode:artifacts") -> None:
        from ..storage import redis_storage

        super().__init__(redis_storage(redis, prefix, "artifacts"), prefix)


class ArtifactsNamespace:
    """A store as code sees it."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self.path = store.path
        self.save, self.load, self.get = store.save, store.load, store.get
        self.list, self.exists, self.delete = store.list, store.exists, store.delete


ArtifactStoreProtocol = ArtifactStore

__all__ = ["Artifact", "ArtifactStore", "ArtifactStoreProtocol", "FileArtifactStore", "RedisArtifactStore", "ArtifactsNamespace",
           "ArtifactNotFoundError"]
