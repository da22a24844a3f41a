"""Packages that the code of a project can import."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Union

from ..errors import DependencyError, DepsError, RuntimeDepsDisabledError

if TYPE_CHECKING:
    from .._core import SpaceHandle


class SyncResult(NamedTuple):
    """What an installation came to."""

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


class DepsNamespace:
    """The packages of a storage, from the host. All methods wait."""

    def __init__(self, space: Callable[[], "SpaceHandle"]) -> None:
        self._space = space

    def list(self) -> "List[str]":
        return list(self._space().call("deps.list"))

    def add(self, package: str) -> SyncResult:
        """Installs it, then records it; DepsError with the installer's words where that fails."""
        return _result(self._space().call("deps.add", package=package))

    def remove(self, package: str) -> bool:
        """From the list and the environment; whether it was there."""
        return bool(self._space().call("deps.remove", package=package))

    def sync(self) -> SyncResult:
        """Makes the environment what the list says."""
        return _result(self._space().call("deps.sync"))

    def __repr__(self) -> str:
        return "<DepsNamespace: %d package(s) configured>" % len(self.list())


def _result(data: Mapping[str, Any]) -> SyncResult:
    parts = sync_dict(data)
    return SyncResult(*(frozenset(parts[name]) for name in SyncResult._fields))


DepsStore = DepsNamespace

__all__ = ["SyncResult", "DepsNamespace", "DepsStore", "collect_configured_deps", "RuntimeDepsDisabledError",
           "DependencyError", "DepsError"]
