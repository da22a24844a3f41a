"""Packages that the code of a project can import."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Union

from .._part import StoragePart
from ..errors import DependencyError, DepsError, RuntimeDepsDisabledError


class SyncResult(NamedTuple):
    """The outcome of an installation."""

    installed: FrozenSet[str]
    already_present: FrozenSet[str]
    failed: FrozenSet[str]


def sync_dict(data: Mapping[str, Any]) -> Dict[str, List[str]]:
    """``{installed, already_present, failed}``"""
    return {name: list(data.get(name) or []) for name in ("installed", "already_present", "failed")}


def remove_dict(package: str, removed: bool) -> Dict[str, Any]:
    """``{removed, not_found, failed, removed_from_config}``"""
    return {"removed": [package] if removed else [], "not_found": [] if removed else [package], "failed": [],
            "removed_from_config": removed}


def collect_configured_deps(deps: Optional[Sequence[str]],
                            deps_file: Union[str, "os.PathLike[str]", None]) -> List[str]:
    """Packages of a list and of a requirements file, each once."""
    found = list(deps or ())
    if deps_file is not None and Path(deps_file).is_file():
        for line in Path(deps_file).read_text(encoding="utf-8").splitlines():
            line = line.strip()
            if line and not line.startswith("#"):
                found.append(line)
    return list(dict.fromkeys(found))


class DepsStore(StoragePart):
    """The packages of a storage. Recording and installing are one step: a package that cannot be installed is not recorded."""

    def list(self) -> "List[str]":
        """The listed packages."""
        return list(self._space().call("deps.list"))

    def add(self, package: str) -> SyncResult:
        """Installs a package and adds it to the configuration; raises DepsError with the installer's message if that fails."""
        return _result(self._space().call("deps.add", package=package))

    def remove(self, package: str) -> bool:
        """Removes a package from the configuration and the environment, and returns whether it was there."""
        return bool(self._space().call("deps.remove", package=package))

    def exists(self, package: str) -> bool:
        """Whether it is listed, in any version."""
        return _base(package) in {_base(each) for each in self.list()}

    def clear(self) -> None:
        """Removes all."""
        for package in self.list():
            self.remove(_base(package))

    def hash(self) -> str:
        """SHA-256 of the list."""
        return hashlib.sha256("\n".join(sorted(self.list())).encode()).hexdigest()

    def sync(self) -> SyncResult:
        """Installs and removes packages so that the environment matches the list."""
        return _result(self._space().call("deps.sync"))


def _base(package: str) -> str:
    return re.split(r"[\[<>=!~]", package)[0].strip().lower().replace("_", "-")


class FileDepsStore(DepsStore):
    """The packages of a folder."""

    def __init__(self, base_path: Union[str, "os.PathLike[str]"]) -> None:
        from ..storage import FileStorage

        super().__init__(FileStorage(base_path))


class RedisDepsStore(DepsStore):
    """The packages of a Redis server; the prefix is ``P:deps`` for a storage with the prefix ``P``."""

    def __init__(self, redis: Any, prefix: str = "py_code_mode:deps") -> None:
        from ..storage import redis_storage

        super().__init__(redis_storage(redis, prefix, "deps"))


class MemoryDepsStore(DepsStore):
    """Packages in memory, lost with the store."""

    def __init__(self) -> None:
        self._use_temporary()


class PackageInstaller:
    """Installs the packages of a store, in at most ``timeout`` seconds. PIP_* and UV_* variables configure pip and uv."""

    def __init__(self, timeout: float = 120.0, extra_args: Optional[Sequence[str]] = None) -> None:
        if extra_args:
            raise ValueError("Disallowed extra argument: %s" % extra_args[0])
        self.timeout = timeout

    def sync(self, store: DepsStore) -> SyncResult:
        """Installs and removes packages so that the environment matches the list."""
        from .._core import SpaceHandle, milliseconds
        from .._engine import default_engine

        space = SpaceHandle(default_engine(), {**store.storage.space_options(), "install_timeout_ms": milliseconds(self.timeout)})
        try:
            return _result(space.call("deps.sync"))
        finally:
            space.close()


class DepsNamespace:
    """The packages of a storage as code sees them. All methods block."""

    def __init__(self, store: DepsStore, installer: Optional[PackageInstaller] = None) -> None:
        self.storage = store.storage
        self.add, self.list, self.remove = store.add, store.list, store.remove
        self._store, self._installer = store, installer

    def sync(self) -> SyncResult:
        """Installs and removes packages so that the environment matches the list."""
        return self._store.sync() if self._installer is None else self._installer.sync(self._store)

    def __repr__(self) -> str:
        return "<DepsNamespace: %d package(s) configured>" % len(self.list())


class ControlledDepsNamespace:
    """The same with the switch of ``allow_runtime_deps``."""

    def __init__(self, wrapped: DepsNamespace, allow_runtime: bool = True) -> None:
        self._allowed = allow_runtime
        self._add, self._remove = wrapped.add, wrapped.remove
        self.list, self.sync = wrapped.list, wrapped.sync

    def add(self, package: str) -> SyncResult:
        """Installs a package, if the code may."""
        self._check("installation")
        return self._add(package)

    def remove(self, package: str) -> bool:
        """Removes a package, if the code may."""
        self._check("modification")
        return self._remove(package)

    def _check(self, what: str) -> None:
        if not self._allowed:
            raise RuntimeDepsDisabledError("Runtime dependency %s is disabled. Dependencies must be pre-configured before "
                                           "session start." % what)

    def __repr__(self) -> str:
        return "<ControlledDepsNamespace: runtime=%s>" % ("enabled" if self._allowed else "disabled")


def _result(data: Mapping[str, Any]) -> SyncResult:
    parts = sync_dict(data)
    return SyncResult(*(frozenset(parts[name]) for name in SyncResult._fields))


__all__ = ["SyncResult", "DepsNamespace", "ControlledDepsNamespace", "DepsStore", "FileDepsStore", "RedisDepsStore",
           "MemoryDepsStore", "PackageInstaller", "collect_configured_deps", "RuntimeDepsDisabledError",
           "DependencyError", "DepsError"]
